/* The head: logits of rows, soft-capped where a caller wants them, or only the greedy choice of each row. A choice
 * first bounds all logits with an int8 copy of the head (screen.h), then computes those that can be the largest. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/head.h"
#include "backend/cpu/matrix.h"
#include "base/float16.h"

/* Blocks of a piece of work: a multiple of what the kernels take at a time. */
enum {
    SCREEN_PIECE = 24,
    SCREEN_LEAST_CANDIDATES = 64,
    SCREEN_VOCAB_SHARE = 64,
    SCREEN_LONGEST_PAUSE = 64,
    SCREEN_PART_OF_ROOM = 4
};

static void pack_head(backend_model *m, packed_rows *packed, const float *x, int rows) {
    const weight *head = &m->weights->head;
    pack(m, packed, x, (size_t)head->in, rows, head->in, packing_of(m, head));
}

/* logits [rows][ldy] of packed rows. */
static void head_product(backend_model *m, const packed_rows *packed, int rows, float *logits, size_t ldy) {
    matrix_job job = matrix_product(packed, rows, &m->weights->head, logits, ldy);
    matrix_run(m, &job, 1);
}

typedef struct row_context {
    backend_model *model;
    const packed_rows *packed;
    const float *x;
    int rows;
    float *logits;
    const int *excluded;
    int n_excluded;
    int32_t *choice;
    bool *chosen; /* false: the screen leaves too much open */
} row_context;

/* ------------------------------------------------------------------------------------------------ whole products */

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

/* Logits from here on may be equal to the largest when both are capped. */
static float near_largest(float largest, float cap) {
    if (!(cap > 0)) return largest;
    /* tanh is flat beyond 4; before, its slope is above 1e-3 and its rounding below 1e-6 of the cap. */
    return largest > 4 * cap ? 3.9f * cap : largest < -4 * cap ? -FLT_MAX : largest - 1e-3f * cap;
}

/* The index of the first of n logits that is the largest when capped, -1 where one is not finite. The cap never changes
 * the order of two logits, but rounding may make them equal: those within reach of the largest are capped and
 * compared. */
static int32_t greedy_choice(const backend_model *m, const float *logits, int n) {
    const cpu_kernels *kernels = m->kernels;
    float largest = kernels->maximum(logits, n), cap = m->config->logit_softcap;
    if (!isfinite(largest)) return -1;
    if (!(cap > 0)) return kernels->first_at_least(logits, n, largest);
    float near = near_largest(largest, cap), capped = soft_capped(m, largest);
    int at = kernels->first_at_least(logits, n, near);
    while (soft_capped(m, logits[at]) != capped) {
        at++;
        at += kernels->first_at_least(logits + at, n - at, near);
    }
    return at;
}

static void exclude(const row_context *c, float *values) {
    for (int i = 0; i < c->n_excluded; i++) {
        if (c->excluded[i] >= 0 && c->excluded[i] < c->model->config->vocab) values[c->excluded[i]] = -FLT_MAX;
    }
}

static void choose_rows(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    row_context *c = context;
    backend_model *m = c->model;
    for (size_t row = begin; row < end; row++) {
        float *logits = m->head_logits + row * (size_t)m->head_stride;
        exclude(c, logits);
        c->choice[row] = greedy_choice(m, logits, m->config->vocab);
    }
}

/* ---------------------------------------------------------------------------------------------------- the screen */

typedef struct split_context {
    backend_model *model;
    float *values; /* [threads][in] */
    int8_t *codes; /* [threads][in] */
    bool *finite;  /* [threads] */
} split_context;

static void split_blocks(void *context, size_t begin, size_t end, int thread) {
    split_context *c = context;
    backend_model *m = c->model;
    const weight *head = &m->weights->head;
    screen_matrix *matrix = &m->screen.matrix;
    size_t in = (size_t)head->in, block_bytes = (size_t)matrix->steps * SCREEN_OUTPUTS * SCREEN_DEPTH;
    float *values = c->values + (size_t)thread * in;
    int8_t *codes = c->codes + (size_t)thread * in;
    for (size_t block = begin; block < end; block++) {
        uint8_t *out = matrix->codes + block * block_bytes;
        memset(out, 128, block_bytes);
        for (size_t i = 0; i < SCREEN_OUTPUTS; i++) {
            size_t o = block * SCREEN_OUTPUTS + i;
            matrix->scale[o] = matrix->rest[o] = matrix->norm[o] = 0;
            if (o >= (size_t)head->out) continue;
            load_row(m, head, (int)o, 0, head->in, values);
            if (!screen_split(values, head->in, codes, &matrix->scale[o], &matrix->norm[o], &matrix->rest[o]))
                c->finite[thread] = false;
            uint8_t *to = out + i * SCREEN_DEPTH;
            for (size_t k = 0; k < in; k += SCREEN_DEPTH, to += SCREEN_OUTPUTS * SCREEN_DEPTH) {
                for (size_t j = 0; j < SCREEN_DEPTH && k + j < in; j++) to[j] = (uint8_t)(codes[k + j] + 128);
            }
        }
    }
}

static void screen_free(head_screen *s) {
    void *buffers[] = {s->matrix.codes, s->matrix.scale, s->matrix.rest, s->matrix.norm,
                       s->codes,        s->candidate,    s->logit};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++) mem_free(buffers[i]);
    s->bounds = NULL;
    s->matrix = (screen_matrix){0};
    s->codes = NULL;
    s->candidate = NULL;
    s->logit = NULL;
}

/* The copy makes greedy choices faster, no more: a session that finds no memory gets the copy's. */
static bool give_back(void *owner) {
    head_screen *s = owner;
    pthread_mutex_lock(&s->lock);
    bool held = s->bounds != NULL;
    if (held) screen_free(s);
    pthread_mutex_unlock(&s->lock);
    return held;
}

void head_destroy(backend_model *m) {
    if (!m->screen_ready) return;
    mem_account_spare(m->account, NULL, NULL);
    screen_free(&m->screen);
    pthread_mutex_destroy(&m->screen.lock);
    m->screen_ready = false;
}

/* Bytes that limits leave to sessions, which come later. */
static size_t room_left(const mem_account *account) {
    size_t least = SIZE_MAX;
    for (const mem_account *a = account; a; a = a->parent) {
        size_t held = mem_total(a), left = a->limit_bytes > held ? a->limit_bytes - held : 0;
        if (a->limit_bytes && left < least) least = left;
    }
    return least;
}

void head_create(backend_model *m) {
    const weight *head = &m->weights->head;
    head_screen *s = &m->screen;
    size_t in = (size_t)head->in, threads = (size_t)m->threads, rows = BACKEND_MAX_DECODE_ROWS;
    screen_bounds bounds = screen_bounds_beside(m->kernels);
    m->screen_ready = pthread_mutex_init(&s->lock, NULL) == 0;
    if (!m->screen_ready || !bounds || !weight_present(head)) return;
    s->matrix.blocks = m->head_stride / SCREEN_OUTPUTS;
    s->matrix.steps = (head->in + SCREEN_DEPTH - 1) / SCREEN_DEPTH;
    s->limit = m->config->vocab / SCREEN_VOCAB_SHARE;
    if (s->limit < SCREEN_LEAST_CANDIDATES) s->limit = SCREEN_LEAST_CANDIDATES;
    size_t depth = (size_t)s->matrix.steps * SCREEN_DEPTH, outputs = (size_t)m->head_stride;
    if (outputs * depth > room_left(m->account) / SCREEN_PART_OF_ROOM) return;
    s->matrix.codes = mem_alloc(m->account, MEM_WEIGHTS, outputs * depth);
    s->matrix.scale = mem_alloc(m->account, MEM_WEIGHTS, outputs * sizeof(float));
    s->matrix.rest = mem_alloc(m->account, MEM_WEIGHTS, outputs * sizeof(float));
    s->matrix.norm = mem_alloc(m->account, MEM_WEIGHTS, outputs * sizeof(float));
    s->codes = mem_alloc(m->account, MEM_WORKSPACE, rows * depth);
    s->candidate = mem_alloc(m->account, MEM_WORKSPACE, rows * (size_t)s->limit * sizeof *s->candidate);
    s->logit = mem_alloc(m->account, MEM_WORKSPACE, rows * (size_t)s->limit * sizeof *s->logit);
    split_context c = {m, malloc(threads * in * sizeof(float)), malloc(threads * in), malloc(threads * sizeof(bool))};
    bool held = s->matrix.codes && s->matrix.scale && s->matrix.rest && s->matrix.norm && s->codes && s->candidate &&
                s->logit && c.values && c.codes && c.finite;
    if (held) {
        for (size_t t = 0; t < threads; t++) c.finite[t] = true;
        thread_pool_for(m->pool, (size_t)s->matrix.blocks, SCREEN_PIECE, split_blocks, &c);
        s->bounds = bounds;
        for (size_t t = 0; t < threads; t++) {
            if (!c.finite[t]) s->bounds = NULL;
        }
    }
    free(c.values);
    free(c.codes);
    free(c.finite);
    if (s->bounds) {
        mem_account_spare(m->account, give_back, s);
    } else {
        screen_free(s);
    }
}

size_t cpu_greedy_head_bytes(const backend_model *m) {
    const weight *head = &m->weights->head;
    const screen_matrix *s = &m->screen.matrix;
    if (!m->screen.bounds) return weight_bytes(head);
    return (size_t)m->head_stride * ((size_t)s->steps * SCREEN_DEPTH + 3 * sizeof(float));
}

/* The rows as the product sees them, split. False where a value is not finite. */
static bool split_rows(backend_model *m, const float *x, int rows) {
    int k = m->weights->head.in;
    size_t depth = (size_t)m->screen.matrix.steps * SCREEN_DEPTH;
    float gamma = (float)(k + 64) * 0x1p-23f, *values = m->scratch[0].row;
    for (int r = 0; r < rows; r++) {
        const float *in = x + (size_t)r * (size_t)k;
        int8_t *codes = m->screen.codes + (size_t)r * depth;
        for (int i = 0; i < k; i++) values[i] = m->input == INPUT_BF16 ? bf16_to_f32(f32_to_bf16(in[i])) : in[i];
        screen_row *row = &m->screen.row[r];
        float norm, rest;
        memset(codes + k, 0, depth - (size_t)k);
        if (!screen_split(values, k, codes, &row->scale, &norm, &rest)) return false;
        int32_t sum = 0;
        for (int i = 0; i < k; i++) sum += codes[i];
        row->codes = codes;
        row->offset = 128 * sum;
        row->a = (1 + gamma) * (norm + rest);
        row->b = rest + gamma * (norm + rest);
    }
    return true;
}

static void bound_pieces(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    row_context *c = context;
    backend_model *m = c->model;
    const head_screen *s = &m->screen;
    int groups = (c->rows + SCREEN_ROWS - 1) / SCREEN_ROWS;
    for (size_t piece = begin; piece < end; piece++) {
        int first = (int)piece * SCREEN_PIECE, left = s->matrix.blocks - first;
        for (int g = 0; g < groups; g++) {
            int row = c->rows * g / groups, n = c->rows * (g + 1) / groups - row;
            s->bounds(&s->matrix, first, left < SCREEN_PIECE ? left : SCREEN_PIECE, s->row + row, n,
                      m->head_logits + (size_t)row * (size_t)m->head_stride + (size_t)first * SCREEN_OUTPUTS,
                      (size_t)m->head_stride);
        }
    }
}

static float one_logit(const backend_model *m, const packed_rows *packed, size_t row, int32_t id) {
    const weight *head = &m->weights->head;
    weight output = weight_rows(head, id, 1);
    float logit;
    multiply_packed(m, &output, packed, (int)row, 1, &logit, 1);
    return logit;
}

/* Computes the logits that can be the largest: one of them to know what that takes, then all that may reach it. */
static bool decide(const row_context *c, size_t row) {
    const backend_model *m = c->model;
    const head_screen *s = &m->screen;
    const cpu_kernels *kernels = m->kernels;
    int vocab = m->config->vocab, n = 0;
    float *upper = m->head_logits + row * (size_t)m->head_stride, cap = m->config->logit_softcap;
    int32_t *ids = s->candidate + row * (size_t)s->limit;
    float *logits = s->logit + row * (size_t)s->limit;
    exclude(c, upper);
    float highest = kernels->maximum(upper, vocab);
    if (!isfinite(highest)) return false;
    float reached = one_logit(m, c->packed, row, kernels->first_at_least(upper, vocab, highest));
    if (!isfinite(reached)) return false;
    float near = near_largest(reached, cap);
    if (cap > 0 && near > 3.9f * cap) near = 3.9f * cap; /* the largest may lie where the cap is flat */
    for (int at = kernels->first_at_least(upper, vocab, near); at < vocab;) {
        if (n == s->limit) return false;
        ids[n] = at;
        logits[n++] = one_logit(m, c->packed, row, at);
        at++;
        at += kernels->first_at_least(upper + at, vocab - at, near);
    }
    int best = greedy_choice(m, logits, n);
    c->choice[row] = best < 0 ? -1 : ids[best];
    return true;
}

static void decide_rows(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    row_context *c = context;
    for (size_t row = begin; row < end; row++) c->chosen[row] = decide(c, row);
}

static bool choose_with(head_screen *s, row_context *c) {
    backend_model *m = c->model;
    if (!s->bounds) return false;
    if (s->pause > 0) {
        s->pause--;
        return false;
    }
    if (!split_rows(m, c->x, c->rows)) return false;
    thread_pool_for(m->pool, (size_t)((s->matrix.blocks + SCREEN_PIECE - 1) / SCREEN_PIECE), 1, bound_pieces, c);
    bool chosen[BACKEND_MAX_DECODE_ROWS], all = true;
    c->chosen = chosen;
    rows_run(m, c->rows, m->config->vocab / 8, decide_rows, c); /* a pass of comparisons: cheap values */
    for (int row = 0; row < c->rows; row++) all &= chosen[row];
    s->backoff = all ? 0 : s->backoff ? 2 * s->backoff : 1;
    if (s->backoff > SCREEN_LONGEST_PAUSE) s->backoff = SCREEN_LONGEST_PAUSE;
    s->pause = s->backoff;
    return all;
}

/* False: some row needs all its logits, or there is no copy. */
static bool choose_screened(backend_model *m, row_context *c) {
    if (!m->screen_ready) return false;
    pthread_mutex_lock(&m->screen.lock);
    bool all = choose_with(&m->screen, c);
    pthread_mutex_unlock(&m->screen.lock);
    return all;
}

/* ------------------------------------------------------------------------------------------------------ the face */

void head_choose(backend_model *m, packed_rows *packed, const float *x, int rows, const int *excluded, int n_excluded,
                 int32_t *choice) {
    for (int first = 0; first < rows; first += BACKEND_MAX_DECODE_ROWS) {
        int n = rows - first < BACKEND_MAX_DECODE_ROWS ? rows - first : BACKEND_MAX_DECODE_ROWS;
        row_context c = {.model = m,
                         .packed = packed,
                         .x = x + (size_t)first * (size_t)m->weights->head.in,
                         .rows = n,
                         .excluded = excluded,
                         .n_excluded = n_excluded,
                         .choice = choice + first};
        pack_head(m, packed, c.x, n);
        if (choose_screened(m, &c)) continue;
        head_product(m, packed, n, m->head_logits, (size_t)m->head_stride);
        rows_run(m, n, m->config->vocab / 8, choose_rows, &c);
    }
}

void head_logits(backend_model *m, packed_rows *packed, const float *x, int rows, float *logits) {
    pack_head(m, packed, x, rows);
    head_product(m, packed, rows, logits, (size_t)m->config->vocab);
    row_context c = {.model = m, .logits = logits};
    if (m->config->logit_softcap > 0) rows_run(m, rows, m->config->vocab, cap_rows, &c);
}
