#include "grammar/schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/json.h"
#include "grammar/numbers.h"
#include "grammar/schema_private.h"
#include "text/chat_json.h"

/* ------------------------------------------------------------------------------------------------------ known sets */

static schema_known *slot_of(const schema_compiler *c, const schema_term *terms, uint32_t n, grammar_form form) {
    uint64_t hash = HASH_FNV1A_START;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t mixed = (uint64_t)(uintptr_t)terms[i].schema << 1 | terms[i].negated;
        hash = hash_fnv1a(hash, &mixed, sizeof mixed);
    }
    uint32_t at = (uint32_t)(hash >> 32) & (c->n_slots - 1);
    for (; c->known[at].terms; at = (at + 1) & (c->n_slots - 1)) {
        const schema_known *own = &c->known[at];
        bool same = own->n == n && own->form == form;
        for (uint32_t i = 0; i < n && same; i++)
            same = own->terms[i].schema == terms[i].schema && own->terms[i].negated == terms[i].negated;
        if (same) break;
    }
    return &c->known[at];
}

static bool grow_known(schema_compiler *c) {
    schema_known *old = c->known;
    uint32_t n = c->n_slots;
    c->n_slots = n ? 2 * n : 256;
    c->known = calloc(c->n_slots, sizeof *c->known);
    for (uint32_t i = 0; i < n && c->known; i++)
        if (old[i].terms) *slot_of(c, old[i].terms, old[i].n, old[i].form) = old[i];
    if (!c->known) {
        for (uint32_t i = 0; i < n; i++) free(old[i].terms);
        c->n_slots = c->n_known = 0;
    }
    free(old);
    return c->known != NULL;
}

static void remember(schema_compiler *c, const schema_set *set, uint32_t node) {
    if (c->status) return;
    schema_term *terms = malloc(set->n * sizeof *terms);
    if (!terms || (2 * (c->n_known + 1) > c->n_slots && !grow_known(c))) {
        free(terms);
        schema_out_of_memory(c);
        return;
    }
    memcpy(terms, set->terms, set->n * sizeof *terms);
    *slot_of(c, terms, set->n, c->form) = (schema_known){terms, set->n, node, c->form};
    c->n_known++;
}

static void forget_all(schema_compiler *c) {
    for (uint32_t i = 0; i < c->n_slots; i++) free(c->known[i].terms);
    free(c->known);
    c->known = NULL;
    c->n_slots = c->n_known = 0;
}

/* -------------------------------------------------------------------------------------------------------- any value */

static uint32_t any_value(schema_compiler *c) {
    if (c->any[c->form] != GRAMMAR_NOTHING || c->status) return c->any[c->form];
    static const cJSON yes = {.type = cJSON_True}, no = {.type = cJSON_False}, null = {.type = cJSON_NULL};
    static const cJSON *const words[] = {&yes, &no, &null};
    uint32_t any = schema_add_node(c, NODE_UNION), string = schema_add_node(c, NODE_STRING);
    uint32_t number = schema_add_node(c, NODE_DFA), word = schema_literals(c, words, 3);
    uint32_t array = schema_add_node(c, NODE_ARRAY), object = schema_add_node(c, NODE_OBJECT);
    kakeya_error error = {0};
    if (c->status) return 0;
    grammar_node *nodes = c->program->nodes;
    if (number_dfa(&(number_limits){0}, &nodes[number].dfa, &error) != KAKEYA_OK)
        schema_fail(c, NULL, error.status, "%s", error.message);
    nodes[array].rest = nodes[object].rest = any;
    nodes[array].depth_limit = nodes[object].depth_limit = GRAMMAR_MAX_FREE_DEPTH;
    nodes[object].any_order = c->form == GRAMMAR_CALL || !c->strict_order;
    const uint32_t members[] = {string, number, word, array, object};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) schema_add_child(c, any, members[i]);
    return c->any[c->form] = any;
}

/* --------------------------------------------------------------------------------------------------------- branches */

static void add_value(schema_branch *b, const cJSON *value) {
    bool scalar = !cJSON_IsArray(value) && !cJSON_IsObject(value); /* words of a trie, which has each once */
    for (uint32_t i = 0; i < b->n_values && !scalar; i++)
        if (b->values[i] == value) return;
    if (b->n_values == 10 * SCHEMA_MAX_VALUES) {
        schema_fail(b->c, value, KAKEYA_UNSUPPORTED, "more than %d values", 10 * (int)SCHEMA_MAX_VALUES);
        return;
    }
    if (b->n_values == b->value_capacity) {
        uint32_t capacity = b->value_capacity ? 2 * b->value_capacity : 16;
        const cJSON **values = realloc(b->values, capacity * sizeof *values);
        if (!values) {
            schema_out_of_memory(b->c);
            return;
        }
        b->values = values;
        b->value_capacity = capacity;
    }
    b->values[b->n_values++] = value;
}

static bool is_valid(const schema_branch *b, const cJSON *value) {
    b->c->uncertain = false;
    b->c->listed_value = value;
    for (uint32_t i = 0; i < b->set->n; i++)
        if (schema_holds(b->c, b->set->terms[i].schema, value, 0) == b->set->terms[i].negated) return false;
    return !b->c->uncertain;
}

/* Of enum and const: those that follow the whole set, whatever else the branch claims. */
static bool emit_values(schema_branch *b) {
    const cJSON *item = NULL, *value;
    for (uint32_t i = 0; i < b->n_claims && !item; i++)
        if (b->claims[i].kind == CLAIM_VALUES && !b->claims[i].negated) item = b->claims[i].item;
    if (!item) return false;
    bool list = strcmp(item->string, "enum") == 0;
    if (list && cJSON_GetArraySize(item) > SCHEMA_MAX_VALUES)
        schema_fail(b->c, item, KAKEYA_UNSUPPORTED, "more than %d values", (int)SCHEMA_MAX_VALUES);
    b->c->listed = item;
    for (value = list ? item->child : item; value && !b->c->status; value = list ? value->next : NULL)
        if ((schema_type_of(value) & b->types) && is_valid(b, value)) add_value(b, value);
    b->c->listed = NULL;
    return true;
}

static void add_child(schema_branch *b, uint32_t child) {
    if (b->n_exclusions == b->exclusion_capacity) {
        uint32_t capacity = b->exclusion_capacity ? 2 * b->exclusion_capacity : 16;
        uint32_t *exclusions = realloc(b->exclusions, capacity * sizeof *exclusions);
        if (!exclusions) {
            schema_out_of_memory(b->c);
            return;
        }
        b->exclusions = exclusions;
        b->exclusion_capacity = capacity;
    }
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->n_claims; i++) n += b->claims[i].negated || b->claims[i].term.negated;
    b->exclusions[b->n_exclusions++] = n;
    schema_add_child(b->c, b->node, child);
}

/* Of alternatives that begin alike, the first ones are followed where they are too many: those that say what a value is
 * come before those that say what it is not, which negations of oneOf and the like make many of. */
static void sort_children(schema_branch *b) {
    if (b->c->status) return;
    uint32_t *children = b->c->program->nodes[b->node].children;
    for (uint32_t i = 1; i < b->n_exclusions; i++) {
        uint32_t child = children[i], own = b->exclusions[i], at = i;
        for (; at > 0 && b->exclusions[at - 1] > own; at--) {
            children[at] = children[at - 1];
            b->exclusions[at] = b->exclusions[at - 1];
        }
        children[at] = child;
        b->exclusions[at] = own;
    }
}

static void emit_nothing(schema_branch *b) { (void)b; }

/* Fails where the branches turn out to be too many, before a node has been made for each of them. */
static void check_count(schema_branch *b) {
    enum { MANY = 32 };
    if (++b->n_emitted != MANY) return;
    uint32_t tried = b->c->n_tried;
    schema_branch all = {.c = b->c, .set = b->set, .emit = emit_nothing};
    schema_each_branch(&all);
    b->c->n_tried = tried;
}

static void emit_branch(schema_branch *b) {
    check_count(b);
    if (b->c->status || emit_values(b)) return;
    if (b->of_names) {
        if (b->types & TYPE_STRING) schema_name_branch(b);
        return;
    }
    b->words |= b->types & (TYPE_NULL | TYPE_BOOLEAN);
    if ((b->types & TYPE_STRING) && !b->c->status) add_child(b, schema_string(b));
    if ((b->types & TYPE_NUMBER) && !b->c->status) add_child(b, schema_number(b, b->types));
    if ((b->types & TYPE_ARRAY) && !b->c->status) add_child(b, schema_array(b));
    if ((b->types & TYPE_OBJECT) && !b->c->status) add_child(b, schema_object(b));
}

/* Scalars of all branches are words of one trie. */
static void emit_scalars(schema_branch *b) {
    static const cJSON yes = {.type = cJSON_True}, no = {.type = cJSON_False}, null = {.type = cJSON_NULL};
    schema_compiler *c = b->c;
    if (b->words & TYPE_TRUE) add_value(b, &yes);
    if (b->words & TYPE_FALSE) add_value(b, &no);
    if (b->words & TYPE_NULL) add_value(b, &null);
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->n_values && !c->status; i++) {
        if (cJSON_IsArray(b->values[i]) || cJSON_IsObject(b->values[i]))
            add_child(b, schema_constant(c, b->values[i]));
        else
            b->values[n++] = b->values[i];
    }
    if (n && !c->status) add_child(b, schema_literals(c, b->values, n));
}

/* The node of a set is made before what it stands for, so that it may hold itself. */
static uint32_t compile_new(schema_compiler *c, const schema_set *set) {
    schema_branch b = {.c = c, .set = set, .emit = emit_branch, .node = schema_add_node(c, NODE_UNION)};
    remember(c, set, b.node);
    schema_each_branch(&b);
    emit_scalars(&b);
    sort_children(&b);
    free(b.values);
    free(b.exclusions);
    schema_tell_apart(c, b.node);
    if (!c->status && c->program->nodes[b.node].n_children > GRAMMAR_MAX_BRANCHES)
        schema_place_of(c, set->terms[0].schema, &c->program->nodes[b.node].where);
    return b.node;
}

static uint32_t compile_set(schema_compiler *c, const schema_set *set) {
    if (c->status) return 0;
    if (set->never) return schema_add_node(c, NODE_NEVER);
    if (set->n == 0) return any_value(c);
    if (c->n_slots) {
        const schema_known *known = slot_of(c, set->terms, set->n, c->form);
        if (known->terms) return known->node;
    }
    const cJSON *at = set->terms[0].schema;
    if (c->n_sets == SCHEMA_MAX_SCHEMAS) {
        schema_fail(c, at, KAKEYA_UNSUPPORTED, "more than %d schemas", (int)SCHEMA_MAX_SCHEMAS);
        return 0;
    }
    if (c->depth == SCHEMA_MAX_LEVELS) {
        schema_fail(c, at, KAKEYA_UNSUPPORTED, "more than %d nested schemas", (int)SCHEMA_MAX_LEVELS);
        return 0;
    }
    c->n_sets++;
    c->depth++;
    uint32_t node = compile_new(c, set);
    c->depth--;
    return node;
}

/* --------------------------------------------------------------------------------------------------------- the face */

schema_compiler *schema_compiler_create(grammar_program *program) {
    schema_compiler *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->program = program;
    c->compile_set = compile_set;
    c->emit_names = emit_branch;
    c->strict_order = true;
    for (int i = 0; i < GRAMMAR_FORMS; i++) c->any[i] = GRAMMAR_NOTHING;
    return c;
}

void schema_compiler_destroy(schema_compiler *c) {
    if (!c) return;
    schema_forget_patterns(c);
    schema_forget_members(c);
    forget_all(c);
    free(c->scalars);
    cJSON_Delete(c->notes);
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
    forget_all(c); /* documents are told apart by their addresses */
    schema_forget_patterns(c);
    schema_forget_members(c);
    memset(c->targets, 0, sizeof c->targets);
    c->n_scalars = 0;
    c->root = root;
    c->where = where;
    c->form = form;
    c->status = KAKEYA_OK;
    c->error = error;
    c->depth = 0;
    c->names = 0;
    const char *draft = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(root, "$schema"));
    c->draft3 = draft && strstr(draft, "draft-03");
    c->last_one_of = NULL;
}

void schema_forget_nodes(schema_compiler *c, uint32_t n) {
    for (int i = 0; i < GRAMMAR_FORMS; i++)
        if (c->any[i] != GRAMMAR_NOTHING && c->any[i] >= n) c->any[i] = GRAMMAR_NOTHING;
}

void schema_set_strict_order(schema_compiler *c, bool strict_order) { c->strict_order = strict_order; }
void schema_set_halves(schema_compiler *c, bool halves) { c->halves = halves; }
void schema_set_loosen(schema_compiler *c, bool loosen) { c->loosen = loosen; }
const cJSON *schema_notes(const schema_compiler *c) { return c->notes; }

#define REPLACEMENT "\xEF\xBF\xBD" /* U+FFFD, which half of a surrogate pair is read as */

/* U+0000 is read as two bytes that are no UTF-8 (base/nul.h), which no answer may hold. What only people read may. */
static bool refuse_texts(schema_compiler *c, const cJSON *at) {
    const cJSON *item;
    cJSON_ArrayForEach(item, at) {
        const char *key = item->string;
        if (key && cJSON_IsString(item) && schema_keyword_of(key)->kind == KEYWORD_ANNOTATION) continue;
        if ((key && strstr(key, "\xC0\x80")) || (cJSON_IsString(item) && strstr(item->valuestring, "\xC0\x80")))
            schema_fail(c, at, KAKEYA_UNSUPPORTED, "a text in it contains U+0000");
        if (c->halves &&
            ((key && strstr(key, REPLACEMENT)) || (cJSON_IsString(item) && strstr(item->valuestring, REPLACEMENT))))
            schema_fail(c, at, KAKEYA_UNSUPPORTED, "a text in it contains half of a surrogate pair");
        if (c->status || !refuse_texts(c, item)) return false;
    }
    return true;
}

kakeya_status schema_compile(schema_compiler *c, const cJSON *root, const char *where, grammar_form form,
                             uint32_t *node, kakeya_error *error) {
    schema_set set = {0};
    begin(c, root, where, form, error);
    if (!cJSON_IsObject(root) && !cJSON_IsBool(root)) return schema_fail(c, root, KAKEYA_FORMAT, "not a schema");
    if (!refuse_texts(c, root)) return c->status;
    if (schema_set_add(c, &set, root, false)) *node = compile_set(c, &set);
    schema_set_free(&set);
    return c->status;
}

kakeya_status schema_leave_out(schema_compiler *c, const cJSON *root, const char *where, kakeya_error *error) {
    begin(c, root, where, GRAMMAR_JSON, error);
    schema_note(c, root);
    return c->status;
}

kakeya_status schema_any_object(schema_compiler *c, grammar_form form, uint32_t *node, kakeya_error *error) {
    begin(c, NULL, "object", form, error);
    uint32_t any = any_value(c);
    *node = schema_add_node(c, NODE_OBJECT);
    if (c->status) return c->status;
    c->program->nodes[*node].rest = any;
    c->program->nodes[*node].any_order = form == GRAMMAR_CALL || !c->strict_order;
    c->program->nodes[*node].depth_limit = GRAMMAR_MAX_FREE_DEPTH;
    return KAKEYA_OK;
}
