#include "backend/cuda/drafter_trainer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/drafter_trainer_kernels.h"
#include "backend/cuda/model.h"
#include "backend/weight_values.h"
#include "model/block_drafter_values.h"

typedef struct drafter_trainer_layer {
    float *raw_k, *context[2];      /* [X][kv] */
    float *own_raw_k, *own[2];      /* [R][kv] */
    float *input, *x, *x2, *middle; /* [R][H] */
    float *q_raw, *q, *o;           /* [R][q] */
    float *shares, *gate_up, *act;  /* [S][heads][N][C]; [R][2 * intermediate]; [R][intermediate] */
} drafter_trainer_layer;

/* What the host makes of sequences for the device. */
typedef struct drafter_trainer_tables {
    int *position, *first, *token, *target, *context_position; /* [R], the last one [X] */
    float *weigh;                                              /* [R] */
} drafter_trainer_tables;

struct backend_drafter_trainer {
    backend_model *m;
    drafter_trainer_options o;
    block_drafter_config c;
    int sequences, rows, context, head_rows; /* S, N, T; rows whose logits are made together */
    cuda_launch launch;
    cuda_buffer memory;
    const float *given; /* the weights, on the host */
    size_t n;
    float *weights, *sum;     /* [n] */
    block_drafter_model w, g; /* bound to them */
    float *embed, *head;      /* [vocab][H] */
    float *cosine, *sine;     /* [T + block][pairs] */
    drafter_trainer_tables host, device;
    char *tables, *device_tables;
    size_t tables_bytes;
    drafter_trainer_layer layer[BLOCK_DRAFTER_MAX_LAYERS];
    float *aux, *fused, *hidden, *d_hidden,
        *d_fused; /* [X][targets * H], [X][H]: the context, behind fc and its norm */
    float *last, *final_x, *branch, *d_h, *d_x, *d_q, *d_o, *d_act, *d_gate_up, *logits;
    float *keys, *values, *d_shares, *d_key, *d_value, *d_own[2], *d_context[2], *d_raw, *partial, *gains;
    size_t partial_floats;
    double *loss; /* [R] */
    int *right;
    bool backward;
    float scale;
};

enum { PARTIAL_FLOATS = 1 << 23, LOGIT_FLOATS = 1 << 27 };

/* -------------------------------------------------------------------------------------------------------- memory */

/* Memory is laid out twice: with `base` NULL for its size, then for its addresses. */
typedef struct arena {
    char *base;
    size_t bytes;
} arena;

static void *take_bytes(arena *a, size_t bytes) {
    enum { ALIGN = 256 };
    void *at = a->base ? a->base + a->bytes : NULL;
    a->bytes += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return at;
}

static float *take(arena *a, size_t n) { return take_bytes(a, n * sizeof(float)); }

static size_t lay_out_tables(const backend_drafter_trainer *l, drafter_trainer_tables *t, char *base) {
    arena a = {.base = base};
    size_t rows = (size_t)l->sequences * (size_t)l->rows, all = (size_t)l->sequences * (size_t)l->context;
    int **ints[] = {&t->position, &t->first, &t->token, &t->target};
    for (int i = 0; i < 4; i++) *ints[i] = take_bytes(&a, rows * sizeof(int));
    t->context_position = take_bytes(&a, all * sizeof(int));
    t->weigh = take(&a, rows);
    return a.bytes;
}

static void lay_out_layers(backend_drafter_trainer *l, arena *a, size_t rows, size_t all, size_t columns) {
    const block_drafter_config *c = &l->c;
    size_t hidden = (size_t)c->hidden, q = (size_t)(c->heads * c->head_dim), kv = (size_t)(c->kv_heads * c->head_dim),
           width = (size_t)c->intermediate;
    for (int i = 0; i < c->layers; i++) {
        drafter_trainer_layer *x = &l->layer[i];
        float **context[] = {&x->raw_k, &x->context[0], &x->context[1]};
        float **own[] = {&x->own_raw_k, &x->own[0], &x->own[1]}, **query[] = {&x->q_raw, &x->q, &x->o};
        float **wide[] = {&x->input, &x->x, &x->x2, &x->middle};
        for (int k = 0; k < 3; k++) {
            *context[k] = take(a, all * kv);
            *own[k] = take(a, rows * kv);
            *query[k] = take(a, rows * q);
        }
        for (int k = 0; k < 4; k++) *wide[k] = take(a, rows * hidden);
        x->shares = take(a, (size_t)c->heads * rows * columns);
        x->gate_up = take(a, 2 * rows * width);
        x->act = take(a, rows * width);
    }
}

static size_t lay_out(backend_drafter_trainer *l, char *base) {
    const block_drafter_config *c = &l->c;
    arena a = {.base = base};
    size_t rows = (size_t)l->sequences * (size_t)l->rows, all = (size_t)l->sequences * (size_t)l->context,
           columns = (size_t)(l->context + l->rows), hidden = (size_t)c->hidden, q = (size_t)(c->heads * c->head_dim),
           kv = (size_t)(c->kv_heads * c->head_dim), vocab = (size_t)c->vocab, width = (size_t)c->intermediate,
           turns = (size_t)(l->context + c->block_size) * (size_t)(c->head_dim / 2);
    l->weights = take(&a, l->n);
    l->sum = take(&a, l->n);
    l->embed = take(&a, vocab * hidden);
    l->head = take(&a, vocab * hidden);
    l->cosine = take(&a, turns);
    l->sine = take(&a, turns);
    l->device_tables = take_bytes(&a, l->tables_bytes);
    lay_out_layers(l, &a, rows, all, columns);
    l->aux = take(&a, all * (size_t)c->targets * hidden);
    float **context[] = {&l->fused, &l->hidden, &l->d_hidden, &l->d_fused};
    for (int k = 0; k < 4; k++) *context[k] = take(&a, all * hidden);
    float **wide[] = {&l->last, &l->final_x, &l->branch, &l->d_h, &l->d_x};
    for (int k = 0; k < 5; k++) *wide[k] = take(&a, rows * hidden);
    l->d_q = take(&a, rows * q);
    l->d_o = take(&a, rows * q);
    l->d_act = take(&a, rows * width);
    l->d_gate_up = take(&a, 2 * rows * width);
    l->logits = take(&a, (size_t)l->head_rows * vocab);
    l->keys = take(&a, (size_t)l->sequences * columns * kv);
    l->values = take(&a, (size_t)l->sequences * columns * kv);
    l->d_shares = take(&a, (size_t)c->heads * rows * columns);
    l->d_key = take(&a, (size_t)l->sequences * columns * q);
    l->d_value = take(&a, (size_t)l->sequences * columns * q);
    for (int half = 0; half < 2; half++) {
        l->d_own[half] = take(&a, rows * kv);
        l->d_context[half] = take(&a, all * kv);
    }
    size_t raw = rows * q > all * kv ? rows * q : all * kv;
    l->d_raw = take(&a, raw);
    l->partial_floats = PARTIAL_FLOATS;
    l->partial = take(&a, l->partial_floats);
    l->gains = take(&a, DRAFTER_TRAINER_GAIN_PARTS * (hidden > (size_t)c->head_dim ? hidden : (size_t)c->head_dim));
    l->loss = take_bytes(&a, rows * sizeof *l->loss);
    l->right = take_bytes(&a, rows * sizeof *l->right);
    return a.bytes;
}

static void prepare(backend_drafter_trainer *l, backend_model *m, const drafter_trainer_options *o) {
    memset(l, 0, sizeof *l);
    l->m = m;
    l->o = *o;
    l->c = *o->drafter;
    l->o.drafter = &l->c;
    l->launch = m->launch;
    l->launch.programmatic = 0;
    l->sequences = o->sequences > 0 ? o->sequences : 1;
    l->rows = o->blocks * l->c.block_size;
    l->context = (o->sequence + 3) / 4 * 4; /* four values are loaded at once */
    l->rows = (l->rows + 3) / 4 * 4;
    l->n = block_drafter_values_count(&l->c);
    size_t rows = (size_t)l->sequences * (size_t)l->rows, most = LOGIT_FLOATS / (size_t)l->c.vocab;
    l->head_rows = (int)(rows < most ? rows : most > 0 ? most : 1);
    l->tables_bytes = lay_out_tables(l, &l->host, NULL);
}

size_t cuda_drafter_trainer_bytes(backend_model *m, const drafter_trainer_options *options) {
    backend_drafter_trainer *l = malloc(sizeof *l);
    if (!l) return 0;
    prepare(l, m, options);
    size_t bytes = lay_out(l, NULL);
    free(l);
    return bytes;
}

/* Copies from memory that may be freed then. */
static kakeya_status give(backend_drafter_trainer *l, float *to, const float *from, size_t n, kakeya_error *error) {
    kakeya_status status =
        cuda_check(cudaMemcpyAsync(to, from, n * sizeof *to, cudaMemcpyHostToDevice, l->launch.stream),
                   "copying what a drafter learns with", error);
    return status ? status : cuda_finish(&l->m->device, "copying what a drafter learns with", error);
}

/* A matrix of the verifier as float32. */
static kakeya_status upload(backend_drafter_trainer *l, const weight *w, float *to, kakeya_error *error) {
    enum { AT_ONCE = 4096 };
    size_t in = (size_t)w->in;
    float *rows = malloc(AT_ONCE * in * sizeof *rows);
    kakeya_status status = rows ? KAKEYA_OK : error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for training");
    for (int at = 0, n; at < w->out && !status; at += n) {
        n = w->out - at < AT_ONCE ? w->out - at : AT_ONCE;
        for (int r = 0; r < n; r++) weight_values(w, at + r, 0, w->in, rows + (size_t)r * in);
        status = give(l, to + (size_t)at * in, rows, (size_t)n * in, error);
    }
    free(rows);
    return status;
}

static kakeya_status fill(backend_drafter_trainer *l, kakeya_error *error) {
    const model_weights *v = &l->m->options.verifier->weights;
    int pairs = l->c.head_dim / 2, positions = l->context + l->c.block_size;
    size_t turns = (size_t)positions * (size_t)pairs;
    float *table = malloc(2 * turns * sizeof *table);
    if (!table) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for training");
    for (int p = 0; p < positions; p++) {
        for (int j = 0; j < pairs; j++) {
            float angle = (float)p * (1.0f / powf(l->c.rope_theta, (float)(2 * j) / (float)l->c.head_dim));
            table[p * pairs + j] = cosf(angle);
            table[turns + (size_t)(p * pairs + j)] = sinf(angle);
        }
    }
    kakeya_status status = give(l, l->cosine, table, turns, error);
    if (!status) status = give(l, l->sine, table + turns, turns, error);
    free(table);
    if (!status) status = upload(l, &v->embed, l->embed, error);
    if (!status) status = upload(l, &v->head, l->head, error);
    return status;
}

kakeya_status cuda_drafter_trainer_create(backend_model *m, const drafter_trainer_options *options,
                                          backend_drafter_trainer **out, kakeya_error *error) {
    *out = NULL;
    if (m->tp_group)
        return error_set(error, KAKEYA_UNSUPPORTED,
                         "training uses a single device: name only one with "
                         "--devices");
    if (options->drafter->block_size > DRAFTER_TRAINER_MAX_BLOCK)
        return error_set(error, KAKEYA_UNSUPPORTED, "a drafter with blocks of %d cannot be trained: the maximum is %d",
                         options->drafter->block_size, DRAFTER_TRAINER_MAX_BLOCK);
    backend_drafter_trainer *l = malloc(sizeof *l);
    if (!l) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for training");
    prepare(l, m, options);
    l->tables = malloc(l->tables_bytes);
    kakeya_status status = l->tables ? KAKEYA_OK : error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for training");
    if (!status) status = cuda_device_use(&m->device, error);
    if (!status)
        status = cuda_buffer_create(&l->memory, &m->device, m->account, MEM_WORKSPACE, lay_out(l, NULL),
                                    "training a drafter", error);
    if (!status) {
        lay_out(l, l->memory.data);
        lay_out_tables(l, &l->host, l->tables);
        lay_out_tables(l, &l->device, l->device_tables);
        block_drafter_values_bind(&l->c, l->weights, &l->w);
        block_drafter_values_bind(&l->c, l->sum, &l->g);
        status = fill(l, error);
    }
    if (status) {
        cuda_drafter_trainer_destroy(l);
        return status;
    }
    *out = l;
    return KAKEYA_OK;
}

void cuda_drafter_trainer_destroy(backend_drafter_trainer *l) {
    if (!l) return;
    if (l->memory.data) (void)cuda_device_use(&l->m->device, NULL);
    cuda_buffer_destroy(&l->memory);
    free(l->tables);
    free(l);
}

void cuda_drafter_trainer_weights(backend_drafter_trainer *l, const float *weights) { l->given = weights; }

/* ------------------------------------------------------------------------------------------------------ products */

static float *values_of(const weight *w) { return (float *)(uintptr_t)w->stream[0]; }
static float *vector(const float *v) { return (float *)(uintptr_t)v; }

/* y [rows][out] = x w'. */
static void forward(backend_drafter_trainer *l, const float *x, int rows, const weight *w, float *y, size_t ldy) {
    train_product p = {.a = x, .lda = (size_t)w->in, .b = values_of(w), .ldb = (size_t)w->in, .c = y, .ldc = ldy};
    p.m = rows, p.n = w->out, p.k = w->in;
    cuda_train_product(&l->launch, TRAIN_NT, &p);
}

/* d_x [rows][in] = d_y w, or added to it. */
static void back(backend_drafter_trainer *l, const float *d_y, size_t ldd, int rows, const weight *w, float *d_x,
                 bool add) {
    train_product p = {.a = d_y, .lda = ldd, .b = values_of(w), .ldb = (size_t)w->in, .c = d_x, .ldc = (size_t)w->in};
    p.m = rows, p.n = w->in, p.k = w->out, p.add = add;
    cuda_train_product(&l->launch, TRAIN_NN, &p);
}

/* The gradient of w += d_y' x. */
static void outer(backend_drafter_trainer *l, const float *d_y, size_t ldd, const float *x, int rows, const weight *g) {
    train_product p = {.a = d_y, .lda = ldd, .b = x, .ldb = (size_t)g->in, .c = values_of(g), .ldc = (size_t)g->in};
    p.m = g->out, p.n = g->in, p.k = rows, p.add = 1;
    p.partial = l->partial, p.partial_floats = l->partial_floats;
    cuda_train_product(&l->launch, TRAIN_TN, &p);
}

/* A product per sequence and head. */
static train_product of_heads(const backend_drafter_trainer *l) {
    return (train_product){.items = l->sequences, .heads = l->c.heads, .group = 1};
}

static size_t q_dim(const backend_drafter_trainer *l) { return (size_t)(l->c.heads * l->c.head_dim); }
static size_t kv_dim(const backend_drafter_trainer *l) { return (size_t)(l->c.kv_heads * l->c.head_dim); }
static int all_rows(const backend_drafter_trainer *l) { return l->sequences * l->rows; }
static int all_context(const backend_drafter_trainer *l) { return l->sequences * l->context; }

/* --------------------------------------------------------------------------------------------------------- norms */

static void norm(backend_drafter_trainer *l, const float *x, const float *gain, int rows, float *out) {
    size_t hidden = (size_t)l->c.hidden;
    cuda_train_norm(&l->launch, x, hidden, gain, NULL, out, hidden, rows, l->c.hidden, l->c.rms_eps);
}

static void norm_back(backend_drafter_trainer *l, const float *x, const float *gain, const float *d_out, int rows,
                      float *d_x, bool set, const float *d_gain) {
    cuda_train_norm_back(&l->launch, x, gain, d_out, d_x, set, rows, l->c.hidden, l->c.rms_eps);
    if (d_gain)
        cuda_drafter_trainer_gain(&l->launch, x, d_out, rows, l->c.hidden, l->c.rms_eps, l->gains, vector(d_gain));
}

static train_turn turn_of(const backend_drafter_trainer *l, bool context) {
    return (train_turn){.cosine = l->cosine,
                        .sine = l->sine,
                        .position = context ? l->device.context_position : l->device.position,
                        .half = l->c.head_dim / 2,
                        .pairs = l->c.head_dim / 2};
}

/* From the gradient behind RoPE, d, to that of the raw heads, in d_raw. */
static void heads_back(backend_drafter_trainer *l, const float *raw, const float *gain, float *d, float scale,
                       bool context, int rows, int heads, const float *d_gain) {
    const train_turn still = {.half = l->c.head_dim / 2};
    cuda_drafter_trainer_unturn(&l->launch, d, scale, rows, heads, l->c.head_dim, turn_of(l, context));
    if (d_gain)
        cuda_drafter_trainer_gain(&l->launch, raw, d, rows * heads, l->c.head_dim, l->c.rms_eps, l->gains,
                                  vector(d_gain));
    cuda_train_heads_back(&l->launch, raw, gain, d, l->d_raw, 0, rows, heads, l->c.head_dim, l->c.rms_eps, still);
}

/* --------------------------------------------------------------------------------------------------------- there */

static void context_forward(backend_drafter_trainer *l) {
    int rows = all_context(l);
    forward(l, l->aux, rows, &l->w.fc, l->fused, (size_t)l->c.hidden);
    norm(l, l->fused, l->w.hidden_norm, rows, l->hidden);
    for (int i = 0; i < l->c.layers; i++) {
        drafter_trainer_layer *layer = &l->layer[i];
        const block_drafter_layer_weights *w = &l->w.layer[i];
        forward(l, l->hidden, rows, &w->k_proj, layer->raw_k, kv_dim(l));
        forward(l, l->hidden, rows, &w->v_proj, layer->context[1], kv_dim(l));
        cuda_train_heads(&l->launch, layer->raw_k, w->k_norm, layer->context[0], rows, l->c.kv_heads, l->c.head_dim,
                         l->c.rms_eps, turn_of(l, true));
    }
}

static drafter_trainer_mask mask_of(const backend_drafter_trainer *l, int layer) {
    return (drafter_trainer_mask){.position = l->device.position,
                                  .first = l->device.first,
                                  .sequences = l->sequences,
                                  .rows = l->rows,
                                  .context = l->context,
                                  .block = l->c.block_size,
                                  .sliding = l->c.sliding_window[layer],
                                  .bidirectional = l->o.block_bidirectional};
}

static float scale_of(const backend_drafter_trainer *l) { return 1.0f / sqrtf((float)l->c.head_dim); }

static void attend(backend_drafter_trainer *l, int index) {
    drafter_trainer_layer *layer = &l->layer[index];
    drafter_trainer_mask mask = mask_of(l, index);
    size_t columns = (size_t)(l->context + l->rows), n = (size_t)l->rows, d = (size_t)l->c.head_dim,
           heads = (size_t)l->c.heads;
    const float *const context[2] = {layer->context[0], layer->context[1]}, *const own[2] = {layer->own[0],
                                                                                             layer->own[1]};
    cuda_drafter_trainer_columns(&l->launch, &mask, (int)kv_dim(l), context, own, l->keys, l->values);
    train_product p = of_heads(l);
    p.group = l->c.heads / l->c.kv_heads;
    p.a = layer->q, p.lda = q_dim(l), p.a_item = n * q_dim(l), p.a_head = d;
    p.b = l->keys, p.ldb = kv_dim(l), p.b_item = columns * kv_dim(l), p.b_head = d;
    p.c = layer->shares, p.ldc = columns, p.c_item = heads * n * columns, p.c_head = n * columns;
    p.m = l->rows, p.n = (int)columns, p.k = l->c.head_dim;
    cuda_train_product(&l->launch, TRAIN_NT, &p);
    cuda_drafter_trainer_softmax(&l->launch, &mask, l->c.heads, layer->shares);
    p.a = layer->shares, p.lda = columns, p.a_item = heads * n * columns, p.a_head = n * columns;
    p.b = l->values;
    p.c = layer->o, p.ldc = q_dim(l), p.c_item = n * q_dim(l), p.c_head = d;
    p.n = l->c.head_dim, p.k = (int)columns;
    cuda_train_product(&l->launch, TRAIN_NN, &p);
}

static void add_branch(backend_drafter_trainer *l, const float *x, float *out) {
    size_t n = (size_t)all_rows(l) * (size_t)l->c.hidden;
    (void)cudaMemcpyAsync(out, x, n * sizeof *out, cudaMemcpyDeviceToDevice, l->launch.stream);
    cuda_train_add(&l->launch, l->branch, out, n);
}

static void layer_forward(backend_drafter_trainer *l, int index, float *out) {
    const block_drafter_layer_weights *w = &l->w.layer[index];
    drafter_trainer_layer *layer = &l->layer[index];
    int rows = all_rows(l), d = l->c.head_dim;
    size_t hidden = (size_t)l->c.hidden, width = (size_t)l->c.intermediate;
    norm(l, layer->input, w->input_norm, rows, layer->x);
    forward(l, layer->x, rows, &w->q_proj, layer->q_raw, q_dim(l));
    forward(l, layer->x, rows, &w->k_proj, layer->own_raw_k, kv_dim(l));
    forward(l, layer->x, rows, &w->v_proj, layer->own[1], kv_dim(l));
    cuda_train_heads(&l->launch, layer->q_raw, w->q_norm, layer->q, rows, l->c.heads, d, l->c.rms_eps,
                     turn_of(l, false));
    cuda_train_scale(&l->launch, layer->q, scale_of(l), (size_t)rows * q_dim(l));
    cuda_train_heads(&l->launch, layer->own_raw_k, w->k_norm, layer->own[0], rows, l->c.kv_heads, d, l->c.rms_eps,
                     turn_of(l, false));
    attend(l, index);
    forward(l, layer->o, rows, &w->o_proj, l->branch, hidden);
    add_branch(l, layer->input, layer->middle);
    norm(l, layer->middle, w->post_attention_norm, rows, layer->x2);
    forward(l, layer->x2, rows, &w->gate_proj, layer->gate_up, 2 * width);
    forward(l, layer->x2, rows, &w->up_proj, layer->gate_up + width, 2 * width);
    cuda_drafter_trainer_gated(&l->launch, layer->gate_up, layer->act, rows, l->c.intermediate);
    forward(l, layer->act, rows, &w->down_proj, l->branch, hidden);
    add_branch(l, layer->middle, out);
}

/* With `backward`, d_h of the last layer's output. */
static void score(backend_drafter_trainer *l) {
    size_t hidden = (size_t)l->c.hidden;
    weight head = weight_matrix(WEIGHT_F32, l->head, l->c.vocab, l->c.hidden);
    int all = all_rows(l);
    norm(l, l->last, l->w.norm, all, l->final_x);
    for (int from = 0, n; from < all; from += n) {
        n = all - from < l->head_rows ? all - from : l->head_rows;
        forward(l, l->final_x + (size_t)from * hidden, n, &head, l->logits, (size_t)l->c.vocab);
        cuda_drafter_trainer_cross_entropy(&l->launch, l->logits, l->device.target + from, l->device.weigh + from, n,
                                           l->c.vocab, l->c.logit_softcap, l->c.mask_token, l->scale, l->loss + from,
                                           l->right + from);
        if (l->backward) back(l, l->logits, (size_t)l->c.vocab, n, &head, l->d_x + (size_t)from * hidden, false);
    }
    if (l->backward) norm_back(l, l->last, l->w.norm, l->d_x, all, l->d_h, true, l->g.norm);
}

/* ---------------------------------------------------------------------------------------------------------- back */

/* From d_o to d_q, and to gradients of own and context K and V. */
static void attend_back(backend_drafter_trainer *l, int index) {
    drafter_trainer_layer *layer = &l->layer[index];
    drafter_trainer_mask mask = mask_of(l, index);
    size_t columns = (size_t)(l->context + l->rows), n = (size_t)l->rows, d = (size_t)l->c.head_dim,
           heads = (size_t)l->c.heads;
    const float *const context[2] = {layer->context[0], layer->context[1]}, *const own[2] = {layer->own[0],
                                                                                             layer->own[1]};
    cuda_drafter_trainer_columns(&l->launch, &mask, (int)kv_dim(l), context, own, l->keys, l->values);
    train_product p = of_heads(l);
    p.group = l->c.heads / l->c.kv_heads;
    p.a = l->d_o, p.lda = q_dim(l), p.a_item = n * q_dim(l), p.a_head = d;
    p.b = l->values, p.ldb = kv_dim(l), p.b_item = columns * kv_dim(l), p.b_head = d;
    p.c = l->d_shares, p.ldc = columns, p.c_item = heads * n * columns, p.c_head = n * columns;
    p.m = l->rows, p.n = (int)columns, p.k = l->c.head_dim;
    cuda_train_product(&l->launch, TRAIN_NT, &p);
    cuda_train_softmax_back(&l->launch, layer->shares, l->d_shares, l->sequences * l->c.heads * l->rows, (int)columns);
    p.a = l->d_shares, p.lda = columns, p.a_item = heads * n * columns, p.a_head = n * columns;
    p.b = l->keys;
    p.c = l->d_q, p.ldc = q_dim(l), p.c_item = n * q_dim(l), p.c_head = d;
    p.n = l->c.head_dim, p.k = (int)columns;
    cuda_train_product(&l->launch, TRAIN_NN, &p);
    p.group = 1; /* a head's own gradient of keys and values */
    p.b = layer->q, p.ldb = q_dim(l), p.b_item = n * q_dim(l), p.b_head = d;
    p.c = l->d_key, p.ldc = d, p.c_item = heads * columns * d, p.c_head = columns * d;
    p.m = (int)columns, p.n = l->c.head_dim, p.k = l->rows;
    cuda_train_product(&l->launch, TRAIN_TN, &p);
    p.a = layer->shares;
    p.b = l->d_o;
    p.c = l->d_value;
    cuda_train_product(&l->launch, TRAIN_TN, &p);
    cuda_drafter_trainer_columns_back(&l->launch, &mask, (int)kv_dim(l), l->c.heads, l->c.head_dim, l->d_key,
                                      l->d_value, l->d_context, l->d_own);
}

static void feed_forward_back(backend_drafter_trainer *l, int index) {
    const block_drafter_layer_weights *w = &l->w.layer[index], *g = &l->g.layer[index];
    drafter_trainer_layer *layer = &l->layer[index];
    int rows = all_rows(l);
    size_t hidden = (size_t)l->c.hidden, width = (size_t)l->c.intermediate;
    back(l, l->d_h, hidden, rows, &w->down_proj, l->d_act, false);
    cuda_drafter_trainer_gated_back(&l->launch, layer->gate_up, l->d_act, l->d_gate_up, rows, l->c.intermediate);
    back(l, l->d_gate_up, 2 * width, rows, &w->gate_proj, l->d_x, false);
    back(l, l->d_gate_up + width, 2 * width, rows, &w->up_proj, l->d_x, true);
    if (l->o.inside_layers) {
        outer(l, l->d_h, hidden, layer->act, rows, &g->down_proj);
        outer(l, l->d_gate_up, 2 * width, layer->x2, rows, &g->gate_proj);
        outer(l, l->d_gate_up + width, 2 * width, layer->x2, rows, &g->up_proj);
    }
    norm_back(l, layer->middle, w->post_attention_norm, l->d_x, rows, l->d_h, false,
              l->o.inside_layers ? g->post_attention_norm : NULL);
}

/* A projection of the layer's input: its part of d_x, and its own gradient. */
static void project_back(backend_drafter_trainer *l, const float *d, const weight *w, const weight *g, const float *x,
                         int rows, float *d_x, bool add) {
    back(l, d, (size_t)w->out, rows, w, d_x, add);
    if (l->o.inside_layers) outer(l, d, (size_t)w->out, x, rows, g);
}

static void layer_back(backend_drafter_trainer *l, int index) {
    const block_drafter_layer_weights *w = &l->w.layer[index], *g = &l->g.layer[index];
    drafter_trainer_layer *layer = &l->layer[index];
    int rows = all_rows(l), all = all_context(l);
    size_t hidden = (size_t)l->c.hidden;
    bool inside = l->o.inside_layers;
    feed_forward_back(l, index);
    back(l, l->d_h, hidden, rows, &w->o_proj, l->d_o, false);
    if (inside) outer(l, l->d_h, hidden, layer->o, rows, &g->o_proj);
    attend_back(l, index);
    heads_back(l, layer->q_raw, w->q_norm, l->d_q, scale_of(l), false, rows, l->c.heads, inside ? g->q_norm : NULL);
    project_back(l, l->d_raw, &w->q_proj, &g->q_proj, layer->x, rows, l->d_x, false);
    heads_back(l, layer->own_raw_k, w->k_norm, l->d_own[0], 1, false, rows, l->c.kv_heads, inside ? g->k_norm : NULL);
    project_back(l, l->d_raw, &w->k_proj, &g->k_proj, layer->x, rows, l->d_x, true);
    project_back(l, l->d_own[1], &w->v_proj, &g->v_proj, layer->x, rows, l->d_x, true);
    norm_back(l, layer->input, w->input_norm, l->d_x, rows, l->d_h, false, inside ? g->input_norm : NULL);
    heads_back(l, layer->raw_k, w->k_norm, l->d_context[0], 1, true, all, l->c.kv_heads, inside ? g->k_norm : NULL);
    project_back(l, l->d_raw, &w->k_proj, &g->k_proj, l->hidden, all, l->d_hidden, true);
    project_back(l, l->d_context[1], &w->v_proj, &g->v_proj, l->hidden, all, l->d_hidden, true);
}

static void context_back(backend_drafter_trainer *l) {
    norm_back(l, l->fused, l->w.hidden_norm, l->d_hidden, all_context(l), l->d_fused, true, l->g.hidden_norm);
    outer(l, l->d_fused, (size_t)l->c.hidden, l->aux, all_context(l), &l->g.fc);
}

/* ----------------------------------------------------------------------------------------------------- sequences */

static void lay_rows(backend_drafter_trainer *l, const drafter_trainer_sequence *sequences, int n) {
    const drafter_trainer_tables *t = &l->host;
    int block = l->c.block_size;
    for (int i = 0; i < all_rows(l); i++) {
        int s = i / l->rows, row = i % l->rows, place = row % block;
        const drafter_trainer_sequence *q = &sequences[s < n ? s : 0];
        bool there = s < n && row / block < q->blocks;
        int first = there ? q->first[row / block] : 0, position = first + place;
        t->position[i] = position;
        t->first[i] = there ? first : -1;
        t->token[i] = there && !place ? q->tokens[first] : l->c.mask_token;
        t->target[i] = there && place && position < q->n ? q->tokens[position] : -1;
        t->weigh[i] = l->o.decay > 0 ? (float)exp(-(place - 1) / l->o.decay) : 1;
    }
    for (int i = 0; i < all_context(l); i++) t->context_position[i] = i % l->context;
}

static kakeya_status send(backend_drafter_trainer *l, const drafter_trainer_sequence *sequences, int n,
                          kakeya_error *error) {
    size_t width = (size_t)l->w.fc.in, context = (size_t)l->context * width;
    cudaStream_t stream = l->launch.stream;
    lay_rows(l, sequences, n);
    cudaError_t status = cudaMemcpyAsync(l->device_tables, l->tables, l->tables_bytes, cudaMemcpyHostToDevice, stream);
    if (!status) status = cudaMemsetAsync(l->aux, 0, (size_t)l->sequences * context * sizeof *l->aux, stream);
    for (int i = 0; i < n && !status; i++)
        status = cudaMemcpyAsync(l->aux + (size_t)i * context, sequences[i].aux,
                                 (size_t)sequences[i].n * width * sizeof *l->aux, cudaMemcpyHostToDevice, stream);
    return cuda_check(status, "copying sequences to learn from", error);
}

/* As the CPU's trainer adds up. */
static void tell(const backend_drafter_trainer *l, const double *loss, const int *right,
                 const drafter_trainer_sequence *s) {
    drafter_trainer_result *r = s->result;
    int block = l->c.block_size;
    *r = (drafter_trainer_result){0};
    for (int b = 0; b < s->blocks; b++) {
        int held = 0;
        bool holds = true;
        for (int place = 1; place < block && s->first[b] + place < s->n; place++) {
            int row = b * block + place;
            r->loss += loss[row];
            r->counted += l->o.decay > 0 ? exp(-(place - 1) / l->o.decay) : 1;
            r->drafts[place - 1]++;
            r->right[place - 1] += right[row];
            holds &= right[row] != 0;
            held += holds;
        }
        if (s->first[b] + block > s->n) continue;
        r->blocks++;
        r->held += held;
    }
}

static kakeya_status learn_some(backend_drafter_trainer *l, const drafter_trainer_sequence *sequences, int n,
                                kakeya_error *error) {
    size_t rows = (size_t)all_rows(l), hidden = (size_t)l->c.hidden;
    double *loss = malloc(rows * sizeof *loss);
    int *right = malloc(rows * sizeof *right);
    kakeya_status status = loss && right ? send(l, sequences, n, error)
                                         : error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for training");
    if (!status) {
        context_forward(l);
        cuda_train_gather(&l->launch, l->embed, hidden, l->device.token, l->o.scaled_embedding ? l->m->embed_scale : 1,
                          l->layer[0].input, hidden, (int)rows, l->c.hidden);
        for (int i = 0; i < l->c.layers; i++)
            layer_forward(l, i, i + 1 < l->c.layers ? l->layer[i + 1].input : l->last);
        score(l);
    }
    if (!status && l->backward) {
        (void)cudaMemsetAsync(l->d_hidden, 0, (size_t)all_context(l) * hidden * sizeof(float), l->launch.stream);
        for (int i = l->c.layers - 1; i >= 0; i--) layer_back(l, i);
        context_back(l);
    }
    if (!status)
        status =
            cuda_check(cudaMemcpyAsync(loss, l->loss, rows * sizeof *loss, cudaMemcpyDeviceToHost, l->launch.stream),
                       "reading the loss", error);
    if (!status)
        status =
            cuda_check(cudaMemcpyAsync(right, l->right, rows * sizeof *right, cudaMemcpyDeviceToHost, l->launch.stream),
                       "reading the loss", error);
    if (!status) status = cuda_finish(&l->m->device, "a step of a drafter's training", error);
    for (int i = 0; i < n && !status; i++)
        tell(l, loss + (size_t)i * (size_t)l->rows, right + (size_t)i * (size_t)l->rows, &sequences[i]);
    free(loss);
    free(right);
    return status;
}

kakeya_status cuda_drafter_trainer_learn(backend_drafter_trainer *l, const drafter_trainer_sequence *sequences, int n,
                                         float scale, float *gradient, kakeya_error *error) {
    size_t bytes = l->n * sizeof(float);
    l->scale = scale;
    l->backward = gradient != NULL;
    kakeya_status status = cuda_device_use(&l->m->device, error);
    if (!status)
        status = cuda_check(cudaMemcpyAsync(l->weights, l->given, bytes, cudaMemcpyHostToDevice, l->launch.stream),
                            "copying a drafter's weights", error);
    (void)cudaMemsetAsync(l->sum, 0, bytes, l->launch.stream);
    for (int done = 0, some; done < n && !status; done += some) {
        some = n - done < l->sequences ? n - done : l->sequences;
        status = learn_some(l, sequences + done, some, error);
    }
    if (status || !gradient) return status;
    float *sum = malloc(bytes);
    if (!sum) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for training");
    status = cuda_check(cudaMemcpyAsync(sum, l->sum, bytes, cudaMemcpyDeviceToHost, l->launch.stream),
                        "reading the gradient", error);
    if (!status) status = cuda_finish(&l->m->device, "reading the gradient", error);
    for (size_t i = 0; i < l->n && !status; i++) gradient[i] += sum[i];
    free(sum);
    return status;
}
