/* One segment on its way through the model: what it depends on, the buffers that it needs, and the list of its
 * operations. */
#ifndef KAKEYA_BACKEND_CUDA_PASS_H
#define KAKEYA_BACKEND_CUDA_PASS_H

#include "backend/cuda/model.h"
#include "backend/cuda/step.h"
#include "backend/cuda/stores.h"

typedef struct cuda_pass {
    backend_model *model;
    backend_cache *cache;
    bool prompt;
    int rows, position; /* position of row 0 */
    int evicted_end;    /* prompts: positions [sink, evicted_end) are evicted; 0: none are */
    graph_key key;
    step_head head;            /* of decode rows */
    const int32_t *tokens;     /* device: [rows] */
    float *hidden_states;      /* host, or NULL */
    int head_first, head_rows; /* rows that the head works on */
    cudaError_t failure;       /* the first one of what the launcher was refused */
} cuda_pass;

static inline void cuda_pass_note(cuda_pass *p, cudaError_t status) {
    if (p->failure == cudaSuccess) p->failure = status;
}

/* The pass of a segment behind the cache's committed rows. Grows what depends on the context; nothing of the cache
 * changes. */
kakeya_status cuda_pass_prepare(cuda_pass *p, backend_model *m, const backend_segment *segment, kakeya_error *error);
/* What the kernels of the step read from device memory. */
void cuda_pass_fill_step(const cuda_pass *p, const backend_segment *segment, cuda_step *step);
/* The operations into model->step_ops; returns their number. */
int cuda_pass_list(const cuda_pass *p);
/* The same of the head alone. */
int cuda_pass_list_head(const cuda_pass *p);

#endif
