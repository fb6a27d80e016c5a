#include "serve/kv_blocks.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

struct kv_path {
    kv_medium medium;
    size_t n;
    uint64_t hashes[]; /* [n] */
};

typedef struct block {
    uint64_t hash; /* 0: an empty place */
    uint32_t paths[KV_MEDIA];
} block;

struct kv_blocks {
    pthread_mutex_t lock;
    kv_block_sink sink;
    void *user;
    _Atomic int32_t media_token;
    bool silent;
    block *table; /* open addressing; at most half of the places are taken */
    size_t places, taken;
    kv_block_counts counts;
};

enum { LEAST_PLACES = 1024 };

kv_blocks *kv_blocks_open(kv_block_sink sink, void *user) {
    kv_blocks *blocks = calloc(1, sizeof *blocks);
    block *table = calloc(LEAST_PLACES, sizeof *table);
    if (!blocks || !table) {
        free(blocks);
        free(table);
        return NULL;
    }
    *blocks = (kv_blocks){.sink = sink, .user = user, .media_token = -1, .table = table, .places = LEAST_PLACES};
    pthread_mutex_init(&blocks->lock, NULL);
    return blocks;
}

void kv_blocks_close(kv_blocks *blocks) {
    if (!blocks) return;
    pthread_mutex_destroy(&blocks->lock);
    free(blocks->table);
    free(blocks);
}

/* ----------------------------------------------------------------------------------------------------------- table */

/* Where the block is, or where it would be. */
static size_t place_of(const block *table, size_t places, uint64_t hash) {
    size_t at = (size_t)hash & (places - 1);
    while (table[at].hash && table[at].hash != hash) at = (at + 1) & (places - 1);
    return at;
}

static bool make_room(kv_blocks *blocks, size_t more) {
    size_t places = blocks->places;
    while (blocks->taken + more > places / 2) places *= 2;
    if (places == blocks->places) return true;
    block *table = calloc(places, sizeof *table);
    if (!table) return false;
    for (size_t i = 0; i < blocks->places; i++)
        if (blocks->table[i].hash) table[place_of(table, places, blocks->table[i].hash)] = blocks->table[i];
    free(blocks->table);
    blocks->table = table;
    blocks->places = places;
    return true;
}

/* Those behind it move up, so that every one is still found from its own place. */
static void erase(kv_blocks *blocks, size_t at) {
    size_t mask = blocks->places - 1;
    for (size_t next = (at + 1) & mask; blocks->table[next].hash; next = (next + 1) & mask) {
        size_t own = (size_t)blocks->table[next].hash & mask;
        if (((next - own) & mask) < ((next - at) & mask)) continue;
        blocks->table[at] = blocks->table[next];
        at = next;
    }
    blocks->table[at] = (block){0};
    blocks->taken--;
}

/* Whether this is the block's first path in the medium. */
static bool count_up(kv_blocks *blocks, uint64_t hash, kv_medium medium) {
    block *b = &blocks->table[place_of(blocks->table, blocks->places, hash)];
    if (!b->hash) blocks->taken++;
    b->hash = hash;
    return b->paths[medium]++ == 0;
}

/* Whether it was the last one. */
static bool count_down(kv_blocks *blocks, uint64_t hash, kv_medium medium) {
    size_t at = place_of(blocks->table, blocks->places, hash);
    block *b = &blocks->table[at];
    bool last = --b->paths[medium] == 0, empty = true;
    for (int m = 0; m < KV_MEDIA; m++) empty = empty && b->paths[m] == 0;
    if (empty) erase(blocks, at);
    return last;
}

/* ----------------------------------------------------------------------------------------------------------- paths */

static uint64_t hash_after(uint64_t before, const void *data, size_t bytes) {
    uint64_t hash = XXH3_64bits_withSeed(data, bytes, before);
    return hash ? hash : 1;
}

/* Of this thread. */
static double processor_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void tell(kv_blocks *blocks, const kv_block_event *event) {
    if (blocks->silent) return;
    blocks->counts.events[event->type]++;
    blocks->sink(blocks->user, event);
}

void kv_blocks_set_media_token(kv_blocks *blocks, int32_t token) {
    if (blocks) atomic_store(&blocks->media_token, token);
}

/* The run of keys below 0 from `at` on; n is 0 where there is none. */
static kv_picture next_picture(const int32_t *ids, size_t n, size_t at) {
    while (at < n && ids[at] >= 0) at++;
    size_t end = at;
    while (end < n && ids[end] < 0) end++;
    return (kv_picture){.begin = at, .n = end - at};
}

/* False where a picture cannot be named, or when out of memory. *pictures is malloc'ed in any case. */
static bool find_pictures(const kv_blocks *blocks, const int32_t *ids, size_t n, kv_picture **pictures,
                          size_t *n_pictures) {
    size_t runs = 0;
    *pictures = NULL;
    *n_pictures = 0;
    for (kv_picture p = next_picture(ids, n, 0); p.n; p = next_picture(ids, n, p.begin + p.n)) runs++;
    if (!runs) return true;
    if (atomic_load(&blocks->media_token) < 0) return false;
    *pictures = calloc(runs, sizeof **pictures);
    if (!*pictures) return false;
    for (kv_picture p = next_picture(ids, n, 0); p.n; p = next_picture(ids, n, p.begin + p.n)) {
        unsigned char digest[IMAGE_DIGEST_BYTES];
        if (!image_digest_of_keys(ids + p.begin, p.n, digest)) return false;
        image_digest_text(digest, p.digest);
        (*pictures)[(*n_pictures)++] = p;
    }
    return true;
}

kv_path *kv_blocks_add(kv_blocks *blocks, kv_medium medium, const char *salt, const int32_t *ids, size_t n) {
    const size_t n_blocks = n / KV_BLOCK_TOKENS;
    if (!blocks || n_blocks == 0) return NULL;
    double begin = processor_seconds();
    kv_picture *pictures;
    size_t n_pictures;
    const bool told = find_pictures(blocks, ids, n, &pictures, &n_pictures);
    kv_path *path = told ? malloc(sizeof *path + n_blocks * sizeof *path->hashes) : NULL;
    if (!path) {
        free(pictures);
        return NULL;
    }
    path->medium = medium;
    path->n = n_blocks;
    uint64_t hash = salt ? hash_after(0, salt, strlen(salt)) : 0;
    for (size_t i = 0; i < n_blocks; i++)
        hash = path->hashes[i] = hash_after(hash, ids + i * KV_BLOCK_TOKENS, KV_BLOCK_TOKENS * sizeof *ids);
    pthread_mutex_lock(&blocks->lock);
    bool room = make_room(blocks, n_blocks);
    size_t known = 0; /* the first so many lie on other paths, too */
    for (size_t i = 0; room && i < n_blocks; i++) known += !count_up(blocks, path->hashes[i], medium);
    if (room && known < n_blocks) {
        blocks->counts.blocks[medium] += n_blocks - known;
        tell(blocks, &(kv_block_event){.type = KV_BLOCKS_STORED,
                                       .medium = medium,
                                       .hashes = path->hashes + known,
                                       .n = n_blocks - known,
                                       .ids = ids + known * KV_BLOCK_TOKENS,
                                       .media_token = atomic_load(&blocks->media_token),
                                       .first = known * KV_BLOCK_TOKENS,
                                       .pictures = pictures,
                                       .n_pictures = n_pictures,
                                       .parent = known ? &path->hashes[known - 1] : NULL,
                                       .salt = salt});
    }
    blocks->counts.seconds += processor_seconds() - begin;
    pthread_mutex_unlock(&blocks->lock);
    free(pictures);
    if (room) return path;
    free(path);
    return NULL;
}

void kv_blocks_remove(kv_blocks *blocks, kv_path *path) {
    if (!path) return;
    double begin = processor_seconds();
    size_t left = 0;
    pthread_mutex_lock(&blocks->lock);
    for (size_t i = 0; i < path->n; i++) left += !count_down(blocks, path->hashes[i], path->medium);
    if (left < path->n) {
        blocks->counts.blocks[path->medium] -= path->n - left;
        tell(blocks, &(kv_block_event){.type = KV_BLOCKS_REMOVED,
                                       .medium = path->medium,
                                       .hashes = path->hashes + left,
                                       .n = path->n - left});
    }
    blocks->counts.seconds += processor_seconds() - begin;
    pthread_mutex_unlock(&blocks->lock);
    free(path);
}

void kv_blocks_clear(kv_blocks *blocks, bool last) {
    if (!blocks) return;
    pthread_mutex_lock(&blocks->lock);
    tell(blocks, &(kv_block_event){.type = KV_BLOCKS_CLEARED});
    blocks->silent = last;
    pthread_mutex_unlock(&blocks->lock);
}

void kv_blocks_count(kv_blocks *blocks, kv_block_counts *out) {
    pthread_mutex_lock(&blocks->lock);
    *out = blocks->counts;
    pthread_mutex_unlock(&blocks->lock);
}
