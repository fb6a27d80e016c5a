/* The DFlash drafter and the f_theta latents on the device; formulas as in the CPU backend's draft.c. The context follows
 * committed rows lazily: decode rows wait in the cache's backlog until a draft, a prompt or an eviction needs them. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "backend/cuda/cuda.h"
#include "backend/cuda/prompt_gemm.h"

/* Products of any number of rows that share their input. Prompt rows take the prompt kernels. */
static void products(const backend_model *m, const cuda_product *list, int n, const cuda_matrix *shape, const cuda_bf16 *x,
                     int rows, bool prompt) {
    if (!prompt) {
        cuda_products(&m->launch, list, n, shape->in, x, shape->ld, rows, 0);
        return;
    }
    for (int i = 0; i < n; i++) {
        prompt_gemm_args args = {.a = x, .lda = (size_t)shape->ld, .w = list[i].w, .ldw = (size_t)shape->ld, .out = list[i].y,
                                 .ldo = (size_t)list[i].ldy, .m = rows, .n = list[i].out, .k = shape->ld};
        (void)prompt_gemm(&args, m->device.stream); /* launch failures are found when the stream is finished */
    }
}

/* Latents of rows [first, rows): e = encoder * raw context K (V), stored; and for every restored layer and head the scalar
 * of v_norm, computed from the stored (rounded) latent that attention will read. */
static void extend_latents(backend_cache *c, int first, int rows, int position, bool prompt) {
    backend_model *m = c->model;
    const f_theta_model *f = m->options.f_theta;
    int rank = f->config.rank, n = rows - first;
    size_t all = (size_t)f->encoder_in, ld = (size_t)m->encoder_k.ld;
    for (int half = 0; half < 2; half++) {
        const cuda_matrix *encoder = half ? &m->encoder_v : &m->encoder_k;
        cuda_bf16 *in = m->latent_in + (size_t)half * (size_t)m->max_rows * ld;
        cuda_round_rows(&m->launch, m->d_raw + (size_t)first * 2 * all + (size_t)half * all, 2 * (int)all, in, encoder->ld,
                        (int)all, n);
        cuda_product e = {.w = encoder->data, .y = m->latents + (size_t)half * (size_t)rank, .out = rank, .ldy = 2 * rank};
        products(m, &e, 1, encoder, in, n, prompt);
    }
    const cuda_cache_view *view = c->view.data;
    cuda_store_latents(&m->launch, view, m->latents, rank, position + first, n, m->latent_half, m->decoder_v[0].ld);
    for (int layer = 0; layer < m->config->layers; layer++) {
        int head = c->latent.head_offset[layer];
        if (head < 0) continue;
        const gemma4_layer_config *lc = &m->config->layer[layer];
        const cuda_matrix *decoder = &m->decoder_v[layer];
        cuda_product values = {.w = decoder->data, .y = m->latent_values, .out = decoder->out, .ldy = decoder->out};
        products(m, &values, 1, decoder, m->latent_half, n, prompt);
        cuda_store_scales(&m->launch, view, m->latent_values, lc->kv_heads, lc->head_dim, head, m->config->rms_eps,
                          position + first, n);
    }
}

void cuda_draft_extend(backend_cache *c, const float *aux, int rows, int position, bool prompt) {
    backend_model *m = c->model;
    const dflash_config *d = &m->options.drafter->config;
    bool restored = c->options.attention == KAKEYA_ATTENTION_RESTORED;

    /* Rows that no ring would still hold afterwards need not be computed. */
    int needed = 0, latents = restored ? (c->latent.ring ? c->latent.capacity : rows) : 0;
    for (int l = 0; l < d->layers; l++) {
        if (c->draft[l].capacity > needed) needed = c->draft[l].capacity;
    }
    if (latents > needed) needed = latents;
    int width = d->targets * m->config->hidden, kv = d->kv_heads * d->head_dim, all = d->layers * kv;
    if (rows > needed) {
        aux += (size_t)(rows - needed) * (size_t)width;
        position += rows - needed;
        rows = needed;
        c->draft_from = position;
    }
    cuda_round_rows(&m->launch, aux, width, m->d_aux, m->fc.ld, width, rows);
    cuda_product fc = {.w = m->fc.data, .y = m->d_x, .out = d->hidden, .ldy = d->hidden};
    products(m, &fc, 1, &m->fc, m->d_aux, rows, prompt);
    cuda_norm_rows(&m->launch, m->d_x, d->hidden, m->hidden_norm, d->rms_eps, m->d_in, m->draft[0].k.ld, d->hidden, rows);
    cuda_product raw[2 * DFLASH_MAX_LAYERS];
    for (int l = 0; l < d->layers; l++) {
        float *k = m->d_raw + (size_t)(l * kv);
        raw[2 * l] = (cuda_product){.w = m->draft[l].k.data, .y = k, .out = kv, .ldy = 2 * all};
        raw[2 * l + 1] = (cuda_product){.w = m->draft[l].v.data, .y = k + all, .out = kv, .ldy = 2 * all};
    }
    products(m, raw, 2 * d->layers, &m->draft[0].k, m->d_in, rows, prompt);
    if (restored) extend_latents(c, rows > latents ? rows - latents : 0, rows, position, prompt);
    cuda_context_rows context = {
        .raw = m->d_raw, .inverse_frequency = m->draft_inverse_frequency, .layers = d->layers, .kv_heads = d->kv_heads,
        .head_dim = d->head_dim, .eps = d->rms_eps, .cache = c->view.data, .position = position, .rows = rows,
    };
    for (int l = 0; l < d->layers; l++) context.k_norm[l] = m->draft[l].k_norm;
    cuda_store_context(&m->launch, &context);
}

void cuda_draft_flush(backend_cache *c) {
    int waiting = c->length - c->draft_length;
    if (!c->options.keep_draft_context || waiting == 0) return;
    cuda_draft_extend(c, c->aux_backlog.data, waiting, c->draft_length, false);
    c->draft_length = c->length;
}

/* -------------------------------------------------------------------------------------------------- block */

static void block_layer(backend_model *m, int layer, int rows) {
    const dflash_config *d = &m->options.drafter->config;
    const cuda_draft_layer *w = &m->draft[layer];
    const cuda_launch *l = &m->launch;
    int q = d->heads * d->head_dim, kv = d->kv_heads * d->head_dim;
    cuda_product projections[3] = {{w->q.data, m->d_q, q, q}, {w->k.data, m->d_k, kv, kv}, {w->v.data, m->d_v, kv, kv}};
    cuda_products(l, projections, 3, w->q.in, m->d_in, w->q.ld, rows, 0);
    cuda_heads heads = {
        .q = m->d_q, .k = m->d_k, .v = m->d_v, .q_norm = w->q_norm, .k_norm = w->k_norm,
        .turns = m->draft_turns, .pairs = d->head_dim / 2, .heads = d->heads, .kv_heads = d->kv_heads,
        .head_dim = d->head_dim, .q_scale = 1.0f / sqrtf((float)d->head_dim), .eps = d->rms_eps, .q_out = m->d_heads,
        .chunk_k = m->d_block_k, .chunk_v = m->d_block_v, .layer = layer,
    };
    cuda_head_rows(l, m->draft_step, &heads, rows);
    bool causal = d->sliding_window[layer] && !m->options.drafter_block_bidirectional;
    cuda_attention a = {
        .q = m->d_heads, .out = m->d_attended, .ldo = w->o.ld, .chunk_k = m->d_block_k, .chunk_v = m->d_block_v, .heads = d->heads,
        .kv_heads = d->kv_heads, .head_dim = d->head_dim, .sliding_window = d->sliding_window[layer], .layer = layer,
        .drafter = 1, .causal = causal, .partial = m->partial.data,
    };
    a.partitions = cuda_attention_partitions(m->staged[1].window, rows + 1, 0);
    cuda_attend(l, m->draft_step, &a, rows);
    cuda_product out = {w->o.data, m->d_x, d->hidden, d->hidden};
    cuda_products(l, &out, 1, w->o.in, m->d_attended, w->o.ld, rows, 0);
    cuda_add_norm(l, m->d_x, NULL, 1, m->d_state, w->post_attention_norm, d->rms_eps, m->d_in, w->gate.ld, NULL, d->hidden, rows);
    cuda_feed_forward f = {.gate = w->gate, .up = w->up, .down = w->down, .x_dense = m->d_in, .ldx = w->gate.ld, .act = m->d_act,
                           .y = m->d_x, .silu = 1};
    cuda_gate_up(l, &f, NULL, rows);
    cuda_down(l, &f, NULL, rows);
    const float *next = layer + 1 < d->layers ? m->draft[layer + 1].input_norm : m->draft_norm;
    cuda_add_norm(l, m->d_x, NULL, 1, m->d_state, next, d->rms_eps, m->d_in, w->q.ld, NULL, d->hidden, rows);
}

/* The most context positions that a drafter layer attends. */
static int widest_window(const backend_cache *c) {
    int widest = 0;
    for (int l = 0; l < c->model->options.drafter->config.layers; l++) {
        if (c->draft[l].window > widest) widest = c->draft[l].window;
    }
    return widest;
}

/* Everything of a block that a graph can hold: what changes is read from m->draft_step. */
static void enqueue_block(void *context) {
    backend_model *m = context;
    const dflash_config *d = &m->options.drafter->config;
    int rows = m->staged[1].rows, n = rows - 1;
    float scale = m->options.drafter_scaled_embedding ? m->embed_scale : 1.0f;
    const int32_t *tokens = (const int32_t *)(const void *)((const char *)m->draft_step + offsetof(cuda_step, tokens));
    cuda_turns(&m->launch, m->draft_step, m->draft_inverse_frequency, d->head_dim / 2, m->draft_turns, rows);
    cuda_embed(&m->launch, m->embed.data, m->embed.ld, tokens, scale, m->d_state, m->draft[0].input_norm, d->rms_eps, m->d_in,
               m->draft[0].q.ld, d->hidden, rows);
    for (int l = 0; l < d->layers; l++) block_layer(m, l, rows);
    const cuda_bf16 *drafted = m->d_in + m->head.ld;
    cuda_excluded mask = {.n = 1, .id = {d->mask_token}}; /* the mask is never proposed */
    if (cuda_head_screens(m)) {
        cuda_head_choose(m, &mask, drafted, n, 0);
        return;
    }
    cuda_product head = {.w = m->head.data, .y = m->logits, .out = m->config->vocab, .ldy = m->config->vocab};
    cuda_products(&m->launch, &head, 1, m->head.in, drafted, m->head.ld, n, 0);
    cuda_argmax(&m->launch, m->logits, m->config->vocab, &mask, n, m->argmax_value, m->argmax_index, m->argmax);
}

kakeya_status cuda_draft(backend_cache *c, int32_t bonus, int n, int32_t *drafts, kakeya_error *error) {
    backend_model *m = c->model;
    if (!c->options.keep_draft_context) {
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "this cache keeps no drafter context");
    }
    if (n < 1 || n > BACKEND_MAX_DRAFT) {
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "cannot draft %d tokens; 1 to %d", n, BACKEND_MAX_DRAFT);
    }
    if (c->pending) return error_set(error, KAKEYA_INVALID_ARGUMENT, "cannot draft with %d pending rows", c->pending);
    if (bonus < 0 || bonus >= m->config->vocab) {
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "bonus token %d is outside the vocabulary of %d", (int)bonus,
                         m->config->vocab);
    }
    const dflash_config *d = &m->options.drafter->config;
    int window = widest_window(c);
    size_t floats = cuda_attention_partial_floats(BACKEND_MAX_DECODE_ROWS, d->heads, d->head_dim,
                                                  cuda_attention_partitions(window, BACKEND_MAX_DECODE_ROWS + 1, 0));
    kakeya_status status = cuda_device_use(&m->device, error);
    if (!status) status = model_grow(m, &m->partial, floats * sizeof(float), "attention states", error);
    if (status) return status;
    cuda_draft_flush(c);
    cuda_step *step = &m->staged[1];
    *step = (cuda_step){.cache = c->view.data, .position = c->length, .rows = n + 1, .window = window, .draft_from = c->draft_from};
    for (int i = 0; i <= n; i++) step->tokens[i] = i == 0 ? bonus : d->mask_token;
    status = cuda_check(cudaMemcpyAsync(m->draft_step, step, sizeof *step, cudaMemcpyHostToDevice, m->device.stream),
                        "drafting a block", error);
    if (status) return status;
    graph_key key = {.rows = n + 1, .draft_window = window};
    status = forward_run_graph(m, &key, enqueue_block, m, error);
    if (status) return status;
    status = cuda_check(cudaMemcpyAsync(m->staged_ids, m->argmax, (size_t)n * sizeof(int32_t), cudaMemcpyDeviceToHost, m->device.stream),
                        "drafting a block", error);
    if (!status) status = cuda_finish(&m->device, "drafting a block", error);
    if (!status) memcpy(drafts, m->staged_ids, (size_t)n * sizeof *drafts);
    return status;
}
