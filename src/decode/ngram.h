/* Prompt lookup: drafts are the continuation of the latest earlier place where the timeline's last tokens occurred
 * before. Needs no weights; pays on code, quotations and repetition.
 *
 * Index: each position links to the previous position of the same token, so appending and dropping a token are O(1) and
 * a lookup walks only the places that share the last token. A hash table finds the latest position of a token; index
 * and table grow with the text. */
#ifndef KAKEYA_DECODE_NGRAM_H
#define KAKEYA_DECODE_NGRAM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/alloc.h"
#include "base/error.h"

enum {
    NGRAM_MAX_MATCH = 4, /* a longer common suffix is not preferred any more */
    NGRAM_MIN_MATCH = 1,
    NGRAM_MAX_PLACES = 256, /* places examined in one lookup */
};

/* The latest indexed position of a token + 1; 0: none. */
typedef struct ngram_head {
    int32_t token; /* -1: the entry is free */
    int32_t place;
} ngram_head;

/* All zero: empty, without memory. */
typedef struct ngram_index {
    ngram_head *heads; /* [2^head_bits], open addressing; at most half of it is in use */
    int head_bits;
    size_t head_count; /* in use */
    int32_t *previous; /* [room]: previous position of the same token + 1, 0: none */
    size_t room;
    size_t n; /* tokens indexed */
} ngram_index;

/* Memory (MEM_WORKSPACE) for n tokens, so that indexing needs none. On failure the index is as it was. */
kakeya_status ngram_reserve(ngram_index *index, size_t n, mem_account *account, kakeya_error *error);
bool ngram_has_room(const ngram_index *index, size_t n);
void ngram_free(ngram_index *index);

/* Indexes tokens[index->n..n), for which there is room; tokens before are those indexed earlier. */
void ngram_extend(ngram_index *index, const int32_t *tokens, size_t n);
/* Forgets positions [n, index->n); tokens are still those that were indexed. */
void ngram_truncate(ngram_index *index, const int32_t *tokens, size_t n);

/* Drafts up to `max` tokens that follow tokens[0..index->n); returns how many, and in *match the length of the suffix
 * that occurred before. A continuation that runs into the end of the timeline goes on with its own drafts, so a loop is
 * drafted at full length. Returns 0 where no suffix of NGRAM_MIN_MATCH tokens occurred before. */
int ngram_draft(const ngram_index *index, const int32_t *tokens, int max, int32_t *drafts, int *match);

#endif
