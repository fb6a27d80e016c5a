/* What follows a cache's committed rows: the drafter's context K/V and the f_theta latents. Decode rows wait in the
 * cache's backlog until a draft, a prompt or an eviction needs them. */
#ifndef KAKEYA_BACKEND_CUDA_CONTEXT_H
#define KAKEYA_BACKEND_CUDA_CONTEXT_H

#include "backend/cuda/cache.h"

/* Context K/V and latents of positions [position, position + rows) from aux rows [rows][targets * hidden] on the
 * device. Asynchronous; what the launchers refuse is a failure at once. The caller moves cache->draft_length. */
kakeya_status cuda_context_extend(backend_cache *c, const float *aux, int rows, int position, bool prompt,
                                  kakeya_error *error);
/* Extends by the committed rows that wait in the backlog. On failure they still wait. */
kakeya_status cuda_context_flush(backend_cache *c, kakeya_error *error);

#endif
