/* Which tokens stay inside of an expression, by the grammar and the state of its automaton: found once, shared by all
 * answers with that grammar, whatever thread they are in. At most MASK_CACHE_BYTES are kept, those that were used last.
 */
#ifndef KAKEYA_GRAMMAR_MASK_CACHE_H
#define KAKEYA_GRAMMAR_MASK_CACHE_H

#include <stddef.h>

#include "grammar/character_reach.h"

#define MASK_CACHE_BYTES ((size_t)16 << 20)

typedef struct mask_key {
    uint64_t grammar;
    uint32_t node, at;
} mask_key;

typedef struct mask_cache mask_cache;

/* words: of each set. NULL where memory ends. */
mask_cache *mask_cache_create(size_t words);
void mask_cache_destroy(mask_cache *cache); /* NULL is fine */
/* A number that no grammar has had. */
uint64_t mask_cache_number(mask_cache *cache);
/* Sets the bits of a set that is there; allowed has n_words words. */
bool mask_cache_add_bits(mask_cache *cache, mask_key key, uint32_t *allowed, size_t n_words);
/* The whole set, and what counting makes of its tokens. */
bool mask_cache_get(mask_cache *cache, mask_key key, uint32_t *bits, reach_lengths *lengths);
/* Remembers a set, unless memory ends. */
void mask_cache_put(mask_cache *cache, mask_key key, const reach_lengths *lengths, const uint32_t *bits);

#endif
