/* From the pieces, merges and added tokens that a reader of some file format has collected to the tables. */
#ifndef KAKEYA_TEXT_TOKENIZER_BUILD_H
#define KAKEYA_TEXT_TOKENIZER_BUILD_H

#include "base/error.h"
#include "text/tokenizer_tables.h"

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
    text_span looked_for; /* of an added token */
    int32_t id;
    uint8_t flags;
    bool normalized; /* an added token that is looked for in normalized text */
    uint32_t rank;   /* of a ranked vocabulary; of equal ones the leftmost is merged first */
} vocab_entry;

typedef struct merge_entry {
    text_span left, right;
} merge_entry;

typedef struct vocab_source {
    const char *name; /* of the file */
    text_buffer piece_text, merge_text;
    vocab_entry *entries; /* the vocabulary, then added tokens; an added token may repeat an entry */
    size_t n_entries, entry_capacity;
    bool repeats_allowed; /* entries may repeat a text, in ascending order of ids: the first one is found */
    bool ranked;          /* entries have ranks, and there are no merges: two pieces merge where that makes a piece */
    bool merges_must_fit; /* else a merge whose parts or product are not in the vocabulary is left out */
    merge_entry *merges;  /* by rank */
    size_t n_merges, merge_capacity;
} vocab_source;

/* Appends bytes and a NUL. False: out of memory. */
bool text_buffer_add(text_buffer *buffer, const char *text, size_t bytes, text_span *span);
bool vocab_source_entry(vocab_source *source, vocab_entry entry);
bool vocab_source_merge(vocab_source *source, text_span left, text_span right);
void vocab_source_free(vocab_source *source);

/* Checks the vocabulary and makes all tables but the template. Takes piece_text over; the rest stays with the source.
 *
 * Ids: the vocabulary's own leave no gap. An added token has the id that its entry says, except where that would leave
 * a gap behind all ids before it and the vocabulary does not list the token: then it has the next id, as in Hugging
 * Face tokenizers, which number such tokens themselves. */
kakeya_status tokenizer_build(vocab_source *source, tokenizer_tables **out, kakeya_error *error);

#endif
