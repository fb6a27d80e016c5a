/* tokenizer.json, read as a stream of events: the vocabulary and the merges, which are nearly all of its 32 MB, go
 * straight into the builder's arrays; the few small sections that say which form of tokenizer this is are cut out and
 * parsed. */
#include "text/tokenizer_load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yajl/yajl_parse.h>

#include "base/json.h"
#include "formats/foreign.h"
#include "text/tokenizer_build.h"
#include "text/utf8.h"

/* A key of the file that this reader handles; its value is taken where the key stands. */
typedef enum field {
    FIELD_OTHER, /* skipped whole */
    FIELD_VERSION,
    FIELD_MODEL,
    FIELD_VOCAB,
    FIELD_MERGES,
    FIELD_MODEL_TYPE,
    FIELD_BYTE_FALLBACK,
    FIELD_FUSE_UNK,
    FIELD_UNK_TOKEN,
    FIELD_IGNORE_MERGES,
    FIELD_DROPOUT,
    FIELD_CONTINUING_PREFIX,
    FIELD_WORD_SUFFIX,
    FIELD_NORMALIZER, /* from here on: sections cut out of the text */
    FIELD_PRE_TOKENIZER,
    FIELD_POST_PROCESSOR,
    FIELD_DECODER,
    FIELD_TRUNCATION,
    FIELD_PADDING,
    FIELD_ADDED_TOKENS,
    FIELD_COUNT
} field;

static const struct {
    const char *key;
    int depth; /* of the object that holds the key */
} fields[FIELD_COUNT] = {
    [FIELD_VERSION] = {"version", 1},
    [FIELD_MODEL] = {"model", 1},
    [FIELD_VOCAB] = {"vocab", 2},
    [FIELD_MERGES] = {"merges", 2},
    [FIELD_MODEL_TYPE] = {"type", 2},
    [FIELD_BYTE_FALLBACK] = {"byte_fallback", 2},
    [FIELD_FUSE_UNK] = {"fuse_unk", 2},
    [FIELD_UNK_TOKEN] = {"unk_token", 2},
    [FIELD_IGNORE_MERGES] = {"ignore_merges", 2},
    [FIELD_DROPOUT] = {"dropout", 2},
    [FIELD_CONTINUING_PREFIX] = {"continuing_subword_prefix", 2},
    [FIELD_WORD_SUFFIX] = {"end_of_word_suffix", 2},
    [FIELD_NORMALIZER] = {"normalizer", 1},
    [FIELD_PRE_TOKENIZER] = {"pre_tokenizer", 1},
    [FIELD_POST_PROCESSOR] = {"post_processor", 1},
    [FIELD_DECODER] = {"decoder", 1},
    [FIELD_TRUNCATION] = {"truncation", 1},
    [FIELD_PADDING] = {"padding", 1},
    [FIELD_ADDED_TOKENS] = {"added_tokens", 1},
};

typedef struct reader {
    vocab_source source;
    const char *data;
    size_t bytes;
    yajl_handle yajl;
    kakeya_error *error;
    kakeya_status status;

    int depth;     /* open objects and arrays */
    bool in_model; /* the object at depth 2 is "model" */
    field field;   /* of the last key at depth 1 or 2 */
    bool seen[FIELD_COUNT];

    text_span key; /* the piece whose id comes next */
    text_span pair[2];
    int pair_length;
    bool merges_of_pairs, merges_of_texts; /* one of the two: a file has merges of one form */

    bool byte_fallback;
    size_t section_begin;
    text_span sections[FIELD_COUNT]; /* in data; bytes 0: absent or null */
} reader;

enum { MAX_DEPTH = 64 };

/* The position behind the event being handled. */
static size_t position(const reader *r) { return yajl_get_bytes_consumed(r->yajl); }

static size_t line_of(const reader *r, size_t offset) {
    size_t line = 1;
    for (size_t i = 0; i < offset && i < r->bytes; i++) line += r->data[i] == '\n';
    return line;
}

static int fail(reader *r, kakeya_status status, const char *what) {
    size_t at = position(r);
    r->status = error_set(r->error, status, "%s: line %zu, byte %zu: %s", r->source.name, line_of(r, at), at, what);
    return 0;
}

static int out_of_memory(reader *r) {
    r->status = error_set(r->error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", r->source.name);
    return 0;
}

static bool in_vocab(const reader *r) { return r->in_model && r->field == FIELD_VOCAB && r->depth >= 3; }
static bool in_merges(const reader *r) { return r->in_model && r->field == FIELD_MERGES && r->depth >= 3; }

/* A scalar where a value of `field` stands whole, at the depth of its key. */
static bool at_field(const reader *r, field which) {
    return r->field == which && r->depth == fields[which].depth && (r->depth == 1 || r->in_model);
}

static int wrong_type(reader *r) {
    char what[128];
    if (in_vocab(r)) return fail(r, KAKEYA_FORMAT, "an id in model.vocab is not an integer");
    if (in_merges(r)) {
        return fail(r, KAKEYA_FORMAT, "a merge is neither two pieces in an array nor two pieces around one space");
    }
    snprintf(what, sizeof what, "%s%s has the wrong type", fields[r->field].depth == 2 ? "model." : "",
             fields[r->field].key);
    return fail(r, KAKEYA_FORMAT, what);
}

/* Any scalar that none of the handlers below expects. */
static int other_scalar(reader *r) {
    if (r->depth == 0) return fail(r, KAKEYA_FORMAT, "a tokenizer is an object");
    if (in_vocab(r) || in_merges(r)) return wrong_type(r);
    for (field f = FIELD_VERSION; f < FIELD_COUNT; f++) {
        if (at_field(r, f)) return wrong_type(r);
    }
    return 1;
}

static int on_null(void *context) {
    reader *r = context;
    static const field needing[] = {FIELD_VERSION, FIELD_MODEL,  FIELD_MODEL_TYPE,
                                    FIELD_VOCAB,   FIELD_MERGES, FIELD_ADDED_TOKENS};
    bool needed = in_vocab(r) || in_merges(r) || r->depth == 0;
    for (size_t i = 0; i < sizeof needing / sizeof *needing; i++) needed = needed || at_field(r, needing[i]);
    return needed ? other_scalar(r) : 1;
}

static int on_boolean(void *context, int value) {
    reader *r = context;
    if (at_field(r, FIELD_BYTE_FALLBACK)) {
        r->byte_fallback = value != 0;
        return 1;
    }
    if (at_field(r, FIELD_FUSE_UNK)) return 1;
    if (at_field(r, FIELD_IGNORE_MERGES)) {
        return value ? fail(r, KAKEYA_UNSUPPORTED, "model.ignore_merges is true; only false is supported") : 1;
    }
    return other_scalar(r);
}

/* Numbers come as they are written: an id is made of digits alone, for the reader whose form this is. */
static int on_number(void *context, const char *text, size_t bytes) {
    reader *r = context;
    if (in_vocab(r)) {
        long long value = 0;
        size_t digits = 0;
        while (digits < bytes && text[digits] >= '0' && text[digits] <= '9' && value < INT32_MAX)
            value = 10 * value + (text[digits++] - '0');
        bool negative = text[0] == '-' && bytes > 1 && text[1] != '0';
        if (r->depth != 3 || memchr(text, '.', bytes) || memchr(text, 'e', bytes) || memchr(text, 'E', bytes) ||
            (digits == 0 && !negative))
            return wrong_type(r);
        if (digits < bytes || value >= INT32_MAX) return fail(r, KAKEYA_FORMAT, "an id in model.vocab is out of range");
        vocab_entry entry = {.text = r->key, .id = (int32_t)value};
        return vocab_source_entry(&r->source, entry) ? 1 : out_of_memory(r);
    }
    if (at_field(r, FIELD_DROPOUT)) {
        bool nothing = true; /* no digit but zeros before an exponent */
        for (size_t i = 0; i < bytes && text[i] != 'e' && text[i] != 'E'; i++)
            nothing = nothing && (text[i] < '1' || text[i] > '9');
        return nothing ? 1 : fail(r, KAKEYA_UNSUPPORTED, "model.dropout is not 0");
    }
    return other_scalar(r);
}

static int on_merge_piece(reader *r, const char *text, size_t bytes) {
    static const char version[] = "#version"; /* a line of the merges.txt that such lists were */
    text_buffer *buffer = &r->source.merge_text;
    if (r->depth == 3 && !r->merges_of_pairs && bytes >= strlen(version) && memcmp(text, version, strlen(version)) == 0)
        return 1;
    *(r->depth == 4 ? &r->merges_of_pairs : &r->merges_of_texts) = true;
    if (r->merges_of_pairs && r->merges_of_texts) return fail(r, KAKEYA_FORMAT, "merges have two forms");
    if (r->depth == 4) {
        if (r->pair_length == 2) return wrong_type(r);
        return text_buffer_add(buffer, text, bytes, &r->pair[r->pair_length++]) ? 1 : out_of_memory(r);
    }
    const char *space = memchr(text, ' ', bytes);
    if (r->depth != 3 || !space || memchr(space + 1, ' ', bytes - (size_t)(space + 1 - text))) return wrong_type(r);
    size_t left_bytes = (size_t)(space - text);
    text_span left, right;
    bool added = text_buffer_add(buffer, text, left_bytes, &left) &&
                 text_buffer_add(buffer, space + 1, bytes - left_bytes - 1, &right) &&
                 vocab_source_merge(&r->source, left, right);
    return added ? 1 : out_of_memory(r);
}

static int on_string(void *context, const unsigned char *value, size_t bytes) {
    reader *r = context;
    const char *text = (const char *)value;
    if (in_merges(r)) return on_merge_piece(r, text, bytes);
    if (at_field(r, FIELD_MODEL_TYPE)) {
        if (bytes == 3 && memcmp(text, "BPE", 3) == 0) return 1;
        char what[160];
        snprintf(what, sizeof what, "model.type is \"%.*s\"; only \"BPE\" is supported", bytes < 64 ? (int)bytes : 64,
                 text);
        return fail(r, KAKEYA_UNSUPPORTED, what);
    }
    if (at_field(r, FIELD_UNK_TOKEN)) return 1;
    if (at_field(r, FIELD_VERSION)) {
        return bytes == 3 && memcmp(text, "1.0", 3) == 0 ? 1 : fail(r, KAKEYA_UNSUPPORTED, "version is not \"1.0\"");
    }
    if (at_field(r, FIELD_CONTINUING_PREFIX) || at_field(r, FIELD_WORD_SUFFIX)) {
        char what[160];
        if (bytes == 0) return 1;
        snprintf(what, sizeof what, "model.%s is \"%.*s\"; only null is supported", fields[r->field].key,
                 bytes < 64 ? (int)bytes : 64, text);
        return fail(r, KAKEYA_UNSUPPORTED, what);
    }
    return other_scalar(r);
}

static int on_key(void *context, const unsigned char *value, size_t bytes) {
    reader *r = context;
    const char *text = (const char *)value;
    if (in_vocab(r)) {
        return text_buffer_add(&r->source.piece_text, text, bytes, &r->key) ? 1 : out_of_memory(r);
    }
    if (r->depth > 2 || (r->depth == 2 && !r->in_model)) return 1;
    r->field = FIELD_OTHER;
    for (field f = FIELD_VERSION; f < FIELD_COUNT; f++) {
        if (fields[f].depth != r->depth || strlen(fields[f].key) != bytes || memcmp(fields[f].key, text, bytes) != 0) {
            continue;
        }
        if (r->seen[f]) {
            char what[128];
            snprintf(what, sizeof what, "the key \"%s\" appears twice", fields[f].key);
            return fail(r, KAKEYA_FORMAT, what);
        }
        r->seen[f] = true;
        r->field = f;
    }
    if (r->depth == 1 && r->field == FIELD_OTHER) {
        char what[160];
        snprintf(what, sizeof what, "the key \"%.*s\" is no section of a tokenizer", bytes < 64 ? (int)bytes : 64,
                 text);
        return fail(r, KAKEYA_FORMAT, what);
    }
    return 1;
}

static int open_value(reader *r, bool object) {
    if (r->depth == 0 && !object) return fail(r, KAKEYA_FORMAT, "a tokenizer is an object");
    if (r->depth == MAX_DEPTH) return fail(r, KAKEYA_FORMAT, "nested too deep");
    if (in_vocab(r)) return wrong_type(r);
    if (in_merges(r)) {
        if (r->depth != 3 || object) return wrong_type(r);
        r->pair_length = 0;
    }
    if (r->depth == 1 && r->field >= FIELD_NORMALIZER) r->section_begin = position(r) - 1;
    if (at_field(r, FIELD_VERSION)) return wrong_type(r);
    if (at_field(r, FIELD_MODEL)) {
        if (!object) return wrong_type(r);
        r->in_model = true;
    } else if (at_field(r, FIELD_VOCAB) || at_field(r, FIELD_MERGES)) {
        if (object != (r->field == FIELD_VOCAB)) return wrong_type(r);
    } else if (r->depth == 2 && r->in_model && r->field != FIELD_OTHER) {
        return wrong_type(r);
    }
    r->depth++;
    return 1;
}

static int close_value(reader *r) {
    r->depth--;
    if (r->depth == 3 && in_merges(r)) {
        if (r->pair_length != 2) return wrong_type(r);
        return vocab_source_merge(&r->source, r->pair[0], r->pair[1]) ? 1 : out_of_memory(r);
    }
    if (r->depth == 2 && r->in_model) r->field = FIELD_OTHER;
    if (r->depth == 1) {
        if (r->field >= FIELD_NORMALIZER) {
            r->sections[r->field] =
                (text_span){.offset = r->section_begin, .bytes = (uint32_t)(position(r) - r->section_begin)};
        }
        r->in_model = false;
        r->field = FIELD_OTHER;
    }
    return 1;
}

static int on_start_map(void *context) { return open_value(context, true); }
static int on_start_array(void *context) { return open_value(context, false); }
static int on_end(void *context) { return close_value(context); }

static const yajl_callbacks callbacks = {
    .yajl_null = on_null,
    .yajl_boolean = on_boolean,
    .yajl_number = on_number,
    .yajl_string = on_string,
    .yajl_start_map = on_start_map,
    .yajl_map_key = on_key,
    .yajl_end_map = on_end,
    .yajl_start_array = on_start_array,
    .yajl_end_array = on_end,
};

static int hex4(const char *text, size_t bytes) {
    unsigned value = 0;
    char digits[5] = {0};
    int used = 0;
    if (bytes < 4) return -1;
    memcpy(digits, text, 4);
    return sscanf(digits, "%4x%n", &value, &used) == 1 && used == 4 ? (int)value : -1;
}

/* The first \\u escape of half a surrogate pair, which is no character; `bytes` where there is none. */
static size_t find_lone_surrogate(const char *data, size_t bytes) {
    const char *end = data + bytes, *at = data;
    while ((at = memmem(at, (size_t)(end - at), "\\u", 2))) {
        size_t slashes = 0; /* before this one; an odd number means that this one is escaped itself */
        while (at - slashes > data && at[-1 - (ptrdiff_t)slashes] == '\\') slashes++;
        int code = slashes % 2 ? -1 : hex4(at + 2, (size_t)(end - at) - 2);
        size_t left = (size_t)(end - at);
        if (code >= 0xD800 && code < 0xDC00) {
            int low = left >= 12 && at[6] == '\\' && at[7] == 'u' ? hex4(at + 8, left - 8) : -1;
            if (low < 0xDC00 || low > 0xDFFF) return (size_t)(at - data);
            at += 12;
        } else if (code >= 0xDC00 && code < 0xE000) {
            return (size_t)(at - data);
        } else {
            at += 2;
        }
    }
    return bytes;
}

static kakeya_status parse(reader *r) {
    size_t valid = utf8_valid_bytes(r->data, r->bytes), lone = find_lone_surrogate(r->data, r->bytes);
    size_t first = valid < lone ? valid : lone;
    if (first < r->bytes)
        return error_set(r->error, KAKEYA_FORMAT, "%s: line %zu, byte %zu: %s", r->source.name, line_of(r, first),
                         first, valid < lone ? "not UTF-8" : "half a surrogate pair");
    r->yajl = yajl_alloc(&callbacks, NULL, r);
    if (!r->yajl) {
        out_of_memory(r);
        return r->status;
    }
    yajl_config(r->yajl, yajl_dont_validate_strings, 1); /* done */
    yajl_status result = yajl_parse(r->yajl, (const unsigned char *)r->data, r->bytes);
    size_t at = position(r);
    if (result == yajl_status_ok) result = yajl_complete_parse(r->yajl);
    if (result == yajl_status_error) {
        unsigned char *reason = yajl_get_error(r->yajl, 0, NULL, 0);
        size_t length = reason ? strcspn((const char *)reason, "\n") : 0;
        r->status = error_set(r->error, KAKEYA_FORMAT, "%s: line %zu, byte %zu: %.*s", r->source.name, line_of(r, at),
                              at, (int)length, reason ? (const char *)reason : "");
        if (reason) yajl_free_error(r->yajl, reason);
    }
    yajl_free(r->yajl);
    r->yajl = NULL;
    return r->status;
}

/* ------------------------------------------------------------------------------------ the small sections */

static bool string_is(const cJSON *object, const char *key, const char *value) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsString(item) && strcmp(item->valuestring, value) == 0;
}

/* {"String": text}, and nothing beside it */
static bool is_pattern(const cJSON *item, const char *text) {
    const cJSON *pattern = cJSON_GetObjectItemCaseSensitive(item, "pattern");
    return string_is(pattern, "String", text) && cJSON_GetArraySize(pattern) == 1;
}

/* {"type": "Replace", "pattern": {"String": from}, "content": to} */
static bool is_replace(const cJSON *item, const char *from, const char *to) {
    return string_is(item, "type", "Replace") && is_pattern(item, from) && string_is(item, "content", to);
}

static bool is_gemma_normalizer(const cJSON *item) { return is_replace(item, " ", TOKENIZER_SPACE); }

static bool is_gemma_pre_tokenizer(const cJSON *item) {
    return string_is(item, "type", "Split") && is_pattern(item, " ") &&
           string_is(item, "behavior", "MergedWithPrevious") &&
           cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(item, "invert"));
}

static bool is_gemma_decoder(const cJSON *item) {
    const cJSON *steps = cJSON_GetObjectItemCaseSensitive(item, "decoders");
    return string_is(item, "type", "Sequence") && cJSON_IsArray(steps) && cJSON_GetArraySize(steps) == 3 &&
           is_replace(cJSON_GetArrayItem(steps, 0), TOKENIZER_SPACE, " ") &&
           string_is(cJSON_GetArrayItem(steps, 1), "type", "ByteFallback") &&
           string_is(cJSON_GetArrayItem(steps, 2), "type", "Fuse");
}

static bool is_count(const cJSON *object, const char *key) {
    return json_is_integer(cJSON_GetObjectItemCaseSensitive(object, key), 0, UINT32_MAX);
}

static bool string_is_one_of(const cJSON *object, const char *key, const char *const *values) {
    while (*values && !string_is(object, key, *values)) values++;
    return *values != NULL;
}

static const char *const directions[] = {"Left", "Right", NULL};

/* Truncation and padding are the caller's business; they must only be what they are for the form's own reader. */
static bool is_truncation(const cJSON *item) {
    static const char *const strategies[] = {"LongestFirst", "OnlyFirst", "OnlySecond", NULL};
    return (!cJSON_GetObjectItemCaseSensitive(item, "direction") || string_is_one_of(item, "direction", directions)) &&
           is_count(item, "max_length") && string_is_one_of(item, "strategy", strategies) && is_count(item, "stride");
}

static bool is_padding(const cJSON *item) {
    const cJSON *multiple = cJSON_GetObjectItemCaseSensitive(item, "pad_to_multiple_of"),
                *strategy = cJSON_GetObjectItemCaseSensitive(item, "strategy");
    return (string_is(item, "strategy", "BatchLongest") ||
            (cJSON_IsObject(strategy) && cJSON_GetArraySize(strategy) == 1 && is_count(strategy, "Fixed"))) &&
           string_is_one_of(item, "direction", directions) &&
           (!multiple || cJSON_IsNull(multiple) || is_count(item, "pad_to_multiple_of")) && is_count(item, "pad_id") &&
           is_count(item, "pad_type_id") && cJSON_IsString(cJSON_GetObjectItemCaseSensitive(item, "pad_token"));
}

/* Whether a number of a section is written in another way than by digits, as no id and no count may be. */
static bool has_other_numbers(const char *text, size_t bytes) {
    bool in_string = false;
    for (size_t i = 0; i < bytes; i++) {
        char c = text[i];
        if (in_string)
            i += c == '\\';
        else if (c == '-' || c == '.' || ((c == 'e' || c == 'E') && i && text[i - 1] >= '0' && text[i - 1] <= '9'))
            return true;
        if (c == '"') in_string = !in_string;
    }
    return false;
}

/* The section as JSON, NULL with KAKEYA_OK where it is absent or null. */
static kakeya_status section(const reader *r, field which, cJSON **out) {
    *out = NULL;
    text_span span = r->sections[which];
    if (span.bytes == 0) return KAKEYA_OK;
    const char *text = r->data + span.offset;
    bool counts = which >= FIELD_TRUNCATION || which == FIELD_POST_PROCESSOR;
    if (counts && has_other_numbers(text, span.bytes))
        return error_set(r->error, KAKEYA_FORMAT, "%s: a number of %s is not an id: it is not made of digits only",
                         r->source.name, fields[which].key);
    kakeya_status status = json_parse(r->source.name, text, span.bytes, out, r->error);
    if (!status) status = json_refuse_repeated_keys(r->source.name, *out, r->error);
    if (status) {
        cJSON_Delete(*out);
        *out = NULL;
    }
    return status ? error_prefix(r->error, status, "%s: %s", r->source.name, fields[which].key) : status;
}

static kakeya_status unsupported(const reader *r, field which, const char *expected) {
    text_span span = r->sections[which];
    enum { SHOWN = 200 };
    return error_set(r->error, KAKEYA_UNSUPPORTED, "%s: %s is %.*s%s; only %s is supported", r->source.name,
                     fields[which].key, span.bytes ? (int)(span.bytes < SHOWN ? span.bytes : SHOWN) : 4,
                     span.bytes ? r->data + span.offset : "null", span.bytes > SHOWN ? "..." : "", expected);
}

static kakeya_status check_section(const reader *r, field which, bool (*accept)(const cJSON *item), bool optional,
                                   const char *expected) {
    cJSON *item;
    kakeya_status status = section(r, which, &item);
    if (!status && !(item ? accept(item) : optional)) status = unsupported(r, which, expected);
    cJSON_Delete(item);
    return status;
}

/* Appends the text with U+2581 for every space, which is all that Gemma's normalizer does. */
static bool add_normalized(text_buffer *buffer, const char *text, text_span *span) {
    size_t bytes = 0, length = strlen(text);
    char *normalized = malloc(length * TOKENIZER_SPACE_BYTES + 1);
    if (!normalized) return false;
    for (size_t i = 0; i < length; i++) {
        bool space = text[i] == ' ';
        memcpy(normalized + bytes, space ? TOKENIZER_SPACE : text + i, space ? TOKENIZER_SPACE_BYTES : 1);
        bytes += space ? TOKENIZER_SPACE_BYTES : 1;
    }
    bool added = text_buffer_add(buffer, normalized, bytes, span);
    free(normalized);
    return added;
}

static kakeya_status read_added_token(reader *r, const cJSON *item) {
    static const char *const unsupported_flags[] = {"single_word", "lstrip", "rstrip"};
    static const char *const flags[] = {"single_word", "lstrip", "rstrip", "normalized", "special"};
    const char *name = r->source.name;
    const cJSON *content = cJSON_GetObjectItemCaseSensitive(item, "content");
    const cJSON *id = cJSON_GetObjectItemCaseSensitive(item, "id");
    if (!cJSON_IsString(content) || !json_is_integer(id, 0, INT32_MAX - 1)) {
        return error_set(r->error, KAKEYA_FORMAT, "%s: an added token has no \"content\" or no integer \"id\"", name);
    }
    for (size_t i = 0; i < sizeof unsupported_flags / sizeof *unsupported_flags; i++) {
        if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(item, unsupported_flags[i]))) {
            return error_set(r->error, KAKEYA_UNSUPPORTED,
                             "%s: added token \"%s\" has %s true; only false is supported", name, content->valuestring,
                             unsupported_flags[i]);
        }
    }
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        if (!cJSON_IsBool(cJSON_GetObjectItemCaseSensitive(item, flags[i])))
            return error_set(r->error, KAKEYA_FORMAT, "%s: added token \"%s\": %s is neither true nor false", name,
                             content->valuestring, flags[i]);
    }
    bool special = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(item, "special"));
    vocab_entry entry = {.id = (int32_t)id->valuedouble,
                         .flags = (uint8_t)(PIECE_ADDED | (special ? PIECE_SPECIAL : 0)),
                         .normalized = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(item, "normalized"))};
    text_buffer *buffer = &r->source.piece_text;
    bool added = text_buffer_add(buffer, content->valuestring, strlen(content->valuestring), &entry.text);
    entry.looked_for = entry.text;
    if (entry.normalized) added = added && add_normalized(buffer, content->valuestring, &entry.looked_for);
    if (!added || !vocab_source_entry(&r->source, entry)) {
        return error_set(r->error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", name);
    }
    return KAKEYA_OK;
}

static kakeya_status read_added_tokens(reader *r) {
    cJSON *list;
    kakeya_status status = section(r, FIELD_ADDED_TOKENS, &list);
    if (!status && list && !cJSON_IsArray(list)) status = unsupported(r, FIELD_ADDED_TOKENS, "an array");
    const cJSON *item;
    cJSON_ArrayForEach(item, list) {
        if (!status) status = read_added_token(r, item);
    }
    cJSON_Delete(list);
    return status;
}

/* {"id": name, "ids": [ids], "tokens": [texts]}, for each of a template's special tokens */
static bool is_definition(const cJSON *item) {
    const cJSON *tokens = cJSON_GetObjectItemCaseSensitive(item, "tokens"), *token;
    if (!cJSON_IsString(cJSON_GetObjectItemCaseSensitive(item, "id")) || !cJSON_IsArray(tokens)) return false;
    cJSON_ArrayForEach(token, tokens) {
        if (!cJSON_IsString(token)) return false;
    }
    return true;
}

/* {"SpecialToken": {"id": name, "type_id": n}}, or the same of "Sequence" with A or B */
static bool are_parts(const cJSON *list) {
    const cJSON *part;
    if (!cJSON_IsArray(list)) return false;
    cJSON_ArrayForEach(part, list) {
        const cJSON *only = cJSON_IsObject(part) && cJSON_GetArraySize(part) == 1 ? part->child : NULL;
        bool sequence = only && strcmp(only->string, "Sequence") == 0;
        if (!only || (!sequence && strcmp(only->string, "SpecialToken") != 0) || !is_count(only, "type_id"))
            return false;
        if (!cJSON_IsString(cJSON_GetObjectItemCaseSensitive(only, "id"))) return false;
        if (sequence && !string_is(only, "id", "A") && !string_is(only, "id", "B")) return false;
    }
    return true;
}

/* A template's special token stands for the ids that its definition lists. */
static bool add_template_ids(const tokenizer_tables *t, const cJSON *definition, int32_t *ids, size_t *n) {
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(definition, "ids");
    if (!cJSON_IsArray(list) || !is_definition(definition)) return false;
    const cJSON *id;
    cJSON_ArrayForEach(id, list) {
        if (!json_is_integer(id, 0, (double)t->n_pieces - 1) || *n == TOKENIZER_MAX_TEMPLATE) return false;
        if (!tokenizer_piece_at(t, (int32_t)id->valuedouble)) return false;
        ids[(*n)++] = (int32_t)id->valuedouble;
    }
    return true;
}

/* TemplateProcessing: special tokens around the one sequence A. */
static bool read_template(tokenizer_tables *t, const cJSON *processor) {
    const cJSON *single = cJSON_GetObjectItemCaseSensitive(processor, "single");
    const cJSON *definitions = cJSON_GetObjectItemCaseSensitive(processor, "special_tokens");
    if (!string_is(processor, "type", "TemplateProcessing") || !are_parts(single)) return false;
    if (!are_parts(cJSON_GetObjectItemCaseSensitive(processor, "pair"))) return false;
    bool have_sequence = false;
    const cJSON *part;
    cJSON_ArrayForEach(part, single) {
        const cJSON *token = cJSON_GetObjectItemCaseSensitive(part, "SpecialToken");
        const cJSON *sequence = cJSON_GetObjectItemCaseSensitive(part, "Sequence");
        if (token) {
            const cJSON *id = cJSON_GetObjectItemCaseSensitive(token, "id");
            if (!cJSON_IsString(id)) return false;
            const cJSON *definition = cJSON_GetObjectItemCaseSensitive(definitions, id->valuestring);
            if (!(have_sequence ? add_template_ids(t, definition, t->suffix, &t->n_suffix)
                                : add_template_ids(t, definition, t->prefix, &t->n_prefix))) {
                return false;
            }
        } else {
            if (have_sequence || !string_is(sequence, "id", "A")) return false;
            have_sequence = true;
        }
    }
    return have_sequence;
}

static kakeya_status read_post_processor(const reader *r, tokenizer_tables *t) {
    cJSON *item;
    kakeya_status status = section(r, FIELD_POST_PROCESSOR, &item);
    if (!status && item && !read_template(t, item)) {
        status =
            unsupported(r, FIELD_POST_PROCESSOR,
                        "null or a TemplateProcessing of special tokens (ids of the vocabulary) around sequence A");
    }
    cJSON_Delete(item);
    return status;
}

static kakeya_status check_form(const reader *r) {
    static const field required[] = {FIELD_MODEL, FIELD_MODEL_TYPE, FIELD_VOCAB, FIELD_MERGES};
    for (size_t i = 0; i < sizeof required / sizeof *required; i++) {
        field f = required[i];
        if (!r->seen[f]) {
            return error_set(r->error, KAKEYA_FORMAT, "%s: %s%s is missing", r->source.name,
                             fields[f].depth == 2 ? "model." : "", fields[f].key);
        }
    }
    if (!r->byte_fallback) {
        return error_set(r->error, KAKEYA_UNSUPPORTED, "%s: model.byte_fallback is not true; only true is supported",
                         r->source.name);
    }
    kakeya_status status = check_section(r, FIELD_NORMALIZER, is_gemma_normalizer, false, "Replace of \" \" by U+2581");
    if (!status) {
        status = check_section(r, FIELD_PRE_TOKENIZER, is_gemma_pre_tokenizer, true,
                               "null or Split at \" \", merged with previous");
    }
    if (!status) status = check_section(r, FIELD_TRUNCATION, is_truncation, true, "null or a truncation");
    if (!status) status = check_section(r, FIELD_PADDING, is_padding, true, "null or a padding");
    if (!status) {
        status = check_section(r, FIELD_DECODER, is_gemma_decoder, false,
                               "the sequence Replace U+2581 by \" \", ByteFallback, Fuse");
    }
    return status;
}

kakeya_status tokenizer_load(const char *name, const char *data, size_t bytes, tokenizer_tables **out,
                             kakeya_error *error) {
    *out = NULL;
    if (bytes > UINT32_MAX) {
        return error_set(error, KAKEYA_UNSUPPORTED, "%s: %zu bytes are too many for a tokenizer", name, bytes);
    }
    kakeya_status status = foreign_refuse(name, data, bytes, error);
    if (status) return status;
    size_t mark = json_mark_bytes(data, bytes);
    reader r = {
        .source = {.name = name, .merges_must_fit = true}, .data = data + mark, .bytes = bytes - mark, .error = error};
    tokenizer_tables *t = NULL;
    status = parse(&r);
    if (!status) status = check_form(&r);
    if (!status) status = read_added_tokens(&r);
    if (!status) status = tokenizer_build(&r.source, &t, error);
    if (!status) status = read_post_processor(&r, t);
    vocab_source_free(&r.source);
    if (status) {
        tokenizer_tables_free(t);
        return status;
    }
    *out = t;
    return KAKEYA_OK;
}
