/* POST /tokenize, /detokenize and /apply-template, GET /tokenizer_info, in the dialects of llama.cpp and vLLM. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "serve/openai_chat.h"
#include "serve/openai_request.h"
#include "serve/routes.h"
#include "text/utf8.h"

static const kakeya_tokenizer *tokenizer_of(const call *c) { return kakeya_engine_tokenizer(c->server->engine); }

static void write_piece(text_buffer *out, const kakeya_tokenizer *t, int32_t token) {
    text_buffer bytes = {0};
    openai_token_bytes(&bytes, t, token);
    const char *data = bytes.data ? bytes.data : "";
    if (utf8_valid_bytes(data, bytes.n) == bytes.n) {
        text_json(out, data, bytes.n);
    } else {
        text_add(out, "[");
        for (size_t i = 0; i < bytes.n; i++) text_format(out, "%s%u", i ? "," : "", (unsigned char)data[i]);
        text_add(out, "]");
    }
    out->failed |= bytes.failed;
    text_free(&bytes);
}

/* The ids of content, prompt, text or messages. */
static bool read_ids(call *c, fields *f, int32_t **ids, size_t *n) {
    bool special = fields_bool(f, "parse_special", true);
    bool add = fields_bool(f, "add_special", false), add_both = fields_bool(f, "add_special_tokens", true);
    const char *content = fields_string(f, "content", NULL), *text = fields_string(f, "prompt", NULL);
    if (!text) text = fields_string(f, "text", NULL);
    fields_get(f, "model");
    kakeya_error why = {0};
    if (fields_get(f, "messages")) {
        chat_shape shape = {0};
        answer_options rendered = {0};
        openai_read_chat(c, f, &shape, NULL);
        bool good = f->error->status == 0 && openai_render_chat(c, &shape, &rendered, f->error);
        if (good) {
            *ids = rendered.ids;
            *n = rendered.n_ids;
            rendered.ids = NULL;
        }
        answer_options_free(&rendered);
        return good;
    }
    if (f->error->status) return false;
    if (!content && !text)
        return api_fail(f->error, 400, "missing_required_parameter", "content",
                        "content, prompt, text and messages are missing");
    bool with_bos = content ? add : add_both;
    const char *source = content ? content : text;
    int how = (special ? KAKEYA_TEXT_PARSE_SPECIAL : 0) | (with_bos ? KAKEYA_TEXT_ADD_SPECIAL : 0);
    if (special && with_bos) how = KAKEYA_TEXT_PROMPT; /* as completions read it */
    if (openai_tokenize(c, source, how, 0, ids, n, &why) == KAKEYA_OK) return true;
    return api_fail_library(f->error, "invalid_value", "content", &why);
}

void tokenize_call(call *c) {
    api_error error = {0};
    int32_t *ids = NULL;
    size_t n = 0;
    fields f;
    bool pieces = false, strings = false, read = call_body(c, &error);
    if (read) {
        fields_begin(&f, c->body, "", &error);
        pieces = fields_bool(&f, "with_pieces", false);
        strings = fields_bool(&f, "return_token_strs", false);
        read = read_ids(c, &f, &ids, &n);
        fields_end(&f, c->server->settings->strict, &c->ignored);
    }
    if (!read || error.status) {
        kakeya_free(ids);
        call_fail(c, &error);
        return;
    }
    text_buffer body = {0};
    text_add(&body, "{\"tokens\":[");
    for (size_t i = 0; i < n; i++) {
        text_format(&body, pieces ? "%s{\"id\":%d,\"piece\":" : "%s%d", i ? "," : "", ids[i]);
        if (!pieces) continue;
        write_piece(&body, tokenizer_of(c), ids[i]);
        text_add(&body, "}");
    }
    text_format(&body, "],\"count\":%zu,\"max_model_len\":%d", n, c->server->context);
    for (size_t i = 0; strings && i < n; i++) {
        text_add(&body, i ? "," : ",\"token_strs\":[");
        text_json_string(&body, kakeya_tokenizer_piece(tokenizer_of(c), ids[i]));
    }
    text_add(&body, strings ? n ? "]}" : ",\"token_strs\":[]}" : "}");
    kakeya_free(ids);
    call_reply_json(c, &body);
}

/* What clients need that make ids by /tokenize, as vLLM tells it; lm-eval does. */
void tokenizer_info_call(call *c) {
    static const char *const names[][2] = {
        {"bos_token", "<bos>"}, {"eos_token", "<eos>"}, {"pad_token", "<pad>"}, {"unk_token", "<unk>"}};
    const kakeya_tokenizer *t = tokenizer_of(c);
    const char *template = c->server->model.chat_template;
    text_buffer body = {0};
    text_add(&body, "{\"chat_template\":");
    text_json_string(&body, template && template[0] ? template : NULL);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        text_format(&body, ",\"%s\":", names[i][0]);
        text_json_string(&body, t && kakeya_tokenizer_find(t, names[i][1]) >= 0 ? names[i][1] : NULL);
    }
    text_add(&body, "}");
    call_reply_json(c, &body);
}

void detokenize_call(call *c) {
    api_error error = {0};
    fields f;
    int32_t *ids = NULL;
    size_t n = 0, bytes = 0;
    char *shown = NULL;
    bool read = call_body(c, &error);
    if (read) {
        fields_begin(&f, c->body, "", &error);
        fields_get(&f, "model");
        const cJSON *list = fields_array(&f, "tokens"), *item;
        int vocab = kakeya_engine_vocab_size(c->server->engine);
        if (!list) api_fail(&error, 400, "missing_required_parameter", "tokens", "tokens is missing");
        ids = malloc(((size_t)cJSON_GetArraySize(list) + 1) * sizeof *ids);
        if (!ids) api_out_of_memory(&error);
        for (item = list && ids ? list->child : NULL; item; item = item->next) {
            double value = cJSON_IsNumber(item) ? item->valuedouble : -1;
            if (!(value >= 0 && value < vocab && value == floor(value)))
                fields_wrong_value(&f, "tokens", item, "a token id");
            ids[n++] = value >= 0 && value < vocab ? (int32_t)value : 0;
        }
        fields_end(&f, c->server->settings->strict, &c->ignored);
        kakeya_error why = {0};
        if (!error.status && kakeya_detokenize(tokenizer_of(c), ids, n, true, &shown, &bytes, &why) != KAKEYA_OK)
            api_fail_library(&error, "invalid_value", "tokens", &why);
    }
    free(ids);
    if (error.status) {
        call_fail(c, &error);
        return;
    }
    text_buffer body = {0};
    static const char *const names[] = {"{\"content\":", ",\"prompt\":", ",\"text\":"};
    for (size_t i = 0; i < 3; i++) {
        text_add(&body, names[i]);
        text_json(&body, shown, bytes);
    }
    text_add(&body, "}");
    kakeya_free(shown);
    call_reply_json(c, &body);
}

void apply_template_call(call *c) {
    api_error error = {0};
    answer_options rendered = {0};
    chat_shape shape = {0};
    fields f;
    char *shown = NULL;
    size_t bytes = 0;
    if (call_body(c, &error)) {
        fields_begin(&f, c->body, "", &error);
        fields_get(&f, "model");
        openai_read_chat(c, &f, &shape, NULL);
        fields_end(&f, c->server->settings->strict, &c->ignored);
        kakeya_error why = {0};
        if (!error.status && openai_render_chat(c, &shape, &rendered, &error) &&
            kakeya_detokenize(tokenizer_of(c), rendered.ids, rendered.n_ids, true, &shown, &bytes, &why) != KAKEYA_OK)
            api_fail_library(&error, NULL, NULL, &why);
    }
    size_t count = rendered.n_ids;
    answer_options_free(&rendered);
    if (error.status) {
        call_fail(c, &error);
        return;
    }
    text_buffer body = {0};
    text_add(&body, "{\"prompt\":");
    text_json(&body, shown, bytes);
    text_format(&body, ",\"tokens_count\":%zu}", count);
    kakeya_free(shown);
    call_reply_json(c, &body);
}
