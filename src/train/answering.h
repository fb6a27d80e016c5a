/* The model's own answers to many prompts, several at a time (answers.h makes one after the other). An answer is the
 * same whatever is beside it. */
#ifndef KAKEYA_TRAIN_ANSWERING_H
#define KAKEYA_TRAIN_ANSWERING_H

#include "train/answers.h"
#include "train/corpus.h"

enum { ANSWERING_MOST = 64 /* at a time */ };

typedef struct answering answering;

/* The engine outlives it. */
kakeya_status answering_open(kakeya_engine *engine, const train_answers_options *options, answering **out,
                             kakeya_error *error);
void answering_close(answering *a); /* NULL is fine */
/* Prompts [first, first + n) of `prompts`, n up to ANSWERING_MOST: each with its answer, and the token that ended it,
 * becomes a sequence of `out`, whose `answer` says where it begins. KAKEYA_CANCELLED when interrupted: none is added.
 */
kakeya_status answering_make(answering *a, const corpus *prompts, size_t first, int n, corpus *out,
                             kakeya_error *error);

#endif
