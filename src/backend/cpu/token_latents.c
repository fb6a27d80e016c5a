#include "backend/cpu/token_latents.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/draft.h"
#include "backend/cpu/matrix.h"

typedef struct token_pass {
    backend_cache *cache;
    draft_step step;
    int first, n;  /* rows of the pass */
    int chunk;     /* first row of the chunk in work */
    float *state;  /* [n][hidden] */
    float *raw;    /* [n][2 * layers * kv]: raw K of all layers, then raw V */
    float *keys;   /* [n + 16][kv] keys of the layer after k_norm and RoPE */
    float *values; /* [n + 16][kv] */
    size_t kv, all;
} token_pass;

static size_t hidden_of(const token_pass *p) { return (size_t)p->step.config->hidden; }

static void begin_chunk(token_pass *p, int chunk) {
    backend_model *m = p->step.model;
    p->chunk = chunk;
    p->step.rows = p->n - chunk < m->max_rows ? p->n - chunk : m->max_rows;
    memcpy(m->d_state, p->state + (size_t)chunk * hidden_of(p), (size_t)p->step.rows * hidden_of(p) * sizeof(float));
}

/* Raw K and V of the chunk's rows in the current layer. */
static void project_chunk(token_pass *p) {
    backend_model *m = p->step.model;
    const block_drafter_layer_weights *w = &m->options.drafter->layer[p->step.layer];
    float *k = p->raw + (size_t)p->chunk * 2 * p->all + (size_t)p->step.layer * p->kv;
    draft_norm(&p->step, w->input_norm);
    pack(m, &m->d_packed, m->d_x, hidden_of(p), p->step.rows, p->step.config->hidden,
         packing_of(m, &w->k_proj) | packing_of(m, &w->v_proj));
    matrix_job jobs[2] = {matrix_product(&m->d_packed, p->step.rows, &w->k_proj, k, 2 * p->all),
                          matrix_product(&m->d_packed, p->step.rows, &w->v_proj, k + p->all, 2 * p->all)};
    matrix_run(m, jobs, 2);
}

static void rotate_heads(const token_pass *p, float *x, int heads, const float *norm, int position) {
    const backend_model *m = p->step.model;
    const block_drafter_config *d = p->step.config;
    size_t angle = (size_t)position * (size_t)m->draft_rope.pairs;
    for (int h = 0; h < heads; h++) {
        float *head = x + (size_t)(h * d->head_dim);
        m->kernels->rms_norm(head, norm, d->head_dim, d->rms_eps, head);
        m->kernels->rope(head, m->draft_rope.half, m->draft_rope.pairs, m->draft_rope.cosine + angle,
                         m->draft_rope.sine + angle);
    }
}

static void rotate_keys(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    token_pass *p = context;
    for (size_t row = begin; row < end; row++) {
        const float *raw = p->raw + row * 2 * p->all + (size_t)p->step.layer * p->kv;
        memcpy(p->keys + row * p->kv, raw, p->kv * sizeof(float));
        memcpy(p->values + row * p->kv, raw + p->all, p->kv * sizeof(float));
        rotate_heads(p, p->keys + row * p->kv, p->step.config->kv_heads,
                     p->step.model->options.drafter->layer[p->step.layer].k_norm, p->first + (int)row);
    }
}

static void project_queries(token_pass *p) {
    backend_model *m = p->step.model;
    const block_drafter_layer_weights *w = &m->options.drafter->layer[p->step.layer];
    draft_norm(&p->step, w->input_norm);
    pack(m, &m->d_packed, m->d_x, hidden_of(p), p->step.rows, p->step.config->hidden, packing_of(m, &w->q_proj));
    matrix_job job = matrix_product(&m->d_packed, p->step.rows, &w->q_proj, m->d_q, (size_t)w->q_proj.out);
    matrix_run(m, &job, 1);
}

/* One (row, K/V head): its query group attends all rows of the pass. */
static void attend_rows(void *context, size_t begin, size_t end, int thread) {
    token_pass *p = context;
    backend_model *m = p->step.model;
    const block_drafter_config *d = p->step.config;
    thread_scratch *x = &m->scratch[thread];
    int group = d->heads / d->kv_heads;
    size_t dim = (size_t)d->head_dim;
    const float *q_norm = m->options.drafter->layer[p->step.layer].q_norm;
    for (size_t item = begin; item < end; item++) {
        size_t row = item / (size_t)d->kv_heads, head = item % (size_t)d->kv_heads;
        float *q = m->d_q + (row * (size_t)d->heads + head * (size_t)group) * dim;
        rotate_heads(p, q, group, q_norm, p->first + p->chunk + (int)row);
        m->kernels->scale(1.0f / sqrtf((float)d->head_dim), group * d->head_dim, q);
        m->kernels->packing[m->kernels->kv[KV_FORMAT_F32].queries].pack(q, dim, group, d->head_dim, x->q_packed[0]);
        float *state_m = x->state[0], *state_l = state_m + group, *state_o = state_m + 2 * (size_t)group;
        for (int i = 0; i < group; i++) {
            state_m[i] = -INFINITY;
            state_l[i] = 0;
            x->lo[i] = 0;
        }
        memset(state_o, 0, (size_t)group * dim * sizeof(float));
        for (int base = 0; base < p->n; base += ATTENTION_BLOCK) {
            for (int i = 0; i < group; i++) x->hi[i] = p->n - base < ATTENTION_BLOCK ? p->n - base : ATTENTION_BLOCK;
            size_t at = (size_t)base * p->kv + head * dim;
            m->kernels->attend_block(group, x->lo, x->hi, x->q_packed[0], d->head_dim, KV_FORMAT_F32, p->keys + at,
                                     p->kv * sizeof(float), d->head_dim, KV_FORMAT_F32, p->values + at,
                                     p->kv * sizeof(float), NULL, state_m, state_l, state_o, dim);
        }
        for (int i = 0; i < group; i++) {
            m->kernels->scale(1.0f / state_l[i], d->head_dim, state_o + (size_t)i * dim);
        }
        memcpy(q, state_o, (size_t)group * dim * sizeof(float));
    }
}

/* Raw rows [skip, n) -> latents; rows that the latent ring would not hold any more are skipped. */
static void store_latents(token_pass *p) {
    backend_model *m = p->step.model;
    int skip = p->n - timeline_latent_rows(&p->cache->t, p->n);
    for (int row = skip, rows; row < p->n; row += rows) {
        rows = p->n - row < m->max_rows ? p->n - row : m->max_rows;
        memcpy(m->d_context, p->raw + (size_t)row * 2 * p->all, (size_t)rows * 2 * p->all * sizeof(float));
        draft_part part = {p->cache, 0, rows, p->first + row};
        latents_of_context(m, &part, 1);
    }
}

/* Floats of a pass over n rows: token_pass.state, raw, keys, values, one behind the other. */
static size_t pass_floats(const block_drafter_config *d, size_t n) {
    size_t kv = (size_t)(d->kv_heads * d->head_dim), padded = n + ATTENTION_BLOCK;
    return n * (size_t)d->hidden + n * 2 * (size_t)d->layers * kv + 2 * padded * kv;
}

kakeya_status token_latents_reserve(backend_cache *c, position_range rows, kakeya_error *error) {
    size_t bytes = pass_floats(c->t.models.drafter, (size_t)(rows.end - rows.begin)) * sizeof(float);
    c->pass = mem_alloc(c->account, MEM_WORKSPACE, bytes);
    if (c->pass) return KAKEYA_OK;
    return error_set(error, KAKEYA_OUT_OF_MEMORY,
                     "out of memory: the drafter's pass over %d prompt tokens needs %zu bytes", rows.end - rows.begin,
                     bytes);
}

void token_latents_prompt(backend_cache *c, position_range rows) {
    backend_model *m = c->model;
    const block_drafter_config *d = &m->options.drafter->config;
    token_pass p = {.cache = c,
                    .step = {.model = m, .config = d},
                    .first = rows.begin,
                    .n = rows.end - rows.begin,
                    .kv = (size_t)(d->kv_heads * d->head_dim)};
    p.all = (size_t)d->layers * p.kv;
    size_t n = (size_t)p.n, padded = n + ATTENTION_BLOCK;
    p.state = c->pass;
    p.raw = p.state + n * hidden_of(&p);
    p.keys = p.raw + n * 2 * p.all;
    p.values = p.keys + padded * p.kv;
    for (int row = 0; row < p.n; row += p.step.rows) {
        p.step.rows = p.n - row < m->max_rows ? p.n - row : m->max_rows;
        for (int i = 0; i < p.step.rows; i++) draft_embed(&p.step, i, c->tokens[p.first + row + i]);
        memcpy(p.state + (size_t)row * hidden_of(&p), m->d_state, (size_t)p.step.rows * hidden_of(&p) * sizeof(float));
    }
    for (p.step.layer = 0; p.step.layer < d->layers; p.step.layer++) {
        for (int row = 0; row < p.n; row += p.step.rows) {
            begin_chunk(&p, row);
            project_chunk(&p);
        }
        if (p.step.layer + 1 == d->layers) break; /* nothing reads the last layer's output */
        rows_run(m, p.n, d->kv_heads * d->head_dim, rotate_keys, &p);
        for (int row = 0; row < p.n; row += p.step.rows) {
            begin_chunk(&p, row);
            project_queries(&p);
            rows_run(m, p.step.rows * d->kv_heads, p.n * d->head_dim, attend_rows, &p);
            draft_layer_rest(&p.step);
            memcpy(p.state + (size_t)row * hidden_of(&p), m->d_state,
                   (size_t)p.step.rows * hidden_of(&p) * sizeof(float));
        }
    }
    store_latents(&p);
    mem_free(c->pass);
    c->pass = NULL;
}

/* The rows of parts that fit into the workspace together. */
static void alone_together(backend_model *m, const draft_part *parts, int n_parts, int n) {
    const block_drafter_config *d = &m->options.drafter->config;
    draft_step s = {.model = m, .config = d, .rows = n};
    size_t kv = (size_t)(d->kv_heads * d->head_dim), all = (size_t)d->layers * kv, dim = (size_t)d->head_dim;
    size_t group = (size_t)(d->heads / d->kv_heads);
    for (int i = 0; i < n_parts; i++) {
        const int32_t *tokens = parts[i].cache->tokens + parts[i].position;
        for (int row = 0; row < parts[i].rows; row++) draft_embed(&s, parts[i].first_row + row, tokens[row]);
    }
    for (s.layer = 0; s.layer < d->layers; s.layer++) {
        const block_drafter_layer_weights *w = &m->options.drafter->layer[s.layer];
        float *k = m->d_context + (size_t)s.layer * kv;
        draft_norm(&s, w->input_norm);
        pack(m, &m->d_packed, m->d_x, (size_t)d->hidden, n, d->hidden,
             packing_of(m, &w->k_proj) | packing_of(m, &w->v_proj));
        matrix_job jobs[2] = {matrix_product(&m->d_packed, n, &w->k_proj, k, 2 * all),
                              matrix_product(&m->d_packed, n, &w->v_proj, k + all, 2 * all)};
        matrix_run(m, jobs, 2);
        if (s.layer + 1 == d->layers) break;
        for (size_t row = 0; row < (size_t)n;
             row++) { /* a lone key has weight one: every query's output is its value */
            for (size_t h = 0; h < (size_t)d->heads; h++) {
                memcpy(m->d_q + (row * (size_t)d->heads + h) * dim, k + row * 2 * all + all + h / group * dim,
                       dim * sizeof(float));
            }
        }
        draft_layer_rest(&s);
    }
    latents_of_context(m, parts, n_parts);
}

void token_latents_alone(backend_model *m, const draft_rows *entries, int n) {
    draft_part parts[BACKEND_MAX_FORWARD];
    int n_parts = 0, rows = 0;
    for (int i = 0; i < n; i++) {
        if (rows + entries[i].rows > m->max_rows) {
            alone_together(m, parts, n_parts, rows);
            n_parts = rows = 0;
        }
        parts[n_parts++] = (draft_part){entries[i].cache, rows, entries[i].rows, entries[i].position};
        rows += entries[i].rows;
    }
    if (n_parts) alone_together(m, parts, n_parts, rows);
}
