/* The fields of a chat request that decide about the prompt: messages, tools, thinking, formats. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_text.h"
#include "serve/custom_tools.h"
#include "serve/images.h"
#include "serve/media.h"
#include "serve/openai_chat.h"
#include "text/chat_request.h"

enum { MAX_MESSAGES = 10000, MAX_TOOLS = 512, MAX_NAME = 128 };

bool openai_is_tool_name(const cJSON *item) {
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
    if (!cJSON_IsString(item)) return false;
    size_t bytes = strlen(item->valuestring);
    return bytes > 0 && bytes <= MAX_NAME && strspn(item->valuestring, allowed) == bytes;
}

static void note_left_out(void *user, const char *place, const char *type) {
    call *c = user;
    if (type)
        ignored_add(&c->ignored, "%s(%.64s)", place, type);
    else
        ignored_add(&c->ignored, "%s", place);
}

/* What the library says of the conversation, which begins with the place. param: NULL, or the field that the place
 * becomes. */
static bool fail_conversation(const char *param, kakeya_error *why, size_t place_bytes, api_error *error) {
    char place[sizeof error->param];
    snprintf(place, sizeof place, "%.*s", (int)place_bytes, why->message);
    const char *code = why->status == KAKEYA_UNSUPPORTED ? "unsupported_content" : "invalid_prompt";
    if (!param || !place_bytes)
        return api_fail_library(error, code, place_bytes ? place : param ? param : "messages", why);
    kakeya_error here = {.status = why->status};
    snprintf(here.message, sizeof here.message, "%.64s%.900s", param, why->message + place_bytes);
    return api_fail_library(error, code, param, &here);
}

/* Parts that are pictures and sounds are to be read. */
static void name_media(chat_conversation *all) {
    for (size_t i = 0; i < all->n; i++) {
        for (size_t k = 0; k < all->messages[i].n_parts; k++) {
            kakeya_chat_part *part = chat_own_part(&all->messages[i], k);
            char place[80];
            if (part->type == KAKEYA_CHAT_TEXT) continue;
            snprintf(place, sizeof place, "messages[%zu].content[%zu]", i, k);
            media_set(all, part, (cJSON *)(uintptr_t)part->user, place);
        }
    }
}

static void read_messages(call *c, fields *f) {
    const cJSON *messages = fields_array(f, "messages"), *message;
    const chat_media media = {.users_images = true,
                              .tools_images = images_are_read(c->server),
                              .users_sounds = true,
                              .left_out = note_left_out,
                              .user = c};
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
        snprintf(param, sizeof param, "messages[%d].role", i++);
        if (role && strcmp(role, "function") == 0)
            api_fail(f->error, 400, "unsupported_value", param, "%s: function messages are not supported; use tool",
                     param);
    }
    kakeya_error why = {0};
    size_t place_bytes;
    if (chat_request_read(messages, &media, &c->conversation, &place_bytes, &why) != KAKEYA_OK) {
        fail_conversation(NULL, &why, place_bytes, f->error);
        return;
    }
    name_media(&c->conversation);
    if (f->error->status == 0) media_take(c, f->error);
}

const cJSON *openai_check_tools(const cJSON *tools, api_error *error) {
    const cJSON *tool;
    int i = 0;
    if (cJSON_GetArraySize(tools) > MAX_TOOLS)
        api_fail(error, 400, "invalid_value", "tools", "tools: more than %d", MAX_TOOLS);
    cJSON_ArrayForEach(tool, tools) {
        char param[80];
        const char *type = body_string(tool, "type");
        const cJSON *function = body_member(tool, "function");
        const cJSON *parameters = body_member(function, "parameters"),
                    *description = body_member(function, "description");
        snprintf(param, sizeof param, "tools[%d]", i++);
        if (!type || strcmp(type, "function") != 0 || !cJSON_IsObject(function)) {
            api_fail(error, 400, "unsupported_value", param, "%s: only tools of type function and custom are supported",
                     param);
        } else if (!openai_is_tool_name(body_member(function, "name"))) {
            api_fail(error, 400, "invalid_value", param,
                     "%s.function.name is not a name of 1 to 128 letters, digits, '_', '-' and '.'", param);
        } else if (description && !cJSON_IsString(description)) {
            char place[112];
            snprintf(place, sizeof place, "%s.function.description", param);
            api_fail(error, 400, "invalid_type", place, "%s is not a string", place);
        } else if (parameters && !cJSON_IsObject(parameters)) {
            api_fail(error, 400, "invalid_type", param, "%s.function.parameters is not an object", param);
        }
    }
    return tools && tools->child && error->status == 0 ? tools : NULL;
}

const char openai_efforts[] = "none, minimal, low, medium, high, xhigh or max";

int openai_effort(const char *effort) {
    static const char *const efforts[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max", NULL};
    int i = 0;
    while (efforts[i] && strcmp(efforts[i], effort) != 0) i++;
    return efforts[i] ? i >= 2 : -1;
}

/* Whether the request asks for reasoning: 1, asks for none: 0, says nothing: -1. */
static int read_thinking(fields *f, chat_shape *shape) {
    int asked = -1;
    const char *effort = fields_string(f, "reasoning_effort", NULL);
    if (effort) {
        asked = openai_effort(effort);
        if (asked < 0) fields_wrong_value(f, "reasoning_effort", fields_get(f, "reasoning_effort"), openai_efforts);
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

void chat_wish_init(chat_wish *wish) { *wish = (chat_wish){.thinks = -1, .thinking_budget = -1}; }

void openai_settle(call *c, chat_wish *wish, chat_shape *shape, answer_options *out, api_error *error) {
    const bool forced = openai_is_forced(&wish->form);
    shape->thinking = wish->thinks >= 0 ? wish->thinks : c->server->settings->thinking && !forced && !shape->continues;
    shape->hide_reasoning = !shape->thinking || wish->hides_reasoning;
    if (wish->tools && error->status == 0) {
        c->tools = json_text_print(wish->tools);
        if (!c->tools) api_out_of_memory(error);
        if (c->tools) call_hold(c, strlen(c->tools), error);
    }
    if (out) {
        out->param = shape->param;
        out->thinking_budget = wish->thinking_budget;
        out->max_calls = wish->one_call ? 1 : (size_t)c->server->settings->max_tool_calls;
        out->hide_reasoning = shape->hide_reasoning;
        out->tools = c->tools;
        out->tools_bytes = c->tools ? strlen(c->tools) : 0;
    }
    openai_compile_form(c, &wish->form, shape->thinking, out, error);
}

void openai_read_chat(call *c, fields *f, chat_shape *shape, answer_options *out) {
    chat_wish wish;
    chat_wish_init(&wish);
    if (!custom_tools_rewrite(c->body, f->error)) return;
    images_read_budget(c, f);
    read_messages(c, f);
    wish.tools = openai_check_tools(fields_array(f, "tools"), f->error);
    openai_take_tool_choice(f, fields_get(f, "tool_choice"), wish.tools, &wish.form);
    wish.thinks = read_thinking(f, shape);
    openai_read_format(f, &wish.form);
    shape->without_turn = !fields_bool(f, "add_generation_prompt", true);
    read_continuation(f, shape, wish.thinks == 1, openai_is_forced(&wish.form));
    wish.hides_reasoning = !fields_bool(f, "include_reasoning", true);
    wish.one_call = !fields_bool(f, "parallel_tool_calls", true);
    int64_t other_budget = fields_count(f, "thinking_budget_tokens", -1, 1 << 30, -1);
    wish.thinking_budget = fields_count(f, "thinking_token_budget", -1, 1 << 30, other_budget);
    openai_settle(c, &wish, shape, out, f->error);
}

/* ---------------------------------------------------------------------------------------------------------- prompts */

/* What the last message has begun to say; out->begun. */
static bool read_begun(const kakeya_chat_message *last, answer_options *out, api_error *error) {
    text_buffer text = {0};
    text_add(&text, "");
    for (size_t i = 0; i < chat_n_parts(last); i++) {
        const kakeya_chat_part part = chat_part(last, i);
        if (part.text) text_add(&text, part.text);
    }
    if (text.failed) return api_out_of_memory(error);
    free(out->begun);
    out->begun = text.data;
    return true;
}

bool openai_render_chat(call *c, const chat_shape *shape, answer_options *out, api_error *error) {
    chat_conversation *said = &c->conversation;
    const char *param = shape->param ? shape->param : "messages";
    turn_memory *turns = c->server->turns;
    size_t place_bytes = 0;
    kakeya_error why = {0};
    kakeya_chat_options how;
    KAKEYA_INIT(&how);
    how.thinking = shape->thinking;
    how.preserve_thinking = shape->preserve_thinking;
    how.without_turn = shape->without_turn;
    how.continue_last = shape->continues;
    how.most_tokens = shape->is_question ? answer_most_tokens(c->server) : 0;
    how.tools = c->tools;
    how.tools_bytes = c->tools ? strlen(c->tools) : 0;
    how.place_bytes = &place_bytes;
    if (said->failed) return api_out_of_memory(error);
    if (!media_of_prompt(c, param, out, error)) return false;
    if (turns) {
        store_read_notes(c->server->store);
        turn_memory_find(turns, said);
        out->messages = said->messages;
        out->n_messages = said->n - shape->continues;
        if (shape->continues && !read_begun(&said->messages[said->n - 1], out, error)) return false;
    }
    kakeya_status status = kakeya_conversation_tokens(kakeya_engine_tokenizer(c->server->engine), said->messages,
                                                      said->n, &how, &out->ids, &out->n_ids, &out->n_stable, &why);
    if (status == KAKEYA_OK) return media_key_prompt(c, param, out, error);
    if (why.status == KAKEYA_CONTEXT_FULL) return answer_is_too_long(c->server, out->n_ids, param, error);
    return fail_conversation(shape->param, &why, place_bytes, error);
}
