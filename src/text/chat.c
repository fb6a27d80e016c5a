#include "text/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/chat_json.h"
#include "text/chat_tools.h"
#include "text/spaces.h"

/* ------------------------------------------------------------------------------------------- text */

/* Returns whether there was anything to write. */
static bool put_trimmed(chat_writer *w, const char *text, size_t bytes) {
    space_trim(&text, &bytes);
    chat_put(w, text, bytes);
    return bytes > 0;
}

/* Deletes what lies between each <|channel> and the next <channel|> (or the end), then trims. */
static bool put_without_thinking(chat_writer *w, const char *text) {
    static const char open[] = "<|channel>", close[] = "<channel|>";
    char *kept = malloc(strlen(text) + 1);
    if (!kept) {
        chat_fail(w, KAKEYA_OUT_OF_MEMORY, "out of memory while rendering %zu bytes of chat", w->out.bytes);
        return false;
    }
    size_t bytes = 0;
    for (const char *part = text; part;) {
        const char *end = strstr(part, close), *thought = strstr(part, open);
        size_t length = end ? (size_t)(end - part) : strlen(part);
        size_t keep = thought && (size_t)(thought - part) < length ? (size_t)(thought - part) : length;
        memcpy(kept + bytes, part, keep);
        bytes += keep;
        part = end ? end + sizeof close - 1 : NULL;
    }
    bool any = put_trimmed(w, kept, bytes);
    free(kept);
    return any;
}

/* ------------------------------------------------------------------------------------------- messages */

static bool is_system(const kakeya_chat_message *message) {
    return chat_is_role(message, "system") || chat_is_role(message, "developer");
}

static void put_response(chat_writer *w, const char *tool, const cJSON *response) {
    chat_put_control(w, "<|tool_response>");
    chat_puts(w, "response:");
    chat_puts(w, tool);
    chat_puts(w, "{");
    if (cJSON_IsObject(response)) {
        chat_put_fields(w, response);
    } else {
        chat_puts(w, "value:");
        chat_put_value(w, response, false);
    }
    chat_puts(w, "}");
    chat_put_control(w, "<tool_response|>");
}

/* A picture's or a sound's rows, between what begins and what ends it. */
static void put_media(chat_writer *w, const kakeya_chat_part *part) {
    const bool image = part->type == KAKEYA_CHAT_IMAGE;
    chat_put_control(w, image ? "<|image>" : "<|audio>");
    chat_put_repeated(w, image ? "<|image|>" : "<|audio|>", (size_t)part->n_tokens);
    chat_put_control(w, image ? "<image|>" : "<audio|>");
}

/* A "tool" message: its texts joined, or null where it has no content; pictures follow it. */
static void put_tool_message(chat_writer *w, const char *tool, const kakeya_chat_message *message) {
    chat_put_control(w, "<|tool_response>");
    chat_puts(w, "response:");
    chat_puts(w, tool);
    chat_puts(w, "{value:");
    if (!message->content && !message->parts) {
        chat_puts(w, "null");
    } else {
        chat_put_control(w, CHAT_QUOTE);
        for (size_t i = 0; i < chat_n_parts(message); i++) {
            const kakeya_chat_part part = chat_part(message, i);
            if (part.type == KAKEYA_CHAT_TEXT) chat_puts(w, part.text);
        }
        chat_put_control(w, CHAT_QUOTE);
    }
    chat_puts(w, "}");
    chat_put_control(w, "<tool_response|>");
    for (size_t i = 0; i < chat_n_parts(message); i++) {
        const kakeya_chat_part part = chat_part(message, i);
        if (part.type != KAKEYA_CHAT_TEXT) put_media(w, &part);
    }
}

/* Clients send back what the model wrote, also where an answer was cut short: what is no JSON object is one text, since
 * a refusal would end the conversation. */
static void put_arguments(chat_writer *w, const char *text) {
    cJSON *arguments = NULL;
    kakeya_status status = chat_json_parse("arguments", text, strlen(text), &arguments, NULL);
    if (status == KAKEYA_OUT_OF_MEMORY) {
        chat_fail(w, status, "out of memory while rendering %zu bytes of chat", w->out.bytes);
    } else if (cJSON_IsObject(arguments)) {
        chat_put_fields(w, arguments);
    } else if (!cJSON_IsNull(arguments)) {
        chat_puts(w, "arguments:");
        chat_put_control(w, CHAT_QUOTE);
        chat_puts(w, text);
        chat_put_control(w, CHAT_QUOTE);
    }
    cJSON_Delete(arguments);
}

static void put_call(chat_writer *w, size_t index, const kakeya_chat_call *call) {
    if (!call->name) {
        chat_fail_at(w, KAKEYA_INVALID_ARGUMENT, index, "", ": a tool call has no name");
        return;
    }
    chat_put_control(w, "<|tool_call>");
    chat_puts(w, "call:");
    chat_puts(w, call->name);
    chat_puts(w, "{");
    if (call->arguments && call->arguments[0]) put_arguments(w, call->arguments);
    chat_puts(w, "}");
    chat_put_control(w, "<tool_call|>");
}

static bool same_id(const char *a, const char *b) { return a && b ? strcmp(a, b) == 0 : a == b; }

/* The name of the call that a "tool" message answers, as the template finds it. */
static const char *answered_tool(const kakeya_chat_message *caller, const kakeya_chat_message *answer) {
    const char *name = answer->name && answer->name[0] ? answer->name : "unknown";
    for (size_t i = 0; i < caller->n_calls; i++) {
        if (same_id(caller->calls[i].id, answer->call_id)) name = caller->calls[i].name;
    }
    return name;
}

/* The results of the calls of messages[at]; returns whether there were any. */
static bool put_results(chat_writer *w, const kakeya_chat_message *messages, size_t n, size_t at) {
    const kakeya_chat_message *message = &messages[at];
    for (size_t i = 0; i < message->n_responses && !w->status; i++) {
        const kakeya_chat_response *given = &message->responses[i];
        char where[96];
        snprintf(where, sizeof where, "messages[%zu]: tool response %zu", at, i);
        const char *text = given->response ? given->response : "null";
        cJSON *response;
        kakeya_status status = chat_json_parse(where, text, strlen(text), &response, w->error);
        if (status) {
            w->status = status;
            w->place_bytes = (size_t)snprintf(where, sizeof where, "messages[%zu]", at);
            return true;
        }
        put_response(w, given->name && given->name[0] ? given->name : "unknown", response);
        cJSON_Delete(response);
    }
    if (message->n_responses) return true;
    if (message->n_calls == 0) return false;
    size_t next = at + 1;
    for (; next < n && chat_is_role(&messages[next], "tool"); next++) {
        put_tool_message(w, answered_tool(message, &messages[next]), &messages[next]);
    }
    return next > at + 1;
}

static bool put_content(chat_writer *w, const kakeya_chat_message *message) {
    bool any = false;
    for (size_t i = 0; i < chat_n_parts(message); i++) {
        const kakeya_chat_part part = chat_part(message, i);
        if (part.type != KAKEYA_CHAT_TEXT) {
            put_media(w, &part);
            any = true;
            continue;
        }
        bool written =
            chat_is_model(message) ? put_without_thinking(w, part.text) : put_trimmed(w, part.text, strlen(part.text));
        any = any || written;
    }
    return any;
}

static void put_system(chat_writer *w, const kakeya_chat_message *system, const chat_options *options, bool tools) {
    chat_put_control(w, "<|turn>");
    chat_puts(w, "system\n");
    if (options->thinking) {
        chat_put_control(w, "<|think|>");
        chat_puts(w, "\n");
    }
    for (size_t i = 0; system && i < chat_n_parts(system); i++) {
        const char *text = chat_part(system, i).text;
        put_trimmed(w, text, strlen(text));
        if (!system->content) chat_puts(w, " ");
    }
    if (tools) chat_put_tools(w, options->tools);
    chat_put_control(w, "<turn|>");
    chat_puts(w, "\n");
}

static void put_reasoning(chat_writer *w, const char *reasoning) {
    chat_put_control(w, "<|channel>");
    chat_puts(w, "thought\n");
    chat_puts(w, reasoning);
    chat_puts(w, "\n");
    chat_put_control(w, "<channel|>");
}

/* Without thoughts, what lies between each <|channel> and the next <channel|> is left out, both included. */
static void put_ids(chat_writer *w, const kakeya_chat_message *message, bool thoughts, const chat_options *options) {
    const int32_t *ids = message->ids;
    size_t from = 0, n = message->n_ids;
    bool inside = false;
    for (size_t i = 0; i < n && !thoughts; i++) {
        if (ids[i] == options->thought && !inside) {
            chat_put_ids(w, ids + from, i - from);
            inside = true;
        }
        if (inside) from = i + 1;
        if (ids[i] == options->thought_end) inside = false;
    }
    chat_put_ids(w, ids + from, n - from);
}

/* How the last turn ended, which decides what opens the next. */
typedef enum turn_end { TURN_END_PLAIN, TURN_END_CALL, TURN_END_RESULT } turn_end;

static turn_end put_messages(chat_writer *w, const kakeya_chat_message *messages, size_t n, size_t first,
                             const chat_options *options) {
    turn_end end = TURN_END_PLAIN;
    size_t after_last_user = 0;
    for (size_t i = first; i < n; i++) {
        if (chat_is_role(&messages[i], "user")) after_last_user = i + 1;
    }
    const kakeya_chat_message *previous = NULL; /* the last that is not a "tool" message, as is `next` */
    for (size_t i = first; i < n && !w->status; i++) {
        const kakeya_chat_message *message = &messages[i], *next = NULL;
        if (chat_is_role(message, "tool")) continue;
        for (size_t j = i + 1; j < n && !next; j++) {
            if (!chat_is_role(&messages[j], "tool")) next = &messages[j];
        }
        bool opens = !(chat_is_model(message) && previous && chat_is_model(previous));
        bool replayed = message->n_ids && (message->ids[0] == options->turn) == opens;
        if (opens && !replayed) {
            chat_put_control(w, "<|turn>");
            chat_puts(w, chat_is_model(message) ? "model" : message->role);
            chat_puts(w, "\n");
        }
        bool current = i >= after_last_user || (options->preserve_thinking && message->n_calls);
        if (replayed) {
            put_ids(w, message, current, options);
        } else {
            if (message->reasoning && message->reasoning[0] && current) put_reasoning(w, message->reasoning);
            for (size_t c = 0; c < message->n_calls && !w->status; c++) put_call(w, i, &message->calls[c]);
        }
        bool results = put_results(w, messages, n, i);
        /* what was said beside calls stands in front of them where it was sampled */
        bool content = replayed ? message->n_calls == 0 : put_content(w, message);
        end = results ? TURN_END_RESULT : message->n_calls ? TURN_END_CALL : TURN_END_PLAIN;
        if (end == TURN_END_CALL) {
            chat_put_control(w, "<|tool_response>");
        } else if (!(chat_is_model(message) && next && chat_is_model(next)) && !(results && !content && !next)) {
            chat_put_control(w, "<turn|>");
            chat_puts(w, "\n");
        }
        previous = message;
    }
    return end;
}

static void put_generation_prompt(chat_writer *w, turn_end end, const chat_options *options) {
    if (end == TURN_END_PLAIN) {
        chat_put_control(w, "<|turn>");
        chat_puts(w, "model\n");
        if (!options->thinking && options->style == CHAT_STYLE_EMPTY_THOUGHT) {
            chat_put_control(w, "<|channel>");
            chat_puts(w, "thought\n");
            chat_put_control(w, "<channel|>");
        }
    } else if (end == TURN_END_RESULT && options->thinking) {
        chat_put_control(w, "<|channel>");
        chat_puts(w, "thought\n");
    }
}

kakeya_status chat_check_roles(const kakeya_chat_message *messages, size_t n, size_t *place_bytes,
                               kakeya_error *error) {
    chat_writer w = {.error = error};
    for (size_t i = 0; i < n; i++) {
        const kakeya_chat_message *message = &messages[i];
        if (!message->role)
            chat_fail_at(&w, KAKEYA_INVALID_ARGUMENT, i, "", " has no role");
        else if (!is_system(message) && !chat_is_model(message) && !chat_is_role(message, "user") &&
                 !chat_is_role(message, "tool"))
            chat_fail_at(&w, KAKEYA_INVALID_ARGUMENT, i, ".role",
                         " is \"%.400s\"; it must be system, developer, user, assistant, model or tool", message->role);
        if (w.status) break;
    }
    *place_bytes = w.place_bytes;
    return w.status;
}

kakeya_status chat_render(const kakeya_chat_message *messages, size_t n_messages, const chat_options *options,
                          chat_text *out, size_t *place_bytes, kakeya_error *error) {
    *out = (chat_text){0};
    kakeya_status status = chat_check_roles(messages, n_messages, place_bytes, error);
    if (status) return status;
    chat_writer w = {.error = error};
    const kakeya_chat_message *system = n_messages && is_system(&messages[0]) ? &messages[0] : NULL;
    bool tools = chat_offers_tools(options);
    chat_put_control(&w, "<bos>");
    if (system || options->thinking || tools) put_system(&w, system, options, tools);
    turn_end end = put_messages(&w, messages, n_messages, system ? 1 : 0, options);
    w.out.stable_segments = w.out.n_segments;
    if (options->add_generation_prompt) put_generation_prompt(&w, end, options);
    *place_bytes = w.place_bytes;
    return chat_writer_end(&w, out);
}
