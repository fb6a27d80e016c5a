/* Gemma 3's turns, rendered natively as the published templates do: turns of user and model that alternate, a leading
 * system text in front of the first user's. Reasoning is left out. */
#ifndef KAKEYA_TEXT_CHAT_GEMMA3_H
#define KAKEYA_TEXT_CHAT_GEMMA3_H

#include "text/chat.h"

/* Renders the conversation, <bos> included. *out is released by chat_text_free. Tools are KAKEYA_UNSUPPORTED, turns
 * that do not alternate KAKEYA_INVALID_ARGUMENT. */
kakeya_status chat_render_gemma3(const kakeya_chat_message *messages, size_t n_messages, const chat_options *options,
                                 chat_text *out, size_t *place_bytes, kakeya_error *error);

#endif
