/* Who is next, and that nobody else hears of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "serve/admission.h"

enum { MOST = 4096 };

typedef struct visitor {
    admission_entry entry; /* the first member */
    _Atomic bool cancelled;
    admission_result result;
    int times; /* that it was told of it */
} visitor;

static visitor *told[MOST]; /* in the order of being told */
static int n_told;

static void on_told(admission_entry *entry, admission_result result) {
    visitor *v = (visitor *)entry;
    v->result = result;
    v->times++;
    told[n_told++] = v;
}

static admission_result enter(admission *g, visitor *v) {
    v->entry.told = on_told;
    return admission_enter(g, &v->entry, &v->cancelled);
}

static admission_result enter_as(admission *g, unsigned long long client) {
    static visitor v;
    v = (visitor){.entry.client = client};
    return enter(g, &v);
}

/* All wait in the order of the array. */
static void come(admission *g, visitor *v, size_t n) {
    size_t running, waiting, before;
    admission_counts(g, &running, &before);
    for (size_t i = 0; i < n; i++) assert_int_equal(enter(g, &v[i]), ADMISSION_WAITS);
    admission_counts(g, &running, &waiting);
    assert_int_equal(waiting, before + n);
}

/* Whoever gets a place leaves it to the next one, until nobody is told any more. */
static void leave_in_turn(admission *g, int from) {
    for (int i = from; i < n_told; i++)
        if (told[i]->result == ADMISSION_ENTERED) admission_leave(g, told[i]->entry.client);
}

/* A place that becomes free is told to the one who gets it, and to nobody else; nobody needs a thread to wait. */
static void one_is_told(void **state) {
    (void)state;
    static visitor v[MOST];
    admission *g = admission_open(1, MOST);
    n_told = 0;
    assert_int_equal(enter_as(g, 0), ADMISSION_ENTERED);
    for (size_t i = 0; i < MOST; i++) v[i].entry.client = i + 1;
    come(g, v, MOST);
    assert_int_equal(enter_as(g, 0), ADMISSION_FULL);
    admission_leave(g, 0);
    for (int i = 0; i < MOST; i++) {
        assert_int_equal(n_told, i + 1);
        assert_ptr_equal(told[i], &v[i]);
        admission_leave(g, v[i].entry.client);
    }
    assert_int_equal(n_told, MOST);
    assert_int_equal(enter_as(g, 0), ADMISSION_ENTERED);
    admission_leave(g, 0);
    admission_free(g);
}

/* The client with the fewest running is next, then who came first. */
static void clients_take_turns(void **state) {
    (void)state;
    static const unsigned long long clients[6] = {1, 1, 2, 3, 1, 2};
    static const int order[6] = {2, 3, 5, 0, 1, 4};
    static visitor v[6];
    admission *g = admission_open(3, 16);
    n_told = 0;
    for (int i = 0; i < 2; i++) assert_int_equal(enter_as(g, 1), ADMISSION_ENTERED);
    assert_int_equal(enter_as(g, 2), ADMISSION_ENTERED);
    for (int i = 0; i < 6; i++) v[i].entry.client = clients[i];
    come(g, v, 6);
    admission_leave(g, 2); /* one place, which goes round while client 1 has two */
    leave_in_turn(g, 0);
    for (int i = 0; i < 6; i++) assert_ptr_equal(told[i], &v[order[i]]);
    admission_leave(g, 1);
    admission_leave(g, 1);
    admission_free(g);
}

static void who_gives_up_is_passed_over(void **state) {
    (void)state;
    static visitor v[4], later = {.entry.client = 5}, last[2], gone = {.cancelled = true};
    admission *g = admission_open(1, 16);
    n_told = 0;
    assert_int_equal(enter_as(g, 9), ADMISSION_ENTERED);
    for (unsigned i = 0; i < 4; i++) v[i].entry.client = i + 1;
    come(g, v, 4);
    for (int i = 0; i < 4; i += 3) { /* the first, and the last */
        atomic_store(&v[i].cancelled, true);
        for (int again = 0; again < 2; again++) admission_cancel(g, &v[i].entry);
        assert_int_equal(v[i].result, ADMISSION_CANCELLED);
        assert_int_equal(v[i].times, 1);
    }
    assert_int_equal(enter(g, &gone), ADMISSION_CANCELLED);
    come(g, &later, 1);
    admission_leave(g, 9);
    leave_in_turn(g, 2);
    assert_int_equal(n_told, 5);
    assert_true(told[2] == &v[1] && told[3] == &v[2] && told[4] == &later);
    admission_cancel(g, &later.entry); /* too late: it has had its place */
    assert_int_equal(later.times, 1);
    assert_int_equal(enter_as(g, 9), ADMISSION_ENTERED);
    come(g, last, 2);
    admission_close(g);
    for (int i = 0; i < 2; i++) assert_int_equal(last[i].result, ADMISSION_CLOSED);
    assert_int_equal(n_told, 7);
    assert_int_equal(enter_as(g, 1), ADMISSION_CLOSED);
    admission_leave(g, 9);
    assert_int_equal(n_told, 7);
    admission_free(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_is_told), cmocka_unit_test(clients_take_turns),
                                       cmocka_unit_test(who_gives_up_is_passed_over)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
