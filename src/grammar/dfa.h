/* Deterministic finite automata over letters. A dfa only has states from which an accepting one can be reached, so a
 * text that it has not refused can always be completed. */
#ifndef KAKEYA_GRAMMAR_DFA_H
#define KAKEYA_GRAMMAR_DFA_H

#include <stdbool.h>
#include <stdint.h>

#include "grammar/letters.h"
#include "grammar/trie.h"

enum {
    DFA_MAX_STATES = 20000,
    DFA_REFUSED = UINT16_MAX, /* instead of a state */
};

typedef struct dfa {
    uint16_t n_states, n_classes; /* state 0 is the start */
    uint16_t class_of[LETTERS];   /* letters of one class lead to the same state, wherever they are read */
    uint16_t *next;               /* [n_states][n_classes]: a state, or DFA_REFUSED */
    uint8_t *flags;               /* [n_states]: DFA_ACCEPTS, DFA_GOES_ON */
    uint32_t cost;                /* looks at states that making it took, or trying to: some nanoseconds each */
} dfa;

enum {
    DFA_ACCEPTS = 1,
    DFA_GOES_ON = 2,     /* some letter may follow */
    DFA_CHARACTER = 4,   /* of a string in quotes: whoever comes here, but from state 0, has read a character of it */
    DFA_LABEL_SHIFT = 3, /* above: a number that tells accepting states apart */
    DFA_MAX_LABELS = 32,
    DFA_MAX_LABEL_BITS = 24,
};

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
    uint32_t most_states;       /* 0: DFA_MAX_STATES */
    uint16_t class_of[LETTERS]; /* classes 0, 1, ... */
    /* False: refused, or (with *failure set) impossible to say. */
    bool (*step)(void *user, uint64_t state, unsigned letter, uint64_t *to);
    uint8_t (*flags)(void *user, uint64_t state); /* all but DFA_GOES_ON */
    dfa_result failure;
} dfa_source;

/* On failure *out is all zero but for the cost. */
dfa_result dfa_make(dfa_source *source, dfa *out);
void dfa_free(dfa *d);

/* out[LETTERS]: classes 0, 1, ... of letters that neither a, classes as well, nor b, any numbers, tells apart. */
void dfa_refine(uint16_t *out, const uint16_t *a, const uint16_t *b);

static inline unsigned dfa_label_of(const dfa *d, unsigned state) { return d->flags[state] >> DFA_LABEL_SHIFT; }

bool dfa_accepts(const dfa *d, const char *text);
/* The words of a trie whose letters are bytes. */
dfa_result dfa_of_trie(const trie *words, dfa *out);
/* One text alone. */
dfa_result dfa_of_text(const char *text, dfa *out);

typedef enum dfa_operation { DFA_AND, DFA_OR, DFA_WITHOUT } dfa_operation;

/* Texts that both accept, one of them, or the first one without the second. Labels of `a` are kept, but for DFA_OR. */
dfa_result dfa_combine(const dfa *a, const dfa *b, dfa_operation operation, dfa *out);
/* Texts of `a`, with labels that say which patterns they match. masks: of each label; bit `bit` tells whether b does.
 * DFA_TOO_LARGE also where there would be more than DFA_MAX_LABELS. */
dfa_result dfa_label(const dfa *a, const dfa *b, unsigned bit, uint32_t *masks, uint32_t *n_labels, dfa *out);
/* Only the texts whose label is in `keep`. */
dfa_result dfa_keep_labels(const dfa *a, uint32_t keep, dfa *out);
/* Texts of `minimum` to `maximum` UTF-8 characters. */
dfa_result dfa_limit_characters(const dfa *a, uint32_t minimum, uint32_t maximum, dfa *out);
/* The same of a string in quotes, with what spells its characters. */
dfa_result dfa_limit_spelled(const dfa *a, uint32_t minimum, uint32_t maximum, dfa *out);
/* JSON strings, quotes included, that spell an accepted text. \u is understood for control characters alone. */
dfa_result dfa_in_json_string(const dfa *a, dfa *out);
/* Accepted texts between quote letters. */
dfa_result dfa_in_quotes(const dfa *a, dfa *out);
/* The insides of JSON strings that spell an accepted text, each in one way alone: escaped is what must be, as shortly
 * as it can be. Labels are kept. */
dfa_result dfa_in_json_key(const dfa *a, dfa *out);

/* Of a string in quotes, by state: how many characters are still read at least, and (with a minimum) at most, as far as
 * `minimum`. malloc'ed. A text of minimum..maximum characters can be completed where the ones that were read and the
 * shortest rest are at most the maximum, and those and the longest rest at least the minimum. DFA_EMPTY: there is none;
 * DFA_TOO_LARGE: both limits are given and not every length between the shortest and the longest is there. *cost: as of
 * an automaton. */
dfa_result dfa_lengths(const dfa *d, uint32_t minimum, uint32_t maximum, uint32_t **shortest, uint32_t **longest,
                       uint32_t *cost);
/* By state: how many texts complete it; DFA_ENDLESS: any number. malloc'ed; NULL where memory ends. */
uint16_t *dfa_completions(const dfa *d);
#define DFA_ENDLESS UINT16_MAX
/* All texts, malloc'ed each, where there are at most *n of them (which receives how many). DFA_TOO_LARGE: there are
 * more, or one is too long. */
dfa_result dfa_texts(const dfa *d, char **out, uint32_t *n);

#endif
