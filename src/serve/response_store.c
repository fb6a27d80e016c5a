#include "serve/response_store.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/json_text.h"

struct response_entry {
    response_entry *newer, *older;
    char id[RESPONSE_ID_BYTES];
    unsigned long long owner;
    response_texts texts;
    bool running;
    double ended; /* clock_seconds, below 0 for what ended before the clock began */
    bool listed;
    size_t waiters; /* for its end, or readers of its texts; whoever is last frees an entry that is not listed */
    void (*cancel)(void *user);
    void *cancel_user;
};

struct response_store {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    response_entry *newest, *oldest;
    size_t most, n; /* finished and listed entries */
    size_t most_bytes, bytes;
    double seconds;
    response_disk *disk; /* NULL: none */
};

response_store *response_store_open(size_t entries, size_t bytes, double seconds) {
    response_store *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->most = entries;
    s->most_bytes = bytes;
    s->seconds = seconds;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->ended, NULL);
    return s;
}

/* ------------------------------------------------------------------------------------------- entries; under the lock
 */

static size_t bytes_of(const response_entry *e) {
    return sizeof *e + e->texts.object.n + e->texts.input.n + e->texts.output.n;
}

static bool is_kept(const response_entry *e) { return !e->running && e->listed; }

static void remove_entry(response_store *s, response_entry *e) {
    if (is_kept(e)) {
        s->n--;
        s->bytes -= bytes_of(e);
    }
    if (e->newer) {
        e->newer->older = e->older;
    } else {
        s->newest = e->older;
    }
    if (e->older) {
        e->older->newer = e->newer;
    } else {
        s->oldest = e->newer;
    }
    response_texts_free(&e->texts);
    free(e);
}

/* Nobody may free it while somebody waits for it. */
static void drop(response_store *s, response_entry *e) {
    if (e->waiters == 0) {
        remove_entry(s, e);
    } else if (e->listed) {
        s->n--;
        s->bytes -= bytes_of(e);
        e->listed = false;
    }
}

static void make_room(response_store *s) {
    double now = clock_seconds();
    for (response_entry *e = s->oldest, *newer; e; e = newer) {
        newer = e->newer;
        if (!is_kept(e)) continue;
        if (s->n <= s->most && s->bytes <= s->most_bytes && now < e->ended + s->seconds) return;
        if (s->disk) response_disk_forget(s->disk, e->id);
        drop(s, e);
    }
}

static response_entry *find_id(response_store *s, const char *id) {
    for (response_entry *e = s->newest; e; e = e->older)
        if (strcmp(e->id, id) == 0) return e;
    return NULL;
}

static response_entry *find(response_store *s, const char *id, unsigned long long owner) {
    make_room(s);
    response_entry *e = find_id(s, id);
    return e && e->owner == owner ? e : NULL;
}

void response_store_close(response_store *s) {
    if (!s) return;
    response_disk_close(s->disk);
    while (s->newest) remove_entry(s, s->newest);
    pthread_cond_destroy(&s->ended);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* ----------------------------------------------------------------------------------------------------------- files */

static double unix_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

/* One that another server has stored, or an earlier one. */
static void take_record(void *user, response_record *record) {
    response_store *s = user;
    response_entry *e = calloc(1, sizeof *e), *newer = NULL;
    if (!e) {
        response_texts_free(&record->texts);
        return;
    }
    memcpy(e->id, record->id, sizeof e->id);
    e->owner = record->owner;
    e->listed = true;
    e->texts = record->texts;
    double age = (unix_ms() - (double)record->ended_ms) / 1e3;
    e->ended = clock_seconds() - (age > 0 ? age : 0);
    pthread_mutex_lock(&s->lock);
    if (find_id(s, e->id)) {
        pthread_mutex_unlock(&s->lock);
        response_texts_free(&e->texts);
        free(e);
        return;
    }
    for (e->older = s->newest; e->older && (e->older->running || e->older->ended > e->ended);
         e->older = e->older->older)
        newer = e->older;
    e->newer = newer;
    *(newer ? &newer->older : &s->newest) = e;
    *(e->older ? &e->older->newer : &s->oldest) = e;
    s->n++;
    s->bytes += bytes_of(e);
    make_room(s);
    pthread_mutex_unlock(&s->lock);
}

void response_store_use(response_store *s, response_disk *disk) {
    s->disk = disk;
    response_disk_scan(disk, take_record, s);
}

/* With the lock. */
static void save(response_store *s, const response_entry *e) {
    response_record record = {.owner = e->owner, .ended_ms = (uint64_t)unix_ms()};
    memcpy(record.id, e->id, sizeof record.id);
    if (response_texts_copy(&e->texts, &record.texts)) response_disk_save(s->disk, &record);
}

/* Without the lock: forgets a response whose file another server has removed, and looks for one that is not known. */
static void look_at_files(response_store *s, const char *id, unsigned long long owner) {
    if (!s->disk) return;
    pthread_mutex_lock(&s->lock);
    bool known = find(s, id, owner) != NULL;
    pthread_mutex_unlock(&s->lock);
    if (!known) {
        response_disk_scan(s->disk, take_record, s);
    } else if (response_disk_is_gone(s->disk, id)) {
        pthread_mutex_lock(&s->lock);
        response_entry *e = find(s, id, owner);
        if (e && is_kept(e)) drop(s, e);
        pthread_mutex_unlock(&s->lock);
        response_disk_forget(s->disk, id);
    }
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
    if (e->older) {
        e->older->newer = e;
    } else {
        s->oldest = e;
    }
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
    if (e->texts.object.failed || e->texts.output.failed) e->listed = false;
    e->running = false;
    e->ended = clock_seconds();
    e->cancel = NULL;
    if (e->listed) {
        s->n++;
        s->bytes += bytes_of(e);
        if (s->disk) save(s, e);
    } else if (e->waiters == 0) {
        remove_entry(s, e);
    }
    pthread_cond_broadcast(&s->ended);
    make_room(s);
    pthread_mutex_unlock(&s->lock);
}

/* ------------------------------------------------------------------------------------------------------ questions */

bool response_store_get(response_store *s, const char *id, unsigned long long owner, response_texts *out) {
    *out = (response_texts){0};
    look_at_files(s, id, owner);
    pthread_mutex_lock(&s->lock);
    const response_entry *e = find(s, id, owner);
    bool found = e && e->listed && response_texts_copy(&e->texts, out);
    pthread_mutex_unlock(&s->lock);
    return found;
}

response_found response_store_delete(response_store *s, const char *id, unsigned long long owner) {
    look_at_files(s, id, owner);
    pthread_mutex_lock(&s->lock);
    response_entry *e = find(s, id, owner);
    response_found found = !e || !e->listed ? RESPONSE_UNKNOWN : e->running ? RESPONSE_RUNNING : RESPONSE_ENDED;
    if (found == RESPONSE_ENDED) drop(s, e);
    pthread_mutex_unlock(&s->lock);
    if (found == RESPONSE_ENDED && s->disk) response_disk_remove(s->disk, id);
    return found;
}

response_found response_store_cancel(response_store *s, const char *id, unsigned long long owner, text_buffer *object) {
    look_at_files(s, id, owner);
    pthread_mutex_lock(&s->lock);
    response_entry *e = find(s, id, owner);
    response_found found = !e           ? RESPONSE_UNKNOWN
                           : e->running ? RESPONSE_RUNNING
                           : e->listed  ? RESPONSE_ENDED
                                        : RESPONSE_UNKNOWN;
    if (found == RESPONSE_RUNNING) {
        e->waiters++;
        e->cancel(e->cancel_user);
        while (e->running) pthread_cond_wait(&s->ended, &s->lock);
        text_bytes(object, e->texts.object.data ? e->texts.object.data : "", e->texts.object.n);
        object->failed |= e->texts.object.failed;
        if (--e->waiters == 0 && !e->listed) remove_entry(s, e);
    }
    pthread_mutex_unlock(&s->lock);
    return found;
}

void response_store_wait(response_store *s, const char *id, unsigned long long owner) {
    pthread_mutex_lock(&s->lock);
    response_entry *e = find(s, id, owner);
    if (e && e->running) {
        e->waiters++;
        while (e->running) pthread_cond_wait(&s->ended, &s->lock);
        if (--e->waiters == 0 && !e->listed) remove_entry(s, e);
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

/* Texts of a response that has ended do not change: they are read without the lock, while the entry is kept. */
static cJSON *find_item(response_store *s, unsigned long long owner, const char *id) {
    cJSON *found = NULL;
    pthread_mutex_lock(&s->lock);
    make_room(s);
    for (response_entry *e = s->newest, *older; e && !found; e = older) {
        older = e->older;
        if (!is_kept(e) || e->owner != owner) continue;
        e->waiters++;
        pthread_mutex_unlock(&s->lock);
        found = item_in(&e->texts.output, id);
        if (!found) found = item_in(&e->texts.input, id);
        pthread_mutex_lock(&s->lock);
        older = e->older;
        if (--e->waiters == 0 && !e->listed) remove_entry(s, e);
    }
    pthread_mutex_unlock(&s->lock);
    return found;
}

cJSON *response_store_item(response_store *s, unsigned long long owner, const char *id) {
    if (!id[0]) return NULL;
    cJSON *found = find_item(s, owner, id);
    if (found || !s->disk) return found;
    response_disk_scan(s->disk, take_record, s);
    return find_item(s, owner, id);
}

size_t response_store_size(response_store *s) {
    pthread_mutex_lock(&s->lock);
    make_room(s);
    size_t n = s->n;
    pthread_mutex_unlock(&s->lock);
    return n;
}
