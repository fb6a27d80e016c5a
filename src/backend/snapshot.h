/* The committed state of a cache as a stream of bytes, the same for every backend: little-endian, stores in logical
 * order (positions ascending, not ring slots). Two caches with the same state give the same bytes.
 *
 *   header    snapshot_header: what it is, the shape and policy that must agree, the timeline's state
 *   latents   snapshot_latents: more that must agree, where latents are not as they first were (versions 3 and 5)
 *   runs      timeline_run [n_runs]
 *   tokens    int32 [length], where latents come from the drafter's pass over the tokens
 *   layers    per layer with a store: V rows held, K rows held (where keys are kept), then V and K rows of the sink
 *   rows      latents: codes held, then scales held
 *   drafter   per drafter layer: K rows held, V rows held
 *   backlog   aux rows held
 *   state     float32 [hidden], of the last committed position, for an assistant (versions 4 and 5). It is the
 *             verifier's: a cache without an assistant passes over it, one with an assistant does without
 *
 * The timeline knows which rows are held; a backend only copies rows between its stores and the host. */
#ifndef KAKEYA_BACKEND_SNAPSHOT_H
#define KAKEYA_BACKEND_SNAPSHOT_H

#include "backend/timeline.h"

typedef enum snapshot_part {
    SNAPSHOT_TOKENS = 0,
    SNAPSHOT_LAYER_V,
    SNAPSHOT_LAYER_K,
    SNAPSHOT_SINK_V,
    SNAPSHOT_SINK_K,
    SNAPSHOT_LATENT_CODES,
    SNAPSHOT_LATENT_SCALES,
    SNAPSHOT_DRAFT_K,
    SNAPSHOT_DRAFT_V,
    SNAPSHOT_BACKLOG,
    SNAPSHOT_STATE, /* caches that keep one */
} snapshot_part;

/* Rows [first, first + n) of one store, each of row_bytes. They may wrap in a ring or cross pages. */
typedef struct snapshot_rows {
    snapshot_part part;
    int layer; /* of the verifier, or of the drafter */
    int first, n;
    size_t row_bytes;
} snapshot_rows;

/* Copies rows out of the cache's stores to `host` [n][row_bytes], or from there into them. Has finished when it
 * returns. */
typedef kakeya_status (*snapshot_copy_fn)(backend_cache *cache, const snapshot_rows *rows, void *host, bool to_host,
                                          kakeya_error *error);

/* Bytes of a snapshot of this timeline. */
size_t snapshot_bytes(const timeline *t);

/* Writes the whole snapshot of a timeline that has nothing pending. A buffer of a few hundred KiB comes from `account`.
 */
kakeya_status snapshot_write(const timeline *t, backend_cache *cache, snapshot_copy_fn copy, mem_account *account,
                             backend_write_fn write, void *user, kakeya_error *error);

/* Reads header and runs into a timeline that has just been created. KAKEYA_FORMAT where the snapshot is of another
 * version, does not fit the timeline's models and options (naming the field and both values), or is damaged. */
kakeya_status snapshot_read_state(timeline *t, backend_read_fn read, void *user, kakeya_error *error);
/* Reads all rows into the stores of `cache`, which have been allocated for `t`. Token ids are checked against the
 * model. */
kakeya_status snapshot_read_rows(const timeline *t, backend_cache *cache, snapshot_copy_fn copy, mem_account *account,
                                 backend_read_fn read, void *user, kakeya_error *error);

#endif
