/* Evicted positions back from their latents: in what way each layer does it, and the buffers that it takes. */
#ifndef KAKEYA_BACKEND_CUDA_RESTORATION_H
#define KAKEYA_BACKEND_CUDA_RESTORATION_H

#include "backend/cuda/latent_attention.h"
#include "backend/cuda/stores.h"

/* How the evicted positions of a restored layer become keys and values; `ring`: latents lie in a ring. */
restore_form cuda_restoration_form(const backend_model *m, int layer, bool ring);
/* Whether decode rows of this cache attend latents, in all layers that restore. */
bool cuda_restoration_attends_latents(const backend_cache *c);
/* How rows of latents lie in the caches of a model, which restores. */
cuda_latent_row cuda_restoration_latents(const backend_model *m);
/* Bytes of the restore buffers' rows: of one, keys and values. */
size_t cuda_restoration_row_bytes(const model_config *config);
/* Grows the buffers of a pass over such caches to so many rows, for two layers in turns where they are decoded beside
 * the step. */
kakeya_status cuda_restoration_prepare(backend_cache *c, int rows, bool prompt, kakeya_error *error);
/* The same of a pass of `rows` decode rows that attend latents; keys: decoded ahead. */
kakeya_status cuda_restoration_prepare_latents(backend_cache *c, int latents, int rows, bool keys, kakeya_error *error);
/* Where the latents of so many rows are gathered, of caches like this one; codes NULL: they do not lie in rings.
 * `attended`: for rows that attend latents. */
cuda_gathered cuda_restoration_gathered(const backend_cache *c, int rows, bool attended);
/* What the kernels need to know of a layer of such caches, but for where its keys and values go; `rows`: as above. */
cuda_restore cuda_restoration_of(const backend_cache *c, int layer, int rows);
/* One of two sets of `buffer`, restored_k or restored_v. */
cuda_bf16 *cuda_restoration_set(const cuda_buffer *buffer, int set);

#endif
