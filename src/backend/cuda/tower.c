/* Walks the list of program/tower.c. */
#include "backend/cuda/tower.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

#include "backend/cuda/prompt_gemm.h"
#include "backend/cuda/tower_kernels.h"
#include "backend/cuda/tower_weights.h"
#include "base/clock.h"

enum { PIECE_PATCHES = 1024 }; /* that attend between two looks at the clock, at least: a layer of most pictures */

static const float layer_norm_eps = 1e-5f;

_Static_assert((int)TOWER_MOST_PARTS == 3, "parts of attention lie in the place of q, k and v before their norms");
_Static_assert((int)TOWER_MAX_STEPS == (int)ROW_MAX_STEPS && (int)TOWER_REGISTERS == (int)ROW_REGISTERS,
               "tower_kernels.h repeats the limits of row programs");

/* Where the values of rows lie: what is multiplied in bf16, the others in float32. */
typedef struct tower_space {
    float *patch, *h, *raw, *pool, *soft, *gate, *up; /* raw: q, k and v side by side, or what a block adds */
    cuda_bf16 *patch_in, *x, *q, *k, *v, *attended, *act, *pool_in, *clamped;
    float2 *state; /* of parts of attention, whose values lie in raw */
} tower_space;

struct cuda_tower {
    const vision_model *vision;
    tower_weights weights;
    program_op *ops;
    int n_ops;
    pthread_mutex_t lock;
    cuda_buffer memory; /* of the largest picture that has ended; empty while one that is read has it */
};

typedef struct backend_reading {
    const backend_model *m;
    cuda_tower *t;
    const vision_model *v;
    cuda_buffer memory;
    tower_space s;
    float *out; /* the caller's rows */
    int at;     /* operations that have run */
    int patches, across, pooled;
    int rows; /* of the part of the list in work: patches, then pooled */
    cudaError_t failure;
} tower_run;

static void note(tower_run *r, cudaError_t status) {
    if (r->failure == cudaSuccess) r->failure = status;
}

static int heads_width(const vision_model *v) { return v->heads * v->head_dim; }
static int larger(int a, int b) { return a > b ? a : b; }

/* ----------------------------------------------------------------------------------------------------------- items */

/* An input of products: its rows in bf16, `ld` apart. */
typedef struct rounded_item {
    cuda_bf16 *data;
    int ld;
} rounded_item;

static rounded_item rounded(const tower_run *r, int item) {
    const vision_model *v = r->v;
    switch (item) {
    case DATA_PATCHES:
        return (rounded_item){r->s.patch_in, cuda_padded(vision_model_patch_values(v))};
    case DATA_X:
        return (rounded_item){r->s.x, cuda_padded(v->hidden)};
    case DATA_ATTENDED:
        return (rounded_item){r->s.attended, cuda_padded(heads_width(v))};
    case DATA_ACT:
        return (rounded_item){r->s.act, cuda_padded(v->intermediate)};
    case DATA_POOLED:
        return (rounded_item){r->s.pool_in, cuda_padded(v->hidden)};
    default:
        return (rounded_item){0};
    }
}

/* The float32 values of an item: what products leave and row programs load. */
static float *values(const tower_run *r, int item) {
    switch (item) {
    case DATA_PATCHES:
        return r->s.patch;
    case DATA_H:
        return r->s.h;
    case DATA_POOLED:
        return r->s.pool;
    case DATA_SOFT:
        return r->s.soft;
    default: /* DATA_Q, DATA_K, DATA_V, DATA_BRANCH */
        return r->s.raw;
    }
}

/* -------------------------------------------------------------------------------------------------------- products */

static void multiply(tower_run *r, const cuda_matrix *w, const cuda_bf16 *x, int ldx, int outputs, void *y, int ldy,
                     const cuda_matrix *up) {
    const prompt_gemm_args args = {.a = x,
                                   .lda = (size_t)ldx,
                                   .w = w->data,
                                   .w_up = up ? up->data : NULL,
                                   .ldw = (size_t)w->ld,
                                   .out = y,
                                   .ldo = (size_t)ldy,
                                   .m = r->rows,
                                   .n = outputs,
                                   .k = w->in,
                                   .output = up ? PROMPT_GEMM_GELU_BF16 : PROMPT_GEMM_F32};
    note(r, prompt_gemm(&args, r->m->launch.stream));
}

/* One matrix with the bounds of what comes in and what goes out. */
static void multiply_clipped(tower_run *r, uint16_t slot, rounded_item x, float *y, int ldy) {
    const cuda_matrix *w = tower_weights_matrix(&r->t->weights, slot);
    const vision_bounds *bounds = tower_bounds(r->v, slot);
    tower_clamp_rounded(&r->m->launch, x.data, r->s.clamped, x.ld, w->in, bounds->input_min, bounds->input_max,
                        r->rows);
    multiply(r, w, r->s.clamped, x.ld, w->out, y, ldy, NULL);
    tower_clamp(&r->m->launch, y, ldy, w->out, bounds->output_min, bounds->output_max, r->rows);
}

static void run_gated(tower_run *r, const program_op *o, rounded_item x) {
    const cuda_matrix *gate = tower_weights_matrix(&r->t->weights, o->slot[0]),
                      *up = tower_weights_matrix(&r->t->weights, o->slot[1]);
    const rounded_item act = rounded(r, o->out[0]);
    if (!o->clipped) {
        multiply(r, gate, x.data, x.ld, gate->out, act.data, act.ld, up);
        return;
    }
    multiply_clipped(r, o->slot[0], x, r->s.gate, gate->out);
    multiply_clipped(r, o->slot[1], x, r->s.up, up->out);
    tower_activate(&r->m->launch, r->s.gate, r->s.up, gate->out, act.data, act.ld, r->rows);
}

/* Matrices that share an input follow each other on the device, and so do their outputs. */
static void run_products(tower_run *r, const program_op *o) {
    const rounded_item x = rounded(r, o->in[0]);
    if (o->epilogue == EPILOGUE_GATED) {
        run_gated(r, o, x);
        return;
    }
    const cuda_matrix *w = tower_weights_matrix(&r->t->weights, o->slot[0]);
    int n = 0;
    while (n < PROGRAM_MATRICES && o->slot[n]) n++;
    float *y = values(r, o->out[0]);
    for (int i = 0; o->clipped && i < n; i++) multiply_clipped(r, o->slot[i], x, y + i * w->out, n * w->out);
    if (!o->clipped) multiply(r, w, x.data, x.ld, n * w->out, y, n * w->out, NULL);
}

/* ------------------------------------------------------------------------------------------------------------ rows */

static tower_verb verb_of(row_verb verb) {
    static const tower_verb verbs[ROW_VERBS] = {
        [ROW_LOAD] = TOWER_LOAD,   [ROW_LOOKUP] = TOWER_LOOKUP, [ROW_NORM] = TOWER_NORM,
        [ROW_ADD] = TOWER_ADD,     [ROW_SCALE] = TOWER_SCALE,   [ROW_MULTIPLY] = TOWER_MULTIPLY,
        [ROW_SHIFT] = TOWER_SHIFT, [ROW_CENTRE] = TOWER_CENTRE,
    };
    return verbs[verb];
}

/* Tables of towers hold the places of columns, then those of rows; the embedder's alternate. */
static void look_up(const tower_run *r, const row_step *s, tower_row_step *to) {
    const cuda_matrix *table = tower_weights_matrix(&r->t->weights, s->slot);
    to->table = table->data;
    to->ld = table->ld;
    to->axis = s->part;
    to->stride = r->v->tower ? 1 : 2;
    to->first = s->part * (r->v->tower ? r->v->positions : 1);
}

static tower_row_step step_of(const tower_run *r, const row_step *s) {
    const row_verb verb = (row_verb)s->verb;
    tower_row_step to = {.verb = verb_of(verb), .into = s->into, .from = s->from, .scalar = s->scalar};
    if (verb == ROW_LOAD) {
        to.load = values(r, s->item);
        return to;
    }
    if (verb == ROW_LOOKUP)
        look_up(r, s, &to);
    else
        to.vector = tower_weights_vector(&r->t->weights, s->slot);
    if (verb == ROW_CENTRE) to.bias = tower_weights_vector(&r->t->weights, s->part);
    if (!s->item) return to;
    const rounded_item x = rounded(r, s->item);
    if (x.data) {
        to.rounded = x.data;
        to.ld = x.ld;
    } else {
        to.store = values(r, s->item);
    }
    return to;
}

/* Loads come first, so that they are on their way together: may this step come behind one into that register? */
static bool can_wait(const tower_row_step *s, int into) {
    return s->verb != TOWER_LOAD && s->into != into && s->from != into && !s->store;
}

static void run_rows(tower_run *r, const program_op *o) {
    tower_rows rows = {.width = o->width,
                       .steps = o->steps,
                       .across = r->across,
                       .rms_eps = r->v->rms_eps,
                       .centre_eps = layer_norm_eps};
    for (int i = 0; i < o->steps; i++) {
        rows.registers = larger(rows.registers, larger(o->step[i].into, o->step[i].from) + 1);
        int at = i;
        while (at > 0 && o->step[i].verb == ROW_LOAD && can_wait(&rows.step[at - 1], o->step[i].into)) {
            rows.step[at] = rows.step[at - 1];
            at--;
        }
        rows.step[at] = step_of(r, &o->step[i]);
    }
    note(r, tower_row_program(&r->m->launch, &rows, r->rows));
}

static void run_heads(tower_run *r, const program_op *o) {
    tower_heads h = {.raw = r->s.raw,
                     .turns = r->t->weights.turns,
                     .out = {r->s.q, r->s.k, r->s.v},
                     .heads = r->v->heads,
                     .head_dim = o->width,
                     .across = r->across,
                     .eps = r->v->rms_eps};
    for (int i = 0; i < 3; i++) h.norm[i] = tower_weights_vector(&r->t->weights, o->head[i].slot);
    note(r, tower_head_rows(&r->m->launch, &h, r->rows));
}

static void run_attend(tower_run *r, const program_op *o) {
    const rounded_item out = rounded(r, o->out[0]);
    const tower_attention a = {.q = r->s.q,
                               .k = r->s.k,
                               .v = r->s.v,
                               .out = out.data,
                               .ldo = out.ld,
                               .partial = r->s.raw,
                               .state = r->s.state,
                               .rows = r->rows,
                               .heads = r->v->heads,
                               .head_dim = o->width};
    note(r, tower_attend(&r->m->launch, &a));
}

static void run_pool(tower_run *r, const program_op *o) {
    tower_pool(&r->m->launch, r->s.h, r->across, o->parts, r->v->hidden, r->s.pool, r->pooled);
    r->rows = r->pooled;
}

static void run_op(tower_run *r, const program_op *o) {
    switch ((op_kind)o->kind) {
    case OP_PRODUCTS:
        run_products(r, o);
        break;
    case OP_HEADS:
        run_heads(r, o);
        break;
    case OP_ATTEND:
        run_attend(r, o);
        break;
    case OP_POOL:
        run_pool(r, o);
        break;
    default: /* OP_ROWS: builders of towers write no other */
        run_rows(r, o);
    }
}

/* ---------------------------------------------------------------------------------------------------------- memory */

/* Gives every item its place from `memory` on, which may be NULL; returns the bytes of all. */
static size_t place_items(const vision_model *v, int patches, char *memory, tower_space *s) {
    const size_t rows = (size_t)patches, pooled = rows / (size_t)(v->pooling * v->pooling);
    const size_t patch = (size_t)vision_model_patch_values(v), hidden = (size_t)v->hidden;
    const size_t heads = v->tower ? rows * (size_t)heads_width(v) : 0, wide = (size_t)cuda_padded(v->hidden);
    const size_t act = v->tower ? rows * (size_t)cuda_padded(v->intermediate) : 0;
    const size_t branch = v->tower ? rows * hidden : 0, raw = 3 * heads > branch ? 3 * heads : branch;
    const size_t clipped = v->clipped ? rows * (size_t)v->intermediate : 0;
    const size_t widest = (size_t)cuda_padded(larger(larger(v->hidden, heads_width(v)), v->intermediate));
    const struct {
        void **at;
        size_t bytes;
    } list[] = {
        {(void **)(void *)&s->patch, rows * patch * sizeof(float)},
        {(void **)(void *)&s->h, rows * hidden * sizeof(float)},
        {(void **)(void *)&s->raw, raw * sizeof(float)},
        {(void **)(void *)&s->pool, pooled * hidden * sizeof(float)},
        {(void **)(void *)&s->soft, pooled * (size_t)v->text_hidden * sizeof(float)},
        {(void **)(void *)&s->gate, clipped * sizeof(float)},
        {(void **)(void *)&s->up, clipped * sizeof(float)},
        {(void **)(void *)&s->patch_in, rows * (size_t)cuda_padded((int)patch) * sizeof(cuda_bf16)},
        {(void **)(void *)&s->x, v->tower ? rows * wide * sizeof(cuda_bf16) : 0},
        {(void **)(void *)&s->q, heads * sizeof(cuda_bf16)},
        {(void **)(void *)&s->k, heads * sizeof(cuda_bf16)},
        {(void **)(void *)&s->v, heads * sizeof(cuda_bf16)},
        {(void **)(void *)&s->attended, v->tower ? rows * (size_t)cuda_padded(heads_width(v)) * sizeof(cuda_bf16) : 0},
        {(void **)(void *)&s->act, act * sizeof(cuda_bf16)},
        {(void **)(void *)&s->pool_in, pooled * wide * sizeof(cuda_bf16)},
        {(void **)(void *)&s->state, v->tower ? rows * (size_t)(TOWER_MOST_PARTS * v->heads) * sizeof(float2) : 0},
        {(void **)(void *)&s->clamped, v->clipped ? rows * widest * sizeof(cuda_bf16) : 0},
    };
    size_t total = 0;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        if (memory) *list[i].at = list[i].bytes ? memory + total : NULL;
        total += (list[i].bytes + 255) / 256 * 256;
    }
    return total;
}

size_t cuda_image_bytes(const vision_model *vision, weight_format format, int patches, int side, int threads) {
    (void)format, (void)side, (void)threads;
    tower_space space;
    return mem_rounded(place_items(vision, patches, NULL, &space));
}

void cuda_tower_destroy(cuda_tower *t) {
    if (!t) return;
    cuda_buffer_destroy(&t->memory);
    pthread_mutex_destroy(&t->lock);
    tower_weights_destroy(&t->weights);
    mem_free(t->ops);
    free(t);
}

kakeya_status cuda_load_vision(backend_model *m, const vision_model *vision, kakeya_error *error) {
    if (m->tower && m->tower->vision == vision) return KAKEYA_OK;
    cuda_tower_destroy(m->tower);
    m->tower = NULL;
    cuda_tower *t = calloc(1, sizeof *t);
    if (!t) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for what reads images");
    t->vision = vision;
    pthread_mutex_init(&t->lock, NULL);
    t->ops = mem_alloc(m->account, MEM_WORKSPACE, (size_t)tower_most_ops(vision) * sizeof *t->ops);
    kakeya_status status = t->ops ? cuda_device_use(&m->device, error)
                                  : error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for what reads images");
    if (!status) {
        t->n_ops = program_tower(vision, t->ops);
        status = tower_weights_create(&t->weights, &m->device, m->account, vision, error);
    }
    if (status)
        cuda_tower_destroy(t);
    else
        m->tower = t;
    return status;
}

/* Room for a picture: what the last one had, if that is enough. */
static kakeya_status take_memory(tower_run *r, size_t bytes, kakeya_error *error) {
    cuda_buffer *kept = &r->t->memory;
    pthread_mutex_lock(&r->t->lock);
    r->memory = *kept;
    *kept = (cuda_buffer){0};
    pthread_mutex_unlock(&r->t->lock);
    if (r->memory.bytes >= bytes) return KAKEYA_OK;
    cuda_buffer_destroy(&r->memory);
    return cuda_buffer_create(&r->memory, &r->m->device, r->m->account, MEM_WORKSPACE, bytes, "an image", error);
}

/* The larger one of it and what is kept stays for the next picture. */
static void leave_memory(tower_run *r) {
    cuda_buffer *kept = &r->t->memory;
    pthread_mutex_lock(&r->t->lock);
    if (r->memory.bytes > kept->bytes) {
        const cuda_buffer smaller = *kept;
        *kept = r->memory;
        r->memory = smaller;
    }
    pthread_mutex_unlock(&r->t->lock);
    cuda_buffer_destroy(&r->memory);
}

/* ----------------------------------------------------------------------------------------------------------- verbs */

/* The picture's values on the device, and where everything goes. */
static kakeya_status begin(tower_run *r, backend_model *m, const backend_image *image, float *rows,
                           kakeya_error *error) {
    const vision_model *v = image->vision;
    *r = (tower_run){.m = m, .v = v, .out = rows, .patches = image->across * image->down, .across = image->across};
    r->pooled = image->across / v->pooling * (image->down / v->pooling);
    r->rows = r->patches;
    if (image->across > v->positions || image->down > v->positions)
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "an image of %d x %d patches: the model supports at most %d in each direction", image->across,
                         image->down, v->positions);
    kakeya_status status = cuda_load_vision(m, v, error);
    if (!status) status = cuda_device_use(&m->device, error);
    if (status) return status;
    r->t = m->tower;
    status = take_memory(r, place_items(v, r->patches, NULL, &r->s), error);
    if (status) return status;
    (void)place_items(v, r->patches, r->memory.data, &r->s);
    const size_t values_in = (size_t)r->patches * (size_t)vision_model_patch_values(v);
    note(r, cudaMemcpyAsync(r->s.patch, image->patches, values_in * sizeof(float), cudaMemcpyHostToDevice,
                            m->device.stream));
    return KAKEYA_OK;
}

/* What has been launched is done. */
static kakeya_status finish(const tower_run *r, kakeya_error *error) {
    const kakeya_status status = cuda_finish(&r->m->device, "reading an image", error);
    return status ? status : cuda_check(r->failure, "reading an image", error);
}

kakeya_status cuda_image_begin(backend_model *m, const backend_image *image, float *rows, backend_reading **out,
                               kakeya_error *error) {
    tower_run *r = *out = calloc(1, sizeof *r);
    if (!r) return error_set(error, KAKEYA_OUT_OF_MEMORY, "an image: out of memory");
    kakeya_status status = begin(r, m, image, rows, error);
    if (!status) status = finish(r, error); /* the patches are the caller's again */
    if (!status) return KAKEYA_OK;
    cuda_image_end(r);
    *out = NULL;
    return status;
}

kakeya_status cuda_image_step(backend_reading *r, double seconds, bool *made, kakeya_error *error) {
    const double end = clock_seconds() + seconds;
    kakeya_status status = cuda_device_use(&r->m->device, error);
    *made = false;
    while (!status && !*made) {
        for (int attended = 0; r->at < r->t->n_ops && (attended < PIECE_PATCHES || isinf(seconds)); r->at++) {
            run_op(r, &r->t->ops[r->at]);
            if (r->t->ops[r->at].kind == OP_ATTEND) attended += r->patches;
        }
        *made = r->at == r->t->n_ops;
        const size_t bytes = (size_t)r->pooled * (size_t)r->v->text_hidden * sizeof(float);
        if (*made) note(r, cudaMemcpyAsync(r->out, r->s.soft, bytes, cudaMemcpyDeviceToHost, r->m->device.stream));
        status = finish(r, error);
        if (clock_seconds() >= end) break;
    }
    return status;
}

void cuda_image_end(backend_reading *r) {
    if (r->t) leave_memory(r);
    free(r);
}

kakeya_status cuda_embed_image(backend_model *m, const backend_image *image, float *rows, kakeya_error *error) {
    backend_reading *r;
    bool made;
    kakeya_status status = cuda_image_begin(m, image, rows, &r, error);
    if (status) return status;
    status = cuda_image_step(r, INFINITY, &made, error);
    cuda_image_end(r);
    return status;
}

kakeya_status cuda_image_seconds(backend_model *m, const backend_image *image, double *seconds, kakeya_error *error) {
    tower_run r;
    for (int kind = 0; kind < OP_KINDS; kind++) seconds[kind] = 0;
    kakeya_status status = begin(&r, m, image, NULL, error);
    const int n = status ? 0 : r.t->n_ops;
    cudaEvent_t *event = calloc((size_t)n + 1, sizeof *event);
    if (!status && !event) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for events");
    if (status) {
        if (r.t) leave_memory(&r);
        free(event);
        return status;
    }
    for (int i = 0; i <= n; i++) note(&r, cudaEventCreate(&event[i]));
    for (int i = 0; i < n && r.failure == cudaSuccess; i++) {
        note(&r, cudaEventRecord(event[i], m->device.stream));
        run_op(&r, &r.t->ops[i]);
    }
    if (r.failure == cudaSuccess) note(&r, cudaEventRecord(event[n], m->device.stream));
    status = finish(&r, error);
    leave_memory(&r);
    for (int i = 0; i < n && !status; i++) {
        float milliseconds = 0;
        status = cuda_check(cudaEventElapsedTime(&milliseconds, event[i], event[i + 1]), "reading an image", error);
        seconds[r.t->ops[i].kind] += (double)milliseconds / 1e3;
    }
    for (int i = 0; i <= n; i++) {
        if (event[i]) (void)cudaEventDestroy(event[i]);
    }
    free(event);
    return status;
}
