/* The verbs of a restoration trainer, for the table of training (train.c). */
#ifndef KAKEYA_BACKEND_CUDA_RESTORATION_TRAINER_H
#define KAKEYA_BACKEND_CUDA_RESTORATION_TRAINER_H

#include "backend/backend_train.h"

size_t cuda_restoration_trainer_bytes(backend_model *m, const restoration_trainer_options *options);
kakeya_status cuda_restoration_trainer_create(backend_model *m, const restoration_trainer_options *o,
                                              backend_restoration_trainer **out, kakeya_error *error);
void cuda_restoration_trainer_destroy(backend_restoration_trainer *s);
void cuda_restoration_trainer_seconds(const backend_restoration_trainer *s, double seconds[RESTORATION_PARTS]);
void cuda_restoration_trainer_weights(backend_restoration_trainer *s, const float *weights);
kakeya_status cuda_restoration_trainer_learn_many(backend_restoration_trainer *s,
                                                  const restoration_trainer_sequence *sequences, int n, float *gradient,
                                                  kakeya_error *error);

#endif
