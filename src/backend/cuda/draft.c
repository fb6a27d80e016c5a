/* Formulas as in the CPU backend's draft.c. */
#include "backend/cuda/draft.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "backend/cuda/matrix.h"
#include "backend/segments.h"

static void block_layer(backend_model *m, int layer, int rows) {
    const dflash_config *d = &m->options.drafter->config;
    const cuda_draft_layer *w = &m->weights.draft[layer];
    const cuda_launch *l = &m->launch;
    int q = d->heads * d->head_dim, kv = d->kv_heads * d->head_dim;
    matrix_product projections[3] = {{&w->q, m->space.d_q, q}, {&w->k, m->space.d_k, kv}, {&w->v, m->space.d_v, kv}};
    matrix_products(l, projections, 3, m->space.d_in, w->q.ld, rows, 0);
    cuda_heads heads = {
        .q = m->space.d_q,
        .k = m->space.d_k,
        .v = m->space.d_v,
        .q_norm = w->q_norm,
        .k_norm = w->k_norm,
        .turns = m->space.draft_turns,
        .pairs = d->head_dim / 2,
        .heads = d->heads,
        .kv_heads = d->kv_heads,
        .head_dim = d->head_dim,
        .q_scale = 1.0f / sqrtf((float)d->head_dim),
        .eps = d->rms_eps,
        .q_out = m->space.d_heads,
        .chunk_k = m->space.d_block_k,
        .chunk_v = m->space.d_block_v,
        .layer = layer,
    };
    cuda_head_rows(l, m->space.draft_step, &heads, rows);
    bool causal = d->sliding_window[layer] && !m->options.drafter_block_bidirectional;
    cuda_attention a = {
        .q = m->space.d_heads,
        .out = m->space.d_attended,
        .ldo = w->o.ld,
        .chunk_k = m->space.d_block_k,
        .chunk_v = m->space.d_block_v,
        .heads = d->heads,
        .kv_heads = d->kv_heads,
        .head_dim = d->head_dim,
        .sliding_window = d->sliding_window[layer],
        .layer = layer,
        .drafter = 1,
        .causal = causal,
        .partial = m->space.partial.data,
    };
    a.partitions = cuda_attention_partitions(m->space.staged[1].window, rows + 1, 0);
    cuda_attend(l, m->space.draft_step, &a, rows);
    matrix_product out = {&w->o, m->space.d_x, d->hidden};
    matrix_products(l, &out, 1, m->space.d_attended, w->o.ld, rows, 0);
    cuda_add_norm(l, m->space.d_x, NULL, 1, m->space.d_state, w->post_attention_norm, d->rms_eps, m->space.d_in,
                  w->gate.ld, NULL, d->hidden, rows);
    cuda_feed_forward f = {.gate = w->gate,
                           .up = w->up,
                           .down = w->down,
                           .x_dense = m->space.d_in,
                           .ldx = w->gate.ld,
                           .act = m->space.d_act,
                           .y = m->space.d_x,
                           .silu = 1};
    matrix_gate_up(l, &f, NULL, rows);
    matrix_down(l, &f, NULL, rows);
    const float *next = layer + 1 < d->layers ? m->weights.draft[layer + 1].input_norm : m->weights.draft_norm;
    cuda_add_norm(l, m->space.d_x, NULL, 1, m->space.d_state, next, d->rms_eps, m->space.d_in, w->q.ld, NULL, d->hidden,
                  rows);
}

/* The most context positions that a drafter layer attends. */
static int widest_window(const backend_cache *c) {
    int widest = 0;
    for (int l = 0; l < c->model->options.drafter->config.layers; l++) {
        if (c->t.draft[l].window > widest) widest = c->t.draft[l].window;
    }
    return widest;
}

/* Everything of a block that a graph can hold: what changes is read from m->space.draft_step. */
static cudaError_t enqueue_block(void *context) {
    backend_model *m = context;
    const dflash_config *d = &m->options.drafter->config;
    int rows = m->space.staged[1].rows, n = rows - 1;
    float scale = m->options.drafter_scaled_embedding ? m->embed_scale : 1.0f;
    const int32_t *tokens =
        (const int32_t *)(const void *)((const char *)m->space.draft_step + offsetof(cuda_step, tokens));
    cuda_turns(&m->launch, m->space.draft_step, m->weights.draft_inverse_frequency, d->head_dim / 2,
               m->space.draft_turns, rows);
    cuda_embed(&m->launch, m->weights.embed.data, m->weights.embed.ld, tokens, scale, m->space.d_state,
               m->weights.draft[0].input_norm, d->rms_eps, m->space.d_in, m->weights.draft[0].q.ld, d->hidden, rows);
    for (int l = 0; l < d->layers; l++) block_layer(m, l, rows);
    const cuda_bf16 *drafted = m->space.d_in + m->weights.head.ld;
    cuda_excluded mask = {.n = 1, .id = {d->mask_token}}; /* the mask is never proposed */
    if (cuda_head_screens(&m->head_copy)) {
        cuda_screen screen = m->space.screen;
        screen.upper = m->space.logits; /* nobody reads logits of drafts */
        cuda_greedy_choice(&m->launch, &m->weights.head, &m->head_copy.codes, &screen, &mask, drafted, n, 0,
                           m->space.argmax);
        return cudaSuccess;
    }
    matrix_product head = {.w = &m->weights.head, .y = m->space.logits, .ldy = m->config->vocab};
    matrix_products(&m->launch, &head, 1, drafted, m->weights.head.ld, n, 0);
    cuda_argmax(&m->launch, m->space.logits, m->config->vocab, &mask, n, m->space.argmax_value, m->space.argmax_index,
                m->space.argmax);
    return cudaSuccess;
}

static kakeya_status draft_block(backend_cache *c, int32_t bonus, int n, int32_t *drafts, kakeya_error *error) {
    backend_model *m = c->model;
    const dflash_config *d = &m->options.drafter->config;
    int window = widest_window(c);
    size_t floats = cuda_attention_partial_floats(BACKEND_MAX_DECODE_ROWS, d->heads, d->head_dim,
                                                  cuda_attention_partitions(window, BACKEND_MAX_DECODE_ROWS + 1, 0));
    kakeya_status status = cuda_device_use(&m->device, error);
    if (!status) status = model_grow(m, &m->space.partial, floats * sizeof(float), "attention states", error);
    if (!status) status = cuda_cache_flush(c, error);
    if (status) return status;
    cuda_step *step = &m->space.staged[1];
    *step = (cuda_step){
        .cache = c->view.data, .position = c->t.length, .rows = n + 1, .window = window, .draft_from = c->t.draft_from};
    for (int i = 0; i <= n; i++) step->tokens[i] = i == 0 ? bonus : d->mask_token;
    status =
        cuda_check(cudaMemcpyAsync(m->space.draft_step, step, sizeof *step, cudaMemcpyHostToDevice, m->device.stream),
                   "drafting a block", error);
    if (status) return status;
    graph_key key = {.rows = n + 1, .draft_window = window};
    status = cuda_graphs_run(&m->graphs, &m->device, &key, enqueue_block, m, error);
    if (status) return status;
    status = cuda_check(cudaMemcpyAsync(m->space.staged_ids, m->space.argmax, (size_t)n * sizeof(int32_t),
                                        cudaMemcpyDeviceToHost, m->device.stream),
                        "drafting a block", error);
    if (!status) status = cuda_finish(&m->device, "drafting a block", error);
    if (!status) memcpy(drafts, m->space.staged_ids, (size_t)n * sizeof *drafts);
    return status;
}

static const timeline *timeline_of(const backend_cache *c) { return &c->t; }

kakeya_status cuda_draft(backend_model *m, backend_draft_request *requests, int n_requests, kakeya_error *error) {
    kakeya_status status = backend_check_drafts(m->config, requests, n_requests, timeline_of, error);
    for (int i = 0; i < n_requests && !status; i++) {
        backend_draft_request *r = &requests[i];
        status = r->status = draft_block(r->cache, r->bonus, r->n, r->drafts, error);
    }
    return status;
}
