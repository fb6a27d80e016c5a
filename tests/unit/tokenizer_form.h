/* Tokenizer files made to order: Gemma's form over 256 byte pieces and a handful of letters, every section replaceable.
 */
#ifndef KAKEYA_TESTS_TOKENIZER_FORM_H
#define KAKEYA_TESTS_TOKENIZER_FORM_H

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer.h"

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

/* Added tokens with the flags that every one of them has, false where the list does not say them. Anything but a list
 * of objects stays as it is. */
static inline char *with_flags(const char *added_tokens) {
    static const char *const flags[] = {"single_word", "lstrip", "rstrip", "normalized", "special"};
    cJSON *list = added_tokens ? cJSON_Parse(added_tokens) : NULL, *item;
    char *text = NULL;
    cJSON_ArrayForEach(item, list) {
        for (int i = 0; cJSON_IsObject(item) && i < 5; i++)
            if (!cJSON_HasObjectItem(item, flags[i])) cJSON_AddFalseToObject(item, flags[i]);
    }
    if (cJSON_IsArray(list)) text = cJSON_PrintUnformatted(list);
    if (!text && added_tokens) text = strdup(added_tokens);
    cJSON_Delete(list);
    return text;
}

static inline void add_key(FILE *out, const char *key, const char *value) {
    if (value) fprintf(out, "\"%s\":%s,", key, value);
}

/* malloc'ed text of the file. */
static inline char *tokenizer_json(const tokenizer_form *form) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (!out) abort();
    fputs("{\"version\":\"1.0\",", out);
    char *added_tokens = with_flags(form->added_tokens);
    add_key(out, "added_tokens", added_tokens);
    free(added_tokens);
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
