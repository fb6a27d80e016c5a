/* Since when a worker has seen a commit on the bus, by its own clock alone: whether a claim is dead or a request is
 * still waiting must not depend on what the clock of another machine says. Kept in a file, so that a worker that is
 * started for every look learns it too. */
#ifndef KAKEYA_REMOTE_SIGHTINGS_H
#define KAKEYA_REMOTE_SIGHTINGS_H

#include "remote/bus.h"

typedef struct sightings sightings;

/* A damaged or missing file is an empty one. */
kakeya_status sightings_open(const char *folder, sightings **out, kakeya_error *error);
void sightings_close(sightings *s); /* NULL is fine */

/* Seconds since the commit was seen first; 0 the first time. */
double sightings_seconds(sightings *s, const char *oid);
/* Puts off the next try at a commit by `seconds`; whether one is due. Not kept in the file. */
void sightings_put_off(sightings *s, const char *oid, double seconds);
bool sightings_is_put_off(sightings *s, const char *oid);
/* How often it was put off. */
int sightings_times(sightings *s, const char *oid);

/* Forgets what is not on the bus any more ([n] refs) and writes the file. */
kakeya_status sightings_keep(sightings *s, const bus_ref *refs, size_t n, kakeya_error *error);

#endif
