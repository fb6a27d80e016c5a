/* Blocks of the block drafter, and of any. */
#ifndef KAKEYA_BACKEND_CUDA_DRAFT_H
#define KAKEYA_BACKEND_CUDA_DRAFT_H

#include "backend/cuda/cache.h"

kakeya_status cuda_draft(backend_model *m, backend_draft_request *requests, int n_requests, kakeya_error *error);

/* What comes first: rows that wait enter the drafter's context. Devices that do not draft do that alone. */
kakeya_status cuda_draft_begin(backend_model *m, backend_draft_request *requests, int n_requests, kakeya_error *error);

#endif
