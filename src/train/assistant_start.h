/* What an MTP assistant from nothing begins with. */
#ifndef KAKEYA_TRAIN_ASSISTANT_START_H
#define KAKEYA_TRAIN_ASSISTANT_START_H

#include "model/assistant_values.h"

/* Random weights (assistant_values_begin), made to fit the verifier: both halves of the input count alike, queries have
 * the size of the verifier's, and, of verifiers whose hidden size is ASSISTANT_START_WIDEST at most, the head is the
 * best of its rank for the verifier's head, and the state what that head takes. values: assistant_values_count. */
enum { ASSISTANT_START_WIDEST = 1024 };
kakeya_status assistant_start(const assistant_config *c, const language_model *verifier, uint64_t seed, float *values,
                              kakeya_error *error);

#endif
