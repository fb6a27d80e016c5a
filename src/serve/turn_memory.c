#include "serve/turn_memory.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/turn_digest.h"

enum { BUCKETS = 1 << 14, MOST_EXPORTED = 256 };

/* One way to find a turn: by the id of one of its calls, or by the conversation in front of it and what it says. */
typedef struct turn_key {
    turn_digest digest;
    struct turn *turn;
    struct turn_key *next; /* in the bucket */
} turn_key;

typedef struct turn {
    turn_digest said;   /* content and calls */
    turn_digest before; /* of the ids in front of it */
    size_t at, n_ids, n_keys, bytes;
    int32_t *ids;
    struct turn *older, *newer;
    turn_key keys[]; /* [n_keys]: of the place, then of each call's id */
} turn;

struct turn_memory {
    pthread_mutex_t lock;
    size_t most_entries, most_bytes, entries, bytes;
    turn *oldest, *newest;
    turn_key *buckets[BUCKETS];
};

turn_memory *turn_memory_open(size_t entries, size_t bytes) {
    turn_memory *memory = calloc(1, sizeof *memory);
    if (!memory) return NULL;
    pthread_mutex_init(&memory->lock, NULL);
    memory->most_entries = entries;
    memory->most_bytes = bytes;
    return memory;
}

/* -------------------------------------------------------------------------------------------------- table and list */

static turn_key **bucket_of(turn_memory *memory, turn_digest digest) { return &memory->buckets[digest.low % BUCKETS]; }

static turn *find(turn_memory *memory, turn_digest digest) {
    for (turn_key *k = *bucket_of(memory, digest); k; k = k->next)
        if (turn_digest_equal(k->digest, digest)) return k->turn;
    return NULL;
}

static void unlink_turn(turn_memory *memory, turn *t) {
    *(t->older ? &t->older->newer : &memory->oldest) = t->newer;
    *(t->newer ? &t->newer->older : &memory->newest) = t->older;
}

static void link_newest(turn_memory *memory, turn *t) {
    t->older = memory->newest;
    t->newer = NULL;
    *(memory->newest ? &memory->newest->newer : &memory->oldest) = t;
    memory->newest = t;
}

static void forget(turn_memory *memory, turn *t) {
    for (size_t i = 0; i < t->n_keys; i++) {
        turn_key **at = bucket_of(memory, t->keys[i].digest);
        while (*at != &t->keys[i]) at = &(*at)->next;
        *at = t->keys[i].next;
    }
    unlink_turn(memory, t);
    memory->entries--;
    memory->bytes -= t->bytes;
    free(t->ids);
    free(t);
}

void turn_memory_close(turn_memory *memory) {
    if (!memory) return;
    while (memory->oldest) forget(memory, memory->oldest);
    pthread_mutex_destroy(&memory->lock);
    free(memory);
}

/* keys[0] is that of the place. */
static void add(turn_memory *memory, turn_digest said, turn_digest before, const turn_digest *keys, size_t n_keys,
                size_t at, const int32_t *ids, size_t n) {
    turn *t = calloc(1, sizeof *t + n_keys * sizeof *t->keys);
    int32_t *copy = malloc(n * sizeof *ids + 1);
    if (!t || !copy) {
        free(t);
        free(copy);
        return;
    }
    memcpy(copy, ids, n * sizeof *ids);
    *t = (turn){.said = said, .before = before, .at = at, .n_ids = n, .n_keys = n_keys, .ids = copy};
    t->bytes = sizeof *t + n_keys * sizeof *t->keys + n * sizeof *ids;
    pthread_mutex_lock(&memory->lock);
    t->n_keys = 0;
    for (size_t i = 0; i < n_keys; i++) {
        turn *same = find(memory, keys[i]);
        if (same == t) continue;
        if (same) forget(memory, same); /* the later answer is the one that its client continues */
        turn_key **bucket = bucket_of(memory, keys[i]);
        turn_key *key = &t->keys[t->n_keys++];
        *key = (turn_key){keys[i], t, *bucket};
        *bucket = key;
    }
    link_newest(memory, t);
    memory->entries++;
    memory->bytes += t->bytes;
    while (memory->oldest && (memory->entries > memory->most_entries || memory->bytes > memory->most_bytes))
        forget(memory, memory->oldest);
    pthread_mutex_unlock(&memory->lock);
}

/* ------------------------------------------------------------------------------------------------------- put, find */

static bool has_id(const kakeya_chat_call *call) { return call->id && call->id[0]; }

void turn_memory_put(turn_memory *memory, const kakeya_chat_message *messages, size_t n_messages,
                     const kakeya_chat_message *answer, const int32_t *ids, size_t n_stable, size_t n) {
    if (n <= n_stable) return;
    turn_digest place = turn_digest_start(), said = turn_digest_said(answer);
    for (size_t i = 0; i < n_messages; i++)
        place = turn_digest_message(place, &messages[i], turn_digest_said(&messages[i]));
    size_t n_keys = 1;
    turn_digest *keys = malloc((1 + answer->n_calls) * sizeof *keys);
    if (!keys) return;
    keys[0] = turn_digest_message(place, answer, said);
    for (size_t i = 0; i < answer->n_calls; i++)
        if (has_id(&answer->calls[i])) keys[n_keys++] = turn_digest_id(answer->calls[i].id);
    add(memory, said, turn_digest_ids(ids, n_stable), keys, n_keys, n_stable, ids + n_stable, n - n_stable);
    free(keys);
}

/* The turn that all of the message's call ids name, or the one that stands at this place. With the lock. */
static turn *look_up(turn_memory *memory, const kakeya_chat_message *message, turn_digest place) {
    turn *named = NULL;
    for (size_t i = 0; i < message->n_calls; i++) {
        if (!has_id(&message->calls[i])) return find(memory, place);
        turn *t = find(memory, turn_digest_id(message->calls[i].id));
        if (!t) return find(memory, place);
        if (named && t != named) return NULL;
        named = t;
    }
    return named ? named : find(memory, place);
}

/* With the lock. */
static bool take_ids(turn_memory *memory, turn *t, chat_conversation *c, kakeya_chat_message *message) {
    int32_t *ids = chat_take(c, t->n_ids * sizeof *ids);
    if (!ids) return false;
    memcpy(ids, t->ids, t->n_ids * sizeof *ids);
    message->ids = ids;
    message->n_ids = t->n_ids;
    unlink_turn(memory, t);
    link_newest(memory, t);
    return true;
}

size_t turn_memory_find(turn_memory *memory, chat_conversation *c) {
    turn_digest *said = malloc(c->n * sizeof *said + 1), place = turn_digest_start();
    size_t found = 0;
    if (!said) return 0;
    for (size_t i = 0; i < c->n; i++) said[i] = turn_digest_said(&c->messages[i]);
    pthread_mutex_lock(&memory->lock);
    for (size_t i = 0; i < c->n; i++) {
        kakeya_chat_message *message = &c->messages[i];
        place = turn_digest_message(place, message, said[i]);
        message->ids = NULL;
        message->n_ids = 0;
        turn *t = chat_is_model(message) ? look_up(memory, message, place) : NULL;
        if (t && turn_digest_equal(t->said, said[i])) found += take_ids(memory, t, c, message);
    }
    pthread_mutex_unlock(&memory->lock);
    free(said);
    return found;
}

size_t turn_memory_entries(turn_memory *memory) {
    pthread_mutex_lock(&memory->lock);
    size_t n = memory->entries;
    pthread_mutex_unlock(&memory->lock);
    return n;
}

/* -------------------------------------------------------------------------------------------------- export, import */

static bool add_digest(cJSON *list, turn_digest digest) {
    char text[40];
    snprintf(text, sizeof text, "%016" PRIx64 "%016" PRIx64, digest.high, digest.low);
    return cJSON_AddItemToArray(list, cJSON_CreateString(text));
}

static bool read_digest(const cJSON *item, turn_digest *out) {
    if (!cJSON_IsString(item) || strlen(item->valuestring) != 32 || strspn(item->valuestring, "0123456789abcdef") != 32)
        return false;
    return sscanf(item->valuestring, "%16" SCNx64 "%16" SCNx64, &out->high, &out->low) == 2;
}

/* {"at": n, "ids": [...], "keys": [said, before, place, call ids...]} */
static bool export_turn(cJSON *list, const turn *t) {
    cJSON *item = cJSON_CreateObject();
    cJSON *keys = cJSON_AddArrayToObject(item, "keys");
    bool complete = keys && cJSON_AddNumberToObject(item, "at", (double)t->at) && add_digest(keys, t->said) &&
                    add_digest(keys, t->before);
    for (size_t i = 0; complete && i < t->n_keys; i++) complete = add_digest(keys, t->keys[i].digest);
    cJSON *ids = complete ? cJSON_AddArrayToObject(item, "ids") : NULL;
    complete = ids != NULL;
    for (size_t i = 0; complete && i < t->n_ids; i++)
        complete = cJSON_AddItemToArray(ids, cJSON_CreateNumber((double)t->ids[i]));
    if (complete && cJSON_AddItemToArray(list, item)) return true;
    cJSON_Delete(item);
    return false;
}

char *turn_memory_export(turn_memory *memory, const int32_t *ids, size_t n) {
    cJSON *list = cJSON_CreateArray();
    int exported = 0;
    pthread_mutex_lock(&memory->lock);
    for (const turn *t = memory->newest; list && t && exported < MOST_EXPORTED; t = t->older) {
        if (t->at > n || t->n_ids > n - t->at || memcmp(ids + t->at, t->ids, t->n_ids * sizeof *ids) != 0) continue;
        if (!turn_digest_equal(t->before, turn_digest_ids(ids, t->at))) continue;
        exported += export_turn(list, t);
    }
    pthread_mutex_unlock(&memory->lock);
    char *text = exported ? cJSON_PrintUnformatted(list) : NULL;
    cJSON_Delete(list);
    return text;
}

static void import_turn(turn_memory *memory, const cJSON *item) {
    const cJSON *keys = cJSON_GetObjectItemCaseSensitive(item, "keys");
    const cJSON *ids = cJSON_GetObjectItemCaseSensitive(item, "ids");
    const cJSON *at = cJSON_GetObjectItemCaseSensitive(item, "at"), *part;
    if (!cJSON_IsArray(keys) || !cJSON_IsArray(ids) || !cJSON_IsNumber(at) || !(at->valuedouble >= 0) ||
        at->valuedouble > INT32_MAX)
        return;
    size_t n_keys = 0, n = 0;
    turn_digest *digests = malloc(((size_t)cJSON_GetArraySize(keys) + 1) * sizeof *digests);
    int32_t *run = malloc(((size_t)cJSON_GetArraySize(ids) + 1) * sizeof *run);
    bool good = digests && run;
    cJSON_ArrayForEach(part, keys) good = good && read_digest(part, &digests[n_keys++]);
    cJSON_ArrayForEach(part, ids) {
        good = good && cJSON_IsNumber(part) && part->valuedouble >= 0 && part->valuedouble <= INT32_MAX &&
               floor(part->valuedouble) == part->valuedouble;
        if (good) run[n++] = (int32_t)part->valuedouble;
    }
    if (good && n_keys >= 3 && n)
        add(memory, digests[0], digests[1], digests + 2, n_keys - 2, (size_t)at->valuedouble, run, n);
    free(digests);
    free(run);
}

/* The newest comes first, and is put in last. */
static void import_list(turn_memory *memory, const cJSON *item) {
    const cJSON *items[MOST_EXPORTED];
    size_t n = 0;
    for (; item && n < MOST_EXPORTED; item = item->next) items[n++] = item;
    while (n) import_turn(memory, items[--n]);
}

void turn_memory_import(turn_memory *memory, const char *metadata) {
    cJSON *json = cJSON_Parse(metadata);
    const cJSON *turns = cJSON_GetObjectItemCaseSensitive(json, "turns");
    if (cJSON_IsArray(turns)) import_list(memory, turns->child);
    cJSON_Delete(json);
}
