#include "grammar/schema.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "grammar/formats.h"
#include "grammar/numbers.h"
#include "grammar/regex.h"
#include "grammar/schema_private.h"
#include "text/chat_json.h"

/* Keywords that say something about values and are not understood. Others that are not known are annotations, as the
 * standard says. */
static const char *const refused[] = {"not",
                                      "if",
                                      "then",
                                      "else",
                                      "dependentRequired",
                                      "dependentSchemas",
                                      "dependencies",
                                      "contains",
                                      "minContains",
                                      "maxContains",
                                      "patternProperties",
                                      "propertyNames",
                                      "multipleOf",
                                      "divisibleBy",
                                      "extends",
                                      "disallow",
                                      "unevaluatedItems",
                                      "unevaluatedProperties",
                                      "$dynamicRef",
                                      "$recursiveRef",
                                      "contentSchema",
                                      "contentEncoding",
                                      "contentMediaType"};

static void fail_at(schema_compiler *c, const char *key, kakeya_status status, const char *what) {
    size_t mark = schema_enter(c, key);
    schema_fail(c, status, "%s", what);
    schema_leave(c, mark);
}

/* ----------------------------------------------------------------------------------------------- nodes of schemas */

static schema_known *slot_of(const schema_compiler *c, const cJSON *schema) {
    uint64_t mixed = (uint64_t)(uintptr_t)schema * UINT64_C(0x9E3779B97F4A7C15);
    uint32_t at = (uint32_t)(mixed >> 32) & (c->n_slots - 1);
    while (c->known[at].schema && c->known[at].schema != schema) at = (at + 1) & (c->n_slots - 1);
    return &c->known[at];
}

static bool grow_known(schema_compiler *c) {
    schema_known *old = c->known;
    uint32_t n = c->n_slots;
    c->n_slots = n ? 2 * n : 256;
    c->known = calloc(c->n_slots, sizeof *c->known);
    for (uint32_t i = 0; i < n && c->known; i++)
        if (old[i].schema) *slot_of(c, old[i].schema) = old[i];
    free(old);
    return c->known != NULL;
}

static void remember(schema_compiler *c, const cJSON *schema, uint32_t node) {
    if (c->status) return;
    if (2 * (c->n_known + 1) > c->n_slots && !grow_known(c)) {
        c->n_slots = c->n_known = 0;
        schema_out_of_memory(c);
        return;
    }
    *slot_of(c, schema) = (schema_known){schema, node};
    c->n_known++;
}

/* Any JSON value. */
static uint32_t any_value(schema_compiler *c) {
    if (c->any[c->form] != GRAMMAR_NOTHING || c->status) return c->any[c->form];
    static const char *const words[] = {"true", "false", "null"};
    uint32_t any = schema_add_node(c, NODE_UNION), string = schema_add_node(c, NODE_STRING);
    uint32_t number = schema_add_node(c, NODE_DFA), word = schema_add_node(c, NODE_LITERAL);
    uint32_t array = schema_add_node(c, NODE_ARRAY), object = schema_add_node(c, NODE_OBJECT);
    kakeya_error error = {0};
    if (c->status) return 0;
    grammar_node *nodes = c->program->nodes;
    if (number_dfa(&(number_limits){0}, &nodes[number].dfa, &error) != KAKEYA_OK)
        schema_fail(c, error.status, "%s", error.message);
    for (uint32_t i = 0; i < 3 && !c->status; i++) {
        uint16_t letters[5];
        size_t n = strlen(words[i]);
        uint32_t value = i;
        for (size_t k = 0; k < n; k++) letters[k] = (unsigned char)words[i][k];
        if (!trie_add(&nodes[word].words, letters, n, &value)) schema_out_of_memory(c);
    }
    nodes[array].rest = nodes[object].rest = any;
    nodes[array].depth_limit = nodes[object].depth_limit = GRAMMAR_MAX_FREE_DEPTH;
    const uint32_t members[] = {string, number, word, array, object};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) schema_add_child(c, any, members[i]);
    return c->any[c->form] = any;
}

static uint32_t compile(schema_compiler *c, const cJSON *schema);

static uint32_t compile_at(schema_compiler *c, const char *key, const cJSON *schema) {
    size_t mark = schema_enter(c, key);
    uint32_t node = compile(c, schema);
    schema_leave(c, mark);
    return node;
}

static uint32_t compile_item(schema_compiler *c, const char *key, size_t index, const cJSON *schema) {
    size_t mark = schema_enter(c, key);
    schema_enter_index(c, index);
    uint32_t node = compile(c, schema);
    schema_leave(c, mark);
    return node;
}

/* --------------------------------------------------------------------------------------------------------- keywords */

static const cJSON *get(const cJSON *schema, const char *key) { return cJSON_GetObjectItemCaseSensitive(schema, key); }

/* A count, 0 to `most`; `fallback` where absent. */
static uint32_t get_count(schema_compiler *c, const cJSON *schema, const char *key, double most, uint32_t fallback) {
    const cJSON *item = get(schema, key);
    if (!item) return fallback;
    double value = cJSON_IsRaw(item) ? strtod(item->valuestring, NULL) : -1;
    if (!(value >= 0) || floor(value) != value) {
        fail_at(c, key, KAKEYA_FORMAT, "not a whole number of at least 0");
        return 0;
    }
    if (value > most) {
        fail_at(c, key, KAKEYA_UNSUPPORTED, "more than is supported");
        return 0;
    }
    return (uint32_t)value;
}

static const char *get_text(schema_compiler *c, const cJSON *schema, const char *key) {
    const cJSON *item = get(schema, key);
    if (!item) return NULL;
    if (!cJSON_IsString(item)) fail_at(c, key, KAKEYA_FORMAT, "not a text");
    return item->valuestring;
}

static void take_error(schema_compiler *c, const char *key, kakeya_status status, const kakeya_error *error) {
    if (status != KAKEYA_OK) fail_at(c, key, status, error->message);
}

/* Automata of one program, together: compiling takes time, and callers wait for it. */
static void count_states(schema_compiler *c, const char *key, const dfa *made) {
    c->n_states += made->n_states;
    if (c->n_states > SCHEMA_MAX_STATES)
        fail_at(c, key, KAKEYA_UNSUPPORTED, "too large: the automata of all strings and numbers have too many states");
}

/* ---------------------------------------------------------------------------------------------------------- numbers */

/* Of a limit and an exclusive one the stricter. "exclusiveMinimum": true is an older way to write it. */
static const char *get_limit(schema_compiler *c, const cJSON *schema, const char *key, const char *exclusive_key,
                             bool is_minimum, bool *exclusive) {
    const cJSON *limit = get(schema, key), *other = get(schema, exclusive_key);
    *exclusive = false;
    if (limit && !cJSON_IsRaw(limit)) fail_at(c, key, KAKEYA_FORMAT, "not a number");
    if (other && !cJSON_IsRaw(other) && !cJSON_IsBool(other)) fail_at(c, exclusive_key, KAKEYA_FORMAT, "not a number");
    if (c->status) return NULL;
    if (cJSON_IsBool(other)) {
        *exclusive = limit && cJSON_IsTrue(other);
        other = NULL;
    }
    if (!other) return limit ? limit->valuestring : NULL;
    if (limit) {
        double x = strtod(limit->valuestring, NULL), y = strtod(other->valuestring, NULL);
        if (is_minimum ? x > y : x < y) return limit->valuestring;
    }
    *exclusive = true;
    return other->valuestring;
}

static uint32_t compile_number(schema_compiler *c, const cJSON *schema, bool integer) {
    kakeya_error error = {0};
    number_limits limits = {.integer = integer};
    limits.minimum = get_limit(c, schema, "minimum", "exclusiveMinimum", true, &limits.above_minimum);
    limits.maximum = get_limit(c, schema, "maximum", "exclusiveMaximum", false, &limits.below_maximum);
    uint32_t node = schema_add_node(c, NODE_DFA);
    if (c->status) return 0;
    const char *key = get(schema, "minimum")            ? "minimum"
                      : get(schema, "exclusiveMinimum") ? "exclusiveMinimum"
                      : get(schema, "maximum")          ? "maximum"
                                                        : "exclusiveMaximum";
    kakeya_status status = number_dfa(&limits, &c->program->nodes[node].dfa, &error);
    if (status == KAKEYA_INVALID_ARGUMENT)
        c->program->nodes[node].kind = NODE_NEVER; /* nothing lies between the limits */
    else
        take_error(c, key, status, &error);
    count_states(c, key, &c->program->nodes[node].dfa);
    return node;
}

/* ---------------------------------------------------------------------------------------------------------- strings */

/* An automaton that may come to accept nothing. */
typedef struct content {
    dfa dfa;
    bool empty;
} content;

static void take_made(schema_compiler *c, const char *key, content *to, dfa_result result, dfa *made) {
    kakeya_error error = {0};
    to->empty = to->empty || result == DFA_EMPTY;
    if (result != DFA_OK && result != DFA_EMPTY) take_error(c, key, regex_error(result, "the string", &error), &error);
    dfa_free(&to->dfa);
    to->dfa = *made;
}

/* What the string says. */
static void string_content(schema_compiler *c, const cJSON *schema, content *out) {
    const char *pattern = get_text(c, schema, "pattern"), *format = get_text(c, schema, "format");
    kakeya_error error = {0};
    dfa second = {0}, joined = {0};
    if (pattern && !c->status) {
        kakeya_status status = regex_compile(pattern, strlen(pattern), REGEX_SEARCH, &out->dfa, &error);
        out->empty = status == KAKEYA_INVALID_ARGUMENT;
        if (!out->empty) take_error(c, "pattern", status, &error);
    }
    if (format && !c->status)
        take_error(c, "format", format_dfa(format, pattern ? &second : &out->dfa, &error), &error);
    if (pattern && format && !c->status && !out->empty)
        take_made(c, "pattern", out, dfa_intersect(&out->dfa, &second, &joined), &joined);
    dfa_free(&second);
}

static uint32_t compile_string(schema_compiler *c, const cJSON *schema) {
    uint32_t minimum = get_count(c, schema, "minLength", 1e9, 0);
    uint32_t maximum = get_count(c, schema, "maxLength", 1e9, GRAMMAR_NO_LIMIT);
    bool limited = minimum || maximum != GRAMMAR_NO_LIMIT;
    if (c->status) return 0;
    if (!get(schema, "pattern") && !get(schema, "format")) {
        uint32_t node = schema_add_node(c, NODE_STRING);
        if (c->status) return 0;
        c->program->nodes[node].minimum = minimum;
        c->program->nodes[node].maximum = maximum;
        return node;
    }
    content text = {0};
    dfa made = {0};
    const char *key = get(schema, "pattern") ? "pattern" : "format";
    string_content(c, schema, &text);
    if (!c->status && !text.empty && limited)
        take_made(c, key, &text, dfa_limit_characters(&text.dfa, minimum, maximum, &made), &made);
    if (!c->status && !text.empty) {
        dfa_result result =
            c->form == GRAMMAR_JSON ? dfa_in_json_string(&text.dfa, &made) : dfa_in_quotes(&text.dfa, &made);
        take_made(c, key, &text, result, &made);
    }
    uint32_t node = schema_add_node(c, text.empty ? NODE_NEVER : NODE_DFA);
    count_states(c, key, &text.dfa);
    if (c->status)
        dfa_free(&text.dfa);
    else
        c->program->nodes[node].dfa = text.dfa;
    return node;
}

/* ----------------------------------------------------------------------------------------------------------- arrays */

static uint32_t compile_array(schema_compiler *c, const cJSON *schema) {
    const cJSON *items = get(schema, "items"), *first = get(schema, "prefixItems"), *item;
    const char *first_key = "prefixItems", *rest_key = "items";
    if (cJSON_IsArray(items)) { /* as older drafts have it */
        first = items;
        first_key = "items";
        rest_key = "additionalItems";
        items = get(schema, "additionalItems");
    }
    if (cJSON_IsTrue(get(schema, "uniqueItems"))) fail_at(c, "uniqueItems", KAKEYA_UNSUPPORTED, "not supported");
    uint32_t minimum = get_count(c, schema, "minItems", SCHEMA_MAX_ITEMS, 0);
    uint32_t maximum = get_count(c, schema, "maxItems", SCHEMA_MAX_ITEMS, GRAMMAR_NO_LIMIT);
    uint32_t node = schema_add_node(c, NODE_ARRAY);
    if (first && !cJSON_IsArray(first)) fail_at(c, first_key, KAKEYA_FORMAT, "not a list of schemas");
    size_t i = 0;
    if (!c->status) cJSON_ArrayForEach(item, first) {
            uint32_t child = compile_item(c, first_key, i++, item);
            schema_add_child(c, node, child);
        }
    uint32_t rest = items ? compile_at(c, rest_key, items) : any_value(c);
    if (c->status) return 0;
    grammar_node *array = &c->program->nodes[node];
    array->minimum = minimum;
    array->maximum = maximum;
    array->rest = rest;
    return node;
}

/* ---------------------------------------------------------------------------------------------------------- objects */

static bool is_required(const cJSON *required, const char *key) {
    const cJSON *item;
    cJSON_ArrayForEach(item, required) if (cJSON_IsString(item) && strcmp(item->valuestring, key) == 0) return true;
    return false;
}

/* minProperties and maxProperties, which are understood where they are 0 or 1 or say nothing new. */
static void limit_members(schema_compiler *c, const cJSON *schema, uint32_t node, uint32_t n_required) {
    uint32_t minimum = get_count(c, schema, "minProperties", 1e9, 0);
    uint32_t maximum = get_count(c, schema, "maxProperties", 1e9, GRAMMAR_NO_LIMIT);
    if (c->status) return;
    grammar_node *object = &c->program->nodes[node];
    if (minimum <= n_required) minimum = 0;
    if (object->rest == GRAMMAR_NOTHING && maximum >= object->n_children) maximum = GRAMMAR_NO_LIMIT;
    if (minimum > 1) fail_at(c, "minProperties", KAKEYA_UNSUPPORTED, "only 0 and 1 are supported");
    if (maximum > 1 && maximum != GRAMMAR_NO_LIMIT)
        fail_at(c, "maxProperties", KAKEYA_UNSUPPORTED, "only 0 and 1 are supported");
    object->minimum = minimum;
    object->maximum = maximum;
    if (maximum == GRAMMAR_NO_LIMIT || n_required == 0) return;
    if (n_required > maximum) object->kind = NODE_NEVER;
    uint32_t never = schema_add_node(c, NODE_NEVER);
    object = &c->program->nodes[node];
    for (uint32_t i = 0; i < object->n_children; i++) /* the required one is the only one */
        if (!object->required[i]) object->children[i] = never;
    object->rest = GRAMMAR_NOTHING;
}

static uint32_t compile_object(schema_compiler *c, const cJSON *schema) {
    const cJSON *properties = get(schema, "properties"), *required = get(schema, "required"), *item;
    const cJSON *additional = get(schema, "additionalProperties");
    if (properties && !cJSON_IsObject(properties)) fail_at(c, "properties", KAKEYA_FORMAT, "not an object");
    if (required && !cJSON_IsArray(required)) fail_at(c, "required", KAKEYA_FORMAT, "not a list of texts");
    uint32_t node = schema_add_node(c, NODE_OBJECT), n_required = 0;
    if (c->status) return 0;
    cJSON_ArrayForEach(item, properties) {
        size_t mark = schema_enter(c, "properties");
        uint32_t value = compile_at(c, item->string, item);
        schema_leave(c, mark);
        bool must = is_required(required, item->string);
        schema_add_member(c, node, item->string, value, must);
        n_required += must;
    }
    /* Members that are not declared: those that are required stand behind the others. */
    uint32_t rest = GRAMMAR_NOTHING;
    cJSON_ArrayForEach(item, required) {
        if (!cJSON_IsString(item)) fail_at(c, "required", KAKEYA_FORMAT, "not a list of texts");
        if (c->status || get(properties, item->valuestring)) continue;
        if (cJSON_IsFalse(additional)) fail_at(c, "required", KAKEYA_INVALID_ARGUMENT, "names what is not allowed");
        uint32_t value = additional ? compile_at(c, "additionalProperties", additional) : any_value(c);
        uint32_t members = c->program->nodes[node].n_children;
        uint32_t known = c->program->nodes[node].words.n_words;
        schema_add_member(c, node, item->valuestring, value, true);
        if (!c->status && c->program->nodes[node].words.n_words == known) /* named twice */
            c->program->nodes[node].n_children = members;
        else
            n_required++;
    }
    if (additional)
        rest = compile_at(c, "additionalProperties", additional);
    else if (c->program->nodes[node].n_children == 0)
        rest = any_value(c);
    if (c->status) return 0;
    c->program->nodes[node].rest = rest;
    limit_members(c, schema, node, n_required);
    return node;
}

/* ----------------------------------------------------------------------------------------------------------- values */

static bool has_type(const cJSON *value, const cJSON *type) {
    const char *name = cJSON_IsString(type) ? type->valuestring : "";
    if (cJSON_IsString(value)) return strcmp(name, "string") == 0;
    if (cJSON_IsBool(value)) return strcmp(name, "boolean") == 0;
    if (cJSON_IsNull(value)) return strcmp(name, "null") == 0;
    if (cJSON_IsArray(value)) return strcmp(name, "array") == 0;
    if (cJSON_IsObject(value)) return strcmp(name, "object") == 0;
    if (strcmp(name, "number") == 0) return true;
    double number = strtod(value->valuestring, NULL);
    return strcmp(name, "integer") == 0 && floor(number) == number;
}

static bool is_of_type(const cJSON *value, const cJSON *types) {
    if (!cJSON_IsArray(types)) return !types || has_type(value, types);
    const cJSON *type;
    cJSON_ArrayForEach(type, types) if (has_type(value, type)) return true;
    return false;
}

/* enum and const. */
static uint32_t compile_values(schema_compiler *c, const cJSON *schema) {
    const cJSON *list = get(schema, "enum"), *constant = get(schema, "const"), *types = get(schema, "type"), *item;
    cJSON_ArrayForEach(item, schema) {
        if (!schema_is_assertion(item->string) || strcmp(item->string, "enum") == 0 ||
            strcmp(item->string, "const") == 0 || strcmp(item->string, "type") == 0 ||
            strcmp(item->string, "nullable") == 0)
            continue;
        fail_at(c, item->string, KAKEYA_UNSUPPORTED, "not supported beside enum or const");
    }
    if (list && !cJSON_IsArray(list)) fail_at(c, "enum", KAKEYA_FORMAT, "not a list");
    int n = list ? cJSON_GetArraySize(list) : 1;
    if (n > SCHEMA_MAX_VALUES) fail_at(c, "enum", KAKEYA_UNSUPPORTED, "more than 1000 values");
    const cJSON **scalars = c->status ? NULL : calloc((size_t)n + 1, sizeof *scalars);
    if (!scalars) return (void)schema_out_of_memory(c), 0;
    uint32_t node = schema_add_node(c, NODE_UNION);
    size_t n_scalars = 0;
    for (item = list ? list->child : constant; item && !c->status; item = list ? item->next : NULL) {
        if (!is_of_type(item, types) || (list && constant && !cJSON_Compare(item, constant, true))) continue;
        if (cJSON_IsArray(item) || cJSON_IsObject(item)) {
            uint32_t value = schema_constant(c, item);
            schema_add_child(c, node, value);
        } else {
            scalars[n_scalars++] = item;
        }
    }
    uint32_t literals = schema_literals(c, scalars, n_scalars);
    schema_add_child(c, node, literals);
    free(scalars);
    return node;
}

static uint32_t compile_words(schema_compiler *c, bool boolean) {
    const cJSON yes = {.type = cJSON_True}, no = {.type = cJSON_False}, null = {.type = cJSON_NULL};
    const cJSON *const words[] = {&yes, &no}, *const nothing[] = {&null};
    return schema_literals(c, boolean ? words : nothing, boolean ? 2 : 1);
}

static uint32_t compile_type(schema_compiler *c, const cJSON *schema, const char *type) {
    if (strcmp(type, "object") == 0) return compile_object(c, schema);
    if (strcmp(type, "array") == 0) return compile_array(c, schema);
    if (strcmp(type, "string") == 0) return compile_string(c, schema);
    if (strcmp(type, "number") == 0) return compile_number(c, schema, false);
    if (strcmp(type, "integer") == 0) return compile_number(c, schema, true);
    if (strcmp(type, "boolean") == 0) return compile_words(c, true);
    if (strcmp(type, "null") == 0) return compile_words(c, false);
    schema_fail(c, KAKEYA_FORMAT, "the type '%.40s' is none of JSON", type);
    return 0;
}

static bool has_one_of(const cJSON *schema, const char *const *keys) {
    for (; *keys; keys++)
        if (get(schema, *keys)) return true;
    return false;
}

/* A schema without types: those that its keywords are about. */
static uint32_t compile_untyped(schema_compiler *c, const cJSON *schema) {
    static const char *const about_objects[] = {"properties",    "required",      "additionalProperties",
                                                "minProperties", "maxProperties", NULL};
    static const char *const about_arrays[] = {"items",       "prefixItems", "additionalItems", "minItems", "maxItems",
                                               "uniqueItems", NULL};
    static const char *const about_strings[] = {"minLength", "maxLength", "pattern", "format", NULL};
    static const char *const about_numbers[] = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", NULL};
    bool objects = has_one_of(schema, about_objects), arrays = has_one_of(schema, about_arrays);
    bool strings = has_one_of(schema, about_strings), numbers = has_one_of(schema, about_numbers);
    if (!objects && !arrays && !strings && !numbers) return any_value(c);
    uint32_t node = schema_add_node(c, NODE_UNION);
    if (objects && !c->status) schema_add_child(c, node, compile_object(c, schema));
    if (arrays && !c->status) schema_add_child(c, node, compile_array(c, schema));
    if (strings && !c->status) schema_add_child(c, node, compile_string(c, schema));
    if (numbers && !c->status) schema_add_child(c, node, compile_number(c, schema, false));
    return node;
}

/* anyOf and oneOf: what stands beside them holds in every branch. */
static uint32_t compile_branches(schema_compiler *c, const cJSON *schema, const char *key) {
    const cJSON *branches = get(schema, key), *branch, *item;
    bool bare = true;
    if (!cJSON_IsArray(branches)) {
        fail_at(c, key, KAKEYA_FORMAT, "not a list of schemas");
        return 0;
    }
    const cJSON *beside = NULL;
    cJSON_ArrayForEach(item, schema) bare =
        bare &&
        (strcmp(item->string, key) == 0 || !schema_is_assertion(item->string) || strcmp(item->string, "nullable") == 0);
    if (!bare) {
        cJSON *rest = schema_merge(c, schema, &(cJSON){.type = cJSON_Object});
        if (!rest) return 0;
        cJSON_DeleteItemFromObjectCaseSensitive(rest, key);
        cJSON_DeleteItemFromObjectCaseSensitive(rest, "nullable");
        beside = rest;
    }
    uint32_t node = schema_add_node(c, NODE_UNION);
    size_t i = 0;
    cJSON_ArrayForEach(branch, branches) {
        if (c->status) return 0;
        size_t mark = schema_enter(c, key);
        schema_enter_index(c, i++);
        const cJSON *both = branch;
        if (beside) {
            both = schema_normalise(c, branch, 0);
            if (both) both = schema_merge(c, beside, both);
        }
        uint32_t child = both ? compile(c, both) : 0;
        schema_add_child(c, node, child);
        schema_leave(c, mark);
    }
    if (!c->status && !(c->program->nodes[node].where = strdup(c->pointer))) schema_out_of_memory(c);
    return node;
}

static uint32_t compile_object_schema(schema_compiler *c, const cJSON *schema) {
    const cJSON *types = get(schema, "type"), *type;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (get(schema, refused[i])) fail_at(c, refused[i], KAKEYA_UNSUPPORTED, "not supported");
    if (c->status) return 0;
    schema = schema_normalise(c, schema, 0);
    if (!schema) return 0;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) /* of what was merged */
        if (get(schema, refused[i])) fail_at(c, refused[i], KAKEYA_UNSUPPORTED, "not supported");
    types = get(schema, "type");
    if (get(schema, "anyOf") && get(schema, "oneOf"))
        fail_at(c, "oneOf", KAKEYA_UNSUPPORTED, "not supported beside anyOf");
    if (get(schema, "anyOf")) return compile_branches(c, schema, "anyOf");
    if (get(schema, "oneOf")) return compile_branches(c, schema, "oneOf");
    if (get(schema, "enum") || get(schema, "const")) return compile_values(c, schema);
    if (!types) return compile_untyped(c, schema);
    if (cJSON_IsString(types)) return compile_type(c, schema, types->valuestring);
    if (!cJSON_IsArray(types)) {
        fail_at(c, "type", KAKEYA_FORMAT, "neither a text nor a list");
        return 0;
    }
    uint32_t node = schema_add_node(c, NODE_UNION);
    cJSON_ArrayForEach(type, types) {
        if (!cJSON_IsString(type)) fail_at(c, "type", KAKEYA_FORMAT, "neither a text nor a list");
        if (c->status) return 0;
        uint32_t child = compile_type(c, schema, type->valuestring);
        schema_add_child(c, node, child);
    }
    return node;
}

/* The node of a schema is made before what it stands for, so that it may refer to itself. */
static uint32_t compile_new(schema_compiler *c, const cJSON *schema) {
    uint32_t node = schema_add_node(c, NODE_UNION), meaning;
    remember(c, schema, node);
    const cJSON *reference = get(schema, "$ref"), *item;
    bool alone = cJSON_IsString(reference);
    cJSON_ArrayForEach(item, schema) alone =
        alone && (!schema_is_assertion(item->string) || strcmp(item->string, "$ref") == 0);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) alone = alone && !get(schema, refused[i]);
    if (alone && !c->status) {
        const cJSON *target = schema_resolve(c, reference->valuestring);
        meaning = target ? compile(c, target) : 0;
    } else {
        meaning = compile_object_schema(c, schema);
    }
    schema_add_child(c, node, meaning);
    const char *where = c->status ? NULL : c->program->nodes[meaning].where; /* of alternatives, which become its own */
    if (where && !(c->program->nodes[node].where = strdup(where))) schema_out_of_memory(c);
    if (cJSON_IsTrue(get(schema, "nullable")) && !c->status) {
        uint32_t null = compile_words(c, false);
        schema_add_child(c, node, null);
    }
    return node;
}

static uint32_t compile(schema_compiler *c, const cJSON *schema) {
    if (c->status) return 0;
    if (cJSON_IsTrue(schema)) return any_value(c);
    if (cJSON_IsFalse(schema)) return schema_add_node(c, NODE_NEVER);
    if (!cJSON_IsObject(schema)) {
        schema_fail(c, KAKEYA_FORMAT, "not a schema");
        return 0;
    }
    if (c->n_slots && slot_of(c, schema)->schema) return slot_of(c, schema)->node;
    if (c->n_schemas == SCHEMA_MAX_SCHEMAS) {
        schema_fail(c, KAKEYA_UNSUPPORTED, "more than %d schemas", (int)SCHEMA_MAX_SCHEMAS);
        return 0;
    }
    if (c->depth == SCHEMA_MAX_LEVELS) {
        schema_fail(c, KAKEYA_UNSUPPORTED, "more than %d schemas in one another", (int)SCHEMA_MAX_LEVELS);
        return 0;
    }
    c->n_schemas++;
    c->depth++;
    uint32_t node = compile_new(c, schema);
    c->depth--;
    return node;
}

/* --------------------------------------------------------------------------------------------------------- the face */

schema_compiler *schema_compiler_create(grammar_program *program) {
    schema_compiler *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->program = program;
    for (int i = 0; i < GRAMMAR_FORMS; i++) c->any[i] = GRAMMAR_NOTHING;
    return c;
}

void schema_compiler_destroy(schema_compiler *c) {
    if (!c) return;
    cJSON_Delete(c->owned);
    free(c->known);
    free(c);
}

kakeya_status schema_parse(const char *name, const char *text, size_t bytes, cJSON **out, kakeya_error *error) {
    kakeya_status status = chat_json_parse(name, text, bytes, out, error);
    if (status == KAKEYA_OK) status = json_refuse_repeated_keys(name, *out, error);
    if (status == KAKEYA_OK) return status;
    cJSON_Delete(*out);
    *out = NULL;
    return status;
}

static void begin(schema_compiler *c, const cJSON *root, const char *where, grammar_form form, kakeya_error *error) {
    if (c->known) memset(c->known, 0, c->n_slots * sizeof *c->known);
    c->n_known = 0;
    c->root = root;
    c->form = form;
    c->status = KAKEYA_OK;
    c->error = error;
    c->depth = 0;
    snprintf(c->pointer, sizeof c->pointer, "%.200s", where);
    c->pointer_bytes = strlen(c->pointer);
}

kakeya_status schema_compile(schema_compiler *c, const cJSON *root, const char *where, grammar_form form,
                             uint32_t *node, kakeya_error *error) {
    begin(c, root, where, form, error);
    *node = compile(c, root);
    return c->status;
}

kakeya_status schema_any_object(schema_compiler *c, grammar_form form, uint32_t *node, kakeya_error *error) {
    begin(c, NULL, "object", form, error);
    uint32_t any = any_value(c);
    *node = schema_add_node(c, NODE_OBJECT);
    if (c->status) return c->status;
    c->program->nodes[*node].rest = any;
    c->program->nodes[*node].depth_limit = GRAMMAR_MAX_FREE_DEPTH;
    return KAKEYA_OK;
}
