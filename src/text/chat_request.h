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
 * or lists of parts of type text, input_text, output_text or refusal; other parts are left out of an assistant's
 * message, a line stands for them in a tool's (chat_parts.h), and elsewhere they are KAKEYA_UNSUPPORTED. Reasoning that
 * is no text is left out. Errors name the place, such as messages[2].content. *out is released by chat_request_free. */
kakeya_status chat_request_read(const char *json, size_t bytes, chat_request *out, kakeya_error *error);
/* What stands for parts that are no text; NULL: such parts are read as they are without. */
typedef struct chat_media {
    const chat_picture *pictures, *sounds; /* [n_pictures], [n_sounds] */
    size_t n_pictures, n_sounds;
} chat_media;
/* The same, but parts of type image, image_url or input_image in users' and tools' messages are taken: the i-th of them
 * is pictures[i], borrowed; of type audio or input_audio in users' messages: sounds[i]. Other numbers than these are
 * KAKEYA_INVALID_ARGUMENT. */
kakeya_status chat_request_read_media(const char *json, size_t bytes, const chat_media *media, chat_request *out,
                                      kakeya_error *error);
void chat_request_free(chat_request *request);

/* What clients leave out and what they add, where a template would say "unknown" or open an empty turn: the answer to
 * an only call gets the call's name, and an assistant's message at the end that says nothing is left out. */
void chat_request_complete(chat_request *request);

/* The tools alone, as the text of a list: out of such a list, or out of what chat_request_read takes. *tools is NULL if
 * there are none, otherwise it is released by chat_tools_free. */
kakeya_status chat_tools_read(const char *json, size_t bytes, char **tools, kakeya_error *error);
void chat_tools_free(char *tools);

#endif
