/* Tokens by their beginnings: a tree of bytes as one array, each node in front of what is below it. A walk along the
 * array reads every common beginning once, and leaps over what is behind a byte that is refused. */
#ifndef KAKEYA_GRAMMAR_TOKEN_TRIE_H
#define KAKEYA_GRAMMAR_TOKEN_TRIE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct token_trie_node {
    uint32_t end;   /* the next node that is not below this one */
    uint32_t first; /* the token that ends here, if the next node has another first one; more than one may */
    uint16_t depth; /* bytes in front of its own */
    uint8_t byte;
} token_trie_node;

typedef struct token_trie {
    token_trie_node *nodes; /* [n + 1]; tokens[0..nodes[0].first) have no text */
    uint32_t n, n_tokens;
    int32_t *tokens; /* in the order of their texts */
} token_trie;

/* What is put in: texts in their order, of at most UINT16_MAX bytes. */
typedef struct token_trie_entry {
    int32_t token;
    const char *text;
    size_t bytes;
} token_trie_entry;

/* Sorts the entries. False where memory ends. */
bool token_trie_make(token_trie_entry *entries, size_t n, token_trie *out);
void token_trie_free(token_trie *t);

#endif
