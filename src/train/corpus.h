/* Sequences of tokens in memory, for training that looks at them more than once. */
#ifndef KAKEYA_TRAIN_CORPUS_H
#define KAKEYA_TRAIN_CORPUS_H

#include "base/error.h"

typedef struct corpus_sequence {
    uint64_t begin; /* in tokens */
    int32_t length;
    int32_t answer; /* where what matters begins; 0: nowhere in particular */
} corpus_sequence;

/* Zeroed: empty. */
typedef struct corpus {
    int32_t *tokens;
    corpus_sequence *sequence;
    size_t n_tokens, n, room_tokens, room;
} corpus;

kakeya_status corpus_add(corpus *c, const int32_t *tokens, int n, int answer, kakeya_error *error);
void corpus_free(corpus *c);

#endif
