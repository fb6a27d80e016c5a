#include "serve/gate.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct waiter {
    unsigned long long client;
    struct waiter *next;
} waiter;

struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    size_t most_running, most_waiting, running, waiting;
    bool closed;
    waiter *first;               /* in the order of coming */
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
    pthread_cond_init(&g->changed, NULL);
    g->most_running = most_running;
    g->most_waiting = most_waiting;
    return g;
}

void gate_free(gate *g) {
    if (!g) return;
    pthread_cond_destroy(&g->changed);
    pthread_mutex_destroy(&g->lock);
    free(g->clients);
    free(g);
}

static size_t running_of(const gate *g, unsigned long long client) {
    size_t n = 0;
    for (size_t i = 0; i < g->running; i++) n += g->clients[i] == client;
    return n;
}

static const waiter *next_waiter(const gate *g) {
    const waiter *best = NULL;
    size_t least = 0;
    for (const waiter *w = g->first; w; w = w->next) {
        size_t n = running_of(g, w->client);
        if (best && n >= least) continue;
        best = w;
        least = n;
    }
    return best;
}

static void unlink_waiter(gate *g, const waiter *w) {
    waiter **at = &g->first;
    while (*at != w) at = &(*at)->next;
    *at = w->next;
    g->waiting--;
}

static bool refuses(const gate *g) { return g->running >= g->most_running && g->waiting >= g->most_waiting; }

gate_result gate_enter(gate *g, unsigned long long client, const _Atomic bool *cancelled) {
    waiter me = {.client = client};
    gate_result result = GATE_ENTERED;
    pthread_mutex_lock(&g->lock);
    if (g->closed) {
        result = GATE_CLOSED;
    } else if (refuses(g)) {
        result = GATE_FULL;
    }
    if (result == GATE_ENTERED) {
        waiter **last = &g->first;
        while (*last) last = &(*last)->next;
        *last = &me;
        g->waiting++;
        while (!g->closed && !atomic_load(cancelled) && (g->running >= g->most_running || next_waiter(g) != &me))
            pthread_cond_wait(&g->changed, &g->lock);
        unlink_waiter(g, &me);
        if (g->closed) {
            result = GATE_CLOSED;
        } else if (atomic_load(cancelled)) {
            result = GATE_CANCELLED;
        } else {
            g->clients[g->running++] = client;
        }
        pthread_cond_broadcast(&g->changed); /* another one may be next now */
    }
    pthread_mutex_unlock(&g->lock);
    return result;
}

void gate_leave(gate *g, unsigned long long client) {
    pthread_mutex_lock(&g->lock);
    size_t i = 0;
    while (g->clients[i] != client) i++;
    g->clients[i] = g->clients[--g->running];
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

void gate_wake(gate *g) {
    pthread_mutex_lock(&g->lock);
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

void gate_close(gate *g) {
    pthread_mutex_lock(&g->lock);
    g->closed = true;
    pthread_cond_broadcast(&g->changed);
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
