/* Bytes of K/V memory: one formula for what a cache holds, what a session of a length will hold (with
 * timeline_preview), and what a row reads. Pure arithmetic on timelines. */
#ifndef KAKEYA_BACKEND_KV_BYTES_H
#define KAKEYA_BACKEND_KV_BYTES_H

#include "backend/timeline.h"

/* What the timeline's stores hold, as the allocator counts it, reserved rings included. granule 0: every page is an
 * allocation that holds K and V together (or codes and scalars). Otherwise K and V (codes and scalars) of a layer are
 * one range of addresses each, of which whole granules are backed. */
backend_cache_bytes kv_bytes(const timeline *t, size_t granule);

/* Of these, what one layer of the verifier holds (0: its K/V are another layer's), and one of the drafter. */
size_t kv_layer_bytes(const timeline *t, int layer, size_t granule);
size_t kv_draft_layer_bytes(const timeline *t, int layer);
/* What a copy takes for itself alone, at a length that fills its pages: rings and the drafter's context; of latents in
 * pages the newest one, since latents lie some positions behind. */
size_t kv_copied_bytes(const timeline *t);

/* Bytes by which a session grows per position, for good: exact K/V of layers that do not evict, latents where nothing
 * else is kept. */
size_t kv_bytes_per_token(const timeline *t);

/* What a decode row at the last of the timeline's positions reads in one verifier layer: stored K/V, and latents. */
size_t kv_read_bytes(const timeline *t, int layer);
/* What a block of the drafter behind the timeline's positions reads of its context, in all layers. */
size_t kv_draft_read_bytes(const timeline *t);
/* What one draft of an assistant behind the timeline's positions reads of the verifier's K/V, in all its layers. */
size_t kv_assistant_read_bytes(const timeline *t);

/* References, with K and V both stored: `hybrid` holds the window only in sliding layers, as common engines do;
 * otherwise every layer holds every position. */
size_t kv_reference_bytes(const model_config *config, kv_format format, int positions, bool hybrid);

#endif
