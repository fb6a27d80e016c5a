#include "backend/cuda/weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/matrix.h"
#include "backend/cuda/quant.h"
#include "backend/cuda/weight_rows.h"
#include "base/threads.h"

/* -------------------------------------------------------------------------------------------- list of weights */

typedef struct planned_tensor {
    weight_source source; /* first NULL: a vector */
    cuda_matrix *placed;
    const float *vector;
    const float **placed_vector;
    size_t elements, offset, bytes;
    bool aside; /* experts under a limit: the offset is in the host's memory */
} planned_tensor;

typedef struct weight_plan {
    planned_tensor *tensors;
    size_t n, capacity, bytes;
    bool limited;      /* experts lie aside ... */
    size_t host_bytes; /* ... and take so many */
    model_shard shard;
    bool failed;
    bool fp8;                   /* the precision: matrices of form F8 round prompt rows, ... */
    int rounding;               /* ... so many; */
    const weight *not_rounding; /* one that cannot, or NULL */
    const weight *rounded;      /* a matrix that loses bits on the way, or NULL */
} weight_plan;

static planned_tensor *plan_add_to(weight_plan *plan, bool aside, size_t bytes) {
    size_t *all = aside ? &plan->host_bytes : &plan->bytes;
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
    *t = (planned_tensor){.offset = *all, .bytes = bytes, .aside = aside};
    *all += (bytes + 255) / 256 * 256;
    return t;
}

static planned_tensor *plan_add(weight_plan *plan, size_t bytes) { return plan_add_to(plan, false, bytes); }

static void plan_source_to(weight_plan *plan, bool aside, weight_source source, cuda_form form, cuda_matrix *placed) {
    int out = weight_source_out(&source), in = source.cut.columns;
    *placed = (cuda_matrix){.form = form, .out = out, .in = in, .ld = cuda_padded(in)};
    placed->one_scale = form == CUDA_FORM_F8 && weight_source_has_one_scale(&source);
    if (plan->fp8 && form == CUDA_FORM_F8) {
        plan->rounding++;
        if (!weight_source_rounds_rows(&source)) plan->not_rounding = source.first;
    }
    planned_tensor *t = plan_add_to(plan, aside, matrix_bytes(form, out, in));
    if (!t) return;
    t->source = source;
    t->placed = placed;
    /* A quantised format is worth more of a note than a plain one. */
    if (weight_source_rounds(&source, form) && (!plan->rounded || weight_format_is_plain(plan->rounded->format)))
        plan->rounded = source.first;
}

static void plan_source(weight_plan *plan, weight_source source, cuda_form form, cuda_matrix *placed) {
    plan_source_to(plan, false, source, form, placed);
}

static void plan_cut(weight_plan *plan, const weight *w, matrix_cut cut, cuda_matrix *placed) {
    if (w->out == 0) return;
    weight_source source = {.first = w, .cut = cut};
    plan_source(plan, source, weight_source_form(&source), placed);
}

static void plan_matrix(weight_plan *plan, const weight *w, cuda_matrix *placed) {
    plan_cut(plan, w, model_cut_nothing(w), placed);
}

/* What kernels other than products read, too: always bf16. */
static void plan_bf16_cut(weight_plan *plan, const weight *w, matrix_cut cut, cuda_matrix *placed) {
    if (w->out) plan_source(plan, (weight_source){.first = w, .cut = cut}, CUDA_FORM_BF16, placed);
}

static void plan_bf16(weight_plan *plan, const weight *w, cuda_matrix *placed) {
    plan_bf16_cut(plan, w, model_cut_nothing(w), placed);
}

/* Experts, each of `rows` rows of the whole model: of w, or of w and then of second. */
static void plan_experts(weight_plan *plan, const weight *w, const weight *second, matrix_cut cut, int rows,
                         cuda_matrix *placed) {
    if (w->out == 0) return;
    if (cut.period == w->out) { /* all rows: those of one expert at a time, likewise */
        cut.period = cut.rows = rows;
        cut.first_row = 0;
    }
    weight_source source = {.first = w, .second = second, .cut = cut};
    plan_source_to(plan, plan->limited, source, weight_source_form(&source), placed);
}

/* Gate and up are multiplied together, so they have one form. */
static void plan_gated(weight_plan *plan, const weight *gate, const weight *up, cuda_matrix *to_gate,
                       cuda_matrix *to_up) {
    if (gate->out == 0) return;
    weight_source first = {.first = gate, .cut = model_cut_rows(gate, plan->shard, gate->out)},
                  second = {.first = up, .cut = model_cut_rows(up, plan->shard, up->out)};
    cuda_form form = weight_source_form(&first);
    if (weight_source_form(&second) != form) form = CUDA_FORM_BF16;
    plan_source(plan, first, form, to_gate);
    plan_source(plan, second, form, to_up);
}

static void plan_vector(weight_plan *plan, const float *vector, int n, const float **placed) {
    if (!vector) return;
    planned_tensor *t = plan_add(plan, (size_t)n * sizeof(float));
    if (!t) return;
    t->vector = vector;
    t->placed_vector = placed;
    t->elements = (size_t)n;
}

static void plan_layer(weight_plan *plan, const model_config *c, int index, const layer_weights *w, cuda_layer *l) {
    int d = c->layer[index].head_dim, hidden = c->hidden, kv_heads = c->layer[index].kv_heads;
    model_shard shard = plan->shard;
    plan_cut(plan, &w->q_proj, model_cut_rows(&w->q_proj, shard, w->q_proj.out), &l->q);
    plan_cut(plan, &w->k_proj, model_cut_kv(&w->k_proj, shard, kv_heads), &l->k);
    plan_cut(plan, &w->v_proj, model_cut_kv(&w->v_proj, shard, kv_heads), &l->v);
    plan_cut(plan, &w->o_proj, model_cut_columns(&w->o_proj, shard), &l->o);
    plan_gated(plan, &w->gate_proj, &w->up_proj, &l->gate, &l->up);
    plan_cut(plan, &w->down_proj, model_cut_columns(&w->down_proj, shard), &l->down);
    plan_bf16(plan, &w->router_proj, &l->router);
    int width = c->expert_intermediate;
    plan_experts(plan, &w->experts_gate_up, NULL, model_cut_rows(&w->experts_gate_up, shard, width), width,
                 &l->experts_gate_up);
    plan_experts(plan, &w->experts_gate, &w->experts_up, model_cut_rows(&w->experts_gate, shard, width), width,
                 &l->experts_gate_up);
    plan_experts(plan, &w->experts_down, NULL, model_cut_columns(&w->experts_down, shard), hidden, &l->experts_down);
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

static void plan_drafter(weight_plan *plan, const block_drafter_model *d, cuda_weights *m) {
    const block_drafter_config *c = &d->config;
    plan_bf16(plan, &d->fc, &m->fc);
    plan_vector(plan, d->hidden_norm, c->hidden, &m->hidden_norm);
    plan_vector(plan, d->norm, c->hidden, &m->draft_norm);
    for (int i = 0; i < c->layers; i++) {
        const block_drafter_layer_weights *w = &d->layer[i];
        cuda_draft_layer *l = &m->draft[i];
        plan_bf16(plan, &w->q_proj, &l->q);
        plan_bf16(plan, &w->k_proj, &l->k);
        plan_bf16(plan, &w->v_proj, &l->v);
        plan_bf16(plan, &w->o_proj, &l->o);
        plan_bf16(plan, &w->gate_proj, &l->gate);
        plan_bf16(plan, &w->up_proj, &l->up);
        plan_bf16(plan, &w->down_proj, &l->down);
        plan_vector(plan, w->input_norm, c->hidden, &l->input_norm);
        plan_vector(plan, w->post_attention_norm, c->hidden, &l->post_attention_norm);
        plan_vector(plan, w->q_norm, c->head_dim, &l->q_norm);
        plan_vector(plan, w->k_norm, c->head_dim, &l->k_norm);
    }
}

/* Rows of a head with clusters are read by a kernel of their own. */
static void plan_assistant(weight_plan *plan, const assistant_model *a, cuda_assistant *m) {
    const model_config *c = &a->config.stack;
    const assistant_weights *w = &a->weights;
    plan_matrix(plan, &w->pre_projection, &m->pre_projection);
    plan_matrix(plan, &w->post_projection, &m->post_projection);
    plan_matrix(plan, &w->centroids, &m->centroids);
    (a->config.clusters ? plan_bf16 : plan_matrix)(plan, &w->stack.head, &m->head);
    plan_vector(plan, w->stack.final_norm, c->hidden, &m->final_norm);
    if (a->config.clusters)
        plan_vector(plan, (const float *)(const void *)w->token_of, c->vocab, (const float **)(void *)&m->token_of);
    for (int i = 0; i < c->layers; i++) plan_layer(plan, c, i, &w->stack.layer[i], &m->layer[i]);
}

static void plan_restoration(weight_plan *plan, const model_config *c, const restoration_model *f, cuda_weights *m) {
    plan_bf16(plan, &f->encoder_k, &m->encoder_k);
    plan_bf16(plan, &f->encoder_v, &m->encoder_v); /* none of a shared latent */
    for (int i = 0; i < f->config.layers; i++) {
        int kv_heads = c->layer[i].kv_heads;
        plan_bf16_cut(plan, &f->decoder_k[i], model_cut_kv(&f->decoder_k[i], plan->shard, kv_heads), &m->decoder_k[i]);
        plan_bf16_cut(plan, &f->decoder_v[i], model_cut_kv(&f->decoder_v[i], plan->shard, kv_heads), &m->decoder_v[i]);
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
    thread_pool *pool; /* that reads and converts */
} uploader;

static kakeya_status uploader_create(uploader *u, kakeya_error *error) {
    static const char what[] = "uploading the weights";
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; i < UPLOAD_BUFFERS && !status; i++) {
        status = cuda_pinned(&u->pinned[i], upload_buffer_bytes, what, error);
        if (!status) status = cuda_check(cudaEventCreateWithFlags(&u->done[i], cudaEventDisableTiming), what, error);
    }
    /* Threads take a while to make: of small models the calling one does it all. */
    bool alone = u->total_bytes < upload_buffer_bytes;
    return status ? status : thread_pool_create(alone ? 1 : 0, &u->pool, error);
}

static void uploader_destroy(uploader *u) {
    for (int i = 0; i < UPLOAD_BUFFERS; i++) {
        if (u->done[i]) (void)cudaEventDestroy(u->done[i]);
        if (u->pinned[i]) (void)cudaFreeHost(u->pinned[i]);
    }
    thread_pool_destroy(u->pool);
}

static kakeya_status tell(const uploader *u, kakeya_error *error) {
    const backend_model_options *o = u->options;
    if (!o->progress || o->progress(o->user, "uploading the weights", u->bytes, u->total_bytes)) return KAKEYA_OK;
    return error_set(error, KAKEYA_CANCELLED, "uploading the weights was cancelled");
}

typedef struct conversion {
    const weight_source *source;
    const cuda_matrix *m;
    size_t first, n;
    char *to;
} conversion;

/* Rows [begin, end) of the piece. */
static void convert_task(void *context, size_t begin, size_t end, int thread) {
    const conversion *c = context;
    (void)thread;
    weight_rows_convert(c->source, c->m, c->first + begin, end - begin, c->to + weight_rows_bytes(c->m, begin));
}

/* Whole rows per piece; while one piece is on its way, the next is read from the file. */
static kakeya_status upload_matrix(uploader *u, const weight_source *source, const cuda_matrix *m,
                                   kakeya_error *error) {
    enum { GRAIN = 64 }; /* rows that a thread takes at a time */
    size_t rows = upload_buffer_bytes / weight_rows_bytes(m, GRAIN) * GRAIN;
    for (size_t first = 0; first < (size_t)m->out; first += rows) {
        size_t n = (size_t)m->out - first < rows ? (size_t)m->out - first : rows, bytes = weight_rows_bytes(m, n);
        int slot = u->next;
        u->next = (slot + 1) % UPLOAD_BUFFERS;
        kakeya_status told = tell(u, error);
        if (told) return told;
        cudaError_t status = cudaEventSynchronize(u->done[slot]);
        if (status != cudaSuccess) return cuda_check(status, "uploading the weights", error);
        conversion piece = {source, m, first, n, u->pinned[slot]};
        thread_pool_for(u->pool, n, GRAIN, convert_task, &piece);
        char *to = (char *)(void *)m->data + weight_rows_bytes(m, first);
        status = cudaMemcpyAsync(to, u->pinned[slot], bytes, cudaMemcpyHostToDevice, u->device->stream);
        if (status == cudaSuccess) status = cudaEventRecord(u->done[slot], u->device->stream);
        if (status != cudaSuccess) return cuda_check(status, "uploading the weights", error);
        u->bytes += bytes;
    }
    return KAKEYA_OK;
}

/* Experts under a limit, as kernels read them, into the host's memory. */
static kakeya_status convert_matrix(uploader *u, const weight_source *source, const cuda_matrix *m, char *to,
                                    kakeya_error *error) {
    enum { GRAIN = 64 };
    size_t rows = upload_buffer_bytes / weight_rows_bytes(m, GRAIN) * GRAIN;
    for (size_t first = 0; first < (size_t)m->out; first += rows) {
        size_t n = (size_t)m->out - first < rows ? (size_t)m->out - first : rows;
        conversion piece = {source, m, first, n, to + weight_rows_bytes(m, first)};
        kakeya_status told = tell(u, error);
        if (told) return told;
        thread_pool_for(u->pool, n, GRAIN, convert_task, &piece);
        u->bytes += weight_rows_bytes(m, n);
    }
    return KAKEYA_OK;
}

/* Made-up values, on the device. */
static kakeya_status make_matrix(const cuda_launch *launch, const weight_source *source, const cuda_matrix *m,
                                 uint64_t seed, kakeya_error *error) {
    float deviation = source->first->synthetic;
    if (m->form == CUDA_FORM_BF16)
        cuda_fill_random(launch, m->data, (size_t)m->out * (size_t)m->ld, deviation, seed);
    else
        quant_fill_random(launch, m, deviation, seed);
    return cuda_check(cudaGetLastError(), "making the weights", error);
}

static kakeya_status upload(cuda_weights *w, const cuda_device *device, const cuda_launch *launch,
                            const backend_model_options *options, const weight_plan *plan, kakeya_error *error) {
    uploader u = {.device = device, .options = options, .total_bytes = plan->bytes + plan->host_bytes};
    char *base = w->memory.data;
    kakeya_status status = uploader_create(&u, error);
    for (size_t i = 0; i < plan->n && !status; i++) {
        const planned_tensor *t = &plan->tensors[i];
        if (!t->source.first) {
            *t->placed_vector = (const float *)(const void *)(base + t->offset);
            status = cuda_check(
                cudaMemcpyAsync(base + t->offset, t->vector, t->bytes, cudaMemcpyHostToDevice, device->stream),
                "uploading the weights", error);
            continue;
        }
        void *aside = t->aside ? cuda_bounded_place(w->bounded, t->placed, t->offset) : NULL;
        if (!t->aside) t->placed->data = (cuda_bf16 *)(void *)(base + t->offset);
        if (weight_present(t->source.first)) {
            status = aside ? convert_matrix(&u, &t->source, t->placed, aside, error)
                           : upload_matrix(&u, &t->source, t->placed, error);
        } else {
            uint64_t seed = (uint64_t)i << 40;
            if (t->placed->out != t->source.first->out || t->placed->in != t->source.first->in)
                seed += (uint64_t)plan->shard.index << 36; /* what devices share is the same on all of them */
            status = make_matrix(launch, &t->source, t->placed, seed, error);
            if (!status && aside) /* the arena has held a layer's experts while they were made */
                status = cuda_check(
                    cudaMemcpyAsync(aside, t->placed->data, t->bytes, cudaMemcpyDeviceToHost, device->stream),
                    "making the weights", error);
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
static float *plan_frequencies(weight_plan *plan, const model_config *c, const block_drafter_model *drafter,
                               cuda_weights *w) {
    size_t turned = (size_t)c->rope[LAYER_FULL].rotated_pairs;
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
            float angle = (float)(i / turned) * frequencies[LAYER_FULL * MAX_PAIRS + i % turned];
            turns[2 * i] = cosf(angle);
            turns[2 * i + 1] = sinf(angle);
        }
        plan_vector(plan, turns, (int)(2 * CUDA_ATTENTION_TILE * turned), &w->key_turns);
    }
    if (drafter) {
        const block_drafter_config *d = &drafter->config;
        inverse_frequencies(d->rope_theta, 1.0f, d->head_dim, d->head_dim / 2, frequencies + 2 * MAX_PAIRS);
        plan_vector(plan, frequencies + 2 * MAX_PAIRS, MAX_PAIRS, &w->draft_inverse_frequency);
    }
    return frequencies;
}

static bool is_tied(const model_config *c, const model_weights *from) { return from->head.out == 0 || c->tied_head; }

/* The rows of the head that are the device's; the first of several devices keeps the whole for the drafter. */
static matrix_cut head_cut(const backend_model_options *options, model_shard shard) {
    const weight *head = &options->verifier->weights.head;
    matrix_cut cut = model_cut_nothing(head);
    if (model_shard_is_whole(shard) || (options->drafter && shard.index == 0)) return cut;
    cut.first_row = model_shard_first_output(shard, head->out);
    cut.rows = model_shard_first_output((model_shard){shard.index + 1, shard.count}, head->out) - cut.first_row;
    return cut;
}

/* Points `head` at the device's rows, of a head that is the embedding or has been placed as draft_head. */
static void point_head(const backend_model_options *options, model_shard shard, cuda_weights *w) {
    const model_weights *from = &options->verifier->weights;
    bool tied = is_tied(&options->verifier->config, from);
    if (tied) w->draft_head = w->embed;
    w->head = w->draft_head;
    w->head_first = 0;
    if (model_shard_is_whole(shard)) return;
    int all = from->embed.out;
    w->head_first = model_shard_first_output(shard, all);
    w->head.out = model_shard_first_output((model_shard){shard.index + 1, shard.count}, all) - w->head_first;
    /* Shares are whole tiles of 16 rows, which are whole strips. */
    if (tied && w->head.data) w->head.data += weight_rows_bytes(&w->head, (size_t)w->head_first) / sizeof *w->head.data;
}

static void plan_all(weight_plan *plan, const backend_model_options *options, cuda_weights *w) {
    const model_config *c = &options->verifier->config;
    const model_weights *from = &options->verifier->weights;
    plan_matrix(plan, &from->embed, &w->embed);
    if (!is_tied(c, from)) plan_cut(plan, &from->head, head_cut(options, plan->shard), &w->draft_head);
    plan_matrix(plan, &from->ple_embed, &w->ple_embed);
    plan_matrix(plan, &from->ple_model_proj, &w->ple_model_proj);
    plan_vector(plan, from->final_norm, c->hidden, &w->final_norm);
    plan_vector(plan, from->ple_proj_norm, c->ple_width, &w->ple_proj_norm);
    for (int i = 0; i < c->layers; i++) plan_layer(plan, c, i, &from->layer[i], &w->layer[i]);
    if (options->drafter) plan_drafter(plan, options->drafter, w);
    if (options->assistant) plan_assistant(plan, options->assistant, &w->assistant);
    if (options->restoration) plan_restoration(plan, c, options->restoration, w);
}

static kakeya_status check_plan(const weight_plan *plan, kakeya_error *error) {
    if (plan->failed) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for the list of weights");
    if (plan->fp8 && plan->not_rounding)
        return error_set(error, KAKEYA_UNSUPPORTED,
                         "precision fp8: a matrix of %d outputs of %d in %s has a scale for each %d values; it takes "
                         "one for a row or for 128, and outputs in sixteens",
                         plan->not_rounding->out, plan->not_rounding->in,
                         weight_format_name(plan->not_rounding->format), plan->not_rounding->group);
    if (plan->fp8 && !plan->rounding)
        return error_set(error, KAKEYA_UNSUPPORTED, "precision fp8 needs weights in FP8, and this model has none");
    return KAKEYA_OK;
}

/* Room for a matrix in bf16 that is not multiplied as it lies. */
static size_t room_of(const cuda_matrix *w, bool fp8) {
    return fp8 && w->form == CUDA_FORM_F8 ? 0 : matrix_expanded_bytes(w);
}

/* What a prompt's products need at a time. Experts come a few at a time, where they are not multiplied as they lie. */
static size_t expanded_bytes(const model_config *c, const cuda_weights *w, bool fp8, bool codes) {
    static const size_t most_experts = (size_t)512 << 20;
    size_t most = room_of(&w->ple_model_proj, fp8);
    for (int i = 0; i < c->layers; i++) {
        const cuda_layer *l = &w->layer[i];
        const cuda_matrix *alone[] = {&l->q, &l->k, &l->v, &l->o, &l->down, &l->ple_gate, &l->ple_proj},
                          *experts[] = {&l->experts_gate_up, &l->experts_down};
        size_t gated = room_of(&l->gate, fp8) + room_of(&l->up, fp8);
        if (gated > most) most = gated;
        for (size_t m = 0; m < sizeof alone / sizeof alone[0]; m++) {
            size_t bytes = room_of(alone[m], fp8);
            if (bytes > most) most = bytes;
        }
        for (size_t m = 0; !codes && m < sizeof experts / sizeof experts[0]; m++) {
            size_t all = room_of(experts[m], fp8), one = c->experts ? all / (size_t)c->experts : 0;
            size_t bytes = all < most_experts || one > most_experts ? (all < most_experts ? all : one) : most_experts;
            if (bytes > most) most = bytes;
        }
    }
    return most;
}

static kakeya_status describe(cuda_weights *w, const backend_model_options *options, weight_plan *plan,
                              kakeya_error *error) {
    *w = (cuda_weights){0};
    plan_all(plan, options, w);
    point_head(options, plan->shard, w);
    free(plan->tensors);
    return check_plan(plan, error);
}

kakeya_status cuda_weights_describe(cuda_weights *w, const backend_model_options *options, model_shard shard,
                                    kakeya_error *error) {
    weight_plan plan = {.shard = shard, .fp8 = options->precision == KAKEYA_PRECISION_FP8};
    return describe(w, options, &plan, error);
}

kakeya_status cuda_weights_describe_shared(cuda_weights *w, const backend_model_options *options, size_t *bytes,
                                           kakeya_error *error) {
    weight_plan plan = {.shard = {0, 1}, .limited = true};
    kakeya_status status = describe(w, options, &plan, error);
    *bytes = plan.bytes;
    return status;
}

kakeya_status cuda_weights_create(cuda_weights *w, const cuda_device *device, const cuda_launch *launch,
                                  const backend_model_options *options, model_shard shard, char *note,
                                  size_t note_bytes, kakeya_error *error) {
    const model_config *c = &options->verifier->config;
    weight_plan plan = {
        .shard = shard, .fp8 = options->precision == KAKEYA_PRECISION_FP8, .limited = options->weights_limit != 0};
    plan_all(&plan, options, w);
    float *frequencies = plan_frequencies(&plan, c, options->drafter, w);
    kakeya_status status = check_plan(&plan, error);
    if (!status && plan.limited) {
        cuda_bounded_layer layers[MODEL_MAX_LAYERS];
        for (int i = 0; i < c->layers; i++)
            layers[i] = (cuda_bounded_layer){&w->layer[i].experts_gate_up, &w->layer[i].experts_down};
        status = cuda_bounded_create(&w->bounded, device, launch, options, layers, plan.bytes, plan.host_bytes, error);
    }
    if (!status)
        status =
            cuda_buffer_create(&w->memory, device, options->account, MEM_WEIGHTS, plan.bytes, "the weights", error);
    size_t expanded = expanded_bytes(c, w, options->precision == KAKEYA_PRECISION_FP8, launch->codes);
    if (!status && expanded)
        status = cuda_buffer_create(&w->expanded, device, options->account, MEM_WORKSPACE, expanded,
                                    "weights of one product in bf16", error);
    if (!status) status = upload(w, device, launch, options, &plan, error);
    if (!status) point_head(options, shard, w);
    note[0] = '\0';
    if (plan.rounded)
        snprintf(note, note_bytes, "backend cuda computes in bf16: weights of type %s are rounded",
                 weight_format_name(plan.rounded->format));
    free(frequencies);
    free(plan.tensors);
    return status;
}

void cuda_weights_destroy(cuda_weights *w) {
    cuda_bounded_destroy(w->bounded);
    w->bounded = NULL;
    cuda_buffer_destroy(&w->memory);
    cuda_buffer_destroy(&w->expanded);
}
