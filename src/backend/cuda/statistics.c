#include "backend/cuda/statistics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/devices.h"
#include "backend/cuda/forward.h"
#include "backend/cuda/prompt_gemm.h"
#include "backend/weight_values.h"

enum { OUTER = 4096 /* values of y whose products with x are made together */, PARTIAL_FLOATS = 1 << 21 };

static size_t kv_dim(const backend_statistics *s, int layer) {
    const layer_config *l = &s->m->config->layer[layer];
    return (size_t)(l->kv_heads * l->head_dim);
}

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

/* fc's products are as exact as float32. */
static void lay_out_context(backend_statistics *s, arena *a) {
    size_t n = (size_t)s->o.inputs, width = (size_t)s->m->weights.fc.in;
    s->aux = take(a, s->chunk * width);
    s->drafted = take(a, s->chunk * n);
    s->split = (split_room){.terms = SPLIT_MOST_TERMS, .parts = SPLIT_PARTS};
    s->split.a_values = s->chunk * SPLIT_MOST_TERMS * (size_t)s->m->weights.fc.ld;
    s->split.c_values = s->chunk * SPLIT_MOST_TERMS * n;
    s->split.a = take_bytes(a, s->split.a_values * sizeof *s->split.a);
    s->split.c = take(a, s->split.c_values);
}

static size_t lay_out(backend_statistics *s, char *base) {
    const model_config *c = s->m->config;
    arena a = {.base = base};
    size_t sequence = (size_t)s->o.sequence, heads = (size_t)c->heads, dim = 0, seen = s->chunk * (size_t)s->o.offsets;
    s->sums = take_bytes(&a, s->o.n * sizeof *s->sums);
    for (int i = 0; i < c->layers; i++) {
        size_t d = (size_t)c->layer[i].head_dim;
        if (d > dim) dim = d;
        s->gram[i] = take(&a, heads * d * d);
        if (c->layer[i].kv_source != i) continue;
        s->keys[i] = take(&a, sequence * kv_dim(s, i));
        s->values[i] = take(&a, sequence * kv_dim(s, i));
    }
    for (int type = 0; type < 2; type++) {
        size_t turns = sequence * (size_t)c->rope[type].rotated_pairs;
        s->cosine[type] = take(&a, turns);
        s->sine[type] = take(&a, turns);
    }
    s->positions = take_bytes(&a, sequence * sizeof *s->positions);
    s->x = take_bytes(&a, (size_t)s->o.inputs * s->ld * sizeof *s->x);
    s->y = take_bytes(&a, (size_t)s->o.targets * s->ld * sizeof *s->y);
    s->rms = take(&a, heads * s->ld);
    s->ones = take(&a, s->ld);
    s->outer = take(&a, (size_t)OUTER * (size_t)s->o.inputs);
    s->q = take(&a, s->chunk * heads * dim);
    s->o_heads = take(&a, s->chunk * heads * dim);
    s->scores = take(&a, heads * s->chunk * sequence);
    s->weight = take(&a, heads * seen);
    s->square = take(&a, s->chunk);
    s->u = take(&a, seen * dim);
    s->gu = take(&a, seen * dim);
    s->product = take(&a, dim * dim);
    s->partial_floats = PARTIAL_FLOATS;
    s->partial = take(&a, s->partial_floats);
    s->row_sum = take_bytes(&a, s->chunk * sizeof *s->row_sum);
    if (s->o.context) lay_out_context(s, &a);
    return a.bytes;
}

static kakeya_status give(backend_statistics *s, void *to, const void *from, size_t bytes, kakeya_error *error) {
    static const char what[] = "copying sums of training";
    kakeya_status status =
        cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, s->launch.stream), what, error);
    return status ? status : cuda_finish(&s->m->device, what, error);
}

static kakeya_status give_ones(backend_statistics *s, kakeya_error *error) {
    float *ones = malloc(s->ld * sizeof *ones);
    if (!ones) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for training");
    for (size_t i = 0; i < s->ld; i++) ones[i] = 1;
    kakeya_status status = give(s, s->ones, ones, s->ld * sizeof *ones, error);
    free(ones);
    return status;
}

/* RoPE's tables, positions and the layers' G. */
static kakeya_status fill(backend_statistics *s, kakeya_error *error) {
    const model_config *c = s->m->config;
    size_t sequence = (size_t)s->o.sequence, pairs = 1;
    for (int type = 0; type < 2; type++) {
        if ((size_t)c->rope[type].rotated_pairs > pairs) pairs = (size_t)c->rope[type].rotated_pairs;
    }
    float *table = malloc(2 * sequence * pairs * sizeof *table);
    int *positions = malloc(sequence * sizeof *positions);
    kakeya_status status = KAKEYA_OK;
    if (!table || !positions) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for training");
    for (size_t i = 0; i < sequence && !status; i++) positions[i] = (int)i;
    if (!status) status = give_ones(s, error);
    if (!status) status = give(s, s->positions, positions, sequence * sizeof *positions, error);
    for (int i = 0; i < c->layers && !status; i++) {
        size_t d = (size_t)c->layer[i].head_dim;
        const rope_config *rope = &c->rope[c->layer[i].type];
        size_t n = (size_t)rope->rotated_pairs, all = sequence * n;
        status = give(s, s->gram[i], s->o.gram[i], (size_t)c->heads * d * d * sizeof(float), error);
        /* inverse frequency j = theta^(-2j / head_dim) / factor, as cpu/rope.c has it */
        for (size_t k = 0; k < all && !status; k++) {
            float angle = (float)(k / n) * (1.0f / powf(rope->theta, (float)(2 * (k % n)) / (float)d) / rope->factor);
            table[k] = cosf(angle);
            table[all + k] = sinf(angle);
        }
        if (!status && all) status = give(s, s->cosine[c->layer[i].type], table, all * sizeof *table, error);
        if (!status && all) status = give(s, s->sine[c->layer[i].type], table + all, all * sizeof *table, error);
    }
    free(table);
    free(positions);
    return status;
}

kakeya_status cuda_statistics_create(backend_model *m, const statistics_options *options, backend_statistics **out,
                                     kakeya_error *error) {
    *out = NULL;
    if (m->tp_group)
        return error_set(error, KAKEYA_UNSUPPORTED,
                         "training uses a single device: name only one with "
                         "--devices");
    if (options->context && options->inputs % 8)
        return error_set(error, KAKEYA_UNSUPPORTED, "the drafter's hidden size %d: the closed form needs --backend cpu",
                         options->inputs);
    if (m->config->hidden % 8)
        return error_set(error, KAKEYA_UNSUPPORTED,
                         "hidden size %d: the closed form needs --backend "
                         "cpu",
                         m->config->hidden);
    for (int i = 0; i < m->config->layers; i++) {
        if (!weight_present(&m->options.verifier->weights.layer[i].o_proj) &&
            m->weights.layer[i].o.form != CUDA_FORM_BF16)
            return error_set(error, KAKEYA_UNSUPPORTED,
                             "the closed form needs synthetic weights in bf16: omit the quantisation");
    }
    backend_statistics *s = calloc(1, sizeof *s);
    if (!s) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for training");
    s->m = m;
    s->o = *options;
    memcpy(s->tap, options->tap, (size_t)options->taps * sizeof *s->tap);
    memcpy(s->target, options->target, (size_t)m->config->layers * sizeof *s->target);
    s->o.tap = s->tap;
    s->o.target = s->target;
    s->launch = m->launch;
    s->launch.programmatic = 0;
    s->chunk = (size_t)(m->max_rows < options->sequence ? m->max_rows : options->sequence);
    s->ld = (size_t)cuda_padded((int)s->chunk);
    kakeya_status status = cuda_device_use(&m->device, error);
    if (!status)
        status = cuda_buffer_create(&s->memory, &m->device, m->account, MEM_WORKSPACE, lay_out(s, NULL),
                                    "the sums of training", error);
    if (!status) {
        lay_out(s, s->memory.data);
        status = fill(s, error);
    }
    if (status) {
        cuda_statistics_destroy(s);
        return status;
    }
    *out = s;
    return KAKEYA_OK;
}

void cuda_statistics_destroy(backend_statistics *s) {
    if (!s) return;
    if (s->memory.data) (void)cuda_device_use(&s->m->device, NULL);
    cuda_buffer_destroy(&s->solving);
    cuda_buffer_destroy(&s->memory);
    free(s);
}

kakeya_status cuda_statistics_read(backend_statistics *s, size_t first, size_t n, double *out, kakeya_error *error) {
    static const char what[] = "reading sums of training";
    kakeya_status status = cuda_device_use(&s->m->device, error);
    if (!status)
        status =
            cuda_check(cudaMemcpyAsync(out, s->sums + first, n * sizeof *out, cudaMemcpyDeviceToHost, s->launch.stream),
                       what, error);
    return status ? status : cuda_finish(&s->m->device, what, error);
}

kakeya_status cuda_statistics_write(backend_statistics *s, size_t first, size_t n, const double *from,
                                    kakeya_error *error) {
    kakeya_status status = cuda_device_use(&s->m->device, error);
    return status ? status : give(s, s->sums + first, from, n * sizeof *from, error);
}

void cuda_statistics_weight_row(const backend_model *m, const weight *w, int row, float *out) {
    if (w->stream[0]) {
        weight_values(w, row, 0, w->in, out);
        return;
    }
    memset(out, 0, (size_t)w->in * sizeof *out);
    for (int i = 0; i < m->config->layers; i++) {
        const cuda_matrix *o = &m->weights.layer[i].o;
        if (w != &m->options.verifier->weights.layer[i].o_proj || o->form != CUDA_FORM_BF16) continue;
        cuda_bf16 *bits = (cuda_bf16 *)(void *)out + w->in; /* the row's second half; widened from its beginning */
        if (cudaMemcpyAsync(bits, o->data + (size_t)row * (size_t)o->ld, (size_t)w->in * sizeof *bits,
                            cudaMemcpyDeviceToHost, m->launch.stream) ||
            cudaStreamSynchronize(m->launch.stream))
            return;
        for (int k = 0; k < w->in; k++) {
            uint32_t wide = (uint32_t)bits[k] << 16;
            memcpy(&out[k], &wide, sizeof wide);
        }
    }
}

/* ---------------------------------------------------------------------------------------------------- a forward */

void cuda_statistics_begin(backend_statistics *s, int position, int rows, bool metric) {
    s->position = position;
    s->rows = rows;
    s->metric = metric;
}

/* Rows of `columns` values, groups of them divided by their rms, into rows of turned values. */
static void turn(backend_statistics *s, const float *from, int columns, int group, cuda_bf16 *to) {
    cuda_statistics_rms(&s->launch, from, (size_t)columns, s->rows, columns / group, group, s->m->config->rms_eps,
                        s->rms, s->ld);
    cuda_statistics_turn(&s->launch, from, (size_t)columns, s->rows, cuda_padded(s->rows), columns, group, s->rms,
                         s->ld, to, s->ld);
}

/* Rows as they are, into rows of turned values. */
static void turn_raw(backend_statistics *s, const float *from, int columns, cuda_bf16 *to) {
    cuda_statistics_turn(&s->launch, from, (size_t)columns, s->rows, cuda_padded(s->rows), columns, columns, s->ones,
                         s->ld, to, s->ld);
}

/* A layer's raw vectors into y, each divided by its rms, and the sums of that. */
static void take_normed(backend_statistics *s, int layer, const float *raw, size_t first) {
    const layer_config *l = &s->m->config->layer[layer];
    turn(s, raw, (int)kv_dim(s, layer), l->head_dim, s->y + first * s->ld);
    cuda_statistics_sizes(&s->launch, s->rms, s->ld, l->kv_heads, s->rows, false, s->sums + s->o.size + first,
                          (size_t)l->head_dim);
}

/* The same of vectors that pass no norm: what they are divided by is 1, and their mean squares are summed. */
static void take_raw(backend_statistics *s, int layer, const float *raw, size_t first) {
    const layer_config *l = &s->m->config->layer[layer];
    size_t d = (size_t)l->head_dim;
    double *size = s->sums + s->o.size + first;
    turn_raw(s, raw, (int)kv_dim(s, layer), s->y + first * s->ld);
    cuda_statistics_sizes(&s->launch, s->ones, 0, l->kv_heads, s->rows, false, size, d);
    if (d == 1) return;
    cuda_statistics_rms(&s->launch, raw, kv_dim(s, layer), s->rows, l->kv_heads, l->head_dim, 0, s->rms, s->ld);
    cuda_statistics_sizes(&s->launch, s->rms, s->ld, l->kv_heads, s->rows, true, size + 1, d);
}

/* K and V of rows as attention sees them, behind those of the positions before. */
static void keep_seen(backend_statistics *s, int layer, const float *raw_k, const float *raw_v) {
    const model_config *c = s->m->config;
    const layer_config *l = &c->layer[layer];
    size_t kv = kv_dim(s, layer), at = (size_t)s->position * kv;
    float *keys = s->keys[layer] + at, *values = s->values[layer] + at;
    train_turn still = {.half = l->head_dim / 2}, turned = {.cosine = s->cosine[l->type],
                                                            .sine = s->sine[l->type],
                                                            .position = s->positions + s->position,
                                                            .half = l->head_dim / 2,
                                                            .pairs = c->rope[l->type].rotated_pairs};
    cuda_train_heads(&s->launch, raw_k, s->m->weights.layer[layer].k_norm, keys, s->rows, l->kv_heads, l->head_dim,
                     c->rms_eps, turned);
    if (c->raw_values)
        (void)cudaMemcpyAsync(values, raw_v, (size_t)s->rows * kv * sizeof *values, cudaMemcpyDeviceToDevice,
                              s->launch.stream);
    else
        cuda_train_heads(&s->launch, raw_v, NULL, values, s->rows, l->kv_heads, l->head_dim, c->rms_eps, still);
}

void cuda_statistics_kv(backend_statistics *s, int layer, const float *raw_k, const float *raw_v) {
    size_t first = (size_t)s->target[layer];
    take_normed(s, layer, raw_k, first);
    (s->m->config->raw_values ? take_raw : take_normed)(s, layer, raw_v, first + (size_t)s->o.keys);
    if (s->metric) keep_seen(s, layer, raw_k, raw_v);
}

void cuda_statistics_output(backend_statistics *s, int layer, const float *h) {
    int hidden = s->m->config->hidden;
    size_t width = (size_t)(s->o.taps * hidden);
    for (int tap = 0; tap < s->o.taps; tap++) {
        if (s->tap[tap] != layer) continue;
        if (s->o.context)
            cuda_train_gather(&s->launch, h, (size_t)hidden, NULL, 1, s->aux + (size_t)(tap * hidden), width, s->rows,
                              hidden);
        else
            turn(s, h, hidden, hidden, s->x + (size_t)tap * (size_t)hidden * s->ld);
    }
}

/* What one query head has seen, into the sums of its K/V head. */
static void take_head(backend_statistics *s, const statistics_metric *metric, int layer, int head) {
    const model_config *c = s->m->config;
    const layer_config *l = &c->layer[layer];
    int source = l->kv_source, d = l->head_dim, seen = s->rows * s->o.offsets,
        kv_head = head / (c->heads / l->kv_heads);
    size_t dims = (size_t)(d * d);
    const statistics_head h = {.weight = s->weight + (size_t)head * (size_t)seen,
                               .q = s->q + (size_t)(head * d),
                               .o = s->o_heads + (size_t)(head * d),
                               .v = s->values[source] + (size_t)(kv_head * d),
                               .k_norm = s->m->weights.layer[source].k_norm,
                               .cosine = s->cosine[l->type],
                               .sine = s->sine[l->type],
                               .ldq = (size_t)(c->heads * d),
                               .ldv = kv_dim(s, source),
                               .dim = d,
                               .pairs = c->rope[l->type].rotated_pairs};
    cuda_statistics_errors(&s->launch, metric, &h, s->u);
    train_product p = {.a = s->u, .lda = (size_t)d, .b = s->gram[layer] + (size_t)head * dims, .ldb = (size_t)d};
    p.c = s->gu, p.ldc = (size_t)d, p.m = seen, p.n = d, p.k = d;
    cuda_train_product(&s->launch, TRAIN_NN, &p);
    cuda_statistics_directions(&s->launch, metric, &h, s->u, s->gu, s->gu);
    train_product sum = {.a = s->gu, .lda = (size_t)d, .b = s->gu, .ldb = (size_t)d, .c = s->product};
    sum.ldc = (size_t)d, sum.m = d, sum.n = d, sum.k = seen;
    sum.partial = s->partial, sum.partial_floats = s->partial_floats;
    cuda_train_product(&s->launch, TRAIN_TN, &sum);
    cuda_statistics_add(&s->launch, s->product, s->sums + s->o.metric_k[layer] + (size_t)kv_head * dims, dims);
}

void cuda_statistics_attended(backend_statistics *s, int layer, const cuda_bf16 *q, const cuda_bf16 *o, size_t ldo,
                              const float *out) {
    const model_config *c = s->m->config;
    const layer_config *l = &c->layer[layer];
    int width = c->heads * l->head_dim, columns = s->position + s->rows;
    size_t d = (size_t)l->head_dim, kv = kv_dim(s, l->kv_source);
    cuda_statistics_squares(&s->launch, out, s->m->weights.layer[layer].post_attention_norm, s->rows, c->hidden,
                            c->rms_eps, s->square, s->row_sum, s->sums + s->o.added[layer]);
    cuda_statistics_widen(&s->launch, q, (size_t)width, s->q, s->rows, width);
    cuda_statistics_widen(&s->launch, o, ldo, s->o_heads, s->rows, width);
    train_product p = {.a = s->q, .lda = (size_t)width, .b = s->keys[l->kv_source], .ldb = kv, .c = s->scores};
    p.ldc = (size_t)columns, p.m = s->rows, p.n = columns, p.k = l->head_dim;
    p.items = 1, p.heads = c->heads, p.group = c->heads / l->kv_heads;
    p.a_head = d, p.b_head = d, p.c_head = (size_t)s->rows * (size_t)columns;
    cuda_train_product(&s->launch, TRAIN_NT, &p);
    statistics_metric metric = {.scores = s->scores,
                                .square = s->square,
                                .weight = s->weight,
                                .offsets = s->o.offsets,
                                .rows = s->rows,
                                .position = s->position,
                                .columns = columns,
                                .heads = c->heads,
                                .sliding = l->type == LAYER_SLIDING ? c->sliding_window : 0,
                                .sink = s->o.sink,
                                .negligible = s->o.negligible};
    memcpy(metric.offset, s->o.offset, (size_t)s->o.offsets * sizeof *metric.offset);
    cuda_statistics_weigh(&s->launch, &metric);
    cuda_statistics_sum_weights(&s->launch, &metric, s->sums + s->o.metric_v[layer]);
    for (int a = 0; a < c->heads; a++) take_head(s, &metric, layer, a);
}

/* to [nb][inputs] += products of turned rows. */
static cudaError_t add_outer(backend_statistics *s, const cuda_bf16 *b, int nb, double *to) {
    size_t n = (size_t)s->o.inputs;
    cudaError_t status = cudaSuccess;
    for (int first = 0, some; first < nb && !status; first += some) {
        some = nb - first < OUTER ? nb - first : OUTER;
        const prompt_gemm_args args = {.a = b + (size_t)first * s->ld,
                                       .lda = s->ld,
                                       .w = s->x,
                                       .ldw = s->ld,
                                       .out = s->outer,
                                       .ldo = n,
                                       .m = some,
                                       .n = s->o.inputs,
                                       .k = cuda_padded(s->rows),
                                       .output = PROMPT_GEMM_F32};
        status = prompt_gemm(&args, s->launch.stream);
        if (!status) cuda_statistics_add(&s->launch, s->outer, to + (size_t)first * n, (size_t)some * n);
    }
    return status;
}

/* x = hidden_norm(fc(aux)), turned. */
static void make_context(backend_statistics *s) {
    const cuda_weights *w = &s->m->weights;
    const split_matrix fc = {.data = w->fc.data, .out = w->fc.out, .in = w->fc.in, .ld = (size_t)w->fc.ld};
    size_t n = (size_t)s->o.inputs;
    split_forward(&s->launch, &s->split, s->aux, (size_t)w->fc.in, s->rows, fc, s->drafted, n);
    cuda_train_norm(&s->launch, s->drafted, n, w->hidden_norm, NULL, s->drafted, n, s->rows, s->o.inputs,
                    s->m->options.drafter->config.rms_eps);
    turn_raw(s, s->drafted, s->o.inputs, s->x);
}

kakeya_status cuda_statistics_end(backend_statistics *s, kakeya_error *error) {
    static const char what[] = "summing what to train on";
    if (s->o.context) make_context(s);
    cudaError_t status = s->split.status;
    if (!status) status = add_outer(s, s->x, s->o.inputs, s->sums + s->o.xx);
    if (!status) status = add_outer(s, s->y, s->o.targets, s->sums + s->o.yx);
    kakeya_status checked = cuda_check(status, what, error);
    return checked ? checked : cuda_finish(&s->m->device, what, error);
}

/* What the operations of a prompt leave behind (backend_model.tap). */
static void tap(void *user, const cuda_pass *p, const step_op *op) {
    backend_statistics *s = user;
    const cuda_workspace *w = &s->m->space;
    const model_config *c = s->m->config;
    bool own = op->layer >= 0 && c->layer[op->layer].kv_source == op->layer;
    if (!p->prompt) return;
    if (op->kind == STEP_QKV && own) cuda_statistics_kv(s, op->layer, w->k, c->layer[op->layer].k_eq_v ? w->k : w->v);
    if (op->kind == STEP_OUT && s->metric)
        cuda_statistics_attended(s, op->layer, w->q_heads, w->attended, (size_t)s->m->weights.layer[op->layer].o.ld,
                                 w->branch);
    if (op->kind == (c->ple_width ? STEP_PLE_ADD : STEP_AFTER_FFN)) cuda_statistics_output(s, op->layer, w->h);
}

kakeya_status cuda_statistics_sum(backend_statistics *s, backend_cache *cache, const int32_t *tokens, int n,
                                  bool metric, kakeya_error *error) {
    backend_segment segment = {.cache = cache, .tokens = tokens, .n = n, .kind = SEGMENT_PROMPT, .first_logit_row = n};
    cuda_statistics_begin(s, cuda_cache_length(cache), n, metric);
    s->m->tap_user = s;
    s->m->tap = tap;
    kakeya_status status = cuda_devices_forward(s->m, &segment, 1, error);
    s->m->tap = NULL;
    if (!status) status = cuda_devices_commit(cache, n, error);
    return status ? status : cuda_statistics_end(s, error);
}
