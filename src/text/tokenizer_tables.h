/* The tables that encoding and decoding read: pieces by id and by text, merges, added tokens. They are filled once
 * (tokenizer_build.h) and never change. */
#ifndef KAKEYA_TEXT_TOKENIZER_TABLES_H
#define KAKEYA_TEXT_TOKENIZER_TABLES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TOKENIZER_SPACE       "\xE2\x96\x81" /* U+2581, how pieces spell a space */
#define TOKENIZER_SPACE_BYTES ((size_t)3)

/* What a post-processor may put around a text, on either side. */
enum { TOKENIZER_MAX_TEMPLATE = 8 };

enum { PIECE_ADDED = 1, PIECE_SPECIAL = 2 }; /* flags of a piece */

#define TOKENIZER_NO_RANK UINT32_MAX /* of a piece that takes no part in merges */

typedef struct piece {
    size_t offset; /* in tokenizer_tables.text; NUL-terminated there */
    uint32_t bytes;
    int16_t byte; /* 0..255 for "<0xNN>", -1 otherwise */
    uint8_t flags;
    bool defined; /* false: no piece has this id */
} piece;

typedef struct text_slot {
    int32_t index; /* -1: an empty slot */
    uint32_t tag;  /* hash bits that spare most comparisons of texts, which miss the cache */
} text_slot;

typedef struct merge {
    int32_t left, right; /* left < 0: an empty slot */
    int32_t product;
    uint32_t rank;
} merge;

typedef struct added_token {
    size_t offset; /* in tokenizer_tables.text: what is looked for */
    uint32_t bytes;
    int32_t id;
    bool special;
} added_token;

/* Added tokens that are looked for in the same text. One is found by hashing the text at a position, and asking where
 * its length is that of a token. */
typedef struct added_set {
    added_token *tokens;
    size_t n;
    text_slot *slots; /* text -> index of a token */
    size_t mask;
    bool alone[256];                 /* a token is this byte */
    uint64_t begins[(1 << 16) / 64]; /* bits: a token begins with these two bytes */
    bool *lengths;                   /* of longest + 1: whether a token has so many bytes */
    size_t longest;
} added_set;

/* All hash tables: open addressing with linear probing; capacities are powers of two, at least twice the entries. */
typedef struct tokenizer_tables {
    char *text;
    piece *pieces;   /* by id */
    size_t n_pieces; /* the largest id + 1 */
    size_t longest_piece_bytes;

    text_slot *piece_slots; /* text -> id */
    size_t piece_mask;
    merge *merges; /* (left, right) -> rank, product */
    size_t merge_mask;
    uint32_t *ranks; /* by id, in place of merges: two pieces that have ranks merge to the piece of their joined text
                        where it has one. NULL: merges are listed */

    int32_t byte_ids[256];
    int32_t space_id; /* the piece of one space, -1: not in the vocabulary */

    added_set verbatim;   /* looked for in the text as it is */
    added_set normalized; /* then, between those, in the text whose spaces are U+2581 */

    int32_t prefix[TOKENIZER_MAX_TEMPLATE], suffix[TOKENIZER_MAX_TEMPLATE];
    size_t n_prefix, n_suffix;

    /* Bits: two bytes stand side by side in what some merge makes; a space there is one byte. Between two that never
     * do, a text can be cut, and its parts encoded apart: the same ids from smaller heaps. */
    uint64_t neighbours[(1 << 16) / 64];
} tokenizer_tables;

void tokenizer_tables_free(tokenizer_tables *t); /* NULL is fine */

/* The piece of an id, NULL if there is none. */
const piece *tokenizer_piece_at(const tokenizer_tables *t, int32_t id);
/* The id of a piece, -1 if there is none. */
int32_t tokenizer_find(const tokenizer_tables *t, const char *text, size_t bytes);
/* The merge of two adjacent ids; false if there is none. */
bool tokenizer_find_merge(const tokenizer_tables *t, int32_t left, int32_t right, merge *out);
/* The longest token of a set at text[0], NULL if there is none. Special ones count only where `special`. */
const added_token *tokenizer_find_added(const tokenizer_tables *t, const added_set *set, const char *text, size_t bytes,
                                        bool special);

/* Whether some merge makes a text in which these two bytes stand side by side. */
static inline bool tokenizer_are_neighbours(const tokenizer_tables *t, char left, char right) {
    unsigned pair = (unsigned)(unsigned char)left << 8 | (unsigned char)right;
    return t->neighbours[pair / 64] >> pair % 64 & 1;
}

/* ---- for filling the tables ---- */

/* FNV-1a of the text, as the slots are found by. */
uint64_t tokenizer_hash(const char *text, size_t bytes);
/* The slot that holds this piece, or the empty one where it belongs. */
text_slot *tokenizer_piece_slot(const tokenizer_tables *t, uint64_t hash, const char *text, size_t bytes);
text_slot *tokenizer_added_slot(const tokenizer_tables *t, const added_set *set, const char *text, size_t bytes);
merge *tokenizer_merge_slot(const tokenizer_tables *t, int32_t left, int32_t right);

#endif
