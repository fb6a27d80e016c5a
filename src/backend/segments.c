#include "backend/segments.h"

#include "base/error.h"

kakeya_status backend_check_segments(const gemma4_config *config, const backend_segment *segments, int n_segments,
                                     kakeya_error *error) {
    for (int s = 0; s < n_segments; s++) {
        const backend_segment *r = &segments[s];
        for (int i = 0; i < r->n; i++) {
            if (r->tokens[i] < 0 || r->tokens[i] >= config->vocab) {
                return error_set(error, KAKEYA_INVALID_ARGUMENT, "token %d is %d, outside the vocabulary of %d", i,
                                 (int)r->tokens[i], config->vocab);
            }
            if (config->ple_width && r->tokens[i] >= config->ple_vocab) {
                return error_set(error, KAKEYA_INVALID_ARGUMENT, "token %d is %d, outside the per-layer table of %d", i,
                                 (int)r->tokens[i], config->ple_vocab);
            }
        }
        for (int other = 0; other < s; other++) {
            if (segments[other].cache == r->cache) {
                return error_set(error, KAKEYA_INVALID_ARGUMENT, "segments %d and %d use the same cache", other, s);
            }
        }
    }
    return KAKEYA_OK;
}
