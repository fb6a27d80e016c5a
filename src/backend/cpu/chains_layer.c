/* A pass of all chains (backend/program/assistant.c), and the way back through it. */
#include <math.h>
#include <string.h>

#include "backend/cpu/chains.h"
#include "backend/cpu/matrix.h"

static train_norms norms_of(const chain_trainer *l) {
    return (train_norms){l->m, l->chains, l->c.stack.hidden, l->c.stack.rms_eps};
}

/* A pass's queries; all passes of a chain stand at one position. */
static train_heads heads_of(const chain_trainer *l, int pass, int layer, float *out) {
    size_t at = chain_row(l, pass) * (size_t)chain_q(l, layer);
    const model_config *s = &l->c.stack;
    const layer_config *c = &s->layer[layer];
    const float *raw = l->layer[layer].q_raw + at, *gain = l->w.weights.stack.layer[layer].q_norm;
    const rope_table *rope = &l->m->rope[c->type];
    return (train_heads){l->m, raw, gain, out + at, rope, l->first, s->heads, c->head_dim, s->rms_eps, 1};
}

static train_gates gates_of(const chain_trainer *l, int pass, int layer) {
    const chain_layer *x = &l->layer[layer];
    size_t width = (size_t)l->c.stack.layer[layer].intermediate, at = chain_row(l, pass) * width;
    return (train_gates){l->m, x->gate_up + 2 * at, x->act + at, l->d_act, x->d_gate_up + 2 * at, width, false};
}

/* --------------------------------------------------------------------------------------------------------- there */

typedef struct embed_work {
    chain_trainer *l;
    int pass;
} embed_work;

static void embed_row(void *context, int row) {
    const embed_work *w = context;
    const chain_trainer *l = w->l;
    int pass = w->pass;
    const drafter_trainer_sequence *s = chain_sequence(l, row);
    size_t backbone = (size_t)l->c.backbone, from = chain_row(l, pass) + (size_t)row;
    int at = l->first[row] + pass;
    float *pair = l->pair + from * 2 * backbone;
    load_row(l->m, &l->m->weights->embed, at < s->n ? s->tokens[at] : 0, 0, (int)backbone, pair);
    l->m->kernels->scale(l->m->embed_scale, (int)backbone, pair);
    if (!pass) memcpy(pair + backbone, s->aux + (size_t)(l->first[row] - 1) * l->seen.width, backbone * sizeof *pair);
}

static float *stream_of(const chain_trainer *l, int layer, int pass) {
    size_t rows = (size_t)(l->chains * l->passes);
    return l->stream + ((size_t)layer * rows + chain_row(l, pass)) * (size_t)l->c.stack.hidden;
}

static void run_layer(chain_trainer *l, int pass, int index) {
    const layer_weights *w = &l->w.weights.stack.layer[index];
    const train_products *p = &l->products;
    chain_layer *x = &l->layer[index];
    int n = l->chains;
    size_t hidden = (size_t)l->c.stack.hidden, q = (size_t)chain_q(l, index),
           width = (size_t)l->c.stack.layer[index].intermediate, from = chain_row(l, pass), at = from * hidden;
    const float *in = stream_of(l, index, pass);
    train_norm(norms_of(l), in, w->input_norm, NULL, x->x + at);
    train_product(p, x->x + at, hidden, n, &w->q_proj, x->q_raw + from * q, q);
    train_turn_heads(heads_of(l, pass, index, x->q), n);
    chain_attend(l, pass, index);
    train_product(p, x->o + from * q, q, n, &w->o_proj, x->attended + at, hidden);
    train_norm(norms_of(l), x->attended + at, w->post_attention_norm, in, x->middle + at);
    train_norm(norms_of(l), x->middle + at, w->pre_ffn_norm, NULL, x->x2 + at);
    float *gate_up = x->gate_up + from * 2 * width;
    train_product(p, x->x2 + at, hidden, n, &w->gate_proj, gate_up, 2 * width);
    train_product(p, x->x2 + at, hidden, n, &w->up_proj, gate_up + width, 2 * width);
    train_gate(gates_of(l, pass, index), n);
    train_product(p, x->act + from * width, width, n, &w->down_proj, x->fed + at, hidden);
    train_norm(norms_of(l), x->fed + at, w->post_ffn_norm, x->middle + at, x->sum + at);
    float *out = stream_of(l, index + 1, pass);
    for (size_t i = 0; i < (size_t)n * hidden; i++) out[i] = w->layer_scalar * x->sum[at + i];
}

void chain_pass(chain_trainer *l, int pass) {
    const assistant_weights *w = &l->w.weights;
    size_t hidden = (size_t)l->c.stack.hidden, pair = 2 * (size_t)l->c.backbone, from = chain_row(l, pass);
    embed_work work = {l, pass};
    train_each(l->m, l->chains, embed_row, &work);
    train_product(&l->products, l->pair + from * pair, pair, l->chains, &w->pre_projection, stream_of(l, 0, pass),
                  hidden);
    for (int i = 0; i < l->c.stack.layers; i++) run_layer(l, pass, i);
    train_norm(norms_of(l), stream_of(l, l->c.stack.layers, pass), w->stack.final_norm, NULL,
               l->normed + from * hidden);
    if (pass + 1 < l->passes)
        train_product(&l->products, l->normed + from * hidden, hidden, l->chains, &w->post_projection,
                      l->pair + chain_row(l, pass + 1) * pair + l->c.backbone, pair);
}

/* ---------------------------------------------------------------------------------------------------------- back */

/* d_stream: of the layer's output, then of the stream behind attention. */
static void feed_forward_back(chain_trainer *l, int pass, int index) {
    const layer_weights *w = &l->w.weights.stack.layer[index], *g = &l->gradient.weights.stack.layer[index];
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
    train_norm_back(norms_of(l), x->fed + at, w->post_ffn_norm, l->d_stream, x->d_fed + at, g->post_ffn_norm);
    train_product(p, x->d_fed + at, hidden, n, &l->turned.layer[index].down, l->d_act, width);
    train_gate_back(gates_of(l, pass, index), n);
    const float *d_gate_up = x->d_gate_up + from * 2 * width;
    train_product(p, d_gate_up, 2 * width, n, &l->turned.layer[index].gate, l->d_x, hidden);
    train_product_add(p, d_gate_up + width, 2 * width, n, &l->turned.layer[index].up, l->d_x);
    train_norm_back(norms_of(l), x->middle + at, w->pre_ffn_norm, l->d_x, l->d_stream, g->pre_ffn_norm);
}

static void layer_back(chain_trainer *l, int pass, int index) {
    const layer_weights *w = &l->w.weights.stack.layer[index], *g = &l->gradient.weights.stack.layer[index];
    const train_products *p = &l->products;
    chain_layer *x = &l->layer[index];
    int n = l->chains;
    size_t hidden = (size_t)l->c.stack.hidden, q = (size_t)chain_q(l, index), from = chain_row(l, pass),
           at = from * hidden;
    feed_forward_back(l, pass, index);
    memset(x->d_attended + at, 0, (size_t)n * hidden * sizeof *x->d_attended);
    train_norm_back(norms_of(l), x->attended + at, w->post_attention_norm, l->d_stream, x->d_attended + at,
                    g->post_attention_norm);
    train_product(p, x->d_attended + at, hidden, n, &l->turned.layer[index].o, l->d_o, q);
    chain_attend_back(l, pass, index);
    train_turn_heads_back(heads_of(l, pass, index, x->d_q), n, g->q_norm);
    train_product(p, x->d_q + from * q, q, n, &l->turned.layer[index].q, l->d_x, hidden);
    train_norm_back(norms_of(l), stream_of(l, index, pass), w->input_norm, l->d_x, l->d_stream, g->input_norm);
}

void chain_pass_back(chain_trainer *l, int pass) {
    const train_products *p = &l->products;
    int n = l->chains, layers = l->c.stack.layers;
    size_t hidden = (size_t)l->c.stack.hidden, backbone = (size_t)l->c.backbone, from = chain_row(l, pass);
    if (pass + 1 < l->passes)
        train_product_add(p, l->d_state + from * backbone, backbone, n, &l->turned.post, l->d_normed + from * hidden);
    memset(l->d_stream, 0, (size_t)n * hidden * sizeof *l->d_stream);
    train_norm_back(norms_of(l), stream_of(l, layers, pass), l->w.weights.stack.final_norm, l->d_normed + from * hidden,
                    l->d_stream, l->gradient.weights.stack.final_norm);
    for (int i = layers - 1; i >= 0; i--) layer_back(l, pass, i);
    memcpy(l->d_h0 + from * hidden, l->d_stream, (size_t)n * hidden * sizeof *l->d_h0);
    if (pass)
        train_product(p, l->d_stream, hidden, n, &l->turned.state, l->d_state + chain_row(l, pass - 1) * backbone,
                      backbone);
}

/* Gradients of matrices: sums over the rows of all passes. */
void chain_sums(chain_trainer *l) {
    const train_products *p = &l->products;
    const assistant_weights *g = &l->gradient.weights;
    int rows = l->chains * l->passes, hidden = l->c.stack.hidden, backbone = l->c.backbone;
    size_t h = (size_t)hidden, pair = 2 * (size_t)backbone;
    train_outer_add(p, l->d_h0, h, hidden, l->pair, pair, 2 * backbone, rows, train_values(&g->pre_projection));
    train_outer_add(p, l->d_state, (size_t)backbone, backbone, l->normed, h, hidden, rows - l->chains,
                    train_values(&g->post_projection));
    for (int i = 0; i < l->c.stack.layers; i++) {
        const layer_weights *of = &g->stack.layer[i];
        const chain_layer *x = &l->layer[i];
        int q = chain_q(l, i), width = l->c.stack.layer[i].intermediate;
        size_t wide = 2 * (size_t)width;
        train_outer_add(p, x->d_q, (size_t)q, q, x->x, h, hidden, rows, train_values(&of->q_proj));
        train_outer_add(p, x->d_attended, h, hidden, x->o, (size_t)q, q, rows, train_values(&of->o_proj));
        train_outer_add(p, x->d_gate_up, wide, width, x->x2, h, hidden, rows, train_values(&of->gate_proj));
        train_outer_add(p, x->d_gate_up + width, wide, width, x->x2, h, hidden, rows, train_values(&of->up_proj));
        train_outer_add(p, x->d_fed, h, hidden, x->act, (size_t)width, width, rows, train_values(&of->down_proj));
    }
}
