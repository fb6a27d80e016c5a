/* What training asks of this backend: students, which learn from many sequences at once. */
#include "backend/cuda/students.h"

const backend_train_ops *cuda_train(void);

const backend_train_ops *cuda_train(void) {
    static const backend_train_ops ops = {.student_bytes = cuda_student_bytes,
                                          .student_create = cuda_student_create,
                                          .student_destroy = cuda_student_destroy,
                                          .student_weights = cuda_student_weights,
                                          .student_learn_many = cuda_student_learn_many};
    return &ops;
}
