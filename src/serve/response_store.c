#include "serve/response_store.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_text.h"
#include "base/platform.h"

/* One that runs, or waits to be stored. */
struct response_entry {
    response_entry *older;
    char id[RESPONSE_ID_BYTES];
    unsigned long long owner;
    response_texts texts;
    bool running, listed, storing;
    uint64_t ended_ms;
    size_t waiters; /* for its end, or readers of its texts; whoever is last frees an entry that is not listed */
    void (*cancel)(void *user);
    void *cancel_user;
};

struct response_store {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a response has ended, or is stored */
    response_entry *newest;
    response_table *disk, *memory; /* NULL: no directory; memory then has all */
    response_limits limits;
    pthread_t thread;
    bool stopping, complained;
    void (*log)(void *user, const char *line);
    void *user;
};

/* ----------------------------------------------------------------------------------------- entries; under the lock */

/* Nobody may free it while somebody waits for it. */
static void drop(response_store *s, response_entry *e) {
    e->listed = false;
    if (e->waiters) return;
    response_entry **at = &s->newest;
    while (*at != e) at = &(*at)->older;
    *at = e->older;
    response_texts_free(&e->texts);
    free(e);
}

static void stop_waiting(response_store *s, response_entry *e) {
    if (--e->waiters == 0 && !e->listed && !e->running) drop(s, e);
}

static response_entry *find(response_store *s, const char *id, unsigned long long owner) {
    for (response_entry *e = s->newest; e; e = e->older)
        if ((e->running || e->listed) && e->owner == owner && strcmp(e->id, id) == 0) return e;
    return NULL;
}

/* The one that has waited longest. */
static response_entry *oldest_waiting(const response_store *s) {
    response_entry *oldest = NULL;
    for (response_entry *e = s->newest; e; e = e->older)
        if (!e->running && e->listed && (!oldest || e->ended_ms <= oldest->ended_ms)) oldest = e;
    return oldest;
}

/* --------------------------------------------------------------------------------------------------------- storing */

/* Without the lock. */
static void put(response_store *s, const response_entry *e) {
    kakeya_error error;
    kakeya_status status = KAKEYA_IO;
    if (s->disk) {
        status = response_table_put(s->disk, e->id, e->owner, e->ended_ms, &e->texts, &error);
        if (status != KAKEYA_OK && !s->complained && s->log) { /* one line for a full disk, not one a response */
            char line[sizeof error.message + 64];
            snprintf(line, sizeof line, "responses: %s; it is kept in memory alone", error.message);
            s->log(s->user, line);
        }
        s->complained = status != KAKEYA_OK;
    }
    if (status != KAKEYA_OK) (void)response_table_put(s->memory, e->id, e->owner, e->ended_ms, &e->texts, NULL);
}

static void *run(void *user) {
    response_store *s = user;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        response_entry *e = oldest_waiting(s);
        if (!e && s->stopping) break;
        if (!e) {
            pthread_cond_wait(&s->changed, &s->lock);
            continue;
        }
        e->storing = true;
        pthread_mutex_unlock(&s->lock);
        put(s, e);
        pthread_mutex_lock(&s->lock);
        drop(s, e);
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

response_store *response_store_open(size_t entries, size_t bytes, double seconds) {
    response_store *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->limits = (response_limits){.entries = entries, .bytes = bytes, .seconds = seconds};
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    if (response_table_open(NULL, s->limits, NULL, NULL, &s->memory, NULL) == KAKEYA_OK &&
        platform_thread_create(&s->thread, run, s) == 0)
        return s;
    response_table_close(s->memory);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
    return NULL;
}

void response_store_close(response_store *s) {
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    while (s->newest) drop(s, s->newest);
    response_table_close(s->disk);
    response_table_close(s->memory);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

kakeya_status response_store_use(response_store *s, const char *directory, void (*log)(void *user, const char *line),
                                 void *user, reasoning_seal *seal, kakeya_error *error) {
    response_table *disk;
    kakeya_status status = response_table_open(directory, s->limits, log, user, &disk, error);
    if (status == KAKEYA_OK) status = response_table_seal(disk, seal, error);
    if (status != KAKEYA_OK) {
        response_table_close(disk);
        return status;
    }
    pthread_mutex_lock(&s->lock);
    s->disk = disk;
    s->log = log;
    s->user = user;
    pthread_mutex_unlock(&s->lock);
    return KAKEYA_OK;
}

/* ------------------------------------------------------------------------------------------------ beginning and end */

response_entry *response_store_begin(response_store *s, const char *id, unsigned long long owner, bool listed,
                                     response_texts *texts, void (*cancel)(void *user), void *user) {
    response_entry *e = texts->object.failed || texts->input.failed ? NULL : calloc(1, sizeof *e);
    if (!e || strlen(id) >= sizeof e->id) {
        response_texts_free(texts);
        free(e);
        return NULL;
    }
    memcpy(e->id, id, strlen(id) + 1);
    e->owner = owner;
    e->running = true;
    e->listed = listed;
    e->texts = *texts;
    *texts = (response_texts){0};
    e->cancel = cancel;
    e->cancel_user = user;
    pthread_mutex_lock(&s->lock);
    e->older = s->newest;
    s->newest = e;
    pthread_mutex_unlock(&s->lock);
    return e;
}

void response_store_end(response_store *s, response_entry *e, text_buffer *object, text_buffer *output) {
    pthread_mutex_lock(&s->lock);
    text_free(&e->texts.object);
    text_free(&e->texts.output);
    e->texts.object = *object;
    e->texts.output = *output;
    *object = *output = (text_buffer){0};
    e->running = false;
    e->ended_ms = response_now_ms();
    e->cancel = NULL;
    if (!e->listed || e->texts.object.failed || e->texts.output.failed) drop(s, e);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* ------------------------------------------------------------------------------------------------------- questions */

bool response_store_get(response_store *s, const char *id, unsigned long long owner, response_texts *out) {
    *out = (response_texts){0};
    pthread_mutex_lock(&s->lock);
    const response_entry *e = find(s, id, owner);
    bool found = e && e->listed && response_texts_copy(&e->texts, out);
    pthread_mutex_unlock(&s->lock);
    return found ||
           (!e && (response_table_get(s->memory, id, owner, out) || response_table_get(s->disk, id, owner, out)));
}

response_found response_store_delete(response_store *s, const char *id, unsigned long long owner) {
    response_entry *e;
    pthread_mutex_lock(&s->lock);
    while ((e = find(s, id, owner)) != NULL && e->storing) pthread_cond_wait(&s->changed, &s->lock);
    response_found found = !e || !e->listed ? RESPONSE_UNKNOWN : e->running ? RESPONSE_RUNNING : RESPONSE_ENDED;
    if (found == RESPONSE_ENDED) drop(s, e);
    pthread_mutex_unlock(&s->lock);
    const bool here = !e && response_table_delete(s->memory, id, owner);
    const bool there = !e && response_table_delete(s->disk, id, owner);
    if (here || there) found = RESPONSE_ENDED;
    return found;
}

response_found response_store_cancel(response_store *s, const char *id, unsigned long long owner, text_buffer *object) {
    response_texts stored;
    pthread_mutex_lock(&s->lock);
    response_entry *e = find(s, id, owner);
    response_found found = !e ? RESPONSE_UNKNOWN : e->running ? RESPONSE_RUNNING : RESPONSE_ENDED;
    if (found == RESPONSE_RUNNING) {
        e->waiters++;
        e->cancel(e->cancel_user);
        while (e->running) pthread_cond_wait(&s->changed, &s->lock);
        text_bytes(object, e->texts.object.data ? e->texts.object.data : "", e->texts.object.n);
        object->failed |= e->texts.object.failed;
        stop_waiting(s, e);
    }
    pthread_mutex_unlock(&s->lock);
    if (e || !response_store_get(s, id, owner, &stored)) return found;
    response_texts_free(&stored);
    return RESPONSE_ENDED;
}

void response_store_wait(response_store *s, const char *id, unsigned long long owner) {
    pthread_mutex_lock(&s->lock);
    response_entry *e = find(s, id, owner);
    if (e && e->running) {
        e->waiters++;
        while (e->running) pthread_cond_wait(&s->changed, &s->lock);
        stop_waiting(s, e);
    }
    pthread_mutex_unlock(&s->lock);
}

static cJSON *item_in(const text_buffer *list, const char *id) {
    if (!list->data || !memmem(list->data, list->n, id, strlen(id))) return NULL;
    cJSON *items = json_text_read(list->data, list->n), *item, *found = NULL;
    cJSON_ArrayForEach(item, items) {
        const cJSON *its = cJSON_GetObjectItemCaseSensitive(item, "id");
        if (!found && cJSON_IsString(its) && strcmp(its->valuestring, id) == 0) found = cJSON_Duplicate(item, true);
    }
    cJSON_Delete(items);
    return found;
}

static cJSON *item_of(const response_texts *texts, const char *id) {
    cJSON *found = item_in(&texts->output, id);
    return found ? found : item_in(&texts->input, id);
}

/* Texts of a response that has ended do not change: they are read without the lock, while the entry is kept. */
cJSON *response_store_item(response_store *s, unsigned long long owner, const char *id) {
    cJSON *found = NULL;
    if (!id[0]) return NULL;
    pthread_mutex_lock(&s->lock);
    for (response_entry *e = s->newest, *older; e && !found; e = older) {
        older = e->older;
        if (e->running || !e->listed || e->owner != owner) continue;
        e->waiters++;
        pthread_mutex_unlock(&s->lock);
        found = item_of(&e->texts, id);
        pthread_mutex_lock(&s->lock);
        older = e->older;
        stop_waiting(s, e);
    }
    pthread_mutex_unlock(&s->lock);
    response_texts texts;
    if (!found && (response_table_with_item(s->memory, id, owner, &texts) ||
                   response_table_with_item(s->disk, id, owner, &texts))) {
        found = item_of(&texts, id);
        response_texts_free(&texts);
    }
    return found;
}

size_t response_store_size(response_store *s) {
    pthread_mutex_lock(&s->lock);
    while (oldest_waiting(s)) pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
    return response_table_count(s->memory) + response_table_count(s->disk);
}
