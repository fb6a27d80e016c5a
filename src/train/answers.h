/* The model's own answers to prompts, to train on. */
#ifndef KAKEYA_TRAIN_ANSWERS_H
#define KAKEYA_TRAIN_ANSWERS_H

#include "kakeya.h"
#include "train/corpus.h"

enum { TRAIN_ANSWERS_MOST = 64 /* at a time */ };

typedef struct train_answers train_answers;

typedef struct train_answers_options {
    int at_a_time;     /* answers that are made together, 1 to TRAIN_ANSWERS_MOST */
    int context;       /* tokens of a prompt and its answer, at most */
    int tokens;        /* of an answer, at most */
    float temperature; /* 0: greedy */
    uint64_t seed;     /* with the prompt, decides what is sampled */
    bool (*interrupted)(void);
} train_answers_options;

/* The engine outlives it. */
kakeya_status train_answers_open(kakeya_engine *engine, const train_answers_options *options, train_answers **out,
                                 kakeya_error *error);
void train_answers_close(train_answers *a); /* NULL is fine */

/* *sequence: the prompt with its answer and the token that ended it, *length tokens, valid until the next call. The
 * same for the same prompt, whatever was answered before or is beside it. KAKEYA_CANCELLED when interrupted. */
kakeya_status train_answers_make(train_answers *a, const int32_t *prompt, int n, const int32_t **sequence, int *length,
                                 kakeya_error *error);
/* The same of prompts [first, first + n) of `prompts`, n up to at_a_time: each becomes a sequence of `out`, whose
 * `answer` says where it begins. When interrupted, none is added. */
kakeya_status train_answers_make_many(train_answers *a, const corpus *prompts, size_t first, int n, corpus *out,
                                      kakeya_error *error);

#endif
