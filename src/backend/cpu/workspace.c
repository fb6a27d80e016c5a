#include "backend/cpu/workspace.h"

#include <string.h>

#include "backend/cpu/attention.h"
#include "backend/cpu/experts.h"
#include "backend/cpu/latents.h"
#include "backend/cpu/matrix.h"
#include "backend/cpu/restored_keys.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

static int max_int(int a, int b) { return a > b ? a : b; }

typedef struct shape_limits {
    int q, kv, intermediate, head_dim, row;
} shape_limits;

static shape_limits model_limits(const backend_model *m) {
    const model_config *c = m->config;
    shape_limits s = {0};
    for (int i = 0; i < c->layers; i++) {
        const layer_config *l = &c->layer[i];
        s.q = max_int(s.q, c->heads * l->head_dim);
        s.kv = max_int(s.kv, l->kv_heads * l->head_dim);
        s.intermediate = max_int(s.intermediate, l->intermediate);
        s.head_dim = max_int(s.head_dim, l->head_dim);
    }
    if (m->options.drafter) s.head_dim = max_int(s.head_dim, m->options.drafter->config.head_dim);
    s.row = max_int(max_int(s.q, s.kv), c->hidden);
    if (m->options.restoration) s.row = max_int(s.row, m->options.restoration->encoder_in);
    return s;
}

/* ------------------------------------------------------------------------------------------- packings of inputs */

typedef struct input_packings {
    packing_set model, experts_in, down, experts_down; /* of the verifier's matrices, by what they read */
    packing_set draft, draft_aux, draft_down, latent;  /* of the drafter's and of the restoration's */
} input_packings;

static void verifier_packings(const backend_model *m, input_packings *p) {
    const model_weights *w = m->weights;
    p->model = packing_of(m, &w->head) | packing_of(m, &w->ple_model_proj);
    for (int i = 0; i < m->config->layers; i++) {
        const layer_weights *l = &w->layer[i];
        const weight *const readers[] = {&l->q_proj,    &l->k_proj,  &l->v_proj,   &l->o_proj,
                                         &l->gate_proj, &l->up_proj, &l->ple_gate, &l->ple_proj};
        for (int r = 0; r < COUNT(readers); r++) p->model |= packing_of(m, readers[r]);
        p->model |= packing_exact(m, &l->router_proj);
        p->down |= packing_of(m, &l->down_proj);
        p->experts_in |= experts_packings(m, l);
        p->experts_down |= packing_of(m, &l->experts_down);
    }
}

static void drafter_packings(const backend_model *m, input_packings *p) {
    const block_drafter_model *d = m->options.drafter;
    p->draft = packing_of(m, &m->weights->head);
    p->draft_aux = packing_of(m, &d->fc);
    for (int i = 0; i < d->config.layers; i++) {
        const block_drafter_layer_weights *l = &d->layer[i];
        const weight *const readers[] = {&l->q_proj, &l->k_proj, &l->v_proj, &l->o_proj, &l->gate_proj, &l->up_proj};
        for (int r = 0; r < COUNT(readers); r++) p->draft |= packing_of(m, readers[r]);
        p->draft_down |= packing_of(m, &l->down_proj);
    }
}

static void restoration_packings(const backend_model *m, input_packings *p) {
    const restoration_model *f = m->options.restoration;
    p->latent = packing_of(m, &f->encoder_k) | packing_of(m, &f->encoder_v);
    for (int i = 0; i < f->config.layers; i++) {
        p->latent |= packing_exact(m, &f->decoder_k[i]) | packing_exact(m, &f->decoder_v[i]);
    }
}

/* Bytes of a row of latents as a decoder wants it. */
static size_t packed_latent_bytes(const backend_model *m) {
    const restoration_model *f = m->options.restoration;
    size_t most = 0;
    for (int i = 0; f && i < f->config.layers; i++) {
        const weight *const decoders[] = {&f->decoder_k[i], &f->decoder_v[i]};
        for (int half = 0; half < 2; half++) {
            size_t bytes = weight_present(decoders[half]) ? multiply_alone_bytes(m, decoders[half], 1) : 0;
            if (bytes > most) most = bytes;
        }
    }
    return most;
}

/* --------------------------------------------------------------------------------------------------- allocation */

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

#define FLOATS(field, count)                                                                                           \
    { (void **)(void *)&m->field, (size_t)(count) * sizeof(float) }
#define INTS(field, count)                                                                                             \
    { (void **)(void *)&m->field, (size_t)(count) * sizeof(int) }
static int shared_sliding_layer(const model_config *c) {
    for (int i = 0; i < c->layers; i++) {
        int source = c->layer[i].kv_source;
        if (source != i && c->layer[source].type == LAYER_SLIDING) return source;
    }
    return -1;
}

static kakeya_status allocate_verifier(backend_model *m, const shape_limits *s, const input_packings *p,
                                       kakeya_error *error) {
    const model_config *c = m->config;
    size_t rows = (size_t)m->max_rows, hidden = (size_t)c->hidden;
    size_t slots = c->moe ? rows * (size_t)c->experts_per_token : 0;
    size_t ple = (size_t)c->layers * (size_t)c->ple_width;
    size_t chunk = (rows + 2 * ATTENTION_BLOCK) * (size_t)s->kv * sizeof(float);
    m->shared_sliding = shared_sliding_layer(c);
    m->head_stride = (c->vocab + SCREEN_OUTPUTS - 1) / SCREEN_OUTPUTS * SCREEN_OUTPUTS;
    size_t shared = m->shared_sliding >= 0 ? chunk : 0;
    m->max_taps = (m->options.drafter ? m->options.drafter->config.targets : 0) +
                  (m->options.restoration ? m->options.restoration->config.aux_layers : 0);
    m->max_jobs = 2 + (c->moe ? 2 * c->experts : 0); /* gate and up of an expert may be apart */
    if (m->max_jobs < 4) m->max_jobs = 4;
    m->partial_floats = attention_partial_floats(m, c->max_context);
    const buffer_request requests[] = {
        FLOATS(h, rows * hidden),
        FLOATS(x, rows * hidden),
        FLOATS(q, rows * (size_t)s->q),
        FLOATS(k, rows * (size_t)s->kv),
        FLOATS(v, rows * (size_t)s->kv),
        FLOATS(branch, rows * hidden),
        FLOATS(gate_up, rows * 2 * (size_t)s->intermediate),
        FLOATS(ple, rows * ple),
        FLOATS(ple_gate, rows * (size_t)c->ple_width),
        FLOATS(x_experts, slots ? rows * hidden : 0),
        FLOATS(head_logits, (size_t)CPU_HEAD_ROWS * (size_t)m->head_stride),
        FLOATS(router_logits, rows * (size_t)c->experts),
        INTS(expert_of, slots),
        FLOATS(expert_weight, slots),
        INTS(expert_rows, slots),
        INTS(expert_slot, slots),
        INTS(expert_begin, slots ? 2 * c->experts + 1 : 0),
        FLOATS(expert_gate_up, slots * 2 * (size_t)c->expert_intermediate),
        FLOATS(expert_out, slots * hidden),
        FLOATS(aux, rows * (size_t)m->max_taps * hidden),
        FLOATS(partial, m->partial_floats),
        {&m->chunk_k, chunk},
        {&m->chunk_v, chunk},
        {&m->shared_k, shared},
        {&m->shared_v, shared},
        {(void **)(void *)&m->ops, (size_t)program_most_ops(c) * sizeof *m->ops},
        {(void **)(void *)&m->launch, (size_t)program_most_ops(c) * sizeof *m->launch},
        {(void **)(void *)&m->jobs, (size_t)m->max_jobs * (sizeof(matrix_job) + sizeof(weight))},
    };
    kakeya_status status = allocate_all(m, requests, COUNT(requests), error);
    if (!status) status = packed_rows_create(m, &m->packed, m->max_rows, max_int(s->q, c->hidden), p->model, error);
    if (!status) status = packed_rows_create(m, &m->packed_act, m->max_rows, s->intermediate, p->down, error);
    if (!status && c->moe) status = packed_rows_create(m, &m->packed_moe, m->max_rows, c->hidden, p->experts_in, error);
    if (!status && c->moe)
        status = packed_rows_create(m, &m->packed_slots, (int)slots, c->hidden, p->experts_in, error);
    if (!status && c->moe) {
        status =
            packed_rows_create(m, &m->packed_act_slots, (int)slots, c->expert_intermediate, p->experts_down, error);
    }
    return status;
}

static kakeya_status allocate_scratch(backend_model *m, const shape_limits *s, kakeya_error *error) {
    size_t queries = (size_t)attention_max_queries(m),
           rank = m->options.restoration ? (size_t)m->options.restoration->config.rank : 0;
    size_t latent_bytes = packed_latent_bytes(m);
    size_t q_bytes = latent_bytes; /* of a packed query, and of a packed sum of latents */
    for (int f = 0; f < KV_FORMAT_COUNT; f++) {
        size_t bytes = m->kernels->packing[m->kernels->kv[f].queries].row_bytes(s->head_dim);
        if (bytes > q_bytes) q_bytes = bytes;
    }
    size_t state = attention_state_floats(m) * sizeof(float);
    size_t row = (size_t)max_int(s->row, 2 * (int)rank) + (size_t)s->head_dim;
    m->scratch = mem_alloc(m->account, MEM_WORKSPACE, (size_t)m->threads * sizeof *m->scratch);
    if (!m->scratch) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for %d threads", m->threads);
    for (int t = 0; t < m->threads; t++) {
        thread_scratch *x = &m->scratch[t];
        const buffer_request requests[] = {
            {&x->q_packed[0], queries * q_bytes},
            {&x->q_packed[1], queries * q_bytes},
            {(void **)(void *)&x->key_block, ATTENTION_BLOCK * (size_t)s->head_dim * sizeof(float)},
            {(void **)(void *)&x->value_block, ATTENTION_BLOCK * (size_t)s->head_dim * sizeof(float)},
            {(void **)(void *)&x->latent_block, ATTENTION_BLOCK * rank * sizeof(float)},
            {&x->latent_packed, ATTENTION_BLOCK * latent_bytes},
            {(void **)(void *)&x->lo, queries * sizeof(int)},
            {(void **)(void *)&x->hi, queries * sizeof(int)},
            {(void **)(void *)&x->state[0], state},
            {(void **)(void *)&x->state[1], rank ? state : 0},
            {(void **)(void *)&x->state[2], state},
            {(void **)(void *)&x->state[3], rank ? state : 0},
            {(void **)(void *)&x->row, row * sizeof(float)},
        };
        kakeya_status status = allocate_all(m, requests, COUNT(requests), error);
        if (status) return status;
    }
    return KAKEYA_OK;
}

static kakeya_status allocate_drafter(backend_model *m, const input_packings *p, kakeya_error *error) {
    const block_drafter_config *d = &m->options.drafter->config;
    size_t rows = (size_t)m->max_rows;
    size_t kv = (size_t)(d->kv_heads * d->head_dim), q = (size_t)(d->heads * d->head_dim);
    size_t all_kv = (size_t)d->layers * kv;
    size_t block_kv = (rows + ATTENTION_BLOCK) * kv * sizeof(float);
    const buffer_request requests[] = {
        FLOATS(d_state, rows * (size_t)d->hidden),
        FLOATS(d_x, rows * (size_t)d->hidden),
        FLOATS(d_q, rows * q),
        FLOATS(d_k, rows * kv),
        FLOATS(d_v, rows * kv),
        FLOATS(d_context, rows * 2 * all_kv),
        FLOATS(d_gate_up, rows * 2 * (size_t)d->intermediate),
        {&m->d_block_k, block_kv},
        {&m->d_block_v, block_kv},
    };
    kakeya_status status = allocate_all(m, requests, COUNT(requests), error);
    int aux = d->targets * m->config->hidden;
    if (!status) status = packed_rows_create(m, &m->d_packed, m->max_rows, max_int((int)q, d->hidden), p->draft, error);
    if (!status) status = packed_rows_create(m, &m->d_packed_aux, m->max_rows, aux, p->draft_aux, error);
    if (!status) status = packed_rows_create(m, &m->d_packed_act, m->max_rows, d->intermediate, p->draft_down, error);
    return status;
}

static kakeya_status allocate_restoration(backend_model *m, const input_packings *p, kakeya_error *error) {
    const restoration_model *f = m->options.restoration;
    const buffer_request requests[] = {
        FLOATS(latent_in, (size_t)m->max_rows * latents_in_floats(m)),
        FLOATS(latent_out, (size_t)m->max_rows * latents_out_floats(m)),
    };
    kakeya_status status = allocate_all(m, requests, COUNT(requests), error);
    if (status) return status;
    return packed_rows_create(m, &m->packed_latent_in, m->max_rows, max_int(f->encoder_in, f->config.rank), p->latent,
                              error);
}

kakeya_status workspace_create(backend_model *m, kakeya_error *error) {
    shape_limits limits = model_limits(m);
    input_packings packings = {0};
    verifier_packings(m, &packings);
    if (m->options.drafter) drafter_packings(m, &packings);
    if (m->options.restoration) restoration_packings(m, &packings);
    kakeya_status status = allocate_verifier(m, &limits, &packings, error);
    if (!status && m->options.drafter) status = allocate_drafter(m, &packings, error);
    if (!status && m->options.restoration) status = allocate_restoration(m, &packings, error);
    if (!status) status = allocate_scratch(m, &limits, error);
    return status;
}

/* ------------------------------------------------------------------------------------------------ moving, release */

enum { BUFFERS = 39, PACKED = 9 };

typedef struct workspace_parts {
    void *buffer[BUFFERS];
    packed_rows packed[PACKED];
    thread_scratch *scratch;
} workspace_parts;

static void addresses(backend_model *m, void **buffer[BUFFERS], packed_rows *packed[PACKED]) {
#define AT(field) (void **)(void *)&m->field
    void **const buffers[] = {AT(h),
                              AT(x),
                              AT(q),
                              AT(k),
                              AT(v),
                              AT(branch),
                              AT(gate_up),
                              AT(x_experts),
                              AT(ple),
                              AT(ple_gate),
                              AT(router_logits),
                              AT(expert_of),
                              AT(expert_weight),
                              AT(expert_rows),
                              AT(expert_slot),
                              AT(expert_begin),
                              AT(expert_gate_up),
                              AT(expert_out),
                              AT(aux),
                              AT(partial),
                              AT(chunk_k),
                              AT(chunk_v),
                              AT(shared_k),
                              AT(shared_v),
                              AT(ops),
                              AT(launch),
                              AT(jobs),
                              AT(d_state),
                              AT(d_x),
                              AT(d_q),
                              AT(d_k),
                              AT(d_v),
                              AT(d_gate_up),
                              AT(d_context),
                              AT(d_block_k),
                              AT(d_block_v),
                              AT(head_logits),
                              AT(latent_in),
                              AT(latent_out)};
#undef AT
    packed_rows *const all[] = {&m->packed,       &m->packed_moe,       &m->packed_slots,
                                &m->packed_act,   &m->packed_act_slots, &m->d_packed,
                                &m->d_packed_aux, &m->d_packed_act,     &m->packed_latent_in};
    _Static_assert(sizeof buffers / sizeof *buffers == BUFFERS && sizeof all / sizeof *all == PACKED, "all of them");
    memcpy(buffer, buffers, sizeof buffers);
    memcpy(packed, all, sizeof all);
}

/* Moves the workspace out of the model, which then has none. */
static void take(backend_model *m, workspace_parts *out) {
    void **buffer[BUFFERS];
    packed_rows *packed[PACKED];
    addresses(m, buffer, packed);
    for (int i = 0; i < BUFFERS; i++) {
        out->buffer[i] = *buffer[i];
        *buffer[i] = NULL;
    }
    for (int i = 0; i < PACKED; i++) {
        out->packed[i] = *packed[i];
        *packed[i] = (packed_rows){0};
    }
    out->scratch = m->scratch;
    m->scratch = NULL;
}

static void put(backend_model *m, const workspace_parts *parts) {
    void **buffer[BUFFERS];
    packed_rows *packed[PACKED];
    addresses(m, buffer, packed);
    for (int i = 0; i < BUFFERS; i++) *buffer[i] = parts->buffer[i];
    for (int i = 0; i < PACKED; i++) *packed[i] = parts->packed[i];
    m->scratch = parts->scratch;
}

static void release(const backend_model *m, workspace_parts *parts) {
    for (int i = 0; i < BUFFERS; i++) mem_free(parts->buffer[i]);
    for (int i = 0; i < PACKED; i++) packed_rows_destroy(&parts->packed[i]);
    for (int t = 0; parts->scratch && t < m->threads; t++) {
        thread_scratch *x = &parts->scratch[t];
        void *of_thread[] = {x->q_packed[0],   x->q_packed[1], x->key_block, x->value_block, x->latent_block,
                             x->latent_packed, x->lo,          x->hi,        x->state[0],    x->state[1],
                             x->state[2],      x->state[3],    x->row};
        for (int i = 0; i < COUNT(of_thread); i++) mem_free(of_thread[i]);
    }
    mem_free(parts->scratch);
}

kakeya_status workspace_grow(backend_model *m, int rows, kakeya_error *error) {
    enum { STEP = 128 };
    const int before = m->max_rows, rounded = (rows + STEP - 1) / STEP * STEP;
    workspace_parts old, fresh;
    take(m, &old);
    m->max_rows = rounded < m->most_rows ? rounded : m->most_rows;
    kakeya_status status = workspace_create(m, error);
    take(m, &fresh);
    put(m, status ? &old : &fresh);
    release(m, status ? &fresh : &old);
    if (status)
        m->max_rows = before;
    else
        m->launches = 0; /* the list lay in what is gone */
    return status;
}

void workspace_destroy(backend_model *m) {
    workspace_parts all;
    take(m, &all);
    release(m, &all);
    restored_keys_destroy(m);
}
