/* The Gemma 4 turn format, rendered natively: what the checkpoint's chat_template.jinja (revision of 2026-07-09) makes
 * of a conversation with system text, tools, reasoning and tool calls, byte for byte. Gemma 3's: text/chat_gemma3.h.
 */
#ifndef KAKEYA_TEXT_CHAT_H
#define KAKEYA_TEXT_CHAT_H

#include <cjson/cJSON.h>

#include "text/chat_conversation.h"
#include "text/chat_template.h"
#include "text/chat_text.h"

typedef struct chat_options {
    chat_style style;
    bool thinking;              /* the model may reason in its thought channel */
    bool preserve_thinking;     /* keep the reasoning of earlier turns that called tools */
    bool add_generation_prompt; /* end with the model's turn opened */
    const cJSON *tools;         /* a list of OpenAI tool declarations, whose numbers keep their spelling; NULL: none */
    /* Tokens that ids of messages are looked at for: what opens a turn, opens and closes a thought. */
    int32_t turn, thought, thought_end;
} chat_options;

/* Whether all roles are known ones. Errors that begin with a place set *place_bytes. */
kakeya_status chat_check_roles(const kakeya_chat_message *messages, size_t n_messages, size_t *place_bytes,
                               kakeya_error *error);

/* Renders the conversation, <bos> included. *out is released by chat_text_free. Errors as of chat_check_roles. */
kakeya_status chat_render(const kakeya_chat_message *messages, size_t n_messages, const chat_options *options,
                          chat_text *out, size_t *place_bytes, kakeya_error *error);

/* Whether any tools are declared: an empty list is none. */
static inline bool chat_offers_tools(const chat_options *options) { return options->tools && options->tools->child; }

#endif
