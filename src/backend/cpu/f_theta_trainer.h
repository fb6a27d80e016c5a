/* The verbs of an f_theta trainer, for the table of training (train.c). */
#ifndef KAKEYA_BACKEND_CPU_F_THETA_TRAINER_H
#define KAKEYA_BACKEND_CPU_F_THETA_TRAINER_H

#include "backend/backend_train.h"

size_t cpu_f_theta_trainer_bytes(backend_model *m, const f_theta_trainer_options *options);
kakeya_status cpu_f_theta_trainer_create(backend_model *m, const f_theta_trainer_options *o,
                                         backend_f_theta_trainer **out, kakeya_error *error);
void cpu_f_theta_trainer_destroy(backend_f_theta_trainer *s);
void cpu_f_theta_trainer_weights(backend_f_theta_trainer *s, const float *weights);
kakeya_status cpu_f_theta_trainer_teach(backend_f_theta_trainer *s, backend_cache *cache, const int32_t *tokens, int n,
                                        kakeya_error *error);
void cpu_f_theta_trainer_learn(backend_f_theta_trainer *s, const f_theta_trainer_segment *segment, float *gradient,
                               f_theta_trainer_result *out);

#endif
