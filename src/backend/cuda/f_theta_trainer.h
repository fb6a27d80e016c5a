/* The verbs of an f_theta trainer, for the table of training (train.c). */
#ifndef KAKEYA_BACKEND_CUDA_F_THETA_TRAINER_H
#define KAKEYA_BACKEND_CUDA_F_THETA_TRAINER_H

#include "backend/backend_train.h"

size_t cuda_f_theta_trainer_bytes(backend_model *m, const f_theta_trainer_options *options);
kakeya_status cuda_f_theta_trainer_create(backend_model *m, const f_theta_trainer_options *o,
                                          backend_f_theta_trainer **out, kakeya_error *error);
void cuda_f_theta_trainer_destroy(backend_f_theta_trainer *s);
void cuda_f_theta_trainer_seconds(const backend_f_theta_trainer *s, double seconds[F_THETA_PARTS]);
void cuda_f_theta_trainer_weights(backend_f_theta_trainer *s, const float *weights);
kakeya_status cuda_f_theta_trainer_learn_many(backend_f_theta_trainer *s, const f_theta_trainer_sequence *sequences,
                                              int n, float *gradient, kakeya_error *error);

#endif
