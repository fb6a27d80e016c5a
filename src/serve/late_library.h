/* A shared library that is loaded when it is needed: every other start does without it and the libraries it brings. */
#ifndef KAKEYA_SERVE_LATE_LIBRARY_H
#define KAKEYA_SERVE_LATE_LIBRARY_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "kakeya.h"

typedef struct late_library {
    const char *file, *what;  /* what dlopen gets; what fails without it, with a verb, for the message */
    const char *const *names; /* [n] */
    void *functions;          /* [n] pointers to functions, in the order of the names */
    size_t n;
    pthread_mutex_t lock;
    bool tried, loaded;
    char problem[256];
} late_library;

/* Any thread, any number of times. Fills `functions`, which are constant from then on. Fails, naming the library, where
 * it is not installed or lacks a function, now and ever after. It stays loaded. */
kakeya_status late_library_load(late_library *library, kakeya_error *error);

#endif
