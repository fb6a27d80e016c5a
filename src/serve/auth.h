/* Who may ask: API keys, and the Host and Origin headers. */
#ifndef KAKEYA_SERVE_AUTH_H
#define KAKEYA_SERVE_AUTH_H

#include <stdbool.h>
#include <stddef.h>

#include "kakeya.h"

typedef struct auth auth;

typedef struct auth_options {
    const char *const *keys; /* n_keys of them */
    size_t n_keys;
    const char *environment;  /* comma-separated keys, or NULL */
    const char *file;         /* one key a line, # comments; or NULL */
    const char *const *hosts; /* that a Host header may name besides localhost and addresses */
    size_t n_hosts;
    const char *const *origins; /* that may read answers from a page; "*": all */
    size_t n_origins;
} auth_options;

/* The options' texts must outlive it. */
kakeya_status auth_open(const auth_options *options, auth **out, kakeya_error *error);
void auth_close(auth *auth);
/* Reads the file again; on failure the keys stay as they were. Any thread. */
kakeya_status auth_reload(auth *auth, kakeya_error *error);

bool auth_needs_key(auth *auth);
/* Whether the headers hold a key of the server's, or need none: the value of Authorization and of x-api-key, NULL where
 * absent. The time does not depend on the keys. *identity: a number that says which key it was; 0 for none. */
bool auth_allows(auth *auth, const char *authorization, const char *x_api_key, unsigned long long *identity);
/* Whether a Host header is one that a page of somebody else cannot have made a browser send (DNS rebinding). */
bool auth_host_allowed(const auth *auth, const char *host);
/* The value for Access-Control-Allow-Origin; NULL: none. */
const char *auth_origin(const auth *auth, const char *origin);

#endif
