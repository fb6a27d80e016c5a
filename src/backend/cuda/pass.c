#include "backend/cuda/pass.h"

#include <limits.h>
#include <string.h>

#include "backend/cuda/restoration.h"

enum { LEAST_PARTITIONS = 8 };

static int power_of_two(int least, int n) {
    while (least < n) least *= 2;
    return least;
}

/* RoPE tables of K = V layers, for a prompt that ends at `end`. */
static kakeya_status prepare_rope_tables(backend_model *m, int end, kakeya_error *error) {
    enum { LEAST_POSITIONS = 4096 };
    cuda_workspace *w = &m->space;
    if (!w->derived_k || w->rope_positions >= end) return KAKEYA_OK;
    int positions = power_of_two(LEAST_POSITIONS, end), pairs = m->config->rope[GEMMA4_FULL].rotated_pairs;
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

/* Flash states of the partitions of a decode step. */
static kakeya_status prepare_partial(const cuda_pass *p, bool restored, kakeya_error *error) {
    backend_model *m = p->model;
    const gemma4_config *config = m->config;
    size_t partial = 0;
    for (int i = 0; i < config->layers; i++) {
        const gemma4_layer_config *lc = &config->layer[i];
        int partitions = lc->type == GEMMA4_FULL
                             ? p->key.partitions
                             : cuda_attention_partitions(config->sliding_window, BACKEND_MAX_DECODE_ROWS, 0);
        if (restored) partitions *= 2;
        size_t floats = cuda_attention_partial_floats(BACKEND_MAX_DECODE_ROWS, config->heads, lc->head_dim, partitions);
        if (floats > partial) partial = floats;
    }
    return model_grow(m, &m->space.partial, partial * sizeof(float), "attention states", error);
}

kakeya_status cuda_pass_prepare(cuda_pass *p, backend_model *m, const backend_segment *segment, kakeya_error *error) {
    const backend_cache *c = segment->cache;
    const backend_cache_options *o = &c->t.options;
    bool restored = o->attention == KAKEYA_ATTENTION_RESTORED,
         restore_all = restored && o->restore_layers == KAKEYA_RESTORE_ALL;
    int frontier = timeline_frontier(&c->t);
    *p = (cuda_pass){.model = m,
                     .cache = segment->cache,
                     .prompt = segment->kind == SEGMENT_PROMPT,
                     .rows = segment->n,
                     .position = c->t.length,
                     .evicted_end = frontier > o->sink ? frontier : 0,
                     .hidden_states = segment->hidden_states,
                     .head_rows = segment->n};
    p->tokens = p->prompt ? m->space.tokens
                          : (const int32_t *)(const void *)((const char *)m->space.step + offsetof(cuda_step, tokens));
    int end = p->position + p->rows;
    p->key = (graph_key){.rows = p->rows, .aux = o->keep_draft_context, .restore_all = restore_all};
    p->key.partitions = power_of_two(LEAST_PARTITIONS, cuda_attention_partitions(0, p->rows, end));
    if (restored) {
        p->key.restored = m->config->sliding_window;
        if (restore_all) p->key.restored = power_of_two(m->config->sliding_window, end);
        p->key.latents = c->latent.codes.data;
        p->key.sink = o->sink;
        p->key.window = o->window;
    }
    if (!p->prompt) {
        p->key.leaders = segment->leaders != NULL;
        p->key.greedy = !segment->logits && !segment->leaders && cuda_head_screens(&m->head_copy);
        p->head = p->key.greedy ? STEP_HEAD_GREEDY : p->key.leaders ? STEP_HEAD_LEADERS : STEP_HEAD_LOGITS;
    }
    kakeya_status status = p->prompt ? prepare_rope_tables(m, end, error) : prepare_partial(p, restored, error);
    if (!status && restored && !(p->prompt && p->evicted_end == 0))
        status = cuda_restoration_prepare(p->cache, p->key.restored, error);
    return status;
}

void cuda_pass_fill_step(const cuda_pass *p, const backend_segment *segment, cuda_step *step) {
    const backend_cache *c = p->cache;
    int sliding = p->position - p->model->config->sliding_window + 1;
    memset(step, 0, sizeof *step);
    step->cache = c->view.data;
    step->position = p->position;
    step->rows = p->rows;
    step->prompt = p->prompt;
    step->frontier = p->evicted_end;
    step->sink = c->t.options.sink;
    step->window = c->t.options.window;
    step->aux_row = p->position - c->t.draft_length;
    step->draft_from = c->t.draft_from;
    step->temperature = segment->temperature;
    if (p->key.restored) {
        step->restored_begin[0] = sliding > step->sink ? sliding : step->sink;
        step->restored_begin[1] = step->sink;
        step->restored_end = p->prompt ? p->evicted_end : p->position + p->rows - c->t.options.window;
    }
    if (!p->prompt) memcpy(step->tokens, segment->tokens, (size_t)p->rows * sizeof *segment->tokens);
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
