#include "serve/store_named.h"

#include <cJSON.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/platform.h"

static const char id_prefix[] = "sess-";

typedef struct named_session {
    char id[STORE_ID_BYTES];
    char *note;              /* or NULL */
    kakeya_session *session; /* NULL: taken, or on disk */
    bool taken;
    bool busy; /* being saved or loaded: for nobody else */
    bool saved;
    size_t tokens, kv_bytes;
    uint64_t file_ms; /* when the file that it is the same as was made */
    double used;      /* monotonic */
    struct named_session *next;
} named_session;

struct store_named {
    kakeya_engine *engine;
    kakeya_session_options session;
    store_disk *disk;
    store_named_options options;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* monotonic clock */
    named_session *first;
    pthread_t thread;
    bool running, stopping;
    size_t leaving; /* sessions that are being closed for room */
    store_named_counts counts;
};

static void file_name(const char *id, char name[STORE_NAME_BYTES]) {
    snprintf(name, STORE_NAME_BYTES, "%.*s.kkc", STORE_ID_BYTES - 1, id);
}

/* Ids come from clients and become names of files. */
static bool is_id(const char *id) {
    size_t n = strlen(id), prefix = sizeof id_prefix - 1;
    return n == prefix + 32 && strncmp(id, id_prefix, prefix) == 0 && strspn(id + prefix, "0123456789abcdef") == 32;
}

static named_session *find(store_named *named, const char *id) {
    named_session *s = named->first;
    while (s && strcmp(s->id, id) != 0) s = s->next;
    return s;
}

static named_session *add(store_named *named, const char *id) {
    named_session *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    snprintf(s->id, sizeof s->id, "%s", id);
    s->used = clock_seconds();
    s->next = named->first;
    named->first = s;
    return s;
}

/* Out of the table; the session is the caller's to close. */
static kakeya_session *forget(store_named *named, named_session *s) {
    named_session **at = &named->first;
    while (*at != s) at = &(*at)->next;
    *at = s->next;
    kakeya_session *session = s->session;
    free(s->note);
    free(s);
    return session;
}

static bool look_at_file(store_named *named, const char *id, store_disk_about *about) {
    char name[STORE_NAME_BYTES];
    if (!named->disk || !is_id(id)) return false;
    file_name(id, name);
    return store_disk_look(named->disk, name, about);
}

static void remove_file(store_named *named, const char *id) {
    char name[STORE_NAME_BYTES];
    if (!named->disk) return;
    file_name(id, name);
    store_disk_remove(named->disk, name);
}

static void measure(named_session *s) {
    (void)kakeya_session_tokens(s->session, &s->tokens);
    s->kv_bytes = kakeya_session_kv_bytes(s->session).total;
}

/* ---------------------------------------------------------------------------------------------------------- saving */

static char *metadata_of(const store_named *named, const named_session *s) {
    cJSON *json = cJSON_CreateObject();
    bool complete = json && cJSON_AddStringToObject(json, "reason", "idle") &&
                    cJSON_AddStringToObject(json, "model", named->options.model ? named->options.model : "") &&
                    cJSON_AddStringToObject(json, "name", s->id) &&
                    (!s->note || cJSON_AddStringToObject(json, "note", s->note));
    char *text = complete ? cJSON_PrintUnformatted(json) : NULL;
    cJSON_Delete(json);
    return text;
}

/* A session is busy no more, or has left memory. With the lock. */
static void tell_changed(store_named *named) {
    pthread_cond_broadcast(&named->changed);
    if (named->options.on_room) named->options.on_room(named->options.user);
}

/* With the lock, which it gives up meanwhile; the session is in memory and nobody's. */
static bool save(store_named *named, named_session *s, store_reason reason) {
    if (s->saved) return true;
    if (!named->disk || s->tokens == 0) return false;
    char name[STORE_NAME_BYTES];
    file_name(s->id, name);
    s->busy = true;
    pthread_mutex_unlock(&named->lock);
    char *metadata = metadata_of(named, s);
    bool done =
        metadata && store_disk_save(named->disk, s->session, NULL, name, 0, reason, metadata, NULL) == KAKEYA_OK;
    free(metadata);
    store_disk_about about = {0};
    if (done) done = look_at_file(named, s->id, &about);
    pthread_mutex_lock(&named->lock);
    s->busy = false;
    s->saved = done;
    s->file_ms = about.created_ms;
    tell_changed(named);
    return done;
}

static bool is_idle(const named_session *s) { return s->session && !s->taken && !s->busy; }

/* Of those that hold at least so many bytes. */
static named_session *least_lately_used(const store_named *named, size_t least_bytes) {
    named_session *oldest = NULL;
    for (named_session *s = named->first; s; s = s->next)
        if (is_idle(s) && s->kv_bytes >= least_bytes && (!oldest || s->used < oldest->used)) oldest = s;
    return oldest;
}

/* Into a temporary file, from which the next use takes it up. With the lock, which it gives up meanwhile. */
static bool park(store_named *named, named_session *s) {
    s->busy = true;
    pthread_mutex_unlock(&named->lock);
    bool done = kakeya_session_park(s->session, NULL) == KAKEYA_OK;
    pthread_mutex_lock(&named->lock);
    s->busy = false;
    if (done) s->kv_bytes = 0;
    tell_changed(named);
    return done;
}

typedef enum eviction {
    EVICT_WHOLE,    /* to disk, or away */
    EVICT_LOSSLESS, /* where there is no directory into a temporary file, but never away */
} eviction;

/* Out of memory. With the lock, which it gives up meanwhile. */
static size_t evict(store_named *named, named_session *s, eviction how) {
    char id[STORE_ID_BYTES];
    memcpy(id, s->id, sizeof id);
    bool saved = save(named, s, STORE_IDLE);
    s = find(named, id); /* somebody may have taken or dropped it */
    if (!s || !is_idle(s)) return 0;
    size_t bytes = s->kv_bytes;
    if (!saved && how != EVICT_WHOLE) {
        if (park(named, s)) return bytes ? bytes : 1;
        return 0;
    }
    kakeya_session *session = s->session;
    s->session = NULL;
    s->kv_bytes = 0;
    if (!saved) {
        (void)forget(named, s);
        named->counts.dropped_lru++;
    }
    named->leaving++;
    pthread_mutex_unlock(&named->lock);
    kakeya_session_close(session);
    pthread_mutex_lock(&named->lock);
    named->leaving--;
    tell_changed(named);
    return bytes ? bytes : 1;
}

size_t store_named_relieve(store_named *named) {
    pthread_mutex_lock(&named->lock);
    named_session *oldest = least_lately_used(named, 1);
    size_t bytes = oldest ? evict(named, oldest, EVICT_LOSSLESS) : 0;
    pthread_mutex_unlock(&named->lock);
    return bytes;
}

bool store_named_is_saving(store_named *named) {
    pthread_mutex_lock(&named->lock);
    bool saving = named->leaving > 0;
    for (const named_session *s = named->first; s; s = s->next) saving |= s->busy;
    pthread_mutex_unlock(&named->lock);
    return saving;
}

/* One that would be lost with the memory. Waits for those that are being saved. With the lock. */
static named_session *next_unsaved(store_named *named) {
    for (named_session *s = named->first; s;) {
        if (s->busy) {
            pthread_cond_wait(&named->changed, &named->lock);
            s = named->first;
        } else if (s->session && s->tokens && !s->saved) {
            return s;
        } else {
            s = s->next;
        }
    }
    return NULL;
}

/* Out of memory, one after the other, because closing one waits for the engine. With the lock, which it gives up
 * meanwhile. */
static void close_sessions(store_named *named) {
    for (named_session *s = named->first; s;) {
        kakeya_session *session = s->session;
        s->session = NULL;
        s->kv_bytes = 0;
        if (session) {
            pthread_mutex_unlock(&named->lock);
            kakeya_session_close(session);
            pthread_mutex_lock(&named->lock);
        }
        s = session ? named->first : s->next;
    }
}

kakeya_status store_named_unload(store_named *named, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    pthread_mutex_lock(&named->lock);
    for (named_session *s; status == KAKEYA_OK && (s = next_unsaved(named)) != NULL;) {
        char id[STORE_ID_BYTES];
        memcpy(id, s->id, sizeof id);
        if (!named->disk)
            status = error_set(error, KAKEYA_IO, "session %s is in memory alone (no --session-dir)", id);
        else if (!save(named, s, STORE_IDLE))
            status = error_set(error, KAKEYA_IO, "session %s cannot be saved", id);
    }
    if (status == KAKEYA_OK) {
        close_sessions(named);
        named->engine = NULL;
    }
    pthread_mutex_unlock(&named->lock);
    return status;
}

size_t store_named_give_up(store_named *named) {
    size_t lost = 0;
    pthread_mutex_lock(&named->lock);
    named->engine = NULL;
    for (named_session *s; (s = next_unsaved(named)) != NULL; lost++) {
        kakeya_session *session = forget(named, s);
        pthread_mutex_unlock(&named->lock);
        kakeya_session_close(session);
        pthread_mutex_lock(&named->lock);
    }
    close_sessions(named);
    named->counts.dropped_lost += lost;
    pthread_mutex_unlock(&named->lock);
    return lost;
}

void store_named_resume(store_named *named, kakeya_engine *engine) {
    pthread_mutex_lock(&named->lock);
    named->engine = engine;
    pthread_mutex_unlock(&named->lock);
}

/* ---------------------------------------------------------------------------------------------------- the timer */

static void drop_file(void *user, const char *name, double idle) {
    store_named *named = user;
    char id[STORE_NAME_BYTES];
    snprintf(id, sizeof id, "%s", name);
    char *dot = strchr(id, '.');
    if (dot) *dot = 0;
    if (idle <= named->options.ttl || !is_id(id)) return;
    pthread_mutex_lock(&named->lock);
    bool ours = find(named, id) != NULL;
    pthread_mutex_unlock(&named->lock);
    if (ours) return;
    store_disk_remove(named->disk, name);
    pthread_mutex_lock(&named->lock);
    named->counts.dropped_ttl++;
    pthread_mutex_unlock(&named->lock);
}

/* One session whose time is over is dropped, or one that is idle is saved; false if there is none. With the lock. */
static bool tend_one(store_named *named, double now) {
    for (named_session *s = named->first; s; s = s->next) {
        if (s->taken || s->busy) continue;
        double idle = now - s->used;
        if (named->options.ttl > 0 && idle > named->options.ttl) {
            char id[STORE_ID_BYTES];
            memcpy(id, s->id, sizeof id);
            kakeya_session *session = forget(named, s);
            named->counts.dropped_ttl++;
            pthread_mutex_unlock(&named->lock);
            kakeya_session_close(session);
            remove_file(named, id);
            pthread_mutex_lock(&named->lock);
            return true;
        }
        if (s->session && !s->saved && s->tokens && named->disk && idle > named->options.idle_delay)
            return save(named, s, STORE_IDLE);
    }
    return false;
}

static size_t idle_bytes(const store_named *named) {
    size_t bytes = 0;
    for (const named_session *s = named->first; s; s = s->next)
        if (s->session && !s->taken) bytes += s->kv_bytes;
    return bytes;
}

/* One session that there is no memory for leaves it; false if there is none. With the lock, which it gives up
 * meanwhile. */
static bool shrink(store_named *named) {
    size_t bytes = idle_bytes(named);
    if (!named->options.too_much || bytes == 0) return false;
    pthread_mutex_unlock(&named->lock);
    bool too_much = named->options.too_much(named->options.user, bytes);
    pthread_mutex_lock(&named->lock);
    named_session *oldest = too_much ? least_lately_used(named, 1) : NULL;
    return oldest && evict(named, oldest, EVICT_LOSSLESS) > 0;
}

/* When the next session is to be saved. What was due before has just been tried: it is tried again at the latest. */
static double next_save(const store_named *named, double now, double latest) {
    for (const named_session *s = named->first; s && named->disk; s = s->next) {
        double due = s->used + named->options.idle_delay;
        if (is_idle(s) && !s->saved && s->tokens && due > now && due < latest) latest = due;
    }
    return latest;
}

static void *run(void *user) {
    store_named *named = user;
    double period = named->options.idle_delay;
    if (named->options.ttl > 0 && named->options.ttl < period) period = named->options.ttl;
    if (period < 0.05) period = 0.05;
    pthread_mutex_lock(&named->lock);
    double look = 0; /* at the directory, when */
    while (!named->stopping) {
        while (!named->stopping && (tend_one(named, clock_seconds()) || shrink(named))) continue;
        double now = clock_seconds();
        if (named->disk && named->options.ttl > 0 && !named->stopping && now >= look) {
            look = now + period;
            pthread_mutex_unlock(&named->lock);
            store_disk_each(named->disk, id_prefix, drop_file, named);
            pthread_mutex_lock(&named->lock);
        }
        /* Whoever gives a session back wakes this thread. */
        now = clock_seconds();
        if (!named->stopping)
            (void)platform_condition_wait(&named->changed, &named->lock, next_save(named, now, now + period));
    }
    pthread_mutex_unlock(&named->lock);
    return NULL;
}

/* ---------------------------------------------------------------------------------------------------- open, close */

kakeya_status store_named_open(kakeya_engine *engine, const kakeya_session_options *session, store_disk *disk,
                               const store_named_options *options, store_named **out, kakeya_error *error) {
    *out = NULL;
    store_named *named = calloc(1, sizeof *named);
    if (!named) return error_set(error, KAKEYA_OUT_OF_MEMORY, "sessions: out of memory");
    *named = (store_named){.engine = engine, .session = *session, .disk = disk, .options = *options};
    pthread_mutex_init(&named->lock, NULL);
    platform_condition_init(&named->changed);
    named->running = platform_thread_create(&named->thread, run, named) == 0;
    if (!named->running) {
        store_named_close(named, 0);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "sessions: no thread for dropping them");
    }
    *out = named;
    return KAKEYA_OK;
}

void store_named_close(store_named *named, double end) {
    if (!named) return;
    if (named->running) {
        pthread_mutex_lock(&named->lock);
        named->stopping = true;
        pthread_cond_broadcast(&named->changed);
        pthread_mutex_unlock(&named->lock);
        pthread_join(named->thread, NULL);
    }
    pthread_mutex_lock(&named->lock);
    while (clock_seconds() < end) {
        named_session *newest = NULL;
        for (named_session *s = named->first; s; s = s->next)
            if (s->session && !s->saved && (!newest || s->used > newest->used)) newest = s;
        if (!newest) break;
        (void)save(named, newest, STORE_SHUTDOWN);
        newest->saved = true; /* or it cannot be */
    }
    while (named->first) kakeya_session_close(forget(named, named->first));
    pthread_mutex_unlock(&named->lock);
    pthread_cond_destroy(&named->changed);
    pthread_mutex_destroy(&named->lock);
    free(named);
}

/* ------------------------------------------------------------------------------------------------ create, take, give
 */

static bool make_id(char id[STORE_ID_BYTES]) {
    unsigned char random[16];
    if (!platform_random(random, sizeof random)) return false;
    size_t at = (size_t)snprintf(id, STORE_ID_BYTES, "%s", id_prefix);
    for (size_t i = 0; i < sizeof random; i++) at += (size_t)snprintf(id + at, STORE_ID_BYTES - at, "%02x", random[i]);
    return true;
}

static size_t in_memory(const store_named *named) {
    size_t n = 0;
    for (const named_session *s = named->first; s; s = s->next) n += s->session != NULL || s->taken;
    return n;
}

/* Room for one more session in memory. With the lock, which it gives up meanwhile. */
static bool make_room(store_named *named) {
    while (in_memory(named) >= named->options.most) {
        named_session *oldest = least_lately_used(named, 0);
        if (!oldest || evict(named, oldest, EVICT_WHOLE) == 0) return false;
    }
    return true;
}

store_named_result store_named_create(store_named *named, const char *note, char id[STORE_ID_BYTES],
                                      kakeya_error *error) {
    kakeya_session *session = NULL;
    char *copy = note ? strdup(note) : NULL;
    pthread_mutex_lock(&named->lock);
    bool room = make_room(named);
    pthread_mutex_unlock(&named->lock);
    if (!room) {
        free(copy);
        return STORE_NAMED_FULL;
    }
    kakeya_status status = KAKEYA_OK;
    if (!make_id(id) || (note && !copy))
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "session: out of memory or randomness");
    if (status == KAKEYA_OK) status = kakeya_session_open(named->engine, &named->session, &session, error);
    if (status != KAKEYA_OK) {
        free(copy);
        return STORE_NAMED_FAILED;
    }
    pthread_mutex_lock(&named->lock);
    named_session *s = add(named, id);
    if (s) {
        s->note = copy;
        s->session = session;
        measure(s);
        pthread_cond_broadcast(&named->changed);
    }
    pthread_mutex_unlock(&named->lock);
    if (s) return STORE_NAMED_OK;
    free(copy);
    kakeya_session_close(session);
    (void)error_set(error, KAKEYA_OUT_OF_MEMORY, "session: out of memory");
    return STORE_NAMED_FAILED;
}

static char *note_in(const char *metadata) {
    cJSON *json = cJSON_Parse(metadata);
    const cJSON *note = cJSON_GetObjectItemCaseSensitive(json, "note");
    char *copy = cJSON_IsString(note) ? strdup(note->valuestring) : NULL;
    cJSON_Delete(json);
    return copy;
}

/* Brings a session that is on disk, or was empty, into memory. With the lock, which it gives up meanwhile; the session
 * is busy. */
static store_named_result load(store_named *named, named_session *s, kakeya_error *error) {
    char name[STORE_NAME_BYTES];
    file_name(s->id, name);
    kakeya_session *session = NULL;
    char *metadata = NULL;
    const bool empty = s->tokens == 0 && !s->saved; /* it has no file and needs none */
    bool room = make_room(named);
    pthread_mutex_unlock(&named->lock);
    kakeya_status status = KAKEYA_OK;
    if (room) {
        status = kakeya_session_open(named->engine, &named->session, &session, error);
        if (status == KAKEYA_OK && !empty)
            status = store_disk_load(named->disk, name, NULL, 0, session, NULL, &metadata, error);
    }
    char *note = metadata ? note_in(metadata) : NULL;
    free(metadata);
    if (status != KAKEYA_OK) {
        kakeya_session_close(session);
        session = NULL;
    }
    pthread_mutex_lock(&named->lock);
    if (!room) return STORE_NAMED_FULL;
    if (status == KAKEYA_IO || status == KAKEYA_FORMAT) return STORE_NAMED_UNKNOWN; /* the file is gone or damaged */
    if (status != KAKEYA_OK) return STORE_NAMED_FAILED;
    if (!s->note)
        s->note = note;
    else
        free(note);
    s->session = session;
    s->saved = !empty;
    measure(s);
    return STORE_NAMED_OK;
}

/* Whether a row says more than any file could. */
static bool is_newest(const named_session *s) { return s->taken || s->busy || (s->session && !s->saved); }

/* The table's row of a name, which may so far be on disk alone. What another server has saved since then replaces what
 * has not changed here. Takes the lock, which is not held while the directory is looked at; *stale is to be closed
 * without it. */
static named_session *find_anywhere(store_named *named, const char *id, kakeya_session **stale) {
    store_disk_about about;
    *stale = NULL;
    pthread_mutex_lock(&named->lock);
    named_session *s = find(named, id);
    if (s && is_newest(s)) return s;
    pthread_mutex_unlock(&named->lock);
    bool there = look_at_file(named, id, &about);
    pthread_mutex_lock(&named->lock);
    s = find(named, id);
    if (!there || (s && is_newest(s))) return s;
    if (!s) s = add(named, id);
    if (s && (!s->session || s->file_ms != about.created_ms)) {
        *stale = s->session;
        s->session = NULL;
        s->kv_bytes = 0;
        s->saved = true;
        s->tokens = about.tokens;
        s->file_ms = about.created_ms;
        s->used = clock_seconds() - about.idle_seconds;
    }
    return s;
}

store_named_result store_named_take(store_named *named, const char *id, kakeya_session **out, char **note,
                                    kakeya_error *error) {
    *out = NULL;
    if (note) *note = NULL;
    kakeya_session *stale;
    named_session *s = find_anywhere(named, id, &stale);
    while (s && s->busy && !s->taken) { /* being saved */
        pthread_cond_wait(&named->changed, &named->lock);
        s = find(named, id);
    }
    store_named_result result = !s ? STORE_NAMED_UNKNOWN : s->taken ? STORE_NAMED_BUSY : STORE_NAMED_OK;
    if (result == STORE_NAMED_OK && !s->session) {
        s->taken = true; /* others meet a session in use */
        result = load(named, s, error);
        s->taken = false;
        if (result == STORE_NAMED_UNKNOWN) (void)forget(named, s);
    }
    if (result == STORE_NAMED_OK) {
        *out = s->session;
        s->session = NULL;
        s->taken = true;
        s->used = clock_seconds();
        if (note && s->note) *note = strdup(s->note);
    }
    pthread_mutex_unlock(&named->lock);
    kakeya_session_close(stale);
    return result;
}

void store_named_give(store_named *named, const char *id, kakeya_session *session) {
    if (session) kakeya_session_clear_cancel(session);
    pthread_mutex_lock(&named->lock);
    named_session *s = find(named, id);
    if (s && s->taken) {
        s->taken = false;
        s->used = clock_seconds();
        s->session = session;
        session = NULL;
        if (s->session) {
            measure(s);
            s->saved = false;
        } else {
            (void)forget(named, s);
        }
    }
    pthread_cond_broadcast(&named->changed);
    pthread_mutex_unlock(&named->lock);
    kakeya_session_close(session);
}

store_named_result store_named_drop(store_named *named, const char *id, size_t *tokens) {
    if (tokens) *tokens = 0;
    store_named_info info;
    store_named_result result = store_named_look(named, id, &info);
    if (result != STORE_NAMED_OK) return result;
    pthread_mutex_lock(&named->lock);
    named_session *s = find(named, id);
    while (s && s->busy && !s->taken) {
        pthread_cond_wait(&named->changed, &named->lock);
        s = find(named, id);
    }
    if (!s || s->taken) {
        pthread_mutex_unlock(&named->lock);
        return s ? STORE_NAMED_BUSY : STORE_NAMED_UNKNOWN;
    }
    if (tokens) *tokens = s->tokens;
    kakeya_session *session = forget(named, s);
    named->counts.dropped_closed++;
    pthread_mutex_unlock(&named->lock);
    kakeya_session_close(session);
    remove_file(named, id);
    return STORE_NAMED_OK;
}

store_named_result store_named_look(store_named *named, const char *id, store_named_info *info) {
    *info = (store_named_info){0};
    kakeya_session *stale;
    named_session *s = find_anywhere(named, id, &stale);
    if (s)
        *info = (store_named_info){
            .tokens = s->tokens, .kv_bytes = s->kv_bytes, .idle_seconds = clock_seconds() - s->used, .busy = s->taken};
    pthread_mutex_unlock(&named->lock);
    kakeya_session_close(stale);
    return s ? STORE_NAMED_OK : STORE_NAMED_UNKNOWN;
}

void store_named_counts_get(store_named *named, store_named_counts *out) {
    pthread_mutex_lock(&named->lock);
    *out = named->counts;
    out->memory = in_memory(named);
    out->bytes = idle_bytes(named);
    out->disk = out->taken = 0;
    for (const named_session *s = named->first; s; s = s->next) {
        out->taken += s->taken;
        out->disk += !s->session && !s->taken;
    }
    pthread_mutex_unlock(&named->lock);
}
