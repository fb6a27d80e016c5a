/* The weights of what reads pictures, on the device: matrices in bf16, norms and the like in float32. */
#ifndef KAKEYA_BACKEND_CUDA_TOWER_WEIGHTS_H
#define KAKEYA_BACKEND_CUDA_TOWER_WEIGHTS_H

#include <vector_types.h>

#include "backend/cuda/device.h"
#include "backend/cuda/kernels.h"
#include "backend/program/tower.h"

typedef struct tower_layer {
    cuda_matrix matrix[VISION_ROLES]; /* data NULL: there is none. Those of q, k and v follow each other. */
    const float *vector[VISION_ROLES];
} tower_layer;

typedef struct tower_weights {
    cuda_buffer memory;
    tower_layer *layers; /* [1 + layers], as in vision_model */
    const float2 *turns; /* [positions][head_dim / 4]: cosine and sine; of towers */
} tower_weights;

/* Uploads them through a pinned buffer, and waits until they are there. KAKEYA_UNSUPPORTED names a size that no kernel
 * computes. On failure nothing is held. */
kakeya_status tower_weights_create(tower_weights *w, const cuda_device *device, mem_account *account,
                                   const vision_model *vision, kakeya_error *error);
void tower_weights_destroy(tower_weights *w);

static inline const cuda_matrix *tower_weights_matrix(const tower_weights *w, uint16_t slot) {
    return &w->layers[slot / VISION_ROLES].matrix[slot % VISION_ROLES];
}
/* NULL for slot 0. */
static inline const float *tower_weights_vector(const tower_weights *w, uint16_t slot) {
    return slot ? w->layers[slot / VISION_ROLES].vector[slot % VISION_ROLES] : NULL;
}

#endif
