/* What a row of an assistant sees at position p is what a decode row there would see, without itself: the positions
 * that a decode row at p - 1 would see, whose windows are shorter by one. That is how the kernels of attention are
 * asked; queries turn by p. */
#include "backend/cuda/assistant.h"

#include <string.h>

#include "backend/cuda/cache.h"
#include "backend/cuda/matrix.h"
#include "backend/segments.h"

/* Chains that go through the assistant together, a row each. */
typedef struct chain_pass {
    backend_model *model;
    backend_draft_request *request[CUDA_MAX_SEGMENTS];
    int n;
    graph_key key;
    const cuda_assistant_trace *trace; /* of a pass of one chain, or NULL */
    cudaError_t failure;               /* the first one of copies for it */
} chain_pass;

static const assistant_config *config_of(const backend_model *m) { return &m->options.assistant->config; }

static int source_of(const backend_model *m, layer_type type) { return assistant_source(m->config, type); }

/* ------------------------------------------------------------------------------------------------------ operations */

static void make_pair(const chain_pass *p, int draft) {
    backend_model *m = p->model;
    cuda_workspace *s = &m->space;
    const cuda_assistant *w = &m->weights.assistant;
    const cuda_pair pair = {.batch = s->draft_batch,
                            .drafted = draft ? s->a_drafts + (size_t)(draft - 1) * (size_t)p->key.rows : NULL,
                            .states = s->a_states,
                            .scale = m->embed_scale,
                            .x = s->a_pair,
                            .ldx = w->pre_projection.ld,
                            .hidden = m->config->hidden};
    cuda_pair_rows(&m->launch, &m->weights.embed, &pair, p->key.rows);
    int hidden = config_of(m)->stack.hidden;
    matrix_product product = {&w->pre_projection, s->a_h, hidden};
    matrix_products(&m->launch, &product, 1, s->a_pair, w->pre_projection.ld, p->key.rows, 0);
    cuda_norm_rows(&m->launch, s->a_h, hidden, w->layer[0].input_norm, config_of(m)->stack.rms_eps, s->a_in,
                   w->layer[0].q.ld, hidden, p->key.rows);
}

static void attention(const chain_pass *p, int layer) {
    backend_model *m = p->model;
    cuda_workspace *s = &m->space;
    const model_config *c = &config_of(m)->stack;
    const cuda_layer *w = &m->weights.assistant.layer[layer];
    layer_type type = c->layer[layer].type;
    int source = source_of(m, type), window = type == LAYER_SLIDING ? m->config->sliding_window - 1 : 0;
    const layer_config *of = &m->config->layer[source];
    matrix_product q = {&w->q, s->a_q, w->q.out};
    matrix_products(&m->launch, &q, 1, s->a_in, w->q.ld, p->key.rows, 0);
    const cuda_heads heads = {
        .q = s->a_q,
        .q_norm = w->q_norm,
        .turns = s->turns[type],
        .pairs = m->config->rope[type].rotated_pairs,
        .heads = c->heads,
        .kv_heads = of->kv_heads,
        .head_dim = of->head_dim,
        .norm_v = 1,
        .q_scale = 1,
        .eps = c->rms_eps,
        .q_out = s->a_heads,
        .layer = source,
    };
    cuda_head_rows(&m->launch, s->draft_batch, false, &heads, p->key.rows);
    const cuda_attention a = {
        .q = s->a_heads,
        .out = s->a_attended,
        .ldo = w->o.ld,
        .k_norm = of->k_eq_v ? m->weights.layer[source].k_norm : NULL,
        .inverse_frequency = m->weights.inverse_frequency[type],
        .key_turns = (const float2 *)(const void *)m->weights.key_turns,
        .pairs = m->config->rope[type].rotated_pairs,
        .heads = c->heads,
        .kv_heads = of->kv_heads,
        .head_dim = of->head_dim,
        .sliding_window = window,
        .layer = source,
        .codes = cuda_kv_codes_of(p->request[0]->cache->t.layer[source].format),
        .partial = s->partial.data,
        .state = (float2 *)s->partial_state.data,
        .partitions = window ? cuda_attention_partitions(window, 1, 0) : p->key.partitions,
        .segments = p->key.segments,
        .segment_rows = 1,
    };
    cuda_attend(&m->launch, s->draft_batch, &a, p->key.rows);
    matrix_product o = {&w->o, s->a_branch, c->hidden};
    matrix_products(&m->launch, &o, 1, s->a_attended, w->o.ld, p->key.rows, 0);
}

static void feed_forward(const chain_pass *p, int layer) {
    backend_model *m = p->model;
    cuda_workspace *s = &m->space;
    const model_config *c = &config_of(m)->stack;
    const cuda_assistant *a = &m->weights.assistant;
    const cuda_layer *w = &a->layer[layer];
    const cuda_after_attention before = {.branch = s->a_branch,
                                         .post_attention_norm = w->post_attention_norm,
                                         .pre_ffn_norm = w->pre_ffn_norm,
                                         .h = s->a_h,
                                         .h_out = s->a_h,
                                         .x_dense = s->a_in,
                                         .eps = c->rms_eps,
                                         .hidden = c->hidden,
                                         .ldx = w->gate.ld};
    cuda_after_attention_rows(&m->launch, &before, &s->route, p->key.rows);
    const cuda_feed_forward f = {.gate = w->gate,
                                 .up = w->up,
                                 .down = w->down,
                                 .x_dense = s->a_in,
                                 .ldx = w->gate.ld,
                                 .act = s->a_act,
                                 .y = s->a_branch};
    matrix_gate_up(&m->launch, &f, NULL, p->key.rows);
    matrix_down(&m->launch, &f, NULL, p->key.rows);
    const cuda_after_ffn after = {.dense = s->a_branch,
                                  .post_ffn_norm = w->post_ffn_norm,
                                  .next_norm = layer + 1 < c->layers ? w[1].input_norm : a->final_norm,
                                  .layer_scalar = w->layer_scalar,
                                  .h_in = s->a_h,
                                  .h = s->a_h,
                                  .x = s->a_in,
                                  .eps = c->rms_eps,
                                  .hidden = c->hidden,
                                  .ldx = w->gate.ld};
    cuda_after_ffn_rows(&m->launch, &after, NULL, p->key.rows);
}

static cuda_excluded suppressed(const backend_model *m) {
    cuda_excluded excluded = {.n = m->config->n_suppress_tokens};
    for (int i = 0; i < excluded.n; i++) excluded.id[i] = m->config->suppress_tokens[i];
    return excluded;
}

/* The next state and the choice: products with one input. */
static void choose(const chain_pass *p, int draft) {
    backend_model *m = p->model;
    const cuda_launch *l = &m->launch;
    cuda_workspace *s = &m->space;
    const cuda_assistant *w = &m->weights.assistant;
    const cuda_excluded excluded = suppressed(m);
    int rows = p->key.rows, vocab = m->config->vocab, clusters = config_of(m)->clusters, n = 0;
    int32_t *out = s->a_drafts + (size_t)draft * (size_t)rows;
    bool screens = cuda_head_screens(&m->assistant_copy) && rows <= CUDA_DECODE_ROWS && !p->trace;
    matrix_product products[2];
    if (draft + 1 < p->key.chain || p->trace)
        products[n++] = (matrix_product){&w->post_projection, s->a_states, m->config->hidden};
    if (clusters)
        products[n++] = (matrix_product){&w->centroids, s->a_centroids, clusters};
    else if (!screens)
        products[n++] = (matrix_product){&w->head, s->logits, vocab};
    if (n) matrix_products(l, products, n, s->a_in, w->head.ld, rows, 0);
    if (clusters) {
        cuda_choose_clusters(l, &s->a_clusters, s->a_centroids, rows);
        cuda_choose_inside(l, &s->a_clusters, &w->head, &excluded, s->a_in, rows, out);
    } else if (screens) {
        cuda_screen screen = s->screen;
        screen.upper = s->logits; /* nobody reads logits of drafts */
        cuda_greedy_choice(l, &w->head, &m->assistant_copy.codes, &screen, &excluded, s->a_in, rows, 0, out);
    } else {
        cuda_argmax(l, s->logits, vocab, &excluded, rows, s->argmax_value, s->argmax_index, out);
    }
}

static void copy_to_trace(chain_pass *p, float *to, const float *from, size_t n, int draft) {
    if (!to || p->failure != cudaSuccess) return;
    p->failure =
        cudaMemcpyAsync(to + (size_t)draft * n, from, n * sizeof *to, cudaMemcpyDeviceToHost, p->model->device.stream);
}

/* ----------------------------------------------------------------------------------------------------------- block */

/* Everything that a graph can hold: what changes is read from m->space.draft_batch. */
static cudaError_t enqueue_chains(void *context) {
    chain_pass *p = context;
    backend_model *m = p->model;
    const model_config *c = &config_of(m)->stack;
    for (int type = 0; type < 2; type++)
        cuda_turns(&m->launch, m->space.draft_batch, false, m->weights.inverse_frequency[type],
                   m->config->rope[type].rotated_pairs, m->space.turns[type], p->key.rows);
    for (int draft = 0; draft < p->key.chain; draft++) {
        make_pair(p, draft);
        for (int layer = 0; layer < c->layers; layer++) {
            attention(p, layer);
            feed_forward(p, layer);
        }
        choose(p, draft);
        if (!p->trace) continue;
        copy_to_trace(p, p->trace->states, m->space.a_states, (size_t)m->config->hidden, draft);
        copy_to_trace(p, p->trace->logits, m->space.logits, (size_t)m->config->vocab, draft);
    }
    return p->failure;
}

/* Partitions of full-attention layers that hold something before the next position. */
static int partitions_of(const backend_cache *c) { return cuda_attention_partitions(0, 1, c->t.length); }

/* The largest values of a partition of all heads, of layers of a type. */
static size_t partition_floats(const backend_model *m, layer_type type) {
    int source = source_of(m, type);
    return source < 0 ? 0 : (size_t)config_of(m)->stack.heads * (size_t)m->config->layer[source].head_dim;
}

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

/* The first chain that is left, and those that fit beside it: K/V in one format, and room for flash states. */
static void gather(chain_pass *p, backend_draft_request *requests, int n, bool *taken) {
    static const size_t most_partial_bytes = (size_t)1 << 30;
    size_t floats = partition_floats(p->model, LAYER_FULL) * sizeof(float), bytes = 0;
    p->n = 0;
    for (int i = 0; i < n; i++) {
        const backend_cache *c = requests[i].cache;
        size_t own = floats * (size_t)partitions_of(c);
        if (taken[i] || (p->n && bytes + own > most_partial_bytes)) continue;
        bool alike = true;
        for (int type = 0; type < 2 && p->n; type++) {
            int source = source_of(p->model, (layer_type)type);
            if (source >= 0) alike &= p->request[0]->cache->t.layer[source].format == c->t.layer[source].format;
        }
        if (!alike) continue;
        taken[i] = true;
        bytes += own;
        p->request[p->n++] = &requests[i];
    }
}

static kakeya_status prepare(chain_pass *p, kakeya_error *error) {
    backend_model *m = p->model;
    int most = 0, all = 0, chain = 0;
    for (int i = 0; i < p->n; i++) {
        int own = partitions_of(p->request[i]->cache);
        all += own;
        if (own > most) most = own;
        if (p->request[i]->n > chain) chain = p->request[i]->n;
    }
    int full = source_of(m, LAYER_FULL);
    p->key = (graph_key){
        .rows = cuda_graph_rows(p->n),
        .segments = cuda_graph_segments(p->n),
        .segment_rows = 1,
        .partitions = cuda_graph_partitions(p->n, most),
        .codes = full < 0 ? 0 : (int)cuda_kv_codes_of(p->request[0]->cache->t.layer[full].format),
        .chain = chain,
    };
    size_t sliding = (size_t)p->key.rows * (size_t)cuda_attention_partitions(m->config->sliding_window - 1, 1, 0),
           whole = (size_t)(p->n == 1 ? p->key.partitions : all),
           cells = larger(sliding, whole) * (size_t)config_of(m)->stack.heads,
           floats = larger(sliding * partition_floats(m, LAYER_SLIDING), whole * partition_floats(m, LAYER_FULL));
    kakeya_status status = model_grow(m, &m->space.partial, floats * sizeof(float), "attention states", error);
    if (!status) status = model_grow(m, &m->space.partial_state, cells * sizeof(float2), "attention states", error);
    return status ? status : model_grow_logits(m, p->key.rows, error);
}

static void fill(const chain_pass *p, cuda_batch *batch) {
    memset(batch, 0, sizeof *batch);
    int partitions = 0;
    for (int i = 0; i < p->n; i++) {
        const backend_cache *c = p->request[i]->cache;
        batch->tokens[i] = p->request[i]->bonus;
        batch->step[i] = (cuda_step){.cache = c->view.data,
                                     .position = c->t.length - 1,
                                     .rows = 1,
                                     .first_row = i,
                                     .sink = c->t.options.sink,
                                     .window = c->t.options.window - 1,
                                     .partitions = partitions_of(c),
                                     .first_partition = partitions};
        batch->row[i] = (cuda_row){.cache = c->view.data,
                                   .position = c->t.length,
                                   .sink = c->t.options.sink,
                                   .partitions = batch->step[i].partitions,
                                   .first_partition = partitions};
        partitions += batch->step[i].partitions;
    }
    batch->rows = batch->segments = p->n;
}

static kakeya_status run(chain_pass *p, kakeya_error *error) {
    static const char doing[] = "drafting";
    backend_model *m = p->model;
    cudaStream_t stream = m->device.stream;
    kakeya_status status = prepare(p, error);
    if (status) return status;
    cuda_batch *batch = &m->space.staged[1];
    fill(p, batch);
    size_t bytes = cuda_batch_bytes(p->n > p->key.segments ? p->n : p->key.segments);
    status =
        cuda_check(cudaMemcpyAsync(m->space.draft_batch, batch, bytes, cudaMemcpyHostToDevice, stream), doing, error);
    if (!status && p->trace)
        status = cuda_check(enqueue_chains(p), doing, error);
    else if (!status)
        status = cuda_graphs_run(&m->graphs, &m->device, &p->key, enqueue_chains, p, error);
    int rows = p->key.rows;
    if (!status)
        status =
            cuda_check(cudaMemcpyAsync(m->space.staged_ids, m->space.a_drafts,
                                       (size_t)(p->key.chain * rows) * sizeof(int32_t), cudaMemcpyDeviceToHost, stream),
                       doing, error);
    kakeya_status finished = cuda_finish(&m->device, doing, status ? NULL : error);
    if (!status) status = finished;
    for (int i = 0; i < p->n && !status; i++) {
        for (int draft = 0; draft < p->request[i]->n; draft++)
            p->request[i]->drafts[draft] = m->space.staged_ids[draft * rows + i];
    }
    return status;
}

kakeya_status cuda_assistant_draft(backend_model *m, backend_draft_request *requests, int n, kakeya_error *error) {
    bool taken[BACKEND_MAX_SEGMENTS] = {false};
    chain_pass p = {.model = m};
    kakeya_status status = KAKEYA_OK;
    for (gather(&p, requests, n, taken); p.n && !status; gather(&p, requests, n, taken)) status = run(&p, error);
    if (n == 1) requests[0].status = status;
    return status;
}

static const timeline *timeline_of(const backend_cache *c) { return &c->t; }

kakeya_status cuda_assistant_chain(backend_cache *cache, int32_t bonus, int n, int32_t *drafts,
                                   const cuda_assistant_trace *trace, kakeya_error *error) {
    backend_draft_request request = {
        .cache = cache, .drafter = BACKEND_ASSISTANT, .bonus = bonus, .n = n, .drafts = drafts};
    chain_pass p = {.model = cache->model, .request = {&request}, .n = 1, .trace = trace};
    kakeya_status status = backend_check_drafts(cache->model->config, &request, 1, timeline_of, error);
    if (!status) status = cuda_device_use(&cache->model->device, error);
    if (!status) cuda_forget_logits(cache->model);
    return status ? status : run(&p, error);
}
