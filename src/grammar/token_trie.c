#include "grammar/token_trie.h"

#include <stdlib.h>
#include <string.h>

static int by_text(const void *a, const void *b) {
    const token_trie_entry *x = a, *y = b;
    size_t least = x->bytes < y->bytes ? x->bytes : y->bytes;
    int order = least ? memcmp(x->text, y->text, least) : 0;
    if (order) return order;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return x->token < y->token ? -1 : 1;
}

static size_t common_bytes(const token_trie_entry *x, const token_trie_entry *y) {
    size_t n = 0;
    while (n < x->bytes && n < y->bytes && x->text[n] == y->text[n]) n++;
    return n;
}

bool token_trie_make(token_trie_entry *entries, size_t n, token_trie *out) {
    size_t nodes = 0, longest = 0;
    *out = (token_trie){0};
    qsort(entries, n, sizeof *entries, by_text);
    for (size_t i = 0; i < n; i++) {
        nodes += entries[i].bytes - (i ? common_bytes(&entries[i - 1], &entries[i]) : 0);
        if (entries[i].bytes > longest) longest = entries[i].bytes;
    }
    uint32_t *open = malloc((longest + 1) * sizeof *open); /* the node that was added last at each depth */
    out->nodes = malloc((nodes + 1) * sizeof *out->nodes);
    out->tokens = malloc((n + 1) * sizeof *out->tokens);
    if (!open || !out->nodes || !out->tokens || nodes >= UINT32_MAX) {
        free(open);
        token_trie_free(out);
        return false;
    }
    size_t depth = 0;
    for (size_t i = 0; i < n; i++) {
        size_t common = i ? common_bytes(&entries[i - 1], &entries[i]) : 0;
        while (depth > common) out->nodes[open[--depth]].end = out->n;
        for (; depth < entries[i].bytes; depth++) {
            open[depth] = out->n;
            out->nodes[out->n++] = (token_trie_node){
                .first = (uint32_t)i, .depth = (uint16_t)depth, .byte = (uint8_t)entries[i].text[depth]};
        }
        out->tokens[out->n_tokens++] = entries[i].token;
    }
    while (depth > 0) out->nodes[open[--depth]].end = out->n;
    out->nodes[out->n] = (token_trie_node){.end = out->n, .first = out->n_tokens};
    free(open);
    return true;
}

void token_trie_free(token_trie *t) {
    free(t->nodes);
    free(t->tokens);
    *t = (token_trie){0};
}
