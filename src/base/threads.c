/* Fork: the caller publishes the task and advances `generation`. Join: it waits until `running` is zero. Both sides
 * spin for SPIN_NS, give up their time slice for YIELD_NS, then sleep on a condition variable. A sleeper first raises
 * its
 * `*_parked` flag and then looks at the awaited variable once more, the waker first writes that variable and then looks
 * at the flag (all sequentially consistent), so that one of the two always sees the other and no wake-up is lost.
 *
 * Workers are bound to one physical core each, starting behind the core on which the creating thread runs. The caller's
 * own affinity is never touched: it belongs to the program. With every other core taken by a bound worker the scheduler
 * leaves the caller on the free one. A pool larger than the cores available is neither bound nor does it spin, because
 * a spinning thread would take the core from the thread it waits for. */
#include "base/threads.h"

#include <hwloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    MAX_THREADS = 1024,
    SPIN_NS = 50 * 1000,
    YIELD_NS = 50 * 1000,
    PAUSES_PER_CLOCK_READ = 16,
    CACHE_LINE = 64,
};

typedef struct worker {
    struct thread_pool *pool;
    int index; /* 1 .. threads - 1; the caller is 0 */
    pthread_t thread;
} worker;

struct thread_pool {
    int threads;
    bool spins;
    bool stopping; /* written before `generation` advances, like task and context */
    thread_task task;
    void *context;
    pthread_mutex_t mutex;
    pthread_cond_t work_ready, work_done;
    worker *workers; /* [threads - 1] */
    alignas(CACHE_LINE) atomic_uint generation;
    alignas(CACHE_LINE) atomic_int running; /* workers that have not finished the current run */
    alignas(CACHE_LINE) atomic_int workers_parked;
    atomic_bool caller_parked;
};

static inline void cpu_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static bool has_new_generation(thread_pool *pool, unsigned seen) {
    return atomic_load_explicit(&pool->generation, memory_order_acquire) != seen;
}

static bool is_finished(thread_pool *pool, unsigned unused) {
    (void)unused;
    return atomic_load_explicit(&pool->running, memory_order_acquire) == 0;
}

/* Waits actively for a bounded time; returns whether the condition came true. */
static bool wait_awake(thread_pool *pool, bool (*condition)(thread_pool *, unsigned), unsigned argument) {
    if (condition(pool, argument)) return true;
    if (!pool->spins) return false;
    int64_t start = now_ns();
    int64_t elapsed = 0;
    while (elapsed < SPIN_NS) {
        for (int i = 0; i < PAUSES_PER_CLOCK_READ; i++) {
            if (condition(pool, argument)) return true;
            cpu_pause();
        }
        elapsed = now_ns() - start;
    }
    while (elapsed < SPIN_NS + YIELD_NS) {
        if (condition(pool, argument)) return true;
        sched_yield();
        elapsed = now_ns() - start;
    }
    return condition(pool, argument);
}

static void wait_for_generation_after(thread_pool *pool, unsigned seen) {
    if (wait_awake(pool, has_new_generation, seen)) return;
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->workers_parked, 1);
    while (atomic_load(&pool->generation) == seen) pthread_cond_wait(&pool->work_ready, &pool->mutex);
    atomic_fetch_sub(&pool->workers_parked, 1);
    pthread_mutex_unlock(&pool->mutex);
}

static void wait_until_finished(thread_pool *pool) {
    if (wait_awake(pool, is_finished, 0)) return;
    pthread_mutex_lock(&pool->mutex);
    atomic_store(&pool->caller_parked, true);
    while (atomic_load(&pool->running) != 0) pthread_cond_wait(&pool->work_done, &pool->mutex);
    atomic_store(&pool->caller_parked, false);
    pthread_mutex_unlock(&pool->mutex);
}

static void advance_generation(thread_pool *pool) {
    atomic_fetch_add(&pool->generation, 1);
    if (atomic_load(&pool->workers_parked) > 0) {
        pthread_mutex_lock(&pool->mutex);
        pthread_cond_broadcast(&pool->work_ready);
        pthread_mutex_unlock(&pool->mutex);
    }
}

static void *worker_main(void *argument) {
    worker *self = argument;
    thread_pool *pool = self->pool;
    for (unsigned seen = 0;; seen++) {
        wait_for_generation_after(pool, seen);
        if (pool->stopping) return NULL;
        pool->task(pool->context, self->index, pool->threads);
        if (atomic_fetch_sub(&pool->running, 1) == 1 && atomic_load(&pool->caller_parked)) {
            pthread_mutex_lock(&pool->mutex);
            pthread_cond_signal(&pool->work_done);
            pthread_mutex_unlock(&pool->mutex);
        }
    }
}

/* --- placement -------------------------------------------------------------------------------------------------- */

typedef struct placement {
    hwloc_topology_t topology;
    hwloc_bitmap_t allowed; /* processing units that this process may use */
    hwloc_obj_type_t unit;  /* a physical core, or a processing unit where the topology knows no cores */
    int cores;
    int first; /* index of the core behind the creating thread's */
} placement;

static void placement_close(placement *place) {
    if (place->allowed) hwloc_bitmap_free(place->allowed);
    if (place->topology) hwloc_topology_destroy(place->topology);
    *place = (placement){0};
}

/* The index-th core of the allowed set, or NULL. */
static hwloc_obj_t placement_core(const placement *place, int index) {
    hwloc_obj_t core = NULL;
    while ((core = hwloc_get_next_obj_by_type(place->topology, place->unit, core))) {
        if (hwloc_bitmap_intersects(core->cpuset, place->allowed) && index-- == 0) return core;
    }
    return NULL;
}

/* Returns false, with nothing to close, where the topology cannot be had. */
static bool placement_open(placement *place) {
    *place = (placement){0};
    if (hwloc_topology_init(&place->topology)) {
        place->topology = NULL;
        return false;
    }
    hwloc_topology_set_all_types_filter(place->topology, HWLOC_TYPE_FILTER_KEEP_NONE);
    hwloc_topology_set_type_filter(place->topology, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL);
    place->allowed = hwloc_bitmap_alloc();
    if (!place->allowed || hwloc_topology_load(place->topology)) {
        placement_close(place);
        return false;
    }
    if (hwloc_get_cpubind(place->topology, place->allowed, HWLOC_CPUBIND_PROCESS) ||
        hwloc_bitmap_iszero(place->allowed)) {
        hwloc_bitmap_copy(place->allowed, hwloc_topology_get_allowed_cpuset(place->topology));
    }
    place->unit = hwloc_get_nbobjs_by_type(place->topology, HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
    while (placement_core(place, place->cores)) place->cores++;

    hwloc_bitmap_t here = hwloc_bitmap_alloc();
    if (here && !hwloc_get_last_cpu_location(place->topology, here, HWLOC_CPUBIND_THREAD)) {
        for (int i = 0; i < place->cores; i++) {
            if (hwloc_bitmap_intersects(placement_core(place, i)->cpuset, here)) place->first = i + 1;
        }
    }
    if (here) hwloc_bitmap_free(here);
    return true;
}

/* A thread that cannot be bound still computes the same, so failure is not an error. */
static void placement_bind(const placement *place, pthread_t thread, int index) {
    hwloc_obj_t core = placement_core(place, (place->first + index) % place->cores);
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    if (core && set) {
        hwloc_bitmap_and(set, core->cpuset, place->allowed);
        hwloc_set_thread_cpubind(place->topology, thread, set, 0);
    }
    if (set) hwloc_bitmap_free(set);
}

/* --- create and destroy ----------------------------------------------------------------------------------------- */

/* Signals are for the program's own threads. */
static int create_thread_without_signals(worker *self) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failure = pthread_create(&self->thread, NULL, worker_main, self);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failure;
}

static void stop_workers(thread_pool *pool, int started) {
    pool->stopping = true;
    advance_generation(pool);
    for (int i = 0; i < started; i++) pthread_join(pool->workers[i].thread, NULL);
}

static void free_pool(thread_pool *pool) {
    pthread_cond_destroy(&pool->work_done);
    pthread_cond_destroy(&pool->work_ready);
    pthread_mutex_destroy(&pool->mutex);
    free(pool->workers);
    free(pool);
}

kakeya_status thread_pool_create(int threads, thread_pool **out, kakeya_error *error) {
    *out = NULL;
    if (threads < 0 || threads > MAX_THREADS)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "threads: %d is outside 0..%d", threads, MAX_THREADS);
    placement place = {0};
    bool placed = threads != 1 && placement_open(&place);
    int cores = placed ? place.cores : (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (cores < 1) cores = 1;
    if (threads == 0) threads = cores < MAX_THREADS ? cores : MAX_THREADS;

    thread_pool *pool = aligned_alloc(CACHE_LINE, sizeof *pool);
    worker *workers = calloc((size_t)threads, sizeof *workers);
    if (!pool || !workers) {
        free(pool);
        free(workers);
        placement_close(&place);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for a pool of %d threads", threads);
    }
    memset(pool, 0, sizeof *pool);
    pool->threads = threads;
    pool->spins = threads <= cores;
    pool->workers = workers;
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->work_ready, NULL);
    pthread_cond_init(&pool->work_done, NULL);

    for (int i = 0; i < threads - 1; i++) {
        workers[i] = (worker){.pool = pool, .index = i + 1};
        int failure = create_thread_without_signals(&workers[i]);
        if (failure) {
            stop_workers(pool, i);
            free_pool(pool);
            placement_close(&place);
            return error_set(error, KAKEYA_OUT_OF_MEMORY, "thread %d of %d cannot be started: %s", i + 2, threads,
                             strerror(failure));
        }
        if (placed && pool->spins) placement_bind(&place, workers[i].thread, i);
    }
    placement_close(&place);
    *out = pool;
    return KAKEYA_OK;
}

void thread_pool_destroy(thread_pool *pool) {
    if (!pool) return;
    stop_workers(pool, pool->threads - 1);
    free_pool(pool);
}

int thread_pool_size(const thread_pool *pool) { return pool->threads; }

/* --- runs ------------------------------------------------------------------------------------------------------- */

void thread_pool_run(thread_pool *pool, thread_task task, void *context) {
    if (pool->threads == 1) {
        task(context, 0, 1);
        return;
    }
    pool->task = task;
    pool->context = context;
    atomic_store_explicit(&pool->running, pool->threads - 1, memory_order_relaxed);
    advance_generation(pool);
    task(context, 0, pool->threads);
    wait_until_finished(pool);
}

typedef struct range_run {
    range_task task;
    void *context;
    size_t count, grain;
    alignas(CACHE_LINE) atomic_size_t next_piece;
} range_run;

static void take_pieces(void *context, int thread, int threads) {
    (void)threads;
    range_run *run = context;
    size_t pieces = run->count / run->grain + (run->count % run->grain != 0);
    size_t piece;
    while ((piece = atomic_fetch_add_explicit(&run->next_piece, 1, memory_order_relaxed)) < pieces) {
        size_t begin = piece * run->grain;
        size_t left = run->count - begin;
        run->task(run->context, begin, begin + (left < run->grain ? left : run->grain), thread);
    }
}

void thread_pool_for(thread_pool *pool, size_t count, size_t grain, range_task task, void *context) {
    if (count == 0) return;
    if (grain == 0) grain = 1;
    if (count <= grain) {
        task(context, 0, count, 0);
        return;
    }
    range_run run = {.task = task, .context = context, .count = count, .grain = grain};
    atomic_init(&run.next_piece, 0);
    thread_pool_run(pool, take_pieces, &run);
}
