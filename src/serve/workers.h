/* Threads for what may take long: each takes one task at a time. They are started as they are needed. */
#ifndef KAKEYA_SERVE_WORKERS_H
#define KAKEYA_SERVE_WORKERS_H

#include "kakeya.h"

typedef struct workers workers;

kakeya_status workers_open(size_t most, workers **out, kakeya_error *error);
/* False: out of memory, or no thread could be started for the first task. */
bool workers_run(workers *pool, void (*fn)(void *argument), void *argument);
/* Waits for all tasks. */
void workers_close(workers *pool);

#endif
