/* The drafter's context and layers (draft.c, block.c), and the way back through them. */
#include <math.h>
#include <string.h>

#include "backend/cpu/drafter_trainer.h"
#include "backend/cpu/matrix.h"

static train_heads heads_of(const backend_drafter_trainer *l, const float *raw, const float *gain, float *out,
                            bool queries) {
    float scale = queries ? 1.0f / sqrtf((float)l->c.head_dim) : 1;
    int heads = queries ? l->c.heads : l->c.kv_heads;
    return (train_heads){l->m, raw, gain, out, &l->rope, l->position, heads, l->c.head_dim, l->c.rms_eps, scale};
}

/* Keys of the context: a row's position is its number. */
static train_heads context_keys(const backend_drafter_trainer *l, int layer, float *out) {
    train_heads keys = heads_of(l, l->layer[layer].context_raw_k, l->w.layer[layer].k_norm, out, false);
    keys.position = NULL;
    return keys;
}

static train_gates gates_of(const backend_drafter_trainer *l, int layer) {
    const drafter_trainer_layer *x = &l->layer[layer];
    return (train_gates){l->m, x->gate_up, x->act, l->d_act, l->d_gate_up, (size_t)l->c.intermediate, true};
}

/* ------------------------------------------------------------------------------------------------------- context */

void drafter_trainer_context(backend_drafter_trainer *l) {
    const block_drafter_config *c = &l->c;
    size_t hidden = (size_t)c->hidden, kv = drafter_trainer_kv(c), width = (size_t)l->w.fc.in;
    int n = l->context_rows;
    train_product(&l->products, l->aux, width, n, &l->w.fc, l->fused, hidden);
    train_norm(drafter_trainer_norms(l, n), l->fused, l->w.hidden_norm, NULL, l->context);
    for (int i = 0; i < c->layers; i++) {
        drafter_trainer_layer *layer = &l->layer[i];
        const block_drafter_layer_weights *w = &l->w.layer[i];
        train_product(&l->products, l->context, hidden, n, &w->k_proj, layer->context_raw_k, kv);
        train_product(&l->products, l->context, hidden, n, &w->v_proj, layer->context[1], kv);
        train_turn_heads(context_keys(l, i, layer->context[0]), n);
    }
}

/* What a layer's context K and V, d_columns, say of the context. */
static void layer_context_back(backend_drafter_trainer *l, int layer) {
    const block_drafter_config *c = &l->c;
    const block_drafter_layer_weights *t = &l->turned.layer[layer], *g = &l->gradient.layer[layer];
    size_t hidden = (size_t)c->hidden, kv = drafter_trainer_kv(c);
    int n = l->context_rows;
    train_turn_heads_back(context_keys(l, layer, l->d_columns[0]), n, l->o.inside_layers ? g->k_norm : NULL);
    train_product_add(&l->products, l->d_columns[0], kv, n, &t->k_proj, l->d_context);
    train_product_add(&l->products, l->d_columns[1], kv, n, &t->v_proj, l->d_context);
    if (!l->o.inside_layers) return;
    train_outer_add(&l->products, l->d_columns[0], kv, (int)kv, l->context, hidden, c->hidden, n,
                    train_values(&g->k_proj));
    train_outer_add(&l->products, l->d_columns[1], kv, (int)kv, l->context, hidden, c->hidden, n,
                    train_values(&g->v_proj));
}

void drafter_trainer_context_back(backend_drafter_trainer *l) {
    size_t hidden = (size_t)l->c.hidden, width = (size_t)l->w.fc.in;
    memset(l->sink, 0, (size_t)l->context_rows * hidden * sizeof *l->sink);
    train_norm_back(drafter_trainer_norms(l, l->context_rows), l->fused, l->w.hidden_norm, l->d_context, l->sink,
                    l->gradient.hidden_norm);
    train_outer_add(&l->products, l->sink, hidden, l->c.hidden, l->aux, width, (int)width, l->context_rows,
                    train_values(&l->gradient.fc));
}

/* --------------------------------------------------------------------------------------------------------- there */

static void embed_row(void *context, int row) {
    const backend_drafter_trainer *l = context;
    size_t hidden = (size_t)l->c.hidden;
    int block = l->c.block_size;
    int32_t token = row % block ? l->c.mask_token : l->tokens[l->position[row]];
    float *h = l->layer[0].input + (size_t)row * hidden;
    load_row(l->m, &l->m->weights->embed, token, 0, (int)hidden, h);
    if (l->o.scaled_embedding) l->m->kernels->scale(l->m->embed_scale, (int)hidden, h);
}

void drafter_trainer_embed(backend_drafter_trainer *l) { train_each(l->m, l->rows, embed_row, l); }

static void add_rows(const backend_drafter_trainer *l, const float *x, const float *y, float *out) {
    size_t n = (size_t)l->rows * (size_t)l->c.hidden;
    for (size_t i = 0; i < n; i++) out[i] = x[i] + y[i];
}

void drafter_trainer_forward(backend_drafter_trainer *l, int index, float *out) {
    const block_drafter_config *c = &l->c;
    const block_drafter_layer_weights *w = &l->w.layer[index];
    drafter_trainer_layer *layer = &l->layer[index];
    const train_products *p = &l->products;
    size_t hidden = (size_t)c->hidden, q = drafter_trainer_q(c), kv = drafter_trainer_kv(c),
           width = (size_t)c->intermediate;
    int n = l->rows;
    train_norm(drafter_trainer_norms(l, n), layer->input, w->input_norm, NULL, layer->x);
    train_product(p, layer->x, hidden, n, &w->q_proj, layer->q_raw, q);
    train_product(p, layer->x, hidden, n, &w->k_proj, layer->own_raw_k, kv);
    train_product(p, layer->x, hidden, n, &w->v_proj, layer->own[1], kv);
    train_turn_heads(heads_of(l, layer->q_raw, w->q_norm, layer->q, true), n);
    train_turn_heads(heads_of(l, layer->own_raw_k, w->k_norm, layer->own[0], false), n);
    drafter_trainer_attend(l, index);
    train_product(p, layer->o, q, n, &w->o_proj, l->branch, hidden);
    add_rows(l, layer->input, l->branch, layer->middle);
    train_norm(drafter_trainer_norms(l, n), layer->middle, w->post_attention_norm, NULL, layer->x2);
    train_product(p, layer->x2, hidden, n, &w->gate_proj, layer->gate_up, 2 * width);
    train_product(p, layer->x2, hidden, n, &w->up_proj, layer->gate_up + width, 2 * width);
    train_gate(gates_of(l, index), n);
    train_product(p, layer->act, width, n, &w->down_proj, l->branch, hidden);
    add_rows(l, layer->middle, l->branch, out);
}

/* ---------------------------------------------------------------------------------------------------------- back */

/* From d_h, of the layer's output, to that of the stream behind attention. */
static void feed_forward_back(backend_drafter_trainer *l, int index) {
    const block_drafter_config *c = &l->c;
    const block_drafter_layer_weights *w = &l->w.layer[index], *t = &l->turned.layer[index],
                                      *g = &l->gradient.layer[index];
    drafter_trainer_layer *layer = &l->layer[index];
    const train_products *p = &l->products;
    size_t hidden = (size_t)c->hidden, width = (size_t)c->intermediate;
    int n = l->rows;
    train_product(p, l->d_h, hidden, n, &t->down_proj, l->d_act, width);
    train_gate_back(gates_of(l, index), n);
    train_product(p, l->d_gate_up, 2 * width, n, &t->gate_proj, l->d_x, hidden);
    train_product_add(p, l->d_gate_up + width, 2 * width, n, &t->up_proj, l->d_x);
    if (l->o.inside_layers) {
        train_outer_add(p, l->d_h, hidden, c->hidden, layer->act, width, (int)width, n, train_values(&g->down_proj));
        train_outer_add(p, l->d_gate_up, 2 * width, (int)width, layer->x2, hidden, c->hidden, n,
                        train_values(&g->gate_proj));
        train_outer_add(p, l->d_gate_up + width, 2 * width, (int)width, layer->x2, hidden, c->hidden, n,
                        train_values(&g->up_proj));
    }
    train_norm_back(drafter_trainer_norms(l, n), layer->middle, w->post_attention_norm, l->d_x, l->d_h,
                    l->o.inside_layers ? g->post_attention_norm : NULL);
}

void drafter_trainer_back(backend_drafter_trainer *l, int index) {
    const block_drafter_config *c = &l->c;
    const block_drafter_layer_weights *w = &l->w.layer[index], *t = &l->turned.layer[index],
                                      *g = &l->gradient.layer[index];
    drafter_trainer_layer *layer = &l->layer[index];
    const train_products *p = &l->products;
    size_t hidden = (size_t)c->hidden, q = drafter_trainer_q(c), kv = drafter_trainer_kv(c);
    int n = l->rows;
    bool inside = l->o.inside_layers;
    feed_forward_back(l, index);
    train_product(p, l->d_h, hidden, n, &t->o_proj, l->d_o, q);
    if (inside) train_outer_add(p, l->d_h, hidden, c->hidden, layer->o, q, (int)q, n, train_values(&g->o_proj));
    drafter_trainer_attend_back(l, index);
    train_turn_heads_back(heads_of(l, layer->q_raw, w->q_norm, l->d_q, true), n, inside ? g->q_norm : NULL);
    train_turn_heads_back(heads_of(l, layer->own_raw_k, w->k_norm, l->d_own[0], false), n, inside ? g->k_norm : NULL);
    train_product(p, l->d_q, q, n, &t->q_proj, l->d_x, hidden);
    train_product_add(p, l->d_own[0], kv, n, &t->k_proj, l->d_x);
    train_product_add(p, l->d_own[1], kv, n, &t->v_proj, l->d_x);
    if (inside) {
        train_outer_add(p, l->d_q, q, (int)q, layer->x, hidden, c->hidden, n, train_values(&g->q_proj));
        train_outer_add(p, l->d_own[0], kv, (int)kv, layer->x, hidden, c->hidden, n, train_values(&g->k_proj));
        train_outer_add(p, l->d_own[1], kv, (int)kv, layer->x, hidden, c->hidden, n, train_values(&g->v_proj));
    }
    train_norm_back(drafter_trainer_norms(l, n), layer->input, w->input_norm, l->d_x, l->d_h,
                    inside ? g->input_norm : NULL);
    layer_context_back(l, index);
}
