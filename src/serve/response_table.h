/* Stored responses and the key of sealed reasoning, in a database of SQLite: the file state.db of the session
 * directory, or memory. Servers may share the file. A response is verified by its checksum before it is used. All
 * functions may be called by several threads at a time; those on a file wait for it. */
#ifndef KAKEYA_SERVE_RESPONSE_TABLE_H
#define KAKEYA_SERVE_RESPONSE_TABLE_H

#include "kakeya.h"
#include "serve/reasoning_seal.h"
#include "serve/text.h"

enum { RESPONSE_ID_BYTES = 40 };

/* What is known of a response: JSON texts. */
typedef struct response_texts {
    char previous[RESPONSE_ID_BYTES]; /* id of the response that it continues; "" for none */
    text_buffer object;               /* as clients get it */
    text_buffer input;                /* the list of the request's own items */
    text_buffer output;               /* the list of output items */
} response_texts;

void response_texts_free(response_texts *texts);
/* False: out of memory, *to is empty. */
bool response_texts_copy(const response_texts *from, response_texts *to);

/* Of a table: the newest stay. */
typedef struct response_limits {
    size_t entries, bytes;
    double seconds;
} response_limits;

typedef struct response_table response_table;

/* directory: made where it does not exist, for its owner alone; NULL: in memory. A file that is damaged, or is none of
 * SQLite's, is renamed to state.db.bad. log: one line, by any thread; may be NULL. */
kakeya_status response_table_open(const char *directory, response_limits limits,
                                  void (*log)(void *user, const char *line), void *user, response_table **out,
                                  kakeya_error *error);
void response_table_close(response_table *table); /* NULL is fine */

/* Unix time. */
uint64_t response_now_ms(void);

/* Adds a response, and removes those beyond the limits. On failure the table is as it was. */
kakeya_status response_table_put(response_table *table, const char *id, unsigned long long owner, uint64_t ended_ms,
                                 const response_texts *texts, kakeya_error *error);
/* False: there is none of that id and owner. out: freed with response_texts_free. NULL as the table: none. */
bool response_table_get(response_table *table, const char *id, unsigned long long owner, response_texts *out);
/* The newest response with an item of that id. */
bool response_table_with_item(response_table *table, const char *item, unsigned long long owner, response_texts *out);
/* Whether it was there. */
bool response_table_delete(response_table *table, const char *id, unsigned long long owner);
size_t response_table_count(response_table *table);

/* The key of the table; the first who asks makes it. On failure *seal is as it was. */
kakeya_status response_table_seal(response_table *table, reasoning_seal *seal, kakeya_error *error);

#endif
