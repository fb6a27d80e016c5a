/* What every backend refuses in a forward before anything changes. */
#ifndef KAKEYA_BACKEND_SEGMENTS_H
#define KAKEYA_BACKEND_SEGMENTS_H

#include "backend/backend.h"
#include "model/gemma4.h"

/* The token has a row in the embedding, and in the table of per-layer embeddings where there is one. */
bool backend_token_exists(const gemma4_config *config, int32_t token);

/* KAKEYA_INVALID_ARGUMENT for a token outside the vocabulary (or outside the table of per-layer embeddings), and for a
 * cache that takes part twice. */
kakeya_status backend_check_segments(const gemma4_config *config, const backend_segment *segments, int n_segments,
                                     kakeya_error *error);

#endif
