/* Drafts of an MTP assistant. Its formulas are the list of backend/program/assistant.c, its queries attend the
 * verifier's K/V by the verifier's own kernels. A block of drafts is one captured step: choices, embeddings and states
 * stay on the device. */
#ifndef KAKEYA_BACKEND_CUDA_ASSISTANT_H
#define KAKEYA_BACKEND_CUDA_ASSISTANT_H

#include "backend/backend.h"

/* Requests that have been checked (cuda_draft). */
kakeya_status cuda_assistant_draft(backend_model *m, backend_draft_request *requests, int n, kakeya_error *error);

/* One chain from the cache's own state, draft by draft; for comparisons. */
typedef struct cuda_assistant_trace {
    float *states; /* [n][hidden] behind each draft */
    float *logits; /* [n][vocab], of a head without clusters; or NULL */
} cuda_assistant_trace;
kakeya_status cuda_assistant_chain(backend_cache *cache, int32_t bonus, int n, int32_t *drafts,
                                   const cuda_assistant_trace *trace, kakeya_error *error);

#endif
