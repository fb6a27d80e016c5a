/* What the tests of text share: reading data files and hexadecimal. */
#ifndef KAKEYA_TESTS_TEXT_SUPPORT_H
#define KAKEYA_TESTS_TEXT_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "base/json.h"
#include "packed.h"
#include "text/tokenizer.h"
#include "tokenizer_form.h"

/* A JSON file stored as FILE.gz. */
static inline cJSON *load_json(const char *path) {
    size_t bytes;
    char *text = packed_read(path, &bytes);
    cJSON *json = cJSON_ParseWithLength(text, bytes); /* texts of the vectors hold NUL, which json_parse refuses */
    if (!json) fail_msg("%s: malformed", path);
    free(text);
    return json;
}

static inline tokenizer *open_demo_tokenizer(void) {
    kakeya_error error = {0};
    tokenizer *t = NULL;
    if (tokenizer_open(KAKEYA_MODELS "/demo/tokenizer.json", &t, &error)) fail_msg("%s", error.message);
    return t;
}

static inline unsigned hex_value(char c) { return (unsigned)(c <= '9' ? c - '0' : c - 'a' + 10); }

/* malloc'ed, NUL-terminated bytes of a hexadecimal JSON string. */
static inline char *from_hex(const cJSON *item, size_t *bytes) {
    assert_true(cJSON_IsString(item));
    const char *hex = item->valuestring;
    *bytes = strlen(hex) / 2;
    char *out = malloc(*bytes + 1);
    assert_non_null(out);
    for (size_t i = 0; i < *bytes; i++) out[i] = (char)(hex_value(hex[2 * i]) * 16 + hex_value(hex[2 * i + 1]));
    out[*bytes] = 0;
    return out;
}

/* malloc'ed ids of a JSON array. */
static inline int32_t *ids_of(const cJSON *list, size_t *n) {
    assert_true(cJSON_IsArray(list));
    *n = (size_t)cJSON_GetArraySize(list);
    int32_t *ids = malloc((*n + 1) * sizeof *ids);
    assert_non_null(ids);
    size_t i = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, list) ids[i++] = item->valueint;
    return ids;
}

#endif
