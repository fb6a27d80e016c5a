/* Any bytes as a chat request: refused with a message, or rendered so that the segments cover the text. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "text/chat_gemma3.h"
#include "unit/chat_reading.h"

/* A place is what the message begins with. */
static void check_place(const kakeya_error *error, size_t place_bytes) {
    if (place_bytes > strlen(error->message)) abort();
    if (place_bytes && strncmp(error->message, "messages[", 9) != 0) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    kakeya_error error = {0};
    read_chat request;
    if (size < 1) return 0;
    if (read_chat_open((const char *)data + 1, size - 1, &request, &error)) {
        if (error.message[0] == 0) abort();
        check_place(&error, request.place_bytes);
        read_chat_close(&request);
        return 0;
    }
    if (data[0] & 16) chat_conversation_complete(&request.c);
    cJSON *root;
    const cJSON *tools;
    if (!chat_tools_parse((const char *)data + 1, size - 1, &root, &tools, &error)) {
        /* A bare list without a role in it is messages to one of them and tools to the other. */
        const char *text = (const char *)data + 1;
        size_t blanks = json_mark_bytes(text, size - 1);
        while (blanks + 2 < size && text[blanks] <= ' ' && text[blanks] > 0) blanks++;
        if (text[blanks] != '[' && (tools == NULL) != (request.tools == NULL)) abort();
        cJSON_Delete(root);
    }
    chat_options options = {
        .style = data[0] & 1 ? CHAT_STYLE_EMPTY_THOUGHT : CHAT_STYLE_PLAIN,
        .thinking = (data[0] & 2) != 0,
        .preserve_thinking = (data[0] & 4) != 0,
        .add_generation_prompt = (data[0] & 8) != 0,
        .tools = request.tools,
    };
    chat_text text;
    if (data[0] & 32) options.style = CHAT_STYLE_GEMMA3;
    size_t place_bytes = 0;
    if (!(data[0] & 32 ? chat_render_gemma3 : chat_render)(request.c.messages, request.c.n, &options, &text,
                                                           &place_bytes, &error)) {
        size_t bytes = 0;
        for (size_t i = 0; i < text.n_segments; i++) {
            if (text.segments[i].offset != bytes) abort();
            bytes += text.segments[i].bytes;
        }
        if (bytes != text.bytes) abort();
        chat_text_free(&text);
    } else if (error.message[0] == 0) {
        abort();
    } else {
        check_place(&error, place_bytes);
    }
    read_chat_close(&request);
    return 0;
}
