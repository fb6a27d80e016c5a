/* What follows a cache's committed rows: the drafter's context K/V and the f_theta latents. */
#ifndef KAKEYA_BACKEND_CUDA_CONTEXT_H
#define KAKEYA_BACKEND_CUDA_CONTEXT_H

#include "backend/cuda/stores.h"

/* Both extend the context K/V and latents by rows whose aux hidden states [targets * hidden] lie on the device.
 * Asynchronous; what the launchers refuse is a failure at once. The caller moves the timelines. */

/* Rows [position, position + rows) of a prompt. */
kakeya_status cuda_context_extend_prompt(backend_cache *c, const float *aux, int rows, int position,
                                         kakeya_error *error);
/* Of each of n caches of the model the first rows of its backlog, which are positions rows[i]; none where that is
 * empty. All of them share a few launches. */
kakeya_status cuda_context_extend(backend_cache *const *caches, const position_range *rows, int n, kakeya_error *error);

#endif
