/* Tensors of gemma4 GGUF files to the slots of the tensor list. Shapes are strict: each tensor is bound once, and none
 * is left over. Three things lie otherwise than in safetensors directories: q, k and v may be one matrix, the experts'
 * gate and up may be two, and NVFP4 matrices have a factor beside them. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/float16.h"
#include "model/gemma4_gguf.h"
#include "model/tensors.h"

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
    if (end == name + 7 || *end != '.' || layer < 0 || layer >= GEMMA4_MAX_LAYERS) return -1;
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

/* Vision and audio, which some publishers keep in the same file. */
static bool is_other_modality(const char *name) {
    return strncmp(name, "v.", 2) == 0 || strncmp(name, "a.", 2) == 0 || strncmp(name, "mm.", 3) == 0;
}

/* ------------------------------------------------------------------------------------------------------- binding */

enum { NAME_BYTES = 96 };

typedef struct binder {
    gguf *file;
    const gemma4_config *config;
    char *base; /* of the gemma4_weights */
    mem_account *account;
    tensor_memory *memory;
    bool *used; /* by index of the file's tensors */
    float *vectors;
    bool plain_f32; /* the embedding is F32, so nothing is narrowed */
    name_list missing;
} binder;

static const gguf_tensor *find(binder *b, const char *name) {
    ptrdiff_t index = gguf_find_tensor(b->file, name);
    if (index < 0) return NULL;
    b->used[index] = true;
    return b->file->tensors[index];
}

static kakeya_status no_memory(const binder *b, const char *name, size_t bytes, kakeya_error *error) {
    return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for %zu bytes of tensor %s", gguf_path(b->file), bytes,
                     name);
}

/* The tensor's shape, slowest dimension first, against the one expected. */
static kakeya_status check_shape(const binder *b, const gguf_tensor *t, int dims, const int64_t *shape,
                                 kakeya_error *error) {
    bool same = t->dims == dims;
    for (int i = 0; same && i < dims; i++) same = t->ne[dims - 1 - i] == shape[i];
    if (same) return KAKEYA_OK;
    gguf_tensor expected = {.dims = dims};
    for (int i = 0; i < dims; i++) expected.ne[i] = shape[dims - 1 - i];
    char found[96], wanted[96];
    return error_set(error, KAKEYA_FORMAT, "%s: tensor %s has shape %s, expected %s", gguf_path(b->file), t->name,
                     gguf_shape_text(t, found, sizeof found), gguf_shape_text(&expected, wanted, sizeof wanted));
}

static kakeya_status format_of(const binder *b, const gguf_tensor *t, weight_format *out, kakeya_error *error) {
    if (gemma4_gguf_format(t->type, out)) return KAKEYA_OK;
    bool small = strncmp(t->type->name, "IQ", 2) == 0 || strncmp(t->type->name, "TQ", 2) == 0;
    return error_set(error, KAKEYA_UNSUPPORTED, "%s: tensor %s is of type %s, which is not supported: take a %s file",
                     gguf_path(b->file), t->name, t->type->name, small ? "Q3_K_M or Q4_K_M" : "Q4_K_M or Q8_0");
}

/* The factor beside an NVFP4 matrix, as one number per row: NAME.scale holds one for all of it, or one per expert. */
static kakeya_status bind_factors(binder *b, const gguf_tensor *t, weight *w, kakeya_error *error) {
    char name[NAME_BYTES];
    int stem = (int)(strlen(t->name) - strlen(".weight"));
    float *factors = tensor_memory_block(b->memory, b->account, (size_t)w->out * sizeof *factors);
    if (!factors) return no_memory(b, t->name, (size_t)w->out * sizeof *factors, error);
    for (int i = 0; i < w->out; i++) factors[i] = 1;
    w->stream[1] = factors;
    snprintf(name, sizeof name, "%.*s.input_scale", stem, t->name);
    (void)find(b, name); /* of 4-bit activations */
    /* The router takes this one: the converter has multiplied it with the experts' own factors. */
    if (strstr(t->name, ".ffn_down_exps.")) return KAKEYA_OK;
    snprintf(name, sizeof name, "%.*s.scale", stem, t->name);
    const gguf_tensor *scale = find(b, name);
    if (!scale) return KAKEYA_OK;
    int64_t parts = t->dims == 3 ? t->ne[2] : 1;
    if (scale->type->id != GGUF_TENSOR_F32 || scale->dims != 1 || (scale->ne[0] != 1 && scale->ne[0] != parts))
        return error_set(error, KAKEYA_FORMAT, "%s: tensor %s is %s of %lld, expected F32 of 1 or %lld",
                         gguf_path(b->file), name, scale->type->name, (long long)scale->ne[0], (long long)parts);
    int rows = w->out / (int)scale->ne[0];
    for (int i = 0; i < w->out; i++) {
        memcpy(&factors[i], scale->data + (size_t)(i / rows) * sizeof *factors, sizeof *factors);
        if (!isfinite(factors[i]))
            return error_set(error, KAKEYA_FORMAT, "%s: tensor %s is not finite", gguf_path(b->file), name);
    }
    return KAKEYA_OK;
}

/* The whole of a tensor as a matrix; leading dimensions are folded into its rows. */
static kakeya_status bind_matrix(binder *b, const gguf_tensor *t, weight *out, kakeya_error *error) {
    weight_format format;
    kakeya_status status = format_of(b, t, &format, error);
    if (status != KAKEYA_OK) return status;
    const weight_stream *stream = &weight_format_find(format)->stream[0];
    int64_t rows = 1;
    for (int i = 1; i < t->dims; i++) rows *= t->ne[i];
    const void *data = t->data;
    if ((uintptr_t)data % (uintptr_t)stream->alignment) {
        void *copy = tensor_memory_block(b->memory, b->account, t->bytes);
        if (!copy) return no_memory(b, t->name, t->bytes, error);
        memcpy(copy, t->data, t->bytes);
        data = copy;
    } else {
        b->memory->mapped_bytes += t->bytes;
    }
    *out = weight_matrix(format, data, (int)rows, (int)t->ne[0]);
    return format == WEIGHT_NVFP4 ? bind_factors(b, t, out, error) : KAKEYA_OK;
}

/* Converters widen the router to F32. One that came from bf16 is narrowed again, which loses nothing, halves what is
 * read of it, and gives it the order of additions that it has in a bf16 checkpoint. */
static kakeya_status narrow_router(binder *b, const char *name, weight *w, kakeya_error *error) {
    if (w->format != WEIGHT_F32 || b->plain_f32) return KAKEYA_OK;
    size_t n = (size_t)w->out * (size_t)w->in;
    const uint32_t *wide = w->stream[0];
    uint32_t low = 0;
    for (size_t i = 0; i < n; i++) low |= wide[i] & 0xffff;
    if (low) return KAKEYA_OK;
    uint16_t *narrow = tensor_memory_block(b->memory, b->account, n * sizeof *narrow);
    if (!narrow) return no_memory(b, name, n * sizeof *narrow, error);
    for (size_t i = 0; i < n; i++) narrow[i] = (uint16_t)(wide[i] >> 16);
    *w = weight_matrix(WEIGHT_BF16, narrow, w->out, w->in);
    return KAKEYA_OK;
}

/* The rows of q, k or v in blk.N.attn_qkv. */
static kakeya_status bind_fused(binder *b, const tensor_slot *slot, int layer, const char *rest, bool *found,
                                kakeya_error *error) {
    const gemma4_layer_config *l = &b->config->layer[layer];
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "blk.%d.attn_qkv.weight", layer);
    const gguf_tensor *t = find(b, name);
    *found = t != NULL;
    if (!t) return KAKEYA_OK;
    int64_t queries = (int64_t)b->config->heads * l->head_dim, keys = (int64_t)l->kv_heads * l->head_dim;
    /* A layer that shares K/V may carry rows of its own, which nobody reads. */
    int64_t rows = queries + (l->k_eq_v ? keys : 2 * keys);
    if (l->kv_source != layer && t->dims == 2 && t->ne[1] < rows) rows = t->ne[1] < queries ? queries : t->ne[1];
    const int64_t shape[] = {rows, b->config->hidden};
    kakeya_status status = check_shape(b, t, 2, shape, error);
    weight all = {0};
    size_t mapped = b->memory->mapped_bytes;
    if (status == KAKEYA_OK) status = bind_matrix(b, t, &all, error);
    if (status != KAKEYA_OK) return status;
    int64_t first = strstr(rest, "q_proj") ? 0 : strstr(rest, "k_proj") ? queries : queries + keys;
    if (first) b->memory->mapped_bytes = mapped; /* counted with q */
    *(weight *)(void *)(b->base + slot->offset) = weight_rows(&all, (int)first, (int)slot->shape[0]);
    return KAKEYA_OK;
}

/* Experts whose gate and up are two tensors. */
static kakeya_status bind_split_experts(binder *b, int layer, bool *found, kakeya_error *error) {
    gemma4_layer_weights *w = &((gemma4_weights *)(void *)b->base)->layer[layer];
    const int64_t shape[] = {b->config->experts, b->config->expert_intermediate, b->config->hidden};
    static const char *const parts[] = {"gate", "up"};
    weight *const targets[] = {&w->experts_gate, &w->experts_up};
    const gguf_tensor *tensors[2];
    for (int i = 0; i < 2; i++) {
        char name[NAME_BYTES];
        snprintf(name, sizeof name, "blk.%d.ffn_%s_exps.weight", layer, parts[i]);
        tensors[i] = find(b, name);
    }
    *found = tensors[0] && tensors[1];
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; *found && i < 2 && status == KAKEYA_OK; i++) {
        status = check_shape(b, tensors[i], 3, shape, error);
        if (status == KAKEYA_OK) status = bind_matrix(b, tensors[i], targets[i], error);
    }
    return status;
}

static kakeya_status bind_matrix_slot(binder *b, const tensor_slot *slot, const gguf_tensor *t, kakeya_error *error) {
    int64_t shape[3] = {slot->shape[0], slot->shape[1], slot->shape[2]};
    bool table = slot->group == PARAMETERS_EMBEDDING || slot->group == PARAMETERS_HEAD;
    if (table && t->dims == 2 && t->ne[1] > shape[0]) shape[0] = t->ne[1]; /* padding behind the vocabulary */
    weight *w = (weight *)(void *)(b->base + slot->offset);
    kakeya_status status = check_shape(b, t, slot->dims, shape, error);
    if (status == KAKEYA_OK) status = bind_matrix(b, t, w, error);
    if (status == KAKEYA_OK && table) *w = weight_rows(w, 0, (int)slot->shape[0]);
    if (status == KAKEYA_OK && slot->group == PARAMETERS_ROUTER) status = narrow_router(b, t->name, w, error);
    return status;
}

static kakeya_status bind_numbers(binder *b, const tensor_slot *slot, const gguf_tensor *t, kakeya_error *error) {
    kakeya_status status = check_shape(b, t, slot->dims, slot->shape, error);
    if (status != KAKEYA_OK) return status;
    size_t n = (size_t)tensor_slot_elements(slot);
    float *out = slot->kind == SLOT_VECTOR ? b->vectors : (float *)(void *)(b->base + slot->offset);
    for (size_t i = 0; i < n; i++) {
        uint16_t half;
        if (t->type->id == GGUF_TENSOR_F32) {
            memcpy(&out[i], t->data + i * sizeof *out, sizeof *out);
        } else if (t->type->id == GGUF_TENSOR_F16 || t->type->id == GGUF_TENSOR_BF16) {
            memcpy(&half, t->data + i * sizeof half, sizeof half);
            out[i] = t->type->id == GGUF_TENSOR_F16 ? f16_to_f32(half) : bf16_to_f32(half);
        } else {
            return error_set(error, KAKEYA_UNSUPPORTED, "%s: tensor %s is of type %s, expected F32, F16 or BF16",
                             gguf_path(b->file), t->name, t->type->name);
        }
        if (!isfinite(out[i]))
            return error_set(error, KAKEYA_FORMAT, "%s: tensor %s[%zu] is not a finite number", gguf_path(b->file),
                             t->name, i);
    }
    if (slot->kind == SLOT_VECTOR) {
        *(const float **)(void *)(b->base + slot->offset) = b->vectors;
        b->vectors += tensor_vector_floats(slot);
    }
    return KAKEYA_OK;
}

/* Marks a tensor that nobody reads as known, with the factors beside it. */
static void ignore(binder *b, const char *name) {
    char beside[NAME_BYTES];
    const gguf_tensor *t = find(b, name);
    size_t length = strlen(name);
    if (!t || length < 7) return;
    snprintf(beside, sizeof beside, "%.*s.scale", (int)length - 7, name);
    (void)find(b, beside);
    snprintf(beside, sizeof beside, "%.*s.input_scale", (int)length - 7, name);
    (void)find(b, beside);
}

static kakeya_status bind_slot(void *context, const tensor_slot *slot, kakeya_error *error) {
    binder *b = context;
    char name[NAME_BYTES];
    if (!gemma4_gguf_name(slot->name, name, sizeof name)) {
        if (slot->kind == SLOT_IGNORED) return KAKEYA_OK;
        return error_set(error, KAKEYA_UNSUPPORTED, "%s: GGUF files have no name for %s", gguf_path(b->file),
                         slot->name);
    }
    if (slot->kind == SLOT_IGNORED) {
        ignore(b, name);
        return KAKEYA_OK;
    }
    const gguf_tensor *t = find(b, name);
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
        status = bind_numbers(b, slot, t, error);
    if (!found) name_list_add(&b->missing, name, "");
    return status;
}

static kakeya_status check_names(binder *b, kakeya_error *error) {
    name_list unexpected = {0};
    char shown[GGUF_SHOWN_BYTES];
    for (size_t i = 0; i < b->file->n_tensors; i++) {
        const char *name = b->file->tensors[i]->name;
        if (b->used[i]) continue;
        if (is_other_modality(name))
            b->memory->skipped++;
        else
            name_list_add(&unexpected, gguf_show(name, strlen(name), shown), "");
    }
    return name_lists_check(gguf_path(b->file), &b->missing, &unexpected, error);
}

static kakeya_status bind_all(gemma4_model *model, mem_account *account, tensor_memory *memory, kakeya_error *error) {
    binder b = {
        .file = model->file,
        .config = &model->config,
        .base = (char *)&model->weights,
        .account = account,
        .memory = memory,
        .plain_f32 = model->config.checkpoint_format == WEIGHT_F32,
    };
    b.used = calloc(b.file->n_tensors + 1, sizeof *b.used);
    if (!b.used) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for its tensor list", gguf_path(b.file));
    kakeya_status status = tensor_vector_block(gemma4_walk, b.config, account, memory, &b.vectors, error);
    (void)find(&b, "rope_freqs.weight"); /* is part of the configuration */
    if (status == KAKEYA_OK) status = gemma4_walk(b.config, bind_slot, &b, error);
    if (status == KAKEYA_OK) status = check_names(&b, error);
    free(b.used);
    return status;
}

kakeya_status gemma4_gguf_open(const char *path, mem_account *account, gemma4_model *model, kakeya_error *error) {
    tensor_memory memory = {0};
    kakeya_status status = gguf_open(path, &model->file, error);
    if (status == KAKEYA_OK) status = gemma4_gguf_config(model->file, &model->config, model->note, error);
    if (status == KAKEYA_OK) status = bind_all(model, account, &memory, error);
    model->owned = memory.owned;
    model->n_owned = memory.n_owned;
    model->mapped_bytes = memory.mapped_bytes;
    if (status != KAKEYA_OK) return status;
    if (model->config.tied_head) model->weights.head = model->weights.embed;
    size_t used = strlen(model->note);
    if (memory.skipped)
        snprintf(model->note + used, sizeof model->note - used, "%s%zu vision and audio tensors skipped: text only",
                 used ? "; " : "", memory.skipped);
    return KAKEYA_OK;
}
