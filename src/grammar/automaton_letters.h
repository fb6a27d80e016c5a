/* Which letters may come next, roughly: what is not among them is refused. */
#ifndef KAKEYA_GRAMMAR_AUTOMATON_LETTERS_H
#define KAKEYA_GRAMMAR_AUTOMATON_LETTERS_H

#include "grammar/automaton_state.h"

enum { LETTER_WORDS = (LETTERS + 63) / 64 };

/* letters: bits. False: nothing is known, any may come. */
bool automaton_letters(const grammar_program *p, const automaton_state *s, uint64_t letters[LETTER_WORDS]);

#endif
