#include "backend/cuda/weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/matrix.h"
#include "base/float16.h"

/* -------------------------------------------------------------------------------------------- list of weights */

typedef struct planned_tensor {
    const weight *matrix; /* or NULL: a vector */
    matrix_cut cut;
    cuda_matrix *placed;
    const float *vector;
    const float **placed_vector;
    size_t elements, offset, bytes;
} planned_tensor;

/* What the formats of a checkpoint become. */
typedef struct weight_loader {
    weight_format from;
    cuda_form to;
    bool rounds;                                              /* bits are lost on the way */
    void (*convert)(const void *source, size_t n, void *out); /* n weights of whole rows */
} weight_loader;

static void copy_bf16(const void *source, size_t n, void *out) { memcpy(out, source, n * sizeof(cuda_bf16)); }

static void round_f32(const void *source, size_t n, void *out) {
    for (size_t i = 0; i < n; i++) {
        float value;
        memcpy(&value, (const char *)source + sizeof value * i, sizeof value);
        ((cuda_bf16 *)out)[i] = f32_to_bf16(value);
    }
}

static void round_f16(const void *source, size_t n, void *out) {
    for (size_t i = 0; i < n; i++) {
        uint16_t half;
        memcpy(&half, (const char *)source + sizeof half * i, sizeof half);
        ((cuda_bf16 *)out)[i] = f32_to_bf16(f16_to_f32(half));
    }
}

static const weight_loader loaders[] = {
    {WEIGHT_BF16, CUDA_FORM_BF16, false, copy_bf16},
    {WEIGHT_F32, CUDA_FORM_BF16, true, round_f32},
    {WEIGHT_F16, CUDA_FORM_BF16, true, round_f16},
};
enum { LOADERS = sizeof loaders / sizeof loaders[0] };

static const weight_loader *loader_of(weight_format format) {
    for (int i = 0; i < LOADERS; i++) {
        if (loaders[i].from == format) return &loaders[i];
    }
    return NULL;
}

typedef struct weight_plan {
    planned_tensor *tensors;
    size_t n, capacity, bytes;
    model_part part;
    bool failed;
    bool apart;            /* experts whose gate and up are two matrices */
    const weight *rounded; /* a matrix that loses bits on the way, or NULL */
    const weight *refused; /* a matrix of a format that no loader takes, or NULL */
} weight_plan;

static planned_tensor *plan_add(weight_plan *plan, size_t bytes) {
    if (plan->n == plan->capacity) {
        size_t grown = plan->capacity ? 2 * plan->capacity : 256;
        planned_tensor *tensors = realloc(plan->tensors, grown * sizeof *tensors);
        if (!tensors) {
            plan->failed = true;
            return NULL;
        }
        plan->tensors = tensors;
        plan->capacity = grown;
    }
    planned_tensor *t = &plan->tensors[plan->n++];
    *t = (planned_tensor){.offset = plan->bytes, .bytes = bytes};
    plan->bytes += (bytes + 255) / 256 * 256;
    return t;
}

static void plan_cut(weight_plan *plan, const weight *w, matrix_cut cut, cuda_matrix *placed) {
    if (w->out == 0) return;
    const weight_loader *loader = loader_of(w->format);
    if (!loader) {
        plan->refused = w;
        return;
    }
    int out = model_cut_out(w, &cut);
    *placed = (cuda_matrix){.form = loader->to, .out = out, .in = cut.columns, .ld = cuda_padded(cut.columns)};
    planned_tensor *t = plan_add(plan, matrix_bytes(loader->to, out, cut.columns));
    if (!t) return;
    t->matrix = w;
    t->cut = cut;
    t->placed = placed;
    if (loader->rounds) plan->rounded = w;
}

static void plan_matrix(weight_plan *plan, const weight *w, cuda_matrix *placed) {
    plan_cut(plan, w, model_cut_nothing(w), placed);
}

static void plan_vector(weight_plan *plan, const float *vector, int n, const float **placed) {
    if (!vector) return;
    planned_tensor *t = plan_add(plan, (size_t)n * sizeof(float));
    if (!t) return;
    t->vector = vector;
    t->placed_vector = placed;
    t->elements = (size_t)n;
}

static void plan_layer(weight_plan *plan, const gemma4_config *c, int index, const gemma4_layer_weights *w,
                       cuda_layer *l) {
    int d = c->layer[index].head_dim, hidden = c->hidden, kv_heads = c->layer[index].kv_heads;
    model_part part = plan->part;
    plan_cut(plan, &w->q_proj, model_cut_rows(&w->q_proj, part, w->q_proj.out), &l->q);
    plan_cut(plan, &w->k_proj, model_cut_kv(&w->k_proj, part, kv_heads), &l->k);
    plan_cut(plan, &w->v_proj, model_cut_kv(&w->v_proj, part, kv_heads), &l->v);
    plan_cut(plan, &w->o_proj, model_cut_columns(&w->o_proj, part), &l->o);
    plan_cut(plan, &w->gate_proj, model_cut_rows(&w->gate_proj, part, w->gate_proj.out), &l->gate);
    plan_cut(plan, &w->up_proj, model_cut_rows(&w->up_proj, part, w->up_proj.out), &l->up);
    plan_cut(plan, &w->down_proj, model_cut_columns(&w->down_proj, part), &l->down);
    plan_matrix(plan, &w->router_proj, &l->router);
    plan_cut(plan, &w->experts_gate_up, model_cut_rows(&w->experts_gate_up, part, c->expert_intermediate),
             &l->experts_gate_up);
    plan->apart |= weight_present(&w->experts_gate);
    plan_cut(plan, &w->experts_down, model_cut_columns(&w->experts_down, part), &l->experts_down);
    plan_matrix(plan, &w->ple_gate, &l->ple_gate);
    plan_matrix(plan, &w->ple_proj, &l->ple_proj);
    plan_vector(plan, w->q_norm, d, &l->q_norm);
    plan_vector(plan, w->k_norm, d, &l->k_norm);
    plan_vector(plan, w->input_norm, hidden, &l->input_norm);
    plan_vector(plan, w->post_attention_norm, hidden, &l->post_attention_norm);
    plan_vector(plan, w->pre_ffn_norm, hidden, &l->pre_ffn_norm);
    plan_vector(plan, w->post_ffn_norm, hidden, &l->post_ffn_norm);
    plan_vector(plan, w->post_ffn_norm_1, hidden, &l->post_ffn_norm_1);
    plan_vector(plan, w->pre_ffn_norm_2, hidden, &l->pre_ffn_norm_2);
    plan_vector(plan, w->post_ffn_norm_2, hidden, &l->post_ffn_norm_2);
    plan_vector(plan, w->router_scale, hidden, &l->router_scale);
    plan_vector(plan, w->router_expert_scale, c->experts, &l->router_expert_scale);
    plan_vector(plan, w->post_ple_norm, hidden, &l->post_ple_norm);
    l->layer_scalar = w->layer_scalar;
}

static void plan_drafter(weight_plan *plan, const dflash_model *d, cuda_weights *m) {
    const dflash_config *c = &d->config;
    plan_matrix(plan, &d->fc, &m->fc);
    plan_vector(plan, d->hidden_norm, c->hidden, &m->hidden_norm);
    plan_vector(plan, d->norm, c->hidden, &m->draft_norm);
    for (int i = 0; i < c->layers; i++) {
        const dflash_layer_weights *w = &d->layer[i];
        cuda_draft_layer *l = &m->draft[i];
        plan_matrix(plan, &w->q_proj, &l->q);
        plan_matrix(plan, &w->k_proj, &l->k);
        plan_matrix(plan, &w->v_proj, &l->v);
        plan_matrix(plan, &w->o_proj, &l->o);
        plan_matrix(plan, &w->gate_proj, &l->gate);
        plan_matrix(plan, &w->up_proj, &l->up);
        plan_matrix(plan, &w->down_proj, &l->down);
        plan_vector(plan, w->input_norm, c->hidden, &l->input_norm);
        plan_vector(plan, w->post_attention_norm, c->hidden, &l->post_attention_norm);
        plan_vector(plan, w->q_norm, c->head_dim, &l->q_norm);
        plan_vector(plan, w->k_norm, c->head_dim, &l->k_norm);
    }
}

static void plan_f_theta(weight_plan *plan, const gemma4_config *c, const f_theta_model *f, cuda_weights *m) {
    plan_matrix(plan, &f->encoder_k, &m->encoder_k);
    plan_matrix(plan, &f->encoder_v, &m->encoder_v);
    for (int i = 0; i < f->config.layers; i++) {
        int kv_heads = c->layer[i].kv_heads;
        plan_cut(plan, &f->decoder_k[i], model_cut_kv(&f->decoder_k[i], plan->part, kv_heads), &m->decoder_k[i]);
        plan_cut(plan, &f->decoder_v[i], model_cut_kv(&f->decoder_v[i], plan->part, kv_heads), &m->decoder_v[i]);
    }
}

/* inverse frequency j = theta^(-2j / head_dim) / factor; the denominator is the whole head even where only some pairs
 * turn. */
static void inverse_frequencies(float theta, float factor, int head_dim, int pairs, float *out) {
    for (int j = 0; j < pairs; j++) out[j] = 1.0f / powf(theta, (float)(2 * j) / (float)head_dim) / factor;
}

/* ---------------------------------------------------------------------------------------------------- upload */

enum { UPLOAD_BUFFERS = 2 };
static const size_t upload_buffer_bytes = (size_t)64 << 20;

typedef struct uploader {
    const cuda_device *device;
    const backend_model_options *options; /* progress */
    uint64_t bytes, total_bytes;
    void *pinned[UPLOAD_BUFFERS];
    cudaEvent_t done[UPLOAD_BUFFERS];
    int next;
} uploader;

static kakeya_status uploader_create(uploader *u, kakeya_error *error) {
    static const char what[] = "uploading the weights";
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; i < UPLOAD_BUFFERS && !status; i++) {
        status = cuda_pinned(&u->pinned[i], upload_buffer_bytes, what, error);
        if (!status) status = cuda_check(cudaEventCreateWithFlags(&u->done[i], cudaEventDisableTiming), what, error);
    }
    return status;
}

static void uploader_destroy(uploader *u) {
    for (int i = 0; i < UPLOAD_BUFFERS; i++) {
        if (u->done[i]) (void)cudaEventDestroy(u->done[i]);
        if (u->pinned[i]) (void)cudaFreeHost(u->pinned[i]);
    }
}

static kakeya_status tell(const uploader *u, kakeya_error *error) {
    const backend_model_options *o = u->options;
    if (!o->progress || o->progress(o->user, "uploading the weights", u->bytes, u->total_bytes)) return KAKEYA_OK;
    return error_set(error, KAKEYA_CANCELLED, "uploading the weights was cancelled");
}

/* Rows [first, first + n) of a part of a matrix, as they lie on the device. */
static void convert_rows(const weight *w, const matrix_cut *cut, const cuda_matrix *m, size_t first, size_t n,
                         cuda_bf16 *to) {
    const weight_loader *loader = loader_of(w->format);
    size_t row_bytes = weight_row_bytes(w, 0), column = (size_t)cut->first_column * (row_bytes / (size_t)w->in);
    size_t whole = cut->columns == w->in && m->ld == w->in ? n : 1; /* rows that lie behind each other on both sides */
    for (size_t done = 0, run; done < n; done += run) {
        size_t row = first + done, of_period = row % (size_t)cut->rows, left = (size_t)cut->rows - of_period;
        size_t at = row / (size_t)cut->rows * (size_t)cut->period + (size_t)cut->first_row + of_period;
        run = whole < n - done ? whole : n - done;
        if (run > left) run = left;
        const char *from = (const char *)weight_row(w, 0, (int)at) + column;
        cuda_bf16 *out = to + done * (size_t)m->ld;
        loader->convert(from, run * (size_t)cut->columns, out);
        if (m->ld > cut->columns) memset(out + cut->columns, 0, (size_t)(m->ld - cut->columns) * sizeof *out);
    }
}

/* Whole rows per piece; while one piece is on its way, the next is read from the file. */
static kakeya_status upload_matrix(uploader *u, const weight *w, const matrix_cut *cut, const cuda_matrix *m,
                                   kakeya_error *error) {
    size_t row = (size_t)m->ld * sizeof(cuda_bf16), rows = upload_buffer_bytes / row;
    for (size_t first = 0; first < (size_t)m->out; first += rows) {
        size_t n = (size_t)m->out - first < rows ? (size_t)m->out - first : rows;
        int slot = u->next;
        u->next = (slot + 1) % UPLOAD_BUFFERS;
        kakeya_status told = tell(u, error);
        if (told) return told;
        cudaError_t status = cudaEventSynchronize(u->done[slot]);
        if (status != cudaSuccess) return cuda_check(status, "uploading the weights", error);
        cuda_bf16 *to = u->pinned[slot];
        convert_rows(w, cut, m, first, n, to);
        status =
            cudaMemcpyAsync(m->data + first * (size_t)m->ld, to, n * row, cudaMemcpyHostToDevice, u->device->stream);
        if (status == cudaSuccess) status = cudaEventRecord(u->done[slot], u->device->stream);
        if (status != cudaSuccess) return cuda_check(status, "uploading the weights", error);
        u->bytes += n * row;
    }
    return KAKEYA_OK;
}

static kakeya_status upload(cuda_weights *w, const cuda_device *device, const cuda_launch *launch,
                            const backend_model_options *options, const weight_plan *plan, kakeya_error *error) {
    uploader u = {.device = device, .options = options, .total_bytes = plan->bytes};
    char *base = w->memory.data;
    kakeya_status status = uploader_create(&u, error);
    for (size_t i = 0; i < plan->n && !status; i++) {
        const planned_tensor *t = &plan->tensors[i];
        if (!t->matrix) {
            *t->placed_vector = (const float *)(const void *)(base + t->offset);
            status = cuda_check(
                cudaMemcpyAsync(base + t->offset, t->vector, t->bytes, cudaMemcpyHostToDevice, device->stream),
                "uploading the weights", error);
            continue;
        }
        t->placed->data = (cuda_bf16 *)(void *)(base + t->offset);
        if (weight_present(t->matrix)) {
            status = upload_matrix(&u, t->matrix, &t->cut, t->placed, error);
        } else {
            size_t n = (size_t)t->placed->out * (size_t)t->placed->ld;
            uint64_t seed = (uint64_t)i << 40;
            if (t->placed->out != t->matrix->out || t->placed->in != t->matrix->in)
                seed += (uint64_t)plan->part.index << 36; /* what devices share is the same on all of them */
            cuda_fill_random(launch, t->placed->data, n, t->matrix->synthetic, seed);
            status = cuda_check(cudaGetLastError(), "making the weights", error);
        }
    }
    kakeya_status finished = cuda_finish(device, "uploading the weights", status ? NULL : error);
    if (!status) status = finished;
    u.bytes = u.total_bytes;
    if (!status) status = tell(&u, error);
    uploader_destroy(&u);
    return status;
}

/* -------------------------------------------------------------------------------------------------- all of them */

enum { MAX_PAIRS = 512 };

/* Values that are computed here and uploaded like weights: they must outlive the plan. */
static float *plan_frequencies(weight_plan *plan, const gemma4_config *c, const dflash_model *drafter,
                               cuda_weights *w) {
    size_t turned = (size_t)c->rope[GEMMA4_FULL].rotated_pairs;
    float *frequencies = calloc(3 * MAX_PAIRS + 2 * CUDA_ATTENTION_TILE * (turned ? turned : 1), sizeof *frequencies);
    if (!frequencies) {
        plan->failed = true;
        return NULL;
    }
    for (int i = 0; i < c->layers; i++) {
        int type = (int)c->layer[i].type, d = c->layer[i].head_dim;
        inverse_frequencies(c->rope[type].theta, c->rope[type].factor, d, c->rope[type].rotated_pairs,
                            frequencies + type * MAX_PAIRS);
    }
    for (int type = 0; type < 2; type++)
        plan_vector(plan, frequencies + type * MAX_PAIRS, MAX_PAIRS, &w->inverse_frequency[type]);
    if (turned) {
        float *turns = frequencies + 3 * MAX_PAIRS;
        for (size_t i = 0; i < CUDA_ATTENTION_TILE * turned; i++) {
            float angle = (float)(i / turned) * frequencies[GEMMA4_FULL * MAX_PAIRS + i % turned];
            turns[2 * i] = cosf(angle);
            turns[2 * i + 1] = sinf(angle);
        }
        plan_vector(plan, turns, (int)(2 * CUDA_ATTENTION_TILE * turned), &w->key_turns);
    }
    if (drafter) {
        const dflash_config *d = &drafter->config;
        inverse_frequencies(d->rope_theta, 1.0f, d->head_dim, d->head_dim / 2, frequencies + 2 * MAX_PAIRS);
        plan_vector(plan, frequencies + 2 * MAX_PAIRS, MAX_PAIRS, &w->draft_inverse_frequency);
    }
    return frequencies;
}

static bool is_tied(const gemma4_config *c, const gemma4_weights *from) { return from->head.out == 0 || c->tied_head; }

/* The rows of the head that are the device's; the first of several devices keeps the whole for the drafter. */
static matrix_cut head_cut(const backend_model_options *options, model_part part) {
    const weight *head = &options->verifier->weights.head;
    matrix_cut cut = model_cut_nothing(head);
    if (model_part_is_whole(part) || (options->drafter && part.index == 0)) return cut;
    cut.first_row = model_part_first_output(part, head->out);
    cut.rows = model_part_first_output((model_part){part.index + 1, part.count}, head->out) - cut.first_row;
    return cut;
}

/* Points `head` at the device's rows, of a head that is the embedding or has been placed as draft_head. */
static void point_head(const backend_model_options *options, model_part part, cuda_weights *w) {
    const gemma4_weights *from = &options->verifier->weights;
    bool tied = is_tied(&options->verifier->config, from);
    if (tied) w->draft_head = w->embed;
    w->head = w->draft_head;
    w->head_first = 0;
    if (model_part_is_whole(part)) return;
    int all = from->embed.out;
    w->head_first = model_part_first_output(part, all);
    w->head.out = model_part_first_output((model_part){part.index + 1, part.count}, all) - w->head_first;
    if (tied && w->head.data) w->head.data += (size_t)w->head_first * (size_t)w->head.ld;
}

static void plan_all(weight_plan *plan, const backend_model_options *options, cuda_weights *w) {
    const gemma4_config *c = &options->verifier->config;
    const gemma4_weights *from = &options->verifier->weights;
    plan_matrix(plan, &from->embed, &w->embed);
    if (!is_tied(c, from)) plan_cut(plan, &from->head, head_cut(options, plan->part), &w->draft_head);
    plan_matrix(plan, &from->ple_embed, &w->ple_embed);
    plan_matrix(plan, &from->ple_model_proj, &w->ple_model_proj);
    plan_vector(plan, from->final_norm, c->hidden, &w->final_norm);
    plan_vector(plan, from->ple_proj_norm, c->ple_width, &w->ple_proj_norm);
    for (int i = 0; i < c->layers; i++) plan_layer(plan, c, i, &from->layer[i], &w->layer[i]);
    if (options->drafter) plan_drafter(plan, options->drafter, w);
    if (options->f_theta) plan_f_theta(plan, c, options->f_theta, w);
}

static kakeya_status check_plan(const weight_plan *plan, kakeya_error *error) {
    if (plan->failed) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for the list of weights");
    if (!plan->refused && plan->apart)
        return error_set(error, KAKEYA_UNSUPPORTED,
                         "experts whose gate and up are two tensors are not supported by backend cuda: use --backend "
                         "cpu");
    if (!plan->refused) return KAKEYA_OK;
    char taken[128] = "";
    for (int i = 0; i < LOADERS; i++) {
        size_t length = strlen(taken);
        snprintf(taken + length, sizeof taken - length, "%s%s", i ? ", " : "", weight_format_name(loaders[i].from));
    }
    return error_set(error, KAKEYA_UNSUPPORTED,
                     "weights of format %s are not supported by backend cuda, which takes %s: use --backend cpu",
                     weight_format_name(plan->refused->format), taken);
}

kakeya_status cuda_weights_describe(cuda_weights *w, const backend_model_options *options, model_part part,
                                    kakeya_error *error) {
    *w = (cuda_weights){0};
    weight_plan plan = {.part = part};
    plan_all(&plan, options, w);
    point_head(options, part, w);
    free(plan.tensors);
    return check_plan(&plan, error);
}

kakeya_status cuda_weights_create(cuda_weights *w, const cuda_device *device, const cuda_launch *launch,
                                  const backend_model_options *options, model_part part, char *note, size_t note_bytes,
                                  kakeya_error *error) {
    const gemma4_config *c = &options->verifier->config;
    weight_plan plan = {.part = part};
    plan_all(&plan, options, w);
    float *frequencies = plan_frequencies(&plan, c, options->drafter, w);
    kakeya_status status = check_plan(&plan, error);
    if (!status)
        status =
            cuda_buffer_create(&w->memory, device, options->account, MEM_WEIGHTS, plan.bytes, "the weights", error);
    if (!status) status = upload(w, device, launch, options, &plan, error);
    if (!status) point_head(options, part, w);
    note[0] = '\0';
    if (plan.rounded)
        snprintf(note, note_bytes, "backend cuda computes in bf16: weights of type %s are rounded",
                 weight_format_name(plan.rounded->format));
    free(frequencies);
    free(plan.tensors);
    return status;
}

void cuda_weights_destroy(cuda_weights *w) { cuda_buffer_destroy(&w->memory); }
