#include "backend/cuda/restoration.h"

#include "backend/cuda/prompt_gemm.h"

cuda_bf16 *cuda_restoration_set(const cuda_buffer *buffer, int set) {
    size_t bytes = buffer->bytes / 2 / 256 * 256;
    return (cuda_bf16 *)(void *)((char *)buffer->data + (size_t)set * bytes);
}

cuda_restore cuda_restoration_of(const backend_model *m, int layer) {
    const gemma4_layer_config *lc = &m->config->layer[layer];
    const cuda_weights *w = &m->weights;
    int type = (int)lc->type;
    return (cuda_restore){
        .decoder_k = &w->decoder_k[layer],
        .decoder_v = &w->decoder_v[layer],
        .k_norm = w->layer[layer].k_norm,
        .inverse_frequency = w->inverse_frequency[type],
        .pairs = m->config->rope[type].rotated_pairs,
        .kv_heads = lc->kv_heads,
        .head_dim = lc->head_dim,
        .rank = m->options.f_theta->config.rank,
        .layer = layer,
        .full = lc->type == GEMMA4_FULL,
        .eps = m->config->rms_eps,
        .turns = m->space.restore_turns[type].data,
    };
}

restore_form cuda_restoration_form(const backend_model *m, int layer, bool ring) {
    if (!ring) return RESTORE_ROWS;
    cuda_restore r = cuda_restoration_of(m, layer);
    return prompt_gemm_restores(&r) ? RESTORE_PRODUCT : RESTORE_PRODUCTS;
}

int cuda_restoration_positions(const backend_cache *c, bool prompt, int rows) {
    int sliding = c->model->config->sliding_window, window = c->t.options.window;
    return prompt ? sliding : (window < sliding ? sliding - window : 0) + rows;
}

/* What layers whose latents lie in a ring need; `row`: bytes of the widest K (or V) row. */
static kakeya_status prepare_ring(backend_cache *c, size_t row, kakeya_error *error) {
    backend_model *m = c->model;
    cuda_workspace *w = &m->space;
    size_t capacity = (size_t)c->t.latent_capacity, raw = capacity * row / sizeof(cuda_bf16) * sizeof(float);
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; i < m->config->layers && !status; i++) {
        gemma4_layer_type type = m->config->layer[i].type;
        size_t pairs = (size_t)m->config->rope[type].rotated_pairs;
        switch (c->layer[i].form) {
        case RESTORE_PRODUCT:
            status = model_grow(m, &w->restore_turns[type], capacity * pairs * sizeof(float2),
                                "turns of evicted positions", error);
            break;
        case RESTORE_PRODUCTS:
            status = model_grow(m, &w->raw_k, raw, "decoded latents", error);
            if (!status) status = model_grow(m, &w->raw_v, raw, "decoded latents", error);
            break;
        case RESTORE_ROWS:
        case RESTORE_NONE:
            break;
        }
    }
    return status;
}

kakeya_status cuda_restoration_prepare(backend_cache *c, int positions, kakeya_error *error) {
    backend_model *m = c->model;
    size_t row = 0;
    for (int i = 0; i < m->config->layers; i++) {
        const gemma4_layer_config *lc = &m->config->layer[i];
        size_t kv = (size_t)(lc->kv_heads * lc->head_dim) * sizeof(cuda_bf16);
        if (kv > row) row = kv;
    }
    size_t both = 2 * ((size_t)positions * row + 256);
    kakeya_status status = model_grow(m, &m->space.restored_k, both, "restored keys", error);
    if (!status && c->t.latents == STORE_RING) status = prepare_ring(c, row, error);
    if (!status) status = model_grow(m, &m->space.restored_v, both, "restored values", error);
    return status;
}
