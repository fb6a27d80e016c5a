/* Creation of a CPU model: thread pool, kernel table, workspace for the largest forward, RoPE tables. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/attention.h"
#include "backend/cpu/block.h"
#include "backend/cpu/cache.h"
#include "backend/cpu/forward.h"
#include "backend/cpu/head.h"
#include "backend/cpu/matrix.h"
#include "backend/cpu/rope.h"

static unsigned format_bit(const weight *w) { return weight_present(w) ? 1u << w->format : 0u; }

static unsigned layer_formats(const gemma4_layer_weights *w) {
    return format_bit(&w->q_proj) | format_bit(&w->k_proj) | format_bit(&w->v_proj) | format_bit(&w->o_proj) |
           format_bit(&w->gate_proj) | format_bit(&w->up_proj) | format_bit(&w->down_proj) | format_bit(&w->router_proj) |
           format_bit(&w->experts_gate_up) | format_bit(&w->experts_down) | format_bit(&w->ple_gate) | format_bit(&w->ple_proj);
}

static int max_int(int a, int b) { return a > b ? a : b; }

typedef struct shape_limits {
    int q, kv, intermediate, head_dim, row;
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
    }
    if (m->options.drafter) s.head_dim = max_int(s.head_dim, m->options.drafter->config.head_dim);
    s.row = max_int(max_int(s.q, s.kv), c->hidden);
    if (m->options.f_theta) s.row = max_int(s.row, m->options.f_theta->encoder_in);
    return s;
}

/* A list of float buffers, so that one loop allocates and one loop frees. */
typedef struct buffer_request {
    void **target;
    size_t bytes;
} buffer_request;

static kakeya_status allocate_all(backend_model *m, const buffer_request *requests, int n, kakeya_error *error) {
    for (int i = 0; i < n; i++) {
        if (requests[i].bytes == 0) continue;
        *requests[i].target = mem_alloc(m->account, MEM_WORKSPACE, requests[i].bytes);
        if (!*requests[i].target) {
            return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: workspace needs another %zu bytes",
                             requests[i].bytes);
        }
    }
    return KAKEYA_OK;
}

#define FLOATS(field, count) {(void **)(void *)&m->field, (size_t)(count) * sizeof(float)}
#define INTS(field, count) {(void **)(void *)&m->field, (size_t)(count) * sizeof(int)}
#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

static int shared_sliding_layer(const gemma4_config *c) {
    for (int i = 0; i < c->layers; i++) {
        int source = c->layer[i].kv_source;
        if (source != i && c->layer[source].type == GEMMA4_SLIDING) return source;
    }
    return -1;
}

static kakeya_status allocate_verifier(backend_model *m, const shape_limits *s, kakeya_error *error) {
    const gemma4_config *c = m->config;
    size_t rows = (size_t)m->max_rows, hidden = (size_t)c->hidden;
    size_t slots = c->moe ? rows * (size_t)c->experts_per_token : 0;
    size_t ple = (size_t)c->layers * (size_t)c->ple_width;
    size_t chunk = (rows + 2 * ATTENTION_BLOCK) * (size_t)s->kv * sizeof(float);
    m->shared_sliding = shared_sliding_layer(c);
    m->head_stride = (c->vocab + SCREEN_OUTPUTS - 1) / SCREEN_OUTPUTS * SCREEN_OUTPUTS;
    size_t shared = m->shared_sliding >= 0 ? chunk : 0;
    size_t targets = m->options.drafter ? (size_t)m->options.drafter->config.targets : 0;
    m->max_jobs = 2 + (c->moe ? c->experts : 0);
    if (m->max_jobs < 4) m->max_jobs = 4;
    m->partial_floats = attention_partial_floats(m, c->max_context);
    const buffer_request requests[] = {
        FLOATS(h, rows * hidden), FLOATS(x, rows * hidden), FLOATS(q, rows * (size_t)s->q),
        FLOATS(k, rows * (size_t)s->kv), FLOATS(v, rows * (size_t)s->kv), FLOATS(branch, rows * hidden),
        FLOATS(gate_up, rows * 2 * (size_t)s->intermediate), FLOATS(ple, rows * ple),
        FLOATS(ple_gate, rows * (size_t)c->ple_width), FLOATS(moe, slots ? rows * hidden : 0),
        FLOATS(head_logits, (size_t)BACKEND_MAX_DECODE_ROWS * (size_t)m->head_stride),
        FLOATS(router_logits, rows * (size_t)c->experts), INTS(expert_of, slots), FLOATS(expert_weight, slots),
        INTS(expert_rows, slots), INTS(expert_slot, slots), INTS(expert_begin, slots ? c->experts + 1 : 0),
        FLOATS(expert_gate_up, slots * 2 * (size_t)c->expert_intermediate), FLOATS(expert_out, slots * hidden),
        FLOATS(aux, rows * targets * hidden), FLOATS(partial, m->partial_floats),
        {&m->chunk_k, chunk}, {&m->chunk_v, chunk}, {&m->shared_k, shared}, {&m->shared_v, shared},
        {(void **)(void *)&m->jobs, (size_t)m->max_jobs * (sizeof(matrix_job) + sizeof(weight))},
    };
    kakeya_status status = allocate_all(m, requests, COUNT(requests), error);
    unsigned formats = m->weight_formats;
    if (!status) status = packed_rows_create(m, &m->packed, m->max_rows, max_int(s->q, c->hidden), formats, error);
    if (!status && c->moe) status = packed_rows_create(m, &m->packed_moe, m->max_rows, c->hidden, formats, error);
    if (!status && c->moe) status = packed_rows_create(m, &m->packed_slots, (int)slots, c->hidden, formats, error);
    if (!status) status = packed_rows_create(m, &m->packed_act, m->max_rows, s->intermediate, formats, error);
    if (!status && c->moe) {
        status = packed_rows_create(m, &m->packed_act_slots, (int)slots, c->expert_intermediate, formats, error);
    }
    return status;
}

static kakeya_status allocate_scratch(backend_model *m, const shape_limits *s, kakeya_error *error) {
    size_t queries = (size_t)attention_max_queries(m), rank = m->options.f_theta ? (size_t)m->options.f_theta->config.rank : 0;
    size_t q_bytes = 0; /* of a packed query, and of a packed sum of latents */
    for (int t = 0; t < DTYPE_COUNT; t++) {
        size_t bytes = m->kernels->pack_row_bytes((dtype)t, false, max_int(s->head_dim, (int)rank));
        if (bytes > q_bytes) q_bytes = bytes;
    }
    size_t latent_bytes = rank ? m->kernels->pack_row_bytes(DTYPE_BF16, false, (int)rank) : 0;
    if (rank && m->kernels->pack_row_bytes(DTYPE_F32, false, (int)rank) > latent_bytes) {
        latent_bytes = m->kernels->pack_row_bytes(DTYPE_F32, false, (int)rank);
    }
    size_t state = attention_state_floats(m) * sizeof(float);
    size_t row = (size_t)max_int(s->row, 2 * (int)rank) + (size_t)s->head_dim;
    m->scratch = mem_alloc(m->account, MEM_WORKSPACE, (size_t)m->threads * sizeof *m->scratch);
    if (!m->scratch) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for %d threads", m->threads);
    for (int t = 0; t < m->threads; t++) {
        thread_scratch *x = &m->scratch[t];
        const buffer_request requests[] = {
            {&x->q_packed[0], queries * q_bytes}, {&x->q_packed[1], queries * q_bytes},
            {(void **)(void *)&x->key_block, ATTENTION_BLOCK * (size_t)s->head_dim * sizeof(float)},
            {(void **)(void *)&x->value_block, ATTENTION_BLOCK * (size_t)s->head_dim * sizeof(float)},
            {(void **)(void *)&x->latent_block, ATTENTION_BLOCK * rank * sizeof(float)},
            {&x->latent_packed, ATTENTION_BLOCK * latent_bytes},
            {(void **)(void *)&x->lo, queries * sizeof(int)}, {(void **)(void *)&x->hi, queries * sizeof(int)},
            {(void **)(void *)&x->state[0], state}, {(void **)(void *)&x->state[1], rank ? state : 0},
            {(void **)(void *)&x->state[2], state}, {(void **)(void *)&x->state[3], rank ? state : 0},
            {(void **)(void *)&x->row, row * sizeof(float)},
        };
        kakeya_status status = allocate_all(m, requests, COUNT(requests), error);
        if (status) return status;
    }
    return KAKEYA_OK;
}

static kakeya_status allocate_drafter(backend_model *m, kakeya_error *error) {
    const dflash_config *d = &m->options.drafter->config;
    size_t rows = (size_t)m->max_rows, block = BACKEND_MAX_DECODE_ROWS;
    size_t kv = (size_t)(d->kv_heads * d->head_dim), q = (size_t)(d->heads * d->head_dim);
    size_t all_kv = (size_t)d->layers * kv;
    size_t block_kv = (block + 2 * ATTENTION_BLOCK) * kv * sizeof(float);
    size_t rank = m->options.f_theta ? (size_t)m->options.f_theta->config.rank : 0;
    size_t max_kv = 0;
    for (int i = 0; rank && i < m->config->layers; i++) {
        size_t width = (size_t)(m->config->layer[i].kv_heads * m->config->layer[i].head_dim);
        if (width > max_kv) max_kv = width;
    }
    const buffer_request requests[] = {
        FLOATS(d_state, rows * (size_t)d->hidden), FLOATS(d_x, rows * (size_t)d->hidden), FLOATS(d_q, rows * q),
        FLOATS(d_k, rows * kv), FLOATS(d_v, rows * kv), FLOATS(d_context, rows * 2 * all_kv),
        FLOATS(d_gate_up, rows * 2 * (size_t)d->intermediate),
        {&m->d_block_k, block_kv}, {&m->d_block_v, block_kv},
        FLOATS(latent_out, rank ? rows * (2 * rank + max_kv) : 0),
    };
    kakeya_status status = allocate_all(m, requests, COUNT(requests), error);
    unsigned formats = m->draft_formats | m->weight_formats;
    int aux = d->targets * m->config->hidden;
    if (!status) status = packed_rows_create(m, &m->d_packed, m->max_rows, max_int((int)q, d->hidden), formats, error);
    if (!status) status = packed_rows_create(m, &m->d_packed_aux, m->max_rows, aux, formats, error);
    if (!status) status = packed_rows_create(m, &m->d_packed_act, m->max_rows, d->intermediate, formats, error);
    if (!status && rank) {
        status = packed_rows_create(m, &m->packed_latent_in, m->max_rows, max_int((int)all_kv, (int)rank), formats, error);
    }
    if (!status) {
        status = rope_table_create(m, &m->draft_rope, d->rope_theta, 1.0f, d->head_dim, d->head_dim / 2, error);
    }
    return status;
}

static void find_formats(backend_model *m) {
    m->weight_formats = format_bit(&m->weights->embed) | format_bit(&m->weights->head) | format_bit(&m->weights->ple_model_proj);
    for (int i = 0; i < m->config->layers; i++) m->weight_formats |= layer_formats(&m->weights->layer[i]);
    const dflash_model *d = m->options.drafter;
    if (d) {
        m->draft_formats = format_bit(&d->fc);
        for (int i = 0; i < d->config.layers; i++) {
            const dflash_layer_weights *w = &d->layer[i];
            m->draft_formats |= format_bit(&w->q_proj) | format_bit(&w->k_proj) | format_bit(&w->v_proj) | format_bit(&w->o_proj) |
                              format_bit(&w->gate_proj) | format_bit(&w->up_proj) | format_bit(&w->down_proj);
        }
    }
    const f_theta_model *f = m->options.f_theta;
    if (f) {
        m->draft_formats |= format_bit(&f->encoder_k) | format_bit(&f->encoder_v);
        for (int i = 0; i < f->config.layers; i++) m->draft_formats |= format_bit(&f->decoder_k[i]) | format_bit(&f->decoder_v[i]);
    }
}

static void cpu_model_destroy(backend_model *m) {
    if (!m) return;
    void *buffers[] = {m->h, m->x, m->q, m->k, m->v, m->branch, m->gate_up, m->moe, m->ple, m->ple_gate,
                       m->router_logits, m->expert_of, m->expert_weight, m->expert_rows, m->expert_slot, m->expert_begin,
                       m->expert_gate_up, m->expert_out, m->aux, m->partial, m->chunk_k, m->chunk_v, m->shared_k, m->shared_v,
                       m->jobs, m->d_state, m->d_x, m->d_q, m->d_k, m->d_v, m->d_gate_up, m->d_context, m->d_block_k, m->d_block_v,
                       m->head_logits, m->latent_out};
    for (int i = 0; i < COUNT(buffers); i++) mem_free(buffers[i]);
    packed_rows *packed[] = {&m->packed, &m->packed_moe, &m->packed_slots, &m->packed_act, &m->packed_act_slots,
                             &m->d_packed, &m->d_packed_aux, &m->d_packed_act, &m->packed_latent_in};
    for (int i = 0; i < COUNT(packed); i++) packed_rows_destroy(packed[i]);
    for (int t = 0; m->scratch && t < m->threads; t++) {
        thread_scratch *x = &m->scratch[t];
        void *parts[] = {x->q_packed[0], x->q_packed[1], x->key_block, x->value_block, x->latent_block, x->latent_packed,
                         x->lo, x->hi, x->state[0], x->state[1], x->state[2], x->state[3], x->row};
        for (int i = 0; i < COUNT(parts); i++) mem_free(parts[i]);
    }
    mem_free(m->scratch);
    head_destroy(m);
    rope_table_destroy(&m->rope[GEMMA4_SLIDING]);
    rope_table_destroy(&m->rope[GEMMA4_FULL]);
    rope_table_destroy(&m->draft_rope);
    thread_pool_destroy(m->pool);
    free(m);
}

static kakeya_status cpu_model_create(const backend_model_options *options, backend_model **out, kakeya_error *error) {
    *out = NULL;
    backend_model *m = calloc(1, sizeof *m);
    if (!m) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for the model");
    m->options = *options;
    m->config = &options->verifier->config;
    m->weights = &options->verifier->weights;
    m->account = options->account;
    m->round = options->precision == KAKEYA_PRECISION_BF16;
    m->kernels = cpu_kernels_find(options->isa);
    kakeya_status status = KAKEYA_OK;
    if (!m->kernels) {
        status = error_set(error, KAKEYA_UNSUPPORTED, "kernel set '%s' is unknown or not supported by this CPU",
                           options->isa ? options->isa : "(best)");
    }
    if (!status) status = thread_pool_create(options->threads, &m->pool, error);
    if (!status) {
        m->threads = thread_pool_size(m->pool);
        snprintf(m->description, sizeof m->description, "cpu/%s, %d thread%s", m->kernels->name, m->threads,
                 m->threads == 1 ? "" : "s");
        m->max_rows = CPU_MAX_ROWS;
        find_formats(m);
        /* sqrt(hidden), rounded to the weight type as the reference does when it computes in bf16 */
        m->embed_scale = sqrtf((float)m->config->hidden);
        if (m->round) m->embed_scale = bf16_to_f32(f32_to_bf16(m->embed_scale));

        shape_limits limits = model_limits(m);
        status = allocate_verifier(m, &limits, error);
        if (!status && options->drafter) status = allocate_drafter(m, error);
        if (!status) status = allocate_scratch(m, &limits, error);
        for (int type = 0; !status && type < 2; type++) {
            int head_dim = 0;
            for (int i = 0; i < m->config->layers; i++) {
                if ((int)m->config->layer[i].type == type) head_dim = m->config->layer[i].head_dim;
            }
            if (!head_dim) continue;
            const gemma4_rope *r = &m->config->rope[type];
            status = rope_table_create(m, &m->rope[type], r->theta, r->factor, head_dim, r->rotated_pairs, error);
        }
        if (!status) head_create(m);
    }
    if (status) {
        cpu_model_destroy(m);
        return status;
    }
    *out = m;
    return KAKEYA_OK;
}

static const char *cpu_description(const backend_model *m) { return m->description; }
static int cpu_prompt_chunk(const backend_model *m) { return m->max_rows; }

const backend_ops *cpu_backend(void) {
    static const backend_ops ops = {
        .name = "cpu",
        .model_create = cpu_model_create,
        .model_destroy = cpu_model_destroy,
        .model_description = cpu_description,
        .model_prompt_chunk = cpu_prompt_chunk,
        .cache_create = cpu_cache_create,
        .cache_destroy = cpu_cache_destroy,
        .cache_length = cpu_cache_length,
        .cache_pending = cpu_cache_pending,
        .cache_min_truncate = cpu_cache_min_truncate,
        .forward = cpu_forward,
        .cache_commit = cpu_cache_commit,
        .cache_truncate = cpu_cache_truncate,
        .cache_fork = cpu_cache_fork,
        .cache_bytes = cpu_cache_bytes,
        .cache_snapshot_bytes = cpu_cache_snapshot_bytes,
        .cache_snapshot = cpu_cache_snapshot,
        .cache_restore = cpu_cache_restore,
        .draft = cpu_draft,
        .finds_argmax = true,
    };
    return &ops;
}
