/* uniqueItems: arrays of strings, numbers and words that are all different. Each has one spelling there, so that items
 * that are the same have the same letters. */
#include <stdlib.h>

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

static bool works(items *m, dfa_result result) {
    kakeya_error error = {0};
    if (result == DFA_OK || result == DFA_EMPTY) return true;
    if (!m->c->status) schema_cannot(m->c, m->at, regex_error(result, "the items", &error), "%s", error.message);
    return false;
}

/* Frees `one`. */
static void add(items *m, dfa *one) {
    dfa both = {0};
    schema_spend_on(m->c, m->at, one);
    if (m->all.n_states == 0) {
        m->all = *one;
        return;
    }
    if (one->n_states && works(m, dfa_combine(&m->all, one, DFA_OR, &both))) {
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
    else if (works(m, dfa_combine(given, &canonical, DFA_AND, &both)))
        add(m, &both);
    dfa_free(&canonical);
}

/* Strings as they are spelled, quotes included. */
static void add_strings(items *m, const dfa *given, uint32_t minimum, uint32_t maximum) {
    dfa limited = {0};
    bool limits = minimum || maximum != GRAMMAR_NO_LIMIT;
    if (maximum != GRAMMAR_NO_LIMIT && maximum > SCHEMA_MAX_DIFFERENT) maximum = SCHEMA_MAX_DIFFERENT;
    if (limits && !works(m, dfa_limit_spelled(given, minimum, maximum, &limited))) return;
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
    else if (works(m, m->c->form == GRAMMAR_JSON ? dfa_in_json_string(&any, &spelled) : dfa_in_quotes(&any, &spelled)))
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
        if (works(m, dfa_of_trie(&node->words, &words))) add(m, &words);
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

uint32_t schema_different_items(schema_compiler *c, const cJSON *at, uint32_t item, uint32_t minimum,
                                uint32_t maximum) {
    items m = {.c = c, .at = at};
    add_node(&m, item);
    if (m.other && !c->status)
        schema_cannot(c, at, KAKEYA_UNSUPPORTED, "not supported where items may be lists or objects");
    if (minimum > GRAMMAR_COUNTED_OTHERS && !c->status && !m.other)
        schema_cannot(c, at, KAKEYA_UNSUPPORTED, "not supported with minItems above %d", (int)GRAMMAR_COUNTED_OTHERS);
    schema_count_states(c, at, &m.all);
    uint32_t node = GRAMMAR_NOTHING;
    bool loosened = m.other || minimum > GRAMMAR_COUNTED_OTHERS;
    uint16_t *completions = c->status || loosened || !m.all.n_states ? NULL : dfa_completions(&m.all);
    if (!c->status && !loosened && m.all.n_states && !completions) schema_out_of_memory(c);
    if (!c->status && !loosened) node = schema_add_node(c, completions ? NODE_SET : NODE_ARRAY);
    if (node == GRAMMAR_NOTHING || c->status) {
        free(completions);
        dfa_free(&m.all);
        return GRAMMAR_NOTHING;
    }
    grammar_node *own = &c->program->nodes[node];
    own->minimum = minimum;
    own->maximum = completions ? maximum : 0; /* no item has a value: the empty list is left */
    own->dfa = m.all;
    own->completions = completions;
    return node;
}
