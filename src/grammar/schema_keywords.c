/* The keywords of JSON Schema, and what the compiler makes of each. */
#include <stdlib.h>
#include <string.h>

#include "grammar/schema_private.h"

/* In the order of strcmp. */
static const schema_keyword keywords[] = {
    {"$dynamicRef", KEYWORD_REFERENCE, 0},
    {"$recursiveRef", KEYWORD_REFERENCE, 0},
    {"$ref", KEYWORD_REFERENCE, 0},
    {"additionalItems", KEYWORD_BESIDE, 0},
    {"additionalProperties", KEYWORD_CLAIM, TYPE_OBJECT},
    {"allOf", KEYWORD_ALL, 0},
    {"anyOf", KEYWORD_ANY, 0},
    {"const", KEYWORD_VALUES, 0},
    {"contains", KEYWORD_CLAIM, TYPE_ARRAY},
    {"dependencies", KEYWORD_DEPENDENT, 0},
    {"dependentRequired", KEYWORD_DEPENDENT, 0},
    {"dependentSchemas", KEYWORD_DEPENDENT, 0},
    {"disallow", KEYWORD_REFUSED, 0},
    {"divisibleBy", KEYWORD_CLAIM, TYPE_NUMBER},
    {"else", KEYWORD_BESIDE, 0},
    {"enum", KEYWORD_VALUES, 0},
    {"exclusiveMaximum", KEYWORD_CLAIM, TYPE_NUMBER},
    {"exclusiveMinimum", KEYWORD_CLAIM, TYPE_NUMBER},
    {"extends", KEYWORD_REFUSED, 0},
    {"format", KEYWORD_CLAIM, TYPE_STRING},
    {"if", KEYWORD_IF, 0},
    {"items", KEYWORD_CLAIM, TYPE_ARRAY},
    {"maxContains", KEYWORD_BESIDE, 0},
    {"maxItems", KEYWORD_CLAIM, TYPE_ARRAY},
    {"maxLength", KEYWORD_CLAIM, TYPE_STRING},
    {"maxProperties", KEYWORD_CLAIM, TYPE_OBJECT},
    {"maximum", KEYWORD_CLAIM, TYPE_NUMBER},
    {"minContains", KEYWORD_BESIDE, 0},
    {"minItems", KEYWORD_CLAIM, TYPE_ARRAY},
    {"minLength", KEYWORD_CLAIM, TYPE_STRING},
    {"minProperties", KEYWORD_CLAIM, TYPE_OBJECT},
    {"minimum", KEYWORD_CLAIM, TYPE_NUMBER},
    {"multipleOf", KEYWORD_CLAIM, TYPE_NUMBER},
    {"not", KEYWORD_NOT, 0},
    {"nullable", KEYWORD_BESIDE, 0},
    {"oneOf", KEYWORD_ONE, 0},
    {"pattern", KEYWORD_CLAIM, TYPE_STRING},
    {"patternProperties", KEYWORD_CLAIM, TYPE_OBJECT},
    {"prefixItems", KEYWORD_CLAIM, TYPE_ARRAY},
    {"properties", KEYWORD_CLAIM, TYPE_OBJECT},
    {"propertyNames", KEYWORD_CLAIM, TYPE_OBJECT},
    {"required", KEYWORD_CLAIM, TYPE_OBJECT},
    {"then", KEYWORD_BESIDE, 0},
    {"type", KEYWORD_TYPE, 0},
    {"unevaluatedItems", KEYWORD_CLAIM, TYPE_ARRAY},
    {"unevaluatedProperties", KEYWORD_CLAIM, TYPE_OBJECT},
    {"uniqueItems", KEYWORD_CLAIM, TYPE_ARRAY},
};

const schema_keyword *schema_keyword_of(const char *name) {
    static const schema_keyword annotation = {"", KEYWORD_ANNOTATION, 0};
    size_t low = 0, high = sizeof keywords / sizeof *keywords;
    while (low < high) {
        size_t middle = (low + high) / 2;
        int order = (unsigned char)name[0] - (unsigned char)keywords[middle].name[0];
        if (order == 0) order = strcmp(name, keywords[middle].name);
        if (order == 0) return &keywords[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return &annotation;
}

/* null is what generators write for a keyword that is not there; it is a value for const alone. */
const cJSON *schema_get(const cJSON *schema, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(schema, key);
    return item && cJSON_IsNull(item) && strcmp(key, "const") != 0 ? NULL : item;
}

uint8_t schema_type_of(const cJSON *value) {
    if (cJSON_IsString(value)) return TYPE_STRING;
    if (cJSON_IsTrue(value)) return TYPE_TRUE;
    if (cJSON_IsFalse(value)) return TYPE_FALSE;
    if (cJSON_IsNull(value)) return TYPE_NULL;
    if (cJSON_IsArray(value)) return TYPE_ARRAY;
    if (cJSON_IsObject(value)) return TYPE_OBJECT;
    return number_is_integer(value->valuestring) ? TYPE_INTEGER : TYPE_FRACTION;
}

static bool add_type(schema_compiler *c, const cJSON *name, uint8_t *types) {
    static const struct {
        const char *name;
        uint8_t types;
    } names[] = {{"null", TYPE_NULL},     {"boolean", TYPE_BOOLEAN}, {"integer", TYPE_INTEGER}, {"number", TYPE_NUMBER},
                 {"string", TYPE_STRING}, {"array", TYPE_ARRAY},     {"object", TYPE_OBJECT},   {"any", TYPE_ANY}};
    for (size_t i = 0; cJSON_IsString(name) && i < sizeof names / sizeof *names; i++) {
        if (strcmp(names[i].name, name->valuestring) != 0) continue;
        *types |= names[i].types;
        return true;
    }
    if (cJSON_IsString(name))
        schema_cannot(c, name, KAKEYA_FORMAT, "the type '%.40s' is none of JSON", name->valuestring);
    else
        schema_cannot(c, name, KAKEYA_FORMAT, "neither a text nor a list of texts");
    return false;
}

uint8_t schema_types(schema_compiler *c, const cJSON *schema) {
    const cJSON *type = schema_get(schema, "type"), *item;
    uint8_t types = 0;
    if (!type) return TYPE_ANY;
    if (!cJSON_IsArray(type)) return add_type(c, type, &types) ? types : TYPE_ANY;
    cJSON_ArrayForEach(item, type) if (!add_type(c, item, &types)) return TYPE_ANY;
    return types;
}

bool schema_count(schema_compiler *c, const cJSON *item, double most, uint32_t *out) {
    double value = cJSON_IsRaw(item) ? strtod(item->valuestring, NULL) : -1;
    if (!(value >= 0) || (cJSON_IsRaw(item) && !number_is_integer(item->valuestring))) {
        schema_cannot(c, item, KAKEYA_FORMAT, "not a whole number of at least 0");
        return false;
    }
    if (value > most) {
        schema_cannot(c, item, KAKEYA_UNSUPPORTED, "more than %.0f is not supported", most);
        return false;
    }
    *out = (uint32_t)value;
    return true;
}
