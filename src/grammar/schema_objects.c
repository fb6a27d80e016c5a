/* Objects that follow the claims of a branch. */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "grammar/regex.h"
#include "grammar/schema_private.h"

enum {
    MAX_ENUMERATED = 256, /* keys of a finite language that are declared one by one */
};

typedef struct member {
    const char *name;
    bool required, forbidden;
    bool listed; /* in the schema; not, it is one of few keys that a pattern allows */
} member;

typedef struct object {
    schema_branch *b;
    member *members;
    uint32_t n, capacity;
    uint32_t *slots; /* [2 * capacity]: member + 1, 0: empty; capacity is a power of two */
    const schema_claim *pattern_claims[DFA_MAX_LABEL_BITS];
    const cJSON *patterns[DFA_MAX_LABEL_BITS];
    uint32_t n_patterns;
    uint32_t minimum, maximum;
    char *enumerated[MAX_ENUMERATED]; /* owned names */
    uint32_t n_enumerated;
} object;

/* ----------------------------------------------------------------------------------------------------------- members
 */

static uint32_t slot_of(const object *o, const char *name) {
    uint32_t mask = 2 * o->capacity - 1;
    uint32_t slot = (uint32_t)(hash_fnv1a(HASH_FNV1A_START, name, strlen(name)) >> 20) & mask;
    while (o->slots[slot] && strcmp(o->members[o->slots[slot] - 1].name, name) != 0) slot = (slot + 1) & mask;
    return slot;
}

static bool grow(object *o) {
    uint32_t capacity = o->capacity ? 2 * o->capacity : 16;
    member *members = realloc(o->members, capacity * sizeof *members);
    if (members) o->members = members;
    uint32_t *slots = members ? calloc(2 * (size_t)capacity, sizeof *slots) : NULL;
    if (!slots) return schema_out_of_memory(o->b->c), false;
    free(o->slots);
    o->slots = slots;
    o->capacity = capacity;
    for (uint32_t i = 0; i < o->n; i++) o->slots[slot_of(o, o->members[i].name)] = i + 1;
    return true;
}

static member *add_member(object *o, const char *name) {
    if (o->b->c->status || (o->n == o->capacity && !grow(o))) return NULL;
    uint32_t slot = slot_of(o, name);
    if (!o->slots[slot]) {
        o->members[o->n++] = (member){.name = name, .listed = true};
        o->slots[slot] = o->n;
    }
    return &o->members[o->slots[slot] - 1];
}

static bool is_keyword(const schema_claim *claim, const char *name) {
    return claim->kind == CLAIM_KEYWORD && !claim->negated && strcmp(claim->item->string, name) == 0;
}

static void take_count(object *o, const schema_claim *claim) {
    uint32_t n;
    bool is_minimum = claim->item->string[1] == 'i';
    if (!schema_count(o->b->c, claim->item, 1e9, &n)) return;
    if (claim->negated) {
        if (is_minimum && n == 0) o->minimum = GRAMMAR_NO_LIMIT; /* there are none */
        is_minimum = !is_minimum;
        n = is_minimum ? n + 1 : n - (n > 0);
    }
    if (is_minimum && n > o->minimum) o->minimum = n;
    if (!is_minimum && n < o->maximum) o->maximum = n;
}

static void take_patterns(object *o, const schema_claim *claim) {
    const cJSON *pattern;
    cJSON_ArrayForEach(pattern, claim->item) {
        if (o->n_patterns == DFA_MAX_LABEL_BITS) {
            schema_cannot(o->b->c, pattern, KAKEYA_UNSUPPORTED, "more than %d patterns of keys",
                          (int)DFA_MAX_LABEL_BITS);
            continue;
        }
        o->pattern_claims[o->n_patterns] = claim;
        o->patterns[o->n_patterns++] = pattern;
    }
}

/* Declared members first, in their order; then what else must be there, or must not. */
static void gather(object *o) {
    const schema_branch *b = o->b;
    const cJSON *item;
    for (uint32_t i = 0; i < b->n_claims; i++) {
        const schema_claim *claim = &b->claims[i];
        if (is_keyword(claim, "properties")) cJSON_ArrayForEach(item, claim->item) add_member(o, item->string);
        if (is_keyword(claim, "patternProperties")) take_patterns(o, claim);
        if (claim->kind == CLAIM_KEYWORD &&
            (strcmp(claim->item->string, "minProperties") == 0 || strcmp(claim->item->string, "maxProperties") == 0))
            take_count(o, claim);
    }
    for (uint32_t i = 0; i < b->n_claims; i++) {
        const schema_claim *claim = &b->claims[i];
        if (claim->kind != CLAIM_REQUIRE && claim->kind != CLAIM_FORBID && claim->kind != CLAIM_MEMBER) continue;
        member *own = add_member(o, claim->name);
        if (own && claim->kind == CLAIM_REQUIRE) own->required = true;
        if (own && claim->kind == CLAIM_FORBID) own->forbidden = true;
    }
}

/* ------------------------------------------------------------------------------------------------- what they follow */

static bool owner_matches(object *o, const cJSON *owner, const char *name) {
    const cJSON *pattern, *patterns = schema_get(owner, "patternProperties");
    cJSON_ArrayForEach(pattern, patterns) if (schema_matches(o->b->c, pattern, pattern->string, name)) return true;
    return false;
}

/* Whether a pattern of the owner is among those of the mask. */
static bool owner_is_matched(const object *o, const cJSON *owner, uint32_t mask) {
    for (uint32_t i = 0; i < o->n_patterns; i++)
        if ((mask >> i & 1) && o->pattern_claims[i]->owner == owner) return true;
    return false;
}

/* A key by its name, or (name NULL) one that is not declared by the patterns that it matches. */
typedef struct key {
    const char *name;
    uint32_t mask;
} key;

/* Whether the owner's properties or patterns are about the key. */
static bool is_declared(object *o, const cJSON *owner, key k) {
    if (!k.name) return owner_is_matched(o, owner, k.mask);
    return schema_member(o->b->c, schema_get(owner, "properties"), k.name) || owner_matches(o, owner, k.name);
}

/* unevaluatedProperties: members that the schemas it came to say nothing about. */
static bool is_unevaluated(object *o, const schema_claim *claim, key k) {
    const schema_branch *b = o->b;
    if (!schema_spend(b->c, claim->owner, 1 + b->n_claims / 2)) return false;
    for (uint32_t i = 0; i < b->n_claims && !b->c->status; i++) {
        const schema_claim *other = &b->claims[i];
        if (other == claim || other->kind != CLAIM_KEYWORD || !schema_comes_from(b, other->origin, claim->origin))
            continue;
        if (is_keyword(other, "additionalProperties") || is_keyword(other, "unevaluatedProperties")) return false;
        bool declares = is_keyword(other, "properties") || is_keyword(other, "patternProperties");
        if (declares && is_declared(o, other->owner, k)) return false;
    }
    return true;
}

static void follow_pattern(object *o, schema_set *set, const schema_claim *claim, key k) {
    const cJSON *pattern;
    if (k.name) {
        cJSON_ArrayForEach(pattern, claim->item) if (schema_matches(o->b->c, pattern, pattern->string, k.name))
            schema_set_add(o->b->c, set, pattern, false);
        return;
    }
    for (uint32_t i = 0; i < o->n_patterns; i++)
        if ((k.mask >> i & 1) && o->pattern_claims[i] == claim) schema_set_add(o->b->c, set, o->patterns[i], false);
}

/* All that a member with the key follows. */
static void follow_key(object *o, key k, schema_set *set) {
    schema_branch *b = o->b;
    schema_compiler *c = b->c;
    if (!schema_spend(c, b->set->terms[0].schema, 1 + b->n_claims / 4)) return;
    for (uint32_t i = 0; i < b->n_claims && !c->status && !set->never; i++) {
        const schema_claim *claim = &b->claims[i];
        const cJSON *own = NULL;
        const cJSON name = {.type = cJSON_String, .valuestring = (char *)(uintptr_t)(k.name ? k.name : "")};
        if (claim->kind == CLAIM_MEMBER && k.name && strcmp(claim->name, k.name) == 0)
            schema_set_add(c, set, claim->term.schema, claim->term.negated);
        if (claim->kind != CLAIM_KEYWORD || claim->negated) continue;
        if (is_keyword(claim, "properties"))
            own = k.name ? schema_member(c, claim->item, k.name) : NULL;
        else if (is_keyword(claim, "patternProperties"))
            follow_pattern(o, set, claim, k);
        else if (is_keyword(claim, "additionalProperties"))
            own = is_declared(o, claim->owner, k) ? NULL : claim->item;
        else if (is_keyword(claim, "unevaluatedProperties"))
            own = is_unevaluated(o, claim, k) ? claim->item : NULL;
        else if (is_keyword(claim, "propertyNames") && k.name && !schema_holds(c, claim->item, &name, 0))
            set->never = true;
        if (own) schema_set_add(c, set, own, false);
    }
}

static uint32_t compile_key(object *o, key k) {
    schema_set set = {0};
    follow_key(o, k, &set);
    uint32_t node = o->b->c->status ? 0 : o->b->c->compile_set(o->b->c, &set);
    schema_set_free(&set);
    return node;
}

/* -------------------------------------------------------------------------------------------------- keys not declared
 */

/* Members that are not declared may come, beside those of patterns. */
static bool others_are_open(const object *o) {
    const schema_branch *b = o->b;
    bool declared = false;
    if (!b->c->strict_order) return true;
    for (uint32_t i = 0; i < b->n_claims; i++) {
        const schema_claim *claim = &b->claims[i];
        if ((is_keyword(claim, "additionalProperties") || is_keyword(claim, "unevaluatedProperties")) &&
            !cJSON_IsFalse(claim->item))
            return true;
        declared = declared || is_keyword(claim, "patternProperties");
    }
    for (uint32_t i = 0; i < o->n; i++) declared = declared || (o->members[i].listed && !o->members[i].forbidden);
    return !declared;
}

static bool everything(object *o, dfa *d) {
    kakeya_error error = {0};
    if (d->n_states) return true;
    kakeya_status status = regex_compile("[^]*", 4, REGEX_WHOLE, d, &error);
    if (status != KAKEYA_OK) schema_fail(o->b->c, NULL, status, "%s", error.message);
    return status == KAKEYA_OK;
}

/* Names that follow propertyNames. False: none. */
static bool names_of(object *o, const schema_claim *claim, dfa *out) {
    schema_compiler *c = o->b->c;
    schema_set set = {0};
    schema_set_add(c, &set, claim->item, false);
    schema_branch names = {.c = c, .set = &set, .emit = c->emit_names, .of_names = true, .no_name = true};
    if (!c->status && !set.never) schema_each_branch(&names);
    trie words = {0};
    dfa listed = {0}, both = {0};
    for (uint32_t i = 0; i < names.n_values && !c->status; i++) schema_add_word(c, &words, names.values[i]);
    dfa_result result = words.n && !c->status ? dfa_of_trie(&words, &listed) : DFA_OK;
    if (listed.n_states && names.names.n_states) result = dfa_combine(&names.names, &listed, DFA_OR, &both);
    schema_spend_on(c, claim->item, &listed);
    schema_spend_on(c, claim->item, &both);
    if (words.n && !c->status) names.no_name = false;
    if (result == DFA_OUT_OF_MEMORY)
        schema_out_of_memory(c);
    else if (result != DFA_OK)
        schema_cannot(c, claim->item, KAKEYA_UNSUPPORTED, "too large: its names");
    else if (listed.n_states) {
        dfa *made = both.n_states ? &both : &listed;
        dfa_free(&names.names);
        names.names = *made;
        *made = (dfa){0};
    }
    dfa_free(&listed);
    trie_free(&words);
    schema_set_free(&set);
    free(names.values);
    if (names.any_name) dfa_free(&names.names);
    *out = names.names;
    return !names.no_name;
}

typedef struct key_language {
    dfa dfa; /* without states: any key */
    bool none;
    uint32_t masks[DFA_MAX_LABELS]; /* of patterns, by label */
    uint32_t n_labels;
} key_language;

static void replace(object *o, key_language *keys, const cJSON *at, dfa_result result, dfa *made) {
    schema_spend_on(o->b->c, at, made);
    if (result == DFA_EMPTY)
        keys->none = true;
    else if (result == DFA_OUT_OF_MEMORY)
        schema_out_of_memory(o->b->c);
    else if (result != DFA_OK)
        schema_fail(o->b->c, at, KAKEYA_UNSUPPORTED, "too large: the keys that it allows");
    dfa_free(&keys->dfa);
    keys->dfa = *made;
    *made = (dfa){0};
}

static void apply_pattern(object *o, key_language *keys, uint32_t i) {
    const cJSON *at = o->patterns[i];
    const struct schema_pattern *own = schema_pattern(o->b->c, at, at->string, false);
    dfa made = {0};
    if (!own || own->dfa.n_states == 0) return; /* it cannot be followed, or matches nothing */
    if (everything(o, &keys->dfa))
        replace(o, keys, at, dfa_label(&keys->dfa, &own->dfa, i, keys->masks, &keys->n_labels, &made), &made);
}

static void keys_of(object *o, key_language *keys) {
    static const char bare[] = "[A-Za-z0-9_.-]+";
    schema_branch *b = o->b;
    kakeya_error error = {0};
    dfa made = {0};
    *keys = (key_language){.n_labels = 1};
    for (uint32_t i = 0; i < b->n_claims && !keys->none && !b->c->status; i++) {
        dfa names = {0};
        if (!is_keyword(&b->claims[i], "propertyNames")) continue;
        keys->none = !names_of(o, &b->claims[i], &names);
        if (keys->dfa.n_states && names.n_states && !keys->none)
            replace(o, keys, b->claims[i].item, dfa_combine(&keys->dfa, &names, DFA_AND, &made), &made);
        else if (names.n_states)
            keys->dfa = names, names = (dfa){0};
        dfa_free(&names);
    }
    for (uint32_t i = 0; i < o->n_patterns && !keys->none && !b->c->status; i++) apply_pattern(o, keys, i);
    if (b->c->form == GRAMMAR_CALL && keys->dfa.n_states && !keys->none && !b->c->status) {
        dfa plain = {0};
        if (regex_compile(bare, sizeof bare - 1, REGEX_WHOLE, &plain, &error) != KAKEYA_OK) schema_out_of_memory(b->c);
        replace(o, keys, NULL, dfa_combine(&keys->dfa, &plain, DFA_AND, &made), &made);
        dfa_free(&plain);
    }
}

/* A few keys are declared each. True: the language was one of them. */
static bool enumerate(object *o, key_language *keys) {
    uint32_t n = MAX_ENUMERATED;
    dfa_result result = keys->dfa.n_states ? dfa_texts(&keys->dfa, o->enumerated, &n) : DFA_TOO_LARGE;
    if (result == DFA_OUT_OF_MEMORY) schema_out_of_memory(o->b->c);
    if (result != DFA_OK) return false;
    o->n_enumerated = n;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t before = o->n;
        member *own = add_member(o, o->enumerated[i]);
        if (own && o->n > before) own->listed = false;
    }
    return true;
}

/* The nodes of members that are not declared, by the label of their key. */
static void add_others(object *o, uint32_t node, key_language *keys, bool open) {
    schema_compiler *c = o->b->c;
    dfa spelled = {0};
    if (!keys->dfa.n_states) {
        uint32_t rest = open ? compile_key(o, (key){NULL, 0}) : GRAMMAR_NOTHING;
        if (!c->status) c->program->nodes[node].rest = rest;
        return;
    }
    dfa_result result = c->form == GRAMMAR_JSON ? dfa_in_json_key(&keys->dfa, &spelled) : DFA_OK;
    schema_spend_on(c, NULL, &spelled);
    if (c->form == GRAMMAR_JSON) replace(o, keys, NULL, result, &spelled);
    uint32_t *rests = calloc(keys->n_labels, sizeof *rests);
    uint16_t *completions = c->status || keys->none ? NULL : dfa_completions(&keys->dfa);
    if (!c->status && (!rests || (!completions && !keys->none))) schema_out_of_memory(c);
    for (uint32_t i = 0; i < keys->n_labels && !c->status; i++) {
        if (keys->masks[i] == 0 && !open)
            rests[i] = schema_add_node(c, NODE_NEVER);
        else
            rests[i] = compile_key(o, (key){NULL, keys->masks[i]});
    }
    schema_count_states(c, NULL, &keys->dfa);
    if (c->status || keys->none) {
        free(rests);
        free(completions);
        return;
    }
    grammar_node *own = &c->program->nodes[node];
    own->rests = rests;
    own->n_rests = keys->n_labels;
    own->rest = rests[0];
    own->dfa = keys->dfa;
    own->completions = completions;
    keys->dfa = (dfa){0};
}

/* ------------------------------------------------------------------------------------------------------------ the node
 */

static void add_declared(object *o, uint32_t node) {
    schema_compiler *c = o->b->c;
    for (uint32_t i = 0; i < o->n && !c->status; i++) {
        const member *own = &o->members[i];
        if (!own->listed && own->forbidden) continue;
        uint32_t value = own->forbidden ? schema_add_node(c, NODE_NEVER) : compile_key(o, (key){own->name, 0});
        schema_add_member(c, node, own->name, value, own->required);
    }
}

static void build(object *o, uint32_t node) {
    schema_compiler *c = o->b->c;
    key_language keys;
    keys_of(o, &keys);
    bool open = others_are_open(o);
    if (!keys.none && !c->status && enumerate(o, &keys)) keys.none = true;
    add_declared(o, node);
    if (!keys.none && !c->status) add_others(o, node, &keys, open);
    dfa_free(&keys.dfa);
    if (c->status) return;
    grammar_node *own = &c->program->nodes[node];
    uint32_t required = 0;
    for (uint32_t i = 0; i < own->n_children; i++) required += own->required[i];
    bool others = own->rest != GRAMMAR_NOTHING;
    if (o->minimum > own->n_children + (others ? GRAMMAR_COUNTED_OTHERS : 0) && others)
        schema_cannot(c, o->b->claims[0].item, KAKEYA_UNSUPPORTED, "minProperties: more than %u is not supported here",
                      own->n_children + GRAMMAR_COUNTED_OTHERS);
    own->minimum = o->minimum <= required ? 0 : o->minimum;
    own->maximum = !others && o->maximum >= own->n_children ? GRAMMAR_NO_LIMIT : o->maximum;
    own->any_order = c->form == GRAMMAR_CALL || !c->strict_order;
    if (required > o->maximum || (!others && o->minimum > own->n_children)) own->kind = NODE_NEVER;
}

uint32_t schema_object(schema_branch *b) {
    object o = {.b = b, .maximum = GRAMMAR_NO_LIMIT};
    uint32_t node = schema_add_node(b->c, NODE_OBJECT);
    gather(&o);
    if (!b->c->status) build(&o, node);
    for (uint32_t i = 0; i < o.n_enumerated; i++) free(o.enumerated[i]);
    free(o.members);
    free(o.slots);
    return node;
}
