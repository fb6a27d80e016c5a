/* From which states an automaton reads any text of an alphabet, and how much of it, without refusing. Found at once for
 * all states that such texts lead to: by breadth, backwards from those in which some character is refused. */
#ifndef KAKEYA_GRAMMAR_CHARACTER_REACH_H
#define KAKEYA_GRAMMAR_CHARACTER_REACH_H

#include "grammar/character_kinds.h"
#include "grammar/dfa.h"

/* Which states a text may be read through. */
typedef struct reach_reader {
    const dfa *dfa;
    uint8_t wanted, unwanted;    /* flags of each state */
    const uint16_t *completions; /* NULL, or those of each state are at least so many: */
    uint16_t least_completions;
    const uint32_t *shortest; /* NULL, or dfa_lengths */
    const uint32_t *longest;
} reach_reader;

/* What counting makes of characters that begin. The text so far and the shortest rest have `begun - 1 + extra`
 * characters; what can still come has `longest` or more. */
typedef struct reach_lengths {
    uint32_t least_extra, most_extra, longest;
} reach_lengths;

#define REACH_NO_LENGTHS ((reach_lengths){UINT32_MAX, 0, UINT32_MAX})

enum {
    REACH_ALWAYS = 255,      /* texts of any length are read */
    REACH_MAX_STATES = 4096, /* that are looked at together */
    REACH_MAX_EDGES = 1 << 16,
    REACH_WORK = 1 << 19, /* looks at states for one reader: about a millisecond */
};

typedef struct character_reach {
    const reach_reader *reader;
    uint8_t reach[ALPHABETS][DFA_MAX_STATES]; /* 1 + bytes that are read, or REACH_ALWAYS; 0: not known */
    uint8_t inside[DFA_MAX_STATES];           /* 1 + where in a character; 0: not known */
    reach_lengths lengths[ALPHABETS];         /* of what has been looked at */
    struct reach_search *search;              /* what it is found with */
} character_reach;

size_t character_reach_bytes(void);
/* Begins with a reader, which is borrowed, in memory that is zero at first: forgets all. */
void character_reach_begin(character_reach *reach, const reach_reader *reader);
/* Whether the state is one that a text may be read through. */
bool character_reach_is_good(const reach_reader *reader, uint32_t state);
/* Finds out for a state, unless it takes too long. */
void character_reach_find(character_reach *reach, uint32_t state, const character_kinds *below);
void reach_lengths_widen(reach_lengths *lengths, const reach_lengths *more);

/* Whether all that may be below a node is read from a good state in which the node is left. False also where finding
 * out takes too long. */
static inline bool character_reach_takes(character_reach *reach, uint32_t state, const character_kinds *below) {
    if (below->alphabet == ALPHABETS) return false;
    const uint8_t *known = &reach->reach[below->alphabet][state];
    if (*known == 0) character_reach_find(reach, state, below);
    return *known > below->bytes && reach->inside[state] == 1 + below->inside;
}

#endif
