/* The entries of a prefix store and the rules of their memory. Everything here that takes a store_entries needs its
 * lock. */
#ifndef KAKEYA_SERVE_STORE_ENTRIES_H
#define KAKEYA_SERVE_STORE_ENTRIES_H

#include <pthread.h>

#include "kakeya.h"
#include "serve/kv_blocks.h"
#include "serve/store_index.h"
#include "serve/store_reason.h"

typedef struct store_entry {
    store_index_entry index; /* first, so that one is the other */
    kakeya_session *session;
    const int32_t *ids; /* [n] by which it is known: the session's own, */
    int32_t *keys;      /* or these (store_rules.h); malloc'ed, NULL: there are no pictures */
    size_t n;
    char *salt;           /* texts of other salts share nothing with it; NULL: none */
    kv_path *path;        /* what routers know of it, while it is in the table */
    size_t prompt_tokens; /* rows of the first so many are prompt rows */
    size_t prompt_end;    /* where the last prompt ended */
    store_reason reason;
    bool live;
    bool saved;        /* there is a file of it */
    bool busy;         /* somebody reads the session outside of the lock: it may neither be closed nor taken */
    size_t own_bytes;  /* K/V memory that does not grow with the text */
    double used, hits; /* last use, monotonic seconds */
    struct store_entry *next, **back;
} store_entry;

typedef struct store_entries {
    pthread_mutex_t lock;
    pthread_cond_t ready; /* an entry is busy no more; monotonic clock */
    store_key seed;       /* of texts without a salt */
    store_index *index;
    kv_blocks *blocks;  /* is told what can be continued; NULL: nobody wants to know */
    store_entry *first; /* newest first */
    size_t live, checkpoints;
    size_t own_bytes;   /* of all entries */
    size_t page_bytes;  /* of one page of 64 tokens, in what grows with the text */
    size_t ram_bytes;   /* what all may have; 0: live entries alone, at most max_live */
    size_t other_bytes; /* that sessions with names have of it; half of it is left to them, if they take so much */
    size_t max_live;
    bool prompt_rows_only; /* nothing else may be continued */
} store_entries;

/* False when out of memory. */
bool store_entries_open(store_entries *all, store_key seed);
void store_entries_close(store_entries *all); /* with all entries */

/* A new entry of the session, not in the table; NULL when out of memory or when nothing of the session can be used.
 * salt may be NULL. */
store_entry *store_entry_open(kakeya_session *session, const char *salt, size_t prompt_tokens, store_reason reason,
                              bool live);
/* Closes the session too, if the entry still has it. Outside of the lock: it waits for the engine. */
void store_entry_close(store_entry *entry);

bool store_entries_add(store_entries *all, store_entry *entry);
void store_entries_remove(store_entries *all, store_entry *entry);

/* K/V memory of all entries; a page that several begin with counts once. */
size_t store_entries_bytes(const store_entries *all);
/* How much an entry is worth keeping: its tokens per byte, more where it was used often and lately. */
double store_entry_score(const store_entries *all, const store_entry *entry, double now);

/* The entry of this salt that offers most of ids[0..n), and how many of them; NULL if none does. Among equals: a live
 * one that goes on from its end, then a checkpoint. */
store_entry *store_entries_find(store_entries *all, const char *salt, const int32_t *ids, size_t n, size_t *tokens);
/* The checkpoint (or live entry) of exactly these ids, or NULL. */
store_entry *store_entries_find_same(store_entries *all, const char *salt, const int32_t *ids, size_t n, bool live);

/* The entry to give up next so that all fit into the budget, taken out of the table; NULL if they fit, or nothing can
 * be given up. `keep` (may be NULL) stays in any case. */
store_entry *store_entries_surplus(store_entries *all, const store_entry *keep, double now);
/* The least useful entry, taken out of the table; NULL if there is none. */
store_entry *store_entries_worst(store_entries *all, const store_entry *keep, double now);

#endif
