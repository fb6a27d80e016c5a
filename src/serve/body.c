#include "serve/body.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/json_text.h"
#include "text/utf8.h"

enum { MOST_FIELDS = 1000 };

/* What the model, or a grammar, sees as it is spelled: the model's own numbers come back. And what takes 64 bits. */
static const char *const spelled[] = {"messages",      "input", "tools", "response_format", "text", "output_config",
                                      "output_format", "seed",  NULL};

bool body_parse(const char *bytes, size_t n, cJSON **out, api_error *error) {
    *out = NULL;
    size_t valid = utf8_valid_bytes(bytes, n);
    if (valid < n) return api_fail(error, 400, "invalid_utf8", NULL, "byte %zu of the body is not UTF-8", valid);
    if (json_most_values(bytes, n) > JSON_MAX_VALUES)
        return api_fail(error, 400, "invalid_json", NULL, "body: more than %d values", (int)JSON_MAX_VALUES);
    kakeya_error why = {0};
    if (json_text_parse("body", bytes, n, out, &why) != KAKEYA_OK)
        return api_fail_library(error, "invalid_json", NULL, &why);
    if (!cJSON_IsObject(*out)) {
        cJSON_Delete(*out);
        *out = NULL;
        return api_fail(error, 400, "invalid_json", NULL, "body: not a JSON object");
    }
    if (cJSON_GetArraySize(*out) > MOST_FIELDS) { /* every field that is known is looked for among all */
        cJSON_Delete(*out);
        *out = NULL;
        return api_fail(error, 400, "invalid_json", NULL, "body: more than %d fields", (int)MOST_FIELDS);
    }
    if (json_refuse_repeated_keys("body", *out, &why) != KAKEYA_OK) {
        cJSON_Delete(*out);
        *out = NULL;
        return api_fail_library(error, "invalid_json", NULL, &why);
    }
    if (body_keep_numbers(*out, bytes, n, spelled)) return true;
    cJSON_Delete(*out);
    *out = NULL;
    return api_out_of_memory(error);
}

enum { NODE = sizeof(cJSON) + 16, KEY = 32 }; /* with what malloc adds */

size_t body_value_bytes(const cJSON *value) {
    size_t bytes = NODE + (value->string ? strlen(value->string) + KEY : 0);
    if (value->valuestring) bytes += strlen(value->valuestring) + 1;
    for (const cJSON *item = value->child; item; item = item->next) bytes += body_value_bytes(item);
    return bytes;
}

size_t body_tree_bytes(const char *bytes, size_t n) {
    size_t values = json_most_values(bytes, n);
    if (values > JSON_MAX_VALUES) return 0; /* no tree is made of it */
    return n + values * (NODE + KEY);
}

/* --------------------------------------------------------------------------------------------------------- fields */

void fields_begin(fields *f, const cJSON *object, const char *path, api_error *error) {
    *f = (fields){.object = object, .path = path, .error = error};
}

const cJSON *fields_get(fields *f, const char *name) {
    size_t place = 0;
    for (const cJSON *item = f->object ? f->object->child : NULL; item; item = item->next, place++) {
        if (strcmp(item->string, name) != 0) continue;
        if (place < FIELDS_MAX) f->known[place] = 1;
        return cJSON_IsNull(item) ? NULL : item;
    }
    return NULL;
}

void fields_show(const cJSON *value, char out[80]) {
    enum { SHOWN = 64 };
    char *json = cJSON_IsObject(value) ? NULL : json_text_print(value);
    const char *shown = cJSON_IsObject(value) ? "an object" : json ? json : "?";
    size_t bytes = strlen(shown);
    if (bytes > SHOWN) {
        bytes = SHOWN;
        while (bytes && ((unsigned char)shown[bytes] & 0xC0) == 0x80) bytes--;
        snprintf(out, 80, "%.*s...", (int)bytes, shown);
    } else {
        snprintf(out, 80, "%s", shown);
    }
    cJSON_free(json);
}

static bool wrong(fields *f, const char *code, const char *name, const cJSON *value, const char *expected) {
    char shown[80], param[160];
    fields_show(value, shown);
    snprintf(param, sizeof param, "%s%s", f->path, name);
    return api_fail(f->error, 400, code, param, "%s: %s is not %s", param, shown, expected);
}

bool fields_wrong_type(fields *f, const char *name, const cJSON *value, const char *expected) {
    return wrong(f, "invalid_type", name, value, expected);
}
bool fields_wrong_value(fields *f, const char *name, const cJSON *value, const char *expected) {
    return wrong(f, "invalid_value", name, value, expected);
}

bool fields_bool(fields *f, const char *name, bool fallback) {
    const cJSON *item = fields_get(f, name);
    if (!item) return fallback;
    if (!cJSON_IsBool(item)) return fields_wrong_type(f, name, item, "true or false"), fallback;
    return cJSON_IsTrue(item);
}

double fields_number(fields *f, const char *name, double min, double max, double fallback) {
    const cJSON *item = fields_get(f, name);
    if (!item) return fallback;
    char expected[96];
    snprintf(expected, sizeof expected, "a number from %g to %g", min, max);
    if (!cJSON_IsNumber(item)) return fields_wrong_type(f, name, item, expected), fallback;
    if (!(item->valuedouble >= min && item->valuedouble <= max))
        return fields_wrong_value(f, name, item, expected), fallback;
    return item->valuedouble;
}

int64_t fields_integer(fields *f, const char *name, int64_t min, int64_t max, int64_t fallback) {
    const cJSON *item = fields_get(f, name);
    if (!item) return fallback;
    char expected[96];
    snprintf(expected, sizeof expected, "an integer from %lld to %lld", (long long)min, (long long)max);
    if (!cJSON_IsNumber(item) || item->valuedouble != floor(item->valuedouble))
        return fields_wrong_type(f, name, item, expected), fallback;
    if (!(item->valuedouble >= (double)min && item->valuedouble <= (double)max))
        return fields_wrong_value(f, name, item, expected), fallback;
    return (int64_t)item->valuedouble;
}

int64_t fields_count(fields *f, const char *name, int64_t min, int64_t most, int64_t fallback) {
    const cJSON *item = fields_get(f, name);
    if (!item) return fallback;
    char expected[96];
    snprintf(expected, sizeof expected, "an integer from %lld on", (long long)min);
    if (!cJSON_IsNumber(item) || item->valuedouble != floor(item->valuedouble))
        return fields_wrong_type(f, name, item, expected), fallback;
    if (item->valuedouble < (double)min) return fields_wrong_value(f, name, item, expected), fallback;
    return item->valuedouble > (double)most ? most : (int64_t)item->valuedouble;
}

const char *fields_string(fields *f, const char *name, const char *fallback) {
    const cJSON *item = fields_get(f, name);
    if (!item) return fallback;
    if (!cJSON_IsString(item)) return fields_wrong_type(f, name, item, "a string"), fallback;
    return item->valuestring;
}

const cJSON *fields_object(fields *f, const char *name) {
    const cJSON *item = fields_get(f, name);
    if (item && !cJSON_IsObject(item)) return fields_wrong_type(f, name, item, "an object"), NULL;
    return item;
}

const cJSON *fields_array(fields *f, const char *name) {
    const cJSON *item = fields_get(f, name);
    if (item && !cJSON_IsArray(item)) return fields_wrong_type(f, name, item, "a list"), NULL;
    return item;
}

bool fields_seed(fields *f, const char *name, uint64_t *seed) {
    static const char expected[] = "an integer of 64 bits";
    const cJSON *item = fields_get(f, name);
    if (!item) return false;
    const char *number = cJSON_IsRaw(item) ? item->valuestring : "";
    const double value = atof(number);
    if (!*number || value != floor(value)) return fields_wrong_type(f, name, item, expected);
    if (value == -1) return false;
    const bool negative = *number == '-';
    const char *digits = number + negative;
    if (!digits[strspn(digits, "0123456789")]) {
        errno = 0;
        uint64_t magnitude = strtoull(digits, NULL, 10);
        bool fits = errno == 0 && (!negative || magnitude <= UINT64_C(1) << 63);
        if (!fits) return fields_wrong_value(f, name, item, expected);
        *seed = negative ? UINT64_C(0) - magnitude : magnitude;
        return true;
    }
    /* 1e3, or a whole number that is spelt with a point */
    if (!(fabs(value) < 9223372036854775808.0)) return fields_wrong_value(f, name, item, expected);
    *seed = (uint64_t)(int64_t)value;
    return true;
}

void fields_accept(fields *f, const char *const *names) {
    for (; *names; names++) fields_get(f, *names);
}

void fields_accept_values(fields *f, const field_value *list) {
    for (; list->name; list++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(f->object, list->name);
        bool same = (cJSON_IsNumber(item) && item->valuedouble == list->value) ||
                    (cJSON_IsBool(item) && cJSON_IsTrue(item) == (list->value != 0));
        if (same || cJSON_IsNull(item)) fields_get(f, list->name);
    }
}

void fields_refuse(fields *f, const char *const *names) {
    for (; *names; names++) {
        if (!fields_get(f, *names)) continue;
        char param[160];
        snprintf(param, sizeof param, "%s%s", f->path, *names);
        api_fail(f->error, 400, "unsupported_parameter", param, "%s is not supported here", param);
    }
}

void fields_end(fields *f, bool strict, text_buffer *ignored) {
    size_t place = 0;
    for (const cJSON *item = f->object ? f->object->child : NULL; item; item = item->next, place++) {
        if (place < FIELDS_MAX && f->known[place]) continue;
        if (strict) {
            char param[160];
            snprintf(param, sizeof param, "%s%.100s", f->path, item->string);
            api_fail(f->error, 400, "unsupported_parameter", param, "%s is not a field that this server knows", param);
        } else if (ignored) {
            ignored_add(ignored, "%s%.64s", f->path, item->string);
        }
    }
}

void ignored_add(text_buffer *ignored, const char *format, ...) {
    enum { MOST_BYTES = 2048 }; /* not more than clients take in a header */
    if (ignored->n > MOST_BYTES) return;
    char name[160];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    for (char *c = name; *c; c++)
        if (*c <= 0x20 || *c >= 0x7f || *c == ',') *c = '?'; /* nothing that would end the header, or the name */
    if (ignored->n) text_add(ignored, ", ");
    text_add(ignored, name);
}

/* ----------------------------------------------------------------------------------------------------------- values */

cJSON *body_member(const cJSON *object, const char *key) {
    cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNull(item) ? NULL : item;
}

const char *body_string(const cJSON *object, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsString(item) ? item->valuestring : NULL;
}

static bool is_in(char c, const char *set) { return c && strchr(set, c); }

/* The next number of a JSON text, and how long it is; at the end of the text: 0 bytes. */
static const char *next_number(const char **at, const char *end, size_t *bytes) {
    const char *c = *at;
    for (bool text = false; c < end && (text || !is_in(*c, "-0123456789")); c++) {
        if (*c == '"') text = !text;
        if (*c == '\\' && c + 1 < end) c++;
    }
    const char *number = c;
    while (c < end && is_in(*c, "+-.0123456789eE")) c++;
    *bytes = (size_t)(c - number);
    *at = c;
    return number;
}

/* Numbers of a tree come in the order in which they stand in its text. keep: this value and what lies in it. */
static bool spell_numbers(cJSON *value, bool keep, const char **at, const char *end) {
    if (cJSON_IsNumber(value)) {
        size_t bytes;
        const char *number = next_number(at, end, &bytes);
        if (!keep) return true;
        char *spelling = cJSON_malloc(bytes + 1);
        if (!spelling) return false;
        memcpy(spelling, number, bytes);
        spelling[bytes] = '\0';
        value->type = cJSON_Raw;
        value->valuestring = spelling;
        return true;
    }
    for (cJSON *item = value->child; item; item = item->next)
        if (!spell_numbers(item, keep, at, end)) return false;
    return true;
}

bool body_keep_numbers(cJSON *body, const char *text, size_t bytes, const char *const *names) {
    const char *at = text;
    for (cJSON *item = body->child; item; item = item->next) {
        bool keep = false;
        for (size_t i = 0; names[i]; i++) keep = keep || strcmp(item->string, names[i]) == 0;
        if (!spell_numbers(item, keep, &at, text + bytes)) return false;
    }
    return true;
}
