/* The tensors of the text model, in Hugging Face's names: one walk for all who need the list. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "model/language_model.h"
#include "model/tensors.h"

/* Standard deviation of synthetic matrices: a common initialisation. What follows most of them is a norm, so only the
 * tables, the router and the gates feel it. */
static const float matrix_deviation = 0.02f;

/* Scaled embeddings of this size keep a synthetic model from repeating its input: the tied head then sees mostly what
 * the layers have added. */
static const float embedding_rms = 0.25f;

typedef struct walker {
    const model_config *config;
    tensor_visit visit;
    void *context;
    kakeya_error *error;
    kakeya_status status;
    int layer; /* -1: global tensors */
} walker;

/* ggml's rule for matrices that get more bits: the layers of the first and last eighth, and every third one between. */
static bool gets_more(int layer, int layers) {
    int eighth = layers / 8;
    return layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2;
}

/* What a model of a block format stores a matrix in, as converters do: the router and what single rows are read of stay
 * plain, the head gets six or eight bits, and rows that are no multiple of 256 other blocks. Affine directories have
 * the head in as many bits as the rest, and the router in eight. */
static weight_format quantised_format(const walker *w, parameter_group group, const char *path, int64_t in) {
    weight_format format = w->config->checkpoint_format;
    bool k = format == WEIGHT_Q4_K, affine = format == WEIGHT_AFFINE_4 || format == WEIGHT_AFFINE_8,
         table = group == PARAMETERS_EMBEDDING || group == PARAMETERS_HEAD;
    if (format >= WEIGHT_FORMAT_COUNT || weight_format_is_plain(format) || group == PARAMETERS_ROUTER ||
        group == PARAMETERS_PLE_TABLE || strstr(path, "per_layer_model") ||
        (group == PARAMETERS_EMBEDDING && !w->config->tied_head))
        return affine && group == PARAMETERS_ROUTER ? WEIGHT_AFFINE_8 : WEIGHT_BF16;
    if (affine) return format;
    if (table && weight_format_is_grouped(format)) return WEIGHT_BF16;
    if (table && !k) return WEIGHT_Q8_0;
    if (table || (k && (strstr(path, "v_proj") || strstr(path, "down_proj")) && gets_more(w->layer, w->config->layers)))
        return in % 256 ? WEIGHT_Q8_0 : WEIGHT_Q6_K;
    return k && in % 256 ? WEIGHT_Q5_0 : format;
}

/* `path` and the offsets that follow are those of a layer where w->layer >= 0. */
static void visit(walker *w, tensor_kind kind, parameter_group group, const char *path, size_t offset, float synthetic,
                  int dims, int64_t a, int64_t b, int64_t c) {
    if (w->status != KAKEYA_OK) return;
    tensor_slot slot = {
        .kind = kind, .group = group, .dims = dims, .shape = {a, b, c}, .offset = offset, .synthetic = synthetic};
    if (kind == SLOT_MATRIX) slot.quantised = quantised_format(w, group, path, slot.shape[dims - 1]);
    if (w->layer >= 0) {
        snprintf(slot.name, sizeof slot.name, "layers.%d.%s", w->layer, path);
        slot.offset += offsetof(model_weights, layer) + (size_t)w->layer * sizeof(layer_weights);
    } else {
        snprintf(slot.name, sizeof slot.name, "%s", path);
    }
    w->status = w->visit(w->context, &slot, w->error);
}

static void matrix(walker *w, parameter_group group, const char *path, size_t offset, int64_t out, int64_t in) {
    visit(w, SLOT_MATRIX, group, path, offset, matrix_deviation, 2, out, in, 0);
}

static void vector(walker *w, parameter_group group, const char *path, size_t offset, int64_t n, float synthetic) {
    visit(w, SLOT_VECTOR, group, path, offset, synthetic, 1, n, 0, 0);
}

static void ignored(walker *w, const char *path) { visit(w, SLOT_IGNORED, PARAMETERS_NORMS, path, 0, 0, 0, 0, 0, 0); }

#define IN_LAYER(field) offsetof(layer_weights, field)

static void walk_attention(walker *w, const layer_config *l) {
    const model_config *c = w->config;
    int64_t queries = (int64_t)c->heads * l->head_dim, keys = (int64_t)l->kv_heads * l->head_dim;
    matrix(w, PARAMETERS_ATTENTION, "self_attn.q_proj.weight", IN_LAYER(q_proj), queries, c->hidden);
    /* Scores are not divided by sqrt(head_dim): trained q_norm weights carry that factor, so synthetic ones do. */
    vector(w, PARAMETERS_NORMS, "self_attn.q_norm.weight", IN_LAYER(q_norm), l->head_dim,
           1.0f / sqrtf((float)l->head_dim));
    if (l->kv_source != w->layer) {
        ignored(w, "self_attn.k_proj.weight");
        ignored(w, "self_attn.v_proj.weight");
        ignored(w, "self_attn.k_norm.weight");
    } else {
        matrix(w, PARAMETERS_ATTENTION, "self_attn.k_proj.weight", IN_LAYER(k_proj), keys, c->hidden);
        if (l->k_eq_v)
            ignored(w, "self_attn.v_proj.weight"); /* conversions leave one there; no layer of this kind uses it */
        else
            matrix(w, PARAMETERS_ATTENTION, "self_attn.v_proj.weight", IN_LAYER(v_proj), keys, c->hidden);
        vector(w, PARAMETERS_NORMS, "self_attn.k_norm.weight", IN_LAYER(k_norm), l->head_dim, 1);
    }
    matrix(w, PARAMETERS_ATTENTION, "self_attn.o_proj.weight", IN_LAYER(o_proj), c->hidden, queries);
}

static void walk_mlp(walker *w, const layer_config *l) {
    const model_config *c = w->config;
    matrix(w, PARAMETERS_DENSE_MLP, "mlp.gate_proj.weight", IN_LAYER(gate_proj), l->intermediate, c->hidden);
    matrix(w, PARAMETERS_DENSE_MLP, "mlp.up_proj.weight", IN_LAYER(up_proj), l->intermediate, c->hidden);
    matrix(w, PARAMETERS_DENSE_MLP, "mlp.down_proj.weight", IN_LAYER(down_proj), c->hidden, l->intermediate);
    if (!c->moe) return;
    matrix(w, PARAMETERS_ROUTER, "router.proj.weight", IN_LAYER(router_proj), c->experts, c->hidden);
    /* Undoes the router's hidden^-0.5, so that synthetic routing prefers some experts and spreads over all. */
    vector(w, PARAMETERS_ROUTER, "router.scale", IN_LAYER(router_scale), c->hidden, sqrtf((float)c->hidden));
    vector(w, PARAMETERS_ROUTER, "router.per_expert_scale", IN_LAYER(router_expert_scale), c->experts, 1);
    visit(w, SLOT_MATRIX, PARAMETERS_EXPERTS, "experts.gate_up_proj", IN_LAYER(experts_gate_up), matrix_deviation, 3,
          c->experts, 2 * (int64_t)c->expert_intermediate, c->hidden);
    visit(w, SLOT_MATRIX, PARAMETERS_EXPERTS, "experts.down_proj", IN_LAYER(experts_down), matrix_deviation, 3,
          c->experts, c->hidden, c->expert_intermediate);
}

static void walk_layer(walker *w, int i) {
    const model_config *c = w->config;
    const layer_config *l = &c->layer[i];
    w->layer = i;
    walk_attention(w, l);
    walk_mlp(w, l);
    vector(w, PARAMETERS_NORMS, "input_layernorm.weight", IN_LAYER(input_norm), c->hidden, 1);
    vector(w, PARAMETERS_NORMS, "post_attention_layernorm.weight", IN_LAYER(post_attention_norm), c->hidden, 1);
    vector(w, PARAMETERS_NORMS, "pre_feedforward_layernorm.weight", IN_LAYER(pre_ffn_norm), c->hidden, 1);
    vector(w, PARAMETERS_NORMS, "post_feedforward_layernorm.weight", IN_LAYER(post_ffn_norm), c->hidden, 1);
    if (c->moe) {
        vector(w, PARAMETERS_NORMS, "post_feedforward_layernorm_1.weight", IN_LAYER(post_ffn_norm_1), c->hidden, 1);
        vector(w, PARAMETERS_NORMS, "pre_feedforward_layernorm_2.weight", IN_LAYER(pre_ffn_norm_2), c->hidden, 1);
        vector(w, PARAMETERS_NORMS, "post_feedforward_layernorm_2.weight", IN_LAYER(post_ffn_norm_2), c->hidden, 1);
    }
    if (c->ple_width) {
        matrix(w, PARAMETERS_PLE, "per_layer_input_gate.weight", IN_LAYER(ple_gate), c->ple_width, c->hidden);
        matrix(w, PARAMETERS_PLE, "per_layer_projection.weight", IN_LAYER(ple_proj), c->hidden, c->ple_width);
        vector(w, PARAMETERS_NORMS, "post_per_layer_input_norm.weight", IN_LAYER(post_ple_norm), c->hidden, 1);
    }
    if (c->generation == GEMMA_4)
        visit(w, SLOT_SCALAR, PARAMETERS_NORMS, "layer_scalar", IN_LAYER(layer_scalar), 1, 1, 1, 0, 0);
    w->layer = -1;
}

/* The head lies outside the text model's prefix; of a tied model it may be a copy of the embedding. */
static void walk_head(walker *w) {
    if (w->status != KAKEYA_OK) return;
    const model_config *c = w->config;
    tensor_slot slot = {.name = "lm_head.weight",
                        .unprefixed = true,
                        .kind = c->tied_head ? SLOT_IGNORED : SLOT_MATRIX,
                        .group = PARAMETERS_HEAD,
                        .dims = 2,
                        .shape = {c->vocab, c->hidden},
                        .offset = offsetof(model_weights, head),
                        .quantised = quantised_format(w, PARAMETERS_HEAD, "lm_head.weight", c->hidden),
                        .synthetic = matrix_deviation};
    w->status = w->visit(w->context, &slot, w->error);
}

kakeya_status gemma4_walk(const void *shape, tensor_visit visitor, void *context, kakeya_error *error) {
    const model_config *c = shape;
    walker w = {.config = c, .visit = visitor, .context = context, .error = error, .layer = -1};
    visit(&w, SLOT_MATRIX, PARAMETERS_EMBEDDING, "embed_tokens.weight", offsetof(model_weights, embed),
          embedding_rms / sqrtf((float)c->hidden), 2, c->vocab, c->hidden, 0);
    if (c->ple_width) {
        int64_t width = (int64_t)c->layers * c->ple_width;
        matrix(&w, PARAMETERS_PLE_TABLE, "embed_tokens_per_layer.weight", offsetof(model_weights, ple_embed),
               c->ple_vocab, width);
        matrix(&w, PARAMETERS_PLE, "per_layer_model_projection.weight", offsetof(model_weights, ple_model_proj), width,
               c->hidden);
        vector(&w, PARAMETERS_NORMS, "per_layer_projection_norm.weight", offsetof(model_weights, ple_proj_norm),
               c->ple_width, 1);
    }
    for (int i = 0; i < c->layers; i++) walk_layer(&w, i);
    vector(&w, PARAMETERS_NORMS, "norm.weight", offsetof(model_weights, final_norm), c->hidden, 1);
    walk_head(&w);
    return w.status;
}
