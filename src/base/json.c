#include "base/json.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static kakeya_status syntax_error(const char *name, const char *text, size_t position, const char *what,
                                  kakeya_error *error) {
    size_t line = 1;
    for (size_t i = 0; i < position; i++) line += text[i] == '\n';
    return error_set(error, KAKEYA_FORMAT, "%s: malformed JSON at line %zu, byte %zu: %s", name, line, position, what);
}

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static size_t digits_end(const char *text, size_t bytes, size_t i) {
    while (i < bytes && is_digit(text[i])) i++;
    return i;
}

/* The end of the number at `i`, or `i` where none of JSON's form is: cJSON would also take 007, 1. and -.5 for numbers.
 */
static size_t number_end(const char *text, size_t bytes, size_t i) {
    size_t at = i + (text[i] == '-');
    size_t end = at < bytes && text[at] == '0' ? at + 1 : digits_end(text, bytes, at);
    if (end == at) return i;
    at = end;
    if (at < bytes && text[at] == '.') {
        end = digits_end(text, bytes, at + 1);
        if (end == at + 1) return i;
        at = end;
    }
    if (at < bytes && (text[at] == 'e' || text[at] == 'E')) {
        at++;
        if (at < bytes && (text[at] == '+' || text[at] == '-')) at++;
        end = digits_end(text, bytes, at);
        if (end == at) return i;
        at = end;
    }
    return at < bytes && (is_digit(text[at]) || text[at] == '.') ? i : at;
}

static bool starts(const char *text, size_t bytes, size_t i, const char *word) {
    size_t length = strlen(word);
    return bytes - i >= length && memcmp(text + i, word, length) == 0;
}

/* What cJSON does not see to: it recurses, so the depth is limited; it takes malformed numbers; and of a text or a key
 * it keeps what stands before a NUL. Returns `bytes`, or the position of what is wrong with *what set. Anything else
 * that is wrong is left to the parser. */
static size_t find_problem(const char *text, size_t bytes, const char **what) {
    static const char too_deep[] = "nested deeper than 64 levels";
    static const char no_number[] = "NaN and Infinity, which Python writes, are not JSON";
    _Static_assert(JSON_MAX_DEPTH == 64, "the message names the limit");
    size_t depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < bytes; i++) {
        char c = text[i];
        if (c == '\0') {
            *what = "a NUL";
            return i;
        }
        if (in_string) {
            *what = "a string contains NUL";
            if (starts(text, bytes, i, "\\u0000")) return i;
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (starts(text, bytes, i, "NaN") || starts(text, bytes, i, "Infinity") ||
                   starts(text, bytes, i, "-Infinity")) {
            *what = no_number;
            return i;
        } else if (c == '{' || c == '[') {
            *what = too_deep;
            if (++depth > JSON_MAX_DEPTH) return i;
        } else if ((c == '}' || c == ']') && depth > 0) {
            depth--;
        } else if (c == '-' || is_digit(c)) {
            size_t end = number_end(text, bytes, i);
            *what = "malformed number";
            if (end == i) return i;
            i = end - 1;
        }
    }
    return bytes;
}

size_t json_most_values(const char *text, size_t bytes) {
    size_t values = 1; /* one, one more behind every comma, and one in every list or object */
    bool in_string = false;
    for (size_t i = 0; i < bytes; i++) {
        char c = text[i];
        if (c == '"') {
            in_string = !in_string;
        } else if (in_string) {
            i += c == '\\';
        } else {
            values += c == ',' || c == '[' || c == '{';
        }
    }
    return values;
}

size_t json_mark_bytes(const char *text, size_t bytes) {
    return bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
}

kakeya_status json_parse(const char *name, const char *text, size_t bytes, cJSON **out, kakeya_error *error) {
    *out = NULL;
    const char *what = NULL;
    size_t problem = find_problem(text, bytes, &what);
    if (problem < bytes) return syntax_error(name, text, problem, what, error);
    size_t start = 0;
    while (start < bytes && is_space(text[start])) start++;
    if (start == bytes) return syntax_error(name, text, bytes, "no value", error);

    const char *end = text;
    errno = 0; /* the parser has one failure for everything */
    cJSON *value = cJSON_ParseWithLengthOpts(text, bytes, &end, 0);
    size_t position = (size_t)(end - text);
    if (!value && errno == ENOMEM) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", name);
    if (!value) return syntax_error(name, text, position < bytes ? position : bytes, "unexpected text or end", error);
    while (position < bytes && is_space(text[position])) position++;
    if (position < bytes) {
        cJSON_Delete(value);
        return syntax_error(name, text, position, "text after the value", error);
    }
    *out = value;
    return KAKEYA_OK;
}

kakeya_status json_parse_object(const char *name, const char *text, size_t bytes, cJSON **out, kakeya_error *error) {
    kakeya_status status = json_parse(name, text, bytes, out, error);
    if (status != KAKEYA_OK) return status;
    if (cJSON_IsObject(*out)) return KAKEYA_OK;
    cJSON_Delete(*out);
    *out = NULL;
    return error_set(error, KAKEYA_FORMAT, "%s: not a JSON object", name);
}

static int compare_keys(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static kakeya_status refuse_repeated_keys(const char *name, const cJSON *object, kakeya_error *error) {
    size_t n = (size_t)cJSON_GetArraySize(object), i = 0;
    const char **keys = malloc((n + 1) * sizeof *keys);
    if (!keys) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for its keys", name);
    const cJSON *item;
    cJSON_ArrayForEach(item, object) keys[i++] = item->string;
    qsort(keys, n, sizeof *keys, compare_keys);
    kakeya_status status = KAKEYA_OK;
    for (i = 1; i < n && status == KAKEYA_OK; i++) {
        if (strcmp(keys[i], keys[i - 1]) == 0)
            status = error_set(error, KAKEYA_FORMAT, "%s: the key \"%s\" appears twice", name, keys[i]);
    }
    free(keys);
    return status;
}

/* Parsed values are at most JSON_MAX_DEPTH deep. */
kakeya_status json_refuse_repeated_keys(const char *name, const cJSON *value, kakeya_error *error) {
    kakeya_status status = cJSON_IsObject(value) ? refuse_repeated_keys(name, value, error) : KAKEYA_OK;
    const cJSON *item;
    cJSON_ArrayForEach(item, value) {
        if (status == KAKEYA_OK) status = json_refuse_repeated_keys(name, item, error);
    }
    return status;
}

bool json_is_integer(const cJSON *item, double min, double max) {
    if (!cJSON_IsNumber(item)) return false;
    double value = item->valuedouble;
    return value >= min && value <= max && floor(value) == value;
}

void json_fail(json_reader *reader, kakeya_status status, const char *format, ...) {
    if (reader->status != KAKEYA_OK) return;
    char message[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    reader->status = error_set(reader->error, status, "%s: %s", reader->name, message);
}

const cJSON *json_get(const cJSON *object, const char *key) {
    const cJSON *item = object ? cJSON_GetObjectItemCaseSensitive(object, key) : NULL;
    return item && !cJSON_IsNull(item) ? item : NULL;
}

int json_int(json_reader *reader, const cJSON *object, const char *key, int min, int max, int fallback) {
    const cJSON *item = json_get(object, key);
    if (!item) return fallback;
    if (json_is_integer(item, min, max)) return (int)item->valuedouble;
    if (cJSON_IsNumber(item))
        json_fail(reader, KAKEYA_FORMAT, "%s is %.17g, expected an integer from %d to %d", key, item->valuedouble, min,
                  max);
    else
        json_fail(reader, KAKEYA_FORMAT, "%s is not a number", key);
    return fallback;
}

int json_required_int(json_reader *reader, const cJSON *object, const char *key, int min, int max) {
    if (!json_get(object, key)) json_fail(reader, KAKEYA_FORMAT, "%s is missing", key);
    return json_int(reader, object, key, min, max, min);
}

double json_number(json_reader *reader, const cJSON *object, const char *key, double min, double max, double fallback) {
    const cJSON *item = json_get(object, key);
    if (!item) return fallback;
    if (!cJSON_IsNumber(item)) {
        json_fail(reader, KAKEYA_FORMAT, "%s is not a number", key);
        return fallback;
    }
    double value = item->valuedouble;
    if (value >= min && value <= max) return value;
    json_fail(reader, KAKEYA_FORMAT, "%s is %g, expected a number from %g to %g", key, value, min, max);
    return fallback;
}

bool json_bool(json_reader *reader, const cJSON *object, const char *key, bool fallback) {
    const cJSON *item = json_get(object, key);
    if (!item) return fallback;
    if (cJSON_IsBool(item)) return cJSON_IsTrue(item);
    json_fail(reader, KAKEYA_FORMAT, "%s is neither true nor false", key);
    return fallback;
}

const char *json_string(json_reader *reader, const cJSON *object, const char *key, const char *fallback) {
    const cJSON *item = json_get(object, key);
    if (!item) return fallback;
    if (cJSON_IsString(item)) return item->valuestring;
    json_fail(reader, KAKEYA_FORMAT, "%s is not a string", key);
    return fallback;
}

const cJSON *json_object(json_reader *reader, const cJSON *object, const char *key) {
    const cJSON *item = json_get(object, key);
    if (!item || cJSON_IsObject(item)) return item;
    json_fail(reader, KAKEYA_FORMAT, "%s is not an object", key);
    return NULL;
}

const cJSON *json_array(json_reader *reader, const cJSON *object, const char *key) {
    const cJSON *item = json_get(object, key);
    if (!item || cJSON_IsArray(item)) return item;
    json_fail(reader, KAKEYA_FORMAT, "%s is not an array", key);
    return NULL;
}

int json_int_array(json_reader *reader, const cJSON *object, const char *key, int min, int max, int *out,
                   int capacity) {
    const cJSON *array = json_array(reader, object, key);
    const cJSON *item;
    int n = 0;
    cJSON_ArrayForEach(item, array) {
        if (n == capacity) {
            json_fail(reader, KAKEYA_FORMAT, "%s has %d entries, at most %d are supported", key,
                      cJSON_GetArraySize(array), capacity);
            return 0;
        }
        if (!json_is_integer(item, min, max)) {
            json_fail(reader, KAKEYA_FORMAT, "%s[%d] is not an integer from %d to %d", key, n, min, max);
            return 0;
        }
        out[n++] = (int)item->valuedouble;
    }
    return n;
}

bool json_add_reference(cJSON *object, const char *key, const cJSON *item) {
    cJSON *reference = item ? cJSON_CreateObjectReference(item->child) : NULL;
    if (!reference) return false;
    *reference = *item;
    reference->type |= cJSON_IsReference;
    reference->string = NULL;
    reference->next = reference->prev = NULL;
    if (cJSON_AddItemToObject(object, key, reference)) return true;
    cJSON_Delete(reference);
    return false;
}
