/* The vocabulary as a grammar sees it: what every token spells, tokens in the order of their bytes, and the control
 * tokens that mean something. Made once for a tokenizer, immutable, shared by its grammars. */
#ifndef KAKEYA_GRAMMAR_TOKEN_TABLE_H
#define KAKEYA_GRAMMAR_TOKEN_TABLE_H

#include "text/tokenizer.h"

/* Text tokens in the order of their bytes: neighbours share beginnings, so that one walk reads each beginning once. */
typedef struct token_list {
    int32_t *tokens;
    uint16_t *common; /* bytes in common with the token before */
    size_t n;
} token_list;

typedef struct token_table {
    const tokenizer *tokenizer; /* borrowed */
    int vocab;
    uint64_t fingerprint; /* of all pieces, and which of them are special */
    uint32_t *offset;     /* [vocab + 1] into bytes; no text: special, or no token at all */
    char *bytes;
    size_t longest; /* bytes of a token */
    token_list all;
    token_list odd; /* those that are not ordinary */
    uint32_t
        *ordinary; /* bits, [(vocab + 31) / 32]: whole characters, none of them a quote, a backslash or a control */
    size_t most_characters;                                            /* of an ordinary token */
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
