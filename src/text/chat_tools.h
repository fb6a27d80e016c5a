/* Tool declarations in the grammar that the model was trained on. */
#ifndef KAKEYA_TEXT_CHAT_TOOLS_H
#define KAKEYA_TEXT_CHAT_TOOLS_H

#include "text/chat_text.h"

/* The declarations of a JSON array of OpenAI tools. */
void chat_put_tools(chat_writer *w, const char *tools);

#endif
