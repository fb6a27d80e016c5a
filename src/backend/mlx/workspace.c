/* What graphs need at most, told before they are made. A graph's inputs exist from its making on, and what is read of
 * it or attended by later tiles until that is done. Of what else it computes libmlx frees what no operation wants any
 * more, and runs a few operations ahead; so one layer is taken to be there at a time, with every operation's result and
 * the copies that products of strided operands make. Weights in bf16 count where stock operations widen them. */
#include "backend/mlx/layout.h"
#include "backend/mlx/mlx_kernels.h"

enum { SMALL_ARRAYS = 256 << 10, FLOAT = sizeof(float) };

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

static bool own_way(const backend_model *m, mlx_op op, size_t rows) {
    return mlx_device_ways(m->device)->few[op] == MLX_WAY_OWN && rows <= MLX_KERNEL_ROWS;
}

static size_t widened(const mlx_array *const *w, size_t n) {
    size_t bytes = 0;
    for (size_t i = 0; i < n; i++) bytes += w[i] ? mlx_array_widened_bytes(w[i]) : 0;
    return bytes;
}

#define WIDENED(...)                                                                                                   \
    widened((const mlx_array *const[]){__VA_ARGS__}, sizeof((const mlx_array *[]){__VA_ARGS__}) / sizeof(mlx_array *))

/* ----------------------------------------------------------------------------------------------------- verifier */

/* A tile of a segment, and what it attends. */
typedef struct tile_need {
    const backend_model *m;
    const backend_cache *cache;
    const chain_plan *plan;
    tile_sizes sizes;
    size_t new_rows; /* of all tiles of the chain up to this one */
    bool guarded, picture;
} tile_need;

static bool own_attention(const tile_need *n) {
    return !n->picture && own_way(n->m, MLX_OP_ATTENTION, (size_t)n->plan->tile_rows);
}

/* Keys or values of one layer from where they lie to where they are multiplied. */
static size_t gathered(const tile_need *n, int layer, bool derived) {
    const timeline_layer *l = &n->cache->t.layer[layer];
    int type = (int)n->m->config->layer[layer].type;
    size_t values = (size_t)l->values, slots = (size_t)n->sizes.slots[type],
           all = (size_t)n->plan->stored[type].rows + n->new_rows;
    if (own_attention(n)) return 2 * n->new_rows * values * FLOAT;
    size_t wide = slots * values * FLOAT;
    return all * values * FLOAT + 3 * wide + (derived ? 4 * wide : 0) + (n->guarded ? 3 * wide : 0);
}

static size_t attention(const tile_need *n, int index) {
    const model_config *c = n->m->config;
    const layer_config *lc = &c->layer[index];
    const timeline_layer *l = &n->cache->t.layer[lc->kv_source];
    size_t rows = (size_t)n->sizes.rows, heads = (size_t)c->heads, dim = (size_t)lc->head_dim,
           slots = (size_t)n->sizes.slots[lc->type], restored = (size_t)n->sizes.restored[lc->type],
           values = (size_t)l->values, queries = rows * heads;
    const latent_row *latent = &n->cache->t.latent;
    size_t ranks = restored ? (size_t)(latent->rank_k + latent->rank_v) : 0;
    size_t bytes = gathered(n, lc->kv_source, false) + gathered(n, lc->kv_source, lc->k_eq_v);
    if (own_attention(n)) {
        size_t parts = (slots + restored) / 256 + 2;
        return bytes + queries * (4 * dim + parts * (dim + 2)) * FLOAT + restored * values * 8 * FLOAT;
    }
    size_t together = rows > MLX_ATTENTION_ROWS ? 2 * MLX_ATTENTION_ROWS : rows; /* one group, and the next one begun */
    bytes += queries * 6 * dim * FLOAT + together * heads * (n->guarded ? 7 : 5) * (slots + restored) * FLOAT;
    return bytes + restored * (values * 6 + ranks * (size_t)(2 * lc->kv_heads)) * FLOAT;
}

/* What a layer makes, but for what it gives. */
static size_t layer_need(const tile_need *n, int index) {
    const model_config *c = n->m->config;
    const layer_config *lc = &c->layer[index];
    const mlx_layer *w = &n->m->form.layer[index];
    size_t rows = (size_t)n->sizes.rows, hidden = (size_t)c->hidden,
           columns = (size_t)((c->heads + 2 * lc->kv_heads) * lc->head_dim);
    size_t per_row = 8 * hidden + 3 * columns + 6 * (size_t)lc->intermediate + 6 * (size_t)c->ple_width, bytes = 0;
    if (c->experts_per_token)
        per_row +=
            (size_t)c->experts_per_token * (7 * (size_t)c->expert_intermediate + 3 * hidden) + 5 * (size_t)c->experts;
    if (!own_way(n->m, MLX_OP_PRODUCT, rows))
        bytes += WIDENED(w->q_proj, w->k_proj, w->v_proj, w->o_proj, w->gate_proj, w->up_proj, w->down_proj,
                         w->router_proj, w->ple_gate, w->ple_proj);
    if (!own_way(n->m, MLX_OP_EXPERTS, rows))
        bytes += WIDENED(w->experts_gate_up, w->experts_gate, w->experts_up, w->experts_down);
    if (n->sizes.restored[lc->type]) bytes += WIDENED(w->decoder_k, w->decoder_v);
    return bytes + attention(n, index) + rows * per_row * FLOAT;
}

static size_t head_need(const backend_model *m, size_t rows) {
    size_t wide = own_way(m, MLX_OP_HEAD, rows) ? 0 : WIDENED(m->form.head);
    return wide + rows * (5 * (size_t)m->config->vocab + 4 * (size_t)m->config->hidden) * FLOAT;
}

/* Inputs of a tile, and what is read of it or attended by later ones. */
static size_t tile_ends(const tile_need *n, const backend_segment *r) {
    const model_config *c = n->m->config;
    size_t rows = (size_t)n->sizes.rows, hidden = (size_t)c->hidden, values = 0, outputs = 2 * hidden;
    for (int i = 0; i < c->layers; i++) {
        const timeline_layer *l = &n->cache->t.layer[i];
        if (l->kind != STORE_NONE) values += (size_t)l->values * (l->has_keys ? 2 : 1);
        if (n->sizes.restored[c->layer[i].type])
            values += (size_t)n->sizes.restored[c->layer[i].type] * (size_t)c->layer[i].kv_heads / rows + 1;
    }
    outputs += (r->hidden_states ? (size_t)c->layers : (size_t)n->cache->t.taps) * hidden;
    size_t bytes = rows * (2 * values + outputs + hidden + 5 * (size_t)(c->layers * c->ple_width)) * FLOAT;
    for (int type = 0; type < 2; type++) {
        size_t slots = (size_t)n->sizes.slots[type], restored = (size_t)n->sizes.restored[type];
        size_t ranks = restored ? (size_t)(n->cache->t.latent.rank_k + n->cache->t.latent.rank_v) : 0;
        bytes += (slots + restored) * (4 + rows) * FLOAT + restored * ranks * FLOAT;
    }
    return bytes;
}

/* What one tile makes in between; of several, one is computed. */
static size_t tile_work(const tile_need *n, const backend_segment *r) {
    const model_config *c = n->m->config;
    size_t most = 0, kept = 0;
    for (int i = 0; i < c->layers; i++) most = larger(most, layer_need(n, i));
    for (int type = 0; type < 2 && c->shared_kv_layers; type++) { /* K/V that later layers attend, too */
        for (int i = 0; i < c->layers; i++) {
            if ((int)c->layer[i].type != type || c->layer[i].kv_source != i) continue;
            kept += 2 * (size_t)n->sizes.slots[type] * (size_t)n->cache->t.layer[i].values * FLOAT;
            break;
        }
    }
    if (n->m->form.ple_width) kept += WIDENED(n->m->form.ple_model_proj);
    size_t head = r->kind == SEGMENT_DECODE ? head_need(n->m, (size_t)n->sizes.rows) : 0;
    return kept + larger(most, head);
}

/* Stored rows of all layers, as they are copied for a segment. */
static size_t chain_bytes(const backend_model *m, const backend_cache *c, const chain_plan *plan) {
    size_t bytes = 0;
    for (int i = 0; i < m->config->layers; i++) {
        const timeline_layer *l = &c->t.layer[i];
        if (l->kind == STORE_NONE) continue;
        bool raw = own_way(m, MLX_OP_ATTENTION, (size_t)plan->tile_rows);
        size_t row = (raw ? l->row_bytes : 0) + (!raw || plan->pictures ? layout_number_bytes(l) : 0);
        bytes += (size_t)plan->stored[m->config->layer[i].type].rows * row * (l->has_keys ? 2 : 1);
    }
    return bytes;
}

/* A segment: rows that are copied for it, and one of its tiles. */
typedef struct segment_need {
    size_t shared, ends, work;
    int tiles;
} segment_need;

static segment_need need_of(const backend_model *m, const backend_segment *r, bool guarded) {
    const timeline *t = &r->cache->t;
    chain_plan plan = layout_chain(r);
    segment_need need = {.shared = chain_bytes(m, r->cache, &plan)};
    size_t made = 0; /* rows of its tiles, with those that do not stay */
    for (int at = t->length, end = at + r->n; at < end; need.tiles++) {
        tile_rows tile = layout_tile(r, at);
        at += tile.n;
        made += (size_t)tile.rows;
        /* the first one may be longer than the last, which attends most */
        if (at < end && need.tiles && !tile.picture) continue;
        size_t new_rows = plan.single ? MLX_AHEAD_STEPS : (size_t)(tile.first + tile.n - t->length);
        tile_need n = {m, r->cache, &plan, layout_sizes(m, &tile), new_rows, guarded, tile.picture};
        need.ends = larger(need.ends, tile_ends(&n, r));
        need.work = larger(need.work, tile_work(&n, r));
    }
    size_t values = 0; /* new rows of tiles that are done stay for those that follow */
    for (int i = 0; i < m->config->layers; i++) {
        const timeline_layer *l = &t->layer[i];
        if (l->kind != STORE_NONE) values += (size_t)l->values * (l->has_keys ? 2 : 1);
    }
    need.tiles += plan.single; /* the next step's graph */
    if (plan.single) made = MLX_AHEAD_STEPS * (size_t)plan.tile_rows;
    need.shared += made * values * FLOAT;
    return need;
}

/* ----------------------------------------------------------------------------------- what follows rows, and drafts */

static size_t follow_bytes(const backend_model *m) {
    const block_drafter_model *d = m->options.drafter;
    const mlx_drafter *f = &m->drafter;
    size_t rows = MLX_FOLLOW_ROWS, ranks = (size_t)(m->encoders.rank_k + m->encoders.rank_v), per_row = 4 * ranks,
           bytes = 0, scales = 0;
    if (m->encoders.k) bytes += WIDENED(m->encoders.k, m->encoders.v);
    per_row += 3 * (size_t)m->max_taps * (size_t)m->config->hidden;
    if (d) {
        bytes += WIDENED(f->fc);
        per_row += (size_t)f->hidden * 3 + (size_t)(f->layers * f->kv_heads * f->head_dim) * 10;
        for (int i = 0; i < f->layers; i++) bytes += WIDENED(f->layer[i].k_proj, f->layer[i].v_proj);
    }
    for (int i = 0; i < m->config->layers && m->encoders.k; i++) {
        const layer_config *lc = &m->config->layer[i];
        if (!m->form.layer[i].decoder_v) continue;
        scales += WIDENED(m->form.layer[i].decoder_v) + rows * (size_t)(lc->kv_heads * lc->head_dim) * 3 * FLOAT;
    }
    return larger(bytes + rows * per_row * FLOAT, scales);
}

size_t mlx_forward_bytes(const backend_model *m, const backend_segment *segments, int n, bool guarded) {
    size_t shared[2] = {0, 0}, ends = 0, work = 0, head = 0;
    int tiles = 0;
    for (int i = 0; i < n; i++) {
        segment_need need = need_of(m, &segments[i], guarded);
        tiles += need.tiles;
        ends = larger(ends, need.ends);
        work = larger(work, need.work);
        shared[1] = larger(shared[1], need.shared);
        if (shared[1] > shared[0]) { /* the two largest */
            size_t second = shared[0];
            shared[0] = shared[1];
            shared[1] = second;
        }
        bool apart = segments[i].kind == SEGMENT_PROMPT || m->head_rows != m->decode_rows;
        if (apart && segments[i].first_logit_row < segments[i].n) head = head_need(m, MLX_HEAD_ROWS);
    }
    if (tiles > MLX_TILES_UNDER_WAY) tiles = MLX_TILES_UNDER_WAY;
    size_t computed = shared[0] + shared[1] + (size_t)tiles * ends + work;
    return SMALL_ARRAYS + larger(computed, larger(head, follow_bytes(m)));
}

size_t mlx_draft_bytes(const backend_model *m, const backend_draft_request *requests, int n) {
    const mlx_drafter *f = &m->drafter;
    size_t most = 0, wide = WIDENED(f->fc);
    for (int i = 0; i < f->layers; i++) {
        const mlx_draft_layer *w = &f->layer[i];
        size_t here = WIDENED(w->q_proj, w->k_proj, w->v_proj, w->o_proj, w->gate_proj, w->up_proj, w->down_proj);
        wide = larger(wide, here);
    }
    size_t intermediate = f->layers ? (size_t)m->options.drafter->config.intermediate : 0;
    for (int i = 0; i < n; i++) {
        const timeline *t = &requests[i].cache->t;
        size_t rows = (size_t)requests[i].n + 1, values = (size_t)(f->kv_heads * f->head_dim), bytes = 0,
               layer_most = 0;
        for (int layer = 0; layer < f->layers; layer++) {
            position_range seen = timeline_draft_context(t, layer);
            size_t keys = (size_t)(seen.end - seen.begin) + rows;
            bytes += keys * values * 2 * FLOAT + keys * rows * FLOAT; /* inputs */
            size_t here = keys * (values * 8 + rows * (size_t)f->heads * 5) * FLOAT +
                          rows * (8 * (size_t)f->hidden + 8 * intermediate) * FLOAT;
            layer_most = larger(layer_most, here);
        }
        most = larger(most, bytes + larger(layer_most, head_need(m, rows)));
    }
    return SMALL_ARRAYS + larger(wide + most, follow_bytes(m));
}

/* ------------------------------------------------------------------------------------------------ rows of a forward */

/* Layers whose outputs any cache may want: the drafter's and the restoration's. */
static int max_taps(const backend_model_options *o) {
    int taps = o->drafter ? o->drafter->config.targets : 0;
    if (o->restoration && o->restoration->config.input == RESTORATION_AUX_HIDDEN)
        taps += o->restoration->config.aux_layers;
    return taps;
}

kakeya_status mlx_rows_reserve(backend_model *m, int rows, kakeya_error *error) {
    enum { STEP = 128 };
    const model_config *c = m->config;
    if (rows <= m->max_rows) return KAKEYA_OK;
    rows = (rows + STEP - 1) / STEP * STEP;
    if (rows > m->most_rows) rows = m->most_rows;
    size_t n = (size_t)rows, chunk = 0, hidden = (size_t)c->hidden * sizeof(float);
    for (int i = 0; i < c->layers; i++) {
        const layer_config *lc = &c->layer[i];
        size_t row = (size_t)(lc->kv_heads * lc->head_dim) * sizeof(float);
        if (lc->kv_source != i) continue;
        m->chunk_at[i].v = chunk;
        m->chunk_at[i].k = chunk + row;
        chunk += lc->k_eq_v ? row : 2 * row;
    }
    m->max_taps = max_taps(&m->options);
    const size_t sizes[] = {n * chunk, n * hidden, n * hidden * (size_t)m->max_taps};
    void *made[3] = {NULL}, *const old[] = {m->chunk, m->hidden, m->aux};
    bool lacks = false;
    for (int i = 0; i < 3; i++) {
        if (sizes[i]) made[i] = mem_alloc(m->account, MEM_WORKSPACE, sizes[i]);
        lacks = lacks || (sizes[i] && !made[i]);
    }
    for (int i = 0; i < 3; i++) mem_free(lacks ? made[i] : old[i]);
    if (lacks)
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: the workspace needs %zu bytes",
                         sizes[0] + sizes[1] + sizes[2]);
    m->chunk = made[0];
    m->hidden = made[1];
    m->aux = made[2];
    m->max_rows = rows;
    return KAKEYA_OK;
}
