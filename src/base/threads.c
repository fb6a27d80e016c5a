/* A run is a word of state: its generation, whether it still admits workers, and how many have entered and not yet
 * left. Fork: the caller writes the task and publishes the next generation. Join: of a run that needs every thread it
 * waits until all have entered and left; a run over a range it closes when the last piece is taken, and waits only for
 * those that are inside. So a worker whose core is busy with another program delays nobody unless it holds a piece.
 *
 * Both sides spin for SPIN_NS, give up their time slice for YIELD_NS, then sleep on a condition variable. A sleeper
 * first raises its `*_parked` flag and then looks at the state once more, the waker first changes the state and then
 * looks at the flag (all sequentially consistent), so that one of the two always sees the other and no wake-up is lost.
 *
 * Workers are bound to one physical core each, starting behind the core on which the creating thread runs. The caller's
 * own affinity is never touched: it belongs to the program. With every other core taken by a bound worker the scheduler
 * leaves the caller on the free one. A pool larger than the cores available is neither bound nor does it spin, because
 * a spinning thread would take the core from the thread it waits for. */
#include "base/threads.h"
#include "base/platform.h"

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

/* The state: generation in the upper half; below it two flags and two counters. */
static const uint64_t generation_one = (uint64_t)1 << 32;
static const uint64_t flag_open = (uint64_t)1 << 31;
static const uint64_t flag_stop = (uint64_t)1 << 30;
static const uint64_t entered_one = (uint64_t)1 << 12;
static const uint64_t inside_one = 1;

static uint32_t generation_of(uint64_t state) { return (uint32_t)(state >> 32); }
static int entered_of(uint64_t state) { return (int)(state >> 12 & 0xfff); }
static int inside_of(uint64_t state) { return (int)(state & 0xfff); }

struct thread_pool {
    int threads;
    bool spins;
    thread_task task; /* of the open run */
    void *context;
    pthread_mutex_t mutex;
    pthread_cond_t work_ready, work_done;
    worker *workers; /* [threads - 1] */
    alignas(CACHE_LINE) _Atomic uint64_t state;
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

static bool is_newer(uint64_t state, uint32_t seen) { return generation_of(state) != seen; }

/* `expected`: how many workers must have entered. */
static bool is_finished(uint64_t state, uint32_t expected) {
    return inside_of(state) == 0 && entered_of(state) >= (int)expected;
}

/* Waits actively for a bounded time; returns whether the condition came true. */
static bool wait_awake(thread_pool *pool, bool (*condition)(uint64_t, uint32_t), uint32_t argument) {
    if (condition(atomic_load(&pool->state), argument)) return true;
    if (!pool->spins) return false;
    int64_t start = now_ns();
    int64_t elapsed = 0;
    while (elapsed < SPIN_NS) {
        for (int i = 0; i < PAUSES_PER_CLOCK_READ; i++) {
            if (condition(atomic_load(&pool->state), argument)) return true;
            cpu_pause();
        }
        elapsed = now_ns() - start;
    }
    while (elapsed < SPIN_NS + YIELD_NS) {
        if (condition(atomic_load(&pool->state), argument)) return true;
        sched_yield();
        elapsed = now_ns() - start;
    }
    return false;
}

static void wait_for_generation_after(thread_pool *pool, uint32_t seen) {
    if (wait_awake(pool, is_newer, seen)) return;
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->workers_parked, 1);
    while (!is_newer(atomic_load(&pool->state), seen)) pthread_cond_wait(&pool->work_ready, &pool->mutex);
    atomic_fetch_sub(&pool->workers_parked, 1);
    pthread_mutex_unlock(&pool->mutex);
}

static void wait_until_finished(thread_pool *pool, uint32_t expected) {
    if (wait_awake(pool, is_finished, expected)) return;
    pthread_mutex_lock(&pool->mutex);
    atomic_store(&pool->caller_parked, true);
    while (!is_finished(atomic_load(&pool->state), expected)) pthread_cond_wait(&pool->work_done, &pool->mutex);
    atomic_store(&pool->caller_parked, false);
    pthread_mutex_unlock(&pool->mutex);
}

/* Nobody is inside the last run, and it admits nobody, so the state is the caller's to write. */
static void publish(thread_pool *pool, uint64_t flags) {
    uint64_t generation = (uint64_t)(generation_of(atomic_load(&pool->state)) + 1u) * generation_one;
    atomic_store(&pool->state, generation | flags);
    if (atomic_load(&pool->workers_parked) > 0) {
        pthread_mutex_lock(&pool->mutex);
        pthread_cond_broadcast(&pool->work_ready);
        pthread_mutex_unlock(&pool->mutex);
    }
}

static bool enter(thread_pool *pool, uint64_t state) {
    uint32_t generation = generation_of(state);
    while (generation_of(state) == generation && state & flag_open) {
        if (atomic_compare_exchange_weak(&pool->state, &state, state + entered_one + inside_one)) return true;
    }
    return false;
}

static void leave(thread_pool *pool) {
    uint64_t before = atomic_fetch_sub(&pool->state, inside_one);
    if (inside_of(before) == 1 && atomic_load(&pool->caller_parked)) {
        pthread_mutex_lock(&pool->mutex);
        pthread_cond_signal(&pool->work_done);
        pthread_mutex_unlock(&pool->mutex);
    }
}

static void *worker_main(void *argument) {
    worker *self = argument;
    thread_pool *pool = self->pool;
    uint32_t seen = 0;
    for (;;) {
        wait_for_generation_after(pool, seen);
        uint64_t state = atomic_load(&pool->state);
        if (state & flag_stop) return NULL;
        seen = generation_of(state);
        if (!enter(pool, state)) continue;
        pool->task(pool->context, self->index, pool->threads);
        leave(pool);
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
    platform_foreign_signals(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failure = platform_thread_create(&self->thread, worker_main, self);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failure;
}

static void stop_workers(thread_pool *pool, int started) {
    publish(pool, flag_stop);
    for (int i = 0; i < started; i++) pthread_join(pool->workers[i].thread, NULL);
}

static void free_pool(thread_pool *pool) {
    pthread_cond_destroy(&pool->work_done);
    pthread_cond_destroy(&pool->work_ready);
    pthread_mutex_destroy(&pool->mutex);
    free(pool->workers);
    free(pool);
}

int thread_pool_threads(int threads, int cores) {
    if (threads < 0 || threads > THREAD_POOL_MAX) return -1;
    if (threads > 0) return threads;
    return cores < 1 ? 1 : cores < THREAD_POOL_MAX ? cores : THREAD_POOL_MAX;
}

kakeya_status thread_pool_create(int threads, thread_pool **out, kakeya_error *error) {
    *out = NULL;
    if (thread_pool_threads(threads, 1) < 0)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "threads: %d is outside 0..%d", threads, THREAD_POOL_MAX);
    placement place = {0};
    bool placed = threads != 1 && placement_open(&place);
    int cores = placed ? place.cores : (int)sysconf(_SC_NPROCESSORS_ONLN);
    threads = thread_pool_threads(threads, cores);

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

static void open_run(thread_pool *pool, thread_task task, void *context) {
    pool->task = task;
    pool->context = context;
    publish(pool, flag_open);
    task(context, 0, pool->threads);
}

void thread_pool_run(thread_pool *pool, thread_task task, void *context) {
    if (pool->threads == 1) {
        task(context, 0, 1);
        return;
    }
    open_run(pool, task, context);
    wait_until_finished(pool, (uint32_t)pool->threads - 1);
    atomic_fetch_and(&pool->state, ~flag_open);
}

typedef struct range_run {
    range_task task;
    void *context;
    size_t count, grain;
    alignas(CACHE_LINE) atomic_size_t next_piece; /* or, of runs, the next item */
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
    if (pool->threads == 1) {
        take_pieces(&run, 0, 1);
        return;
    }
    open_run(pool, take_pieces, &run);
    atomic_fetch_and(&pool->state, ~flag_open);
    wait_until_finished(pool, 0);
}

/* Half of what would be every thread's share of the items left, so that the last runs are short ones. */
static size_t run_of(const range_run *run, size_t left, int threads) {
    size_t share = left / (2 * (size_t)threads);
    return share < 1 ? 1 : share < run->grain ? share : run->grain;
}

static void take_runs(void *context, int thread, int threads) {
    range_run *run = context;
    size_t begin = atomic_load_explicit(&run->next_piece, memory_order_relaxed);
    while (begin < run->count) {
        size_t n = run_of(run, run->count - begin, threads);
        if (!atomic_compare_exchange_weak_explicit(&run->next_piece, &begin, begin + n, memory_order_relaxed,
                                                   memory_order_relaxed))
            continue;
        run->task(run->context, begin, begin + n, thread);
        begin = atomic_load_explicit(&run->next_piece, memory_order_relaxed);
    }
}

void thread_pool_for_runs(thread_pool *pool, size_t count, size_t longest, range_task task, void *context) {
    if (count == 0) return;
    if (count == 1 || pool->threads == 1) {
        task(context, 0, count, 0);
        return;
    }
    range_run run = {.task = task, .context = context, .count = count, .grain = longest ? longest : 1};
    atomic_init(&run.next_piece, 0);
    open_run(pool, take_runs, &run);
    atomic_fetch_and(&pool->state, ~flag_open);
    wait_until_finished(pool, 0);
}
