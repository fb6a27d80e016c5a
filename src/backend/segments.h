/* What every backend refuses before anything changes, and which drafter is asked for which drafts. */
#ifndef KAKEYA_BACKEND_SEGMENTS_H
#define KAKEYA_BACKEND_SEGMENTS_H

#include "backend/backend.h"
#include "backend/timeline.h"
#include "model/language_model.h"

/* The token has a row in the embedding, and in the table of per-layer embeddings where there is one. */
bool backend_token_exists(const model_config *config, int32_t token);

/* Sets the status of every segment. KAKEYA_INVALID_ARGUMENT for too many segments of a kind or rows (max_rows in all),
 * for a token outside the vocabulary (or outside the table of per-layer embeddings), and for a cache that takes part
 * twice.
 */
kakeya_status backend_check_segments(const model_config *config, backend_segment *segments, int n_segments,
                                     int max_rows, kakeya_error *error);

/* The same for drafts: a number outside 1 to BACKEND_MAX_DRAFT, a bonus token outside the vocabulary, a cache that
 * keeps no drafter context, has pending rows or takes part twice. `timeline_of` gives the timeline of a cache. */
kakeya_status backend_check_drafts(const model_config *config, backend_draft_request *requests, int n_requests,
                                   const timeline *(*timeline_of)(const backend_cache *cache), kakeya_error *error);

/* For backends with several drafters: the requests of each together, by the function of that drafter. */
typedef kakeya_status (*backend_draft_fn)(backend_model *model, backend_draft_request *requests, int n_requests,
                                          kakeya_error *error);
kakeya_status backend_draft_each(const backend_draft_fn drafts_of[BACKEND_DRAFTERS], backend_model *m,
                                 backend_draft_request *requests, int n_requests, kakeya_error *error);

#endif
