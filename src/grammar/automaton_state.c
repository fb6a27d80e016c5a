#include "grammar/automaton_state.h"

#include <string.h>

void automaton_copy_way(automaton_configuration *to, const automaton_configuration *from, uint32_t depth) {
    to->depth = depth;
    to->n_words = from->n_words;
    to->key = from->key;
    memcpy(to->open, from->open, depth * sizeof *to->open);
    if (from->n_words) memcpy(to->words, from->words, from->n_words * sizeof *to->words);
}

void automaton_copy(automaton_state *to, const automaton_state *from) {
    to->n = from->n;
    for (uint32_t i = 0; i < from->n; i++) automaton_copy_way(&to->ways[i], &from->ways[i], from->ways[i].depth);
}
