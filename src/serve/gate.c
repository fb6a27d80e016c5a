#include "serve/gate.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct waiter {
    unsigned long long client;
    const _Atomic bool *cancelled;
    bool entered; /* a place is this one's, and it is in the queue no more */
    pthread_cond_t woken;
    struct waiter *next;
} waiter;

struct gate {
    pthread_mutex_t lock;
    size_t most_running, most_waiting, running, waiting;
    bool closed;
    waiter *first, **end;        /* in the order of coming; nobody waits while there is a place */
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

static waiter *next_waiter(const gate *g) {
    waiter *best = NULL;
    size_t least = 0;
    for (waiter *w = g->first; w && !(best && least == 0); w = w->next) {
        size_t n = running_of(g, w->client);
        if (best && n >= least) continue;
        best = w;
        least = n;
    }
    return best;
}

static void append(gate *g, waiter *w) {
    *g->end = w;
    g->end = &w->next;
    g->waiting++;
}

static void take_out(gate *g, const waiter *w) {
    waiter **at = &g->first;
    while (*at != w) at = &(*at)->next;
    *at = w->next;
    if (!w->next) g->end = at;
    g->waiting--;
}

/* A place that is free goes to who is next. */
static void pass_on(gate *g) {
    waiter *next = g->closed ? NULL : next_waiter(g);
    if (!next || g->running >= g->most_running) return;
    take_out(g, next);
    g->clients[g->running++] = next->client;
    next->entered = true;
    pthread_cond_signal(&next->woken);
}

static void give_back(gate *g, unsigned long long client) {
    size_t i = 0;
    while (g->clients[i] != client) i++;
    g->clients[i] = g->clients[--g->running];
    pass_on(g);
}

static bool refuses(const gate *g) { return g->running >= g->most_running && g->waiting >= g->most_waiting; }

static gate_result wait_for_place(gate *g, unsigned long long client, const _Atomic bool *cancelled) {
    waiter me = {.client = client, .cancelled = cancelled};
    pthread_cond_init(&me.woken, NULL);
    append(g, &me);
    pass_on(g);
    while (!me.entered && !g->closed && !atomic_load(cancelled)) pthread_cond_wait(&me.woken, &g->lock);
    gate_result result = g->closed ? GATE_CLOSED : atomic_load(cancelled) ? GATE_CANCELLED : GATE_ENTERED;
    if (!me.entered) {
        take_out(g, &me);
    } else if (result != GATE_ENTERED) {
        give_back(g, client);
    }
    pthread_cond_destroy(&me.woken);
    return result;
}

/* ------------------------------------------------------------------------------------------------------------------ */

gate_result gate_enter(gate *g, unsigned long long client, const _Atomic bool *cancelled) {
    pthread_mutex_lock(&g->lock);
    gate_result result = g->closed ? GATE_CLOSED : refuses(g) ? GATE_FULL : wait_for_place(g, client, cancelled);
    pthread_mutex_unlock(&g->lock);
    return result;
}

void gate_leave(gate *g, unsigned long long client) {
    pthread_mutex_lock(&g->lock);
    give_back(g, client);
    pthread_mutex_unlock(&g->lock);
}

void gate_wake(gate *g, const _Atomic bool *cancelled) {
    pthread_mutex_lock(&g->lock);
    for (waiter *w = g->first; w; w = w->next)
        if (w->cancelled == cancelled) pthread_cond_signal(&w->woken);
    pthread_mutex_unlock(&g->lock);
}

void gate_close(gate *g) {
    pthread_mutex_lock(&g->lock);
    g->closed = true;
    for (waiter *w = g->first; w; w = w->next) pthread_cond_signal(&w->woken);
    pthread_mutex_unlock(&g->lock);
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
