#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/gemma4_gguf.h"
#include "model/gemma4_layers.h"
#include "model/tensors.h"

/* ------------------------------------------------------------------------------------------ tensor list */

/* Standard deviation of synthetic matrices: a common initialisation. What follows most of them is a norm, so only the
 * tables, the router and the gates feel it. */
static const float matrix_deviation = 0.02f;

/* Scaled embeddings of this size keep a synthetic model from repeating its input: the tied head then sees mostly what
 * the layers have added. */
static const float embedding_rms = 0.25f;

typedef struct walker {
    const gemma4_config *config;
    tensor_visit visit;
    void *context;
    kakeya_error *error;
    kakeya_status status;
    int layer; /* -1: global tensors */
} walker;

/* `path` and the offsets that follow are those of a layer where w->layer >= 0. */
static void visit(walker *w, tensor_kind kind, parameter_group group, const char *path, size_t offset, float synthetic,
                  int dims, int64_t a, int64_t b, int64_t c) {
    if (w->status != KAKEYA_OK) return;
    tensor_slot slot = {
        .kind = kind, .group = group, .dims = dims, .shape = {a, b, c}, .offset = offset, .synthetic = synthetic};
    if (w->layer >= 0) {
        snprintf(slot.name, sizeof slot.name, "layers.%d.%s", w->layer, path);
        slot.offset += offsetof(gemma4_weights, layer) + (size_t)w->layer * sizeof(gemma4_layer_weights);
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

#define IN_LAYER(field) offsetof(gemma4_layer_weights, field)

static void walk_attention(walker *w, const gemma4_layer_config *l) {
    const gemma4_config *c = w->config;
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

static void walk_mlp(walker *w, const gemma4_layer_config *l) {
    const gemma4_config *c = w->config;
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
    const gemma4_config *c = w->config;
    const gemma4_layer_config *l = &c->layer[i];
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
    visit(w, SLOT_SCALAR, PARAMETERS_NORMS, "layer_scalar", IN_LAYER(layer_scalar), 1, 1, 1, 0, 0);
    w->layer = -1;
}

/* The head lies outside the text model's prefix; of a tied model it may be a copy of the embedding. */
static void walk_head(walker *w) {
    if (w->status != KAKEYA_OK) return;
    const gemma4_config *c = w->config;
    tensor_slot slot = {.name = "lm_head.weight",
                        .unprefixed = true,
                        .kind = c->tied_head ? SLOT_IGNORED : SLOT_MATRIX,
                        .group = PARAMETERS_HEAD,
                        .dims = 2,
                        .shape = {c->vocab, c->hidden},
                        .offset = offsetof(gemma4_weights, head),
                        .synthetic = matrix_deviation};
    w->status = w->visit(w->context, &slot, w->error);
}

kakeya_status gemma4_walk(const void *shape, tensor_visit visitor, void *context, kakeya_error *error) {
    const gemma4_config *c = shape;
    walker w = {.config = c, .visit = visitor, .context = context, .error = error, .layer = -1};
    visit(&w, SLOT_MATRIX, PARAMETERS_EMBEDDING, "embed_tokens.weight", offsetof(gemma4_weights, embed),
          embedding_rms / sqrtf((float)c->hidden), 2, c->vocab, c->hidden, 0);
    if (c->ple_width) {
        int64_t width = (int64_t)c->layers * c->ple_width;
        matrix(&w, PARAMETERS_PLE_TABLE, "embed_tokens_per_layer.weight", offsetof(gemma4_weights, ple_embed),
               c->ple_vocab, width);
        matrix(&w, PARAMETERS_PLE, "per_layer_model_projection.weight", offsetof(gemma4_weights, ple_model_proj), width,
               c->hidden);
        vector(&w, PARAMETERS_NORMS, "per_layer_projection_norm.weight", offsetof(gemma4_weights, ple_proj_norm),
               c->ple_width, 1);
    }
    for (int i = 0; i < c->layers; i++) walk_layer(&w, i);
    vector(&w, PARAMETERS_NORMS, "norm.weight", offsetof(gemma4_weights, final_norm), c->hidden, 1);
    walk_head(&w);
    return w.status;
}

/* ------------------------------------------------------------------------------------------------ models */

static bool has_ending(const char *name, const char *ending) {
    size_t length = strlen(name), n = strlen(ending);
    return length >= n && strcmp(name + length - n, ending) == 0;
}

/* Frequencies that older versions of transformers stored beside the weights; they follow from the configuration. */
static bool is_rotary_buffer(const char *name) { return strstr(name, "rotary_emb.") && has_ending(name, "inv_freq"); }

/* Vision and audio towers, and their clipping bounds. */
static bool is_other_modality(const char *name) {
    static const char *const parts[] = {"vision_tower.", "embed_vision.", "audio_tower.", "embed_audio.",
                                        "vision_embedder."};
    static const char *const endings[] = {".input_min", ".input_max", ".output_min", ".output_max"};
    const char *inner = strncmp(name, "model.", 6) == 0 ? name + 6 : name;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (strncmp(inner, parts[i], strlen(parts[i])) == 0) return true;
    }
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        if (has_ending(name, endings[i])) return true;
    }
    return false;
}

static bool is_skipped(const char *name) { return is_rotary_buffer(name) || is_other_modality(name); }

static const char *find_prefix(const checkpoint *ck) {
    static const char nested[] = "model.language_model.";
    return checkpoint_find(ck, "model.language_model.embed_tokens.weight") >= 0 ? nested : "model.";
}

/* A head that differs from the embedding counts even where the configuration ties the two. */
static bool has_own_head(const checkpoint *ck, const char *prefix) {
    char name[64];
    snprintf(name, sizeof name, "%sembed_tokens.weight", prefix);
    ptrdiff_t embed = checkpoint_find(ck, name), head = checkpoint_find(ck, "lm_head.weight");
    if (embed < 0 || head < 0) return false;
    const tensor *e = ck->tensors[embed], *h = ck->tensors[head];
    if (e->dims != 2 || h->dims != 2 || e->shape[0] != h->shape[0] || e->shape[1] != h->shape[1]) return false;
    return e->type != h->type || memcmp(e->data, h->data, e->bytes) != 0;
}

static void adopt(gemma4_model *model, const tensor_memory *memory) {
    model->owned = memory->owned;
    model->n_owned = memory->n_owned;
    model->mapped_bytes = memory->mapped_bytes;
    if (model->config.tied_head) model->weights.head = model->weights.embed;
    bool other_modality = false; /* buffers alone are not worth a note */
    for (size_t i = 0; memory->skipped && i < model->checkpoint->n_tensors; i++)
        other_modality |= is_other_modality(model->checkpoint->tensors[i]->name);
    if (other_modality)
        snprintf(model->note, sizeof model->note, "%zu vision and audio tensors skipped: text only", memory->skipped);
}

kakeya_status gemma4_model_open(const char *directory, mem_account *account, gemma4_model **out, kakeya_error *error) {
    if (gguf_is_file(directory)) return gemma4_gguf_open(directory, account, out, error);
    *out = NULL;
    gemma4_model *model = calloc(1, sizeof *model);
    if (!model) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for the model", directory);
    kakeya_status status = checkpoint_open(directory, "config.json", "model.safetensors", &model->checkpoint, error);
    if (status == KAKEYA_OK) {
        const checkpoint *ck = model->checkpoint;
        status = gemma4_config_parse(ck->config_path, ck->config, ck->config_bytes, ck->generation_config,
                                     ck->generation_config_bytes, &model->config, error);
    }
    if (status == KAKEYA_OK) {
        tensor_memory memory = {0};
        const char *prefix = find_prefix(model->checkpoint);
        if (has_own_head(model->checkpoint, prefix)) model->config.tied_head = false;
        status = tensors_bind(model->checkpoint, prefix, gemma4_walk, &model->config, &model->weights, is_skipped,
                              account, &memory, error);
        adopt(model, &memory);
    }
    if (status != KAKEYA_OK) {
        gemma4_model_close(model);
        return status;
    }
    if (model->config.checkpoint_format == WEIGHT_FORMAT_COUNT)
        model->config.checkpoint_format = model->weights.embed.format;
    *out = model;
    return KAKEYA_OK;
}

static kakeya_status synthesize(const char *description, bool outline, mem_account *account, gemma4_model **out,
                                kakeya_error *error) {
    *out = NULL;
    gemma4_model *model = calloc(1, sizeof *model);
    if (!model) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for the model", description);
    kakeya_status status = gemma4_config_variant(description, &model->config, error);
    if (status == KAKEYA_OK) {
        tensor_memory memory = {0};
        status = (outline ? tensors_outline : tensors_synthesize)(
            gemma4_walk, &model->config, &model->weights, model->config.checkpoint_format, account, &memory, error);
        adopt(model, &memory);
    }
    if (status != KAKEYA_OK) {
        gemma4_model_close(model);
        return status;
    }
    *out = model;
    return KAKEYA_OK;
}

kakeya_status gemma4_model_synthesize(const char *description, mem_account *account, gemma4_model **out,
                                      kakeya_error *error) {
    return synthesize(description, false, account, out, error);
}

kakeya_status gemma4_model_outline(const char *description, mem_account *account, gemma4_model **out,
                                   kakeya_error *error) {
    return synthesize(description, true, account, out, error);
}

void gemma4_model_close(gemma4_model *model) {
    if (!model) return;
    tensor_memory memory = {.owned = model->owned, .n_owned = model->n_owned};
    tensor_memory_release(&memory);
    checkpoint_close(model->checkpoint);
    gguf_close(model->file);
    free(model);
}
