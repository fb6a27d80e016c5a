/* Which tokens of text a grammar allows. */
#ifndef KAKEYA_GRAMMAR_MASKS_H
#define KAKEYA_GRAMMAR_MASKS_H

#include "base/alloc.h"
#include "grammar/automaton_inner.h"
#include "grammar/character_reach.h"
#include "grammar/grammar.h"

/* Memory in which tokens are tried. Nothing in it outlives a call. */
typedef struct mask_space {
    automaton_state *levels;  /* [n_levels]: behind each byte of a token */
    automaton_inner *inner;   /* [n_levels + 1] */
    automaton_state *scratch; /* [4] */
    uint16_t *at;             /* [n_levels] */
    uint32_t *seen;           /* [n_levels] */
    uint32_t *bits, *parts;   /* [words] */
    uint32_t *ranks, *unsure; /* [words]: by places in the tree */
    character_reach *reach;
    uint32_t most_ways; /* of a state that was walked to */
    size_t n_levels, words;
} mask_space;

kakeya_status mask_space_reserve(mask_space *space, const token_table *tokens, mem_account *account,
                                 kakeya_error *error);
void mask_space_free(mask_space *space);

/* Sets the bits of tokens whose text may follow; [n_words] words, of a vocabulary that may be larger than the
 * grammar's. s: none of the space's own. */
void mask_text(const kakeya_grammar *g, const automaton_state *s, mask_space *space, uint32_t *allowed, size_t n_words);

#endif
