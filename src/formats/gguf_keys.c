#include "formats/gguf_keys.h"

#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

void gguf_keys_fail(gguf_keys *r, kakeya_status status, const char *format, ...) {
    if (r->status != KAKEYA_OK) return;
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    r->status = error_set(r->error, status, "%s: %s", gguf_path(r->file), text);
}

const char *gguf_keys_name(gguf_keys *r, const char *key) {
    if (!r->asked || strncmp(key, r->asked, strlen(r->asked)) != 0) return key;
    char *name = r->names[r->n_names++ % GGUF_KEYS_NAMES];
    snprintf(name, GGUF_KEYS_NAME_BYTES, "%s%s", r->written, key + strlen(r->asked));
    return name;
}

const gguf_value *gguf_keys_find(gguf_keys *r, const char *key) { return gguf_find(r->file, gguf_keys_name(r, key)); }

static void wrong_type(gguf_keys *r, const gguf_value *value, const char *expected) {
    gguf_keys_fail(r, KAKEYA_FORMAT, "key %s is %s%s, expected %s", value->key, value->array ? "an array of " : "",
                   gguf_value_type_name(value->type), expected);
}

static void missing(gguf_keys *r, const char *key) {
    gguf_keys_fail(r, KAKEYA_FORMAT, "key %s is missing", gguf_keys_name(r, key));
}

/* Element i within its limits. */
static long long checked_int(gguf_keys *r, const gguf_value *value, uint64_t i, long long min, long long max) {
    long long number = gguf_value_int(value, i);
    if (number >= min && number <= max) return number;
    if (value->array)
        gguf_keys_fail(r, KAKEYA_FORMAT, "key %s[%llu] is %lld, expected %lld to %lld", value->key,
                       (unsigned long long)i, number, min, max);
    else
        gguf_keys_fail(r, KAKEYA_FORMAT, "key %s is %lld, expected %lld to %lld", value->key, number, min, max);
    return min;
}

static bool is_float(const gguf_value *value, double *number) {
    float narrow;
    if (value->array) return false;
    if (value->type == GGUF_F64) memcpy(number, value->data, sizeof *number);
    if (value->type != GGUF_F32) return value->type == GGUF_F64;
    memcpy(&narrow, value->data, sizeof narrow);
    *number = (double)narrow;
    return true;
}

long long gguf_keys_int(gguf_keys *r, const char *key, long long min, long long max, long long fallback) {
    const gguf_value *value = gguf_keys_find(r, key);
    if (!value) return fallback;
    double number;
    if (!value->array && gguf_is_integer(value->type)) return checked_int(r, value, 0, min, max);
    if (is_float(value, &number) && number == floor(number)) {
        if (number >= (double)min && number <= (double)max) return (long long)number;
        gguf_keys_fail(r, KAKEYA_FORMAT, "key %s is %g, expected %lld to %lld", value->key, number, min, max);
        return fallback;
    }
    wrong_type(r, value, "a whole number");
    return fallback;
}

long long gguf_keys_required_int(gguf_keys *r, const char *key, long long min, long long max) {
    if (!gguf_keys_find(r, key)) missing(r, key);
    return gguf_keys_int(r, key, min, max, min);
}

double gguf_keys_number(gguf_keys *r, const char *key, double min, double max, double fallback) {
    const gguf_value *value = gguf_keys_find(r, key);
    if (!value) return fallback;
    double number = NAN;
    if (!value->array && gguf_is_integer(value->type)) {
        number = (double)gguf_value_int(value, 0);
    } else if (!is_float(value, &number)) {
        wrong_type(r, value, "a number");
        return fallback;
    }
    if (number >= min && number <= max) return number;
    gguf_keys_fail(r, KAKEYA_FORMAT, "key %s is %g, expected %g to %g", value->key, number, min, max);
    return fallback;
}

double gguf_keys_required_number(gguf_keys *r, const char *key, double min, double max) {
    if (!gguf_keys_find(r, key)) missing(r, key);
    return gguf_keys_number(r, key, min, max, max);
}

bool gguf_keys_bool(gguf_keys *r, const char *key, bool fallback) {
    const gguf_value *value = gguf_keys_find(r, key);
    if (!value) return fallback;
    if (!value->array && value->type == GGUF_BOOL) return value->data[0] != 0;
    wrong_type(r, value, "bool");
    return fallback;
}

bool gguf_keys_text(gguf_keys *r, const char *key, gguf_text *out) {
    const gguf_value *value = gguf_keys_find(r, key);
    if (!value) return false;
    if (value->array || value->type != GGUF_STRING) {
        wrong_type(r, value, "a string");
        return false;
    }
    size_t at = 0;
    *out = gguf_next_string(value, &at);
    return true;
}

bool gguf_keys_architecture(gguf_keys *r, gguf_text *out) {
    if (gguf_keys_text(r, "general.architecture", out)) return true;
    gguf_keys_fail(r, KAKEYA_FORMAT, "key general.architecture is missing");
    return false;
}

/* The value behind a key of n elements or one; NULL where that is not so. */
static const gguf_value *find_elements(gguf_keys *r, const char *key, int n) {
    const gguf_value *value = gguf_keys_find(r, key);
    if (!value) {
        missing(r, key);
    } else if (value->array && value->count != (uint64_t)n) {
        gguf_keys_fail(r, KAKEYA_FORMAT, "key %s has %llu elements, expected %d", value->key,
                       (unsigned long long)value->count, n);
        return NULL;
    }
    return value;
}

void gguf_keys_ints(gguf_keys *r, const char *key, int n, long long min, long long max, int *out) {
    const gguf_value *value = find_elements(r, key, n);
    if (value && !value->array) {
        int one = (int)gguf_keys_int(r, key, min, max, min);
        for (int i = 0; i < n; i++) out[i] = one;
        return;
    }
    if (value && !gguf_is_integer(value->type)) {
        wrong_type(r, value, "whole numbers");
        value = NULL;
    }
    for (int i = 0; i < n; i++) out[i] = value ? (int)checked_int(r, value, (uint64_t)i, min, max) : (int)min;
}

void gguf_keys_bools(gguf_keys *r, const char *key, int n, bool *out) {
    const gguf_value *value = find_elements(r, key, n);
    if (value && value->type != GGUF_BOOL && !gguf_is_integer(value->type)) {
        wrong_type(r, value, "booleans");
        value = NULL;
    }
    bool whole = value && value->type != GGUF_BOOL;
    for (int i = 0; i < n; i++) {
        uint64_t at = value && value->array ? (uint64_t)i : 0;
        out[i] = value && (whole ? checked_int(r, value, at, 0, 1) : gguf_value_int(value, at)) != 0;
    }
}

const gguf_value *gguf_keys_array(gguf_keys *r, const char *key, gguf_value_type type) {
    const gguf_value *value = gguf_keys_find(r, key);
    if (!value || (value->array && value->type == type)) return value;
    char expected[48];
    snprintf(expected, sizeof expected, "an array of %s", gguf_value_type_name(type));
    wrong_type(r, value, expected);
    return NULL;
}

int gguf_keys_token(const gguf *file, int vocab, const char *text) {
    const gguf_value *tokens = gguf_find(file, "tokenizer.ggml.tokens");
    if (!tokens || !tokens->array || tokens->type != GGUF_STRING) return -1;
    size_t at = 0;
    for (uint64_t i = 0; i < tokens->count; i++) {
        gguf_text piece = gguf_next_string(tokens, &at);
        if (gguf_text_is(piece, text)) return i < (uint64_t)vocab ? (int)i : -1;
    }
    return -1;
}
