/* The drafter's context and layers (draft.c, block.c), and the way back through them. */
#include <math.h>
#include <string.h>

#include "backend/cpu/backward.h"
#include "backend/cpu/learner.h"
#include "backend/cpu/matrix.h"

/* ---------------------------------------------------------------------------------------------------------- rows */

typedef struct each_work {
    backend_learner *l;
    learner_task task;
    void *context;
} each_work;

static void each_range(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const each_work *w = context;
    for (size_t row = begin; row < end; row++) w->task(w->l, w->context, (int)row);
}

void learner_each(backend_learner *l, int n, learner_task task, void *context) {
    each_work work = {l, task, context};
    thread_pool_for(l->m->pool, (size_t)n, 8, each_range, &work);
}

/* --------------------------------------------------------------------------------------------------------- norms */

typedef struct norm_work {
    const float *x, *gain, *d_out; /* d_out NULL: the way there */
    float *out;
} norm_work;

static void norm_row(backend_learner *l, void *context, int row) {
    const norm_work *w = context;
    int n = l->c.hidden;
    size_t at = (size_t)row * (size_t)n;
    if (w->d_out)
        backward_rms_norm(w->x + at, w->gain, w->d_out + at, n, l->c.rms_eps, w->out + at);
    else
        l->m->kernels->rms_norm(w->x + at, w->gain, n, l->c.rms_eps, w->out + at);
}

void learner_norm(backend_learner *l, const float *x, const float *gain, int rows, float *out) {
    norm_work work = {x, gain, NULL, out};
    learner_each(l, rows, norm_row, &work);
}

void learner_norm_back(backend_learner *l, const float *x, const float *gain, const float *d_out, int rows, float *d_x,
                       const float *d_gain) {
    norm_work work = {x, gain, d_out, d_x};
    learner_each(l, rows, norm_row, &work);
    for (int r = 0; r < rows && d_gain; r++) {
        size_t at = (size_t)r * (size_t)l->c.hidden;
        backward_rms_gain(x + at, d_out + at, l->c.hidden, l->c.rms_eps, learner_vector(d_gain));
    }
}

/* Norm, RoPE and scale of the heads of rows. */
typedef struct head_work {
    const float *raw, *gain;
    float *out;          /* or its gradient, in place that of `raw` */
    const int *position; /* NULL: the row's number */
    int heads;
    float scale;
} head_work;

static size_t angle_of(const backend_learner *l, const head_work *w, int row) {
    return (size_t)(w->position ? w->position[row] : row) * (size_t)l->rope.pairs;
}

static void heads_row(backend_learner *l, void *context, int row) {
    const head_work *w = context;
    int d = l->c.head_dim;
    size_t angle = angle_of(l, w, row);
    for (int h = 0; h < w->heads; h++) {
        size_t at = ((size_t)row * (size_t)w->heads + (size_t)h) * (size_t)d;
        l->m->kernels->rms_norm(w->raw + at, w->gain, d, l->c.rms_eps, w->out + at);
        l->m->kernels->rope(w->out + at, l->rope.half, l->rope.pairs, l->rope.cosine + angle, l->rope.sine + angle);
        if (w->scale != 1) l->m->kernels->scale(w->scale, d, w->out + at);
    }
}

enum { MAX_HEAD_DIM = 4096 };

/* To the gradient of the norm's output. */
static void unturn_row(backend_learner *l, void *context, int row) {
    const head_work *w = context;
    int d = l->c.head_dim;
    size_t angle = angle_of(l, w, row);
    for (int h = 0; h < w->heads; h++) {
        float *at = w->out + ((size_t)row * (size_t)w->heads + (size_t)h) * (size_t)d;
        for (int i = 0; i < d && w->scale != 1; i++) at[i] *= w->scale;
        backward_rope(at, l->rope.half, l->rope.pairs, l->rope.cosine + angle, l->rope.sine + angle);
    }
}

static void unnorm_row(backend_learner *l, void *context, int row) {
    const head_work *w = context;
    int d = l->c.head_dim;
    float out[MAX_HEAD_DIM];
    for (int h = 0; h < w->heads; h++) {
        size_t at = ((size_t)row * (size_t)w->heads + (size_t)h) * (size_t)d;
        memset(out, 0, (size_t)d * sizeof *out);
        backward_rms_norm(w->raw + at, w->gain, w->out + at, d, l->c.rms_eps, out);
        memcpy(w->out + at, out, (size_t)d * sizeof *out);
    }
}

static void heads_back(backend_learner *l, head_work *w, int rows, const float *d_gain) {
    learner_each(l, rows, unturn_row, w);
    for (int i = 0; i < rows * w->heads && d_gain; i++) {
        size_t at = (size_t)i * (size_t)l->c.head_dim;
        backward_rms_gain(w->raw + at, w->out + at, l->c.head_dim, l->c.rms_eps, learner_vector(d_gain));
    }
    learner_each(l, rows, unnorm_row, w);
}

/* ------------------------------------------------------------------------------------------------------- context */

void learner_context(backend_learner *l) {
    const dflash_config *c = &l->c;
    size_t hidden = (size_t)c->hidden, kv = learner_kv(c), width = (size_t)l->w.fc.in;
    int n = l->context_rows;
    train_product(&l->products, l->aux, width, n, &l->w.fc, l->fused, hidden);
    learner_norm(l, l->fused, l->w.hidden_norm, n, l->context);
    for (int i = 0; i < c->layers; i++) {
        learner_layer *layer = &l->layer[i];
        const dflash_layer_weights *w = &l->w.layer[i];
        train_product(&l->products, l->context, hidden, n, &w->k_proj, layer->context_raw_k, kv);
        train_product(&l->products, l->context, hidden, n, &w->v_proj, layer->context[1], kv);
        head_work keys = {layer->context_raw_k, w->k_norm, layer->context[0], NULL, c->kv_heads, 1};
        learner_each(l, n, heads_row, &keys);
    }
}

/* What a layer's context K and V, d_columns, say of the context. */
static void layer_context_back(backend_learner *l, int layer) {
    const dflash_config *c = &l->c;
    const dflash_layer_weights *w = &l->w.layer[layer], *t = &l->turned.layer[layer], *g = &l->gradient.layer[layer];
    size_t hidden = (size_t)c->hidden, kv = learner_kv(c);
    int n = l->context_rows;
    head_work keys = {l->layer[layer].context_raw_k, w->k_norm, l->d_columns[0], NULL, c->kv_heads, 1};
    heads_back(l, &keys, n, l->o.inside_layers ? g->k_norm : NULL);
    train_product_add(&l->products, l->d_columns[0], kv, n, &t->k_proj, l->d_context);
    train_product_add(&l->products, l->d_columns[1], kv, n, &t->v_proj, l->d_context);
    if (!l->o.inside_layers) return;
    train_outer_add(&l->products, l->d_columns[0], kv, (int)kv, l->context, hidden, c->hidden, n,
                    learner_values(&g->k_proj));
    train_outer_add(&l->products, l->d_columns[1], kv, (int)kv, l->context, hidden, c->hidden, n,
                    learner_values(&g->v_proj));
}

void learner_context_back(backend_learner *l) {
    size_t hidden = (size_t)l->c.hidden, width = (size_t)l->w.fc.in;
    memset(l->sink, 0, (size_t)l->context_rows * hidden * sizeof *l->sink);
    learner_norm_back(l, l->fused, l->w.hidden_norm, l->d_context, l->context_rows, l->sink, l->gradient.hidden_norm);
    train_outer_add(&l->products, l->sink, hidden, l->c.hidden, l->aux, width, (int)width, l->context_rows,
                    learner_values(&l->gradient.fc));
}

/* --------------------------------------------------------------------------------------------------------- there */

static void embed_row(backend_learner *l, void *context, int row) {
    (void)context;
    size_t hidden = (size_t)l->c.hidden;
    int block = l->c.block_size;
    int32_t token = row % block ? l->c.mask_token : l->tokens[l->position[row]];
    float *h = l->layer[0].input + (size_t)row * hidden;
    load_row(l->m, &l->m->weights->embed, token, 0, (int)hidden, h);
    if (l->o.scaled_embedding) l->m->kernels->scale(l->m->embed_scale, (int)hidden, h);
}

void learner_embed(backend_learner *l) { learner_each(l, l->rows, embed_row, NULL); }

static void activate_row(backend_learner *l, void *context, int row) {
    const learner_layer *layer = context;
    size_t width = (size_t)l->c.intermediate;
    const float *gate = layer->gate_up + (size_t)row * 2 * width;
    l->m->kernels->gated(1, gate, gate + width, (int)width, layer->act + (size_t)row * width);
}

static void add_rows(const backend_learner *l, const float *x, const float *y, float *out) {
    size_t n = (size_t)l->rows * (size_t)l->c.hidden;
    for (size_t i = 0; i < n; i++) out[i] = x[i] + y[i];
}

void learner_forward(backend_learner *l, int index, float *out) {
    const dflash_config *c = &l->c;
    const dflash_layer_weights *w = &l->w.layer[index];
    learner_layer *layer = &l->layer[index];
    const train_products *p = &l->products;
    size_t hidden = (size_t)c->hidden, q = learner_q(c), kv = learner_kv(c), width = (size_t)c->intermediate;
    int n = l->rows;
    learner_norm(l, layer->input, w->input_norm, n, layer->x);
    train_product(p, layer->x, hidden, n, &w->q_proj, layer->q_raw, q);
    train_product(p, layer->x, hidden, n, &w->k_proj, layer->own_raw_k, kv);
    train_product(p, layer->x, hidden, n, &w->v_proj, layer->own[1], kv);
    head_work queries = {layer->q_raw, w->q_norm, layer->q, l->position, c->heads, 1.0f / sqrtf((float)c->head_dim)},
              keys = {layer->own_raw_k, w->k_norm, layer->own[0], l->position, c->kv_heads, 1};
    learner_each(l, n, heads_row, &queries);
    learner_each(l, n, heads_row, &keys);
    learner_attend(l, index);
    train_product(p, layer->o, q, n, &w->o_proj, l->branch, hidden);
    add_rows(l, layer->input, l->branch, layer->middle);
    learner_norm(l, layer->middle, w->post_attention_norm, n, layer->x2);
    train_product(p, layer->x2, hidden, n, &w->gate_proj, layer->gate_up, 2 * width);
    train_product(p, layer->x2, hidden, n, &w->up_proj, layer->gate_up + width, 2 * width);
    learner_each(l, n, activate_row, layer);
    train_product(p, layer->act, width, n, &w->down_proj, l->branch, hidden);
    add_rows(l, layer->middle, l->branch, out);
}

/* ---------------------------------------------------------------------------------------------------------- back */

static void deactivate_row(backend_learner *l, void *context, int row) {
    const learner_layer *layer = context;
    size_t width = (size_t)l->c.intermediate, at = (size_t)row * 2 * width;
    backward_silu_gated(layer->gate_up + at, layer->gate_up + at + width, l->d_act + (size_t)row * width, (int)width,
                        l->d_gate_up + at, l->d_gate_up + at + width);
}

/* From d_h, of the layer's output, to that of the stream behind attention. */
static void feed_forward_back(backend_learner *l, int index) {
    const dflash_config *c = &l->c;
    const dflash_layer_weights *w = &l->w.layer[index], *t = &l->turned.layer[index], *g = &l->gradient.layer[index];
    learner_layer *layer = &l->layer[index];
    const train_products *p = &l->products;
    size_t hidden = (size_t)c->hidden, width = (size_t)c->intermediate;
    int n = l->rows;
    train_product(p, l->d_h, hidden, n, &t->down_proj, l->d_act, width);
    learner_each(l, n, deactivate_row, layer);
    train_product(p, l->d_gate_up, 2 * width, n, &t->gate_proj, l->d_x, hidden);
    train_product_add(p, l->d_gate_up + width, 2 * width, n, &t->up_proj, l->d_x);
    if (l->o.inside_layers) {
        train_outer_add(p, l->d_h, hidden, c->hidden, layer->act, width, (int)width, n, learner_values(&g->down_proj));
        train_outer_add(p, l->d_gate_up, 2 * width, (int)width, layer->x2, hidden, c->hidden, n,
                        learner_values(&g->gate_proj));
        train_outer_add(p, l->d_gate_up + width, 2 * width, (int)width, layer->x2, hidden, c->hidden, n,
                        learner_values(&g->up_proj));
    }
    learner_norm_back(l, layer->middle, w->post_attention_norm, l->d_x, n, l->d_h,
                      l->o.inside_layers ? g->post_attention_norm : NULL);
}

void learner_back(backend_learner *l, int index) {
    const dflash_config *c = &l->c;
    const dflash_layer_weights *w = &l->w.layer[index], *t = &l->turned.layer[index], *g = &l->gradient.layer[index];
    learner_layer *layer = &l->layer[index];
    const train_products *p = &l->products;
    size_t hidden = (size_t)c->hidden, q = learner_q(c), kv = learner_kv(c);
    int n = l->rows;
    bool inside = l->o.inside_layers;
    feed_forward_back(l, index);
    train_product(p, l->d_h, hidden, n, &t->o_proj, l->d_o, q);
    if (inside) train_outer_add(p, l->d_h, hidden, c->hidden, layer->o, q, (int)q, n, learner_values(&g->o_proj));
    learner_attend_back(l, index);
    head_work queries = {layer->q_raw, w->q_norm, l->d_q, l->position, c->heads, 1.0f / sqrtf((float)c->head_dim)},
              keys = {layer->own_raw_k, w->k_norm, l->d_own[0], l->position, c->kv_heads, 1};
    heads_back(l, &queries, n, inside ? g->q_norm : NULL);
    heads_back(l, &keys, n, inside ? g->k_norm : NULL);
    train_product(p, l->d_q, q, n, &t->q_proj, l->d_x, hidden);
    train_product_add(p, l->d_own[0], kv, n, &t->k_proj, l->d_x);
    train_product_add(p, l->d_own[1], kv, n, &t->v_proj, l->d_x);
    if (inside) {
        train_outer_add(p, l->d_q, q, (int)q, layer->x, hidden, c->hidden, n, learner_values(&g->q_proj));
        train_outer_add(p, l->d_own[0], kv, (int)kv, layer->x, hidden, c->hidden, n, learner_values(&g->k_proj));
        train_outer_add(p, l->d_own[1], kv, (int)kv, layer->x, hidden, c->hidden, n, learner_values(&g->v_proj));
    }
    learner_norm_back(l, layer->input, w->input_norm, l->d_x, n, l->d_h, inside ? g->input_norm : NULL);
    layer_context_back(l, index);
}
