/* A pool of worker threads for fork-join work that takes microseconds: workers spin for a bounded time, then park.
 * Threads are placed one per physical core with hwloc (inside the process's allowed set). The caller takes part in
 * every run, so a pool of n threads has n - 1 workers; a pool of 1 runs everything inline. */
#ifndef KAKEYA_BASE_THREADS_H
#define KAKEYA_BASE_THREADS_H

#include <stddef.h>

#include "base/error.h"

enum { THREAD_POOL_MAX = 1024 };

typedef struct thread_pool thread_pool;

/* How many threads a request for `threads` gives on a machine with this many cores: as many as asked for, or for 0 one
 * per core, but no more than THREAD_POOL_MAX. -1: no pool has so many. */
int thread_pool_threads(int threads, int cores);

/* threads = 0: one per physical core that the process may use, THREAD_POOL_MAX at most. More threads than cores are
 * fine; they share the cores as the scheduler likes. KAKEYA_INVALID_ARGUMENT outside 0..THREAD_POOL_MAX. */
kakeya_status thread_pool_create(int threads, thread_pool **out, kakeya_error *error);
void thread_pool_destroy(thread_pool *pool);
int thread_pool_size(const thread_pool *pool);

/* Runs task(context, thread, threads) once on every thread of the pool and returns when all are done. Not reentrant;
 * one run at a time (callers serialise). */
typedef void (*thread_task)(void *context, int thread, int threads);
void thread_pool_run(thread_pool *pool, thread_task task, void *context);

/* Calls task(context, begin, end, thread) on pieces of [0, count) of `grain` items (the last may be shorter), handed
 * out dynamically so that a disturbed core does not hold up the others. Which thread computes a piece must not matter.
 * Runs inline if count <= grain. */
typedef void (*range_task)(void *context, size_t begin, size_t end, int thread);
void thread_pool_for(thread_pool *pool, size_t count, size_t grain, range_task task, void *context);
/* The same in runs of at most `longest` neighbouring items, shorter towards the end: for memory that is faster when a
 * thread walks it without a gap. With one thread or one item inline, at once. */
void thread_pool_for_runs(thread_pool *pool, size_t count, size_t longest, range_task task, void *context);

#endif
