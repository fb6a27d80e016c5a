/* Gemma 3's turns. */
#ifndef KAKEYA_TEXT_CHAT_GEMMA3_H
#define KAKEYA_TEXT_CHAT_GEMMA3_H

#include "text/chat.h"

/* The whole conversation; roles have been checked. What it cannot say fails the writer. */
void chat_put_gemma3(chat_writer *w, const chat_message *messages, size_t n_messages, const chat_options *options);

#endif
