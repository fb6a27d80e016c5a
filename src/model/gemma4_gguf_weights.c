/* Tensors of gemma4 GGUF files to the slots of the tensor list. Shapes are strict: each tensor is bound once, and none
 * is left over. Three things lie otherwise than in safetensors directories: q, k and v may be one matrix, the experts'
 * gate and up may be two, and NVFP4 matrices have a factor beside them. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/gemma4_gguf.h"
#include "model/gguf_binding.h"

/* -------------------------------------------------------------------------------------------------------- names */

typedef struct name_pair {
    const char *slot, *gguf;
} name_pair;

static const name_pair model_names[] = {
    {"embed_tokens.weight", "token_embd.weight"},
    {"lm_head.weight", "output.weight"},
    {"norm.weight", "output_norm.weight"},
    {"embed_tokens_per_layer.weight", "per_layer_token_embd.weight"},
    {"per_layer_model_projection.weight", "per_layer_model_proj.weight"},
    {"per_layer_projection_norm.weight", "per_layer_proj_norm.weight"},
};

static const name_pair layer_names[] = {
    {"self_attn.q_proj.weight", "attn_q.weight"},
    {"self_attn.k_proj.weight", "attn_k.weight"},
    {"self_attn.v_proj.weight", "attn_v.weight"},
    {"self_attn.o_proj.weight", "attn_output.weight"},
    {"self_attn.q_norm.weight", "attn_q_norm.weight"},
    {"self_attn.k_norm.weight", "attn_k_norm.weight"},
    {"input_layernorm.weight", "attn_norm.weight"},
    {"post_attention_layernorm.weight", "post_attention_norm.weight"},
    {"pre_feedforward_layernorm.weight", "ffn_norm.weight"},
    {"mlp.gate_proj.weight", "ffn_gate.weight"},
    {"mlp.up_proj.weight", "ffn_up.weight"},
    {"mlp.down_proj.weight", "ffn_down.weight"},
    {"post_feedforward_layernorm.weight", "post_ffw_norm.weight"},
    {"post_feedforward_layernorm_1.weight", "post_ffw_norm_1.weight"},
    {"pre_feedforward_layernorm_2.weight", "pre_ffw_norm_2.weight"},
    {"post_feedforward_layernorm_2.weight", "post_ffw_norm_2.weight"},
    {"router.proj.weight", "ffn_gate_inp.weight"},
    {"router.scale", "ffn_gate_inp.scale"},
    {"router.per_expert_scale", "ffn_down_exps.scale"},
    {"experts.gate_up_proj", "ffn_gate_up_exps.weight"},
    {"experts.down_proj", "ffn_down_exps.weight"},
    {"layer_scalar", "layer_output_scale.weight"},
    {"per_layer_input_gate.weight", "inp_gate.weight"},
    {"per_layer_projection.weight", "proj.weight"},
    {"post_per_layer_input_norm.weight", "post_norm.weight"},
};

static const char *translate(const name_pair *pairs, size_t n, const char *name) {
    for (size_t i = 0; i < n; i++) {
        if (strcmp(pairs[i].slot, name) == 0) return pairs[i].gguf;
    }
    return NULL;
}

/* "layers.12.REST": the layer's number and REST; -1 for other names. */
static int layer_of(const char *name, const char **rest) {
    if (strncmp(name, "layers.", 7) != 0) return -1;
    char *end;
    long layer = strtol(name + 7, &end, 10);
    if (end == name + 7 || *end != '.' || layer < 0 || layer >= MODEL_MAX_LAYERS) return -1;
    *rest = end + 1;
    return (int)layer;
}

bool gemma4_gguf_name(const char *name, char *out, size_t out_bytes) {
    const char *rest = name, *found;
    int layer = layer_of(name, &rest);
    if (layer < 0)
        found = translate(model_names, sizeof model_names / sizeof model_names[0], name);
    else
        found = translate(layer_names, sizeof layer_names / sizeof layer_names[0], rest);
    if (!found) return false;
    if (layer < 0)
        snprintf(out, out_bytes, "%s", found);
    else
        snprintf(out, out_bytes, "blk.%d.%s", layer, found);
    return true;
}

bool gemma4_gguf_is_audio(const char *name) { return strncmp(name, "a.", 2) == 0 || strncmp(name, "mm.a.", 5) == 0; }

/* Vision and audio, which some publishers keep in the same file. */
static bool is_other_modality(const char *name) {
    return gemma4_gguf_is_audio(name) || strncmp(name, "v.", 2) == 0 || strncmp(name, "mm.", 3) == 0;
}

/* ------------------------------------------------------------------------------------------------------- binding */

enum { NAME_BYTES = 96 };

typedef struct binder {
    gguf_binding g; /* base: the model_weights */
    const model_config *config;
    bool plain_f32; /* the embedding is F32, so nothing is narrowed */
} binder;

/* Converters widen the router to F32. One that came from bf16 is narrowed again, which loses nothing, halves what is
 * read of it, and gives it the order of additions that it has in a bf16 checkpoint. Beside quantised matrices it stays
 * known as F32, too, which it is in the dequantised file. */
static kakeya_status narrow_router(binder *b, const char *name, weight *w, kakeya_error *error) {
    if (w->format != WEIGHT_F32 || b->plain_f32) return KAKEYA_OK;
    size_t n = (size_t)w->out * (size_t)w->in;
    const uint32_t *wide = w->stream[0];
    uint32_t low = 0;
    for (size_t i = 0; i < n; i++) low |= wide[i] & 0xffff;
    if (low) return KAKEYA_OK;
    uint16_t *narrow = tensor_memory_block(b->g.memory, b->g.account, n * sizeof *narrow);
    if (!narrow) return gguf_binding_no_memory(&b->g, name, n * sizeof *narrow, error);
    for (size_t i = 0; i < n; i++) narrow[i] = (uint16_t)(wide[i] >> 16);
    *w = weight_matrix(WEIGHT_BF16, narrow, w->out, w->in);
    if (!weight_format_is_plain(b->config->checkpoint_format)) w->wide = (const float *)(const void *)wide;
    return KAKEYA_OK;
}

/* The rows of q, k or v in blk.N.attn_qkv. */
static kakeya_status bind_fused(binder *b, const tensor_slot *slot, int layer, const char *rest, bool *found,
                                kakeya_error *error) {
    const layer_config *l = &b->config->layer[layer];
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "blk.%d.attn_qkv.weight", layer);
    const gguf_tensor *t = gguf_binding_find(&b->g, name);
    *found = t != NULL;
    if (!t) return KAKEYA_OK;
    int64_t queries = (int64_t)b->config->heads * l->head_dim, keys = (int64_t)l->kv_heads * l->head_dim;
    /* A layer that shares K/V may carry rows of its own, which nobody reads. */
    int64_t rows = queries + (l->k_eq_v ? keys : 2 * keys);
    if (l->kv_source != layer && t->dims == 2 && t->ne[1] < rows) rows = t->ne[1] < queries ? queries : t->ne[1];
    const int64_t shape[] = {rows, b->config->hidden};
    kakeya_status status = gguf_binding_check_shape(&b->g, t, 2, shape, error);
    weight all = {0};
    size_t mapped = b->g.memory->mapped_bytes;
    if (status == KAKEYA_OK) status = gguf_binding_matrix(&b->g, t, &all, error);
    if (status != KAKEYA_OK) return status;
    int64_t first = strstr(rest, "q_proj") ? 0 : strstr(rest, "k_proj") ? queries : queries + keys;
    if (first) b->g.memory->mapped_bytes = mapped; /* counted with q */
    *(weight *)(void *)(b->g.base + slot->offset) = weight_rows(&all, (int)first, (int)slot->shape[0]);
    return KAKEYA_OK;
}

/* Experts whose gate and up are two tensors. */
static kakeya_status bind_split_experts(binder *b, int layer, bool *found, kakeya_error *error) {
    layer_weights *w = &((model_weights *)(void *)b->g.base)->layer[layer];
    const int64_t shape[] = {b->config->experts, b->config->expert_intermediate, b->config->hidden};
    static const char *const parts[] = {"gate", "up"};
    weight *const targets[] = {&w->experts_gate, &w->experts_up};
    const gguf_tensor *tensors[2];
    for (int i = 0; i < 2; i++) {
        char name[NAME_BYTES];
        snprintf(name, sizeof name, "blk.%d.ffn_%s_exps.weight", layer, parts[i]);
        tensors[i] = gguf_binding_find(&b->g, name);
    }
    *found = tensors[0] && tensors[1];
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; *found && i < 2 && status == KAKEYA_OK; i++) {
        status = gguf_binding_check_shape(&b->g, tensors[i], 3, shape, error);
        if (status == KAKEYA_OK) status = gguf_binding_matrix(&b->g, tensors[i], targets[i], error);
    }
    return status;
}

static kakeya_status bind_matrix_slot(binder *b, const tensor_slot *slot, const gguf_tensor *t, kakeya_error *error) {
    int64_t shape[3] = {slot->shape[0], slot->shape[1], slot->shape[2]};
    bool table = slot->group == PARAMETERS_EMBEDDING || slot->group == PARAMETERS_HEAD;
    if (table && t->dims == 2 && t->ne[1] > shape[0]) shape[0] = t->ne[1]; /* padding behind the vocabulary */
    weight *w = (weight *)(void *)(b->g.base + slot->offset);
    kakeya_status status = gguf_binding_check_shape(&b->g, t, slot->dims, shape, error);
    if (status == KAKEYA_OK) status = gguf_binding_matrix(&b->g, t, w, error);
    if (status == KAKEYA_OK && table) *w = weight_rows(w, 0, (int)slot->shape[0]);
    if (status == KAKEYA_OK && slot->group == PARAMETERS_ROUTER) status = narrow_router(b, t->name, w, error);
    return status;
}

/* Marks a tensor that nobody reads as known, with the factors beside it. */
static void ignore(binder *b, const char *name) {
    char beside[NAME_BYTES];
    const gguf_tensor *t = gguf_binding_find(&b->g, name);
    size_t length = strlen(name);
    if (!t || length < 7) return;
    snprintf(beside, sizeof beside, "%.*s.scale", (int)length - 7, name);
    (void)gguf_binding_find(&b->g, beside);
    snprintf(beside, sizeof beside, "%.*s.input_scale", (int)length - 7, name);
    (void)gguf_binding_find(&b->g, beside);
}

static kakeya_status bind_slot(void *context, const tensor_slot *slot, kakeya_error *error) {
    binder *b = context;
    char name[NAME_BYTES];
    if (!gemma4_gguf_name(slot->name, name, sizeof name)) {
        if (slot->kind == SLOT_IGNORED) return KAKEYA_OK;
        return error_set(error, KAKEYA_UNSUPPORTED, "%s: GGUF files have no name for %s", gguf_path(b->g.file),
                         slot->name);
    }
    if (slot->kind == SLOT_IGNORED) {
        ignore(b, name);
        return KAKEYA_OK;
    }
    const gguf_tensor *t = gguf_binding_find(&b->g, name);
    const char *rest = slot->name;
    int layer = layer_of(slot->name, &rest);
    bool found = t != NULL;
    kakeya_status status = KAKEYA_OK;
    if (!t && layer >= 0 && slot->group == PARAMETERS_ATTENTION && slot->kind == SLOT_MATRIX && !strstr(rest, "o_proj"))
        status = bind_fused(b, slot, layer, rest, &found, error);
    else if (!t && layer >= 0 && strcmp(rest, "experts.gate_up_proj") == 0)
        status = bind_split_experts(b, layer, &found, error);
    else if (t && slot->kind == SLOT_MATRIX)
        status = bind_matrix_slot(b, slot, t, error);
    else if (t)
        status = gguf_binding_numbers(&b->g, slot, t, error);
    if (!found) name_list_add(&b->g.missing, name, "");
    return status;
}

static kakeya_status bind_all(language_model *model, mem_account *account, tensor_memory *memory, kakeya_error *error) {
    binder b = {
        .g = {.file = model->file, .base = (char *)&model->weights, .account = account, .memory = memory},
        .config = &model->config,
        .plain_f32 = model->config.checkpoint_format == WEIGHT_F32,
    };
    kakeya_status status = gguf_binding_begin(&b.g, gemma4_walk, b.config, error);
    if (status == KAKEYA_OK) {
        (void)gguf_binding_find(&b.g, "rope_freqs.weight"); /* is part of the configuration */
        status = gemma4_walk(b.config, bind_slot, &b, error);
    }
    return gguf_binding_end(&b.g, status, is_other_modality, error);
}

kakeya_status gemma4_gguf_open(const char *path, mem_account *account, language_model *model, kakeya_error *error) {
    tensor_memory memory = {0};
    kakeya_status status = gguf_open(path, &model->file, error);
    if (status == KAKEYA_OK) status = gemma4_gguf_config(model->file, &model->config, model->note, error);
    if (status == KAKEYA_OK) status = bind_all(model, account, &memory, error);
    model->owned = memory.owned;
    model->n_owned = memory.n_owned;
    model->mapped_bytes = memory.mapped_bytes;
    if (status != KAKEYA_OK) return status;
    if (model->config.tied_head) model->weights.head = model->weights.embed;
    return KAKEYA_OK;
}
