#include "backend/cpu/latents.h"

#include "backend/cpu/matrix.h"
#include "backend/cpu/restored_keys.h"

static const restoration_config *form_of(const backend_model *m) { return &m->options.restoration->config; }

/* Values of a row's latents side by side. */
static int code_values(const restoration_config *f) { return f->shared_latent ? f->rank_k : f->rank_k + f->rank_v; }

size_t latents_in_floats(const backend_model *m) {
    const restoration_model *f = m->options.restoration;
    return f && f->config.input == RESTORATION_AUX_HIDDEN ? (size_t)f->encoder_in : 0;
}

size_t latents_out_floats(const backend_model *m) {
    if (!m->options.restoration) return 0;
    size_t widest = 0;
    for (int i = 0; i < m->config->layers; i++) {
        size_t width = (size_t)(m->config->layer[i].kv_heads * m->config->layer[i].head_dim);
        if (width > widest) widest = width;
    }
    return (size_t)code_values(form_of(m)) + widest;
}

/* -------------------------------------------------------------------------------------------------- stored rows */

static bool is_plain(latent_format format) { return format == LATENT_F32 || format == LATENT_BF16; }

static const cpu_kv_kernels *plain_kernels(const backend_cache *c) {
    return &c->model->kernels->kv[c->t.latent.format == LATENT_F32 ? KV_FORMAT_F32 : KV_FORMAT_BF16];
}

static void store_values(const backend_cache *c, const float *x, int n, unsigned char *to) {
    if (is_plain(c->t.latent.format))
        plain_kernels(c)->store(x, n, to);
    else
        latent_encode(c->t.latent.format, x, n, to);
}

static void load_values(const backend_cache *c, const unsigned char *from, int n, float *out) {
    if (is_plain(c->t.latent.format))
        plain_kernels(c)->load(from, n, out);
    else
        latent_decode(c->t.latent.format, from, n, out);
}

void latent_load(const backend_cache *c, int position, bool is_k, float *out) {
    const latent_row *row = &c->t.latent;
    load_values(c, latent_code(c, position) + (is_k ? 0 : row->values_at), is_k ? row->rank_k : row->rank_v, out);
}

/* Stores the latents of a part, and leaves those of values (rounded as they are stored) in `codes`. */
static void store_rows(const draft_part *part, int code_row, float *codes) {
    const backend_cache *c = part->cache;
    const latent_row *row = &c->t.latent;
    restored_keys_forget(c, part->position, part->rows);
    for (int r = 0; r < part->rows; r++, codes += code_row) {
        unsigned char *code = latent_code(c, part->position + r);
        float *values = codes + (row->shared ? 0 : row->rank_k);
        store_values(c, codes, row->rank_k, code);
        if (!row->shared) store_values(c, values, row->rank_v, code + row->values_at);
        load_values(c, code + row->values_at, row->rank_v, values);
    }
}

/* The scalar of v_norm of every restored layer and head, computed from the stored (rounded) latent that attention will
 * read; 1 where values pass no norm. */
static void store_scales(backend_model *m, const draft_part *parts, int n_parts, int rows) {
    const restoration_config *f = form_of(m);
    size_t code_row = (size_t)code_values(f);
    const float *codes = m->latent_out + (f->shared_latent ? 0 : f->rank_k);
    float *values = m->latent_out + (size_t)rows * code_row;
    for (int layer = 0; layer < m->config->layers; layer++) {
        const layer_config *lc = &m->config->layer[layer];
        const weight *decoder = &m->options.restoration->decoder_v[layer];
        bool restored = false;
        for (int i = 0; i < n_parts; i++) restored |= parts[i].cache->t.layer[layer].latent_head >= 0;
        if (!restored) continue;
        size_t width = (size_t)decoder->out;
        if (!m->config->raw_values) {
            pack(m, &m->packed_latent_in, codes, code_row, rows, f->rank_v, packing_exact(m, decoder));
            matrix_job job = matrix_product(&m->packed_latent_in, rows, decoder, values, width);
            job.exact_input = true;
            matrix_run(m, &job, 1);
        }
        const float *row = values;
        for (int i = 0; i < n_parts; i++) {
            int head = parts[i].cache->t.layer[layer].latent_head;
            for (int r = 0; r < parts[i].rows; r++, row += width) {
                float *scales = latent_scales(parts[i].cache, parts[i].position + r);
                for (int h = 0; h < lc->kv_heads && head >= 0; h++) {
                    const float *value = row + (size_t)(h * lc->head_dim);
                    scales[head + h] =
                        m->config->raw_values ? 1 : m->kernels->rms_scale(value, lc->head_dim, m->config->rms_eps);
                }
            }
        }
    }
}

/* The parts' codes, [rows] in m->latent_out, into their stores. */
static void store_codes(backend_model *m, const draft_part *parts, int n_parts, int rows) {
    int code_row = code_values(form_of(m));
    for (int i = 0, row = 0; i < n_parts; row += parts[i++].rows)
        store_rows(&parts[i], code_row, m->latent_out + (size_t)row * (size_t)code_row);
    store_scales(m, parts, n_parts, rows);
}

/* --------------------------------------------------------------------------------------- from the drafter's K/V */

void latents_of_context(backend_model *m, const draft_part *parts, int n_parts) {
    const restoration_model *f = m->options.restoration;
    int in = f->encoder_in, rows = 0;
    size_t all = (size_t)in, code_row = (size_t)code_values(&f->config);
    for (int i = 0; i < n_parts; i++) rows += parts[i].rows;
    for (int half = 0; half < 2; half++) {
        const weight *encoder = half ? &f->encoder_v : &f->encoder_k;
        for (int i = 0, row = 0; i < n_parts; row += parts[i++].rows) {
            pack_at(m, &m->packed_latent_in, row,
                    m->d_context + (size_t)parts[i].first_row * 2 * all + (size_t)half * all, 2 * all, parts[i].rows,
                    in, packing_of(m, encoder));
        }
        matrix_job job = matrix_product(&m->packed_latent_in, rows, encoder,
                                        m->latent_out + (half ? (size_t)f->config.rank_k : 0), code_row);
        matrix_run(m, &job, 1);
    }
    store_codes(m, parts, n_parts, rows);
}

/* ----------------------------------------------------------------------------------- from aux hidden states */

/* Rows of several caches on their way through the encoders. */
typedef struct aux_step {
    backend_model *model;
    draft_rows entries[BACKEND_MAX_FORWARD];
    draft_part parts[BACKEND_MAX_FORWARD];
    int n_parts, rows;
} aux_step;

/* x = [rms(aux_1) ... rms(aux_n)] of one row. */
static void norm_row(const aux_step *s, int part, int row, float *x) {
    const backend_model *m = s->model;
    const timeline *t = &s->parts[part].cache->t;
    const float *aux = s->entries[part].aux + (size_t)row * (kv_aux_row_bytes(s->parts[part].cache) / sizeof(float));
    int hidden = m->config->hidden;
    for (int i = 0; i < form_of(m)->aux_layers; i++) {
        m->kernels->rms_norm(aux + (size_t)t->restoration_tap[i] * (size_t)hidden, NULL, hidden, m->config->rms_eps,
                             x + (size_t)i * (size_t)hidden);
    }
}

static void norm_rows(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const aux_step *s = context;
    size_t in = (size_t)s->model->options.restoration->encoder_in;
    for (int i = 0; i < s->n_parts; i++) {
        int first = s->parts[i].first_row;
        for (int row = 0; row < s->parts[i].rows; row++) {
            size_t at = (size_t)(first + row);
            if (at >= begin && at < end) norm_row(s, i, row, s->model->latent_in + at * in);
        }
    }
}

static void encode_step(aux_step *s) {
    backend_model *m = s->model;
    const restoration_model *f = m->options.restoration;
    if (!s->rows) return;
    rows_run(m, s->rows, f->encoder_in, norm_rows, s);
    matrix_job jobs[2];
    int n = 0;
    size_t code_row = (size_t)code_values(&f->config);
    packing_set packings = packing_of(m, &f->encoder_k);
    jobs[n++] = matrix_product(&m->packed_latent_in, s->rows, &f->encoder_k, m->latent_out, code_row);
    if (!f->config.shared_latent) {
        packings |= packing_of(m, &f->encoder_v);
        jobs[n++] =
            matrix_product(&m->packed_latent_in, s->rows, &f->encoder_v, m->latent_out + f->config.rank_k, code_row);
    }
    pack(m, &m->packed_latent_in, m->latent_in, (size_t)f->encoder_in, s->rows, f->encoder_in, packings);
    matrix_run(m, jobs, n);
    store_codes(m, s->parts, s->n_parts, s->rows);
}

void latents_of_aux(backend_model *m, const draft_rows *entries, int n) {
    aux_step s = {.model = m};
    for (int i = 0; i < n; i++) {
        draft_rows e = entries[i];
        int rows = timeline_latent_rows(&e.cache->t, e.rows), skipped = e.rows - rows;
        if (s.rows + rows > m->max_rows) {
            encode_step(&s);
            s.n_parts = s.rows = 0;
        }
        e.aux += (size_t)skipped * (kv_aux_row_bytes(e.cache) / sizeof(float));
        s.entries[s.n_parts] = e;
        s.parts[s.n_parts++] = (draft_part){e.cache, s.rows, rows, e.position + skipped};
        s.rows += rows;
    }
    encode_step(&s);
}
