/* Order of operations: the list's (program/verifier.c). Decode rows take the kernels whose bits do not depend
 * on the number of rows; prompt rows always take the prompt kernels. */
#include "backend/cuda/launch.h"

#include "backend/cuda/attention_ahead.h"
#include "backend/cuda/given.h"
#include "backend/cuda/launch_exchange.h"
#include "backend/cuda/launch_restore.h"
#include "backend/cuda/matrix.h"
#include "backend/cuda/prompt_attention.h"
#include "backend/cuda/prompt_rows.h"
#include "backend/cuda/recorder.h"
#include "backend/cuda/restoration.h"

/* ---------------------------------------------------------------------------------------------------- products */

/* Products of the operation's matrices and the input x [rows][ld] that they share, into y. */
static void multiply(cuda_pass *p, const step_op *op, float *const y[], const cuda_bf16 *x) {
    const cuda_launch *l = &p->model->launch;
    matrix_product list[STEP_MAX_MATRICES];
    int ldx = op->matrix[0]->ld;
    for (int i = 0; i < op->matrices; i++)
        list[i] = (matrix_product){.w = op->matrix[i], .y = y[i], .ldy = op->matrix[i]->out};
    if (!p->prompt) {
        matrix_products(l, list, op->matrices, x, ldx, p->rows, 0);
        return;
    }
    cuda_pass_note(p, matrix_prompt_products(l, &p->model->rounding, list, op->matrices, x, (size_t)ldx, p->rows));
}

static void multiply_one(cuda_pass *p, const step_op *op, float *y, const cuda_bf16 *x) { multiply(p, op, &y, x); }

/* ------------------------------------------------------------------------------------ embedding and its company */

static void run_turns(cuda_pass *p, const step_op *op) {
    backend_model *m = p->model;
    cuda_turns(&m->launch, m->space.batch, p->prompt, m->weights.inverse_frequency[op->index],
               m->config->rope[op->index].rotated_pairs, m->space.turns[op->index], p->rows);
}

static void run_embed(cuda_pass *p, const step_op *op) {
    (void)op;
    backend_model *m = p->model;
    const cuda_weights *w = &m->weights;
    cuda_embed(&m->launch, &w->embed, p->tokens, m->embed_scale, m->space.h, w->layer[0].input_norm, m->config->rms_eps,
               m->space.x, w->layer[0].q.ld, m->config->hidden, p->rows);
    if (p->prompt) cuda_given_place(p);
}

/* A layer's output beside those of the others that are wanted. */
static void copy_chosen(cuda_pass *p, int layer) {
    backend_model *m = p->model;
    size_t bytes = (size_t)m->config->hidden * sizeof(float);
    for (int i = 0; i < p->chosen; i++) {
        if (p->chosen_layers[i] != layer) continue;
        cuda_pass_note(p, cudaMemcpy2DAsync(p->hidden_states + (size_t)i * (size_t)m->config->hidden,
                                            (size_t)p->chosen * bytes, m->space.h, bytes, bytes, (size_t)p->rows,
                                            cudaMemcpyDeviceToHost, m->launch.stream));
    }
}

static void run_hidden_states(cuda_pass *p, const step_op *op) {
    backend_model *m = p->model;
    size_t count = (size_t)p->rows * (size_t)m->config->hidden;
    const float *from = op->index == m->config->layers ? m->space.normed : m->space.h;
    if (m->shard.index) return; /* the first device's are the caller's */
    if (p->chosen_layers) {
        copy_chosen(p, op->index - 1);
        return;
    }
    cuda_pass_note(p, cudaMemcpyAsync(p->hidden_states + (size_t)op->index * count, from, count * sizeof(float),
                                      cudaMemcpyDeviceToHost, m->launch.stream));
}

static cuda_aux_place aux_place(const cuda_pass *p, int tap) {
    int hidden = p->model->config->hidden;
    cuda_aux_place place = {
        .aux = p->model->space.aux, .width = p->cache->t.taps * hidden, .form = cuda_aux_form(p->cache)};
    if (!p->prompt) place.width = hidden; /* rows say where theirs are */
    for (int form = 0; form < CUDA_AUX_FORMS; form++) {
        int slot = p->tap[tap].slot[form];
        place.column[form] = slot < 0 ? -1 : slot * hidden;
    }
    return place;
}

static void run_aux(cuda_pass *p, const step_op *op) {
    backend_model *m = p->model;
    int hidden = m->config->hidden;
    cuda_aux_place place = aux_place(p, op->index);
    cuda_copy_aux(&m->launch, p->prompt ? NULL : m->space.batch->row, m->space.h, &place, hidden, p->rows);
}

static void run_keep(cuda_pass *p, const step_op *op) {
    (void)op;
    backend_model *m = p->model;
    cuda_keep_states(&m->launch, m->space.batch, p->prompt, m->space.normed, m->config->hidden,
                     p->prompt ? p->group->n : p->rows);
}

static void run_ple_round(cuda_pass *p, const step_op *op) {
    (void)op;
    backend_model *m = p->model;
    cuda_round_rows(&m->launch, m->space.h, m->config->hidden, m->space.x_head, m->weights.ple_model_proj.ld,
                    m->config->hidden, p->rows);
}

static void run_ple_project(cuda_pass *p, const step_op *op) {
    multiply_one(p, op, p->model->space.ple, p->model->space.x_head);
}

static void run_ple_combine(cuda_pass *p, const step_op *op) {
    (void)op;
    backend_model *m = p->model;
    const model_config *c = m->config;
    cuda_ple_inputs(&m->launch, m->space.ple, &m->weights.ple_embed, p->tokens, m->weights.ple_proj_norm, c->rms_eps,
                    c->layers, c->ple_width, c->hidden, p->rows);
}

/* --------------------------------------------------------------------------------------------------- attention */

static void run_qkv(cuda_pass *p, const step_op *op) {
    cuda_workspace *s = &p->model->space;
    float *const projections[STEP_MAX_MATRICES] = {s->q, s->k, s->v};
    multiply(p, op, projections, s->x);
}

static cuda_kv_codes codes_of(const cuda_pass *p, int source) {
    return cuda_kv_codes_of(p->cache->t.layer[source].format);
}

static cuda_heads heads_of(const cuda_pass *p, const step_op *op) {
    backend_model *m = p->model;
    cuda_workspace *s = &m->space;
    const model_config *c = m->config;
    const layer_config *lc = &c->layer[op->layer];
    const cuda_layer *w = &m->weights.layer[op->layer];
    bool own = op->source == op->layer, chunk = op->index != 0;
    return (cuda_heads){
        .q = s->q,
        .k = own ? s->k : NULL,
        .v = own && !lc->k_eq_v ? s->v : NULL,
        .q_norm = w->q_norm,
        .k_norm = w->k_norm,
        .turns = s->turns[lc->type],
        .pairs = c->rope[lc->type].rotated_pairs,
        .heads = c->heads,
        .kv_heads = lc->kv_heads,
        .head_dim = lc->head_dim,
        .norm_v = !c->raw_values,
        .q_scale = 1,
        .eps = c->rms_eps,
        .q_out = s->q_heads,
        .chunk_k = chunk ? s->chunk_k : NULL,
        .chunk_v = chunk ? s->chunk_v : NULL,
        .codes = codes_of(p, op->source),
        .layer = op->layer,
    };
}

/* Partitions of a decode step's attention; those of restored keys have places of their own. */
static void partition(const cuda_pass *p, const layer_config *lc, bool restored, cuda_attention *a) {
    const backend_cache_options *o = &p->cache->t.options;
    a->partitions = lc->type == LAYER_FULL ? p->key.partitions
                                           : cuda_attention_partitions(a->sliding_window, p->key.segment_rows, 0);
    if (!restored) return;
    if (!a->sliding_window) {
        a->partitions *= 2;
        return;
    }
    int rows = p->key.segment_rows;
    a->restored_partitions = cuda_attention_restored_partitions(a->sliding_window, o->window, rows);
    a->partitions =
        a->restored_partitions + cuda_attention_exact_partitions(a->sliding_window, o->sink, o->window, rows);
}

/* Of a prompt pass, of whose rows the first ones are meant: the most that one segment has of them. */
static int most_rows(const cuda_pass *p, int rows) {
    int most = 0;
    for (int i = 0; i < p->group->n; i++) {
        int n = p->segments[p->group->segment[i]].n;
        if (n > most) most = n;
    }
    return most < rows ? most : rows;
}

static cuda_attention attention_of(const cuda_pass *p, const step_op *op) {
    backend_model *m = p->model;
    cuda_workspace *s = &m->space;
    const model_config *c = m->config;
    const layer_config *lc = &c->layer[op->layer];
    bool restored = op->index >= 0, chunk = p->prompt && p->cache->t.layer[op->source].kind == STORE_RING;
    cuda_attention a = {
        .q = s->q_heads,
        .out = s->attended,
        .ldo = m->weights.layer[op->layer].o.ld,
        .chunk_k = chunk ? s->chunk_k : NULL,
        .chunk_v = chunk ? s->chunk_v : NULL,
        .restored_k = restored ? cuda_restoration_set(&s->restored_k, op->index) : NULL,
        .restored_v = restored ? cuda_restoration_set(&s->restored_v, op->index) : NULL,
        .k_norm = lc->k_eq_v ? m->weights.layer[op->source].k_norm : NULL,
        .inverse_frequency = m->weights.inverse_frequency[lc->type],
        .key_turns = (const float2 *)(const void *)m->weights.key_turns,
        .pairs = c->rope[lc->type].rotated_pairs,
        .heads = c->heads,
        .kv_heads = lc->kv_heads,
        .head_dim = lc->head_dim,
        .sliding_window = lc->type == LAYER_SLIDING ? c->sliding_window : 0,
        .layer = op->source,
        .codes = codes_of(p, op->source),
        .partial = s->partial.data,
        .state = (float2 *)s->partial_state.data,
        .partitions = 1,
        .final = p->prompt,
        .segments = p->prompt ? p->group->n : p->key.segments,
        .segment_rows = p->prompt ? most_rows(p, op->rows) : p->key.segment_rows,
    };
    if (!p->prompt) partition(p, lc, restored, &a);
    return a;
}

/* Does the attention that follows do it? */
static bool attention_makes_heads(const cuda_pass *p, const step_op *op, const cuda_heads *heads) {
    if (p->prompt || p->model->tap || op[1].kind != STEP_ATTEND) return false;
    cuda_attention a = attention_of(p, &op[1]);
    return cuda_attend_makes_heads(&a, heads);
}

static void run_head_rows(cuda_pass *p, const step_op *op) {
    backend_model *m = p->model;
    cuda_heads heads = heads_of(p, op);
    if (attention_makes_heads(p, op, &heads)) return;
    if (p->prompt && !heads.codes && prompt_head_rows_fit(&heads))
        prompt_head_rows(&m->launch, m->space.batch, &heads, p->rows);
    else
        cuda_head_rows(&m->launch, m->space.batch, p->prompt, &heads, p->rows);
}

static void run_attend(cuda_pass *p, const step_op *op) {
    const cuda_launch *l = &p->model->launch;
    const cuda_batch *batch = p->model->space.batch;
    cuda_attention a = attention_of(p, op);
    cuda_heads heads = heads_of(p, op - 1); /* behind its head norms */
    if (attention_makes_heads(p, op - 1, &heads))
        cuda_attend_new(l, batch, &a, &heads);
    else
        cuda_attend_ahead(l, batch, &a, p->looks_ahead && a.sliding_window ? p->model->space.sight : NULL, op->rows);
}

static void run_attend_latents(cuda_pass *p, const step_op *op) {
    const cuda_launch *l = &p->model->launch;
    const cuda_batch *batch = p->model->space.batch;
    cuda_attention exact = attention_of(p, op);
    latent_attention a = cuda_launch_latents(p, op->source, &exact);
    a.alone = op->alone;
    if (!a.keys) cuda_pass_note(p, latent_attention_scores(l, batch, &a));
    latent_attention_attend(l, batch, &a);
    latent_attention_merge(l, &a);
}

/* Some rows of a prompt pass that are neighbours in one segment. */
typedef struct prompt_part {
    const backend_cache *cache;
    int chunk;           /* where the chunk buffers have the segment's first row */
    int first, rows;     /* of the pass */
    int position;        /* of the first of them */
    bool both_ways;      /* of a picture, and they see each other */
    size_t scratch;      /* positions of the buffers below that others use */
    cudaStream_t stream; /* that its attention goes on */
} prompt_part;

/* A layer's rows up to the part's last one, of codes as bf16. */
static const cuda_bf16 *expanded(const cuda_pass *p, const prompt_part *part, cuda_kv_codes codes,
                                 const layer_config *lc, const uint16_t *rows, const cuda_buffer *to) {
    cuda_launch l = p->model->launch;
    cuda_bf16 *out = (cuda_bf16 *)to->data + part->scratch * (size_t)(lc->kv_heads * lc->head_dim);
    l.stream = part->stream;
    cuda_expand_codes(&l, codes, rows, lc->kv_heads, lc->head_dim, part->position + part->rows, out);
    return out;
}

/* Each row sees [max(t - window + 1, evicted_end), t] of a bounded layer. */
static void attend_prompt(cuda_pass *p, const step_op *op, const prompt_part *part) {
    backend_model *m = p->model;
    cuda_workspace *s = &m->space;
    const layer_config *lc = &m->config->layer[op->layer];
    const layer_store *store = &part->cache->layer[op->source];
    const timeline_layer *kept = &part->cache->t.layer[op->source];
    size_t row = (size_t)(m->config->heads * lc->head_dim), first = (size_t)part->first;
    size_t kv = (size_t)(lc->kv_heads * lc->head_dim), in_chunk = (size_t)part->chunk * kv;
    int ld = m->weights.layer[op->layer].o.ld;
    prompt_attention_args args = {
        .q = s->q_heads + first * row,
        .q_stride = row,
        .rows = part->rows,
        .first_position = part->position,
        .heads = m->config->heads,
        .kv_heads = lc->kv_heads,
        .head_dim = lc->head_dim,
        .window = lc->type == LAYER_SLIDING ? m->config->sliding_window : 0,
        .evicted_end = kept->bounded ? p->evicted_end : 0,
        .both_ways = part->both_ways,
        .out = s->attended + first * (size_t)ld,
        .out_stride = (size_t)ld,
    };
    if (kept->kind == STORE_RING) {
        args.keys = (prompt_keys){.chunk_begin = part->cache->t.length,
                                  .chunk_k = kept->has_keys ? s->chunk_k + in_chunk : NULL,
                                  .chunk_v = s->chunk_v + in_chunk,
                                  .ring_capacity = part->cache->t.ring_capacity,
                                  .ring_k = store->ring.k,
                                  .ring_v = store->ring.v};
    } else {
        args.keys = (prompt_keys){.chunk_begin = 0,
                                  .chunk_k = (const cuda_bf16 *)(const void *)extent_data(&store->pages_k),
                                  .chunk_v = (const cuda_bf16 *)(const void *)extent_data(&store->pages_v)};
    }
    cuda_kv_codes codes = codes_of(p, op->source);
    if (codes) {
        args.keys.chunk_v = expanded(p, part, codes, lc, args.keys.chunk_v, &s->expanded_v);
        if (kept->has_keys) args.keys.chunk_k = expanded(p, part, codes, lc, args.keys.chunk_k, &s->expanded_k);
    }
    if (kept->has_keys) {
        cuda_pass_note(p, prompt_attention(&args, part->stream));
        return;
    }
    args.keys.k_norm = m->weights.layer[op->source].k_norm;
    args.keys.cosine = s->cosine.data;
    args.keys.sine = s->sine.data;
    args.keys.rope_pairs = m->config->rope[lc->type].rotated_pairs;
    args.k_scratch = s->derived_k + part->scratch * kv;
    int slab = prompt_attention_slab(lc->head_dim, args.keys.rope_pairs);
    if (args.evicted_end / slab == (part->position + part->rows - 1) / slab) { /* all keys lie in one */
        cuda_pass_note(p, prompt_attention(&args, part->stream));
        return;
    }
    args.m = s->attend_top;
    args.l = s->attend_sum;
    args.out = s->q; /* the raw projections are used up */
    args.out_is_f32 = 1;
    args.out_stride = row;
    cuda_pass_note(p, prompt_attention(&args, part->stream));
    cuda_round_rows(&m->launch, s->q, (int)row, s->attended + first * (size_t)ld, ld, (int)row, part->rows);
}

/* Streams beside the model's begin where it is ... */
static void part_streams(cuda_pass *p, int streams) {
    cuda_workspace *s = &p->model->space;
    cuda_pass_note(p, cudaEventRecord(s->side_start, p->model->launch.stream));
    for (int i = 0; i < streams; i++) cuda_pass_note(p, cudaStreamWaitEvent(s->side_stream[i], s->side_start, 0));
}

/* ... and it goes on when they are done. */
static void join_streams(cuda_pass *p, int streams) {
    cuda_workspace *s = &p->model->space;
    for (int i = 0; i < streams; i++) {
        cuda_pass_note(p, cudaEventRecord(s->side_done[i], s->side_stream[i]));
        cuda_pass_note(p, cudaStreamWaitEvent(p->model->launch.stream, s->side_done[i], 0));
    }
}

/* The operation's rows: of one segment some, of several all. Short prompts do not fill the device one by one. */
static void run_prompt_attend(cuda_pass *p, const step_op *op) {
    int streams = !p->side_by_side ? 0 : p->group->n < CUDA_SIDE_STREAMS ? p->group->n : CUDA_SIDE_STREAMS;
    const bool sliding = p->model->config->layer[op->layer].type == LAYER_SLIDING;
    size_t scratch = 0;
    if (streams) part_streams(p, streams);
    for (int i = 0; i < p->group->n; i++) {
        const backend_segment *r = &p->segments[p->group->segment[i]];
        int chunk = p->first_row[i], first = chunk < op->first_row ? op->first_row - chunk : 0;
        prompt_part part = {.cache = r->cache,
                            .chunk = chunk,
                            .scratch = scratch,
                            .stream = streams ? p->model->space.side_stream[i % streams] : p->model->launch.stream};
        for (; first < r->n; first += part.rows) {
            part.first = chunk + first;
            part.position = r->cache->t.length + first;
            part.rows = sliding ? cuda_given_stretch(r, first, &part.both_ways) : r->n - first;
            attend_prompt(p, op, &part);
        }
        if (streams) scratch += (size_t)(r->cache->t.length + r->n);
    }
    if (streams) join_streams(p, streams);
}

static void run_store_chunk(cuda_pass *p, const step_op *op) {
    backend_model *m = p->model;
    cuda_store_chunk(&m->launch, m->space.batch, m->space.chunk_k, m->space.chunk_v,
                     p->cache->t.layer[op->source].values, op->source, p->rows);
}

static void run_out(cuda_pass *p, const step_op *op) {
    multiply_one(p, op, p->model->space.branch, p->model->space.attended);
}

/* ------------------------------------------------------------------------------------------------ feed forward */

static cuda_router_weights router_of(const cuda_layer *w) {
    return (cuda_router_weights){.w = w->router.data, .expert_scale = w->router_expert_scale, .ld = w->router.ld};
}

/* The residual stream between attention and the feed-forward block. */
static float *middle(const cuda_pass *p) {
    return p->model->config->moe && !p->prompt ? p->model->space.x_router : p->model->space.h;
}

static void run_after_attention(cuda_pass *p, const step_op *op) {
    backend_model *m = p->model;
    cuda_workspace *s = &m->space;
    const model_config *c = m->config;
    const cuda_layer *w = &m->weights.layer[op->layer];
    cuda_after_attention before = {
        .branch = s->branch,
        .post_attention_norm = w->post_attention_norm,
        .pre_ffn_norm = w->pre_ffn_norm,
        .pre_ffn_norm_2 = w->pre_ffn_norm_2,
        .router_scale = w->router_scale,
        .h = s->h,
        .h_out = middle(p),
        .x_dense = s->x,
        .x_experts = c->moe ? s->x_experts : NULL,
        .x_router = p->prompt ? s->x_router : s->experts_out, /* whose rows are written later */
        .eps = c->rms_eps,
        .hidden = c->hidden,
        .ldx = w->q.ld,
    };
    if (op->matrices) before.router = router_of(w);
    if (p->prompt)
        prompt_after_attention_rows(&m->launch, &before, p->rows);
    else
        cuda_after_attention_rows(&m->launch, &before, &s->route, p->rows);
}

static void run_route(cuda_pass *p, const step_op *op) {
    backend_model *m = p->model;
    cuda_router_weights router = router_of(&m->weights.layer[op->layer]);
    cuda_router(&m->launch, &m->space.route, &router, m->space.x_router, m->config->hidden, p->rows);
}

/* Weights under a limit: is the dense part computed while experts are copied, and are some copied ahead? A profiler
 * and a test want one kernel after the other. */
static bool fetches_beside(const cuda_pass *p) {
    const backend_model *m = p->model;
    return m->weights.bounded && !p->prompt && p->rows <= CUDA_DECODE_ROWS && !m->launch.profiler && !m->tap &&
           cuda_bounded_beside(m->weights.bounded);
}

static void run_fetch(cuda_pass *p, const step_op *op) {
    const backend_model *m = p->model;
    const model_config *c = m->config;
    const cuda_layer *next = &m->weights.layer[op->layer + 1 < c->layers ? op->layer + 1 : op->layer];
    const cuda_expert_outlook outlook = {.x = middle(p),
                                         .router_scale = next->router_scale,
                                         .router = next->router.data,
                                         .ld = next->router.ld,
                                         .hidden = c->hidden,
                                         .rank = (c->experts_per_token + 1) / 2,
                                         .eps = c->rms_eps};
    cuda_pass_note(p, cuda_bounded_fetch(m->weights.bounded, &m->launch, &m->space.route, op->layer, p->prompt, p->rows,
                                         fetches_beside(p) ? &outlook : NULL));
}

static cuda_feed_forward feed_forward_of(const cuda_pass *p, int layer) {
    const cuda_workspace *s = &p->model->space;
    const cuda_layer *w = &p->model->weights.layer[layer];
    return (cuda_feed_forward){
        .gate = w->gate,
        .up = w->up,
        .down = w->down,
        .experts_gate_up = w->experts_gate_up,
        .experts_down = w->experts_down,
        .expert_intermediate = p->model->config->expert_intermediate,
        .x_dense = s->x,
        .x_experts = s->x_experts,
        .ldx = w->gate.ld,
        .act = s->act,
        .act_experts = s->act_experts,
        .y = s->branch,
        .y_experts = s->experts_out,
    };
}

/* All of the dense part, which leaves `f` the experts. */
static void multiply_dense_beside(cuda_pass *p, cuda_feed_forward *f) {
    const backend_model *m = p->model;
    cuda_launch beside;
    cuda_feed_forward dense = *f;
    dense.experts_gate_up.data = dense.experts_down.data = NULL;
    cuda_pass_note(p, cuda_bounded_fork(m->weights.bounded, &m->launch, &beside));
    matrix_gate_up(&beside, &dense, &m->space.route, p->rows);
    matrix_down(&beside, &dense, &m->space.route, p->rows);
    f->gate.data = f->up.data = NULL;
}

static void run_gate_up(cuda_pass *p, const step_op *op) {
    cuda_feed_forward f = feed_forward_of(p, op->layer);
    cuda_launch l = p->model->launch;
    if (p->model->weights.bounded) l.programmatic = 0; /* experts have just been copied, weights are requested early */
    if (fetches_beside(p)) multiply_dense_beside(p, &f);
    matrix_gate_up(&l, &f, &p->model->space.route, p->rows);
}

static void run_down(cuda_pass *p, const step_op *op) {
    cuda_feed_forward f = feed_forward_of(p, op->layer);
    cuda_launch l = p->model->launch;
    if (fetches_beside(p)) {
        cuda_pass_note(p, cuda_bounded_join(p->model->weights.bounded, &l));
        l.programmatic = 0;
        f.down.data = NULL; /* done beside */
    }
    matrix_down(&l, &f, &p->model->space.route, p->rows);
}

static void run_dense_gate_up(cuda_pass *p, const step_op *op) {
    backend_model *m = p->model;
    const cuda_layer *w = &m->weights.layer[op->layer];
    cuda_pass_note(p, matrix_prompt_gated(&m->launch, &m->rounding, &w->gate, &w->up, m->space.x, (size_t)w->gate.ld,
                                          m->space.act, (size_t)w->down.ld, p->rows));
}

static void run_dense_down(cuda_pass *p, const step_op *op) {
    multiply_one(p, op, p->model->space.branch, p->model->space.act);
}

/* Of prompt rows, bf16: the experts' inputs, and when these are used up their outputs. */
static cuda_bf16 *expert_rows(backend_model *m) { return (cuda_bf16 *)(void *)m->space.experts_out; }

/* Outputs of which several devices have parts are summed in float32. */
static bool rounds_experts(const cuda_pass *p) { return p->prompt && p->model->config->moe && !p->model->space.mixed; }

/* Rows are gathered beforehand: the copy engine, which a product waits for, takes neighbours only. */
static void run_experts_gate_up(cuda_pass *p, const step_op *op) {
    backend_model *m = p->model;
    const cuda_layer *w = &m->weights.layer[op->layer];
    const cuda_bf16 *x = m->space.x_experts;
    if (!matrix_gathers(&m->rounding, &w->experts_gate_up)) {
        x = expert_rows(m);
        prompt_gather_rows(&m->launch, &m->space.route, m->space.x_experts, expert_rows(m), w->experts_gate_up.ld,
                           p->rows);
    }
    cuda_pass_note(p, matrix_prompt_experts_gated(&m->launch, &m->rounding, &w->experts_gate_up,
                                                  m->config->expert_intermediate, &m->space.route, x,
                                                  (size_t)w->experts_gate_up.ld, m->space.act_experts,
                                                  (size_t)w->experts_down.ld, p->rows));
}

static void run_experts_down(cuda_pass *p, const step_op *op) {
    backend_model *m = p->model;
    const cuda_matrix *w = &m->weights.layer[op->layer].experts_down;
    cuda_pass_note(p, matrix_prompt_experts(&m->launch, &m->rounding, w, m->config->hidden, &m->space.route,
                                            m->space.act_experts, (size_t)w->ld, m->space.experts_out,
                                            rounds_experts(p), (size_t)m->config->hidden, p->rows));
}

static void run_after_ffn(cuda_pass *p, const step_op *op) {
    backend_model *m = p->model;
    cuda_workspace *s = &m->space;
    const model_config *c = m->config;
    const cuda_layer *w = &m->weights.layer[op->layer];
    bool last = op->layer + 1 == c->layers;
    cuda_after_ffn after = {
        .dense = s->branch,
        .experts = c->moe ? s->experts_out : NULL,
        .post_ffn_norm_1 = w->post_ffn_norm_1,
        .post_ffn_norm_2 = w->post_ffn_norm_2,
        .post_ffn_norm = w->post_ffn_norm,
        .next_norm = c->ple_width ? NULL
                     : last       ? m->weights.final_norm
                                  : m->weights.layer[op->layer + 1].input_norm,
        .layer_scalar = c->ple_width ? 1.0f : w->layer_scalar,
        .h_in = middle(p),
        .h = s->h,
        .x = s->x,
        .normed = last && !c->ple_width ? s->normed : NULL,
        .eps = c->rms_eps,
        .hidden = c->hidden,
        .ldx = w->q.ld,
    };
    if (op->index >= 0) {
        after.row = p->prompt ? NULL : s->batch->row;
        after.aux = aux_place(p, op->index);
    }
    if (s->mixed) after.experts = s->mixed;
    if (rounds_experts(p))
        prompt_after_ffn_rows(&m->launch, &after, expert_rows(m), &s->route, p->rows);
    else
        cuda_after_ffn_rows(&m->launch, &after, s->mixed ? &s->mixed_route : &s->route, p->rows);
}

/* ---------------------------------------------------------------------------------------- per-layer embeddings */

static void run_ple_gate(cuda_pass *p, const step_op *op) {
    multiply_one(p, op, p->model->space.ple_gate, p->model->space.x);
}

static void run_ple_activate(cuda_pass *p, const step_op *op) {
    backend_model *m = p->model;
    const model_config *c = m->config;
    cuda_ple_gate(&m->launch, m->space.ple_gate, m->space.ple, op->layer, c->layers, c->ple_width, m->space.act,
                  m->weights.layer[op->layer].ple_proj.ld, p->rows);
}

static void run_ple_out(cuda_pass *p, const step_op *op) {
    multiply_one(p, op, p->model->space.branch, p->model->space.act);
}

static void run_ple_add(cuda_pass *p, const step_op *op) {
    backend_model *m = p->model;
    const model_config *c = m->config;
    const cuda_layer *w = &m->weights.layer[op->layer];
    bool last = op->layer + 1 == c->layers;
    cuda_add_norm(&m->launch, m->space.branch, w->post_ple_norm, w->layer_scalar, m->space.h,
                  last ? m->weights.final_norm : m->weights.layer[op->layer + 1].input_norm, c->rms_eps, m->space.x,
                  w->q.ld, last ? m->space.normed : NULL, c->hidden, p->rows);
}

/* -------------------------------------------------------------------------------------------------------- head */

static cuda_excluded suppressed(const cuda_pass *p) {
    const model_config *c = p->model->config;
    cuda_excluded excluded = {.row = p->prompt ? NULL : p->model->space.batch->row, .n = c->n_suppress_tokens};
    for (int i = 0; i < excluded.n; i++) excluded.id[i] = c->suppress_tokens[i];
    return excluded;
}

/* The same as rows of the part of the head that is this device's. */
static cuda_excluded suppressed_here(const cuda_pass *p) {
    const cuda_weights *w = &p->model->weights;
    cuda_excluded all = suppressed(p), excluded = {.row = all.row, .first = w->head_first};
    for (int i = 0; i < all.n; i++) {
        int row = all.id[i] - w->head_first;
        if (row >= 0 && row < w->head.out) excluded.id[excluded.n++] = row;
    }
    return excluded;
}

static void run_last_rows(cuda_pass *p, const step_op *op) {
    (void)op;
    cuda_workspace *s = &p->model->space;
    cuda_keep_last_rows(&p->model->launch, s->batch, s->x, p->model->weights.head.ld, s->last_x, p->group->n);
}

static const cuda_bf16 *head_input(const cuda_pass *p) {
    if (!p->prompt && p->last_rows) return p->model->space.last_x;
    return p->model->space.x + (size_t)p->head_first * (size_t)p->model->weights.head.ld;
}

static void run_head(cuda_pass *p, const step_op *op) {
    backend_model *m = p->model;
    const cuda_matrix *w = op->matrix[0];
    float *logits =
        m->tp_group ? m->logits_home : m->space.logits; /* the first device's, of which each makes some columns */
    matrix_product head = {.w = w, .y = logits + m->weights.head_first, .ldy = m->config->vocab};
    matrix_products(&m->launch, &head, 1, head_input(p), w->ld, p->head_rows, m->config->logit_softcap);
}

static void run_argmax(cuda_pass *p, const step_op *op) {
    (void)op;
    cuda_workspace *s = &p->model->space;
    cuda_excluded excluded = suppressed(p);
    cuda_argmax(&p->model->launch, s->logits, p->model->config->vocab, &excluded, p->head_rows, s->argmax_value,
                s->argmax_index, s->argmax);
}

static void run_leaders(cuda_pass *p, const step_op *op) {
    (void)op;
    cuda_workspace *s = &p->model->space;
    cuda_excluded excluded = suppressed(p);
    cuda_find_leaders(&p->model->launch, s->batch->row, s->logits, p->model->config->vocab, s->argmax, &excluded,
                      s->leader_scratch, s->leaders, p->head_rows);
}

static void run_choose(cuda_pass *p, const step_op *op) {
    backend_model *m = p->model;
    cuda_excluded excluded = suppressed_here(p);
    cuda_screen screen = m->space.screen;
    cuda_head_codes codes = m->head_copy.codes; /* of the whole head at most */
    codes.out = op->matrix[0]->out;
    screen.upper = m->space.logits; /* nobody reads logits of such rows */
    cuda_greedy_choice(&m->launch, op->matrix[0], &codes, &screen, &excluded, head_input(p), p->head_rows,
                       m->config->logit_softcap, m->space.argmax);
}

/* ------------------------------------------------------------------------------------------------------- walk */

typedef void (*run_op)(cuda_pass *, const step_op *);

static const run_op run[STEP_KINDS] = {
    [STEP_TURNS] = run_turns,
    [STEP_EMBED] = run_embed,
    [STEP_HIDDEN_STATES] = run_hidden_states,
    [STEP_PLE_ROUND] = run_ple_round,
    [STEP_PLE_PROJECT] = run_ple_project,
    [STEP_PLE_COMBINE] = run_ple_combine,
    [STEP_FORK] = cuda_launch_restore,
    [STEP_JOIN] = cuda_launch_restore,
    [STEP_RESTORE_GATHER] = cuda_launch_restore,
    [STEP_RESTORE] = cuda_launch_restore,
    [STEP_RESTORE_KEYS] = cuda_launch_restore,
    [STEP_RESTORE_VALUES] = cuda_launch_restore,
    [STEP_RESTORE_FINISH] = cuda_launch_restore,
    [STEP_RESTORE_ROWS] = cuda_launch_restore,
    [STEP_QKV] = run_qkv,
    [STEP_HEAD_ROWS] = run_head_rows,
    [STEP_ATTEND] = run_attend,
    [STEP_ATTEND_LATENTS] = run_attend_latents,
    [STEP_PROMPT_ATTEND] = run_prompt_attend,
    [STEP_STORE_CHUNK] = run_store_chunk,
    [STEP_OUT] = run_out,
    [STEP_AFTER_ATTENTION] = run_after_attention,
    [STEP_ROUTE] = run_route,
    [STEP_FETCH] = run_fetch,
    [STEP_GATE_UP] = run_gate_up,
    [STEP_DOWN] = run_down,
    [STEP_DENSE_GATE_UP] = run_dense_gate_up,
    [STEP_DENSE_DOWN] = run_dense_down,
    [STEP_EXPERTS_GATE_UP] = run_experts_gate_up,
    [STEP_EXPERTS_DOWN] = run_experts_down,
    [STEP_AFTER_FFN] = run_after_ffn,
    [STEP_PLE_GATE] = run_ple_gate,
    [STEP_PLE_ACTIVATE] = run_ple_activate,
    [STEP_PLE_OUT] = run_ple_out,
    [STEP_PLE_ADD] = run_ple_add,
    [STEP_AUX] = run_aux,
    [STEP_KEEP] = run_keep,
    [STEP_LAST_ROWS] = run_last_rows,
    [STEP_HEAD] = run_head,
    [STEP_ARGMAX] = run_argmax,
    [STEP_LEADERS] = run_leaders,
    [STEP_CHOOSE] = run_choose,
    [STEP_EXCHANGE] = cuda_launch_exchange,
    [STEP_MEET] = cuda_launch_exchange,
};

void cuda_launch_ops(cuda_pass *pass, const step_op *ops, int n) {
    for (int i = 0; i < n; i++) {
        cuda_profile_part(&pass->model->launch, ops[i].part, ops[i].bytes, ops[i].operations);
        run[ops[i].kind](pass, &ops[i]);
        if (pass->model->tap) pass->model->tap(pass->model->tap_user, pass, &ops[i]);
    }
}
