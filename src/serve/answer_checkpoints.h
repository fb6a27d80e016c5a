/* Where a prompt is worth keeping: positions at which other prompts are likely to part from it. */
#ifndef KAKEYA_SERVE_ANSWER_CHECKPOINTS_H
#define KAKEYA_SERVE_ANSWER_CHECKPOINTS_H

#include "serve/store.h"

enum {
    ANSWER_MAX_CHECKPOINTS = 64,
    CHECKPOINT_LEAST_ADDED = 256, /* tokens: a copy for fewer costs more than computing them again */
};

typedef struct checkpoint {
    size_t position; /* tokens */
    store_reason reason;
} checkpoint;

/* The checkpoints of ids[0..n) behind the first `known` tokens, in ascending order, each at least
 * CHECKPOINT_LEAST_ADDED tokens behind the one before it, all below n. The prompt is cut there, and every cut is a pass
 * of its own, so they are few: a grid of 2,048 tokens whose points get rarer with their distance from the end, each
 * moved back to the start of a user's turn where there is one; and one more, the start of the last user's turn, since
 * what a client puts into it need not be there in the next request, or else the end of the system turn, which other
 * conversations share. `end`: the prompt will be kept up to there anyway; 0: it will not. Returns how many. */
size_t answer_checkpoints(const kakeya_tokenizer *tokenizer, const int32_t *ids, size_t n, size_t end, size_t known,
                          checkpoint out[ANSWER_MAX_CHECKPOINTS]);

#endif
