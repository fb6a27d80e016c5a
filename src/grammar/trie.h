/* Words over letters by their beginnings: keys of objects, names of tools, values to choose from. */
#ifndef KAKEYA_GRAMMAR_TRIE_H
#define KAKEYA_GRAMMAR_TRIE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TRIE_NONE UINT32_MAX

typedef struct trie_node {
    uint16_t letter;         /* that leads here */
    uint32_t child, sibling; /* TRIE_NONE: none */
    uint32_t word;           /* that ends here; TRIE_NONE: none */
    uint32_t first, end;     /* the words that go through here: order[first..end) */
} trie_node;

typedef struct trie {
    trie_node *nodes; /* node 0 is the empty beginning */
    uint32_t n, capacity;
    uint32_t *order; /* words, those with a common beginning side by side */
    uint32_t n_words;
} trie;

/* Adds a word under a number. False where memory ends. A word that is there keeps its number: *word receives it. */
bool trie_add(trie *t, const uint16_t *letters, size_t n, uint32_t *word);
/* Once all words are there. False where memory ends. */
bool trie_finish(trie *t);
void trie_free(trie *t);

uint32_t trie_next(const trie *t, uint32_t node, unsigned letter); /* TRIE_NONE: no word goes on so */

#endif
