/* Times every launch of one uncaptured step with a pair of events. launch_kernel (common.cuh) calls begin and end; the
 * host code says before a launch what part of the model it is and what it must move. Without a profiler all are no-ops.
 */
#ifndef KAKEYA_BACKEND_CUDA_RECORDER_H
#define KAKEYA_BACKEND_CUDA_RECORDER_H

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

/* One launch as it was recorded. */
typedef struct profiled_launch {
    cudaEvent_t begin, end;
    const void *kernel; /* NULL: it goes by its part's name */
    const char *part;
    double bytes, operations;
} profiled_launch;

enum { PROFILER_MAX_LAUNCHES = 4096 }; /* of one step: 128 layers of some 20 */

struct cuda_profiler {
    profiled_launch launches[PROFILER_MAX_LAUNCHES];
    int n;
    int overflow; /* launches beyond that were not recorded */
    const char *part;
    double bytes, operations; /* of the next launch */
    cudaError_t failure;
};

/* NULL without memory. */
cuda_profiler *cuda_profiler_create(void);
void cuda_profiler_destroy(cuda_profiler *p); /* NULL is fine */

/* Keeps the stream busy, so that what is enqueued behind it runs without waiting for the host. */
void cuda_profile_delay(const cuda_launch *l, int microseconds);
void cuda_profile_empty(const cuda_launch *l); /* launches a kernel that does nothing */

#ifdef __cplusplus
}
#endif

#endif
