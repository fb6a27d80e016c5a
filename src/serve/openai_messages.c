/* The fields of a chat request that decide about the prompt: messages, tools, thinking, formats. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_text.h"
#include "serve/custom_tools.h"
#include "serve/images.h"
#include "serve/media.h"
#include "serve/openai_chat.h"
#include "serve/openai_grammar.h"

enum { MAX_MESSAGES = 10000, MAX_TOOLS = 512, MAX_NAME = 128 };

bool openai_is_tool_name(const cJSON *item) {
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
    if (!cJSON_IsString(item)) return false;
    size_t bytes = strlen(item->valuestring);
    return bytes > 0 && bytes <= MAX_NAME && strspn(item->valuestring, allowed) == bytes;
}

/* What of the history the model does not see, as text/chat_request.h says. */
static void note_left_out(call *c, const cJSON *message, int index) {
    static const char *const texts[] = {"text", "input_text", "output_text", "refusal", NULL};
    static const char *const reasoning[] = {"reasoning", "reasoning_content", NULL};
    const char *role = body_string(message, "role");
    const cJSON *part;
    int i = 0;
    if (!role || strcmp(role, "user") == 0) return;
    for (const char *const *name = reasoning; *name; name++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(message, *name);
        if (item && !cJSON_IsNull(item) && !cJSON_IsString(item))
            ignored_add(&c->ignored, "messages[%d].%s", index, *name);
    }
    cJSON_ArrayForEach(part, cJSON_GetObjectItemCaseSensitive(message, "content")) {
        const char *type = body_string(part, "type");
        size_t k = 0;
        while (type && texts[k] && strcmp(type, texts[k]) != 0) k++;
        if (type && !texts[k] && !media_is_taken(part))
            ignored_add(&c->ignored, "messages[%d].content[%d](%.64s)", index, i, type);
        i++;
    }
}

static void read_messages(call *c, fields *f) {
    const cJSON *messages = fields_array(f, "messages"), *message;
    int n = cJSON_GetArraySize(messages), i = 0;
    if (!messages) {
        api_fail(f->error, 400, "missing_required_parameter", "messages", "messages is missing");
        return;
    }
    if (n < 1 || n > MAX_MESSAGES) {
        api_fail(f->error, 400, "invalid_value", "messages", "messages: %d messages, but 1 to %d are allowed", n,
                 MAX_MESSAGES);
        return;
    }
    cJSON_ArrayForEach(message, messages) {
        const char *role = body_string(message, "role");
        char param[64];
        note_left_out(c, message, i);
        snprintf(param, sizeof param, "messages[%d].role", i++);
        if (role && strcmp(role, "function") == 0)
            api_fail(f->error, 400, "unsupported_value", param, "%s: function messages are not supported; use tool",
                     param);
    }
}

static const cJSON *read_tools(fields *f) {
    const cJSON *tools = fields_array(f, "tools"), *tool;
    int i = 0;
    if (cJSON_GetArraySize(tools) > MAX_TOOLS)
        api_fail(f->error, 400, "invalid_value", "tools", "tools: more than %d", MAX_TOOLS);
    cJSON_ArrayForEach(tool, tools) {
        char param[80];
        const cJSON *type = cJSON_GetObjectItemCaseSensitive(tool, "type");
        const cJSON *function = cJSON_GetObjectItemCaseSensitive(tool, "function");
        const cJSON *parameters = cJSON_GetObjectItemCaseSensitive(function, "parameters");
        const cJSON *description = cJSON_GetObjectItemCaseSensitive(function, "description");
        snprintf(param, sizeof param, "tools[%d]", i++);
        if (!cJSON_IsString(type) || strcmp(type->valuestring, "function") != 0 || !cJSON_IsObject(function)) {
            api_fail(f->error, 400, "unsupported_value", param,
                     "%s: only tools of type function and custom are supported", param);
        } else if (!openai_is_tool_name(cJSON_GetObjectItemCaseSensitive(function, "name"))) {
            api_fail(f->error, 400, "invalid_value", param,
                     "%s.function.name is not a name of 1 to 128 letters, digits, '_', '-' and '.'", param);
        } else if (description && !cJSON_IsNull(description) && !cJSON_IsString(description)) {
            char place[112];
            snprintf(place, sizeof place, "%s.function.description", param);
            api_fail(f->error, 400, "invalid_type", place, "%s is not a string", place);
        } else if (parameters && !cJSON_IsNull(parameters) && !cJSON_IsObject(parameters)) {
            api_fail(f->error, 400, "invalid_type", param, "%s.function.parameters is not an object", param);
        }
    }
    return cJSON_GetArraySize(tools) ? tools : NULL;
}

/* Whether the request asks for reasoning: 1, asks for none: 0, says nothing: -1. */
static int read_thinking(fields *f, chat_shape *shape) {
    static const char *const efforts[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max", NULL};
    int asked = -1;
    const char *effort = fields_string(f, "reasoning_effort", NULL);
    if (effort) {
        size_t i = 0;
        while (efforts[i] && strcmp(efforts[i], effort) != 0) i++;
        if (!efforts[i])
            fields_wrong_value(f, "reasoning_effort", fields_get(f, "reasoning_effort"),
                               "none, minimal, low, medium, high, xhigh or max");
        asked = i >= 2;
    }
    const cJSON *thinking = fields_get(f, "thinking");
    if (cJSON_IsObject(thinking)) {
        const cJSON *type = cJSON_GetObjectItemCaseSensitive(thinking, "type");
        if (cJSON_IsString(type)) asked = strcmp(type->valuestring, "disabled") != 0;
    } else if (thinking) {
        fields_wrong_type(f, "thinking", thinking, "an object");
    }
    if (fields_get(f, "think")) asked = fields_bool(f, "think", false);
    fields inner;
    fields_begin(&inner, fields_object(f, "chat_template_kwargs"), "chat_template_kwargs.", f->error);
    if (fields_get(&inner, "enable_thinking")) asked = fields_bool(&inner, "enable_thinking", false);
    shape->preserve_thinking = fields_bool(&inner, "preserve_thinking", false);
    return asked;
}

/* The answer goes on in the middle of a text: there is no place for a thought, nor for the beginning of a value. */
static void read_continuation(fields *f, chat_shape *shape, bool thinks, bool forced) {
    static const char name[] = "continue_final_message";
    shape->continues = fields_bool(f, name, false);
    if (!shape->continues) return;
    if (fields_get(f, "add_generation_prompt") && !shape->without_turn)
        api_fail(f->error, 400, "invalid_value", name, "%s and add_generation_prompt exclude each other", name);
    if (thinks) api_fail(f->error, 400, "invalid_value", name, "%s leaves no place for a thought", name);
    if (forced)
        api_fail(f->error, 400, "invalid_value", name, "%s: an answer that is continued cannot follow a format", name);
}

/* What the last message has begun to say; out->begun. */
static bool read_begun(const cJSON *messages, answer_options *out, api_error *error) {
    int n = cJSON_GetArraySize(messages);
    const cJSON *content = cJSON_GetObjectItemCaseSensitive(cJSON_GetArrayItem(messages, n - 1), "content"), *part;
    text_buffer text = {0};
    text_add(&text, cJSON_IsString(content) ? content->valuestring : "");
    cJSON_ArrayForEach(part, content) {
        const cJSON *piece = cJSON_GetObjectItemCaseSensitive(part, "text");
        if (cJSON_IsString(piece)) text_add(&text, piece->valuestring);
    }
    if (text.failed) return api_out_of_memory(error);
    free(out->begun);
    out->begun = text.data;
    out->n_messages = (size_t)n - 1;
    return true;
}

static bool holds_media(const cJSON *messages) {
    const cJSON *message, *part;
    cJSON_ArrayForEach(message, messages) {
        cJSON_ArrayForEach(part, cJSON_GetObjectItemCaseSensitive(message, "content")) {
            if (media_is_part(part)) return true;
        }
    }
    return false;
}

static const char *request_text(call *c, const chat_shape *shape, size_t *bytes) {
    if (!shape->request) return http_body(c->exchange, bytes);
    *bytes = shape->request_bytes;
    return shape->request;
}

/* Pictures and sounds of a request in this very form. Its text without them becomes the request. */
static bool take_media(call *c, fields *f, chat_shape *shape) {
    static const char *const exact[] = {"tools", "messages", NULL}; /* numbers that a double would change */
    size_t n, found;
    const char *body = http_body(c->exchange, &n);
    cJSON *messages = cJSON_GetObjectItemCaseSensitive(f->object, "messages");
    if (f->object != c->body) return true;
    images_read_budget(c, f);
    if (!holds_media(messages)) return true;
    if (!c->rewritten && !body_keep_numbers(c->body, body, n, exact)) return api_out_of_memory(f->error);
    if (!media_take(c, messages, false, &found, f->error)) return false;
    if (!found && !c->rewritten) return true;
    cJSON_free(c->rewritten);
    c->rewritten = json_text_print(c->body);
    if (!c->rewritten) return api_out_of_memory(f->error);
    shape->request = c->rewritten;
    shape->request_bytes = strlen(c->rewritten);
    return call_hold(c, shape->request_bytes, f->error);
}

void openai_read_chat(call *c, fields *f, chat_shape *shape, answer_options *out) {
    shape->object = f->object;
    if (!shape->request && !custom_tools_rewrite(c, &shape->request, &shape->request_bytes, f->error)) return;
    if (!take_media(c, f, shape)) return;
    read_messages(c, f);
    const cJSON *tools = read_tools(f);
    answer_form form = {0};
    openai_read_tool_choice(f, tools, &form);
    int asked = read_thinking(f, shape);
    openai_read_format(f, &form);
    bool forced = openai_is_forced(&form);
    shape->without_turn = !fields_bool(f, "add_generation_prompt", true);
    read_continuation(f, shape, asked == 1, forced);
    shape->thinking = asked >= 0 ? asked : c->server->settings->thinking && !forced && !shape->continues;
    bool show = fields_bool(f, "include_reasoning", true);
    shape->hide_reasoning = !shape->thinking || !show;
    bool parallel = fields_bool(f, "parallel_tool_calls", true);
    int64_t other_budget = fields_count(f, "thinking_budget_tokens", -1, 1 << 30, -1);
    int64_t budget = fields_count(f, "thinking_token_budget", -1, 1 << 30, other_budget);
    if (out) {
        out->thinking_budget = budget;
        out->max_calls = parallel ? (size_t)c->server->settings->max_tool_calls : 1;
        out->hide_reasoning = shape->hide_reasoning;
        if (tools) out->tools = request_text(c, shape, &out->tools_bytes);
    }
    openai_compile_form(c, f, &form, tools != NULL, shape->thinking, out);
}

bool openai_render_chat(call *c, const chat_shape *shape, answer_options *out, api_error *error) {
    kakeya_chat_options how;
    KAKEYA_INIT(&how);
    how.thinking = shape->thinking;
    how.preserve_thinking = shape->preserve_thinking;
    how.without_turn = shape->without_turn;
    how.continue_last = shape->continues;
    how.most_tokens = shape->is_question ? answer_most_tokens(c->server) : 0;
    size_t bytes;
    const char *body = request_text(c, shape, &bytes);
    kakeya_error why = {0};
    kakeya_chat_run *runs = NULL;
    turn_memory *turns = c->server->turns;
    const cJSON *messages = cJSON_GetObjectItemCaseSensitive(shape->object, "messages");
    media_lengths lengths;
    if (!media_of_prompt(c, messages, out, &lengths, error)) return false;
    how.image_tokens = lengths.n_images ? lengths.images : NULL;
    how.n_images = lengths.n_images;
    how.sound_tokens = lengths.n_sounds ? lengths.sounds : NULL;
    how.n_sounds = lengths.n_sounds;
    if (turns) {
        store_read_notes(c->server->store);
        turn_memory_find(turns, messages, &runs, &how.n_runs);
        how.runs = runs;
        out->messages = messages;
        out->n_messages = (size_t)cJSON_GetArraySize(messages);
        if (shape->continues && !read_begun(messages, out, error)) {
            kakeya_free(runs);
            media_lengths_free(&lengths);
            return false;
        }
    }
    kakeya_status status = kakeya_chat_tokens(kakeya_engine_tokenizer(c->server->engine), body, bytes, &how, &out->ids,
                                              &out->n_ids, &out->n_stable, &why);
    kakeya_free(runs);
    media_lengths_free(&lengths);
    if (status == KAKEYA_OK) return media_key_prompt(c, out, error);
    if (why.status == KAKEYA_CONTEXT_FULL) return answer_is_too_long(c->server, out->n_ids, "messages", error);
    /* The library names the place in front of its message. */
    char param[96] = "";
    const char *place = strstr(why.message, "messages[");
    size_t length = place ? strspn(place, "abcdefghijklmnopqrstuvwxyz_[].0123456789") : 0;
    if (length > 0 && length < sizeof param) snprintf(param, sizeof param, "%.*s", (int)length, place);
    const char *code = why.status == KAKEYA_UNSUPPORTED ? "unsupported_content" : "invalid_prompt";
    return api_fail_library(error, code, param[0] ? param : "messages", &why);
}
