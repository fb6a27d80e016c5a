#include "backend/cuda/pass.h"

#include <limits.h>
#include <string.h>

#include "backend/cuda/restoration.h"

/* RoPE tables of K = V layers, for a prompt that ends at `end`. */
static kakeya_status prepare_rope_tables(backend_model *m, int end, kakeya_error *error) {
    enum { LEAST_POSITIONS = 4096 };
    cuda_workspace *w = &m->space;
    if (!w->derived_k || w->rope_positions >= end) return KAKEYA_OK;
    int positions = cuda_graph_doubled(LEAST_POSITIONS, end), pairs = m->config->rope[GEMMA4_FULL].rotated_pairs;
    size_t table = (size_t)positions * (size_t)pairs * sizeof(float);
    w->rope_positions = 0;
    kakeya_status status = model_grow(m, &w->cosine, table, "RoPE tables", error);
    if (!status) status = model_grow(m, &w->sine, table, "RoPE tables", error);
    if (status) return status;
    cuda_rope_tables(&m->launch, m->weights.inverse_frequency[GEMMA4_FULL], pairs, 0, positions, w->cosine.data,
                     w->sine.data);
    w->rope_positions = positions;
    return KAKEYA_OK;
}

/* ---------------------------------------------------------------------------------------------------- grouping */

/* Flash states of one pass. */
static const size_t most_partial_bytes = (size_t)1 << 30;

static bool is_restored(const backend_cache *c) { return c->t.options.attention == KAKEYA_ATTENTION_RESTORED; }

/* Partitions of a decode segment's rows in full-attention layers. */
static int full_partitions(const backend_segment *r) {
    return cuda_attention_partitions(0, r->n, r->cache->t.length + r->n);
}

/* Partial results of a row: the most that a layer of either type has. Restored keys have partitions of their own. */
typedef struct partial_size {
    size_t cells, floats;
} partial_size;

static partial_size row_partial(const gemma4_config *config, int full, bool restored) {
    partial_size most = {0};
    for (int i = 0; i < config->layers; i++) {
        const gemma4_layer_config *lc = &config->layer[i];
        int partitions = lc->type == GEMMA4_FULL
                             ? full
                             : cuda_attention_partitions(config->sliding_window, BACKEND_MAX_DECODE_ROWS, 0);
        if (restored) partitions *= 2;
        size_t cells = (size_t)config->heads * (size_t)partitions, floats = cells * (size_t)lc->head_dim;
        if (cells > most.cells) most.cells = cells;
        if (floats > most.floats) most.floats = floats;
    }
    return most;
}

/* Restored positions are decoded into buffers that hold those of one cache, and hidden states leave in one piece. */
static bool goes_alone(const backend_segment *r) {
    return r->kind == SEGMENT_PROMPT || is_restored(r->cache) || r->hidden_states;
}

bool cuda_pass_group(const backend_model *m, const backend_segment *segments, int n_segments,
                     bool taken[CUDA_MAX_SEGMENTS], cuda_group *group) {
    group->n = 0;
    for (int pass = 0; pass < 2; pass++) { /* prompts; blocks that go alone */
        for (int s = 0; s < n_segments; s++) {
            const backend_segment *r = &segments[s];
            if (taken[s] || !goes_alone(r) || (r->kind == SEGMENT_PROMPT) != (pass == 0)) continue;
            taken[s] = true;
            group->segment[group->n++] = s;
            return true;
        }
    }
    int rows = 0;
    size_t bytes = 0;
    for (int s = 0; s < n_segments; s++) {
        if (taken[s]) continue;
        size_t needed =
            row_partial(m->config, full_partitions(&segments[s]), false).floats * sizeof(float) * (size_t)segments[s].n;
        if (group->n > 0 && (rows + segments[s].n > CUDA_PASS_ROWS || bytes + needed > most_partial_bytes)) continue;
        taken[s] = true;
        group->segment[group->n++] = s;
        rows += segments[s].n;
        bytes += needed;
    }
    return group->n > 0;
}

/* ------------------------------------------------------------------------------------------------- preparation */

/* Flash states of the partitions of a decode pass. */
static kakeya_status prepare_partial(const cuda_pass *p, kakeya_error *error) {
    backend_model *m = p->model;
    bool restored = is_restored(p->cache);
    size_t cells = 0, floats = 0;
    for (int i = 0; i < p->group->n; i++) {
        const backend_segment *r = &p->segments[p->group->segment[i]];
        /* A block has as many rows as it may have, and its partitions grow by doubling: a step of a session that goes
         * on alone finds what it needs. */
        size_t rows = p->group->n == 1 ? BACKEND_MAX_DECODE_ROWS : (size_t)r->n;
        int full = p->group->n == 1 ? p->key.partitions : full_partitions(r);
        partial_size of_row = row_partial(m->config, full, restored);
        cells += rows * of_row.cells;
        floats += rows * of_row.floats;
    }
    kakeya_status status = model_grow(m, &m->space.partial, floats * sizeof(float), "attention states", error);
    return status ? status : model_grow(m, &m->space.partial_state, cells * sizeof(float2), "attention states", error);
}

static step_head head_of(const cuda_pass *p) {
    bool greedy = cuda_head_screens(&p->model->head_copy) && p->rows <= CUDA_DECODE_ROWS, leaders = false;
    for (int i = 0; i < p->group->n; i++) {
        const backend_segment *r = &p->segments[p->group->segment[i]];
        greedy &= !r->logits && !r->leaders;
        leaders |= r->leaders != NULL;
    }
    return greedy ? STEP_HEAD_GREEDY : leaders ? STEP_HEAD_LEADERS : STEP_HEAD_LOGITS;
}

/* Of a decode pass: everything that its captured step depends on. */
static kakeya_status prepare_decode(cuda_pass *p, kakeya_error *error) {
    backend_model *m = p->model;
    int most_rows = 0, partitions = 0, rows = 0;
    for (int i = 0; i < p->group->n; i++) {
        const backend_segment *r = &p->segments[p->group->segment[i]];
        int needed = full_partitions(r);
        rows += r->n;
        if (r->n > most_rows) most_rows = r->n;
        if (needed > partitions) partitions = needed;
        p->key.aux |= r->cache->t.options.keep_draft_context;
    }
    p->rows = p->key.rows = p->head_rows = cuda_graph_rows(rows);
    p->key.segments = cuda_graph_segments(p->group->n);
    p->key.segment_rows = cuda_graph_segment_rows(p->group->n, most_rows);
    p->key.partitions = cuda_graph_partitions(p->group->n, partitions);
    p->head = head_of(p);
    p->key.greedy = p->head == STEP_HEAD_GREEDY;
    p->key.leaders = p->head == STEP_HEAD_LEADERS;
    kakeya_status status = prepare_partial(p, error);
    return status ? status : model_grow_logits(m, p->rows, error);
}

kakeya_status cuda_pass_prepare(cuda_pass *p, backend_model *m, backend_segment *segments, const cuda_group *group,
                                kakeya_error *error) {
    const backend_segment *first = &segments[group->segment[0]];
    const backend_cache *c = first->cache;
    const backend_cache_options *o = &c->t.options;
    bool restored = is_restored(c), restore_all = restored && o->restore_layers == KAKEYA_RESTORE_ALL;
    int frontier = timeline_frontier(&c->t);
    *p = (cuda_pass){.model = m,
                     .segments = segments,
                     .group = group,
                     .cache = first->cache,
                     .prompt = first->kind == SEGMENT_PROMPT,
                     .rows = first->n,
                     .position = c->t.length,
                     .evicted_end = frontier > o->sink ? frontier : 0,
                     .hidden_states = first->hidden_states,
                     .head_rows = first->n};
    p->tokens = p->prompt ? m->space.tokens : m->space.batch->tokens;
    int end = p->position + p->rows;
    p->key = (graph_key){.rows = p->rows, .aux = o->keep_draft_context, .restore_all = restore_all};
    if (restored) {
        p->key.restored = m->config->sliding_window;
        if (restore_all) p->key.restored = cuda_graph_doubled(m->config->sliding_window, end);
        p->key.latents = c->latent.codes.data;
        p->key.sink = o->sink;
        p->key.window = o->window;
    }
    kakeya_status status = p->prompt ? prepare_rope_tables(m, end, error) : prepare_decode(p, error);
    if (!status && restored && !(p->prompt && p->evicted_end == 0))
        status = cuda_restoration_prepare(p->cache, p->key.restored, error);
    return status;
}

static void fill_step(const cuda_pass *p, const backend_segment *r, cuda_step *step) {
    const backend_cache *c = r->cache;
    int sliding = c->t.length - p->model->config->sliding_window + 1;
    step->cache = c->view.data;
    step->position = c->t.length;
    step->rows = r->n;
    step->prompt = p->prompt;
    step->frontier = p->evicted_end;
    step->sink = c->t.options.sink;
    step->window = c->t.options.window;
    step->draft_from = c->t.draft_from;
    if (!p->prompt) step->partitions = full_partitions(r);
    if (!p->key.restored) return;
    step->restored_begin[0] = sliding > step->sink ? sliding : step->sink;
    step->restored_begin[1] = step->sink;
    step->restored_end = p->prompt ? p->evicted_end : c->t.length + r->n - c->t.options.window;
}

/* Where the aux hidden states of a cache's next row go; NULL: nobody keeps them. */
static float *next_aux(const backend_cache *c) {
    if (!c->t.options.keep_draft_context) return NULL;
    return (float *)c->backlog.data +
           (size_t)(c->t.length - c->t.draft_length) * (cuda_aux_row_bytes(c) / sizeof(float));
}

static void fill_rows(const backend_segment *r, const cuda_step *step, cuda_batch *batch) {
    const backend_cache *c = r->cache;
    float *aux = next_aux(c);
    size_t aux_width = aux ? cuda_aux_row_bytes(c) / sizeof(float) : 0;
    memcpy(batch->tokens + step->first_row, r->tokens, (size_t)r->n * sizeof *r->tokens);
    for (int i = 0; i < r->n; i++)
        batch->row[step->first_row + i] = (cuda_row){.cache = c->view.data,
                                                     .aux = aux ? aux + (size_t)i * aux_width : NULL,
                                                     .position = c->t.length + i,
                                                     .sink = c->t.options.sink,
                                                     .partitions = step->partitions,
                                                     .first_partition = step->first_partition + i * step->partitions,
                                                     .temperature = r->leaders ? r->temperature : 0};
}

void cuda_pass_fill(const cuda_pass *p, cuda_batch *batch) {
    memset(batch, 0, sizeof *batch);
    int partitions = 0;
    for (int i = 0; i < p->group->n; i++) {
        const backend_segment *r = &p->segments[p->group->segment[i]];
        cuda_step *step = &batch->step[i];
        fill_step(p, r, step);
        step->first_row = batch->rows;
        step->first_partition = partitions;
        if (!p->prompt) fill_rows(r, step, batch);
        batch->rows += r->n;
        partitions += r->n * step->partitions;
    }
}

/* The tensor-core kernel of prompts serves rows that see one run of exact positions, at the head dimensions of the
 * published models. Which rows those are depends on the position and the policy alone, so that a prompt's bits do not
 * depend on its chunks. With [sink, evicted_end) evicted a row of a sliding layer sees one run when its window begins
 * behind the sink (evicted positions are gone) or behind all that is evicted (they are restored). */
static int plain_from(const cuda_pass *p, int layer) {
    enum { LEAST_HEAD_DIM = 64, MOST_GROUPED = 16 };
    const gemma4_layer_config *lc = &p->model->config->layer[layer];
    if (lc->head_dim < LEAST_HEAD_DIM || p->model->config->heads / lc->kv_heads > MOST_GROUPED) return INT_MAX;
    if (p->evicted_end == 0 || !p->cache->t.layer[lc->kv_source].bounded) return 0;
    if (lc->type == GEMMA4_FULL) return INT_MAX;
    bool restored = p->cache->t.layer[lc->kv_source].restored;
    return (restored ? p->evicted_end : p->cache->t.options.sink) + p->model->config->sliding_window - 1;
}

static void fill_shape(const cuda_pass *p, step_shape *s) {
    const backend_model *m = p->model;
    const backend_cache *c = p->cache;
    bool nothing_evicted = p->prompt && p->evicted_end == 0;
    *s = (step_shape){.config = m->config,
                      .weights = &m->weights,
                      .prompt = p->prompt,
                      .rows = p->rows,
                      .position = p->position,
                      .hidden_states = p->hidden_states != NULL,
                      .head = p->head,
                      .exact_positions = c->t.options.sink + c->t.options.window};
    if (p->key.aux) s->drafter = &m->options.drafter->config;
    for (int i = 0; i < m->config->layers; i++) {
        s->ring[i] = c->t.layer[i].kind == STORE_RING;
        s->bounded[i] = c->t.layer[i].bounded;
        s->restore[i] = nothing_evicted ? RESTORE_NONE : c->layer[i].form;
        s->plain_from[i] = plain_from(p, i);
    }
    if (!p->key.restored) return;
    s->restored_positions = cuda_restoration_positions(c, p->prompt, p->rows);
    s->latent_capacity = c->t.latent_capacity;
    s->rank = m->options.f_theta->config.rank;
}

int cuda_pass_list(const cuda_pass *p) {
    step_shape shape;
    fill_shape(p, &shape);
    return step_build(&shape, p->model->step_ops);
}

int cuda_pass_list_head(const cuda_pass *p) {
    step_shape shape = {
        .config = p->model->config, .weights = &p->model->weights, .prompt = p->prompt, .rows = p->head_rows};
    return step_build_head(&shape, p->model->step_ops);
}
