/* Formulas as in the CPU backend's draft.c. */
#include "backend/cuda/draft.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "backend/cuda/assistant.h"
#include "backend/cuda/matrix.h"
#include "backend/segments.h"

static void block_layer(backend_model *m, const graph_key *key, int layer) {
    int rows = key->rows;
    const block_drafter_config *d = &m->options.drafter->config;
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
    cuda_head_rows(l, m->space.draft_batch, false, &heads, rows);
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
        .state = (float2 *)m->space.partial_state.data,
        .partitions = cuda_attention_partitions(key->draft_window, key->segment_rows + 1, 0),
        .segments = key->segments,
        .segment_rows = key->segment_rows,
    };
    cuda_attend(l, m->space.draft_batch, &a, rows);
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

/* Blocks that go through the drafter together. */
typedef struct draft_pass {
    backend_model *model;
    graph_key key;
} draft_pass;

/* Everything that a graph can hold: what changes is read from m->space.draft_batch. */
static cudaError_t enqueue_blocks(void *context) {
    const draft_pass *p = context;
    backend_model *m = p->model;
    const block_drafter_config *d = &m->options.drafter->config;
    int rows = p->key.rows, first = p->key.segments == 1, n = rows - first; /* of one block its drafts alone */
    float scale = m->options.drafter_scaled_embedding ? m->embed_scale : 1.0f;
    cuda_turns(&m->launch, m->space.draft_batch, false, m->weights.draft_inverse_frequency, d->head_dim / 2,
               m->space.draft_turns, rows);
    cuda_embed(&m->launch, &m->weights.embed, m->space.draft_batch->tokens, scale, m->space.d_state,
               m->weights.draft[0].input_norm, d->rms_eps, m->space.d_in, m->weights.draft[0].q.ld, d->hidden, rows);
    for (int l = 0; l < d->layers; l++) block_layer(m, &p->key, l);
    const cuda_bf16 *drafted = m->space.d_in + first * m->weights.draft_head.ld;
    cuda_excluded mask = {.n = 1, .id = {d->mask_token}}; /* the mask is never proposed */
    if (cuda_head_screens(&m->head_copy) && n <= CUDA_DECODE_ROWS) {
        cuda_screen screen = m->space.screen;
        screen.upper = m->space.logits; /* nobody reads logits of drafts */
        cuda_greedy_choice(&m->launch, &m->weights.draft_head, &m->head_copy.codes, &screen, &mask, drafted, n, 0,
                           m->space.argmax + first);
        return cudaSuccess;
    }
    matrix_product head = {.w = &m->weights.draft_head, .y = m->space.logits, .ldy = m->config->vocab};
    matrix_products(&m->launch, &head, 1, drafted, m->weights.draft_head.ld, n, 0);
    cuda_argmax(&m->launch, m->space.logits, m->config->vocab, &mask, n, m->space.argmax_value, m->space.argmax_index,
                m->space.argmax + first);
    return cudaSuccess;
}

static void fill_blocks(const backend_draft_request *requests, int n, int mask_token, cuda_batch *batch) {
    memset(batch, 0, sizeof *batch);
    for (int s = 0; s < n; s++) {
        const backend_draft_request *r = &requests[s];
        const backend_cache *c = r->cache;
        batch->step[s] = (cuda_step){.cache = c->view.data,
                                     .position = c->t.length,
                                     .rows = r->n + 1,
                                     .first_row = batch->rows,
                                     .draft_from = c->t.draft_from};
        for (int i = 0; i <= r->n; i++) {
            batch->tokens[batch->rows] = i == 0 ? r->bonus : mask_token;
            batch->row[batch->rows++] = (cuda_row){.cache = c->view.data, .position = c->t.length + i};
        }
    }
}

/* The requests from the first one on that fit into one pass, at least one. */
static int blocks_of_pass(const backend_draft_request *requests, int n) {
    int rows = 0, blocks = 0;
    while (blocks < n && rows + requests[blocks].n + 1 <= CUDA_PASS_ROWS) rows += requests[blocks++].n + 1;
    return blocks;
}

static kakeya_status prepare_blocks(draft_pass *p, const backend_draft_request *requests, int n, kakeya_error *error) {
    backend_model *m = p->model;
    const block_drafter_config *d = &m->options.drafter->config;
    int rows = 0, most_rows = 0;
    for (int i = 0; i < n; i++) {
        int window = widest_window(requests[i].cache), of_block = requests[i].n + 1;
        rows += of_block;
        if (of_block > most_rows) most_rows = of_block;
        if (window > p->key.draft_window) p->key.draft_window = window;
    }
    p->key.rows = cuda_graph_rows(rows);
    p->key.segments = cuda_graph_segments(n);
    p->key.segment_rows = cuda_graph_segment_rows(n, most_rows);
    size_t partitions = (size_t)cuda_attention_partitions(p->key.draft_window, BACKEND_MAX_DECODE_ROWS + 1, 0),
           cells = (size_t)(p->key.rows > BACKEND_MAX_DECODE_ROWS ? p->key.rows : BACKEND_MAX_DECODE_ROWS) *
                   (size_t)d->heads * partitions;
    kakeya_status status =
        model_grow(m, &m->space.partial, cells * (size_t)d->head_dim * sizeof(float), "attention states", error);
    if (!status) status = model_grow(m, &m->space.partial_state, cells * sizeof(float2), "attention states", error);
    return status ? status : model_grow_logits(m, p->key.rows, error);
}

static kakeya_status draft_blocks(backend_model *m, const backend_draft_request *requests, int n, kakeya_error *error) {
    draft_pass p = {.model = m};
    kakeya_status status = prepare_blocks(&p, requests, n, error);
    if (status) return status;
    cuda_batch *batch = &m->space.staged[1];
    fill_blocks(requests, n, m->options.drafter->config.mask_token, batch);
    status = cuda_check(cudaMemcpyAsync(m->space.draft_batch, batch, cuda_batch_bytes(p.key.segments),
                                        cudaMemcpyHostToDevice, m->device.stream),
                        "drafting a block", error);
    if (!status) status = cuda_graphs_run(&m->graphs, &m->device, &p.key, enqueue_blocks, &p, error);
    if (!status)
        status = cuda_check(cudaMemcpyAsync(m->space.staged_ids, m->space.argmax, (size_t)batch->rows * sizeof(int32_t),
                                            cudaMemcpyDeviceToHost, m->device.stream),
                            "drafting a block", error);
    if (!status) status = cuda_finish(&m->device, "drafting a block", error);
    for (int i = 0; i < n && !status; i++)
        memcpy(requests[i].drafts, m->space.staged_ids + batch->step[i].first_row + 1,
               (size_t)requests[i].n * sizeof *requests[i].drafts);
    return status;
}

static const timeline *timeline_of(const backend_cache *c) { return &c->t; }

kakeya_status cuda_draft_begin(backend_model *m, backend_draft_request *requests, int n_requests, kakeya_error *error) {
    kakeya_status status = backend_check_drafts(m->config, requests, n_requests, timeline_of, error);
    for (int i = 0; i < n_requests && !status; i++) {
        if (requests[i].cache->model != m)
            status = error_set(error, KAKEYA_INVALID_ARGUMENT, "draft request %d: cache of another model", i);
    }
    if (!status) status = cuda_device_use(&m->device, error);
    if (status) return status;
    cuda_forget_logits(m);
    backend_cache *caches[BACKEND_MAX_SEGMENTS];
    int n = 0;
    for (int i = 0; i < n_requests && !status; i++) {
        if (requests[i].drafter != BACKEND_BLOCK_DRAFTER) continue;
        caches[n++] = requests[i].cache;
        status = requests[i].status = cuda_stores_own(requests[i].cache, error);
    }
    return status || !n ? status : cuda_caches_flush(caches, n, error);
}

/* Of the block drafter, all in as few passes as they fit into. */
static kakeya_status draft_passes(backend_model *m, backend_draft_request *requests, int n_requests,
                                  kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    for (int first = 0; first < n_requests && !status;) {
        int n = blocks_of_pass(requests + first, n_requests - first);
        status = draft_blocks(m, requests + first, n, error);
        if (n_requests == 1) requests[0].status = status;
        first += n;
    }
    return status;
}

kakeya_status cuda_draft(backend_model *m, backend_draft_request *requests, int n_requests, kakeya_error *error) {
    static const backend_draft_fn drafts_of[BACKEND_DRAFTERS] = {
        [BACKEND_BLOCK_DRAFTER] = draft_passes, [BACKEND_ASSISTANT] = cuda_assistant_draft};
    kakeya_status status = cuda_draft_begin(m, requests, n_requests, error);
    return status ? status : backend_draft_each(drafts_of, m, requests, n_requests, error);
}
