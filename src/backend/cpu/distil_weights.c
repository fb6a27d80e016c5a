#include <math.h>
#include <string.h>

#include "backend/cpu/distil.h"
#include "backend/cpu/matrix.h"

weight distil_matrix(const float *values, int out, int in) { return weight_matrix(WEIGHT_F32, values, out, in); }

/* ------------------------------------------------------------------------------------------- transposed weights */

static weight take_turned(train_arena *a, const weight *w) {
    if (!weight_present(w)) return (weight){0};
    return distil_matrix(train_take(a, (size_t)w->out * (size_t)w->in), w->in, w->out);
}

void distil_weights_lay_out(backend_restoration_trainer *s, train_arena *a) {
    const model_config *c = s->m->config;
    for (int i = 0; i < c->layers; i++) {
        const layer_weights *w = &s->m->weights->layer[i];
        distil_layer *l = &s->layer[i];
        l->q_t = take_turned(a, &w->q_proj);
        if (c->layer[i].kv_source == i) {
            l->k_t = take_turned(a, &w->k_proj);
            if (!c->layer[i].k_eq_v) l->v_t = take_turned(a, &w->v_proj);
        }
        l->o_t = take_turned(a, &w->o_proj);
        l->gate_t = take_turned(a, &w->gate_proj);
        l->up_t = take_turned(a, &w->up_proj);
        l->down_t = take_turned(a, &w->down_proj);
        if (c->ple_width) {
            l->ple_gate_t = take_turned(a, &w->ple_gate);
            l->ple_proj_t = take_turned(a, &w->ple_proj);
        }
        if (!c->moe) continue;
        size_t one = (size_t)c->hidden * (size_t)c->expert_intermediate;
        l->router_t = take_turned(a, &w->router_proj);
        l->expert_gate_up_t = train_take(a, 2 * (size_t)c->experts * one);
        l->expert_down_t = train_take(a, (size_t)c->experts * one);
        l->router_norm = train_take(a, (size_t)c->hidden);
    }
    s->head_t = take_turned(a, &s->m->weights->head);
}

/* Rows [first, first + n) of w as columns [column, column + n) of out, whose rows are `width` long. */
static void fill_turned(const backend_restoration_trainer *s, const weight *w, int first, int n, float *out,
                        size_t width, size_t column, float *row) {
    if (!weight_present(w)) return;
    for (int r = 0; r < n; r++) {
        load_row(s->m, w, first + r, 0, w->in, row);
        for (int i = 0; i < w->in; i++) out[(size_t)i * width + column + (size_t)r] = row[i];
    }
}

static void fill(const backend_restoration_trainer *s, const weight *w, const weight *turned, float *row) {
    fill_turned(s, w, 0, turned->in, (float *)(uintptr_t)turned->stream[0], (size_t)turned->in, 0, row);
}

void distil_weights_fill(backend_restoration_trainer *s) {
    const model_config *c = s->m->config;
    float *row = s->product; /* longer than any row of a matrix */
    for (int i = 0; i < c->layers; i++) {
        const layer_weights *w = &s->m->weights->layer[i];
        distil_layer *l = &s->layer[i];
        fill(s, &w->q_proj, &l->q_t, row);
        fill(s, &w->k_proj, &l->k_t, row);
        fill(s, &w->v_proj, &l->v_t, row);
        fill(s, &w->o_proj, &l->o_t, row);
        fill(s, &w->gate_proj, &l->gate_t, row);
        fill(s, &w->up_proj, &l->up_t, row);
        fill(s, &w->down_proj, &l->down_t, row);
        fill(s, &w->ple_gate, &l->ple_gate_t, row);
        fill(s, &w->ple_proj, &l->ple_proj_t, row);
        if (!c->moe) continue;
        fill(s, &w->router_proj, &l->router_t, row);
        int width = c->expert_intermediate, hidden = c->hidden;
        for (int e = 0; e < c->experts; e++) {
            size_t one = (size_t)hidden * (size_t)width;
            float *gate_up = l->expert_gate_up_t + 2 * (size_t)e * one, *down = l->expert_down_t + (size_t)e * one;
            size_t wide = 2 * (size_t)width;
            fill_turned(s, &w->experts_gate_up, e * 2 * width, 2 * width, gate_up, wide, 0, row);
            fill_turned(s, &w->experts_gate, e * width, width, gate_up, wide, 0, row);
            fill_turned(s, &w->experts_up, e * width, width, gate_up, wide, (size_t)width, row);
            fill_turned(s, &w->experts_down, e * hidden, hidden, down, (size_t)hidden, 0, row);
        }
        float root = 1.0f / sqrtf((float)hidden);
        for (int j = 0; j < hidden; j++) l->router_norm[j] = w->router_scale[j] * root;
    }
    fill(s, &s->m->weights->head, &s->head_t, row);
}

/* ----------------------------------------------------------------------------------------------------- products */

static train_products products_of(const backend_restoration_trainer *s, float *product) {
    return (train_products){.m = s->m, .packed = s->packed, .turned = s->turned, .product = product};
}

void distil_product(backend_restoration_trainer *s, const float *x, size_t ldx, int rows, const weight *w, float *y,
                    size_t ldy) {
    train_products products = products_of(s, NULL);
    train_product(&products, x, ldx, rows, w, y, ldy);
}

void distil_product_add(backend_restoration_trainer *s, const float *x, size_t ldx, int rows, const weight *w, float *y,
                        float *scratch) {
    train_products products = products_of(s, scratch);
    train_product_add(&products, x, ldx, rows, w, y);
}

void distil_turn(const float *x, size_t ldx, int rows, int n, float *out) { train_turn(x, ldx, rows, n, out); }

void distil_outer(backend_restoration_trainer *s, const float *b, int nb, const float *a, int na, int rows,
                  float *sum) {
    train_products products = products_of(s, s->product);
    train_outer_add(&products, b, (size_t)nb, nb, a, (size_t)na, na, rows, sum);
}

/* --------------------------------------------------------------------------------------------------------- rows */

typedef struct rows_work {
    backend_restoration_trainer *s;
    distil_row_task task;
    void *context;
} rows_work;

static void rows_range(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const rows_work *w = context;
    for (size_t row = begin; row < end; row++) w->task(w->s, w->context, (int)row);
}

void distil_rows(backend_restoration_trainer *s, int n, distil_row_task task, void *context) {
    rows_work work = {s, task, context};
    thread_pool_for(s->m->pool, (size_t)n, 4, rows_range, &work);
}
