#include "serve/grammar_cache.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "serve/text.h"

struct cached_grammar {
    grammar_cache *cache;
    kakeya_grammar *grammar; /* NULL: it was refused */
    kakeya_status status;    /* of compiling it */
    kakeya_error refusal;
    text_buffer key; /* everything that the grammar was compiled from */
    uint64_t hash;
    size_t bytes, users;
    bool kept; /* in the list */
    cached_grammar *next;
};

struct grammar_cache {
    pthread_mutex_t lock;
    cached_grammar *first; /* used last */
    size_t most, most_bytes;
    grammar_cache_counts counts;
};

static void free_grammar(cached_grammar *g) {
    kakeya_grammar_close(g->grammar);
    text_free(&g->key);
    free(g);
}

/* Lengths stand in front of texts, so that no two sets of options spell the same key. */
static void write_key(text_buffer *key, const kakeya_grammar_options *o) {
    text_format(key, "%d %d %d %d %d %d %d %zu %zu %zu %zu %s ", (int)o->kind, (int)o->calls, o->max_calls,
                (int)o->loosen, (int)o->thinking, o->thinking_tokens, (int)o->any_order, o->text_bytes, o->tools_bytes,
                o->n_tool_names, o->n_tool_places, o->parameters ? o->parameters : "");
    for (size_t i = 0; i < o->n_tool_places; i++) text_format(key, "%zu ", o->tool_places[i]);
    if (o->text_bytes) text_bytes(key, o->text, o->text_bytes);
    if (o->tools_bytes) text_bytes(key, o->tools, o->tools_bytes);
    for (size_t i = 0; i < o->n_tool_names; i++) text_bytes(key, o->tool_names[i], strlen(o->tool_names[i]) + 1);
}

static bool is_of(const cached_grammar *g, const text_buffer *key, uint64_t hash) {
    return g->hash == hash && g->key.n == key->n && memcmp(g->key.data, key->data, key->n) == 0;
}

/* Out of the list, which owns it no more. With the lock. */
static void forget(grammar_cache *cache, cached_grammar **at) {
    cached_grammar *g = *at;
    *at = g->next;
    g->kept = false;
    cache->counts.entries--;
    cache->counts.bytes -= g->bytes;
    if (g->users == 0) free_grammar(g);
}

/* The last ones go until the others fit. With the lock. */
static void trim(grammar_cache *cache) {
    while (cache->first && (cache->counts.entries > cache->most || cache->counts.bytes > cache->most_bytes)) {
        cached_grammar **last = &cache->first;
        while ((*last)->next) last = &(*last)->next;
        forget(cache, last);
    }
}

static void put_first(grammar_cache *cache, cached_grammar *g) {
    g->next = cache->first;
    cache->first = g;
}

/* One user more. NULL: it is not there. With the lock. */
static cached_grammar *find(grammar_cache *cache, const text_buffer *key, uint64_t hash) {
    for (cached_grammar **at = &cache->first; *at; at = &(*at)->next) {
        cached_grammar *g = *at;
        if (!is_of(g, key, hash)) continue;
        *at = g->next;
        put_first(cache, g);
        g->users++;
        return g;
    }
    return NULL;
}

/* What is wrong with the text or the options, and so the next time, too. */
static bool is_refusal(kakeya_status status) {
    return status == KAKEYA_INVALID_ARGUMENT || status == KAKEYA_FORMAT || status == KAKEYA_UNSUPPORTED;
}

static kakeya_status compile(grammar_cache *cache, const kakeya_tokenizer *tokenizer,
                             const kakeya_grammar_options *options, text_buffer *key, uint64_t hash,
                             cached_grammar **out, kakeya_error *error) {
    cached_grammar *g = calloc(1, sizeof *g);
    if (!g) return error_set(error, KAKEYA_OUT_OF_MEMORY, "grammar: out of memory");
    *g = (cached_grammar){.cache = cache, .hash = hash, .users = 1};
    kakeya_status status = kakeya_grammar_open(tokenizer, options, &g->grammar, &g->refusal);
    if (status != KAKEYA_OK && !is_refusal(status)) { /* memory may be there the next time */
        if (error) *error = g->refusal;
        free(g);
        return status;
    }
    g->status = status;
    g->key = *key;
    *key = (text_buffer){0};
    g->bytes = sizeof *g + g->key.room + (g->grammar ? kakeya_grammar_bytes(g->grammar) : 0);
    pthread_mutex_lock(&cache->lock);
    cache->counts.compiled += g->grammar != NULL;
    cache->counts.refused += g->grammar == NULL;
    cached_grammar *other = find(cache, &g->key, hash); /* somebody was faster */
    if (!other) {
        put_first(cache, g);
        g->kept = true;
        cache->counts.entries++;
        cache->counts.bytes += g->bytes;
        trim(cache);
    }
    pthread_mutex_unlock(&cache->lock);
    if (other) free_grammar(g);
    *out = other ? other : g;
    return KAKEYA_OK;
}

/* A refusal is no grammar: its error is told, and it is given back. */
static kakeya_status tell_refusal(cached_grammar **out, kakeya_error *error) {
    if ((*out)->grammar) return KAKEYA_OK;
    kakeya_status status = (*out)->status;
    if (error) *error = (*out)->refusal;
    grammar_cache_give(*out);
    *out = NULL;
    return status;
}

kakeya_status grammar_cache_take(grammar_cache *cache, const kakeya_tokenizer *tokenizer,
                                 const kakeya_grammar_options *options, cached_grammar **out, kakeya_error *error) {
    *out = NULL;
    text_buffer key = {0};
    write_key(&key, options);
    if (key.failed) {
        text_free(&key);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "grammar: out of memory");
    }
    uint64_t hash = hash_fnv1a(HASH_FNV1A_START, key.data, key.n);
    pthread_mutex_lock(&cache->lock);
    *out = find(cache, &key, hash);
    cache->counts.hits += *out != NULL;
    pthread_mutex_unlock(&cache->lock);
    kakeya_status status = *out ? KAKEYA_OK : compile(cache, tokenizer, options, &key, hash, out, error);
    text_free(&key);
    return status == KAKEYA_OK ? tell_refusal(out, error) : status;
}

cached_grammar *grammar_cache_share(cached_grammar *grammar) {
    if (!grammar) return NULL;
    pthread_mutex_lock(&grammar->cache->lock);
    grammar->users++;
    pthread_mutex_unlock(&grammar->cache->lock);
    return grammar;
}

void grammar_cache_give(cached_grammar *g) {
    if (!g) return;
    grammar_cache *cache = g->cache;
    pthread_mutex_lock(&cache->lock);
    g->users--;
    if (g->users == 0 && !g->kept) free_grammar(g);
    pthread_mutex_unlock(&cache->lock);
}

const kakeya_grammar *grammar_cache_grammar(const cached_grammar *g) { return g->grammar; }

void grammar_cache_clear(grammar_cache *cache) {
    pthread_mutex_lock(&cache->lock);
    while (cache->first) forget(cache, &cache->first);
    pthread_mutex_unlock(&cache->lock);
}

void grammar_cache_count(grammar_cache *cache, grammar_cache_counts *out) {
    pthread_mutex_lock(&cache->lock);
    *out = cache->counts;
    pthread_mutex_unlock(&cache->lock);
}

grammar_cache *grammar_cache_open(size_t most, size_t bytes) {
    grammar_cache *cache = calloc(1, sizeof *cache);
    if (!cache) return NULL;
    cache->most = most;
    cache->most_bytes = bytes;
    pthread_mutex_init(&cache->lock, NULL);
    return cache;
}

void grammar_cache_close(grammar_cache *cache) {
    if (!cache) return;
    grammar_cache_clear(cache);
    pthread_mutex_destroy(&cache->lock);
    free(cache);
}
