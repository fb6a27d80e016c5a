/* The DFlash drafter and the f_theta latents.
 *
 * Context: for every committed position, x = hidden_norm(fc(aux)), and per drafter layer raw K = k_proj x, V = v_proj x.
 * k_norm and RoPE make the drafter's context K/V out of them; the raw values of all layers are f_theta's input. A block is
 * one non-causal forward over [context ; bonus, mask, mask, ...]. Formulas: the DFlash authors' reference model. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"

static size_t kv_width(const dflash_config *d) { return (size_t)(d->kv_heads * d->head_dim); }

/* ------------------------------------------------------------------------------------------------ context */

static void context_norm_rows(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    draft_step *s = context;
    backend_model *m = s->model;
    size_t hidden = (size_t)s->config->hidden;
    for (size_t row = begin; row < end; row++) {
        float *x = m->d_x + row * hidden;
        m->kernels->rms_norm(x, m->options.drafter->hidden_norm, (int)hidden, s->config->rms_eps, x);
    }
}

/* k_norm and RoPE on raw keys, then both into the rings. The raw keys are gone afterwards, so latents come first. */
static void context_store_rows(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    draft_step *s = context;
    backend_model *m = s->model;
    const cpu_kernels *kernels = m->kernels;
    const dflash_config *d = s->config;
    size_t kv = kv_width(d), all = (size_t)d->layers * kv, element = kv_element_bytes(s->cache);
    dtype type = kv_type(s->cache);
    for (size_t row = begin; row < end; row++) {
        int position = s->position + (int)row;
        size_t angle = (size_t)position * (size_t)m->draft_rope.pairs;
        for (int l = 0; l < d->layers; l++) {
            draft_store *store = &s->cache->draft[l];
            if (position < s->position + s->rows - store->capacity) continue;
            float *k = m->d_context + row * 2 * all + (size_t)l * kv;
            const float *v = k + all;
            for (int h = 0; h < d->kv_heads; h++) {
                float *head = k + (size_t)(h * d->head_dim);
                kernels->rms_norm(head, m->options.drafter->layer[l].k_norm, d->head_dim, d->rms_eps, head);
                kernels->rope(head, m->draft_rope.half, m->draft_rope.pairs, m->draft_rope.cosine + angle,
                              m->draft_rope.sine + angle);
            }
            size_t slot = (size_t)(position % store->capacity) * kv * element;
            kernels->store(type, k, (int)kv, store->k + slot);
            kernels->store(type, v, (int)kv, store->v + slot);
        }
    }
}

/* Latents of rows [first, rows): e = encoder * raw context K (V), stored; and for every restored layer and head the scalar
 * of v_norm, computed from the stored (rounded) latent that attention will read. */
void draft_extend_latents(draft_step *s, int first) {
    backend_model *m = s->model;
    backend_cache *c = s->cache;
    const f_theta_model *f = m->options.f_theta;
    const cpu_kernels *kernels = m->kernels;
    int rank = f->config.rank, rows = s->rows - first, in = f->encoder_in;
    size_t all = (size_t)in, element = kv_element_bytes(c);
    float *codes = m->latent_out, *values = m->latent_out + (size_t)rows * 2 * (size_t)rank;
    for (int half = 0; half < 2; half++) {
        const weight *encoder = half ? &f->encoder_v : &f->encoder_k;
        pack(m, &m->packed_latent_in, m->d_context + (size_t)first * 2 * all + (size_t)half * all, 2 * all, rows, in,
             input_of(m, encoder));
        matrix_job job = matrix_product(&m->packed_latent_in, rows, encoder, codes + (size_t)half * (size_t)rank,
                                        2 * (size_t)rank);
        matrix_run(m, &job, 1);
    }
    dtype type = kv_type(c);
    for (int row = 0; row < rows; row++) {
        unsigned char *code = latent_code(c, s->position + first + row);
        float *values_code = codes + (size_t)row * 2 * (size_t)rank;
        kernels->store(type, values_code, 2 * rank, code);
        kernels->load(type, code + (size_t)rank * element, rank, values_code + rank);
    }
    for (int layer = 0; layer < m->config->layers; layer++) {
        int head = c->latent.head_offset[layer];
        if (head < 0) continue;
        const gemma4_layer_config *lc = &m->config->layer[layer];
        const weight *decoder = &f->decoder_v[layer];
        size_t width = (size_t)decoder->out;
        pack(m, &m->packed_latent_in, codes + rank, 2 * (size_t)rank, rows, rank, input_exact(decoder));
        matrix_job job = matrix_product(&m->packed_latent_in, rows, decoder, values, width);
        job.exact_input = true;
        matrix_run(m, &job, 1);
        for (int row = 0; row < rows; row++) {
            float *scales = latent_scales(c, s->position + first + row);
            for (int h = 0; h < lc->kv_heads; h++) {
                scales[head + h] = kernels->rms_scale(values + (size_t)row * width + (size_t)(h * lc->head_dim),
                                                      lc->head_dim, m->config->rms_eps);
            }
        }
    }
}

void draft_extend(backend_cache *c, const float *aux, int rows, int position) {
    backend_model *m = c->model;
    const dflash_model *drafter = m->options.drafter;
    const dflash_config *d = &drafter->config;
    bool restored = c->options.attention == KAKEYA_ATTENTION_RESTORED;

    /* Rows that no ring would still hold afterwards need not be computed. */
    int needed = 0, latents = restored ? (c->latent.ring ? c->latent.capacity : rows) : 0;
    for (int l = 0; l < d->layers; l++) {
        if (c->draft[l].capacity > needed) needed = c->draft[l].capacity;
    }
    if (latents > needed) needed = latents;
    size_t width = (size_t)d->targets * (size_t)m->config->hidden;
    if (rows > needed) {
        aux += (size_t)(rows - needed) * width;
        position += rows - needed;
        rows = needed;
        c->draft_from = position;
    }
    draft_step s = {.cache = c, .model = m, .config = d, .rows = rows, .position = position};
    size_t hidden = (size_t)d->hidden, kv = kv_width(d), all = (size_t)d->layers * kv;
    pack(m, &m->d_packed_aux, aux, width, rows, (int)width, input_of(m, &drafter->fc));
    matrix_job fc = matrix_product(&m->d_packed_aux, rows, &drafter->fc, m->d_x, hidden);
    matrix_run(m, &fc, 1);
    rows_run(m, rows, d->hidden, context_norm_rows, &s);
    matrix_job jobs[2 * DFLASH_MAX_LAYERS];
    input_set inputs = 0;
    for (int l = 0; l < d->layers; l++) {
        float *k = m->d_context + (size_t)l * kv;
        jobs[2 * l] = matrix_product(&m->d_packed, rows, &drafter->layer[l].k_proj, k, 2 * all);
        jobs[2 * l + 1] = matrix_product(&m->d_packed, rows, &drafter->layer[l].v_proj, k + all, 2 * all);
        inputs |= input_of(m, jobs[2 * l].w) | input_of(m, jobs[2 * l + 1].w);
    }
    pack(m, &m->d_packed, m->d_x, hidden, rows, d->hidden, inputs);
    matrix_run(m, jobs, 2 * d->layers);
    if (restored && m->options.f_theta->config.input == F_THETA_DRAFTER_CONTEXT_KV) {
        draft_extend_latents(&s, rows > latents ? rows - latents : 0);
    }
    rows_run(m, rows, 2 * (int)all, context_store_rows, &s);
}

void draft_flush(backend_cache *c) {
    int waiting = c->length - c->draft_length;
    if (!c->options.keep_draft_context || waiting == 0) return;
    draft_extend(c, c->aux_backlog, waiting, c->draft_length);
    if (c->tokens) token_latents_alone(c, c->draft_length, waiting);
    c->draft_length = c->length;
}

/* -------------------------------------------------------------------------------------------------- block */

void draft_embed(draft_step *s, int row, int32_t token) {
    backend_model *m = s->model;
    const weight *e = &m->weights->embed;
    size_t hidden = (size_t)s->config->hidden;
    float *h = m->d_state + (size_t)row * hidden;
    load_row(m, e, token, 0, (int)hidden, h);
    if (m->options.drafter_scaled_embedding) m->kernels->scale(m->embed_scale, (int)hidden, h);
}

void draft_norm(draft_step *s, const float *norm) {
    backend_model *m = s->model;
    size_t hidden = (size_t)s->config->hidden;
    for (int row = 0; row < s->rows; row++) {
        m->kernels->rms_norm(m->d_state + (size_t)row * hidden, norm, (int)hidden, s->config->rms_eps,
                             m->d_x + (size_t)row * hidden);
    }
}

static void block_heads(draft_step *s) {
    backend_model *m = s->model;
    const dflash_config *d = s->config;
    const dflash_layer_weights *w = &m->options.drafter->layer[s->layer];
    size_t kv = kv_width(d), element = kv_element_bytes(s->cache);
    dtype type = kv_type(s->cache);
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
        m->kernels->store(type, m->d_k + (size_t)row * kv, (int)kv, (char *)m->d_block_k + (size_t)row * kv * element);
        m->kernels->store(type, m->d_v + (size_t)row * kv, (int)kv, (char *)m->d_block_v + (size_t)row * kv * element);
    }
}

/* Context keys that the block's row at position t sees; sliding layers count their window from t. */
static int context_begin(const draft_step *s, int t) {
    const backend_cache *c = s->cache;
    int begin = s->position - c->draft[s->layer].window;
    int sliding = s->config->sliding_window[s->layer];
    if (sliding && t - sliding + 1 > begin) begin = t - sliding + 1;
    if (c->draft_from > begin) begin = c->draft_from;
    return begin > 0 ? begin : 0;
}

/* One head: context blocks out of the ring, then the block itself: every row sees every row. In a sliding layer it sees
 * those of its window, and none behind itself where the published causal rule inside the block is in force. */
static void block_attend_head(draft_step *s, int head, thread_scratch *x) {
    backend_model *m = s->model;
    backend_cache *c = s->cache;
    const dflash_config *d = s->config;
    int group = d->heads / d->kv_heads, queries = s->rows * group;
    size_t dim = (size_t)d->head_dim, kv = kv_width(d), element = kv_element_bytes(c);
    size_t head_bytes = (size_t)head * dim * element, q_row = (size_t)d->heads * dim;
    dtype type = kv_type(c);
    size_t packed = m->kernels->pack_row_bytes(type, false, d->head_dim);
    float *state_m = x->state[0], *state_l = state_m + queries, *state_o = state_m + 2 * (size_t)queries;
    for (int i = 0; i < queries; i++) {
        state_m[i] = -INFINITY;
        state_l[i] = 0;
    }
    memset(state_o, 0, (size_t)queries * dim * sizeof(float));
    for (int row = 0; row < s->rows; row++) {
        m->kernels->pack_rows(type, false, m->d_q + (size_t)row * q_row + (size_t)(head * group) * dim, dim, group,
                              d->head_dim, (char *)x->q_packed[0] + (size_t)(row * group) * packed);
    }
    const draft_store *store = &c->draft[s->layer];
    int first = context_begin(s, s->position);
    for (int base = first / ATTENTION_BLOCK * ATTENTION_BLOCK; base < s->position; base += ATTENTION_BLOCK) {
        for (int i = 0; i < queries; i++) {
            int lo = context_begin(s, s->position + i / group) - base, hi = s->position - base;
            x->lo[i] = lo > 0 ? lo : 0;
            x->hi[i] = hi < ATTENTION_BLOCK ? hi : ATTENTION_BLOCK;
            if (x->hi[i] < x->lo[i]) x->hi[i] = x->lo[i];
        }
        size_t slot = (size_t)(base % store->capacity) * kv * element + head_bytes;
        m->kernels->attend_block(queries, x->lo, x->hi, x->q_packed[0], d->head_dim, type, store->k + slot, kv,
                                 d->head_dim, type, store->v + slot, kv, NULL, state_m, state_l, state_o, dim);
    }
    int sliding = s->config->sliding_window[s->layer];
    int before = sliding ? sliding - 1 : s->rows, behind = !sliding ? s->rows : m->options.drafter_block_bidirectional ? before : 0;
    for (int base = 0; base < s->rows; base += ATTENTION_BLOCK) {
        for (int i = 0; i < queries; i++) {
            int row = i / group, end = row + 1 + behind < s->rows ? row + 1 + behind : s->rows;
            int lo = row - before - base, hi = end - base;
            x->hi[i] = hi < 0 ? 0 : hi < ATTENTION_BLOCK ? hi : ATTENTION_BLOCK;
            x->lo[i] = lo < 0 ? 0 : lo < x->hi[i] ? lo : x->hi[i];
        }
        size_t at = (size_t)base * kv * element + head_bytes;
        m->kernels->attend_block(queries, x->lo, x->hi, x->q_packed[0], d->head_dim, type, (char *)m->d_block_k + at, kv,
                                 d->head_dim, type, (char *)m->d_block_v + at, kv, NULL, state_m, state_l, state_o, dim);
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
         input_of(m, &w->q_proj) | input_of(m, &w->k_proj) | input_of(m, &w->v_proj));
    matrix_job jobs[3] = {matrix_product(&m->d_packed, s->rows, &w->q_proj, m->d_q, (size_t)w->q_proj.out),
                          matrix_product(&m->d_packed, s->rows, &w->k_proj, m->d_k, kv_width(d)),
                          matrix_product(&m->d_packed, s->rows, &w->v_proj, m->d_v, kv_width(d))};
    matrix_run(m, jobs, 3);
    block_heads(s);
}

void draft_layer_rest(draft_step *s) {
    backend_model *m = s->model;
    const dflash_config *d = s->config;
    const dflash_layer_weights *w = &m->options.drafter->layer[s->layer];
    size_t hidden = (size_t)d->hidden, q = (size_t)(d->heads * d->head_dim), width = (size_t)d->intermediate;
    pack(m, &m->d_packed, m->d_q, q, s->rows, (int)q, input_of(m, &w->o_proj));
    matrix_job out = matrix_product(&m->d_packed, s->rows, &w->o_proj, m->d_x, hidden);
    matrix_run(m, &out, 1);
    for (int row = 0; row < s->rows; row++) {
        m->kernels->axpy(1.0f, m->d_x + (size_t)row * hidden, d->hidden, m->d_state + (size_t)row * hidden);
    }
    draft_norm(s, w->post_attention_norm);
    pack(m, &m->d_packed, m->d_x, hidden, s->rows, d->hidden, input_of(m, &w->gate_proj) | input_of(m, &w->up_proj));
    matrix_job gate_up[2] = {matrix_product(&m->d_packed, s->rows, &w->gate_proj, m->d_gate_up, 2 * width),
                             matrix_product(&m->d_packed, s->rows, &w->up_proj, m->d_gate_up + width, 2 * width)};
    matrix_run(m, gate_up, 2);
    for (int row = 0; row < s->rows; row++) {
        float *gate = m->d_gate_up + (size_t)row * 2 * width;
        m->kernels->gated(1, gate, gate + width, d->intermediate, gate);
    }
    pack(m, &m->d_packed_act, m->d_gate_up, 2 * width, s->rows, d->intermediate, input_of(m, &w->down_proj));
    matrix_job down = matrix_product(&m->d_packed_act, s->rows, &w->down_proj, m->d_x, hidden);
    matrix_run(m, &down, 1);
    for (int row = 0; row < s->rows; row++) {
        m->kernels->axpy(1.0f, m->d_x + (size_t)row * hidden, d->hidden, m->d_state + (size_t)row * hidden);
    }
}

/* Leaves the normed hidden states of the block in m->d_x. */
static kakeya_status run_block(backend_cache *c, int32_t bonus, int n, kakeya_error *error) {
    backend_model *m = c->model;
    if (!c->options.keep_draft_context) {
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "this cache keeps no drafter context");
    }
    if (n < 1 || n > BACKEND_MAX_DRAFT) {
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "cannot draft %d tokens; 1 to %d", n, BACKEND_MAX_DRAFT);
    }
    if (c->pending) return error_set(error, KAKEYA_INVALID_ARGUMENT, "cannot draft with %d pending rows", c->pending);
    if (bonus < 0 || bonus >= m->config->vocab) {
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "bonus token %d is outside the vocabulary of %d", (int)bonus,
                         m->config->vocab);
    }
    kakeya_status status = rope_table_reserve(m, &m->draft_rope, c->length + n + 1, error);
    if (status) return status;
    draft_flush(c);
    const dflash_model *drafter = m->options.drafter;
    draft_step s = {.cache = c, .model = m, .config = &drafter->config, .rows = n + 1, .position = c->length};
    for (int row = 0; row <= n; row++) draft_embed(&s, row, row == 0 ? bonus : drafter->config.mask_token);
    for (s.layer = 0; s.layer < drafter->config.layers; s.layer++) {
        block_inputs(&s);
        thread_pool_for(m->pool, (size_t)drafter->config.kv_heads, 1, block_attend, &s);
        draft_layer_rest(&s);
    }
    draft_norm(&s, drafter->norm);
    return KAKEYA_OK;
}

kakeya_status draft_block_hidden(backend_cache *c, int32_t bonus, int n, float *hidden, kakeya_error *error) {
    kakeya_status status = run_block(c, bonus, n, error);
    if (!status) memcpy(hidden, c->model->d_x, (size_t)(n + 1) * (size_t)c->model->options.drafter->config.hidden * sizeof(float));
    return status;
}

kakeya_status cpu_draft(backend_cache *c, int32_t bonus, int n, int32_t *drafts, kakeya_error *error) {
    kakeya_status status = run_block(c, bonus, n, error);
    if (status) return status;
    backend_model *m = c->model;
    const dflash_config *d = &m->options.drafter->config;
    int mask = d->mask_token; /* never proposed */
    head_choose(m, &m->d_packed, m->d_x + d->hidden, n, &mask, 1, drafts);
    return KAKEYA_OK;
}
