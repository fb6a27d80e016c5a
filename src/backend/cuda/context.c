/* Formulas as in the CPU backend's draft.c. */
#include "backend/cuda/context.h"

#include "backend/cuda/matrix.h"
#include "backend/cuda/restoration.h"

_Static_assert((int)CUDA_CONTEXT_ROWS == (int)BACKEND_MAX_SEGMENTS * (int)KV_BACKLOG,
               "kernels.h repeats the backend's limits");

/* Products of any number of rows that share their input [rows][ldx]. Prompt rows take the prompt kernels. */
static cudaError_t products(const backend_model *m, const matrix_product *list, int n, const cuda_bf16 *x, int ldx,
                            int rows, bool prompt) {
    if (!prompt) {
        matrix_products(&m->launch, list, n, x, ldx, rows, 0);
        return cudaSuccess; /* launch failures are found when the stream is finished */
    }
    return matrix_prompt_products(&m->launch, &m->rounding, list, n, x, (size_t)ldx, rows);
}

/* Rows on their way into the context and into latents. Products of any of them share a launch. */
typedef struct context_pass {
    backend_model *model;
    bool prompt;
    cuda_context_source context; /* rows that enter the drafter's context */
    cuda_context_source latent;  /* rows that have latents; made of the drafter's K/V: those behind first_latent */
    int first_latent;            /* counted in `context` */
    cuda_taps taps;              /* of latents from aux hidden states */
    int latent_heads[GEMMA4_MAX_LAYERS]; /* timeline_layer.latent_head */
} context_pass;

/* What the pass has to know of a cache with latents: like the others in what they restore. */
static void take_latents(context_pass *p, const backend_cache *c) {
    for (int i = 0; i < p->model->config->layers; i++) p->latent_heads[i] = c->t.layer[i].latent_head;
    if (!c->t.latents_from_aux) return;
    p->taps.n = c->t.models.f_theta->aux_layers;
    for (int i = 0; i < p->taps.n; i++) p->taps.at[cuda_aux_form(c)][i] = (uint8_t)c->t.f_theta_tap[i];
}

/* e = encoder * raw context K (V) */
static cudaError_t encode_context(const context_pass *p) {
    backend_model *m = p->model;
    const f_theta_config *f = &m->options.f_theta->config;
    size_t all = (size_t)m->options.f_theta->encoder_in, ld = (size_t)m->weights.encoder_k.ld,
           first = (size_t)p->first_latent;
    cudaError_t status = cudaSuccess;
    for (int half = 0; half < 2 && status == cudaSuccess; half++) {
        const cuda_matrix *encoder = half ? &m->weights.encoder_v : &m->weights.encoder_k;
        cuda_bf16 *in = m->space.latent_in + (size_t)half * (size_t)m->max_rows * ld;
        cuda_round_rows(&m->launch, m->space.d_raw + first * 2 * all + (size_t)half * all, 2 * (int)all, in,
                        encoder->ld, (int)all, p->latent.rows);
        matrix_product e = {
            .w = encoder, .y = m->space.latents + (half ? (size_t)f->rank_k : 0), .ldy = f->rank_k + f->rank_v};
        status = products(m, &e, 1, in, encoder->ld, p->latent.rows, p->prompt);
    }
    return status;
}

/* e = encoder * [rms(aux_1) ... rms(aux_n)]; one encoder where the latent is shared. */
static cudaError_t encode_aux(const context_pass *p) {
    backend_model *m = p->model;
    const cuda_weights *w = &m->weights;
    cuda_latent_row row = cuda_restoration_latents(m);
    cuda_norm_aux(&m->launch, &p->latent, &p->taps, m->config->hidden, m->config->rms_eps, m->space.latent_in,
                  w->encoder_k.ld);
    matrix_product e[2] = {{.w = &w->encoder_k, .y = m->space.latents, .ldy = row.width},
                           {.w = &w->encoder_v, .y = m->space.latents + row.first_v, .ldy = row.width}};
    return products(m, e, row.first_v ? 2 : 1, m->space.latent_in, w->encoder_k.ld, p->latent.rows, p->prompt);
}

/* Encoded latents are stored; and for every restored layer and head the scalar of v_norm, computed from the stored
 * (rounded) latent that attention will read. */
static cudaError_t store_latents(const context_pass *p) {
    backend_model *m = p->model;
    cuda_latent_row row = cuda_restoration_latents(m);
    cudaError_t status = cudaSuccess;
    cuda_store_latents(&m->launch, &p->latent, m->space.latents, &row, m->space.latent_half,
                       m->weights.decoder_v[0].ld);
    for (int layer = 0; layer < m->config->layers && status == cudaSuccess; layer++) {
        int head = p->latent_heads[layer];
        if (head < 0) continue;
        const gemma4_layer_config *lc = &m->config->layer[layer];
        const cuda_matrix *decoder = &m->weights.decoder_v[layer];
        matrix_product values = {.w = decoder, .y = m->space.latent_values, .ldy = decoder->out};
        status = products(m, &values, 1, m->space.latent_half, decoder->ld, p->latent.rows, p->prompt);
        if (status != cudaSuccess) break;
        cuda_store_scales(&m->launch, &p->latent, m->space.latent_values, lc->kv_heads, lc->head_dim, head,
                          m->config->rms_eps);
    }
    return status;
}

static cudaError_t extend_latents_of_aux(const context_pass *p) {
    cudaError_t status = encode_aux(p);
    return status == cudaSuccess ? store_latents(p) : status;
}

static cudaError_t extend_latents_of_context(const context_pass *p) {
    cudaError_t status = encode_context(p);
    return status == cudaSuccess ? store_latents(p) : status;
}

/* The drafter's context, and latents that are made of it. */
static cudaError_t extend_context(const context_pass *p) {
    backend_model *m = p->model;
    cuda_workspace *s = &m->space;
    const cuda_weights *w = &m->weights;
    const dflash_config *d = &m->options.drafter->config;
    int rows = p->context.rows, kv = d->kv_heads * d->head_dim, all = d->layers * kv;
    cuda_round_aux(&m->launch, &p->context, d->targets * m->config->hidden, s->d_aux, w->fc.ld);
    matrix_product fc = {.w = &w->fc, .y = s->d_x, .ldy = d->hidden};
    cudaError_t status = products(m, &fc, 1, s->d_aux, w->fc.ld, rows, p->prompt);
    cuda_norm_rows(&m->launch, s->d_x, d->hidden, w->hidden_norm, d->rms_eps, s->d_in, w->draft[0].k.ld, d->hidden,
                   rows);
    matrix_product raw[2 * DFLASH_MAX_LAYERS];
    for (int l = 0; l < d->layers; l++) {
        float *k = s->d_raw + (size_t)(l * kv);
        raw[2 * l] = (matrix_product){.w = &w->draft[l].k, .y = k, .ldy = 2 * all};
        raw[2 * l + 1] = (matrix_product){.w = &w->draft[l].v, .y = k + all, .ldy = 2 * all};
    }
    if (status == cudaSuccess) status = products(m, raw, 2 * d->layers, s->d_in, w->draft[0].k.ld, rows, p->prompt);
    if (status == cudaSuccess && p->latent.rows && !p->taps.n) status = extend_latents_of_context(p);
    if (status != cudaSuccess) return status;
    cuda_context_rows context = {
        .raw = s->d_raw,
        .inverse_frequency = w->draft_inverse_frequency,
        .layers = d->layers,
        .kv_heads = d->kv_heads,
        .head_dim = d->head_dim,
        .eps = d->rms_eps,
        .source = p->context,
    };
    for (int l = 0; l < d->layers; l++) context.k_norm[l] = w->draft[l].k_norm;
    cuda_store_context(&m->launch, &context);
    return cudaSuccess;
}

static kakeya_status extend(const context_pass *p, kakeya_error *error) {
    cudaError_t status = cudaSuccess;
    if (p->latent.rows && p->taps.n) status = extend_latents_of_aux(p);
    if (status == cudaSuccess && p->context.rows) status = extend_context(p);
    return cuda_check(status, "extending the drafter's context and latents", error);
}

/* The last n of a prompt's rows. */
static cuda_context_source last_rows(const backend_cache *c, const float *aux, int rows, int position, int n) {
    int width = c->t.taps * c->model->config->hidden, skipped = rows - n;
    return (cuda_context_source){.cache = c->view.data,
                                 .position = position + skipped,
                                 .rows = n,
                                 .aux = aux + (size_t)skipped * (size_t)width,
                                 .aux_width = width,
                                 .aux_form = cuda_aux_form(c)};
}

kakeya_status cuda_context_extend_prompt(backend_cache *c, const float *aux, int rows, int position,
                                         kakeya_error *error) {
    context_pass p = {.model = c->model, .prompt = true};
    int latents = timeline_latent_rows(&c->t, rows);
    if (c->t.options.keep_draft_context)
        p.context = last_rows(c, aux, rows, position, timeline_context_rows(&c->t, rows));
    if (c->t.latents != STORE_NONE) {
        take_latents(&p, c);
        p.latent = last_rows(c, aux, rows, position, latents);
        p.first_latent = p.context.rows - latents; /* made of the context, they are some of it */
    }
    return extend(&p, error);
}

/* ------------------------------------------------------------------------------------------ backlogs of many caches */

/* The order of caches in the list: those whose latents need no drafter's context, those with both, those with a context
 * alone. So the rows of latents and the rows of the context are neighbours each. */
enum { LATENTS_ALONE = 0, LATENTS_AND_CONTEXT, CONTEXT_ALONE, KINDS };

static int kind_of(const timeline *t) {
    if (t->latents == STORE_NONE) return CONTEXT_ALONE;
    return t->options.keep_draft_context ? LATENTS_AND_CONTEXT : LATENTS_ALONE;
}

/* The rows of one cache that are needed, behind those that are listed. */
static void list_rows(const backend_cache *c, position_range rows, cuda_context_row *list, int *listed) {
    int n = rows.end - rows.begin, latents = timeline_latent_rows(&c->t, n), needed = latents;
    if (c->t.options.keep_draft_context) {
        int context = timeline_context_rows(&c->t, n);
        if (context > needed) needed = context;
    }
    size_t width = timeline_aux_row_bytes(&c->t) / sizeof(float);
    for (int i = n - needed; i < n; i++)
        list[(*listed)++] = (cuda_context_row){.cache = c->view.data,
                                               .aux = (const float *)c->backlog.data + (size_t)i * width,
                                               .position = rows.begin + i,
                                               .aux_form = cuda_aux_form(c),
                                               .behind = n - 1 - i,
                                               .keeps_latent = i >= n - latents};
}

/* Rows of the list, and where those of each kind end. */
typedef struct listed_rows {
    int n, end[KINDS];
} listed_rows;

static kakeya_status extend_listed(context_pass *p, const listed_rows *listed, kakeya_error *error) {
    backend_model *m = p->model;
    cuda_workspace *w = &m->space;
    int alone = listed->end[LATENTS_ALONE];
    p->context = (cuda_context_source){.row = w->context_rows + alone, .rows = listed->n - alone};
    p->latent = (cuda_context_source){.row = w->context_rows, .rows = listed->end[LATENTS_AND_CONTEXT]};
    kakeya_status status =
        cuda_check(cudaMemcpyAsync(w->context_rows, w->staged_context, (size_t)listed->n * sizeof *w->context_rows,
                                   cudaMemcpyHostToDevice, m->device.stream),
                   "listing rows of the context", error);
    return status ? status : extend(p, error);
}

/* Which layers have latents, and where, is the same for all caches that restore the same layers; others have a turn of
 * their own. */
static bool same_latents(const timeline *a, const timeline *b) {
    return a->options.restore_layers == b->options.restore_layers;
}

/* The next caches that go together, and no others, into the list. */
static listed_rows list_caches(context_pass *p, backend_cache *const *caches, const position_range *rows, int n,
                               bool *taken) {
    const backend_model *m = p->model;
    int most = m->max_rows < CUDA_CONTEXT_ROWS ? m->max_rows : CUDA_CONTEXT_ROWS;
    listed_rows listed = {0};
    const timeline *with_latents = NULL;
    for (int kind = 0; kind < KINDS; kind++) {
        for (int i = 0; i < n; i++) {
            const timeline *t = &caches[i]->t;
            if (taken[i] || range_is_empty(rows[i]) || kind_of(t) != kind) continue;
            if (listed.n + rows[i].end - rows[i].begin > most) continue;
            if (kind != CONTEXT_ALONE) {
                if (with_latents && !same_latents(t, with_latents)) continue;
                with_latents = t;
                take_latents(p, caches[i]);
            }
            taken[i] = true;
            list_rows(caches[i], rows[i], m->space.staged_context, &listed.n);
        }
        listed.end[kind] = listed.n;
    }
    return listed;
}

static bool any_left(const position_range *rows, const bool *taken, int n) {
    for (int i = 0; i < n; i++) {
        if (!taken[i] && !range_is_empty(rows[i])) return true;
    }
    return false;
}

kakeya_status cuda_context_extend(backend_cache *const *caches, const position_range *rows, int n,
                                  kakeya_error *error) {
    bool taken[BACKEND_MAX_FORWARD] = {false};
    backend_model *m = caches[0]->model;
    kakeya_status status = KAKEYA_OK;
    for (bool first = true; !status && any_left(rows, taken, n); first = false) {
        context_pass p = {.model = m};
        if (!first) status = cuda_finish(&m->device, "extending the drafter's context", error); /* the list is read */
        if (status) break;
        listed_rows listed = list_caches(&p, caches, rows, n, taken);
        status = extend_listed(&p, &listed, error);
    }
    return status;
}
