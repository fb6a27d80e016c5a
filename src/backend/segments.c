#include "backend/segments.h"

#include "base/error.h"

bool backend_token_exists(const model_config *config, int32_t token) {
    return token >= 0 && token < config->vocab && (!config->ple_width || token < config->ple_vocab);
}

static kakeya_status check_tokens(const model_config *config, const backend_segment *r, kakeya_error *error) {
    for (int i = 0; i < r->n; i++) {
        if (backend_token_exists(config, r->tokens[i])) continue;
        bool embedded = r->tokens[i] >= 0 && r->tokens[i] < config->vocab;
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "token %d is %d, outside the %s of %d", i, (int)r->tokens[i],
                         embedded ? "per-layer table" : "vocabulary", embedded ? config->ple_vocab : config->vocab);
    }
    return KAKEYA_OK;
}

kakeya_status backend_check_segments(const model_config *config, backend_segment *segments, int n_segments,
                                     int max_rows, kakeya_error *error) {
    if (n_segments < 1 || n_segments > BACKEND_MAX_FORWARD)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "%d segments in one forward; 1 to %d are possible", n_segments,
                         (int)BACKEND_MAX_FORWARD);
    int of_kind[2] = {0};
    for (int s = 0; s < n_segments; s++) {
        segments[s].status = KAKEYA_OK;
        of_kind[segments[s].kind]++;
    }
    if (of_kind[SEGMENT_DECODE] > BACKEND_MAX_SEGMENTS || of_kind[SEGMENT_PROMPT] > BACKEND_MAX_PROMPTS)
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "%d prompts beside %d answers in one forward; %d and %d are possible at most",
                         of_kind[SEGMENT_PROMPT], of_kind[SEGMENT_DECODE], (int)BACKEND_MAX_PROMPTS,
                         (int)BACKEND_MAX_SEGMENTS);
    int rows = 0;
    for (int s = 0; s < n_segments; s++) {
        backend_segment *r = &segments[s];
        if (r->n < 1 || r->n > max_rows - rows)
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "segment %d has %d tokens; a forward takes 1 to %d in all",
                             s, r->n, max_rows);
        rows += r->n;
        r->status = check_tokens(config, r, error);
        if (r->status) return r->status;
        for (int other = 0; other < s; other++) {
            if (segments[other].cache == r->cache)
                return error_set(error, KAKEYA_INVALID_ARGUMENT, "segments %d and %d use the same cache", other, s);
        }
    }
    return KAKEYA_OK;
}

static kakeya_status check_draft(const model_config *config, const backend_draft_request *r, const timeline *t,
                                 kakeya_error *error) {
    if ((unsigned)r->drafter >= BACKEND_DRAFTERS)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "drafter %d is none of a model's", (int)r->drafter);
    if (r->drafter == BACKEND_BLOCK_DRAFTER && !t->options.keep_draft_context)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "this cache keeps no drafter context");
    if (r->drafter == BACKEND_ASSISTANT && !timeline_has_state(t))
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "the state of this cache's last position is not known");
    if (r->n < 1 || r->n > BACKEND_MAX_DRAFT)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "cannot draft %d tokens; 1 to %d", r->n,
                         (int)BACKEND_MAX_DRAFT);
    if (t->pending) return error_set(error, KAKEYA_INVALID_ARGUMENT, "cannot draft with %d pending rows", t->pending);
    if (r->bonus < 0 || r->bonus >= config->vocab)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "bonus token %d is outside the vocabulary of %d",
                         (int)r->bonus, config->vocab);
    return KAKEYA_OK;
}

kakeya_status backend_check_drafts(const model_config *config, backend_draft_request *requests, int n_requests,
                                   const timeline *(*timeline_of)(const backend_cache *cache), kakeya_error *error) {
    if (n_requests < 1 || n_requests > BACKEND_MAX_SEGMENTS)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "drafts for %d caches; 1 to %d are possible", n_requests,
                         (int)BACKEND_MAX_SEGMENTS);
    for (int i = 0; i < n_requests; i++) requests[i].status = KAKEYA_OK;
    for (int i = 0; i < n_requests; i++) {
        backend_draft_request *r = &requests[i];
        r->status = check_draft(config, r, timeline_of(r->cache), error);
        if (r->status) return r->status;
        for (int other = 0; other < i; other++) {
            if (requests[other].cache == r->cache)
                return error_set(error, KAKEYA_INVALID_ARGUMENT, "draft requests %d and %d use the same cache", other,
                                 i);
        }
    }
    return KAKEYA_OK;
}

kakeya_status backend_draft_each(const backend_draft_fn drafts_of[BACKEND_DRAFTERS], backend_model *m,
                                 backend_draft_request *requests, int n_requests, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    for (int drafter = 0; drafter < BACKEND_DRAFTERS && !status; drafter++) {
        backend_draft_request own[BACKEND_MAX_SEGMENTS];
        int place[BACKEND_MAX_SEGMENTS], n = 0;
        for (int i = 0; i < n_requests; i++) {
            if ((int)requests[i].drafter != drafter) continue;
            place[n] = i;
            own[n++] = requests[i];
        }
        if (n) status = drafts_of[drafter](m, own, n, error);
        for (int i = 0; i < n; i++) requests[place[i]].status = own[i].status;
    }
    return status;
}
