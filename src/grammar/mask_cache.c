#include "grammar/mask_cache.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define NO_ENTRY UINT32_MAX

typedef struct entry {
    mask_key key;
    reach_lengths lengths;
    uint64_t used;
    uint32_t next; /* with the same hash */
    uint32_t *bits;
} entry;

struct mask_cache {
    pthread_mutex_t lock; /* of all below */
    size_t words;
    uint64_t numbers, clock;
    uint32_t n, capacity; /* entries */
    entry *entries;       /* [capacity] */
    uint32_t *first;      /* [capacity]: by hash */
};

mask_cache *mask_cache_create(size_t words) {
    mask_cache *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    pthread_mutex_init(&c->lock, NULL);
    c->words = words;
    size_t capacity = MASK_CACHE_BYTES / (words * sizeof(uint32_t) + sizeof(entry));
    c->capacity = capacity < 1 ? 1 : capacity > 4096 ? 4096 : (uint32_t)capacity;
    c->entries = calloc(c->capacity, sizeof *c->entries);
    c->first = malloc(c->capacity * sizeof *c->first);
    if (!c->entries || !c->first) {
        mask_cache_destroy(c);
        return NULL;
    }
    for (uint32_t i = 0; i < c->capacity; i++) c->first[i] = NO_ENTRY;
    return c;
}

void mask_cache_destroy(mask_cache *c) {
    if (!c) return;
    for (uint32_t i = 0; i < c->n; i++) free(c->entries[i].bits);
    free(c->entries);
    free(c->first);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

uint64_t mask_cache_number(mask_cache *c) {
    pthread_mutex_lock(&c->lock);
    uint64_t number = c->numbers++;
    pthread_mutex_unlock(&c->lock);
    return number;
}

static uint32_t *bucket(mask_cache *c, const mask_key *key) {
    uint64_t hash = (key->grammar * UINT64_C(0x9E3779B97F4A7C15) ^ ((uint64_t)key->node << 32 | key->at)) *
                    UINT64_C(0xD6E8FEB86659FD93);
    return &c->first[(hash >> 32) % c->capacity];
}

static bool same(const mask_key *a, const mask_key *b) {
    return a->grammar == b->grammar && a->node == b->node && a->at == b->at;
}

static entry *find(mask_cache *c, const mask_key *key) {
    uint32_t i = *bucket(c, key);
    while (i != NO_ENTRY && !same(&c->entries[i].key, key)) i = c->entries[i].next;
    return i == NO_ENTRY ? NULL : &c->entries[i];
}

bool mask_cache_add_bits(mask_cache *c, mask_key key, uint32_t *allowed, size_t n_words) {
    pthread_mutex_lock(&c->lock);
    entry *e = find(c, &key);
    if (e) e->used = ++c->clock;
    for (size_t i = 0; e && i < n_words && i < c->words; i++) allowed[i] |= e->bits[i];
    pthread_mutex_unlock(&c->lock);
    return e != NULL;
}

bool mask_cache_get(mask_cache *c, mask_key key, uint32_t *bits, reach_lengths *lengths) {
    pthread_mutex_lock(&c->lock);
    entry *e = find(c, &key);
    if (e) {
        e->used = ++c->clock;
        *lengths = e->lengths;
        memcpy(bits, e->bits, c->words * sizeof *bits);
    }
    pthread_mutex_unlock(&c->lock);
    return e != NULL;
}

/* The entry that was used longest ago, out of its list. */
static entry *take_oldest(mask_cache *c) {
    uint32_t oldest = 0;
    for (uint32_t i = 1; i < c->n; i++)
        if (c->entries[i].used < c->entries[oldest].used) oldest = i;
    uint32_t *link = bucket(c, &c->entries[oldest].key);
    while (*link != oldest) link = &c->entries[*link].next;
    *link = c->entries[oldest].next;
    return &c->entries[oldest];
}

void mask_cache_put(mask_cache *c, mask_key key, const reach_lengths *lengths, const uint32_t *bits) {
    pthread_mutex_lock(&c->lock);
    entry *e = NULL;
    if (!find(c, &key)) {
        if (c->n == c->capacity)
            e = take_oldest(c);
        else if ((c->entries[c->n].bits = malloc(c->words * sizeof *bits)))
            e = &c->entries[c->n++];
    }
    if (e) {
        uint32_t *first = bucket(c, &key);
        e->key = key;
        e->lengths = *lengths;
        e->used = ++c->clock;
        e->next = *first;
        *first = (uint32_t)(e - c->entries);
        memcpy(e->bits, bits, c->words * sizeof *bits);
    }
    pthread_mutex_unlock(&c->lock);
}
