#include "backend/cpu/train_rows.h"

#include <string.h>

#include "backend/cpu/backward.h"
#include "backend/cpu/matrix.h"

typedef struct each_work {
    train_task task;
    void *context;
} each_work;

static void each_range(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const each_work *w = context;
    for (size_t row = begin; row < end; row++) w->task(w->context, (int)row);
}

void train_each(const backend_model *m, int n, train_task task, void *context) {
    each_work work = {task, context};
    thread_pool_for(m->pool, (size_t)n, 8, each_range, &work);
}

/* ------------------------------------------------------------------------------------------------------- weights */

weight train_take_turned(train_arena *a, int out, int in) {
    return weight_matrix(WEIGHT_F32, train_take(a, (size_t)out * (size_t)in), in, out);
}

void train_turn_matrix(const train_products *p, const weight *w, const weight *turned) {
    train_turn_wide(p, train_values(w), (size_t)w->in, w->out, w->in, train_values(turned));
}

typedef struct head_load {
    const backend_model *m;
    const weight *head;
} head_load;

static void load_head_row(void *context, int row) {
    const head_load *w = context;
    load_row(w->m, &w->m->weights->head, row, 0, w->head->in,
             train_values(w->head) + (size_t)row * (size_t)w->head->in);
}

void train_load_head(const backend_model *m, const weight *head) {
    head_load work = {m, head};
    train_each(m, head->out, load_head_row, &work);
}

void train_pick(const float *x, const int *rows, int n, size_t width, float *picked) {
    for (int i = 0; i < n; i++) memcpy(picked + (size_t)i * width, x + (size_t)rows[i] * width, width * sizeof *picked);
}

void train_put(const float *picked, const int *rows, int n, size_t width, float *x) {
    for (int i = 0; i < n; i++) memcpy(x + (size_t)rows[i] * width, picked + (size_t)i * width, width * sizeof *x);
}

/* --------------------------------------------------------------------------------------------------------- norms */

typedef struct norm_work {
    const train_norms *s;
    const float *x, *gain, *d_out, *onto;
    float *out;
} norm_work;

static void norm_row(void *context, int row) {
    const norm_work *w = context;
    int n = w->s->n;
    size_t at = (size_t)row * (size_t)n;
    w->s->m->kernels->rms_norm(w->x + at, w->gain, n, w->s->eps, w->out + at);
    for (int i = 0; i < n && w->onto; i++) w->out[at + (size_t)i] += w->onto[at + (size_t)i];
}

void train_norm(train_norms s, const float *x, const float *gain, const float *onto, float *out) {
    norm_work work = {.s = &s, .x = x, .gain = gain, .onto = onto, .out = out};
    train_each(s.m, s.rows, norm_row, &work);
}

static void unnorm_row(void *context, int row) {
    const norm_work *w = context;
    size_t at = (size_t)row * (size_t)w->s->n;
    backward_rms_norm(w->x + at, w->gain, w->d_out + at, w->s->n, w->s->eps, w->out + at);
}

void train_norm_back(train_norms s, const float *x, const float *gain, const float *d_out, float *d_x,
                     const float *d_gain) {
    norm_work work = {.s = &s, .x = x, .gain = gain, .d_out = d_out, .out = d_x};
    train_each(s.m, s.rows, unnorm_row, &work);
    for (int row = 0; row < s.rows && d_gain; row++) {
        size_t at = (size_t)row * (size_t)s.n;
        backward_rms_gain(x + at, d_out + at, s.n, s.eps, train_vector(d_gain));
    }
}

/* --------------------------------------------------------------------------------------------------------- heads */

enum { MAX_HEAD_DIM = 4096 };

static size_t angle_of(const train_heads *w, int row) {
    return (size_t)(w->position ? w->position[row] : row) * (size_t)w->rope->pairs;
}

static size_t head_at(const train_heads *w, int row, int head) {
    return ((size_t)row * (size_t)w->heads + (size_t)head) * (size_t)w->d;
}

static void heads_row(void *context, int row) {
    const train_heads *w = context;
    const rope_table *r = w->rope;
    size_t angle = angle_of(w, row);
    for (int h = 0; h < w->heads; h++) {
        size_t at = head_at(w, row, h);
        w->m->kernels->rms_norm(w->raw + at, w->gain, w->d, w->eps, w->out + at);
        w->m->kernels->rope(w->out + at, r->half, r->pairs, r->cosine + angle, r->sine + angle);
        if (w->scale != 1) w->m->kernels->scale(w->scale, w->d, w->out + at);
    }
}

void train_turn_heads(train_heads w, int rows) { train_each(w.m, rows, heads_row, &w); }

/* To the gradient of the norm's output. */
static void unturn_row(void *context, int row) {
    const train_heads *w = context;
    size_t angle = angle_of(w, row);
    for (int h = 0; h < w->heads; h++) {
        float *at = w->out + head_at(w, row, h);
        for (int i = 0; i < w->d && w->scale != 1; i++) at[i] *= w->scale;
        backward_rope(at, w->rope->half, w->rope->pairs, w->rope->cosine + angle, w->rope->sine + angle);
    }
}

static void unnorm_heads(void *context, int row) {
    const train_heads *w = context;
    float out[MAX_HEAD_DIM];
    for (int h = 0; h < w->heads; h++) {
        size_t at = head_at(w, row, h), bytes = (size_t)w->d * sizeof *out;
        memset(out, 0, bytes);
        backward_rms_norm(w->raw + at, w->gain, w->out + at, w->d, w->eps, out);
        memcpy(w->out + at, out, bytes);
    }
}

void train_turn_heads_back(train_heads w, int rows, const float *d_gain) {
    train_each(w.m, rows, unturn_row, &w);
    for (int i = 0; i < rows * w.heads && d_gain; i++) {
        size_t at = (size_t)i * (size_t)w.d;
        backward_rms_gain(w.raw + at, w.out + at, w.d, w.eps, train_vector(d_gain));
    }
    train_each(w.m, rows, unnorm_heads, &w);
}

/* --------------------------------------------------------------------------------------------------- activations */

static void activate_row(void *context, int row) {
    const train_gates *w = context;
    const float *gate = w->gate_up + (size_t)row * 2 * w->width;
    w->m->kernels->gated(w->silu, gate, gate + w->width, (int)w->width, w->act + (size_t)row * w->width);
}

void train_gate(train_gates w, int rows) { train_each(w.m, rows, activate_row, &w); }

static void deactivate_row(void *context, int row) {
    const train_gates *w = context;
    size_t at = (size_t)row * 2 * w->width;
    const float *gate = w->gate_up + at, *d_act = w->d_act + (size_t)row * w->width;
    float *d = w->d_gate_up + at;
    (w->silu ? backward_silu_gated : backward_gated)(gate, gate + w->width, d_act, (int)w->width, d, d + w->width);
}

void train_gate_back(train_gates w, int rows) { train_each(w.m, rows, deactivate_row, &w); }
