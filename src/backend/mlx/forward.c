/* A forward in tiles of rows, each a graph. Tiles of a segment are a chain: later ones attend the rows of earlier ones
 * on the device. So the host does not wait for a tile before it makes the next one, but for the one before, which
 * bounds what lies in memory. The stores change when all tiles have been computed.
 *
 * While a step of one row is computed, the graph of the next one is made: one more tile of its chain, which attends
 * that row on the device, for whatever token will stand there. It is taken if the next forward is that row, behind a
 * commit of the one before and nothing else; otherwise it is dropped, and has changed nothing. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/kv_q4.h"
#include "backend/mlx/layout.h"
#include "backend/segments.h"
#include "base/float16.h"

/* A segment in work. */
typedef struct mlx_segment {
    backend_segment *request;
    timeline_step step;
    int first_row;         /* of the forward's rows */
    int next;              /* position of the first row that is in no tile yet */
    int tiles;             /* that its chain has */
    bool guarded;          /* some number is not finite (mlx_tile) */
    const mlx_array *bias; /* of its choices */
    chain_plan plan;
    mlx_chain *chain; /* NULL: none of its tiles is under way */
} mlx_segment;

/* A tile that is being computed. */
typedef struct mlx_work {
    mlx_segment *segment;
    tile_rows rows;
    float *embedded, *ple;
    mlx_tile graph;
    mlx_tile_result result;
    bool wanted[MLX_MAX_LAYERS];
} mlx_work;

/* The next step, as far as it can be made before its token is known. */
struct mlx_ahead {
    const backend_cache *cache;
    int position, tiles; /* of its row; of the chain, with it */
    bool logits, choice;
    const mlx_array *bias;
    chain_plan plan;
    mlx_chain *chain;
    bool owns; /* the chain: no segment has it */
    mlx_work work;
};

typedef struct mlx_run {
    backend_model *model;
    mlx_segment segments[BACKEND_MAX_FORWARD];
    int n_segments, rows;
    mlx_work work[MLX_TILES_UNDER_WAY]; /* the first one was begun first */
    int under_way;
} mlx_run;

/* ------------------------------------------------------------------------------------------------- stored rows */

static unsigned char *chunk_row(const backend_model *m, const backend_cache *c, int layer, bool is_k, int row) {
    size_t before = is_k ? m->chunk_at[layer].k : m->chunk_at[layer].v;
    return m->chunk + before * (size_t)m->max_rows + (size_t)row * kv_row_bytes(c, layer);
}

/* What a chain asks for. */
typedef struct chain_source {
    const backend_model *model;
    const backend_cache *cache;
    const chain_plan *plan;
} chain_source;

static const unsigned char *stored_row(const backend_cache *c, int layer, int position, bool is_k) {
    bool sink = c->t.layer[layer].bounded && position < c->t.options.sink;
    return sink ? kv_sink_row(c, layer, position, is_k) : kv_row(c, layer, position, is_k);
}

/* One row of [kv_heads][head_dim] as the graph wants it. */
static void load_row(const timeline_layer *l, const unsigned char *row, size_t bytes, unsigned char *to) {
    if (l->format != KV_FORMAT_Q8 && l->format != KV_FORMAT_Q4) {
        memcpy(to, row, bytes);
        return;
    }
    int heads = (int)(l->row_bytes / l->head_bytes), dim = l->values / heads;
    for (int h = 0; h < heads; h++)
        (l->format == KV_FORMAT_Q8 ? kv_q8_load : kv_q4_load)(row + (size_t)h * l->head_bytes, dim,
                                                              (float *)(void *)to + (size_t)h * (size_t)dim);
}

static void fill(const chain_source *s, int layer, bool is_k, bool raw, unsigned char *at) {
    const stored_plan *plan = &s->plan->stored[s->model->config->layer[layer].type];
    const timeline_layer *l = &s->cache->t.layer[layer];
    size_t bytes = raw ? l->row_bytes : layout_number_bytes(l);
    for (int i = 0; i < plan->rows; i++, at += bytes) {
        int position = layout_position(plan, i);
        if (position < 0)
            memset(at, 0, bytes);
        else if (raw)
            memcpy(at, stored_row(s->cache, layer, position, is_k), bytes);
        else
            load_row(l, stored_row(s->cache, layer, position, is_k), bytes, at);
    }
}

static void fill_keys(void *user, int layer, bool is_k, void *to) { fill(user, layer, is_k, false, to); }
static void fill_raw_keys(void *user, int layer, bool is_k, void *to) { fill(user, layer, is_k, true, to); }

static kakeya_status begin_chain(const backend_model *m, mlx_segment *s, kakeya_error *error) {
    const backend_cache *c = s->request->cache;
    chain_source from = {m, c, &s->plan};
    s->plan = layout_chain(s->request);
    const mlx_chain_source source = {
        .tile_rows = s->plan.tile_rows,
        .pictures = s->plan.pictures,
        .kept = {layout_stored(m, c, &s->plan, 0), layout_stored(m, c, &s->plan, 1)},
        .fill = fill_keys,
        .fill_raw = fill_raw_keys,
        .user = &from,
    };
    mlx_failure failure;
    return mlx_check(mlx_chain_begin(m->device, &m->form, &source, &s->chain, &failure), &failure, error);
}

static void end_chain(backend_model *m, mlx_segment *s) {
    if (s->chain && m->ahead && m->ahead->chain == s->chain)
        m->ahead->owns = true;
    else
        mlx_chain_free(s->chain);
    s->chain = NULL;
}

/* What a tile's graph asks for. */
typedef struct tile_source {
    const backend_model *model;
    const backend_cache *cache;
    const tile_spans *spans;
} tile_source;

static void fill_scales(void *user, int layer, float *to) {
    const tile_source *s = user;
    const mlx_span *span = &s->spans->span[s->model->config->layer[layer].type];
    const backend_cache *c = s->cache;
    size_t heads = (size_t)s->model->config->layer[layer].kv_heads;
    for (int i = 0; i < span->restored; i++, to += heads) {
        if (span->restored_position[i] < 0)
            memset(to, 0, heads * sizeof *to);
        else
            memcpy(to, latent_scales(c, span->restored_position[i]) + c->t.layer[layer].latent_head,
                   heads * sizeof *to);
    }
}

/* ----------------------------------------------------------------------------------------------------- one tile */

static int end_of(const mlx_segment *s) { return s->request->cache->t.length + s->request->n; }

static mlx_segment *first_unfinished(mlx_run *f) {
    for (int i = 0; i < f->n_segments; i++) {
        if (f->segments[i].next < end_of(&f->segments[i])) return &f->segments[i];
    }
    return NULL;
}

static bool is_under_way(const mlx_run *f, const mlx_segment *s) {
    for (int i = 0; i < f->under_way; i++) {
        if (f->work[i].segment == s) return true;
    }
    return false;
}

/* What stands in the place of the embedding of a segment's row; NULL: nothing. */
static const float *given_row(const backend_segment *r, int row, size_t hidden) {
    for (int i = 0; i < r->n_given; i++) {
        const backend_given *g = &r->given[i];
        if (row >= g->first && row < g->first + g->n) return g->rows + (size_t)(row - g->first) * hidden;
    }
    return NULL;
}

/* Rows of the embedding, or given ones, and rows of the table of per-layer embeddings, which of a given row is that of
 * the token that pads; padding is zero. */
static void embed_tile(const backend_model *m, const tile_rows *tile, const backend_segment *r, float *embedded,
                       float *ple) {
    const model_config *c = m->config;
    const int begin = tile->first - tile->cache->t.length, pad = c->pad_token >= 0 ? c->pad_token : 0;
    size_t hidden = (size_t)c->hidden, width = (size_t)c->layers * (size_t)c->ple_width;
    float scale = sqrtf((float)c->ple_width);
    for (int i = 0; i < tile->n; i++) {
        size_t row = (size_t)(tile->first - tile->origin + i);
        const float *given = given_row(r, begin + i, hidden);
        if (given)
            memcpy(embedded + row * hidden, given, hidden * sizeof *given);
        else
            mlx_embed(m, r->tokens[begin + i], m->embed_scale, embedded + row * hidden);
        if (!ple) continue;
        float *to = ple + row * width;
        mlx_ple_row(m, given ? pad : r->tokens[begin + i], to);
        for (size_t j = 0; j < width; j++) to[j] *= scale;
    }
}

/* Real rows of the tile: where they begin in its arrays, and which rows of the forward they are. */
typedef struct row_range {
    size_t in_tile, in_forward, n;
} row_range;

static row_range real_rows(const mlx_segment *s, const tile_rows *tile) {
    int length = tile->cache->t.length;
    return (row_range){(size_t)(tile->first - tile->origin), (size_t)(s->first_row + tile->first - length),
                       (size_t)tile->n};
}

/* Rows [first, first + n) of x, or of what the device has stored already, as they are kept. */
static void store_chunk(const timeline_layer *l, const float *x, const unsigned char *q4, size_t first, size_t n,
                        unsigned char *to) {
    size_t heads = l->row_bytes / l->head_bytes, dim = (size_t)l->values / heads;
    if (l->format == KV_FORMAT_Q4) {
        memcpy(to, q4 + first * l->row_bytes, n * l->row_bytes);
        return;
    }
    x += first * (size_t)l->values;
    if (l->format != KV_FORMAT_Q8) {
        mlx_store_values(l->format, x, n * (size_t)l->values, to);
        return;
    }
    for (size_t i = 0; i < n * heads; i++) kv_q8_store(x + i * dim, (int)dim, to + i * l->head_bytes);
}

static void keep_new_rows(const backend_model *m, const tile_rows *tile, row_range rows,
                          const mlx_tile_result *result) {
    const backend_cache *c = tile->cache;
    for (int layer = 0; layer < m->config->layers; layer++) {
        const timeline_layer *l = &c->t.layer[layer];
        if (l->kind == STORE_NONE) continue;
        for (int is_k = 0; is_k < (l->has_keys ? 2 : 1); is_k++)
            store_chunk(l, is_k ? result->k[layer] : result->v[layer], is_k ? result->q4_k[layer] : result->q4_v[layer],
                        rows.in_tile, rows.n, chunk_row(m, c, layer, is_k, (int)rows.in_forward));
    }
}

/* Outputs of tapped layers: prompt rows into the model's buffer, decode rows behind the cache's backlog. */
static void keep_aux(const backend_model *m, const tile_rows *tile, row_range rows, const mlx_tile_result *result) {
    const timeline *t = &tile->cache->t;
    size_t hidden = (size_t)m->config->hidden, width = (size_t)t->taps * hidden;
    if (!t->taps) return;
    float *to;
    if (tile->kind == SEGMENT_PROMPT) { /* as wide as the cache wants them, from where the segment begins */
        size_t behind = (size_t)(tile->first - t->length);
        to = m->aux + (rows.in_forward - behind) * (size_t)m->max_taps * hidden + behind * width;
    } else {
        to = tile->cache->backlog + (size_t)(tile->first - t->draft_length) * width;
    }
    for (int tap = 0; tap < t->taps; tap++) {
        const float *from = result->output[t->tap[tap]] + rows.in_tile * hidden;
        for (size_t i = 0; i < rows.n; i++)
            memcpy(to + i * width + (size_t)tap * hidden, from + i * hidden, hidden * sizeof *to);
    }
}

static void copy_states(const backend_model *m, const mlx_segment *s, const tile_rows *tile, row_range rows,
                        const float *embedded, const mlx_tile_result *result) {
    const backend_segment *r = s->request;
    size_t hidden = (size_t)m->config->hidden, all = (size_t)r->n * hidden,
           at = (size_t)(tile->first - tile->cache->t.length) * hidden, bytes = rows.n * hidden * sizeof(float);
    int layers = m->config->layers;
    if (m->tap) m->tap(m, rows.in_tile, rows.in_forward, rows.n, result);
    if (!r->hidden_states) return;
    memcpy(r->hidden_states + at, embedded + rows.in_tile * hidden, bytes);
    for (int i = 0; i < layers; i++) {
        const float *from = i + 1 < layers ? result->output[i] : result->hidden;
        memcpy(r->hidden_states + (size_t)(i + 1) * all + at, from + rows.in_tile * hidden, bytes);
    }
}

static void mark_wanted(const mlx_segment *s, const timeline *t, int layers, bool *wanted) {
    memset(wanted, 0, MLX_MAX_LAYERS * sizeof *wanted);
    for (int i = 0; i < t->taps; i++) wanted[t->tap[i]] = true;
    for (int i = 0; s->request->hidden_states && i < layers; i++) wanted[i] = true;
}

static bool rows_are_finite(const backend_model *m, row_range rows, const mlx_tile_result *result) {
    size_t hidden = (size_t)m->config->hidden;
    for (size_t i = rows.in_tile * hidden; i < (rows.in_tile + rows.n) * hidden; i++) {
        if (!isfinite(result->hidden[i])) return false;
    }
    return true;
}

/* Rows of answers lie at the same places of a tile and of a group of logits: one graph computes both. */
static bool head_with_tile(const backend_model *m, const backend_segment *r) {
    return r->kind == SEGMENT_DECODE && m->head_rows == m->decode_rows;
}

static void want_head(const backend_model *m, const mlx_segment *s, const tile_rows *tile, mlx_tile *graph) {
    const backend_segment *r = s->request;
    int begin = tile->cache->t.length + r->first_logit_row, end = tile->first + tile->n;
    if (!head_with_tile(m, r) || (!r->logits && !r->argmax)) return;
    if (begin < tile->first) begin = tile->first;
    if (begin >= end) return;
    graph->head_first = begin - tile->origin;
    graph->head_n = end - begin;
    graph->head_alone = !m->head_rows;
    graph->logits = r->logits;
    graph->choice = r->argmax;
    graph->bias = s->bias;
}

static void copy_head(const backend_model *m, const mlx_segment *s, const tile_rows *tile, const mlx_tile *graph,
                      const mlx_tile_result *result) {
    const backend_segment *r = s->request;
    size_t vocab = (size_t)m->config->vocab, n = (size_t)graph->head_n,
           to = (size_t)(tile->origin + graph->head_first - tile->cache->t.length - r->first_logit_row);
    if (!n) return;
    if (r->logits) memcpy(r->logits + to * vocab, result->logits, n * vocab * sizeof *r->logits);
    if (r->argmax) memcpy(r->argmax + to, result->choice, n * sizeof *r->argmax);
}

/* Makes a tile's graph. known: its tokens are. */
static kakeya_status prepare_tile(backend_model *m, mlx_work *w, bool known, kakeya_error *error) {
    const model_config *c = m->config;
    const tile_rows *tile = &w->rows;
    mlx_segment *s = w->segment;
    size_t rows = (size_t)tile->rows, hidden = rows * (size_t)c->hidden,
           ple = rows * (size_t)c->layers * (size_t)c->ple_width, values = hidden + ple + rows;
    tile_spans spans;
    kakeya_status status = s->chain ? KAKEYA_OK : begin_chain(m, s, error);
    if (!status) status = layout_spans(m, tile, &s->plan, &spans, error);
    if (status) return status;
    w->embedded = mem_alloc(m->account, MEM_WORKSPACE, values * sizeof *w->embedded);
    if (!w->embedded) {
        layout_free(&spans);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: %zu bytes of embedded rows",
                         values * sizeof *w->embedded);
    }
    w->ple = ple ? w->embedded + hidden : NULL;
    if (known) embed_tile(m, tile, s->request, w->embedded, w->ple);
    int32_t *position = (int32_t *)(void *)(w->embedded + hidden + ple);
    for (int i = 0; i < tile->rows; i++) position[i] = tile->origin + i;
    mark_wanted(s, &tile->cache->t, c->layers, w->wanted);
    tile_source source = {m, tile->cache, &spans};
    w->graph = (mlx_tile){.rows = tile->rows,
                          .first = tile->first - tile->origin,
                          .n = tile->n,
                          .picture = tile->picture,
                          .embedded = known ? w->embedded : NULL,
                          .ple = known ? w->ple : NULL,
                          .position = position,
                          .span = {spans.span[0], spans.span[1]},
                          .guarded = s->guarded,
                          .fill_scales = fill_scales,
                          .user = &source,
                          .wanted = w->wanted};
    want_head(m, s, tile, &w->graph);
    mlx_failure failure;
    status =
        mlx_check(mlx_tile_prepare(m->device, &m->form, s->chain, &w->graph, &w->result, &failure), &failure, error);
    layout_free(&spans);
    if (status) mem_free(w->embedded);
    return status;
}

static void end_tile(backend_model *m, mlx_work *w) {
    mlx_tile_result_free(m->device, &w->result);
    mem_free(w->embedded);
}

/* Makes a tile's graph and has it computed. */
static kakeya_status begin_tile(backend_model *m, mlx_work *w, kakeya_error *error) {
    kakeya_status status = prepare_tile(m, w, true, error);
    if (status) return status;
    mlx_failure failure;
    status = mlx_check(mlx_tile_begin(m->device, &w->result, NULL, NULL, &failure), &failure, error);
    if (status) end_tile(m, w);
    return status;
}

/* --- one step ahead */

void mlx_ahead_drop(backend_model *m) {
    mlx_ahead *a = m->ahead;
    if (!a) return;
    m->ahead = NULL;
    end_tile(m, &a->work);
    if (a->owns) mlx_chain_free(a->chain);
    free(a);
}

/* Whether a forward is a step of one row with logits or a choice, and nothing else. */
static bool is_step(const backend_model *m, const backend_segment *segments, int n) {
    const backend_segment *r = &segments[0];
    return n == 1 && r->n == 1 && r->first_logit_row == 0 && (r->logits || r->argmax) && !r->hidden_states &&
           head_with_tile(m, r) && !m->form.inner;
}

static bool is_ahead(const backend_model *m, const backend_segment *segments, int n, const mlx_array *bias) {
    const mlx_ahead *a = m->ahead;
    const backend_segment *r = &segments[0];
    return a && a->owns && is_step(m, segments, n) && a->cache == r->cache && a->position == r->cache->t.length &&
           a->logits == (r->logits != NULL) && a->choice == (r->argmax != NULL) && a->bias == bias;
}

/* The step's graph is there: it only needs to know the token. */
static kakeya_status take_ahead(backend_model *m, mlx_work *w, kakeya_error *error) {
    mlx_ahead *a = m->ahead;
    mlx_segment *s = w->segment;
    m->ahead = NULL;
    s->chain = a->chain;
    s->plan = a->plan;
    s->tiles = a->tiles - 1;
    *w = a->work;
    w->segment = s;
    free(a);
    embed_tile(m, &w->rows, s->request, w->embedded, w->ple);
    mlx_failure failure;
    kakeya_status status =
        mlx_check(mlx_tile_begin(m->device, &w->result, w->embedded, w->ple, &failure), &failure, error);
    if (status)
        end_tile(m, w);
    else
        m->steps_ahead++;
    return status;
}

/* Latents of what the row at `position` sees evicted may still have to be made. */
static bool has_latents(const timeline *t, int position) {
    for (int i = 0; i < t->models.verifier->layers; i++) {
        if (!t->layer[i].restored) continue;
        position_range evicted = timeline_sees(t, i, SEGMENT_DECODE, position).evicted;
        if (!range_is_empty(evicted) && evicted.end > t->latent_length) return false;
    }
    return true;
}

/* Makes the graph of the step behind the one under way. That it cannot be made harms nobody. */
static void prepare_ahead(backend_model *m, const mlx_segment *under_way) {
    const backend_segment *r = under_way->request;
    const timeline *t = &r->cache->t;
    int position = t->length + 1;
    if (under_way->tiles >= MLX_AHEAD_STEPS || position >= t->options.context_tokens || !has_latents(t, position))
        return;
    mlx_ahead *a = calloc(1, sizeof *a);
    if (!a) return;
    mlx_segment s = *under_way;
    const backend_segment both = {.cache = r->cache, .n = 2, .kind = SEGMENT_DECODE};
    a->work = (mlx_work){.segment = &s, .rows = layout_tile(&both, position)};
    if (prepare_tile(m, &a->work, false, NULL)) {
        free(a);
        return;
    }
    a->cache = r->cache;
    a->position = position;
    a->tiles = under_way->tiles + 1;
    a->logits = r->logits;
    a->choice = r->argmax;
    a->bias = under_way->bias;
    a->plan = under_way->plan;
    a->chain = under_way->chain;
    m->ahead = a;
}

/* Tiles of a segment that were begun behind the first tile under way are forgotten, and this one, too. It and what
 * follows is computed again, so that what is not finite stays with the rows that see it. */
static kakeya_status guard_from_first(mlx_run *f, kakeya_error *error) {
    mlx_segment *s = f->work[0].segment;
    mlx_ahead_drop(f->model); /* it attends what is computed again */
    kakeya_status status = mlx_reserve_workspace(f->model, mlx_forward_bytes(f->model, s->request, 1, true), error);
    int kept = 0;
    if (status) return status;
    s->next = f->work[0].rows.first;
    s->guarded = true;
    for (int i = 0; i < f->under_way; i++) {
        if (f->work[i].segment == s) {
            end_tile(f->model, &f->work[i]);
            s->tiles--;
        } else {
            f->work[kept++] = f->work[i];
        }
    }
    f->under_way = kept;
    mlx_chain_cut(s->chain, s->tiles);
    return KAKEYA_OK;
}

/* Waits for the tile that was begun first, and takes what it gives. */
static kakeya_status finish_tile(mlx_run *f, kakeya_error *error) {
    backend_model *m = f->model;
    mlx_work *w = &f->work[0];
    mlx_segment *s = w->segment;
    const tile_rows *tile = &w->rows;
    size_t hidden = (size_t)m->config->hidden;
    mlx_failure failure;
    row_range real = real_rows(s, tile);
    kakeya_status status =
        mlx_check(mlx_tile_finish(m->device, &m->form, &w->graph, &w->result, &failure), &failure, error);
    if (status) return status;
    bool apart = mlx_device_ways(m->device)->few[MLX_OP_ATTENTION] == MLX_WAY_OWN && tile->rows <= MLX_MOST_ROWS &&
                 !tile->picture;
    if (!w->graph.guarded && !apart && !rows_are_finite(m, real, &w->result))
        return guard_from_first(f, error); /* whose rows these are is told by another look */
    keep_new_rows(m, tile, real, &w->result);
    keep_aux(m, tile, real, &w->result);
    copy_states(m, s, tile, real, w->embedded, &w->result);
    copy_head(m, s, tile, &w->graph, &w->result);
    memcpy(m->hidden + real.in_forward * hidden, w->result.hidden + real.in_tile * hidden,
           real.n * hidden * sizeof(float));
    end_tile(m, w);
    memmove(w, w + 1, (size_t)--f->under_way * sizeof *w);
    if (s->next == end_of(s) && !is_under_way(f, s)) end_chain(m, s);
    return KAKEYA_OK;
}

/* --------------------------------------------------------------------------------------------------------- head */

/* Rows that want logits or a choice, always so many together, each in the place that its position gives it. */
static kakeya_status run_head(backend_model *m, const mlx_segment *s, kakeya_error *error) {
    const backend_segment *r = s->request;
    size_t hidden = (size_t)m->config->hidden, vocab = (size_t)m->config->vocab;
    kakeya_status status = KAKEYA_OK;
    if (r->first_logit_row >= r->n || (!r->logits && !r->argmax)) return status;
    size_t input = MLX_HEAD_ROWS * hidden, output = r->logits ? MLX_HEAD_ROWS * vocab : 0;
    float *rows = mem_alloc(m->account, MEM_WORKSPACE, (input + output) * sizeof *rows);
    if (!rows)
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: %zu bytes of logits",
                         (input + output) * sizeof *rows);
    for (int at = r->first_logit_row, n; at < r->n && !status; at += n) {
        int together = m->head_rows ? m->head_rows : MLX_HEAD_ROWS;
        int first = m->head_rows ? (r->cache->t.length + at) % together : 0, room = together - first;
        n = r->n - at < room ? r->n - at : room;
        int computed = m->head_rows ? together : n;
        size_t in = (size_t)first, count = (size_t)n, to = (size_t)(at - r->first_logit_row);
        int32_t choice[MLX_HEAD_ROWS];
        memset(rows, 0, input * sizeof *rows);
        memcpy(rows + in * hidden, m->hidden + (size_t)(s->first_row + at) * hidden, count * hidden * sizeof *rows);
        mlx_failure failure;
        status = mlx_check(mlx_head_run(m->device, &m->form, rows, computed, s->bias, r->logits ? rows + input : NULL,
                                        r->argmax ? choice : NULL, &failure),
                           &failure, error);
        if (status) break;
        if (r->logits) memcpy(r->logits + to * vocab, rows + input + in * vocab, count * vocab * sizeof *rows);
        if (r->argmax) memcpy(r->argmax + to, choice + in, count * sizeof *choice);
    }
    mem_free(rows);
    return status;
}

/* ------------------------------------------------------------------------------------------------------- driver */

static kakeya_status check_segments(backend_model *m, backend_segment *segments, int n, kakeya_error *error) {
    kakeya_status status = backend_check_segments(m->config, segments, n, m->most_rows, error);
    for (int s = 0; s < n && !status; s++) {
        const backend_cache *c = segments[s].cache;
        kv_format format = c->t.options.kv_format, first = segments[0].cache->t.options.kv_format;
        if (c->model != m) return error_set(error, KAKEYA_INVALID_ARGUMENT, "segment %d: cache of another model", s);
        if (format != first)
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "segment %d: K/V formats %s and %s in one forward", s,
                             kv_format_name(format), kv_format_name(first));
    }
    return status;
}

/* Steps 1 and 2 of backend/timeline.h: nothing that fails here leaves a trace in any cache. */
static kakeya_status plan_and_reserve(mlx_run *f, backend_segment *requests, kakeya_error *error) {
    int furthest = 0, reserved = 0;
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; i < f->n_segments && !status; i++) {
        mlx_segment *s = &f->segments[i];
        backend_segment *r = &requests[i];
        *s = (mlx_segment){.request = r, .first_row = f->rows};
        status = r->status = timeline_plan(&r->cache->t, r->kind, r->n, &s->step, error);
        f->rows += r->n;
        if (r->cache->t.length + r->n > furthest) furthest = r->cache->t.length + r->n;
        if (!status) status = mlx_excluding(f->model, r->argmax ? r->excluded : NULL, &s->bias, error);
    }
    if (!status) status = mlx_rows_reserve(f->model, f->rows, error);
    if (!status) status = mlx_rope_reserve(f->model, furthest + MLX_PROMPT_ROWS + MLX_DECODE_ROWS, error);
    if (!status)
        status = mlx_reserve_workspace(f->model, mlx_forward_bytes(f->model, requests, f->n_segments, false), error);
    for (; reserved < f->n_segments && !status; reserved++) {
        mlx_segment *s = &f->segments[reserved];
        backend_cache *c = s->request->cache;
        status = stores_reserve(c, &s->step, error);
        if (!status) status = timeline_reserve(&c->t, &s->step, error);
        s->request->status = status;
    }
    for (int i = 0; i < reserved && status; i++) stores_trim(requests[i].cache);
    return status;
}

/* Step 3. What waits in backlogs is flushed first: it can fail, and has not changed what a timeline says is kept. */
static kakeya_status begin(mlx_run *f, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; i < f->n_segments && !status; i++)
        status = mlx_flush(f->segments[i].request->cache, f->segments[i].step.flushed, error);
    for (int i = 0; i < f->n_segments; i++) {
        backend_cache *c = f->segments[i].request->cache;
        if (status) {
            stores_trim(c);
            continue;
        }
        stores_begin(c, &f->segments[i].step);
        timeline_begin(&c->t, &f->segments[i].step);
    }
    return status;
}

/* The tiles of all segments, one behind the other. */
static kakeya_status compute_tiles(mlx_run *f, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; i < f->n_segments; i++) f->segments[i].next = f->segments[i].request->cache->t.length;
    for (;;) {
        mlx_segment *s = first_unfinished(f);
        if (s && f->under_way < MLX_TILES_UNDER_WAY) {
            mlx_work *w = &f->work[f->under_way];
            *w = (mlx_work){.segment = s, .rows = layout_tile(s->request, s->next)};
            status = f->model->ahead && !s->guarded ? take_ahead(f->model, w, error) : begin_tile(f->model, w, error);
            if (status) break;
            s->next += w->rows.n;
            s->tiles++;
            f->under_way++;
            if (is_step(f->model, s->request, f->n_segments) && !s->guarded) prepare_ahead(f->model, s);
        } else if (f->under_way) {
            status = finish_tile(f, error);
            if (status) break;
        } else {
            break;
        }
    }
    if (status) mlx_ahead_drop(f->model);
    for (int i = 0; i < f->under_way; i++) end_tile(f->model, &f->work[i]);
    for (int i = 0; i < f->n_segments; i++) end_chain(f->model, &f->segments[i]);
    return status;
}

/* Logits of rows whose tiles have not made them. */
static kakeya_status compute_heads(mlx_run *f, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; i < f->n_segments && !status; i++) {
        const mlx_segment *s = &f->segments[i];
        if (!head_with_tile(f->model, s->request)) status = run_head(f->model, s, error);
    }
    return status;
}

/* What follows prompt rows is made while their aux hidden states are there. */
static kakeya_status follow_prompt(mlx_run *f, const mlx_segment *s, kakeya_error *error) {
    const backend_model *m = f->model;
    const backend_segment *r = s->request;
    if (r->kind != SEGMENT_PROMPT || !r->cache->t.keeps_backlog) return KAKEYA_OK;
    const follow_rows rows = {r->cache, m->aux + (size_t)s->first_row * (size_t)m->max_taps * (size_t)m->config->hidden,
                              r->n, r->cache->t.length};
    return mlx_follow(f->model, &rows, error);
}

/* The new rows into the stores: the last `stored` ones, and those of the sink. */
static void store_rows(const backend_model *m, const mlx_segment *s) {
    const backend_segment *r = s->request;
    backend_cache *c = r->cache;
    for (int layer = 0; layer < m->config->layers; layer++) {
        const timeline_layer *l = &c->t.layer[layer];
        if (l->kind == STORE_NONE) continue;
        size_t bytes = kv_row_bytes(c, layer);
        int sink = l->bounded ? c->t.options.sink : 0, stored = l->kind == STORE_RING ? s->step.stored : r->n;
        for (int is_k = 0; is_k < (l->has_keys ? 2 : 1); is_k++) {
            for (int i = 0; i < r->n; i++) {
                int position = c->t.length + i;
                const unsigned char *row = chunk_row(m, c, layer, is_k, s->first_row + i);
                if (position < sink) memcpy(kv_sink_row(c, layer, position, is_k), row, bytes);
                if (i >= r->n - stored) memcpy(kv_row(c, layer, position, is_k), row, bytes);
            }
        }
    }
}

kakeya_status mlx_forward(backend_model *m, backend_segment *segments, int n_segments, kakeya_error *error) {
    mlx_run f = {.model = m, .n_segments = n_segments};
    kakeya_status status = check_segments(m, segments, n_segments, error);
    if (!status) status = plan_and_reserve(&f, segments, error);
    if (status) return status;
    if (!is_ahead(m, segments, n_segments, f.segments[0].bias)) mlx_ahead_drop(m);
    status = begin(&f, error);
    if (status) return status;
    status = compute_tiles(&f, error);
    if (!status) status = compute_heads(&f, error);
    for (int i = 0; i < n_segments && !status; i++) status = follow_prompt(&f, &f.segments[i], error);
    if (!status) status = mlx_count_workspace(m, error);
    for (int i = 0; i < n_segments; i++) {
        backend_cache *c = segments[i].cache;
        if (!status) store_rows(m, &f.segments[i]);
        timeline_computed(&c->t, &f.segments[i].step);
        if (status) mlx_ahead_drop(m);
        if (status) (void)host_cache_commit(c, 0, NULL); /* what is lost with it is the timeline's to judge */
    }
    return status;
}
