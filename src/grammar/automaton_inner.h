/* Reading inside of the innermost values: as long as nothing is opened or closed, a place is a few numbers for each way
 * beside a state that stays as it is. Most letters of an answer, and nearly all that a mask tries, are read so. */
#ifndef KAKEYA_GRAMMAR_AUTOMATON_INNER_H
#define KAKEYA_GRAMMAR_AUTOMATON_INNER_H

#include "grammar/automaton_state.h"

/* What of a way changes: numbers of its innermost value. */
typedef struct automaton_inner_way {
    automaton_key key;
    uint32_t at, seen;
    uint16_t members;
    uint16_t way; /* of the base */
} automaton_inner_way;

/* The ways of `base` that are left, each moved on inside of its innermost value. */
typedef struct automaton_inner {
    const automaton_state *base; /* borrowed */
    uint32_t n;                  /* 0: a text that is complete is among them, every letter leaves */
    automaton_inner_way ways[AUTOMATON_MAX_WAYS];
} automaton_inner;

typedef enum inner_result {
    INNER_REFUSED = 0,
    INNER_GOES_ON,
    INNER_LEAVES, /* something may be opened or closed: read the letter with automaton_step */
} inner_result;

void automaton_inner_begin(const automaton_state *base, automaton_inner *out);
inner_result automaton_inner_step(const grammar_program *p, const automaton_inner *from, unsigned letter,
                                  automaton_inner *to);
/* The same from a state, which out->base is then. */
inner_result automaton_inner_read(const grammar_program *p, const automaton_state *base, unsigned letter,
                                  automaton_inner *out);
/* The state that it stands for. */
void automaton_inner_state(const automaton_inner *inner, automaton_state *out);

#endif
