#include "backend/cuda/restoration.h"

#include "backend/cuda/prompt_gemm.h"

cuda_bf16 *cuda_restoration_set(const cuda_buffer *buffer, int set) {
    size_t bytes = buffer->bytes / 2 / 256 * 256;
    return (cuda_bf16 *)(void *)((char *)buffer->data + (size_t)set * bytes);
}

cuda_latent_row cuda_restoration_latents(const backend_model *m) {
    static const cuda_latent_form forms[] = {
        [LATENT_BF16] = CUDA_LATENT_BF16, [LATENT_Q8] = CUDA_LATENT_Q8, [LATENT_Q4] = CUDA_LATENT_Q4};
    latent_row row = latent_row_of(&m->options.restoration->config, KV_FORMAT_BF16);
    return (cuda_latent_row){
        .form = forms[row.format],
        .rank_k = row.rank_k,
        .rank_v = row.rank_v,
        .width = row.shared ? row.rank_k : row.rank_k + row.rank_v,
        .first_v = row.shared ? 0 : row.rank_k,
        .bytes = (int)row.bytes,
        .v_at = (int)row.values_at,
    };
}

/* What is the same for all caches of the model. */
static cuda_restore restore_of(const backend_model *m, int layer) {
    const layer_config *lc = &m->config->layer[layer];
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
        .rank_k = m->options.restoration->config.rank_k,
        .rank_v = m->options.restoration->config.rank_v,
        .full = lc->type == LAYER_FULL,
        .latent = cuda_restoration_latents(m),
        .eps = m->config->rms_eps,
    };
}

cuda_restore cuda_restoration_of(const backend_cache *c, int layer, int rows) {
    cuda_restore r = restore_of(c->model, layer);
    r.latent_head = c->t.layer[layer].latent_head;
    r.gathered = cuda_restoration_gathered(c, rows, false);
    return r;
}

restore_form cuda_restoration_form(const backend_model *m, int layer, bool ring) {
    if (!ring) return RESTORE_ROWS;
    cuda_restore r = restore_of(m, layer);
    return prompt_gemm_restores(&r) ? RESTORE_PRODUCT : RESTORE_PRODUCTS;
}

bool cuda_restoration_attends_latents(const backend_cache *c) {
    const backend_model *m = c->model;
    bool any = false;
    for (int i = 0; i < m->config->layers; i++) {
        if (!c->t.layer[i].restored) continue;
        cuda_restore r = restore_of(m, i);
        any = true;
        if (c->layer[i].form != RESTORE_PRODUCT || m->config->layer[i].k_eq_v ||
            !latent_attention_serves(&m->launch, m->config->heads, r.kv_heads, r.head_dim, r.pairs, r.rank_k, r.rank_v))
            return false;
    }
    return any;
}

/* ------------------------------------------------------------------------------------------------------ buffers */

static bool has_form(const backend_cache *c, restore_form form) {
    for (int i = 0; i < c->model->config->layers; i++) {
        if (c->layer[i].form == form) return true;
    }
    return false;
}

/* Gathered latents, part by part, each on a boundary of its own. */
typedef struct gathered_layout {
    size_t codes, scales, turns, positions, groups, bases, inside; /* where they begin */
    size_t bytes;
} gathered_layout;

static size_t place(size_t *end, size_t bytes) {
    enum { BOUNDARY = 256 };
    size_t at = *end;
    *end += (bytes + BOUNDARY - 1) / BOUNDARY * BOUNDARY;
    return at;
}

/* The product that finishes keys itself reads the turns of their positions. */
static int gathered_pairs(const backend_cache *c) {
    return has_form(c, RESTORE_PRODUCT) ? c->model->config->rope[LAYER_SLIDING].rotated_pairs : 0;
}

static gathered_layout layout_of(const backend_cache *c, int rows, bool attended) {
    size_t n = (size_t)rows, pairs = (size_t)gathered_pairs(c), groups = attended ? n / LATENT_GROUP + 1 : 0;
    gathered_layout l = {0};
    l.codes = place(&l.bytes, n * (size_t)cuda_restoration_latents(c->model).width * sizeof(cuda_bf16));
    l.scales = place(&l.bytes, n * cuda_scale_bytes(c));
    l.turns = place(&l.bytes, attended ? 0 : n * pairs * sizeof(float2));
    l.positions = place(&l.bytes, n * sizeof(int));
    l.groups = place(&l.bytes, groups * sizeof(cuda_latent_group));
    l.bases = place(&l.bytes, groups * pairs * sizeof(float2));
    l.inside = place(&l.bytes, attended ? LATENT_GROUP * pairs * sizeof(float2) : 0);
    return l;
}

cuda_gathered cuda_restoration_gathered(const backend_cache *c, int rows, bool attended) {
    if (c->t.latents != STORE_RING) return (cuda_gathered){0};
    char *data = c->model->space.gathered.data;
    gathered_layout l = layout_of(c, rows, attended);
    return (cuda_gathered){
        .codes = (cuda_bf16 *)(void *)(data + l.codes),
        .scales = (float *)(void *)(data + l.scales),
        .turns = attended ? NULL : (float2 *)(void *)(data + l.turns),
        .positions = (int *)(void *)(data + l.positions),
        .latent = cuda_restoration_latents(c->model),
        .heads = c->t.latent_heads,
        .pairs = gathered_pairs(c),
        .groups = attended ? (cuda_latent_group *)(void *)(data + l.groups) : NULL,
        .bases = attended ? (float2 *)(void *)(data + l.bases) : NULL,
        .inside = attended ? (float2 *)(void *)(data + l.inside) : NULL,
    };
}

static size_t widest_row(const model_config *config) {
    size_t widest = 0;
    for (int i = 0; i < config->layers; i++) {
        size_t row = (size_t)(config->layer[i].kv_heads * config->layer[i].head_dim) * sizeof(cuda_bf16);
        if (row > widest) widest = row;
    }
    return widest;
}

size_t cuda_restoration_row_bytes(const model_config *config) { return 2 * widest_row(config); }

kakeya_status cuda_restoration_prepare(backend_cache *c, int rows, bool prompt, kakeya_error *error) {
    backend_model *m = c->model;
    cuda_workspace *w = &m->space;
    size_t row = widest_row(m->config), set = (size_t)rows * row + 256,
           raw = (size_t)rows * row / sizeof(cuda_bf16) * sizeof(float);
    bool beside = prompt || has_form(c, RESTORE_PRODUCTS) || has_form(c, RESTORE_ROWS);
    kakeya_status status = model_grow(m, &w->restored_k, (beside ? 2 : 1) * set, "restored keys", error);
    if (!status) status = model_grow(m, &w->restored_v, (beside ? 2 : 1) * set, "restored values", error);
    if (!status && c->t.latents == STORE_RING)
        status = model_grow(m, &w->gathered, layout_of(c, rows, false).bytes, "latents of evicted positions", error);
    if (status || !has_form(c, RESTORE_PRODUCTS)) return status;
    status = model_grow(m, &w->raw_k, raw, "decoded latents", error);
    return status ? status : model_grow(m, &w->raw_v, raw, "decoded latents", error);
}

kakeya_status cuda_restoration_prepare_latents(backend_cache *c, int latents, int rows, bool keys,
                                               kakeya_error *error) {
    backend_model *m = c->model;
    cuda_workspace *w = &m->space;
    int sliding = m->config->sliding_window, window = c->t.options.window;
    size_t queries = (size_t)rows * (size_t)m->config->heads,
           stride = (size_t)latent_attention_stride(sliding, window, BACKEND_MAX_DECODE_ROWS),
           cells = queries * (size_t)latent_attention_partitions(sliding, window, BACKEND_MAX_DECODE_ROWS),
           rank = (size_t)m->options.restoration->config.rank_v, row = widest_row(m->config),
           heads = row / sizeof(cuda_bf16) / LATENT_HEAD_DIM + 1;
    kakeya_status status =
        model_grow(m, &w->gathered, layout_of(c, latents, true).bytes, "latents of evicted positions", error);
    if (!status && keys) {
        status = model_grow(m, &w->restored_k, (size_t)latents * row, "restored keys", error);
        if (!status)
            status = model_grow(m, &w->key_scales, (size_t)latents * heads * sizeof(float), "restored keys", error);
    } else if (!status) {
        status = model_grow(m, &w->latent_scores, queries * stride * sizeof(float), "attention scores", error);
    }
    if (!status) status = model_grow(m, &w->latent_sums, cells * rank * sizeof(float), "attention states", error);
    return status ? status : model_grow(m, &w->latent_state, cells * sizeof(float2), "attention states", error);
}
