#include "backend/cpu/block.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/draft.h"
#include "backend/cpu/head.h"
#include "backend/cpu/matrix.h"
#include "backend/cpu/rope.h"
#include "backend/segments.h"

static size_t kv_width(const dflash_config *d) { return (size_t)(d->kv_heads * d->head_dim); }

static void block_heads(draft_step *s) {
    backend_model *m = s->model;
    const dflash_config *d = s->config;
    const dflash_layer_weights *w = &m->options.drafter->layer[s->layer];
    size_t kv = kv_width(d), row_bytes = kv_draft_row_bytes(s->cache);
    const cpu_kv_kernels *stored = kv_kernels(s->cache);
    for (int row = 0; row < s->rows; row++) {
        size_t angle = (size_t)(s->position + row) * (size_t)m->draft_rope.pairs;
        const float *cosine = m->draft_rope.cosine + angle, *sine = m->draft_rope.sine + angle;
        for (int h = 0; h < d->heads; h++) {
            float *q = m->d_q + ((size_t)row * (size_t)d->heads + (size_t)h) * (size_t)d->head_dim;
            m->kernels->rms_norm(q, w->q_norm, d->head_dim, d->rms_eps, q);
            m->kernels->rope(q, m->draft_rope.half, m->draft_rope.pairs, cosine, sine);
            m->kernels->scale(1.0f / sqrtf((float)d->head_dim), d->head_dim, q); /* attention scale of the drafter */
        }
        for (int h = 0; h < d->kv_heads; h++) {
            float *k = m->d_k + (size_t)row * kv + (size_t)(h * d->head_dim);
            m->kernels->rms_norm(k, w->k_norm, d->head_dim, d->rms_eps, k);
            m->kernels->rope(k, m->draft_rope.half, m->draft_rope.pairs, cosine, sine);
        }
        stored->store(m->d_k + (size_t)row * kv, (int)kv, (char *)m->d_block_k + (size_t)row * row_bytes);
        stored->store(m->d_v + (size_t)row * kv, (int)kv, (char *)m->d_block_v + (size_t)row * row_bytes);
    }
    /* The last 16 rows are attended whole, with weight 0 behind the block: no numbers of another session's format
     * there. */
    memset((char *)m->d_block_k + (size_t)s->rows * row_bytes, 0, (ATTENTION_BLOCK - 1) * row_bytes);
    memset((char *)m->d_block_v + (size_t)s->rows * row_bytes, 0, (ATTENTION_BLOCK - 1) * row_bytes);
}

/* Context keys that the block's row at position t sees; sliding layers count their window from t. */
static int context_begin(const draft_step *s, int t) {
    int begin = timeline_draft_context(&s->cache->t, s->layer).begin;
    int sliding = s->config->sliding_window[s->layer];
    if (sliding && t - sliding + 1 > begin) begin = t - sliding + 1;
    return begin;
}

/* Where the 16 context rows from `base` on lie; the stride in bytes is returned. Positions before `first` and from the
 * block on become zero: their weight is 0, but what lies there may not be a number. */
static size_t locate_context(const draft_step *s, int base, int first, size_t head_offset, size_t bytes,
                             thread_scratch *x, const void **k, const void **v) {
    const backend_cache *c = s->cache;
    *k = kv_draft_row(c, s->layer, base, true) + head_offset;
    *v = kv_draft_row(c, s->layer, base, false) + head_offset;
    if (first <= base && base + ATTENTION_BLOCK <= s->position) return kv_draft_row_bytes(c);
    memset(x->key_block, 0, ATTENTION_BLOCK * bytes);
    memset(x->value_block, 0, ATTENTION_BLOCK * bytes);
    for (int p = base > first ? base : first; p < base + ATTENTION_BLOCK && p < s->position; p++) {
        size_t at = (size_t)(p - base) * bytes;
        memcpy((char *)x->key_block + at, kv_draft_row(c, s->layer, p, true) + head_offset, bytes);
        memcpy((char *)x->value_block + at, kv_draft_row(c, s->layer, p, false) + head_offset, bytes);
    }
    *k = x->key_block;
    *v = x->value_block;
    return bytes;
}

/* One head: context blocks out of the ring, then the block itself: every row sees every row. In a sliding layer it sees
 * those of its window, and none behind itself where the published causal rule inside the block is in force. */
static void block_attend_head(draft_step *s, int head, thread_scratch *x) {
    backend_model *m = s->model;
    backend_cache *c = s->cache;
    const dflash_config *d = s->config;
    int group = d->heads / d->kv_heads, queries = s->rows * group;
    size_t dim = (size_t)d->head_dim, head_bytes = kv_values_bytes(c, d->head_dim),
           head_offset = (size_t)head * head_bytes;
    size_t q_row = (size_t)d->heads * dim, row_bytes = kv_draft_row_bytes(c);
    kv_format format = c->t.options.kv_format;
    const cpu_packing_kernels *packing = &m->kernels->packing[kv_kernels(c)->queries];
    size_t packed = packing->row_bytes(d->head_dim);
    float *state_m = x->state[0], *state_l = state_m + queries, *state_o = state_m + 2 * (size_t)queries;
    for (int i = 0; i < queries; i++) {
        state_m[i] = -INFINITY;
        state_l[i] = 0;
    }
    memset(state_o, 0, (size_t)queries * dim * sizeof(float));
    for (int row = 0; row < s->rows; row++) {
        packing->pack(m->d_q + (size_t)row * q_row + (size_t)(head * group) * dim, dim, group, d->head_dim,
                      (char *)x->q_packed[0] + (size_t)(row * group) * packed);
    }
    int first = context_begin(s, s->position);
    for (int base = first / ATTENTION_BLOCK * ATTENTION_BLOCK; base < s->position; base += ATTENTION_BLOCK) {
        for (int i = 0; i < queries; i++) {
            int lo = context_begin(s, s->position + i / group) - base, hi = s->position - base;
            x->lo[i] = lo > 0 ? lo : 0;
            x->hi[i] = hi < ATTENTION_BLOCK ? hi : ATTENTION_BLOCK;
            if (x->hi[i] < x->lo[i]) x->hi[i] = x->lo[i];
        }
        const void *k, *v;
        size_t stride = locate_context(s, base, first, head_offset, head_bytes, x, &k, &v);
        m->kernels->attend_block(queries, x->lo, x->hi, x->q_packed[0], d->head_dim, format, k, stride, d->head_dim,
                                 format, v, stride, NULL, state_m, state_l, state_o, dim);
    }
    int sliding = s->config->sliding_window[s->layer];
    int before = sliding ? sliding - 1 : s->rows, behind = !sliding                                 ? s->rows
                                                           : m->options.drafter_block_bidirectional ? before
                                                                                                    : 0;
    for (int base = 0; base < s->rows; base += ATTENTION_BLOCK) {
        for (int i = 0; i < queries; i++) {
            int row = i / group, end = row + 1 + behind < s->rows ? row + 1 + behind : s->rows;
            int lo = row - before - base, hi = end - base;
            x->hi[i] = hi < 0 ? 0 : hi < ATTENTION_BLOCK ? hi : ATTENTION_BLOCK;
            x->lo[i] = lo < 0 ? 0 : lo < x->hi[i] ? lo : x->hi[i];
        }
        size_t at = (size_t)base * row_bytes + head_offset;
        m->kernels->attend_block(queries, x->lo, x->hi, x->q_packed[0], d->head_dim, format, (char *)m->d_block_k + at,
                                 row_bytes, d->head_dim, format, (char *)m->d_block_v + at, row_bytes, NULL, state_m,
                                 state_l, state_o, dim);
    }
    for (int i = 0; i < queries; i++) {
        float *o = state_o + (size_t)i * dim;
        m->kernels->scale(1.0f / state_l[i], d->head_dim, o);
        memcpy(m->d_q + (size_t)(i / group) * q_row + (size_t)(head * group + i % group) * dim, o, dim * sizeof(float));
    }
}

static void block_attend(void *context, size_t begin, size_t end, int thread) {
    draft_step *s = context;
    for (size_t head = begin; head < end; head++) block_attend_head(s, (int)head, &s->model->scratch[thread]);
}

/* Norm, q, k, v, head norms and RoPE of the step's rows; K/V also in the stored type in m->d_block_k/v. */
static void block_inputs(draft_step *s) {
    backend_model *m = s->model;
    const dflash_config *d = s->config;
    const dflash_layer_weights *w = &m->options.drafter->layer[s->layer];
    draft_norm(s, w->input_norm);
    pack(m, &m->d_packed, m->d_x, (size_t)d->hidden, s->rows, d->hidden,
         packing_of(m, &w->q_proj) | packing_of(m, &w->k_proj) | packing_of(m, &w->v_proj));
    matrix_job jobs[3] = {matrix_product(&m->d_packed, s->rows, &w->q_proj, m->d_q, (size_t)w->q_proj.out),
                          matrix_product(&m->d_packed, s->rows, &w->k_proj, m->d_k, kv_width(d)),
                          matrix_product(&m->d_packed, s->rows, &w->v_proj, m->d_v, kv_width(d))};
    matrix_run(m, jobs, 3);
    block_heads(s);
}

/* Leaves the normed hidden states of the block in m->d_x. */
static kakeya_status run_block(backend_cache *c, int32_t bonus, int n, kakeya_error *error) {
    backend_model *m = c->model;
    kakeya_status status = rope_table_reserve(m, &m->draft_rope, c->t.length + n + 1, error);
    if (status) return status;
    cache_flush(c);
    const dflash_model *drafter = m->options.drafter;
    draft_step s = {.cache = c, .model = m, .config = &drafter->config, .rows = n + 1, .position = c->t.length};
    for (int row = 0; row <= n; row++) draft_embed(&s, row, row == 0 ? bonus : drafter->config.mask_token);
    for (s.layer = 0; s.layer < drafter->config.layers; s.layer++) {
        block_inputs(&s);
        thread_pool_for(m->pool, (size_t)drafter->config.kv_heads, 1, block_attend, &s);
        draft_layer_rest(&s);
    }
    draft_norm(&s, drafter->norm);
    return KAKEYA_OK;
}

static const timeline *timeline_of(const backend_cache *c) { return &c->t; }

kakeya_status draft_block_hidden(backend_cache *c, int32_t bonus, int n, float *hidden, kakeya_error *error) {
    backend_draft_request request = {.cache = c, .bonus = bonus, .n = n};
    kakeya_status status = backend_check_drafts(c->model->config, &request, 1, timeline_of, error);
    if (!status) status = run_block(c, bonus, n, error);
    if (!status)
        memcpy(hidden, c->model->d_x,
               (size_t)(n + 1) * (size_t)c->model->options.drafter->config.hidden * sizeof(float));
    return status;
}

kakeya_status cpu_draft(backend_model *m, backend_draft_request *requests, int n_requests, kakeya_error *error) {
    kakeya_status status = backend_check_drafts(m->config, requests, n_requests, timeline_of, error);
    for (int i = 0; i < n_requests && !status; i++) {
        backend_draft_request *r = &requests[i];
        status = r->status = run_block(r->cache, r->bonus, r->n, error);
        if (status) break;
        const dflash_config *d = &m->options.drafter->config;
        int mask = d->mask_token; /* never proposed */
        head_choose(m, &m->d_packed, m->d_x + d->hidden, r->n, &mask, 1, r->drafts);
    }
    return status;
}
