#include "backend/cpu/draft.h"

#include "backend/cpu/latents.h"
#include "backend/cpu/matrix.h"

static size_t kv_width(const block_drafter_config *d) { return (size_t)(d->kv_heads * d->head_dim); }

/* ------------------------------------------------------------------------------------------------ context */

/* The rows of parts that enter the context together. */
typedef struct context_step {
    backend_model *model;
    const block_drafter_config *config;
    draft_part parts[BACKEND_MAX_FORWARD];
    int n_parts, rows;
} context_step;

static void context_norm_rows(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const context_step *s = context;
    backend_model *m = s->model;
    size_t hidden = (size_t)s->config->hidden;
    for (size_t row = begin; row < end; row++) {
        float *x = m->d_x + row * hidden;
        m->kernels->rms_norm(x, m->options.drafter->hidden_norm, (int)hidden, s->config->rms_eps, x);
    }
}

/* k_norm and RoPE on the raw keys of a row, then K and V into the rings that keep its position. */
static void store_context_row(const context_step *s, const draft_part *part, int row) {
    backend_model *m = s->model;
    const cpu_kernels *kernels = m->kernels;
    const block_drafter_config *d = s->config;
    const cpu_kv_kernels *stored = kv_draft_kernels(part->cache);
    size_t kv = kv_width(d), all = (size_t)d->layers * kv;
    int position = part->position + row - part->first_row;
    size_t angle = (size_t)position * (size_t)m->draft_rope.pairs;
    for (int l = 0; l < d->layers; l++) {
        if (position < part->position + part->rows - part->cache->t.draft[l].capacity) continue;
        float *k = m->d_context + (size_t)row * 2 * all + (size_t)l * kv;
        const float *v = k + all;
        for (int h = 0; h < d->kv_heads; h++) {
            float *head = k + (size_t)(h * d->head_dim);
            kernels->rms_norm(head, m->options.drafter->layer[l].k_norm, d->head_dim, d->rms_eps, head);
            kernels->rope(head, m->draft_rope.half, m->draft_rope.pairs, m->draft_rope.cosine + angle,
                          m->draft_rope.sine + angle);
        }
        stored->store(k, (int)kv, kv_draft_row(part->cache, l, position, true));
        stored->store(v, (int)kv, kv_draft_row(part->cache, l, position, false));
    }
}

/* The raw keys are gone afterwards, so latents come first. */
static void context_store_rows(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const context_step *s = context;
    for (int i = 0; i < s->n_parts; i++) {
        const draft_part *part = &s->parts[i];
        int from = part->first_row > (int)begin ? part->first_row : (int)begin, to = part->first_row + part->rows;
        for (int row = from; row < to && row < (int)end; row++) store_context_row(s, part, row);
    }
}

/* The last rows of the parts, whose latents are kept. */
static void extend_latents(const context_step *s) {
    draft_part parts[BACKEND_MAX_FORWARD];
    int n = 0;
    for (int i = 0; i < s->n_parts; i++) {
        draft_part part = s->parts[i];
        int latents = timeline_latent_rows(&part.cache->t, part.rows), skipped = part.rows - latents;
        if (!latents || part.cache->t.latents_from_tokens || part.cache->t.latents_from_aux) continue;
        parts[n++] = (draft_part){part.cache, part.first_row + skipped, latents, part.position + skipped};
    }
    if (n) latents_of_context(s->model, parts, n);
}

/* Their aux rows are packed. */
static void extend_parts(context_step *s) {
    backend_model *m = s->model;
    const block_drafter_model *drafter = m->options.drafter;
    const block_drafter_config *d = s->config;
    size_t hidden = (size_t)d->hidden, kv = kv_width(d), all = (size_t)d->layers * kv;
    matrix_job fc = matrix_product(&m->d_packed_aux, s->rows, &drafter->fc, m->d_x, hidden);
    matrix_run(m, &fc, 1);
    rows_run(m, s->rows, d->hidden, context_norm_rows, s);
    matrix_job jobs[2 * BLOCK_DRAFTER_MAX_LAYERS];
    packing_set packings = 0;
    for (int l = 0; l < d->layers; l++) {
        float *k = m->d_context + (size_t)l * kv;
        jobs[2 * l] = matrix_product(&m->d_packed, s->rows, &drafter->layer[l].k_proj, k, 2 * all);
        jobs[2 * l + 1] = matrix_product(&m->d_packed, s->rows, &drafter->layer[l].v_proj, k + all, 2 * all);
        packings |= packing_of(m, jobs[2 * l].w) | packing_of(m, jobs[2 * l + 1].w);
    }
    pack(m, &m->d_packed, m->d_x, hidden, s->rows, d->hidden, packings);
    matrix_run(m, jobs, 2 * d->layers);
    extend_latents(s);
    rows_run(m, s->rows, 2 * (int)all, context_store_rows, s);
}

void draft_extend(backend_model *m, const draft_rows *entries, int n) {
    if (n == 0) return;
    const block_drafter_model *drafter = m->options.drafter;
    int width = drafter->config.targets * m->config->hidden;
    context_step s = {.model = m, .config = &drafter->config};
    for (int i = 0; i < n; i++) {
        const draft_rows *e = &entries[i];
        int rows = timeline_context_rows(&e->cache->t, e->rows), skipped = e->rows - rows;
        if (s.rows + rows > m->max_rows) {
            extend_parts(&s);
            s.n_parts = s.rows = 0;
        }
        size_t stride = kv_aux_row_bytes(e->cache) / sizeof(float);
        pack_at(m, &m->d_packed_aux, s.rows, e->aux + (size_t)skipped * stride, stride, rows, width,
                packing_of(m, &drafter->fc));
        s.parts[s.n_parts++] = (draft_part){e->cache, s.rows, rows, e->position + skipped};
        s.rows += rows;
    }
    extend_parts(&s);
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

typedef struct row_context {
    const draft_step *step;
    const float *norm;
} row_context;

static void norm_rows(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const row_context *r = context;
    backend_model *m = r->step->model;
    size_t hidden = (size_t)r->step->config->hidden;
    for (size_t row = begin; row < end; row++) {
        m->kernels->rms_norm(m->d_state + row * hidden, r->norm, (int)hidden, r->step->config->rms_eps,
                             m->d_x + row * hidden);
    }
}

static void add_rows(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const row_context *r = context;
    backend_model *m = r->step->model;
    size_t hidden = (size_t)r->step->config->hidden;
    for (size_t row = begin; row < end; row++)
        m->kernels->axpy(1.0f, m->d_x + row * hidden, (int)hidden, m->d_state + row * hidden);
}

static void activate_rows(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const row_context *r = context;
    backend_model *m = r->step->model;
    size_t width = (size_t)r->step->config->intermediate;
    for (size_t row = begin; row < end; row++) {
        float *gate = m->d_gate_up + row * 2 * width;
        m->kernels->gated(1, gate, gate + width, (int)width, gate);
    }
}

void draft_norm(draft_step *s, const float *norm) {
    row_context context = {s, norm};
    rows_run(s->model, s->rows, s->config->hidden, norm_rows, &context);
}

void draft_layer_rest(draft_step *s) {
    backend_model *m = s->model;
    const block_drafter_config *d = s->config;
    const block_drafter_layer_weights *w = &m->options.drafter->layer[s->layer];
    size_t hidden = (size_t)d->hidden, q = (size_t)(d->heads * d->head_dim), width = (size_t)d->intermediate;
    row_context rows = {.step = s};
    pack(m, &m->d_packed, m->d_q, q, s->rows, (int)q, packing_of(m, &w->o_proj));
    matrix_job out = matrix_product(&m->d_packed, s->rows, &w->o_proj, m->d_x, hidden);
    matrix_run(m, &out, 1);
    rows_run(m, s->rows, d->hidden, add_rows, &rows);
    draft_norm(s, w->post_attention_norm);
    pack(m, &m->d_packed, m->d_x, hidden, s->rows, d->hidden,
         packing_of(m, &w->gate_proj) | packing_of(m, &w->up_proj));
    matrix_job gate_up[2] = {matrix_product(&m->d_packed, s->rows, &w->gate_proj, m->d_gate_up, 2 * width),
                             matrix_product(&m->d_packed, s->rows, &w->up_proj, m->d_gate_up + width, 2 * width)};
    matrix_run(m, gate_up, 2);
    rows_run(m, s->rows, 2 * d->intermediate, activate_rows, &rows);
    pack(m, &m->d_packed_act, m->d_gate_up, 2 * width, s->rows, d->intermediate, packing_of(m, &w->down_proj));
    matrix_job down = matrix_product(&m->d_packed_act, s->rows, &w->down_proj, m->d_x, hidden);
    matrix_run(m, &down, 1);
    rows_run(m, s->rows, d->hidden, add_rows, &rows);
}
