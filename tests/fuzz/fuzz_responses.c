/* Any JSON as the input of a response: refused with a message, or messages that a conversation is made of. The items
 * come to the same messages when they are read again, as stored ones are. */
#include "serve/responses_items.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "serve/reasoning_seal.h"
#include "unit/chat_reading.h"

static cJSON *find(void *user, const char *id) {
    (void)user;
    return id[0] == 'f' ? cJSON_Parse("{\"type\":\"function_call\",\"id\":\"f\",\"call_id\":\"c\",\"name\":\"f\"}")
                        : NULL;
}

static char *unseal(void *user, const char *sealed) { return reasoning_seal_open(user, sealed); }

static char *messages_of(const cJSON *items, size_t n_earlier, const item_source *source, text_buffer *ignored) {
    api_error error = {0};
    chat_conversation said = {0};
    char *text = NULL;
    if (items_to_messages(items, n_earlier, source, &said, ignored, &error)) {
        cJSON *messages = chats_as_json(&said);
        text = cJSON_PrintUnformatted(messages);
        cJSON_Delete(messages);
        for (size_t i = 0; i < said.n; i++)
            if (!said.messages[i].role) abort();
    } else if (error.status != 400 || !error.message[0] || strncmp(error.param, "input", 5) != 0) {
        abort();
    }
    chat_conversation_free(&said);
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    reasoning_seal seal = {{1}};
    const item_source source = {.find = find, .unseal = unseal, .user = &seal, .pictures = true};
    if (size < 1) return 0;
    cJSON *input = cJSON_ParseWithLength((const char *)data + 1, size - 1), *items, *again;
    if (!input) return 0;
    api_error error = {0};
    if (items_read(input, &source, &items, &error)) {
        text_buffer ignored = {0}, other = {0};
        char *text = messages_of(items, data[0] % 4, &source, &ignored);
        if (!items_read(items, &source, &again, &error)) abort();
        char *second = messages_of(again, data[0] % 4, &source, &other);
        if ((text == NULL) != (second == NULL) || (text && strcmp(text, second) != 0)) abort();
        cJSON_Delete(again);
        cJSON_Delete(items);
        cJSON_free(text);
        cJSON_free(second);
        text_free(&ignored);
        text_free(&other);
    } else if (error.status != 400 || !error.message[0] || strncmp(error.param, "input", 5) != 0) {
        abort();
    }
    cJSON_Delete(input);
    return 0;
}
