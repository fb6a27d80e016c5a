/* Characters by kinds that expressions mostly take or refuse as a whole: digits, letters, CJK ideographs ... and a few
 * alphabets of such kinds. For each node of a vocabulary's tree, the smallest alphabet of all that is below it: where
 * an automaton reads any text of it (character_reach.h), nothing below the node need be walked. */
#ifndef KAKEYA_GRAMMAR_CHARACTER_KINDS_H
#define KAKEYA_GRAMMAR_CHARACTER_KINDS_H

#include "grammar/token_trie.h"

enum {
    ALPHABETS = 14,
    MANY_BYTES = 254, /* so many or more */
};

/* What is below a node: the rest of a character, if the node ends inside of one, and others. */
typedef struct character_kinds {
    uint8_t alphabet;    /* ALPHABETS: there is none, or bytes are no UTF-8 */
    uint8_t inside;      /* where in a character the node ends, as string_text.h has it */
    uint8_t bytes;       /* of the longest text below, up to MANY_BYTES */
    uint16_t characters; /* of the longest text below */
    uint16_t begun;      /* up to the node itself, of a JSON string */
} character_kinds;

/* out: [t->n]. False where memory ends. */
bool character_kinds_of_trie(const token_trie *t, character_kinds *out);
/* Whether a character of the alphabet begins with the byte. */
bool alphabet_has(uint32_t alphabet, unsigned byte);

#endif
