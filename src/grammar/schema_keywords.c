/* The keywords of JSON Schema, and what the compiler makes of each. */
#include <stdlib.h>
#include <string.h>

#include "grammar/schema.h"
#include "grammar/schema_private.h"

/* What is made of them, for docs/reference/grammar.md (test_grammar_tables): %u is the limit of the row. */
#define FOLLOWED   "followed"
#define LISTED     "followed; values that other keywords forbid are taken out of the list"
#define ENUMERATED LISTED ", which has up to %u"
#define OPENAPI    "followed, as OpenAPI has it"
#define CHOSEN     "followed, up to %u combinations of alternatives"
#define NEGATED                                                                                                        \
    "followed, up to %u combinations of alternatives; where a schema must not hold, answers may be fewer than "        \
    "allowed, and if nothing is left, the keyword that cannot be negated is named"
#define REFERRED      "followed within the document, recursion included; refused where it leads out of it"
#define REFERRED_ONCE "followed within the document where its anchor is there once, refused otherwise"
#define NAMED         "names what references lead to"
#define MULTIPLES     "followed where it has few digits, refused otherwise"
#define OF_A_FORMAT   "followed, as far as the table below says; formats that no draft defines are ignored and named"
#define EXPRESSION    "followed, as far as expressions are understood (below)"
#define KEYS          "followed, up to %u patterns together"
#define COUNTED       "followed, up to %u"
#define DIFFERENT                                                                                                      \
    "followed where items are strings, numbers and words, which have one spelling each then, numbers up to "           \
    "15 digits (6 of them after the point), strings of limited "                                                       \
    "length up to %u characters; lists then differ in their first item and objects in one member, the first one that " \
    "must be there and may have any number of values, and are refused where there is no such part"
#define CONTAINING     "followed; of several of one array, the first items follow all but one, one after the other"
#define CONTAINED      "followed, up to %u"
#define MOST_CONTAINED "followed, but beside items that are listed one by one"
#define REFUSED        "refused"
#define IGNORED        "an annotation: ignored"

/* In the order of strcmp. */
static const schema_keyword keywords[] = {
    {"$anchor", KEYWORD_ANNOTATION, 0, NAMED, 0},
    {"$defs", KEYWORD_ANNOTATION, 0, NAMED, 0},
    {"$dynamicAnchor", KEYWORD_ANNOTATION, 0, NAMED, 0},
    {"$dynamicRef", KEYWORD_REFERENCE, 0, REFERRED_ONCE, 0},
    {"$id", KEYWORD_ANNOTATION, 0, NAMED, 0},
    {"$recursiveRef", KEYWORD_REFERENCE, 0, REFERRED, 0},
    {"$ref", KEYWORD_REFERENCE, 0, REFERRED, 0},
    {"additionalItems", KEYWORD_BESIDE, 0, FOLLOWED, 0},
    {"additionalProperties", KEYWORD_CLAIM, TYPE_OBJECT, FOLLOWED, 0},
    {"allOf", KEYWORD_ALL, 0, FOLLOWED, 0},
    {"anyOf", KEYWORD_ANY, 0, CHOSEN, SCHEMA_MAX_TRIED},
    {"const", KEYWORD_VALUES, 0, LISTED, 0},
    {"contains", KEYWORD_CLAIM, TYPE_ARRAY, CONTAINING, 0},
    {"contentEncoding", KEYWORD_ANNOTATION, 0, IGNORED, 0},
    {"contentMediaType", KEYWORD_ANNOTATION, 0, IGNORED, 0},
    {"contentSchema", KEYWORD_ANNOTATION, 0, IGNORED, 0},
    {"definitions", KEYWORD_ANNOTATION, 0, NAMED, 0},
    {"dependencies", KEYWORD_DEPENDENT, 0, CHOSEN, SCHEMA_MAX_TRIED},
    {"dependentRequired", KEYWORD_DEPENDENT, 0, CHOSEN, SCHEMA_MAX_TRIED},
    {"dependentSchemas", KEYWORD_DEPENDENT, 0, CHOSEN, SCHEMA_MAX_TRIED},
    {"disallow", KEYWORD_REFUSED, 0, REFUSED, 0},
    {"divisibleBy", KEYWORD_CLAIM, TYPE_NUMBER, MULTIPLES, 0},
    {"else", KEYWORD_BESIDE, 0, NEGATED, SCHEMA_MAX_TRIED},
    {"enum", KEYWORD_VALUES, 0, ENUMERATED, SCHEMA_MAX_VALUES},
    {"exclusiveMaximum", KEYWORD_CLAIM, TYPE_NUMBER, FOLLOWED, 0},
    {"exclusiveMinimum", KEYWORD_CLAIM, TYPE_NUMBER, FOLLOWED, 0},
    {"extends", KEYWORD_REFUSED, 0, REFUSED, 0},
    {"format", KEYWORD_CLAIM, TYPE_STRING, OF_A_FORMAT, 0},
    {"id", KEYWORD_ANNOTATION, 0, NAMED, 0},
    {"if", KEYWORD_IF, 0, NEGATED, SCHEMA_MAX_TRIED},
    {"items", KEYWORD_CLAIM, TYPE_ARRAY, FOLLOWED, 0},
    {"maxContains", KEYWORD_BESIDE, 0, MOST_CONTAINED, 0},
    {"maxItems", KEYWORD_CLAIM, TYPE_ARRAY, COUNTED, SCHEMA_MAX_ITEMS},
    {"maxLength", KEYWORD_CLAIM, TYPE_STRING, FOLLOWED, 0},
    {"maxProperties", KEYWORD_CLAIM, TYPE_OBJECT, FOLLOWED, 0},
    {"maximum", KEYWORD_CLAIM, TYPE_NUMBER, FOLLOWED, 0},
    {"minContains", KEYWORD_BESIDE, 0, CONTAINED, SCHEMA_MAX_CONTAINED},
    {"minItems", KEYWORD_CLAIM, TYPE_ARRAY, COUNTED, SCHEMA_MAX_ITEMS},
    {"minLength", KEYWORD_CLAIM, TYPE_STRING, FOLLOWED, 0},
    {"minProperties", KEYWORD_CLAIM, TYPE_OBJECT, FOLLOWED, 0},
    {"minimum", KEYWORD_CLAIM, TYPE_NUMBER, FOLLOWED, 0},
    {"multipleOf", KEYWORD_CLAIM, TYPE_NUMBER, MULTIPLES, 0},
    {"not", KEYWORD_NOT, 0, NEGATED, SCHEMA_MAX_TRIED},
    {"nullable", KEYWORD_BESIDE, 0, OPENAPI, 0},
    {"oneOf", KEYWORD_ONE, 0, NEGATED, SCHEMA_MAX_TRIED},
    {"pattern", KEYWORD_CLAIM, TYPE_STRING, EXPRESSION, 0},
    {"patternProperties", KEYWORD_CLAIM, TYPE_OBJECT, KEYS, DFA_MAX_LABEL_BITS},
    {"prefixItems", KEYWORD_CLAIM, TYPE_ARRAY, FOLLOWED, 0},
    {"properties", KEYWORD_CLAIM, TYPE_OBJECT, FOLLOWED, 0},
    {"propertyNames", KEYWORD_CLAIM, TYPE_OBJECT, FOLLOWED, 0},
    {"required", KEYWORD_CLAIM, TYPE_OBJECT, FOLLOWED, 0},
    {"then", KEYWORD_BESIDE, 0, NEGATED, SCHEMA_MAX_TRIED},
    {"type", KEYWORD_TYPE, 0, FOLLOWED, 0},
    {"unevaluatedItems", KEYWORD_CLAIM, TYPE_ARRAY, FOLLOWED, 0},
    {"unevaluatedProperties", KEYWORD_CLAIM, TYPE_OBJECT, FOLLOWED, 0},
    {"uniqueItems", KEYWORD_CLAIM, TYPE_ARRAY, DIFFERENT, SCHEMA_MAX_DIFFERENT},
};

const schema_keyword *schema_keywords(size_t *n) {
    *n = sizeof keywords / sizeof *keywords;
    return keywords;
}

const schema_keyword *schema_keyword_of(const char *name) {
    static const schema_keyword annotation = {"", KEYWORD_ANNOTATION, 0, IGNORED, 0};
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
