#include "backend/mlx/layout.h"

static int least(int a, int b) { return a < b ? a : b; }
static int most(int a, int b) { return a > b ? a : b; }
static int rounded_up(int n, int step) { return (n + step - 1) / step * step; }

/* The first picture whose rows see each other and that ends behind row `row`; NULL: there is none. */
static const backend_given *next_picture(const backend_segment *r, int row) {
    for (int i = 0; i < r->n_given; i++) {
        const backend_given *g = &r->given[i];
        if (g->both_ways && row < g->first + g->n) return g;
    }
    return NULL;
}

tile_rows layout_tile(const backend_segment *r, int at) {
    const backend_cache *c = r->cache;
    const int length = c->t.length;
    const backend_given *picture = next_picture(r, at - length);
    int end = length + r->n;
    tile_rows tile = {.cache = c, .kind = r->kind, .first = at};
    if (picture && length + picture->first <= at) {
        tile.picture = true;
        tile.origin = at;
        tile.rows = tile.n = length + picture->first + picture->n - at;
        return tile;
    }
    if (picture) end = length + picture->first;
    tile.rows = r->kind == SEGMENT_PROMPT ? c->model->prompt_rows : c->model->decode_rows;
    if (!tile.rows) { /* as they come, but no tile crosses a border where the number of slots changes */
        tile.origin = at;
        tile.rows = tile.n = least(least(end - at, MLX_MOST_ROWS), rounded_up(at + 1, MLX_KEY_STEP) - at);
        return tile;
    }
    tile.origin = at / tile.rows * tile.rows;
    tile.n = least(end, tile.origin + tile.rows) - at;
    return tile;
}

/* --------------------------------------------------------------------------------------------------------- slots */

/* Slots of one kind of keys: [sink positions] in their own, the others ascending from `base` or around a ring. */
typedef struct slot_plan {
    int sink, sink_slots; /* positions below `sink` lie in slots of their own */
    int base, ring;       /* ring 0: ascending */
    int slots;
} slot_plan;

static int slot_of(const slot_plan *p, int position) {
    if (position < p->sink) return position % p->sink_slots;
    return p->ring ? p->sink_slots + position % p->ring : position - p->base;
}

static int key_slots(const tile_rows *tile) {
    int behind = tile->kind == SEGMENT_PROMPT ? tile->origin + tile->rows : tile->first + 1;
    return rounded_up(behind, MLX_KEY_STEP);
}

static slot_plan exact_slots(const tile_rows *tile, const timeline_layer *l) {
    const timeline *t = &tile->cache->t;
    int window = t->models.verifier->sliding_window;
    bool sliding = l->kind == STORE_RING;
    if (tile->kind == SEGMENT_PROMPT && sliding)
        return (slot_plan){.base = tile->origin - window + 1, .slots = window - 1 + tile->rows};
    if (tile->kind == SEGMENT_PROMPT || (!sliding && !l->bounded)) return (slot_plan){.slots = key_slots(tile)};
    if (!l->bounded) return (slot_plan){.ring = kv_ring_positions(window), .slots = kv_ring_positions(window)};
    int resident = least(t->options.window, sliding ? window : t->options.context_tokens);
    slot_plan p = {.sink = t->options.sink, .ring = kv_ring_positions(resident)};
    /* A sliding layer never sees more than its window of a longer sink. */
    p.sink_slots = sliding ? least(p.sink, kv_ring_positions(window)) : p.sink;
    p.slots = p.sink_slots + p.ring;
    return p;
}

/* slots 0: no row of such a tile sees anything evicted. */
static slot_plan restored_slots(const tile_rows *tile, const timeline_layer *l, const slot_plan *exact) {
    const timeline *t = &tile->cache->t;
    int window = t->models.verifier->sliding_window;
    if (!l->restored) return (slot_plan){0};
    if (tile->kind == SEGMENT_PROMPT) {
        bool evicted = timeline_frontier(t) > most(t->options.sink, exact->base);
        return evicted ? *exact : (slot_plan){0};
    }
    if (l->kind == STORE_RING)
        return (slot_plan){.ring = kv_ring_positions(window), .slots = kv_ring_positions(window)};
    return (slot_plan){.slots = key_slots(tile)};
}

/* The first layer of a type that keeps K/V; -1: there is none. */
static int layer_of_type(const backend_model *m, int type) {
    for (int i = 0; i < m->config->layers; i++) {
        if ((int)m->config->layer[i].type == type && m->config->layer[i].kv_source == i) return i;
    }
    return -1;
}

tile_sizes layout_sizes(const backend_model *m, const tile_rows *tile) {
    tile_sizes sizes = {.rows = tile->rows};
    for (int type = 0; type < 2; type++) {
        int layer = layer_of_type(m, type);
        if (layer < 0) continue;
        const timeline_layer *l = &tile->cache->t.layer[layer];
        slot_plan exact = exact_slots(tile, l), restored = restored_slots(tile, l, &exact);
        sizes.slots[type] = exact.slots;
        sizes.restored[type] = restored.slots;
    }
    return sizes;
}

/* -------------------------------------------------------------------------------------------------- stored rows */

static int range_rows(position_range r) { return r.end > r.begin ? r.end - r.begin : 0; }

static int stored_row_of(const stored_plan *plan, int position) {
    if (position >= plan->sink.begin && position < plan->sink.end) return 1 + position - plan->sink.begin;
    return 1 + range_rows(plan->sink) + position - plan->exact.begin;
}

int layout_position(const stored_plan *plan, int row) {
    int sink = range_rows(plan->sink);
    return !row ? -1 : row <= sink ? plan->sink.begin + row - 1 : plan->exact.begin + row - 1 - sink;
}

/* What the rows from the first to the last see: bounds never go back from row to row. */
static stored_plan plan_stored(const timeline *t, int layer, segment_kind kind, int n) {
    timeline_view first = timeline_sees(t, layer, kind, t->length),
                  last = timeline_sees(t, layer, kind, t->length + n - 1);
    int sink = least(t->options.sink, t->length); /* a sliding layer's empty range may lie behind it */
    stored_plan plan = {{first.sink.begin, least(last.sink.end, sink)}, {first.exact.begin, t->length}, 0};
    plan.rows = 1 + range_rows(plan.sink) + range_rows(plan.exact);
    return plan;
}

chain_plan layout_chain(const backend_segment *r) {
    const backend_cache *c = r->cache;
    int fixed = r->kind == SEGMENT_PROMPT ? c->model->prompt_rows : c->model->decode_rows;
    bool single = r->kind == SEGMENT_DECODE && r->n == 1;
    chain_plan plan = {.length = c->t.length,
                       .tile_rows = fixed    ? fixed
                                    : single ? 1
                                             : MLX_MOST_ROWS,
                       .pictures = next_picture(r, 0),
                       .single = single};
    for (int type = 0; type < 2; type++) {
        int layer = layer_of_type(c->model, type);
        if (layer >= 0) plan.stored[type] = plan_stored(&c->t, layer, r->kind, r->n);
    }
    return plan;
}

static mlx_stored stored_as(kv_format format) {
    static const mlx_stored as[KV_FORMAT_COUNT] = {[KV_FORMAT_F32] = MLX_STORED_F32,
                                                   [KV_FORMAT_BF16] = MLX_STORED_BF16,
                                                   [KV_FORMAT_Q8] = MLX_STORED_Q8,
                                                   [KV_FORMAT_Q4] = MLX_STORED_Q4};
    return as[format];
}

size_t layout_number_bytes(const timeline_layer *l) {
    bool as_they_are = l->format == KV_FORMAT_F32 || l->format == KV_FORMAT_BF16;
    return as_they_are ? l->row_bytes : (size_t)l->values * sizeof(float);
}

mlx_stored_rows layout_stored(const backend_model *m, const backend_cache *c, const chain_plan *plan, int type) {
    int layer = layer_of_type(m, type);
    if (layer < 0) return (mlx_stored_rows){0};
    const timeline_layer *l = &c->t.layer[layer];
    return (mlx_stored_rows){
        .stored = stored_as(l->format), .row_bytes = l->row_bytes, .rows = plan->stored[type].rows};
}

/* --------------------------------------------------------------------------------------------------------- spans */

/* Arrays of a span; what they hold is written through the same pointers. */
typedef struct span_arrays {
    int32_t *position, *from, *restored_position;
    int32_t *bound[6]; /* [rows]: sink begin, end; exact begin, end; evicted begin, end */
    float *codes_k, *codes_v;
} span_arrays;

static int32_t *take(char **at, size_t n) {
    int32_t *taken = (int32_t *)(void *)*at;
    *at += n * sizeof *taken;
    return taken;
}

static size_t span_values(const mlx_span *s, int rows) {
    size_t codes = s->codes_v == s->codes_k ? (size_t)s->rank_k : (size_t)s->rank_k + (size_t)s->rank_v;
    return 2 * (size_t)s->slots + 6 * (size_t)rows + (size_t)s->restored * (1 + codes);
}

static void put(span_arrays *a, const slot_plan *plan, const stored_plan *stored, const chain_plan *chain,
                position_range range) {
    for (int p = range.begin; p < range.end; p++) {
        int slot = slot_of(plan, p);
        a->position[slot] = p;
        a->from[slot] = p < chain->length ? stored_row_of(stored, p) : stored->rows + p - chain->length;
    }
}

static void put_evicted(span_arrays *a, const mlx_span *s, const tile_rows *tile, const slot_plan *plan,
                        position_range range) {

    for (int p = range.begin; p < range.end; p++) {
        int slot = slot_of(plan, p);
        a->restored_position[slot] = p;
        mlx_latent_load(tile->cache, p, true, a->codes_k + (size_t)slot * (size_t)s->rank_k);
        if (a->codes_v != a->codes_k)
            mlx_latent_load(tile->cache, p, false, a->codes_v + (size_t)slot * (size_t)s->rank_v);
    }
}

/* Bounds of every row; padding sees what the nearest row sees. */
static void bound_rows(span_arrays *a, const tile_rows *tile, int layer) {
    const bool sliding = tile->cache->model->config->layer[layer].type == LAYER_SLIDING;
    for (int r = 0; r < tile->rows; r++) {
        int position = most(tile->first, least(tile->origin + r, tile->first + tile->n - 1));
        timeline_view v = timeline_sees(&tile->cache->t, layer, tile->kind, position);
        if (tile->picture && sliding) v.exact.end = tile->first + tile->n;
        const int bounds[6] = {v.sink.begin, v.sink.end, v.exact.begin, v.exact.end, v.evicted.begin, v.evicted.end};
        for (int i = 0; i < 6; i++) a->bound[i][r] = bounds[i];
    }
}

/* What any of the rows sees: bounds never go back from row to row. */
static position_range seen_by_any(const span_arrays *a, const tile_rows *tile, int bound) {
    int begin = tile->first - tile->origin, end = begin + tile->n - 1;
    return (position_range){a->bound[bound][begin], a->bound[bound + 1][end]};
}

/* The slots of one type of layers. */
typedef struct type_plan {
    slot_plan exact, restored;
    const stored_plan *stored;
} type_plan;

static char *lay_out(const tile_rows *tile, int layer, const type_plan *plan, const chain_plan *chain, mlx_span *s,
                     char *at) {
    bool shared = s->codes_k == s->codes_v;
    span_arrays a = {.position = take(&at, (size_t)s->slots), .from = take(&at, (size_t)s->slots)};
    for (int i = 0; i < 6; i++) a.bound[i] = take(&at, (size_t)tile->rows);
    a.restored_position = take(&at, (size_t)s->restored);
    a.codes_k = (float *)take(&at, (size_t)s->restored * (size_t)s->rank_k);
    a.codes_v = shared ? a.codes_k : (float *)take(&at, (size_t)s->restored * (size_t)s->rank_v);
    for (int i = 0; i < s->slots; i++) {
        a.position[i] = -1;
        a.from[i] = 0; /* its weight is 0, but what lies there must be a number */
    }
    for (int i = 0; i < s->restored; i++) a.restored_position[i] = -1;
    bound_rows(&a, tile, layer);
    position_range sink = seen_by_any(&a, tile, 0);
    sink.end = least(sink.end, tile->cache->t.options.sink);
    put(&a, &plan->exact, plan->stored, chain, sink);
    put(&a, &plan->exact, plan->stored, chain, seen_by_any(&a, tile, 2));
    if (s->restored) put_evicted(&a, s, tile, &plan->restored, seen_by_any(&a, tile, 4));
    *s = (mlx_span){.stored = s->stored,
                    .row_bytes = s->row_bytes,
                    .slots = s->slots,
                    .position = a.position,
                    .from = a.from,
                    .sink_begin = a.bound[0],
                    .sink_end = a.bound[1],
                    .begin = a.bound[2],
                    .end = a.bound[3],
                    .restored = s->restored,
                    .restored_position = a.restored_position,
                    .restored_begin = a.bound[4],
                    .restored_end = a.bound[5],
                    .rank_k = s->rank_k,
                    .rank_v = s->rank_v,
                    .codes_k = a.codes_k,
                    .codes_v = a.codes_v};
    return at;
}

kakeya_status layout_spans(const backend_model *m, const tile_rows *tile, const chain_plan *plan, tile_spans *out,
                           kakeya_error *error) {
    static const float separate; /* codes of keys and of values are two */
    const timeline *t = &tile->cache->t;
    type_plan types[2];
    size_t values = 0;
    *out = (tile_spans){0};
    for (int type = 0; type < 2; type++) {
        int layer = layer_of_type(m, type);
        if (layer < 0) continue;
        type_plan *p = &types[type];
        p->stored = &plan->stored[type];
        p->exact = exact_slots(tile, &t->layer[layer]);
        p->restored = restored_slots(tile, &t->layer[layer], &p->exact);
        mlx_span *s = &out->span[type];
        *s = (mlx_span){.slots = p->exact.slots,
                        .restored = p->restored.slots,
                        .row_bytes = t->layer[layer].row_bytes,
                        .stored = stored_as(t->layer[layer].format)};
        if (s->restored) {
            s->rank_k = t->latent.rank_k;
            s->rank_v = t->latent.rank_v;
            s->codes_v = t->latent.shared ? NULL : &separate;
        }
        values += span_values(s, tile->rows);
    }
    out->memory = mem_alloc(m->account, MEM_WORKSPACE, values * sizeof(int32_t));
    if (!out->memory)
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: %zu bytes for what a tile attends",
                         values * sizeof(int32_t));
    char *at = out->memory;
    for (int type = 0; type < 2; type++) {
        int layer = layer_of_type(m, type);
        if (layer >= 0) at = lay_out(tile, layer, &types[type], plan, &out->span[type], at);
    }
    return KAKEYA_OK;
}

void layout_free(tile_spans *spans) {
    mem_free(spans->memory);
    spans->memory = NULL;
}
