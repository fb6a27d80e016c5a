/* The keys of gemma4 GGUF files, as llama.cpp's converter writes them. What a file does not say is a constant of the
 * architecture: the scale of attention, the activation, the scale of embeddings, the router. */
#include "model/gemma4_gguf.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "formats/gguf_keys.h"
#include "model/gemma4_layers.h"

static const double rope_no_turn = 1e29; /* divisors from here on mean that a pair does not turn */

bool gemma4_gguf_format(const gguf_type *type, weight_format *out) {
    static const struct {
        uint32_t id;
        weight_format format;
    } formats[] = {
        {GGUF_TENSOR_F32, WEIGHT_F32},     {GGUF_TENSOR_F16, WEIGHT_F16},       {GGUF_TENSOR_BF16, WEIGHT_BF16},
        {GGUF_TENSOR_Q4_0, WEIGHT_Q4_0},   {GGUF_TENSOR_Q4_1, WEIGHT_Q4_1},     {GGUF_TENSOR_Q5_0, WEIGHT_Q5_0},
        {GGUF_TENSOR_Q5_1, WEIGHT_Q5_1},   {GGUF_TENSOR_Q8_0, WEIGHT_Q8_0},     {GGUF_TENSOR_Q2_K, WEIGHT_Q2_K},
        {GGUF_TENSOR_Q3_K, WEIGHT_Q3_K},   {GGUF_TENSOR_Q4_K, WEIGHT_Q4_K},     {GGUF_TENSOR_Q5_K, WEIGHT_Q5_K},
        {GGUF_TENSOR_Q6_K, WEIGHT_Q6_K},   {GGUF_TENSOR_IQ4_NL, WEIGHT_IQ4_NL}, {GGUF_TENSOR_IQ4_XS, WEIGHT_IQ4_XS},
        {GGUF_TENSOR_MXFP4, WEIGHT_MXFP4}, {GGUF_TENSOR_NVFP4, WEIGHT_NVFP4},
    };
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        if (formats[i].id != type->id) continue;
        *out = formats[i].format;
        return true;
    }
    return false;
}

/* The format that holds the most bytes. */
static weight_format main_format(const gguf *file) {
    size_t bytes[WEIGHT_FORMAT_COUNT] = {0};
    weight_format most = WEIGHT_F32;
    for (size_t i = 0; i < file->n_tensors; i++) {
        weight_format format;
        if (gemma4_gguf_format(file->tensors[i]->type, &format)) bytes[format] += file->tensors[i]->bytes;
    }
    for (weight_format f = 0; f < WEIGHT_FORMAT_COUNT; f++) {
        if (bytes[f] > bytes[most]) most = f;
    }
    return most;
}

/* ------------------------------------------------------------------------------------------------- architecture */

static void check_architecture(gguf_keys *r) {
    gguf_text name = {0};
    char shown[GGUF_SHOWN_BYTES];
    if (!gguf_keys_architecture(r, &name) || gguf_text_is(name, "gemma4")) return;
    gguf_show(name.data, name.bytes, shown);
    if (gguf_text_is(name, "clip"))
        gguf_keys_fail(
            r, KAKEYA_UNSUPPORTED,
            "general.architecture is clip: this is the vision part (mmproj), give the language model's file");
    else if (gguf_text_is(name, "gemma4-assistant") || gguf_text_is(name, "dflash"))
        gguf_keys_fail(
            r, KAKEYA_UNSUPPORTED,
            "general.architecture is %s: a drafter, give the language model's file (a DFlash drafter is given "
            "with --drafter)",
            shown);
    else
        gguf_keys_fail(
            r, KAKEYA_UNSUPPORTED,
            "general.architecture is %s, but only Gemma 4 is supported (gemma4: E2B, E4B, 12B, 26B-A4B, 31B)", shown);
}

/* ------------------------------------------------------------------------------------------------------- layers */

static ptrdiff_t layer_tensor(const gguf *file, int layer, const char *name) {
    char text[64];
    snprintf(text, sizeof text, "blk.%d.%s", layer, name);
    return gguf_find_tensor(file, text);
}

/* A layer without V of its own reads K as V: no attn_v, or a fused attn_qkv without its rows. */
static bool lacks_values(const gguf *file, const gemma4_config *c, int layer) {
    const gemma4_layer_config *l = &c->layer[layer];
    ptrdiff_t fused = layer_tensor(file, layer, "attn_qkv.weight");
    if (fused < 0) return layer_tensor(file, layer, "attn_v.weight") < 0;
    const gguf_tensor *t = file->tensors[fused];
    return t->dims == 2 && t->ne[1] == (int64_t)(c->heads + l->kv_heads) * l->head_dim;
}

/* One number, or as many equal ones as there are layers, which some converters write. */
static int read_heads(gguf_keys *r, const gemma4_config *c) {
    static const char key[] = "gemma4.attention.head_count";
    int heads[GEMMA4_MAX_LAYERS] = {0};
    gguf_keys_ints(r, key, c->layers, 1, GEMMA4_MAX_HEADS, heads);
    for (int i = 1; i < c->layers; i++)
        if (heads[i] != heads[0])
            gguf_keys_fail(r, KAKEYA_UNSUPPORTED, "key %s gives layer %d %d heads and layer 0 %d: they must be equal",
                           key, i, heads[i], heads[0]);
    return heads[0];
}

static void read_attention(gguf_keys *r, gemma4_config *c) {
    int kv_heads[GEMMA4_MAX_LAYERS], dims[2], values[2];
    bool sliding[GEMMA4_MAX_LAYERS];
    c->heads = read_heads(r, c);
    gguf_keys_ints(r, "gemma4.attention.head_count_kv", c->layers, 1, GEMMA4_MAX_HEADS, kv_heads);
    gguf_keys_bools(r, "gemma4.attention.sliding_window_pattern", c->layers, sliding);
    c->sliding_window = (int)gguf_keys_required_int(r, "gemma4.attention.sliding_window", 1, GEMMA4_MAX_CONTEXT);
    static const char *const keys[2] = {"gemma4.attention.key_length_swa", "gemma4.attention.key_length"};
    static const char *const value_keys[2] = {"gemma4.attention.value_length_swa", "gemma4.attention.value_length"};
    for (int type = 0; type < 2; type++) {
        dims[type] = (int)gguf_keys_required_int(r, keys[type], 2, GEMMA4_MAX_HEAD_DIM);
        values[type] = (int)gguf_keys_int(r, value_keys[type], 2, GEMMA4_MAX_HEAD_DIM, dims[type]);
        if (values[type] != dims[type])
            gguf_keys_fail(r, KAKEYA_UNSUPPORTED, "key %s is %d, but %s is %d: they must be equal", value_keys[type],
                           values[type], keys[type], dims[type]);
        if (dims[type] % 2) gguf_keys_fail(r, KAKEYA_FORMAT, "key %s is %d, an odd number", keys[type], dims[type]);
    }
    for (int i = 0; i < c->layers && r->status == KAKEYA_OK; i++) {
        gemma4_layer_config *l = &c->layer[i];
        l->type = sliding[i] ? GEMMA4_SLIDING : GEMMA4_FULL;
        l->head_dim = dims[l->type];
        l->kv_heads = kv_heads[i];
        if (c->heads % l->kv_heads)
            gguf_keys_fail(
                r, KAKEYA_FORMAT,
                "key gemma4.attention.head_count_kv gives layer %d %d K/V heads, which %d heads cannot share "
                "evenly",
                i, l->kv_heads, c->heads);
    }
}

static void read_sharing(gguf_keys *r, gemma4_config *c) {
    static const char key[] = "gemma4.attention.shared_kv_layers";
    int widths[GEMMA4_MAX_LAYERS], orphan = 0;
    c->shared_kv_layers = (int)gguf_keys_int(r, key, 0, c->layers - 1, 0);
    gguf_keys_ints(r, "gemma4.feed_forward_length", c->layers, 1, GEMMA4_MAX_WIDTH, widths);
    if (r->status != KAKEYA_OK) return;
    if (!gemma4_share_kv(c, 1, false, &orphan))
        gguf_keys_fail(r, KAKEYA_FORMAT, "key %s is %d, but layer %d has no earlier %s layer to share from", key,
                       c->shared_kv_layers, orphan, gemma4_layer_type_name(c->layer[orphan].type));
    for (int i = 0; i < c->layers && r->status == KAKEYA_OK; i++) {
        gemma4_layer_config *l = &c->layer[i];
        const gemma4_layer_config *source = &c->layer[l->kv_source];
        l->intermediate = widths[i];
        if (l->kv_heads != source->kv_heads)
            gguf_keys_fail(r, KAKEYA_FORMAT, "layer %d has %d K/V heads, but shares those of layer %d, which has %d", i,
                           l->kv_heads, l->kv_source, source->kv_heads);
        l->k_eq_v = l->type == GEMMA4_FULL && lacks_values(r->file, c, l->kv_source);
    }
}

static void read_experts(gguf_keys *r, gemma4_config *c) {
    c->experts = (int)gguf_keys_int(r, "gemma4.expert_count", 0, GEMMA4_MAX_EXPERTS, 0);
    c->moe = c->experts > 0;
    if (!c->moe) return;
    c->experts_per_token = (int)gguf_keys_required_int(r, "gemma4.expert_used_count", 1, c->experts);
    c->expert_intermediate = (int)gguf_keys_required_int(r, "gemma4.expert_feed_forward_length", 1, GEMMA4_MAX_WIDTH);
    if ((long long)c->experts * 2 * c->expert_intermediate > INT_MAX || (long long)c->experts * c->hidden > INT_MAX)
        gguf_keys_fail(r, KAKEYA_FORMAT, "%d experts of width %d (gemma4.expert_count) are too large", c->experts,
                       c->expert_intermediate);
}

/* --------------------------------------------------------------------------------------------------------- RoPE */

/* rope_freqs: divisors of the full layers' inverse frequencies. The first pairs turn, by one common factor; the others
 * have a divisor that stops them. */
static void read_rope_divisors(gguf_keys *r, gemma4_rope *rope, int head_dim) {
    ptrdiff_t index = gguf_find_tensor(r->file, "rope_freqs.weight");
    rope->rotated_pairs = gemma4_rotated_pairs(0.25, head_dim);
    rope->factor = 1;
    if (index < 0) return;
    const gguf_tensor *t = r->file->tensors[index];
    if (t->type->id != GGUF_TENSOR_F32 || t->dims != 1 || t->ne[0] != head_dim / 2) {
        char shape[96];
        gguf_keys_fail(r, KAKEYA_FORMAT, "tensor rope_freqs.weight is %s %s, expected F32 {%d}", t->type->name,
                       gguf_shape_text(t, shape, sizeof shape), head_dim / 2);
        return;
    }
    int turned = 0;
    float common = 1;
    for (int i = 0; i < head_dim / 2; i++) {
        float divisor;
        memcpy(&divisor, t->data + (size_t)i * sizeof divisor, sizeof divisor);
        if (!(divisor > 0) || !isfinite(divisor)) {
            gguf_keys_fail(r, KAKEYA_FORMAT, "tensor rope_freqs.weight[%d] is %g, expected a positive number", i,
                           (double)divisor);
            return;
        }
        if ((double)divisor >= rope_no_turn) continue;
        if (turned == 0) common = divisor;
        if (turned != i || divisor != common) {
            gguf_keys_fail(r, KAKEYA_UNSUPPORTED,
                           "tensor rope_freqs.weight[%d] is %g: only one divisor for the first pairs is supported", i,
                           (double)divisor);
            return;
        }
        turned++;
    }
    rope->rotated_pairs = turned;
    rope->factor = common;
}

static void read_rope(gguf_keys *r, gemma4_config *c) {
    int sliding = gemma4_head_dim(c, GEMMA4_SLIDING), full = gemma4_head_dim(c, GEMMA4_FULL);
    c->rope[GEMMA4_SLIDING] = (gemma4_rope){
        .theta = (float)gguf_keys_number(r, "gemma4.rope.freq_base_swa", 1, 1e12, 1e4),
        .rotated_pairs = sliding / 2,
        .factor = 1,
    };
    c->rope[GEMMA4_FULL].theta = (float)gguf_keys_number(r, "gemma4.rope.freq_base", 1, 1e12, 1e6);
    if (full)
        read_rope_divisors(r, &c->rope[GEMMA4_FULL], full);
    else
        c->rope[GEMMA4_FULL].factor = 1;
}

/* -------------------------------------------------------------------------------------------------------- tokens */

static const gguf_tensor *find_matrix(gguf_keys *r, const char *name) {
    ptrdiff_t index = gguf_find_tensor(r->file, name);
    if (index < 0) {
        gguf_keys_fail(r, KAKEYA_FORMAT, "tensor %s is missing", name);
        return NULL;
    }
    const gguf_tensor *t = r->file->tensors[index];
    if (t->dims == 2 && t->ne[1] <= GEMMA4_MAX_VOCAB) return t;
    char shape[96];
    gguf_keys_fail(r, KAKEYA_FORMAT, "tensor %s has shape %s, expected a matrix of at most %d rows", name,
                   gguf_shape_text(t, shape, sizeof shape), (int)GEMMA4_MAX_VOCAB);
    return NULL;
}

/* Rows of the embedding that no token has are padding. */
static void read_vocab(gguf_keys *r, gemma4_config *c) {
    const gguf_tensor *embed = find_matrix(r, "token_embd.weight");
    const gguf_value *tokens = gguf_keys_array(r, "tokenizer.ggml.tokens", GGUF_STRING);
    if (!embed || r->status != KAKEYA_OK) return;
    int rows = (int)embed->ne[1];
    c->vocab = rows;
    if (tokens && tokens->count) {
        if (tokens->count > (uint64_t)rows)
            gguf_keys_fail(r, KAKEYA_FORMAT,
                           "key tokenizer.ggml.tokens has %llu tokens, but token_embd.weight has %d rows",
                           (unsigned long long)tokens->count, rows);
        else
            c->vocab = (int)tokens->count;
    } else {
        c->vocab = (int)gguf_keys_int(r, "gemma4.vocab_size", 1, rows, rows);
    }
}

static void add_stop_token(gemma4_config *c, int token) {
    for (int i = 0; i < c->n_stop_tokens; i++) {
        if (c->stop_tokens[i] == token) return;
    }
    if (c->n_stop_tokens < GEMMA4_MAX_STOP_TOKENS) c->stop_tokens[c->n_stop_tokens++] = token;
}

static void read_suppressed(gguf_keys *r, gemma4_config *c) {
    static const char key[] = "tokenizer.ggml.suppress_tokens";
    const gguf_value *list = gguf_keys_array(r, key, GGUF_I32);
    for (uint64_t i = 0; list && i < list->count; i++) {
        long long token = gguf_value_int(list, i);
        bool known = token < 0 || token >= c->vocab; /* never produced */
        for (int k = 0; k < c->n_suppress_tokens; k++) known |= c->suppress_tokens[k] == token;
        if (known) continue;
        if (c->n_suppress_tokens == GEMMA4_MAX_SUPPRESS_TOKENS) {
            gguf_keys_fail(r, KAKEYA_UNSUPPORTED, "key %s: more than %d different tokens", key,
                           (int)GEMMA4_MAX_SUPPRESS_TOKENS);
            return;
        }
        c->suppress_tokens[c->n_suppress_tokens++] = (int)token;
    }
    if (c->n_suppress_tokens == c->vocab)
        gguf_keys_fail(r, KAKEYA_FORMAT, "key %s leaves none of the %d tokens", key, c->vocab);
}

/* What ends an answer is looked up by its text: older files give some of these tokens another type or another id. */
static void read_tokens(gguf_keys *r, gemma4_config *c) {
    static const char *const stops[] = {"<eos>", "<turn|>", "<|tool_response>"};
    c->bos_token = (int)gguf_keys_int(r, "tokenizer.ggml.bos_token_id", 0, c->vocab - 1, c->vocab > 2 ? 2 : -1);
    c->pad_token = (int)gguf_keys_int(r, "tokenizer.ggml.padding_token_id", 0, c->vocab - 1, -1);
    int eos = (int)gguf_keys_int(r, "tokenizer.ggml.eos_token_id", 0, c->vocab - 1, -1);
    if (r->status != KAKEYA_OK) return;
    if (eos >= 0) add_stop_token(c, eos);
    const gguf_value *tokens = gguf_keys_array(r, "tokenizer.ggml.tokens", GGUF_STRING);
    size_t at = 0;
    for (uint64_t i = 0; tokens && i < tokens->count; i++) {
        gguf_text text = gguf_next_string(tokens, &at);
        for (size_t k = 0; k < sizeof stops / sizeof stops[0]; k++) {
            if (gguf_text_is(text, stops[k])) add_stop_token(c, (int)i);
        }
    }
    if (c->n_stop_tokens == 0 && c->vocab > 1) add_stop_token(c, 1);
    read_suppressed(r, c);
}

/* --------------------------------------------------------------------------------------------------------- whole */

static void read_note(gguf_keys *r, const gemma4_config *c, char note[256]) {
    bool quantised = false;
    for (size_t i = 0; i < r->file->n_tensors; i++) quantised |= r->file->tensors[i]->type->block > 1;
    bool has_version = gguf_find(r->file, "general.quantization_version") != NULL;
    long long version = gguf_keys_int(r, "general.quantization_version", 0, INT_MAX, 2);
    if (quantised && version != 2)
        gguf_keys_fail(r, KAKEYA_UNSUPPORTED, "key general.quantization_version is %lld, expected 2", version);
    const char *cap = c->logit_softcap > 0 ? "" : "no soft cap of the logits, which every published Gemma 4 has";
    const char *old = quantised && !has_version ? "general.quantization_version is not given, 2 is taken" : "";
    if (note) snprintf(note, 256, "%s%s%s", cap, *cap && *old ? "; " : "", old);
}

static void read_config(gguf_keys *r, gemma4_config *c, char *note) {
    check_architecture(r);
    if (r->status != KAKEYA_OK) return;
    c->layers = (int)gguf_keys_required_int(r, "gemma4.block_count", 1, GEMMA4_MAX_LAYERS);
    c->hidden = (int)gguf_keys_required_int(r, "gemma4.embedding_length", 1, GEMMA4_MAX_WIDTH);
    c->max_context = (int)gguf_keys_required_int(r, "gemma4.context_length", 1, GEMMA4_MAX_CONTEXT);
    c->rms_eps = (float)gguf_keys_required_number(r, "gemma4.attention.layer_norm_rms_epsilon", 1e-30, 1);
    c->logit_softcap = (float)gguf_keys_number(r, "gemma4.final_logit_softcapping", 0, 1e6, 0);
    if (r->status != KAKEYA_OK) return; /* the layer count is not to be trusted */
    read_attention(r, c);
    read_sharing(r, c);
    if (r->status != KAKEYA_OK) return;
    read_experts(r, c);
    read_rope(r, c);
    c->ple_width = (int)gguf_keys_int(r, "gemma4.embedding_length_per_layer_input", 0, GEMMA4_MAX_WIDTH, 0);
    if ((long long)c->ple_width * c->layers > INT_MAX / 4)
        gguf_keys_fail(r, KAKEYA_FORMAT, "key gemma4.embedding_length_per_layer_input is %d, too large for %d layers",
                       c->ple_width, c->layers);
    if (c->ple_width) {
        const gguf_tensor *table = find_matrix(r, "per_layer_token_embd.weight");
        c->ple_vocab = table ? (int)table->ne[1] : 0;
    }
    read_vocab(r, c);
    if (r->status != KAKEYA_OK) return;
    read_tokens(r, c);
    c->checkpoint_format = main_format(r->file);
    c->tied_head = gguf_find_tensor(r->file, "output.weight") < 0;
    read_note(r, c, note);
}

kakeya_status gemma4_gguf_config(const gguf *file, gemma4_config *out, char *note, kakeya_error *error) {
    memset(out, 0, sizeof *out);
    if (note) *note = '\0';
    gguf_keys r = {.file = file, .error = error};
    out->checkpoint_format = WEIGHT_FORMAT_COUNT;
    read_config(&r, out, note);
    if (r.status != KAKEYA_OK) return r.status;
    gemma4_name_variant(out);
    return KAKEYA_OK;
}
