/* The verbs of a student, for the table of training (train.c). */
#ifndef KAKEYA_BACKEND_CUDA_STUDENTS_H
#define KAKEYA_BACKEND_CUDA_STUDENTS_H

#include "backend/backend_train.h"

size_t cuda_student_bytes(backend_model *m, const student_options *options);
kakeya_status cuda_student_create(backend_model *m, const student_options *o, backend_student **out,
                                  kakeya_error *error);
void cuda_student_destroy(backend_student *s);
void cuda_student_weights(backend_student *s, const float *weights);
kakeya_status cuda_student_learn_many(backend_student *s, const student_sequence *sequences, int n, float *gradient,
                                      kakeya_error *error);

#endif
