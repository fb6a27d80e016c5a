/* How many answers run at the same time, and who is next: the client that has the fewest running, then the one that
 * came first. */
#ifndef KAKEYA_SERVE_GATE_H
#define KAKEYA_SERVE_GATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct gate gate;

typedef enum gate_result { GATE_ENTERED = 0, GATE_FULL, GATE_CANCELLED, GATE_CLOSED } gate_result;

/* NULL: out of memory. */
gate *gate_open(size_t most_running, size_t most_waiting);
void gate_free(gate *g);
/* Waits for a place. Every GATE_ENTERED is followed by gate_leave with the same client. *cancelled ends the waiting
 * once gate_wake is called for it. A place that becomes free wakes the one who gets it, and nobody else. */
gate_result gate_enter(gate *g, unsigned long long client, const _Atomic bool *cancelled);
void gate_leave(gate *g, unsigned long long client);
void gate_wake(gate *g, const _Atomic bool *cancelled); /* whoever waits with this flag */
/* Whoever waits, and whoever comes, gets GATE_CLOSED. */
void gate_close(gate *g);
void gate_counts(gate *g, size_t *running, size_t *waiting);
bool gate_is_full(gate *g);      /* whoever comes now gets GATE_FULL */
size_t gate_room(const gate *g); /* most running */

#endif
