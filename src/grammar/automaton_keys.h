/* Inside of the automaton: where lists and objects stand, and which keys are open. */
#ifndef KAKEYA_GRAMMAR_AUTOMATON_KEYS_H
#define KAKEYA_GRAMMAR_AUTOMATON_KEYS_H

#include "grammar/automaton_state.h"

/* Where a list or an object stands. `at` holds it in its low bits; above it, what the place needs. */
enum {
    PLACE_OPENING = 0, /* [ or { is to come */
    PLACE_FIRST,       /* behind it */
    PLACE_FIRST_LINE,  /* and a new line; spaces */
    PLACE_KEY,         /* inside of a key; where */
    PLACE_COLON,       /* behind a key: which */
    PLACE_VALUE,       /* behind its colon: which */
    PLACE_SPACED_VALUE,
    PLACE_BEHIND,   /* behind a value */
    PLACE_END_LINE, /* and a new line: only the end may follow; spaces */
    PLACE_COMMA,    /* behind a comma */
    PLACE_COMMA_SPACE,
    PLACE_COMMA_LINE, /* spaces */
    PLACE_BITS = 4,
};

static inline uint32_t place_of(uint32_t at) { return at & ((1u << PLACE_BITS) - 1); }
static inline uint32_t detail_of(uint32_t at) { return at >> PLACE_BITS; }
static inline uint32_t place(uint32_t where, uint32_t detail) { return where | detail << PLACE_BITS; }

/* Whether a value of the node may begin with so many values open around it. */
bool automaton_fits(const grammar_program *p, uint32_t at, uint32_t depth);
/* seen: where keys come in their order, the next one that may come. */
uint32_t automaton_key_words(const grammar_node *node);
bool automaton_key_is_open(const grammar_program *p, const grammar_node *node, const automaton_configuration *c,
                           uint32_t key, uint32_t depth);
bool automaton_is_remembered(const grammar_node *node, const automaton_configuration *c, uint32_t depth, uint64_t hash);
uint64_t automaton_hash_letter(uint64_t hash, unsigned letter);
/* How many keys have come that are not declared, or are declared: one that is none of them is new. */
uint32_t automaton_known_keys(const grammar_node *node, const automaton_configuration *c, uint32_t depth);
/* Whether a key that is not declared may go on like this. */
bool automaton_may_become_new(const grammar_program *p, const grammar_node *node, const automaton_configuration *c,
                              uint32_t depth, automaton_key key);
bool automaton_other_keys_are_open(const grammar_program *p, const grammar_node *node, const automaton_configuration *c,
                                   uint32_t depth);
bool automaton_object_may_close(const grammar_node *node, const automaton_frame *own);
/* Some key that is open begins like this node of the trie. */
bool automaton_leads_to_key(const grammar_program *p, const grammar_node *node, const automaton_configuration *c,
                            uint32_t word, uint32_t depth);
bool automaton_object_goes_on(const grammar_program *p, const grammar_node *node, const automaton_configuration *c,
                              uint32_t depth);
uint32_t automaton_other_key_step(const grammar_node *node, uint32_t text, unsigned letter);
/* What the text of a key that is not declared stands for: n_children, and above it its label. GRAMMAR_NOTHING: none. */
uint32_t automaton_other_key(const grammar_program *p, const grammar_node *node, const automaton_configuration *c,
                             uint32_t depth);
/* Of a string whose characters are counted: the next state can still be completed. */
bool automaton_count_character(const grammar_node *node, automaton_frame *own, uint32_t next);

#endif
