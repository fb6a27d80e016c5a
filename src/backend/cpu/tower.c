/* Products have whole rows of all patches as their input, a chunk of rows at a time; attention takes its keys and
 * values from all patches, and no score is ever stored. Everything is float32 and no input is rounded, whatever the
 * model's precision: towers feel it, and a picture is computed once. The memory is there while a picture is computed.
 */
#include "backend/cpu/tower.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/experts.h"
#include "backend/cpu/matrix.h"
#include "backend/cpu/rope.h"
#include "backend/program/tower.h"
#include "base/clock.h"

enum {
    CHUNK = 504, /* rows of a product, which reads all weights for each: whole tiles of gemm */
    TILE = 192,  /* queries of one task of attention, which reads all keys */
};

static const double layer_norm_eps = 1e-5;

typedef struct backend_reading {
    backend_model *m;
    const vision_model *v;
    int patches, across, pooled; /* pooled: rows that come out */
    int all;                     /* rows of the part of the list in work: patches, then pooled */
    float *patch;                /* [patches][values of a patch] */
    float *h;                    /* [patches][hidden] */
    float *q;                    /* [patches][heads * head_dim] */
    float *k, *v_rows;           /* [heads][patches][head_dim] */
    float *pool;                 /* [pooled][hidden] */
    float *soft;                 /* [pooled][text hidden]; the caller's */
    float *x, *branch;           /* [CHUNK][hidden] */
    float *act;                  /* [CHUNK][2 * intermediate]; or keys, then values, [CHUNK][heads * head_dim] each */
    float *clamped, *packed;     /* [CHUNK][the widest input of a product] */
    float *scratch;              /* [threads][scratch_floats] */
    size_t scratch_floats;
    rope_table rope;
    program_op *ops;
    int n_ops, at;        /* at: begin of the part of the list in work, which ends with a barrier */
    int done;             /* operations of the part that the chunk in work has had */
    const program_op *op; /* in work */
    int first;            /* row of the chunk in work */
    size_t task;          /* of attention */
} tower_run;

static int max_int(int a, int b) { return a > b ? a : b; }

/* Values of a row of an item. */
static int width_of(const tower_run *t, program_item item) {
    const vision_model *v = t->v;
    switch (item) {
    case DATA_PATCHES:
        return vision_model_patch_values(v);
    case DATA_Q:
    case DATA_K:
    case DATA_V:
    case DATA_ATTENDED:
        return v->heads * v->head_dim;
    case DATA_ACT:
        return 2 * v->intermediate;
    case DATA_SOFT:
        return v->text_hidden;
    default:
        return v->hidden;
    }
}

/* Row `row` of the chunk in work. */
static float *item_row(const tower_run *t, program_item item, size_t row) {
    const size_t width = (size_t)width_of(t, item), at = ((size_t)t->first + row) * width;
    switch (item) {
    case DATA_PATCHES:
        return t->patch + at;
    case DATA_H:
        return t->h + at;
    case DATA_Q:
    case DATA_ATTENDED:
        return t->q + at;
    case DATA_POOLED:
        return t->pool + at;
    case DATA_SOFT:
        return t->soft + at;
    case DATA_X:
        return t->x + row * width;
    case DATA_BRANCH:
        return t->branch + row * width;
    case DATA_V:
        return t->act + (CHUNK + row) * width;
    default: /* DATA_K, DATA_ACT */
        return t->act + row * width;
    }
}

/* ----------------------------------------------------------------------------------------------------- products */

static void clamp_rows(float *to, size_t to_stride, const float *from, size_t from_stride, int rows, int n, float least,
                       float most) {
    for (int row = 0; row < rows; row++, to += to_stride, from += from_stride)
        for (int i = 0; i < n; i++) to[i] = from[i] < least ? least : from[i] > most ? most : from[i];
}

static void run_products(tower_run *t, const program_op *o, int rows) {
    const bool gated = o->epilogue == EPILOGUE_GATED;
    const float *in = item_row(t, (program_item)o->in[0], 0);
    const size_t in_stride = (size_t)width_of(t, (program_item)o->in[0]);
    matrix_job jobs[PROGRAM_MATRICES];
    int n = 0;
    for (int i = 0; i < PROGRAM_MATRICES && o->slot[i]; i++) {
        const weight *w = tower_matrix(t->v, o->slot[i]);
        const vision_bounds *bounds = tower_bounds(t->v, o->slot[i]);
        const size_t out = (size_t)w->out, stride = gated ? 2 * out : out;
        float *y = item_row(t, (program_item)o->out[gated ? 0 : i], 0) + (gated ? (size_t)i * out : 0);
        if (o->clipped)
            clamp_rows(t->clamped, (size_t)w->in, in, in_stride, rows, w->in, bounds->input_min, bounds->input_max);
        if (o->clipped || i == 0)
            pack_gemm(t->m, o->clipped ? t->clamped : in, o->clipped ? (size_t)w->in : in_stride, rows, w->in,
                      t->packed);
        jobs[n++] = gemm_product(t->packed, rows, w, y, stride);
        if (!o->clipped) continue; /* the others have the same input */
        matrix_run(t->m, jobs, n);
        clamp_rows(y, stride, y, stride, rows, w->out, bounds->output_min, bounds->output_max);
        n = 0;
    }
    if (n) matrix_run(t->m, jobs, n);
    if (gated) activate(t->m, item_row(t, (program_item)o->out[0], 0), rows, t->v->intermediate);
}

/* ---------------------------------------------------------------------------------------------------- row programs */

static void layer_norm(const float *x, const float *weights, const float *bias, int n, float *out) {
    double sum = 0, squares = 0;
    for (int i = 0; i < n; i++) sum += (double)x[i];
    const double mean = sum / n;
    for (int i = 0; i < n; i++) squares += ((double)x[i] - mean) * ((double)x[i] - mean);
    const double scale = 1 / sqrt(squares / n + layer_norm_eps);
    for (int i = 0; i < n; i++) out[i] = (float)(((double)x[i] - mean) * scale) * weights[i] + bias[i];
}

static void shift(float *x, const float *vector, float scalar, int n) {
    for (int i = 0; i < n; i++) x[i] += vector ? scalar * vector[i] : scalar;
}

/* A patch's place in the table: tables of towers hold the columns' rows, then the rows'; the embedder's alternate. */
static int place_of(const tower_run *t, int patch, int axis) {
    const int at = axis ? patch / t->across : patch % t->across;
    return t->v->tower ? axis * t->v->positions + at : 2 * at + axis;
}

static void run_step(const tower_run *t, const row_step *s, size_t row, float *const reg[ROW_REGISTERS], int n) {
    const cpu_kernels *kernels = t->m->kernels;
    const float *vector = s->verb == ROW_LOOKUP ? NULL : tower_vector(t->v, s->slot);
    float *into = reg[s->into];
    switch ((row_verb)s->verb) {
    case ROW_LOAD:
        memcpy(into, item_row(t, (program_item)s->item, row), (size_t)n * sizeof *into);
        return;
    case ROW_LOOKUP:
        load_row(t->m, tower_matrix(t->v, s->slot), place_of(t, t->first + (int)row, s->part), 0, n, into);
        break;
    case ROW_NORM:
        kernels->rms_norm(reg[s->from], vector, n, t->v->rms_eps, into);
        break;
    case ROW_CENTRE:
        layer_norm(reg[s->from], vector, tower_vector(t->v, s->part), n, into);
        break;
    case ROW_ADD:
        kernels->axpy(1.0f, reg[s->from], n, into);
        break;
    case ROW_SCALE:
        kernels->scale(s->scalar, n, into);
        break;
    case ROW_MULTIPLY:
        kernels->multiply(vector, n, into);
        break;
    default: /* ROW_SHIFT: builders of towers write no other */
        shift(into, vector, s->scalar, n);
    }
    if (s->item) memcpy(item_row(t, (program_item)s->item, row), into, (size_t)n * sizeof *into);
}

static void row_programs(void *context, size_t begin, size_t end, int thread) {
    const tower_run *t = context;
    const program_op *o = t->op;
    float *reg[ROW_REGISTERS];
    for (int i = 0; i < ROW_REGISTERS; i++)
        reg[i] = t->scratch + (size_t)thread * t->scratch_floats + (size_t)i * (size_t)o->width;
    for (size_t row = begin; row < end; row++)
        for (int i = 0; i < o->steps; i++) run_step(t, &o->step[i], row, reg, o->width);
}

/* ------------------------------------------------------------------------------------------------------- attention */

static void turn(const tower_run *t, float *x, int patch) {
    const rope_table *rope = &t->rope;
    for (int axis = 0; axis < 2; axis++) {
        const int at = axis ? patch / t->across : patch % t->across;
        const size_t angle = (size_t)at * (size_t)rope->pairs;
        t->m->kernels->rope(x + axis * 2 * rope->half, rope->half, rope->pairs, rope->cosine + angle,
                            rope->sine + angle);
    }
}

/* Keys and values go to where those of their head are. */
static void head_rows(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const tower_run *t = context;
    const program_op *o = t->op;
    const size_t head_floats = (size_t)t->patches * (size_t)o->width;
    for (size_t row = begin; row < end; row++) {
        for (int r = 0; r < PROGRAM_MATRICES && o->head[r].item; r++) {
            const head_rule *rule = &o->head[r];
            float *x = item_row(t, (program_item)rule->item, row);
            float *to = rule->item == DATA_K ? t->k : rule->item == DATA_V ? t->v_rows : NULL;
            if (to) to += ((size_t)t->first + row) * (size_t)o->width;
            for (int head = 0; head < t->v->heads; head++, x += o->width) {
                if (rule->norm) t->m->kernels->rms_norm(x, tower_vector(t->v, rule->slot), o->width, t->v->rms_eps, x);
                if (rule->rope) turn(t, x, t->first + (int)row);
                if (to) memcpy(to + (size_t)head * head_floats, x, (size_t)o->width * sizeof *x);
            }
        }
    }
}

/* The queries of a tile of one head over all patches; the result lies where the queries were. */
static void attend_tile(const tower_run *t, int head, int first, float *scratch) {
    const int d = t->op->width, rows = t->patches - first < TILE ? t->patches - first : TILE;
    const size_t stride = (size_t)(t->v->heads * d), keys = (size_t)head * (size_t)t->patches * (size_t)d;
    t->m->kernels->attend_all(t->q + (size_t)first * stride + (size_t)(head * d), stride, rows, t->k + keys,
                              t->v_rows + keys, t->patches, d, scratch);
}

static size_t tiles_of(const tower_run *t) { return (size_t)((t->patches + TILE - 1) / TILE); }

/* A head's tiles follow each other: its keys and values are in a cache by then. */
static void attend_tiles(void *context, size_t begin, size_t end, int thread) {
    const tower_run *t = context;
    for (size_t item = begin; item < end; item++) {
        const size_t tiles = tiles_of(t), task = t->task + item;
        attend_tile(t, (int)(task / tiles), (int)(task % tiles) * TILE,
                    t->scratch + (size_t)thread * t->scratch_floats);
    }
}

/* --------------------------------------------------------------------------------------------------------- pooling */

static void run_pool(const tower_run *t, const program_op *o) {
    const int side = o->parts, across = t->across / side;
    const size_t n = (size_t)t->v->hidden;
    for (int row = 0; row < t->pooled; row++) {
        float *to = t->pool + (size_t)row * n;
        memset(to, 0, n * sizeof *to);
        for (int i = 0; i < side * side; i++) {
            const int y = row / across * side + i / side, x = row % across * side + i % side;
            t->m->kernels->axpy(1.0f, t->h + (size_t)(y * t->across + x) * n, (int)n, to);
        }
        t->m->kernels->scale(1.0f / (float)(side * side), (int)n, to);
    }
}

/* ------------------------------------------------------------------------------------------------------------ list */

/* Operations that wait for all rows. */
static bool is_barrier(const program_op *o) { return o->kind == OP_ATTEND || o->kind == OP_POOL; }

/* A piece of it: of attention, as many tasks as heads for each thread. True: it is whole. */
static bool run_barrier(tower_run *t, const program_op *o) {
    t->op = o;
    if (o->kind != OP_ATTEND) {
        run_pool(t, o);
        t->all = t->pooled;
        return true;
    }
    const size_t tasks = tiles_of(t) * (size_t)t->v->heads, left = tasks - t->task;
    const size_t most = (size_t)t->m->threads * (size_t)t->v->heads, n = left < most ? left : most;
    t->first = 0;
    thread_pool_for(t->m->pool, n, 1, attend_tiles, t);
    t->first = t->all;
    t->task += n;
    if (t->task < tasks) return false;
    t->task = 0;
    return true;
}

static void run_rows(tower_run *t, const program_op *o) {
    const int rows = t->all - t->first < CHUNK ? t->all - t->first : CHUNK;
    t->op = o;
    if (o->kind == OP_PRODUCTS)
        run_products(t, o, rows);
    else
        rows_run(t->m, rows, o->steps ? o->width * o->steps : 3 * t->v->heads * o->width,
                 o->kind == OP_HEADS ? head_rows : row_programs, t);
}

/* The next piece. True: that was the last one. */
static bool run_piece(tower_run *t) {
    int end = t->at;
    while (end < t->n_ops && !is_barrier(&t->ops[end])) end++;
    if (t->first < t->all && end > t->at) {
        run_rows(t, &t->ops[t->at + t->done]);
        if (++t->done < end - t->at) return false;
        t->done = 0;
        t->first += CHUNK;
        return end == t->n_ops && t->first >= t->all;
    }
    if (!run_barrier(t, &t->ops[end])) return false;
    t->at = end + 1;
    t->first = 0;
    return t->at == t->n_ops;
}

/* ---------------------------------------------------------------------------------------------------------- memory */

/* Values of the widest input of a product. */
static int widest_of(const vision_model *v) {
    const int patch = vision_model_patch_values(v), heads = v->tower ? v->heads * v->head_dim : 0;
    return max_int(max_int(patch, v->hidden), max_int(heads, v->tower ? v->intermediate : 0));
}

typedef struct room {
    float **at;
    size_t floats;
} room;

enum { ROOMS = 12 };

/* What is held while the run's patches are computed, beside the list and the table of RoPE. */
static void list_rooms(tower_run *t, int threads, room out[ROOMS]) {
    const vision_model *v = t->v;
    const size_t rows = (size_t)t->patches, hidden = (size_t)v->hidden, chunk = CHUNK;
    const size_t heads = v->tower ? rows * (size_t)(v->heads * v->head_dim) : 0;
    const size_t tile = attend_all_floats(TILE, v->head_dim);
    const size_t registers = ROW_REGISTERS * (size_t)max_int(vision_model_patch_values(v), v->hidden);
    t->scratch_floats = ((tile > registers ? tile : registers) + 31) / 16 * 16;
    const room rooms[ROOMS] = {
        {&t->patch, rows * (size_t)vision_model_patch_values(v)},
        {&t->h, rows * hidden},
        {&t->q, heads},
        {&t->k, heads},
        {&t->v_rows, heads},
        {&t->pool, (size_t)t->pooled * hidden},
        {&t->x, chunk * hidden},
        {&t->branch, chunk * hidden},
        {&t->act, chunk * 2 * (size_t)max_int(v->intermediate, v->tower ? v->heads * v->head_dim : 0)},
        {&t->clamped, v->clipped ? chunk * (size_t)widest_of(v) : 0},
        {&t->packed, gemm_floats(CHUNK, widest_of(v))},
        {&t->scratch, t->scratch_floats * (size_t)threads},
    };
    memcpy(out, rooms, sizeof rooms);
}

static kakeya_status allocate(tower_run *t, kakeya_error *error) {
    const vision_model *v = t->v;
    backend_model *m = t->m;
    room rooms[ROOMS];
    list_rooms(t, m->threads, rooms);
    for (size_t i = 0; i < ROOMS; i++) {
        if (!rooms[i].floats) continue;
        *rooms[i].at = mem_alloc(m->account, MEM_WORKSPACE, rooms[i].floats * sizeof(float));
        if (!*rooms[i].at)
            return error_set(error, KAKEYA_OUT_OF_MEMORY, "an image of %d patches: out of memory", t->patches);
    }
    if (!v->tower) return KAKEYA_OK;
    kakeya_status status = rope_table_create(m, &t->rope, v->rope_theta, 1.0f, v->head_dim / 2, v->head_dim / 4, error);
    return status ? status : rope_table_reserve(m, &t->rope, max_int(t->across, t->patches / t->across), error);
}

size_t cpu_image_bytes(const vision_model *v, weight_format format, int patches, int side, int threads) {
    (void)format; /* gemm takes all of them alike */
    const size_t pairs = v->tower ? (size_t)v->head_dim / 4 : 0;
    const size_t places = (size_t)(side + CPU_ROPE_GROWTH - 1) / CPU_ROPE_GROWTH * CPU_ROPE_GROWTH;
    tower_run t = {.v = v, .patches = patches, .pooled = patches / (v->pooling * v->pooling)};
    room rooms[ROOMS];
    list_rooms(&t, threads, rooms);
    size_t bytes = mem_rounded((size_t)tower_most_ops(v) * sizeof *t.ops);
    if (pairs) bytes += mem_rounded(pairs * sizeof(float)) + 2 * mem_rounded(places * pairs * sizeof(float));
    for (size_t i = 0; i < ROOMS; i++)
        if (rooms[i].floats) bytes += mem_rounded(rooms[i].floats * sizeof(float));
    return bytes;
}

void cpu_image_end(backend_reading *t) {
    float *const rooms[] = {t->patch, t->h,      t->q,   t->k,       t->v_rows, t->pool,
                            t->x,     t->branch, t->act, t->clamped, t->packed, t->scratch};
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) mem_free(rooms[i]);
    rope_table_destroy(&t->rope);
    mem_free(t->ops);
    free(t);
}

kakeya_status cpu_image_begin(backend_model *m, const backend_image *image, float *rows, backend_reading **out,
                              kakeya_error *error) {
    const vision_model *v = image->vision;
    *out = NULL;
    if (image->across > v->positions || image->down > v->positions)
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "an image of %d x %d patches: the model supports at most %d in each direction", image->across,
                         image->down, v->positions);
    tower_run *t = calloc(1, sizeof *t);
    if (!t) return error_set(error, KAKEYA_OUT_OF_MEMORY, "an image: out of memory");
    *t = (tower_run){.m = m, .v = v, .across = image->across, .soft = rows};
    t->all = t->patches = image->across * image->down;
    t->pooled = image->across / v->pooling * (image->down / v->pooling);
    t->ops = mem_alloc(m->account, MEM_WORKSPACE, (size_t)tower_most_ops(v) * sizeof *t->ops);
    t->n_ops = t->ops ? program_tower(v, t->ops) : 0;
    kakeya_status status =
        t->ops ? allocate(t, error) : error_set(error, KAKEYA_OUT_OF_MEMORY, "an image: out of memory");
    if (status) {
        cpu_image_end(t);
        return status;
    }
    const size_t values = (size_t)t->patches * (size_t)vision_model_patch_values(v);
    memcpy(t->patch, image->patches, values * sizeof *image->patches);
    *out = t;
    return KAKEYA_OK;
}

kakeya_status cpu_image_step(backend_reading *t, double seconds, bool *made, kakeya_error *error) {
    (void)error; /* the processor computes what it is given */
    const double end = clock_seconds() + seconds;
    do {
        *made = run_piece(t);
    } while (!*made && clock_seconds() < end);
    return KAKEYA_OK;
}

kakeya_status cpu_embed_image(backend_model *m, const backend_image *image, float *rows, kakeya_error *error) {
    backend_reading *t;
    kakeya_status status = cpu_image_begin(m, image, rows, &t, error);
    if (status) return status;
    bool made;
    status = cpu_image_step(t, INFINITY, &made, error);
    cpu_image_end(t);
    return status;
}
