#include "grammar/place_cache.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define NO_ENTRY UINT32_MAX

enum { MOST_ENTRIES = 16384, BUCKETS = 16384 };

typedef struct entry {
    uint64_t hash;
    uint32_t next; /* in the same bucket */
    uint32_t n_key, n_value;
    bool used;       /* since the hand was here */
    uint32_t *words; /* [n_key + n_value]: the key; tokens, or pairs of a word's place in the mask and the word */
    uint32_t *whole; /* all words of the mask, which has few that are 0; NULL: it is pairs */
} entry;

struct place_cache {
    pthread_mutex_t lock; /* of all below */
    size_t words, bytes;  /* bytes: of all that is allocated for entries, those of `spare` included */
    uint32_t *spare;      /* memory of whole masks that are forgotten, each with the next one's address in it */
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

static uint32_t *take_spare(place_cache *c) {
    uint32_t *taken = c->spare;
    memcpy(&c->spare, taken, sizeof c->spare);
    return taken;
}

void place_cache_destroy(place_cache *c) {
    if (!c) return;
    for (uint32_t i = 0; i < c->n; i++) {
        free(c->entries[i].words);
        free(c->entries[i].whole);
    }
    while (c->spare) free(take_spare(c));
    pthread_mutex_destroy(&c->lock);
    free(c);
}

size_t place_cache_bytes(place_cache *c) {
    pthread_mutex_lock(&c->lock);
    size_t bytes = c->bytes;
    pthread_mutex_unlock(&c->lock);
    return bytes;
}

/* At least as much as an address takes. */
static size_t mask_bytes(const place_cache *c) {
    const size_t bytes = c->words * sizeof(uint32_t);
    return bytes < sizeof(uint32_t *) ? sizeof(uint32_t *) : bytes;
}

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
            memcpy(allowed, e->whole, c->words * sizeof *allowed);
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
    c->bytes -= (e->n_key + (size_t)e->n_value) * sizeof *e->words;
    free(e->words);
    if (e->whole) {
        memcpy(e->whole, &c->spare, sizeof c->spare);
        c->spare = e->whole;
    }
    e->words = e->whole = NULL;
}

/* The hand goes round and takes what nobody has asked for since it was there. */
static uint32_t forget_one(place_cache *c) {
    for (;;) {
        const uint32_t at = c->hand;
        entry *e = &c->entries[at];
        c->hand = at + 1 < c->n ? at + 1 : 0;
        if (e->words && !e->used) clear(c, at);
        if (!e->words) return at;
        e->used = false;
    }
}

/* A free entry, and room for so many bytes, and for a whole mask. */
static uint32_t make_room(place_cache *c, size_t bytes, bool whole) {
    uint32_t at = c->n < MOST_ENTRIES ? c->n : forget_one(c);
    while (c->bytes + bytes + (whole && !c->spare ? mask_bytes(c) : 0) > PLACE_CACHE_BYTES) {
        if (c->spare && !whole) {
            free(take_spare(c));
            c->bytes -= mask_bytes(c);
        } else {
            at = forget_one(c);
        }
    }
    if (at == c->n) c->n++;
    return at;
}

/* A new entry; NULL where memory ends, or the place is known. Needs the lock. */
static entry *put(place_cache *c, const place_key *key, uint32_t n_value, bool whole) {
    const size_t bytes = (key->n + (size_t)n_value) * sizeof(uint32_t);
    if (find(c, key) || bytes + mask_bytes(c) > PLACE_CACHE_BYTES) return NULL;
    entry own = {.hash = key->hash, .n_key = key->n, .n_value = n_value, .words = malloc(bytes)};
    if (!own.words) return NULL;
    const uint32_t at = make_room(c, bytes, whole);
    if (whole && c->spare) {
        own.whole = take_spare(c);
    } else if (whole) {
        own.whole = malloc(mask_bytes(c));
        if (!own.whole) {
            free(own.words);
            return NULL;
        }
        c->bytes += mask_bytes(c);
    }
    uint32_t *first = &c->first[key->hash % BUCKETS];
    own.next = *first;
    *first = at;
    c->bytes += bytes;
    memcpy(own.words, key->words, key->n * sizeof *own.words);
    c->entries[at] = own;
    return &c->entries[at];
}

void place_cache_put_mask(place_cache *c, const place_key *key, const uint32_t *allowed) {
    uint32_t set = 0;
    for (size_t i = 0; i < c->words; i++) set += allowed[i] != 0;
    const bool whole = 2 * (size_t)set > c->words;
    pthread_mutex_lock(&c->lock);
    const entry *e = put(c, key, whole ? 0 : 2 * set, whole);
    uint32_t *value = e ? e->words + e->n_key : NULL;
    if (e && whole) memcpy(e->whole, allowed, c->words * sizeof *allowed);
    for (size_t i = 0; e && !whole && i < c->words; i++) {
        if (!allowed[i]) continue;
        *value++ = (uint32_t)i;
        *value++ = allowed[i];
    }
    pthread_mutex_unlock(&c->lock);
}

void place_cache_put_tokens(place_cache *c, const place_key *key, const int32_t *tokens, int n) {
    pthread_mutex_lock(&c->lock);
    const entry *e = put(c, key, (uint32_t)n, false);
    if (e && n) memcpy(e->words + e->n_key, tokens, (size_t)n * sizeof *tokens);
    pthread_mutex_unlock(&c->lock);
}
