#include "serve/gate.h"

#include <pthread.h>
#include <stdlib.h>

struct gate {
    pthread_mutex_t lock;
    size_t most_running, most_waiting, running, waiting;
    bool closed;
    gate_entry *first, **end;    /* in the order of coming; nobody waits while there is a place */
    unsigned long long *clients; /* of the running ones; most_running of them */
};

gate *gate_open(size_t most_running, size_t most_waiting) {
    gate *g = calloc(1, sizeof *g);
    if (g) g->clients = calloc(most_running, sizeof *g->clients);
    if (!g || !g->clients) {
        free(g);
        return NULL;
    }
    pthread_mutex_init(&g->lock, NULL);
    g->most_running = most_running;
    g->most_waiting = most_waiting;
    g->end = &g->first;
    return g;
}

void gate_free(gate *g) {
    if (!g) return;
    pthread_mutex_destroy(&g->lock);
    free(g->clients);
    free(g);
}

/* --------------------------------------------------------------------------------------------------- under the lock */

static size_t running_of(const gate *g, unsigned long long client) {
    size_t n = 0;
    for (size_t i = 0; i < g->running; i++) n += g->clients[i] == client;
    return n;
}

static gate_entry *next_entry(const gate *g) {
    gate_entry *best = NULL;
    size_t least = 0;
    for (gate_entry *w = g->first; w && !(best && least == 0); w = w->next) {
        size_t n = running_of(g, w->client);
        if (best && n >= least) continue;
        best = w;
        least = n;
    }
    return best;
}

static void append(gate *g, gate_entry *e) {
    e->next = NULL;
    e->waits = true;
    *g->end = e;
    g->end = &e->next;
    g->waiting++;
}

static void take_out(gate *g, gate_entry *e) {
    gate_entry **at = &g->first;
    while (*at != e) at = &(*at)->next;
    *at = e->next;
    if (!e->next) g->end = at;
    e->waits = false;
    g->waiting--;
}

/* A place that is free goes to the entry that is returned, which is to be told; NULL: nobody waits. */
static gate_entry *pass_on(gate *g) {
    gate_entry *next = g->closed ? NULL : next_entry(g);
    if (!next || g->running >= g->most_running) return NULL;
    take_out(g, next);
    g->clients[g->running++] = next->client;
    return next;
}

static bool refuses(const gate *g) { return g->running >= g->most_running && g->waiting >= g->most_waiting; }

/* ------------------------------------------------------------------------------------------------------------------ */

gate_result gate_enter(gate *g, gate_entry *entry, const _Atomic bool *cancelled) {
    gate_result result = GATE_WAITS;
    pthread_mutex_lock(&g->lock);
    if (g->closed) {
        result = GATE_CLOSED;
    } else if (refuses(g)) {
        result = GATE_FULL;
    } else if (atomic_load(cancelled)) {
        result = GATE_CANCELLED;
    } else {
        append(g, entry);
        if (pass_on(g)) result = GATE_ENTERED; /* nobody waits while there is a place: it is this one */
    }
    pthread_mutex_unlock(&g->lock);
    return result;
}

void gate_leave(gate *g, unsigned long long client) {
    pthread_mutex_lock(&g->lock);
    size_t i = 0;
    while (g->clients[i] != client) i++;
    g->clients[i] = g->clients[--g->running];
    gate_entry *next = pass_on(g);
    pthread_mutex_unlock(&g->lock);
    if (next) next->told(next, GATE_ENTERED);
}

void gate_cancel(gate *g, gate_entry *entry) {
    pthread_mutex_lock(&g->lock);
    bool waits = entry->waits;
    if (waits) take_out(g, entry);
    pthread_mutex_unlock(&g->lock);
    if (waits) entry->told(entry, GATE_CANCELLED);
}

void gate_close(gate *g) {
    pthread_mutex_lock(&g->lock);
    g->closed = true;
    gate_entry *all = g->first;
    for (gate_entry *e = all; e; e = e->next) e->waits = false;
    g->first = NULL;
    g->end = &g->first;
    g->waiting = 0;
    pthread_mutex_unlock(&g->lock);
    for (gate_entry *next; all; all = next) {
        next = all->next; /* the entry may be gone once it has been told */
        all->told(all, GATE_CLOSED);
    }
}

void gate_counts(gate *g, size_t *running, size_t *waiting) {
    pthread_mutex_lock(&g->lock);
    *running = g->running;
    *waiting = g->waiting;
    pthread_mutex_unlock(&g->lock);
}

bool gate_is_full(gate *g) {
    pthread_mutex_lock(&g->lock);
    bool full = refuses(g);
    pthread_mutex_unlock(&g->lock);
    return full;
}

size_t gate_room(const gate *g) { return g->most_running; }
