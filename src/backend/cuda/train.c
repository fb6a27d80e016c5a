/* What training asks of this backend: sums of the closed form; students and
 * trainers, which learn from many sequences at once. */
#include <cuda_runtime_api.h>

#include "backend/cuda/drafter_trainer.h"
#include "backend/cuda/restoration_trainer.h"
#include "backend/cuda/statistics.h"

const backend_train_ops *cuda_train(void);

static void *pinned(size_t bytes) {
    void *memory = NULL;
    if (!cudaMallocHost(&memory, bytes)) return memory;
    (void)cudaGetLastError(); /* it is told by NULL */
    return NULL;
}

static void unpin(void *memory) { (void)cudaFreeHost(memory); }

const backend_train_ops *cuda_train(void) {
    static const backend_train_ops ops = {.statistics_create = cuda_statistics_create,
                                          .statistics_destroy = cuda_statistics_destroy,
                                          .statistics_add = cuda_statistics_sum,
                                          .statistics_read = cuda_statistics_read,
                                          .statistics_write = cuda_statistics_write,
                                          .statistics_seen = cuda_statistics_seen,
                                          .statistics_whiten = cuda_statistics_whiten,
                                          .statistics_apply = cuda_statistics_apply,
                                          .statistics_targets = cuda_statistics_targets,
                                          .weight_row = cuda_statistics_weight_row,
                                          .chooses = true,
                                          .host_memory = pinned,
                                          .free_host_memory = unpin,
                                          .restoration_trainer_bytes = cuda_restoration_trainer_bytes,
                                          .restoration_trainer_create = cuda_restoration_trainer_create,
                                          .restoration_trainer_destroy = cuda_restoration_trainer_destroy,
                                          .restoration_trainer_weights = cuda_restoration_trainer_weights,
                                          .restoration_trainer_learn_many = cuda_restoration_trainer_learn_many,
                                          .restoration_trainer_seconds = cuda_restoration_trainer_seconds,
                                          .drafter_trainer_bytes = cuda_drafter_trainer_bytes,
                                          .drafter_trainer_create = cuda_drafter_trainer_create,
                                          .drafter_trainer_destroy = cuda_drafter_trainer_destroy,
                                          .drafter_trainer_weights = cuda_drafter_trainer_weights,
                                          .drafter_trainer_learn = cuda_drafter_trainer_learn};
    return &ops;
}
