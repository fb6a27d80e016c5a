/* Responses that clients may name later: those that have ended, in a table in memory or in the session directory, and
 * those that are being computed. A response is found by its id and by who made it; to everybody else it does not exist.
 * A thread puts responses into the table, so that no answer waits for a disk. All functions may be called by several
 * threads at a time. */
#ifndef KAKEYA_SERVE_RESPONSE_STORE_H
#define KAKEYA_SERVE_RESPONSE_STORE_H

#include <cjson/cJSON.h>

#include "serve/response_table.h"

typedef struct response_store response_store;
typedef struct response_entry response_entry;

enum { RESPONSE_STORE_ENTRIES = 1000 };
#define RESPONSE_STORE_BYTES   ((size_t)256 << 20)
#define RESPONSE_STORE_SECONDS (30.0 * 24 * 3600)

/* At most so many finished responses and bytes of their texts, for so many seconds. NULL: out of memory. */
response_store *response_store_open(size_t entries, size_t bytes, double seconds);
/* No response is running; those that wait are stored. NULL is fine */
void response_store_close(response_store *store);
/* From now on responses are kept in the directory, and in memory where that cannot be written; its key is put into
 * *seal. Once, before the first response. log: one line, by any thread. On failure nothing has changed. */
kakeya_status response_store_use(response_store *store, const char *directory,
                                 void (*log)(void *user, const char *line), void *user, reasoning_seal *seal,
                                 kakeya_error *error);

/* A response that runs from now on. Takes the texts, even on failure. listed: it may be asked for by its id. cancel is
 * called by response_store_cancel, on another thread and under the store's lock. NULL: out of memory. */
response_entry *response_store_begin(response_store *store, const char *id, unsigned long long owner, bool listed,
                                     response_texts *texts, void (*cancel)(void *user), void *user);
/* It has ended. Takes object and output; a list that is out of memory forgets the response. */
void response_store_end(response_store *store, response_entry *entry, text_buffer *object, text_buffer *output);

/* A copy of what is known, freed with response_texts_free. False: there is no such response, or no memory. This one and
 * those below may read files: not for a network thread. */
bool response_store_get(response_store *store, const char *id, unsigned long long owner, response_texts *out);

typedef enum response_found { RESPONSE_UNKNOWN = 0, RESPONSE_ENDED, RESPONSE_RUNNING } response_found;

/* Forgets a response that has ended; a running one stays. What it was. */
response_found response_store_delete(response_store *store, const char *id, unsigned long long owner);
/* Returns when the response has ended, or is not known. */
void response_store_wait(response_store *store, const char *id, unsigned long long owner);
/* Stops a running response, waits for its end, and appends its last object. What it was; RESPONSE_ENDED: nothing has
 * been done. */
response_found response_store_cancel(response_store *store, const char *id, unsigned long long owner,
                                     text_buffer *object);

/* The item of that id in a response that has ended; the caller's. NULL: there is none. */
cJSON *response_store_item(response_store *store, unsigned long long owner, const char *id);

size_t response_store_size(response_store *store); /* finished ones, when all are stored */

#endif
