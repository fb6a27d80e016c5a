#include "grammar/automaton_inner.h"

#include <string.h>

#include "grammar/automaton_keys.h"
#include "grammar/string_text.h"

static automaton_inner_way way_of(const automaton_state *base, uint32_t i) {
    const automaton_configuration *c = &base->ways[i];
    const automaton_frame *own = &c->open[c->depth - 1];
    return (automaton_inner_way){c->key, own->at, own->seen, (uint16_t)(own->members != 0), (uint16_t)i};
}

void automaton_inner_begin(const automaton_state *base, automaton_inner *out) {
    out->base = base;
    out->n = base->n;
    for (uint32_t i = 0; i < out->n; i++) {
        if (base->ways[i].depth == 0) {
            out->n = 0;
            return;
        }
        out->ways[i] = way_of(base, i);
    }
}

void automaton_inner_state(const automaton_inner *inner, automaton_state *out) {
    if (inner->n == 0) {
        automaton_copy(out, inner->base);
        return;
    }
    out->n = inner->n;
    for (uint32_t i = 0; i < inner->n; i++) {
        const automaton_inner_way *from = &inner->ways[i];
        automaton_configuration *c = &out->ways[i];
        automaton_copy_way(c, &inner->base->ways[from->way], inner->base->ways[from->way].depth);
        automaton_frame *own = &c->open[c->depth - 1];
        c->key = from->key;
        own->at = from->at;
        own->seen = from->seen;
        if (from->members && own->members == 0) own->members = 1;
    }
}

/* --------------------------------------------------------------------------------------------------------- one way */

static bool begins_json(unsigned letter) {
    return letter && letter <= 0xFF && strchr("\"{[-0123456789tfn", (int)letter);
}
static bool is_one_of(const char *letters, unsigned letter) {
    return letter && letter <= 0xFF && strchr(letters, (int)letter);
}

/* Between the parts of lists and objects few letters have a meaning. */
static inner_result between_parts(const grammar_node *node, uint32_t at, unsigned letter) {
    if (node->form != GRAMMAR_JSON) return INNER_LEAVES;
    bool object = node->kind == NODE_OBJECT, may = true;
    switch (place_of(at)) {
    case PLACE_OPENING:
        may = letter == (object ? '{' : '[');
        break;
    case PLACE_FIRST:
    case PLACE_FIRST_LINE:
    case PLACE_COMMA:
    case PLACE_COMMA_SPACE:
    case PLACE_COMMA_LINE:
        may = object ? is_one_of("\"}\n ", letter) : begins_json(letter) || is_one_of("]\n ", letter);
        break;
    case PLACE_COLON:
        may = letter == ':';
        break;
    case PLACE_VALUE:
    case PLACE_SPACED_VALUE:
        may = begins_json(letter) || letter == ' ';
        break;
    case PLACE_BEHIND:
    case PLACE_END_LINE:
        may = letter == (object ? '}' : ']') || is_one_of(",\n ", letter);
        break;
    default:
        break;
    }
    return may ? INNER_LEAVES : INNER_REFUSED;
}

/* Whether what is around a value that ends here may take the letter. */
static bool may_follow(const grammar_program *p, const automaton_configuration *c, unsigned letter) {
    if (c->depth < 2) return false;
    const automaton_frame *around = &c->open[c->depth - 2];
    const grammar_node *node = &p->nodes[around->node];
    if (node->kind != NODE_ARRAY && node->kind != NODE_OBJECT) return true;
    return between_parts(node, around->at, letter) == INNER_LEAVES;
}

static inner_result step_dfa(const grammar_program *p, const automaton_configuration *c, const grammar_node *node,
                             automaton_inner_way *way, unsigned letter) {
    uint16_t next = dfa_next(&node->dfa, way->at, letter);
    if ((node->dfa.flags[way->at] & DFA_ACCEPTS) && way->members && may_follow(p, c, letter)) return INNER_LEAVES;
    if (next == DFA_REFUSED) return INNER_REFUSED;
    if (node->shortest) {
        automaton_frame own = {.at = way->at, .seen = way->seen};
        if (!automaton_count_character(node, &own, next)) return INNER_REFUSED;
        way->seen = own.seen;
    }
    if (!(node->dfa.flags[next] & DFA_GOES_ON)) return INNER_LEAVES;
    way->at = next;
    way->members = 1;
    return INNER_GOES_ON;
}

static inner_result step_string(const grammar_node *node, automaton_inner_way *way, unsigned letter) {
    bool json = node->form == GRAMMAR_JSON;
    unsigned quote = json ? '"' : (unsigned)LETTER_QUOTE;
    uint32_t inside = way->at - 1;
    if (way->at == 0) {
        way->at = 1 + BETWEEN;
        return letter == quote ? INNER_GOES_ON : INNER_REFUSED;
    }
    if (inside == BETWEEN && letter == quote) return way->seen >= node->minimum ? INNER_LEAVES : INNER_REFUSED;
    uint32_t next = text_step(inside, letter, json);
    if (next == NO_STRING) return INNER_REFUSED;
    if (inside == BETWEEN) {
        if (way->seen == node->maximum) return INNER_REFUSED;
        if (node->maximum != GRAMMAR_NO_LIMIT || way->seen < node->minimum) way->seen++;
    }
    way->at = 1 + next;
    return INNER_GOES_ON;
}

static inner_result step_key(const grammar_program *p, const automaton_configuration *c, const grammar_node *node,
                             automaton_inner_way *way, unsigned letter) {
    automaton_key key = way->key;
    uint32_t word = key.word == TRIE_NONE ? TRIE_NONE : trie_next(&node->words, key.word, letter);
    uint32_t text = automaton_other_key_step(node, key.text, letter);
    if (letter == '"' && word == TRIE_NONE && text == AUTOMATON_NO_TEXT) return INNER_LEAVES;
    key = (automaton_key){automaton_hash_letter(key.hash, letter), word, text};
    bool other = text != AUTOMATON_NO_TEXT && automaton_other_keys_are_open(p, node, c, c->depth) &&
                 automaton_may_become_new(p, node, c, c->depth, key);
    if (!other) key.text = AUTOMATON_NO_TEXT;
    if (!other && !automaton_leads_to_key(p, node, c, word, c->depth)) return INNER_REFUSED;
    way->key = key;
    return INNER_GOES_ON;
}

/* An item of a set is read as a key is that is not declared. */
static inner_result step_item(const grammar_program *p, const automaton_configuration *c, const grammar_node *node,
                              automaton_inner_way *way, unsigned letter) {
    uint16_t next = dfa_next(&node->dfa, way->key.text, letter);
    if (next == DFA_REFUSED) return between_parts(node, PLACE_BEHIND, letter);
    way->key = (automaton_key){automaton_hash_letter(way->key.hash, letter), TRIE_NONE, next};
    return automaton_may_become_new(p, node, c, c->depth, way->key) ? INNER_GOES_ON : INNER_REFUSED;
}

/* So is a part of items that must differ; the array lies `level` values further out. */
static inner_result step_part(const grammar_program *p, const automaton_configuration *c, const grammar_node *node,
                              automaton_inner_way *way, unsigned letter) {
    const automaton_key key = way->at ? way->key : (automaton_key){.word = TRIE_NONE};
    uint16_t next = dfa_next(&node->dfa, key.text, letter);
    if (next == DFA_REFUSED) return way->at && (node->dfa.flags[key.text] & DFA_ACCEPTS) ? INNER_LEAVES : INNER_REFUSED;
    if (!(node->dfa.flags[next] & DFA_GOES_ON)) return INNER_LEAVES;
    way->at = 1;
    way->key = (automaton_key){automaton_hash_letter(key.hash, letter), TRIE_NONE, next};
    return automaton_may_become_new(p, node, c, c->depth - node->level, way->key) ? INNER_GOES_ON : INNER_REFUSED;
}

static inner_result step_literal(const grammar_program *p, const automaton_configuration *c, const grammar_node *node,
                                 automaton_inner_way *way, unsigned letter) {
    bool accepts = way->at && node->words.nodes[way->at].word != TRIE_NONE;
    if (accepts && may_follow(p, c, letter)) return INNER_LEAVES;
    uint32_t next = trie_next(&node->words, way->at, letter);
    if (next == TRIE_NONE) return INNER_REFUSED;
    const grammar_node *around = c->depth < 2 ? NULL : &p->nodes[c->open[c->depth - 2].node];
    bool turns = around && around->kind == NODE_OBJECT && around->n_turns;
    if (turns || node->words.nodes[next].child == TRIE_NONE) return INNER_LEAVES;
    way->at = next;
    return INNER_GOES_ON;
}

static inner_result step_way(const grammar_program *p, const automaton_state *base, automaton_inner_way *way,
                             unsigned letter) {
    const automaton_configuration *c = &base->ways[way->way];
    const grammar_node *node = &p->nodes[c->open[c->depth - 1].node];
    switch (node->kind) {
    case NODE_DFA:
        return step_dfa(p, c, node, way, letter);
    case NODE_STRING:
        return step_string(node, way, letter);
    case NODE_LITERAL:
        return step_literal(p, c, node, way, letter);
    case NODE_OBJECT:
        if (node->form == GRAMMAR_JSON && place_of(way->at) == PLACE_KEY) return step_key(p, c, node, way, letter);
        return between_parts(node, way->at, letter);
    case NODE_SET:
        if (place_of(way->at) == PLACE_KEY) return step_item(p, c, node, way, letter);
        return between_parts(node, way->at, letter);
    case NODE_DISTINCT:
        return step_part(p, c, node, way, letter);
    case NODE_ARRAY:
        return between_parts(node, way->at, letter);
    default:
        return INNER_LEAVES;
    }
}

inner_result automaton_inner_step(const grammar_program *p, const automaton_inner *from, unsigned letter,
                                  automaton_inner *to) {
    uint32_t n = 0;
    if (from->n == 0) return INNER_LEAVES;
    for (uint32_t i = 0; i < from->n; i++) {
        to->ways[n] = from->ways[i];
        inner_result result = step_way(p, from->base, &to->ways[n], letter);
        if (result == INNER_LEAVES) return INNER_LEAVES;
        n += result == INNER_GOES_ON;
    }
    to->base = from->base;
    to->n = n;
    return n ? INNER_GOES_ON : INNER_REFUSED;
}

inner_result automaton_inner_read(const grammar_program *p, const automaton_state *base, unsigned letter,
                                  automaton_inner *out) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < base->n; i++) {
        if (base->ways[i].depth == 0) return INNER_LEAVES;
        out->ways[n] = way_of(base, i);
        inner_result result = step_way(p, base, &out->ways[n], letter);
        if (result == INNER_LEAVES) return INNER_LEAVES;
        n += result == INNER_GOES_ON;
    }
    out->base = base;
    out->n = n;
    return n ? INNER_GOES_ON : INNER_REFUSED;
}
