/* Characters by kinds that expressions mostly take or refuse as a whole: digits, letters, CJK ideographs ... For each
 * node of a vocabulary's tree, the kinds of the characters below it; and, for a state of an automaton, whether any text
 * of some kinds is read without being refused. Where it is, nothing below the node need be walked. */
#ifndef KAKEYA_GRAMMAR_CHARACTER_KINDS_H
#define KAKEYA_GRAMMAR_CHARACTER_KINDS_H

#include "grammar/dfa.h"
#include "grammar/token_trie.h"

/* What is below a node: the rest of a character, if the node ends inside of one, and others. */
typedef struct character_kinds {
    uint32_t kinds : 29; /* bits; all of them where bytes are no UTF-8 */
    uint32_t inside : 3; /* where in a character, as string_text.h has it */
    uint16_t characters; /* of the longest text below */
    uint16_t begun;      /* up to the node itself, of a JSON string */
} character_kinds;

enum {
    CHARACTER_KINDS = 28,
    CHARACTER_INSIDES = 8,
    CHARACTERS_UNKNOWN = (1 << 29) - 1,
};

/* out: [t->n]. False where memory ends. */
bool character_kinds_of_trie(const token_trie *t, character_kinds *out);

/* Which states a text may be read through. */
typedef struct kinds_reader {
    const dfa *dfa;
    uint8_t wanted, unwanted;    /* flags of each state */
    const uint16_t *completions; /* NULL, or those of each state are DFA_ENDLESS */
    const uint32_t *shortest;    /* NULL, or dfa_lengths: each character is counted once at most */
    const uint32_t *longest;
} kinds_reader;

/* What counting makes of characters that begin. The text so far and the shortest rest have `begun - 1 + extra`
 * characters; what can still come has `longest` or more. */
typedef struct kinds_lengths {
    uint32_t least_extra, most_extra, longest;
} kinds_lengths;

enum {
    KINDS_MAX_STATES = 64, /* that are looked at for one answer */
    KINDS_MAX_NEXT = 4,    /* states that characters of one kind lead to */
    KINDS_KEPT = 1024,     /* answers of each sort that are kept */
    KINDS_WORK = 1 << 17,  /* looks at states: a fraction of a millisecond */
};

typedef struct kinds_memory kinds_memory;

size_t kinds_memory_bytes(void);
/* Begins with a reader, in memory that is zero at first: forgets all. */
void kinds_begin(kinds_memory *memory);
/* Whether, from a state that the reader is in, all that may be below a node is read; widens *lengths by it then. False
 * also where finding out takes too long. */
bool kinds_are_taken(kinds_memory *memory, const kinds_reader *reader, uint32_t state, const character_kinds *below,
                     kinds_lengths *lengths);

#endif
