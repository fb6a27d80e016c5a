/* What follows the rows of a cache: the drafter's context, and latents. Always so many rows together: a latent is read
 * by the verifier, so its bits must not depend on when its row was committed. */
#include <string.h>

#include "backend/mlx/mlx.h"
#include "base/float16.h"

void mlx_store_values(kv_format format, const float *x, size_t n, void *to) {
    if (format == KV_FORMAT_F32) {
        memcpy(to, x, n * sizeof *x);
        return;
    }
    uint16_t *bits = to; /* rows of bf16 lie at even addresses */
    for (size_t i = 0; i < n; i++) bits[i] = f32_to_bf16(x[i]);
}

/* ------------------------------------------------------------------------------------------------------ latents */

static bool is_plain(latent_format format) { return format == LATENT_F32 || format == LATENT_BF16; }

static void store_latent(latent_format format, const float *x, int n, unsigned char *to) {
    if (is_plain(format))
        mlx_store_values(format == LATENT_F32 ? KV_FORMAT_F32 : KV_FORMAT_BF16, x, (size_t)n, to);
    else
        latent_encode(format, x, n, to);
}

static void load_latent(latent_format format, const unsigned char *from, int n, float *out) {
    if (format == LATENT_F32) {
        memcpy(out, from, (size_t)n * sizeof *out);
    } else if (format == LATENT_BF16) {
        for (int i = 0; i < n; i++) {
            uint16_t bits;
            memcpy(&bits, from + 2 * (size_t)i, sizeof bits);
            out[i] = bf16_to_f32(bits);
        }
    } else {
        latent_decode(format, from, n, out);
    }
}

void mlx_latent_load(const backend_cache *c, int position, bool is_k, float *out) {
    const latent_row *row = &c->t.latent;
    load_latent(row->format, latent_code(c, position) + (is_k ? 0 : row->values_at), is_k ? row->rank_k : row->rank_v,
                out);
}

/* The place of a position among the rows that are computed together. */
static size_t place_of(const backend_model *m, int position) { return (size_t)(position % m->follow_rows); }

/* Latents, each in its place, of positions from `position` on into the store; the v_norm scalars beside them are those
 * of the stored, rounded latents that attention will read. */
static kakeya_status store_latents(backend_model *m, backend_cache *c, int position, int n, const float *codes,
                                   kakeya_error *error) {
    const latent_row *row = &c->t.latent;
    int width = row->shared ? row->rank_k : row->rank_k + row->rank_v;
    float *values = mem_alloc(m->account, MEM_WORKSPACE,
                              MLX_FOLLOW_ROWS * (size_t)(row->rank_v + c->t.latent_heads) * sizeof *values);
    if (!values) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for latents");
    float *scales = values + MLX_FOLLOW_ROWS * (size_t)row->rank_v;
    for (int i = 0; i < n; i++) {
        const float *code = codes + place_of(m, position + i) * (size_t)width;
        unsigned char *to = latent_code(c, position + i);
        store_latent(row->format, code, row->rank_k, to);
        if (!row->shared) store_latent(row->format, code + row->rank_k, row->rank_v, to + row->values_at);
        load_latent(row->format, to + row->values_at, row->rank_v,
                    values + place_of(m, position + i) * (size_t)row->rank_v);
    }
    bool layers[MLX_MAX_LAYERS] = {false};
    for (int i = 0; i < m->config->layers; i++) layers[i] = c->t.layer[i].latent_head >= 0;
    mlx_failure failure;
    kakeya_status status =
        mlx_check(mlx_scales_run(m->device, &m->form, layers, m->follow_rows, row->rank_v, values, scales, &failure),
                  &failure, error);
    size_t heads = (size_t)c->t.latent_heads;
    for (int i = 0; i < n && !status; i++)
        memcpy(latent_scales(c, position + i), scales + place_of(m, position + i) * heads, heads * sizeof *scales);
    mem_free(values);
    return status;
}

/* ------------------------------------------------------------------------------------------------------- groups */

/* A group of rows on its way, all between two multiples of MLX_FOLLOW_ROWS. */
typedef struct follow_group {
    backend_model *model;
    backend_cache *cache;
    int position, n;
    const float *aux; /* of its first row */
} follow_group;

static size_t aux_stride(const follow_group *g) { return kv_aux_row_bytes(g->cache) / sizeof(float); }

static void store_context(const follow_group *g, const float *k, const float *v) {
    const block_drafter_config *d = &g->model->options.drafter->config;
    backend_cache *c = g->cache;
    size_t values = (size_t)(d->kv_heads * d->head_dim);
    for (int layer = 0; layer < d->layers; layer++) {
        for (int i = 0; i < g->n; i++) {
            size_t at = ((size_t)layer * (size_t)g->model->follow_rows + place_of(g->model, g->position + i)) * values;
            mlx_store_values(c->t.draft_format, k + at, values, kv_draft_row(c, layer, g->position + i, true));
            mlx_store_values(c->t.draft_format, v + at, values, kv_draft_row(c, layer, g->position + i, false));
        }
    }
}

/* The drafter's context of a group and, if wanted, the latents that are made of it. */
static kakeya_status follow_context(const follow_group *g, bool latents, kakeya_error *error) {
    backend_model *m = g->model;
    const block_drafter_config *d = &m->options.drafter->config;
    size_t width = (size_t)d->targets * (size_t)m->config->hidden, rows = (size_t)m->follow_rows,
           kv = (size_t)d->layers * rows * (size_t)(d->kv_heads * d->head_dim),
           codes = latents ? rows * (size_t)(m->encoders.rank_k + m->encoders.rank_v) : 0;
    float *aux = mem_alloc(m->account, MEM_WORKSPACE, (rows * width + 2 * kv + codes) * sizeof *aux);
    if (!aux) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for the drafter's context");
    float *k = aux + rows * width, *v = k + kv;
    int32_t position[MLX_FOLLOW_ROWS];
    for (int i = 0; i < m->follow_rows; i++) position[i] = g->position / m->follow_rows * m->follow_rows + i;
    for (int i = 0; i < g->n; i++)
        memcpy(aux + place_of(g->model, g->position + i) * width, g->aux + (size_t)i * aux_stride(g),
               width * sizeof *aux);
    mlx_failure failure;
    kakeya_status status = mlx_check(mlx_context_run(m->device, &m->drafter, latents ? &m->encoders : NULL,
                                                     m->follow_rows, aux, (int)width, position, k, v, v + kv, &failure),
                                     &failure, error);
    if (!status) store_context(g, k, v);
    if (!status && latents) status = store_latents(m, g->cache, g->position, g->n, v + kv, error);
    mem_free(aux);
    return status;
}

/* The latents of a group from the aux hidden states themselves. */
static kakeya_status follow_aux(const follow_group *g, kakeya_error *error) {
    backend_model *m = g->model;
    const timeline *t = &g->cache->t;
    int parts = m->options.restoration->config.aux_layers;
    size_t hidden = (size_t)m->config->hidden, width = (size_t)parts * hidden, rows = (size_t)m->follow_rows,
           codes = rows * (size_t)(m->encoders.rank_k + m->encoders.rank_v);
    float *aux = mem_alloc(m->account, MEM_WORKSPACE, (rows * width + codes) * sizeof *aux);
    if (!aux) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for latents");
    for (int i = 0; i < g->n; i++) {
        const float *from = g->aux + (size_t)i * aux_stride(g);
        for (int p = 0; p < parts; p++)
            memcpy(aux + place_of(g->model, g->position + i) * width + (size_t)p * hidden,
                   from + (size_t)t->restoration_tap[p] * hidden, hidden * sizeof *aux);
    }
    mlx_failure failure;
    kakeya_status status = mlx_check(mlx_encode_run(m->device, &m->encoders, m->follow_rows, parts, m->config->hidden,
                                                    m->config->rms_eps, aux, aux + rows * width, &failure),
                                     &failure, error);
    if (!status) status = store_latents(m, g->cache, g->position, g->n, aux + rows * width, error);
    mem_free(aux);
    return status;
}

static kakeya_status follow_group_of(const follow_group *g, bool context, bool latents, kakeya_error *error) {
    bool from_aux = g->cache->t.latents_from_aux;
    kakeya_status status = context ? follow_context(g, latents && !from_aux, error) : KAKEYA_OK;
    return !status && latents && from_aux ? follow_aux(g, error) : status;
}

/* Of the rows only those that the stores still hold afterwards: the last ones, of the context and of latents each. */
kakeya_status mlx_follow(backend_model *m, const follow_rows *rows, kakeya_error *error) {
    const timeline *t = &rows->cache->t;
    int context = t->options.keep_draft_context ? timeline_context_rows(t, rows->rows) : 0,
        latents = timeline_latent_rows(t, rows->rows), from = rows->rows - (context > latents ? context : latents);
    kakeya_status status = KAKEYA_OK;
    while (from < rows->rows && !status) {
        /* A group also ends where latents, or the context, begin to be kept. */
        int room = m->follow_rows - (int)place_of(m, rows->position + from);
        int end = from + room < rows->rows ? from + room : rows->rows;
        int begins[2] = {rows->rows - context, rows->rows - latents};
        for (int i = 0; i < 2; i++) {
            if (begins[i] > from && begins[i] < end) end = begins[i];
        }
        follow_group g = {m, rows->cache, rows->position + from, end - from, rows->aux};
        g.aux += (size_t)from * aux_stride(&g);
        status = follow_group_of(&g, from >= begins[0], from >= begins[1], error);
        from = end;
    }
    return status;
}

kakeya_status mlx_flush(backend_cache *c, position_range rows, kakeya_error *error) {
    if (range_is_empty(rows)) return KAKEYA_OK;
    const follow_rows waiting = {c, c->backlog, rows.end - rows.begin, rows.begin};
    return mlx_follow(c->model, &waiting, error);
}
