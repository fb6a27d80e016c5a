/* Reading a text letter by letter along a program. A configuration is one way to read what has come: the values that
 * are open, in one another. A state is the set of all ways that are still possible; where there are more than
 * AUTOMATON_MAX_WAYS, the newest are not followed.
 *
 * White space in JSON: one space or none behind : and ,; or a new line and up to 20 spaces behind { [ , and in front of
 * } and ]. Unlimited white space is what models get lost in. */
#ifndef KAKEYA_GRAMMAR_AUTOMATON_H
#define KAKEYA_GRAMMAR_AUTOMATON_H

#include "grammar/automaton_state.h"

/* root: a NODE_ROOT of a finished program. */
void automaton_begin(uint32_t root, automaton_state *out);
/* *to is where the letter leads to; false: it is refused. to != from. */
bool automaton_step(const grammar_program *p, const automaton_state *from, unsigned letter, automaton_state *to);
/* The text may end here. */
bool automaton_complete(const grammar_program *p, const automaton_state *s);
/* automaton_step in the plain way, whatever the letter is: what everything else is measured against. */
bool automaton_read(const grammar_program *p, const automaton_state *from, unsigned letter, automaton_state *to);
/* Whether all letters of a text may follow; between: as many states as there are letters. */
bool automaton_takes(const grammar_program *p, const automaton_state *from, const char *text, size_t bytes,
                     automaton_state *between);

#endif
