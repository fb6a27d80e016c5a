/* The thread pool runs every task exactly once on the threads it promises, however often and in whatever nesting of
 * pools, awake or parked. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/threads.h"

enum { MAX_SIZE = 4, MAX_ITEMS = 1000 };

static thread_pool *create(int threads) {
    thread_pool *pool = NULL;
    kakeya_error error = {0};
    if (thread_pool_create(threads, &pool, &error)) fail_msg("pool of %d threads: %s", threads, error.message);
    return pool;
}

static void reports_its_size(void **state) {
    (void)state;
    for (int threads = 1; threads <= MAX_SIZE; threads++) {
        thread_pool *pool = create(threads);
        assert_int_equal(thread_pool_size(pool), threads);
        thread_pool_destroy(pool);
    }
    thread_pool *pool = create(0);
    assert_true(thread_pool_size(pool) >= 1);
    thread_pool_destroy(pool);
    thread_pool_destroy(NULL);
}

static void refuses_absurd_sizes(void **state) {
    (void)state;
    static const int sizes[] = {-1, 1 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        thread_pool *pool = (thread_pool *)&state;
        kakeya_error error = {0};
        assert_int_equal(thread_pool_create(sizes[i], &pool, &error), KAKEYA_INVALID_ARGUMENT);
        assert_null(pool);
        assert_int_equal(error.status, KAKEYA_INVALID_ARGUMENT);
        assert_non_null(strstr(error.message, "threads"));
    }
}

/* The decision alone: no machine here has so many cores. */
static void decides_how_many(void **state) {
    (void)state;
    static const int cases[][3] = {/* wanted, cores, threads */
                                   {0, 1, 1},       {0, 2, 2},        {0, 300, 300}, {0, 1024, 1024}, {0, 1025, 1024},
                                   {0, 5000, 1024}, {0, 0, 1},        {0, -1, 1},    {1, 64, 1},      {300, 2, 300},
                                   {1024, 1, 1024}, {1025, 4000, -1}, {-1, 4, -1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int found = thread_pool_threads(cases[i][0], cases[i][1]);
        if (found != cases[i][2])
            fail_msg("%d threads wanted, %d cores: %d, expected %d", cases[i][0], cases[i][1], found, cases[i][2]);
    }
}

/* hwloc describes another machine when the environment says so: a pool of its size, larger than any array of this test.
 */
static void takes_every_core(void **state) {
    (void)state;
    assert_int_equal(setenv("HWLOC_SYNTHETIC", "core:300 pu:1", 1), 0);
    thread_pool *pool = create(0);
    unsetenv("HWLOC_SYNTHETIC");
    assert_int_equal(thread_pool_size(pool), 300);
    thread_pool_destroy(pool);
}

/* Counters that only the task's own thread writes: a lost or doubled call shows, and so does a missing join. */
typedef struct run_counts {
    int threads;
    long calls[MAX_SIZE];
    atomic_int errors;
} run_counts;

static void count_call(void *context, int thread, int threads) {
    run_counts *counts = context;
    if (threads != counts->threads || thread < 0 || thread >= threads) {
        atomic_fetch_add(&counts->errors, 1);
        return;
    }
    counts->calls[thread]++;
}

static void runs_once_on_every_thread(void **state) {
    (void)state;
    for (int threads = 1; threads <= MAX_SIZE; threads++) {
        const long runs = threads <= 2 ? 20000 : 2000;
        thread_pool *pool = create(threads);
        run_counts counts = {.threads = threads};
        for (long run = 1; run <= runs; run++) {
            thread_pool_run(pool, count_call, &counts);
            for (int t = 0; t < threads; t++) {
                if (counts.calls[t] != run)
                    fail_msg("%d threads, run %ld: thread %d was called %ld times", threads, run, t, counts.calls[t]);
            }
        }
        assert_int_equal(atomic_load(&counts.errors), 0);
        thread_pool_destroy(pool);
    }
}

typedef struct range_counts {
    size_t count, grain;
    int threads;
    bool runs; /* any of which may be shorter than the grain */
    unsigned char seen[MAX_ITEMS];
    atomic_int errors, pieces;
} range_counts;

static void count_range(void *context, size_t begin, size_t end, int thread) {
    range_counts *counts = context;
    bool short_piece = !counts->runs && end - begin != counts->grain;
    if (begin >= end || end > counts->count || end - begin > counts->grain || (short_piece && end != counts->count) ||
        thread < 0 || thread >= counts->threads) {
        atomic_fetch_add(&counts->errors, 1);
        return;
    }
    for (size_t i = begin; i < end; i++) counts->seen[i]++;
    atomic_fetch_add(&counts->pieces, 1);
}

static void covers_ranges_exactly_once(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 2, 7, 64, 999, MAX_ITEMS};
    static const size_t grains[] = {1, 3, 64, 1000, 5000};
    for (int threads = 1; threads <= MAX_SIZE; threads++) {
        thread_pool *pool = create(threads);
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            for (size_t g = 0; g < sizeof grains / sizeof *grains; g++) {
                for (int repetition = 0; repetition < 20; repetition++) {
                    range_counts counts = {.count = sizes[s], .grain = grains[g], .threads = threads};
                    thread_pool_for(pool, sizes[s], grains[g], count_range, &counts);
                    assert_int_equal(atomic_load(&counts.errors), 0);
                    assert_int_equal(atomic_load(&counts.pieces), (sizes[s] + grains[g] - 1) / grains[g]);
                    for (size_t i = 0; i < sizes[s]; i++) {
                        if (counts.seen[i] != 1)
                            fail_msg("%d threads, %zu items in pieces of %zu: item %zu was taken %d times", threads,
                                     sizes[s], grains[g], i, counts.seen[i]);
                    }
                }
            }
        }
        thread_pool_destroy(pool);
    }
}

/* Between two runs the workers are given time to fall asleep: processor time passes that no spinning outlasts. */
static void wakes_parked_workers(void **state) {
    (void)state;
    thread_pool *pool = create(2);
    run_counts counts = {.threads = 2};
    for (long run = 1; run <= 20; run++) {
        struct timespec begin, now;
        clock_gettime(CLOCK_MONOTONIC, &begin);
        do clock_gettime(CLOCK_MONOTONIC, &now);
        while ((now.tv_sec - begin.tv_sec) * 1000000000L + now.tv_nsec - begin.tv_nsec < 1000000);
        thread_pool_run(pool, count_call, &counts);
        assert_int_equal(counts.calls[0], run);
        assert_int_equal(counts.calls[1], run);
    }
    thread_pool_destroy(pool);
}

static void runs_cover_ranges_exactly_once(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 2, 7, 64, 999, MAX_ITEMS};
    static const size_t longest[] = {1, 3, 64, 5000};
    for (int threads = 1; threads <= MAX_SIZE; threads++) {
        thread_pool *pool = create(threads);
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            for (size_t l = 0; l < sizeof longest / sizeof *longest; l++) {
                size_t most = threads == 1 ? sizes[s] : longest[l];
                range_counts counts = {.count = sizes[s], .grain = most, .threads = threads, .runs = true};
                thread_pool_for_runs(pool, sizes[s], longest[l], count_range, &counts);
                assert_int_equal(atomic_load(&counts.errors), 0);
                for (size_t i = 0; i < sizes[s]; i++) {
                    if (counts.seen[i] != 1)
                        fail_msg("%d threads, %zu items in runs of %zu: item %zu was taken %d times", threads, sizes[s],
                                 longest[l], i, counts.seen[i]);
                }
            }
        }
        thread_pool_destroy(pool);
    }
}

static void create_inner_pool(void *context, int thread, int threads) {
    (void)threads;
    atomic_int *total = context;
    thread_pool *pool = NULL;
    if (thread_pool_create(2, &pool, NULL)) return;
    range_counts counts = {.count = 100 + (size_t)thread, .grain = 9, .threads = 2};
    for (int i = 0; i < 50; i++) thread_pool_for(pool, counts.count, counts.grain, count_range, &counts);
    int sum = 0;
    for (size_t i = 0; i < counts.count; i++) sum += counts.seen[i];
    if (atomic_load(&counts.errors) == 0) atomic_fetch_add(total, sum);
    thread_pool_destroy(pool);
}

static void pools_nest(void **state) {
    (void)state;
    thread_pool *outer = create(3), *beside = create(2);
    for (int i = 0; i < 5; i++) {
        atomic_int total = 0;
        thread_pool_run(outer, create_inner_pool, &total);
        assert_int_equal(atomic_load(&total), 50 * (100 + 101 + 102));
        run_counts counts = {.threads = 2};
        thread_pool_run(beside, count_call, &counts);
        assert_int_equal(counts.calls[0] + counts.calls[1], 2);
    }
    thread_pool_destroy(beside);
    thread_pool_destroy(outer);
}

static void creates_and_destroys_often(void **state) {
    (void)state;
    for (int i = 0; i < 100; i++) {
        thread_pool *pool = create(1 + i % MAX_SIZE);
        run_counts counts = {.threads = 1 + i % MAX_SIZE};
        if (i % 3) thread_pool_run(pool, count_call, &counts);
        thread_pool_destroy(pool);
        for (int t = 0; t < counts.threads; t++) assert_int_equal(counts.calls[t], i % 3 ? 1 : 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reports_its_size),
        cmocka_unit_test(refuses_absurd_sizes),
        cmocka_unit_test(decides_how_many),
        cmocka_unit_test(takes_every_core),
        cmocka_unit_test(runs_once_on_every_thread),
        cmocka_unit_test(covers_ranges_exactly_once),
        cmocka_unit_test(runs_cover_ranges_exactly_once),
        cmocka_unit_test(wakes_parked_workers),
        cmocka_unit_test(pools_nest),
        cmocka_unit_test(creates_and_destroys_often),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
