/* Sets of characters as the bytes of UTF-8 that spell them: deterministic, so that a set of any size is one state of an
 * automaton between characters, and one more inside of each. */
#ifndef KAKEYA_GRAMMAR_BYTE_TABLES_H
#define KAKEYA_GRAMMAR_BYTE_TABLES_H

#include <stdbool.h>
#include <stdint.h>

#include "grammar/regex_syntax.h"

enum {
    BYTE_REFUSED = UINT16_MAX,
    BYTE_ENDS = UINT16_MAX - 1, /* the character is whole */
};

/* Where each byte leads to: BYTE_REFUSED, BYTE_ENDS, or the number of another table of the same set. */
typedef struct byte_table {
    uint16_t next[256];
} byte_table;

typedef struct byte_tables {
    byte_table *tables; /* of all sets, one behind the other */
    uint32_t n, capacity;
} byte_tables;

/* Appends the tables of a set, the one that begins a character first. Ranges ascend and neither touch nor overlap;
 * surrogates in them are no characters. False where memory ends. */
bool byte_tables_add(byte_tables *t, const character_range *ranges, uint32_t n_ranges);

#endif
