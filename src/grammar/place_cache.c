#include "grammar/place_cache.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define NO_ENTRY UINT32_MAX

enum { MOST_ENTRIES = 16384, BUCKETS = 16384 };

/* One allocation: the words of the key, then those of the value. */
typedef struct entry {
    uint64_t hash;
    uint32_t next; /* in the same bucket */
    uint32_t n_key, n_value;
    bool whole; /* a mask of all words; otherwise pairs of a word's place and the word, where it is not 0 */
    bool used;  /* since the hand was here */
    uint32_t *words;
} entry;

struct place_cache {
    pthread_mutex_t lock; /* of all below */
    size_t words, bytes;
    uint32_t n, hand;
    entry entries[MOST_ENTRIES]; /* words NULL: free */
    uint32_t first[BUCKETS];
};

place_cache *place_cache_create(size_t words) {
    place_cache *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    pthread_mutex_init(&c->lock, NULL);
    c->words = words;
    for (uint32_t i = 0; i < BUCKETS; i++) c->first[i] = NO_ENTRY;
    return c;
}

void place_cache_destroy(place_cache *c) {
    if (!c) return;
    for (uint32_t i = 0; i < c->n; i++) free(c->entries[i].words);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

size_t place_cache_bytes(place_cache *c) {
    pthread_mutex_lock(&c->lock);
    size_t bytes = c->bytes;
    pthread_mutex_unlock(&c->lock);
    return bytes;
}

static size_t bytes_of(const entry *e) { return (e->n_key + (size_t)e->n_value) * sizeof *e->words; }

static const entry *find(place_cache *c, const place_key *key) {
    uint32_t i = c->first[key->hash % BUCKETS];
    while (i != NO_ENTRY) {
        entry *e = &c->entries[i];
        if (e->hash == key->hash && place_keys_agree(key, e->words, e->n_key)) {
            e->used = true;
            return e;
        }
        i = e->next;
    }
    return NULL;
}

bool place_cache_get_mask(place_cache *c, const place_key *key, uint32_t *allowed) {
    pthread_mutex_lock(&c->lock);
    const entry *e = find(c, key);
    if (e) {
        const uint32_t *value = e->words + e->n_key;
        if (e->whole) {
            memcpy(allowed, value, c->words * sizeof *allowed);
        } else {
            memset(allowed, 0, c->words * sizeof *allowed);
            for (uint32_t i = 0; i < e->n_value; i += 2) allowed[value[i]] = value[i + 1];
        }
    }
    pthread_mutex_unlock(&c->lock);
    return e != NULL;
}

bool place_cache_get_tokens(place_cache *c, const place_key *key, int32_t *tokens, int most, int *n) {
    pthread_mutex_lock(&c->lock);
    const entry *e = find(c, key);
    if (e) {
        *n = (int)e->n_value < most ? (int)e->n_value : most;
        memcpy(tokens, e->words + e->n_key, (size_t)*n * sizeof *tokens);
    }
    pthread_mutex_unlock(&c->lock);
    return e != NULL;
}

/* The entry leaves its bucket and its memory. */
static void clear(place_cache *c, uint32_t at) {
    entry *e = &c->entries[at];
    uint32_t *link = &c->first[e->hash % BUCKETS];
    while (*link != at) link = &c->entries[*link].next;
    *link = e->next;
    c->bytes -= bytes_of(e);
    free(e->words);
    e->words = NULL;
}

/* A free entry, with room for `bytes`: the hand goes round and takes what nobody has asked for since it was there. */
static uint32_t make_room(place_cache *c, size_t bytes) {
    if (c->n < MOST_ENTRIES && c->bytes + bytes <= PLACE_CACHE_BYTES) return c->n++;
    for (;;) {
        uint32_t at = c->hand;
        entry *e = &c->entries[at];
        c->hand = at + 1 < c->n ? at + 1 : 0;
        if (e->words && e->used) {
            e->used = false;
            continue;
        }
        if (e->words) clear(c, at);
        if (c->bytes + bytes <= PLACE_CACHE_BYTES) return at;
    }
}

/* Room for a value of so many words; NULL where memory ends, or it is there. Needs the lock. */
static uint32_t *put(place_cache *c, const place_key *key, uint32_t n_value, bool whole) {
    const size_t bytes = (key->n + (size_t)n_value) * sizeof(uint32_t);
    if (find(c, key) || bytes > PLACE_CACHE_BYTES) return NULL;
    uint32_t *words = malloc(bytes);
    if (!words) return NULL;
    const uint32_t at = make_room(c, bytes);
    uint32_t *first = &c->first[key->hash % BUCKETS];
    c->entries[at] =
        (entry){.hash = key->hash, .next = *first, .n_key = key->n, .n_value = n_value, .whole = whole, .words = words};
    *first = at;
    c->bytes += bytes;
    memcpy(words, key->words, key->n * sizeof *words);
    return words + key->n;
}

void place_cache_put_mask(place_cache *c, const place_key *key, const uint32_t *allowed) {
    uint32_t set = 0;
    for (size_t i = 0; i < c->words; i++) set += allowed[i] != 0;
    const bool whole = 2 * (size_t)set > c->words;
    pthread_mutex_lock(&c->lock);
    uint32_t *value = put(c, key, whole ? (uint32_t)c->words : 2 * set, whole);
    if (value && whole) memcpy(value, allowed, c->words * sizeof *value);
    for (size_t i = 0; value && !whole && i < c->words; i++) {
        if (!allowed[i]) continue;
        *value++ = (uint32_t)i;
        *value++ = allowed[i];
    }
    pthread_mutex_unlock(&c->lock);
}

void place_cache_put_tokens(place_cache *c, const place_key *key, const int32_t *tokens, int n) {
    pthread_mutex_lock(&c->lock);
    uint32_t *value = put(c, key, (uint32_t)n, false);
    if (value && n) memcpy(value, tokens, (size_t)n * sizeof *tokens);
    pthread_mutex_unlock(&c->lock);
}
