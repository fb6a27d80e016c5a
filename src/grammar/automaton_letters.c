#include "grammar/automaton_letters.h"

#include <string.h>

#include "grammar/automaton_keys.h"
#include "grammar/string_text.h"

static void add(uint64_t *letters, unsigned letter) { letters[letter / 64] |= UINT64_C(1) << letter % 64; }

static void add_all(uint64_t *letters, const char *of) {
    for (; *of; of++) add(letters, (unsigned char)*of);
}

static void add_children(uint64_t *letters, const trie *t, uint32_t at) {
    for (uint32_t i = t->nodes[at].child; i != TRIE_NONE; i = t->nodes[i].sibling) add(letters, t->nodes[i].letter);
}

/* A key, a colon, or what stands between values, which no value of JSON begins otherwise than with. */
static bool add_of_object(const grammar_node *node, const automaton_configuration *c, uint64_t *letters) {
    const bool json = node->form == GRAMMAR_JSON;
    const uint32_t where = place_of(c->open[c->depth - 1].at);
    if (where == PLACE_COLON) {
        add(letters, ':');
        return true;
    }
    if (where != PLACE_KEY) {
        if (json) add_all(letters, "{}\"-0123456789tfn[],: \n");
        return json;
    }
    if (c->key.text != AUTOMATON_NO_TEXT || c->key.word == TRIE_NONE) return false;
    add_children(letters, &node->words, c->key.word);
    if (node->words.nodes[c->key.word].word != TRIE_NONE) add(letters, json ? '"' : ':');
    return true;
}

static bool add_of_dfa(const dfa *d, uint32_t at, uint64_t *letters) {
    if (d->flags[at] & DFA_ACCEPTS) return false; /* what follows may come */
    for (unsigned letter = 0; letter < LETTERS; letter++)
        if (dfa_next(d, at, letter) != DFA_REFUSED) add(letters, letter);
    return true;
}

static bool add_of_way(const grammar_program *p, const automaton_configuration *c, uint64_t *letters) {
    if (c->depth == 0) return true; /* nothing follows */
    const automaton_frame *own = &c->open[c->depth - 1];
    const grammar_node *node = &p->nodes[own->node];
    switch (node->kind) {
    case NODE_OBJECT:
        return add_of_object(node, c, letters);
    case NODE_DFA:
        return add_of_dfa(&node->dfa, own->at, letters);
    case NODE_LITERAL:
        if (own->at && node->words.nodes[own->at].word != TRIE_NONE) return false;
        add_children(letters, &node->words, own->at);
        return true;
    case NODE_STRING:
        if (own->at != 0 && !(own->at == 1 + BETWEEN && own->seen == node->maximum)) return false;
        add(letters, node->form == GRAMMAR_JSON ? '"' : LETTER_QUOTE);
        return true;
    case NODE_ARRAY:
        if (node->form == GRAMMAR_JSON) add_all(letters, "{\"-0123456789tfn[],] \n");
        return node->form == GRAMMAR_JSON;
    default:
        return false;
    }
}

bool automaton_letters(const grammar_program *p, const automaton_state *s, uint64_t letters[LETTER_WORDS]) {
    memset(letters, 0, LETTER_WORDS * sizeof *letters);
    for (uint32_t i = 0; i < s->n; i++)
        if (!add_of_way(p, &s->ways[i], letters)) return false;
    return true;
}
