/* A pass of all chains (backend/program/assistant.c), and the way back through it. */
#include <math.h>
#include <string.h>

#include "backend/cpu/backward.h"
#include "backend/cpu/chains.h"
#include "backend/cpu/matrix.h"

/* ---------------------------------------------------------------------------------------------------------- rows */

typedef struct each_work {
    chain_learner *l;
    chain_task task;
    void *context;
} each_work;

static void each_range(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const each_work *w = context;
    for (size_t row = begin; row < end; row++) w->task(w->l, w->context, (int)row);
}

void chain_each(chain_learner *l, int n, chain_task task, void *context) {
    each_work work = {l, task, context};
    thread_pool_for(l->m->pool, (size_t)n, 8, each_range, &work);
}

/* A norm of rows of h values, added to `onto` where there is one; the way back, added to `out`. */
typedef struct norm_work {
    const float *x, *gain, *d_out, *onto;
    float *out;
} norm_work;

static void norm_row(chain_learner *l, void *context, int row) {
    const norm_work *w = context;
    int n = l->c.stack.hidden;
    size_t at = (size_t)row * (size_t)n;
    l->m->kernels->rms_norm(w->x + at, w->gain, n, l->c.stack.rms_eps, w->out + at);
    for (int i = 0; i < n && w->onto; i++) w->out[at + (size_t)i] += w->onto[at + (size_t)i];
}

static void norm_rows(chain_learner *l, const float *x, const float *gain, const float *onto, float *out) {
    norm_work work = {.x = x, .gain = gain, .onto = onto, .out = out};
    chain_each(l, l->chains, norm_row, &work);
}

static void unnorm_row(chain_learner *l, void *context, int row) {
    const norm_work *w = context;
    int n = l->c.stack.hidden;
    size_t at = (size_t)row * (size_t)n;
    backward_rms_norm(w->x + at, w->gain, w->d_out + at, n, l->c.stack.rms_eps, w->out + at);
}

/* d_x is added to, and so is the gain's gradient. */
static void norm_back(chain_learner *l, const float *x, const float *gain, const float *d_out, float *d_x,
                      const float *d_gain) {
    norm_work work = {.x = x, .gain = gain, .d_out = d_out, .out = d_x};
    int n = l->c.stack.hidden;
    chain_each(l, l->chains, unnorm_row, &work);
    for (int row = 0; row < l->chains; row++) {
        size_t at = (size_t)row * (size_t)n;
        backward_rms_gain(x + at, d_out + at, n, l->c.stack.rms_eps, chain_vector(d_gain));
    }
}

/* Norm and RoPE of the heads of a pass's queries; all passes of a chain stand at one position. */
typedef struct head_work {
    const float *raw, *gain;
    float *out; /* or its gradient, in place that of `raw` */
    int d;
    const rope_table *rope;
} head_work;

static size_t angle_of(const chain_learner *l, const head_work *w, int row) {
    return (size_t)l->first[row] * (size_t)w->rope->pairs;
}

static void heads_row(chain_learner *l, void *context, int row) {
    const head_work *w = context;
    size_t angle = angle_of(l, w, row), d = (size_t)w->d, heads = (size_t)l->c.stack.heads;
    for (size_t at = (size_t)row * heads * d; at < ((size_t)row + 1) * heads * d; at += d) {
        l->m->kernels->rms_norm(w->raw + at, w->gain, w->d, l->c.stack.rms_eps, w->out + at);
        l->m->kernels->rope(w->out + at, w->rope->half, w->rope->pairs, w->rope->cosine + angle, w->rope->sine + angle);
    }
}

static void unturn_row(chain_learner *l, void *context, int row) {
    const head_work *w = context;
    size_t angle = angle_of(l, w, row), d = (size_t)w->d, heads = (size_t)l->c.stack.heads;
    for (size_t at = (size_t)row * heads * d; at < ((size_t)row + 1) * heads * d; at += d)
        backward_rope(w->out + at, w->rope->half, w->rope->pairs, w->rope->cosine + angle, w->rope->sine + angle);
}

enum { MAX_HEAD_DIM = 4096 };

static void unnorm_heads(chain_learner *l, void *context, int row) {
    const head_work *w = context;
    size_t d = (size_t)w->d, heads = (size_t)l->c.stack.heads;
    float out[MAX_HEAD_DIM];
    for (size_t at = (size_t)row * heads * d; at < ((size_t)row + 1) * heads * d; at += d) {
        memset(out, 0, d * sizeof *out);
        backward_rms_norm(w->raw + at, w->gain, w->out + at, w->d, l->c.stack.rms_eps, out);
        memcpy(w->out + at, out, d * sizeof *out);
    }
}

static head_work heads_of(chain_learner *l, int pass, int layer, float *out) {
    size_t at = chain_row(l, pass) * (size_t)chain_q(l, layer);
    const gemma4_layer_config *c = &l->c.stack.layer[layer];
    return (head_work){l->layer[layer].q_raw + at, l->w.weights.stack.layer[layer].q_norm, out + at, c->head_dim,
                       &l->m->rope[c->type]};
}

/* --------------------------------------------------------------------------------------------------------- there */

static void embed_row(chain_learner *l, void *context, int row) {
    int pass = *(const int *)context;
    const learner_sequence *s = chain_sequence(l, row);
    size_t backbone = (size_t)l->c.backbone, from = chain_row(l, pass) + (size_t)row;
    int at = l->first[row] + pass;
    float *pair = l->pair + from * 2 * backbone;
    load_row(l->m, &l->m->weights->embed, at < s->n ? s->tokens[at] : 0, 0, (int)backbone, pair);
    l->m->kernels->scale(l->m->embed_scale, (int)backbone, pair);
    if (!pass) memcpy(pair + backbone, s->aux + (size_t)(l->first[row] - 1) * l->seen.width, backbone * sizeof *pair);
}

typedef struct act_work {
    chain_layer *layer;
    size_t from, width;
} act_work;

static void activate_row(chain_learner *l, void *context, int row) {
    const act_work *w = context;
    size_t at = w->from + (size_t)row;
    const float *gate = w->layer->gate_up + at * 2 * w->width;
    l->m->kernels->gated(0, gate, gate + w->width, (int)w->width, w->layer->act + at * w->width);
}

static float *stream_of(const chain_learner *l, int layer, int pass) {
    size_t rows = (size_t)(l->chains * l->passes);
    return l->stream + ((size_t)layer * rows + chain_row(l, pass)) * (size_t)l->c.stack.hidden;
}

static void run_layer(chain_learner *l, int pass, int index) {
    const gemma4_layer_weights *w = &l->w.weights.stack.layer[index];
    const train_products *p = &l->products;
    chain_layer *x = &l->layer[index];
    int n = l->chains;
    size_t hidden = (size_t)l->c.stack.hidden, q = (size_t)chain_q(l, index),
           width = (size_t)l->c.stack.layer[index].intermediate, from = chain_row(l, pass), at = from * hidden;
    const float *in = stream_of(l, index, pass);
    norm_rows(l, in, w->input_norm, NULL, x->x + at);
    train_product(p, x->x + at, hidden, n, &w->q_proj, x->q_raw + from * q, q);
    head_work queries = heads_of(l, pass, index, x->q);
    chain_each(l, n, heads_row, &queries);
    chain_attend(l, pass, index);
    train_product(p, x->o + from * q, q, n, &w->o_proj, x->attended + at, hidden);
    norm_rows(l, x->attended + at, w->post_attention_norm, in, x->middle + at);
    norm_rows(l, x->middle + at, w->pre_ffn_norm, NULL, x->x2 + at);
    float *gate_up = x->gate_up + from * 2 * width;
    train_product(p, x->x2 + at, hidden, n, &w->gate_proj, gate_up, 2 * width);
    train_product(p, x->x2 + at, hidden, n, &w->up_proj, gate_up + width, 2 * width);
    act_work act = {x, from, width};
    chain_each(l, n, activate_row, &act);
    train_product(p, x->act + from * width, width, n, &w->down_proj, x->fed + at, hidden);
    norm_rows(l, x->fed + at, w->post_ffn_norm, x->middle + at, x->sum + at);
    float *out = stream_of(l, index + 1, pass);
    for (size_t i = 0; i < (size_t)n * hidden; i++) out[i] = w->layer_scalar * x->sum[at + i];
}

void chain_pass(chain_learner *l, int pass) {
    const assistant_weights *w = &l->w.weights;
    size_t hidden = (size_t)l->c.stack.hidden, pair = 2 * (size_t)l->c.backbone, from = chain_row(l, pass);
    chain_each(l, l->chains, embed_row, &pass);
    train_product(&l->products, l->pair + from * pair, pair, l->chains, &w->pre_projection, stream_of(l, 0, pass),
                  hidden);
    for (int i = 0; i < l->c.stack.layers; i++) run_layer(l, pass, i);
    norm_rows(l, stream_of(l, l->c.stack.layers, pass), w->stack.final_norm, NULL, l->normed + from * hidden);
    if (pass + 1 < l->passes)
        train_product(&l->products, l->normed + from * hidden, hidden, l->chains, &w->post_projection,
                      l->pair + chain_row(l, pass + 1) * pair + l->c.backbone, pair);
}

/* ---------------------------------------------------------------------------------------------------------- back */

static void deactivate_row(chain_learner *l, void *context, int row) {
    const act_work *w = context;
    size_t at = (w->from + (size_t)row) * 2 * w->width;
    const float *gate = w->layer->gate_up + at;
    float *d = w->layer->d_gate_up + at;
    backward_gated(gate, gate + w->width, l->d_act + (size_t)row * w->width, (int)w->width, d, d + w->width);
}

/* d_stream: of the layer's output, then of the stream behind attention. */
static void feed_forward_back(chain_learner *l, int pass, int index) {
    const gemma4_layer_weights *w = &l->w.weights.stack.layer[index], *g = &l->gradient.weights.stack.layer[index];
    const train_products *p = &l->products;
    chain_layer *x = &l->layer[index];
    int n = l->chains;
    size_t hidden = (size_t)l->c.stack.hidden, width = (size_t)l->c.stack.layer[index].intermediate,
           from = chain_row(l, pass), at = from * hidden, all = (size_t)n * hidden;
    double along = 0;
    for (size_t i = 0; i < all; i++) {
        along += (double)l->d_stream[i] * (double)x->sum[at + i];
        l->d_stream[i] *= w->layer_scalar;
    }
    *l->gradient.scalar[index] += (float)along;
    memset(x->d_fed + at, 0, all * sizeof *x->d_fed);
    norm_back(l, x->fed + at, w->post_ffn_norm, l->d_stream, x->d_fed + at, g->post_ffn_norm);
    train_product(p, x->d_fed + at, hidden, n, &l->turned.layer[index].down, l->d_act, width);
    act_work act = {x, from, width};
    chain_each(l, n, deactivate_row, &act);
    const float *d_gate_up = x->d_gate_up + from * 2 * width;
    train_product(p, d_gate_up, 2 * width, n, &l->turned.layer[index].gate, l->d_x, hidden);
    train_product_add(p, d_gate_up + width, 2 * width, n, &l->turned.layer[index].up, l->d_x);
    norm_back(l, x->middle + at, w->pre_ffn_norm, l->d_x, l->d_stream, g->pre_ffn_norm);
}

static void layer_back(chain_learner *l, int pass, int index) {
    const gemma4_layer_weights *w = &l->w.weights.stack.layer[index], *g = &l->gradient.weights.stack.layer[index];
    const train_products *p = &l->products;
    chain_layer *x = &l->layer[index];
    int n = l->chains, d = l->c.stack.layer[index].head_dim;
    size_t hidden = (size_t)l->c.stack.hidden, q = (size_t)chain_q(l, index), from = chain_row(l, pass),
           at = from * hidden;
    feed_forward_back(l, pass, index);
    memset(x->d_attended + at, 0, (size_t)n * hidden * sizeof *x->d_attended);
    norm_back(l, x->attended + at, w->post_attention_norm, l->d_stream, x->d_attended + at, g->post_attention_norm);
    train_product(p, x->d_attended + at, hidden, n, &l->turned.layer[index].o, l->d_o, q);
    chain_attend_back(l, pass, index);
    head_work queries = heads_of(l, pass, index, x->d_q);
    chain_each(l, n, unturn_row, &queries);
    for (size_t i = 0; i < (size_t)n * q; i += (size_t)d)
        backward_rms_gain(queries.raw + i, queries.out + i, d, l->c.stack.rms_eps, chain_vector(g->q_norm));
    chain_each(l, n, unnorm_heads, &queries);
    train_product(p, x->d_q + from * q, q, n, &l->turned.layer[index].q, l->d_x, hidden);
    norm_back(l, stream_of(l, index, pass), w->input_norm, l->d_x, l->d_stream, g->input_norm);
}

void chain_pass_back(chain_learner *l, int pass) {
    const train_products *p = &l->products;
    int n = l->chains, layers = l->c.stack.layers;
    size_t hidden = (size_t)l->c.stack.hidden, backbone = (size_t)l->c.backbone, from = chain_row(l, pass);
    if (pass + 1 < l->passes)
        train_product_add(p, l->d_state + from * backbone, backbone, n, &l->turned.post, l->d_normed + from * hidden);
    memset(l->d_stream, 0, (size_t)n * hidden * sizeof *l->d_stream);
    norm_back(l, stream_of(l, layers, pass), l->w.weights.stack.final_norm, l->d_normed + from * hidden, l->d_stream,
              l->gradient.weights.stack.final_norm);
    for (int i = layers - 1; i >= 0; i--) layer_back(l, pass, i);
    memcpy(l->d_h0 + from * hidden, l->d_stream, (size_t)n * hidden * sizeof *l->d_h0);
    if (pass)
        train_product(p, l->d_stream, hidden, n, &l->turned.state, l->d_state + chain_row(l, pass - 1) * backbone,
                      backbone);
}

/* Gradients of matrices: sums over the rows of all passes. */
void chain_sums(chain_learner *l) {
    const train_products *p = &l->products;
    const assistant_weights *g = &l->gradient.weights;
    int rows = l->chains * l->passes, hidden = l->c.stack.hidden, backbone = l->c.backbone;
    size_t h = (size_t)hidden, pair = 2 * (size_t)backbone;
    train_outer_add(p, l->d_h0, h, hidden, l->pair, pair, 2 * backbone, rows, chain_values(&g->pre_projection));
    train_outer_add(p, l->d_state, (size_t)backbone, backbone, l->normed, h, hidden, rows - l->chains,
                    chain_values(&g->post_projection));
    for (int i = 0; i < l->c.stack.layers; i++) {
        const gemma4_layer_weights *of = &g->stack.layer[i];
        const chain_layer *x = &l->layer[i];
        int q = chain_q(l, i), width = l->c.stack.layer[i].intermediate;
        size_t wide = 2 * (size_t)width;
        train_outer_add(p, x->d_q, (size_t)q, q, x->x, h, hidden, rows, chain_values(&of->q_proj));
        train_outer_add(p, x->d_attended, h, hidden, x->o, (size_t)q, q, rows, chain_values(&of->o_proj));
        train_outer_add(p, x->d_gate_up, wide, width, x->x2, h, hidden, rows, chain_values(&of->gate_proj));
        train_outer_add(p, x->d_gate_up + width, wide, width, x->x2, h, hidden, rows, chain_values(&of->up_proj));
        train_outer_add(p, x->d_fed, h, hidden, x->act, (size_t)width, width, rows, chain_values(&of->down_proj));
    }
}
