/* Computed prompts that later prompts may continue: the prefix store of the server.
 *
 * A hit never changes an answer. Under native attention a position's K/V does not depend on how it was computed, so any
 * stored timeline serves. Under the bounded policies decode rows and prompt rows differ: there only entries that hold
 * nothing but prompt rows serve, unless reuse_any says that answers may depend on what came before.
 *
 * Ids, here and below, are keys where a prompt has pictures (kakeya_prompt_keys).
 *
 * Entries are live (the idle session of a conversation, which the next request takes) or checkpoints (forks at
 * positions that other requests will pass, which requests fork again). All functions may be called by several threads
 * at a time. Those that give or take sessions copy memory and may read a file: they are not for a network thread. */
#ifndef KAKEYA_SERVE_STORE_H
#define KAKEYA_SERVE_STORE_H

#include "kakeya.h"
#include "serve/kv_blocks.h"
#include "serve/store_named.h"

typedef struct prefix_store prefix_store;

typedef enum store_source { STORE_HIT_NONE = 0, STORE_HIT_LIVE, STORE_HIT_RAM, STORE_HIT_DISK } store_source;

/* One line for the log, without newline. Called by any thread. */
typedef void (*store_log_fn)(void *user, const char *line);

/* Zeros are defaults. */
typedef struct store_options {
    size_t ram_bytes;      /* K/V memory of all entries together; 0: live entries alone, at most max_live */
    int max_live;          /* 8 */
    uint64_t disk_bytes;   /* of all files of the directory; 0: no limit */
    const char *directory; /* NULL: nothing goes to disk; made where it does not exist */
    const char *model;     /* name, for the metadata of files */
    double session_ttl;    /* seconds until an idle session with a name is dropped; 0: never */
    size_t max_named;      /* sessions with names in memory: 64 */
    bool reuse_any;        /* bounded policies: timelines go on as they are */
    kv_blocks *blocks;     /* is told what could be continued (kv_blocks.h); NULL: nobody wants to know */
    store_log_fn log;      /* may be NULL */
    void *log_user;
    /* What else is known of ids that are saved (JSON text, malloc'ed, or NULL), and what files say of it, whole as
     * {"turns": ...}: for store_read_notes. Called by any thread; both may be NULL. */
    char *(*notes)(void *user, const int32_t *ids, size_t n);
    void (*take_notes)(void *user, const char *json);
    void *notes_user;
    /* For tests; 0: the default. */
    size_t least_file_tokens;                   /* shorter entries are not saved: 512 */
    double checkpoint_delay;                    /* seconds until a checkpoint is saved: 2 */
    double idle_delay;                          /* seconds until an idle session is saved: 30, one with a name 1 */
    double pause_seconds;                       /* without writing, after a failure: 60 */
    uint64_t chunk_bytes;                       /* of files: 4 MiB */
    void (*step)(void *user, const char *what); /* store_file.h */
    void *step_user;
} store_options;

/* What was found. */
typedef struct store_hit {
    size_t tokens;       /* that need not be computed */
    store_source source; /* STORE_HIT_NONE: tokens is 0 */
} store_hit;

typedef struct store_counts {
    uint64_t takes;                      /* store_take with reuse */
    uint64_t hits[STORE_HIT_DISK + 1];   /* of these, by source */
    uint64_t tokens[STORE_HIT_DISK + 1]; /* found, by source */
    uint64_t evictions, checkpoints;     /* entries dropped for room; checkpoints made */
    size_t live, ram;                    /* entries now */
    size_t saved;                        /* of these, those that have a file */
    uint64_t ram_bytes; /* K/V memory of the entries now, pages of a common beginning once, and of idle sessions with
                           names */
    bool has_disk;
    store_disk_counts disk; /* with has_disk */
    store_named_counts named;
} store_counts;

/* engine and session: those of the server; the engine must outlive the store, both structs are copied. *out is closed
 * by store_close. */
kakeya_status store_open(kakeya_engine *engine, const kakeya_session_options *session, const store_options *options,
                         prefix_store **out, kakeya_error *error);
/* Saves what is worth it, newest first, for at most so many seconds, and closes all entries. NULL is fine. */
void store_close(prefix_store *store, double save_seconds);

/* The engine is to be closed for a while: sessions with names are saved, of the other entries what is worth it, newest
 * first, for at most so many seconds, and no session stays in memory. Nobody may use the store meanwhile, nor take or
 * make sessions until store_resume; names can still be looked at and dropped, and their time runs. Where a session with
 * a name cannot be saved, all sessions with names stay and the store goes on as it was. */
kakeya_status store_unload(prefix_store *store, double save_seconds, kakeya_error *error);
/* The same where what the engine has in memory is not to be believed: nothing is saved. Sessions with a name go back to
 * their files; those that have none are lost: how many. */
size_t store_give_up(prefix_store *store);
/* With an engine of the same fingerprint as the one before. */
void store_resume(prefix_store *store, kakeya_engine *engine);

/* A session that the caller owns from now on. Its timeline is the longest stored prefix of ids[0..n), of n - 1 tokens
 * at most, or empty; without reuse it is empty. hit may be NULL. salt, here and below: the request's
 * (store_rules.h), or NULL; only what was given with the same one is found. */
kakeya_status store_take(prefix_store *store, const char *salt, const int32_t *ids, size_t n, bool reuse,
                         kakeya_session **out, store_hit *hit, kakeya_error *error);
/* How many tokens store_take would find as things are, without reading a file. */
size_t store_look(prefix_store *store, const char *salt, const int32_t *ids, size_t n);
/* The session as it stands becomes a live entry; the store owns it. Never fails: what cannot be kept is closed. No
 * request may be under way. prompt_tokens: the rows of the first so many tokens are prompt rows, all others may be
 * decode rows. */
void store_give(prefix_store *store, const char *salt, kakeya_session *session, size_t prompt_tokens);
/* Keeps a copy of the session as it stands, whose rows are prompt rows unless the reason is STORE_TURN_END. Best
 * effort: where there is no room, or the same tokens are there already, nothing is copied. */
void store_checkpoint(prefix_store *store, const char *salt, const kakeya_session *session, store_reason reason);
/* The same in two steps, for who makes the copy: whether one of ids[0..n) would be kept, and the copy, which the store
 * owns from now on. */
bool store_wants(prefix_store *store, const char *salt, const int32_t *ids, size_t n, store_reason reason);
void store_keep(prefix_store *store, const char *salt, kakeya_session *copy, store_reason reason);
/* Whether a file of ids[0..n) would serve others and is not there yet, and store_keep with a file that is in its place
 * when this returns, on the disk. Best effort too. */
bool store_wants_file(prefix_store *store, const char *salt, const int32_t *ids, size_t n);
void store_keep_in_file(prefix_store *store, const char *salt, kakeya_session *copy, store_reason reason);

/* Gives what the files know that have come since the last call to take_notes, those last that were used last. Files
 * that this store has saved are not read. May read files: not for a network thread. */
void store_read_notes(prefix_store *store);

/* How fast a prompt was computed: a file is read only where that is faster than the fastest, because prompts that share
 * the machine with others are slower. Before the first call files always are. */
void store_note_speed(prefix_store *store, double prompt_tokens_per_second);

/* Sessions with names (store_named.h). */
store_named *store_names(prefix_store *store);

/* The engine's relieve: gives up entries, the least useful first, then idle sessions with names, the last used last,
 * until about so many bytes of K/V memory have been given back or nothing is left; returns the bytes. Entries that are
 * worth a file are written first, by the store's own thread: KAKEYA_RELIEF_LATER. The same where there is nothing to
 * give up now, but sessions are on their way from one hand to another. Waits for no request; sessions with names are
 * written before it returns, as the engine parks its own. */
size_t store_relieve(prefix_store *store, size_t bytes);

/* A session of the engine is with somebody and not in a request's hands: from before it is taken or its request is done
 * until after it is given back or has a request. Its memory comes back then, which those who are short of some are told
 * at the end. */
void store_hand_begin(prefix_store *store);
void store_hand_end(prefix_store *store);

/* Never waits for work in progress. */
void store_counts_get(prefix_store *store, store_counts *out);

#endif
