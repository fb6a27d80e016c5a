/* Times every launch of one uncaptured step with a pair of events. launch_kernel (common.cuh) calls begin and end; the
 * host code says before a launch what part of the model it is and what it must move. Without a profiler all are no-ops.
 */
#ifndef KAKEYA_BACKEND_CUDA_PROFILE_H
#define KAKEYA_BACKEND_CUDA_PROFILE_H

#include "backend/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The next launch: its part of the model, the bytes that it must read, its operations. Launches that follow without a
 * word of their own belong to the same part and have no bound: what they move has been counted. */
void cuda_profile_part(const cuda_launch *l, const char *part, double bytes, double operations);
/* Around one launch; `kernel` is the function, or NULL for work that is launched elsewhere and goes by its part's name.
 */
void cuda_profile_begin(const cuda_launch *l, const void *kernel);
void cuda_profile_end(const cuda_launch *l);

/* Keeps the stream busy, so that what is enqueued behind it runs without waiting for the host. */
void cuda_profile_delay(const cuda_launch *l, int microseconds);
void cuda_profile_empty(const cuda_launch *l); /* launches a kernel that does nothing */

#ifdef __cplusplus
}
#endif

#endif
