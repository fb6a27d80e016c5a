#include "backend/host_cache.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "backend/kv_bytes.h"
#include "backend/snapshot.h"

/* ---------------------------------------------------------------------------------------------------- creation */

/* A cache with the stores of `t`, which it takes over whatever happens. `from`: a cache with such a timeline, or NULL.
 */
static kakeya_status create_with(backend_model *m, timeline *t, const backend_cache *from, backend_cache **out,
                                 kakeya_error *error) {
    static _Atomic uint64_t last_id;
    backend_cache *c = calloc(1, sizeof *c);
    if (!c) {
        timeline_destroy(t);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for a cache");
    }
    c->model = m;
    c->id = atomic_fetch_add(&last_id, 1) + 1;
    c->t = *t;
    c->account = t->options.account;
    kakeya_status status = stores_create(c, from, error);
    if (status)
        host_cache_destroy(c);
    else
        *out = c;
    return status;
}

kakeya_status host_cache_create(backend_model *m, const timeline_models *models, const backend_cache_options *options,
                                backend_cache **out, kakeya_error *error) {
    *out = NULL;
    timeline t;
    kakeya_status status = timeline_create(&t, models, options, error);
    return status ? status : create_with(m, &t, NULL, out, error);
}

void host_cache_destroy(backend_cache *c) {
    if (!c) return;
    stores_destroy(c);
    timeline_destroy(&c->t);
    free(c);
}

int host_cache_length(const backend_cache *c) { return c->t.length; }
int host_cache_pending(const backend_cache *c) { return c->t.pending; }
int host_cache_min_truncate(const backend_cache *c) { return timeline_min_truncate(&c->t); }
bool host_cache_has_state(const backend_cache *c) { return timeline_has_state(&c->t); }

backend_cache_bytes host_cache_bytes(const backend_cache *c) {
    backend_cache_bytes bytes = kv_bytes(&c->t, 0);
    bytes.shared_full = stores_shared_full(c);
    bytes.shared_latent = stores_shared_latent(c);
    return bytes;
}

kakeya_status host_cache_fork(const backend_cache *c, mem_account *account, backend_cache **out, kakeya_error *error) {
    *out = NULL;
    if (c->t.pending)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "cannot fork with %d pending rows", c->t.pending);
    if (c->own_raw) return error_set(error, KAKEYA_UNSUPPORTED, "a diagnostics cache cannot be forked");
    timeline t;
    kakeya_status status = timeline_copy(&t, &c->t, error);
    if (status) return status;
    t.options.account = account;
    status = create_with(c->model, &t, c, out, error);
    if (!status) stores_copy(*out, c);
    return status;
}

/* --------------------------------------------------------------------------------------------- commit, truncate */

kakeya_status host_cache_commit(backend_cache *c, int n, kakeya_error *error) {
    timeline_keep keep;
    kakeya_status status = timeline_plan_commit(&c->t, n, &keep, error);
    if (status) return status;
    stores_keep(c, &keep);
    timeline_commit(&c->t, &keep);
    stores_trim(c);
    return KAKEYA_OK;
}

kakeya_status host_cache_truncate(backend_cache *c, int length, kakeya_error *error) {
    kakeya_status status = timeline_truncate(&c->t, length, error);
    if (!status) stores_trim(c);
    return status;
}

/* --------------------------------------------------------------------------------------------------- snapshots */

static void *row_of(backend_cache *c, const snapshot_rows *rows, int position) {
    switch (rows->part) {
    case SNAPSHOT_TOKENS:
        return c->tokens + position;
    case SNAPSHOT_LAYER_V:
        return kv_row(c, rows->layer, position, false);
    case SNAPSHOT_LAYER_K:
        return kv_row(c, rows->layer, position, true);
    case SNAPSHOT_SINK_V:
        return kv_sink_row(c, rows->layer, position, false);
    case SNAPSHOT_SINK_K:
        return kv_sink_row(c, rows->layer, position, true);
    case SNAPSHOT_LATENT_CODES:
        return latent_code(c, position);
    case SNAPSHOT_LATENT_SCALES:
        return latent_scales(c, position);
    case SNAPSHOT_DRAFT_K:
        return kv_draft_row(c, rows->layer, position, true);
    case SNAPSHOT_DRAFT_V:
        return kv_draft_row(c, rows->layer, position, false);
    case SNAPSHOT_BACKLOG:
        return (char *)c->backlog + (size_t)(position - c->t.draft_length) * rows->row_bytes;
    case SNAPSHOT_STATE:
        return c->state;
    }
    return NULL;
}

static kakeya_status copy_rows(backend_cache *c, const snapshot_rows *rows, void *host, bool to_host,
                               kakeya_error *error) {
    (void)error;
    unsigned char *at = host;
    for (int p = rows->first; p < rows->first + rows->n; p++, at += rows->row_bytes) {
        void *row = row_of(c, rows, p);
        memcpy(to_host ? at : row, to_host ? row : at, rows->row_bytes);
    }
    return KAKEYA_OK;
}

size_t host_cache_snapshot_bytes(const backend_cache *c) { return snapshot_bytes(&c->t); }

kakeya_status host_cache_snapshot(const backend_cache *c, backend_write_fn write, void *user, kakeya_error *error) {
    if (c->own_raw) return error_set(error, KAKEYA_UNSUPPORTED, "a diagnostics cache cannot be snapshot");
    backend_cache *read_only = (backend_cache *)(uintptr_t)c; /* copies to the host change nothing */
    return snapshot_write(&c->t, read_only, copy_rows, c->account, write, user, error);
}

/* Builds the state in a fresh cache and swaps it in, so that a damaged snapshot changes nothing. */
kakeya_status host_cache_restore(backend_cache *c, backend_read_fn read, void *user, kakeya_error *error) {
    if (c->own_raw) return error_set(error, KAKEYA_UNSUPPORTED, "a diagnostics cache cannot be restored");
    timeline t;
    backend_cache *fresh = NULL;
    kakeya_status status = timeline_create(&t, &c->t.models, &c->t.options, error);
    if (!status) status = snapshot_read_state(&t, read, user, error);
    if (status) {
        timeline_destroy(&t);
        return status;
    }
    status = create_with(c->model, &t, NULL, &fresh, error);
    if (!status) status = snapshot_read_rows(&fresh->t, fresh, copy_rows, c->account, read, user, error);
    if (!status) {
        backend_cache swap = *c;
        *c = *fresh;
        *fresh = swap;
    }
    host_cache_destroy(fresh);
    return status;
}
