#include "grammar/character_kinds.h"

#include <stdlib.h>
#include <string.h>

#include "grammar/string_text.h"

/* First bytes. Rows of one kind have the same number. */
static const struct {
    uint8_t first, last, kind;
} rows[] = {
    {0x00, 0x1F, 0},  {' ', ' ', 1},    {'!', '!', 2},    {'"', '"', 3},    {'#', ',', 2},    {'-', '-', 4},
    {'.', '.', 2},    {'/', '/', 2},    {'0', '9', 7},    {':', ':', 2},    {';', '?', 2},    {'@', '@', 2},
    {'A', 'Z', 10},   {'[', '[', 2},    {'\\', '\\', 12}, {']', '^', 2},    {'_', '_', 13},   {'`', '`', 2},
    {'a', 'z', 14},   {'{', 0x7F, 2},   {0xC2, 0xC2, 16}, {0xC3, 0xCF, 17}, {0xD0, 0xDF, 18}, {0xE0, 0xE0, 19},
    {0xE1, 0xE1, 20}, {0xE2, 0xE2, 21}, {0xE3, 0xE3, 22}, {0xE4, 0xE9, 23}, {0xEA, 0xED, 24}, {0xEE, 0xEF, 25},
    {0xF0, 0xF4, 27},
};
enum { ROWS = sizeof rows / sizeof *rows };

#define BIT(kind)     (UINT32_C(1) << (kind))
#define LOWER         BIT(14)
#define LETTERS_ASCII (LOWER | BIT(10))
#define WORDS         (LETTERS_ASCII | BIT(7) | BIT(13) | BIT(4))
#define PRINTED       (WORDS | BIT(1) | BIT(2))
#define SCRIPTS       (BIT(17) | BIT(18) | BIT(19) | BIT(20) | BIT(23) | BIT(24))
#define FOREIGN       (SCRIPTS | BIT(16) | BIT(21) | BIT(22) | BIT(25) | BIT(27))
#define UNKNOWN       BIT(31) /* bytes that are no UTF-8 */

/* The smaller ones first. Quotes, backslashes and control characters, which mean something in JSON, are in none. */
static const uint32_t alphabets[ALPHABETS] = {
    LOWER,
    LETTERS_ASCII,
    WORDS,
    BIT(7) | BIT(2),
    BIT(17) | LETTERS_ASCII,
    BIT(18),
    BIT(23),
    BIT(22) | BIT(23),
    SCRIPTS,
    PRINTED,
    SCRIPTS | WORDS,
    FOREIGN,
    PRINTED | SCRIPTS,
    PRINTED | FOREIGN,
};

static uint32_t kind_bit(unsigned byte) {
    for (size_t i = 0; i < ROWS; i++)
        if (byte >= rows[i].first && byte <= rows[i].last) return BIT(rows[i].kind);
    return UNKNOWN;
}

bool alphabet_has(uint32_t alphabet, unsigned byte) { return alphabets[alphabet] & kind_bit(byte); }

static uint8_t alphabet_of(uint32_t kinds) {
    uint8_t alphabet = 0;
    while (alphabet < ALPHABETS && kinds & ~alphabets[alphabet]) alphabet++;
    return alphabet;
}

static bool is_between(uint32_t at) { return at == BETWEEN || at == NO_STRING; }

typedef struct trie_place {
    uint8_t character, string; /* where a text stands inside of a character, and of a JSON string */
    uint16_t begun;
} trie_place;

/* Fills what a node has from those above it. ends: by node. */
static void go_down(const token_trie *t, trie_place *at, uint8_t *ends, character_kinds *out) {
    at[0] = (trie_place){BETWEEN, BETWEEN, 0};
    for (uint32_t i = 0; i < t->n; i++) {
        const token_trie_node *node = &t->nodes[i];
        trie_place now = at[node->depth];
        ends[i] = (uint8_t)text_step(now.character, node->byte, false);
        now.begun = (uint16_t)(now.begun + is_between(now.string));
        now.character = is_between(ends[i]) ? BETWEEN : ends[i];
        now.string = now.string == NO_STRING ? NO_STRING : (uint8_t)text_step(now.string, node->byte, true);
        at[node->depth + 1] = now;
        out[i] = (character_kinds){.inside = now.character, .begun = now.begun};
        out[i].characters = now.character != BETWEEN;
    }
}

/* Fills what a node has from those below it. kinds: by node. */
static void go_up(const token_trie *t, const uint8_t *ends, uint32_t *kinds, character_kinds *out) {
    uint32_t bits[256];
    for (unsigned byte = 0; byte < 256; byte++) bits[byte] = kind_bit(byte);
    for (uint32_t i = t->n; i-- > 0;) { /* each node after all that is below it */
        kinds[i] = 0;
        for (uint32_t k = i + 1; k < t->nodes[i].end; k = t->nodes[k].end) {
            kinds[i] |= kinds[k];
            if (is_between(ends[i])) kinds[i] |= bits[t->nodes[k].byte];
            if (ends[k] == NO_STRING) kinds[i] |= UNKNOWN;
            uint32_t n = out[k].characters + (uint32_t)is_between(ends[k]);
            if (n > out[i].characters) out[i].characters = (uint16_t)n;
            if (out[k].bytes >= out[i].bytes) out[i].bytes = (uint8_t)(out[k].bytes + (out[k].bytes < MANY_BYTES));
        }
        out[i].alphabet = alphabet_of(kinds[i]);
    }
}

bool character_kinds_of_trie(const token_trie *t, character_kinds *out) {
    size_t depths = 1;
    for (uint32_t i = 0; i < t->n; i++)
        if (t->nodes[i].depth + 2u > depths) depths = t->nodes[i].depth + 2u;
    trie_place *at = malloc(depths * sizeof *at);
    uint8_t *ends = malloc((size_t)t->n + 1);
    uint32_t *kinds = malloc(((size_t)t->n + 1) * sizeof *kinds);
    bool done = at && ends && kinds;
    if (done) {
        go_down(t, at, ends, out);
        go_up(t, ends, kinds, out);
    }
    free(at);
    free(ends);
    free(kinds);
    return done;
}
