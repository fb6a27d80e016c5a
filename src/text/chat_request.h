/* Conversations in the JSON form of OpenAI's chat completions. */
#ifndef KAKEYA_TEXT_CHAT_REQUEST_H
#define KAKEYA_TEXT_CHAT_REQUEST_H

#include "text/chat.h"

typedef struct chat_request {
    chat_message *messages;
    size_t n_messages;
    char *tools; /* for chat_options.tools; NULL if there are none */
    struct chat_request_storage *storage;
} chat_request;

/* Reads {"messages": [...], "tools": [...]} (other keys are ignored) or just the array of messages. Contents are texts
 * or lists of {"type": "text"} parts; other parts are KAKEYA_UNSUPPORTED. Messages name the place, such as
 * messages[2].content. *out is released by chat_request_free. */
kakeya_status chat_request_read(const char *json, size_t bytes, chat_request *out, kakeya_error *error);
void chat_request_free(chat_request *request);

#endif
