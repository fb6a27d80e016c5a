/* The learner of drafters (backend/backend_train.h) on a device, float32 throughout: what the CPU's computes
 * (backend/cpu/learner.h, whose comments hold here), for the blocks of many sequences at once.
 *
 * Shapes: S sequences of T positions and N rows, R = S N, X = S T, C = T + N columns, H hidden. */
#ifndef KAKEYA_BACKEND_CUDA_LEARNER_H
#define KAKEYA_BACKEND_CUDA_LEARNER_H

#include "backend/backend_train.h"

size_t cuda_learner_bytes(backend_model *m, const learner_options *options);
kakeya_status cuda_learner_create(backend_model *m, const learner_options *options, backend_learner **out,
                                  kakeya_error *error);
void cuda_learner_destroy(backend_learner *l);
void cuda_learner_weights(backend_learner *l, const float *weights);
kakeya_status cuda_learner_learn(backend_learner *l, const learner_sequence *sequences, int n, float scale,
                                 float *gradient, kakeya_error *error);

#endif
