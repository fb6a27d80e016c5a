/* Which tokens stay inside of an expression, by the grammar and the state of its automaton: found once, shared by all
 * answers with that grammar, whatever thread they are in. At most MASK_CACHE_BYTES are kept, those that were used last.
 */
#ifndef KAKEYA_GRAMMAR_MASK_CACHE_H
#define KAKEYA_GRAMMAR_MASK_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MASK_CACHE_BYTES ((size_t)16 << 20)

typedef struct mask_key {
    uint64_t grammar;
    uint32_t node, at;
} mask_key;

/* How many characters must have been read already, and how many may have been, for lengths not to matter. */
typedef struct mask_found {
    uint64_t most_read, least_read;
} mask_found;

typedef struct mask_cache mask_cache;

/* words: of each set. NULL where memory ends. */
mask_cache *mask_cache_create(size_t words);
void mask_cache_destroy(mask_cache *cache); /* NULL is fine */
/* A number that no grammar has had. */
uint64_t mask_cache_number(mask_cache *cache);
typedef enum mask_cached { MASK_UNKNOWN = 0, MASK_ADDED, MASK_OF_OTHER_LENGTHS } mask_cached;

/* Sets the bits of a set that is there, if it holds for `read` characters; allowed has n_words words. */
mask_cached mask_cache_add_bits(mask_cache *cache, mask_key key, uint64_t read, uint32_t *allowed, size_t n_words);
/* Remembers a set, unless memory ends. */
void mask_cache_put(mask_cache *cache, mask_key key, mask_found found, const uint32_t *bits);

#endif
