/* The decoder layers over the rows of all segments (order of operations: transformers 5.17, Gemma4TextDecoderLayer).
 * Matrix products run over all rows at once; attention and K/V stores go segment by segment. Everything that can fail
 * (memory, token ids, room in a context) is checked before the first cache changes. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/segments.h"

enum { MAX_SEGMENTS = 64 };

typedef struct forward_step {
    backend_model *model;
    attention_segment segments[MAX_SEGMENTS];
    backend_segment *requests;
    int n_segments;
    int rows;
    int positions[CPU_MAX_ROWS];    /* per row */
    const gemma4_layer_config *config; /* of the layer in work */
    const gemma4_layer_weights *weights;
    int layer;
} forward_step;

/* ---------------------------------------------------------------------------------------------- embedding */

static void embed_rows(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    forward_step *f = context;
    backend_model *m = f->model;
    const weight *e = &m->weights->embed;
    size_t hidden = (size_t)m->config->hidden;
    size_t row = 0;
    for (int s = 0; s < f->n_segments; s++) {
        for (int i = 0; i < f->requests[s].n; i++, row++) {
            if (row < begin || row >= end) continue;
            load_row(m, e, f->requests[s].tokens[i], 0, (int)hidden, m->h + row * hidden);
            m->kernels->scale(m->embed_scale, (int)hidden, m->h + row * hidden);
        }
    }
}

/* Per-layer inputs (E2B, E4B): (norm(W h0 / sqrt(hidden)) + sqrt(width) * table[token]) / sqrt(2), for all layers at once. */
static void combine_ple(void *context, size_t begin, size_t end, int thread) {
    forward_step *f = context;
    backend_model *m = f->model;
    const gemma4_config *c = m->config;
    const weight *table = &m->weights->ple_embed;
    size_t width = (size_t)c->ple_width, all = (size_t)c->layers * width;
    float *token_part = m->scratch[thread].row;
    float table_scale = sqrtf((float)width), context_scale = 1.0f / sqrtf((float)c->hidden), half = sqrtf(0.5f);
    size_t row = 0;
    for (int s = 0; s < f->n_segments; s++) {
        for (int i = 0; i < f->requests[s].n; i++, row++) {
            if (row < begin || row >= end) continue;
            for (int l = 0; l < c->layers; l++) {
                float *out = m->ple + row * all + (size_t)l * width;
                m->kernels->scale(context_scale, (int)width, out);
                m->kernels->rms_norm(out, m->weights->ple_proj_norm, (int)width, c->rms_eps, out);
                load_row(m, table, f->requests[s].tokens[i], l * (int)width, (int)width, token_part);
                for (size_t j = 0; j < width; j++) out[j] = (out[j] + token_part[j] * table_scale) * half;
            }
        }
    }
}

static void run_ple_inputs(forward_step *f) {
    backend_model *m = f->model;
    const gemma4_config *c = m->config;
    const weight *w = &m->weights->ple_model_proj;
    pack(m, &m->packed, m->h, (size_t)c->hidden, f->rows, c->hidden, input_of(m, w));
    matrix_job job = matrix_product(&m->packed, f->rows, w, m->ple, (size_t)w->out);
    matrix_run(m, &job, 1);
    rows_run(m, f->rows, c->layers * c->ple_width, combine_ple, f);
}

/* ---------------------------------------------------------------------------------------------- attention */

static void input_norm_rows(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    forward_step *f = context;
    backend_model *m = f->model;
    size_t hidden = (size_t)m->config->hidden;
    for (size_t row = begin; row < end; row++) {
        m->kernels->rms_norm(m->h + row * hidden, f->weights->input_norm, (int)hidden, m->config->rms_eps, m->x + row * hidden);
    }
}

/* Head norms and RoPE; new K/V go, in the stored type, into the chunk buffers. */
static void head_rows(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    forward_step *f = context;
    backend_model *m = f->model;
    const cpu_kernels *kernels = m->kernels;
    const rope_table *rope = &m->rope[f->config->type];
    int d = f->config->head_dim, heads = m->config->heads, kv_heads = f->config->kv_heads;
    size_t kv_dim = (size_t)(kv_heads * d);
    bool own_kv = f->config->kv_source == f->layer;
    dtype type = kv_type(f->segments[0].cache);
    float eps = m->config->rms_eps;
    for (size_t row = begin; row < end; row++) {
        size_t angle = (size_t)f->positions[row] * (size_t)rope->pairs;
        const float *cosine = rope->cosine + angle, *sine = rope->sine + angle;
        for (int h = 0; h < heads; h++) {
            float *q = m->q + (row * (size_t)heads + (size_t)h) * (size_t)d;
            kernels->rms_norm(q, f->weights->q_norm, d, eps, q);
            kernels->rope(q, rope->half, rope->pairs, cosine, sine);
        }
        if (!own_kv) continue;
        for (int h = 0; h < kv_heads; h++) {
            float *k = m->k + row * kv_dim + (size_t)(h * d);
            float *v = f->config->k_eq_v ? k : m->v + row * kv_dim + (size_t)(h * d);
            /* V comes first: in K = V layers it is the raw projection, before k_norm and RoPE. */
            kernels->rms_norm(v, NULL, d, eps, v);
            if (f->config->k_eq_v) continue; /* keys are derived from the stored values when attended */
            kernels->rms_norm(k, f->weights->k_norm, d, eps, k);
            kernels->rope(k, rope->half, rope->pairs, cosine, sine);
        }
        size_t at = row * kv_dim * dtype_bytes(type);
        kernels->store(type, f->config->k_eq_v ? m->k + row * kv_dim : m->v + row * kv_dim, (int)kv_dim,
                       chunk_rows(m, f->layer, false) + at);
        if (!f->config->k_eq_v) kernels->store(type, m->k + row * kv_dim, (int)kv_dim, chunk_rows(m, f->layer, true) + at);
    }
}

/* Diagnostics caches keep every position's raw K and V. */
static void keep_own_raw(forward_step *f) {
    backend_model *m = f->model;
    size_t kv_dim = (size_t)(f->config->kv_heads * f->config->head_dim);
    for (int s = 0; s < f->n_segments; s++) {
        const attention_segment *a = &f->segments[s];
        if (!a->cache->own_raw || f->config->kv_source != f->layer) continue;
        for (int i = 0; i < a->rows; i++) {
            float *to = a->cache->own_raw[f->layer] + (size_t)(a->position + i) * 2 * kv_dim;
            size_t row = (size_t)(a->first_row + i) * kv_dim;
            memcpy(to, m->k + row, kv_dim * sizeof(float));
            memcpy(to + kv_dim, (f->config->k_eq_v ? m->k : m->v) + row, kv_dim * sizeof(float));
        }
    }
}

/* Rows [first, rows) of a segment from the chunk buffers into the store of `layer`, and into its sink. */
static void store_chunk(backend_model *m, const attention_segment *a, int layer, int first) {
    backend_cache *c = a->cache;
    layer_store *s = &c->layer[layer];
    size_t bytes = (size_t)s->kv_dim * kv_element_bytes(c);
    for (int i = 0; i < a->rows; i++) {
        int position = a->position + i;
        const unsigned char *v = chunk_rows(m, layer, false) + (size_t)(a->first_row + i) * bytes;
        const unsigned char *k = chunk_rows(m, layer, true) + (size_t)(a->first_row + i) * bytes;
        if (s->sink_v && position < c->options.sink) {
            memcpy(s->sink_v + (size_t)position * bytes, v, bytes);
            if (s->has_k) memcpy(s->sink_k + (size_t)position * bytes, k, bytes);
        }
        if (i < first) continue;
        memcpy(store_row(c, s, position, false), v, bytes);
        if (s->has_k) memcpy(store_row(c, s, position, true), k, bytes);
    }
}

static bool chunk_stays(const attention_segment *a, int layer) {
    return a->kind == SEGMENT_PROMPT && a->cache->layer[layer].kind == STORE_RING;
}

/* Prompt rows of a ring are stored after the layer's attention: writing them earlier would overwrite keys that the
 * chunk's first rows still attend. Everything else is stored before. */
static void store_new_rows(forward_step *f, bool before_attention) {
    if (f->config->kv_source != f->layer) return;
    for (int s = 0; s < f->n_segments; s++) {
        const attention_segment *a = &f->segments[s];
        bool late = chunk_stays(a, f->layer);
        if (late == before_attention) continue;
        if (late && f->layer == f->model->shared_sliding) continue;
        int capacity = a->cache->layer[f->layer].capacity;
        store_chunk(f->model, a, f->layer, late && a->rows > capacity ? a->rows - capacity : 0);
    }
}

static void run_attention(forward_step *f) {
    backend_model *m = f->model;
    const gemma4_layer_weights *w = f->weights;
    const gemma4_layer_config *lc = f->config;
    size_t hidden = (size_t)m->config->hidden, q_dim = (size_t)(m->config->heads * lc->head_dim);
    size_t kv_dim = (size_t)(lc->kv_heads * lc->head_dim);
    rows_run(m, f->rows, (int)hidden, input_norm_rows, f);
    matrix_job jobs[3];
    int n = 0;
    input_set inputs = input_of(m, &w->q_proj);
    jobs[n++] = matrix_product(&m->packed, f->rows, &w->q_proj, m->q, q_dim);
    if (lc->kv_source == f->layer) {
        inputs |= input_of(m, &w->k_proj);
        jobs[n++] = matrix_product(&m->packed, f->rows, &w->k_proj, m->k, kv_dim);
        if (!lc->k_eq_v) {
            inputs |= input_of(m, &w->v_proj);
            jobs[n++] = matrix_product(&m->packed, f->rows, &w->v_proj, m->v, kv_dim);
        }
    }
    pack(m, &m->packed, m->x, hidden, f->rows, (int)hidden, inputs);
    matrix_run(m, jobs, n);
    keep_own_raw(f);
    rows_run(m, f->rows, (int)(q_dim + 2 * kv_dim), head_rows, f);
    store_new_rows(f, true);
    attention_run(m, f->layer, f->segments, f->n_segments);
    store_new_rows(f, false);
    pack(m, &m->packed, m->q, q_dim, f->rows, (int)q_dim, input_of(m, &w->o_proj));
    matrix_job out = matrix_product(&m->packed, f->rows, &w->o_proj, m->branch, hidden);
    matrix_run(m, &out, 1);
}

/* --------------------------------------------------------------------------------------------- feed forward */

/* h += norm(branch); the next block's inputs are normed from the new h. */
static void after_attention_rows(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    forward_step *f = context;
    backend_model *m = f->model;
    size_t hidden = (size_t)m->config->hidden;
    float eps = m->config->rms_eps;
    for (size_t row = begin; row < end; row++) {
        float *branch = m->branch + row * hidden, *h = m->h + row * hidden;
        m->kernels->rms_norm(branch, f->weights->post_attention_norm, (int)hidden, eps, branch);
        m->kernels->axpy(1.0f, branch, (int)hidden, h);
        if (m->config->moe) {
            m->kernels->rms_norm(h, f->weights->pre_ffn_norm_2, (int)hidden, eps, m->x + row * hidden);
        }
    }
}

static void dense_input_rows(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    forward_step *f = context;
    backend_model *m = f->model;
    size_t hidden = (size_t)m->config->hidden;
    for (size_t row = begin; row < end; row++) {
        m->kernels->rms_norm(m->h + row * hidden, f->weights->pre_ffn_norm, (int)hidden, m->config->rms_eps,
                             m->x + row * hidden);
    }
}

static void after_ffn_rows(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    forward_step *f = context;
    backend_model *m = f->model;
    const gemma4_layer_weights *w = f->weights;
    size_t hidden = (size_t)m->config->hidden;
    float eps = m->config->rms_eps;
    for (size_t row = begin; row < end; row++) {
        float *branch = m->branch + row * hidden, *h = m->h + row * hidden;
        if (m->config->moe) {
            float *moe = m->moe + row * hidden;
            m->kernels->rms_norm(branch, w->post_ffn_norm_1, (int)hidden, eps, branch);
            m->kernels->rms_norm(moe, w->post_ffn_norm_2, (int)hidden, eps, moe);
            m->kernels->axpy(1.0f, moe, (int)hidden, branch);
        }
        m->kernels->rms_norm(branch, w->post_ffn_norm, (int)hidden, eps, branch);
        m->kernels->axpy(1.0f, branch, (int)hidden, h);
        if (!m->config->ple_width) m->kernels->scale(w->layer_scalar, (int)hidden, h);
    }
}

static void run_feed_forward(forward_step *f) {
    backend_model *m = f->model;
    const gemma4_layer_weights *w = f->weights;
    int hidden = m->config->hidden;
    rows_run(m, f->rows, 2 * hidden, after_attention_rows, f);
    if (m->config->moe) {
        pack(m, &m->packed_moe, m->x, (size_t)hidden, f->rows, hidden, input_of(m, &w->experts_gate_up));
        experts_route(m, w, f->rows);
    }
    rows_run(m, f->rows, hidden, dense_input_rows, f);
    pack(m, &m->packed, m->x, (size_t)hidden, f->rows, hidden, input_of(m, &w->gate_proj) | input_of(m, &w->up_proj));
    experts_forward(m, w, f->config, f->rows);
    rows_run(m, f->rows, 3 * hidden, after_ffn_rows, f);
}

/* ------------------------------------------------------------------------------------- per-layer embeddings */

static void ple_gate_rows(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    forward_step *f = context;
    backend_model *m = f->model;
    size_t width = (size_t)m->config->ple_width, all = (size_t)m->config->layers * width;
    for (size_t row = begin; row < end; row++) {
        float *gate = m->ple_gate + row * width;
        m->kernels->gated(0, gate, m->ple + row * all + (size_t)f->layer * width, (int)width, gate);
    }
}

static void ple_add_rows(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    forward_step *f = context;
    backend_model *m = f->model;
    size_t hidden = (size_t)m->config->hidden;
    for (size_t row = begin; row < end; row++) {
        float *branch = m->branch + row * hidden, *h = m->h + row * hidden;
        m->kernels->rms_norm(branch, f->weights->post_ple_norm, (int)hidden, m->config->rms_eps, branch);
        m->kernels->axpy(1.0f, branch, (int)hidden, h);
        m->kernels->scale(f->weights->layer_scalar, (int)hidden, h);
    }
}

static void run_ple(forward_step *f) {
    backend_model *m = f->model;
    const gemma4_layer_weights *w = f->weights;
    int hidden = m->config->hidden, width = m->config->ple_width;
    pack(m, &m->packed, m->h, (size_t)hidden, f->rows, hidden, input_of(m, &w->ple_gate));
    matrix_job gate = matrix_product(&m->packed, f->rows, &w->ple_gate, m->ple_gate, (size_t)width);
    matrix_run(m, &gate, 1);
    rows_run(m, f->rows, width, ple_gate_rows, f);
    pack(m, &m->packed, m->ple_gate, (size_t)width, f->rows, width, input_of(m, &w->ple_proj));
    matrix_job out = matrix_product(&m->packed, f->rows, &w->ple_proj, m->branch, (size_t)hidden);
    matrix_run(m, &out, 1);
    rows_run(m, f->rows, 2 * hidden, ple_add_rows, f);
}

/* -------------------------------------------------------------------------------------------------- outputs */

static void copy_hidden(forward_step *f, int index) {
    size_t hidden = (size_t)f->model->config->hidden;
    for (int s = 0; s < f->n_segments; s++) {
        backend_segment *r = &f->requests[s];
        if (!r->hidden_states) continue;
        memcpy(r->hidden_states + (size_t)index * (size_t)r->n * hidden, f->model->h + (size_t)f->segments[s].first_row * hidden,
               (size_t)r->n * hidden * sizeof(float));
    }
}

/* Outputs of the drafter's target layers: prompt rows into the model's buffer (used before this forward returns), decode
 * rows behind the cache's backlog (used when they are committed). */
static void copy_aux(forward_step *f) {
    backend_model *m = f->model;
    const dflash_model *drafter = m->options.drafter;
    if (!drafter) return;
    size_t hidden = (size_t)m->config->hidden, width = (size_t)drafter->config.targets * hidden;
    for (int t = 0; t < drafter->config.targets; t++) {
        if (drafter->config.target_layer[t] != f->layer) continue;
        for (int s = 0; s < f->n_segments; s++) {
            const attention_segment *a = &f->segments[s];
            if (!a->cache->options.keep_draft_context) continue;
            float *to = a->kind == SEGMENT_PROMPT
                            ? m->aux + (size_t)a->first_row * width
                            : a->cache->aux_backlog + (size_t)(a->position - a->cache->draft_length) * width;
            for (int i = 0; i < a->rows; i++) {
                memcpy(to + (size_t)i * width + (size_t)t * hidden, m->h + (size_t)(a->first_row + i) * hidden,
                       hidden * sizeof(float));
            }
        }
    }
}

static void final_norm_rows(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    backend_model *m = ((forward_step *)context)->model;
    size_t hidden = (size_t)m->config->hidden;
    for (size_t row = begin; row < end; row++) {
        m->kernels->rms_norm(m->h + row * hidden, m->weights->final_norm, (int)hidden, m->config->rms_eps, m->h + row * hidden);
    }
}

static void run_head(forward_step *f) {
    backend_model *m = f->model;
    for (int s = 0; s < f->n_segments; s++) {
        backend_segment *r = &f->requests[s];
        int rows = r->n - r->first_logit_row;
        if (rows <= 0) continue;
        const float *x = m->h + (size_t)(f->segments[s].first_row + r->first_logit_row) * (size_t)m->config->hidden;
        if (r->logits) head_logits(m, &m->packed, x, rows, r->logits);
        if (r->argmax) head_choose(m, &m->packed, x, rows, m->config->suppress_tokens, m->config->n_suppress_tokens, r->argmax);
    }
}

/* --------------------------------------------------------------------------------------------------- driver */

static kakeya_status check_segments(backend_model *m, backend_segment *segments, int n_segments, kakeya_error *error) {
    int rows = 0;
    if (n_segments < 1 || n_segments > MAX_SEGMENTS) {
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "%d segments in one forward; 1 to %d are possible", n_segments,
                         MAX_SEGMENTS);
    }
    for (int s = 0; s < n_segments; s++) {
        const backend_segment *r = &segments[s];
        if (r->n < 1 || r->n > m->max_rows - rows) {
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "segment %d has %d tokens; a forward takes 1 to %d in all", s,
                             r->n, m->max_rows);
        }
        rows += r->n;
        if (r->cache->model != m) return error_set(error, KAKEYA_INVALID_ARGUMENT, "segment %d: cache of another model", s);
        if (r->cache->options.kv_format != segments[0].cache->options.kv_format) {
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "segment %d: K/V formats %s and %s in one forward", s,
                             kv_format_name(r->cache->options.kv_format), kv_format_name(segments[0].cache->options.kv_format));
        }
    }
    return backend_check_segments(m->config, segments, n_segments, error);
}

kakeya_status cpu_forward(backend_model *m, backend_segment *segments, int n_segments, kakeya_error *error) {
    kakeya_status status = check_segments(m, segments, n_segments, error);
    if (status) return status;
    forward_step f = {.model = m, .requests = segments, .n_segments = n_segments};
    int furthest = 0;
    for (int s = 0; s < n_segments; s++) {
        backend_cache *c = segments[s].cache;
        status = cache_prepare(c, segments[s].kind, segments[s].n, error);
        if (status) return status;
        if (c->tokens) memcpy(c->tokens + c->length, segments[s].tokens, (size_t)segments[s].n * sizeof *c->tokens);
        f.segments[s] = (attention_segment){c, f.rows, segments[s].n, c->length, segments[s].kind};
        for (int i = 0; i < segments[s].n; i++) f.positions[f.rows++] = c->length + i;
        if (c->length + segments[s].n > furthest) furthest = c->length + segments[s].n;
    }
    for (int type = 0; type < 2; type++) {
        if (!m->rope[type].inverse_frequency) continue;
        status = rope_table_reserve(m, &m->rope[type], furthest + ATTENTION_BLOCK, error);
        if (status) return status;
    }
    if (m->options.drafter) {
        int ahead = furthest + BACKEND_MAX_DECODE_ROWS + ATTENTION_BLOCK;
        status = rope_table_reserve(m, &m->draft_rope, ahead, error);
        if (status) return status;
    }

    /* From here on nothing fails. */
    rows_run(m, f.rows, m->config->hidden, embed_rows, &f);
    copy_hidden(&f, 0);
    if (m->config->ple_width) run_ple_inputs(&f);
    for (int i = 0; i < m->config->layers; i++) {
        f.layer = i;
        f.config = &m->config->layer[i];
        f.weights = &m->weights->layer[i];
        run_attention(&f);
        run_feed_forward(&f);
        if (m->config->ple_width) run_ple(&f);
        copy_aux(&f);
        if (i + 1 < m->config->layers) copy_hidden(&f, i + 1);
    }
    rows_run(m, f.rows, m->config->hidden, final_norm_rows, &f);
    copy_hidden(&f, m->config->layers);
    run_head(&f);
    for (int s = 0; s < n_segments; s++) {
        const attention_segment *a = &f.segments[s];
        backend_cache *c = a->cache;
        if (m->shared_sliding >= 0 && chunk_stays(a, m->shared_sliding)) {
            int capacity = c->layer[m->shared_sliding].capacity;
            store_chunk(m, a, m->shared_sliding, a->rows > capacity ? a->rows - capacity : 0);
        }
        c->pending = a->rows;
        c->pending_kind = a->kind;
        if (c->length + a->rows > c->high) c->high = c->length + a->rows;
        if (a->kind == SEGMENT_PROMPT && c->options.keep_draft_context) {
            size_t width = (size_t)m->options.drafter->config.targets * (size_t)m->config->hidden;
            draft_extend(c, m->aux + (size_t)a->first_row * width, a->rows, a->position);
        }
    }
    return KAKEYA_OK;
}
