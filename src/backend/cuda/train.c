/* What training asks of this backend: students and learners, which learn from many sequences at once. */
#include "backend/cuda/learner.h"
#include "backend/cuda/students.h"

const backend_train_ops *cuda_train(void);

const backend_train_ops *cuda_train(void) {
    static const backend_train_ops ops = {.student_bytes = cuda_student_bytes,
                                          .student_create = cuda_student_create,
                                          .student_destroy = cuda_student_destroy,
                                          .student_weights = cuda_student_weights,
                                          .student_learn_many = cuda_student_learn_many,
                                          .learner_bytes = cuda_learner_bytes,
                                          .learner_create = cuda_learner_create,
                                          .learner_destroy = cuda_learner_destroy,
                                          .learner_weights = cuda_learner_weights,
                                          .learner_learn = cuda_learner_learn};
    return &ops;
}
