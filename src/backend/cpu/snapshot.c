/* The committed state of a cache as bytes: little-endian, logical order (positions ascending, not ring slots), so that any
 * backend can read it and two caches with the same state give the same bytes.
 *
 *   header   magic, version, shape and policy (refused when they differ), length, draft_length, draft_from, decoding
 *   runs     [n_runs] begin, end
 *   tokens   [length], where f_theta reads the drafter's pass over the tokens
 *   layers   per layer with a store: first position held, then rows [first, length): V row, K row (if kept); sink rows
 *   latents  first position, rows: code, scales
 *   drafter  per layer: first position, rows: K row, V row
 *   backlog  aux rows of positions [draft_length, length) */
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "model/sizes.h"

static const uint32_t snapshot_magic = 0x314b564bu; /* "KVK1" */
enum { SNAPSHOT_FIELDS = 19 };

typedef struct snapshot_cursor {
    unsigned char *write;      /* NULL when only counting or when reading */
    const unsigned char *read; /* NULL when writing */
    size_t at, bytes;
    bool failed;
} snapshot_cursor;

/* One walk serves counting, writing and reading: `data` is copied out of or into the snapshot. */
static void transfer(snapshot_cursor *s, void *data, size_t bytes) {
    if (s->read) {
        if (bytes > s->bytes - s->at) {
            s->failed = true;
            return;
        }
        memcpy(data, s->read + s->at, bytes);
    } else if (s->write) {
        if (bytes > s->bytes - s->at) {
            s->failed = true;
            return;
        }
        memcpy(s->write + s->at, data, bytes);
    }
    s->at += bytes;
}

static int ring_first(const backend_cache *c, int capacity) {
    int first = c->length - capacity;
    return first > 0 ? first : 0;
}

static int layer_first(const backend_cache *c, const layer_store *s) {
    if (s->kind == STORE_PAGES) {
        int first = s->first_page * KV_PAGE_POSITIONS;
        return first < c->length ? first : c->length;
    }
    int first = ring_first(c, s->capacity), oldest = c->high - s->capacity;
    if (c->held_from > first) first = c->held_from;
    if (oldest > first) first = oldest;
    return first < c->length ? first : c->length;
}

static void fill_header(const backend_cache *c, int32_t *f) {
    const backend_model *m = c->model;
    const backend_cache_options *o = &c->options;
    const int32_t values[SNAPSHOT_FIELDS] = {
        (int32_t)snapshot_magic, 1, m->config->layers, m->config->hidden, m->config->sliding_window, m->config->vocab,
        (int32_t)o->attention, (int32_t)o->restore_layers, o->sink, o->window, o->draft_window, (int32_t)o->kv_format,
        o->keep_draft_context ? m->options.drafter->config.layers : 0, c->length, c->draft_length, c->draft_from,
        c->decoding, c->n_runs, c->latent_length,
    };
    memcpy(f, values, sizeof values);
}

static void transfer_state(backend_cache *c, snapshot_cursor *s) {
    const gemma4_config *config = c->model->config;
    transfer(s, c->runs, (size_t)c->n_runs * sizeof *c->runs);
    if (c->tokens) transfer(s, c->tokens, (size_t)c->length * sizeof *c->tokens);
    for (int i = 0; i < config->layers && !s->failed; i++) {
        layer_store *store = &c->layer[i];
        if (store->kind == STORE_NONE) continue;
        size_t row = (size_t)store->kv_dim * kv_element_bytes(c);
        int32_t first = layer_first(c, store);
        transfer(s, &first, sizeof first);
        if (s->read) {
            /* A restored cache holds exactly the rows of the snapshot. */
            if (first < 0 || first > c->length || (store->kind == STORE_RING && c->length - first > store->capacity)) {
                s->failed = true;
                return;
            }
            if (store->kind == STORE_RING && first > c->held_from) c->held_from = first;
            if (store->kind == STORE_PAGES) {
                while ((store->first_page + 1) * KV_PAGE_POSITIONS <= first) {
                    mem_free(store->pages[store->first_page]);
                    store->pages[store->first_page++] = NULL;
                }
            }
        }
        for (int p = first; p < c->length && !s->failed; p++) {
            transfer(s, s->write || s->read ? store_row(c, store, p, false) : NULL, row);
            if (store->has_k) transfer(s, s->write || s->read ? store_row(c, store, p, true) : NULL, row);
        }
        if (store->sink_v) transfer(s, store->sink_v, row * (size_t)c->options.sink);
        if (store->sink_k) transfer(s, store->sink_k, row * (size_t)c->options.sink);
    }
    if (c->options.attention == KAKEYA_ATTENTION_RESTORED) {
        size_t code = 2 * (size_t)c->model->options.f_theta->config.rank * kv_element_bytes(c);
        int first = c->latent.ring ? c->draft_length - c->latent.capacity : 0;
        for (int p = first > 0 ? first : 0; p < c->draft_length && !s->failed; p++) {
            transfer(s, s->write || s->read ? latent_code(c, p) : NULL, code);
            transfer(s, s->write || s->read ? latent_scales(c, p) : NULL, (size_t)c->latent.heads * sizeof(float));
        }
    }
    if (!c->options.keep_draft_context) return;
    const dflash_config *d = &c->model->options.drafter->config;
    size_t row = (size_t)(d->kv_heads * d->head_dim) * kv_element_bytes(c);
    for (int l = 0; l < d->layers; l++) {
        draft_store *store = &c->draft[l];
        int first = c->draft_length - store->capacity;
        for (int p = first > 0 ? first : 0; p < c->draft_length && !s->failed; p++) {
            transfer(s, store->k + (size_t)(p % store->capacity) * row, row);
            transfer(s, store->v + (size_t)(p % store->capacity) * row, row);
        }
    }
    size_t aux = (size_t)d->targets * (size_t)config->hidden * sizeof(float);
    transfer(s, c->aux_backlog, (size_t)(c->length - c->draft_length) * aux);
}

size_t cpu_cache_snapshot_bytes(const backend_cache *c) {
    snapshot_cursor s = {.at = SNAPSHOT_FIELDS * sizeof(int32_t)};
    transfer_state((backend_cache *)(uintptr_t)c, &s); /* counting changes nothing */
    return s.at;
}

kakeya_status cpu_cache_snapshot(const backend_cache *c, void *data, size_t bytes, kakeya_error *error) {
    if (c->pending) return error_set(error, KAKEYA_INVALID_ARGUMENT, "cannot snapshot with %d pending rows", c->pending);
    if (c->own_raw) return error_set(error, KAKEYA_UNSUPPORTED, "a diagnostics cache cannot be snapshot");
    int32_t header[SNAPSHOT_FIELDS];
    fill_header(c, header);
    snapshot_cursor s = {.write = data, .bytes = bytes};
    transfer(&s, header, sizeof header);
    if (!s.failed) transfer_state((backend_cache *)(uintptr_t)c, &s); /* writing a snapshot reads the cache only */
    if (s.failed || s.at != bytes) {
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "snapshot buffer of %zu bytes; %zu are needed", bytes,
                         cpu_cache_snapshot_bytes(c));
    }
    return KAKEYA_OK;
}

static kakeya_status check_header(const backend_cache *c, const int32_t *found, kakeya_error *error) {
    static const char *const names[13] = {
        "magic", "version", "layers", "hidden size", "sliding window", "vocabulary", "attention policy", "restore layers",
        "sink", "window", "draft window", "K/V format", "drafter layers",
    };
    int32_t expected[SNAPSHOT_FIELDS];
    fill_header(c, expected);
    for (int i = 0; i < 13; i++) {
        if (found[i] != expected[i]) {
            return error_set(error, KAKEYA_FORMAT, "snapshot does not fit: %s is %d there and %d here", names[i],
                             (int)found[i], (int)expected[i]);
        }
    }
    int length = found[13], draft_length = found[14], draft_from = found[15], n_runs = found[17];
    bool sane = length >= 0 && length <= c->options.context_tokens && draft_length >= 0 && draft_length <= length &&
                draft_from >= 0 && draft_from <= length && (found[16] == 0 || found[16] == 1) && n_runs >= 0 &&
                n_runs <= length && found[18] >= 0 && found[18] <= length;
    if (sane && c->options.keep_draft_context && length - draft_length > CPU_AUX_BACKLOG) sane = false;
    if (!sane) return error_set(error, KAKEYA_FORMAT, "snapshot is damaged: length %d, drafter %d, runs %d", length, draft_length, n_runs);
    return KAKEYA_OK;
}

/* Builds the state in a fresh cache and swaps it in, so that a damaged snapshot changes nothing. */
kakeya_status cpu_cache_restore(backend_cache *c, const void *data, size_t bytes, kakeya_error *error) {
    int32_t header[SNAPSHOT_FIELDS];
    snapshot_cursor s = {.read = data, .bytes = bytes};
    transfer(&s, header, sizeof header);
    if (s.failed) return error_set(error, KAKEYA_FORMAT, "snapshot of %zu bytes is shorter than its header", bytes);
    kakeya_status status = check_header(c, header, error);
    if (status) return status;
    backend_cache *fresh = NULL;
    status = cpu_cache_create(c->model, &c->options, &fresh, error);
    if (status) return status;
    bool bounded = c->options.attention != KAKEYA_ATTENTION_NATIVE;
    /* Preparing for the rows that are about to be read makes pages and the right ring sizes. */
    if (header[13] > 0) status = cache_prepare(fresh, bounded && header[16] ? SEGMENT_DECODE : SEGMENT_PROMPT, 1, error);
    if (!status && header[13] > 0) status = cache_reserve(fresh, header[13], error);
    if (!status && header[17] > fresh->max_runs) {
        decode_run *runs = realloc(fresh->runs, (size_t)header[17] * sizeof *runs);
        if (runs) {
            fresh->runs = runs;
            fresh->max_runs = header[17];
        } else {
            status = error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for %d runs", (int)header[17]);
        }
    }
    if (!status) {
        fresh->length = fresh->high = header[13];
        fresh->draft_length = header[14];
        fresh->draft_from = header[15];
        fresh->n_runs = header[17];
        fresh->latent_length = header[18];
        transfer_state(fresh, &s);
        bool runs_sane = !s.failed;
        for (int i = 0; runs_sane && i < fresh->n_runs; i++) {
            int previous = i ? fresh->runs[i - 1].end : 0;
            runs_sane = fresh->runs[i].begin >= previous && fresh->runs[i].end > fresh->runs[i].begin &&
                        fresh->runs[i].end <= fresh->length;
        }
        if (!runs_sane || s.at != bytes) {
            status = error_set(error, KAKEYA_FORMAT, "snapshot is damaged: %zu bytes, %zu expected", bytes, s.at);
        }
    }
    if (status) {
        cpu_cache_destroy(fresh);
        return status;
    }
    backend_cache swap = *c;
    *c = *fresh;
    *fresh = swap;
    cpu_cache_destroy(fresh);
    return KAKEYA_OK;
}
