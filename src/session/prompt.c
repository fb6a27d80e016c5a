#include "session/prompt.h"

#include <string.h>

#include "media/digest.h"

/* Under the bounded policies, and where a backend has kernels of their own for prompts, a row says of what kind it was
 * computed. */
static bool kinds_differ(const kakeya_session *session) {
    return session->options.attention != KAKEYA_ATTENTION_NATIVE || session->timeline.ops->kinds_differ;
}

static size_t cached(const decode_timeline *t) { return t->cache ? (size_t)t->ops->cache_length(t->cache) : 0; }

/* The cache becomes its first `keep` positions or fewer, an empty one where it cannot go back so far. The timeline
 * keeps the token behind them where `and_newest` says so. */
static kakeya_status keep_prefix(kakeya_session *session, size_t keep, bool and_newest, kakeya_error *error) {
    decode_timeline *t = &session->timeline;
    const backend_ops *ops = t->ops;
    if (!t->cache) return session_reset_cache(session, error);
    size_t length = cached(t);
    if ((size_t)ops->cache_min_truncate(t->cache) > (keep < length ? keep : length))
        return session_reset_cache(session, error);
    if (keep < length) {
        decode_timeline_drop_logits(t);
        kakeya_status status = ops->cache_truncate(t->cache, (int)keep, error);
        if (status != KAKEYA_OK) return status;
        length = keep;
    }
    if (and_newest) length++;
    if (t->n > length) {
        ngram_truncate(&session->workspace.ngram, t->tokens, length);
        t->n = length;
    }
    decode_timeline_cut_images(t, length);
    return KAKEYA_OK;
}

/* How many of the tokens the timeline begins with and holds in its cache. */
static size_t common_prefix(const decode_timeline *t, const int32_t *tokens, size_t n) {
    size_t held = cached(t), common = 0;
    while (common < n && common < t->n && common < held && tokens[common] == t->tokens[common]) common++;
    return common;
}

static bool was_generated(const decode_timeline *t, size_t position) {
    return position >= cached(t) || t->row_kind[position] != ROW_PROMPT;
}

/* Positions of the cache that a timeline of its first n tokens keeps. A generated token is computed with what comes
 * behind it, as a row of the answer or of a prompt: cut behind it, the timeline is what it was when it was new. */
static size_t kept_of(const kakeya_session *session, size_t n) {
    return n && kinds_differ(session) && was_generated(&session->timeline, n - 1) ? n - 1 : n;
}

static bool can_keep(const kakeya_session *session, size_t n) {
    const decode_timeline *t = &session->timeline;
    return n && n <= cached(t) && decode_timeline_outside_images(t, n) == n &&
           (size_t)t->ops->cache_min_truncate(t->cache) <= kept_of(session, n);
}

/* As common_prefix, of keys, where it cuts no picture and no sound. */
static size_t common_keys(const decode_timeline *t, const int32_t *keys, size_t n) {
    const size_t held = cached(t);
    size_t common = 0, passed = 0;
    while (common < n && common < t->n && common < held) {
        const timeline_image *next = passed < t->n_images ? &t->images[passed] : NULL;
        if (!next || common < next->begin) {
            if (keys[common] != t->tokens[common]) break;
            common++;
            continue;
        }
        if (n < next->begin + next->n) break;
        for (size_t k = 0; k < next->n; k++)
            if (keys[next->begin + k] != image_digest_key(next->digest, k)) return common;
        common += next->n;
        passed++;
    }
    return common;
}

size_t kakeya_session_reachable(const kakeya_session *session, const int32_t *tokens, size_t n) {
    const decode_timeline *t = &session->timeline;
    size_t common = common_keys(t, tokens, n);
    bool newest = common < n && common < t->n && tokens[common] == t->tokens[common]; /* what follows is computed */
    bool reachable = newest ? (size_t)t->ops->cache_min_truncate(t->cache) <= common : can_keep(session, common);
    return reachable ? common : 0;
}

kakeya_status kakeya_session_truncate(kakeya_session *session, size_t n, kakeya_error *error) {
    const decode_timeline *t = &session->timeline;
    if (n == t->n) return KAKEYA_OK;
    if (n && !can_keep(session, n)) {
        size_t most = cached(t), least = t->cache ? (size_t)t->ops->cache_min_truncate(t->cache) : 0;
        while (least <= most && !can_keep(session, least)) least++;
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "cannot truncate to %zu tokens: the memory can go back to %zu to %zu", n, least, most);
    }
    size_t kept = kept_of(session, n);
    engine_turn_begin(session->engine);
    kakeya_status status = n ? keep_prefix(session, kept, kept < n, error) : session_reset_cache(session, error);
    engine_turn_end(session->engine);
    return status;
}

kakeya_status prompt_begin(kakeya_session *session, prompt_work *work, kakeya_error *error) {
    decode_timeline *t = &session->timeline;
    const int32_t *tokens = work->tokens;
    size_t n = work->n, keep = common_prefix(t, tokens, n);
    if (!work->again) keep = prompt_media_common(&work->media, t, keep);
    if (keep == n && t->n == n && t->has_logits) {
        work->reused = work->first = n;
        return KAKEYA_OK;
    }
    /* the last token is computed in any case: its row predicts what follows */
    if (keep == n && n > 0) keep--;
    keep = decode_timeline_outside_images(t, keep);
    /* an answer that ends earlier now ends with a row of this prompt */
    bool goes_on = keep < n && keep < t->n && tokens[keep] == t->tokens[keep];
    bool cut = !goes_on && keep && kinds_differ(session) && t->row_kind[keep - 1] == ROW_DECODE;
    if (cut) keep--;
    bool newest = kinds_differ(session) && (cut || (goes_on && was_generated(t, keep)));
    size_t least = t->cache ? (size_t)t->ops->cache_min_truncate(t->cache) : 0;
    if (work->again && t->n_images && (least > keep || keep < t->images[t->n_images - 1].begin))
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "the session's images are needed again: give them with the prompt");
    kakeya_status status = keep_prefix(session, keep, newest, error);
    if (status != KAKEYA_OK) return status;
    work->reused = work->first = cached(t);
    work->behind_answer = newest && work->first == keep;
    work->as_computed = work->again && kinds_differ(session);
    decode_timeline_drop_logits(t);
    return KAKEYA_OK;
}

/* Without memory (parked) nothing is computed. */
static size_t computed(const kakeya_session *session) {
    const decode_timeline *t = &session->timeline;
    return t->cache ? cached(t) : t->n;
}

bool prompt_done(const kakeya_session *session, const prompt_work *work) {
    return computed(session) == work->n && session->timeline.n == work->n;
}

size_t prompt_left(const kakeya_session *session, const prompt_work *work) { return work->n - computed(session); }

static kakeya_status cancelled(const kakeya_session *session, const prompt_work *work, kakeya_error *error) {
    if (prompt_done(session, work))
        return error_set(error, KAKEYA_CANCELLED, "the prompt was cancelled, all %zu tokens are held", work->n);
    return error_set(error, KAKEYA_CANCELLED, "the prompt was cancelled after %zu of %zu tokens", computed(session),
                     work->n);
}

kakeya_status prompt_check(const kakeya_session *session, const prompt_work *work, kakeya_error *error) {
    return work->cancellable && atomic_load(&session->cancelled) ? cancelled(session, work, error) : KAKEYA_OK;
}

static segment_kind kind_at(const decode_timeline *t, size_t position) {
    return t->row_kind[position] == ROW_DECODE ? SEGMENT_DECODE : SEGMENT_PROMPT;
}

/* The end of the rows from `from` on that are computed again as one segment. */
static size_t end_of_kind(const kakeya_session *session, size_t from, size_t end) {
    const decode_timeline *t = &session->timeline;
    size_t rows = (size_t)session_decode_rows(session), at = from + 1;
    if (kind_at(t, from) == SEGMENT_DECODE && end > from + rows) end = from + rows;
    while (at < end && kind_at(t, at) == kind_at(t, from)) at++;
    return at;
}

kakeya_status prompt_segment(kakeya_session *session, prompt_work *work, size_t most, size_t room, media_time *time,
                             decode_first *first, backend_segment *segment, kakeya_error *error) {
    decode_timeline *t = &session->timeline;
    size_t chunk = (size_t)session->options.prompt_chunk_tokens, from = computed(session);
    if (chunk > most) chunk = most;
    work->end = prompt_left(session, work) > chunk ? from + chunk : work->n;
    if (work->as_computed) work->end = end_of_kind(session, from, work->end);
    work->end = prompt_media_end(&work->media, from, work->end);
    if (work->end - from > room) {
        *segment = (backend_segment){0};
        return KAKEYA_OK;
    }
    bool ready, last = work->end == work->n, chosen = last && first && first->choice != DECODE_FROM_LOGITS;
    int rows = (int)(work->end - from);
    kakeya_status status = decode_timeline_reserve(t, work->end, error);
    if (status == KAKEYA_OK && last && !chosen) status = decode_timeline_keep_logits(t, error);
    if (status != KAKEYA_OK) return status;
    *segment = (backend_segment){.cache = t->cache,
                                 .tokens = work->tokens + from,
                                 .n = rows,
                                 .kind = work->as_computed ? kind_at(t, from) : SEGMENT_PROMPT,
                                 .first_logit_row = last ? rows - 1 : rows,
                                 .logits = chosen ? NULL : t->logits};
    status = prompt_media_give(&work->media, session->engine, &session->account, from, work->end, time, &ready,
                               &segment->given, &segment->n_given, error);
    if (status != KAKEYA_OK) return status;
    if (!ready) {
        *segment = (backend_segment){0};
        return KAKEYA_OK;
    }
    if (chosen) decode_first_ask(first, &session->workspace.sampler, segment);
    return KAKEYA_OK;
}

kakeya_status prompt_read(kakeya_session *session, const prompt_work *work, decode_first *first,
                          const decode_options *options, int segment, kakeya_error *error) {
    if (work->end != work->n || first->choice == DECODE_FROM_LOGITS) return KAKEYA_OK;
    return decode_first_read(first, &session->timeline, &session->workspace.sampler, options, segment, work->n, error);
}

kakeya_status prompt_commit(kakeya_session *session, prompt_work *work, kakeya_status status, kakeya_error *error) {
    decode_timeline *t = &session->timeline;
    size_t from = computed(session), rows = work->end - from;
    const size_t known = t->n_images;
    for (size_t i = 0; i < work->media.n && status == KAKEYA_OK; i++) {
        const timeline_image *place = &work->media.medium[i].place;
        if (place->begin >= from && place->begin < work->end) status = decode_timeline_add_image(t, place, error);
    }
    if (status == KAKEYA_OK) status = t->ops->cache_commit(t->cache, (int)rows, error);
    if (status != KAKEYA_OK) {
        t->n_images = known;
        (void)t->ops->cache_commit(t->cache, 0, NULL);
        return status;
    }
    memmove(t->tokens + from, work->tokens + from, rows * sizeof *t->tokens); /* may be the timeline's own array */
    if (!work->as_computed) {
        memset(t->row_kind + from, ROW_PROMPT, rows);
        if (work->behind_answer && from == work->first) t->row_kind[from] = ROW_BEHIND_ANSWER;
    }
    t->n = work->end;
    t->has_logits = work->end == work->n && t->logits;
    return KAKEYA_OK;
}

kakeya_status prompt_failed(const kakeya_session *session, const prompt_work *work, kakeya_status status,
                            kakeya_error *error) {
    return error_prefix(error, status, "prompt tokens %zu to %zu", computed(session), work->end);
}

kakeya_status prompt_report(const kakeya_session *session, const prompt_work *work, kakeya_error *error) {
    size_t n = computed(session);
    if (!work->progress || work->progress(work->user, "prompt", n - work->first, work->n - work->first) || n == work->n)
        return KAKEYA_OK;
    return cancelled(session, work, error);
}
