#include "serve/store.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "kakeya_study.h"
#include "serve/store_rules.h"
#include "serve/store_saver.h"

struct prefix_store {
    kakeya_engine *engine;
    kakeya_session_options session; /* of the server, as far as this build knows them */
    store_options options;
    store_entries entries; /* whose lock is the store's */
    store_disk *disk;      /* NULL: none */
    store_saver *saver;    /* with disk */
    store_named *named;
    _Atomic size_t in_hand;
    size_t leaving;      /* entries that are being closed for room, under the entries' lock */
    double prompt_speed; /* tokens per second; 0: not known */
    store_counts counts;
};

enum {
    DEFAULT_MAX_LIVE = 8,
    DEFAULT_MAX_NAMED = 64,
    DEFAULT_LEAST_FILE_TOKENS = 512,
    /* A checkpoint is made where a prompt has added so many tokens; less than that may be lost. */
    CHECKPOINT_TOKENS = 256,
    LOAD_TRIES = 3, /* files that turn out to be unusable */
};
static const double default_checkpoint_delay = 2, default_idle_delay = 30, default_named_delay = 1;
/* Memory is preferred to a file that holds no more than 4/3 of it. */
static const double memory_share = 0.75;

/* ----------------------------------------------------------------------------------------------------- open, close */

/* What the K/V memory of a page of tokens takes under the server's policy. */
static kakeya_status measure_page(prefix_store *store, kakeya_error *error) {
    kakeya_kv_bytes bytes = {.size = sizeof bytes};
    kakeya_status status = kakeya_description_kv_bytes(kakeya_engine_description(store->engine), &store->session,
                                                       STORE_PAGE_TOKENS, &bytes, error);
    store->entries.page_bytes = bytes.each_token * STORE_PAGE_TOKENS;
    return status;
}

/* Bytes of "cpu/avx512, 2 threads" in front of the last part: how many threads there are decides no bits. */
static size_t without_threads(const char *backend) {
    const char *last = strrchr(backend, ',');
    size_t digits = last && last[1] == ' ' ? strspn(last + 2, "0123456789") : 0;
    bool threads = digits && strncmp(last + 2 + digits, " thread", 7) == 0;
    return threads ? (size_t)(last - backend) : strlen(backend);
}

/* Numbers of everything that a stored row's bits depend on: models, precision, policy; and the kernels, which are those
 * of the backend in this version. */
static kakeya_status identify(prefix_store *store, uint64_t *fingerprint, uint64_t *policy, kakeya_error *error) {
    kakeya_session *session = NULL;
    kakeya_status status = kakeya_session_open(store->engine, &store->session, &session, error);
    if (status != KAKEYA_OK) return status;
    char text[512];
    const char *backend = kakeya_engine_backend(store->engine);
    int n = snprintf(text, sizeof text, "%016" PRIx64 " %.*s %s", kakeya_session_policy(session),
                     (int)without_threads(backend), backend, kakeya_version());
    kakeya_session_close(session);
    *fingerprint = kakeya_engine_fingerprint(store->engine);
    *policy = store_key_seed(text, (size_t)n).low;
    return KAKEYA_OK;
}

static void say(const prefix_store *store, const char *line) {
    if (store->options.log) store->options.log(store->options.log_user, line);
}

/* Somebody may wait for the memory that there is now, or that can be given up now. With the entries' lock, or by
 * somebody who holds the engine. */
static void tell_relieved(void *user) {
    const prefix_store *store = user;
    if (store->engine) kakeya_engine_relieved(store->engine);
}

static void tell_names_relieved(void *user) {
    prefix_store *store = user;
    pthread_mutex_lock(&store->entries.lock);
    tell_relieved(store);
    pthread_mutex_unlock(&store->entries.lock);
}

/* A directory that cannot be used costs what it would have kept, and nothing else. */
static kakeya_status open_disk(prefix_store *store, uint64_t fingerprint, uint64_t policy, kakeya_error *error) {
    const store_options *o = &store->options;
    if (!o->directory) return KAKEYA_OK;
    const store_disk_options disk = {
        .directory = o->directory,
        .budget_bytes = o->disk_bytes,
        .fingerprint = fingerprint,
        .policy = policy,
        .prompt_rows_only = store->entries.prompt_rows_only,
        .blocks = o->blocks,
        .pause_seconds = o->pause_seconds,
        .chunk_bytes = o->chunk_bytes,
        .step = o->step,
        .step_user = o->step_user,
        .log = o->log,
        .log_user = o->log_user,
    };
    kakeya_error failure = {0};
    kakeya_status status = store_disk_open(&disk, &store->disk, &failure);
    if (status == KAKEYA_IO) {
        char line[sizeof failure.message + 64];
        snprintf(line, sizeof line, "sessions: %s; nothing is kept on disk", failure.message);
        say(store, line);
        return KAKEYA_OK;
    }
    if (status != KAKEYA_OK) return error_set(error, status, "%s", failure.message);
    const store_saver_options saver = {
        .least_tokens = o->least_file_tokens ? o->least_file_tokens : DEFAULT_LEAST_FILE_TOKENS,
        .checkpoint_delay = o->checkpoint_delay > 0 ? o->checkpoint_delay : default_checkpoint_delay,
        .idle_delay = o->idle_delay > 0 ? o->idle_delay : default_idle_delay,
        .model = o->model,
        .notes = o->notes,
        .notes_user = o->notes_user,
        .on_room = tell_relieved,
        .user = store,
    };
    return store_saver_open(&store->entries, store->disk, &saver, &store->saver, error);
}

static void trim(prefix_store *store, const store_entry *keep);

/* Prefixes and idle sessions with names share the memory; what has more than half of it gives up first. */
static bool names_take_too_much(void *user, size_t bytes) {
    prefix_store *store = user;
    store_entries *all = &store->entries;
    pthread_mutex_lock(&all->lock);
    all->other_bytes = bytes;
    pthread_mutex_unlock(&all->lock);
    trim(store, NULL);
    pthread_mutex_lock(&all->lock);
    bool too_much = all->ram_bytes && store_entries_bytes(all) + bytes > all->ram_bytes;
    pthread_mutex_unlock(&all->lock);
    return too_much;
}

kakeya_status store_open(kakeya_engine *engine, const kakeya_session_options *session, const store_options *options,
                         prefix_store **out, kakeya_error *error) {
    *out = NULL;
    uint64_t fingerprint = 0, policy = 0;
    prefix_store *store = calloc(1, sizeof *store);
    if (!store) return error_set(error, KAKEYA_OUT_OF_MEMORY, "prefix store: out of memory");
    store->engine = engine;
    store->session = *session;
    store->options = *options;
    store->entries.ram_bytes = options->ram_bytes;
    store->entries.max_live = options->max_live > 0 ? (size_t)options->max_live : DEFAULT_MAX_LIVE;
    store->entries.prompt_rows_only = session->attention != KAKEYA_ATTENTION_NATIVE && !options->reuse_any;
    store->entries.blocks = options->blocks;
    kakeya_status status = identify(store, &fingerprint, &policy, error);
    if (!store_entries_open(&store->entries, store_file_seed(fingerprint, policy, 0)) && status == KAKEYA_OK)
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "prefix store: out of memory");
    if (status == KAKEYA_OK) status = measure_page(store, error);
    if (status == KAKEYA_OK) status = open_disk(store, fingerprint, policy, error);
    const store_named_options named = {
        .most = options->max_named ? options->max_named : DEFAULT_MAX_NAMED,
        .ttl = options->session_ttl,
        .idle_delay = options->idle_delay > 0 ? options->idle_delay : default_named_delay,
        .model = options->model,
        .too_much = names_take_too_much,
        .on_room = tell_names_relieved,
        .user = store,
    };
    if (status == KAKEYA_OK) status = store_named_open(engine, session, store->disk, &named, &store->named, error);
    if (status != KAKEYA_OK) {
        store_close(store, 0);
        return status;
    }
    *out = store;
    return KAKEYA_OK;
}

void store_close(prefix_store *store, double save_seconds) {
    if (!store) return;
    double end = clock_seconds() + save_seconds;
    store_saver_stop(store->saver);
    store_named_close(store->named, end); /* nobody could compute these again */
    store_saver_save_all(store->saver, end - clock_seconds());
    store_saver_close(store->saver);
    store_entries_close(&store->entries);
    store_disk_close(store->disk);
    free(store);
}

/* The entry that was used last and that nobody is writing, out of the table; waits for the writer. NULL: there is none.
 */
static store_entry *take_newest(store_entries *all) {
    store_entry *newest;
    pthread_mutex_lock(&all->lock);
    for (;;) {
        newest = NULL;
        for (store_entry *e = all->first; e; e = e->next)
            if (!e->busy && (!newest || e->used > newest->used)) newest = e;
        if (newest || !all->first) break;
        pthread_cond_wait(&all->ready, &all->lock);
    }
    if (newest) store_entries_remove(all, newest);
    pthread_mutex_unlock(&all->lock);
    return newest;
}

/* Threads of the store's own may be telling it something. */
static void forget_engine(prefix_store *store) {
    pthread_mutex_lock(&store->entries.lock);
    store->engine = NULL;
    pthread_mutex_unlock(&store->entries.lock);
}

kakeya_status store_unload(prefix_store *store, double save_seconds, kakeya_error *error) {
    double end = clock_seconds() + save_seconds;
    kakeya_status status = store_named_unload(store->named, error);
    if (status != KAKEYA_OK) return status;
    for (store_entry *entry; (entry = take_newest(&store->entries)) != NULL;)
        store_saver_dispose_now(clock_seconds() < end ? store->saver : NULL, entry);
    store_saver_settle(store->saver);
    forget_engine(store);
    return KAKEYA_OK;
}

size_t store_give_up(prefix_store *store) {
    for (store_entry *entry; (entry = take_newest(&store->entries)) != NULL;) store_entry_close(entry);
    store_saver_settle(store->saver);
    forget_engine(store);
    return store_named_give_up(store->named);
}

void store_resume(prefix_store *store, kakeya_engine *engine) {
    store->engine = engine;
    store_named_resume(store->named, engine);
}

store_named *store_names(prefix_store *store) { return store->named; }

void store_note_speed(prefix_store *store, double prompt_tokens_per_second) {
    pthread_mutex_lock(&store->entries.lock);
    if (prompt_tokens_per_second > store->prompt_speed) store->prompt_speed = prompt_tokens_per_second;
    pthread_mutex_unlock(&store->entries.lock);
}

/* ------------------------------------------------------------------------------------------------------------ room */

/* Gives up entries until the others fit. Sessions are closed outside of the lock, because that waits for the engine. */
static void trim(prefix_store *store, const store_entry *keep) {
    for (;;) {
        pthread_mutex_lock(&store->entries.lock);
        store_entry *surplus = store_entries_surplus(&store->entries, keep, clock_seconds());
        if (surplus) store->counts.evictions++;
        store->leaving += surplus != NULL;
        pthread_mutex_unlock(&store->entries.lock);
        if (!surplus) return;
        (void)store_saver_dispose(store->saver, surplus);
        pthread_mutex_lock(&store->entries.lock);
        store->leaving--;
        tell_relieved(store);
        pthread_mutex_unlock(&store->entries.lock);
    }
}

/* False where there is nothing to give up. */
static bool give_up_one(prefix_store *store, const store_entry *keep, size_t *bytes) {
    pthread_mutex_lock(&store->entries.lock);
    size_t before = store_entries_bytes(&store->entries);
    store_entry *worst = store_entries_worst(&store->entries, keep, clock_seconds());
    *bytes = before - store_entries_bytes(&store->entries);
    if (worst) store->counts.evictions++;
    pthread_mutex_unlock(&store->entries.lock);
    store_saver_dispose_now(store->saver, worst);
    return worst != NULL;
}

/* *later: its memory comes back once it is saved. */
static bool give_up_soon(prefix_store *store, size_t *bytes, bool *later) {
    store_entries *all = &store->entries;
    pthread_mutex_lock(&all->lock);
    size_t before = store_entries_bytes(all);
    store_entry *worst = store_entries_worst(all, NULL, clock_seconds());
    *bytes = before - store_entries_bytes(all);
    if (worst) store->counts.evictions++;
    pthread_mutex_unlock(&all->lock);
    *later |= worst && store_saver_dispose(store->saver, worst);
    return worst != NULL;
}

/* Sessions whose memory can be had in a moment. */
static bool is_busy(prefix_store *store) {
    if (atomic_load(&store->in_hand) || store_named_is_saving(store->named)) return true;
    pthread_mutex_lock(&store->entries.lock);
    bool busy = store->leaving || store_saver_is_writing(store->saver);
    for (const store_entry *e = store->entries.first; e; e = e->next) busy |= e->busy;
    pthread_mutex_unlock(&store->entries.lock);
    return busy;
}

size_t store_relieve(prefix_store *store, size_t bytes) {
    size_t given = 0, piece;
    bool later = false;
    while (given < bytes && give_up_soon(store, &piece, &later)) given += piece;
    while (given < bytes && (piece = store_named_relieve(store->named)) > 0) given += piece;
    return later || (given == 0 && is_busy(store)) ? KAKEYA_RELIEF_LATER : given;
}

void store_hand_begin(prefix_store *store) { atomic_fetch_add(&store->in_hand, 1); }

void store_hand_end(prefix_store *store) {
    atomic_fetch_sub(&store->in_hand, 1);
    tell_relieved(store);
}

/* ------------------------------------------------------------------------------------------------------------ take */

static kakeya_status open_empty(prefix_store *store, kakeya_session **out, kakeya_error *error) {
    return kakeya_session_open(store->engine, &store->session, out, error);
}

/* Whether the request may have the session itself. What goes on where the entry ends loses nothing; what goes on
 * shortly before loses an answer and less of its prompt than a checkpoint would have kept. */
static bool may_move(const store_entry *entry, size_t tokens) {
    return entry->live && tokens + CHECKPOINT_TOKENS > entry->prompt_end;
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

/* The session becomes what it has in common with the ids, of which at most n - 1 count as found. Returns how many. */
static size_t keep_common(kakeya_session *session, const int32_t *ids, size_t n) {
    size_t held, common = 0;
    int32_t *owned;
    const int32_t *keys = store_keys(session, &held, &owned);
    while (keys && common < held && common < n && keys[common] == ids[common]) common++;
    while (common && common < held && keys[common] < 0 && keys[common - 1] < 0) common--; /* no picture is cut */
    free(owned);
    if (kakeya_session_truncate(session, common, NULL) != KAKEYA_OK) return 0;
    size_t found = kakeya_session_reachable(session, ids, n);
    return found < n ? found : n - 1;
}

/* The session of the entry that offers most, or a fork of it; NULL where there is none. */
static kakeya_session *take_from_memory(prefix_store *store, const char *salt, const int32_t *ids, size_t n,
                                        store_hit *hit) {
    kakeya_session *session = NULL;
    size_t tokens = 0;
    pthread_mutex_lock(&store->entries.lock);
    store_entry *entry = store_entries_find(&store->entries, salt, ids, n - 1, &tokens);
    while (entry && entry->busy) {
        pthread_cond_wait(&store->entries.ready, &store->entries.lock);
        entry = store_entries_find(&store->entries, salt, ids, n - 1, &tokens);
    }
    if (!entry) {
        pthread_mutex_unlock(&store->entries.lock);
        return NULL;
    }
    *hit = (store_hit){.tokens = tokens, .source = entry->live ? STORE_HIT_LIVE : STORE_HIT_RAM};
    entry->used = clock_seconds();
    entry->hits++;
    if (may_move(entry, tokens)) {
        store_entries_remove(&store->entries, entry);
        pthread_mutex_unlock(&store->entries.lock);
        session = entry->session;
        entry->session = NULL;
        store_entry_close(entry);
    } else {
        entry->busy = true;
        pthread_mutex_unlock(&store->entries.lock);
        if (fork_entry(store, entry, &session, NULL) != KAKEYA_OK) session = NULL;
        pthread_mutex_lock(&store->entries.lock);
        entry->busy = false;
        pthread_cond_broadcast(&store->entries.ready);
        pthread_mutex_unlock(&store->entries.lock);
    }
    if (session) hit->tokens = keep_common(session, ids, n);
    if (session && !hit->tokens) {
        kakeya_session_close(session);
        session = NULL;
    }
    return session;
}

static void count_take(prefix_store *store, const store_hit *hit) {
    pthread_mutex_lock(&store->entries.lock);
    store->counts.takes++;
    store->counts.hits[hit->source]++;
    store->counts.tokens[hit->source] += hit->tokens;
    pthread_mutex_unlock(&store->entries.lock);
}

/* Whether reading the file takes less time than computing what it offers beyond memory, as far as that is known. */
static bool worth_loading(prefix_store *store, const store_disk_found *found, size_t in_memory, double speed) {
    if ((double)in_memory >= memory_share * (double)found->tokens) return false;
    double rate = store_disk_rate(store->disk);
    if (speed <= 0 || rate <= 0) return true;
    return (double)found->bytes / rate < (double)(found->tokens - in_memory) / speed;
}

static size_t tokens_in_memory(prefix_store *store, const char *salt, const int32_t *ids, size_t n, double *speed) {
    size_t tokens = 0;
    pthread_mutex_lock(&store->entries.lock);
    (void)store_entries_find(&store->entries, salt, ids, n, &tokens);
    *speed = store->prompt_speed;
    pthread_mutex_unlock(&store->entries.lock);
    return tokens;
}

/* The longest file that is worth it; NULL where there is none, or none that can be used. */
static kakeya_session *take_from_disk(prefix_store *store, const char *salt, const int32_t *ids, size_t n,
                                      store_hit *hit) {
    kakeya_session *session = NULL;
    store_disk_found found;
    double speed;
    for (int tries = 0; store->disk && tries < LOAD_TRIES; tries++) {
        size_t in_memory = tokens_in_memory(store, salt, ids, n - 1, &speed);
        if (!store_disk_find(store->disk, salt, ids, n - 1, &found) || !worth_loading(store, &found, in_memory, speed))
            break;
        if (!session && open_empty(store, &session, NULL) != KAKEYA_OK) return NULL;
        kakeya_status status = store_disk_load(store->disk, found.name, ids, found.tokens, session, NULL, NULL, NULL);
        if (status == KAKEYA_OK) {
            size_t tokens = keep_common(session, ids, n);
            if (tokens == 0) break;
            if (found.reason == STORE_SYSTEM_TURN && found.whole && tokens == found.tokens)
                store_checkpoint(store, salt, session, found.reason); /* others will want it too */
            *hit = (store_hit){.tokens = tokens, .source = STORE_HIT_DISK};
            return session;
        }
        if (status != KAKEYA_FORMAT && status != KAKEYA_IO) break;
    }
    kakeya_session_close(session);
    return NULL;
}

size_t store_look(prefix_store *store, const char *salt, const int32_t *ids, size_t n) {
    double speed;
    store_disk_found found;
    if (n < 2) return 0;
    size_t tokens = tokens_in_memory(store, salt, ids, n - 1, &speed);
    bool file = store->disk && store_disk_find(store->disk, salt, ids, n - 1, &found) &&
                worth_loading(store, &found, tokens, speed);
    return file ? found.tokens : tokens;
}

void store_read_notes(prefix_store *store) {
    const store_options *o = &store->options;
    if (store->disk && o->take_notes) store_disk_read_notes(store->disk, o->take_notes, o->notes_user);
}

kakeya_status store_take(prefix_store *store, const char *salt, const int32_t *ids, size_t n, bool reuse,
                         kakeya_session **out, store_hit *hit, kakeya_error *error) {
    store_hit found = {0};
    *out = NULL;
    if (reuse && n > 1) {
        *out = take_from_disk(store, salt, ids, n, &found);
        if (!*out) *out = take_from_memory(store, salt, ids, n, &found);
    }
    if (!*out) found = (store_hit){0};
    if (hit) *hit = found;
    if (reuse) count_take(store, &found);
    return *out ? KAKEYA_OK : open_empty(store, out, error);
}

/* ------------------------------------------------------------------------------------------------ give, checkpoint */

/* Puts the entry in, in place of one of the same ids and kind, unless that is the better one; false when out of memory.
 */
static bool put(prefix_store *store, store_entry *entry) {
    pthread_mutex_lock(&store->entries.lock);
    store_entry *same = store_entries_find_same(&store->entries, entry->salt, entry->ids, entry->n, entry->live);
    if (same && same->busy) same = NULL;
    if (same && same->prompt_tokens > entry->prompt_tokens) { /* it serves more prompts */
        same->used = entry->used;
        pthread_mutex_unlock(&store->entries.lock);
        store_entry_close(entry);
        return true;
    }
    if (same) {
        entry->hits += same->hits;
        entry->saved = same->saved;
        store_entries_remove(&store->entries, same);
    }
    bool added = store_entries_add(&store->entries, entry);
    if (added && !entry->live) store->counts.checkpoints++;
    store_saver_wake(store->saver);
    pthread_mutex_unlock(&store->entries.lock);
    store_entry_close(same);
    return added;
}

/* How many of a session's first rows are known to be prompt rows. Bounded timelines that go on behind answers hold rows
 * of both kinds anywhere. */
static size_t known_prompt_rows(const prefix_store *store, size_t prompt_tokens) {
    bool mixed = store->session.attention != KAKEYA_ATTENTION_NATIVE && store->options.reuse_any;
    return mixed ? 0 : prompt_tokens;
}

/* Under bounded policies the rows that a prompt would need have often left with the answer. */
static bool can_serve(const prefix_store *store, const kakeya_session *session, size_t prompt_tokens) {
    size_t n;
    int32_t *owned;
    if (!store->entries.prompt_rows_only) return true;
    const int32_t *keys = store_keys(session, &n, &owned);
    bool can = keys && kakeya_session_reachable(session, keys, prompt_tokens < n ? prompt_tokens : n) > 0;
    free(owned);
    return can;
}

void store_give(prefix_store *store, const char *salt, kakeya_session *session, size_t prompt_tokens) {
    if (!session) return;
    kakeya_session_clear_cancel(session);
    store_entry *entry = NULL;
    if (can_serve(store, session, prompt_tokens))
        entry = store_entry_open(session, salt, known_prompt_rows(store, prompt_tokens), STORE_TURN_END, true);
    if (entry && prompt_tokens < entry->n) entry->prompt_end = prompt_tokens;
    if (!entry) {
        kakeya_session_close(session);
        return;
    }
    if (put(store, entry))
        trim(store, entry);
    else
        store_entry_close(entry);
}

/* Not a copy that would only repeat what is there. */
bool store_wants(prefix_store *store, const char *salt, const int32_t *ids, size_t n, store_reason reason) {
    if (store->entries.ram_bytes == 0 || n == 0) return false;
    pthread_mutex_lock(&store->entries.lock);
    store_entry *same = store_entries_find_same(&store->entries, salt, ids, n, false);
    bool there = same && (reason == STORE_TURN_END || same->prompt_tokens >= known_prompt_rows(store, n));
    if (there) {
        same->used = clock_seconds();
        if (reason == STORE_SYSTEM_TURN) same->reason = reason;
    }
    pthread_mutex_unlock(&store->entries.lock);
    return !there;
}

void store_keep(prefix_store *store, const char *salt, kakeya_session *copy, store_reason reason) {
    size_t n;
    (void)kakeya_session_tokens(copy, &n);
    store_entry *entry =
        store_entry_open(copy, salt, reason == STORE_TURN_END ? 0 : known_prompt_rows(store, n), reason, false);
    if (!entry)
        kakeya_session_close(copy);
    else if (put(store, entry))
        trim(store, NULL);
    else
        store_entry_close(entry);
}

bool store_wants_file(prefix_store *store, const char *salt, const int32_t *ids, size_t n) {
    return store->disk && n >= store_saver_least_tokens(store->saver) && !store_disk_has(store->disk, salt, ids, n);
}

void store_keep_in_file(prefix_store *store, const char *salt, kakeya_session *copy, store_reason reason) {
    size_t n;
    (void)kakeya_session_tokens(copy, &n);
    if (store->disk) store_saver_write(store->saver, salt, copy, known_prompt_rows(store, n), reason);
    store_keep(store, salt, copy, reason);
}

void store_checkpoint(prefix_store *store, const char *salt, const kakeya_session *session, store_reason reason) {
    size_t n;
    int32_t *owned;
    const int32_t *keys = store_keys(session, &n, &owned);
    kakeya_session *copy = NULL;
    if (keys && store_wants(store, salt, keys, n, reason) && kakeya_session_fork(session, &copy, NULL) == KAKEYA_OK)
        store_keep(store, salt, copy, reason);
    free(owned);
}

/* ---------------------------------------------------------------------------------------------------------- counts */

void store_counts_get(prefix_store *store, store_counts *out) {
    pthread_mutex_lock(&store->entries.lock);
    *out = store->counts;
    out->live = store->entries.live;
    out->ram = store->entries.checkpoints;
    out->ram_bytes = store_entries_bytes(&store->entries);
    for (const store_entry *e = store->entries.first; e; e = e->next) out->saved += e->saved;
    pthread_mutex_unlock(&store->entries.lock);
    out->has_disk = store->disk != NULL;
    if (store->disk) store_disk_counts_get(store->disk, &out->disk);
    store_named_counts_get(store->named, &out->named);
    out->ram_bytes += out->named.bytes;
}
