/* Since when a worker has seen a commit on the bus, by its own clock alone: whether a claim is dead or a request is
 * still waiting must not depend on what the clock of another machine says. Kept in a file, so that a worker that is
 * started for every look learns it too. */
#ifndef KAKEYA_REMOTE_FIRST_SEEN_H
#define KAKEYA_REMOTE_FIRST_SEEN_H

#include "remote/bus.h"

typedef struct first_seen first_seen;

/* A damaged or missing file is an empty one. */
kakeya_status first_seen_open(const char *folder, first_seen **out, kakeya_error *error);
void first_seen_close(first_seen *s); /* NULL is fine */

/* Seconds since the commit was seen first; 0 the first time. */
double first_seen_seconds(first_seen *s, const char *oid);
/* Puts off the next try at a commit by `seconds`; whether one is due. Not kept in the file. */
void first_seen_put_off(first_seen *s, const char *oid, double seconds);
bool first_seen_is_put_off(first_seen *s, const char *oid);
/* How often it was put off. */
int first_seen_times(first_seen *s, const char *oid);

/* Forgets what is not on the bus any more ([n] refs) and writes the file. */
kakeya_status first_seen_keep(first_seen *s, const bus_ref *refs, size_t n, kakeya_error *error);

#endif
