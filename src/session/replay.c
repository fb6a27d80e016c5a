#include "session/session.h"

#include "session/prompt_media.h"

/* Forwards and commits tokens[from..to), all as one kind of row, in segments of at most `rows` that cut none of
 * `media`. */
static kakeya_status replay_stretch(kakeya_session *session, backend_cache *cache, const int32_t *tokens, size_t from,
                                    size_t to, segment_kind kind, prompt_media *media, float *logits,
                                    kakeya_error *error) {
    const decode_timeline *t = &session->timeline;
    size_t rows =
        kind == SEGMENT_PROMPT ? (size_t)session->options.prompt_chunk_tokens : (size_t)session_decode_rows(session);
    kakeya_status status = KAKEYA_OK;
    while (status == KAKEYA_OK && from < to) {
        const size_t end = to - from < rows ? to : from + rows;
        int n = (int)(prompt_media_end(media, from, end) - from);
        bool last = logits && from + (size_t)n == to;
        backend_segment segment = {.cache = cache,
                                   .tokens = tokens + from,
                                   .n = n,
                                   .kind = kind,
                                   .first_logit_row = last ? n - 1 : n,
                                   .logits = logits};
        bool ready;
        status = prompt_media_give(media, session->engine, &session->account, from, from + (size_t)n, NULL, &ready,
                                   &segment.given, &segment.n_given, error);
        if (status == KAKEYA_OK) status = t->ops->forward(t->model, &segment, 1, error);
        if (status == KAKEYA_OK) status = t->ops->cache_commit(cache, n, error);
        from += (size_t)n;
    }
    return status;
}

static segment_kind kind_at(const decode_timeline *t, size_t held, size_t position) {
    return position < held && t->row_kind[position] != ROW_DECODE ? SEGMENT_PROMPT : SEGMENT_DECODE;
}

kakeya_status session_replay(kakeya_session *session, const int32_t *tokens, size_t n, float *logits,
                             backend_cache **out, kakeya_error *error) {
    const decode_timeline *t = &session->timeline;
    size_t held = (size_t)t->ops->cache_length(t->cache);
    backend_cache *cache = NULL;
    prompt_media media;
    engine_turn_begin(session->engine);
    kakeya_status status = prompt_media_of_timeline(session->engine, &session->account, t, &media, error);
    if (status == KAKEYA_OK) status = t->ops->cache_create(t->model, &session->cache_options, &cache, error);
    for (size_t from = 0; status == KAKEYA_OK && from < n;) {
        segment_kind kind = kind_at(t, held, from);
        size_t to = from + 1;
        while (to < n && kind_at(t, held, to) == kind) to++;
        status = replay_stretch(session, cache, tokens, from, to, kind, &media, to == n ? logits : NULL, error);
        from = to;
    }
    if (status != KAKEYA_OK && cache) {
        t->ops->cache_destroy(cache);
        cache = NULL;
    }
    prompt_media_free(&media);
    engine_turn_end(session->engine);
    *out = cache;
    return status;
}
