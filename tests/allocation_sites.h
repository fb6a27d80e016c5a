/* Which allocations of a sweep are worth failing: those of one place, called from the same places, are alike. The first
 * two of each and the last one stand for all, but for `make test-whole`.
 *
 *     allocation_sites_begin();      a run in which nothing fails: the program's own allocator functions call
 *     allocation_sites_note();       at each allocation
 *     allocation_sites_end();
 *     allocation_sites_worth(k);     the k-th of them, from 1 on, or one behind all of them
 *
 * Include in one file of a program. */
#ifndef KAKEYA_TESTS_ALLOCATION_SITES_H
#define KAKEYA_TESTS_ALLOCATION_SITES_H

#include <execinfo.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "sweep.h"

enum { ALLOCATION_SITES = 1 << 16, ALLOCATION_FRAMES = 24 };

static atomic_bool allocation_sites_noted;
static atomic_long allocation_sites_n;
static uint64_t allocation_site[ALLOCATION_SITES]; /* a digest of the calls that led there */

static void allocation_sites_begin(void) {
    void *frame[1];
    (void)backtrace(frame, 1); /* what it allocates itself, it does the first time */
    allocation_sites_n = 0;
    allocation_sites_noted = true;
}

static void allocation_sites_end(void) { allocation_sites_noted = false; }

static inline void allocation_sites_note(void) {
    if (!allocation_sites_noted) return;
    void *frame[ALLOCATION_FRAMES];
    long at = atomic_fetch_add(&allocation_sites_n, 1);
    int n = backtrace(frame, ALLOCATION_FRAMES);
    uint64_t digest = 14695981039346656037u;
    for (int i = 0; i < n; i++) digest = (digest ^ (uint64_t)(uintptr_t)frame[i]) * 1099511628211u;
    if (at < ALLOCATION_SITES) allocation_site[at] = digest;
}

static bool allocation_sites_worth(long k) {
    if (sweep_whole() || k > allocation_sites_n || k > ALLOCATION_SITES) return true;
    int before = 0, behind = 0;
    for (long i = 0; i < allocation_sites_n && i < ALLOCATION_SITES; i++) {
        if (allocation_site[i] != allocation_site[k - 1]) continue;
        before += i < k - 1;
        behind += i > k - 1;
    }
    return before < 2 || behind == 0;
}

#endif
