/* The verbs of a student, for the table of training (train.c). */
#ifndef KAKEYA_BACKEND_CPU_STUDENTS_H
#define KAKEYA_BACKEND_CPU_STUDENTS_H

#include "backend/backend_train.h"

size_t cpu_student_bytes(backend_model *m, const student_options *options);
kakeya_status cpu_student_create(backend_model *m, const student_options *o, backend_student **out,
                                 kakeya_error *error);
void cpu_student_destroy(backend_student *s);
void cpu_student_weights(backend_student *s, const float *weights);
kakeya_status cpu_student_teach(backend_student *s, backend_cache *cache, const int32_t *tokens, int n,
                                kakeya_error *error);
void cpu_student_learn(backend_student *s, const student_segment *segment, float *gradient, student_result *out);

#endif
