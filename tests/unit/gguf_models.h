/* The small reference models as GGUF files, written as converters write them, in several forms. */
#ifndef KAKEYA_TESTS_GGUF_MODELS_H
#define KAKEYA_TESTS_GGUF_MODELS_H

#include "base/float16.h"
#include "gguf_writer.h"
#include "golden.h"
#include "model/gemma4_gguf.h"

typedef struct gguf_form {
    bool bf16;          /* matrices as BF16 (the router and vectors stay F32), else F32 */
    bool split_experts; /* gate and up apart */
    bool fused_qkv;     /* q, k and v as one matrix */
    bool heads_listed;  /* attention.head_count for each layer */
    int padding;        /* rows behind the embedding's */
    int vocab_size;     /* of the key; 0: no key */
} gguf_form;

/* heads: of each layer, or NULL for one number. */
static inline void gw_config_of(gguf_writer *w, const model_config *c, const int *heads) {
    int kv_heads[MODEL_MAX_LAYERS], widths[MODEL_MAX_LAYERS];
    bool sliding[MODEL_MAX_LAYERS];
    int dims[2] = {16, 16};
    uint64_t n = (uint64_t)c->layers;
    for (int i = 0; i < c->layers; i++) {
        kv_heads[i] = c->layer[i].kv_heads;
        widths[i] = c->layer[i].intermediate;
        sliding[i] = c->layer[i].type == LAYER_SLIDING;
        dims[c->layer[i].type] = c->layer[i].head_dim;
    }
    gw_key_text(w, "general.architecture", "gemma4");
    gw_key_u32(w, "gemma4.block_count", (uint32_t)c->layers);
    gw_key_u32(w, "gemma4.context_length", (uint32_t)c->max_context);
    gw_key_u32(w, "gemma4.embedding_length", (uint32_t)c->hidden);
    gw_key_array(w, "gemma4.feed_forward_length", GGUF_I32, widths, n, 4);
    if (heads)
        gw_key_array(w, "gemma4.attention.head_count", GGUF_I32, heads, n, 4);
    else
        gw_key_u32(w, "gemma4.attention.head_count", (uint32_t)c->heads);
    gw_key_array(w, "gemma4.attention.head_count_kv", GGUF_I32, kv_heads, n, 4);
    gw_key_u32(w, "gemma4.attention.key_length", (uint32_t)dims[LAYER_FULL]);
    gw_key_u32(w, "gemma4.attention.value_length", (uint32_t)dims[LAYER_FULL]);
    gw_key_u32(w, "gemma4.attention.key_length_swa", (uint32_t)dims[LAYER_SLIDING]);
    gw_key_u32(w, "gemma4.attention.value_length_swa", (uint32_t)dims[LAYER_SLIDING]);
    gw_key_u32(w, "gemma4.attention.sliding_window", (uint32_t)c->sliding_window);
    gw_key_array(w, "gemma4.attention.sliding_window_pattern", GGUF_BOOL, sliding, n, 1);
    gw_key_u32(w, "gemma4.attention.shared_kv_layers", (uint32_t)c->shared_kv_layers);
    gw_key_f32(w, "gemma4.attention.layer_norm_rms_epsilon", c->rms_eps);
    gw_key_f32(w, "gemma4.rope.freq_base", c->rope[LAYER_FULL].theta);
    gw_key_f32(w, "gemma4.rope.freq_base_swa", c->rope[LAYER_SLIDING].theta);
    gw_key_u32(w, "gemma4.embedding_length_per_layer_input", (uint32_t)c->ple_width);
    if (c->logit_softcap > 0) gw_key_f32(w, "gemma4.final_logit_softcapping", c->logit_softcap);
    if (c->moe) {
        gw_key_u32(w, "gemma4.expert_count", (uint32_t)c->experts);
        gw_key_u32(w, "gemma4.expert_used_count", (uint32_t)c->experts_per_token);
        gw_key_u32(w, "gemma4.expert_feed_forward_length", (uint32_t)c->expert_intermediate);
    }
    gw_key_text(w, "tokenizer.ggml.model", "none");
    gw_key_u32(w, "tokenizer.ggml.eos_token_id", 1);
    float divisors[2048];
    for (int i = 0; i < dims[LAYER_FULL] / 2; i++)
        divisors[i] = i < c->rope[LAYER_FULL].rotated_pairs ? c->rope[LAYER_FULL].factor : 1e30f;
    gw_tensor(w, "rope_freqs.weight", GGUF_TENSOR_F32, 1, (const int64_t[]){dims[LAYER_FULL] / 2}, divisors,
              (size_t)dims[LAYER_FULL] / 2 * sizeof(float));
}

static inline void gw_config(gguf_writer *w, const model_config *c) { gw_config_of(w, c, NULL); }

/* n values as F32 or BF16, behind what is there. */
static inline void gw_values(gguf_bytes *out, const float *values, size_t n, bool bf16) {
    for (size_t i = 0; i < n; i++) {
        uint16_t narrow = f32_to_bf16(values[i]);
        gw_put(out, bf16 ? (const void *)&narrow : (const void *)&values[i], bf16 ? sizeof narrow : sizeof *values);
    }
}

/* Values of a vector or a router are widened again from what bf16 keeps, where the file is BF16. */
static inline void gw_rounded(gguf_bytes *out, const float *values, size_t n, bool bf16) {
    for (size_t i = 0; i < n; i++) {
        float value = bf16 ? bf16_to_f32(f32_to_bf16(values[i])) : values[i];
        gw_put(out, &value, sizeof value);
    }
}

static inline bool gw_is_qkv(const char *name) {
    return strstr(name, "self_attn.q_proj") || strstr(name, "self_attn.k_proj") || strstr(name, "self_attn.v_proj");
}

/* Without the prefix; NULL for what is not the text model's. */
static inline const char *gw_plain_name(const char *name) {
    static const char *const prefixes[] = {"model.language_model.", "model."};
    char text[96];
    if (strncmp(name, "lm_head.", 8) == 0) return name;
    for (int i = 0; i < 2; i++) {
        size_t n = strlen(prefixes[i]);
        if (strncmp(name, prefixes[i], n) == 0) return gemma4_gguf_name(name + n, text, sizeof text) ? name + n : NULL;
    }
    return NULL;
}

static inline const tensor *gw_source(const safetensors *source, const char *name) {
    char full[160];
    snprintf(full, sizeof full, "model.%s", name);
    const tensor *t = safetensors_find(source, full);
    if (t) return t;
    snprintf(full, sizeof full, "model.language_model.%s", name);
    return safetensors_find(source, full);
}

static inline void gw_model_tensor(gguf_writer *w, const tensor *t, const char *name, const gguf_form *form) {
    const float *values = (const float *)(const void *)t->data;
    char gguf_name[96];
    if (!gemma4_gguf_name(name, gguf_name, sizeof gguf_name)) fail_msg("no name for %s", name);
    bool router = strstr(name, "router.") != NULL, matrix = t->dims > 1 && !router;
    bool bf16 = form->bf16 && matrix;
    gguf_bytes bytes = {0};
    int64_t ne[GGUF_MAX_DIMS];
    for (int i = 0; i < t->dims; i++) ne[i] = t->shape[t->dims - 1 - i];
    uint32_t type = bf16 ? GGUF_TENSOR_BF16 : GGUF_TENSOR_F32;
    size_t n = t->bytes / sizeof(float);
    if (strstr(name, "experts.gate_up_proj") && form->split_experts) {
        size_t expert = (size_t)(ne[0] * ne[1]);
        ne[1] /= 2;
        for (int half = 0; half < 2; half++) {
            char part[96];
            snprintf(part, sizeof part, "%.*s_%s_exps.weight", (int)(strstr(gguf_name, "_gate_up") - gguf_name),
                     gguf_name, half ? "up" : "gate");
            for (int64_t e = 0; e < ne[2]; e++)
                gw_values(&bytes, values + (size_t)e * expert + (size_t)half * expert / 2, expert / 2, bf16);
            gw_tensor(w, part, type, t->dims, ne, bytes.data, bytes.bytes);
            bytes.bytes = 0;
        }
        free(bytes.data);
        return;
    }
    if (matrix)
        gw_values(&bytes, values, n, bf16);
    else
        gw_rounded(&bytes, values, n, form->bf16);
    if (strcmp(name, "embed_tokens.weight") == 0 && form->padding) {
        gw_values(&bytes, values, (size_t)(ne[0] * form->padding), bf16); /* anything */
        ne[1] += form->padding;
    }
    gw_tensor(w, gguf_name, type, t->dims, ne, bytes.data, bytes.bytes);
    free(bytes.data);
}

static inline void gw_fused(gguf_writer *w, const safetensors *source, const model_config *c, int layer, bool bf16) {
    static const char *const parts[] = {"q", "k", "v"};
    gguf_bytes bytes = {0};
    int64_t ne[2] = {c->hidden, 0};
    char name[96];
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "layers.%d.self_attn.%s_proj.weight", layer, parts[i]);
        const tensor *t = gw_source(source, name);
        if (!t || (i == 2 && c->layer[layer].k_eq_v)) continue;
        gw_values(&bytes, (const float *)(const void *)t->data, t->bytes / sizeof(float), bf16);
        ne[1] += t->shape[0];
    }
    snprintf(name, sizeof name, "blk.%d.attn_qkv.weight", layer);
    gw_tensor(w, name, bf16 ? GGUF_TENSOR_BF16 : GGUF_TENSOR_F32, 2, ne, bytes.data, bytes.bytes);
    free(bytes.data);
}

/* All tensors of a float32 checkpoint with the prefix "model.". */
static inline void gw_model(gguf_writer *w, const safetensors *source, const model_config *c, const gguf_form *form) {
    int heads[MODEL_MAX_LAYERS];
    for (int i = 0; i < c->layers; i++) heads[i] = c->heads;
    gw_config_of(w, c, form->heads_listed ? heads : NULL);
    if (form->vocab_size) gw_key_u32(w, "gemma4.vocab_size", (uint32_t)form->vocab_size);
    for (size_t i = 0; i < source->count; i++) {
        const tensor *t = &source->tensors[i];
        const char *name = gw_plain_name(t->name);
        if (!name) continue;
        assert_int_equal(t->type, TENSOR_F32);
        if (strcmp(name, "lm_head.weight") == 0 && c->tied_head) continue;
        if (form->fused_qkv && gw_is_qkv(name)) continue;
        int layer;
        if (strstr(name, "v_proj") && sscanf(name, "layers.%d.", &layer) == 1 && c->layer[layer].k_eq_v) continue;
        gw_model_tensor(w, t, name, form);
    }
    for (int i = 0; form->fused_qkv && i < c->layers; i++) gw_fused(w, source, c, i, form->bf16);
}

#endif
