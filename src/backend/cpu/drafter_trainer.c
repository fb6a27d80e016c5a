#include "backend/cpu/drafter_trainer.h"

#include <string.h>

#include "backend/cpu/chains.h"
#include "backend/cpu/matrix.h"
#include "backend/cpu/rope.h"

/* -------------------------------------------------------------------------------------------------------- memory */

static void lay_out_weights(backend_drafter_trainer *l, train_arena *a) {
    const block_drafter_config *c = &l->c;
    int q = (int)drafter_trainer_q(c), kv = (int)drafter_trainer_kv(c);
    for (int i = 0; i < c->layers; i++) {
        block_drafter_layer_weights *t = &l->turned.layer[i];
        t->q_proj = train_take_turned(a, q, c->hidden);
        t->k_proj = train_take_turned(a, kv, c->hidden);
        t->v_proj = train_take_turned(a, kv, c->hidden);
        t->o_proj = train_take_turned(a, c->hidden, q);
        t->gate_proj = train_take_turned(a, c->intermediate, c->hidden);
        t->up_proj = train_take_turned(a, c->intermediate, c->hidden);
        t->down_proj = train_take_turned(a, c->hidden, c->intermediate);
    }
    l->head = weight_matrix(WEIGHT_F32, train_take(a, (size_t)c->vocab * (size_t)c->hidden), c->vocab, c->hidden);
    l->head_t = train_take_turned(a, c->vocab, c->hidden);
}

/* Largest inputs and outputs of products. */
static void lay_out_products(backend_drafter_trainer *l, train_arena *a) {
    const block_drafter_config *c = &l->c;
    size_t rows = (size_t)(l->o.blocks * c->block_size), all = (size_t)l->o.sequence, hidden = (size_t)c->hidden,
           q = drafter_trainer_q(c), kv = drafter_trainer_kv(c), width = (size_t)c->intermediate,
           aux = (size_t)c->targets * hidden, widest = train_most(train_most(hidden, q), train_most(kv, width));
    size_t packed = train_packed_floats(l->m, DRAFTER_TRAINER_HEAD_ROWS, (size_t)c->vocab);
    packed = train_most(packed, train_packed_floats(l->m, train_most(rows, DRAFTER_TRAINER_HEAD_ROWS), widest));
    packed = train_most(packed, train_packed_floats(l->m, all, train_most(aux, train_most(hidden, kv))));
    packed = train_most(packed, train_packed_floats(l->m, widest, rows));
    packed = train_most(packed, train_packed_floats(l->m, train_most(hidden, kv), all));
    size_t product = train_most(train_most(rows, all) * hidden, hidden * train_most(aux, widest));
    size_t turned = train_most(rows * (widest + hidden), all * (hidden + train_most(aux, kv)));
    l->products = (train_products){l->m, train_take(a, packed), train_take(a, turned), train_take(a, product)};
    for (int i = 0; i < l->m->threads; i++) {
        l->thread[i] = train_take(a, DRAFTER_TRAINER_CHUNK * rows);
        l->thread_packed[i] = train_take(a, drafter_trainer_attention_packed(l));
    }
}

static void lay_out(backend_drafter_trainer *l, train_arena *a) {
    const block_drafter_config *c = &l->c;
    size_t rows = (size_t)(l->o.blocks * c->block_size), all = (size_t)l->o.sequence, hidden = (size_t)c->hidden,
           q = drafter_trainer_q(c), kv = drafter_trainer_kv(c), width = (size_t)c->intermediate,
           heads = (size_t)c->heads, columns = all + (size_t)c->block_size;
    lay_out_weights(l, a);
    lay_out_products(l, a);
    for (int i = 0; i < c->layers; i++) {
        drafter_trainer_layer *x = &l->layer[i];
        float **context[] = {&x->context[0], &x->context[1], &x->context_raw_k};
        for (int k = 0; k < 3; k++) *context[k] = train_take(a, all * kv);
        float **own[] = {&x->own[0], &x->own[1], &x->own_raw_k};
        for (int k = 0; k < 3; k++) *own[k] = train_take(a, rows * kv);
        float **wide[] = {&x->input, &x->x, &x->x2, &x->middle};
        for (int k = 0; k < 4; k++) *wide[k] = train_take(a, rows * hidden);
        float **query[] = {&x->q_raw, &x->q, &x->o};
        for (int k = 0; k < 3; k++) *query[k] = train_take(a, rows * q);
        x->shares = train_take(a, heads * rows * columns);
        x->gate_up = train_take(a, 2 * rows * width);
        x->act = train_take(a, rows * width);
    }
    l->position = (int *)(void *)train_take(a, rows);
    l->scored = (int *)(void *)train_take(a, rows);
    float **context[] = {&l->fused, &l->context, &l->d_context};
    for (int k = 0; k < 3; k++) *context[k] = train_take(a, all * hidden);
    float **wide[] = {&l->last, &l->final_x, &l->branch, &l->d_h, &l->d_x};
    for (int k = 0; k < 5; k++)
        *wide[k] = train_take(a, rows * train_most(hidden, 4)); /* branch also holds a row's results */
    l->picked = train_take(a, DRAFTER_TRAINER_HEAD_ROWS * hidden);
    l->logits = train_take(a, DRAFTER_TRAINER_HEAD_ROWS * (size_t)c->vocab);
    l->sink = train_take(a, train_most(rows, all) * hidden);
    l->d_act = train_take(a, rows * width);
    l->d_gate_up = train_take(a, 2 * rows * width);
    float **query[] = {&l->d_q, &l->d_o, &l->q_t, &l->d_o_t};
    for (int k = 0; k < 4; k++) *query[k] = train_take(a, rows * q);
    for (int half = 0; half < 2; half++) {
        l->d_own[half] = train_take(a, rows * kv);
        l->d_columns[half] = train_take(a, all * kv);
    }
    float **gathered[] = {&l->keys, &l->keys_t, &l->values, &l->values_t};
    for (int k = 0; k < 4; k++) *gathered[k] = train_take(a, all * kv);
    l->d_key = train_take(a, all * q);
    l->d_value = train_take(a, all * q);
    l->d_shares = train_take(a, heads * rows * columns);
}

static void prepare(backend_drafter_trainer *l, backend_model *m, const drafter_trainer_options *o) {
    memset(l, 0, sizeof *l);
    l->m = m;
    l->o = *o;
    l->c = *o->drafter;
    l->o.drafter = &l->c;
}

size_t cpu_drafter_trainer_bytes(backend_model *m, const drafter_trainer_options *options) {
    if (options->assistant) return sizeof(backend_drafter_trainer) + chain_trainer_bytes(m, options);
    backend_drafter_trainer *l = mem_alloc(m->account, MEM_WORKSPACE, sizeof *l);
    train_arena a = {0};
    if (!l) return 0;
    prepare(l, m, options);
    lay_out(l, &a);
    mem_free(l);
    return a.floats * sizeof(float) + sizeof *l;
}

static kakeya_status create_chains(backend_model *m, const drafter_trainer_options *o, backend_drafter_trainer **out,
                                   kakeya_error *error) {
    backend_drafter_trainer *l = mem_alloc(m->account, MEM_WORKSPACE, sizeof *l);
    if (!l) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for training");
    memset(l, 0, sizeof *l);
    kakeya_status status = chain_trainer_create(m, o, &l->chains, error);
    if (status)
        mem_free(l);
    else
        *out = l;
    return status;
}

kakeya_status cpu_drafter_trainer_create(backend_model *m, const drafter_trainer_options *o,
                                         backend_drafter_trainer **out, kakeya_error *error) {
    *out = NULL;
    if (o->assistant) return create_chains(m, o, out, error);
    if (o->drafter->block_size > DRAFTER_TRAINER_MAX_BLOCK)
        return error_set(error, KAKEYA_UNSUPPORTED, "a drafter with blocks of %d cannot be trained: the maximum is %d",
                         o->drafter->block_size, DRAFTER_TRAINER_MAX_BLOCK);
    backend_drafter_trainer *l = mem_alloc(m->account, MEM_WORKSPACE, sizeof *l);
    if (!l) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for training");
    prepare(l, m, o);
    train_arena a = {0};
    lay_out(l, &a);
    size_t bytes = a.floats * sizeof(float);
    l->memory = mem_alloc(m->account, MEM_WORKSPACE, bytes);
    kakeya_status status = KAKEYA_OK;
    if (!l->memory) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: training needs %zu bytes", bytes);
    if (!status) status = rope_table_create(m, &l->rope, l->c.rope_theta, 1, l->c.head_dim, l->c.head_dim / 2, error);
    if (!status) status = rope_table_reserve(m, &l->rope, o->sequence + l->c.block_size, error);
    if (status) {
        cpu_drafter_trainer_destroy(l);
        return status;
    }
    memset(l->memory, 0, bytes);
    a = (train_arena){.base = l->memory};
    lay_out(l, &a);
    train_load_head(m, &l->head);
    train_turn_matrix(&l->products, &l->head, &l->head_t);
    *out = l;
    return KAKEYA_OK;
}

void cpu_drafter_trainer_destroy(backend_drafter_trainer *l) {
    if (!l) return;
    chain_trainer_destroy(l->chains);
    rope_table_destroy(&l->rope);
    mem_free(l->memory);
    mem_free(l);
}

void cpu_drafter_trainer_weights(backend_drafter_trainer *l, const float *weights) {
    if (l->chains) {
        chain_trainer_weights(l->chains, weights);
        return;
    }
    block_drafter_values_bind(&l->c, train_vector(weights), &l->w);
    for (int i = 0; i < l->c.layers; i++) {
        const block_drafter_layer_weights *w = &l->w.layer[i], *t = &l->turned.layer[i];
        train_turn_matrix(&l->products, &w->q_proj, &t->q_proj);
        train_turn_matrix(&l->products, &w->k_proj, &t->k_proj);
        train_turn_matrix(&l->products, &w->v_proj, &t->v_proj);
        train_turn_matrix(&l->products, &w->o_proj, &t->o_proj);
        train_turn_matrix(&l->products, &w->gate_proj, &t->gate_proj);
        train_turn_matrix(&l->products, &w->up_proj, &t->up_proj);
        train_turn_matrix(&l->products, &w->down_proj, &t->down_proj);
    }
}

/* ------------------------------------------------------------------------------------------------------ sequence */

static void place_rows(backend_drafter_trainer *l) {
    int block = l->c.block_size;
    l->rows = l->blocks * block;
    l->n_scored = l->context_rows = 0;
    for (int row = 0; row < l->rows; row++) {
        int first = l->first[row / block];
        l->position[row] = first + row % block;
        if (first > l->context_rows) l->context_rows = first;
        if (row % block && l->position[row] < l->length) l->scored[l->n_scored++] = row;
    }
}

static void learn(backend_drafter_trainer *l, const drafter_trainer_sequence *s, bool backward) {
    *s->result = (drafter_trainer_result){0};
    l->tokens = s->tokens;
    l->aux = s->aux;
    l->first = s->first;
    l->length = s->n;
    l->blocks = s->blocks;
    place_rows(l);
    drafter_trainer_context(l);
    drafter_trainer_embed(l);
    for (int i = 0; i < l->c.layers; i++)
        drafter_trainer_forward(l, i, i + 1 < l->c.layers ? l->layer[i + 1].input : l->last);
    drafter_trainer_score(l, s->result);
    if (!backward) return;
    memset(l->d_context, 0, (size_t)l->context_rows * (size_t)l->c.hidden * sizeof *l->d_context);
    for (int i = l->c.layers - 1; i >= 0; i--) drafter_trainer_back(l, i);
    drafter_trainer_context_back(l);
}

kakeya_status cpu_drafter_trainer_learn(backend_drafter_trainer *l, const drafter_trainer_sequence *sequences, int n,
                                        float scale, float *gradient, kakeya_error *error) {
    (void)error;
    if (l->chains) {
        chain_trainer_learn(l->chains, sequences, n, scale, gradient);
        return KAKEYA_OK;
    }
    l->scale = scale;
    l->backward = gradient != NULL;
    if (gradient) block_drafter_values_bind(&l->c, gradient, &l->gradient);
    for (int i = 0; i < n; i++) learn(l, &sequences[i], gradient != NULL);
    return KAKEYA_OK;
}
