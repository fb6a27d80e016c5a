/* A model on the device: weights in one allocation, uploaded through two pinned buffers or made on the device, and the
 * workspace of the largest forward in another. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda.h"
#include "backend/cuda/prompt_attention.h"

_Static_assert((int)CUDA_MAX_LAYERS == (int)GEMMA4_MAX_LAYERS, "kernels.h repeats the model's limits");
_Static_assert((int)CUDA_MAX_EXCLUDED >= (int)GEMMA4_MAX_SUPPRESS_TOKENS, "kernels.h repeats the model's limits");
_Static_assert((int)CUDA_MAX_DRAFT_LAYERS == (int)DFLASH_MAX_LAYERS, "kernels.h repeats the model's limits");
_Static_assert((int)CUDA_LEADERS == (int)BACKEND_LEADERS && sizeof(cuda_leaders) == sizeof(backend_leaders),
               "kernels.h repeats the backend's leaders");
_Static_assert((int)CUDA_DECODE_ROWS == (int)BACKEND_MAX_DECODE_ROWS, "kernels.h repeats the backend's limits");

static int max_int(int a, int b) { return a > b ? a : b; }
static int padded(int k) { return (k + CUDA_K_STEP - 1) / CUDA_K_STEP * CUDA_K_STEP; }

/* -------------------------------------------------------------------------------------------- list of weights */

typedef struct planned_tensor {
    const weight *matrix; /* or NULL: a vector */
    cuda_matrix *placed;
    const float *vector;
    const float **placed_vector;
    size_t elements, offset, bytes;
} planned_tensor;

typedef struct weight_plan {
    planned_tensor *tensors;
    size_t n, capacity, bytes;
    bool failed;
    weight_format rounded; /* of matrices that lose bits on the way to bf16; WEIGHT_BF16: none do */
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

static void plan_matrix(weight_plan *plan, const weight *w, cuda_matrix *placed) {
    if (w->out == 0) return;
    *placed = (cuda_matrix){.out = w->out, .in = w->in, .ld = padded(w->in)};
    planned_tensor *t = plan_add(plan, (size_t)w->out * (size_t)placed->ld * sizeof(cuda_bf16));
    if (!t) return;
    t->matrix = w;
    t->placed = placed;
    if (w->format != WEIGHT_BF16) plan->rounded = w->format;
}

static void plan_vector(weight_plan *plan, const float *vector, int n, const float **placed) {
    if (!vector) return;
    planned_tensor *t = plan_add(plan, (size_t)n * sizeof(float));
    if (!t) return;
    t->vector = vector;
    t->placed_vector = placed;
    t->elements = (size_t)n;
}

static void plan_layer(weight_plan *plan, const gemma4_config *c, int index, const gemma4_layer_weights *w, cuda_layer *l) {
    int d = c->layer[index].head_dim, hidden = c->hidden;
    plan_matrix(plan, &w->q_proj, &l->q);
    plan_matrix(plan, &w->k_proj, &l->k);
    plan_matrix(plan, &w->v_proj, &l->v);
    plan_matrix(plan, &w->o_proj, &l->o);
    plan_matrix(plan, &w->gate_proj, &l->gate);
    plan_matrix(plan, &w->up_proj, &l->up);
    plan_matrix(plan, &w->down_proj, &l->down);
    plan_matrix(plan, &w->router_proj, &l->router);
    plan_matrix(plan, &w->experts_gate_up, &l->experts_gate_up);
    plan_matrix(plan, &w->experts_down, &l->experts_down);
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

static void plan_drafter(weight_plan *plan, backend_model *m) {
    const dflash_model *d = m->options.drafter;
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

static void plan_f_theta(weight_plan *plan, backend_model *m) {
    const f_theta_model *f = m->options.f_theta;
    plan_matrix(plan, &f->encoder_k, &m->encoder_k);
    plan_matrix(plan, &f->encoder_v, &m->encoder_v);
    for (int i = 0; i < f->config.layers; i++) {
        plan_matrix(plan, &f->decoder_k[i], &m->decoder_k[i]);
        plan_matrix(plan, &f->decoder_v[i], &m->decoder_v[i]);
    }
}

/* inverse frequency j = theta^(-2j / head_dim) / factor; the denominator is the whole head even where only some pairs turn. */
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

static void to_bf16(const void *source, weight_format format, size_t n, cuda_bf16 *out) {
    const unsigned char *bytes = source;
    if (format == WEIGHT_BF16) {
        memcpy(out, source, n * sizeof *out);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        float value;
        if (format == WEIGHT_F32) {
            memcpy(&value, bytes + 4 * i, 4);
        } else {
            uint16_t half;
            memcpy(&half, bytes + 2 * i, 2);
            value = f16_to_f32(half);
        }
        out[i] = f32_to_bf16(value);
    }
}

static kakeya_status tell(const uploader *u, kakeya_error *error) {
    const backend_model_options *o = u->options;
    if (!o->progress || o->progress(o->user, "uploading the weights", u->bytes, u->total_bytes)) return KAKEYA_OK;
    return error_set(error, KAKEYA_CANCELLED, "uploading the weights was cancelled");
}

/* Whole rows per piece; while one piece is on its way, the next is read from the file. */
static kakeya_status upload_matrix(uploader *u, const weight *w, const cuda_matrix *m, kakeya_error *error) {
    size_t row = (size_t)m->ld * sizeof(cuda_bf16), rows = upload_buffer_bytes / row;
    size_t source_row = weight_row_bytes(w, 0);
    for (size_t first = 0; first < (size_t)w->out; first += rows) {
        size_t n = (size_t)w->out - first < rows ? (size_t)w->out - first : rows;
        int slot = u->next;
        u->next = (slot + 1) % UPLOAD_BUFFERS;
        kakeya_status told = tell(u, error);
        if (told) return told;
        cudaError_t status = cudaEventSynchronize(u->done[slot]);
        if (status != cudaSuccess) return cuda_check(status, "uploading the weights", error);
        cuda_bf16 *to = u->pinned[slot];
        const char *from = weight_row(w, 0, (int)first);
        if (m->ld == w->in) {
            to_bf16(from, w->format, n * (size_t)w->in, to);
        } else {
            for (size_t r = 0; r < n; r++) {
                to_bf16(from + r * source_row, w->format, (size_t)w->in, to + r * (size_t)m->ld);
                memset(to + r * (size_t)m->ld + w->in, 0, (size_t)(m->ld - w->in) * sizeof *to);
            }
        }
        status = cudaMemcpyAsync(m->data + first * (size_t)m->ld, to, n * row, cudaMemcpyHostToDevice, u->device->stream);
        if (status == cudaSuccess) status = cudaEventRecord(u->done[slot], u->device->stream);
        if (status != cudaSuccess) return cuda_check(status, "uploading the weights", error);
        u->bytes += n * row;
    }
    return KAKEYA_OK;
}

static kakeya_status upload(backend_model *m, const weight_plan *plan, kakeya_error *error) {
    uploader u = {.device = &m->device, .options = &m->options, .total_bytes = plan->bytes};
    char *base = m->weights.data;
    kakeya_status status = uploader_create(&u, error);
    for (size_t i = 0; i < plan->n && !status; i++) {
        const planned_tensor *t = &plan->tensors[i];
        if (!t->matrix) {
            *t->placed_vector = (const float *)(const void *)(base + t->offset);
            status = cuda_check(cudaMemcpyAsync(base + t->offset, t->vector, t->bytes, cudaMemcpyHostToDevice, m->device.stream),
                                "uploading the weights", error);
            continue;
        }
        t->placed->data = (cuda_bf16 *)(void *)(base + t->offset);
        if (weight_present(t->matrix)) {
            status = upload_matrix(&u, t->matrix, t->placed, error);
        } else {
            size_t n = (size_t)t->placed->out * (size_t)t->placed->ld;
            cuda_fill_random(&m->launch, t->placed->data, n, t->matrix->synthetic, (uint64_t)i << 40);
            status = cuda_check(cudaGetLastError(), "making the weights", error);
        }
    }
    kakeya_status finished = cuda_finish(&m->device, "uploading the weights", status ? NULL : error);
    if (!status) status = finished;
    u.bytes = u.total_bytes;
    if (!status) status = tell(&u, error);
    uploader_destroy(&u);
    return status;
}

static kakeya_status place_weights(backend_model *m, kakeya_error *error) {
    const gemma4_config *c = m->config;
    const gemma4_weights *w = &m->options.verifier->weights;
    weight_plan plan = {.rounded = WEIGHT_BF16};
    float *frequencies = NULL;
    kakeya_status status = KAKEYA_OK;

    plan_matrix(&plan, &w->embed, &m->embed);
    bool tied = w->head.out == 0 || c->tied_head;
    if (!tied) plan_matrix(&plan, &w->head, &m->head);
    plan_matrix(&plan, &w->ple_embed, &m->ple_embed);
    plan_matrix(&plan, &w->ple_model_proj, &m->ple_model_proj);
    plan_vector(&plan, w->final_norm, c->hidden, &m->final_norm);
    plan_vector(&plan, w->ple_proj_norm, c->ple_width, &m->ple_proj_norm);
    for (int i = 0; i < c->layers; i++) plan_layer(&plan, c, i, &w->layer[i], &m->layer[i]);
    if (m->options.drafter) plan_drafter(&plan, m);
    if (m->options.f_theta) plan_f_theta(&plan, m);

    enum { MAX_PAIRS = 512 };
    size_t turned = (size_t)c->rope[GEMMA4_FULL].rotated_pairs;
    frequencies = calloc(3 * MAX_PAIRS + 2 * CUDA_ATTENTION_TILE * (turned ? turned : 1), sizeof *frequencies);
    if (!frequencies) plan.failed = true;
    for (int i = 0; i < c->layers && !plan.failed; i++) {
        int type = (int)c->layer[i].type, d = c->layer[i].head_dim;
        inverse_frequencies(c->rope[type].theta, c->rope[type].factor, d, c->rope[type].rotated_pairs,
                            frequencies + type * MAX_PAIRS);
    }
    for (int type = 0; type < 2 && !plan.failed; type++)
        plan_vector(&plan, frequencies + type * MAX_PAIRS, MAX_PAIRS, &m->inverse_frequency[type]);
    if (!plan.failed && turned) {
        float *turns = frequencies + 3 * MAX_PAIRS;
        for (size_t i = 0; i < CUDA_ATTENTION_TILE * turned; i++) {
            float angle = (float)(i / turned) * frequencies[GEMMA4_FULL * MAX_PAIRS + i % turned];
            turns[2 * i] = cosf(angle);
            turns[2 * i + 1] = sinf(angle);
        }
        plan_vector(&plan, turns, (int)(2 * CUDA_ATTENTION_TILE * turned), &m->key_turns);
    }
    if (m->options.drafter && !plan.failed) {
        const dflash_config *d = &m->options.drafter->config;
        inverse_frequencies(d->rope_theta, 1.0f, d->head_dim, d->head_dim / 2, frequencies + 2 * MAX_PAIRS);
        plan_vector(&plan, frequencies + 2 * MAX_PAIRS, MAX_PAIRS, &m->draft_inverse_frequency);
    }
    if (plan.failed) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for the list of weights");
    if (!status)
        status = cuda_buffer_create(&m->weights, &m->device, m->account, MEM_WEIGHTS, plan.bytes, "the weights", error);
    if (!status) status = upload(m, &plan, error);
    if (!status && tied) m->head = m->embed;
    if (plan.rounded != WEIGHT_BF16)
        snprintf(m->note, sizeof m->note, "backend cuda computes in bf16: weights of type %s are rounded", weight_format_name(plan.rounded));
    free(frequencies);
    free(plan.tensors);
    return status;
}

/* ------------------------------------------------------------------------------------------------- workspace */

typedef struct shape_limits {
    int q, kv, intermediate, head_dim;
    int derived_kv; /* of K = V layers */
} shape_limits;

static shape_limits model_limits(const backend_model *m) {
    const gemma4_config *c = m->config;
    shape_limits s = {0};
    for (int i = 0; i < c->layers; i++) {
        const gemma4_layer_config *l = &c->layer[i];
        s.q = max_int(s.q, c->heads * l->head_dim);
        s.kv = max_int(s.kv, l->kv_heads * l->head_dim);
        s.intermediate = max_int(s.intermediate, l->intermediate);
        s.head_dim = max_int(s.head_dim, l->head_dim);
        if (l->k_eq_v) s.derived_kv = max_int(s.derived_kv, l->kv_heads * l->head_dim);
    }
    return s;
}

typedef struct carve_request {
    void **target;
    size_t bytes;
} carve_request;

#define FLOATS(field, count) {(void **)(void *)&m->field, (size_t)(count) * sizeof(float)}
#define INTS(field, count) {(void **)(void *)&m->field, (size_t)(count) * sizeof(int)}
#define HALVES(field, count) {(void **)(void *)&m->field, (size_t)(count) * sizeof(cuda_bf16)}
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static kakeya_status carve(backend_model *m, const carve_request *requests, size_t n, kakeya_error *error) {
    size_t total = 0;
    for (size_t i = 0; i < n; i++) total += (requests[i].bytes + 255) / 256 * 256;
    kakeya_status status =
        cuda_buffer_create(&m->workspace, &m->device, m->account, MEM_WORKSPACE, total, "the workspace", error);
    char *at = m->workspace.data;
    for (size_t i = 0; i < n && !status; i++) {
        *requests[i].target = requests[i].bytes ? at : NULL;
        at += (requests[i].bytes + 255) / 256 * 256;
    }
    return status;
}

static kakeya_status create_workspace(backend_model *m, kakeya_error *error) {
    const gemma4_config *c = m->config;
    const dflash_config *d = m->options.drafter ? &m->options.drafter->config : NULL;
    shape_limits s = model_limits(m);
    size_t rows = (size_t)m->max_rows, hidden = (size_t)c->hidden, wide = (size_t)padded(c->hidden);
    size_t slots = c->moe ? rows * (size_t)c->experts_per_token : 0, experts = (size_t)c->experts;
    size_t ple = (size_t)c->layers * (size_t)c->ple_width;
    size_t act = (size_t)padded(max_int(s.intermediate, c->ple_width)), q = (size_t)padded(s.q);
    size_t block = BACKEND_MAX_DECODE_ROWS;
    size_t aux = d ? (size_t)d->targets * hidden : 0, d_hidden = d ? (size_t)d->hidden : 0;
    size_t d_q = d ? (size_t)(d->heads * d->head_dim) : 0, d_kv = d ? (size_t)(d->kv_heads * d->head_dim) : 0;
    size_t d_all = d ? (size_t)d->layers * d_kv : 0, d_wide = d ? (size_t)d->intermediate : 0;
    size_t rank = m->options.f_theta ? (size_t)m->options.f_theta->config.rank : 0;
    size_t tiles = (size_t)cuda_head_tiles(c->vocab), parts = (size_t)cuda_head_steps(c->hidden) * CUDA_HEAD_STEP;
    const carve_request requests[] = {
        FLOATS(h, rows * hidden), FLOATS(q, rows * (size_t)s.q), FLOATS(k, rows * (size_t)s.kv),
        FLOATS(v, rows * (size_t)s.kv), FLOATS(branch, rows * hidden), FLOATS(experts_out, slots * hidden),
        FLOATS(x_router, c->moe ? rows * hidden : 0), FLOATS(normed, rows * hidden), FLOATS(ple, rows * ple),
        FLOATS(ple_gate, rows * (size_t)c->ple_width), FLOATS(aux, rows * aux), FLOATS(logits, block * tiles * CUDA_HEAD_TILE),
        HALVES(x, rows * wide), HALVES(x_experts, c->moe ? rows * wide : 0), HALVES(x_head, rows * wide),
        HALVES(q_heads, rows * (size_t)s.q), HALVES(attended, rows * q), HALVES(act, rows * act),
        HALVES(act_experts, slots * (size_t)padded(c->expert_intermediate)), HALVES(chunk_k, rows * (size_t)s.kv),
        HALVES(chunk_v, rows * (size_t)s.kv), HALVES(derived_k, (size_t)PROMPT_SLAB_POSITIONS * (size_t)s.derived_kv),
        FLOATS(turns[0], 2 * rows * (size_t)c->rope[0].rotated_pairs), FLOATS(turns[1], 2 * rows * (size_t)c->rope[1].rotated_pairs),
        FLOATS(draft_turns, d ? block * (size_t)d->head_dim : 0), FLOATS(attend_top, rows * (size_t)c->heads), FLOATS(attend_sum, rows * (size_t)c->heads), FLOATS(route.logits, rows * experts), FLOATS(route.weight, slots),
        INTS(route.expert, slots), INTS(route.begin, experts + 1), INTS(route.active, experts),
        INTS(route.active_begin, experts), INTS(route.active_rows, experts), INTS(route.active_count, 1), INTS(route.finished, 1),
        INTS(route.slot_row, slots), INTS(route.slot_of, slots), INTS(tokens, rows),
        FLOATS(argmax_value, block * CUDA_ARGMAX_PARTS), INTS(argmax_index, block * CUDA_ARGMAX_PARTS), INTS(argmax, block),
        {(void **)(void *)&m->screen.x, CUDA_SCREEN_ROWS * 2 * parts}, FLOATS(screen.lower, block * tiles), INTS(screen.finished, 1),
        {(void **)(void *)&m->screen.row, block * sizeof(cuda_screen_row)},
        {(void **)(void *)&m->screen.best, block * sizeof(unsigned long long)},
        {(void **)(void *)&m->leaders, block * sizeof(cuda_leaders)},
        {(void **)(void *)&m->leader_scratch, block * sizeof(cuda_leader_scratch)},
        {(void **)(void *)&m->step, sizeof(cuda_step)}, {(void **)(void *)&m->draft_step, sizeof(cuda_step)},
        FLOATS(d_state, block * d_hidden), FLOATS(d_x, rows * d_hidden), FLOATS(d_q, block * d_q),
        FLOATS(d_k, block * d_kv), FLOATS(d_v, block * d_kv), FLOATS(d_gate_up, block * 2 * d_wide),
        FLOATS(d_raw, rows * 2 * d_all), FLOATS(latents, rows * 2 * rank), FLOATS(latent_values, rank ? rows * (size_t)s.kv : 0),
        HALVES(d_in, rows * (size_t)padded((int)d_hidden)), HALVES(d_aux, rows * (size_t)padded((int)aux)),
        HALVES(d_heads, block * d_q), HALVES(d_attended, block * (size_t)padded((int)d_q)),
        HALVES(d_act, block * (size_t)padded((int)d_wide)), HALVES(d_block_k, block * d_kv), HALVES(d_block_v, block * d_kv),
        HALVES(latent_in, rank ? 2 * rows * (size_t)padded((int)d_all) : 0),
        HALVES(latent_half, rank ? rows * (size_t)padded((int)rank) : 0),
    };
    m->route.experts = c->experts;
    m->route.rank = c->experts_per_token;
    return carve(m, requests, COUNT(requests), error);
}

kakeya_status model_grow(backend_model *m, cuda_buffer *buffer, size_t bytes, const char *what, kakeya_error *error) {
    if (buffer->bytes >= bytes) return KAKEYA_OK;
    kakeya_status status = cuda_finish(&m->device, what, error);
    if (status) return status;
    forward_drop_graphs(m);
    cuda_buffer_destroy(buffer);
    return cuda_buffer_create(buffer, &m->device, m->account, MEM_WORKSPACE, bytes, what, error);
}

/* ------------------------------------------------------------------------------------------------------ model */

static kakeya_status check_model(const backend_model *m, kakeya_error *error) {
    const gemma4_config *c = m->config;
    if (m->options.precision == KAKEYA_PRECISION_F32)
        return error_set(error, KAKEYA_UNSUPPORTED, "precision f32 is not supported by backend cuda, which computes in bf16");
    if (c->moe && (c->experts > CUDA_ROUTE_MAX_EXPERTS || c->experts_per_token > CUDA_ROUTE_MAX_RANK))
        return error_set(error, KAKEYA_UNSUPPORTED, "%d experts of which %d work on a token; backend cuda supports %d and %d",
                         c->experts, c->experts_per_token, (int)CUDA_ROUTE_MAX_EXPERTS, (int)CUDA_ROUTE_MAX_RANK);
    enum { LARGEST_HIDDEN = 8192 }; /* what two steps of the row kernels cover */
    if (c->hidden > LARGEST_HIDDEN)
        return error_set(error, KAKEYA_UNSUPPORTED, "hidden size %d is above %d, the most that backend cuda supports", c->hidden,
                         (int)LARGEST_HIDDEN);
    if (c->hidden % 8)
        return error_set(error, KAKEYA_UNSUPPORTED, "hidden size %d is not a multiple of 8, as backend cuda needs", c->hidden);
    const f_theta_model *f = m->options.f_theta;
    if (f && f->config.input != F_THETA_DRAFTER_CONTEXT_KV)
        return error_set(error, KAKEYA_UNSUPPORTED, "this f_theta reads the drafter's pass over tokens; that needs backend cpu");
    if (f && f->config.rank % 8)
        return error_set(error, KAKEYA_UNSUPPORTED, "f_theta rank %d is not a multiple of 8, as backend cuda needs",
                         f->config.rank);
    if (m->options.drafter && m->options.drafter->config.hidden != c->hidden)
        return error_set(error, KAKEYA_UNSUPPORTED, "drafter hidden size %d differs from the verifier's %d",
                         m->options.drafter->config.hidden, c->hidden);
    return KAKEYA_OK;
}

static kakeya_status prepare_kernels(const backend_model *m, kakeya_error *error) {
    const gemma4_config *c = m->config;
    for (int i = 0; i <= c->layers; i++) {
        int d = i < c->layers ? c->layer[i].head_dim : m->options.drafter ? m->options.drafter->config.head_dim : 0;
        cudaError_t prepared = d ? cuda_attention_prepare(d) : cudaSuccess;
        if (prepared == cudaErrorInvalidValue) {
            (void)cudaGetLastError();
            return error_set(error, KAKEYA_UNSUPPORTED, "head dimension %d is not supported by backend cuda on %s", d,
                             m->device.name);
        }
        kakeya_status status = cuda_check(prepared, "preparing the attention kernels", error);
        if (status) return status;
    }
    if (!m->options.f_theta) return KAKEYA_OK;
    return cuda_check(cuda_restore_prepare(model_limits(m).head_dim), "preparing the restoration kernels", error);
}

/* Where evicted positions are not decoded between the kernels of a step, they are beside it, on a stream of their own. */
static kakeya_status create_restore_stream(backend_model *m, kakeya_error *error) {
    cudaEvent_t *events[] = {&m->restore_start, &m->restored[0], &m->restored[1], &m->projected};
    cudaError_t status = cudaStreamCreateWithFlags(&m->restore_stream, cudaStreamNonBlocking);
    for (size_t i = 0; i < COUNT(events) && status == cudaSuccess; i++)
        status = cudaEventCreateWithFlags(events[i], cudaEventDisableTiming);
    return cuda_check(status, "creating a stream", error);
}

static void cuda_model_destroy(backend_model *m) {
    if (!m) return;
    if (m->device.stream) (void)cudaStreamSynchronize(m->device.stream);
    forward_drop_graphs(m);
    cuda_buffer_destroy(&m->partial);
    cuda_buffer_destroy(&m->raw_k);
    cuda_buffer_destroy(&m->raw_v);
    for (int type = 0; type < 2; type++) cuda_buffer_destroy(&m->restore_turns[type]);
    cuda_buffer_destroy(&m->restored_k);
    cuda_buffer_destroy(&m->restored_v);
    cuda_buffer_destroy(&m->cosine);
    cuda_buffer_destroy(&m->sine);
    cuda_buffer_destroy(&m->workspace);
    cuda_buffer_destroy(&m->head_copy);
    cuda_buffer_destroy(&m->weights);
    cudaEvent_t events[] = {m->restore_start, m->restored[0], m->restored[1], m->projected};
    for (size_t i = 0; i < COUNT(events); i++) {
        if (events[i]) (void)cudaEventDestroy(events[i]);
    }
    if (m->restore_stream) (void)cudaStreamDestroy(m->restore_stream);
    if (m->staged) (void)cudaFreeHost(m->staged);
    if (m->staged_ids) (void)cudaFreeHost(m->staged_ids);
    cuda_device_close(&m->device);
    free(m);
}

static kakeya_status cuda_model_create(const backend_model_options *options, backend_model **out, kakeya_error *error) {
    *out = NULL;
    backend_model *m = calloc(1, sizeof *m);
    if (!m) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for the model");
    m->options = *options;
    m->config = &options->verifier->config;
    m->account = options->account;
    kakeya_status status = check_model(m, error);
    if (!status) status = cuda_device_open(&m->device, error);
    if (!status) {
        m->launch = (cuda_launch){.stream = m->device.stream, .multiprocessors = m->device.multiprocessors,
                                  .programmatic = m->device.capability >= 90};
        m->max_rows = m->device.total_bytes >= cuda_large_device_bytes ? CUDA_PROMPT_ROWS_LARGE : CUDA_PROMPT_ROWS_SMALL;
        snprintf(m->description, sizeof m->description, "cuda/sm_%d, %s", m->device.capability, m->device.name);
        m->embed_scale = bf16_to_f32(f32_to_bf16(sqrtf((float)m->config->hidden)));
        status = prepare_kernels(m, error);
    }
    if (!status) status = place_weights(m, error);
    if (!status) status = create_workspace(m, error);
    if (!status) status = cuda_head_create(m, error);
    if (!status && options->f_theta) status = create_restore_stream(m, error);
    if (!status) status = cuda_pinned((void **)&m->staged, 2 * sizeof *m->staged, "a step", error);
    if (!status) status = cuda_pinned((void **)&m->staged_ids, 2 * (size_t)m->max_rows * sizeof(int32_t), "a step", error);
    if (!status) status = cuda_finish(&m->device, "preparing the model", error);
    if (status) {
        cuda_model_destroy(m);
        return status;
    }
    *out = m;
    return KAKEYA_OK;
}

/* --------------------------------------------------------------------------------------------------- questions */

static const char *cuda_description(const backend_model *m) { return m->description; }
static const char *cuda_note(const backend_model *m) { return m->note; }
static int cuda_prompt_chunk(const backend_model *m) { return m->max_rows; }
static int cuda_cache_length(const backend_cache *c) { return c->length; }
static int cuda_cache_pending(const backend_cache *c) { return c->pending; }

const backend_ops *cuda_backend(void);

const backend_ops *cuda_backend(void) {
    static const backend_ops ops = {
        .name = "cuda",
        .bf16_only = true,
        .finds_argmax = true,
        .finds_leaders = true,
        .model_create = cuda_model_create,
        .model_destroy = cuda_model_destroy,
        .model_description = cuda_description,
        .model_note = cuda_note,
        .model_prompt_chunk = cuda_prompt_chunk,
        .cache_create = cuda_cache_create,
        .cache_destroy = cuda_cache_destroy,
        .cache_length = cuda_cache_length,
        .cache_pending = cuda_cache_pending,
        .cache_min_truncate = cuda_cache_min_truncate,
        .forward = cuda_forward,
        .read_logits = cuda_read_logits,
        .cache_commit = cuda_cache_commit,
        .cache_truncate = cuda_cache_truncate,
        .cache_fork = cuda_cache_fork,
        .cache_bytes = cuda_cache_bytes,
        .cache_snapshot_bytes = cuda_cache_snapshot_bytes,
        .cache_snapshot = cuda_cache_snapshot,
        .cache_restore = cuda_cache_restore,
        .draft = cuda_draft,
    };
    return &ops;
}
