/* config.json and generation_config.json of Gemma 4 and of the text models of Gemma 3. Two dialects of each: of Gemma 4
 * the published one (global_head_dim, num_global_key_value_heads) and the re-saved one (per_layer_config); text fields
 * at the top or in text_config. Keys whose value is the configuration class's default are often left out of a nested
 * text_config, so those defaults apply here. */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/gemma4_facts.h"
#include "model/gemma4_layers.h"
#include "model/gemma4_rope.h"

static bool is_one_of(const char *text, const char *const *names, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (strcmp(text, names[i]) == 0) return true;
    }
    return false;
}

static bool starts_with(const char *text, const char *start) {
    return text && strncmp(text, start, strlen(start)) == 0;
}

/* Which of the two it is; a name that is neither's is refused. */
static void check_architecture(json_reader *r, const cJSON *top, const cJSON *text, model_config *c) {
    static const char *const model_types[] = {"gemma4", "gemma4_unified", "gemma4_text", "gemma4_unified_text",
                                              "gemma3", "gemma3_text"};
    static const char *const architectures[] = {
        "Gemma4ForConditionalGeneration", "Gemma4UnifiedForConditionalGeneration", "Gemma4ForCausalLM",
        "Gemma4UnifiedForCausalLM",       "Gemma3ForConditionalGeneration",        "Gemma3ForCausalLM"};
    const char *model_type = json_string(r, top, "model_type", NULL);
    const cJSON *list = json_array(r, top, "architectures");
    const char *architecture = list && cJSON_IsString(list->child) ? list->child->valuestring : NULL;
    if (!model_type && !architecture)
        json_fail(r, KAKEYA_UNSUPPORTED,
                  "neither model_type nor architectures says that this is a Gemma 4 or Gemma 3 model");
    if (architecture && !is_one_of(architecture, architectures, 6))
        json_fail(r, KAKEYA_UNSUPPORTED,
                  "architecture \"%s\" is not supported (Gemma4ForConditionalGeneration, "
                  "Gemma4UnifiedForConditionalGeneration, Gemma4ForCausalLM, Gemma3ForConditionalGeneration, "
                  "Gemma3ForCausalLM)",
                  architecture);
    if (model_type && !is_one_of(model_type, model_types, 6))
        json_fail(r, KAKEYA_UNSUPPORTED,
                  "model_type \"%s\" is not supported (gemma4, gemma4_unified, gemma4_text, gemma3, gemma3_text)",
                  model_type);
    bool gemma3 = starts_with(model_type ? model_type : architecture, model_type ? "gemma3" : "Gemma3");
    if (model_type && architecture && gemma3 != starts_with(architecture, "Gemma3"))
        json_fail(r, KAKEYA_FORMAT, "model_type is \"%s\", but the architecture is \"%s\"", model_type, architecture);
    c->generation = gemma3 ? GEMMA_3 : GEMMA_4;
    const char *text_type = text != top ? json_string(r, text, "model_type", NULL) : NULL;
    if (text_type && !(gemma3 ? strcmp(text_type, "gemma3_text") == 0 : is_one_of(text_type, model_types + 2, 2)))
        json_fail(r, KAKEYA_UNSUPPORTED, "text_config.model_type \"%s\" is not supported (%s)", text_type,
                  gemma3 ? "gemma3_text" : "gemma4_text");
    const char *weights = json_string(r, top, "transformers_weights", NULL);
    if (weights && strcmp(weights, "model.safetensors") != 0)
        json_fail(r, KAKEYA_UNSUPPORTED, "transformers_weights \"%s\" is not supported (model.safetensors)", weights);
}

/* Switches whose other settings no published text model uses. */
static void check_fixed_choices(json_reader *r, const cJSON *text) {
    static const char *const activations[] = {"hidden_activation", "hidden_act"}; /* the latter in some Gemma 3 */
    for (int i = 0; i < 2; i++) {
        const char *activation = json_string(r, text, activations[i], "gelu_pytorch_tanh");
        if (strcmp(activation, "gelu_pytorch_tanh") != 0)
            json_fail(r, KAKEYA_UNSUPPORTED, "%s \"%s\" is not supported (gelu_pytorch_tanh)", activations[i],
                      activation);
    }
    if (json_bool(r, text, "attention_bias", false))
        json_fail(r, KAKEYA_UNSUPPORTED, "attention_bias is not supported");
    if (json_number(r, text, "attn_logit_softcapping", 0, 1e6, 0) > 0)
        json_fail(r, KAKEYA_UNSUPPORTED, "attn_logit_softcapping is not supported");
    const cJSON *bidirectional = json_get(text, "use_bidirectional_attention");
    bool vision_only = cJSON_IsString(bidirectional) && strcmp(bidirectional->valuestring, "vision") == 0;
    if (bidirectional && !cJSON_IsFalse(bidirectional) && !vision_only)
        json_fail(r, KAKEYA_UNSUPPORTED, "use_bidirectional_attention: only null and \"vision\" are supported");
}

static void read_layer_types(json_reader *r, const cJSON *text, model_config *c) {
    const cJSON *types = json_array(r, text, "layer_types");
    bool gemma3 = c->generation == GEMMA_3;
    if (!types) { /* five sliding, one full */
        static const char *const keys[] = {"sliding_window_pattern", "_sliding_window_pattern"};
        int period = 6;
        for (int k = 0; gemma3 && k < 2; k++) period = json_int(r, text, keys[k], 1, INT_MAX, period);
        for (int i = 0; i < c->layers; i++) c->layer[i].type = (i + 1) % period == 0 ? LAYER_FULL : LAYER_SLIDING;
        if (!gemma3) c->layer[c->layers - 1].type = LAYER_FULL;
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
            c->layer[i].type = LAYER_SLIDING;
        else if (strcmp(name, "full_attention") == 0)
            c->layer[i].type = LAYER_FULL;
        else
            json_fail(r, KAKEYA_UNSUPPORTED, "layer_types[%d]: unknown layer type \"%s\"", i, name);
        i++;
    }
    if (!gemma3) c->layer[c->layers - 1].type = LAYER_FULL; /* whatever the list says, as the reference does */
}

static int override_of(json_reader *r, const cJSON *item, gemma4_fact_id id, int fallback) {
    const gemma4_fact *f = &gemma4_facts[id];
    return json_int(r, item, f->json, (int)f->min, (int)f->max, fallback);
}

/* {"05": {"head_dim": 512, "num_key_value_heads": 2}, ...} */
static void read_layer_overrides(json_reader *r, const cJSON *overrides, model_config *c) {
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
            if (strcmp(value->string, gemma4_facts[FACT_HEAD_DIM].json) != 0 &&
                strcmp(value->string, gemma4_facts[FACT_KV_HEADS].json) != 0)
                json_fail(r, KAKEYA_UNSUPPORTED,
                          "per_layer_config: layer %ld overrides \"%s\", only head_dim and "
                          "num_key_value_heads are supported",
                          index, value->string);
        }
        layer_config *l = &c->layer[index];
        l->head_dim = override_of(r, item, FACT_HEAD_DIM, l->head_dim);
        l->kv_heads = override_of(r, item, FACT_KV_HEADS, l->kv_heads);
    }
}

/* The layers' own K/V heads and head dimensions. */
static void read_attention(gemma4_reading *r, const cJSON *text) {
    model_config *c = r->config;
    int kv_heads = (int)r->value[FACT_KV_HEADS], full_kv_heads = (int)r->value[FACT_GLOBAL_KV_HEADS];
    int head_dim = (int)r->value[FACT_HEAD_DIM], full_head_dim = (int)r->value[FACT_GLOBAL_HEAD_DIM];
    const cJSON *overrides = json_object(r->json, text, "per_layer_config");
    bool k_eq_v = c->generation == GEMMA_4 && json_bool(r->json, text, "attention_k_eq_v", false);
    if (cJSON_GetObjectItemCaseSensitive(text, "per_layer_config")) { /* replaces the two, even where it is null */
        full_head_dim = head_dim;
        full_kv_heads = kv_heads;
    } else if (!full_kv_heads) {
        full_kv_heads = kv_heads;
    }
    for (int i = 0; i < c->layers; i++) {
        layer_config *l = &c->layer[i];
        bool full = l->type == LAYER_FULL;
        l->head_dim = full ? full_head_dim : head_dim;
        l->k_eq_v = full && k_eq_v;
        l->kv_heads = l->k_eq_v ? full_kv_heads : kv_heads;
    }
    read_layer_overrides(r->json, overrides, c);
}

/* Adds an integer or a list of integers to a set by `add`; without it, only checks what is there. */
static void add_tokens(json_reader *r, const cJSON *object, const char *key, model_config *c,
                       bool (*add)(model_config *c, double id), int capacity) {
    const cJSON *item = json_get(object, key);
    const cJSON *each = cJSON_IsArray(item) ? item->child : item;
    for (; each; each = cJSON_IsArray(item) ? each->next : NULL) {
        if (!json_is_integer(each, INT_MIN, UINT_MAX)) {
            json_fail(r, KAKEYA_FORMAT, "%s is neither a token id nor a list of such", key);
            return;
        }
        if (add && !add(c, each->valuedouble)) {
            json_fail(r, KAKEYA_UNSUPPORTED, "%s: more than %d different tokens", key, capacity);
            return;
        }
    }
}

/* The first place that names tokens of the vocabulary decides, as in generate() of transformers:
 * generation_config.json, then the whole model's keys, then the text model's. (There a generation_config.json without
 * stop tokens means that nothing stops; here the next place is asked.) */
static void read_stop_tokens(json_reader *r, const cJSON *top, const cJSON *text, json_reader *generation_reader,
                             const cJSON *generation, model_config *c) {
    json_reader *readers[] = {generation_reader, r, r};
    const cJSON *places[] = {generation, top, text};
    for (int i = 0; i < 3; i++)
        add_tokens(readers[i], places[i], "eos_token_id", c, c->n_stop_tokens ? NULL : gemma4_add_stop_token,
                   GEMMA4_NAMED_STOP_TOKENS);
    gemma4_settle_stop_tokens(c);
}

/* What stands in prompts for pictures, sounds and films is no token of an answer, whether they are read here or not. */
static void suppress_placeholders(const cJSON *top, model_config *c) {
    static const char *const keys[] = {"image_token_id", "audio_token_id", "video_token_id"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys && c->generation == GEMMA_4; i++) {
        const cJSON *id = json_get(top, keys[i]);
        if (json_is_integer(id, 0, c->vocab - 1)) (void)gemma4_add_suppressed_token(c, id->valuedouble);
    }
}

static void read_tokens(json_reader *r, const cJSON *top, const cJSON *text, json_reader *generation_reader,
                        const cJSON *generation, model_config *c) {
    read_stop_tokens(r, top, text, generation_reader, generation, c);
    add_tokens(generation_reader, generation, "suppress_tokens", c, gemma4_add_suppressed_token,
               MODEL_MAX_SUPPRESS_TOKENS);
    suppress_placeholders(top, c);
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

/* The configuration class of these has no per-layer inputs. */
static bool is_unified(const cJSON *top, const cJSON *text) {
    const cJSON *list = json_get(top, "architectures");
    return starts_with(cJSON_GetStringValue(json_get(top, "model_type")), "gemma4_unified") ||
           starts_with(cJSON_GetStringValue(json_get(text, "model_type")), "gemma4_unified") ||
           (cJSON_IsArray(list) && starts_with(cJSON_GetStringValue(list->child), "Gemma4Unified"));
}

static void read_config(json_reader *reader, const cJSON *top, json_reader *generation_reader, const cJSON *generation,
                        model_config *c) {
    gemma4_reading reading = {.json = reader, .config = c}, *r = &reading;
    const cJSON *text = json_object(reader, top, "text_config");
    if (!text) text = top;
    check_architecture(reader, top, text, c);
    check_fixed_choices(reader, text);
    gemma4_facts_read_json(r, text);
    if (is_unified(top, text) && !cJSON_GetObjectItemCaseSensitive(text, gemma4_facts[FACT_PLE].json))
        r->value[FACT_PLE] = 0;
    gemma4_settle_sizes(r);
    c->vocab = (int)r->value[FACT_VOCAB];
    c->ple_vocab = r->value[FACT_PLE] > 0 ? (int)r->value[FACT_PLE_VOCAB] : 0;
    c->tied_head = json_bool(reader, top, "tie_word_embeddings", true); /* the one in a nested text_config has no say */
    c->moe = json_bool(reader, text, "enable_moe_block", false);
    c->checkpoint_format = read_format(reader, top, text);
    if (reader->status != KAKEYA_OK) return; /* the layer count is not to be trusted */

    read_layer_types(reader, text, c);
    read_attention(r, text);
    if (c->generation == GEMMA_3)
        c->query_scale = (float)(1 / sqrt(json_number(reader, text, "query_pre_attn_scalar", 1e-3, 1e6, 256)));
    gemma4_settle_layers(r, NULL, json_bool(reader, text, "use_double_wide_mlp", false));
    gemma4_read_rope(reader, text, c);
    gemma4_settle_tokens(r);
    if (reader->status == KAKEYA_OK) read_tokens(reader, top, text, generation_reader, generation, c);
}

kakeya_status model_config_parse(const char *name, const char *json, size_t json_bytes, const char *generation_json,
                                 size_t generation_bytes, model_config *out, kakeya_error *error) {
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
