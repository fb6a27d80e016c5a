/* Drafts of an MTP assistant: its list (backend/program/assistant.c) once per draft, for all sessions that still want
 * one. Nothing is stored; a session's drafts depend on its committed tokens alone. */
#ifndef KAKEYA_BACKEND_CPU_ASSISTANT_H
#define KAKEYA_BACKEND_CPU_ASSISTANT_H

#include "backend/cpu/stores.h"

/* Memory of a pass over BACKEND_MAX_SEGMENTS rows, and the list. Kernels and input of the model are set. On failure
 * assistant_destroy gives back what there is. */
kakeya_status assistant_create(backend_model *m, kakeya_error *error);
void assistant_destroy(backend_model *m);
/* Makes the int8 copy of a whole head where it is of use and there is memory for it. The pool must be there. */
void assistant_screen(backend_model *m);
/* Bytes of the head that a draft reads where it has no clusters. */
size_t assistant_head_bytes(const backend_model *m);

/* Requests that have been checked (backend_check_drafts). Fails before the first draft or not at all. */
kakeya_status assistant_draft(backend_model *m, backend_draft_request *requests, int n, kakeya_error *error);

/* What a chain is made of, for comparisons; either may be NULL. */
typedef struct assistant_trace {
    float *logits; /* [n][vocab], before suppressed tokens are left out; what no chosen cluster holds: less than all
                      that one does, by 1 */
    float *states; /* [n][backbone] behind each draft */
} assistant_trace;
/* One chain from the cache's own state. */
kakeya_status assistant_chain(backend_cache *cache, int32_t bonus, int n, int32_t *drafts, const assistant_trace *trace,
                              kakeya_error *error);

#endif
