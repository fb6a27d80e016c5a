#include "serve/response_store.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

struct response_entry {
    response_entry *newer, *older;
    char id[RESPONSE_ID_BYTES];
    unsigned long long owner;
    response_texts texts;
    double ended; /* clock_seconds; 0: it runs */
    bool listed;
    size_t waiters; /* for its end; whoever is last frees an entry that is not listed */
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
};

void response_texts_free(response_texts *t) {
    text_free(&t->object);
    text_free(&t->input);
    text_free(&t->output);
}

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

static bool is_kept(const response_entry *e) { return e->ended > 0 && e->listed; }

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
        drop(s, e);
    }
}

static response_entry *find(response_store *s, const char *id, unsigned long long owner) {
    make_room(s);
    for (response_entry *e = s->newest; e; e = e->older)
        if (e->owner == owner && strcmp(e->id, id) == 0) return e;
    return NULL;
}

void response_store_close(response_store *s) {
    if (!s) return;
    while (s->newest) remove_entry(s, s->newest);
    pthread_cond_destroy(&s->ended);
    pthread_mutex_destroy(&s->lock);
    free(s);
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
    e->ended = clock_seconds();
    e->cancel = NULL;
    if (e->listed) {
        s->n++;
        s->bytes += bytes_of(e);
    } else if (e->waiters == 0) {
        remove_entry(s, e);
    }
    pthread_cond_broadcast(&s->ended);
    make_room(s);
    pthread_mutex_unlock(&s->lock);
}

/* ------------------------------------------------------------------------------------------------------ questions */

static bool copy(const text_buffer *from, text_buffer *to) {
    text_bytes(to, from->data ? from->data : "", from->n);
    return !to->failed;
}

bool response_store_get(response_store *s, const char *id, unsigned long long owner, response_texts *out) {
    *out = (response_texts){0};
    pthread_mutex_lock(&s->lock);
    const response_entry *e = find(s, id, owner);
    bool found = e && e->listed;
    if (found) {
        memcpy(out->previous, e->texts.previous, sizeof out->previous);
        found = copy(&e->texts.object, &out->object) && copy(&e->texts.input, &out->input) &&
                copy(&e->texts.output, &out->output);
    }
    pthread_mutex_unlock(&s->lock);
    if (!found) response_texts_free(out);
    return found;
}

response_found response_store_delete(response_store *s, const char *id, unsigned long long owner) {
    pthread_mutex_lock(&s->lock);
    response_entry *e = find(s, id, owner);
    response_found found = !e || !e->listed ? RESPONSE_UNKNOWN : e->ended > 0 ? RESPONSE_ENDED : RESPONSE_RUNNING;
    if (found == RESPONSE_ENDED) drop(s, e);
    pthread_mutex_unlock(&s->lock);
    return found;
}

response_found response_store_cancel(response_store *s, const char *id, unsigned long long owner, text_buffer *object) {
    pthread_mutex_lock(&s->lock);
    response_entry *e = find(s, id, owner);
    response_found found = !e              ? RESPONSE_UNKNOWN
                           : e->ended == 0 ? RESPONSE_RUNNING
                           : e->listed     ? RESPONSE_ENDED
                                           : RESPONSE_UNKNOWN;
    if (found == RESPONSE_RUNNING) {
        e->waiters++;
        e->cancel(e->cancel_user);
        while (e->ended == 0) pthread_cond_wait(&s->ended, &s->lock);
        copy(&e->texts.object, object);
        object->failed |= e->texts.object.failed;
        if (--e->waiters == 0 && !e->listed) remove_entry(s, e);
    }
    pthread_mutex_unlock(&s->lock);
    return found;
}

static cJSON *item_in(const text_buffer *list, const char *id) {
    if (!list->data || !memmem(list->data, list->n, id, strlen(id))) return NULL;
    cJSON *items = cJSON_Parse(list->data), *item, *found = NULL;
    cJSON_ArrayForEach(item, items) {
        const cJSON *its = cJSON_GetObjectItemCaseSensitive(item, "id");
        if (!found && cJSON_IsString(its) && strcmp(its->valuestring, id) == 0) found = cJSON_Duplicate(item, true);
    }
    cJSON_Delete(items);
    return found;
}

cJSON *response_store_item(response_store *s, unsigned long long owner, const char *id) {
    cJSON *found = NULL;
    if (!id[0]) return NULL;
    pthread_mutex_lock(&s->lock);
    make_room(s);
    for (const response_entry *e = s->newest; e && !found; e = e->older) {
        if (!is_kept(e) || e->owner != owner) continue;
        found = item_in(&e->texts.output, id);
        if (!found) found = item_in(&e->texts.input, id);
    }
    pthread_mutex_unlock(&s->lock);
    return found;
}

size_t response_store_size(response_store *s) {
    pthread_mutex_lock(&s->lock);
    make_room(s);
    size_t n = s->n;
    pthread_mutex_unlock(&s->lock);
    return n;
}
