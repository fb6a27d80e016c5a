/* Values that are given, checked against a schema: those of enum and const, and names of members. And schemas of which
 * no value follows both. */
#include <stdlib.h>
#include <string.h>

#include "grammar/formats.h"
#include "grammar/numbers.h"
#include "grammar/schema_private.h"

enum { MAX_HELD = 64, MAX_DISJOINT = 6 };

/* --------------------------------------------------------------------------------------------------------- equality */

static bool equal_objects(const cJSON *a, const cJSON *b) {
    const cJSON *item;
    if (cJSON_GetArraySize(a) != cJSON_GetArraySize(b)) return false;
    cJSON_ArrayForEach(item, a) {
        const cJSON *other = cJSON_GetObjectItemCaseSensitive(b, item->string);
        if (!other || !schema_equal(item, other)) return false;
    }
    return true;
}

bool schema_equal(const cJSON *a, const cJSON *b) {
    if (cJSON_IsRaw(a) && cJSON_IsRaw(b)) return number_compare(a->valuestring, b->valuestring) == 0;
    if (cJSON_IsRaw(a) || cJSON_IsRaw(b) || schema_type_of(a) != schema_type_of(b)) return false;
    if (cJSON_IsString(a)) return strcmp(a->valuestring, b->valuestring) == 0;
    if (cJSON_IsObject(a)) return equal_objects(a, b);
    if (!cJSON_IsArray(a)) return true;
    const cJSON *x = a->child, *y = b->child;
    for (; x && y && schema_equal(x, y); x = x->next) y = y->next;
    return !x && !y;
}

/* ----------------------------------------------------------------------------------------------------------- scalars
 */

bool schema_matches(schema_compiler *c, const cJSON *at, const char *pattern, const char *text) {
    const struct schema_pattern *own = schema_pattern(c, at, pattern, false);
    return !own || dfa_accepts(&own->dfa, text);
}

static uint32_t characters(const char *text) {
    uint32_t n = 0;
    for (; *text; text++) n += ((unsigned char)*text & 0xC0) != 0x80;
    return n;
}

static bool has_format(schema_compiler *c, const cJSON *item, const char *text) {
    if (!cJSON_IsString(item) || !format_is_known(item->valuestring)) {
        schema_note(c, item);
        return true;
    }
    const struct schema_pattern *own = schema_pattern(c, item, item->valuestring, true);
    if (!own) return true;
    bool accepts = dfa_accepts(&own->dfa, text) && characters(text) <= own->most;
    c->uncertain = c->uncertain || !accepts; /* others may be of the format, too */
    return accepts;
}

/* minX and maxX */
static bool counts(schema_compiler *c, const cJSON *item, uint32_t n) {
    uint32_t limit;
    if (!schema_count(c, item, 4e9, &limit)) return true;
    return item->string[1] == 'i' ? n >= limit : n <= limit;
}

static bool holds_number(schema_compiler *c, const cJSON *schema, const cJSON *item, const char *value) {
    const char *key = item->string;
    if (cJSON_IsBool(item) && key[0] == 'e') return true; /* read with minimum and maximum */
    if (!cJSON_IsRaw(item)) {
        schema_cannot(c, item, KAKEYA_FORMAT, "not a number");
        return true;
    }
    bool multiple = false;
    if (strcmp(key, "multipleOf") == 0 || strcmp(key, "divisibleBy") == 0) {
        if (!number_is_multiple(value, item->valuestring, &multiple))
            schema_cannot(c, item, KAKEYA_UNSUPPORTED, "has too many digits");
        return multiple;
    }
    int order = number_compare(value, item->valuestring);
    if (strcmp(key, "exclusiveMinimum") == 0) return order > 0;
    if (strcmp(key, "exclusiveMaximum") == 0) return order < 0;
    if (strcmp(key, "minimum") == 0)
        return cJSON_IsTrue(schema_get(schema, "exclusiveMinimum")) ? order > 0 : order >= 0;
    return cJSON_IsTrue(schema_get(schema, "exclusiveMaximum")) ? order < 0 : order <= 0;
}

static bool holds_string(schema_compiler *c, const cJSON *item, const char *value) {
    if (strcmp(item->string, "pattern") == 0 && cJSON_IsString(item))
        return schema_matches(c, item, item->valuestring, value);
    if (strcmp(item->string, "format") == 0) return has_format(c, item, value);
    if (strcmp(item->string, "pattern") != 0) return counts(c, item, characters(value));
    schema_cannot(c, item, KAKEYA_FORMAT, "not a text");
    return true;
}

/* -------------------------------------------------------------------------------------------------- arrays and objects
 */

static bool holds_items(schema_compiler *c, const cJSON *schema, const cJSON *first, const cJSON *rest,
                        const cJSON *value, int depth) {
    const cJSON *item, *own = cJSON_IsArray(first) ? first->child : NULL;
    (void)schema;
    cJSON_ArrayForEach(item, value) {
        const cJSON *holds = own ? own : rest;
        if (holds && !schema_holds(c, holds, item, depth)) return false;
        if (own) own = own->next;
    }
    return true;
}

static bool holds_contains(schema_compiler *c, const cJSON *schema, const cJSON *item, const cJSON *value, int depth) {
    const cJSON *least = schema_get(schema, "minContains"), *most = schema_get(schema, "maxContains"), *one;
    uint32_t n = 0;
    cJSON_ArrayForEach(one, value) n += schema_holds(c, item, one, depth);
    return (least ? counts(c, least, n) : n > 0) && (!most || counts(c, most, n));
}

static bool is_unique(const cJSON *value) {
    const cJSON *a, *b;
    cJSON_ArrayForEach(a, value) for (b = a->next; b; b = b->next) if (schema_equal(a, b)) return false;
    return true;
}

static bool holds_array(schema_compiler *c, const cJSON *schema, const cJSON *item, const cJSON *value, int depth) {
    const char *key = item->string;
    if (strcmp(key, "prefixItems") == 0) return holds_items(c, schema, item, schema_get(schema, "items"), value, depth);
    if (strcmp(key, "items") == 0 && cJSON_IsArray(item))
        return holds_items(c, schema, item, schema_get(schema, "additionalItems"), value, depth);
    if (strcmp(key, "items") == 0)
        return schema_get(schema, "prefixItems") || holds_items(c, schema, NULL, item, value, depth);
    if (strcmp(key, "contains") == 0) return holds_contains(c, schema, item, value, depth);
    if (strcmp(key, "uniqueItems") == 0) return !cJSON_IsTrue(item) || is_unique(value);
    if (strcmp(key, "unevaluatedItems") != 0) return counts(c, item, (uint32_t)cJSON_GetArraySize(value));
    schema_cannot(c, item, KAKEYA_UNSUPPORTED, "not supported beside enum or const");
    return true;
}

static bool matches_one(schema_compiler *c, const cJSON *patterns, const char *name) {
    const cJSON *pattern;
    cJSON_ArrayForEach(pattern, patterns) if (schema_matches(c, pattern, pattern->string, name)) return true;
    return false;
}

static bool holds_required(const cJSON *list, const cJSON *value) {
    const cJSON *name;
    cJSON_ArrayForEach(name, list) if (cJSON_IsString(name) &&
                                       !cJSON_GetObjectItemCaseSensitive(value, name->valuestring)) return false;
    return true;
}

static bool holds_members(schema_compiler *c, const cJSON *schema, const cJSON *item, const cJSON *value, int depth) {
    const char *key = item->string;
    const cJSON *member, *pattern, *properties = schema_get(schema, "properties");
    const cJSON *patterns = schema_get(schema, "patternProperties");
    cJSON_ArrayForEach(member, value) {
        const cJSON name = {.type = cJSON_String, .valuestring = member->string};
        const cJSON *own = schema_member(c, properties, member->string);
        bool holds = true;
        if (strcmp(key, "properties") == 0) {
            holds = !own || schema_holds(c, own, member, depth);
        } else if (strcmp(key, "propertyNames") == 0) {
            holds = schema_holds(c, item, &name, depth);
        } else if (strcmp(key, "patternProperties") == 0) {
            cJSON_ArrayForEach(pattern, item) holds =
                holds && (!schema_matches(c, pattern, pattern->string, member->string) ||
                          schema_holds(c, pattern, member, depth));
        } else if (!own && !matches_one(c, patterns, member->string)) {
            holds = schema_holds(c, item, member, depth);
        }
        if (!holds) return false;
    }
    return true;
}

static bool holds_object(schema_compiler *c, const cJSON *schema, const cJSON *item, const cJSON *value, int depth) {
    const char *key = item->string;
    if (strcmp(key, "required") == 0) return holds_required(item, value);
    if (strcmp(key, "minProperties") == 0 || strcmp(key, "maxProperties") == 0)
        return counts(c, item, (uint32_t)cJSON_GetArraySize(value));
    if (strcmp(key, "unevaluatedProperties") != 0) return holds_members(c, schema, item, value, depth);
    schema_cannot(c, item, KAKEYA_UNSUPPORTED, "not supported beside enum or const");
    return true;
}

/* ----------------------------------------------------------------------------------------------------------- schemas
 */

static bool lists(schema_compiler *c, const cJSON *list, const cJSON *value) {
    const cJSON *item;
    if (list == c->listed && value == c->listed_value) return true;
    cJSON_ArrayForEach(item, list) {
        if (!schema_spend(c, list, 1)) return true;
        if (schema_equal(item, value)) return true;
    }
    return false;
}

static bool holds_branches(schema_compiler *c, const cJSON *item, const cJSON *value, int depth) {
    const cJSON *branch;
    int n = 0;
    cJSON_ArrayForEach(branch, item) n += schema_holds(c, branch, value, depth);
    if (strcmp(item->string, "allOf") == 0) return n == cJSON_GetArraySize(item);
    return strcmp(item->string, "oneOf") == 0 ? n == 1 : n > 0;
}

static bool holds_dependent(schema_compiler *c, const cJSON *item, const cJSON *value, int depth) {
    const cJSON *own;
    if (!cJSON_IsObject(value)) return true;
    cJSON_ArrayForEach(own, item) {
        if (!cJSON_GetObjectItemCaseSensitive(value, own->string)) continue;
        if (cJSON_IsArray(own) && !holds_required(own, value)) return false;
        if (cJSON_IsString(own) && !cJSON_GetObjectItemCaseSensitive(value, own->valuestring)) return false;
        if (!cJSON_IsArray(own) && !cJSON_IsString(own) && !schema_holds(c, own, value, depth)) return false;
    }
    return true;
}

static bool holds_keyword(schema_compiler *c, const cJSON *schema, const cJSON *item, const cJSON *value, int depth) {
    const schema_keyword *keyword = schema_keyword_of(item->string);
    uint8_t type = schema_type_of(value);
    const cJSON *branch;
    switch (keyword->kind) {
    case KEYWORD_ANNOTATION:
    case KEYWORD_BESIDE:
        return true;
    case KEYWORD_TYPE:
        return type & schema_types(c, schema);
    case KEYWORD_VALUES:
        return strcmp(item->string, "const") == 0 ? schema_equal(item, value) : lists(c, item, value);
    case KEYWORD_REFERENCE:
        branch = schema_resolve(c, item);
        return branch ? schema_holds(c, branch, value, depth) : true;
    case KEYWORD_ALL:
    case KEYWORD_ANY:
    case KEYWORD_ONE:
        return holds_branches(c, item, value, depth);
    case KEYWORD_NOT:
        return !schema_holds(c, item, value, depth);
    case KEYWORD_IF:
        branch = schema_get(schema, schema_holds(c, item, value, depth) ? "then" : "else");
        return !branch || schema_holds(c, branch, value, depth);
    case KEYWORD_DEPENDENT:
        return holds_dependent(c, item, value, depth);
    case KEYWORD_CLAIM:
        if (!(type & keyword->types)) return true;
        if (type & TYPE_NUMBER) return holds_number(c, schema, item, value->valuestring);
        if (type & TYPE_STRING) return holds_string(c, item, value->valuestring);
        if (type & TYPE_ARRAY) return holds_array(c, schema, item, value, depth);
        return holds_object(c, schema, item, value, depth);
    case KEYWORD_REFUSED:
        schema_cannot(c, item, KAKEYA_UNSUPPORTED, "not supported");
        return true;
    }
    return true;
}

bool schema_holds(schema_compiler *c, const cJSON *schema, const cJSON *value, int depth) {
    const cJSON *item;
    if (!schema_spend(c, schema, 1)) return true;
    if (c->status || cJSON_IsTrue(schema)) return true;
    if (cJSON_IsFalse(schema)) return false;
    if (!cJSON_IsObject(schema)) {
        schema_cannot(c, schema, KAKEYA_FORMAT, "not a schema");
        return true;
    }
    if (depth == MAX_HELD) {
        schema_fail(c, schema, KAKEYA_UNSUPPORTED, "more than %d nested schemas apply to one value", (int)MAX_HELD);
        return true;
    }
    if (cJSON_IsNull(value) && cJSON_IsTrue(schema_get(schema, "nullable"))) return true;
    cJSON_ArrayForEach(item, schema) {
        if (cJSON_IsNull(item) && strcmp(item->string, "const") != 0) continue;
        if (!holds_keyword(c, schema, item, value, depth + 1)) return false;
    }
    return true;
}

/* ---------------------------------------------------------------------------------------------------------- disjoint
 */

static bool no_common_value(schema_compiler *c, const cJSON *a, const cJSON *b) {
    const cJSON *list = schema_get(a, "enum"), *constant = schema_get(a, "const"), *value;
    const cJSON *other = schema_get(b, "const");
    if (constant && other && !schema_equal(constant, other)) return true;
    c->uncertain = false;
    if (constant) return !schema_holds(c, b, constant, 0) && !c->uncertain;
    if (!cJSON_IsArray(list)) return false;
    cJSON_ArrayForEach(value, list) if (schema_holds(c, b, value, 0)) return false;
    return !c->uncertain;
}

/* Only what needs no looking elsewhere: a validator could be asked anything, but this is asked often. */
static bool lists_values(const cJSON *schema) { return schema_get(schema, "const") || schema_get(schema, "enum"); }

/* Objects that must have a member which the other cannot have, or not with the same value. */
static bool members_disjoint(schema_compiler *c, const cJSON *a, const cJSON *b, int depth) {
    const cJSON *required = schema_get(a, "required"), *name;
    const cJSON *mine = schema_get(a, "properties"), *theirs = schema_get(b, "properties");
    bool closed = cJSON_IsFalse(schema_get(b, "additionalProperties")) && !schema_get(b, "patternProperties");
    if (!cJSON_IsArray(required)) return false;
    cJSON_ArrayForEach(name, required) {
        if (!cJSON_IsString(name)) continue;
        const cJSON *own = schema_member(c, mine, name->valuestring);
        const cJSON *other = schema_member(c, theirs, name->valuestring);
        if (!other && closed) return true;
        if (cJSON_IsFalse(other)) return true;
        if (own && other && schema_disjoint(c, own, other, depth + 1)) return true;
    }
    return false;
}

static bool one_by_one(schema_compiler *c, const cJSON *list, const cJSON *b, bool all, int depth) {
    const cJSON *branch;
    if (!cJSON_IsArray(list)) return false;
    cJSON_ArrayForEach(branch, list) if (schema_disjoint(c, branch, b, depth + 1) != all) return !all;
    return all;
}

static bool is_disjoint_half(schema_compiler *c, const cJSON *a, const cJSON *b, int depth) {
    const cJSON *reference = schema_get(a, "$ref");
    if (reference) {
        const cJSON *target = schema_resolve(c, reference);
        if (target && schema_disjoint(c, target, b, depth + 1)) return true;
    }
    if (lists_values(a) && no_common_value(c, a, b)) return true;
    if (one_by_one(c, schema_get(a, "allOf"), b, false, depth)) return true;
    if (one_by_one(c, schema_get(a, "anyOf"), b, true, depth)) return true;
    if (one_by_one(c, schema_get(a, "oneOf"), b, true, depth)) return true;
    return false;
}

bool schema_disjoint(schema_compiler *c, const cJSON *a, const cJSON *b, int depth) {
    if (c->status || depth > MAX_DISJOINT || !schema_spend(c, a, 1)) return false;
    if (cJSON_IsFalse(a) || cJSON_IsFalse(b)) return true;
    if (!cJSON_IsObject(a) || !cJSON_IsObject(b)) return false;
    if (cJSON_IsTrue(schema_get(a, "nullable")) || cJSON_IsTrue(schema_get(b, "nullable"))) return false;
    uint8_t mine = schema_types(c, a), theirs = schema_types(c, b);
    if (!(mine & theirs)) return true;
    if ((mine & theirs) == TYPE_OBJECT && (members_disjoint(c, a, b, depth) || members_disjoint(c, b, a, depth)))
        return true;
    return is_disjoint_half(c, a, b, depth) || is_disjoint_half(c, b, a, depth);
}

/* ------------------------------------------------------------------------------------------------------ discriminators
 */

/* Adds the texts that the member may be to `words`. False: it need not be there, may be something else, or one of them
 * is there already. */
static bool add_discriminators(schema_compiler *c, const cJSON *branch, const char *name, trie *words) {
    const cJSON *required, *value, *member;
    branch = schema_target(c, branch);
    if (!cJSON_IsObject(branch) || cJSON_IsTrue(schema_get(branch, "nullable"))) return false;
    if (schema_types(c, branch) != TYPE_OBJECT) return false;
    bool must = false;
    cJSON_ArrayForEach(required, schema_get(branch, "required")) must =
        must || (cJSON_IsString(required) && strcmp(required->valuestring, name) == 0);
    member = schema_member(c, schema_get(branch, "properties"), name);
    const cJSON *list = schema_get(member, "enum"), *constant = schema_get(member, "const");
    if (!must || !cJSON_IsObject(member) || (!constant && !cJSON_IsArray(list))) return false;
    for (value = constant ? constant : list->child; value; value = constant ? NULL : value->next) {
        uint32_t before = words->n_words;
        if (!cJSON_IsString(value) || !schema_spend(c, branch, 1)) return false;
        schema_add_word(c, words, value);
        if (c->status || words->n_words == before) return false;
    }
    return true;
}

static bool told_apart_by(schema_compiler *c, const cJSON *list, const char *name) {
    const cJSON *branch;
    trie words = {0};
    bool apart = true;
    cJSON_ArrayForEach(branch, list) apart = apart && add_discriminators(c, branch, name, &words);
    trie_free(&words);
    return apart && !c->status;
}

bool schema_told_apart(schema_compiler *c, const cJSON *list) {
    if (c->last_one_of == list) return c->told_apart;
    const cJSON *first = list->child ? schema_target(c, list->child) : NULL, *member;
    bool apart = false;
    cJSON_ArrayForEach(member, schema_get(first, "properties")) if (!apart && lists_values(member)) apart =
        told_apart_by(c, list, member->string);
    c->last_one_of = list;
    return c->told_apart = apart;
}
