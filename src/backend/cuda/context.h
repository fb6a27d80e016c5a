/* What follows a cache's committed rows: the drafter's context K/V and the f_theta latents. */
#ifndef KAKEYA_BACKEND_CUDA_CONTEXT_H
#define KAKEYA_BACKEND_CUDA_CONTEXT_H

#include "backend/cuda/stores.h"

/* Context K/V and latents of positions [position, position + rows) from aux rows [rows][targets * hidden] on the
 * device. Asynchronous; what the launchers refuse is a failure at once. The caller moves the timeline. */
kakeya_status cuda_context_extend(backend_cache *c, const float *aux, int rows, int position, bool prompt,
                                  kakeya_error *error);

#endif
