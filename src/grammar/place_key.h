/* Where a text stands in its grammar, as far as the next letters depend on it: places with equal keys take the same
 * texts of up to so many letters. Counts that are far from their limits are not told apart. */
#ifndef KAKEYA_GRAMMAR_PLACE_KEY_H
#define KAKEYA_GRAMMAR_PLACE_KEY_H

#include "grammar/automaton_state.h"

enum { PLACE_KEY_WORDS = 256 };

typedef enum place_question { PLACE_MASK = 0, PLACE_FORCED } place_question;

typedef struct place_key {
    uint64_t hash;
    uint32_t n;
    uint32_t words[PLACE_KEY_WORDS];
} place_key;

/* grammar: its number; letters: of the texts that are asked about; UINT32_MAX: any. False: the place has no key,
 * because too much is open, or inside of a key that need not be declared, of which few come again. */
bool place_key_make(const grammar_program *p, uint64_t grammar, place_question question, const automaton_state *s,
                    uint32_t letters, place_key *out);
bool place_keys_agree(const place_key *a, const uint32_t *words, uint32_t n);

#endif
