/* A regular expression's tree as a nondeterministic automaton over bytes (Thompson's construction). */
#ifndef KAKEYA_GRAMMAR_REGEX_NFA_H
#define KAKEYA_GRAMMAR_REGEX_NFA_H

#include "grammar/byte_tables.h"
#include "grammar/dfa.h"

enum { NFA_MAX_BEHIND = 8 }; /* look-behinds of an expression */

typedef enum nfa_kind { NFA_BYTE, NFA_SPLIT, NFA_BEGIN, NFA_END, NFA_MATCH, NFA_NEVER, NFA_LOOK } nfa_kind;

typedef struct nfa_state {
    uint8_t kind;
    uint32_t out;   /* where it leads to; NFA_BYTE: behind the character */
    uint32_t other; /* NFA_SPLIT: where else; NFA_BYTE: its table; NFA_LOOK: which one */
    uint32_t set;   /* NFA_BYTE: the state of the first table of its set; the others follow it */
} nfa_state;

/* What the text behind, or before, a place must begin, or end, like. */
typedef struct nfa_look {
    uint32_t node; /* of the tree */
    bool behind, negative;
    uint32_t start;   /* ahead: from here on, any text that begins so leads to a match */
    bool asks_before; /* ahead: it depends on what stands before its place, too */
    uint32_t number;  /* behind: of its automaton */
} nfa_look;

/* The tables of a set of characters. */
typedef struct nfa_set {
    uint32_t first_range, n_ranges, first_table, n_tables;
} nfa_set;

typedef struct nfa {
    nfa_state *states;
    uint32_t n, capacity;
    byte_tables bytes;
    nfa_set *sets;
    uint32_t n_sets, set_capacity;
    nfa_look *looks;
    uint32_t n_looks, look_capacity;
    uint32_t behind[NFA_MAX_BEHIND]; /* the looks that an automaton is asked for */
    uint32_t n_behind;
    uint32_t most_states; /* of its automaton; 0: DFA_MAX_STATES */
    uint32_t any_rest;    /* from here any text matches; REGEX_NONE: there is no such state */
    dfa_result failure;   /* the first one sticks */
} nfa;

/* The state before a node that leads to `to` behind it. */
uint32_t nfa_add_node(nfa *a, const regex_tree *t, uint32_t node, uint32_t to);
uint32_t nfa_add_match(nfa *a);
/* The state before any number of any characters, which leads to `to` behind them. */
uint32_t nfa_add_anything(nfa *a, uint32_t to);
/* class_of[LETTERS]: bytes that all tables lead to the same place. Other letters are a class of their own. */
void nfa_classes(const nfa *a, uint16_t *class_of);
void nfa_free(nfa *a);

#endif
