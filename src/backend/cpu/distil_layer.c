/* One decoder layer over a segment's rows (the order of operations is forward.c's), and the way back through it. */
#include <math.h>
#include <string.h>

#include "backend/cpu/backward.h"
#include "backend/cpu/distil.h"
#include "backend/cpu/matrix.h"

/* A norm over rows of `hidden` values. */
typedef struct norm_work {
    const float *x, *gain;
    float *out;         /* of the norm, or the gradient of x, which is added to */
    const float *d_out; /* NULL on the way there */
    bool set;           /* the gradient is set, not added to */
} norm_work;

static void norm_row(backend_restoration_trainer *s, void *context, int row) {
    const norm_work *w = context;
    int hidden = s->m->config->hidden;
    float eps = s->m->config->rms_eps;
    size_t at = (size_t)row * (size_t)hidden;
    if (!w->d_out) {
        s->m->kernels->rms_norm(w->x + at, w->gain, hidden, eps, w->out + at);
        return;
    }
    if (w->set) memset(w->out + at, 0, (size_t)hidden * sizeof *w->out);
    backward_rms_norm(w->x + at, w->gain, w->d_out + at, hidden, eps, w->out + at);
}

static void norm(backend_restoration_trainer *s, const float *x, const float *gain, float *out) {
    norm_work work = {x, gain, out, NULL, false};
    distil_rows(s, s->o.rows, norm_row, &work);
}

static void norm_back(backend_restoration_trainer *s, const float *x, const float *gain, const float *d_out, float *d_x,
                      bool set) {
    norm_work work = {x, gain, d_x, d_out, set};
    distil_rows(s, s->o.rows, norm_row, &work);
}

static void add_rows(const backend_restoration_trainer *s, const float *x, float *to) {
    size_t n = (size_t)s->o.rows * (size_t)s->m->config->hidden;
    for (size_t i = 0; i < n; i++) to[i] += x[i];
}

/* -------------------------------------------------------------------------------------------------------- input */

static void embed_row(backend_restoration_trainer *s, void *context, int row) {
    (void)context;
    const model_config *c = s->m->config;
    float *h = s->embedded + (size_t)row * (size_t)c->hidden;
    load_row(s->m, &s->m->weights->embed, s->tokens[s->segment.first + row], 0, c->hidden, h);
    s->m->kernels->scale(s->m->embed_scale, c->hidden, h);
}

static void ple_row(backend_restoration_trainer *s, void *context, int row) {
    (void)context;
    const backend_model *m = s->m;
    const model_config *c = m->config;
    int width = c->ple_width;
    float *out = s->ple + (size_t)row * (size_t)c->layers * (size_t)width;
    float *table = s->sink + (size_t)row * (size_t)width;
    for (int l = 0; l < c->layers; l++, out += width) {
        m->kernels->scale(1.0f / sqrtf((float)c->hidden), width, out);
        m->kernels->rms_norm(out, m->weights->ple_proj_norm, width, c->rms_eps, out);
        load_row(m, &m->weights->ple_embed, s->tokens[s->segment.first + row], l * width, width, table);
        for (int j = 0; j < width; j++) out[j] = (out[j] + table[j] * sqrtf((float)width)) * sqrtf(0.5f);
    }
}

void distil_embed(backend_restoration_trainer *s) {
    const model_config *c = s->m->config;
    distil_rows(s, s->o.rows, embed_row, NULL);
    if (!c->ple_width) return;
    distil_product(s, s->embedded, (size_t)c->hidden, s->o.rows, &s->m->weights->ple_model_proj, s->ple,
                   (size_t)c->layers * (size_t)c->ple_width);
    distil_rows(s, s->o.rows, ple_row, NULL);
}

/* ---------------------------------------------------------------------------------------------------- attention */

/* Head norms and RoPE of the rows' queries and own K/V. */
static void head_row(backend_restoration_trainer *s, void *context, int row) {
    int layer = *(const int *)context;
    const backend_model *m = s->m;
    const layer_config *c = &m->config->layer[layer];
    const layer_weights *w = &m->weights->layer[layer];
    const rope_table *rope = &m->rope[c->type];
    const distil_layer *l = &s->layer[layer];
    size_t d = (size_t)c->head_dim, q_dim = distil_q_dim(s, layer), kv = distil_kv_dim(s, layer),
           angle = (size_t)(s->segment.first + row) * (size_t)rope->pairs;
    float eps = m->config->rms_eps;
    for (size_t at = (size_t)row * q_dim; at < ((size_t)row + 1) * q_dim; at += d) {
        m->kernels->rms_norm(s->tape.q_raw + at, w->q_norm, c->head_dim, eps, s->tape.q + at);
        m->kernels->rope(s->tape.q + at, rope->half, rope->pairs, rope->cosine + angle, rope->sine + angle);
    }
    if (c->kv_source != layer) return;
    for (size_t at = (size_t)row * kv; at < ((size_t)row + 1) * kv; at += d) {
        norm_values(m, l->own_raw[c->k_eq_v ? 0 : 1] + at, c->head_dim, l->own[1] + at);
        m->kernels->rms_norm(l->own_raw[0] + at, w->k_norm, c->head_dim, eps, l->own[0] + at);
        m->kernels->rope(l->own[0] + at, rope->half, rope->pairs, rope->cosine + angle, rope->sine + angle);
    }
}

static void attention_forward(backend_restoration_trainer *s, int layer) {
    const model_config *c = s->m->config;
    const layer_weights *w = &s->m->weights->layer[layer];
    distil_layer *l = &s->layer[layer];
    distil_tape *t = &s->tape;
    size_t hidden = (size_t)c->hidden, q_dim = distil_q_dim(s, layer), kv = distil_kv_dim(s, layer);
    int n = s->o.rows;
    norm(s, l->input, w->input_norm, t->x);
    distil_product(s, t->x, hidden, n, &w->q_proj, t->q_raw, q_dim);
    if (c->layer[layer].kv_source == layer) {
        distil_product(s, t->x, hidden, n, &w->k_proj, l->own_raw[0], kv);
        if (!c->layer[layer].k_eq_v) distil_product(s, t->x, hidden, n, &w->v_proj, l->own_raw[1], kv);
    }
    distil_rows(s, n, head_row, &layer);
    distil_attend(s, layer, false);
    distil_product(s, t->o, q_dim, n, &w->o_proj, t->out, hidden);
    norm(s, t->out, w->post_attention_norm, t->added);
    memcpy(t->h1, l->input, (size_t)n * hidden * sizeof *t->h1);
    add_rows(s, t->added, t->h1);
}

/* Gradients of queries and own K/V to those of the raw ones. */
static void head_row_back(backend_restoration_trainer *s, void *context, int row) {
    int layer = *(const int *)context;
    const backend_model *m = s->m;
    const layer_config *c = &m->config->layer[layer];
    const layer_weights *w = &m->weights->layer[layer];
    const rope_table *rope = &m->rope[c->type];
    const distil_layer *l = &s->layer[layer];
    size_t d = (size_t)c->head_dim, q_dim = distil_q_dim(s, layer), kv = distil_kv_dim(s, layer),
           angle = (size_t)(s->segment.first + row) * (size_t)rope->pairs;
    const float *cosine = rope->cosine + angle, *sine = rope->sine + angle;
    float eps = m->config->rms_eps, *d_raw = s->d_o; /* spent by then */
    memset(d_raw + (size_t)row * q_dim, 0, q_dim * sizeof *d_raw);
    for (size_t at = (size_t)row * q_dim; at < ((size_t)row + 1) * q_dim; at += d) {
        backward_rope(s->d_q + at, rope->half, rope->pairs, cosine, sine);
        backward_rms_norm(s->tape.q_raw + at, w->q_norm, s->d_q + at, c->head_dim, eps, d_raw + at);
    }
    if (c->kv_source != layer) return;
    size_t all = (size_t)s->o.rows * kv;
    memset(s->d_kv + (size_t)row * kv, 0, kv * sizeof *s->d_kv);
    memset(s->d_kv + all + (size_t)row * kv, 0, kv * sizeof *s->d_kv);
    for (size_t at = (size_t)row * kv; at < ((size_t)row + 1) * kv; at += d) {
        backward_rope(l->d_own[0] + at, rope->half, rope->pairs, cosine, sine);
        backward_rms_norm(l->own_raw[0] + at, w->k_norm, l->d_own[0] + at, c->head_dim, eps, s->d_kv + at);
        norm_values_back(m, l->own_raw[c->k_eq_v ? 0 : 1] + at, l->d_own[1] + at, c->head_dim,
                         s->d_kv + (c->k_eq_v ? 0 : all) + at);
    }
}

/* From d_h, the gradient of h1, to that of the layer's input. */
static void attention_back(backend_restoration_trainer *s, int layer) {
    const model_config *c = s->m->config;
    const layer_weights *w = &s->m->weights->layer[layer];
    distil_layer *l = &s->layer[layer];
    distil_tape *t = &s->tape;
    size_t hidden = (size_t)c->hidden, q_dim = distil_q_dim(s, layer), kv = distil_kv_dim(s, layer);
    size_t all = (size_t)s->o.rows * hidden;
    int n = s->o.rows;
    memcpy(s->d_both, s->d_h, all * sizeof *s->d_both); /* of what attention adds */
    if (s->o.attention > 0)
        distil_share(s, t->added, l->native_added, s->segment.scale * s->o.attention / (float)c->layers, s->d_both);
    norm_back(s, t->out, w->post_attention_norm, s->d_both, s->d_branch, true);
    distil_product(s, s->d_branch, hidden, n, &l->o_t, s->d_o, q_dim);
    distil_attend_back(s, layer);
    distil_rows(s, n, head_row_back, &layer);
    distil_product(s, s->d_o, q_dim, n, &l->q_t, s->d_x, hidden);
    if (c->layer[layer].kv_source == layer) {
        distil_product_add(s, s->d_kv, kv, n, &l->k_t, s->d_x, s->product);
        if (!c->layer[layer].k_eq_v)
            distil_product_add(s, s->d_kv + (size_t)n * kv, kv, n, &l->v_t, s->d_x, s->product);
    }
    norm_back(s, l->input, w->input_norm, s->d_x, s->d_h, false);
}

/* -------------------------------------------------------------------------------------------------- feed forward */

static void activate_row(backend_restoration_trainer *s, void *context, int row) {
    size_t width = (size_t)s->m->config->layer[*(const int *)context].intermediate;
    const float *gate = s->tape.gate_up + (size_t)row * 2 * width;
    s->m->kernels->gated(0, gate, gate + width, (int)width, s->tape.act + (size_t)row * width);
}

static void feed_forward(backend_restoration_trainer *s, int layer) {
    const model_config *c = s->m->config;
    const layer_weights *w = &s->m->weights->layer[layer];
    distil_tape *t = &s->tape;
    size_t hidden = (size_t)c->hidden, width = (size_t)c->layer[layer].intermediate;
    int n = s->o.rows;
    norm(s, t->h1, w->pre_ffn_norm, t->x2);
    distil_product(s, t->x2, hidden, n, &w->gate_proj, t->gate_up, 2 * width);
    distil_product(s, t->x2, hidden, n, &w->up_proj, t->gate_up + width, 2 * width);
    distil_rows(s, n, activate_row, &layer);
    distil_product(s, t->act, width, n, &w->down_proj, t->dense, hidden);
    if (c->moe) {
        distil_experts(s, layer);
        norm(s, t->dense, w->post_ffn_norm_1, t->both);
        norm(s, t->mixed, w->post_ffn_norm_2, t->h2);
        add_rows(s, t->h2, t->both);
    } else {
        memcpy(t->both, t->dense, (size_t)n * hidden * sizeof *t->both);
    }
    norm(s, t->both, w->post_ffn_norm, t->h2);
    add_rows(s, t->h1, t->h2);
}

static void deactivate_row(backend_restoration_trainer *s, void *context, int row) {
    size_t width = (size_t)s->m->config->layer[*(const int *)context].intermediate, at = (size_t)row * 2 * width;
    backward_gated(s->tape.gate_up + at, s->tape.gate_up + at + width, s->d_act + (size_t)row * width, (int)width,
                   s->d_gate_up + at, s->d_gate_up + at + width);
}

/* From d_h, the gradient of h2, to that of h1. */
static void feed_forward_back(backend_restoration_trainer *s, int layer) {
    const model_config *c = s->m->config;
    const layer_weights *w = &s->m->weights->layer[layer];
    distil_layer *l = &s->layer[layer];
    distil_tape *t = &s->tape;
    size_t hidden = (size_t)c->hidden, width = (size_t)c->layer[layer].intermediate;
    int n = s->o.rows;
    norm_back(s, t->both, w->post_ffn_norm, s->d_h, s->d_both, true);
    const float *d_dense = s->d_both;
    if (c->moe) {
        norm_back(s, t->dense, w->post_ffn_norm_1, s->d_both, s->d_branch, true);
        d_dense = s->d_branch;
    }
    distil_product(s, d_dense, hidden, n, &l->down_t, s->d_act, width);
    distil_rows(s, n, deactivate_row, &layer);
    distil_product(s, s->d_gate_up, 2 * width, n, &l->gate_t, s->d_x, hidden);
    distil_product_add(s, s->d_gate_up + width, 2 * width, n, &l->up_t, s->d_x, s->product);
    norm_back(s, t->h1, w->pre_ffn_norm, s->d_x, s->d_h, false);
    if (!c->moe) return;
    norm_back(s, t->mixed, w->post_ffn_norm_2, s->d_both, s->d_branch, true);
    distil_experts_back(s, layer, s->d_branch, s->d_h);
}

/* ------------------------------------------------------------------------------------------------ per-layer inputs */

typedef struct ple_work {
    int layer;
    bool back;
} ple_work;

static void ple_gate_row(backend_restoration_trainer *s, void *context, int row) {
    const ple_work *w = context;
    const model_config *c = s->m->config;
    size_t width = (size_t)c->ple_width, at = (size_t)row * width;
    const float *input = s->ple + ((size_t)row * (size_t)c->layers + (size_t)w->layer) * width;
    if (w->back)
        backward_gated(s->tape.ple_gate + at, input, s->d_act + at, c->ple_width, s->d_act + at, NULL);
    else
        s->m->kernels->gated(0, s->tape.ple_gate + at, input, c->ple_width, s->tape.ple_act + at);
}

/* `out` = h2 and what the layer's own inputs add. */
static void ple_forward(backend_restoration_trainer *s, int layer, float *out) {
    const model_config *c = s->m->config;
    const layer_weights *w = &s->m->weights->layer[layer];
    distil_tape *t = &s->tape;
    size_t hidden = (size_t)c->hidden, width = (size_t)c->ple_width;
    ple_work work = {layer, false};
    distil_product(s, t->h2, hidden, s->o.rows, &w->ple_gate, t->ple_gate, width);
    distil_rows(s, s->o.rows, ple_gate_row, &work);
    distil_product(s, t->ple_act, width, s->o.rows, &w->ple_proj, t->ple_out, hidden);
    norm(s, t->ple_out, w->post_ple_norm, out);
    add_rows(s, t->h2, out);
}

static void ple_back(backend_restoration_trainer *s, int layer) {
    const model_config *c = s->m->config;
    distil_layer *l = &s->layer[layer];
    size_t hidden = (size_t)c->hidden, width = (size_t)c->ple_width;
    ple_work work = {layer, true};
    norm_back(s, s->tape.ple_out, s->m->weights->layer[layer].post_ple_norm, s->d_h, s->d_branch, true);
    distil_product(s, s->d_branch, hidden, s->o.rows, &l->ple_proj_t, s->d_act, width);
    distil_rows(s, s->o.rows, ple_gate_row, &work);
    distil_product_add(s, s->d_act, width, s->o.rows, &l->ple_gate_t, s->d_h, s->product);
}

/* --------------------------------------------------------------------------------------------------------- layer */

void distil_layer_forward(backend_restoration_trainer *s, int layer, float *out) {
    const model_config *c = s->m->config;
    size_t all = (size_t)s->o.rows * (size_t)c->hidden;
    attention_forward(s, layer);
    feed_forward(s, layer);
    if (c->ple_width)
        ple_forward(s, layer, out);
    else
        memcpy(out, s->tape.h2, all * sizeof *out);
    float scalar = s->m->weights->layer[layer].layer_scalar;
    for (size_t i = 0; i < all; i++) out[i] *= scalar;
}

void distil_layer_back(backend_restoration_trainer *s, int layer) {
    const model_config *c = s->m->config;
    size_t all = (size_t)s->o.rows * (size_t)c->hidden;
    distil_layer_forward(s, layer, s->sink);
    float scalar = s->m->weights->layer[layer].layer_scalar;
    for (size_t i = 0; i < all; i++) s->d_h[i] *= scalar;
    if (c->ple_width) ple_back(s, layer);
    feed_forward_back(s, layer);
    attention_back(s, layer);
}
