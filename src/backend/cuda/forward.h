/* Forward over segments: plan all, reserve for all, then begin and compute one after the other, then mark all. */
#ifndef KAKEYA_BACKEND_CUDA_FORWARD_H
#define KAKEYA_BACKEND_CUDA_FORWARD_H

#include "backend/cuda/cache.h"

kakeya_status cuda_forward(backend_model *m, backend_segment *segments, int n_segments, kakeya_error *error);
kakeya_status cuda_read_logits(backend_model *m, int segment, int row, float *logits, kakeya_error *error);

#endif
