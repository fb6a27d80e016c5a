/* Attention of blocks. A row sees the context before its block (in sliding layers the part of it in its window) and the
 * rows of its block, as block.c has it. Pieces of work are a head's rows, or columns, DRAFTER_TRAINER_CHUNK of them. */
#include <math.h>
#include <string.h>

#include "backend/cpu/backward.h"
#include "backend/cpu/drafter_trainer.h"
#include "backend/cpu/matrix.h"

typedef struct attention_work {
    backend_drafter_trainer *l;
    drafter_trainer_layer *layer;
    int sliding, group, chunks;
    size_t d, rows, context, columns, q_dim, kv;
} attention_work;

static attention_work work_of(backend_drafter_trainer *l, int layer) {
    const block_drafter_config *c = &l->c;
    return (attention_work){.l = l,
                            .layer = &l->layer[layer],
                            .sliding = c->sliding_window[layer],
                            .group = c->heads / c->kv_heads,
                            .d = (size_t)c->head_dim,
                            .rows = (size_t)l->rows,
                            .context = (size_t)l->context_rows,
                            .columns = (size_t)(l->context_rows + c->block_size),
                            .q_dim = drafter_trainer_q(c),
                            .kv = drafter_trainer_kv(c)};
}

/* What a row sees: context [begin, end), and rows [lo, hi) of its block. */
typedef struct row_range {
    int begin, end, lo, hi;
} row_range;

static row_range seen_by(const attention_work *w, int row) {
    int block = w->l->c.block_size, inside = row % block, first = w->l->first[row / block];
    row_range r = {0, first, 0, block};
    if (!w->sliding) return r;
    int begin = first + inside - w->sliding + 1, before = w->sliding - 1,
        behind = w->l->o.block_bidirectional ? before : 0;
    if (begin > 0) r.begin = begin < first ? begin : first;
    if (inside - before > 0) r.lo = inside - before;
    if (inside + 1 + behind < block) r.hi = inside + 1 + behind;
    return r;
}

static float dot(const float *a, const float *b, size_t n) {
    float sum = 0;
    for (size_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static void add_times(float factor, const float *x, size_t n, float *y) {
    for (size_t i = 0; i < n; i++) y[i] += factor * x[i];
}

/* Row j of the block that `row` belongs to, of a K/V head. */
static size_t own_at(const attention_work *w, size_t row, int j, size_t head) {
    size_t block = (size_t)w->l->c.block_size;
    return (row / block * block + (size_t)j) * w->kv + head * w->d;
}

/* Items are K/V heads. */
static void gather_head(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const attention_work *w = context;
    size_t n = w->context, d = w->d;
    for (size_t head = begin; head < end; head++) {
        for (int half = 0; half < 2; half++) {
            const float *from = w->layer->context[half] + head * d;
            float *to = (half ? w->l->values : w->l->keys) + head * n * d;
            for (size_t p = 0; p < n; p++) memcpy(to + p * d, from + p * w->kv, d * sizeof *to);
            train_turn(to, d, (int)n, (int)d, (half ? w->l->values_t : w->l->keys_t) + head * n * d);
        }
    }
}

static void gather(attention_work *w) { thread_pool_for(w->l->m->pool, (size_t)w->l->c.kv_heads, 1, gather_head, w); }

/* --------------------------------------------------------------------------------------------------------- there */

static void share_row(const attention_work *w, size_t head, size_t row, const float *q, float *shares) {
    row_range r = seen_by(w, (int)row);
    float *own = shares + w->context, largest = -INFINITY;
    double sum = 0;
    for (int j = r.lo; j < r.hi; j++) own[j] = dot(q, w->layer->own[0] + own_at(w, row, j, head), w->d);
    for (int p = r.begin; p < r.end; p++) largest = fmaxf(largest, shares[p]);
    for (int j = r.lo; j < r.hi; j++) largest = fmaxf(largest, own[j]);
    memset(shares, 0, (size_t)r.begin * sizeof *shares);
    memset(shares + r.end, 0, (w->context - (size_t)r.end + (size_t)r.lo) * sizeof *shares);
    memset(own + r.hi, 0, (size_t)(w->l->c.block_size - r.hi) * sizeof *own);
    for (int p = r.begin; p < r.end; p++) sum += (double)(shares[p] = expf(shares[p] - largest));
    for (int j = r.lo; j < r.hi; j++) sum += (double)(own[j] = expf(own[j] - largest));
    float each = (float)(1 / sum);
    for (int p = r.begin; p < r.end; p++) shares[p] *= each;
    for (int j = r.lo; j < r.hi; j++) own[j] *= each;
}

/* Items are pieces of the rows of query heads. */
static void attend_rows(void *context, size_t begin, size_t end, int thread) {
    const attention_work *w = context;
    backend_drafter_trainer *l = w->l;
    for (size_t item = begin; item < end; item++) {
        size_t a = item / (size_t)w->chunks, head = a / (size_t)w->group,
               from = item % (size_t)w->chunks * DRAFTER_TRAINER_CHUNK,
               n = w->rows - from < DRAFTER_TRAINER_CHUNK ? w->rows - from : DRAFTER_TRAINER_CHUNK;
        float *shares = w->layer->shares + (a * w->rows + from) * w->columns;
        const float *q = w->layer->q + from * w->q_dim + a * w->d;
        float *o = w->layer->o + from * w->q_dim + a * w->d;
        weight keys = weight_matrix(WEIGHT_F32, l->keys + head * w->context * w->d, l->context_rows, (int)w->d),
               values = weight_matrix(WEIGHT_F32, l->values_t + head * w->context * w->d, (int)w->d, l->context_rows);
        multiply_alone(l->m, &keys, q, w->q_dim, (int)n, l->thread_packed[thread], shares, w->columns);
        for (size_t r = 0; r < n; r++) share_row(w, head, from + r, q + r * w->q_dim, shares + r * w->columns);
        multiply_alone(l->m, &values, shares, w->columns, (int)n, l->thread_packed[thread], o, w->q_dim);
        for (size_t r = 0; r < n; r++) {
            for (int j = 0; j < l->c.block_size; j++)
                add_times(shares[r * w->columns + w->context + (size_t)j],
                          w->layer->own[1] + own_at(w, from + r, j, head), w->d, o + r * w->q_dim);
        }
    }
}

static int chunks_of(size_t n) { return (int)((n + DRAFTER_TRAINER_CHUNK - 1) / DRAFTER_TRAINER_CHUNK); }

void drafter_trainer_attend(backend_drafter_trainer *l, int layer) {
    attention_work work = work_of(l, layer);
    gather(&work);
    work.chunks = chunks_of(work.rows);
    thread_pool_for(l->m->pool, (size_t)(l->c.heads * work.chunks), 1, attend_rows, &work);
}

/* ---------------------------------------------------------------------------------------------------------- back */

/* From d_o to gradients of the scores and of the queries. Items as in attend_rows. */
static void rows_back(void *context, size_t begin, size_t end, int thread) {
    const attention_work *w = context;
    backend_drafter_trainer *l = w->l;
    for (size_t item = begin; item < end; item++) {
        size_t a = item / (size_t)w->chunks, head = a / (size_t)w->group,
               from = item % (size_t)w->chunks * DRAFTER_TRAINER_CHUNK,
               n = w->rows - from < DRAFTER_TRAINER_CHUNK ? w->rows - from : DRAFTER_TRAINER_CHUNK,
               at = (a * w->rows + from) * w->columns;
        const float *shares = w->layer->shares + at, *d_o = l->d_o + from * w->q_dim + a * w->d;
        float *d_shares = l->d_shares + at, *d_q = l->d_q + from * w->q_dim + a * w->d;
        weight values = weight_matrix(WEIGHT_F32, l->values + head * w->context * w->d, l->context_rows, (int)w->d),
               keys = weight_matrix(WEIGHT_F32, l->keys_t + head * w->context * w->d, (int)w->d, l->context_rows);
        multiply_alone(l->m, &values, d_o, w->q_dim, (int)n, l->thread_packed[thread], d_shares, w->columns);
        for (size_t r = 0; r < n; r++) {
            float *row = d_shares + r * w->columns;
            for (int j = 0; j < l->c.block_size; j++)
                row[w->context + (size_t)j] =
                    dot(d_o + r * w->q_dim, w->layer->own[1] + own_at(w, from + r, j, head), w->d);
            backward_softmax(shares + r * w->columns, (int)w->columns, row);
        }
        multiply_alone(l->m, &keys, d_shares, w->columns, (int)n, l->thread_packed[thread], d_q, w->q_dim);
        for (size_t r = 0; r < n; r++) {
            for (int j = 0; j < l->c.block_size; j++)
                add_times(d_shares[r * w->columns + w->context + (size_t)j],
                          w->layer->own[0] + own_at(w, from + r, j, head), w->d, d_q + r * w->q_dim);
        }
    }
}

/* Queries and d_o of a head, transposed. Items are query heads. */
static void turn_head(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const attention_work *w = context;
    for (size_t a = begin; a < end; a++) {
        train_turn(w->layer->q + a * w->d, w->q_dim, (int)w->rows, (int)w->d, w->l->q_t + a * w->d * w->rows);
        train_turn(w->l->d_o + a * w->d, w->q_dim, (int)w->rows, (int)w->d, w->l->d_o_t + a * w->d * w->rows);
    }
}

/* What a head's rows say of context K and V. Items are pieces of the columns of query heads. */
static void columns_back(void *context, size_t begin, size_t end, int thread) {
    const attention_work *w = context;
    backend_drafter_trainer *l = w->l;
    float *turned = l->thread[thread];
    for (size_t item = begin; item < end; item++) {
        size_t a = item / (size_t)w->chunks, from = item % (size_t)w->chunks * DRAFTER_TRAINER_CHUNK,
               n = w->context - from < DRAFTER_TRAINER_CHUNK ? w->context - from : DRAFTER_TRAINER_CHUNK,
               at = a * w->rows * w->columns + from, to = (a * w->context + from) * w->d;
        weight queries = weight_matrix(WEIGHT_F32, l->q_t + a * w->d * w->rows, (int)w->d, l->rows),
               outs = weight_matrix(WEIGHT_F32, l->d_o_t + a * w->d * w->rows, (int)w->d, l->rows);
        train_turn(l->d_shares + at, w->columns, l->rows, (int)n, turned);
        multiply_alone(l->m, &queries, turned, w->rows, (int)n, l->thread_packed[thread], l->d_key + to, w->d);
        train_turn(w->layer->shares + at, w->columns, l->rows, (int)n, turned);
        multiply_alone(l->m, &outs, turned, w->rows, (int)n, l->thread_packed[thread], l->d_value + to, w->d);
    }
}

/* The heads of a group together, in order. Items are positions of the context. */
static void sum_columns(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const attention_work *w = context;
    for (size_t p = begin; p < end; p++) {
        for (int half = 0; half < 2; half++) {
            float *to = w->l->d_columns[half] + p * w->kv;
            memset(to, 0, w->kv * sizeof *to);
            for (size_t a = 0; a < (size_t)w->l->c.heads; a++)
                add_times(1, (half ? w->l->d_value : w->l->d_key) + (a * w->context + p) * w->d, w->d,
                          to + a / (size_t)w->group * w->d);
        }
    }
}

/* What rows of a block say of each other. Items are blocks. */
static void own_back(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const attention_work *w = context;
    backend_drafter_trainer *l = w->l;
    size_t block = (size_t)l->c.block_size;
    for (size_t row = begin * block; row < end * block; row++) {
        for (int half = 0; half < 2; half++) memset(l->d_own[half] + row * w->kv, 0, w->kv * sizeof(float));
    }
    for (size_t row = begin * block; row < end * block; row++) {
        for (size_t a = 0; a < (size_t)l->c.heads; a++) {
            size_t of_row = row * w->q_dim + a * w->d, of_shares = (a * w->rows + row) * w->columns + w->context;
            for (size_t j = 0; j < block; j++) {
                size_t to = own_at(w, row, (int)j, a / (size_t)w->group);
                add_times(l->d_shares[of_shares + j], w->layer->q + of_row, w->d, l->d_own[0] + to);
                add_times(w->layer->shares[of_shares + j], l->d_o + of_row, w->d, l->d_own[1] + to);
            }
        }
    }
}

void drafter_trainer_attend_back(backend_drafter_trainer *l, int layer) {
    attention_work work = work_of(l, layer);
    size_t heads = (size_t)l->c.heads;
    gather(&work);
    work.chunks = chunks_of(work.rows);
    thread_pool_for(l->m->pool, heads * (size_t)work.chunks, 1, rows_back, &work);
    thread_pool_for(l->m->pool, heads, 1, turn_head, &work);
    work.chunks = chunks_of(work.context);
    thread_pool_for(l->m->pool, heads * (size_t)work.chunks, 1, columns_back, &work);
    thread_pool_for(l->m->pool, work.context, 16, sum_columns, &work);
    thread_pool_for(l->m->pool, (size_t)l->blocks, 1, own_back, &work);
}

size_t drafter_trainer_attention_packed(const backend_drafter_trainer *l) {
    size_t most = (size_t)l->o.sequence, rows = (size_t)(l->o.blocks * l->c.block_size), d = (size_t)l->c.head_dim;
    most = most > rows ? most : rows;
    return train_packed_floats(l->m, DRAFTER_TRAINER_CHUNK, most > d ? most : d);
}
