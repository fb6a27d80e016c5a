/* What has been found out about places in grammars: the tokens that may follow, and those that must. Found once, shared
 * by all answers with that grammar, whatever thread they are in. At most PLACE_CACHE_BYTES are kept; what has not been
 * asked for longest goes first, roughly. */
#ifndef KAKEYA_GRAMMAR_PLACE_CACHE_H
#define KAKEYA_GRAMMAR_PLACE_CACHE_H

#include "grammar/place_key.h"

#define PLACE_CACHE_BYTES ((size_t)32 << 20)

typedef struct place_cache place_cache;

/* words: of each mask. NULL where memory ends. */
place_cache *place_cache_create(size_t words);
void place_cache_destroy(place_cache *cache); /* NULL is fine */
/* The mask of a place, [words]. */
bool place_cache_get_mask(place_cache *cache, const place_key *key, uint32_t *allowed);
/* Remembers it, unless memory ends. */
void place_cache_put_mask(place_cache *cache, const place_key *key, const uint32_t *allowed);
/* The tokens of a place, at most `most`: *n. */
bool place_cache_get_tokens(place_cache *cache, const place_key *key, int32_t *tokens, int most, int *n);
void place_cache_put_tokens(place_cache *cache, const place_key *key, const int32_t *tokens, int n);
/* What it holds now. */
size_t place_cache_bytes(place_cache *cache);

#endif
