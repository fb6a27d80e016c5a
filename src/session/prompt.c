#include "session/prompt.h"

#include <string.h>

/* The timeline becomes its first `keep` tokens or fewer; afterwards the cache holds all that is left of it. */
static kakeya_status keep_prefix(kakeya_session *session, size_t keep, kakeya_error *error) {
    decode_timeline *t = &session->timeline;
    const backend_ops *ops = t->ops;
    if (!t->cache) return session_reset_cache(session, error);
    size_t length = (size_t)ops->cache_length(t->cache);
    if ((size_t)ops->cache_min_truncate(t->cache) > (keep < length ? keep : length))
        return session_reset_cache(session, error);
    if (keep < length) {
        decode_timeline_drop_logits(t);
        kakeya_status status = ops->cache_truncate(t->cache, (int)keep, error);
        if (status != KAKEYA_OK) return status;
        length = keep;
    }
    if (t->n > length) {
        ngram_truncate(&session->workspace.ngram, t->tokens, length);
        t->n = length;
    }
    return KAKEYA_OK;
}

/* How many of the tokens the timeline begins with and holds in its cache. */
static size_t common_prefix(const decode_timeline *t, const int32_t *tokens, size_t n) {
    size_t cached = t->cache ? (size_t)t->ops->cache_length(t->cache) : 0, common = 0;
    while (common < n && common < t->n && common < cached && tokens[common] == t->tokens[common]) common++;
    return common;
}

size_t kakeya_session_reachable(const kakeya_session *session, const int32_t *tokens, size_t n) {
    const decode_timeline *t = &session->timeline;
    size_t common = common_prefix(t, tokens, n);
    return common && (size_t)t->ops->cache_min_truncate(t->cache) <= common ? common : 0;
}

kakeya_status kakeya_session_truncate(kakeya_session *session, size_t n, kakeya_error *error) {
    decode_timeline *t = &session->timeline;
    if (n == t->n) return KAKEYA_OK;
    size_t length = t->cache ? (size_t)t->ops->cache_length(t->cache) : 0;
    size_t least = t->cache ? (size_t)t->ops->cache_min_truncate(t->cache) : 0;
    if (n && (n > length || n < least))
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "cannot truncate to %zu tokens: the memory can go back to %zu to %zu", n, least, length);
    engine_turn_begin(session->engine);
    kakeya_status status = n ? keep_prefix(session, n, error) : session_reset_cache(session, error);
    engine_turn_end(session->engine);
    return status;
}

kakeya_status prompt_begin(kakeya_session *session, prompt_work *work, kakeya_error *error) {
    decode_timeline *t = &session->timeline;
    const int32_t *tokens = work->tokens;
    size_t n = work->n, common = common_prefix(t, tokens, n);
    if (common == n && t->n == n && t->has_logits) {
        work->reused = work->first = n;
        return KAKEYA_OK;
    }
    /* the last token is computed in any case: its row predicts what follows */
    kakeya_status status = keep_prefix(session, common == n && n > 0 ? n - 1 : common, error);
    if (status != KAKEYA_OK) return status;
    work->reused = work->first = t->n;
    decode_timeline_drop_logits(t);
    return KAKEYA_OK;
}

bool prompt_done(const kakeya_session *session, const prompt_work *work) { return session->timeline.n == work->n; }

size_t prompt_left(const kakeya_session *session, const prompt_work *work) { return work->n - session->timeline.n; }

static kakeya_status cancelled(const kakeya_session *session, const prompt_work *work, kakeya_error *error) {
    if (prompt_done(session, work))
        return error_set(error, KAKEYA_CANCELLED, "the prompt was cancelled, all %zu tokens are held", work->n);
    return error_set(error, KAKEYA_CANCELLED, "the prompt was cancelled after %zu of %zu tokens", session->timeline.n,
                     work->n);
}

kakeya_status prompt_check(const kakeya_session *session, const prompt_work *work, kakeya_error *error) {
    return work->cancellable && atomic_load(&session->cancelled) ? cancelled(session, work, error) : KAKEYA_OK;
}

kakeya_status prompt_segment(kakeya_session *session, prompt_work *work, size_t most, backend_segment *segment,
                             kakeya_error *error) {
    decode_timeline *t = &session->timeline;
    size_t chunk = (size_t)session->options.prompt_chunk_tokens;
    if (chunk > most) chunk = most;
    work->end = prompt_left(session, work) > chunk ? t->n + chunk : work->n;
    bool last = work->end == work->n;
    int rows = (int)(work->end - t->n);
    kakeya_status status = decode_timeline_reserve(t, work->end, error);
    if (status == KAKEYA_OK && last) status = decode_timeline_keep_logits(t, error);
    if (status != KAKEYA_OK) return status;
    *segment = (backend_segment){.cache = t->cache,
                                 .tokens = work->tokens + t->n,
                                 .n = rows,
                                 .kind = SEGMENT_PROMPT,
                                 .first_logit_row = last ? rows - 1 : rows,
                                 .logits = t->logits};
    return KAKEYA_OK;
}

kakeya_status prompt_commit(kakeya_session *session, prompt_work *work, kakeya_error *error) {
    decode_timeline *t = &session->timeline;
    size_t rows = work->end - t->n;
    kakeya_status status = t->ops->cache_commit(t->cache, (int)rows, error);
    if (status != KAKEYA_OK) {
        (void)t->ops->cache_commit(t->cache, 0, NULL);
        return status;
    }
    memmove(t->tokens + t->n, work->tokens + t->n, rows * sizeof *t->tokens); /* may be the timeline's own array */
    memset(t->row_kind + t->n, SEGMENT_PROMPT, rows);
    t->n = work->end;
    t->has_logits = work->end == work->n;
    return KAKEYA_OK;
}

kakeya_status prompt_failed(const kakeya_session *session, const prompt_work *work, kakeya_status status,
                            kakeya_error *error) {
    return error_prefix(error, status, "prompt tokens %zu to %zu", session->timeline.n, work->end);
}

kakeya_status prompt_report(const kakeya_session *session, const prompt_work *work, kakeya_error *error) {
    size_t n = session->timeline.n;
    if (!work->progress || work->progress(work->user, "prompt", n - work->first, work->n - work->first) || n == work->n)
        return KAKEYA_OK;
    return cancelled(session, work, error);
}
