#include "serve/admission.h"

#include <pthread.h>
#include <stdlib.h>

struct admission {
    pthread_mutex_t lock;
    size_t most_running, most_waiting, running, waiting;
    bool closed;
    admission_entry *first, **end; /* in the order of coming; nobody waits while there is a place */
    unsigned long long *clients;   /* of the running ones; most_running of them */
};

admission *admission_open(size_t most_running, size_t most_waiting) {
    admission *g = calloc(1, sizeof *g);
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

void admission_free(admission *g) {
    if (!g) return;
    pthread_mutex_destroy(&g->lock);
    free(g->clients);
    free(g);
}

/* --------------------------------------------------------------------------------------------------- under the lock */

static size_t running_of(const admission *g, unsigned long long client) {
    size_t n = 0;
    for (size_t i = 0; i < g->running; i++) n += g->clients[i] == client;
    return n;
}

static admission_entry *next_entry(const admission *g) {
    admission_entry *best = NULL;
    size_t least = 0;
    for (admission_entry *w = g->first; w && !(best && least == 0); w = w->next) {
        size_t n = running_of(g, w->client);
        if (best && n >= least) continue;
        best = w;
        least = n;
    }
    return best;
}

static void append(admission *g, admission_entry *e) {
    e->next = NULL;
    e->waits = true;
    *g->end = e;
    g->end = &e->next;
    g->waiting++;
}

static void take_out(admission *g, admission_entry *e) {
    admission_entry **at = &g->first;
    while (*at != e) at = &(*at)->next;
    *at = e->next;
    if (!e->next) g->end = at;
    e->waits = false;
    g->waiting--;
}

/* A place that is free goes to the entry that is returned, which is to be told; NULL: nobody waits. */
static admission_entry *pass_on(admission *g) {
    admission_entry *next = g->closed ? NULL : next_entry(g);
    if (!next || g->running >= g->most_running) return NULL;
    take_out(g, next);
    g->clients[g->running++] = next->client;
    return next;
}

static bool refuses(const admission *g) { return g->running >= g->most_running && g->waiting >= g->most_waiting; }

/* ------------------------------------------------------------------------------------------------------------------ */

admission_result admission_enter(admission *g, admission_entry *entry, const _Atomic bool *cancelled) {
    admission_result result = ADMISSION_WAITS;
    pthread_mutex_lock(&g->lock);
    if (g->closed) {
        result = ADMISSION_CLOSED;
    } else if (refuses(g)) {
        result = ADMISSION_FULL;
    } else if (atomic_load(cancelled)) {
        result = ADMISSION_CANCELLED;
    } else {
        append(g, entry);
        if (pass_on(g)) result = ADMISSION_ENTERED; /* nobody waits while there is a place: it is this one */
    }
    pthread_mutex_unlock(&g->lock);
    return result;
}

void admission_leave(admission *g, unsigned long long client) {
    pthread_mutex_lock(&g->lock);
    size_t i = 0;
    while (g->clients[i] != client) i++;
    g->clients[i] = g->clients[--g->running];
    admission_entry *next = pass_on(g);
    pthread_mutex_unlock(&g->lock);
    if (next) next->told(next, ADMISSION_ENTERED);
}

void admission_cancel(admission *g, admission_entry *entry) {
    pthread_mutex_lock(&g->lock);
    bool waits = entry->waits;
    if (waits) take_out(g, entry);
    pthread_mutex_unlock(&g->lock);
    if (waits) entry->told(entry, ADMISSION_CANCELLED);
}

void admission_close(admission *g) {
    pthread_mutex_lock(&g->lock);
    g->closed = true;
    admission_entry *all = g->first;
    for (admission_entry *e = all; e; e = e->next) e->waits = false;
    g->first = NULL;
    g->end = &g->first;
    g->waiting = 0;
    pthread_mutex_unlock(&g->lock);
    for (admission_entry *next; all; all = next) {
        next = all->next; /* the entry may be gone once it has been told */
        all->told(all, ADMISSION_CLOSED);
    }
}

void admission_counts(admission *g, size_t *running, size_t *waiting) {
    pthread_mutex_lock(&g->lock);
    *running = g->running;
    *waiting = g->waiting;
    pthread_mutex_unlock(&g->lock);
}

bool admission_is_full(admission *g) {
    pthread_mutex_lock(&g->lock);
    bool full = refuses(g);
    pthread_mutex_unlock(&g->lock);
    return full;
}

size_t admission_room(const admission *g) { return g->most_running; }
