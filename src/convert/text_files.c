#include "convert/text_files.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "convert/vocabulary.h"
#include "formats/gguf.h"
#include "formats/gguf_keys.h"
#include "model/gemma4_facts.h"
#include "text/tokenizer_gguf.h"

static kakeya_status no_memory(const language_model *m, const char *name, kakeya_error *error) {
    return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for a %s", gguf_path(m->file), name);
}

/* What is nearest to the decimal number that was meant: 1e-6, not 9.99999997475e-7. */
static double shortest(float value) {
    for (int digits = 1; digits < 9; digits++) {
        char text[32];
        snprintf(text, sizeof text, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value) return strtod(text, NULL);
    }
    return (double)value;
}

static void put_tokens(cJSON *to, const model_config *c) {
    cJSON_AddItemToObject(to, "eos_token_id", cJSON_CreateIntArray(c->stop_tokens, c->n_stop_tokens));
    if (c->bos_token >= 0) cJSON_AddNumberToObject(to, gemma4_facts[FACT_BOS].json, c->bos_token);
    if (c->pad_token >= 0) cJSON_AddNumberToObject(to, gemma4_facts[FACT_PAD].json, c->pad_token);
}

static void put_attention(cJSON *to, const model_config *c) {
    const rope_config *full = &c->rope[LAYER_FULL];
    double width = 1 / ((double)c->query_scale * (double)c->query_scale);
    if (fabs(width - round(width)) < 1e-4 * width) width = round(width);
    cJSON_AddNumberToObject(to, "query_pre_attn_scalar", width);
    cJSON_AddNumberToObject(to, "rope_theta", shortest(full->theta));
    cJSON_AddNumberToObject(to, "rope_local_base_freq", shortest(c->rope[LAYER_SLIDING].theta));
    if (full->factor != 1) {
        cJSON *scaling = cJSON_AddObjectToObject(to, "rope_scaling");
        cJSON_AddStringToObject(scaling, "rope_type", "linear");
        cJSON_AddNumberToObject(scaling, "factor", shortest(full->factor));
    } else {
        cJSON_AddNullToObject(to, "rope_scaling");
    }
    cJSON *types = cJSON_AddArrayToObject(to, "layer_types");
    for (int i = 0; i < c->layers; i++)
        cJSON_AddItemToArray(
            types, cJSON_CreateString(c->layer[i].type == LAYER_FULL ? "full_attention" : "sliding_attention"));
    cJSON_AddFalseToObject(to, "attention_bias");
    cJSON_AddNullToObject(to, "attn_logit_softcapping");
}

kakeya_status configuration_of_gguf(const language_model *model, cJSON **out, kakeya_error *error) {
    const model_config *c = &model->config;
    if (c->generation != GEMMA_3)
        return error_set(error, KAKEYA_UNSUPPORTED,
                         "%s: a directory of a Gemma 4 is made from a directory, whose config.json it keeps; a GGUF "
                         "file has none",
                         gguf_path(model->file));
    const struct {
        gemma4_fact_id id;
        double value;
    } facts[] = {
        {FACT_VOCAB, c->vocab},
        {FACT_HIDDEN, c->hidden},
        {FACT_INTERMEDIATE, c->layer[0].intermediate},
        {FACT_LAYERS, c->layers},
        {FACT_HEADS, c->heads},
        {FACT_KV_HEADS, c->layer[0].kv_heads},
        {FACT_HEAD_DIM, c->layer[0].head_dim},
        {FACT_CONTEXT, c->max_context},
        {FACT_EPS, shortest(c->rms_eps)},
        {FACT_WINDOW, c->sliding_window > 0 ? c->sliding_window : c->max_context}, /* of no layer */
    };
    for (int i = 1; i < c->layers; i++) {
        if (c->layer[i].intermediate != c->layer[0].intermediate || c->layer[i].kv_heads != c->layer[0].kv_heads)
            return error_set(error, KAKEYA_UNSUPPORTED,
                             "%s: layer %d has other sizes than the first, which a config.json of Gemma 3 cannot "
                             "express",
                             gguf_path(model->file), i);
    }
    cJSON *to = cJSON_CreateObject();
    if (!to) return no_memory(model, "config.json", error);
    cJSON *list = cJSON_AddArrayToObject(to, "architectures");
    cJSON_AddItemToArray(list, cJSON_CreateString("Gemma3ForCausalLM"));
    cJSON_AddStringToObject(to, "model_type", "gemma3_text");
    for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++)
        cJSON_AddNumberToObject(to, gemma4_facts[facts[i].id].json, facts[i].value);
    cJSON_AddStringToObject(to, "hidden_activation", "gelu_pytorch_tanh");
    put_attention(to, c);
    if (c->logit_softcap > 0)
        cJSON_AddNumberToObject(to, gemma4_facts[FACT_SOFTCAP].json, shortest(c->logit_softcap));
    else
        cJSON_AddNullToObject(to, gemma4_facts[FACT_SOFTCAP].json);
    cJSON_AddBoolToObject(to, "tie_word_embeddings", c->tied_head);
    put_tokens(to, c);
    *out = to;
    return KAKEYA_OK;
}

/* generation_config.json and tokenizer_config.json. */
static cJSON *small_file(const language_model *m, const tokenizer *t, const char *name) {
    const model_config *c = &m->config;
    cJSON *to = cJSON_CreateObject();
    if (strcmp(name, "generation_config.json") == 0) {
        put_tokens(to, c);
        if (c->n_suppress_tokens)
            cJSON_AddItemToObject(to, "suppress_tokens",
                                  cJSON_CreateIntArray(c->suppress_tokens, c->n_suppress_tokens));
        return to;
    }
    const struct {
        const char *key;
        int32_t id;
    } named[] = {{"bos_token", c->bos_token},
                 {"eos_token", c->n_stop_tokens ? c->stop_tokens[0] : -1},
                 {"pad_token", c->pad_token},
                 {"unk_token", tokenizer_id(t, "<unk>")}};
    cJSON_AddStringToObject(to, "tokenizer_class", "PreTrainedTokenizerFast");
    for (size_t i = 0; i < sizeof named / sizeof named[0]; i++) {
        const char *piece = tokenizer_piece(t, named[i].id, NULL);
        if (piece) cJSON_AddStringToObject(to, named[i].key, piece);
    }
    cJSON_AddFalseToObject(to, "clean_up_tokenization_spaces");
    return to;
}

static kakeya_status print(const language_model *m, const char *name, cJSON *json, char **out, size_t *bytes,
                           kakeya_error *error) {
    char *text = json ? cJSON_Print(json) : NULL;
    cJSON_Delete(json);
    *out = text ? strdup(text) : NULL;
    cJSON_free(text);
    if (!*out) return no_memory(m, name, error);
    *bytes = strlen(*out);
    return KAKEYA_OK;
}

static kakeya_status template_of(const language_model *m, char **out, size_t *bytes, kakeya_error *error) {
    gguf_keys keys = {.file = m->file, .error = error};
    gguf_text text = {0};
    if (!gguf_keys_text(&keys, "tokenizer.chat_template", &text)) return keys.status;
    *out = strndup(text.data, text.bytes);
    *bytes = text.bytes;
    return *out ? KAKEYA_OK : no_memory(m, "chat_template.jinja", error);
}

kakeya_status text_file_of_gguf(const language_model *model, const char *name, char **out, size_t *bytes,
                                kakeya_error *error) {
    *out = NULL;
    const bool generation = strcmp(name, "generation_config.json") == 0;
    const bool vocabulary = strcmp(name, "tokenizer.json") == 0;
    if (strcmp(name, "chat_template.jinja") == 0) return template_of(model, out, bytes, error);
    if (!generation && !vocabulary && strcmp(name, "tokenizer_config.json") != 0) return KAKEYA_OK;
    tokenizer *t = NULL;
    kakeya_status status = generation ? KAKEYA_OK : tokenizer_open_gguf(model->file, &t, error);
    if (status == KAKEYA_OK && vocabulary && t)
        status = vocabulary_json(t, gguf_path(model->file), out, bytes, error);
    else if (status == KAKEYA_OK && !vocabulary && (generation || t))
        status = print(model, name, small_file(model, t, name), out, bytes, error);
    tokenizer_close(t);
    return status;
}
