/* A worker: looks at the bus, checks requests, claims one, runs it within its limits, judges its report and answers. */
#ifndef KAKEYA_REMOTE_WORKER_H
#define KAKEYA_REMOTE_WORKER_H

#include <stdbool.h>

#include "base/error.h"

typedef struct worker_options {
    const char *folder, *state; /* of the configuration and the state; NULL: the usual ones */
    bool once;                  /* until a look at the bus finds nothing to do */
    double poll_seconds;        /* between two looks */
    /* One line an event, without a line feed, printable. */
    void (*event)(void *user, const char *line);
    void *user;
    bool (*stopped)(void); /* true ends the worker in order: a run is ended and goes on when a worker starts again */
} worker_options;

/* Works until it is stopped. KAKEYA_OK then; an error where it could not begin, or with `once` where the bus could not
 * be reached. What goes wrong with single requests or for a while is an event. */
kakeya_status worker_serve(const worker_options *options, kakeya_error *error);

#endif
