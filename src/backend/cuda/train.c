/* What training asks of this backend: sums of the closed form; students and
 * learners, which learn from many sequences at once. */
#include <cuda_runtime_api.h>

#include "backend/cuda/learner.h"
#include "backend/cuda/moments.h"
#include "backend/cuda/students.h"

const backend_train_ops *cuda_train(void);

static void *pinned(size_t bytes) {
    void *memory = NULL;
    if (!cudaMallocHost(&memory, bytes)) return memory;
    (void)cudaGetLastError(); /* it is told by NULL */
    return NULL;
}

static void unpin(void *memory) { (void)cudaFreeHost(memory); }

const backend_train_ops *cuda_train(void) {
    static const backend_train_ops ops = {.moments_create = cuda_moments_create,
                                          .moments_destroy = cuda_moments_destroy,
                                          .moments_add = cuda_moments_sum,
                                          .moments_read = cuda_moments_read,
                                          .moments_write = cuda_moments_write,
                                          .moments_seen = cuda_moments_seen,
                                          .moments_whiten = cuda_moments_whiten,
                                          .moments_apply = cuda_moments_apply,
                                          .moments_targets = cuda_moments_targets,
                                          .weight_row = cuda_moments_weight_row,
                                          .chooses = true,
                                          .host_memory = pinned,
                                          .free_host_memory = unpin,
                                          .student_bytes = cuda_student_bytes,
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
