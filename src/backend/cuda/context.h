/* What follows a cache's committed rows: the drafter's context K/V and the latents. */
#ifndef KAKEYA_BACKEND_CUDA_CONTEXT_H
#define KAKEYA_BACKEND_CUDA_CONTEXT_H

#include "backend/cuda/stores.h"

/* Both extend the context K/V and latents by rows whose aux hidden states [targets * hidden] lie on the device.
 * Asynchronous; what the launchers refuse is a failure at once. The caller moves the timelines. */

/* Of each of n caches rows[i] prompt rows behind the committed ones, all of them one behind the other in `aux`. The
 * caches differ in nothing that a prompt pass depends on (pass.h). */
kakeya_status cuda_context_extend_prompts(backend_cache *const *caches, const int *rows, int n, const float *aux,
                                          kakeya_error *error);
/* Of each of n caches of the model the first rows of its backlog, which are positions rows[i]; none where that is
 * empty. All of them share a few launches. */
kakeya_status cuda_context_extend(backend_cache *const *caches, const position_range *rows, int n, kakeya_error *error);

#endif
