#include "backend/cpu/block.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/assistant.h"
#include "backend/cpu/draft.h"
#include "backend/cpu/head.h"
#include "backend/cpu/matrix.h"
#include "backend/cpu/rope.h"
#include "backend/segments.h"

static size_t kv_width(const block_drafter_config *d) { return (size_t)(d->kv_heads * d->head_dim); }

/* A block of one cache among those in work. */
typedef struct block_part {
    draft_part rows;
    int stored_row; /* of the first one in m->d_block_k/v, a multiple of ATTENTION_BLOCK */
} block_part;

typedef struct block_step {
    draft_step step;
    block_part parts[BACKEND_MAX_SEGMENTS];
    int n_parts, stored_rows;
} block_step;

static int padded_rows(int rows) { return (rows + ATTENTION_BLOCK - 1) / ATTENTION_BLOCK * ATTENTION_BLOCK; }

static void head_row(const block_step *s, const block_part *part, int row) {
    backend_model *m = s->step.model;
    const block_drafter_config *d = s->step.config;
    const block_drafter_layer_weights *w = &m->options.drafter->layer[s->step.layer];
    const cpu_kv_kernels *stored = kv_draft_kernels(part->rows.cache);
    size_t kv = kv_width(d), angle = (size_t)(part->rows.position + row) * (size_t)m->draft_rope.pairs;
    size_t from = (size_t)(part->rows.first_row + row),
           to = (size_t)(part->stored_row + row) * kv_draft_row_bytes(part->rows.cache);
    const float *cosine = m->draft_rope.cosine + angle, *sine = m->draft_rope.sine + angle;
    for (int h = 0; h < d->heads; h++) {
        float *q = m->d_q + (from * (size_t)d->heads + (size_t)h) * (size_t)d->head_dim;
        m->kernels->rms_norm(q, w->q_norm, d->head_dim, d->rms_eps, q);
        m->kernels->rope(q, m->draft_rope.half, m->draft_rope.pairs, cosine, sine);
        m->kernels->scale(1.0f / sqrtf((float)d->head_dim), d->head_dim, q); /* attention scale of the drafter */
    }
    for (int h = 0; h < d->kv_heads; h++) {
        float *k = m->d_k + from * kv + (size_t)(h * d->head_dim);
        m->kernels->rms_norm(k, w->k_norm, d->head_dim, d->rms_eps, k);
        m->kernels->rope(k, m->draft_rope.half, m->draft_rope.pairs, cosine, sine);
    }
    stored->store(m->d_k + from * kv, (int)kv, (char *)m->d_block_k + to);
    stored->store(m->d_v + from * kv, (int)kv, (char *)m->d_block_v + to);
}

static void head_rows(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const block_step *s = context;
    for (int i = 0; i < s->n_parts; i++) {
        const draft_part *rows = &s->parts[i].rows;
        for (int row = 0; row < rows->rows; row++) {
            size_t at = (size_t)(rows->first_row + row);
            if (at >= begin && at < end) head_row(s, &s->parts[i], row);
        }
    }
}

/* The last 16 rows of a block are attended whole, with weight 0 behind its end: no numbers of another session, or of
 * another format, there. */
static void clear_padding(const block_step *s) {
    for (int i = 0; i < s->n_parts; i++) {
        const block_part *part = &s->parts[i];
        size_t row_bytes = kv_draft_row_bytes(part->rows.cache);
        size_t at = (size_t)(part->stored_row + part->rows.rows) * row_bytes;
        size_t bytes = (size_t)(padded_rows(part->rows.rows) - part->rows.rows) * row_bytes;
        memset((char *)s->step.model->d_block_k + at, 0, bytes);
        memset((char *)s->step.model->d_block_v + at, 0, bytes);
    }
}

/* Context keys that the block's row at position t sees; sliding layers count their window from t. */
static int context_begin(const block_step *s, const block_part *part, int t) {
    int begin = timeline_draft_context(&part->rows.cache->t, s->step.layer).begin;
    int sliding = s->step.config->sliding_window[s->step.layer];
    if (sliding && t - sliding + 1 > begin) begin = t - sliding + 1;
    return begin;
}

/* Where the 16 context rows from `base` on lie; the stride in bytes is returned. Positions before `first` and from the
 * block on become zero: their weight is 0, but what lies there may not be a number. */
static size_t locate_context(const draft_part *rows, int layer, int base, int first, size_t head_offset, size_t bytes,
                             thread_scratch *x, const void **k, const void **v) {
    const backend_cache *c = rows->cache;
    *k = kv_draft_row(c, layer, base, true) + head_offset;
    *v = kv_draft_row(c, layer, base, false) + head_offset;
    if (first <= base && base + ATTENTION_BLOCK <= rows->position) return kv_draft_row_bytes(c);
    memset(x->key_block, 0, ATTENTION_BLOCK * bytes);
    memset(x->value_block, 0, ATTENTION_BLOCK * bytes);
    for (int p = base > first ? base : first; p < base + ATTENTION_BLOCK && p < rows->position; p++) {
        size_t at = (size_t)(p - base) * bytes;
        memcpy((char *)x->key_block + at, kv_draft_row(c, layer, p, true) + head_offset, bytes);
        memcpy((char *)x->value_block + at, kv_draft_row(c, layer, p, false) + head_offset, bytes);
    }
    *k = x->key_block;
    *v = x->value_block;
    return bytes;
}

/* One head: context blocks out of the ring, then the block itself: every row sees every row. In a sliding layer it sees
 * those of its window, and none behind itself where the published causal rule inside the block is in force. */
static void block_attend_head(const block_step *s, const block_part *part, int head, thread_scratch *x) {
    backend_model *m = s->step.model;
    const draft_part *own = &part->rows;
    const backend_cache *c = own->cache;
    const block_drafter_config *d = s->step.config;
    int group = d->heads / d->kv_heads, rows = own->rows, queries = rows * group;
    size_t dim = (size_t)d->head_dim, head_bytes = kv_format_row_bytes(c->t.draft_format, 1, (size_t)d->head_dim),
           head_offset = (size_t)head * head_bytes;
    size_t q_row = (size_t)d->heads * dim, row_bytes = kv_draft_row_bytes(c);
    kv_format format = c->t.draft_format;
    const cpu_packing_kernels *packing = &m->kernels->packing[kv_draft_kernels(c)->queries];
    size_t packed = packing->row_bytes(d->head_dim);
    float *state_m = x->state[0], *state_l = state_m + queries, *state_o = state_m + 2 * (size_t)queries;
    for (int i = 0; i < queries; i++) {
        state_m[i] = -INFINITY;
        state_l[i] = 0;
    }
    memset(state_o, 0, (size_t)queries * dim * sizeof(float));
    float *q = m->d_q + (size_t)own->first_row * q_row;
    for (int row = 0; row < rows; row++) {
        packing->pack(q + (size_t)row * q_row + (size_t)(head * group) * dim, dim, group, d->head_dim,
                      (char *)x->q_packed[0] + (size_t)(row * group) * packed);
    }
    int first = context_begin(s, part, own->position);
    for (int base = first / ATTENTION_BLOCK * ATTENTION_BLOCK; base < own->position; base += ATTENTION_BLOCK) {
        for (int i = 0; i < queries; i++) {
            int lo = context_begin(s, part, own->position + i / group) - base, hi = own->position - base;
            x->lo[i] = lo > 0 ? lo : 0;
            x->hi[i] = hi < ATTENTION_BLOCK ? hi : ATTENTION_BLOCK;
            if (x->hi[i] < x->lo[i]) x->hi[i] = x->lo[i];
        }
        const void *k, *v;
        size_t stride = locate_context(own, s->step.layer, base, first, head_offset, head_bytes, x, &k, &v);
        m->kernels->attend_block(queries, x->lo, x->hi, x->q_packed[0], d->head_dim, format, k, stride, d->head_dim,
                                 format, v, stride, NULL, state_m, state_l, state_o, dim);
    }
    int sliding = d->sliding_window[s->step.layer];
    int before = sliding ? sliding - 1 : rows, behind = !sliding                                 ? rows
                                                        : m->options.drafter_block_bidirectional ? before
                                                                                                 : 0;
    for (int base = 0; base < rows; base += ATTENTION_BLOCK) {
        for (int i = 0; i < queries; i++) {
            int row = i / group, end = row + 1 + behind < rows ? row + 1 + behind : rows;
            int lo = row - before - base, hi = end - base;
            x->hi[i] = hi < 0 ? 0 : hi < ATTENTION_BLOCK ? hi : ATTENTION_BLOCK;
            x->lo[i] = lo < 0 ? 0 : lo < x->hi[i] ? lo : x->hi[i];
        }
        size_t at = (size_t)(part->stored_row + base) * row_bytes + head_offset;
        m->kernels->attend_block(queries, x->lo, x->hi, x->q_packed[0], d->head_dim, format, (char *)m->d_block_k + at,
                                 row_bytes, d->head_dim, format, (char *)m->d_block_v + at, row_bytes, NULL, state_m,
                                 state_l, state_o, dim);
    }
    for (int i = 0; i < queries; i++) {
        float *o = state_o + (size_t)i * dim;
        m->kernels->scale(1.0f / state_l[i], d->head_dim, o);
        memcpy(q + (size_t)(i / group) * q_row + (size_t)(head * group + i % group) * dim, o, dim * sizeof(float));
    }
}

/* Items are (block, K/V head) pairs. */
static void block_attend(void *context, size_t begin, size_t end, int thread) {
    const block_step *s = context;
    size_t heads = (size_t)s->step.config->kv_heads;
    for (size_t item = begin; item < end; item++)
        block_attend_head(s, &s->parts[item / heads], (int)(item % heads), &s->step.model->scratch[thread]);
}

/* Norm, q, k, v, head norms and RoPE of the step's rows; K/V also in the stored type in m->d_block_k/v. */
static void block_inputs(block_step *s) {
    backend_model *m = s->step.model;
    const block_drafter_config *d = s->step.config;
    const block_drafter_layer_weights *w = &m->options.drafter->layer[s->step.layer];
    int rows = s->step.rows;
    draft_norm(&s->step, w->input_norm);
    pack(m, &m->d_packed, m->d_x, (size_t)d->hidden, rows, d->hidden,
         packing_of(m, &w->q_proj) | packing_of(m, &w->k_proj) | packing_of(m, &w->v_proj));
    matrix_job jobs[3] = {matrix_product(&m->d_packed, rows, &w->q_proj, m->d_q, (size_t)w->q_proj.out),
                          matrix_product(&m->d_packed, rows, &w->k_proj, m->d_k, kv_width(d)),
                          matrix_product(&m->d_packed, rows, &w->v_proj, m->d_v, kv_width(d))};
    matrix_run(m, jobs, 3);
    rows_run(m, rows, w->q_proj.out + 2 * (int)kv_width(d), head_rows, s);
}

/* As many of the requests' blocks as the workspace takes; how many they are is returned. Leaves the normed hidden
 * states of all rows in m->d_x, one block behind the other. */
static int run_blocks(backend_model *m, const backend_draft_request *requests, int n) {
    const block_drafter_model *drafter = m->options.drafter;
    block_step s = {.step = {.model = m, .config = &drafter->config}};
    for (; s.n_parts < n; s.n_parts++) {
        const backend_draft_request *r = &requests[s.n_parts];
        draft_part rows = {r->cache, s.step.rows, r->n + 1, r->cache->t.length};
        if (s.stored_rows + padded_rows(rows.rows) > m->max_rows) break;
        for (int i = 0; i < rows.rows; i++)
            draft_embed(&s.step, s.step.rows + i, i == 0 ? r->bonus : drafter->config.mask_token);
        s.parts[s.n_parts] = (block_part){rows, s.stored_rows};
        s.step.rows += rows.rows;
        s.stored_rows += padded_rows(rows.rows);
    }
    clear_padding(&s);
    for (s.step.layer = 0; s.step.layer < drafter->config.layers; s.step.layer++) {
        block_inputs(&s);
        thread_pool_for(m->pool, (size_t)s.n_parts * (size_t)drafter->config.kv_heads, 1, block_attend, &s);
        draft_layer_rest(&s.step);
    }
    draft_norm(&s.step, drafter->norm);
    return s.n_parts;
}

static const timeline *timeline_of(const backend_cache *c) { return &c->t; }

static kakeya_status check(backend_model *m, backend_draft_request *requests, int n, kakeya_error *error) {
    kakeya_status status = backend_check_drafts(m->config, requests, n, timeline_of, error);
    for (int i = 0; i < n && !status; i++) {
        const backend_cache *c = requests[i].cache;
        kv_format format = c->t.options.kv_format, first = requests[0].cache->t.options.kv_format;
        if (c->model != m)
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "draft request %d: cache of another model", i);
        if (format != first)
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "draft request %d: K/V formats %s and %s in one call", i,
                             kv_format_name(format), kv_format_name(first));
    }
    return status;
}

/* What block drafters need beside their caches. */
static kakeya_status prepare(backend_model *m, backend_draft_request *requests, int n, kakeya_error *error) {
    backend_cache *caches[BACKEND_MAX_SEGMENTS];
    int furthest = 0;
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; i < n; i++) {
        caches[i] = requests[i].cache;
        int end = caches[i]->t.length + requests[i].n + 1;
        if (end > furthest) furthest = end;
    }
    for (int i = 0; i < n && !status; i++) status = requests[i].status = stores_own_pages(caches[i], error);
    if (!status) status = rope_table_reserve(m, &m->draft_rope, furthest, error);
    if (!status) caches_flush(caches, n);
    return status;
}

kakeya_status draft_block_hidden(backend_cache *c, int32_t bonus, int n, float *hidden, kakeya_error *error) {
    backend_draft_request request = {.cache = c, .bonus = bonus, .n = n};
    kakeya_status status = check(c->model, &request, 1, error);
    if (!status) status = prepare(c->model, &request, 1, error);
    if (status) return status;
    run_blocks(c->model, &request, 1);
    memcpy(hidden, c->model->d_x, (size_t)(n + 1) * (size_t)c->model->options.drafter->config.hidden * sizeof(float));
    return status;
}

/* The drafts of blocks whose hidden states lie in m->d_x. */
static void choose_drafts(backend_model *m, const backend_draft_request *requests, int n) {
    const block_drafter_config *d = &m->options.drafter->config;
    size_t hidden = (size_t)d->hidden, from = 0, to = 0;
    int32_t choice[CPU_MAX_ROWS];
    for (int i = 0; i < n; i++) { /* the first row of a block is the bonus token's */
        size_t rows = (size_t)requests[i].n;
        memmove(m->d_x + to * hidden, m->d_x + (from + 1) * hidden, rows * hidden * sizeof *m->d_x);
        from += rows + 1;
        to += rows;
    }
    int mask = d->mask_token;
    const head_limits limits = {.excluded = &mask, .n_excluded = 1}; /* never proposed */
    head_choose(m, &m->d_packed, m->d_x, (int)to, &limits, choice);
    const int32_t *next = choice;
    for (int i = 0; i < n; next += requests[i++].n)
        memcpy(requests[i].drafts, next, (size_t)requests[i].n * sizeof *next);
}

static kakeya_status draft_blocks(backend_model *m, backend_draft_request *requests, int n_requests,
                                  kakeya_error *error) {
    kakeya_status status = prepare(m, requests, n_requests, error);
    for (int done = 0, n; !status && done < n_requests; done += n) {
        n = run_blocks(m, requests + done, n_requests - done);
        choose_drafts(m, requests + done, n);
    }
    return status;
}

kakeya_status cpu_draft(backend_model *m, backend_draft_request *requests, int n_requests, kakeya_error *error) {
    static const backend_draft_fn drafts_of[BACKEND_DRAFTERS] = {
        [BACKEND_BLOCK_DRAFTER] = draft_blocks, [BACKEND_ASSISTANT] = assistant_draft};
    kakeya_status status = check(m, requests, n_requests, error);
    return status ? status : backend_draft_each(drafts_of, m, requests, n_requests, error);
}
