/* A validator of JSON Schema that shares nothing with the compiler: it reads the schema beside a parsed value, keyword
 * by keyword. Patterns are POSIX extended expressions here, so tests keep to what both syntaxes have. */
#ifndef KAKEYA_TESTS_NAIVE_SCHEMA_H
#define KAKEYA_TESTS_NAIVE_SCHEMA_H

#include <cjson/cJSON.h>
#include <math.h>
#include <regex.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Objects that declare members, and say nothing of others, have no others: as the compiler reads them. */
static bool naive_closed;

static bool naive_valid(const cJSON *root, const cJSON *schema, const cJSON *value);

static inline bool naive_is_type(const cJSON *value, const char *type) {
    if (strcmp(type, "object") == 0) return cJSON_IsObject(value);
    if (strcmp(type, "array") == 0) return cJSON_IsArray(value);
    if (strcmp(type, "string") == 0) return cJSON_IsString(value);
    if (strcmp(type, "boolean") == 0) return cJSON_IsBool(value);
    if (strcmp(type, "null") == 0) return cJSON_IsNull(value);
    if (strcmp(type, "number") == 0) return cJSON_IsNumber(value);
    return cJSON_IsNumber(value) && floor(value->valuedouble) == value->valuedouble;
}

static inline bool naive_type(const cJSON *types, const cJSON *value) {
    const cJSON *type;
    if (cJSON_IsString(types)) return naive_is_type(value, types->valuestring);
    cJSON_ArrayForEach(type, types) if (naive_is_type(value, type->valuestring)) return true;
    return false;
}

static inline size_t naive_characters(const char *text) {
    size_t n = 0;
    for (; *text; text++) n += ((unsigned char)*text & 0xC0) != 0x80;
    return n;
}

static inline bool naive_pattern(const char *pattern, const char *text) {
    regex_t expression;
    if (regcomp(&expression, pattern, REG_EXTENDED | REG_NOSUB) != 0) return false;
    bool found = regexec(&expression, text, 0, NULL, 0) == 0;
    regfree(&expression);
    return found;
}

static inline const cJSON *naive_resolve(const cJSON *root, const char *reference) {
    char path[256], *rest = path;
    const cJSON *at = root;
    snprintf(path, sizeof path, "%s", reference + 1);
    for (char *step = strtok_r(path, "/", &rest); step && at; step = strtok_r(NULL, "/", &rest))
        at = cJSON_GetObjectItemCaseSensitive(at, step);
    return at;
}

static inline bool naive_limit(const cJSON *schema, const char *key, double value, int sign, bool exclusive) {
    const cJSON *limit = cJSON_GetObjectItemCaseSensitive(schema, key);
    if (!cJSON_IsNumber(limit)) return true;
    double distance = sign * (limit->valuedouble - value);
    return exclusive ? distance > 0 : distance >= 0;
}

static inline bool naive_object(const cJSON *root, const cJSON *schema, const cJSON *value) {
    const cJSON *properties = cJSON_GetObjectItemCaseSensitive(schema, "properties"), *item, *other;
    const cJSON *additional = cJSON_GetObjectItemCaseSensitive(schema, "additionalProperties");
    cJSON_ArrayForEach(
        item, cJSON_GetObjectItemCaseSensitive(
                  schema, "required")) if (!cJSON_GetObjectItemCaseSensitive(value, item->valuestring)) return false;
    cJSON_ArrayForEach(item, value) {
        const cJSON *own = cJSON_GetObjectItemCaseSensitive(properties, item->string);
        if (!own) own = additional;
        if (!own && naive_closed && cJSON_GetArraySize(properties)) return false;
        if (own && !naive_valid(root, own, item)) return false;
        for (other = item->next; other; other = other->next) /* no key twice, where keys are declared */
            if (properties && strcmp(other->string, item->string) == 0 &&
                cJSON_GetObjectItemCaseSensitive(properties, item->string))
                return false;
    }
    return true;
}

static inline bool naive_array(const cJSON *root, const cJSON *schema, const cJSON *value) {
    const cJSON *first = cJSON_GetObjectItemCaseSensitive(schema, "prefixItems"), *item;
    const cJSON *items = cJSON_GetObjectItemCaseSensitive(schema, "items");
    int i = 0;
    cJSON_ArrayForEach(item, value) {
        const cJSON *own = i < cJSON_GetArraySize(first) ? cJSON_GetArrayItem(first, i) : items;
        if (own && !naive_valid(root, own, item)) return false;
        i++;
    }
    return true;
}

static bool naive_valid(const cJSON *root, const cJSON *schema, const cJSON *value) {
    const cJSON *keyword, *item;
    if (cJSON_IsBool(schema)) return cJSON_IsTrue(schema);
    if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(schema, "nullable")) && cJSON_IsNull(value)) return true;
    cJSON_ArrayForEach(keyword, schema) {
        const char *key = keyword->string;
        bool some = false;
        if (strcmp(key, "type") == 0 && !naive_type(keyword, value)) return false;
        if (strcmp(key, "const") == 0 && !cJSON_Compare(keyword, value, true)) return false;
        if (strcmp(key, "enum") == 0) {
            cJSON_ArrayForEach(item, keyword) some = some || cJSON_Compare(item, value, true);
            if (!some) return false;
        }
        if (strcmp(key, "anyOf") == 0 || strcmp(key, "oneOf") == 0) {
            int n = 0;
            cJSON_ArrayForEach(item, keyword) n += naive_valid(root, item, value);
            if (n == 0 || (n > 1 && key[0] == 'o' && !naive_closed)) return false;
        }
        if (strcmp(key, "allOf") == 0)
            cJSON_ArrayForEach(item, keyword) if (!naive_valid(root, item, value)) return false;
        if (strcmp(key, "$ref") == 0 && !naive_valid(root, naive_resolve(root, keyword->valuestring), value))
            return false;
        if (cJSON_IsString(value) && strcmp(key, "pattern") == 0 &&
            !naive_pattern(keyword->valuestring, value->valuestring))
            return false;
    }
    if (cJSON_IsString(value)) {
        double n = (double)naive_characters(value->valuestring);
        if (!naive_limit(schema, "minLength", n, -1, false) || !naive_limit(schema, "maxLength", n, 1, false))
            return false;
    }
    if (cJSON_IsNumber(value)) {
        double x = value->valuedouble;
        if (!naive_limit(schema, "minimum", x, -1, false) || !naive_limit(schema, "maximum", x, 1, false)) return false;
        if (!naive_limit(schema, "exclusiveMinimum", x, -1, true)) return false;
        if (!naive_limit(schema, "exclusiveMaximum", x, 1, true)) return false;
    }
    double n = cJSON_IsArray(value) || cJSON_IsObject(value) ? cJSON_GetArraySize(value) : 0;
    if (cJSON_IsArray(value)) {
        if (!naive_limit(schema, "minItems", n, -1, false) || !naive_limit(schema, "maxItems", n, 1, false))
            return false;
        return naive_array(root, schema, value);
    }
    if (cJSON_IsObject(value)) {
        if (!naive_limit(schema, "minProperties", n, -1, false) || !naive_limit(schema, "maxProperties", n, 1, false))
            return false;
        return naive_object(root, schema, value);
    }
    return true;
}

#endif
