/* The head: logits of rows, soft-capped where a caller wants them, or only the greedy choice of each row. */
#include <float.h>
#include <math.h>

#include "backend/cpu/cpu.h"

static void head_product(backend_model *m, packed_rows *packed, const float *x, int rows, float *logits) {
    const weight *head = &m->weights->head;
    pack(m, packed, x, (size_t)head->in, rows, head->in, 1u << head->type, m->round);
    matrix_job job = matrix_product(packed, rows, head, logits, (size_t)m->config->vocab);
    matrix_run(m, &job, 1);
}

typedef struct row_context {
    backend_model *model;
    float *logits;
    const int *excluded;
    int n_excluded;
    int32_t *choice;
} row_context;

static void cap_rows(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    row_context *c = context;
    size_t vocab = (size_t)c->model->config->vocab;
    for (size_t row = begin; row < end; row++) {
        c->model->kernels->soft_cap(c->model->config->logit_softcap, (int)vocab, c->logits + row * vocab);
    }
}

static float soft_capped(const backend_model *m, float logit) {
    m->kernels->soft_cap(m->config->logit_softcap, 1, &logit);
    return logit;
}

/* The lowest id whose capped logit is the largest. The cap never changes the order of two logits, but rounding may make them
 * equal: those within reach of the largest are capped and compared. */
static int32_t greedy_choice(const backend_model *m, const float *logits) {
    const cpu_kernels *kernels = m->kernels;
    int vocab = m->config->vocab;
    float largest = kernels->maximum(logits, vocab);
    if (!isfinite(largest)) return -1;
    float cap = m->config->logit_softcap;
    if (!(cap > 0)) return kernels->first_at_least(logits, vocab, largest);
    /* tanh is flat beyond 4; before, its slope is above 1e-3 and its rounding below 1e-6 of the cap. */
    float near = largest > 4 * cap ? 3.9f * cap : largest < -4 * cap ? -FLT_MAX : largest - 1e-3f * cap;
    float capped = soft_capped(m, largest);
    int at = kernels->first_at_least(logits, vocab, near);
    while (soft_capped(m, logits[at]) != capped) {
        at++;
        at += kernels->first_at_least(logits + at, vocab - at, near);
    }
    return at;
}

static void choose_rows(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    row_context *c = context;
    size_t vocab = (size_t)c->model->config->vocab;
    for (size_t row = begin; row < end; row++) {
        float *logits = c->logits + row * vocab;
        for (int i = 0; i < c->n_excluded; i++) {
            if (c->excluded[i] >= 0 && c->excluded[i] < c->model->config->vocab) logits[c->excluded[i]] = -FLT_MAX;
        }
        c->choice[row] = greedy_choice(c->model, logits);
    }
}

void head_choose(backend_model *m, packed_rows *packed, const float *x, int rows, const int *excluded, int n_excluded,
                 int32_t *choice) {
    for (int first = 0; first < rows; first += BACKEND_MAX_DECODE_ROWS) {
        int n = rows - first < BACKEND_MAX_DECODE_ROWS ? rows - first : BACKEND_MAX_DECODE_ROWS;
        head_product(m, packed, x + (size_t)first * (size_t)m->weights->head.in, n, m->head_logits);
        row_context c = {m, m->head_logits, excluded, n_excluded, choice + first};
        rows_run(m, n, m->config->vocab / 8, choose_rows, &c); /* a pass of comparisons: cheap values */
    }
}

void head_logits(backend_model *m, packed_rows *packed, const float *x, int rows, float *logits) {
    head_product(m, packed, x, rows, logits);
    row_context c = {.model = m, .logits = logits};
    if (m->config->logit_softcap > 0) rows_run(m, rows, m->config->vocab, cap_rows, &c);
}
