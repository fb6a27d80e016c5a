/* What the block drafter drafts at once: one non-causal forward over [context ; bonus, mask, mask, ...]. Formulas: as
 * model/block_drafter.h says. */
#ifndef KAKEYA_BACKEND_CPU_BLOCK_H
#define KAKEYA_BACKEND_CPU_BLOCK_H

#include "backend/cpu/cache.h"

/* Hidden states after the drafter's final norm, [n + 1][drafter hidden], of the block [bonus, mask x n]. */
kakeya_status draft_block_hidden(backend_cache *c, int32_t bonus, int n, float *hidden, kakeya_error *error);
kakeya_status cpu_draft(backend_model *m, backend_draft_request *requests, int n_requests, kakeya_error *error);

#endif
