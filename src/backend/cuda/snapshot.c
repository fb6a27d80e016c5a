#include "backend/cuda/snapshot.h"

/* Where a store begins, and its size: position p lies in row p % capacity, or p - first with capacity 0. */
typedef struct place {
    char *data;
    int capacity, first;
} place;

static place place_of(const backend_cache *c, const snapshot_rows *rows) {
    const layer_store *s = &c->layer[rows->layer];
    bool ring = c->t.layer[rows->layer].kind == STORE_RING, latent_ring = c->t.latents == STORE_RING;
    switch (rows->part) {
    case SNAPSHOT_LAYER_V:
        return ring ? (place){s->ring.v, c->t.ring_capacity, 0} : (place){extent_data(&s->pages_v), 0, 0};
    case SNAPSHOT_LAYER_K:
        return ring ? (place){s->ring.k, c->t.ring_capacity, 0} : (place){extent_data(&s->pages_k), 0, 0};
    case SNAPSHOT_SINK_V:
        return (place){s->sink.v.data, 0, 0};
    case SNAPSHOT_SINK_K:
        return (place){s->sink.k.data, 0, 0};
    case SNAPSHOT_LATENT_CODES:
        return latent_ring ? (place){c->latent.codes.data, c->t.latent_capacity, 0}
                           : (place){extent_data(&c->latent.pages_codes), 0, 0};
    case SNAPSHOT_LATENT_SCALES:
        return latent_ring ? (place){c->latent.scales.data, c->t.latent_capacity, 0}
                           : (place){extent_data(&c->latent.pages_scales), 0, 0};
    case SNAPSHOT_DRAFT_K:
        return (place){c->draft[rows->layer].k.data, c->t.draft[rows->layer].capacity, 0};
    case SNAPSHOT_DRAFT_V:
        return (place){c->draft[rows->layer].v.data, c->t.draft[rows->layer].capacity, 0};
    case SNAPSHOT_BACKLOG:
        return (place){c->backlog.data, 0, c->t.draft_length};
    case SNAPSHOT_STATE:
        return (place){c->state.data, 0, rows->first};
    case SNAPSHOT_TOKENS:
        break; /* this backend refuses models that keep them */
    }
    return (place){NULL, 0, 0};
}

/* On the model's stream: behind what its kernels have written, before what they will read. */
kakeya_status cuda_snapshot_copy(backend_cache *c, const snapshot_rows *rows, void *host, bool to_host,
                                 kakeya_error *error) {
    const char *what = to_host ? "taking a snapshot" : "restoring a cache";
    place at = place_of(c, rows);
    char *out = host;
    int end = rows->first + rows->n;
    for (int p = rows->first, n; p < end; p += n) {
        int row = at.capacity ? p % at.capacity : p - at.first;
        n = end - p;
        if (at.capacity && n > at.capacity - row) n = at.capacity - row;
        size_t bytes = (size_t)n * rows->row_bytes;
        char *device = at.data + (size_t)row * rows->row_bytes;
        cudaError_t status =
            cudaMemcpyAsync(to_host ? out : device, to_host ? device : out, bytes,
                            to_host ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, c->model->device.stream);
        if (status != cudaSuccess) return cuda_check(status, what, error);
        out += bytes;
    }
    return cuda_finish(&c->model->device, what, error);
}

size_t cuda_cache_snapshot_bytes(const backend_cache *c) { return snapshot_bytes(&c->t); }

kakeya_status cuda_cache_snapshot(const backend_cache *c, backend_write_fn write, void *user, kakeya_error *error) {
    kakeya_status status = cuda_device_use(&c->model->device, error);
    if (status) return status;
    backend_cache *reading = (backend_cache *)(uintptr_t)c; /* copying to the host changes nothing */
    return snapshot_write(&c->t, reading, cuda_snapshot_copy, c->account, write, user, error);
}

/* Builds the state in a fresh cache and swaps it in, so that a damaged snapshot changes nothing. */
kakeya_status cuda_cache_restore(backend_cache *c, backend_read_fn read, void *user, kakeya_error *error) {
    kakeya_status status = cuda_device_use(&c->model->device, error);
    timeline t;
    if (status) return status;
    status = timeline_create(&t, &c->t.models, &c->t.options, error);
    if (!status) status = snapshot_read_state(&t, read, user, error);
    if (status) {
        timeline_destroy(&t);
        return status;
    }
    backend_cache *fresh;
    status = cuda_cache_create_with(c->model, &t, NULL, &fresh, error);
    if (!status) status = snapshot_read_rows(&fresh->t, fresh, cuda_snapshot_copy, c->account, read, user, error);
    if (!status) {
        backend_cache swap = *c;
        *c = *fresh;
        *fresh = swap;
    }
    cuda_cache_destroy(fresh);
    return status;
}
