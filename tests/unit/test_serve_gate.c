/* Who is next, and how many are woken for it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>

#include "serve/gate.h"

enum { MOST = 300 };

typedef struct visitor {
    gate *g;
    unsigned long long client;
    _Atomic bool cancelled;
    gate_result result;
    int place; /* in the order of entering */
    long waits;
    pthread_t thread;
} visitor;

static _Atomic int entered;

static void *visit(void *user) {
    visitor *v = user;
    v->result = gate_enter(v->g, v->client, &v->cancelled);
    if (v->result == GATE_ENTERED) {
        v->place = atomic_fetch_add(&entered, 1);
        gate_leave(v->g, v->client);
    }
#ifdef RUSAGE_THREAD
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    v->waits = usage.ru_nvcsw;
#endif
    return NULL;
}

/* Waits in the order of the array. */
static void come(gate *g, visitor *v, size_t n, size_t waiting_before) {
    for (size_t i = 0; i < n; i++) {
        v[i].g = g;
        assert_int_equal(pthread_create(&v[i].thread, NULL, visit, &v[i]), 0);
        for (size_t running, waiting = 0; waiting < waiting_before + i + 1; gate_counts(g, &running, &waiting))
            sched_yield();
    }
}

static void go(visitor *v, size_t n) {
    for (size_t i = 0; i < n; i++) assert_int_equal(pthread_join(v[i].thread, NULL), 0);
}

/* Everybody waits once for a place, and then perhaps for a lock; not once for everybody in front. */
static void one_is_woken(void **state) {
    (void)state;
    static visitor v[MOST];
    _Atomic bool no = false;
    gate *g = gate_open(1, MOST);
    assert_int_equal(gate_enter(g, 0, &no), GATE_ENTERED);
    atomic_store(&entered, 0);
    for (size_t i = 0; i < MOST; i++) v[i].client = i + 1;
    come(g, v, MOST, 0);
    assert_int_equal(gate_enter(g, 0, &no), GATE_FULL);
    gate_leave(g, 0);
    go(v, MOST);
    long waits = 0;
    for (int i = 0; i < MOST; i++) {
        assert_int_equal(v[i].place, i);
        waits += v[i].waits;
    }
    if (waits > 12 * MOST) fail_msg("%d threads waited %ld times", MOST, waits);
    gate_free(g);
}

/* The client with the fewest running is next, then who came first. */
static void clients_take_turns(void **state) {
    (void)state;
    static visitor v[6] = {{.client = 1}, {.client = 1}, {.client = 2}, {.client = 3}, {.client = 1}, {.client = 2}};
    _Atomic bool no = false;
    gate *g = gate_open(3, 16);
    for (int i = 0; i < 2; i++) assert_int_equal(gate_enter(g, 1, &no), GATE_ENTERED);
    assert_int_equal(gate_enter(g, 2, &no), GATE_ENTERED);
    atomic_store(&entered, 0);
    come(g, v, 6, 0);
    gate_leave(g, 2); /* one place, which goes round while client 1 has two */
    go(v, 6);
    static const int places[6] = {3, 4, 0, 1, 5, 2};
    for (int i = 0; i < 6; i++) assert_int_equal(v[i].place, places[i]);
    gate_leave(g, 1);
    gate_leave(g, 1);
    gate_free(g);
}

static void who_gives_up_is_passed_over(void **state) {
    (void)state;
    static visitor v[4] = {{.client = 1}, {.client = 2}, {.client = 3}, {.client = 4}};
    _Atomic bool no = false;
    gate *g = gate_open(1, 16);
    assert_int_equal(gate_enter(g, 9, &no), GATE_ENTERED);
    atomic_store(&entered, 0);
    come(g, v, 4, 0);
    for (int i = 0; i < 4; i += 3) { /* the first, and the last */
        atomic_store(&v[i].cancelled, true);
        gate_wake(g, &v[i].cancelled);
        go(&v[i], 1);
        assert_int_equal(v[i].result, GATE_CANCELLED);
    }
    static visitor later = {.client = 5};
    come(g, &later, 1, 2);
    gate_leave(g, 9);
    go(v + 1, 2);
    go(&later, 1);
    assert_true(v[1].place == 0 && v[2].place == 1 && later.place == 2);
    assert_int_equal(gate_enter(g, 9, &no), GATE_ENTERED);
    static visitor last = {.client = 1};
    come(g, &last, 1, 0);
    gate_close(g);
    go(&last, 1);
    assert_int_equal(last.result, GATE_CLOSED);
    assert_int_equal(gate_enter(g, 1, &no), GATE_CLOSED);
    gate_leave(g, 9);
    gate_free(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_is_woken), cmocka_unit_test(clients_take_turns),
                                       cmocka_unit_test(who_gives_up_is_passed_over)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
