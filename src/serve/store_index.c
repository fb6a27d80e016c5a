#include "serve/store_index.h"

#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "keys of ids are hashed in the machine's order");

typedef struct node node;

/* An entry's place under one of its pages. */
typedef struct store_index_link {
    store_index_entry *entry;
    node *node;
    struct store_index_link *next, **back;
} store_index_link;

struct node {
    store_key key;
    store_index_link *first;
    node *next; /* in the bucket */
    bool root;  /* stands for no page */
};

struct store_index {
    node **buckets;
    size_t n_buckets, n_nodes; /* a power of two */
    size_t n_roots;            /* of the nodes: one for every seed */
    uint64_t searches;
};

enum { LEAST_BUCKETS = 256 };

/* --------------------------------------------------------------------------------------------------------- keys */

static store_key key_of(XXH128_hash_t hash) { return (store_key){.low = hash.low64, .high = hash.high64}; }

store_key store_key_seed(const void *seed, size_t bytes) { return key_of(XXH3_128bits(seed, bytes)); }

store_key store_key_salted(store_key seed, uint64_t salt) {
    const uint64_t both[3] = {seed.low, seed.high, salt};
    return salt ? store_key_seed(both, sizeof both) : seed;
}

store_key store_key_extend(store_key before, const int32_t *ids, size_t n) {
    unsigned char page[sizeof before + STORE_PAGE_TOKENS * sizeof *ids];
    memcpy(page, &before, sizeof before);
    memcpy(page + sizeof before, ids, n * sizeof *ids);
    return key_of(XXH3_128bits(page, sizeof before + n * sizeof *ids));
}

store_key store_key_of(store_key seed, const int32_t *ids, size_t n) {
    store_key key = seed;
    for (size_t at = 0, piece; at < n; at += piece) {
        piece = n - at < STORE_PAGE_TOKENS ? n - at : STORE_PAGE_TOKENS;
        key = store_key_extend(key, ids + at, piece);
    }
    return key;
}

/* -------------------------------------------------------------------------------------------------------- table */

store_index *store_index_open(void) {
    store_index *index = calloc(1, sizeof *index);
    if (!index) return NULL;
    index->n_buckets = LEAST_BUCKETS;
    index->buckets = calloc(index->n_buckets, sizeof(node *));
    if (index->buckets) return index;
    free(index);
    return NULL;
}

void store_index_close(store_index *index) {
    if (!index) return;
    free(index->buckets);
    free(index);
}

static node **bucket_of(const store_index *index, store_key key) {
    return &index->buckets[key.low & (index->n_buckets - 1)];
}

static node *find(const store_index *index, store_key key) {
    node *n = *bucket_of(index, key);
    while (n && !store_key_equal(n->key, key)) n = n->next;
    return n;
}

/* A larger table where there is memory for one; the old one serves as well, only slower. */
static void grow(store_index *index) {
    store_index larger = *index;
    larger.n_buckets *= 2;
    larger.buckets = calloc(larger.n_buckets, sizeof(node *));
    if (!larger.buckets) return;
    for (size_t i = 0; i < index->n_buckets; i++) {
        for (node *n = index->buckets[i], *next; n; n = next) {
            next = n->next;
            node **bucket = bucket_of(&larger, n->key);
            n->next = *bucket;
            *bucket = n;
        }
    }
    free(index->buckets);
    *index = larger;
}

static node *find_or_make(store_index *index, store_key key) {
    node *n = find(index, key);
    if (n) return n;
    if (index->n_nodes >= index->n_buckets) grow(index);
    n = calloc(1, sizeof *n);
    if (!n) return NULL;
    node **bucket = bucket_of(index, key);
    n->key = key;
    n->next = *bucket;
    *bucket = n;
    index->n_nodes++;
    return n;
}

static void unlink_from(store_index *index, store_index_link *link) {
    *link->back = link->next;
    if (link->next) link->next->back = link->back;
    node *n = link->node;
    if (n->first) return;
    node **at = bucket_of(index, n->key);
    while (*at != n) at = &(*at)->next;
    *at = n->next;
    index->n_roots -= n->root;
    free(n);
    index->n_nodes--;
}

void store_index_remove(store_index *index, store_index_entry *entry) {
    if (!entry->links) return;
    for (size_t i = 0; i <= entry->pages; i++)
        if (entry->links[i].node) unlink_from(index, &entry->links[i]);
    free(entry->links);
    entry->links = NULL;
}

bool store_index_add(store_index *index, store_index_entry *entry, store_key seed, const int32_t *ids, size_t n) {
    entry->pages = n / STORE_PAGE_TOKENS;
    entry->seen = 0;
    entry->links = calloc(entry->pages + 1, sizeof *entry->links);
    if (!entry->links) return false;
    store_key key = seed;
    for (size_t i = 0; i <= entry->pages; i++) {
        node *under = find_or_make(index, key);
        if (!under) {
            store_index_remove(index, entry);
            return false;
        }
        if (i == 0 && !under->root) {
            under->root = true;
            index->n_roots++;
        }
        store_index_link *link = &entry->links[i];
        *link = (store_index_link){.entry = entry, .node = under, .next = under->first, .back = &under->first};
        if (link->next) link->next->back = &link->next;
        under->first = link;
        if (i < entry->pages) key = store_key_extend(key, ids + i * STORE_PAGE_TOKENS, STORE_PAGE_TOKENS);
    }
    return true;
}

size_t store_index_pages(const store_index *index) { return index->n_nodes - index->n_roots; }

/* ------------------------------------------------------------------------------------------------------- search */

void store_index_search(store_index *index, store_key seed, const int32_t *ids, size_t n, store_visit_fn visit,
                        void *user) {
    size_t pages = 0, best = 0;
    const node **path = calloc(n / STORE_PAGE_TOKENS + 1, sizeof *path);
    if (!path) return;
    store_key key = seed;
    while ((path[pages] = find(index, key)) != NULL && pages < n / STORE_PAGE_TOKENS) {
        key = store_key_extend(key, ids + pages * STORE_PAGE_TOKENS, STORE_PAGE_TOKENS);
        pages++;
    }
    if (!path[pages] && pages) pages--;
    index->searches++;
    for (size_t depth = pages + 1; depth-- > 0 && path[0];) {
        for (store_index_link *link = path[depth]->first; link; link = link->next) {
            if (link->entry->seen == index->searches) continue;
            link->entry->seen = index->searches;
            size_t offer = visit(user, link->entry);
            if (offer > best) best = offer;
        }
        /* who comes under this page's predecessor only has fewer tokens in common */
        if (best >= depth * STORE_PAGE_TOKENS && best > 0) break;
    }
    free((void *)path);
}
