/* The head: logits of rows, soft-capped where a caller wants them, or only the greedy choice of each row. A choice
 * first bounds all logits with an int8 copy of the head (screen.h), then computes those that can be the largest; where
 * a row may choose among few, these are computed at once. */
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
    SCREEN_PART_OF_ROOM = 4,
    SCREEN_ROWS_PER_MISS = 32, /* decided rows that pay for a whole product over one that is not */
    FEW_LEAST = 64,            /* allowed outputs that are computed one by one, or ... */
    FEW_VOCAB_SHARE = 256,     /* ... such a part of all */
    LOGIT_PIECE = 96,          /* outputs: a multiple of the kernels' tiles */
};

static void pack_head(backend_model *m, const weight *head, packed_rows *packed, const float *x, int rows) {
    pack(m, packed, x, (size_t)head->in, rows, head->in, packing_of(m, head));
}

/* logits [rows][ldy] of packed rows. */
static void head_product(backend_model *m, const weight *head, const packed_rows *packed, int rows, float *logits,
                         size_t ldy) {
    matrix_job job = matrix_product(packed, rows, head, logits, ldy);
    matrix_run(m, &job, 1);
}

/* A row whose choice is wanted. */
typedef struct head_row {
    int at; /* in x and in packed rows */
    int32_t own;
    const uint32_t *allowed;
    int32_t choice;
    bool chosen; /* false: what was tried leaves too much open */
} head_row;

typedef struct row_context {
    backend_model *model;
    const weight *head;
    head_screen *screen; /* of greedy choices; NULL: there is none */
    float cap;           /* of the head's logits; 0: none */
    packed_rows *packed;
    const float *x;
    int rows;
    float *logits;
    float *const *to; /* [rows] */
    const int *excluded;
    int n_excluded;
    head_row *row; /* [rows]: of choices */
} row_context;

/* ------------------------------------------------------------------------------------------------ whole products */

static void cap_rows(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    row_context *c = context;
    size_t vocab = (size_t)c->model->config->vocab;
    for (size_t row = begin; row < end; row++) {
        c->model->kernels->soft_cap(c->cap, (int)vocab, c->logits + row * vocab);
    }
}

static float soft_capped(const row_context *c, float logit) {
    c->model->kernels->soft_cap(c->cap, 1, &logit);
    return logit;
}

/* In the place of logits that are not to be chosen, and the least of all others. */
static const float no_logit = -FLT_MAX, least_logit = -0x1.fffffcp127f;

/* Logits from here on may be equal to the largest when both are capped. */
static float near_largest(float largest, float cap) {
    if (!(cap > 0)) return largest;
    /* tanh is flat beyond 4; before, its slope is above 1e-3 and its rounding below 1e-6 of the cap. */
    return largest > 4 * cap ? 3.9f * cap : largest < -4 * cap ? least_logit : largest - 1e-3f * cap;
}

/* The index of the first of n logits that is the largest when capped, -1 where one is not finite. The cap never changes
 * the order of two logits, but rounding may make them equal: those within reach of the largest are capped and
 * compared. */
static int32_t greedy_choice(const row_context *c, const float *logits, int n) {
    const cpu_kernels *kernels = c->model->kernels;
    float largest = kernels->maximum(logits, n), cap = c->cap;
    if (!isfinite(largest)) return -1;
    if (!(cap > 0)) return kernels->first_at_least(logits, n, largest);
    float near = near_largest(largest, cap), capped = soft_capped(c, largest);
    int at = kernels->first_at_least(logits, n, near);
    while (soft_capped(c, logits[at]) != capped) {
        at++;
        at += kernels->first_at_least(logits + at, n - at, near);
    }
    return at;
}

static bool is_excluded(const row_context *c, const head_row *row, int32_t id) {
    bool excluded = id == row->own;
    for (int i = 0; i < c->n_excluded; i++) excluded |= c->excluded[i] == id;
    return excluded;
}

static bool is_allowed(const uint32_t *allowed, int32_t id) { return allowed[id / 32] >> (id % 32) & 1; }

/* Leaves the values of what is allowed. */
static void keep_allowed(const uint32_t *allowed, int vocab, float *values) {
    int begin = 0;
    for (; begin + 32 <= vocab; begin += 32) {
        uint32_t others = ~allowed[begin / 32];
        if (others == UINT32_MAX) {
            for (int i = 0; i < 32; i++) values[begin + i] = no_logit;
            continue;
        }
        for (; others; others &= others - 1) values[begin + __builtin_ctz(others)] = no_logit;
    }
    for (; begin < vocab; begin++)
        if (!is_allowed(allowed, begin)) values[begin] = no_logit;
}

static void exclude(const row_context *c, const head_row *row, float *values) {
    for (int i = 0; i < c->n_excluded; i++) {
        if (c->excluded[i] >= 0 && c->excluded[i] < c->model->config->vocab) values[c->excluded[i]] = no_logit;
    }
    if (row->own >= 0) values[row->own] = no_logit;
    if (row->allowed) keep_allowed(row->allowed, c->model->config->vocab, values);
}

static void choose_rows(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    row_context *c = context;
    backend_model *m = c->model;
    for (size_t row = begin; row < end; row++) {
        float *logits = m->head_logits + row * (size_t)m->head_stride;
        exclude(c, &c->row[row], logits);
        c->row[row].choice = greedy_choice(c, logits, m->config->vocab);
    }
}

/* ------------------------------------------------------------------------------------------------------- a few */

static float one_logit(const row_context *c, const head_row *row, int32_t id) {
    weight output = weight_rows(c->head, id, 1);
    float logit;
    multiply_packed(c->model, &output, c->packed, row->at, 1, &logit, 1);
    return logit;
}

static bool allows_few(const row_context *c, const head_row *row) {
    const int vocab = c->model->config->vocab,
              most = vocab / FEW_VOCAB_SHARE < FEW_LEAST ? FEW_LEAST : vocab / FEW_VOCAB_SHARE;
    int n = 0;
    if (!row->allowed) return false;
    for (int i = 0; i < (vocab + 31) / 32 && n <= most; i++) n += __builtin_popcount(row->allowed[i]);
    return n <= most;
}

/* The first of the allowed outputs whose logit is the largest when capped. */
static int32_t choose_allowed(const row_context *c, const head_row *row) {
    int32_t best = -1;
    float largest = 0, capped = 0;
    for (int i = 0; i < (c->model->config->vocab + 31) / 32; i++) {
        for (uint32_t left = row->allowed[i]; left; left &= left - 1) {
            int32_t id = 32 * i + __builtin_ctz(left);
            if (id >= c->model->config->vocab || is_excluded(c, row, id)) continue;
            float logit = one_logit(c, row, id);
            if (!isfinite(logit)) return -1;
            if (best >= 0 && logit <= largest) continue;
            float own = c->cap > 0 ? soft_capped(c, logit) : logit;
            if (best < 0 || own > capped) {
                best = id;
                capped = own;
            }
            largest = logit;
        }
    }
    return best;
}

static void choose_few(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    row_context *c = context;
    for (size_t i = begin; i < end; i++) {
        head_row *row = &c->row[i];
        row->chosen = allows_few(c, row);
        if (row->chosen) row->choice = choose_allowed(c, row);
    }
}

/* ---------------------------------------------------------------------------------------------------- the screen */

typedef struct split_context {
    backend_model *model;
    const weight *head;
    screen_matrix *matrix;
    float *values; /* [threads][in] */
    int8_t *codes; /* [threads][in] */
    bool *finite;  /* [threads] */
} split_context;

static void split_blocks(void *context, size_t begin, size_t end, int thread) {
    split_context *c = context;
    backend_model *m = c->model;
    const weight *head = c->head;
    screen_matrix *matrix = c->matrix;
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

void head_screen_destroy(backend_model *m, head_screen *s) {
    if (!s->ready) return;
    mem_account_unspare(m->account, &s->spare);
    screen_free(s);
    pthread_mutex_destroy(&s->lock);
    s->ready = false;
}

void head_destroy(backend_model *m) { head_screen_destroy(m, &m->screen); }

void head_create(backend_model *m) { head_screen_create(m, &m->weights->head, &m->screen); }

void head_screen_create(backend_model *m, const weight *head, head_screen *s) {
    size_t in = (size_t)head->in, threads = (size_t)m->threads, rows = CPU_HEAD_ROWS;
    screen_bounds bounds = screen_bounds_beside(m->kernels);
    s->ready = pthread_mutex_init(&s->lock, NULL) == 0;
    if (!s->ready || !bounds || !weight_present(head)) return;
    /* Of a head in blocks the copy would be larger than the head, and would bound products with other activations. */
    if (!weight_format_is_plain(head->format)) return;
    s->matrix.blocks = m->head_stride / SCREEN_OUTPUTS;
    s->matrix.steps = (head->in + SCREEN_DEPTH - 1) / SCREEN_DEPTH;
    s->limit = m->config->vocab / SCREEN_VOCAB_SHARE;
    if (s->limit < SCREEN_LEAST_CANDIDATES) s->limit = SCREEN_LEAST_CANDIDATES;
    size_t depth = (size_t)s->matrix.steps * SCREEN_DEPTH, outputs = (size_t)m->head_stride;
    if (outputs * depth > mem_room(m->account) / SCREEN_PART_OF_ROOM) return;
    s->matrix.codes = mem_alloc(m->account, MEM_WEIGHTS, outputs * depth);
    s->matrix.scale = mem_alloc(m->account, MEM_WEIGHTS, outputs * sizeof(float));
    s->matrix.rest = mem_alloc(m->account, MEM_WEIGHTS, outputs * sizeof(float));
    s->matrix.norm = mem_alloc(m->account, MEM_WEIGHTS, outputs * sizeof(float));
    s->codes = mem_alloc(m->account, MEM_WORKSPACE, rows * depth);
    s->candidate = mem_alloc(m->account, MEM_WORKSPACE, rows * (size_t)s->limit * sizeof *s->candidate);
    s->logit = mem_alloc(m->account, MEM_WORKSPACE, rows * (size_t)s->limit * sizeof *s->logit);
    split_context c = {m,
                       head,
                       &s->matrix,
                       malloc(threads * in * sizeof(float)),
                       malloc(threads * in),
                       malloc(threads * sizeof(bool))};
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
        s->spare = (mem_spare){.give_back = give_back, .owner = s};
        mem_account_spare(m->account, &s->spare);
    } else {
        screen_free(s);
    }
}

size_t cpu_greedy_head_bytes(const backend_model *m) { return head_screen_bytes(m, &m->weights->head, &m->screen); }

size_t head_screen_bytes(const backend_model *m, const weight *head, const head_screen *screen) {
    const screen_matrix *s = &screen->matrix;
    if (!screen->bounds) return weight_bytes(head);
    return (size_t)m->head_stride * ((size_t)s->steps * SCREEN_DEPTH + 3 * sizeof(float));
}

/* The rows as the product sees them, split. Rows with a value that is not finite are not `chosen`. */
static void split_rows(void *context, size_t begin, size_t end, int thread) {
    row_context *c = context;
    backend_model *m = c->model;
    head_screen *s = c->screen;
    int k = c->head->in;
    size_t depth = (size_t)s->matrix.steps * SCREEN_DEPTH;
    float gamma = (float)(k + 64) * 0x1p-23f, *values = m->scratch[thread].row;
    for (size_t r = begin; r < end; r++) {
        const float *in = c->x + (size_t)c->row[r].at * (size_t)k;
        int8_t *codes = s->codes + r * depth;
        for (int i = 0; i < k; i++) values[i] = m->input == INPUT_BF16 ? bf16_to_f32(f32_to_bf16(in[i])) : in[i];
        screen_row *row = &s->row[r];
        float norm, rest;
        memset(codes, 0, depth);
        *row = (screen_row){.codes = codes};
        c->row[r].chosen = screen_split(values, k, codes, &row->scale, &norm, &rest);
        if (!c->row[r].chosen) continue;
        int32_t sum = 0;
        for (int i = 0; i < k; i++) sum += codes[i];
        row->offset = 128 * sum;
        row->a = (1 + gamma) * (norm + rest);
        row->b = rest + gamma * (norm + rest);
    }
}

static void bound_pieces(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    row_context *c = context;
    backend_model *m = c->model;
    const head_screen *s = c->screen;
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

/* Computes the logits that can be the largest: one of them to know what that takes, then all that may reach it. */
static bool decide(row_context *c, size_t at) {
    const backend_model *m = c->model;
    const head_screen *s = c->screen;
    const cpu_kernels *kernels = m->kernels;
    int vocab = m->config->vocab, n = 0;
    head_row *row = &c->row[at];
    float *upper = m->head_logits + at * (size_t)m->head_stride, cap = c->cap;
    int32_t *ids = s->candidate + at * (size_t)s->limit;
    float *logits = s->logit + at * (size_t)s->limit;
    exclude(c, row, upper);
    float highest = kernels->maximum(upper, vocab);
    if (!isfinite(highest)) return false;
    float reached = one_logit(c, row, kernels->first_at_least(upper, vocab, highest));
    if (!isfinite(reached)) return false;
    float near = near_largest(reached, cap);
    if (cap > 0 && near > 3.9f * cap) near = 3.9f * cap; /* the largest may lie where the cap is flat */
    for (int id = kernels->first_at_least(upper, vocab, near); id < vocab;) {
        if (n == s->limit) return false;
        ids[n] = id;
        logits[n++] = one_logit(c, row, id);
        id++;
        id += kernels->first_at_least(upper + id, vocab - id, near);
    }
    int best = greedy_choice(c, logits, n);
    row->choice = best < 0 ? -1 : ids[best];
    return true;
}

static void decide_rows(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    row_context *c = context;
    for (size_t row = begin; row < end; row++) c->row[row].chosen = c->row[row].chosen && decide(c, row);
}

static void choose_with(head_screen *s, row_context *c) {
    backend_model *m = c->model;
    if (!s->bounds) return;
    if (s->pause > 0) {
        s->pause--;
        return;
    }
    rows_run(m, c->rows, c->head->in, split_rows, c);
    thread_pool_for(m->pool, (size_t)((s->matrix.blocks + SCREEN_PIECE - 1) / SCREEN_PIECE), 1, bound_pieces, c);
    rows_run(m, c->rows, m->config->vocab / 8, decide_rows, c); /* a pass of comparisons: cheap values */
    int missed = 0;
    for (int row = 0; row < c->rows; row++) missed += !c->row[row].chosen;
    s->backoff = missed * SCREEN_ROWS_PER_MISS <= c->rows ? 0 : s->backoff ? 2 * s->backoff : 1;
    if (s->backoff > SCREEN_LONGEST_PAUSE) s->backoff = SCREEN_LONGEST_PAUSE;
    s->pause = s->backoff;
}

/* Makes the choice of rows that do not need all their logits; without a copy, all of them do. */
static void choose_screened(row_context *c) {
    for (int row = 0; row < c->rows; row++) c->row[row].chosen = false;
    if (!c->screen || !c->screen->ready) return;
    pthread_mutex_lock(&c->screen->lock);
    choose_with(c->screen, c);
    pthread_mutex_unlock(&c->screen->lock);
}

/* ------------------------------------------------------------------------------------------------------ the face */

/* Hands choices out, and leaves the rows that have none. */
static void take_chosen(row_context *c, int32_t *choice) {
    int left = 0;
    for (int i = 0; i < c->rows; i++) {
        if (c->row[i].chosen)
            choice[c->row[i].at] = c->row[i].choice;
        else
            c->row[left++] = c->row[i];
    }
    c->rows = left;
}

/* Up to CPU_HEAD_ROWS rows: those with few outputs, the screen, then one product over the rows that both leave. */
static void choose_some(row_context *c, bool limited, int32_t *choice) {
    backend_model *m = c->model;
    pack_head(m, c->head, c->packed, c->x, c->rows);
    if (limited) {
        rows_run(m, c->rows, m->config->vocab / 8, choose_few, c);
        take_chosen(c, choice);
    }
    if (c->rows) choose_screened(c);
    take_chosen(c, choice);
    if (c->rows == 0) return;
    for (int i = 0; i < c->rows; i++)
        if (c->row[i].at != i) packed_row_copy(m, c->head, c->packed, c->row[i].at, c->packed, i);
    head_product(m, c->head, c->packed, c->rows, m->head_logits, (size_t)m->head_stride);
    rows_run(m, c->rows, m->config->vocab / 8, choose_rows, c);
    for (int i = 0; i < c->rows; i++) choice[c->row[i].at] = c->row[i].choice;
}

void head_choose(backend_model *m, packed_rows *packed, const float *x, int rows, const head_limits *limits,
                 int32_t *choice) {
    const greedy_head head = {&m->weights->head, &m->screen, m->config->logit_softcap};
    head_choose_by(m, &head, packed, x, rows, limits, choice);
}

void head_choose_by(backend_model *m, const greedy_head *by, packed_rows *packed, const float *x, int rows,
                    const head_limits *limits, int32_t *choice) {
    for (int first = 0; first < rows; first += CPU_HEAD_ROWS) {
        head_row row[CPU_HEAD_ROWS];
        bool limited = false;
        row_context c = {.model = m,
                         .head = by->head,
                         .screen = by->screen,
                         .cap = by->cap,
                         .packed = packed,
                         .x = x + (size_t)first * (size_t)by->head->in,
                         .rows = rows - first < CPU_HEAD_ROWS ? rows - first : CPU_HEAD_ROWS,
                         .excluded = limits->excluded,
                         .n_excluded = limits->n_excluded,
                         .row = row};
        for (int i = 0; i < c.rows; i++) {
            row[i] = (head_row){.at = i,
                                .own = limits->own ? limits->own[first + i] : -1,
                                .allowed = limits->allowed ? limits->allowed[first + i] : NULL};
            limited |= row[i].allowed != NULL;
        }
        choose_some(&c, limited, choice + first);
    }
}

/* Logits of some outputs, of all rows, to where each row wants them: the weights are read once. */
static void logit_pieces(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const row_context *c = context;
    const backend_model *m = c->model;
    float cap = c->cap;
    for (size_t piece = begin; piece < end; piece++) {
        int o = (int)piece * LOGIT_PIECE, left = m->config->vocab - o, n = left < LOGIT_PIECE ? left : LOGIT_PIECE;
        weight outputs = weight_rows(c->head, o, n);
        float *tile = m->head_logits + o;
        for (int first = 0; first < c->rows; first += CPU_HEAD_ROWS) {
            int rows = c->rows - first < CPU_HEAD_ROWS ? c->rows - first : CPU_HEAD_ROWS;
            multiply_packed(m, &outputs, c->packed, first, rows, tile, (size_t)m->head_stride);
            for (int row = 0; row < rows; row++) {
                float *logits = c->to[first + row] + o;
                memcpy(logits, tile + (size_t)row * (size_t)m->head_stride, (size_t)n * sizeof *logits);
                if (cap > 0) m->kernels->soft_cap(cap, n, logits);
            }
        }
    }
}

void head_logits(backend_model *m, packed_rows *packed, const float *x, int rows, float *const *to) {
    size_t vocab = (size_t)m->config->vocab;
    bool together = true;
    for (int row = 1; row < rows; row++) together &= to[row] == to[row - 1] + vocab;
    const weight *head = &m->weights->head;
    pack_head(m, head, packed, x, rows);
    row_context c = {.model = m,
                     .head = head,
                     .cap = m->config->logit_softcap,
                     .packed = packed,
                     .rows = rows,
                     .logits = to[0],
                     .to = to};
    if (!together) {
        thread_pool_for(m->pool, (vocab + LOGIT_PIECE - 1) / LOGIT_PIECE, 1, logit_pieces, &c);
        return;
    }
    head_product(m, head, packed, rows, to[0], vocab);
    if (m->config->logit_softcap > 0) rows_run(m, rows, m->config->vocab, cap_rows, &c);
}
