/* The trainer of drafters (backend/backend_train.h) on a device, float32 throughout: what the CPU's computes
 * (backend/cpu/drafter_trainer.h, whose comments hold here), for the blocks of many sequences at once.
 *
 * Shapes: S sequences of T positions and N rows, R = S N, X = S T, C = T + N columns, H hidden. */
#ifndef KAKEYA_BACKEND_CUDA_DRAFTER_TRAINER_H
#define KAKEYA_BACKEND_CUDA_DRAFTER_TRAINER_H

#include "backend/backend_train.h"

size_t cuda_drafter_trainer_bytes(backend_model *m, const drafter_trainer_options *options);
kakeya_status cuda_drafter_trainer_create(backend_model *m, const drafter_trainer_options *options,
                                          backend_drafter_trainer **out, kakeya_error *error);
void cuda_drafter_trainer_destroy(backend_drafter_trainer *l);
void cuda_drafter_trainer_weights(backend_drafter_trainer *l, const float *weights);
kakeya_status cuda_drafter_trainer_learn(backend_drafter_trainer *l, const drafter_trainer_sequence *sequences, int n,
                                         float scale, float *gradient, kakeya_error *error);

#endif
