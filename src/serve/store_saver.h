/* Entries become files: a thread saves checkpoints soon after they were made and idle sessions after a while, entries
 * that were given up for room before they are closed, and everything at the end. */
#ifndef KAKEYA_SERVE_STORE_SAVER_H
#define KAKEYA_SERVE_STORE_SAVER_H

#include "serve/store_disk.h"
#include "serve/store_entries.h"

typedef struct store_saver store_saver;

typedef struct store_saver_options {
    size_t least_tokens;     /* shorter entries are cheaper to compute than to keep */
    double checkpoint_delay; /* seconds after its last use */
    double idle_delay;       /* seconds until a live entry is idle */
    const char *model;       /* for the metadata */
    /* More for the metadata: JSON text, malloc'ed, or NULL; of what the ids hold. May be NULL. */
    char *(*notes)(void *user, const int32_t *ids, size_t n);
    void *notes_user;
    /* An entry that was being written has been closed, or can be. With the entries' lock. */
    void (*on_room)(void *user);
    void *user;
} store_saver_options;

/* Options are copied but for what they point to. Starts the thread. */
kakeya_status store_saver_open(store_entries *entries, store_disk *disk, const store_saver_options *options,
                               store_saver **out, kakeya_error *error);
/* Ends the thread after what it is writing. NULL is fine. */
void store_saver_close(store_saver *saver);

/* Something has changed. With the entries' lock or without. */
void store_saver_wake(store_saver *saver);
/* An entry that is in no table any more is saved if it deserves it, and closed. Where too many wait already it is
 * closed at once; true: it waits for the thread. Without the lock. */
bool store_saver_dispose(store_saver *saver, store_entry *entry);
/* Whether entries that are in no table any more still have their memory. With the lock; NULL is fine. */
bool store_saver_is_writing(const store_saver *saver);
/* The same, before it returns. */
void store_saver_dispose_now(store_saver *saver, store_entry *entry);
/* A session that is in no table becomes a file before this returns, unless another server is writing the same. Best
 * effort. Without the lock. */
void store_saver_write(store_saver *saver, const char *salt, const kakeya_session *session, size_t prompt_tokens,
                       store_reason reason);
size_t store_saver_least_tokens(const store_saver *saver);
/* Saves entries, newest first, for at most so many seconds. After store_saver_stop. */
void store_saver_save_all(store_saver *saver, double seconds);
void store_saver_stop(store_saver *saver);
/* Waits until no entry waits to be written. NULL is fine. */
void store_saver_settle(store_saver *saver);

/* The metadata of a file: JSON text, malloc'ed; NULL when out of memory. salt may be NULL. */
char *store_saver_metadata(const store_saver *saver, const char *salt, const int32_t *ids, size_t n,
                           store_reason reason, double hits);

#endif
