/* Any JSON as the conversation of a request of the Messages API: refused with a message, or a conversation
 * in which every result of a tool stands behind its call. */
#include "serve/anthropic_messages.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "serve/body.h"

static void check_message(const kakeya_chat_message *message, const kakeya_chat_message **caller) {
    if (!message->role) abort();
    for (size_t i = 0; i < chat_n_parts(message); i++) {
        const kakeya_chat_part part = chat_part(message, i);
        if (part.type == KAKEYA_CHAT_TEXT ? !part.text : !part.user) abort();
    }
    if (!chat_is_role(message, "tool")) {
        *caller = message;
        for (size_t i = 0; i < message->n_calls; i++)
            if (!message->calls[i].id || !message->calls[i].name || !message->calls[i].arguments) abort();
        return;
    }
    bool found = false;
    for (size_t i = 0; *caller && message->call_id && i < (*caller)->n_calls; i++)
        found = found || strcmp((*caller)->calls[i].id, message->call_id) == 0;
    if (!found || (!message->content && !message->n_parts)) abort();
}

static void check(const messages_out *out) {
    const kakeya_chat_message *caller = NULL;
    for (size_t i = 0; i < out->said->n; i++) check_message(&out->said->messages[i], &caller);
    const bool assistant = out->said->n && chat_is_model(&out->said->messages[out->said->n - 1]);
    if (out->continues != assistant) abort();
    if (out->ignored->failed) abort();
    if (out->ignored->data && strpbrk(out->ignored->data, "\r\n")) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const reasoning_seal seal = {{1}};
    cJSON *body;
    api_error error = {0};
    if (!body_parse((const char *)data, size, &body, &error)) return 0;
    text_buffer ignored = {0};
    messages_in in = {.pictures = true,
                      .system = cJSON_GetObjectItemCaseSensitive(body, "system"),
                      .messages = cJSON_GetObjectItemCaseSensitive(body, "messages"),
                      .seal = &seal};
    chat_conversation said = {0};
    messages_out out = {.said = &said, .ignored = &ignored};
    if (anthropic_messages(&in, &out, &error)) {
        check(&out);
    } else if (error.status != 400 || !error.message[0] || !error.param[0]) {
        abort();
    }
    chat_conversation_free(&said);
    cJSON_Delete(body);
    text_free(&ignored);
    return 0;
}
