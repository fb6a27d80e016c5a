/* How many answers run at the same time, and who is next: the client that has the fewest running, then the one that
 * came first. */
#ifndef KAKEYA_SERVE_ADMISSION_H
#define KAKEYA_SERVE_ADMISSION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct admission admission;

typedef enum admission_result {
    ADMISSION_ENTERED = 0,
    ADMISSION_WAITS,
    ADMISSION_FULL,
    ADMISSION_CANCELLED,
    ADMISSION_CLOSED
} admission_result;

/* Who wants a place. It is where its owner has it, and takes no thread while it waits. */
typedef struct admission_entry {
    unsigned long long client;
    /* What became of one that waits: ADMISSION_ENTERED, ADMISSION_CANCELLED or ADMISSION_CLOSED. Called once, from
     * whatever thread, and must not block. Admission knows the entry no more. */
    void (*told)(struct admission_entry *entry, admission_result result);
    /* admission's, under its lock */
    struct admission_entry *next;
    bool waits;
} admission_entry;

/* NULL: out of memory. */
admission *admission_open(size_t most_running, size_t most_waiting);
void admission_free(admission *g);
/* ADMISSION_ENTERED: a place is the entry's; with ADMISSION_WAITS it is told later, perhaps before this returns.
 * *cancelled: it wants none any more. Every ADMISSION_ENTERED is followed by admission_leave with the same client. A
 * place that becomes free goes to the entry that is next, and nobody else hears of it. */
admission_result admission_enter(admission *g, admission_entry *entry, const _Atomic bool *cancelled);
void admission_leave(admission *g, unsigned long long client);
/* The entry, which may have been told already, wants no place; whoever calls this has set *cancelled. */
void admission_cancel(admission *g, admission_entry *entry);
/* Whoever waits, and whoever comes, gets ADMISSION_CLOSED. */
void admission_close(admission *g);
void admission_counts(admission *g, size_t *running, size_t *waiting);
bool admission_is_full(admission *g);      /* whoever comes now gets ADMISSION_FULL */
size_t admission_room(const admission *g); /* most running */

#endif
