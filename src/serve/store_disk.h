/* The directory of saved sessions: what is there, what fits into its budget, what is damaged. Several servers may share
 * one: files are complete from the moment that they have their name and never change afterwards, so readers and writers
 * need no agreement; whoever opens a file keeps it until it is closed, even if another one removes it. Only giving up
 * files for room is done by one at a time, under a lock on the file `.lock`. What others have saved is seen at the next
 * look, because that changes the directory's time.
 *
 * All functions may be called by several threads at a time. */
#ifndef KAKEYA_SERVE_STORE_DISK_H
#define KAKEYA_SERVE_STORE_DISK_H

#include "serve/kv_blocks.h"
#include "serve/store_file.h"

typedef struct store_disk store_disk;

enum { STORE_NAME_BYTES = 96 }; /* of a file, with its NUL */

typedef struct store_disk_options {
    const char *directory;                      /* made where it does not exist, for its owner alone */
    uint64_t budget_bytes;                      /* of all files; 0: no limit */
    uint64_t fingerprint, policy;               /* others are left alone */
    bool prompt_rows_only;                      /* nothing else is found */
    kv_blocks *blocks;                          /* is told what files can be continued; may be NULL */
    double pause_seconds;                       /* no writing for so long after a full disk or a failure; 0: 60 */
    uint64_t chunk_bytes;                       /* 0: the default */
    void (*step)(void *user, const char *what); /* as in store_file_content */
    void *step_user;
    void (*log)(void *user, const char *line); /* may be NULL */
    void *log_user;
} store_disk_options;

typedef struct store_disk_counts {
    uint64_t errors_full, errors_corrupt, errors_io;
    uint64_t saves, loads, removed;
    uint64_t saved_bytes, loaded_bytes;
    double save_seconds, load_seconds; /* all together */
    size_t files;                      /* of this model and policy */
    uint64_t bytes;                    /* of all files */
} store_disk_counts;

/* KAKEYA_IO: the directory cannot be made or read. */
kakeya_status store_disk_open(const store_disk_options *options, store_disk **out, kakeya_error *error);
void store_disk_close(store_disk *disk); /* NULL is fine */

typedef struct store_disk_found {
    char name[STORE_NAME_BYTES];
    size_t tokens; /* of the prompt */
    bool whole;    /* they are all that the file has */
    uint64_t bytes;
    store_reason reason;
} store_disk_found;

/* The file of this salt (NULL: none) that has the most of ids[0..n) from its beginning: all of its own ids, or their
 * whole blocks of 16, where it can go on behind these. False if there is none. By key: the ids are compared on loading.
 */
bool store_disk_find(store_disk *disk, const char *salt, const int32_t *ids, size_t n, store_disk_found *found);
/* Whether the beginning ids[0..n) itself is there. */
bool store_disk_has(store_disk *disk, const char *salt, const int32_t *ids, size_t n);

/* The session becomes what the file holds, after all of it was verified and its ids compared: they must begin with
 * ids[0..n) (NULL: any; where there is no memory the session is left parked then). A damaged file is renamed to
 * NAME.bad. prompt_tokens and metadata (malloc'ed) may be NULL. */
kakeya_status store_disk_load(store_disk *disk, const char *name, const int32_t *ids, size_t n, kakeya_session *session,
                              size_t *prompt_tokens, char **metadata, kakeya_error *error);

/* Saves the session, whose salt may be NULL, under the name of its key, or under `name`. KAKEYA_CANCELLED: not now,
 * because an earlier failure was not long ago, or because another one is writing the same. Where the disk is full, the
 * least useful file is given up and the writing tried once more. */
kakeya_status store_disk_save(store_disk *disk, const kakeya_session *session, const char *salt, const char *name,
                              size_t prompt_tokens, store_reason reason, const char *metadata, kakeya_error *error);
/* Removes a file; it need not be there. */
void store_disk_remove(store_disk *disk, const char *name);

typedef struct store_disk_about {
    size_t tokens;
    uint64_t created_ms; /* real time */
    double idle_seconds; /* since its last use, or since it was saved */
} store_disk_about;
/* False: there is no such file of this model and policy. about may be NULL. */
bool store_disk_look(store_disk *disk, const char *name, store_disk_about *about);
/* Calls `visit` with the name and the seconds since the last use of each file whose name begins so. */
void store_disk_each(store_disk *disk, const char *prefix, void (*visit)(void *user, const char *name, double idle),
                     void *user);

/* Calls `take` with the metadata of each file that has come since the last call and was not saved here, in the order of
 * their last use. The newest come to STORE_NOTES_BYTES at most, older ones are passed over. */
#define STORE_NOTES_BYTES ((uint64_t)64 << 20)
void store_disk_read_notes(store_disk *disk, void (*take)(void *user, const char *metadata), void *user);

/* Bytes a second that loading has reached; 0: not known yet. */
double store_disk_rate(store_disk *disk);
/* Waits for no file. */
void store_disk_counts_get(store_disk *disk, store_disk_counts *out);

#endif
