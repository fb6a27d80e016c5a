/* Parts of messages that are no text. */
#ifndef KAKEYA_TEXT_CHAT_PARTS_H
#define KAKEYA_TEXT_CHAT_PARTS_H

#include <cjson/cJSON.h>

enum { CHAT_LINE_BYTES = 200 };

/* The line of text that stands in the place of a part which the model cannot read, such as a picture that a tool has
 * brought: the name of a tool that is referred to, else "[image]" or "[document: title]". Valid UTF-8 as far as the
 * part is. Returns `out`. */
const char *chat_part_line(const cJSON *part, char out[CHAT_LINE_BYTES]);

#endif
