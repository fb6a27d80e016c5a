/* Blocks of the DFlash drafter. */
#ifndef KAKEYA_BACKEND_CUDA_DRAFT_H
#define KAKEYA_BACKEND_CUDA_DRAFT_H

#include "backend/cuda/cache.h"

kakeya_status cuda_draft(backend_cache *c, int32_t bonus, int n, int32_t *drafts, kakeya_error *error);

#endif
