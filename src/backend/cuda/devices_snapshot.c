#include "backend/cuda/devices_snapshot.h"

#include <string.h>

#include "backend/cuda/devices.h"
#include "backend/cuda/snapshot.h"
#include "backend/cuda/tp_group.h"

/* The timeline of the whole model in the state of a device's. */
static kakeya_status whole_timeline(const backend_cache *c, timeline *whole, kakeya_error *error) {
    timeline_models models = cuda_cache_models(c->model);
    models.verifier = &c->model->options.verifier->config;
    return timeline_create(whole, &models, &c->t.options, error);
}

static kakeya_status same_state(timeline *to, const timeline *from, kakeya_error *error) {
    timeline_state state = timeline_get_state(from);
    return timeline_set_state(to, &state, from->runs, error);
}

/* ------------------------------------------------------------------------------------------------- parts of rows */

/* A row of the whole and a device's row of the same store have these bytes in common. */
typedef struct row_span {
    size_t whole, part, bytes; /* where they begin */
} row_span;

typedef struct row_layout {
    row_span span[MODEL_MAX_LAYERS];
    int n;
    size_t part_bytes; /* of a device's row */
} row_layout;

static row_layout kv_layout(const backend_cache *c, int layer) {
    const backend_model *m = c->model;
    size_t head = cuda_row_bytes(c, layer) / (size_t)m->config->layer[layer].kv_heads;
    int first = model_shard_first_kv_head(m->shard, m->options.verifier->config.layer[layer].kv_heads);
    row_layout layout = {.n = 1, .part_bytes = cuda_row_bytes(c, layer)};
    layout.span[0] = (row_span){(size_t)first * head, 0, layout.part_bytes};
    return layout;
}

/* The scalars of all restored layers, head by head. */
static row_layout scale_layout(const backend_cache *c) {
    const backend_model *m = c->model;
    row_layout layout = {.part_bytes = cuda_scale_bytes(c)};
    size_t before = 0;
    for (int i = 0; i < m->config->layers; i++) {
        if (c->t.layer[i].latent_head < 0) continue;
        int all = m->options.verifier->config.layer[i].kv_heads, first = model_shard_first_kv_head(m->shard, all);
        layout.span[layout.n++] =
            (row_span){(before + (size_t)first) * sizeof(float), (size_t)c->t.layer[i].latent_head * sizeof(float),
                       (size_t)m->config->layer[i].kv_heads * sizeof(float)};
        before += (size_t)all;
    }
    return layout;
}

static bool is_dealt(snapshot_part part) {
    return part == SNAPSHOT_LAYER_V || part == SNAPSHOT_LAYER_K || part == SNAPSHOT_SINK_V || part == SNAPSHOT_SINK_K ||
           part == SNAPSHOT_LATENT_SCALES;
}

static void copy_spans(const row_layout *layout, char *whole, size_t whole_bytes, char *part, int rows, bool to_whole) {
    for (int r = 0; r < rows; r++) {
        for (int i = 0; i < layout->n; i++) {
            char *a = whole + (size_t)r * whole_bytes + layout->span[i].whole,
                 *b = part + (size_t)r * layout->part_bytes + layout->span[i].part;
            memcpy(to_whole ? a : b, to_whole ? b : a, layout->span[i].bytes);
        }
    }
}

static kakeya_status copy_dealt(backend_cache *one, const snapshot_rows *rows, char *host, bool to_host,
                                kakeya_error *error) {
    row_layout layout = rows->part == SNAPSHOT_LATENT_SCALES ? scale_layout(one) : kv_layout(one, rows->layer);
    snapshot_rows part = *rows;
    part.row_bytes = layout.part_bytes;
    size_t bytes = (size_t)rows->n * layout.part_bytes;
    char *staged = mem_alloc(one->account, MEM_WORKSPACE, bytes);
    if (!staged) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: a snapshot needs %zu bytes", bytes);
    if (!to_host) copy_spans(&layout, host, rows->row_bytes, staged, rows->n, false);
    kakeya_status status = cuda_snapshot_copy(one, &part, staged, to_host, error);
    if (!status && to_host) copy_spans(&layout, host, rows->row_bytes, staged, rows->n, true);
    mem_free(staged);
    return status;
}

/* All devices hold the same of what is not dealt. */
static kakeya_status copy_rows(backend_cache *c, const snapshot_rows *rows, void *host, bool to_host,
                               kakeya_error *error) {
    int devices = to_host && !is_dealt(rows->part) ? 1 : cuda_tp_group_size(c->model->tp_group);
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; i < devices && !status; i++) {
        backend_cache *one = i ? c->other[i] : c;
        status = cuda_device_use(&one->model->device, error);
        if (status) break;
        status = is_dealt(rows->part) ? copy_dealt(one, rows, host, to_host, error)
                                      : cuda_snapshot_copy(one, rows, host, to_host, error);
    }
    return status;
}

/* -------------------------------------------------------------------------------------------------------- verbs */

size_t cuda_devices_snapshot_bytes(const backend_cache *c) {
    if (!c->model->tp_group) return cuda_cache_snapshot_bytes(c);
    timeline whole;
    size_t bytes = 0;
    if (!whole_timeline(c, &whole, NULL) && !same_state(&whole, &c->t, NULL)) bytes = snapshot_bytes(&whole);
    timeline_destroy(&whole);
    return bytes;
}

kakeya_status cuda_devices_snapshot(const backend_cache *c, backend_write_fn write, void *user, kakeya_error *error) {
    if (!c->model->tp_group) return cuda_cache_snapshot(c, write, user, error);
    if (c->t.pending)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "cannot snapshot with %d pending rows", c->t.pending);
    timeline whole;
    backend_cache *reading = (backend_cache *)(uintptr_t)c; /* copying to the host changes nothing */
    kakeya_status status = whole_timeline(c, &whole, error);
    if (!status) status = same_state(&whole, &c->t, error);
    if (!status) status = snapshot_write(&whole, reading, copy_rows, c->account, write, user, error);
    timeline_destroy(&whole);
    return status;
}

/* Fresh caches in the state of `whole`, without their rows. */
static kakeya_status create_like(const backend_cache *c, const timeline *whole, backend_cache **out,
                                 kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    *out = NULL;
    for (int i = 0; i < cuda_tp_group_size(c->model->tp_group) && !status; i++) {
        backend_model *m = cuda_tp_group_model(c->model->tp_group, i);
        timeline_models models = cuda_cache_models(m);
        timeline t;
        status = cuda_device_use(&m->device, error);
        if (status) break;
        status = timeline_create(&t, &models, &c->t.options, error);
        if (!status) status = same_state(&t, whole, error);
        if (status)
            timeline_destroy(&t);
        else
            status = cuda_cache_create_with(m, &t, NULL, i ? &(*out)->other[i] : out, error);
    }
    return status;
}

/* As of one device: swapped in once it is whole. */
kakeya_status cuda_devices_restore(backend_cache *c, backend_read_fn read, void *user, kakeya_error *error) {
    if (!c->model->tp_group) return cuda_cache_restore(c, read, user, error);
    timeline whole;
    backend_cache *fresh = NULL;
    kakeya_status status = whole_timeline(c, &whole, error);
    if (!status) status = snapshot_read_state(&whole, read, user, error);
    if (!status) status = create_like(c, &whole, &fresh, error);
    if (!status) status = snapshot_read_rows(&whole, fresh, copy_rows, c->account, read, user, error);
    timeline_destroy(&whole);
    if (!status) {
        backend_cache swap = *c;
        *c = *fresh;
        *fresh = swap;
    }
    cuda_devices_cache_destroy(fresh);
    return status;
}
