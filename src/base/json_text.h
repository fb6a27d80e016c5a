/* JSON texts of requests, whose strings may hold what C strings cannot: U+0000, which is spelled as base/nul.h says,
 * and halves of surrogate pairs, which are read as U+FFFD. Clients cut texts anywhere, and a conversation that holds
 * such a text must go on. Keys are refused with either. Files of models are read by base/json.h, which is strict. */
#ifndef KAKEYA_BASE_JSON_TEXT_H
#define KAKEYA_BASE_JSON_TEXT_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

/* *mended: the text without unpaired halves, and with spell_nul without \u0000; malloc'ed, *mended_bytes long, behind
 * it a NUL. NULL where nothing is to be mended. Refused are keys that hold either, and bytes that are NUL; other faults
 * are left to a parser. `name` is for messages. */
kakeya_status json_text_mend(const char *name, const char *text, size_t bytes, bool spell_nul, char **mended,
                             size_t *mended_bytes, kakeya_error *error);
/* json_parse of a mended text: strings of the tree spell U+0000. */
kakeya_status json_text_parse(const char *name, const char *text, size_t bytes, cJSON **out, kakeya_error *error);
/* The same of a text that this program has written; NULL: out of memory, or it is none. */
cJSON *json_text_read(const char *text, size_t bytes);
/* cJSON_PrintUnformatted of such a tree: \u0000 where a string spells U+0000. NULL: out of memory. */
char *json_text_print(const cJSON *item);

#endif
