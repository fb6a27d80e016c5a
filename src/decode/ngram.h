/* Prompt lookup: drafts are the continuation of the latest earlier place where the timeline's last tokens occurred
 * before. Needs no weights; pays on code, quotations and repetition.
 *
 * Index: each position links to the previous position of the same token, so appending and dropping a token are O(1) and
 * a lookup walks only the places that share the last token. */
#ifndef KAKEYA_DECODE_NGRAM_H
#define KAKEYA_DECODE_NGRAM_H

#include <stdbool.h>

#include "base/alloc.h"
#include "base/error.h"

enum {
    NGRAM_MAX_MATCH = 4, /* a longer common suffix is not preferred any more */
    NGRAM_MIN_MATCH = 1,
    NGRAM_MAX_PLACES = 256, /* places examined in one lookup */
};

typedef struct ngram_index {
    int32_t *last;     /* [vocab]: latest indexed position of the token + 1, 0: none */
    int32_t *previous; /* [capacity]: previous position of the same token + 1, 0: none */
    size_t n;          /* tokens indexed */
} ngram_index;

/* MEM_WORKSPACE memory; a zeroed index is valid for ngram_free and ngram_truncate. */
kakeya_status ngram_create(ngram_index *index, int vocab, size_t capacity, mem_account *account, kakeya_error *error);
void ngram_free(ngram_index *index);

/* Indexes tokens[index->n..n); tokens before are those indexed earlier. */
void ngram_extend(ngram_index *index, const int32_t *tokens, size_t n);
/* Forgets positions [n, index->n); tokens are still those that were indexed. */
void ngram_truncate(ngram_index *index, const int32_t *tokens, size_t n);

/* Drafts up to `max` tokens that follow tokens[0..index->n); returns how many, and in *match the length of the suffix
 * that occurred before. A continuation that runs into the end of the timeline goes on with its own drafts, so a loop is
 * drafted at full length. Returns 0 where no suffix of NGRAM_MIN_MATCH tokens occurred before. */
int ngram_draft(const ngram_index *index, const int32_t *tokens, int max, int32_t *drafts, int *match);

#endif
