/* cuda_attend for prompt rows of which some see further than themselves: rows of pictures, in sliding layers. */
#ifndef KAKEYA_BACKEND_CUDA_ATTENTION_AHEAD_H
#define KAKEYA_BACKEND_CUDA_ATTENTION_AHEAD_H

#include "backend/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* sight (device): by row of the pass the end of the positions that it sees, where that is behind itself; it is there
 * before the step's first kernel and never descends inside a segment. NULL: no row does. Of launches with `final`. */
void cuda_attend_ahead(const cuda_launch *l, const cuda_batch *batch, const cuda_attention *a, const int32_t *sight,
                       int rows);

#ifdef __cplusplus
}
#endif

#endif
