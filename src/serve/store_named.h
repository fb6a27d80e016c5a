/* Sessions that their clients know by name: never matched by content, one user at a time. Idle ones go to disk and come
 * back when they are asked for, also after a restart; nobody's are dropped before their time is over, unless there is
 * no directory and too many are open. All functions may be called by several threads at a time. */
#ifndef KAKEYA_SERVE_STORE_NAMED_H
#define KAKEYA_SERVE_STORE_NAMED_H

#include "serve/store_disk.h"

enum { STORE_ID_BYTES = 40 }; /* "sess-", 32 hexadecimal digits, NUL */

typedef enum store_named_result {
    STORE_NAMED_OK = 0,
    STORE_NAMED_UNKNOWN, /* never created, dropped, or its time is over */
    STORE_NAMED_BUSY,    /* somebody has taken it */
    STORE_NAMED_FULL,    /* every session is taken */
    STORE_NAMED_FAILED,  /* the error says why */
} store_named_result;

typedef struct store_named_info {
    size_t tokens;
    size_t kv_bytes; /* 0 while it is on disk */
    double idle_seconds;
    bool busy;
} store_named_info;

typedef struct store_named_options {
    size_t most;       /* sessions in memory */
    double ttl;        /* seconds without use until a session is dropped; 0: never */
    double idle_delay; /* seconds without use until it is saved */
    /* Whether idle sessions of so many bytes of K/V memory are too much beside what else there is: then those that were
     * used least lately leave memory, but none is lost. On a thread of the sessions'. NULL: never. */
    bool (*too_much)(void *user, size_t bytes);
    void (*on_room)(
        void *user); /* a session that was being saved can leave memory. With the sessions' lock; may be NULL */
    void *user;
    const char *model; /* for the metadata; not copied */
} store_named_options;

typedef struct store_named store_named;

/* disk may be NULL. Starts a thread that saves and drops. */
kakeya_status store_named_open(kakeya_engine *engine, const kakeya_session_options *session, store_disk *disk,
                               const store_named_options *options, store_named **out, kakeya_error *error);
/* Saves what has changed, the last used first, until the monotonic time `end`; closes all. NULL is fine. */
void store_named_close(store_named *named, double end);

/* No session stays in memory; the names do. KAKEYA_IO: one of them cannot be saved, and all stay. Nobody may use a
 * session meanwhile, nor make or take one until store_named_resume. */
kakeya_status store_named_unload(store_named *named, kakeya_error *error);
/* The same where sessions in memory are not to be believed: those that are in a file stay, as the file has them; others
 * that hold tokens are lost: how many. */
size_t store_named_give_up(store_named *named);
void store_named_resume(store_named *named, kakeya_engine *engine);

/* An empty session under a new name. note (may be NULL) is the caller's, and stays with it. */
store_named_result store_named_create(store_named *named, const char *note, char id[STORE_ID_BYTES],
                                      kakeya_error *error);
/* The session itself, until it is given back. note (may be NULL): malloc'ed. */
store_named_result store_named_take(store_named *named, const char *id, kakeya_session **out, char **note,
                                    kakeya_error *error);
/* session NULL: it is lost, and so is the name. */
void store_named_give(store_named *named, const char *id, kakeya_session *session);
store_named_result store_named_drop(store_named *named, const char *id, size_t *tokens);
/* Does not count as use. */
store_named_result store_named_look(store_named *named, const char *id, store_named_info *info);
/* The idle session that was used least lately leaves memory: saved, or else in a temporary file. Bytes of K/V memory
 * given back; 0: there is none, or neither file can be written. */
size_t store_named_relieve(store_named *named);
/* Whether sessions are being saved, and could leave memory then. */
bool store_named_is_saving(store_named *named);

typedef struct store_named_counts {
    size_t memory, disk; /* sessions now: in memory; on disk alone, of those met since the start */
    size_t taken;        /* of those in memory: somebody has them */
    size_t bytes;        /* K/V memory of the others */
    uint64_t dropped_ttl, dropped_lru, dropped_closed, dropped_lost; /* by why */
} store_named_counts;
void store_named_counts_get(store_named *named, store_named_counts *out);

#endif
