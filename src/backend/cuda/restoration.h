/* Evicted positions back from their latents: in what way each layer does it, and the buffers that it takes. */
#ifndef KAKEYA_BACKEND_CUDA_RESTORATION_H
#define KAKEYA_BACKEND_CUDA_RESTORATION_H

#include "backend/cuda/stores.h"

/* How the evicted positions of a restored layer become keys and values; `ring`: latents lie in a ring. */
restore_form cuda_restoration_form(const backend_model *m, int layer, bool ring);
/* Positions of one layer of the latent ring that a step can see, at most. */
int cuda_restoration_positions(const backend_cache *c, bool prompt, int rows);
/* Grows the buffers of a step under a restored policy to so many positions. */
kakeya_status cuda_restoration_prepare(backend_cache *c, int positions, kakeya_error *error);
/* What the kernels need to know of a layer, but for where its keys and values go. */
cuda_restore cuda_restoration_of(const backend_model *m, int layer);
/* One of two sets of `buffer`, restored_k or restored_v. */
cuda_bf16 *cuda_restoration_set(const cuda_buffer *buffer, int set);

#endif
