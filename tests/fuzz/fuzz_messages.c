/* Any JSON as the conversation of a request of the Messages API: refused with a message, or messages of chat
 * completions, in which every result of a tool stands behind its call. */
#include "serve/anthropic_messages.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "serve/body.h"

static void check_message(const cJSON *message, const cJSON **caller) {
    const char *role = body_string(message, "role"), *id = body_string(message, "tool_call_id");
    const cJSON *call, *calls = cJSON_GetObjectItemCaseSensitive(message, "tool_calls");
    if (!role) abort();
    if (strcmp(role, "tool") != 0) {
        *caller = calls;
        cJSON_ArrayForEach(call, calls) {
            const cJSON *function = cJSON_GetObjectItemCaseSensitive(call, "function");
            if (!body_string(call, "id") || !body_string(function, "name") || !body_string(function, "arguments"))
                abort();
        }
        return;
    }
    bool found = false;
    cJSON_ArrayForEach(call, *caller) found = found || (id && strcmp(body_string(call, "id"), id) == 0);
    if (!found || !body_string(message, "content")) abort();
}

static void check(const messages_out *out) {
    const cJSON *message, *caller = NULL;
    cJSON_ArrayForEach(message, out->messages) check_message(message, &caller);
    const cJSON *last = cJSON_GetArrayItem(out->messages, cJSON_GetArraySize(out->messages) - 1);
    const char *role = body_string(last, "role");
    if (out->continues != (role && strcmp(role, "assistant") == 0)) abort();
    if (out->ignored->failed) abort();
    if (out->ignored->data && strpbrk(out->ignored->data, "\r\n")) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const spelled[] = {"messages", NULL};
    const reasoning_seal seal = {{1}};
    cJSON *body;
    api_error error = {0};
    if (!body_parse((const char *)data, size, &body, &error)) return 0;
    if (!body_keep_numbers(body, (const char *)data, size, spelled)) abort();
    text_buffer ignored = {0};
    messages_in in = {.pictures = true,
                      .system = cJSON_GetObjectItemCaseSensitive(body, "system"),
                      .messages = cJSON_GetObjectItemCaseSensitive(body, "messages"),
                      .seal = &seal};
    messages_out out = {.messages = cJSON_CreateArray(), .ignored = &ignored};
    if (anthropic_messages(&in, &out, &error)) {
        check(&out);
        char *text = cJSON_PrintUnformatted(out.messages);
        if (!text) abort();
        cJSON_free(text);
    } else if (error.status != 400 || !error.message[0] || !error.param[0]) {
        abort();
    }
    cJSON_Delete(out.messages);
    cJSON_Delete(body);
    text_free(&ignored);
    return 0;
}
