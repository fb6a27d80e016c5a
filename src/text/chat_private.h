/* Shared by the parts of the chat renderer. */
#ifndef KAKEYA_TEXT_CHAT_PRIVATE_H
#define KAKEYA_TEXT_CHAT_PRIVATE_H

#include <cjson/cJSON.h>

#include "text/chat.h"

/* Writes a chat_text; the first failure sticks in `status` and everything after it is ignored. */
typedef struct chat_writer {
    chat_text out;
    size_t text_capacity, segment_capacity;
    kakeya_status status;
    kakeya_error *error;
} chat_writer;

void chat_put_control(chat_writer *w, const char *token);
void chat_put(chat_writer *w, const char *text, size_t bytes);
void chat_puts(chat_writer *w, const char *text);
void chat_fail(chat_writer *w, kakeya_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* JSON in which numbers keep their spelling: they are cJSON_Raw items. `where` names the text in messages. */
kakeya_status chat_json_parse(const char *where, const char *text, size_t bytes, cJSON **out, kakeya_error *error);

/* The children of an object sorted by key without regard to (ASCII) case, as jinja's dictsort; malloc'ed, NULL when out
 * of memory. */
const cJSON **chat_sorted(const cJSON *object, size_t *n);

/* {key:value,...} without the braces, as call arguments and tool results are written. */
void chat_put_fields(chat_writer *w, const cJSON *object);
/* One value; escape_keys puts the keys of objects between string quotes. */
void chat_put_value(chat_writer *w, const cJSON *value, bool escape_keys);
/* The declarations of a JSON array of tools. */
void chat_put_tools(chat_writer *w, const char *tools);

#define CHAT_QUOTE "<|\"|>" /* the control token around strings */

#endif
