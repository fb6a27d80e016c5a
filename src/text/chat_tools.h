/* Tool declarations in the grammar that the model was trained on. */
#ifndef KAKEYA_TEXT_CHAT_TOOLS_H
#define KAKEYA_TEXT_CHAT_TOOLS_H

#include <cjson/cJSON.h>

#include "text/chat_text.h"

/* The declarations of a list of OpenAI tools, whose numbers keep their spelling. */
void chat_put_tools(chat_writer *w, const cJSON *tools);

#endif
