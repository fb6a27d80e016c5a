/* Attention of a segment's rows over columns: keys of the teacher, restored ones, and the rows' own. A query head is
 * an item of work with matrices of its own, and what the heads of a group give their common K/V is added in order. */
#include <math.h>
#include <string.h>

#include "backend/cpu/backward.h"
#include "backend/cpu/distil.h"
#include "backend/cpu/matrix.h"

typedef struct attention_work {
    backend_restoration_trainer *s;
    int layer, source, d, group;
    bool forced;
} attention_work;

/* --------------------------------------------------------------------------------------------------------- mask */

static int oldest_seen(const backend_restoration_trainer *s, int layer, int position) {
    const model_config *c = s->m->config;
    int oldest = position - c->sliding_window + 1;
    return c->layer[layer].type == LAYER_SLIDING && oldest > 0 ? oldest : 0;
}

/* The rule of docs/design/restoration.md. */
static bool sees(const backend_restoration_trainer *s, int layer, bool forced, int t, const distil_column *column) {
    int p = column->position, row = s->segment.prompt ? s->segment.first - 1 : t; /* that has evicted */
    if (p > t || p < oldest_seen(s, layer, t)) return false;
    bool exact = !forced && (!s->layer[layer].restored || p < s->o.sink || p > row - s->o.window);
    return exact == (column->kind != COLUMN_RESTORED);
}

void distil_columns(backend_restoration_trainer *s, int layer, bool forced) {
    const distil_layer *l = &s->layer[s->m->config->layer[layer].kv_source];
    int first = s->segment.first, oldest = oldest_seen(s, layer, first), row = first - s->segment.prompt;
    s->columns = 0;
    for (int p = oldest; p < first && !forced; p++) {
        bool exact = !l->restored || p < s->o.sink || p > row - s->o.window;
        if (exact) s->column[s->columns++] = (distil_column){p, COLUMN_EXACT};
    }
    for (int i = 0; i < l->rows; i++)
        s->column[s->columns++] = (distil_column){s->position[l->first + i], COLUMN_RESTORED};
    for (int i = 0; i < s->o.rows && !forced; i++) s->column[s->columns++] = (distil_column){first + i, COLUMN_OWN};
}

/* Where a column's K or V lies, all heads. `gradient`: where its gradient goes, NULL for the teacher's. */
static float *column_row(const backend_restoration_trainer *s, const distil_layer *l, int column, int half, size_t kv,
                         bool gradient) {
    const distil_column *c = &s->column[column];
    switch (c->kind) {
    case COLUMN_EXACT:
        return gradient ? NULL : l->native[half] + (size_t)c->position * kv;
    case COLUMN_RESTORED: {
        int first_restored = s->columns - l->rows - (s->column[s->columns - 1].kind == COLUMN_OWN ? s->o.rows : 0);
        return (gradient ? l->d_seen : l->seen)[half] + (size_t)(column - first_restored) * kv;
    }
    default:
        return (gradient ? l->d_own : l->own)[half] + (size_t)(c->position - s->segment.first) * kv;
    }
}

/* ------------------------------------------------------------------------------------------------------ forward */

/* Items are K/V heads. */
static void gather_head(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const attention_work *w = context;
    backend_restoration_trainer *s = w->s;
    const distil_layer *l = &s->layer[w->source];
    size_t d = (size_t)w->d, n = (size_t)s->columns, kv = distil_kv_dim(s, w->source);
    for (size_t head = begin; head < end; head++) {
        for (int half = 0; half < 2; half++) {
            float *to = (half ? s->values : s->keys) + head * n * d, *turned = half ? s->values_t : s->keys_t;
            for (int i = 0; i < s->columns; i++)
                memcpy(to + (size_t)i * d, column_row(s, l, i, half, kv, false) + head * d, d * sizeof *to);
            distil_turn(to, d, s->columns, w->d, turned + head * n * d);
        }
    }
}

/* Items are query heads. */
static void attend_head(void *context, size_t begin, size_t end, int thread) {
    const attention_work *w = context;
    backend_restoration_trainer *s = w->s;
    size_t d = (size_t)w->d, n = (size_t)s->columns, q_dim = distil_q_dim(s, w->layer);
    for (size_t a = begin; a < end; a++) {
        size_t head = a / (size_t)w->group;
        float *shares = s->shares + a * (size_t)s->o.rows * n;
        weight keys = distil_matrix(s->keys + head * n * d, s->columns, w->d),
               values = distil_matrix(s->values_t + head * n * d, w->d, s->columns);
        multiply_alone(s->m, &keys, s->tape.q + a * d, q_dim, s->o.rows, s->thread_packed[thread], shares, n);
        for (int r = 0; r < s->o.rows; r++) {
            float *row = shares + (size_t)r * n, largest = -INFINITY;
            double sum = 0;
            for (size_t i = 0; i < n; i++) {
                if (!sees(s, w->layer, w->forced, s->segment.first + r, &s->column[i])) row[i] = -INFINITY;
                if (row[i] > largest) largest = row[i];
            }
            for (size_t i = 0; i < n; i++) {
                row[i] = row[i] == -INFINITY ? 0 : expf(row[i] - largest);
                sum += (double)row[i];
            }
            for (size_t i = 0; i < n; i++) row[i] = (float)((double)row[i] / sum);
        }
        multiply_alone(s->m, &values, shares, n, s->o.rows, s->thread_packed[thread], s->tape.o + a * d, q_dim);
    }
}

static attention_work work_of(backend_restoration_trainer *s, int layer, bool forced) {
    const model_config *c = s->m->config;
    return (attention_work){.s = s,
                            .layer = layer,
                            .source = c->layer[layer].kv_source,
                            .d = c->layer[layer].head_dim,
                            .group = c->heads / c->layer[layer].kv_heads,
                            .forced = forced};
}

void distil_attend(backend_restoration_trainer *s, int layer, bool forced) {
    attention_work work = work_of(s, layer, forced);
    distil_columns(s, layer, forced);
    thread_pool_for(s->m->pool, (size_t)s->m->config->layer[layer].kv_heads, 1, gather_head, &work);
    thread_pool_for(s->m->pool, (size_t)s->m->config->heads, 1, attend_head, &work);
}

/* ----------------------------------------------------------------------------------------------------- backward */

static void attend_head_back(void *context, size_t begin, size_t end, int thread) {
    const attention_work *w = context;
    backend_restoration_trainer *s = w->s;
    size_t d = (size_t)w->d, n = (size_t)s->columns, q_dim = distil_q_dim(s, w->layer), rows = (size_t)s->o.rows;
    void *packed = s->thread_packed[thread];
    float *turned = s->thread[thread], *small = turned + n * rows;
    for (size_t a = begin; a < end; a++) {
        size_t head = a / (size_t)w->group;
        float *shares = s->shares + a * rows * n, *d_shares = s->d_shares + a * rows * n;
        const float *d_o = s->d_o + a * d, *q = s->tape.q + a * d;
        weight values = distil_matrix(s->values + head * n * d, s->columns, w->d),
               keys = distil_matrix(s->keys_t + head * n * d, w->d, s->columns),
               row = distil_matrix(small, w->d, s->o.rows);
        multiply_alone(s->m, &values, d_o, q_dim, s->o.rows, packed, d_shares, n);
        for (size_t r = 0; r < rows; r++) backward_softmax(shares + r * n, s->columns, d_shares + r * n);
        multiply_alone(s->m, &keys, d_shares, n, s->o.rows, packed, s->d_q + a * d, q_dim);
        distil_turn(d_shares, n, s->o.rows, s->columns, turned);
        distil_turn(q, q_dim, s->o.rows, w->d, small);
        multiply_alone(s->m, &row, turned, rows, s->columns, packed, s->d_key + a * n * d, d);
        distil_turn(shares, n, s->o.rows, s->columns, turned);
        distil_turn(d_o, q_dim, s->o.rows, w->d, small);
        multiply_alone(s->m, &row, turned, rows, s->columns, packed, s->d_value + a * n * d, d);
    }
}

/* Items are columns. */
static void scatter_columns(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const attention_work *w = context;
    backend_restoration_trainer *s = w->s;
    const distil_layer *l = &s->layer[w->source];
    size_t d = (size_t)w->d, n = (size_t)s->columns, kv = distil_kv_dim(s, w->source);
    for (size_t column = begin; column < end; column++) {
        for (int half = 0; half < 2; half++) {
            float *to = column_row(s, l, (int)column, half, kv, true);
            for (size_t a = 0; to && a < (size_t)s->m->config->heads; a++) {
                const float *from = (half ? s->d_value : s->d_key) + (a * n + column) * d;
                float *head = to + a / (size_t)w->group * d;
                for (size_t i = 0; i < d; i++) head[i] += from[i];
            }
        }
    }
}

void distil_attend_back(backend_restoration_trainer *s, int layer) {
    attention_work work = work_of(s, layer, false);
    thread_pool_for(s->m->pool, (size_t)s->m->config->heads, 1, attend_head_back, &work);
    thread_pool_for(s->m->pool, (size_t)s->columns, 64, scatter_columns, &work);
}
