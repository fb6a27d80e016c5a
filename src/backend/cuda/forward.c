/* One forward: the decoder layers over the rows of a segment (order of operations: transformers 5.17,
 * Gemma4TextDecoderLayer). Segments of several caches run one after the other. Decode rows take the kernels whose bits do
 * not depend on the number of rows, captured once per shape in a graph; prompt rows always take the prompt kernels. */
#include <limits.h>
#include <stddef.h>
#include <string.h>

#include "backend/cuda/cuda.h"
#include "backend/cuda/profile.h"
#include "backend/cuda/prompt_attention.h"
#include "backend/cuda/prompt_gemm.h"
#include "backend/segments.h"

enum { LEAST_PARTITIONS = 8 };

typedef struct pass {
    backend_model *model;
    backend_cache *cache;
    const cuda_launch *launch;
    int rows;
    bool prompt;
    int position;
    graph_key key;
    const int32_t *tokens; /* device */
    float *hidden_states;  /* host, or NULL */
    int restored_layers;   /* layers whose evicted positions have been asked for */
    int attended_layers;   /* of those, layers that have used them */
    int next_restored;     /* first layer that may come after them */
    bool restore_turns[2]; /* by gemma4_layer_type: layers whose keys are turned where they are decoded */
    bool chained;          /* restored layers are decoded between the kernels of the step, not beside them */
    int held_source;       /* chained: layer whose positions the restore buffers hold; -1: none */
    cudaError_t failure;   /* of prompt kernels and copies */
} pass;

static void note(pass *p, cudaError_t status) {
    if (p->failure == cudaSuccess) p->failure = status;
}

/* ---------------------------------------------------------------------------------------------- products */

typedef struct product {
    const cuda_matrix *w;
    float *y;
} product;

/* Tells a profiler of products that follow: weights are read once. */
static void part_of_products(const pass *p, const char *part, const product *products, int n) {
    double elements = 0;
    for (int i = 0; i < n; i++) elements += (double)products[i].w->out * products[i].w->in;
    cuda_profile_part(p->launch, part, elements * sizeof(cuda_bf16), 2 * elements * p->rows);
}

/* Products that share the input x [rows][w->ld]. */
static void run_products(pass *p, const product *products, int n, const cuda_bf16 *x) {
    if (p->prompt) {
        for (int i = 0; i < n; i++) {
            const cuda_matrix *w = products[i].w;
            prompt_gemm_args args = {.a = x, .lda = (size_t)w->ld, .w = w->data, .ldw = (size_t)w->ld, .out = products[i].y,
                                     .ldo = (size_t)w->out, .m = p->rows, .n = w->out, .k = w->ld};
            note(p, prompt_gemm(&args, p->launch->stream));
        }
        return;
    }
    cuda_product list[CUDA_MAX_PRODUCTS];
    for (int i = 0; i < n; i++) {
        const cuda_matrix *w = products[i].w;
        list[i] = (cuda_product){.w = w->data, .y = products[i].y, .out = w->out, .ldy = w->out};
    }
    cuda_products(p->launch, list, n, products[0].w->in, x, products[0].w->ld, p->rows, 0);
}

/* --------------------------------------------------------------------------------------------- attention */

static bool stays_in_chunk(const pass *p, int source) {
    return p->prompt && p->cache->layer[source].kind == STORE_RING;
}

/* Set `half` of the two sets of restore buffers. */
static cuda_bf16 *restored_set(const cuda_buffer *buffer, int half) {
    size_t set = buffer->bytes / 2 / 256 * 256;
    return (cuda_bf16 *)(void *)((char *)buffer->data + (size_t)half * set);
}

static cuda_restore restore_of(const backend_model *m, int layer) {
    const gemma4_layer_config *lc = &m->config->layer[layer];
    int type = (int)lc->type;
    return (cuda_restore){
        .decoder_k = &m->decoder_k[layer], .decoder_v = &m->decoder_v[layer], .k_norm = m->layer[layer].k_norm,
        .inverse_frequency = m->inverse_frequency[type], .pairs = m->config->rope[type].rotated_pairs,
        .kv_heads = lc->kv_heads, .head_dim = lc->head_dim, .rank = m->options.f_theta->config.rank, .layer = layer,
        .full = lc->type == GEMMA4_FULL, .eps = m->config->rms_eps, .turns = m->restore_turns[type].data,
    };
}

/* Where evicted positions are decoded: beside the step, but with a profiler in its stream, each kernel alone. */
static cuda_launch restore_launch(const pass *p) {
    const cuda_launch *step = p->launch;
    return (cuda_launch){.stream = step->profiler ? step->stream : p->model->restore_stream,
                         .multiprocessors = step->multiprocessors, .profiler = step->profiler};
}

/* Positions of one layer of the latent ring that the step can see, at most. */
static int restored_positions(const pass *p) {
    int sliding = p->model->config->sliding_window, window = p->cache->options.window;
    return p->prompt ? sliding : (window < sliding ? sliding - window : 0) + p->rows;
}

static void restore_layer(pass *p, int source, int set, const cuda_launch *l) {
    backend_model *m = p->model;
    cuda_restore r = restore_of(m, source);
    r.k = restored_set(&m->restored_k, set);
    r.v = restored_set(&m->restored_v, set);
    const latent_store *latent = &p->cache->latent;
    if (latent->ring && prompt_gemm_restores(&r)) {
        int positions = restored_positions(p);
        double elements = 2.0 * r.decoder_k->out * r.rank;
        cuda_profile_part(l, "decode latents", sizeof(cuda_bf16) * (elements + 2.0 * positions * r.rank), 2 * elements * positions);
        cuda_profile_begin(l, NULL);
        note(p, prompt_gemm_restore(l, m->step, &r, latent->codes.data, latent->capacity, positions, p->chained));
        cuda_profile_end(l);
        return;
    }
    if (latent->ring) {
        const cuda_matrix *decoders[2] = {r.decoder_k, r.decoder_v};
        float *raw[2] = {m->raw_k.data, m->raw_v.data};
        for (int half = 0; half < 2; half++) {
            /* All slots of the ring, in their order: positions are found behind the product. */
            prompt_gemm_args args = {.a = (const cuda_bf16 *)latent->codes.data + (size_t)half * (size_t)r.rank,
                                     .lda = 2 * (size_t)r.rank, .w = decoders[half]->data, .ldw = (size_t)decoders[half]->ld,
                                     .out = raw[half], .ldo = (size_t)decoders[half]->out,
                                     .m = latent->capacity, .n = decoders[half]->out, .k = r.rank};
            double elements = (double)args.n * args.k;
            cuda_profile_part(l, "decode latents", sizeof(cuda_bf16) * (elements + (double)args.m * args.k), 2 * elements * args.m);
            cuda_profile_begin(l, NULL);
            note(p, prompt_gemm(&args, l->stream));
            cuda_profile_end(l);
        }
        cuda_profile_part(l, "restored K/V", 0, 0);
        cuda_finish_restored(l, m->step, &r, raw[0], raw[1], latent->capacity);
        return;
    }
    const gemma4_layer_config *lc = &m->config->layer[source];
    int positions = lc->type == GEMMA4_FULL ? p->key.restored : m->config->sliding_window;
    if (positions > p->key.restored) positions = p->key.restored;
    cuda_profile_part(l, "restored K/V", 0, 0);
    cuda_restore_rows(l, m->step, &r, positions);
}

/* Asks for the next layer that restores, into the buffers that the layer before the last one has left. Layers whose K/V are
 * shared come again with their own queries: then the same positions are decoded again. */
static void restore_next(pass *p) {
    backend_model *m = p->model;
    while (p->next_restored < m->config->layers &&
           !cuda_cache_restores_layer(p->cache, m->config->layer[p->next_restored].kv_source))
        p->next_restored++;
    if (p->next_restored == m->config->layers) return;
    int set = p->restored_layers++ % 2;
    cuda_launch side = restore_launch(p);
    restore_layer(p, m->config->layer[p->next_restored++].kv_source, set, &side);
    note(p, cudaEventRecord(m->restored[set], m->restore_stream));
}

/* Behind the norms that end `layer` (-1: behind the embedding): decodes what the next layer that restores will attend. It begins while
 * the layer's last products and norms leave multiprocessors idle. The buffers' last readers are long done, as a product lies
 * between, and so will be the decoding when it is read. */
static void restore_in_chain(pass *p, int layer) {
    backend_model *m = p->model;
    int next = layer + 1;
    while (next < m->config->layers && !cuda_cache_restores_layer(p->cache, m->config->layer[next].kv_source)) next++;
    if (next == m->config->layers || m->config->layer[next].kv_source == p->held_source) return;
    cuda_launch launch = *p->launch;
    if (layer < 0) launch.programmatic = 0; /* the turns that it reads have just been made */
    p->held_source = m->config->layer[next].kv_source;
    restore_layer(p, p->held_source, 0, &launch);
}

static void start_restoring(pass *p) {
    backend_model *m = p->model;
    cuda_launch side = p->chained ? *p->launch : restore_launch(p);
    if (!p->chained) {
        note(p, cudaEventRecord(m->restore_start, p->launch->stream));
        note(p, cudaStreamWaitEvent(m->restore_stream, m->restore_start, 0));
    }
    cuda_profile_part(&side, "restored K/V", 0, 0);
    for (int type = 0; type < 2; type++) {
        if (!p->restore_turns[type]) continue;
        cuda_restore_turns(&side, m->step, m->inverse_frequency[type], m->config->rope[type].rotated_pairs, type == GEMMA4_FULL,
                           p->cache->latent.capacity, m->restore_turns[type].data);
    }
    p->held_source = -1;
    if (p->chained) restore_in_chain(p, -1);
    else restore_next(p);
}

static void prompt_attend(pass *p, int layer, int source) {
    backend_model *m = p->model;
    const gemma4_layer_config *lc = &m->config->layer[layer];
    const layer_store *s = &p->cache->layer[source];
    size_t row = (size_t)(m->config->heads * lc->head_dim);
    prompt_attention_args args = {
        .q = m->q_heads, .q_stride = row, .rows = p->rows, .first_position = p->position, .heads = m->config->heads,
        .kv_heads = lc->kv_heads, .head_dim = lc->head_dim, .window = lc->type == GEMMA4_SLIDING ? m->config->sliding_window : 0,
        .out = m->attended, .out_stride = (size_t)m->layer[layer].o.ld,
    };
    if (s->kind == STORE_RING) {
        args.keys = (prompt_keys){.chunk_begin = p->position, .chunk_k = s->has_k ? m->chunk_k : NULL, .chunk_v = m->chunk_v,
                                  .ring_capacity = s->capacity, .ring_k = s->k.data, .ring_v = s->v.data};
    } else {
        args.keys = (prompt_keys){.chunk_begin = 0, .chunk_k = (const cuda_bf16 *)(uintptr_t)s->pages_k.address,
                                  .chunk_v = (const cuda_bf16 *)(uintptr_t)s->pages_v.address};
    }
    if (s->has_k) {
        note(p, prompt_attention(&args, p->launch->stream));
        return;
    }
    args.keys.k_norm = m->layer[source].k_norm;
    args.keys.cosine = m->cosine.data;
    args.keys.sine = m->sine.data;
    args.keys.rope_pairs = m->config->rope[lc->type].rotated_pairs;
    args.k_scratch = m->derived_k;
    args.m = m->attend_top;
    args.l = m->attend_sum;
    args.out = m->q; /* the raw projections are used up */
    args.out_is_f32 = 1;
    args.out_stride = row;
    note(p, prompt_attention(&args, p->launch->stream));
    cuda_round_rows(p->launch, m->q, (int)row, m->attended, m->layer[layer].o.ld, (int)row, p->rows);
}

/* The tensor-core kernel knows exact keys and the head dimensions of the published models. */
static bool takes_prompt_attention(const pass *p, int layer) {
    enum { LEAST_HEAD_DIM = 64, MOST_GROUPED = 16 };
    const gemma4_layer_config *lc = &p->model->config->layer[layer];
    return p->cache->options.attention == KAKEYA_ATTENTION_NATIVE && lc->head_dim >= LEAST_HEAD_DIM &&
           p->model->config->heads / lc->kv_heads <= MOST_GROUPED;
}

/* Tells a profiler of the attention of one decode row: the K/V that it sees, read once. */
static void part_of_attention(const pass *p, int layer, bool restored) {
    const gemma4_layer_config *lc = &p->model->config->layer[layer];
    const backend_cache *c = p->cache;
    bool sliding = lc->type == GEMMA4_SLIDING;
    double row = (double)lc->kv_heads * lc->head_dim, copies = p->cache->layer[lc->kv_source].has_k ? 2 : 1;
    int visible = p->position + 1;
    if (sliding && visible > p->model->config->sliding_window) visible = p->model->config->sliding_window;
    int exact = visible, bounded = c->options.sink + c->options.window;
    if (cuda_cache_bounds_layer(c, lc->kv_source) && bounded < visible) exact = bounded;
    double elements = row * (copies * exact + (restored ? 2.0 * (visible - exact) : 0));
    cuda_profile_part(p->launch, sliding ? "attention, sliding" : "attention, full", elements * sizeof(cuda_bf16),
                      4.0 * p->model->config->heads * lc->head_dim * visible * p->rows);
}

static void run_attention(pass *p, int layer) {
    backend_model *m = p->model;
    const gemma4_config *c = m->config;
    const gemma4_layer_config *lc = &c->layer[layer];
    const cuda_layer *w = &m->layer[layer];
    int source = lc->kv_source, type = (int)lc->type;
    bool own = source == layer, chunk = stays_in_chunk(p, source);

    product projections[3] = {{&w->q, m->q}, {&w->k, m->k}, {&w->v, m->v}};
    int n_projections = !own ? 1 : lc->k_eq_v ? 2 : 3;
    part_of_products(p, type == GEMMA4_FULL ? "q/k/v, full" : "q/k/v, sliding", projections, n_projections);
    run_products(p, projections, n_projections, m->x);
    cuda_heads heads = {
        .q = m->q, .k = own ? m->k : NULL, .v = own && !lc->k_eq_v ? m->v : NULL, .q_norm = w->q_norm, .k_norm = w->k_norm,
        .turns = m->turns[type], .pairs = c->rope[type].rotated_pairs, .heads = c->heads,
        .kv_heads = lc->kv_heads, .head_dim = lc->head_dim, .norm_v = 1, .q_scale = 1, .eps = c->rms_eps,
        .q_out = m->q_heads, .chunk_k = chunk ? m->chunk_k : NULL, .chunk_v = chunk ? m->chunk_v : NULL, .layer = layer,
    };
    bool restored = p->key.restored && cuda_cache_restores_layer(p->cache, source);
    int set = p->chained ? 0 : p->attended_layers % 2;
    if (restored && !p->chained) { /* this layer's positions must be there; the next one's are decoded while it attends */
        note(p, cudaEventRecord(m->projected, p->launch->stream));
        note(p, cudaStreamWaitEvent(m->restore_stream, m->projected, 0));
        restore_next(p);
        note(p, cudaStreamWaitEvent(p->launch->stream, m->restored[set], 0));
    }
    cuda_profile_part(p->launch, "head norms, RoPE, store", 0, 0);
    cuda_head_rows(p->launch, m->step, &heads, p->rows);
    bool fast = p->prompt && takes_prompt_attention(p, layer);
    if (fast) {
        prompt_attend(p, layer, source);
    } else {
        cuda_attention a = {
            .q = m->q_heads, .out = m->attended, .ldo = w->o.ld, .chunk_k = chunk ? m->chunk_k : NULL,
            .chunk_v = chunk ? m->chunk_v : NULL, .restored_k = restored ? restored_set(&m->restored_k, set) : NULL,
            .restored_v = restored ? restored_set(&m->restored_v, set) : NULL, .k_norm = lc->k_eq_v ? m->layer[source].k_norm : NULL,
            .inverse_frequency = m->inverse_frequency[type], .key_turns = (const float2 *)(const void *)m->key_turns,
            .pairs = c->rope[type].rotated_pairs, .heads = c->heads, .kv_heads = lc->kv_heads, .head_dim = lc->head_dim,
            .sliding_window = lc->type == GEMMA4_SLIDING ? c->sliding_window : 0, .layer = source,
            .partial = m->partial.data, .final = p->prompt,
        };
        a.partitions = p->prompt ? 1 : lc->type == GEMMA4_FULL ? p->key.partitions
                                                               : cuda_attention_partitions(c->sliding_window, p->rows, 0);
        if (restored && !p->prompt && !a.sliding_window) {
            a.partitions *= 2;
        } else if (restored && !p->prompt) {
            const backend_cache_options *o = &p->cache->options;
            a.restored_partitions = cuda_attention_restored_partitions(a.sliding_window, o->window, p->rows);
            a.partitions = a.restored_partitions + cuda_attention_exact_partitions(a.sliding_window, o->sink, o->window, p->rows);
        }
        part_of_attention(p, layer, restored);
        cuda_attend(p->launch, m->step, &a, p->rows);
    }
    p->attended_layers += restored;
    /* The ring's new rows are written after its last reader: a layer that shares this K/V may follow. They survive in the one
     * chunk buffer until then: the shared sliding layer is the last one with K/V of its own, full-attention layers do not use it. */
    if (own && chunk) {
        int last_reader = layer;
        for (int i = layer + 1; i < c->layers; i++) {
            if (c->layer[i].kv_source == layer) last_reader = i;
        }
        if (last_reader == layer) cuda_store_chunk(p->launch, m->step, m->chunk_k, m->chunk_v, p->cache->layer[layer].kv_dim, layer, p->rows);
    }
    product out = {&w->o, m->branch};
    part_of_products(p, type == GEMMA4_FULL ? "o, full" : "o, sliding", &out, 1);
    run_products(p, &out, 1, m->attended);
}

/* ------------------------------------------------------------------------------------------ feed forward */

/* The first of the drafter's targets from `first` on that is this layer's output; -1: none is, or nobody wants it. */
static int next_target(const pass *p, int layer, int first) {
    if (!p->key.aux) return -1;
    const dflash_config *d = &p->model->options.drafter->config;
    for (int t = first; t < d->targets; t++) {
        if (d->target_layer[t] == layer) return t;
    }
    return -1;
}

static void prompt_feed_forward(pass *p, int layer) {
    backend_model *m = p->model;
    const cuda_layer *w = &m->layer[layer];
    size_t ld = (size_t)w->gate.ld;
    prompt_gemm_args gate = {.a = m->x, .lda = ld, .w = w->gate.data, .w_up = w->up.data, .ldw = ld, .out = m->act,
                             .ldo = (size_t)w->down.ld, .m = p->rows, .n = w->gate.out, .k = w->gate.ld,
                             .output = PROMPT_GEMM_GELU_BF16};
    prompt_gemm_args down = {.a = m->act, .lda = (size_t)w->down.ld, .w = w->down.data, .ldw = (size_t)w->down.ld,
                             .out = m->branch, .ldo = (size_t)w->down.out, .m = p->rows, .n = w->down.out, .k = w->down.ld};
    note(p, prompt_gemm(&gate, p->launch->stream));
    note(p, prompt_gemm(&down, p->launch->stream));
    if (!m->config->moe) return;
    int slots = p->rows * m->route.rank, width = m->config->expert_intermediate;
    prompt_gemm_grouped_args experts = {
        .product = {.a = m->x_experts, .lda = ld, .w = w->experts_gate_up.data, .w_up = w->experts_gate_up.data + (size_t)width * ld,
                    .ldw = ld, .out = m->act_experts, .ldo = (size_t)w->experts_down.ld, .m = slots, .n = width,
                    .k = (int)ld, .output = PROMPT_GEMM_GELU_BF16},
        .expert_begin = m->route.begin, .rows = m->route.slot_row, .expert_stride = 2 * (size_t)width * ld,
        .experts = m->route.experts,
    };
    note(p, prompt_gemm_grouped(&experts, p->launch->stream));
    size_t ld_down = (size_t)w->experts_down.ld;
    experts.product = (prompt_gemm_args){.a = m->act_experts, .lda = ld_down, .w = w->experts_down.data, .ldw = ld_down,
                                         .out = m->experts_out, .ldo = (size_t)m->config->hidden, .m = slots,
                                         .n = m->config->hidden, .k = (int)ld_down};
    experts.rows = NULL;
    experts.expert_stride = (size_t)m->config->hidden * ld_down;
    note(p, prompt_gemm_grouped(&experts, p->launch->stream));
}

/* Tells a profiler of one decode row's half of the feed-forward block: the dense weights and those of the chosen experts. */
static void part_of_feed_forward(const pass *p, const char *part, const cuda_matrix *dense, const cuda_matrix *more,
                                 const cuda_matrix *experts) {
    const gemma4_config *c = p->model->config;
    double elements = (double)dense->out * dense->in + (more ? (double)more->out * more->in : 0);
    if (c->moe) elements += (double)experts->out * experts->in * c->experts_per_token / c->experts;
    cuda_profile_part(p->launch, part, elements * sizeof(cuda_bf16), 2 * elements * p->rows);
}

static void run_feed_forward(pass *p, int layer) {
    backend_model *m = p->model;
    const gemma4_config *c = m->config;
    const cuda_layer *w = &m->layer[layer];
    cuda_router_weights router = {.w = w->router.data, .expert_scale = w->router_expert_scale, .ld = w->router.ld};
    bool routed = c->moe && !p->prompt;
    float *h = routed ? m->x_router : m->h; /* between attention and the feed-forward block */
    cuda_after_attention before = {
        .branch = m->branch, .post_attention_norm = w->post_attention_norm, .pre_ffn_norm = w->pre_ffn_norm,
        .pre_ffn_norm_2 = w->pre_ffn_norm_2, .router_scale = w->router_scale, .h = m->h, .h_out = h, .x_dense = m->x,
        .x_experts = c->moe ? m->x_experts : NULL, .x_router = m->x_router, .eps = c->rms_eps, .hidden = c->hidden, .ldx = w->q.ld,
    };
    if (routed) before.router = router;
    part_of_products(p, "norms after attention", &(product){&w->router, NULL}, routed ? 1 : 0);
    cuda_after_attention_rows(p->launch, &before, &m->route, p->rows);
    if (p->prompt) {
        if (c->moe) cuda_router(p->launch, &m->route, &router, m->x_router, c->hidden, p->rows);
        prompt_feed_forward(p, layer);
    } else {
        cuda_feed_forward f = {
            .gate = w->gate, .up = w->up, .down = w->down, .experts_gate_up = w->experts_gate_up, .experts_down = w->experts_down,
            .expert_intermediate = c->expert_intermediate, .x_dense = m->x, .x_experts = m->x_experts, .ldx = w->gate.ld,
            .act = m->act, .act_experts = m->act_experts, .y = m->branch, .y_experts = m->experts_out,
        };
        part_of_feed_forward(p, "gate/up", &w->gate, &w->up, &w->experts_gate_up);
        cuda_gate_up(p->launch, &f, &m->route, p->rows);
        part_of_feed_forward(p, "down", &w->down, NULL, &w->experts_down);
        cuda_down(p->launch, &f, &m->route, p->rows);
    }
    bool last = layer + 1 == c->layers;
    cuda_after_ffn after = {
        .dense = m->branch, .experts = c->moe ? m->experts_out : NULL, .post_ffn_norm_1 = w->post_ffn_norm_1,
        .post_ffn_norm_2 = w->post_ffn_norm_2, .post_ffn_norm = w->post_ffn_norm,
        .next_norm = c->ple_width ? NULL : last ? m->final_norm : m->layer[layer + 1].input_norm,
        .layer_scalar = c->ple_width ? 1.0f : w->layer_scalar, .h_in = h, .h = m->h, .x = m->x,
        .normed = last && !c->ple_width ? m->normed : NULL, .eps = c->rms_eps, .hidden = c->hidden, .ldx = w->q.ld,
    };
    int target = c->ple_width ? -1 : next_target(p, layer, 0);
    if (target >= 0) {
        after.step = m->step;
        after.aux = p->prompt ? m->aux : NULL;
        after.aux_width = m->options.drafter->config.targets * c->hidden;
        after.aux_column = target * c->hidden;
    }
    cuda_profile_part(p->launch, "norms after feed-forward", 0, 0);
    cuda_after_ffn_rows(p->launch, &after, &m->route, p->rows);
}

/* ------------------------------------------------------------------------------------- per-layer embeddings */

static void run_ple_inputs(pass *p) {
    backend_model *m = p->model;
    const gemma4_config *c = m->config;
    cuda_round_rows(p->launch, m->h, c->hidden, m->x_head, m->ple_model_proj.ld, c->hidden, p->rows);
    product inputs = {&m->ple_model_proj, m->ple};
    part_of_products(p, "per-layer inputs", &inputs, 1);
    run_products(p, &inputs, 1, m->x_head);
    cuda_ple_inputs(p->launch, m->ple, m->ple_embed.data, m->ple_embed.ld, p->tokens, m->ple_proj_norm, c->rms_eps, c->layers,
                    c->ple_width, c->hidden, p->rows);
}

static void run_ple(pass *p, int layer) {
    backend_model *m = p->model;
    const gemma4_config *c = m->config;
    const cuda_layer *w = &m->layer[layer];
    bool last = layer + 1 == c->layers;
    product gate = {&w->ple_gate, m->ple_gate}, out = {&w->ple_proj, m->branch};
    part_of_products(p, "per-layer gate", &gate, 1);
    run_products(p, &gate, 1, m->x);
    cuda_ple_gate(p->launch, m->ple_gate, m->ple, layer, c->layers, c->ple_width, m->act, w->ple_proj.ld, p->rows);
    part_of_products(p, "per-layer projection", &out, 1);
    run_products(p, &out, 1, m->act);
    cuda_add_norm(p->launch, m->branch, w->post_ple_norm, w->layer_scalar, m->h, last ? m->final_norm : m->layer[layer + 1].input_norm,
                  c->rms_eps, m->x, w->q.ld, last ? m->normed : NULL, c->hidden, p->rows);
}

/* -------------------------------------------------------------------------------------------------- layers */

static void copy_hidden(pass *p, int index, const float *from) {
    if (!p->hidden_states) return;
    size_t count = (size_t)p->rows * (size_t)p->model->config->hidden;
    note(p, cudaMemcpyAsync(p->hidden_states + (size_t)index * count, from, count * sizeof(float), cudaMemcpyDeviceToHost,
                            p->launch->stream));
}

/* Outputs of the drafter's target layers: prompt rows into the model's buffer, decode rows behind the cache's backlog. The first
 * is the feed-forward block's own where that ends the layer. */
static void copy_aux(pass *p, int layer) {
    backend_model *m = p->model;
    int hidden = m->config->hidden, t = next_target(p, layer, 0);
    if (t >= 0 && !m->config->ple_width) t = next_target(p, layer, t + 1);
    for (; t >= 0; t = next_target(p, layer, t + 1))
        cuda_copy_aux(p->launch, m->step, m->h, p->prompt ? m->aux : NULL, m->options.drafter->config.targets * hidden, t * hidden,
                      hidden, p->rows);
}

static void run_layers(pass *p) {
    backend_model *m = p->model;
    const gemma4_config *c = m->config;
    cuda_profile_part(p->launch, "embedding", 0, 0);
    for (int type = 0; type < 2; type++)
        cuda_turns(p->launch, m->step, m->inverse_frequency[type], c->rope[type].rotated_pairs, m->turns[type], p->rows);
    cuda_embed(p->launch, m->embed.data, m->embed.ld, p->tokens, m->embed_scale, m->h, m->layer[0].input_norm, c->rms_eps, m->x,
               m->layer[0].q.ld, c->hidden, p->rows);
    copy_hidden(p, 0, m->h);
    p->restored_layers = p->attended_layers = p->next_restored = 0;
    if (p->key.restored) start_restoring(p);
    if (c->ple_width) run_ple_inputs(p);
    for (int i = 0; i < c->layers; i++) {
        run_attention(p, i);
        run_feed_forward(p, i);
        if (c->ple_width) run_ple(p, i);
        copy_aux(p, i);
        if (p->chained) restore_in_chain(p, i);
        if (i + 1 < c->layers) copy_hidden(p, i + 1, m->h);
    }
    copy_hidden(p, c->layers, m->normed);
    /* K/V that later layers shared: nobody reads the chunk any more. */
    for (int i = 0; i < c->layers; i++) {
        if (c->layer[i].kv_source != i || !stays_in_chunk(p, i)) continue;
        bool shared = false;
        for (int j = i + 1; j < c->layers; j++) shared |= c->layer[j].kv_source == i;
        if (shared) cuda_store_chunk(p->launch, m->step, m->chunk_k, m->chunk_v, p->cache->layer[i].kv_dim, i, p->rows);
    }
}

/* Logits of rows [first, first + rows), at most BACKEND_MAX_DECODE_ROWS, and their argmax; or that alone. */
static void run_head(pass *p, int first, int rows) {
    backend_model *m = p->model;
    const gemma4_config *c = m->config;
    const cuda_bf16 *x = m->x + (size_t)first * (size_t)m->head.ld;
    cuda_excluded excluded = {.n = c->n_suppress_tokens};
    for (int i = 0; i < excluded.n; i++) excluded.id[i] = c->suppress_tokens[i];
    if (p->key.greedy) {
        cuda_head_choose(m, &excluded, x, rows, c->logit_softcap);
        return;
    }
    cuda_product head = {.w = m->head.data, .y = m->logits, .out = c->vocab, .ldy = c->vocab};
    part_of_products(p, "head", &(product){&m->head, m->logits}, 1);
    cuda_products(p->launch, &head, 1, m->head.in, x, m->head.ld, rows, c->logit_softcap);
    cuda_argmax(p->launch, m->logits, c->vocab, &excluded, rows, m->argmax_value, m->argmax_index, m->argmax);
    if (p->key.leaders)
        cuda_find_leaders(p->launch, m->step, m->logits, c->vocab, m->argmax, &excluded, m->leader_scratch, m->leaders, rows);
}

/* -------------------------------------------------------------------------------------------------- graphs */

void forward_drop_graphs(backend_model *m) {
    for (int i = 0; i < m->n_graphs; i++) (void)cudaGraphExecDestroy(m->graphs[i].exec);
    m->n_graphs = 0;
}

static kakeya_status capture(backend_model *m, const graph_key *key, void (*enqueue)(void *), void *context, cuda_graph *out,
                             kakeya_error *error) {
    cudaGraph_t graph = NULL;
    cudaError_t status = cudaStreamBeginCapture(m->device.stream, cudaStreamCaptureModeThreadLocal);
    if (status == cudaSuccess) {
        enqueue(context);
        cudaError_t launched = cudaGetLastError();
        status = cudaStreamEndCapture(m->device.stream, &graph);
        if (status == cudaSuccess) status = launched;
    }
    if (status == cudaSuccess) status = cudaGraphInstantiate(&out->exec, graph, 0);
    if (graph) (void)cudaGraphDestroy(graph);
    out->key = *key;
    return cuda_check(status, "capturing a step", error);
}

static bool same_key(const graph_key *a, const graph_key *b) {
    return a->rows == b->rows && a->partitions == b->partitions && a->restored == b->restored && a->aux == b->aux &&
           a->latents == b->latents && a->sink == b->sink && a->window == b->window && a->restore_all == b->restore_all &&
           a->leaders == b->leaders && a->greedy == b->greedy && a->draft_window == b->draft_window;
}

kakeya_status forward_run_graph(backend_model *m, const graph_key *key, void (*enqueue)(void *), void *context,
                                kakeya_error *error) {
    for (int i = 0; i < m->n_graphs; i++) {
        if (same_key(&m->graphs[i].key, key))
            return cuda_check(cudaGraphLaunch(m->graphs[i].exec, m->device.stream), "launching a step", error);
    }
    if (m->n_graphs == CUDA_MAX_GRAPHS) forward_drop_graphs(m);
    kakeya_status status = capture(m, key, enqueue, context, &m->graphs[m->n_graphs], error);
    if (status) return status;
    return cuda_check(cudaGraphLaunch(m->graphs[m->n_graphs++].exec, m->device.stream), "launching a step", error);
}

static void enqueue_decode(void *context) {
    pass *p = context;
    run_layers(p);
    run_head(p, 0, p->rows);
}

/* -------------------------------------------------------------------------------------------------- driver */

static int power_of_two(int least, int n) {
    while (least < n) least *= 2;
    return least;
}

/* RoPE tables of K = V layers, for a prompt that ends at `end`. */
static kakeya_status prepare_rope_tables(pass *p, int end, kakeya_error *error) {
    enum { LEAST_POSITIONS = 4096 };
    backend_model *m = p->model;
    if (!m->derived_k || m->rope_positions >= end) return KAKEYA_OK;
    int positions = power_of_two(LEAST_POSITIONS, end), pairs = m->config->rope[GEMMA4_FULL].rotated_pairs;
    size_t table = (size_t)positions * (size_t)pairs * sizeof(float);
    m->rope_positions = 0;
    kakeya_status status = model_grow(m, &m->cosine, table, "RoPE tables", error);
    if (!status) status = model_grow(m, &m->sine, table, "RoPE tables", error);
    if (status) return status;
    cuda_rope_tables(p->launch, m->inverse_frequency[GEMMA4_FULL], pairs, 0, positions, m->cosine.data, m->sine.data);
    m->rope_positions = positions;
    return KAKEYA_OK;
}

/* What layers whose latents lie in a ring need, and how they are decoded; `row`: bytes of the widest K (or V) row. */
static kakeya_status grow_restore_buffers(pass *p, size_t row, kakeya_error *error) {
    backend_model *m = p->model;
    const backend_cache *c = p->cache;
    kakeya_status status = KAKEYA_OK;
    p->chained = !p->prompt;
    for (int i = 0; i < m->config->layers && !status; i++) {
        if (!cuda_cache_restores_layer(c, i) || m->config->layer[i].kv_source != i) continue;
        cuda_restore r = restore_of(m, i);
        if (prompt_gemm_restores(&r)) {
            status = model_grow(m, &m->restore_turns[r.full], (size_t)c->latent.capacity * (size_t)r.pairs * sizeof(float2),
                                "turns of evicted positions", error);
            p->restore_turns[r.full] = true;
            continue;
        }
        p->chained = false;
        size_t raw = (size_t)c->latent.capacity * row / sizeof(cuda_bf16) * sizeof(float);
        status = model_grow(m, &m->raw_k, raw, "decoded latents", error);
        if (!status) status = model_grow(m, &m->raw_v, raw, "decoded latents", error);
    }
    return status;
}

/* Buffers that depend on the context, and the shape that graphs are keyed by. */
static kakeya_status prepare_pass(pass *p, kakeya_error *error) {
    backend_model *m = p->model;
    const backend_cache *c = p->cache;
    const gemma4_config *config = m->config;
    bool decode = !p->prompt, restored = c->options.attention == KAKEYA_ATTENTION_RESTORED;
    bool restore_all = restored && c->options.restore_layers == KAKEYA_RESTORE_ALL;
    int end = p->position + p->rows;
    p->key = (graph_key){.rows = p->rows, .aux = c->options.keep_draft_context, .restore_all = restore_all};
    p->key.partitions = power_of_two(LEAST_PARTITIONS, cuda_attention_partitions(0, p->rows, end));
    if (restored) {
        p->key.restored = config->sliding_window;
        if (restore_all) p->key.restored = power_of_two(config->sliding_window, end);
        p->key.latents = c->latent.codes.data;
        p->key.sink = c->options.sink;
        p->key.window = c->options.window;
    }
    size_t partial = 0, row = 0;
    for (int i = 0; i < config->layers; i++) {
        const gemma4_layer_config *lc = &config->layer[i];
        int partitions = lc->type == GEMMA4_FULL ? p->key.partitions
                                                 : cuda_attention_partitions(config->sliding_window, BACKEND_MAX_DECODE_ROWS, 0);
        if (restored) partitions *= 2;
        size_t floats = cuda_attention_partial_floats(BACKEND_MAX_DECODE_ROWS, config->heads, lc->head_dim, partitions);
        if (floats > partial) partial = floats;
        size_t kv = (size_t)(lc->kv_heads * lc->head_dim) * sizeof(cuda_bf16);
        if (kv > row) row = kv;
    }
    kakeya_status status = KAKEYA_OK;
    if (p->prompt) status = prepare_rope_tables(p, end, error);
    if (decode) status = model_grow(m, &m->partial, partial * sizeof(float), "attention states", error);
    if (!status && restored) status = model_grow(m, &m->restored_k, 2 * ((size_t)p->key.restored * row + 256), "restored keys", error);
    if (!status && restored && c->latent.ring) status = grow_restore_buffers(p, row, error);
    if (!status && restored) status = model_grow(m, &m->restored_v, 2 * ((size_t)p->key.restored * row + 256), "restored values", error);
    return status;
}

static void fill_step(const pass *p, const int32_t *tokens, cuda_step *step) {
    const backend_cache *c = p->cache;
    int frontier = cuda_cache_frontier(c), sliding = p->position - p->model->config->sliding_window + 1;
    memset(step, 0, sizeof *step);
    step->cache = c->view.data;
    step->position = p->position;
    step->rows = p->rows;
    step->prompt = p->prompt;
    step->frontier = frontier;
    step->sink = c->options.sink;
    step->window = c->options.window;
    step->aux_row = p->position - c->draft_length;
    step->draft_from = c->draft_from;
    if (p->key.restored) {
        int evicted = p->prompt ? frontier : p->position + p->rows - c->options.window;
        step->restored_begin[0] = sliding > step->sink ? sliding : step->sink;
        step->restored_begin[1] = step->sink;
        step->restored_end = evicted;
    }
    if (!p->prompt) memcpy(step->tokens, tokens, (size_t)p->rows * sizeof *tokens);
}

/* Copies logits and argmax of `rows` rows that the head has just made. */
static void copy_results(pass *p, const backend_segment *r, int first, int rows) {
    backend_model *m = p->model;
    size_t vocab = (size_t)m->config->vocab, at = (size_t)(first - r->first_logit_row);
    int skip = p->prompt ? 0 : r->first_logit_row;
    if (r->logits)
        note(p, cudaMemcpyAsync(r->logits + at * vocab, m->logits + (size_t)skip * vocab, (size_t)rows * vocab * sizeof(float),
                                cudaMemcpyDeviceToHost, m->device.stream));
    if (r->leaders)
        note(p, cudaMemcpyAsync(r->leaders + at, m->leaders + skip, (size_t)rows * sizeof *m->leaders, cudaMemcpyDeviceToHost,
                                m->device.stream));
    if (r->argmax)
        note(p, cudaMemcpyAsync(r->argmax + at, m->argmax + skip, (size_t)rows * sizeof(int32_t), cudaMemcpyDeviceToHost,
                                m->device.stream));
}

static kakeya_status run_segment(backend_model *m, backend_segment *r, kakeya_error *error) {
    pass p = {.model = m, .cache = r->cache, .launch = &m->launch, .rows = r->n, .prompt = r->kind == SEGMENT_PROMPT,
              .position = r->cache->length, .hidden_states = r->hidden_states};
    p.tokens = p.prompt ? m->tokens : (const int32_t *)(const void *)((const char *)m->step + offsetof(cuda_step, tokens));
    kakeya_status status = prepare_pass(&p, error);
    if (status) return status;
    p.key.leaders = r->leaders != NULL;
    p.key.greedy = !p.prompt && !r->logits && !r->leaders && cuda_head_screens(m);
    fill_step(&p, r->tokens, &m->staged[0]);
    m->staged[0].temperature = r->temperature;
    note(&p, cudaMemcpyAsync(m->step, &m->staged[0], sizeof *m->step, cudaMemcpyHostToDevice, m->device.stream));
    int rows = r->n - r->first_logit_row;
    if (p.prompt) {
        memcpy(m->staged_ids, r->tokens, (size_t)r->n * sizeof *r->tokens);
        note(&p, cudaMemcpyAsync(m->tokens, m->staged_ids, (size_t)r->n * sizeof *m->tokens, cudaMemcpyHostToDevice, m->device.stream));
        run_layers(&p);
        for (int first = r->first_logit_row; first < r->n; first += CUDA_ROW_BLOCK) {
            int n = r->n - first < CUDA_ROW_BLOCK ? r->n - first : CUDA_ROW_BLOCK;
            run_head(&p, first, n);
            copy_results(&p, r, first, n);
        }
        if (p.key.aux) cuda_draft_extend(r->cache, m->aux, r->n, p.position, true);
    } else {
        if (r->hidden_states || m->launch.profiler) {
            run_layers(&p);
            run_head(&p, 0, p.rows);
        } else {
            status = forward_run_graph(m, &p.key, enqueue_decode, &p, error);
        }
        if (!status && rows > 0) copy_results(&p, r, r->first_logit_row, rows);
    }
    m->first_logit_row = r->first_logit_row;
    m->logit_rows = p.prompt || p.key.greedy || status ? 0 : rows;
    kakeya_status finished = cuda_finish(&m->device, p.prompt ? "computing a prompt" : "computing a decode step", status ? NULL : error);
    if (!status) status = finished;
    if (!status) status = cuda_check(p.failure, p.prompt ? "computing a prompt" : "computing a decode step", error);
    return status;
}

static kakeya_status check_segments(const backend_model *m, const backend_segment *segments, int n_segments, kakeya_error *error) {
    if (n_segments < 1) return error_set(error, KAKEYA_INVALID_ARGUMENT, "%d segments in one forward", n_segments);
    for (int s = 0; s < n_segments; s++) {
        const backend_segment *r = &segments[s];
        if (r->n < 1 || r->n > m->max_rows) {
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "segment %d has %d tokens; 1 to %d are possible", s, r->n, m->max_rows);
        }
        if (r->leaders && (r->kind != SEGMENT_DECODE || !(r->temperature > 0)))
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "segment %d: leading logits belong to decode rows at a temperature above 0", s);
        if (r->cache->model != m) return error_set(error, KAKEYA_INVALID_ARGUMENT, "segment %d: cache of another model", s);
    }
    return backend_check_segments(m->config, segments, n_segments, error);
}

kakeya_status cuda_forward(backend_model *m, backend_segment *segments, int n_segments, kakeya_error *error) {
    kakeya_status status = check_segments(m, segments, n_segments, error);
    if (!status) status = cuda_device_use(&m->device, error);
    for (int s = 0; s < n_segments && !status; s++)
        status = cuda_cache_prepare(segments[s].cache, segments[s].kind, segments[s].n, error);
    for (int s = 0; s < n_segments && !status; s++) status = run_segment(m, &segments[s], error);
    for (int s = 0; s < n_segments && !status; s++) {
        backend_cache *c = segments[s].cache;
        c->pending = segments[s].n;
        c->pending_kind = segments[s].kind;
        if (c->length + c->pending > c->high) c->high = c->length + c->pending;
    }
    return status;
}

kakeya_status cuda_read_logits(backend_model *m, int row, float *logits, kakeya_error *error) {
    if (row < 0 || row >= m->logit_rows)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "logits of row %d; the last segment has %d", row, m->logit_rows);
    size_t vocab = (size_t)m->config->vocab;
    kakeya_status status = cuda_device_use(&m->device, error);
    if (!status)
        status = cuda_check(cudaMemcpyAsync(logits, m->logits + (size_t)(m->first_logit_row + row) * vocab, vocab * sizeof *logits,
                                            cudaMemcpyDeviceToHost, m->device.stream), "copying logits", error);
    return status ? status : cuda_finish(&m->device, "copying logits", error);
}
