#include "backend/segments.h"

#include "base/error.h"

bool backend_token_exists(const gemma4_config *config, int32_t token) {
    return token >= 0 && token < config->vocab && (!config->ple_width || token < config->ple_vocab);
}

kakeya_status backend_check_segments(const gemma4_config *config, const backend_segment *segments, int n_segments,
                                     kakeya_error *error) {
    for (int s = 0; s < n_segments; s++) {
        const backend_segment *r = &segments[s];
        for (int i = 0; i < r->n; i++) {
            if (backend_token_exists(config, r->tokens[i])) continue;
            bool embedded = r->tokens[i] >= 0 && r->tokens[i] < config->vocab;
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "token %d is %d, outside the %s of %d", i,
                             (int)r->tokens[i], embedded ? "per-layer table" : "vocabulary",
                             embedded ? config->ple_vocab : config->vocab);
        }
        for (int other = 0; other < s; other++) {
            if (segments[other].cache == r->cache) {
                return error_set(error, KAKEYA_INVALID_ARGUMENT, "segments %d and %d use the same cache", other, s);
            }
        }
    }
    return KAKEYA_OK;
}
