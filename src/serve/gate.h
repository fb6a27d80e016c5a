/* How many answers run at the same time, and who is next: the client that has the fewest running, then the one that
 * came first. */
#ifndef KAKEYA_SERVE_GATE_H
#define KAKEYA_SERVE_GATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct gate gate;

typedef enum gate_result { GATE_ENTERED = 0, GATE_WAITS, GATE_FULL, GATE_CANCELLED, GATE_CLOSED } gate_result;

/* Who wants a place. It is where its owner has it, and takes no thread while it waits. */
typedef struct gate_entry {
    unsigned long long client;
    /* What became of one that waits: GATE_ENTERED, GATE_CANCELLED or GATE_CLOSED. Called once, from whatever thread,
     * and must not block. The gate knows the entry no more. */
    void (*told)(struct gate_entry *entry, gate_result result);
    /* the gate's, under its lock */
    struct gate_entry *next;
    bool waits;
} gate_entry;

/* NULL: out of memory. */
gate *gate_open(size_t most_running, size_t most_waiting);
void gate_free(gate *g);
/* GATE_ENTERED: a place is the entry's; with GATE_WAITS it is told later, perhaps before this returns. *cancelled: it
 * wants none any more. Every GATE_ENTERED is followed by gate_leave with the same client. A place that becomes free
 * goes to the entry that is next, and nobody else hears of it. */
gate_result gate_enter(gate *g, gate_entry *entry, const _Atomic bool *cancelled);
void gate_leave(gate *g, unsigned long long client);
/* The entry, which may have been told already, wants no place; whoever calls this has set *cancelled. */
void gate_cancel(gate *g, gate_entry *entry);
/* Whoever waits, and whoever comes, gets GATE_CLOSED. */
void gate_close(gate *g);
void gate_counts(gate *g, size_t *running, size_t *waiting);
bool gate_is_full(gate *g);      /* whoever comes now gets GATE_FULL */
size_t gate_room(const gate *g); /* most running */

#endif
