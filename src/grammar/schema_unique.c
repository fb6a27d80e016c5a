/* uniqueItems: arrays of strings, numbers and words that are all different. Each has one spelling there, so that items
 * that are the same have the same letters. Lists and objects are told apart by a part of each: a member, or the first
 * item. */
#include <stdlib.h>
#include <string.h>

#include "grammar/regex.h"
#include "grammar/schema.h"
#include "grammar/schema_private.h"

/* As numbers and strings are spelled most shortly; with so few digits, no two numbers are one to a reader of doubles.
 */
#define ONE_NUMBER "(?:0|-?(?:[1-9][0-9]{0,14}|(?:0|[1-9][0-9]{0,8})\\.[0-9]{0,5}[1-9]))"
#define ONE_STRING "\"(?:[^\"\\\\\\x00-\\x1F]|\\\\[\"\\\\bfnrt]|\\\\u00(?:0[0-7bef]|1[0-9a-f]))*\""

typedef struct items {
    schema_compiler *c;
    const cJSON *at;
    dfa all;    /* without states: none yet */
    bool other; /* some are lists or objects, or not known yet */
} items;

static bool works(items *m, dfa_result result, const dfa *made) {
    kakeya_error error = {0};
    schema_spend_on(m->c, m->at, made);
    if (result == DFA_OK || result == DFA_EMPTY) return true;
    if (!m->c->status) schema_cannot(m->c, m->at, regex_error(result, "the items", &error), "%s", error.message);
    return false;
}

/* Frees `one`. */
static void add(items *m, dfa *one) {
    dfa both = {0};
    if (m->all.n_states == 0) {
        m->all = *one;
        return;
    }
    if (one->n_states && works(m, dfa_combine(&m->all, one, DFA_OR, &both), &both)) {
        dfa_free(&m->all);
        m->all = both;
    }
    dfa_free(one);
}

/* What both accept. */
static void add_common(items *m, const dfa *given, const char *expression, size_t bytes) {
    dfa canonical = {0}, both = {0};
    kakeya_error error = {0};
    if (regex_compile(expression, bytes, REGEX_WHOLE, &canonical, &error) != KAKEYA_OK)
        schema_fail(m->c, m->at, error.status, "%s", error.message);
    else if (works(m, dfa_combine(given, &canonical, DFA_AND, &both), &both))
        add(m, &both);
    dfa_free(&canonical);
}

/* Strings as they are spelled, quotes included. */
static void add_strings(items *m, const dfa *given, uint32_t minimum, uint32_t maximum) {
    dfa limited = {0};
    bool limits = minimum || maximum != GRAMMAR_NO_LIMIT;
    if (maximum != GRAMMAR_NO_LIMIT && maximum > SCHEMA_MAX_DIFFERENT) maximum = SCHEMA_MAX_DIFFERENT;
    if (limits && !works(m, dfa_limit_spelled(given, minimum, maximum, &limited), &limited)) return;
    if (limits && limited.n_states == 0) return;
    if (m->c->form == GRAMMAR_JSON)
        add_common(m, limits ? &limited : given, ONE_STRING, sizeof ONE_STRING - 1);
    else
        add_common(m, limits ? &limited : given, "[^]*", 4);
    dfa_free(&limited);
}

static void add_any_string(items *m, uint32_t minimum, uint32_t maximum) {
    dfa any = {0}, spelled = {0};
    kakeya_error error = {0};
    if (regex_compile("[^]*", 4, REGEX_WHOLE, &any, &error) != KAKEYA_OK)
        schema_fail(m->c, m->at, error.status, "%s", error.message);
    else if (works(m, m->c->form == GRAMMAR_JSON ? dfa_in_json_string(&any, &spelled) : dfa_in_quotes(&any, &spelled),
                   &spelled))
        add_strings(m, &spelled, minimum, maximum);
    dfa_free(&any);
    dfa_free(&spelled);
}

static void add_node(items *m, uint32_t at) {
    const grammar_node *node = &m->c->program->nodes[at];
    dfa words = {0};
    unsigned quote = m->c->form == GRAMMAR_JSON ? '"' : (unsigned)LETTER_QUOTE;
    if (m->c->status || m->other) return;
    switch (node->kind) {
    case NODE_NEVER:
        break;
    case NODE_UNION:
        m->other = node->n_children == 0;
        for (uint32_t i = 0; i < m->c->program->nodes[at].n_children; i++)
            add_node(m, m->c->program->nodes[at].children[i]);
        break;
    case NODE_STRING:
        add_any_string(m, node->minimum, node->maximum);
        break;
    case NODE_LITERAL:
        if (works(m, dfa_of_trie(&node->words, &words), &words)) add(m, &words);
        break;
    case NODE_DFA:
        if (dfa_next(&node->dfa, 0, quote) == DFA_REFUSED)
            add_common(m, &node->dfa, ONE_NUMBER, sizeof ONE_NUMBER - 1);
        else
            add_strings(m, &node->dfa, node->minimum, node->maximum);
        break;
    default:
        m->other = true;
    }
}

/* A NODE_SET of what has been gathered. */
static uint32_t add_set(items *m, uint32_t minimum, uint32_t maximum) {
    schema_compiler *c = m->c;
    schema_count_states(c, m->at, &m->all);
    uint16_t *completions = c->status || !m->all.n_states ? NULL : dfa_completions(&m->all);
    if (!c->status && m->all.n_states && !completions) schema_out_of_memory(c);
    uint32_t node = c->status ? GRAMMAR_NOTHING : schema_add_node(c, completions ? NODE_SET : NODE_ARRAY);
    if (c->status) {
        free(completions);
        return GRAMMAR_NOTHING;
    }
    grammar_node *own = &c->program->nodes[node];
    own->minimum = minimum;
    own->maximum = completions ? maximum : 0; /* no item has a value: the empty list is left */
    own->dfa = m->all;
    own->completions = completions;
    m->all = (dfa){0};
    return node;
}

/* ----------------------------------------------------------------------------------- parts of items that are different
 */

enum { MAX_ALTERNATIVES = 64, MAX_MEMBERS = 64 };

/* The alternatives that a node is; those that are being made yet are left out. */
typedef struct alternatives {
    uint32_t nodes[MAX_ALTERNATIVES], n;
} alternatives;

static void gather(const grammar_program *p, uint32_t at, alternatives *out, int depth) {
    const grammar_node *node = &p->nodes[at];
    if (node->kind != NODE_UNION && out->n < MAX_ALTERNATIVES) out->nodes[out->n++] = at;
    for (uint32_t i = 0; node->kind == NODE_UNION && i < node->n_children && depth < 16; i++)
        gather(p, node->children[i], out, depth + 1);
}

/* The node of a part that is in no other item. Takes what has been gathered; GRAMMAR_NOTHING: nothing has. */
static uint32_t add_part(items *m, uint32_t level) {
    schema_compiler *c = m->c;
    if (c->status || m->other || m->all.n_states == 0) return GRAMMAR_NOTHING;
    schema_count_states(c, m->at, &m->all);
    uint16_t *completions = dfa_completions(&m->all);
    if (!completions) schema_out_of_memory(c);
    uint32_t node = c->status ? GRAMMAR_NOTHING : schema_add_node(c, NODE_DISTINCT);
    if (c->status) {
        free(completions);
        return GRAMMAR_NOTHING;
    }
    grammar_node *own = &c->program->nodes[node];
    own->dfa = m->all;
    own->completions = completions;
    own->level = level;
    m->all = (dfa){0};
    return node;
}

/* The same of a member or an item that is a string, a number or a word. */
static uint32_t part_of(items *m, uint32_t value) {
    items own = {.c = m->c, .at = m->at};
    add_node(&own, value);
    uint32_t node = add_part(&own, 2);
    dfa_free(&own.all);
    return node;
}

static void add_scalars(items *m, const alternatives *all) {
    for (uint32_t i = 0; i < all->n && !m->c->status; i++) {
        node_kind kind = m->c->program->nodes[all->nodes[i]].kind;
        if (kind == NODE_DFA || kind == NODE_LITERAL || kind == NODE_STRING) add_node(m, all->nodes[i]);
    }
}

/* The same of what is a list or an object, too: only the others are taken. */
static uint32_t part_of_some(items *m, uint32_t value) {
    items own = {.c = m->c, .at = m->at};
    alternatives all = {.n = 0};
    gather(m->c->program, value, &all, 0);
    add_scalars(&own, &all);
    uint32_t node = add_part(&own, 2);
    dfa_free(&own.all);
    return node;
}

static bool is_endless(const grammar_program *p, uint32_t part) {
    return part != GRAMMAR_NOTHING && p->nodes[part].completions[0] == DFA_ENDLESS;
}

/* How many parts there are to choose from. */
static uint32_t size_of(const grammar_program *p, uint32_t part) {
    return part == GRAMMAR_NOTHING ? 0 : p->nodes[part].completions[0];
}

/* The member whose values tell items apart: one that must be there and may be anything, else one that may be, else the
 * one that has the most values. part: its node. */
static uint32_t choose_member(items *m, uint32_t object, uint32_t *part) {
    grammar_program *p = m->c->program;
    uint32_t best = GRAMMAR_NOTHING;
    *part = GRAMMAR_NOTHING;
    for (int must = 1; must >= 0; must--) {
        for (uint32_t i = 0; i < p->nodes[object].n_children && i < MAX_MEMBERS && !m->c->status; i++) {
            if (p->nodes[object].required[i] != must || is_endless(p, *part)) continue;
            uint32_t own = part_of(m, p->nodes[object].children[i]);
            if (size_of(p, own) <= size_of(p, *part)) continue;
            best = i;
            *part = own;
        }
    }
    return best;
}

static bool copy_dfa(const dfa *from, dfa *to) {
    size_t next = (size_t)from->n_states * from->n_classes * sizeof *from->next;
    *to = *from;
    to->next = malloc(next + 1);
    to->flags = malloc(from->n_states + (size_t)1);
    if (!to->next || !to->flags) {
        dfa_free(to);
        return false;
    }
    if (from->n_states) memcpy(to->next, from->next, next);
    if (from->n_states) memcpy(to->flags, from->flags, from->n_states);
    return true;
}

static void *copy_list(schema_compiler *c, const void *from, size_t bytes) {
    void *to = from && !c->status ? malloc(bytes + 1) : NULL;
    if (to) memcpy(to, from, bytes);
    if (from && !to) schema_out_of_memory(c);
    return to;
}

/* A node like the object or array, which can be changed. */
static uint32_t copy_node(schema_compiler *c, uint32_t at) {
    uint32_t node = schema_add_node(c, c->program->nodes[at].kind);
    if (c->status) return 0;
    const grammar_node *from = &c->program->nodes[at];
    grammar_node *to = &c->program->nodes[node];
    to->any_order = from->any_order;
    to->depth_limit = from->depth_limit;
    to->minimum = from->minimum;
    to->maximum = from->maximum;
    to->rest = from->rest;
    to->least = from->least;
    to->most = from->most;
    to->distinct = from->distinct;
    for (uint32_t i = 0; i < from->n_children; i++) schema_add_child(c, node, from->children[i]);
    to->required = copy_list(c, from->required, from->n_children * sizeof *from->required);
    to->rests = copy_list(c, from->rests, from->n_rests * sizeof *from->rests);
    to->n_rests = to->rests ? from->n_rests : 0;
    to->completions = copy_list(c, from->completions, from->dfa.n_states * sizeof *from->completions);
    if (!copy_dfa(&from->dfa, &to->dfa)) schema_out_of_memory(c);
    to->words.nodes = copy_list(c, from->words.nodes, from->words.n * sizeof *from->words.nodes);
    to->words.n = to->words.capacity = to->words.nodes ? from->words.n : 0;
    to->words.n_words = to->words.nodes ? from->words.n_words : 0;
    return node;
}

/* The object with the part for its member; GRAMMAR_NOTHING: it has no room for that. */
static uint32_t with_member(items *m, uint32_t object, uint32_t member, uint32_t part) {
    const grammar_node *from = &m->c->program->nodes[object];
    uint32_t required = from->required[member] ? 0 : 1;
    for (uint32_t i = 0; i < from->n_children; i++) required += from->required[i];
    if (required > from->maximum) return GRAMMAR_NOTHING;
    uint32_t node = copy_node(m->c, object);
    if (m->c->status) return GRAMMAR_NOTHING;
    m->c->program->nodes[node].children[member] = part;
    m->c->program->nodes[node].required[member] = 1;
    return node;
}

/* The array with the part for its first item. */
static uint32_t with_first(items *m, uint32_t array, uint32_t part) {
    uint32_t node = copy_node(m->c, array);
    grammar_program *p = m->c->program;
    if (m->c->status) return GRAMMAR_NOTHING;
    if (p->nodes[node].n_children == 0) schema_add_child(m->c, node, part);
    if (m->c->status) return GRAMMAR_NOTHING;
    p->nodes[node].children[0] = part;
    if (p->nodes[node].minimum == 0) p->nodes[node].minimum = 1;
    return node;
}

/* Whether an object has the member of another one, under the same key, and its number. */
static bool has_member(const grammar_program *p, uint32_t object, uint32_t other, uint32_t member, uint32_t *own) {
    return schema_same_key(&p->nodes[other], member, &p->nodes[object], own);
}

/* Alternatives that can be told apart from other items, as a union; *part: one of their parts. Those of which there are
 * few are taken only where there are no others. */
static uint32_t add_different(items *m, const alternatives *all, uint32_t *part) {
    schema_compiler *c = m->c;
    grammar_program *p = c->program;
    uint32_t made = schema_add_node(c, NODE_UNION), object = GRAMMAR_NOTHING, member = 0;
    items scalars = {.c = c, .at = m->at};
    add_scalars(&scalars, all);
    uint32_t own = add_part(&scalars, 1), few = own, few_part = own; /* the most of those that are not endless */
    dfa_free(&scalars.all);
    if (is_endless(p, own)) schema_add_child(c, made, *part = own);
    for (uint32_t i = 0; i < all->n && !c->status; i++) {
        uint32_t at = all->nodes[i], with = GRAMMAR_NOTHING;
        own = GRAMMAR_NOTHING;
        if (p->nodes[at].kind == NODE_OBJECT && p->nodes[at].n_turns == 0) {
            uint32_t same = 0;
            if (object == GRAMMAR_NOTHING) {
                member = choose_member(m, at, &own);
                same = member;
                if (own != GRAMMAR_NOTHING) object = at;
            } else if (has_member(p, at, object, member, &same)) {
                own = part_of(m, p->nodes[at].children[same]);
            }
            if (own != GRAMMAR_NOTHING && !c->status) with = with_member(m, at, same, own);
        } else if (p->nodes[at].kind == NODE_ARRAY && !p->nodes[at].n_rests && p->nodes[at].maximum > 0) {
            uint32_t first = p->nodes[at].n_children ? p->nodes[at].children[0] : p->nodes[at].rest;
            own = first == GRAMMAR_NOTHING ? first : part_of_some(m, first);
            if (own != GRAMMAR_NOTHING && !c->status) with = with_first(m, at, own);
        }
        if (c->status || with == GRAMMAR_NOTHING) continue;
        if (is_endless(p, own)) {
            schema_add_child(c, made, with);
            *part = own;
        } else if (size_of(p, own) > size_of(p, few_part)) {
            few = with;
            few_part = own;
        }
    }
    if (!c->status && p->nodes[made].n_children == 0 && few != GRAMMAR_NOTHING) {
        schema_add_child(c, made, few);
        *part = few_part;
    }
    return c->status || p->nodes[made].n_children == 0 ? GRAMMAR_NOTHING : made;
}

/* An array whose items are told apart by a part of each. */
static uint32_t add_parts(items *m, uint32_t item, uint32_t minimum, uint32_t maximum) {
    alternatives all = {.n = 0};
    uint32_t part = GRAMMAR_NOTHING;
    gather(m->c->program, item, &all, 0);
    uint32_t made = add_different(m, &all, &part);
    if (made == GRAMMAR_NOTHING || m->c->status) return GRAMMAR_NOTHING;
    uint32_t node = schema_add_node(m->c, NODE_ARRAY), size = size_of(m->c->program, part);
    if (m->c->status) return GRAMMAR_NOTHING;
    grammar_node *own = &m->c->program->nodes[node];
    own->minimum = minimum;
    own->maximum = size != DFA_ENDLESS && size < maximum ? size : maximum;
    own->rest = made;
    own->distinct = part;
    return node;
}

uint32_t schema_different_items(schema_compiler *c, const cJSON *at, uint32_t item, uint32_t minimum,
                                uint32_t maximum) {
    items m = {.c = c, .at = at};
    uint32_t node = GRAMMAR_NOTHING;
    add_node(&m, item);
    if (minimum > GRAMMAR_COUNTED_OTHERS && !c->status)
        schema_cannot(c, at, KAKEYA_UNSUPPORTED, "not supported with minItems above %d", (int)GRAMMAR_COUNTED_OTHERS);
    else if (!m.other && !c->status)
        node = add_set(&m, minimum, maximum);
    else if (!c->status)
        node = add_parts(&m, item, minimum, maximum);
    if (node == GRAMMAR_NOTHING && m.other && !c->status && minimum <= GRAMMAR_COUNTED_OTHERS)
        schema_cannot(
            c, at, KAKEYA_UNSUPPORTED,
            "not supported where items are lists or objects without a string, number or word to tell them apart");
    dfa_free(&m.all);
    return node;
}
