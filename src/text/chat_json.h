/* JSON for the turn format: numbers keep their spelling, and values are written as the checkpoints' templates do. */
#ifndef KAKEYA_TEXT_CHAT_JSON_H
#define KAKEYA_TEXT_CHAT_JSON_H

#include <cjson/cJSON.h>

#include "text/chat_text.h"

/* Parses one value, of at most JSON_MAX_VALUES, mended as base/json_text.h says; numbers become cJSON_Raw items.
 * `where` names the text in messages. */
kakeya_status chat_json_parse(const char *where, const char *text, size_t bytes, cJSON **out, kakeya_error *error);

/* The children of an object sorted by key without regard to (ASCII) case, as jinja's dictsort; malloc'ed, NULL when out
 * of memory. */
const cJSON **chat_sorted(const cJSON *object, size_t *n);

/* {key:value,...} without the braces, as call arguments and tool results are written. */
void chat_put_fields(chat_writer *w, const cJSON *object);
/* One value; escape_keys puts the keys of objects between string quotes. */
void chat_put_value(chat_writer *w, const cJSON *value, bool escape_keys);

#endif
