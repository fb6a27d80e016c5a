#include "backend/cuda/pass.h"

#include <limits.h>
#include <string.h>

#include "backend/cuda/prompt_keys.h"
#include "backend/cuda/restoration.h"

/* RoPE tables of K = V layers, for a prompt that ends at `end`. */
static kakeya_status prepare_rope_tables(backend_model *m, int end, kakeya_error *error) {
    enum { LEAST_POSITIONS = 4096 };
    cuda_workspace *w = &m->space;
    if (!w->derived_k || w->rope_positions >= end) return KAKEYA_OK;
    int positions = cuda_graph_doubled(LEAST_POSITIONS, end), pairs = m->config->rope[LAYER_FULL].rotated_pairs;
    size_t table = (size_t)positions * (size_t)pairs * sizeof(float);
    w->rope_positions = 0;
    kakeya_status status = model_grow(m, &w->cosine, table, "RoPE tables", error);
    if (!status) status = model_grow(m, &w->sine, table, "RoPE tables", error);
    if (status) return status;
    cuda_rope_tables(&m->launch, m->weights.inverse_frequency[LAYER_FULL], pairs, 0, positions, w->cosine.data,
                     w->sine.data);
    w->rope_positions = positions;
    return KAKEYA_OK;
}

/* ---------------------------------------------------------------------------------------------------- grouping */

/* Flash states of one pass, and evicted positions that are decoded for it. */
static const size_t most_partial_bytes = (size_t)1 << 30, most_restored_bytes = (size_t)1 << 30;

static bool is_restored(const backend_cache *c) { return c->t.options.attention == KAKEYA_ATTENTION_RESTORED; }

/* Partitions of a decode segment's rows in full-attention layers. */
static int full_partitions(const backend_segment *r) {
    return cuda_attention_partitions(0, r->n, r->cache->t.length + r->n);
}

/* Partial results of a row: the most that a layer of either type has. Restored keys have partitions of their own. */
typedef struct partial_size {
    size_t cells, floats;
} partial_size;

static partial_size row_partial(const model_config *config, int full, bool restored) {
    partial_size most = {0};
    for (int i = 0; i < config->layers; i++) {
        const layer_config *lc = &config->layer[i];
        int partitions = lc->type == LAYER_FULL
                             ? full
                             : cuda_attention_partitions(config->sliding_window, BACKEND_MAX_DECODE_ROWS, 0);
        if (restored) partitions *= 2;
        size_t cells = (size_t)config->heads * (size_t)partitions, floats = cells * (size_t)lc->head_dim;
        if (cells > most.cells) most.cells = cells;
        if (floats > most.floats) most.floats = floats;
    }
    return most;
}

/* Of caches that restore, all that the list of operations and its shapes depend on. */
static bool restore_alike(const backend_cache *a, const backend_cache *b) {
    const backend_cache_options *x = &a->t.options, *y = &b->t.options;
    if (!is_restored(a) || !is_restored(b)) return is_restored(a) == is_restored(b);
    return x->restore_layers == y->restore_layers && x->sink == y->sink && x->window == y->window;
}

/* Evicted positions that the segment's rows see, by layer type. `evicted_end`: of prompts. */
typedef struct restored_ranges {
    position_range of[2];
} restored_ranges;

static restored_ranges restored_by(const backend_model *m, const backend_segment *r, int evicted_end) {
    const backend_cache *c = r->cache;
    int sink = c->t.options.sink, sliding = c->t.length - m->config->sliding_window + 1,
        end = r->kind == SEGMENT_PROMPT ? evicted_end : c->t.length + r->n - c->t.options.window;
    bool all = c->t.options.restore_layers == KAKEYA_RESTORE_ALL;
    return (restored_ranges){
        .of = {[LAYER_SLIDING] = {sliding > sink ? sliding : sink, end}, [LAYER_FULL] = {sink, all ? end : sink}}};
}

static int count_of(position_range range) { return range_is_empty(range) ? 0 : range.end - range.begin; }

/* Of decode rows that attend latents: whole groups of positions, with some that nobody sees. */
static position_range whole_groups(position_range range) {
    if (range_is_empty(range)) return range;
    return (position_range){range.begin / CUDA_LATENT_GROUP * CUDA_LATENT_GROUP,
                            (range.end + CUDA_LATENT_GROUP - 1) / CUDA_LATENT_GROUP * CUDA_LATENT_GROUP};
}

/* Rows of the restore buffers that a decode segment takes: of the layer type that takes more. */
static int restored_rows(const backend_model *m, const backend_segment *r) {
    if (!is_restored(r->cache)) return 0;
    restored_ranges ranges = restored_by(m, r, 0);
    if (r->cache->attends_latents) return count_of(whole_groups(ranges.of[LAYER_SLIDING]));
    int sliding = count_of(ranges.of[LAYER_SLIDING]), full = count_of(ranges.of[LAYER_FULL]);
    return sliding > full ? sliding : full;
}

/* Positions [sink, end) are evicted: the end; 0: none are. */
static int evicted_end(const backend_cache *c) {
    int frontier = timeline_frontier(&c->t);
    return frontier > c->t.options.sink ? frontier : 0;
}

/* Prompts of which nothing is evicted, so that nothing is restored, share all that works on rows: products, norms,
 * experts. Their caches differ in nothing but what a segment says. */
static bool join(const backend_segment *a, const backend_segment *b) {
    const backend_cache_options *x = &a->cache->t.options, *y = &b->cache->t.options;
    return !a->hidden_states && !b->hidden_states && !evicted_end(a->cache) && !evicted_end(b->cache) &&
           x->attention == y->attention && x->restore_layers == y->restore_layers && x->sink == y->sink &&
           x->window == y->window && x->kv_format == y->kv_format && x->keep_draft_context == y->keep_draft_context;
}

/* The first prompt that is left, and those that join it. */
static bool group_prompts(const backend_segment *segments, int n_segments, bool taken[BACKEND_MAX_FORWARD],
                          cuda_group *group) {
    for (int s = 0; s < n_segments; s++) {
        const backend_segment *r = &segments[s];
        if (taken[s] || r->kind != SEGMENT_PROMPT || (group->n && !join(&segments[group->segment[0]], r))) continue;
        taken[s] = true;
        group->segment[group->n++] = s;
    }
    return group->n > 0;
}

bool cuda_pass_group(const backend_model *m, const backend_segment *segments, int n_segments,
                     bool taken[BACKEND_MAX_FORWARD], cuda_group *group) {
    group->n = 0;
    if (group_prompts(segments, n_segments, taken, group)) return true;
    for (int s = 0; s < n_segments; s++) {
        if (taken[s] || !segments[s].hidden_states) continue; /* which leave in one piece */
        taken[s] = true;
        group->segment[group->n++] = s;
        return true;
    }
    int rows = 0;
    size_t partial_bytes = 0, restored_bytes = 0;
    for (int s = 0; s < n_segments; s++) {
        const backend_segment *r = &segments[s];
        if (taken[s] || (group->n > 0 && !restore_alike(r->cache, segments[group->segment[0]].cache))) continue;
        size_t partial = row_partial(m->config, full_partitions(r), is_restored(r->cache)).floats * sizeof(float),
               restored = cuda_restoration_row_bytes(m->config) * (size_t)restored_rows(m, r);
        partial *= (size_t)r->n;
        if (group->n > 0 && (rows + r->n > CUDA_PASS_ROWS || partial_bytes + partial > most_partial_bytes ||
                             restored_bytes + restored > most_restored_bytes))
            continue;
        taken[s] = true;
        group->segment[group->n++] = s;
        rows += r->n;
        partial_bytes += partial;
        restored_bytes += restored;
    }
    return group->n > 0;
}

/* ------------------------------------------------------------------------------------------------- preparation */

/* At least `n`, with up to a quarter more: of sessions that grow one after the other, few different sizes. */
static size_t with_room(size_t n) {
    size_t unit = 1;
    while (unit * 8 < n) unit *= 2;
    return (n + unit - 1) / unit * unit;
}

/* Flash states of the partitions of a decode pass. */
static kakeya_status prepare_partial(const cuda_pass *p, kakeya_error *error) {
    backend_model *m = p->model;
    bool restored = is_restored(p->cache);
    size_t cells = 0, floats = 0;
    int filled_up = p->rows;
    for (int i = 0; i < p->group->n; i++) {
        const backend_segment *r = &p->segments[p->group->segment[i]];
        /* A block has as many rows as it may have, and its partitions grow by doubling: a step of a session that goes
         * on alone finds what it needs. */
        size_t rows = p->group->n == 1 ? BACKEND_MAX_DECODE_ROWS : (size_t)r->n;
        int full = p->group->n == 1 ? p->key.partitions : full_partitions(r);
        partial_size of_row = row_partial(m->config, full, restored);
        cells += rows * of_row.cells;
        floats += rows * of_row.floats;
        filled_up -= r->n;
    }
    partial_size of_nobody = row_partial(m->config, 0, restored); /* which are read like others, in sliding layers */
    cells += (size_t)filled_up * of_nobody.cells;
    floats += (size_t)filled_up * of_nobody.floats;
    if (p->group->n > 1) { /* memory that grows drops the captured steps */
        cells = with_room(cells);
        floats = with_room(floats);
    }
    kakeya_status status = model_grow(m, &m->space.partial, floats * sizeof(float), "attention states", error);
    return status ? status : model_grow(m, &m->space.partial_state, cells * sizeof(float2), "attention states", error);
}

/* The layers whose outputs the cache keeps join those of the caches before it. */
static void add_taps(cuda_pass *p, const backend_cache *c) {
    int form = cuda_aux_form(c);
    if (!c->t.keeps_backlog || p->key.aux & 1u << form) return;
    p->key.aux |= 1u << form;
    for (int i = 0; i < c->t.taps; i++) {
        int at = 0;
        while (at < p->taps && (p->tap[at].layer != c->t.tap[i] || p->tap[at].slot[form] >= 0)) at++;
        if (at == p->taps) p->tap[p->taps++] = (step_tap){c->t.tap[i], {-1, -1}};
        p->tap[at].slot[form] = i;
    }
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

/* Prompts: room for what their attention reads of layers in codes. */
static kakeya_status prepare_expanded(const cuda_pass *p, int end, kakeya_error *error) {
    backend_model *m = p->model;
    size_t values = 0, keys = 0, positions = (size_t)cuda_graph_doubled(m->config->sliding_window, end);
    for (int i = 0; i < m->config->layers; i++) {
        const timeline_layer *l = &p->cache->t.layer[i];
        if (l->kind != STORE_PAGES || !cuda_kv_codes_of(l->format)) continue;
        if ((size_t)l->values > values) values = (size_t)l->values;
        if (l->has_keys && (size_t)l->values > keys) keys = (size_t)l->values;
    }
    kakeya_status status =
        model_grow(m, &m->space.expanded_v, positions * values * sizeof(cuda_bf16), "K/V of a layer in bf16", error);
    if (status) return status;
    return model_grow(m, &m->space.expanded_k, positions * keys * sizeof(cuda_bf16), "K/V of a layer in bf16", error);
}

/* Of prompts: their rows, one segment behind the other, and where the last ones go. */
static kakeya_status prepare_prompts(cuda_pass *p, kakeya_error *error) {
    backend_model *m = p->model;
    int end = 0, positions = 0;
    p->rows = 0;
    for (int i = 0; i < p->group->n; i++) {
        const backend_segment *r = &p->segments[p->group->segment[i]];
        p->first_row[i] = p->rows;
        p->last_row[i] = -1;
        p->rows += r->n;
        if (r->cache->t.length + r->n > end) end = r->cache->t.length + r->n;
        positions += r->cache->t.length + r->n;
        for (int s = 0, place = 0; cuda_pass_leaves_last_row(r) && s <= p->group->segment[i]; s++) {
            if (!cuda_pass_leaves_last_row(&p->segments[s])) continue;
            p->last_row[i] = place++;
            p->last_rows = true;
        }
    }
    p->key.rows = p->rows;
    p->side_by_side = p->group->n > 1 && positions <= PROMPT_SLAB_POSITIONS;
    add_taps(p, p->cache);
    kakeya_status status = prepare_rope_tables(m, end, error);
    if (!status && p->key.codes) status = prepare_expanded(p, p->side_by_side ? positions : end, error);
    return status;
}

/* Rows with a mask of what they may choose. */
static int masked_rows(const cuda_pass *p) {
    int rows = 0;
    for (int i = 0; i < p->group->n; i++) {
        const backend_segment *r = &p->segments[p->group->segment[i]];
        if (r->argmax && r->allowed) rows += r->n - r->first_logit_row;
    }
    return rows;
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
        add_taps(p, r->cache);
    }
    p->rows = p->key.rows = p->head_rows = cuda_graph_rows(rows);
    p->key.segments = cuda_graph_segments(p->group->n);
    p->key.segment_rows = cuda_graph_segment_rows(p->group->n, most_rows);
    p->key.partitions = cuda_graph_partitions(p->group->n, partitions);
    p->masked = masked_rows(p);
    p->head = head_of(p);
    p->key.greedy = p->head == STEP_HEAD_GREEDY;
    p->key.leaders = p->head == STEP_HEAD_LEADERS;
    kakeya_status status = prepare_partial(p, error);
    if (!status && p->masked)
        status = cuda_workspace_reserve_masks(&m->space, &m->device, m->account, m->config->vocab, error);
    return status ? status : model_grow_logits(m, p->rows, error);
}

/* Rows of the restore buffers, as a shape: of a session that goes on, and of the same sessions, few different ones. */
static int shape_restored(const cuda_pass *p) {
    const backend_model *m = p->model;
    int sliding = m->config->sliding_window, rows = 0;
    if (p->prompt) return p->key.restore_all ? cuda_graph_doubled(sliding, p->evicted_end) : sliding;
    for (int i = 0; i < p->group->n; i++) {
        int of_segment = restored_rows(m, &p->segments[p->group->segment[i]]);
        rows += p->key.restore_all || of_segment > sliding ? of_segment : sliding;
    }
    return cuda_graph_doubled(sliding, rows);
}

kakeya_status cuda_pass_prepare(cuda_pass *p, backend_model *m, backend_segment *segments, const cuda_group *group,
                                kakeya_error *error) {
    const backend_segment *first = &segments[group->segment[0]];
    const backend_cache *c = first->cache;
    const backend_cache_options *o = &c->t.options;
    bool restored = is_restored(c), restore_all = restored && o->restore_layers == KAKEYA_RESTORE_ALL;
    *p = (cuda_pass){.model = m,
                     .segments = segments,
                     .group = group,
                     .cache = first->cache,
                     .prompt = first->kind == SEGMENT_PROMPT,
                     .rows = first->n,
                     .position = c->t.length,
                     .evicted_end = evicted_end(c),
                     .hidden_states = first->hidden_states,
                     .chosen_layers = first->chosen_layers,
                     .chosen = first->chosen,
                     .head_rows = first->n};
    p->tokens = p->prompt ? m->space.tokens : m->space.batch->tokens;
    p->key = (graph_key){.rows = p->rows, .codes = cuda_kv_codes_of(o->kv_format), .restore_all = restore_all};
    if (restored) {
        p->key.restored = shape_restored(p);
        p->key.sink = o->sink;
        p->key.window = o->window;
    }
    for (int i = 0; i < group->n; i++) p->key.states |= segments[group->segment[i]].cache->t.keeps_state;
    p->attends_latents = restored && !p->prompt && c->attends_latents;
    p->decodes_keys = p->attends_latents && p->key.restored <= LATENT_MOST_AHEAD;
    kakeya_status status = p->prompt ? prepare_prompts(p, error) : prepare_decode(p, error);
    if (!status && p->attends_latents) /* as prepare_partial has it */
        return cuda_restoration_prepare_latents(
            p->cache, p->key.restored, group->n == 1 ? BACKEND_MAX_DECODE_ROWS : p->rows, p->decodes_keys, error);
    if (!status && restored && !(p->prompt && p->evicted_end == 0))
        status = cuda_restoration_prepare(p->cache, p->key.restored, p->prompt, error);
    return status;
}

kakeya_status cuda_pass_prepare_last_rows(cuda_pass *p, backend_model *m, backend_segment *segments,
                                          const cuda_group *group, kakeya_error *error) {
    *p = (cuda_pass){
        .model = m, .segments = segments, .group = group, .last_rows = true, .rows = group->n, .head_rows = group->n};
    p->head = head_of(p);
    return model_grow_logits(m, p->rows, error);
}

static void fill_step(const cuda_pass *p, const backend_segment *r, cuda_step *step) {
    const backend_cache *c = r->cache;
    step->cache = c->view.data;
    step->position = c->t.length;
    step->rows = r->n;
    step->prompt = p->prompt;
    step->frontier = p->evicted_end;
    step->sink = c->t.options.sink;
    step->window = c->t.options.window;
    step->draft_from = c->t.draft_from;
    if (!p->prompt) step->partitions = full_partitions(r);
}

/* The segment's rows of the restore buffers are the next ones. */
static void fill_restored(const cuda_pass *p, const backend_segment *r, cuda_step *step, cuda_batch *batch) {
    restored_ranges ranges = restored_by(p->model, r, p->evicted_end);
    if (p->attends_latents) ranges.of[LAYER_SLIDING] = whole_groups(ranges.of[LAYER_SLIDING]);
    for (int type = 0; type < 2; type++) {
        step->restored_begin[type] = ranges.of[type].begin;
        step->restored_first[type] = batch->restored_rows[type];
        batch->restored_rows[type] += count_of(ranges.of[type]);
    }
}

/* Where the aux hidden states of a cache's next row go; NULL: nobody keeps them. */
static float *next_aux(const backend_cache *c) {
    if (!c->t.keeps_backlog) return NULL;
    return (float *)c->backlog.data +
           (size_t)(c->t.length - c->t.draft_length) * (timeline_aux_row_bytes(&c->t) / sizeof(float));
}

/* The masks of the segment's rows follow `*masked` others; compute copies them to the device together. */
static void fill_masks(const cuda_pass *p, const backend_segment *r, const cuda_step *step, cuda_batch *batch,
                       size_t *masked) {
    const cuda_workspace *w = &p->model->space;
    const size_t words = cuda_workspace_mask_words(p->model->config->vocab);
    if (!r->argmax || !r->allowed) return;
    const size_t rows = (size_t)(r->n - r->first_logit_row);
    memcpy(w->staged_masks + *masked * words, r->allowed, rows * words * sizeof *r->allowed);
    for (size_t i = 0; i < rows; i++)
        batch->row[step->first_row + r->first_logit_row + (int)i].allowed =
            (const uint32_t *)w->masks.data + (*masked + i) * words;
    *masked += rows;
}

static void fill_rows(const backend_segment *r, const cuda_step *step, cuda_batch *batch) {
    const backend_cache *c = r->cache;
    float *aux = next_aux(c);
    size_t aux_width = timeline_aux_row_bytes(&c->t) / sizeof(float);
    memcpy(batch->tokens + step->first_row, r->tokens, (size_t)r->n * sizeof *r->tokens);
    for (int i = 0; i < r->n; i++)
        batch->row[step->first_row + i] = (cuda_row){.cache = c->view.data,
                                                     .aux = aux ? aux + (size_t)i * aux_width : NULL,
                                                     .aux_form = cuda_aux_form(c),
                                                     .position = c->t.length + i,
                                                     .sink = c->t.options.sink,
                                                     .partitions = step->partitions,
                                                     .first_partition = step->first_partition + i * step->partitions,
                                                     .temperature = r->leaders ? r->temperature : 0,
                                                     .excluded = r->excluded ? *r->excluded + 1 : 0};
}

void cuda_pass_fill(const cuda_pass *p, cuda_batch *batch) {
    memset(batch, 0, sizeof *batch);
    batch->exchanges = p->model->passes * STEP_MOST_TURNS;
    int partitions = 0;
    size_t masked = 0;
    for (int i = 0; i < p->group->n; i++) {
        const backend_segment *r = &p->segments[p->group->segment[i]];
        if (!p->cache) {
            batch->row[batch->rows++] = (cuda_row){.temperature = r->leaders ? r->temperature : 0,
                                                   .excluded = r->excluded ? *r->excluded + 1 : 0};
            continue;
        }
        cuda_step *step = &batch->step[i];
        fill_step(p, r, step);
        if (p->key.restored) fill_restored(p, r, step, batch);
        step->first_row = batch->rows;
        if (p->prompt) step->last_row = p->last_row[i];
        step->first_partition = partitions;
        if (!p->prompt) fill_rows(r, step, batch);
        if (p->masked) fill_masks(p, r, step, batch, &masked);
        batch->rows += r->n;
        partitions += r->n * step->partitions;
    }
    batch->segments = p->group->n;
}

/* The tensor-core kernel of prompts serves rows that see one run of exact positions, at the head dimensions of the
 * published models. Which rows those are depends on the position and the policy alone, so that a prompt's bits do not
 * depend on its chunks. With [sink, evicted_end) evicted a row of a sliding layer sees one run when its window begins
 * behind the sink (evicted positions are gone) or behind all that is evicted (they are restored). */
static int plain_from(const cuda_pass *p, int layer) {
    enum { LEAST_HEAD_DIM = 64, MOST_GROUPED = 16 };
    const layer_config *lc = &p->model->config->layer[layer];
    if (lc->head_dim < LEAST_HEAD_DIM || p->model->config->heads / lc->kv_heads > MOST_GROUPED) return INT_MAX;
    if (p->evicted_end == 0 || !p->cache->t.layer[lc->kv_source].bounded) return 0;
    if (lc->type == LAYER_FULL) return INT_MAX;
    bool restored = p->cache->t.layer[lc->kv_source].restored;
    return (restored ? p->evicted_end : p->cache->t.options.sink) + p->model->config->sliding_window - 1;
}

static void fill_shape(const cuda_pass *p, step_shape *s) {
    const backend_model *m = p->model;
    const backend_cache *c = p->cache;
    bool nothing_evicted = p->prompt && p->evicted_end == 0;
    *s = (step_shape){.config = m->config,
                      .weights = &m->weights,
                      .tap = p->tap,
                      .taps = p->taps,
                      .shard = m->shard,
                      .prompt = p->prompt,
                      .rows = p->rows,
                      .position = p->position,
                      .hidden_states = p->hidden_states != NULL,
                      .last_rows = p->last_rows,
                      .head = p->head,
                      .states = p->key.states,
                      .exact_positions = c->t.options.sink + c->t.options.window};
    for (int i = 0; i < m->config->layers; i++) {
        s->ring[i] = c->t.layer[i].kind == STORE_RING;
        s->bounded[i] = c->t.layer[i].bounded;
        s->restore[i] = nothing_evicted ? RESTORE_NONE
                        : p->attends_latents && c->layer[i].form != RESTORE_NONE
                            ? (p->decodes_keys ? RESTORE_KEYS : RESTORE_LATENTS)
                            : c->layer[i].form;
        s->plain_from[i] = plain_from(p, i);
    }
    if (!p->key.restored) return;
    for (int i = 0; i < p->group->n; i++)
        s->restored_positions +=
            count_of(restored_by(m, &p->segments[p->group->segment[i]], p->evicted_end).of[LAYER_SLIDING]);
    s->rank_k = m->options.restoration->config.rank_k;
    s->rank_v = m->options.restoration->config.rank_v;
}

int cuda_pass_list(const cuda_pass *p) {
    step_shape shape;
    fill_shape(p, &shape);
    return step_build(&shape, p->model->step_ops);
}

int cuda_pass_list_head(const cuda_pass *p) {
    step_shape shape = {.config = p->model->config,
                        .weights = &p->model->weights,
                        .shard = p->model->shard,
                        .prompt = p->prompt,
                        .rows = p->head_rows,
                        .last_rows = !p->prompt && p->last_rows,
                        .head = p->head};
    return step_build_head(&shape, p->model->step_ops);
}
