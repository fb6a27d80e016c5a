/* The decoder layers over the rows of all segments (order of operations: transformers 5.17, Gemma4TextDecoderLayer).
 * Matrix products run over all rows at once, attention takes its work from one list over the segments; only what goes
 * into K/V stores goes segment by segment. Everything that can fail (memory, token ids, room in a context) is checked
 * before the first cache changes. */
#include "backend/cpu/forward.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "backend/cpu/attention.h"
#include "backend/cpu/cache.h"
#include "backend/cpu/experts.h"
#include "backend/cpu/head.h"
#include "backend/cpu/matrix.h"
#include "backend/cpu/restored_keys.h"
#include "backend/cpu/rope.h"
#include "backend/cpu/watch.h"
#include "backend/measure.h"
#include "backend/segments.h"

typedef struct forward_step {
    backend_model *model;
    attention_segment segments[BACKEND_MAX_FORWARD];
    timeline_step steps[BACKEND_MAX_FORWARD];
    backend_segment *requests;
    int n_segments;
    int rows;
    int positions[CPU_MAX_ROWS];       /* per row */
    const gemma4_layer_config *config; /* of the layer in work */
    const gemma4_layer_weights *weights;
    int layer;
    atomic_bool burst; /* a new K or V is not a finite number; once so, a row stays so */
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

/* Per-layer inputs (E2B, E4B): (norm(W h0 / sqrt(hidden)) + sqrt(width) * table[token]) / sqrt(2), for all layers at
 * once. */
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
    pack(m, &m->packed, m->h, (size_t)c->hidden, f->rows, c->hidden, packing_of(m, w));
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
        m->kernels->rms_norm(m->h + row * hidden, f->weights->input_norm, (int)hidden, m->config->rms_eps,
                             m->x + row * hidden);
    }
}

static bool is_finite(const cpu_kernels *kernels, const float *x, size_t n) {
    return !isnan(kernels->maximum(x, (int)n));
}

/* K or V of one row, head by head, in the layer's stored form. */
static void store_row(const forward_step *f, const backend_cache *cache, size_t row, const float *values, bool is_k) {
    const timeline_layer *l = &cache->t.layer[f->layer];
    const cpu_kv_kernels *stored = kv_kernels(cache, f->layer);
    unsigned char *to = chunk_rows(f->model, f->layer, is_k) + row * l->row_bytes;
    for (int h = 0; h < f->config->kv_heads; h++, values += f->config->head_dim, to += l->head_bytes)
        stored->store(values, f->config->head_dim, to);
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
    const backend_cache *cache = f->segments[0].cache;
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
        bool finite = is_finite(kernels, m->k + row * kv_dim, kv_dim);
        if (!f->config->k_eq_v) finite &= is_finite(kernels, m->v + row * kv_dim, kv_dim);
        if (!finite) atomic_store(&f->burst, true);
        store_row(f, cache, row, f->config->k_eq_v ? m->k + row * kv_dim : m->v + row * kv_dim, false);
        if (!f->config->k_eq_v) store_row(f, cache, row, m->k + row * kv_dim, true);
    }
}

/* While formats are compared: what a format under test would give back takes the place of new rows. */
static void recode_rows(const forward_step *f) {
    backend_model *m = f->model;
    const backend_cache *cache = f->segments[0].cache;
    const backend_recoding *recoding = m->recoding;
    const timeline_layer *l = &cache->t.layer[f->layer];
    const cpu_kv_kernels *stored = kv_kernels(cache, f->layer);
    float *values = m->scratch[0].row;
    if (f->config->kv_source != f->layer || f->config->type != GEMMA4_FULL) return;
    for (int is_k = 0; is_k < (l->has_keys ? 2 : 1); is_k++) {
        unsigned char *row = chunk_rows(m, f->layer, is_k);
        for (int i = 0; i < f->rows * f->config->kv_heads; i++, row += l->head_bytes) {
            stored->load(row, f->config->head_dim, values);
            recoding->vector(recoding->user, f->layer, values, f->config->head_dim);
            stored->store(values, f->config->head_dim, row);
        }
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

/* The last `stored` rows of a segment from the chunk buffers into the store of `layer`, and all of them into its sink.
 */
static void store_chunk(backend_model *m, const attention_segment *a, int layer, int stored) {
    backend_cache *c = a->cache;
    const timeline_layer *l = &c->t.layer[layer];
    size_t bytes = kv_row_bytes(c, layer);
    int sink = l->bounded ? c->t.options.sink : 0;
    for (int is_k = 0; is_k < (l->has_keys ? 2 : 1); is_k++) {
        const unsigned char *row = chunk_rows(m, layer, is_k) + (size_t)a->first_row * bytes;
        for (int i = 0; i < a->rows; i++, row += bytes) {
            int position = a->position + i;
            if (position < sink) memcpy(kv_sink_row(c, layer, position, is_k), row, bytes);
            if (i >= a->rows - stored) memcpy(kv_row(c, layer, position, is_k), row, bytes);
        }
    }
}

static bool chunk_stays(const attention_segment *a, int layer) {
    return a->kind == SEGMENT_PROMPT && a->cache->t.layer[layer].kind == STORE_RING;
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
        store_chunk(f->model, a, f->layer, late ? f->steps[s].stored : a->rows);
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
    packing_set packings = packing_of(m, &w->q_proj);
    jobs[n++] = matrix_product(&m->packed, f->rows, &w->q_proj, m->q, q_dim);
    if (lc->kv_source == f->layer) {
        packings |= packing_of(m, &w->k_proj);
        jobs[n++] = matrix_product(&m->packed, f->rows, &w->k_proj, m->k, kv_dim);
        if (!lc->k_eq_v) {
            packings |= packing_of(m, &w->v_proj);
            jobs[n++] = matrix_product(&m->packed, f->rows, &w->v_proj, m->v, kv_dim);
        }
    }
    pack(m, &m->packed, m->x, hidden, f->rows, (int)hidden, packings);
    matrix_run(m, jobs, n);
    keep_own_raw(f);
    forward_watch *watch = m->watch;
    if (watch) {
        watch_copy(watch->raw_k, m->k, (size_t)f->rows, kv_dim);
        watch_copy(watch->raw_v, lc->k_eq_v ? m->k : m->v, (size_t)f->rows, kv_dim);
    }
    rows_run(m, f->rows, (int)(q_dim + 2 * kv_dim), head_rows, f);
    if (watch) watch_copy(watch->q, m->q, (size_t)f->rows, q_dim);
    if (m->recoding) recode_rows(f);
    store_new_rows(f, true);
    attention_run(m, f->layer, f->segments, f->n_segments, f->burst);
    store_new_rows(f, false);
    if (watch) watch_copy(watch->o, m->q, (size_t)f->rows, q_dim);
    pack(m, &m->packed, m->q, q_dim, f->rows, (int)q_dim, packing_of(m, &w->o_proj));
    matrix_job out = matrix_product(&m->packed, f->rows, &w->o_proj, m->branch, hidden);
    matrix_run(m, &out, 1);
    if (watch) watch_copy(watch->out, m->branch, (size_t)f->rows, hidden);
}

/* Training looks at the layer that has just been computed. */
static void show_layer(const forward_step *f) {
    const backend_model *m = f->model;
    const forward_watch *watch = m->watch;
    const rope_table *rope = &m->rope[f->config->type];
    bool own_kv = f->config->kv_source == f->layer;
    const train_layer shown = {.layer = f->layer,
                               .rows = f->rows,
                               .position = f->positions[0],
                               .raw_k = own_kv ? watch->raw_k : NULL,
                               .raw_v = own_kv ? watch->raw_v : NULL,
                               .q = watch->q,
                               .o = watch->o,
                               .out = watch->out,
                               .h = m->h,
                               .cosine = rope->cosine,
                               .sine = rope->sine,
                               .half = rope->half,
                               .pairs = rope->pairs};
    watch->look(watch->user, &shown);
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
        pack(m, &m->packed_moe, m->x, (size_t)hidden, f->rows, hidden, experts_packings(m, w));
        experts_route(m, w, f->rows);
    }
    rows_run(m, f->rows, hidden, dense_input_rows, f);
    pack(m, &m->packed, m->x, (size_t)hidden, f->rows, hidden,
         packing_of(m, &w->gate_proj) | packing_of(m, &w->up_proj));
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
    pack(m, &m->packed, m->h, (size_t)hidden, f->rows, hidden, packing_of(m, &w->ple_gate));
    matrix_job gate = matrix_product(&m->packed, f->rows, &w->ple_gate, m->ple_gate, (size_t)width);
    matrix_run(m, &gate, 1);
    rows_run(m, f->rows, width, ple_gate_rows, f);
    pack(m, &m->packed, m->ple_gate, (size_t)width, f->rows, width, packing_of(m, &w->ple_proj));
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
        memcpy(r->hidden_states + (size_t)index * (size_t)r->n * hidden,
               f->model->h + (size_t)f->segments[s].first_row * hidden, (size_t)r->n * hidden * sizeof(float));
    }
}

/* Aux rows of a prompt's segment; those of every segment lie side by side, as wide as its own cache wants them. */
static float *aux_rows(const backend_model *m, const attention_segment *a) {
    return m->aux + (size_t)a->first_row * (size_t)m->max_taps * (size_t)m->config->hidden;
}

/* Outputs of tapped layers: prompt rows into the model's buffer (used before this forward returns), decode rows behind
 * the cache's backlog (used when they are committed). */
static void copy_aux(forward_step *f) {
    backend_model *m = f->model;
    size_t hidden = (size_t)m->config->hidden;
    for (int s = 0; s < f->n_segments; s++) {
        const attention_segment *a = &f->segments[s];
        const timeline *t = &a->cache->t;
        if (t->taps == 0) continue; /* there may be no buffer at all */
        size_t width = kv_aux_row_bytes(a->cache) / sizeof(float);
        float *to = a->kind == SEGMENT_PROMPT ? aux_rows(m, a)
                                              : a->cache->backlog + (size_t)(a->position - t->draft_length) * width;
        for (int tap = 0; tap < t->taps; tap++) {
            if (t->tap[tap] != f->layer) continue;
            for (int i = 0; i < a->rows; i++) {
                memcpy(to + (size_t)i * width + (size_t)tap * hidden, m->h + (size_t)(a->first_row + i) * hidden,
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
        m->kernels->rms_norm(m->h + row * hidden, m->weights->final_norm, (int)hidden, m->config->rms_eps,
                             m->h + row * hidden);
    }
}

/* The rows that want logits are one product, those that want their greedy choice another, whoever they belong to. */
static void run_head(forward_step *f) {
    backend_model *m = f->model;
    size_t hidden = (size_t)m->config->hidden, vocab = (size_t)m->config->vocab;
    float *to[CPU_MAX_ROWS];
    int n = 0;
    for (int s = 0; s < f->n_segments; s++) {
        const backend_segment *r = &f->requests[s];
        for (int i = r->first_logit_row; r->logits && i < r->n; i++) {
            memcpy(m->x + (size_t)n * hidden, m->h + (size_t)(f->segments[s].first_row + i) * hidden,
                   hidden * sizeof *m->x);
            to[n++] = r->logits + (size_t)(i - r->first_logit_row) * vocab;
        }
    }
    if (n) head_logits(m, &m->packed, m->x, n, to);

    int32_t choice[CPU_MAX_ROWS], own[CPU_MAX_ROWS];
    int32_t *owner[CPU_MAX_ROWS];
    n = 0;
    for (int s = 0; s < f->n_segments; s++) {
        const backend_segment *r = &f->requests[s];
        for (int i = r->first_logit_row; r->argmax && i < r->n; i++) {
            memcpy(m->x + (size_t)n * hidden, m->h + (size_t)(f->segments[s].first_row + i) * hidden,
                   hidden * sizeof *m->x);
            own[n] = r->excluded ? *r->excluded : -1;
            owner[n++] = r->argmax + (i - r->first_logit_row);
        }
    }
    if (n) head_choose(m, &m->packed, m->x, n, m->config->suppress_tokens, m->config->n_suppress_tokens, own, choice);
    for (int i = 0; i < n; i++) *owner[i] = choice[i];
}

/* --------------------------------------------------------------------------------------------------- driver */

static kakeya_status check_segments(backend_model *m, backend_segment *segments, int n_segments, kakeya_error *error) {
    kakeya_status status = backend_check_segments(m->config, segments, n_segments, m->max_rows, error);
    for (int s = 0; s < n_segments && !status; s++) {
        const backend_segment *r = &segments[s];
        if (r->cache->model != m)
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "segment %d: cache of another model", s);
        if (r->cache->t.options.kv_format != segments[0].cache->t.options.kv_format) {
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "segment %d: K/V formats %s and %s in one forward", s,
                             kv_format_name(r->cache->t.options.kv_format),
                             kv_format_name(segments[0].cache->t.options.kv_format));
        }
    }
    return status;
}

/* Steps 1 and 2 of backend/timeline.h: nothing that fails here leaves a trace in any cache. */
static kakeya_status plan_and_reserve(forward_step *f, kakeya_error *error) {
    backend_model *m = f->model;
    int furthest = 0, reserved = 0;
    kakeya_status status = KAKEYA_OK;
    for (int s = 0; !status && s < f->n_segments; s++) {
        backend_segment *r = &f->requests[s];
        const timeline *t = &r->cache->t;
        status = r->status = timeline_plan(t, r->kind, r->n, &f->steps[s], error);
        f->segments[s] = (attention_segment){r->cache, f->rows, r->n, t->length, r->kind};
        for (int i = 0; i < r->n; i++) f->positions[f->rows++] = t->length + i;
        if (t->length + r->n > furthest) furthest = t->length + r->n;
    }
    for (int type = 0; !status && type < 2; type++) {
        if (m->rope[type].inverse_frequency)
            status = rope_table_reserve(m, &m->rope[type], furthest + ATTENTION_BLOCK, error);
    }
    if (!status && m->options.drafter)
        status = rope_table_reserve(m, &m->draft_rope, furthest + ATTENTION_BLOCK, error);
    for (; !status && reserved < f->n_segments; reserved++) {
        backend_segment *r = &f->requests[reserved];
        status = r->status = cache_reserve(r->cache, &f->steps[reserved], error);
    }
    for (int s = 0; status && s < reserved; s++) cache_release(f->requests[s].cache);
    return status;
}

static void begin_segments(forward_step *f) {
    backend_cache *caches[BACKEND_MAX_FORWARD];
    for (int s = 0; s < f->n_segments; s++) caches[s] = f->requests[s].cache;
    caches_begin(caches, f->steps, f->n_segments);
    for (int s = 0; s < f->n_segments; s++) {
        backend_cache *c = caches[s];
        if (c->tokens)
            memcpy(c->tokens + c->t.length, f->requests[s].tokens, (size_t)f->requests[s].n * sizeof *c->tokens);
    }
    int n_keeping = 0;
    for (int s = 0; s < f->n_segments; s++) {
        bool restores = caches[s]->t.options.attention == KAKEYA_ATTENTION_RESTORED;
        if (restores && f->segments[s].rows <= BACKEND_MAX_DECODE_ROWS) caches[n_keeping++] = caches[s];
    }
    restored_keys_take(f->model, caches, n_keeping);
}

/* The rows become pending. What follows prompt rows is made here, while their aux hidden states are there. */
static void mark_segments(forward_step *f) {
    backend_model *m = f->model;
    draft_rows entries[BACKEND_MAX_FORWARD];
    int n = 0;
    for (int s = 0; s < f->n_segments; s++) {
        const attention_segment *a = &f->segments[s];
        backend_cache *c = a->cache;
        if (m->shared_sliding >= 0 && chunk_stays(a, m->shared_sliding))
            store_chunk(m, a, m->shared_sliding, f->steps[s].stored);
        if (a->kind == SEGMENT_PROMPT && c->t.keeps_backlog)
            entries[n++] = (draft_rows){c, aux_rows(m, a), a->rows, a->position};
    }
    caches_follow(m, entries, n);
    for (int s = 0; s < f->n_segments; s++) timeline_computed(&f->segments[s].cache->t, &f->steps[s]);
}

kakeya_status cpu_forward(backend_model *m, backend_segment *segments, int n_segments, kakeya_error *error) {
    kakeya_status status = check_segments(m, segments, n_segments, error);
    if (status) return status;
    forward_step f = {.model = m, .requests = segments, .n_segments = n_segments};
    status = plan_and_reserve(&f, error);
    if (status) return status;
    begin_segments(&f);
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
        if (m->watch) show_layer(&f);
        if (i + 1 < m->config->layers) copy_hidden(&f, i + 1);
    }
    rows_run(m, f.rows, m->config->hidden, final_norm_rows, &f);
    copy_hidden(&f, m->config->layers);
    run_head(&f);
    mark_segments(&f);
    return KAKEYA_OK;
}
