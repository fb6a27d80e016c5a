/* What passes on the device between two forwards: from the end of one's last kernel to the begin of the next one's
 * first. */
#ifndef KAKEYA_BACKEND_CUDA_GAPS_H
#define KAKEYA_BACKEND_CUDA_GAPS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct cuda_gaps {
    bool watched, followed;       /* followed: end[0] is of the forward before */
    cudaEvent_t begin, end[2];    /* of a forward; end[1]: of the one that is under way */
    uint64_t n;                   /* gaps so far ... */
    double seconds, most_seconds; /* ... all of them, and the longest */
} cuda_gaps;

/* Whether gaps are measured from now on. Where there are no events, none are. */
void cuda_gaps_watch(cuda_gaps *gaps, bool on);
/* Before a forward's first operation, and behind its last one; what is not watched costs nothing. */
void cuda_gaps_begin(const cuda_gaps *gaps, cudaStream_t stream);
void cuda_gaps_end(const cuda_gaps *gaps, cudaStream_t stream);
/* The forward is finished; `whole`: it has done all that it was to do. */
void cuda_gaps_add(cuda_gaps *gaps, bool whole);

#endif
