#include "serve/store_saver.h"

#include <cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/platform.h"
#include "serve/store_rules.h"
#include "serve/store_told.h"

enum { MOST_OUTGOING = 4 }; /* entries that wait to be written while their memory is wanted */
/* After a write that did not happen: the disk decides when it takes more. */
static const double retry_seconds = 5;

struct store_saver {
    store_entries *entries;
    store_disk *disk;
    store_saver_options options;
    pthread_t thread;
    bool running, stopping;
    store_entry *outgoing; /* linked by next, oldest first */
    size_t n_outgoing;
    bool disposing; /* of one that is in the list no more */
    double not_before;
};

/* -------------------------------------------------------------------------------------------------------- metadata */

char *store_saver_metadata(const store_saver *saver, const char *salt, const int32_t *ids, size_t n,
                           store_reason reason, double hits) {
    static const char *const reasons[] = {"", "prompt-end", "system-turn", "turn-end", "grid", "idle", "shutdown"};
    cJSON *json = cJSON_CreateObject();
    bool complete = json && cJSON_AddStringToObject(json, "reason", reasons[reason]) &&
                    cJSON_AddNumberToObject(json, "hits", hits) &&
                    cJSON_AddStringToObject(json, "model", saver->options.model ? saver->options.model : "") &&
                    (!salt || cJSON_AddStringToObject(json, STORE_SALT_MEMBER, salt));
    char *notes = complete && saver->options.notes ? saver->options.notes(saver->options.notes_user, ids, n) : NULL;
    if (notes) complete = cJSON_AddRawToObject(json, "turns", notes) != NULL;
    char *text = complete ? cJSON_PrintUnformatted(json) : NULL;
    cJSON_Delete(json);
    free(notes);
    return text;
}

/* ---------------------------------------------------------------------------------------------------------- saving */

/* Whether a file of the entry could serve anybody. */
static bool worth_saving(const store_saver *saver, const store_entry *entry) {
    if (entry->saved || entry->n < saver->options.least_tokens) return false;
    return !saver->entries->prompt_rows_only || entry->prompt_tokens == entry->n;
}

static kakeya_status save_session(const store_saver *saver, const char *salt, const kakeya_session *session,
                                  size_t prompt_tokens, store_reason reason, double hits) {
    size_t n;
    int32_t *owned;
    const int32_t *ids = kakeya_session_tokens(session, &n), *keys = store_keys(session, &n, &owned);
    bool there = !keys || store_disk_has(saver->disk, salt, keys, n);
    free(owned);
    if (there) return KAKEYA_OK;
    char *metadata = store_saver_metadata(saver, salt, ids, n, reason, hits);
    if (!metadata) return KAKEYA_OUT_OF_MEMORY;
    kakeya_status status = store_disk_save(saver->disk, session, salt, NULL, prompt_tokens, reason, metadata, NULL);
    free(metadata);
    return status;
}

/* Nobody else may close or take the entry meanwhile. */
static kakeya_status save(const store_saver *saver, const store_entry *entry, store_reason reason) {
    return save_session(saver, entry->salt, entry->session, entry->prompt_tokens, reason, entry->hits);
}

static double due_at(const store_saver *saver, const store_entry *entry) {
    if (entry->busy || !worth_saving(saver, entry)) return INFINITY;
    if (entry->live) return entry->used + saver->options.idle_delay;
    /* points of the grid are made to be dropped again; the last ones are saved when room is needed */
    return entry->reason == STORE_GRID ? INFINITY : entry->used + saver->options.checkpoint_delay;
}

static store_entry *next_due(const store_saver *saver, double *at) {
    store_entry *next = NULL;
    *at = INFINITY;
    for (store_entry *e = saver->entries->first; e; e = e->next) {
        double due = due_at(saver, e);
        if (due >= *at) continue;
        next = e;
        *at = due;
    }
    return next;
}

static void wait_until(store_saver *saver, double at) {
    if (isinf(at)) {
        pthread_cond_wait(&saver->entries->ready, &saver->entries->lock);
        return;
    }
    (void)platform_condition_wait(&saver->entries->ready, &saver->entries->lock, at);
}

/* With the lock, which it gives up meanwhile. */
static void save_entry(store_saver *saver, store_entry *entry) {
    entry->busy = true;
    pthread_mutex_unlock(&saver->entries->lock);
    kakeya_status status = save(saver, entry, entry->live ? STORE_IDLE : entry->reason);
    pthread_mutex_lock(&saver->entries->lock);
    entry->busy = false;
    entry->saved = status == KAKEYA_OK;
    if (status != KAKEYA_OK) saver->not_before = clock_seconds() + retry_seconds;
    pthread_cond_broadcast(&saver->entries->ready);
    saver->options.on_room(saver->options.user);
}

static void *run(void *user) {
    store_saver *saver = user;
    pthread_mutex_lock(&saver->entries->lock);
    while (!saver->stopping) {
        store_entry *entry = saver->outgoing;
        if (entry) {
            saver->outgoing = entry->next;
            saver->n_outgoing--;
            saver->disposing = true;
            pthread_mutex_unlock(&saver->entries->lock);
            store_saver_dispose_now(saver, entry);
            pthread_mutex_lock(&saver->entries->lock);
            saver->disposing = false;
            pthread_cond_broadcast(&saver->entries->ready);
            saver->options.on_room(saver->options.user);
            continue;
        }
        double at, now = clock_seconds();
        entry = next_due(saver, &at);
        if (entry && at < saver->not_before) at = saver->not_before;
        if (entry && at <= now)
            save_entry(saver, entry);
        else
            wait_until(saver, at);
    }
    pthread_mutex_unlock(&saver->entries->lock);
    return NULL;
}

/* ---------------------------------------------------------------------------------------------------- open, close */

kakeya_status store_saver_open(store_entries *entries, store_disk *disk, const store_saver_options *options,
                               store_saver **out, kakeya_error *error) {
    *out = NULL;
    store_saver *saver = calloc(1, sizeof *saver);
    if (!saver) return error_set(error, KAKEYA_OUT_OF_MEMORY, "sessions: out of memory");
    *saver = (store_saver){.entries = entries, .disk = disk, .options = *options};
    if (platform_thread_create(&saver->thread, run, saver) != 0) {
        free(saver);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "sessions: no thread for saving them");
    }
    saver->running = true;
    *out = saver;
    return KAKEYA_OK;
}

void store_saver_wake(store_saver *saver) {
    if (saver) pthread_cond_broadcast(&saver->entries->ready);
}

void store_saver_stop(store_saver *saver) {
    if (!saver || !saver->running) return;
    pthread_mutex_lock(&saver->entries->lock);
    saver->stopping = true;
    pthread_cond_broadcast(&saver->entries->ready);
    pthread_mutex_unlock(&saver->entries->lock);
    pthread_join(saver->thread, NULL);
    saver->running = false;
}

void store_saver_settle(store_saver *saver) {
    if (!saver) return;
    pthread_mutex_lock(&saver->entries->lock);
    while (saver->outgoing || saver->disposing) pthread_cond_wait(&saver->entries->ready, &saver->entries->lock);
    pthread_mutex_unlock(&saver->entries->lock);
}

void store_saver_close(store_saver *saver) {
    if (!saver) return;
    store_saver_stop(saver);
    for (store_entry *e; (e = saver->outgoing) != NULL;) {
        saver->outgoing = e->next;
        store_entry_close(e);
    }
    free(saver);
}

void store_saver_dispose_now(store_saver *saver, store_entry *entry) {
    if (entry && saver && worth_saving(saver, entry))
        (void)save(saver, entry, entry->live ? STORE_IDLE : entry->reason);
    store_entry_close(entry);
}

bool store_saver_is_writing(const store_saver *saver) { return saver && (saver->outgoing || saver->disposing); }

bool store_saver_dispose(store_saver *saver, store_entry *entry) {
    if (!entry) return false;
    bool taken = false;
    if (saver && worth_saving(saver, entry)) {
        pthread_mutex_lock(&saver->entries->lock);
        taken = saver->running && !saver->stopping && saver->n_outgoing < MOST_OUTGOING;
        if (taken) {
            store_entry **end = &saver->outgoing;
            while (*end) end = &(*end)->next;
            entry->next = NULL;
            *end = entry;
            saver->n_outgoing++;
            pthread_cond_broadcast(&saver->entries->ready);
        }
        pthread_mutex_unlock(&saver->entries->lock);
    }
    if (!taken) store_entry_close(entry);
    return taken;
}

void store_saver_write(store_saver *saver, const char *salt, const kakeya_session *session, size_t prompt_tokens,
                       store_reason reason) {
    (void)save_session(saver, salt, session, prompt_tokens, reason, 0);
}

size_t store_saver_least_tokens(const store_saver *saver) { return saver->options.least_tokens; }

void store_saver_save_all(store_saver *saver, double seconds) {
    double end = clock_seconds() + seconds;
    while (saver && clock_seconds() < end) {
        store_entry *newest = NULL;
        for (store_entry *e = saver->entries->first; e; e = e->next)
            if (worth_saving(saver, e) && (!newest || e->used > newest->used)) newest = e;
        store_entry *waiting = newest ? NULL : saver->outgoing;
        if (waiting) {
            saver->outgoing = waiting->next;
            store_saver_dispose_now(saver, waiting);
            continue;
        }
        if (!newest) return;
        (void)save(saver, newest, newest->live ? STORE_SHUTDOWN : newest->reason);
        newest->saved = true; /* or it cannot be */
    }
}
