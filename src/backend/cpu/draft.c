#include "backend/cpu/draft.h"

#include "backend/cpu/matrix.h"

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
    size_t kv = kv_width(d), all = (size_t)d->layers * kv;
    const cpu_kv_kernels *stored = kv_kernels(s->cache);
    for (size_t row = begin; row < end; row++) {
        int position = s->position + (int)row;
        size_t angle = (size_t)position * (size_t)m->draft_rope.pairs;
        for (int l = 0; l < d->layers; l++) {
            if (position < s->position + s->rows - s->cache->t.draft[l].capacity) continue;
            float *k = m->d_context + row * 2 * all + (size_t)l * kv;
            const float *v = k + all;
            for (int h = 0; h < d->kv_heads; h++) {
                float *head = k + (size_t)(h * d->head_dim);
                kernels->rms_norm(head, m->options.drafter->layer[l].k_norm, d->head_dim, d->rms_eps, head);
                kernels->rope(head, m->draft_rope.half, m->draft_rope.pairs, m->draft_rope.cosine + angle,
                              m->draft_rope.sine + angle);
            }
            stored->store(k, (int)kv, kv_draft_row(s->cache, l, position, true));
            stored->store(v, (int)kv, kv_draft_row(s->cache, l, position, false));
        }
    }
}

/* Latents of rows [first, rows): e = encoder * raw context K (V), stored; and for every restored layer and head the
 * scalar of v_norm, computed from the stored (rounded) latent that attention will read. */
void draft_extend_latents(draft_step *s, int first) {
    backend_model *m = s->model;
    backend_cache *c = s->cache;
    const f_theta_model *f = m->options.f_theta;
    const cpu_kernels *kernels = m->kernels;
    int rank = f->config.rank, rows = s->rows - first, in = f->encoder_in;
    size_t all = (size_t)in, values_at = kv_values_bytes(c, rank);
    float *codes = m->latent_out, *values = m->latent_out + (size_t)rows * 2 * (size_t)rank;
    for (int half = 0; half < 2; half++) {
        const weight *encoder = half ? &f->encoder_v : &f->encoder_k;
        pack(m, &m->packed_latent_in, m->d_context + (size_t)first * 2 * all + (size_t)half * all, 2 * all, rows, in,
             packing_of(m, encoder));
        matrix_job job =
            matrix_product(&m->packed_latent_in, rows, encoder, codes + (size_t)half * (size_t)rank, 2 * (size_t)rank);
        matrix_run(m, &job, 1);
    }
    const cpu_kv_kernels *stored = kv_kernels(c);
    for (int row = 0; row < rows; row++) {
        unsigned char *code = latent_code(c, s->position + first + row);
        float *values_code = codes + (size_t)row * 2 * (size_t)rank;
        stored->store(values_code, rank, code);
        stored->store(values_code + rank, rank, code + values_at);
        stored->load(code + values_at, rank, values_code + rank);
    }
    for (int layer = 0; layer < m->config->layers; layer++) {
        int head = c->t.layer[layer].latent_head;
        if (head < 0) continue;
        const gemma4_layer_config *lc = &m->config->layer[layer];
        const weight *decoder = &f->decoder_v[layer];
        size_t width = (size_t)decoder->out;
        pack(m, &m->packed_latent_in, codes + rank, 2 * (size_t)rank, rows, rank, packing_exact(m, decoder));
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
    size_t width = (size_t)d->targets * (size_t)m->config->hidden;
    int skipped = rows - timeline_context_rows(&c->t, rows), latents = timeline_latent_rows(&c->t, rows);
    aux += (size_t)skipped * width;
    position += skipped;
    rows -= skipped;
    draft_step s = {.cache = c, .model = m, .config = d, .rows = rows, .position = position};
    size_t hidden = (size_t)d->hidden, kv = kv_width(d), all = (size_t)d->layers * kv;
    pack(m, &m->d_packed_aux, aux, width, rows, (int)width, packing_of(m, &drafter->fc));
    matrix_job fc = matrix_product(&m->d_packed_aux, rows, &drafter->fc, m->d_x, hidden);
    matrix_run(m, &fc, 1);
    rows_run(m, rows, d->hidden, context_norm_rows, &s);
    matrix_job jobs[2 * DFLASH_MAX_LAYERS];
    packing_set packings = 0;
    for (int l = 0; l < d->layers; l++) {
        float *k = m->d_context + (size_t)l * kv;
        jobs[2 * l] = matrix_product(&m->d_packed, rows, &drafter->layer[l].k_proj, k, 2 * all);
        jobs[2 * l + 1] = matrix_product(&m->d_packed, rows, &drafter->layer[l].v_proj, k + all, 2 * all);
        packings |= packing_of(m, jobs[2 * l].w) | packing_of(m, jobs[2 * l + 1].w);
    }
    pack(m, &m->d_packed, m->d_x, hidden, rows, d->hidden, packings);
    matrix_run(m, jobs, 2 * d->layers);
    if (latents && !c->t.latents_from_tokens) draft_extend_latents(&s, rows - latents);
    rows_run(m, rows, 2 * (int)all, context_store_rows, &s);
}

/* --------------------------------------------------------------------------------------------------- rows */

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

void draft_layer_rest(draft_step *s) {
    backend_model *m = s->model;
    const dflash_config *d = s->config;
    const dflash_layer_weights *w = &m->options.drafter->layer[s->layer];
    size_t hidden = (size_t)d->hidden, q = (size_t)(d->heads * d->head_dim), width = (size_t)d->intermediate;
    pack(m, &m->d_packed, m->d_q, q, s->rows, (int)q, packing_of(m, &w->o_proj));
    matrix_job out = matrix_product(&m->d_packed, s->rows, &w->o_proj, m->d_x, hidden);
    matrix_run(m, &out, 1);
    for (int row = 0; row < s->rows; row++) {
        m->kernels->axpy(1.0f, m->d_x + (size_t)row * hidden, d->hidden, m->d_state + (size_t)row * hidden);
    }
    draft_norm(s, w->post_attention_norm);
    pack(m, &m->d_packed, m->d_x, hidden, s->rows, d->hidden,
         packing_of(m, &w->gate_proj) | packing_of(m, &w->up_proj));
    matrix_job gate_up[2] = {matrix_product(&m->d_packed, s->rows, &w->gate_proj, m->d_gate_up, 2 * width),
                             matrix_product(&m->d_packed, s->rows, &w->up_proj, m->d_gate_up + width, 2 * width)};
    matrix_run(m, gate_up, 2);
    for (int row = 0; row < s->rows; row++) {
        float *gate = m->d_gate_up + (size_t)row * 2 * width;
        m->kernels->gated(1, gate, gate + width, d->intermediate, gate);
    }
    pack(m, &m->d_packed_act, m->d_gate_up, 2 * width, s->rows, d->intermediate, packing_of(m, &w->down_proj));
    matrix_job down = matrix_product(&m->d_packed_act, s->rows, &w->down_proj, m->d_x, hidden);
    matrix_run(m, &down, 1);
    for (int row = 0; row < s->rows; row++) {
        m->kernels->axpy(1.0f, m->d_x + (size_t)row * hidden, d->hidden, m->d_state + (size_t)row * hidden);
    }
}
