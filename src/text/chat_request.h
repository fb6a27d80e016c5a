/* Conversations in the JSON form of OpenAI's chat completions. */
#ifndef KAKEYA_TEXT_CHAT_REQUEST_H
#define KAKEYA_TEXT_CHAT_REQUEST_H

#include <cjson/cJSON.h>

#include "base/error.h"
#include "text/chat_conversation.h"

/* Parts that are no text and are read all the same: those of type image, image_url or input_image, and those of type
 * audio or input_audio. */
typedef struct chat_media {
    bool users_images, tools_images, users_sounds;
    /* Hears of what the model does not see of a message that is not the user's: place, such as messages[2].content[0];
     * type of the part, NULL: it is none. NULL: nobody does. */
    void (*left_out)(void *user, const char *place, const char *type);
    void *user;
} chat_media;

/* Reads a list of messages, whose numbers keep their spelling. Texts of `out` lie in the tree, or are its own. Contents
 * are texts or lists of parts of type text, input_text, output_text or refusal, and those that media names, whose
 * `user` is the part and whose n_tokens is 0; other parts are left out of an assistant's message, a line stands for
 * them in a tool's (chat_parts.h), and elsewhere they are KAKEYA_UNSUPPORTED. Reasoning that is no text is left out.
 * Errors begin with the place, such as messages[2].content: *place_bytes of it. *out is released by
 * chat_conversation_free, also on failure. */
kakeya_status chat_request_read(const cJSON *messages, const chat_media *media, chat_conversation *out,
                                size_t *place_bytes, kakeya_error *error);

/* {"messages": [...], "tools": [...]}, whose other keys are ignored, or just the list of messages: *root is the tree,
 * *messages and *tools (NULL: there are none) lie in it. */
kakeya_status chat_request_parse(const char *json, size_t bytes, cJSON **root, const cJSON **messages,
                                 const cJSON **tools, kakeya_error *error);
/* The tools alone: of such a request, or a list of tools. */
kakeya_status chat_tools_parse(const char *json, size_t bytes, cJSON **root, const cJSON **tools, kakeya_error *error);

/* What clients leave out and what they add, where a template would say "unknown" or open an empty turn: the answer to
 * an only call gets the call's name, and an assistant's message at the end that says nothing is left out. */
void chat_conversation_complete(chat_conversation *c);

#endif
