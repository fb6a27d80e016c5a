/* Deterministic finite automata over letters. A dfa only has states from which an accepting one can be reached, so a
 * text that it has not refused can always be completed. */
#ifndef KAKEYA_GRAMMAR_DFA_H
#define KAKEYA_GRAMMAR_DFA_H

#include <stdbool.h>
#include <stdint.h>

#include "grammar/letters.h"

enum {
    DFA_MAX_STATES = 20000,
    DFA_REFUSED = UINT16_MAX, /* instead of a state */
};

typedef struct dfa {
    uint16_t n_states, n_classes; /* state 0 is the start */
    uint16_t class_of[LETTERS];   /* letters of one class lead to the same state, wherever they are read */
    uint16_t *next;               /* [n_states][n_classes]: a state, or DFA_REFUSED */
    uint8_t *flags;               /* [n_states]: DFA_ACCEPTS, DFA_GOES_ON */
} dfa;

enum { DFA_ACCEPTS = 1, DFA_GOES_ON = 2 /* some letter may follow */ };

typedef enum dfa_result {
    DFA_OK = 0,
    DFA_EMPTY, /* no text is accepted */
    DFA_TOO_LARGE,
    DFA_OUT_OF_MEMORY,
} dfa_result;

static inline uint16_t dfa_next(const dfa *d, unsigned state, unsigned letter) {
    return d->next[state * d->n_classes + d->class_of[letter]];
}

/* An automaton that is described by what it does: states are numbers of the describer's own. */
typedef struct dfa_source {
    void *user;
    uint64_t start;
    uint16_t class_of[LETTERS]; /* classes 0, 1, ... */
    /* False: refused, or (with *failure set) impossible to say. */
    bool (*step)(void *user, uint64_t state, unsigned letter, uint64_t *to);
    bool (*accepts)(void *user, uint64_t state);
    dfa_result failure;
} dfa_source;

/* On failure *out is all zero. */
dfa_result dfa_make(dfa_source *source, dfa *out);
void dfa_free(dfa *d);

/* Texts that both accept. */
dfa_result dfa_intersect(const dfa *a, const dfa *b, dfa *out);
/* Texts of `minimum` to `maximum` UTF-8 characters. */
dfa_result dfa_limit_characters(const dfa *a, uint32_t minimum, uint32_t maximum, dfa *out);
/* JSON strings, quotes included, that spell an accepted text. \u is understood for control characters alone. */
dfa_result dfa_in_json_string(const dfa *a, dfa *out);
/* Accepted texts between quote letters. */
dfa_result dfa_in_quotes(const dfa *a, dfa *out);

#endif
