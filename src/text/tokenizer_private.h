/* The tokenizer's tables, shared by loading (tokenizer_load.c), building (tokenizer_build.c) and encoding
 * (tokenizer.c). */
#ifndef KAKEYA_TEXT_TOKENIZER_PRIVATE_H
#define KAKEYA_TEXT_TOKENIZER_PRIVATE_H

#include "text/tokenizer.h"

#define TOKENIZER_SPACE       "\xE2\x96\x81" /* U+2581, how pieces spell a space */
#define TOKENIZER_SPACE_BYTES ((size_t)3)

/* What a post-processor may put around a text, on either side. */
enum { TOKENIZER_MAX_TEMPLATE = 8 };

enum { PIECE_ADDED = 1, PIECE_SPECIAL = 2 }; /* flags of a piece */

typedef struct piece {
    size_t offset; /* in tokenizer.text; NUL-terminated there */
    uint32_t bytes;
    int16_t byte; /* 0..255 for "<0xNN>", -1 otherwise */
    uint8_t flags;
    bool defined;
} piece;

typedef struct piece_slot {
    int32_t id;   /* -1: an empty slot */
    uint32_t tag; /* hash bits that spare most comparisons of texts, which miss the cache */
} piece_slot;

typedef struct merge {
    int32_t left, right; /* left < 0: an empty slot */
    int32_t product;
    uint32_t rank;
} merge;

struct tokenizer {
    char *text;
    piece *pieces; /* by id */
    size_t n_pieces, longest_piece_bytes;

    /* Open addressing with linear probing; capacities are powers of two, at least twice the entries. */
    piece_slot *piece_slots; /* piece -> id */
    size_t piece_mask;
    merge *merges; /* (left, right) -> rank, product */
    size_t merge_mask;

    int32_t byte_ids[256];
    int32_t space_id; /* the piece of one space, -1: not in the vocabulary */

    /* Added tokens are found by hashing the text at a position with each of their lengths, longest first. */
    bool added_first_byte[256];
    uint32_t *added_lengths; /* distinct, descending */
    size_t n_added_lengths;

    int32_t prefix[TOKENIZER_MAX_TEMPLATE], suffix[TOKENIZER_MAX_TEMPLATE];
    size_t n_prefix, n_suffix;

    /* No merge joins a newline with anything else, so runs of newlines and runs without can be encoded apart: the
     * same ids from smaller heaps. */
    bool splits_at_newlines;
};

/* The id of a piece, -1 if there is none. */
int32_t tokenizer_find(const tokenizer *t, const char *text, size_t bytes);
/* The merge of two adjacent ids, NULL if there is none. */
const merge *tokenizer_find_merge(const tokenizer *t, int32_t left, int32_t right);

/* ---- building: what a reader of some file format has collected ---- */

typedef struct text_buffer {
    char *data;
    size_t bytes, capacity;
} text_buffer;

typedef struct text_span {
    size_t offset; /* in its text_buffer; a NUL follows */
    uint32_t bytes;
} text_span;

typedef struct vocab_entry {
    text_span text;
    int32_t id;
    uint8_t flags;
} vocab_entry;

typedef struct merge_entry {
    text_span left, right;
} merge_entry;

typedef struct vocab_source {
    const char *name; /* of the file */
    text_buffer piece_text, merge_text;
    vocab_entry *entries; /* the vocabulary, then added tokens; an added token may repeat an entry */
    size_t n_entries, entry_capacity;
    merge_entry *merges; /* by rank */
    size_t n_merges, merge_capacity;
} vocab_source;

/* Appends bytes and a NUL. False: out of memory. */
bool text_buffer_add(text_buffer *buffer, const char *text, size_t bytes, text_span *span);
bool vocab_source_entry(vocab_source *source, text_span text, int32_t id, uint8_t flags);
bool vocab_source_merge(vocab_source *source, text_span left, text_span right);
void vocab_source_free(vocab_source *source);

/* Checks the vocabulary and makes all tables but the template. Takes piece_text over; the rest stays with the source.
 */
kakeya_status tokenizer_build(vocab_source *source, tokenizer **out, kakeya_error *error);

#endif
