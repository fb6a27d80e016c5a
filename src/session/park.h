/* K/V memory of a session that has to wait, in a file without a name: what it held can serve others meanwhile. */
#ifndef KAKEYA_SESSION_PARK_H
#define KAKEYA_SESSION_PARK_H

#include <stdio.h>

#include "session/session.h"

/* Writes the cache (nothing pending) into *file, which is made without a name, and gives the cache's memory back. On
 * failure the session is as it was. Needs the turn. */
kakeya_status park(kakeya_session *session, FILE **file, kakeya_error *error);
/* The reverse; closes the file. KAKEYA_OUT_OF_MEMORY leaves the session parked, so that it can be tried again. Needs
 * the turn. */
kakeya_status unpark(kakeya_session *session, FILE **file, kakeya_error *error);

/* What the file of a parked session holds, as the backend's cache_snapshot has written it. */
size_t park_bytes(const kakeya_session *session);
kakeya_status park_copy(const kakeya_session *session, backend_write_fn write, void *user, kakeya_error *error);

/* A file for park_copy's bytes, which `read` gives: so many. On failure there is none. */
kakeya_status park_fill(kakeya_engine *engine, FILE **file, size_t bytes, backend_read_fn read, void *user,
                        kakeya_error *error);

#endif
