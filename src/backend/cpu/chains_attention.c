/* Attention of a pass: a chain that begins at p sees positions before p, in sliding layers the window's without p. */
#include <math.h>
#include <string.h>

#include "backend/cpu/backward.h"
#include "backend/cpu/chains.h"
#include "backend/cpu/matrix.h"

typedef struct attention_work {
    chain_trainer *l;
    const chain_kv *kv;
    int pass, layer, group, window;
    size_t d, q, rows, positions; /* of the longest sequence */
} attention_work;

static attention_work work_of(chain_trainer *l, int pass, int layer) {
    const layer_config *c = &l->c.stack.layer[layer];
    return (attention_work){.l = l,
                            .kv = &l->kv[c->type],
                            .pass = pass,
                            .layer = layer,
                            .group = l->c.stack.heads / c->kv_heads,
                            .window = c->type == LAYER_SLIDING ? l->m->config->sliding_window : 0,
                            .d = (size_t)c->head_dim,
                            .q = (size_t)chain_q(l, layer),
                            .rows = (size_t)l->chains,
                            .positions = (size_t)l->positions};
}

/* -------------------------------------------------------------------------------------------------------- gather */

typedef struct gather_work {
    chain_trainer *l;
    layer_type type;
    size_t d;
} gather_work;

/* Where a sequence's K or V of a head lies. */
static size_t kv_at(const chain_trainer *l, layer_type type, size_t sequence, size_t head, size_t d) {
    size_t room = (size_t)l->o.sequence * l->seen.kv[type];
    return sequence * room + head * (size_t)l->seen_positions[sequence] * d;
}

/* Items are K/V heads of sequences. */
static void gather_head(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const gather_work *w = context;
    const chain_trainer *l = w->l;
    const chain_kv *kv = &l->kv[w->type];
    size_t d = w->d, heads = l->seen.kv[w->type] / d;
    for (size_t item = begin; item < end; item++) {
        size_t sequence = item / heads, head = item % heads, n = (size_t)l->seen_positions[sequence],
               at = kv_at(l, w->type, sequence, head, d);
        for (int half = 0; half < 2; half++) {
            const float *from = l->sequences[sequence].aux + (half ? l->seen.v : l->seen.k)[w->type] + head * d;
            float *to = (half ? kv->values : kv->keys) + at;
            for (size_t p = 0; p < n; p++) memcpy(to + p * d, from + p * l->seen.width, d * sizeof *to);
            train_turn(to, d, (int)n, (int)d, (half ? kv->values_t : kv->keys_t) + at);
        }
    }
}

void chain_gather(chain_trainer *l) {
    for (int type = 0; type < 2; type++) {
        if (l->seen.source[type] < 0) continue;
        const layer_config *c = &l->m->config->layer[l->seen.source[type]];
        gather_work work = {l, (layer_type)type, (size_t)c->head_dim};
        thread_pool_for(l->m->pool, (size_t)(l->n_sequences * c->kv_heads), 1, gather_head, &work);
    }
}

/* --------------------------------------------------------------------------------------------------------- there */

static void share_row(const attention_work *w, int first, size_t positions, float *shares) {
    int begin = w->window && first - w->window + 1 > 0 ? first - w->window + 1 : 0;
    float largest = -INFINITY;
    double sum = 0;
    for (int p = begin; p < first; p++) largest = fmaxf(largest, shares[p]);
    memset(shares, 0, (size_t)begin * sizeof *shares);
    memset(shares + first, 0, (positions - (size_t)first) * sizeof *shares);
    for (int p = begin; p < first; p++) sum += (double)(shares[p] = expf(shares[p] - largest));
    float each = (float)(1 / sum);
    for (int p = begin; p < first; p++) shares[p] *= each;
}

/* A piece of a query head's rows: chains [from, from + n), all of one sequence, whose K and V lie at `kv`. */
typedef struct piece {
    size_t head, from, n, positions, kv;
} piece;

static size_t chunks_of(const chain_trainer *l, int sequence) {
    return (size_t)(l->begin[sequence + 1] - l->begin[sequence] + CHAIN_CHUNK - 1) / CHAIN_CHUNK;
}

static size_t all_chunks(const chain_trainer *l) {
    size_t chunks = 0;
    for (int i = 0; i < l->n_sequences; i++) chunks += chunks_of(l, i);
    return chunks;
}

/* Items are chunks of all heads, those of a head one behind the other. */
static piece piece_of(const attention_work *w, size_t item) {
    const chain_trainer *l = w->l;
    size_t chunks = all_chunks(l), head = item / chunks, chunk = item % chunks;
    int sequence = 0;
    for (; chunk >= chunks_of(l, sequence); sequence++) chunk -= chunks_of(l, sequence);
    size_t from = (size_t)l->begin[sequence] + chunk * CHAIN_CHUNK, left = (size_t)l->begin[sequence + 1] - from;
    layer_type type = l->c.stack.layer[w->layer].type;
    return (piece){head, from, left < CHAIN_CHUNK ? left : CHAIN_CHUNK, (size_t)l->seen_positions[sequence],
                   kv_at(l, type, (size_t)sequence, head / (size_t)w->group, w->d)};
}

static float *shares_of(const attention_work *w, const piece *p) {
    size_t heads = (size_t)w->l->c.stack.heads;
    return w->l->layer[w->layer].shares + (((size_t)w->pass * heads + p->head) * w->rows + p->from) * w->positions;
}

static size_t query_at(const attention_work *w, const piece *p) {
    return (chain_row(w->l, w->pass) + p->from) * w->q + p->head * w->d;
}

static void attend_rows(void *context, size_t begin, size_t end, int thread) {
    const attention_work *w = context;
    chain_trainer *l = w->l;
    for (size_t item = begin; item < end; item++) {
        piece p = piece_of(w, item);
        size_t query = query_at(w, &p);
        float *shares = shares_of(w, &p);
        weight keys = weight_matrix(WEIGHT_F32, w->kv->keys + p.kv, (int)p.positions, (int)w->d),
               values = weight_matrix(WEIGHT_F32, w->kv->values_t + p.kv, (int)w->d, (int)p.positions);
        multiply_alone(l->m, &keys, l->layer[w->layer].q + query, w->q, (int)p.n, l->thread_packed[thread], shares,
                       w->positions);
        for (size_t r = 0; r < p.n; r++) share_row(w, l->first[p.from + r], p.positions, shares + r * w->positions);
        multiply_alone(l->m, &values, shares, w->positions, (int)p.n, l->thread_packed[thread],
                       l->layer[w->layer].o + query, w->q);
    }
}

void chain_attend(chain_trainer *l, int pass, int layer) {
    attention_work work = work_of(l, pass, layer);
    thread_pool_for(l->m->pool, (size_t)l->c.stack.heads * all_chunks(l), 1, attend_rows, &work);
}

/* ---------------------------------------------------------------------------------------------------------- back */

static void rows_back(void *context, size_t begin, size_t end, int thread) {
    const attention_work *w = context;
    chain_trainer *l = w->l;
    for (size_t item = begin; item < end; item++) {
        piece p = piece_of(w, item);
        const float *shares = shares_of(w, &p);
        float *d_shares = l->d_shares + (p.head * w->rows + p.from) * w->positions;
        weight values = weight_matrix(WEIGHT_F32, w->kv->values + p.kv, (int)p.positions, (int)w->d),
               keys = weight_matrix(WEIGHT_F32, w->kv->keys_t + p.kv, (int)w->d, (int)p.positions);
        multiply_alone(l->m, &values, l->d_o + p.from * w->q + p.head * w->d, w->q, (int)p.n, l->thread_packed[thread],
                       d_shares, w->positions);
        for (size_t r = 0; r < p.n; r++)
            backward_softmax(shares + r * w->positions, (int)p.positions, d_shares + r * w->positions);
        multiply_alone(l->m, &keys, d_shares, w->positions, (int)p.n, l->thread_packed[thread],
                       l->layer[w->layer].d_q + query_at(w, &p), w->q);
    }
}

void chain_attend_back(chain_trainer *l, int pass, int layer) {
    attention_work work = work_of(l, pass, layer);
    thread_pool_for(l->m->pool, (size_t)l->c.stack.heads * all_chunks(l), 1, rows_back, &work);
}
