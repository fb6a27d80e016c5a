/* What the tests of text share: reading data files, hexadecimal, and tokenizer files made to order. */
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

#include "base/files.h"
#include "base/json.h"
#include "text/tokenizer.h"

static inline cJSON *load_json(const char *path) {
    kakeya_error error = {0};
    char *text;
    size_t bytes;
    cJSON *json = NULL;
    if (file_read(path, (size_t)16 << 20, &text, &bytes, &error)) fail_msg("%s", error.message);
    if (json_parse(path, text, bytes, &json, &error)) fail_msg("%s", error.message);
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

/* The sections of a tokenizer.json as JSON text; NULL leaves the key out. */
typedef struct tokenizer_form {
    const char *added_tokens, *normalizer, *pre_tokenizer, *post_processor, *decoder;
    const char *type, *byte_fallback, *ignore_merges, *dropout;
    const char *vocab; /* entries behind the 256 byte pieces, which have the ids 0..255 */
    const char *merges;
} tokenizer_form;

#define GEMMA_NORMALIZER "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xE2\x96\x81\"}"
#define GEMMA_DECODER                                                                                                  \
    "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"\xE2\x96\x81\"},"            \
    "\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]}"

static const tokenizer_form default_form = {
    .added_tokens =
        "[{\"id\":256,\"content\":\"<s>\",\"special\":true},{\"id\":257,\"content\":\"<s>>\",\"special\":true},"
        "{\"id\":258,\"content\":\"ab!\",\"special\":false}]",
    .normalizer = GEMMA_NORMALIZER,
    .decoder = GEMMA_DECODER,
    .type = "\"BPE\"",
    .byte_fallback = "true",
    .vocab =
        "\"a\":259,\"b\":260,\"c\":261,\"ab\":262,\"bc\":263,\"abc\":264,\"\\n\":265,\"aa\":266,\"\xE2\x96\x81\":267",
    .merges = "[[\"b\",\"c\"],[\"a\",\"b\"],[\"a\",\"bc\"],[\"a\",\"a\"]]",
};

static inline void add_key(FILE *out, const char *key, const char *value) {
    if (value) fprintf(out, "\"%s\":%s,", key, value);
}

/* malloc'ed text of the file. */
static inline char *tokenizer_json(const tokenizer_form *form) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    fputs("{\"version\":\"1.0\",", out);
    add_key(out, "added_tokens", form->added_tokens);
    add_key(out, "normalizer", form->normalizer);
    add_key(out, "pre_tokenizer", form->pre_tokenizer);
    add_key(out, "post_processor", form->post_processor);
    add_key(out, "decoder", form->decoder);
    fputs("\n\"model\":{", out);
    add_key(out, "type", form->type);
    add_key(out, "byte_fallback", form->byte_fallback);
    add_key(out, "ignore_merges", form->ignore_merges);
    add_key(out, "dropout", form->dropout);
    if (form->vocab) {
        fputs("\"vocab\":{", out);
        for (int byte = 0; byte < 256; byte++) fprintf(out, "\"<0x%02X>\":%d,", (unsigned)byte, byte);
        fprintf(out, "%s},", form->vocab);
    }
    add_key(out, "merges", form->merges);
    fputs("\"fuse_unk\":true}}", out);
    fclose(out);
    return text;
}

static inline kakeya_status open_form(const tokenizer_form *form, tokenizer **t, kakeya_error *error) {
    char *text = tokenizer_json(form);
    kakeya_status status = tokenizer_open_memory("made.json", text, strlen(text), t, error);
    free(text);
    return status;
}

#endif
