#include "serve/answer_checkpoints.h"

#include <stdbool.h>

enum {
    GRID = 2048,
    LEAST_ADDED = 256, /* a copy for fewer tokens costs more than computing them again */
};

/* The end of the leading system turn, its line end included; 0 where the prompt begins otherwise. */
static size_t system_turn(const kakeya_tokenizer *t, const int32_t *ids, size_t n) {
    int32_t open = kakeya_tokenizer_find(t, "<|turn>"), close = kakeya_tokenizer_find(t, "<turn|>");
    int32_t role = kakeya_tokenizer_find(t, "system");
    if (open < 0 || close < 0 || role < 0 || n < 4 || ids[1] != open || ids[2] != role) return 0;
    for (size_t i = 3; i + 1 < n; i++)
        if (ids[i] == close) return i + 2;
    return 0;
}

/* About one point for every doubling of the distance from the end. */
static bool is_kept(size_t point, size_t n) {
    size_t distance = (n - point) / GRID, step = 1;
    while (step * 2 <= distance) step *= 2;
    return point / GRID % step == 0;
}

size_t answer_checkpoints(const kakeya_tokenizer *tokenizer, const int32_t *ids, size_t n, size_t n_stable,
                          size_t known, checkpoint out[ANSWER_MAX_CHECKPOINTS]) {
    size_t count = 0, last = known;
    size_t system = tokenizer ? system_turn(tokenizer, ids, n) : 0;
    if (n_stable >= n) n_stable = 0;
    for (size_t point = GRID;; point += GRID) {
        /* what comes before this point of the grid, then the point */
        if (system > last && system < point && system < n) {
            if (count < ANSWER_MAX_CHECKPOINTS && system != n_stable)
                out[count++] = (checkpoint){system, STORE_SYSTEM_TURN};
            if (system != n_stable) last = system;
        }
        if (point >= n) break;
        bool clear = point > last && (n_stable == 0 || point + LEAST_ADDED <= n_stable);
        if (clear && is_kept(point, n) && count + 1 < ANSWER_MAX_CHECKPOINTS) {
            out[count++] = (checkpoint){point, STORE_GRID};
            last = point;
        }
    }
    if (n_stable > known && n_stable - known >= LEAST_ADDED && count < ANSWER_MAX_CHECKPOINTS)
        out[count++] = (checkpoint){n_stable, STORE_PROMPT_END};
    return count;
}
