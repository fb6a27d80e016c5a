/* Which entries begin like a prompt: a table from hashes of whole beginnings to the entries that have them.
 *
 * Ids are hashed by pages of 64, each page's hash (XXH3, 128 bits) over the one before it and the page's ids, so that
 * a hash stands for everything up to the page's end. An entry is found under each of its pages. The hash only finds
 * candidates: who takes an entry compares ids. */
#ifndef KAKEYA_SERVE_STORE_INDEX_H
#define KAKEYA_SERVE_STORE_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { STORE_PAGE_TOKENS = 64, STORE_BLOCK_TOKENS = 16 /* what routers count by (kv_blocks.h) */ };

typedef struct store_key {
    uint64_t low, high;
} store_key;

/* The key of the empty beginning, for a server of this model and policy. */
store_key store_key_seed(const void *seed, size_t bytes);
/* That of texts with a salt (a cache_salt of requests), which share nothing with others; 0: without one. */
store_key store_key_salted(store_key seed, uint64_t salt);
/* The key of up to one page of ids behind the beginning that `before` stands for. */
store_key store_key_extend(store_key before, const int32_t *ids, size_t n);
/* The key of all n ids, page by page. */
store_key store_key_of(store_key seed, const int32_t *ids, size_t n);
static inline bool store_key_equal(store_key a, store_key b) { return a.low == b.low && a.high == b.high; }

/* What is found; embedded at the owner's choice. */
typedef struct store_index_entry {
    struct store_index_link *links; /* [pages + 1] */
    size_t pages;
    uint64_t seen; /* by the search of this number */
} store_index_entry;

typedef struct store_index store_index;

/* NULL when out of memory. */
store_index *store_index_open(void);
void store_index_close(store_index *index); /* whose entries have been removed; NULL is fine */

/* False, with nothing changed, when out of memory. seed: the key of the empty beginning. */
bool store_index_add(store_index *index, store_index_entry *entry, store_key seed, const int32_t *ids, size_t n);
void store_index_remove(store_index *index, store_index_entry *entry);
/* Different pages of all entries together. */
size_t store_index_pages(const store_index *index);

/* Meets every entry once, those that share the most pages with ids[0..n) first. visit says how many tokens the entry
 * offers; the search ends when entries that are still to come cannot offer more than the best, or as much. */
typedef size_t (*store_visit_fn)(void *user, store_index_entry *entry);
void store_index_search(store_index *index, store_key seed, const int32_t *ids, size_t n, store_visit_fn visit,
                        void *user);

#endif
