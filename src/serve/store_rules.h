/* What decides which stored rows a request may have, beside their ids. */
#ifndef KAKEYA_SERVE_STORE_RULES_H
#define KAKEYA_SERVE_STORE_RULES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kakeya.h"

/* The salt of a request (cache_salt): requests find only what was computed for the same one, so that nobody learns from
 * the time of an answer what others have asked. This number stands for it in keys and files: the beginning of its
 * SHA-256, never 0. NULL: 0. */
uint64_t store_salt(const char *salt);
bool store_salts_equal(const char *a, const char *b); /* NULL equals NULL alone */

/* What the session's tokens are known by (kakeya_session_keys): its own array, or, where there are pictures among them,
 * one that is malloc'ed, *owned, which is NULL otherwise. NULL with n > 0: out of memory. */
const int32_t *store_keys(const kakeya_session *session, size_t *n, int32_t **owned);

/* The longest beginning of the session's ids[0..n), in whole blocks (store_index.h), from which a prompt can go on in
 * another way; 0: none. */
size_t store_blocks_end(const kakeya_session *session, const int32_t *ids, size_t n);

#endif
