/* The keys of gemma4 and gemma3 GGUF files, as llama.cpp's converter writes them. What a file does not say is a
 * constant of the architecture: the scale of attention, the activation, the scale of embeddings, the router. Keys are
 * named here as gemma4's; those of a gemma3 file have its own name in front. */
#include "model/gemma4_gguf.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/gemma4_facts.h"
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

static void check_architecture(gguf_keys *r, model_config *c) {
    gguf_text name = {0};
    char shown[GGUF_SHOWN_BYTES];
    if (gguf_keys_text(r, "general.type", &name) && gguf_text_is(name, "adapter"))
        gguf_keys_fail(r, KAKEYA_UNSUPPORTED,
                       "a LoRA adapter (general.type), not a model: merge it into its base model, and give that");
    if (!gguf_keys_architecture(r, &name) || gguf_text_is(name, "gemma4")) return;
    if (gguf_text_is(name, "gemma3")) {
        c->generation = GEMMA_3;
        r->asked = GEMMA4_GGUF_PREFIX;
        r->written = "gemma3.";
        return;
    }
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
            "general.architecture is %s, but only Gemma 4 (gemma4: E2B, E4B, 12B, 26B-A4B, 31B) and the text models of "
            "Gemma 3 (gemma3: 270M, 1B, 4B, 12B, 27B) are supported",
            shown);
}

/* ------------------------------------------------------------------------------------------------------- layers */

static ptrdiff_t layer_tensor(const gguf *file, int layer, const char *name) {
    char text[64];
    snprintf(text, sizeof text, "blk.%d.%s", layer, name);
    return gguf_find_tensor(file, text);
}

/* A layer without V of its own reads K as V: no attn_v, or a fused attn_qkv without its rows. */
static bool lacks_values(const gguf *file, const model_config *c, int layer) {
    const layer_config *l = &c->layer[layer];
    ptrdiff_t fused = layer_tensor(file, layer, "attn_qkv.weight");
    if (fused < 0) return layer_tensor(file, layer, "attn_v.weight") < 0;
    const gguf_tensor *t = file->tensors[fused];
    return t->dims == 2 && t->ne[1] == (int64_t)(c->heads + l->kv_heads) * l->head_dim;
}

/* Whether each layer slides: one boolean or 0 or 1 for each; one boolean for all; or one number n, in which case every
 * n-th layer sees everything, and with 0 none does. The last layer of Gemma 4 does, whatever is said, as in
 * config.json. A gemma3 file need not say it: n is 6, and without a window nothing slides. */
static void read_layer_types(gemma4_reading *reading) {
    gguf_keys *r = reading->gguf;
    model_config *c = reading->config;
    static const char key[] = "gemma4.attention.sliding_window_pattern";
    const gguf_value *value = gguf_keys_find(r, key);
    bool sliding[MODEL_MAX_LAYERS], gemma3 = c->generation == GEMMA_3, window = reading->value[FACT_WINDOW] > 0;
    if (gemma3 && !(value && window)) {
        for (int i = 0; i < c->layers; i++) sliding[i] = window && (i + 1) % 6 != 0;
    } else if (value && !value->array && gguf_is_integer(value->type)) {
        int period = (int)gguf_keys_int(r, key, 0, INT_MAX, 0);
        for (int i = 0; i < c->layers; i++) sliding[i] = period == 0 || (i + 1) % period != 0;
    } else {
        gguf_keys_bools(r, key, c->layers, sliding);
    }
    for (int i = 0; i < c->layers; i++) c->layer[i].type = sliding[i] ? LAYER_SLIDING : LAYER_FULL;
    if (!gemma3) c->layer[c->layers - 1].type = LAYER_FULL;
}

static void read_attention(gemma4_reading *r) {
    gguf_keys *keys = r->gguf;
    model_config *c = r->config;
    int kv_heads[MODEL_MAX_LAYERS];
    read_layer_types(r);
    gemma4_facts_layered(r, FACT_KV_HEADS, kv_heads);
    static const char *const value_keys[2] = {"gemma4.attention.value_length_swa", "gemma4.attention.value_length"};
    for (int type = 0; type < 2; type++) {
        gemma4_fact_id id = type == LAYER_FULL ? FACT_GLOBAL_HEAD_DIM : FACT_HEAD_DIM;
        int dim = (int)r->value[id];
        const char *key = value_keys[c->generation == GEMMA_3 ? LAYER_FULL : type];
        int values = (int)gguf_keys_int(keys, key, 2, MODEL_MAX_HEAD_DIM, dim);
        if (values != dim)
            gguf_keys_fail(keys, KAKEYA_UNSUPPORTED, "key %s is %d, but %s is %d: they must be equal",
                           gguf_keys_name(keys, key), values, gemma4_fact_name(r, id), dim);
        for (int i = 0; i < c->layers; i++) {
            if ((int)c->layer[i].type == type) c->layer[i].head_dim = dim;
        }
    }
    for (int i = 0; i < c->layers; i++) c->layer[i].kv_heads = kv_heads[i];
}

/* Gemma 3 divides scores by the root of the head dimension, but for its largest model, whose heads are narrower than
 * the width of a query. Files do not say it. */
float gemma4_gguf_query_scale(const model_config *c) {
    bool largest = c->layers == 62 || (c->layer[0].head_dim == 128 && c->heads == 32);
    int width = largest ? c->hidden / c->heads : c->layer[0].head_dim;
    return (float)(1 / sqrt((double)width));
}

/* Which layers have no V of their own, once it is known where K comes from. */
static void read_values(gemma4_reading *r) {
    model_config *c = r->config;
    for (int i = 0; i < c->layers; i++)
        c->layer[i].k_eq_v = c->generation == GEMMA_4 && c->layer[i].type == LAYER_FULL &&
                             lacks_values(r->gguf->file, c, c->layer[i].kv_source);
}

/* Keys that would change the arithmetic. Some tools write the values that change nothing. */
static void check_fixed_choices(gguf_keys *r, const model_config *c) {
    const double root = sqrt((double)c->hidden);
    const struct {
        const char *key;
        double neutral, other;
    } fixed[] = {
        {"gemma4.attention.scale", c->generation == GEMMA_3 ? (double)c->query_scale : 1, 0},
        {"gemma4.attention.causal", 1, 1},
        {"gemma4.attention.max_alibi_bias", 0, 0},
        {"gemma4.attention.clamp_kqv", 0, 0},
        {"gemma4.attention.temperature_scale", 0, 0},
        {"gemma4.attn_logit_softcapping", 0, 0},
        {"gemma4.router_logit_softcapping", 0, 0},
        {"gemma4.logit_scale", 1, 0},
        {"gemma4.residual_scale", 1, 0},
        {"gemma4.embedding_scale", root, 0},
        {"gemma4.expert_weights_scale", 1, 0},
        {"gemma4.expert_weights_norm", 1, 1},
        {"gemma4.expert_gating_func", 1, 0}, /* softmax */
        {"gemma4.expert_shared_count", 0, 0},
        {"gemma4.expert_group_count", 1, 0},
        {"gemma4.leading_dense_block_count", 0, 0},
        {"gemma4.use_parallel_residual", 0, 0},
    };
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++) {
        const gguf_value *value = gguf_keys_find(r, fixed[i].key);
        if (!value) continue;
        bool truth = !value->array && value->type == GGUF_BOOL;
        double number = truth ? value->data[0] != 0 : gguf_keys_number(r, fixed[i].key, -1e30, 1e30, fixed[i].neutral);
        if (fabs(number - fixed[i].neutral) <= 1e-2 * fixed[i].neutral || number == fixed[i].other) continue;
        gguf_keys_fail(r, KAKEYA_UNSUPPORTED, "key %s is %g, expected %g: anything else is not supported",
                       gguf_keys_name(r, fixed[i].key), number, fixed[i].neutral);
    }
}

/* --------------------------------------------------------------------------------------------------------- RoPE */

/* rope_freqs: divisors of the full layers' inverse frequencies. The first pairs turn, by one common factor; the others
 * have a divisor that stops them. */
static void read_rope_divisors(gguf_keys *r, rope_config *rope, int head_dim, double partial) {
    ptrdiff_t index = gguf_find_tensor(r->file, "rope_freqs.weight");
    rope->rotated_pairs = gemma4_rotated_pairs(partial, head_dim);
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

/* All of a head's values are turned, or pass as the divisors say: nothing else is done here. */
static void check_turned(gguf_keys *r, const char *key, const char *dim_key, int dim) {
    long long turned = gguf_keys_int(r, key, 0, INT_MAX, dim);
    if (turned != dim)
        gguf_keys_fail(r, KAKEYA_UNSUPPORTED, "key %s is %lld, but %s is %d: they must be equal",
                       gguf_keys_name(r, key), turned, gguf_keys_name(r, dim_key), dim);
}

/* What the frequencies of full layers are divided by, beside the divisors: positions that are scaled linearly. Other
 * kinds of scaling are refused, and whatever else is said of RoPE. */
static double read_scaling(gguf_keys *r) {
    static const char type_key[] = "gemma4.rope.scaling.type", old_key[] = "gemma4.rope.scale_linear";
    static const char *const known[] = {
        "freq_base",         "freq_base_swa",       "dimension_count",  "dimension_count_swa",
        "scale_linear",      "scaling.type",        "scaling.factor",   "scaling.original_context_length",
        "scaling.finetuned", "scaling.attn_factor", "global.freq_base", "local.freq_base",
    };
    const char *prefix = gguf_keys_name(r, "gemma4.rope.");
    const gguf_part *part = &r->file->parts[0];
    for (size_t i = 0; i < part->n_values; i++) {
        const char *key = part->values[i].key;
        bool is_known = strncmp(key, prefix, strlen(prefix)) != 0;
        for (size_t k = 0; k < sizeof known / sizeof known[0]; k++)
            is_known = is_known || strcmp(key + strlen(prefix), known[k]) == 0;
        if (!is_known) gguf_keys_fail(r, KAKEYA_UNSUPPORTED, "key %s is not supported", key);
    }
    gguf_text type = {0};
    char shown[GGUF_SHOWN_BYTES];
    bool typed = gguf_keys_text(r, type_key, &type);
    bool linear = !typed || type.bytes == 0 || gguf_text_is(type, "linear"), none = typed && gguf_text_is(type, "none");
    if (!linear && !none)
        gguf_keys_fail(r, KAKEYA_UNSUPPORTED, "key %s is \"%s\", which is not supported (none, linear)",
                       gguf_keys_name(r, type_key), gguf_show(type.data, type.bytes, shown));
    double attention = gguf_keys_number(r, "gemma4.rope.scaling.attn_factor", -1e30, 1e30, 1);
    if (!(attention == 1) && !(attention == 0))
        gguf_keys_fail(r, KAKEYA_UNSUPPORTED, "key %s is %g, expected 1",
                       gguf_keys_name(r, "gemma4.rope.scaling.attn_factor"), attention);
    const gemma4_fact *f = &gemma4_facts[FACT_ROPE_FACTOR];
    const char *key = gguf_keys_find(r, f->gguf) ? f->gguf : old_key;
    if (gguf_keys_number(r, key, 0, f->max, f->gguf_absent) == 0) return 1; /* as good as absent, for llama.cpp too */
    double factor = gguf_keys_number(r, key, f->min, f->max, f->gguf_absent);
    return linear ? factor : 1;
}

static void read_rope(gemma4_reading *r) {
    model_config *c = r->config;
    int sliding = gemma4_head_dim(c, LAYER_SLIDING), full = gemma4_head_dim(c, LAYER_FULL);
    double scaled = read_scaling(r->gguf), theta[2] = {r->value[FACT_THETA_SLIDING], r->value[FACT_THETA_FULL]};
    const bool gemma3 = c->generation == GEMMA_3;
    for (int type = 0; gemma3 && type < 2; type++) { /* as old files have them */
        static const char *const keys[] = {"gemma4.rope.local.freq_base", "gemma4.rope.global.freq_base"};
        const gemma4_fact *f = &gemma4_facts[type == LAYER_FULL ? FACT_THETA_FULL : FACT_THETA_SLIDING];
        theta[type] = gguf_keys_number(r->gguf, keys[type], f->min, f->max, theta[type]);
    }
    c->rope[LAYER_SLIDING] = (rope_config){
        .theta = (float)theta[LAYER_SLIDING],
        .rotated_pairs = sliding / 2,
        .factor = 1,
    };
    c->rope[LAYER_FULL].theta = (float)theta[LAYER_FULL];
    read_rope_divisors(r->gguf, &c->rope[LAYER_FULL], full, gemma3 ? 1 : 0.25);
    c->rope[LAYER_FULL].factor *= (float)scaled;
    check_turned(r->gguf, "gemma4.rope.dimension_count", gemma4_facts[FACT_GLOBAL_HEAD_DIM].gguf, full);
    if (sliding && !gemma3)
        check_turned(r->gguf, "gemma4.rope.dimension_count_swa", gemma4_facts[FACT_HEAD_DIM].gguf, sliding);
}

/* -------------------------------------------------------------------------------------------------------- tokens */

static const gguf_tensor *find_matrix(gguf_keys *r, const char *name) {
    ptrdiff_t index = gguf_find_tensor(r->file, name);
    if (index < 0) {
        gguf_keys_fail(r, KAKEYA_FORMAT, "tensor %s is missing", name);
        return NULL;
    }
    const gguf_tensor *t = r->file->tensors[index];
    if (t->dims == 2 && t->ne[1] <= MODEL_MAX_VOCAB) return t;
    char shape[96];
    gguf_keys_fail(r, KAKEYA_FORMAT, "tensor %s has shape %s, expected a matrix of at most %d rows", name,
                   gguf_shape_text(t, shape, sizeof shape), (int)MODEL_MAX_VOCAB);
    return NULL;
}

/* Rows of the embedding that no token has are padding. */
static void read_vocab(gemma4_reading *r) {
    gguf_keys *keys = r->gguf;
    model_config *c = r->config;
    const gguf_tensor *embed = find_matrix(keys, "token_embd.weight");
    const gguf_value *tokens = gguf_keys_array(keys, "tokenizer.ggml.tokens", GGUF_STRING);
    if (!embed || keys->status != KAKEYA_OK) return;
    int rows = (int)embed->ne[1], given = (int)r->value[FACT_VOCAB];
    c->vocab = rows;
    if (tokens && tokens->count) {
        /* Old files of Gemma 3 list the token of pictures behind the last row. */
        if (tokens->count > (uint64_t)rows && c->generation == GEMMA_4)
            gguf_keys_fail(keys, KAKEYA_FORMAT,
                           "key tokenizer.ggml.tokens has %llu tokens, but token_embd.weight has %d rows",
                           (unsigned long long)tokens->count, rows);
        else
            c->vocab = tokens->count < (uint64_t)rows ? (int)tokens->count : rows;
    } else if (given > rows) {
        gguf_keys_fail(keys, KAKEYA_FORMAT, "key %s is %d, but token_embd.weight has %d rows",
                       gemma4_fact_name(r, FACT_VOCAB), given, rows);
    } else if (given) {
        c->vocab = given;
    }
}

/* Adds an id, or an array of ids, to a set by `add`. */
static void add_tokens(gguf_keys *r, const char *key, model_config *c, bool (*add)(model_config *c, double id),
                       int capacity) {
    const gguf_value *value = gguf_find(r->file, key);
    if (!value || (value->array && value->count == 0)) return;
    if (!gguf_is_integer(value->type)) {
        gguf_keys_fail(r, KAKEYA_FORMAT, "key %s is %s%s, expected whole numbers", key,
                       value->array ? "an array of " : "", gguf_value_type_name(value->type));
        return;
    }
    for (uint64_t i = 0; i < value->count; i++) {
        if (add(c, (double)gguf_value_int(value, i))) continue;
        gguf_keys_fail(r, KAKEYA_UNSUPPORTED, "key %s: more than %d different tokens", key, capacity);
        return;
    }
}

/* Beside these the ends of turns stop answers, which are looked up by their text (session/open.c). */
static void read_tokens(gguf_keys *r, model_config *c) {
    static const char *const stops[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                        "tokenizer.ggml.eom_token_id"};
    static const char suppressed[] = "tokenizer.ggml.suppress_tokens";
    for (int i = 0; i < 3; i++) add_tokens(r, stops[i], c, gemma4_add_stop_token, GEMMA4_NAMED_STOP_TOKENS);
    gemma4_settle_stop_tokens(c);
    add_tokens(r, suppressed, c, gemma4_add_suppressed_token, MODEL_MAX_SUPPRESS_TOKENS);
    if (c->n_suppress_tokens == c->vocab)
        gguf_keys_fail(r, KAKEYA_FORMAT, "key %s leaves none of the %d tokens", suppressed, c->vocab);
}

/* --------------------------------------------------------------------------------------------------------- whole */

static void read_note(gguf_keys *r, const model_config *c, char note[256]) {
    bool quantised = false;
    for (size_t i = 0; i < r->file->n_tensors; i++) quantised |= r->file->tensors[i]->type->block > 1;
    bool has_version = gguf_find(r->file, "general.quantization_version") != NULL;
    long long version = gguf_keys_int(r, "general.quantization_version", 0, INT_MAX, 2);
    if (quantised && version != 2)
        gguf_keys_fail(r, KAKEYA_UNSUPPORTED, "key general.quantization_version is %lld, expected 2", version);
    const char *cap = c->logit_softcap > 0 || c->generation == GEMMA_3
                          ? ""
                          : "no soft cap of the logits, which every published Gemma 4 has";
    const char *old = quantised && !has_version ? "general.quantization_version is not given, 2 is taken" : "";
    if (note) snprintf(note, 256, "%s%s%s", cap, *cap && *old ? "; " : "", old);
}

/* Of a file whose architecture is known. own_kv: the layers have K/V themselves. */
static void read_config(gguf_keys *keys, model_config *c, bool own_kv, char *note) {
    gemma4_reading reading = {.gguf = keys, .config = c}, *r = &reading;
    int widths[MODEL_MAX_LAYERS];
    c->checkpoint_format = WEIGHT_FORMAT_COUNT;
    gemma4_facts_read_gguf(r);
    if (!own_kv) r->value[FACT_SHARED_KV] = 0; /* they share another model's */
    gemma4_settle_sizes(r);
    if (keys->status != KAKEYA_OK) return; /* the layer count is not to be trusted */
    read_attention(r);
    gemma4_facts_layered(r, FACT_INTERMEDIATE, widths);
    c->moe = r->value[FACT_EXPERTS] > 0;
    c->tied_head = gguf_find_tensor(keys->file, "output.weight") < 0;
    c->checkpoint_format = main_format(keys->file);
    if (keys->status == KAKEYA_OK) gemma4_settle_layers(r, widths, false);
    if (keys->status == KAKEYA_OK && c->generation == GEMMA_3) c->query_scale = gemma4_gguf_query_scale(c);
    if (keys->status == KAKEYA_OK) check_fixed_choices(keys, c);
    if (keys->status == KAKEYA_OK) read_rope(r);
    if (keys->status == KAKEYA_OK && r->value[FACT_PLE] > 0) {
        const gguf_tensor *table = find_matrix(keys, "per_layer_token_embd.weight");
        c->ple_vocab = table ? (int)table->ne[1] : 0;
    }
    if (keys->status == KAKEYA_OK) read_vocab(r);
    if (keys->status != KAKEYA_OK) return;
    gemma4_settle_tokens(r);
    read_values(r);
    read_tokens(keys, c);
    read_note(keys, c, note);
}

kakeya_status gemma4_gguf_config(const gguf *file, model_config *out, char *note, kakeya_error *error) {
    memset(out, 0, sizeof *out);
    if (note) *note = '\0';
    gguf_keys r = {.file = file, .error = error};
    check_architecture(&r, out);
    if (r.status == KAKEYA_OK) read_config(&r, out, true, note);
    if (r.status != KAKEYA_OK) return r.status;
    gemma4_name_variant(out);
    return KAKEYA_OK;
}

void gemma4_gguf_assistant(gguf_keys *keys, model_config *out) {
    memset(out, 0, sizeof *out);
    keys->asked = GEMMA4_GGUF_PREFIX;
    keys->written = "gemma4-assistant.";
    read_config(keys, out, false, NULL);
    keys->asked = keys->written = NULL;
    if (keys->status == KAKEYA_OK && (out->moe || out->ple_width))
        gguf_keys_fail(keys, KAKEYA_UNSUPPORTED, "an assistant with experts or per-layer embeddings is not supported");
}
