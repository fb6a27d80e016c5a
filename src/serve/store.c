#include "serve/store.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "serve/store_entries.h"

struct prefix_store {
    kakeya_engine *engine;
    kakeya_session_options session; /* of the server, as far as this build knows them */
    store_log_fn log;
    void *log_user;
    pthread_mutex_t lock;
    pthread_cond_t ready; /* an entry is busy no more */
    store_entries entries;
    store_counts counts;
};

enum {
    DEFAULT_MAX_LIVE = 8,
    /* A checkpoint is made where a prompt has added so many tokens; less than that may be lost. */
    CHECKPOINT_TOKENS = 256,
};

/* ----------------------------------------------------------------------------------------------------- open, close */

/* What the K/V memory of a page of tokens takes under the server's policy. */
static kakeya_status measure_page(prefix_store *store, kakeya_error *error) {
    kakeya_kv_bytes bytes = {.size = sizeof bytes};
    kakeya_status status = kakeya_description_kv_bytes(kakeya_engine_description(store->engine), &store->session,
                                                       STORE_PAGE_TOKENS, &bytes, error);
    store->entries.page_bytes = bytes.each_token * STORE_PAGE_TOKENS;
    return status;
}

kakeya_status store_open(kakeya_engine *engine, const kakeya_session_options *session, const store_options *options,
                         prefix_store **out, kakeya_error *error) {
    *out = NULL;
    prefix_store *store = calloc(1, sizeof *store);
    if (!store) return error_set(error, KAKEYA_OUT_OF_MEMORY, "prefix store: out of memory");
    pthread_mutex_init(&store->lock, NULL);
    pthread_cond_init(&store->ready, NULL);
    store->engine = engine;
    store->session = *session;
    store->log = options->log;
    store->log_user = options->log_user;
    store->entries.ram_bytes = options->ram_bytes;
    store->entries.max_live = options->max_live > 0 ? (size_t)options->max_live : DEFAULT_MAX_LIVE;
    store->entries.prompt_rows_only = session->attention != KAKEYA_ATTENTION_NATIVE && !options->reuse_any;
    kakeya_status status = measure_page(store, error);
    if (status == KAKEYA_OK) {
        store->entries.index = store_index_open(store_key_seed(NULL, 0));
        if (!store->entries.index) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "prefix store: out of memory");
    }
    if (status != KAKEYA_OK) {
        store_close(store, 0);
        return status;
    }
    *out = store;
    return KAKEYA_OK;
}

void store_close(prefix_store *store, double save_seconds) {
    (void)save_seconds;
    if (!store) return;
    for (store_entry *e; (e = store->entries.first) != NULL;) {
        store_entries_remove(&store->entries, e);
        store_entry_close(e);
    }
    store_index_close(store->entries.index);
    pthread_cond_destroy(&store->ready);
    pthread_mutex_destroy(&store->lock);
    free(store);
}

/* ------------------------------------------------------------------------------------------------------------ room */

/* Gives up entries until the others fit. Sessions are closed outside of the lock, because that waits for the engine. */
static void trim(prefix_store *store, const store_entry *keep) {
    for (;;) {
        pthread_mutex_lock(&store->lock);
        store_entry *surplus = store_entries_surplus(&store->entries, keep, clock_seconds());
        if (surplus) store->counts.evictions++;
        pthread_mutex_unlock(&store->lock);
        if (!surplus) return;
        store_entry_close(surplus);
    }
}

/* False where there is nothing to give up. */
static bool give_up_one(prefix_store *store, const store_entry *keep, size_t *bytes) {
    pthread_mutex_lock(&store->lock);
    size_t before = store_entries_bytes(&store->entries);
    store_entry *worst = store_entries_worst(&store->entries, keep, clock_seconds());
    *bytes = before - store_entries_bytes(&store->entries);
    if (worst) store->counts.evictions++;
    pthread_mutex_unlock(&store->lock);
    store_entry_close(worst);
    return worst != NULL;
}

size_t store_relieve(prefix_store *store, size_t bytes) {
    size_t freed = 0, piece;
    while (freed < bytes && give_up_one(store, NULL, &piece)) freed += piece;
    return freed;
}

/* ------------------------------------------------------------------------------------------------------------ take */

static kakeya_status open_empty(prefix_store *store, kakeya_session **out, kakeya_error *error) {
    size_t freed;
    kakeya_status status;
    do {
        status = kakeya_session_open(store->engine, &store->session, out, error);
    } while (status == KAKEYA_OUT_OF_MEMORY && give_up_one(store, NULL, &freed));
    return status;
}

/* Whether the request may have the session itself. What goes on where the entry ends loses nothing; what goes on
 * shortly before loses an answer and less of its prompt than a checkpoint would have kept. */
static bool may_move(const store_entry *entry, size_t tokens) {
    return entry->live && tokens + CHECKPOINT_TOKENS > entry->prompt_tokens;
}

static kakeya_status fork_entry(prefix_store *store, const store_entry *entry, kakeya_session **out,
                                kakeya_error *error) {
    size_t freed;
    kakeya_status status;
    do {
        status = kakeya_session_fork(entry->session, out, error);
    } while (status == KAKEYA_OUT_OF_MEMORY && give_up_one(store, entry, &freed));
    return status;
}

/* The session of the entry that offers most, or a fork of it; NULL where there is none. */
static kakeya_session *take_from_memory(prefix_store *store, const int32_t *ids, size_t n, store_hit *hit) {
    kakeya_session *session = NULL;
    size_t tokens = 0;
    pthread_mutex_lock(&store->lock);
    store_entry *entry = store_entries_find(&store->entries, ids, n, &tokens);
    while (entry && entry->busy) {
        pthread_cond_wait(&store->ready, &store->lock);
        entry = store_entries_find(&store->entries, ids, n, &tokens);
    }
    if (!entry) {
        pthread_mutex_unlock(&store->lock);
        return NULL;
    }
    *hit = (store_hit){.tokens = tokens, .source = entry->live ? STORE_HIT_LIVE : STORE_HIT_RAM};
    entry->used = clock_seconds();
    entry->hits++;
    if (may_move(entry, tokens)) {
        store_entries_remove(&store->entries, entry);
        pthread_mutex_unlock(&store->lock);
        session = entry->session;
        entry->session = NULL;
        store_entry_close(entry);
    } else {
        entry->busy = true;
        pthread_mutex_unlock(&store->lock);
        if (fork_entry(store, entry, &session, NULL) != KAKEYA_OK) session = NULL;
        pthread_mutex_lock(&store->lock);
        entry->busy = false;
        pthread_cond_broadcast(&store->ready);
        pthread_mutex_unlock(&store->lock);
    }
    if (session && kakeya_session_truncate(session, tokens, NULL) != KAKEYA_OK) {
        kakeya_session_close(session);
        session = NULL;
    }
    return session;
}

static void count_take(prefix_store *store, const store_hit *hit) {
    pthread_mutex_lock(&store->lock);
    store->counts.takes++;
    store->counts.hits[hit->source]++;
    store->counts.tokens[hit->source] += hit->tokens;
    pthread_mutex_unlock(&store->lock);
}

kakeya_status store_take(prefix_store *store, const int32_t *ids, size_t n, bool reuse, kakeya_session **out,
                         store_hit *hit, kakeya_error *error) {
    store_hit found = {0};
    *out = reuse && n > 1 ? take_from_memory(store, ids, n - 1, &found) : NULL;
    if (!*out) found = (store_hit){0};
    if (hit) *hit = found;
    if (reuse) count_take(store, &found);
    return *out ? KAKEYA_OK : open_empty(store, out, error);
}

/* ------------------------------------------------------------------------------------------------ give, checkpoint */

/* Puts the entry in, in place of one of the same ids and kind; false when out of memory. */
static bool put(prefix_store *store, store_entry *entry) {
    pthread_mutex_lock(&store->lock);
    store_entry *same = store_entries_find_same(&store->entries, entry->ids, entry->n, entry->live);
    if (same && same->busy) same = NULL;
    if (same) {
        entry->hits += same->hits;
        if (same->prompt_tokens > entry->prompt_tokens) entry->prompt_tokens = same->prompt_tokens;
        store_entries_remove(&store->entries, same);
    }
    bool added = store_entries_add(&store->entries, entry);
    if (added && !entry->live) store->counts.checkpoints++;
    pthread_mutex_unlock(&store->lock);
    store_entry_close(same);
    return added;
}

void store_give(prefix_store *store, kakeya_session *session, size_t prompt_tokens) {
    if (!session) return;
    kakeya_session_clear_cancel(session);
    store_entry *entry = store_entry_open(session, prompt_tokens, STORE_TURN_END, true);
    if (!entry) {
        kakeya_session_close(session);
        return;
    }
    if (put(store, entry))
        trim(store, entry);
    else
        store_entry_close(entry);
}

/* A copy would only repeat what is there. */
static bool refresh(prefix_store *store, const kakeya_session *session, store_reason reason) {
    size_t n;
    const int32_t *ids = kakeya_session_tokens(session, &n);
    pthread_mutex_lock(&store->lock);
    store_entry *same = store_entries_find_same(&store->entries, ids, n, false);
    bool there = same && (reason == STORE_TURN_END || same->prompt_tokens == n);
    if (there) {
        same->used = clock_seconds();
        if (reason == STORE_SYSTEM_TURN) same->reason = reason;
    }
    pthread_mutex_unlock(&store->lock);
    return there;
}

void store_checkpoint(prefix_store *store, const kakeya_session *session, store_reason reason) {
    size_t n;
    (void)kakeya_session_tokens(session, &n);
    if (store->entries.ram_bytes == 0 || n == 0 || refresh(store, session, reason)) return;
    kakeya_session *copy = NULL;
    if (kakeya_session_fork(session, &copy, NULL) != KAKEYA_OK) return;
    store_entry *entry = store_entry_open(copy, reason == STORE_TURN_END ? 0 : n, reason, false);
    if (!entry)
        kakeya_session_close(copy);
    else if (put(store, entry))
        trim(store, NULL);
    else
        store_entry_close(entry);
}

/* ---------------------------------------------------------------------------------------------------------- counts */

void store_counts_get(prefix_store *store, store_counts *out) {
    pthread_mutex_lock(&store->lock);
    *out = store->counts;
    out->live = store->entries.live;
    out->ram = store->entries.checkpoints;
    out->ram_bytes = store_entries_bytes(&store->entries);
    pthread_mutex_unlock(&store->lock);
}
