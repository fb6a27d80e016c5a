/* Threads for what may take long: each takes one task at a time. They are started as they are needed. */
#ifndef KAKEYA_SERVE_WORKERS_H
#define KAKEYA_SERVE_WORKERS_H

#include "kakeya.h"

typedef struct workers workers;

/* most: threads that do not wait for others; `waiting`: of those that do. */
kakeya_status workers_open(size_t most, size_t waiting, workers **out, kakeya_error *error);
/* What is to be done, in memory of whoever wants it. The pool knows it no more once fn is called. */
typedef struct worker_task {
    void (*fn)(void *argument);
    void *argument;
    struct worker_task *next; /* the pool's */
} worker_task;

/* False: no thread could be started for the first task. */
bool workers_run(workers *pool, worker_task *task);
/* The same, in front of what waits for a thread: it goes on with what has been begun. From a task, or for one: there is
 * a thread, so it does not fail. */
void workers_go_on(workers *pool, worker_task *task);
/* A task is going to wait for others, or has done so: another thread may take its place. */
void workers_wait_begin(workers *pool);
void workers_wait_end(workers *pool);
/* Waits for all tasks. */
void workers_close(workers *pool);

#endif
