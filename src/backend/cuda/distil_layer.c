/* One decoder layer over rows (the order of operations is forward.c's), and the way back through it. */
#include <math.h>

#include "backend/cuda/distil.h"

static size_t values(const distil_pass *p, int n) { return (size_t)p->rows * (size_t)n; }

static void norm(backend_restoration_trainer *s, const distil_pass *p, const float *x, const float *gain,
                 const float *add, float *out) {
    size_t hidden = (size_t)s->m->config->hidden;
    cuda_train_norm(&s->launch, x, hidden, gain, add, out, hidden, p->rows, (int)hidden, s->m->config->rms_eps);
}

static void norm_back(backend_restoration_trainer *s, const float *x, const float *gain, const float *d_out, float *d_x,
                      bool set) {
    cuda_train_norm_back(&s->launch, x, gain, d_out, d_x, set, s->student.rows, s->m->config->hidden,
                         s->m->config->rms_eps);
}

/* -------------------------------------------------------------------------------------------------------- input */

void train_embed(backend_restoration_trainer *s, const distil_pass *p, float *out) {
    const model_config *c = s->m->config;
    size_t hidden = (size_t)c->hidden;
    float root = sqrtf((float)hidden);
    if (s->embed.bits)
        cuda_train_gather_bits(&s->launch, s->embed.bits, s->embed.ld, p->tokens, root, out, p->rows, c->hidden);
    else
        cuda_train_gather(&s->launch, s->embed.data, hidden, p->tokens, root, out, hidden, p->rows, c->hidden);
    if (!c->ple_width) return;
    train_forward(s, out, hidden, p->rows, s->ple_model_proj, s->ple, (size_t)(c->layers * c->ple_width));
    cuda_train_ple(&s->launch, s->ple_embed.data, s->ple_embed.bits, s->ple_embed.ld, p->tokens, s->ple_proj_norm,
                   c->hidden, c->layers, c->ple_width, c->rms_eps, s->ple, p->rows);
}

/* ---------------------------------------------------------------------------------------------------- attention */

static train_turn turn_of(const backend_restoration_trainer *s, int layer, const int *position) {
    layer_type type = s->m->config->layer[layer].type;
    return (train_turn){.cosine = s->cosine[type],
                        .sine = s->sine[type],
                        .position = position,
                        .half = s->m->config->layer[layer].head_dim / 2,
                        .pairs = s->m->config->rope[type].rotated_pairs};
}

/* Sources of columns of a layer's rows; `back`: where gradients go. */
static train_sources sources_of(backend_restoration_trainer *s, int layer, bool back) {
    const distil_layer *l = &s->layer[s->m->config->layer[layer].kv_source];
    train_sources from = {.n = distil_kv_dim(s, layer)};
    for (int half = 0; half < 2; half++) {
        from.kv[half][TRAIN_EXACT] = back ? NULL : l->native[half];
        from.kv[half][TRAIN_RESTORED] = back ? l->d_seen[half] : l->seen[half];
        from.kv[half][TRAIN_OWN] = back ? l->d_own[half] : l->own[half];
    }
    return from;
}

/* Products of all heads of all items: rows of queries, columns, values of a head. */
static train_product heads_product(const backend_restoration_trainer *s, const train_mask *m, int layer) {
    const model_config *c = s->m->config;
    return (train_product){
        .items = m->items, .heads = c->heads, .group = c->heads / c->layer[layer].kv_heads, .m = m->rows};
}

/* tape.q -> tape.o. */
static void attend(backend_restoration_trainer *s, const distil_pass *p, int layer) {
    const model_config *c = s->m->config;
    const train_mask *m = &p->mask[c->layer[layer].type];
    const distil_layer *source = &s->layer[c->layer[layer].kv_source];
    size_t d = (size_t)c->layer[layer].head_dim, kv = (size_t)distil_kv_dim(s, layer), q_dim = (size_t)c->heads * d,
           columns = (size_t)m->columns, rows = (size_t)m->rows;
    const float *keys = s->tape.keys, *values = s->tape.values;
    if (p->teacher) {
        keys = source->native[0];
        values = source->native[1];
    } else {
        train_sources from = sources_of(s, layer, false);
        cuda_train_columns(&s->launch, m, &from, s->tape.keys, s->tape.values);
    }
    train_product scores = heads_product(s, m, layer);
    scores.a = s->tape.q;
    scores.lda = q_dim;
    scores.a_item = rows * q_dim;
    scores.a_head = d;
    scores.b = keys;
    scores.ldb = kv;
    scores.b_item = columns * kv;
    scores.b_head = d;
    scores.c = s->tape.shares;
    scores.ldc = columns;
    scores.c_head = rows * columns;
    scores.c_item = (size_t)c->heads * scores.c_head;
    scores.n = m->columns;
    scores.k = (int)d;
    train_multiply(s, TRAIN_NT, &scores);
    cuda_train_softmax(&s->launch, m, c->heads, s->tape.shares);
    train_product out = heads_product(s, m, layer);
    out.a = s->tape.shares;
    out.lda = columns;
    out.a_item = scores.c_item;
    out.a_head = scores.c_head;
    out.b = values;
    out.ldb = kv;
    out.b_item = columns * kv;
    out.b_head = d;
    out.c = s->tape.o;
    out.ldc = q_dim;
    out.c_item = rows * q_dim;
    out.c_head = d;
    out.n = (int)d;
    out.k = m->columns;
    train_multiply(s, TRAIN_NN, &out);
}

/* d_o -> d_q, d_own, d_seen of the layer whose K/V are attended. */
static void attend_back(backend_restoration_trainer *s, int layer) {
    const model_config *c = s->m->config;
    const train_mask *m = &s->student.mask[c->layer[layer].type];
    size_t d = (size_t)c->layer[layer].head_dim, kv = (size_t)distil_kv_dim(s, layer), q_dim = (size_t)c->heads * d,
           columns = (size_t)m->columns, rows = (size_t)m->rows, head = rows * columns, item = (size_t)c->heads * head;
    train_product shares = heads_product(s, m, layer); /* of what they weigh */
    shares.a = s->d_o;
    shares.lda = q_dim;
    shares.a_item = rows * q_dim;
    shares.a_head = d;
    shares.b = s->tape.values;
    shares.ldb = kv;
    shares.b_item = columns * kv;
    shares.b_head = d;
    shares.c = s->d_shares;
    shares.ldc = columns;
    shares.c_item = item;
    shares.c_head = head;
    shares.n = m->columns;
    shares.k = (int)d;
    train_multiply(s, TRAIN_NT, &shares);
    cuda_train_softmax_back(&s->launch, s->tape.shares, s->d_shares, m->items * c->heads * m->rows, m->columns);
    train_product query = heads_product(s, m, layer);
    query.a = s->d_shares;
    query.lda = columns;
    query.a_item = item;
    query.a_head = head;
    query.b = s->tape.keys;
    query.ldb = kv;
    query.b_item = columns * kv;
    query.b_head = d;
    query.c = s->d_q;
    query.ldc = q_dim;
    query.c_item = rows * q_dim;
    query.c_head = d;
    query.n = (int)d;
    query.k = m->columns;
    train_multiply(s, TRAIN_NN, &query);
    for (int half = 0; half < 2; half++) {
        train_product column = heads_product(s, m, layer);
        column.group = 1;
        column.a = half ? s->tape.shares : s->d_shares;
        column.lda = columns;
        column.a_item = item;
        column.a_head = head;
        column.b = half ? s->d_o : s->tape.q;
        column.ldb = q_dim;
        column.b_item = rows * q_dim;
        column.b_head = d;
        column.c = half ? s->d_value : s->d_key;
        column.ldc = d;
        column.c_head = columns * d;
        column.c_item = (size_t)c->heads * column.c_head;
        column.m = m->columns;
        column.n = (int)d;
        column.k = m->rows;
        train_multiply(s, TRAIN_TN, &column);
    }
    train_sources to = sources_of(s, layer, true);
    cuda_train_columns_back(&s->launch, m, &to, c->heads, (int)d, s->d_key, s->d_value);
}

/* Raw K and V of rows, and where they go behind norms and RoPE. */
static void own_kv(backend_restoration_trainer *s, const distil_pass *p, int layer) {
    const model_config *c = s->m->config;
    distil_layer *l = &s->layer[layer];
    const layer_config *lc = &c->layer[layer];
    size_t kv = (size_t)distil_kv_dim(s, layer);
    bool keeps = p->teacher && l->native_raw[0];
    float *raw[2], *out[2];
    for (int half = 0; half < 2; half++) {
        raw[half] = keeps ? l->native_raw[half] : p->teacher ? s->tape.raw[half] : l->own_raw[half];
        out[half] = p->teacher ? l->native[half] : l->own[half];
    }
    train_forward(s, s->tape.x, (size_t)c->hidden, p->rows, l->k, raw[0], kv);
    if (!lc->k_eq_v)
        train_forward(s, s->tape.x, (size_t)c->hidden, p->rows, l->v, raw[1], kv);
    else if (keeps)
        distil_copy(s, raw[1], raw[0], (size_t)p->rows * kv);
    cuda_train_heads(&s->launch, raw[0], l->k_norm, out[0], p->rows, lc->kv_heads, lc->head_dim, c->rms_eps,
                     turn_of(s, layer, p->position));
    train_values(s, layer, raw[lc->k_eq_v ? 0 : 1], p->rows, out[1]);
}

static void attention_forward(backend_restoration_trainer *s, const distil_pass *p, int layer, const float *in) {
    const model_config *c = s->m->config;
    const distil_layer *l = &s->layer[layer];
    distil_tape *t = &s->tape;
    size_t hidden = (size_t)c->hidden, q_dim = (size_t)distil_q_dim(s, layer);
    norm(s, p, in, l->input_norm, NULL, t->x);
    train_forward(s, t->x, hidden, p->rows, l->q, t->q_raw, q_dim);
    cuda_train_heads(&s->launch, t->q_raw, l->q_norm, t->q, p->rows, c->heads, c->layer[layer].head_dim, c->rms_eps,
                     turn_of(s, layer, p->position));
    if (c->layer[layer].kv_source == layer) own_kv(s, p, layer);
    attend(s, p, layer);
    train_forward(s, t->o, q_dim, p->rows, l->o, t->out, hidden);
    norm(s, p, t->out, l->post_attention_norm, NULL, t->added);
    distil_copy(s, t->h1, in, values(p, c->hidden));
    cuda_train_add(&s->launch, t->added, t->h1, values(p, c->hidden));
}

/* From d_h, the gradient of h1, to that of the layer's input. */
static void attention_back(backend_restoration_trainer *s, int layer) {
    const model_config *c = s->m->config;
    const layer_config *lc = &c->layer[layer];
    distil_layer *l = &s->layer[layer];
    distil_tape *t = &s->tape;
    const distil_pass *p = &s->student;
    size_t q_dim = (size_t)distil_q_dim(s, layer), kv = (size_t)distil_kv_dim(s, layer);
    train_turn turn = turn_of(s, layer, p->position);
    distil_copy(s, s->d_both, s->d_h, values(p, c->hidden)); /* of what attention adds */
    if (s->o.attention > 0)
        train_compare(s, t->added, l->native_added, -1, 0, s->scale * s->o.attention / (float)c->layers, s->d_both);
    norm_back(s, t->out, l->post_attention_norm, s->d_both, s->d_branch, true);
    train_back(s, s->d_branch, (size_t)c->hidden, p->rows, l->o, s->d_o, false);
    attend_back(s, layer);
    float *d_raw = s->d_o; /* spent by then */
    cuda_train_heads_back(&s->launch, t->q_raw, l->q_norm, s->d_q, d_raw, 0, p->rows, c->heads, lc->head_dim,
                          c->rms_eps, turn);
    train_back(s, d_raw, q_dim, p->rows, l->q, s->d_x, false);
    if (lc->kv_source == layer) {
        cuda_train_heads_back(&s->launch, l->own_raw[0], l->k_norm, l->d_own[0], s->d_kv[0], 0, p->rows, lc->kv_heads,
                              lc->head_dim, c->rms_eps, turn);
        train_values_back(s, layer, l->own_raw[lc->k_eq_v ? 0 : 1], l->d_own[1], p->rows, lc->k_eq_v,
                          s->d_kv[lc->k_eq_v ? 0 : 1]);
        train_back(s, s->d_kv[0], kv, p->rows, l->k, s->d_x, true);
        if (!lc->k_eq_v) train_back(s, s->d_kv[1], kv, p->rows, l->v, s->d_x, true);
    }
    norm_back(s, l->input, l->input_norm, s->d_x, s->d_h, false);
}

/* -------------------------------------------------------------------------------------------------- feed forward */

/* The experts' parts of stacked matrices of `out` rows each, by slots. */
static void expert_products(backend_restoration_trainer *s, int rows, train_form form, const float *x, distil_matrix w,
                            int out, float *y) {
    const model_config *c = s->m->config;
    bool back = form == TRAIN_NN;
    if (w.bits) {
        const split_matrix first = {.data = w.bits, .out = out, .in = w.in, .ld = w.ld};
        (back ? split_experts_back : split_experts_forward)(&s->launch, &s->split, x, rows * c->experts_per_token,
                                                            first, c->experts, s->tape.routing.begin, y);
        return;
    }
    train_product p = {.a = x,
                       .lda = (size_t)(back ? out : w.in),
                       .b = w.data,
                       .ldb = (size_t)w.in,
                       .b_item = (size_t)out * (size_t)w.in,
                       .c = y,
                       .ldc = (size_t)(back ? w.in : out),
                       .m = rows, /* an expert is one of a row's at most once */
                       .n = back ? w.in : out,
                       .k = back ? out : w.in,
                       .items = c->experts,
                       .begin = s->tape.routing.begin};
    train_multiply(s, form, &p);
}

static void experts_forward(backend_restoration_trainer *s, const distil_pass *p, int layer) {
    const model_config *c = s->m->config;
    const distil_layer *l = &s->layer[layer];
    distil_tape *t = &s->tape;
    size_t hidden = (size_t)c->hidden, width = (size_t)c->expert_intermediate;
    int slots = p->rows * c->experts_per_token;
    norm(s, p, t->h1, l->pre_ffn_norm_2, NULL, t->expert_x);
    norm(s, p, t->h1, l->router_norm, NULL, t->router_x);
    train_forward(s, t->router_x, hidden, p->rows, l->router, t->router_z, (size_t)c->experts);
    cuda_train_route(&s->launch, t->router_z, l->router_expert_scale, &t->routing, p->rows);
    cuda_train_gather(&s->launch, t->expert_x, hidden, t->routing.row_of, 1, t->slot_x, hidden, slots, c->hidden);
    expert_products(s, p->rows, TRAIN_NT, t->slot_x, l->experts_gate_up, (int)(2 * width), t->slot_gate_up);
    cuda_train_gated(&s->launch, t->slot_gate_up, 2 * width, t->slot_gate_up + width, 2 * width, t->slot_act, slots,
                     (int)width);
    expert_products(s, p->rows, TRAIN_NT, t->slot_act, l->experts_down, c->hidden, t->slot_out);
    cuda_train_mix(&s->launch, t->slot_out, &t->routing, 1, t->mixed, p->rows, c->hidden);
}

static void feed_forward(backend_restoration_trainer *s, const distil_pass *p, int layer) {
    const model_config *c = s->m->config;
    const distil_layer *l = &s->layer[layer];
    distil_tape *t = &s->tape;
    size_t hidden = (size_t)c->hidden, width = (size_t)c->layer[layer].intermediate;
    norm(s, p, t->h1, l->pre_ffn_norm, NULL, t->x2);
    train_forward(s, t->x2, hidden, p->rows, l->gate, t->gate_up, 2 * width);
    train_forward(s, t->x2, hidden, p->rows, l->up, t->gate_up + width, 2 * width);
    cuda_train_gated(&s->launch, t->gate_up, 2 * width, t->gate_up + width, 2 * width, t->act, p->rows, (int)width);
    train_forward(s, t->act, width, p->rows, l->down, t->dense, hidden);
    const float *both = t->dense;
    if (c->moe) {
        experts_forward(s, p, layer);
        norm(s, p, t->dense, l->post_ffn_norm_1, NULL, t->h2);
        norm(s, p, t->mixed, l->post_ffn_norm_2, t->h2, t->both);
        both = t->both;
    }
    norm(s, p, both, l->post_ffn_norm, t->h1, t->h2);
}

static void experts_back(backend_restoration_trainer *s, int layer) {
    const model_config *c = s->m->config;
    const distil_layer *l = &s->layer[layer];
    const distil_pass *p = &s->student;
    distil_tape *t = &s->tape;
    size_t width = (size_t)c->expert_intermediate;
    int slots = p->rows * c->experts_per_token;
    norm_back(s, t->mixed, l->post_ffn_norm_2, s->d_both, s->d_branch, true);
    cuda_train_unmix(&s->launch, s->d_branch, t->slot_out, l->router_expert_scale, &t->routing, s->d_slot,
                     s->d_router_z, p->rows, c->hidden);
    expert_products(s, p->rows, TRAIN_NN, s->d_slot, l->experts_down, c->hidden, s->d_slot_act);
    cuda_train_gated_back(&s->launch, t->slot_gate_up, 2 * width, t->slot_gate_up + width, 2 * width, s->d_slot_act,
                          s->d_slot_gate_up, 2 * width, s->d_slot_gate_up + width, slots, (int)width);
    expert_products(s, p->rows, TRAIN_NN, s->d_slot_gate_up, l->experts_gate_up, (int)(2 * width), s->d_slot_x);
    train_back(s, s->d_router_z, (size_t)c->experts, p->rows, l->router, s->d_x, false);
    norm_back(s, t->h1, l->router_norm, s->d_x, s->d_h, false);
    cuda_train_mix(&s->launch, s->d_slot_x, &t->routing, 0, s->d_x, p->rows, c->hidden);
    norm_back(s, t->h1, l->pre_ffn_norm_2, s->d_x, s->d_h, false);
}

/* From d_h, the gradient of h2, to that of h1. */
static void feed_forward_back(backend_restoration_trainer *s, int layer) {
    const model_config *c = s->m->config;
    const distil_layer *l = &s->layer[layer];
    const distil_pass *p = &s->student;
    distil_tape *t = &s->tape;
    size_t width = (size_t)c->layer[layer].intermediate;
    const float *d_dense = s->d_both;
    norm_back(s, c->moe ? t->both : t->dense, l->post_ffn_norm, s->d_h, s->d_both, true);
    if (c->moe) {
        norm_back(s, t->dense, l->post_ffn_norm_1, s->d_both, s->d_branch, true);
        d_dense = s->d_branch;
    }
    train_back(s, d_dense, (size_t)c->hidden, p->rows, l->down, s->d_act, false);
    cuda_train_gated_back(&s->launch, t->gate_up, 2 * width, t->gate_up + width, 2 * width, s->d_act, s->d_gate_up,
                          2 * width, s->d_gate_up + width, p->rows, (int)width);
    train_back(s, s->d_gate_up, 2 * width, p->rows, l->gate, s->d_x, false);
    train_back(s, s->d_gate_up + width, 2 * width, p->rows, l->up, s->d_x, true);
    norm_back(s, t->h1, l->pre_ffn_norm, s->d_x, s->d_h, false);
    if (c->moe) experts_back(s, layer);
}

/* ------------------------------------------------------------------------------------------------ per-layer inputs */

static const float *ple_of(const backend_restoration_trainer *s, int layer) {
    return s->ple + (size_t)layer * (size_t)s->m->config->ple_width;
}

/* out = h2 and what the layer's own inputs add. */
static void ple_forward(backend_restoration_trainer *s, const distil_pass *p, int layer, float *out) {
    const model_config *c = s->m->config;
    const distil_layer *l = &s->layer[layer];
    distil_tape *t = &s->tape;
    size_t hidden = (size_t)c->hidden, width = (size_t)c->ple_width;
    train_forward(s, t->h2, hidden, p->rows, l->ple_gate, t->ple_gate, width);
    cuda_train_gated(&s->launch, t->ple_gate, width, ple_of(s, layer), (size_t)c->layers * width, t->ple_act, p->rows,
                     c->ple_width);
    train_forward(s, t->ple_act, width, p->rows, l->ple_proj, t->ple_out, hidden);
    norm(s, p, t->ple_out, l->post_ple_norm, t->h2, out);
}

static void ple_back(backend_restoration_trainer *s, int layer) {
    const model_config *c = s->m->config;
    const distil_layer *l = &s->layer[layer];
    const distil_pass *p = &s->student;
    size_t width = (size_t)c->ple_width;
    norm_back(s, s->tape.ple_out, l->post_ple_norm, s->d_h, s->d_branch, true);
    train_back(s, s->d_branch, (size_t)c->hidden, p->rows, l->ple_proj, s->d_act, false);
    cuda_train_gated_back(&s->launch, s->tape.ple_gate, width, ple_of(s, layer), (size_t)c->layers * width, s->d_act,
                          s->d_act, width, NULL, p->rows, c->ple_width);
    train_back(s, s->d_act, width, p->rows, l->ple_gate, s->d_h, true);
}

/* --------------------------------------------------------------------------------------------------------- layer */

void train_layer_forward(backend_restoration_trainer *s, const distil_pass *p, int layer, const float *in, float *out) {
    const model_config *c = s->m->config;
    s->tape = s->keeps && !p->teacher ? s->kept[layer] : s->common;
    attention_forward(s, p, layer, in);
    feed_forward(s, p, layer);
    if (c->ple_width)
        ple_forward(s, p, layer, out);
    else
        distil_copy(s, out, s->tape.h2, values(p, c->hidden));
    float scalar = s->m->options.verifier->weights.layer[layer].layer_scalar;
    if (scalar != 1) cuda_train_scale(&s->launch, out, scalar, values(p, c->hidden));
}

void train_layer_back(backend_restoration_trainer *s, int layer) {
    const model_config *c = s->m->config;
    const distil_pass *p = &s->student;
    if (s->keeps)
        s->tape = s->kept[layer];
    else
        train_layer_forward(s, p, layer, s->layer[layer].input, s->spare);
    float scalar = s->m->options.verifier->weights.layer[layer].layer_scalar;
    if (scalar != 1) cuda_train_scale(&s->launch, s->d_h, scalar, values(p, c->hidden));
    if (c->ple_width) ple_back(s, layer);
    feed_forward_back(s, layer);
    attention_back(s, layer);
}

void train_compare_attention(backend_restoration_trainer *s, int layer, bool learns) {
    const distil_layer *l = &s->layer[layer];
    const distil_pass *p = &s->student;
    int hidden = s->m->config->hidden;
    size_t q_dim = (size_t)distil_q_dim(s, layer), n = (size_t)p->rows;
    distil_copy(s, s->tape.q, l->native_q, n * q_dim);
    attend(s, p, layer);
    train_forward(s, s->tape.o, q_dim, p->rows, l->o, s->tape.out, (size_t)hidden);
    distil_zero(s, s->d_branch, n * (size_t)hidden);
    const train_share share = {.x = s->tape.out,
                               .target = l->native_out,
                               .d = s->d_branch,
                               .segments = p->items,
                               .rows = s->o.rows,
                               .n = hidden,
                               .out = s->results + RESULT_LOSS,
                               .stride = DISTIL_RESULTS,
                               .parts = s->share_parts,
                               .by = 1,
                               .scale = s->scale,
                               .mean = 1,
                               .factor = s->factor[s->m->config->layer[layer].type]};
    cuda_train_square_share(&s->launch, &share);
    if (!learns) return;
    train_back(s, s->d_branch, (size_t)hidden, p->rows, l->o, s->d_o, false);
    attend_back(s, layer);
}
