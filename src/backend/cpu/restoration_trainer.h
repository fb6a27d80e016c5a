/* The verbs of a restoration trainer, for the table of training (train.c). */
#ifndef KAKEYA_BACKEND_CPU_RESTORATION_TRAINER_H
#define KAKEYA_BACKEND_CPU_RESTORATION_TRAINER_H

#include "backend/backend_train.h"

size_t cpu_restoration_trainer_bytes(backend_model *m, const restoration_trainer_options *options);
kakeya_status cpu_restoration_trainer_create(backend_model *m, const restoration_trainer_options *o,
                                             backend_restoration_trainer **out, kakeya_error *error);
void cpu_restoration_trainer_destroy(backend_restoration_trainer *s);
void cpu_restoration_trainer_weights(backend_restoration_trainer *s, const float *weights);
kakeya_status cpu_restoration_trainer_teach(backend_restoration_trainer *s, backend_cache *cache, const int32_t *tokens,
                                            int n, kakeya_error *error);
void cpu_restoration_trainer_learn(backend_restoration_trainer *s, const restoration_trainer_segment *segment,
                                   float *gradient, restoration_trainer_result *out);

#endif
