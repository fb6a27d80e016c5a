/* Where a prompt is worth keeping: positions at which other prompts are likely to part from it. */
#ifndef KAKEYA_SERVE_ANSWER_CHECKPOINTS_H
#define KAKEYA_SERVE_ANSWER_CHECKPOINTS_H

#include "serve/store.h"

enum { ANSWER_MAX_CHECKPOINTS = 64 };

typedef struct checkpoint {
    size_t position; /* tokens */
    store_reason reason;
} checkpoint;

/* The checkpoints of ids[0..n) behind the first `known` tokens, in ascending order, all below n: the end of the leading
 * system turn, points of a grid that get rarer with their distance from the end, and n_stable (0: none), where the
 * conversation ends and the answer's turn begins. Returns how many. */
size_t answer_checkpoints(const kakeya_tokenizer *tokenizer, const int32_t *ids, size_t n, size_t n_stable,
                          size_t known, checkpoint out[ANSWER_MAX_CHECKPOINTS]);

#endif
