/* Formulas as in the CPU backend's draft.c. */
#include "backend/cuda/context.h"

#include "backend/cuda/matrix.h"

_Static_assert((int)CUDA_CONTEXT_ROWS == (int)BACKEND_MAX_SEGMENTS * (int)KV_BACKLOG,
               "kernels.h repeats the backend's limits");

/* Products of any number of rows that share their input [rows][ldx]. Prompt rows take the prompt kernels. */
static cudaError_t products(const backend_model *m, const matrix_product *list, int n, const cuda_bf16 *x, int ldx,
                            int rows, bool prompt) {
    if (!prompt) {
        matrix_products(&m->launch, list, n, x, ldx, rows, 0);
        return cudaSuccess; /* launch failures are found when the stream is finished */
    }
    cudaError_t status = cudaSuccess;
    for (int i = 0; i < n && status == cudaSuccess; i++)
        status = matrix_prompt_product(&m->launch, &list[i], x, (size_t)ldx, rows);
    return status;
}

/* Rows on their way into the context. Products of any of them share a launch. */
typedef struct context_pass {
    backend_model *model;
    bool prompt;
    cuda_context_source all;
    cuda_context_source latent; /* those that have latents: all behind first_latent, up to their last one */
    int first_latent;
    int latent_heads[GEMMA4_MAX_LAYERS]; /* timeline_layer.latent_head */
} context_pass;

static void take_heads(context_pass *p, const timeline *t) {
    for (int i = 0; i < p->model->config->layers; i++) p->latent_heads[i] = t->layer[i].latent_head;
}

/* e = encoder * raw context K (V), stored; and for every restored layer and head the scalar of v_norm, computed from
 * the stored (rounded) latent that attention will read. */
static cudaError_t extend_latents(const context_pass *p) {
    backend_model *m = p->model;
    const f_theta_model *f = m->options.f_theta;
    int rank_k = f->config.rank_k, rank_v = f->config.rank_v, n = p->latent.rows;
    size_t all = (size_t)f->encoder_in, ld = (size_t)m->weights.encoder_k.ld, first = (size_t)p->first_latent;
    cudaError_t status = cudaSuccess;
    for (int half = 0; half < 2 && status == cudaSuccess; half++) {
        const cuda_matrix *encoder = half ? &m->weights.encoder_v : &m->weights.encoder_k;
        cuda_bf16 *in = m->space.latent_in + (size_t)half * (size_t)m->max_rows * ld;
        cuda_round_rows(&m->launch, m->space.d_raw + first * 2 * all + (size_t)half * all, 2 * (int)all, in,
                        encoder->ld, (int)all, n);
        matrix_product e = {.w = encoder, .y = m->space.latents + (half ? (size_t)rank_k : 0), .ldy = rank_k + rank_v};
        status = products(m, &e, 1, in, encoder->ld, n, p->prompt);
    }
    if (status != cudaSuccess) return status;
    cuda_store_latents(&m->launch, &p->latent, m->space.latents, rank_k, rank_v, m->space.latent_half,
                       m->weights.decoder_v[0].ld);
    for (int layer = 0; layer < m->config->layers && status == cudaSuccess; layer++) {
        int head = p->latent_heads[layer];
        if (head < 0) continue;
        const gemma4_layer_config *lc = &m->config->layer[layer];
        const cuda_matrix *decoder = &m->weights.decoder_v[layer];
        matrix_product values = {.w = decoder, .y = m->space.latent_values, .ldy = decoder->out};
        status = products(m, &values, 1, m->space.latent_half, decoder->ld, n, p->prompt);
        if (status != cudaSuccess) break;
        cuda_store_scales(&m->launch, &p->latent, m->space.latent_values, lc->kv_heads, lc->head_dim, head,
                          m->config->rms_eps);
    }
    return status;
}

/* The drafter's input of the rows lies in d_aux. */
static cudaError_t extend(const context_pass *p) {
    backend_model *m = p->model;
    cuda_workspace *s = &m->space;
    const cuda_weights *w = &m->weights;
    const dflash_config *d = &m->options.drafter->config;
    int rows = p->all.rows, kv = d->kv_heads * d->head_dim, all = d->layers * kv;
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
    if (status == cudaSuccess && p->latent.rows) status = extend_latents(p);
    if (status != cudaSuccess) return status;
    cuda_context_rows context = {
        .raw = s->d_raw,
        .inverse_frequency = w->draft_inverse_frequency,
        .layers = d->layers,
        .kv_heads = d->kv_heads,
        .head_dim = d->head_dim,
        .eps = d->rms_eps,
        .source = p->all,
    };
    for (int l = 0; l < d->layers; l++) context.k_norm[l] = w->draft[l].k_norm;
    cuda_store_context(&m->launch, &context);
    return cudaSuccess;
}

static kakeya_status check(cudaError_t status, kakeya_error *error) {
    return cuda_check(status, "extending the drafter's context", error);
}

kakeya_status cuda_context_extend_prompt(backend_cache *c, const float *aux, int rows, int position,
                                         kakeya_error *error) {
    backend_model *m = c->model;
    int width = m->options.drafter->config.targets * m->config->hidden;
    int needed = timeline_context_rows(&c->t, rows), latents = timeline_latent_rows(&c->t, rows);
    int skipped = rows - needed;
    context_pass p = {.model = m, .prompt = true, .all = {NULL, c->view.data, position + skipped, needed}};
    if (c->t.latents != STORE_NONE) {
        p.first_latent = needed > latents ? needed - latents : 0;
        p.latent = p.all;
        p.latent.position += p.first_latent;
        p.latent.rows -= p.first_latent;
        take_heads(&p, &c->t);
    }
    cuda_round_rows(&m->launch, aux + (size_t)skipped * (size_t)width, width, m->space.d_aux, m->weights.fc.ld, width,
                    needed);
    return check(extend(&p), error);
}

/* ------------------------------------------------------------------------------------------ backlogs of many caches */

/* The rows of one cache that are needed, behind those that are listed. */
static void list_rows(const backend_cache *c, position_range rows, cuda_context_row *list, int *listed) {
    int n = rows.end - rows.begin, needed = timeline_context_rows(&c->t, n), latents = timeline_latent_rows(&c->t, n);
    size_t width = cuda_aux_row_bytes(c) / sizeof(float);
    for (int i = n - needed; i < n; i++)
        list[(*listed)++] = (cuda_context_row){.cache = c->view.data,
                                               .aux = (const float *)c->backlog.data + (size_t)i * width,
                                               .position = rows.begin + i,
                                               .behind = n - 1 - i,
                                               .keeps_latent = i >= n - latents};
}

/* Rows [0, n) of the list, of which the first n_latent are of caches with latents. */
static kakeya_status extend_listed(backend_model *m, const timeline *with_latents, int n, int n_latent,
                                   kakeya_error *error) {
    cuda_workspace *w = &m->space;
    int width = m->options.drafter->config.targets * m->config->hidden;
    context_pass p = {.model = m, .all = {.row = w->context_rows, .rows = n}};
    p.latent = (cuda_context_source){.row = w->context_rows, .rows = n_latent};
    if (n_latent) take_heads(&p, with_latents);
    kakeya_status status =
        check(cudaMemcpyAsync(w->context_rows, w->staged_context, (size_t)n * sizeof *w->context_rows,
                              cudaMemcpyHostToDevice, m->device.stream),
              error);
    if (status) return status;
    cuda_round_aux(&m->launch, &p.all, width, w->d_aux, m->weights.fc.ld);
    return check(extend(&p), error);
}

/* Caches with latents come first: their rows share further products. Which layers have latents, and where, is the same
 * for all caches that restore the same layers; others have a turn of their own. */
static bool same_latents(const timeline *a, const timeline *b) {
    if (a->latents == STORE_NONE || b->latents == STORE_NONE) return a->latents == b->latents;
    return a->options.restore_layers == b->options.restore_layers;
}

/* The next caches that go together, and no others, into the list. Returns its rows. */
static int list_caches(backend_cache *const *caches, const position_range *rows, int n, bool *taken,
                       const timeline **with_latents, int *n_latent) {
    backend_model *m = caches[0]->model;
    int most = m->max_rows < CUDA_CONTEXT_ROWS ? m->max_rows : CUDA_CONTEXT_ROWS, listed = 0;
    *with_latents = NULL;
    for (int latents = 1; latents >= 0; latents--) {
        for (int i = 0; i < n; i++) {
            const timeline *t = &caches[i]->t;
            if (taken[i] || range_is_empty(rows[i]) || (t->latents != STORE_NONE) != latents) continue;
            if (listed + rows[i].end - rows[i].begin > most) continue;
            if (latents && *with_latents && !same_latents(t, *with_latents)) continue;
            if (latents) *with_latents = t;
            taken[i] = true;
            list_rows(caches[i], rows[i], m->space.staged_context, &listed);
        }
        if (latents) *n_latent = listed;
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
    bool taken[CUDA_MAX_SEGMENTS] = {false};
    backend_model *m = caches[0]->model;
    kakeya_status status = KAKEYA_OK;
    for (bool first = true; !status && any_left(rows, taken, n); first = false) {
        const timeline *with_latents;
        int n_latent = 0;
        if (!first) status = cuda_finish(&m->device, "extending the drafter's context", error); /* the list is read */
        if (status) break;
        int listed = list_caches(caches, rows, n, taken, &with_latents, &n_latent);
        status = extend_listed(m, with_latents, listed, n_latent, error);
    }
    return status;
}
