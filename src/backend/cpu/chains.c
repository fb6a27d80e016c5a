#include "backend/cpu/chains.h"

#include <string.h>

#include "backend/cpu/matrix.h"
#include "backend/cpu/rope.h"

/* -------------------------------------------------------------------------------------------------------- memory */

/* The largest sizes that a trainer of these options has. */
typedef struct sizes {
    size_t sequences, chains, rows, positions, hidden, backbone, vocab, width, q, widest;
} sizes;

static sizes sizes_of(const chain_trainer *l) {
    const model_config *c = &l->c.stack;
    size_t sequences = (size_t)(l->o.sequences > 1 ? l->o.sequences : 1);
    sizes s = {.sequences = sequences,
               .chains = sequences * (size_t)l->o.blocks,
               .positions = (size_t)l->o.sequence,
               .hidden = (size_t)c->hidden,
               .backbone = (size_t)l->c.backbone,
               .vocab = (size_t)c->vocab};
    s.rows = s.chains * (size_t)(l->o.chain - 1);
    for (int i = 0; i < c->layers; i++) {
        s.width = train_most(s.width, (size_t)c->layer[i].intermediate);
        s.q = train_most(s.q, (size_t)chain_q(l, i));
    }
    s.widest = train_most(train_most(2 * s.backbone, s.hidden), train_most(2 * s.width, s.q));
    return s;
}

static void lay_out_weights(chain_trainer *l, train_arena *a) {
    const model_config *c = &l->c.stack;
    l->turned.state = train_take_turned(a, c->hidden, l->c.backbone);
    l->turned.post = train_take_turned(a, l->c.backbone, c->hidden);
    l->turned.head = train_take_turned(a, c->vocab, c->hidden);
    if (l->c.clusters) l->turned.centroids = train_take_turned(a, l->c.clusters, c->hidden);
    for (int i = 0; i < c->layers; i++) {
        int width = c->layer[i].intermediate;
        l->turned.layer[i].q = train_take_turned(a, chain_q(l, i), c->hidden);
        l->turned.layer[i].o = train_take_turned(a, c->hidden, chain_q(l, i));
        l->turned.layer[i].gate = train_take_turned(a, width, c->hidden);
        l->turned.layer[i].up = train_take_turned(a, width, c->hidden);
        l->turned.layer[i].down = train_take_turned(a, c->hidden, width);
    }
}

static void lay_out_products(chain_trainer *l, const sizes *s, train_arena *a) {
    size_t head = CHAIN_HEAD_ROWS, packed = train_packed_floats(l->m, s->chains, s->widest);
    packed = train_most(packed, train_packed_floats(l->m, head, train_most(s->vocab, s->widest)));
    packed = train_most(packed, train_packed_floats(l->m, s->vocab, head));
    packed = train_most(packed, train_packed_floats(l->m, s->widest, s->rows));
    size_t turned = train_most((s->vocab + s->hidden) * head, (s->widest + s->hidden) * s->rows);
    size_t product = train_most(train_most(train_most(s->vocab, s->widest), s->chains), head) * s->hidden;
    l->products = (train_products){l->m, train_take(a, packed), train_take(a, turned), train_take(a, product)};
    size_t of_thread = train_packed_floats(l->m, CHAIN_CHUNK, s->positions);
    for (int i = 0; i < l->c.stack.layers; i++)
        of_thread = train_most(of_thread, train_packed_floats(l->m, CHAIN_CHUNK, (size_t)l->c.stack.layer[i].head_dim));
    for (int i = 0; i < l->m->threads; i++) l->thread_packed[i] = train_take(a, of_thread);
}

static void lay_out_layer(chain_trainer *l, int index, const sizes *s, train_arena *a) {
    chain_layer *x = &l->layer[index];
    size_t q = (size_t)chain_q(l, index), width = (size_t)l->c.stack.layer[index].intermediate;
    float **of_hidden[] = {&x->x, &x->x2, &x->attended, &x->middle, &x->fed, &x->sum, &x->d_attended, &x->d_fed};
    for (size_t i = 0; i < sizeof of_hidden / sizeof *of_hidden; i++)
        *of_hidden[i] = train_take(a, s->rows * s->hidden);
    float **of_q[] = {&x->q_raw, &x->q, &x->o, &x->d_q};
    for (size_t i = 0; i < sizeof of_q / sizeof *of_q; i++) *of_q[i] = train_take(a, s->rows * q);
    x->gate_up = train_take(a, s->rows * 2 * width);
    x->d_gate_up = train_take(a, s->rows * 2 * width);
    x->act = train_take(a, s->rows * width);
    x->shares = train_take(a, (size_t)l->c.stack.heads * s->rows * s->positions);
}

static void lay_out(chain_trainer *l, train_arena *a) {
    const sizes s = sizes_of(l);
    lay_out_weights(l, a);
    lay_out_products(l, &s, a);
    for (int type = 0; type < 2; type++) {
        float **of[] = {&l->kv[type].keys, &l->kv[type].keys_t, &l->kv[type].values, &l->kv[type].values_t};
        for (int i = 0; i < 4 && l->seen.source[type] >= 0; i++)
            *of[i] = train_take(a, s.sequences * s.positions * l->seen.kv[type]);
    }
    for (int i = 0; i < l->c.stack.layers; i++) lay_out_layer(l, i, &s, a);
    l->scored = (int *)(void *)train_take(a, s.rows);
    l->first = (int *)(void *)train_take(a, s.chains);
    l->sequence = (int *)(void *)train_take(a, s.chains);
    l->begin = (int *)(void *)train_take(a, s.sequences + 1);
    l->seen_positions = (int *)(void *)train_take(a, s.sequences);
    l->loss = (double *)(void *)train_take(a, 2 * s.rows);
    l->right = (bool *)(void *)train_take(a, s.rows);
    l->pair = train_take(a, s.rows * 2 * s.backbone);
    l->stream = train_take(a, (size_t)(l->c.stack.layers + 1) * s.rows * s.hidden);
    l->logits = train_take(a, CHAIN_HEAD_ROWS * s.vocab);
    l->picked = train_take(a, CHAIN_HEAD_ROWS * s.hidden);
    if (l->c.clusters) l->clusters = train_take(a, CHAIN_HEAD_ROWS * (size_t)l->c.clusters);
    if (l->o.distribution) {
        l->verifiers_head =
            weight_matrix(WEIGHT_F32, train_take(a, s.vocab * s.backbone), (int)s.vocab, (int)s.backbone);
        l->taught = train_take(a, CHAIN_HEAD_ROWS * s.vocab);
        l->states = train_take(a, CHAIN_HEAD_ROWS * s.backbone);
    }
    float **of_rows[] = {&l->normed, &l->d_normed, &l->d_h0};
    for (int i = 0; i < 3; i++) *of_rows[i] = train_take(a, s.rows * s.hidden);
    l->d_state = train_take(a, s.rows * s.backbone);
    l->d_stream = train_take(a, s.chains * s.hidden);
    l->d_x = train_take(a, s.chains * s.hidden);
    l->d_act = train_take(a, s.chains * s.width);
    l->d_o = train_take(a, s.chains * s.q);
    l->d_shares = train_take(a, (size_t)l->c.stack.heads * s.chains * s.positions);
}

static void prepare(chain_trainer *l, backend_model *m, const drafter_trainer_options *o) {
    memset(l, 0, sizeof *l);
    l->m = m;
    l->o = *o;
    l->c = *o->assistant;
    l->o.assistant = &l->c;
    l->seen = assistant_sees(&l->c, m->config);
}

size_t chain_trainer_bytes(backend_model *m, const drafter_trainer_options *options) {
    chain_trainer *l = mem_alloc(m->account, MEM_WORKSPACE, sizeof *l);
    train_arena a = {0};
    if (!l) return 0;
    prepare(l, m, options);
    lay_out(l, &a);
    mem_free(l);
    return a.floats * sizeof(float) + sizeof *l;
}

kakeya_status chain_trainer_create(backend_model *m, const drafter_trainer_options *options, chain_trainer **out,
                                   kakeya_error *error) {
    *out = NULL;
    chain_trainer *l = mem_alloc(m->account, MEM_WORKSPACE, sizeof *l);
    if (!l) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for training");
    prepare(l, m, options);
    train_arena a = {0};
    lay_out(l, &a);
    size_t bytes = a.floats * sizeof(float);
    l->memory = mem_alloc(m->account, MEM_WORKSPACE, bytes);
    kakeya_status status = KAKEYA_OK;
    if (!l->memory) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: training needs %zu bytes", bytes);
    for (int type = 0; type < 2 && !status; type++) {
        if (l->seen.source[type] >= 0) status = rope_table_reserve(m, &m->rope[type], options->sequence, error);
    }
    if (status) {
        chain_trainer_destroy(l);
        return status;
    }
    memset(l->memory, 0, bytes);
    a = (train_arena){.base = l->memory};
    lay_out(l, &a);
    if (l->o.distribution) train_load_head(m, &l->verifiers_head);
    *out = l;
    return KAKEYA_OK;
}

void chain_trainer_destroy(chain_trainer *l) {
    if (!l) return;
    mem_free(l->memory);
    mem_free(l);
}

void chain_trainer_weights(chain_trainer *l, const float *weights) {
    assistant_values_bind(&l->c, train_vector(weights), &l->w);
    const assistant_weights *w = &l->w.weights;
    const weight *pre = &w->pre_projection;
    int backbone = l->c.backbone;
    train_turn_wide(&l->products, train_values(pre) + backbone, (size_t)pre->in, pre->out, backbone,
                    train_values(&l->turned.state));
    train_turn_matrix(&l->products, &w->post_projection, &l->turned.post);
    train_turn_matrix(&l->products, &w->stack.head, &l->turned.head);
    if (l->c.clusters) train_turn_matrix(&l->products, &w->centroids, &l->turned.centroids);
    for (int i = 0; i < l->c.stack.layers; i++) {
        const layer_weights *of = &w->stack.layer[i];
        train_turn_matrix(&l->products, &of->q_proj, &l->turned.layer[i].q);
        train_turn_matrix(&l->products, &of->o_proj, &l->turned.layer[i].o);
        train_turn_matrix(&l->products, &of->gate_proj, &l->turned.layer[i].gate);
        train_turn_matrix(&l->products, &of->up_proj, &l->turned.layer[i].up);
        train_turn_matrix(&l->products, &of->down_proj, &l->turned.layer[i].down);
    }
}

/* ----------------------------------------------------------------------------------------------------- sequences */

static void place_rows(chain_trainer *l) {
    l->passes = l->o.chain - 1;
    l->chains = l->positions = l->n_scored = 0;
    for (int i = 0; i < l->n_sequences; i++) {
        const drafter_trainer_sequence *s = &l->sequences[i];
        l->begin[i] = l->chains;
        l->seen_positions[i] = 0;
        for (int k = 0; k < s->blocks; k++) {
            l->sequence[l->chains] = i;
            l->first[l->chains++] = s->first[k];
            if (s->first[k] > l->seen_positions[i]) l->seen_positions[i] = s->first[k];
        }
        if (l->seen_positions[i] > l->positions) l->positions = l->seen_positions[i];
    }
    l->begin[l->n_sequences] = l->chains;
    for (int row = 0; row < l->chains * l->passes; row++) {
        if (chain_position(l, row) < chain_sequence(l, row)->n) l->scored[l->n_scored++] = row;
    }
}

static void learn(chain_trainer *l, const drafter_trainer_sequence *sequences, int n, bool backward) {
    for (int i = 0; i < n; i++) *sequences[i].result = (drafter_trainer_result){0};
    l->sequences = sequences;
    l->n_sequences = n;
    place_rows(l);
    if (!l->chains) return;
    chain_gather(l);
    for (int pass = 0; pass < l->passes; pass++) chain_pass(l, pass);
    chain_score(l, backward);
    if (!backward) return;
    for (int pass = l->passes - 1; pass >= 0; pass--) chain_pass_back(l, pass);
    chain_sums(l);
}

void chain_trainer_learn(chain_trainer *l, const drafter_trainer_sequence *sequences, int n, float scale,
                         float *gradient) {
    int at_once = l->o.sequences > 1 ? l->o.sequences : 1;
    l->scale = scale;
    if (gradient) assistant_values_bind(&l->c, gradient, &l->gradient);
    for (int i = 0; i < n; i += at_once) learn(l, sequences + i, n - i < at_once ? n - i : at_once, gradient != NULL);
}
