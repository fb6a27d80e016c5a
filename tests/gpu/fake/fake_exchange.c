/* What devices tell each other on the fake device: where they are, instead of sums. Who meets another checks that both
 * are at the same exchange of the same pass, with the same rows, which have seen the same. */
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "backend/cuda/exchange.h"
#include "gpu/fake/fake_device.h"

/* In the place of a sender's values. */
typedef struct letter {
    _Atomic uint32_t number; /* of the exchange; written last */
    int rows;
    uint64_t digest;
} letter;

enum { FLAGGED = 0, PLAIN, MEETING };

typedef struct exchange_arguments {
    cuda_exchange e;
    int rows, part; /* of the inbox */
} exchange_arguments;

static letter *place_of(const exchange_arguments *a, int sender, int receiver) {
    const cuda_inbox *layout = &a->e.layout;
    size_t slot = (size_t)((a->e.turn & 1) * (a->e.devices - 1) + sender - (sender > receiver));
    size_t at = a->part == PLAIN ? layout->plain + slot * layout->plain_slot : slot * layout->flagged_slot;
    return (letter *)(void *)(a->e.inbox[receiver] + at);
}

static uint32_t number_of(const cuda_exchange *e) { return *e->before + (uint32_t)e->turn + 1; }

static void run_send(const void *arguments) {
    const exchange_arguments *a = arguments;
    for (int d = 0; d < a->e.devices; d++) {
        if (d == a->e.index) continue;
        letter *to = place_of(a, a->e.index, d);
        to->rows = a->rows;
        to->digest = fake_step_digest(a->rows);
        atomic_store_explicit(&to->number, number_of(&a->e), memory_order_release);
    }
}

static void check_letters(const exchange_arguments *a) {
    for (int d = 0; d < a->e.devices; d++) {
        if (d == a->e.index) continue;
        const letter *from = place_of(a, d, a->e.index);
        if (from->rows != a->rows) fake_broken("devices exchange different rows", from->rows, a->rows);
        if (from->digest != fake_step_digest(a->rows))
            fake_broken("the rows of another device have seen something else; devices", d, a->e.index);
    }
}

/* A graph runs on every device's thread at the same time, so waiting for a letter ends. */
static void wait_for(const exchange_arguments *a) {
    enum { PATIENCE_SECONDS = 120 };
    time_t start = time(NULL);
    for (int d = 0; d < a->e.devices; d++) {
        if (d == a->e.index) continue;
        const letter *from = place_of(a, d, a->e.index);
        while (atomic_load_explicit(&from->number, memory_order_acquire) != number_of(&a->e)) {
            if (__atomic_load_n(a->e.abandoned, __ATOMIC_SEQ_CST)) return;
            if (time(NULL) - start > PATIENCE_SECONDS) fake_broken("a device waits for another in vain", a->e.index, d);
            sched_yield();
        }
    }
    check_letters(a);
}

static void run_exchange(const void *arguments) {
    run_send(arguments);
    wait_for(arguments);
}

void cuda_exchange_rows(const cuda_launch *l, const cuda_exchange *e, const cuda_route *route, int rows) {
    (void)l, (void)route;
    exchange_arguments a = {*e, rows, FLAGGED};
    if (!fake_capturing()) fake_broken("a device waits for another outside a captured step", e->index, e->turn);
    fake_launch(run_exchange, &a, sizeof a);
}

void cuda_exchange_meet(const cuda_launch *l, const cuda_exchange *e) {
    (void)l;
    exchange_arguments a = {*e, 0, FLAGGED};
    if (!fake_capturing()) fake_broken("a device waits for another outside a captured step", e->index, e->turn);
    fake_launch(run_exchange, &a, sizeof a);
}

void cuda_send_rows(const cuda_launch *l, const cuda_exchange *e, const cuda_route *route, int rows) {
    (void)l, (void)route;
    exchange_arguments a = {*e, rows, PLAIN};
    if (fake_capturing()) fake_broken("a device sends apart in a captured step", e->index, e->turn);
    fake_launch(run_send, &a, sizeof a);
}

/* Between the halves the host has put all devices in order. */
static void run_add(const void *arguments) {
    const exchange_arguments *a = arguments;
    for (int d = 0; d < a->e.devices; d++) {
        if (d == a->e.index) continue;
        uint32_t number = atomic_load_explicit(&place_of(a, d, a->e.index)->number, memory_order_acquire);
        if (number != number_of(&a->e)) fake_broken("a sum before its parts", (int)number, (int)number_of(&a->e));
    }
    check_letters(a);
}

void cuda_add_rows(const cuda_launch *l, const cuda_exchange *e, int rows) {
    (void)l;
    exchange_arguments a = {*e, rows, PLAIN};
    fake_launch(run_add, &a, sizeof a);
}
