/* Formulas as in the CPU backend's draft.c. */
#include "backend/cuda/context.h"

#include "backend/cuda/matrix.h"

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

/* Latents of rows [first, rows): e = encoder * raw context K (V), stored; and for every restored layer and head the
 * scalar of v_norm, computed from the stored (rounded) latent that attention will read. */
static cudaError_t extend_latents(backend_cache *c, int first, int rows, int position, bool prompt) {
    backend_model *m = c->model;
    const f_theta_model *f = m->options.f_theta;
    int rank = f->config.rank, n = rows - first;
    size_t all = (size_t)f->encoder_in, ld = (size_t)m->weights.encoder_k.ld;
    cudaError_t status = cudaSuccess;
    for (int half = 0; half < 2 && status == cudaSuccess; half++) {
        const cuda_matrix *encoder = half ? &m->weights.encoder_v : &m->weights.encoder_k;
        cuda_bf16 *in = m->space.latent_in + (size_t)half * (size_t)m->max_rows * ld;
        cuda_round_rows(&m->launch, m->space.d_raw + (size_t)first * 2 * all + (size_t)half * all, 2 * (int)all, in,
                        encoder->ld, (int)all, n);
        matrix_product e = {.w = encoder, .y = m->space.latents + (size_t)half * (size_t)rank, .ldy = 2 * rank};
        status = products(m, &e, 1, in, encoder->ld, n, prompt);
    }
    if (status != cudaSuccess) return status;
    const cuda_cache_view *view = c->view.data;
    cuda_store_latents(&m->launch, view, m->space.latents, rank, position + first, n, m->space.latent_half,
                       m->weights.decoder_v[0].ld);
    for (int layer = 0; layer < m->config->layers && status == cudaSuccess; layer++) {
        int head = c->t.layer[layer].latent_head;
        if (head < 0) continue;
        const gemma4_layer_config *lc = &m->config->layer[layer];
        const cuda_matrix *decoder = &m->weights.decoder_v[layer];
        matrix_product values = {.w = decoder, .y = m->space.latent_values, .ldy = decoder->out};
        status = products(m, &values, 1, m->space.latent_half, decoder->ld, n, prompt);
        if (status != cudaSuccess) break;
        cuda_store_scales(&m->launch, view, m->space.latent_values, lc->kv_heads, lc->head_dim, head,
                          m->config->rms_eps, position + first, n);
    }
    return status;
}

kakeya_status cuda_context_extend(backend_cache *c, const float *aux, int rows, int position, bool prompt,
                                  kakeya_error *error) {
    backend_model *m = c->model;
    cuda_workspace *s = &m->space;
    const cuda_weights *w = &m->weights;
    const dflash_config *d = &m->options.drafter->config;
    bool restored = c->t.latents != STORE_NONE;
    int needed = timeline_context_rows(&c->t, rows), latents = timeline_latent_rows(&c->t, rows);
    int width = d->targets * m->config->hidden, kv = d->kv_heads * d->head_dim, all = d->layers * kv,
        skipped = rows - needed;
    aux += (size_t)skipped * (size_t)width;
    position += skipped;
    rows = needed;

    cuda_round_rows(&m->launch, aux, width, s->d_aux, w->fc.ld, width, rows);
    matrix_product fc = {.w = &w->fc, .y = s->d_x, .ldy = d->hidden};
    cudaError_t status = products(m, &fc, 1, s->d_aux, w->fc.ld, rows, prompt);
    cuda_norm_rows(&m->launch, s->d_x, d->hidden, w->hidden_norm, d->rms_eps, s->d_in, w->draft[0].k.ld, d->hidden,
                   rows);
    matrix_product raw[2 * DFLASH_MAX_LAYERS];
    for (int l = 0; l < d->layers; l++) {
        float *k = s->d_raw + (size_t)(l * kv);
        raw[2 * l] = (matrix_product){.w = &w->draft[l].k, .y = k, .ldy = 2 * all};
        raw[2 * l + 1] = (matrix_product){.w = &w->draft[l].v, .y = k + all, .ldy = 2 * all};
    }
    if (status == cudaSuccess) status = products(m, raw, 2 * d->layers, s->d_in, w->draft[0].k.ld, rows, prompt);
    if (status == cudaSuccess && restored)
        status = extend_latents(c, rows > latents ? rows - latents : 0, rows, position, prompt);
    if (status != cudaSuccess) return cuda_check(status, "extending the drafter's context", error);
    cuda_context_rows context = {
        .raw = s->d_raw,
        .inverse_frequency = w->draft_inverse_frequency,
        .layers = d->layers,
        .kv_heads = d->kv_heads,
        .head_dim = d->head_dim,
        .eps = d->rms_eps,
        .cache = c->view.data,
        .position = position,
        .rows = rows,
    };
    for (int l = 0; l < d->layers; l++) context.k_norm[l] = w->draft[l].k_norm;
    cuda_store_context(&m->launch, &context);
    return KAKEYA_OK;
}
