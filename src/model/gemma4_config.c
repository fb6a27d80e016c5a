/* config.json and generation_config.json of the Gemma 4 family. Two dialects: the published one (global_head_dim,
 * num_global_key_value_heads) and the re-saved one (per_layer_config); text fields at the top or in text_config. Keys
 * whose value is the configuration class's default are often left out of a nested text_config, so those defaults apply
 * here. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "model/gemma4_layers.h"
#include "model/gemma4_rope.h"

static bool is_one_of(const char *text, const char *const *names, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (strcmp(text, names[i]) == 0) return true;
    }
    return false;
}

static void check_architecture(json_reader *r, const cJSON *top, const cJSON *text) {
    static const char *const model_types[] = {"gemma4", "gemma4_unified", "gemma4_text", "gemma4_unified_text"};
    static const char *const architectures[] = {"Gemma4ForConditionalGeneration",
                                                "Gemma4UnifiedForConditionalGeneration", "Gemma4ForCausalLM",
                                                "Gemma4UnifiedForCausalLM"};
    const char *model_type = json_string(r, top, "model_type", NULL);
    const cJSON *list = json_array(r, top, "architectures");
    const char *architecture = list && cJSON_IsString(list->child) ? list->child->valuestring : NULL;
    if (!model_type && !architecture)
        json_fail(r, KAKEYA_UNSUPPORTED, "neither model_type nor architectures says that this is a Gemma 4 model");
    if (architecture && !is_one_of(architecture, architectures, 4))
        json_fail(r, KAKEYA_UNSUPPORTED,
                  "architecture \"%s\" is not supported (Gemma4ForConditionalGeneration, "
                  "Gemma4UnifiedForConditionalGeneration, Gemma4ForCausalLM)",
                  architecture);
    if (model_type && !is_one_of(model_type, model_types, 4))
        json_fail(r, KAKEYA_UNSUPPORTED, "model_type \"%s\" is not supported (gemma4, gemma4_unified, gemma4_text)",
                  model_type);
    const char *text_type = text != top ? json_string(r, text, "model_type", NULL) : NULL;
    if (text_type && !is_one_of(text_type, model_types + 2, 2))
        json_fail(r, KAKEYA_UNSUPPORTED, "text_config.model_type \"%s\" is not supported (gemma4_text)", text_type);
    const char *weights = json_string(r, top, "transformers_weights", NULL);
    if (weights && strcmp(weights, "model.safetensors") != 0)
        json_fail(r, KAKEYA_UNSUPPORTED, "transformers_weights \"%s\" is not supported (model.safetensors)", weights);
}

/* Switches whose other settings no published text model uses. */
static void check_fixed_choices(json_reader *r, const cJSON *text) {
    const char *activation = json_string(r, text, "hidden_activation", "gelu_pytorch_tanh");
    if (strcmp(activation, "gelu_pytorch_tanh") != 0)
        json_fail(r, KAKEYA_UNSUPPORTED, "hidden_activation \"%s\" is not supported (gelu_pytorch_tanh)", activation);
    if (json_bool(r, text, "attention_bias", false))
        json_fail(r, KAKEYA_UNSUPPORTED, "attention_bias is not supported");
    const cJSON *bidirectional = json_get(text, "use_bidirectional_attention");
    bool vision_only = cJSON_IsString(bidirectional) && strcmp(bidirectional->valuestring, "vision") == 0;
    if (bidirectional && !cJSON_IsFalse(bidirectional) && !vision_only)
        json_fail(r, KAKEYA_UNSUPPORTED, "use_bidirectional_attention: only null and \"vision\" are supported");
}

static void read_layer_types(json_reader *r, const cJSON *text, gemma4_config *c) {
    const cJSON *types = json_array(r, text, "layer_types");
    if (!types) { /* five sliding, one full */
        for (int i = 0; i < c->layers; i++) c->layer[i].type = (i + 1) % 6 == 0 ? GEMMA4_FULL : GEMMA4_SLIDING;
        c->layer[c->layers - 1].type = GEMMA4_FULL;
        return;
    }
    int n = cJSON_GetArraySize(types);
    if (n != c->layers) {
        json_fail(r, KAKEYA_FORMAT, "layer_types has %d entries, num_hidden_layers is %d", n, c->layers);
        return;
    }
    const cJSON *type;
    int i = 0;
    cJSON_ArrayForEach(type, types) {
        const char *name = cJSON_IsString(type) ? type->valuestring : "(not a string)";
        if (strcmp(name, "sliding_attention") == 0)
            c->layer[i].type = GEMMA4_SLIDING;
        else if (strcmp(name, "full_attention") == 0)
            c->layer[i].type = GEMMA4_FULL;
        else
            json_fail(r, KAKEYA_UNSUPPORTED, "layer_types[%d]: unknown layer type \"%s\"", i, name);
        i++;
    }
    c->layer[c->layers - 1].type = GEMMA4_FULL; /* whatever the list says, as the reference does */
}

/* {"05": {"head_dim": 512, "num_key_value_heads": 2}, ...} */
static void read_layer_overrides(json_reader *r, const cJSON *overrides, gemma4_config *c) {
    const cJSON *item;
    cJSON_ArrayForEach(item, overrides) {
        char *end;
        long index = strtol(item->string, &end, 10);
        if (end == item->string || *end || index < 0 || index >= c->layers || !cJSON_IsObject(item)) {
            json_fail(r, KAKEYA_FORMAT, "per_layer_config: \"%s\" is not one of the %d layers", item->string,
                      c->layers);
            return;
        }
        const cJSON *value;
        cJSON_ArrayForEach(value, item) {
            if (strcmp(value->string, "head_dim") != 0 && strcmp(value->string, "num_key_value_heads") != 0)
                json_fail(r, KAKEYA_UNSUPPORTED,
                          "per_layer_config: layer %ld overrides \"%s\", only head_dim and "
                          "num_key_value_heads are supported",
                          index, value->string);
        }
        gemma4_layer_config *l = &c->layer[index];
        l->head_dim = json_int(r, item, "head_dim", 2, GEMMA4_MAX_HEAD_DIM, l->head_dim);
        l->kv_heads = json_int(r, item, "num_key_value_heads", 1, GEMMA4_MAX_HEADS, l->kv_heads);
    }
}

static void read_attention(json_reader *r, const cJSON *text, gemma4_config *c) {
    c->heads = json_int(r, text, "num_attention_heads", 1, GEMMA4_MAX_HEADS, 8);
    int kv_heads = json_int(r, text, "num_key_value_heads", 1, GEMMA4_MAX_HEADS, 4);
    int head_dim = json_int(r, text, "head_dim", 2, GEMMA4_MAX_HEAD_DIM, 256);
    const cJSON *overrides = json_object(r, text, "per_layer_config");
    bool k_eq_v = json_bool(r, text, "attention_k_eq_v", false);
    int full_head_dim = head_dim, full_kv_heads = kv_heads;
    if (!cJSON_GetObjectItemCaseSensitive(text,
                                          "per_layer_config")) { /* which replaces the two, even where it is null */
        full_head_dim = json_int(r, text, "global_head_dim", 2, GEMMA4_MAX_HEAD_DIM, 512);
        full_kv_heads = json_int(r, text, "num_global_key_value_heads", 1, GEMMA4_MAX_HEADS, kv_heads);
    }
    for (int i = 0; i < c->layers; i++) {
        gemma4_layer_config *l = &c->layer[i];
        bool full = l->type == GEMMA4_FULL;
        l->head_dim = full ? full_head_dim : head_dim;
        l->k_eq_v = full && k_eq_v;
        l->kv_heads = l->k_eq_v ? full_kv_heads : kv_heads;
    }
    read_layer_overrides(r, overrides, c);

    int dim_layer[2] = {-1, -1}; /* RoPE frequencies exist once per layer type */
    for (int i = 0; i < c->layers; i++) {
        const gemma4_layer_config *l = &c->layer[i];
        if (l->head_dim % 2) json_fail(r, KAKEYA_FORMAT, "head dimension %d of layer %d is odd", l->head_dim, i);
        if (c->heads % l->kv_heads)
            json_fail(r, KAKEYA_FORMAT, "%d attention heads of layer %d cannot share %d K/V heads evenly", c->heads, i,
                      l->kv_heads);
        int first = dim_layer[l->type];
        if (first < 0)
            dim_layer[l->type] = i;
        else if (c->layer[first].head_dim != l->head_dim)
            json_fail(r, KAKEYA_UNSUPPORTED, "%s layers %d and %d have head dimensions %d and %d",
                      gemma4_layer_type_name(l->type), first, i, c->layer[first].head_dim, l->head_dim);
    }
}

static void read_mlp(json_reader *r, const cJSON *text, gemma4_config *c) {
    int intermediate = json_int(r, text, "intermediate_size", 1, GEMMA4_MAX_WIDTH, 9216);
    bool double_wide = json_bool(r, text, "use_double_wide_mlp", false);
    c->shared_kv_layers = json_int(r, text, "num_kv_shared_layers", 0, GEMMA4_MAX_LAYERS, 0);
    if (c->shared_kv_layers >= c->layers && r->status == KAKEYA_OK)
        json_fail(r, KAKEYA_FORMAT, "num_kv_shared_layers is %d of %d layers: none is left to share from",
                  c->shared_kv_layers, c->layers);
    int orphan = 0;
    if (r->status == KAKEYA_OK && !gemma4_share_kv(c, intermediate, double_wide, &orphan))
        json_fail(r, KAKEYA_FORMAT, "num_kv_shared_layers is %d, but layer %d has no earlier %s layer to share from",
                  c->shared_kv_layers, orphan, gemma4_layer_type_name(c->layer[orphan].type));
    for (int i = 0; i < c->layers && r->status == KAKEYA_OK; i++) {
        const gemma4_layer_config *l = &c->layer[i], *source = &c->layer[l->kv_source];
        if (l->kv_heads != source->kv_heads)
            json_fail(r, KAKEYA_FORMAT, "layer %d has %d K/V heads, but shares those of layer %d, which has %d", i,
                      l->kv_heads, l->kv_source, source->kv_heads);
    }

    c->moe = json_bool(r, text, "enable_moe_block", false);
    if (c->moe) {
        c->experts = json_required_int(r, text, "num_experts", 1, GEMMA4_MAX_EXPERTS);
        c->experts_per_token = json_required_int(r, text, "top_k_experts", 1, GEMMA4_MAX_EXPERTS);
        c->expert_intermediate = json_required_int(r, text, "moe_intermediate_size", 1, GEMMA4_MAX_WIDTH);
        if (c->experts_per_token > c->experts)
            json_fail(r, KAKEYA_FORMAT, "top_k_experts is %d, but there are %d experts", c->experts_per_token,
                      c->experts);
        if ((long long)c->experts * 2 * c->expert_intermediate > INT_MAX || (long long)c->experts * c->hidden > INT_MAX)
            json_fail(r, KAKEYA_FORMAT, "%d experts of width %d are too large", c->experts, c->expert_intermediate);
    }

    const cJSON *ple = cJSON_GetObjectItemCaseSensitive(text, "hidden_size_per_layer_input");
    c->ple_width = json_int(r, text, "hidden_size_per_layer_input", 0, GEMMA4_MAX_WIDTH, ple ? 0 : 256);
    c->ple_vocab = json_int(r, text, "vocab_size_per_layer_input", 1, GEMMA4_MAX_VOCAB, 262144);
    if (!c->ple_width) c->ple_vocab = 0;
    if ((long long)c->ple_width * c->layers > INT_MAX / 4)
        json_fail(r, KAKEYA_FORMAT, "hidden_size_per_layer_input %d is too large for %d layers", c->ple_width,
                  c->layers);
}

/* Adds an integer or a list of integers to a set of at most `capacity`; without a set, only checks what is there. What
 * lies outside the vocabulary is never produced and is left out: small models keep the list of their large relatives.
 */
static void add_tokens(json_reader *r, const cJSON *object, const char *key, int vocab, int capacity, int *set,
                       int *n) {
    const cJSON *item = json_get(object, key);
    const cJSON *each = cJSON_IsArray(item) ? item->child : item;
    for (; each; each = cJSON_IsArray(item) ? each->next : NULL) {
        if (!json_is_integer(each, INT_MIN, INT_MAX)) {
            json_fail(r, KAKEYA_FORMAT, "%s is neither a token id nor a list of such", key);
            return;
        }
        if (!set || !json_is_integer(each, 0, vocab - 1)) continue;
        int token = (int)each->valuedouble, known = 0;
        for (int i = 0; i < *n; i++) known |= set[i] == token;
        if (known) continue;
        if (*n == capacity) {
            json_fail(r, KAKEYA_UNSUPPORTED, "%s: more than %d different tokens", key, capacity);
            return;
        }
        set[(*n)++] = token;
    }
}

/* The first place that names tokens of the vocabulary decides, as in generate() of transformers:
 * generation_config.json, then the whole model's keys, then the text model's. (There a generation_config.json without
 * stop tokens means that nothing stops; here the next place is asked.) */
static void read_stop_tokens(json_reader *r, const cJSON *top, const cJSON *text, json_reader *generation_reader,
                             const cJSON *generation, gemma4_config *c) {
    json_reader *readers[] = {generation_reader, r, r};
    const cJSON *places[] = {generation, top, text};
    for (int i = 0; i < 3; i++)
        add_tokens(readers[i], places[i], "eos_token_id", c->vocab, GEMMA4_MAX_STOP_TOKENS,
                   c->n_stop_tokens ? NULL : c->stop_tokens, &c->n_stop_tokens);
    if (c->n_stop_tokens == 0) c->stop_tokens[c->n_stop_tokens++] = 1;
}

/* Nothing is padded here, so every way of saying "none" will do: null, -1, an id outside the vocabulary. */
static int read_pad_token(json_reader *r, const cJSON *text, int vocab) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(text, "pad_token_id");
    if (!item) return 0;
    if (!cJSON_IsNull(item) && !json_is_integer(item, INT_MIN, INT_MAX))
        json_fail(r, KAKEYA_FORMAT, "pad_token_id is neither a token id nor null");
    return json_is_integer(item, 0, vocab - 1) ? (int)item->valuedouble : -1;
}

static void read_tokens(json_reader *r, const cJSON *top, const cJSON *text, json_reader *generation_reader,
                        const cJSON *generation, gemma4_config *c) {
    c->bos_token = json_int(r, text, "bos_token_id", -1, c->vocab - 1, 2);
    c->pad_token = read_pad_token(r, text, c->vocab);
    if (r->status != KAKEYA_OK) return;
    read_stop_tokens(r, top, text, generation_reader, generation, c);
    add_tokens(generation_reader, generation, "suppress_tokens", c->vocab, GEMMA4_MAX_SUPPRESS_TOKENS,
               c->suppress_tokens, &c->n_suppress_tokens);
    if (c->n_suppress_tokens == c->vocab)
        json_fail(generation_reader, KAKEYA_FORMAT, "suppress_tokens leaves none of the %d tokens", c->vocab);
}

static weight_format read_format(json_reader *r, const cJSON *top, const cJSON *text) {
    static const char *const keys[] = {"dtype", "torch_dtype"};
    const char *name = NULL;
    for (int k = 0; k < 2 && !name; k++) {
        name = json_string(r, text, keys[k], NULL);
        if (!name) name = json_string(r, top, keys[k], NULL);
    }
    if (!name) return WEIGHT_FORMAT_COUNT;
    if (strncmp(name, "torch.", 6) == 0) name += 6;
    if (strcmp(name, "float32") == 0) return WEIGHT_F32;
    if (strcmp(name, "float16") == 0) return WEIGHT_F16;
    if (strcmp(name, "bfloat16") == 0) return WEIGHT_BF16;
    json_fail(r, KAKEYA_UNSUPPORTED, "dtype \"%s\" is not supported (float32, float16, bfloat16)", name);
    return WEIGHT_FORMAT_COUNT;
}

static void read_config(json_reader *r, const cJSON *top, json_reader *generation_reader, const cJSON *generation,
                        gemma4_config *c) {
    const cJSON *text = json_object(r, top, "text_config");
    if (!text) text = top;
    check_architecture(r, top, text);
    check_fixed_choices(r, text);

    c->layers = json_int(r, text, "num_hidden_layers", 1, GEMMA4_MAX_LAYERS, 30);
    c->hidden = json_int(r, text, "hidden_size", 1, GEMMA4_MAX_WIDTH, 2304);
    c->vocab = json_int(r, text, "vocab_size", 1, GEMMA4_MAX_VOCAB, 262144);
    c->max_context = json_int(r, text, "max_position_embeddings", 1, GEMMA4_MAX_CONTEXT, 131072);
    c->sliding_window = json_int(r, text, "sliding_window", 1, GEMMA4_MAX_CONTEXT, 512);
    c->rms_eps = (float)json_number(r, text, "rms_norm_eps", 0, 1, 1e-6);
    c->logit_softcap = (float)json_number(r, text, "final_logit_softcapping", 0, 1e6, 0);
    c->tied_head = json_bool(r, top, "tie_word_embeddings", true); /* the one in a nested text_config has no say */
    c->checkpoint_format = read_format(r, top, text);
    if (r->status != KAKEYA_OK) return; /* the layer count is not to be trusted */

    read_layer_types(r, text, c);
    read_attention(r, text, c);
    gemma4_read_rope(r, text, c);
    read_mlp(r, text, c);
    read_tokens(r, top, text, generation_reader, generation, c);
}

kakeya_status gemma4_config_parse(const char *name, const char *json, size_t json_bytes, const char *generation_json,
                                  size_t generation_bytes, gemma4_config *out, kakeya_error *error) {
    memset(out, 0, sizeof *out);
    cJSON *top = NULL, *generation = NULL;
    kakeya_status status = json_parse_object(name, json, json_bytes, &top, error);
    if (status == KAKEYA_OK && generation_json)
        status = json_parse_object("generation_config.json", generation_json, generation_bytes, &generation, error);
    if (status == KAKEYA_OK) status = json_refuse_repeated_keys(name, top, error);
    if (status == KAKEYA_OK) status = json_refuse_repeated_keys("generation_config.json", generation, error);
    if (status == KAKEYA_OK) {
        json_reader reader = {.name = name, .error = error};
        json_reader generation_reader = {.name = "generation_config.json", .error = error};
        read_config(&reader, top, &generation_reader, generation, out);
        status = reader.status != KAKEYA_OK ? reader.status : generation_reader.status;
    }
    cJSON_Delete(top);
    cJSON_Delete(generation);
    if (status == KAKEYA_OK) gemma4_name_variant(out);
    return status;
}
