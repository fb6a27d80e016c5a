/* Where a text stands that is read along a program: configurations and states, as automaton.h explains them. */
#ifndef KAKEYA_GRAMMAR_AUTOMATON_STATE_H
#define KAKEYA_GRAMMAR_AUTOMATON_STATE_H

#include "grammar/program.h"

enum {
    AUTOMATON_MAX_WAYS = 16,
    AUTOMATON_MAX_PLACES = 1024, /* in which one letter is looked at, of one way */
    AUTOMATON_MAX_WORDS = 256,   /* of what open objects remember of their keys */
    AUTOMATON_FREE_WORDS = 96, /* keys that are not declared may take so many; the others are for what must be there */
};

/* An open value. What `at` and `seen` mean depends on the node's kind. */
typedef struct automaton_frame {
    uint32_t node, at;
    uint32_t seen, members; /* members: of an object, that have begun */
    uint16_t base;          /* of an object: where its words begin */
    uint16_t required;      /* of its members: that must be there */
} automaton_frame;

/* The key that is being read: where in the trie of declared ones (TRIE_NONE: it is none of them), and where in the text
 * of others (AUTOMATON_NO_TEXT: it is none). */
typedef struct automaton_key {
    uint64_t hash; /* of its letters */
    uint32_t word, text;
} automaton_key;

#define AUTOMATON_NO_TEXT UINT32_MAX

/* words: for every open object, the bits of declared keys that have come (where they come in any order), and the hashes
 * of others. */
typedef struct automaton_configuration {
    uint32_t depth; /* 0: the text is complete */
    uint32_t n_words;
    automaton_key key; /* all zero outside of keys */
    automaton_frame open[GRAMMAR_MAX_DEPTH];
    uint64_t words[AUTOMATON_MAX_WORDS];
} automaton_configuration;

/* Large: copy it with automaton_copy. */
typedef struct automaton_state {
    uint32_t n; /* 0: refused */
    automaton_configuration ways[AUTOMATON_MAX_WAYS];
} automaton_state;

void automaton_copy(automaton_state *to, const automaton_state *from);
/* With the first `depth` values open. */
void automaton_copy_way(automaton_configuration *to, const automaton_configuration *from, uint32_t depth);

#endif
