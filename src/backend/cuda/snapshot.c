/* The committed state of a cache as bytes: in one piece.
 *
 *   header   magic, version, shape and policy (refused when they differ), length, draft_length, draft_from, decoding,
 * ... runs     [n_runs] begin, end layers   per layer with a store: first position held, then rows [first, length): V
 * row, K row (if kept); sink rows latents  rows: code, scales drafter  per layer rows: K row, V row backlog  aux rows
 * of positions [draft_length, length)
 *
 * Rows of two stores alternate in the snapshot; strided copies of whole runs take them there and back. */
#include "backend/cuda/snapshot.h"

#include <stdlib.h>
#include <string.h>

#include "model/sizes.h"

static const uint32_t snapshot_magic = 0x314b564bu; /* "KVK1" */
enum { SNAPSHOT_VERSION = 1, SNAPSHOT_FIELDS = 19, SHAPE_FIELDS = 13 };
/* Behind the shape: */
enum { FIELD_LENGTH = 13, FIELD_DRAFT_LENGTH, FIELD_DRAFT_FROM, FIELD_DECODING, FIELD_RUNS, FIELD_TOKEN_LATENTS };

typedef struct snapshot_cursor {
    unsigned char *write;      /* NULL when only counting or when reading */
    const unsigned char *read; /* NULL when writing */
    size_t at, bytes;
    bool failed;
    cudaStream_t stream; /* the model's: copies are in order with its kernels and wait for nobody else's */
    cudaError_t status;
} snapshot_cursor;

static bool has_room(snapshot_cursor *s, size_t bytes) {
    if ((s->read || s->write) && bytes > s->bytes - s->at) s->failed = true;
    return !s->failed && s->status == cudaSuccess;
}

static void transfer_host(snapshot_cursor *s, void *data, size_t bytes) {
    if (!has_room(s, bytes)) return;
    if (s->read)
        memcpy(data, s->read + s->at, bytes);
    else if (s->write)
        memcpy(s->write + s->at, data, bytes);
    s->at += bytes;
}

/* `count` records of one row each; `stride` bytes from record to record in the snapshot. Leaves the cursor where it is.
 */
static void transfer_run(snapshot_cursor *s, size_t offset, size_t stride, void *device, size_t row, size_t count) {
    if (!count || !row || s->failed || s->status != cudaSuccess) return;
    if (s->read)
        s->status = cudaMemcpy2DAsync(device, row, s->read + s->at + offset, stride, row, count, cudaMemcpyHostToDevice,
                                      s->stream);
    else if (s->write)
        s->status = cudaMemcpy2DAsync(s->write + s->at + offset, stride, device, row, row, count,
                                      cudaMemcpyDeviceToHost, s->stream);
}

/* A store on the device: [capacity or more][row bytes]. */
typedef struct row_source {
    char *data;
    size_t row;
} row_source;

/* Rows [first, end) of up to two stores, alternating. capacity 0: position p is row p. */
static void transfer_rows(snapshot_cursor *s, row_source a, row_source b, int capacity, int first, int end) {
    size_t stride = a.row + b.row, all = (size_t)(end - first) * stride;
    if (end <= first || !has_room(s, all)) return;
    if (s->read || s->write) {
        size_t done = 0;
        for (int p = first; p < end;) {
            int slot = capacity ? p % capacity : p, n = end - p;
            if (capacity && n > capacity - slot) n = capacity - slot;
            transfer_run(s, done, stride, a.data + (size_t)slot * a.row, a.row, (size_t)n);
            transfer_run(s, done + a.row, stride, b.data + (size_t)slot * b.row, b.row, (size_t)n);
            done += (size_t)n * stride;
            p += n;
        }
    }
    s->at += all;
}

static void transfer_block(snapshot_cursor *s, void *device, size_t bytes) {
    if (!has_room(s, bytes)) return;
    transfer_run(s, 0, bytes, device, bytes, bytes ? 1 : 0);
    s->at += bytes;
}

static int layer_first(const backend_cache *c, const layer_store *s) {
    int first;
    if (s->kind == STORE_PAGES) {
        first = s->first_page * KV_PAGE_POSITIONS;
    } else {
        first = c->length - s->capacity;
        if (c->held_from > first) first = c->held_from;
        if (c->high - s->capacity > first) first = c->high - s->capacity;
        if (first < 0) first = 0;
    }
    return first < c->length ? first : c->length;
}

static void fill_header(const backend_cache *c, int32_t *f) {
    const backend_model *m = c->model;
    const backend_cache_options *o = &c->options;
    const int32_t values[SNAPSHOT_FIELDS] = {
        (int32_t)snapshot_magic,
        SNAPSHOT_VERSION,
        m->config->layers,
        m->config->hidden,
        m->config->sliding_window,
        m->config->vocab,
        (int32_t)o->attention,
        (int32_t)o->restore_layers,
        o->sink,
        o->window,
        o->draft_window,
        (int32_t)o->kv_format,
        o->keep_draft_context ? m->options.drafter->config.layers : 0,
        c->length,
        c->draft_length,
        c->draft_from,
        c->decoding,
        c->n_runs,
        0,
    };
    memcpy(f, values, sizeof values);
}

static char *extent_data(const cuda_extent *e) { return (char *)(void *)(uintptr_t)e->address; }

static void transfer_layer(backend_cache *c, int layer, snapshot_cursor *s, kakeya_status *status,
                           kakeya_error *error) {
    layer_store *store = &c->layer[layer];
    size_t row = (size_t)store->kv_dim * sizeof(cuda_bf16);
    int32_t first = layer_first(c, store);
    transfer_host(s, &first, sizeof first);
    bool pages = store->kind == STORE_PAGES;
    if (s->read) {
        /* A restored cache holds exactly the rows of the snapshot. */
        if (first < 0 || first > c->length || (!pages && c->length - first > store->capacity)) {
            s->failed = true;
            return;
        }
        if (!pages && first > c->held_from) c->held_from = first;
        int had = store->first_page;
        while (pages && (store->first_page + 1) * KV_PAGE_POSITIONS <= first) store->first_page++;
        if (store->first_page != had) *status = cuda_cache_cover_pages(c, layer, error);
        if (*status) return;
    }
    row_source v = {pages ? extent_data(&store->pages_v) : store->v.data, row}, k = {NULL, 0};
    if (store->has_k) k = (row_source){pages ? extent_data(&store->pages_k) : store->k.data, row};
    transfer_rows(s, v, k, pages ? 0 : store->capacity, first, c->length);
    if (store->sink_v.data) transfer_block(s, store->sink_v.data, row * (size_t)c->options.sink);
    if (store->sink_k.data) transfer_block(s, store->sink_k.data, row * (size_t)c->options.sink);
}

static kakeya_status transfer_state(backend_cache *c, snapshot_cursor *s, kakeya_error *error) {
    const gemma4_config *config = c->model->config;
    kakeya_status status = KAKEYA_OK;
    transfer_host(s, c->runs, (size_t)c->n_runs * sizeof *c->runs);
    for (int i = 0; i < config->layers && !s->failed && !status; i++) {
        if (c->layer[i].kind != STORE_NONE) transfer_layer(c, i, s, &status, error);
    }
    if (status || s->failed) return status;
    if (c->options.attention == KAKEYA_ATTENTION_RESTORED) {
        const latent_store *latent = &c->latent;
        row_source codes = {latent->ring ? latent->codes.data : extent_data(&latent->pages_codes),
                            2 * (size_t)c->model->options.f_theta->config.rank * sizeof(cuda_bf16)};
        row_source scales = {latent->ring ? latent->scales.data : extent_data(&latent->pages_scales),
                             (size_t)latent->heads * sizeof(float)};
        int first = latent->ring ? c->draft_length - latent->capacity : 0;
        transfer_rows(s, codes, scales, latent->ring ? latent->capacity : 0, first > 0 ? first : 0, c->draft_length);
    }
    if (c->options.keep_draft_context) {
        const dflash_config *d = &c->model->options.drafter->config;
        size_t row = (size_t)(d->kv_heads * d->head_dim) * sizeof(cuda_bf16);
        for (int l = 0; l < d->layers; l++) {
            draft_store *store = &c->draft[l];
            int first = c->draft_length - store->capacity;
            transfer_rows(s, (row_source){store->k.data, row}, (row_source){store->v.data, row}, store->capacity,
                          first > 0 ? first : 0, c->draft_length);
        }
        size_t aux = (size_t)d->targets * (size_t)config->hidden * sizeof(float);
        transfer_block(s, c->aux_backlog.data, (size_t)(c->length - c->draft_length) * aux);
    }
    if (!s->read && !s->write) return KAKEYA_OK;
    const char *what = s->read ? "restoring a cache" : "taking a snapshot";
    if (s->status != cudaSuccess) return cuda_check(s->status, what, error);
    return cuda_finish(&c->model->device, what, error);
}

size_t cuda_cache_snapshot_bytes(const backend_cache *c) {
    snapshot_cursor s = {.at = SNAPSHOT_FIELDS * sizeof(int32_t)};
    (void)transfer_state((backend_cache *)(uintptr_t)c, &s, NULL); /* counting changes nothing */
    return s.at;
}

kakeya_status cuda_cache_snapshot(const backend_cache *c, void *data, size_t bytes, kakeya_error *error) {
    if (c->pending)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "cannot snapshot with %d pending rows", c->pending);
    kakeya_status status = cuda_device_use(&c->model->device, error);
    if (!status) status = cuda_finish(&c->model->device, "taking a snapshot", error);
    if (status) return status;
    int32_t header[SNAPSHOT_FIELDS];
    fill_header(c, header);
    snapshot_cursor s = {.write = data, .bytes = bytes, .stream = c->model->device.stream};
    transfer_host(&s, header, sizeof header);
    if (!s.failed) status = transfer_state((backend_cache *)(uintptr_t)c, &s, error); /* reads the cache only */
    if (status) return status;
    if (s.failed || s.at != bytes) {
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "snapshot buffer of %zu bytes; %zu are needed", bytes,
                         cuda_cache_snapshot_bytes(c));
    }
    return KAKEYA_OK;
}

static kakeya_status check_header(const backend_cache *c, const int32_t *found, kakeya_error *error) {
    static const char *const names[SHAPE_FIELDS] = {
        "magic",          "version", "layers", "hidden size",  "sliding window", "vocabulary",     "attention policy",
        "restore layers", "sink",    "window", "draft window", "K/V format",     "drafter layers",
    };
    int32_t expected[SNAPSHOT_FIELDS];
    fill_header(c, expected);
    for (int i = 0; i < SHAPE_FIELDS; i++) {
        if (found[i] != expected[i]) {
            return error_set(error, KAKEYA_FORMAT, "snapshot does not fit: %s is %d there and %d here", names[i],
                             (int)found[i], (int)expected[i]);
        }
    }
    int length = found[FIELD_LENGTH], draft_length = found[FIELD_DRAFT_LENGTH], draft_from = found[FIELD_DRAFT_FROM];
    int decoding = found[FIELD_DECODING], n_runs = found[FIELD_RUNS];
    bool sane = length >= 0 && length <= c->options.context_tokens && draft_length >= 0 && draft_length <= length &&
                draft_from >= 0 && draft_from <= length && (decoding == 0 || decoding == 1) && n_runs >= 0 &&
                n_runs <= length && found[FIELD_TOKEN_LATENTS] == 0;
    if (c->options.keep_draft_context && length - draft_length > CUDA_AUX_BACKLOG) sane = false;
    if (!sane)
        return error_set(error, KAKEYA_FORMAT, "snapshot is damaged: length %d, drafter %d, runs %d", length,
                         draft_length, n_runs);
    return KAKEYA_OK;
}

/* Reads everything behind the header into a fresh cache. */
static kakeya_status read_state(backend_cache *fresh, const int32_t *header, snapshot_cursor *s, kakeya_error *error) {
    bool bounded = fresh->options.attention != KAKEYA_ATTENTION_NATIVE;
    int length = header[FIELD_LENGTH], n_runs = header[FIELD_RUNS];
    kakeya_status status = KAKEYA_OK;
    if (length > 0) status = cuda_cache_take_form(fresh, bounded && header[FIELD_DECODING], error);
    if (!status && length > 0) status = cuda_cache_reserve(fresh, length, error);
    if (status) return status;
    if (n_runs > fresh->max_runs) {
        decode_run *runs = realloc(fresh->runs, (size_t)n_runs * sizeof *runs);
        if (!runs) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for %d runs", n_runs);
        fresh->runs = runs;
        fresh->max_runs = n_runs;
    }
    fresh->length = fresh->high = length;
    fresh->draft_length = header[FIELD_DRAFT_LENGTH];
    fresh->draft_from = header[FIELD_DRAFT_FROM];
    fresh->n_runs = n_runs;
    status = cuda_finish(&fresh->model->device, "restoring a cache", error);
    if (!status) status = transfer_state(fresh, s, error);
    if (status) return status;
    bool runs_sane = !s->failed;
    for (int i = 0; runs_sane && i < fresh->n_runs; i++) {
        int previous = i ? fresh->runs[i - 1].end : 0;
        runs_sane = fresh->runs[i].begin >= previous && fresh->runs[i].end > fresh->runs[i].begin &&
                    fresh->runs[i].end <= fresh->length;
    }
    if (runs_sane && s->at == s->bytes) return cuda_cache_update_view(fresh, error);
    return error_set(error, KAKEYA_FORMAT, "snapshot is damaged: %zu bytes, %zu expected", s->bytes, s->at);
}

/* Builds the state in a fresh cache and swaps it in, so that a damaged snapshot changes nothing. */
kakeya_status cuda_cache_restore(backend_cache *c, const void *data, size_t bytes, kakeya_error *error) {
    int32_t header[SNAPSHOT_FIELDS];
    snapshot_cursor s = {.read = data, .bytes = bytes, .stream = c->model->device.stream};
    transfer_host(&s, header, sizeof header);
    if (s.failed) return error_set(error, KAKEYA_FORMAT, "snapshot of %zu bytes is shorter than its header", bytes);
    kakeya_status status = check_header(c, header, error);
    if (status) return status;
    backend_cache *fresh = NULL;
    status = cuda_cache_create(c->model, &c->options, &fresh, error);
    if (!status) status = read_state(fresh, header, &s, error);
    if (status) {
        cuda_cache_destroy(fresh);
        return status;
    }
    backend_cache swap = *c;
    *c = *fresh;
    *fresh = swap;
    cuda_cache_destroy(fresh);
    return KAKEYA_OK;
}
