/* The vocabulary as a grammar sees it: what every token spells, tokens by their beginnings, and the control tokens that
 * mean something. Made once for a tokenizer, immutable but for the caches, shared by its grammars. */
#ifndef KAKEYA_GRAMMAR_TOKEN_TABLE_H
#define KAKEYA_GRAMMAR_TOKEN_TABLE_H

#include "grammar/character_kinds.h"
#include "grammar/mask_cache.h"
#include "grammar/place_cache.h"
#include "grammar/token_sets.h"
#include "text/tokenizer.h"

typedef struct token_table {
    const tokenizer *tokenizer; /* borrowed */
    int vocab;
    uint64_t fingerprint; /* of all pieces, and which of them are special */
    uint32_t *offset;     /* [vocab + 1] into bytes; no text: special, or no token at all */
    char *bytes;
    size_t longest; /* bytes of a token */
    token_trie all;
    character_kinds *below; /* [all.n] */
    uint32_t *texts;        /* bits: tokens in `all` */
    token_trie quoted;      /* those with a quote (") */
    token_set sets[TOKEN_TEXTS];
    mask_cache *cache;                                                 /* of its grammars */
    place_cache *places;                                               /* of its grammars */
    int32_t call_open, call_close, quote, thought_open, thought_close; /* -1: not in the vocabulary */
} token_table;

kakeya_status token_table_create(const tokenizer *t, token_table **out, kakeya_error *error);
void token_table_destroy(token_table *table); /* NULL is fine */

static inline const char *token_table_text(const token_table *t, int32_t token, size_t *bytes) {
    *bytes = t->offset[token + 1] - t->offset[token];
    return t->bytes + t->offset[token];
}

/* Whether both spell the same tokens alike. */
bool token_tables_agree(const token_table *a, const token_table *b);

#endif
