/* References, and several schemas that hold at once. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "grammar/schema.h"
#include "grammar/schema_private.h"

enum { MAX_MERGE_DEPTH = 32, MAX_MERGED = 20000 };

/* ------------------------------------------------------------------------------------------------------- references */

/* One step of a JSON pointer: reads up to the next '/', with ~0, ~1 and %XX decoded. */
static const char *next_step(const char *at, char *step, size_t room) {
    size_t n = 0;
    for (at++; *at && *at != '/'; at++) {
        char byte = *at;
        char digits[3] = {at[1], at[1] ? at[2] : 0, 0}, *end;
        if (byte == '~' && (at[1] == '0' || at[1] == '1')) {
            byte = *++at == '0' ? '~' : '/';
        } else if (byte == '%' && digits[1]) {
            long value = strtol(digits, &end, 16);
            if (*end == 0 && value > 0) {
                byte = (char)value;
                at += 2;
            }
        }
        if (n + 1 == room) return NULL;
        step[n++] = byte;
    }
    step[n] = 0;
    return at;
}

const cJSON *schema_resolve(schema_compiler *c, const char *reference) {
    char step[256];
    const cJSON *at = c->root;
    if (reference[0] != '#' || (reference[1] && reference[1] != '/')) {
        schema_fail(c, KAKEYA_UNSUPPORTED, "the reference '%.100s' does not lead into the schema itself", reference);
        return NULL;
    }
    for (const char *rest = reference + 1; at && *rest;) {
        rest = next_step(rest, step, sizeof step);
        if (!rest) at = NULL;
        if (!rest) break;
        if (cJSON_IsArray(at) && step[0] >= '0' && step[0] <= '9' && strlen(step) < 6)
            at = cJSON_GetArrayItem(at, atoi(step));
        else
            at = cJSON_IsObject(at) ? cJSON_GetObjectItemCaseSensitive(at, step) : NULL;
    }
    if (!at) schema_fail(c, KAKEYA_FORMAT, "the reference '%.100s' leads nowhere", reference);
    return at;
}

/* --------------------------------------------------------------------------------------------------------- keywords */

bool schema_is_assertion(const char *keyword) {
    static const char *const assertions[] = {"type",
                                             "properties",
                                             "required",
                                             "additionalProperties",
                                             "items",
                                             "prefixItems",
                                             "minItems",
                                             "maxItems",
                                             "enum",
                                             "const",
                                             "anyOf",
                                             "oneOf",
                                             "allOf",
                                             "$ref",
                                             "nullable",
                                             "minLength",
                                             "maxLength",
                                             "pattern",
                                             "format",
                                             "minimum",
                                             "maximum",
                                             "exclusiveMinimum",
                                             "exclusiveMaximum",
                                             "minProperties",
                                             "maxProperties",
                                             "additionalItems",
                                             "uniqueItems"};
    for (size_t i = 0; i < sizeof assertions / sizeof *assertions; i++)
        if (strcmp(assertions[i], keyword) == 0) return true;
    return false;
}

static bool is_one_of(const char *keyword, const char *const *names) {
    for (; *names; names++)
        if (strcmp(*names, keyword) == 0) return true;
    return false;
}

/* ---------------------------------------------------------------------------------------------------------- merging */

static cJSON *own(schema_compiler *c, cJSON *item) {
    if (item && !c->owned) c->owned = cJSON_CreateArray();
    if (!item || !c->owned || !cJSON_AddItemToArray(c->owned, item)) {
        cJSON_Delete(item);
        schema_out_of_memory(c);
        return NULL;
    }
    if (++c->n_merged > MAX_MERGED) schema_fail(c, KAKEYA_UNSUPPORTED, "merging allOf and $ref makes too many schemas");
    return item;
}

static void add(schema_compiler *c, cJSON *object, const char *key, cJSON *item) {
    if (c->status) {
        cJSON_Delete(item);
    } else if (!item || !cJSON_AddItemToObject(object, key, item)) {
        cJSON_Delete(item);
        schema_out_of_memory(c);
    }
}

static void add_reference(schema_compiler *c, cJSON *object, const char *key, const cJSON *item) {
    if (!c->status && !json_add_reference(object, key, item)) schema_out_of_memory(c);
}

/* {"allOf": [a, b]} */
static cJSON *both(const cJSON *a, const cJSON *b) {
    union {
        const cJSON *constant;
        cJSON *item;
    } first = {a}, second = {b};
    cJSON *schema = cJSON_CreateObject(), *list = schema ? cJSON_AddArrayToObject(schema, "allOf") : NULL;
    if (list && cJSON_AddItemReferenceToArray(list, first.item) && cJSON_AddItemReferenceToArray(list, second.item))
        return schema;
    cJSON_Delete(schema);
    return NULL;
}

/* Members of `a` that `other` forbids have no value. */
static void add_properties(schema_compiler *c, cJSON *out, const cJSON *a, const cJSON *other, bool other_closed) {
    const cJSON *member;
    cJSON_ArrayForEach(member, a) {
        if (cJSON_GetObjectItemCaseSensitive(out, member->string)) continue;
        const cJSON *twin = cJSON_GetObjectItemCaseSensitive(other, member->string);
        if (twin)
            add(c, out, member->string, both(member, twin));
        else if (other_closed)
            add(c, out, member->string, cJSON_CreateFalse());
        else
            add_reference(c, out, member->string, member);
    }
}

static void fail_at(schema_compiler *c, const char *key, const char *what) {
    size_t mark = schema_enter(c, key);
    schema_fail(c, KAKEYA_FORMAT, "%s", what);
    schema_leave(c, mark);
}

static void merge_properties(schema_compiler *c, cJSON *out, const cJSON *a, const cJSON *b) {
    const cJSON *first = cJSON_GetObjectItemCaseSensitive(a, "properties");
    const cJSON *second = cJSON_GetObjectItemCaseSensitive(b, "properties");
    bool first_closed = cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(a, "additionalProperties"));
    bool second_closed = cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(b, "additionalProperties"));
    if (!first && !second) return;
    if ((first && !cJSON_IsObject(first)) || (second && !cJSON_IsObject(second))) {
        fail_at(c, "properties", "not an object");
        return;
    }
    cJSON *merged = cJSON_CreateObject();
    if (!merged) {
        schema_out_of_memory(c);
        return;
    }
    add_properties(c, merged, first, second, second_closed);
    add_properties(c, merged, second, first, first_closed);
    add(c, out, "properties", merged);
}

static bool lists(const cJSON *list, const cJSON *value) {
    const cJSON *item;
    cJSON_ArrayForEach(item, list) if (cJSON_Compare(item, value, true)) return true;
    return false;
}

static void merge_required(schema_compiler *c, cJSON *out, const cJSON *a, const cJSON *b) {
    cJSON *merged = cJSON_CreateArray();
    const cJSON *item;
    bool done = merged != NULL;
    cJSON_ArrayForEach(item, a) done = done && cJSON_AddItemToArray(merged, cJSON_Duplicate(item, true));
    cJSON_ArrayForEach(item, b) done =
        done && (lists(a, item) || cJSON_AddItemToArray(merged, cJSON_Duplicate(item, true)));
    if (!done) schema_out_of_memory(c);
    add(c, out, "required", merged);
}

/* A type that is in both lists; integers are numbers. */
static const char *common_type(const cJSON *type, const cJSON *others) {
    const cJSON *other = cJSON_IsArray(others) ? others->child : others;
    for (; other; other = cJSON_IsArray(others) ? other->next : NULL) {
        if (!cJSON_IsString(other) || !cJSON_IsString(type)) continue;
        const char *x = type->valuestring, *y = other->valuestring;
        if (strcmp(x, y) == 0) return x;
        if ((strcmp(x, "integer") == 0 && strcmp(y, "number") == 0) ||
            (strcmp(y, "integer") == 0 && strcmp(x, "number") == 0))
            return "integer";
    }
    return NULL;
}

static void merge_types(schema_compiler *c, cJSON *out, const cJSON *a, const cJSON *b) {
    cJSON *merged = cJSON_CreateArray();
    const cJSON *type = cJSON_IsArray(a) ? a->child : a;
    for (; type && merged; type = cJSON_IsArray(a) ? type->next : NULL) {
        const char *common = common_type(type, b);
        if (common && !cJSON_AddItemToArray(merged, cJSON_CreateString(common))) schema_out_of_memory(c);
    }
    add(c, out, "type", merged);
}

static void merge_values(schema_compiler *c, cJSON *out, const cJSON *a, const cJSON *b) {
    cJSON *merged = cJSON_CreateArray();
    const cJSON *item;
    bool done = merged != NULL;
    cJSON_ArrayForEach(item, a) if (lists(b, item)) done =
        done && cJSON_AddItemToArray(merged, cJSON_Duplicate(item, true));
    if (!done) schema_out_of_memory(c);
    add(c, out, "enum", merged);
}

static void merge_keyword(schema_compiler *c, cJSON *out, const cJSON *a, const cJSON *b) {
    static const char *const larger[] = {"minItems", "minLength", "minimum", "exclusiveMinimum", "minProperties", NULL};
    static const char *const smaller[] = {"maxItems",         "maxLength",     "maximum",
                                          "exclusiveMaximum", "maxProperties", NULL};
    static const char *const schemas[] = {"items", "additionalItems", "additionalProperties", NULL};
    const char *key = a->string;
    if (cJSON_Compare(a, b, true)) {
        add_reference(c, out, key, a);
    } else if (strcmp(key, "type") == 0) {
        merge_types(c, out, a, b);
    } else if ((strcmp(key, "required") == 0 || strcmp(key, "enum") == 0) && !(cJSON_IsArray(a) && cJSON_IsArray(b))) {
        fail_at(c, key, "not a list");
    } else if ((strcmp(key, "required") == 0 || strcmp(key, "enum") == 0) &&
               cJSON_GetArraySize(a) + cJSON_GetArraySize(b) > SCHEMA_MAX_VALUES) {
        size_t mark = schema_enter(c, key); /* each of one list is looked for in the other */
        schema_fail(c, KAKEYA_UNSUPPORTED, "more than %d values in schemas that hold together", (int)SCHEMA_MAX_VALUES);
        schema_leave(c, mark);
    } else if (strcmp(key, "required") == 0) {
        merge_required(c, out, a, b);
    } else if (strcmp(key, "enum") == 0) {
        merge_values(c, out, a, b);
    } else if (strcmp(key, "nullable") == 0) {
        add(c, out, key, cJSON_CreateFalse());
    } else if (cJSON_IsRaw(a) && cJSON_IsRaw(b) && (is_one_of(key, larger) || is_one_of(key, smaller))) {
        double x = strtod(a->valuestring, NULL), y = strtod(b->valuestring, NULL);
        add_reference(c, out, key, (x > y) == is_one_of(key, larger) ? a : b);
    } else if (is_one_of(key, schemas)) {
        if (cJSON_IsFalse(a) || cJSON_IsFalse(b))
            add(c, out, key, cJSON_CreateFalse());
        else
            add(c, out, key, both(a, b));
    } else {
        size_t mark = schema_enter(c, key);
        schema_fail(c, KAKEYA_UNSUPPORTED, "it is there twice, with different values, in schemas that hold together");
        schema_leave(c, mark);
    }
}

cJSON *schema_merge(schema_compiler *c, const cJSON *a, const cJSON *b) {
    const cJSON *item;
    if (!(cJSON_IsObject(a) || cJSON_IsBool(a)) || !(cJSON_IsObject(b) || cJSON_IsBool(b))) {
        schema_fail(c, KAKEYA_FORMAT, "not a schema"); /* a reference may lead to any part of the document */
        return NULL;
    }
    cJSON *out = own(c, cJSON_CreateObject());
    if (!out) return NULL;
    if (cJSON_IsFalse(a) || cJSON_IsFalse(b)) {
        add(c, out, "enum", cJSON_CreateArray());
        return c->status ? NULL : out;
    }
    merge_properties(c, out, a, b);
    cJSON_ArrayForEach(item, a) {
        if (c->status || !schema_is_assertion(item->string) || strcmp(item->string, "properties") == 0) continue;
        const cJSON *twin = cJSON_GetObjectItemCaseSensitive(b, item->string);
        if (twin)
            merge_keyword(c, out, item, twin);
        else
            add_reference(c, out, item->string, item);
    }
    cJSON_ArrayForEach(item, b) {
        if (c->status || !schema_is_assertion(item->string) || strcmp(item->string, "properties") == 0) continue;
        if (!cJSON_GetObjectItemCaseSensitive(a, item->string)) add_reference(c, out, item->string, item);
    }
    return c->status ? NULL : out;
}

/* The members of a schema but "$ref" and "allOf". */
static cJSON *rest_of(schema_compiler *c, const cJSON *schema) {
    cJSON *out = own(c, cJSON_CreateObject());
    const cJSON *item;
    if (!out) return NULL;
    cJSON_ArrayForEach(item, schema) {
        if (strcmp(item->string, "$ref") != 0 && strcmp(item->string, "allOf") != 0)
            add_reference(c, out, item->string, item);
    }
    return c->status ? NULL : out;
}

const cJSON *schema_normalise(schema_compiler *c, const cJSON *schema, int depth) {
    const cJSON *reference = cJSON_GetObjectItemCaseSensitive(schema, "$ref");
    const cJSON *all = cJSON_GetObjectItemCaseSensitive(schema, "allOf"), *branch;
    if (c->status || !cJSON_IsObject(schema) || (!reference && !all)) return c->status ? NULL : schema;
    if (depth > MAX_MERGE_DEPTH) {
        schema_fail(c, KAKEYA_UNSUPPORTED, "$ref and allOf lead into one another more than %d times",
                    (int)MAX_MERGE_DEPTH);
        return NULL;
    }
    const cJSON *merged = rest_of(c, schema);
    if (reference && !c->status) {
        const cJSON *target = cJSON_IsString(reference) ? schema_resolve(c, reference->valuestring) : NULL;
        if (!cJSON_IsString(reference)) schema_fail(c, KAKEYA_FORMAT, "$ref is not a text");
        if (target) target = schema_normalise(c, target, depth + 1);
        if (target && merged) merged = schema_merge(c, target, merged);
    }
    if (all && !c->status && !cJSON_IsArray(all)) schema_fail(c, KAKEYA_FORMAT, "allOf is not a list");
    size_t i = 0;
    cJSON_ArrayForEach(branch, all) {
        if (c->status) break;
        size_t mark = schema_enter(c, "allOf");
        schema_enter_index(c, i++);
        const cJSON *flat = schema_normalise(c, branch, depth + 1);
        if (flat && merged) merged = schema_merge(c, merged, flat);
        schema_leave(c, mark);
    }
    return c->status ? NULL : merged;
}
