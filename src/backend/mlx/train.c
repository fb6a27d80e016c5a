/* What training asks of this backend: forwards whose inner values can be seen, and sums of outer products. Students and
 * trainers are the CPU's and CUDA's. */
#include "backend/backend_train.h"

#include <string.h>

#include "backend/mlx/mlx.h"
#include "backend/weight_values.h"

/* Inner values of all layers: tiles are computed one by one, each through all layers, and are tapped layer by layer.
 * Of each layer [rows][..] of raw K, raw V, queries, attention's output, o_proj's output and the layer's own. */
struct mlx_tapped {
    size_t rows;
    float *values;
    size_t at[MODEL_MAX_LAYERS]; /* where a layer's begin */
};

typedef struct layer_widths {
    size_t kv, q, hidden;
} layer_widths;

static layer_widths widths_of(const model_config *c, int layer) {
    const layer_config *l = &c->layer[layer];
    return (layer_widths){(size_t)(l->kv_heads * l->head_dim), (size_t)(c->heads * l->head_dim), (size_t)c->hidden};
}

/* A layer's tapped values. */
typedef struct tapped_layer {
    float *raw_k, *raw_v; /* NULL in layers that attend an earlier layer's */
    float *q, *o, *out, *h;
} tapped_layer;

static tapped_layer place_of(const mlx_tapped *w, const model_config *c, int layer) {
    layer_widths n = widths_of(c, layer);
    float *at = w->values + w->at[layer], *q = at + w->rows * 2 * n.kv, *out = q + w->rows * 2 * n.q;
    bool own = c->layer[layer].kv_source == layer;
    return (tapped_layer){.raw_k = own ? at : NULL,
                          .raw_v = own ? at + w->rows * n.kv : NULL,
                          .q = q,
                          .o = q + w->rows * n.q,
                          .out = out,
                          .h = out + w->rows * n.hidden};
}

static void copy_rows(float *to, const float *from, size_t stride, size_t width, size_t rows) {
    for (size_t i = 0; i < rows; i++) memcpy(to + i * width, from + i * stride, width * sizeof *to);
}

/* Keeps the values of a tile as rows of the tapped forward. */
static void keep_rows(const backend_model *m, size_t in_tile, size_t in_forward, size_t n,
                      const mlx_tile_result *result) {
    const model_config *c = m->config;
    for (int i = 0; i < c->layers; i++) {
        layer_widths w = widths_of(c, i);
        const mlx_inner *inner = &result->inner[i];
        tapped_layer to = place_of(m->tapped, c, i);
        bool apart = to.raw_k && !c->layer[i].k_eq_v;
        size_t stride = w.q + (to.raw_k ? w.kv : 0) + (apart ? w.kv : 0), q = in_forward * w.q,
               hidden = in_forward * w.hidden;
        const float *raw = inner->raw + in_tile * stride + w.q;
        if (to.raw_k) {
            copy_rows(to.raw_k + in_forward * w.kv, raw, stride, w.kv, n);
            copy_rows(to.raw_v + in_forward * w.kv, raw + (apart ? w.kv : 0), stride, w.kv, n);
        }
        copy_rows(to.q + q, inner->q + in_tile * w.q, w.q, w.q, n);
        copy_rows(to.o + q, inner->attended + in_tile * w.q, w.q, w.q, n);
        copy_rows(to.out + hidden, inner->added + in_tile * w.hidden, w.hidden, w.hidden, n);
        copy_rows(to.h + hidden, result->output[i] + in_tile * w.hidden, w.hidden, w.hidden, n);
    }
}

/* Angles of all positions up to `length`: cosines, then sines, [length][pairs], of a type of layers. */
static void fill_angles(const backend_model *m, layer_type type, int length, float *to) {
    int pairs = m->form.rope[type].pairs;
    for (int half = 0; half < 2; half++)
        for (int p = 0; p < length; p++, to += pairs) mlx_rope_row(m, type, p, half == 1, to);
}

static void tell_layers(const backend_model *m, int position, int length, const float *const angles[2],
                        train_tap_fn tap, void *user) {
    const model_config *c = m->config;
    for (int i = 0; i < c->layers; i++) {
        layer_type type = c->layer[i].type;
        tapped_layer values = place_of(m->tapped, c, i);
        int pairs = m->form.rope[type].pairs;
        train_layer layer = {.layer = i,
                             .rows = (int)m->tapped->rows,
                             .position = position,
                             .raw_k = values.raw_k,
                             .raw_v = values.raw_v,
                             .q = values.q,
                             .o = values.o,
                             .out = values.out,
                             .h = values.h,
                             .cosine = angles[type],
                             .sine = angles[type] + (size_t)length * (size_t)pairs,
                             .half = c->layer[i].head_dim / 2,
                             .pairs = pairs};
        tap(user, &layer);
    }
}

static kakeya_status tap_forward(backend_model *m, backend_cache *cache, const int32_t *tokens, int n, train_tap_fn tap,
                                 void *user, kakeya_error *error) {
    const model_config *c = m->config;
    int position = cache->t.length, length = position + n;
    mlx_tapped tapped = {.rows = (size_t)n};
    size_t floats = 0, turned[2];
    for (int i = 0; i < c->layers; i++) {
        layer_widths w = widths_of(c, i);
        tapped.at[i] = floats;
        floats += tapped.rows * 2 * (w.kv + w.q + w.hidden);
    }
    for (int type = 0; type < 2; type++) turned[type] = 2 * (size_t)length * (size_t)m->form.rope[type].pairs;
    size_t bytes = (floats + turned[0] + turned[1]) * sizeof(float);
    tapped.values = mem_alloc(m->account, MEM_WORKSPACE, bytes);
    if (!tapped.values)
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: a forward to train on needs %zu bytes", bytes);
    float *angles[2] = {tapped.values + floats, tapped.values + floats + turned[0]};
    backend_segment segment = {.cache = cache, .tokens = tokens, .n = n, .kind = SEGMENT_PROMPT, .first_logit_row = n};
    m->tapped = &tapped;
    m->tap = keep_rows;
    m->form.inner = true;
    kakeya_status status = mlx_forward(m, &segment, 1, error);
    m->form.inner = false;
    if (!status) status = host_cache_commit(cache, n, error);
    if (!status) {
        for (int type = 0; type < 2; type++) fill_angles(m, (layer_type)type, length, angles[type]);
        tell_layers(m, position, length, (const float *const[2]){angles[0], angles[1]}, tap, user);
    }
    m->tap = NULL;
    mem_free(tapped.values);
    return status;
}

static kakeya_status outer(backend_model *m, const float *a, int na, const float *b, size_t ldb, int nb, int rows,
                           float *out, kakeya_error *error) {
    mlx_failure failure;
    return mlx_check(mlx_outer_run(m->device, a, na, b, ldb, nb, rows, out, &failure), &failure, error);
}

static void weight_row_of(const backend_model *m, const weight *w, int row, float *out) {
    (void)m;
    weight_values(w, row, 0, w->in, out);
}

const backend_train_ops *mlx_train(void);

const backend_train_ops *mlx_train(void) {
    static const backend_train_ops ops = {.forward = tap_forward, .outer = outer, .weight_row = weight_row_of};
    return &ops;
}
