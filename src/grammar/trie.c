#include "grammar/trie.h"

#include <stdlib.h>

static uint32_t add_node(trie *t, unsigned letter) {
    if (t->n == t->capacity) {
        uint32_t capacity = t->capacity ? 2 * t->capacity : 16;
        trie_node *nodes = realloc(t->nodes, capacity * sizeof *nodes);
        if (!nodes) return TRIE_NONE;
        t->nodes = nodes;
        t->capacity = capacity;
    }
    t->nodes[t->n] =
        (trie_node){.letter = (uint16_t)letter, .child = TRIE_NONE, .sibling = TRIE_NONE, .word = TRIE_NONE};
    return t->n++;
}

uint32_t trie_next(const trie *t, uint32_t node, unsigned letter) {
    uint32_t child = t->nodes[node].child;
    while (child != TRIE_NONE && t->nodes[child].letter != letter) child = t->nodes[child].sibling;
    return child;
}

bool trie_add(trie *t, const uint16_t *letters, size_t n, uint32_t *word) {
    if (t->n == 0 && add_node(t, 0) == TRIE_NONE) return false;
    uint32_t at = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t next = trie_next(t, at, letters[i]);
        if (next == TRIE_NONE) {
            next = add_node(t, letters[i]);
            if (next == TRIE_NONE) return false;
            t->nodes[next].sibling = t->nodes[at].child;
            t->nodes[at].child = next;
        }
        at = next;
    }
    if (t->nodes[at].word == TRIE_NONE) {
        t->nodes[at].word = *word;
        t->n_words++;
    }
    *word = t->nodes[at].word;
    return true;
}

/* Depth first, without recursion: words may be long. */
bool trie_finish(trie *t) {
    if (t->n == 0 && add_node(t, 0) == TRIE_NONE) return false;
    uint32_t *open = malloc(t->n * sizeof *open), depth = 0, n = 0;
    t->order = malloc((t->n_words + 1) * sizeof *t->order);
    if (!t->order || !open) {
        free(open);
        return false;
    }
    for (uint32_t at = 0; at != TRIE_NONE;) {
        trie_node *node = &t->nodes[at];
        node->first = n;
        if (node->word != TRIE_NONE) t->order[n++] = node->word;
        open[depth++] = at;
        at = node->child;
        while (at == TRIE_NONE && depth) {
            trie_node *done = &t->nodes[open[--depth]];
            done->end = n;
            at = done->sibling;
        }
    }
    free(open);
    return true;
}

void trie_free(trie *t) {
    free(t->nodes);
    free(t->order);
    *t = (trie){0};
}
