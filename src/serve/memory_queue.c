#include "serve/memory_queue.h"

#include <string.h>

void memory_queue_init(memory_queue *q) {
    memset(q, 0, sizeof *q);
    pthread_mutex_init(&q->lock, NULL); /* none of these fails on the systems that there are */
    pthread_cond_init(&q->changed, NULL);
    pthread_mutex_init(&q->listeners_lock, NULL);
}

void memory_queue_destroy(memory_queue *q) {
    pthread_mutex_destroy(&q->listeners_lock);
    pthread_cond_destroy(&q->changed);
    pthread_mutex_destroy(&q->lock);
}

void memory_queue_listen(memory_queue *q, void (*tell)(void *user), void *user) {
    pthread_mutex_lock(&q->listeners_lock);
    size_t i = 0;
    while (i + 1 < MEMORY_QUEUE_LISTENERS && q->listeners[i].tell) i++;
    q->listeners[i].tell = tell;
    q->listeners[i].user = user;
    pthread_mutex_unlock(&q->listeners_lock);
}

void memory_queue_forget(memory_queue *q, const void *user) {
    pthread_mutex_lock(&q->listeners_lock);
    for (size_t i = 0; i < MEMORY_QUEUE_LISTENERS; i++)
        if (q->listeners[i].user == user) q->listeners[i].tell = NULL;
    pthread_mutex_unlock(&q->listeners_lock);
}

static void tell(memory_queue *q) {
    pthread_mutex_lock(&q->listeners_lock);
    for (size_t i = 0; i < MEMORY_QUEUE_LISTENERS; i++)
        if (q->listeners[i].tell) q->listeners[i].tell(q->listeners[i].user);
    pthread_mutex_unlock(&q->listeners_lock);
}

bool memory_queue_try_enter(memory_queue *q) {
    pthread_mutex_lock(&q->lock);
    bool free_of_all = !memory_queue_is_wanted(q);
    q->holders += free_of_all;
    pthread_mutex_unlock(&q->lock);
    return free_of_all;
}

void memory_queue_enter(memory_queue *q, const _Atomic bool *cancelled) {
    pthread_mutex_lock(&q->lock);
    while (memory_queue_is_wanted(q) && !atomic_load(cancelled)) pthread_cond_wait(&q->changed, &q->lock);
    q->holders++;
    pthread_mutex_unlock(&q->lock);
}

void memory_queue_hold(memory_queue *q) {
    pthread_mutex_lock(&q->lock);
    q->holders++;
    pthread_mutex_unlock(&q->lock);
}

void memory_queue_leave(memory_queue *q) {
    pthread_mutex_lock(&q->lock);
    q->holders--;
    q->given_back++;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
    if (memory_queue_is_wanted(q)) tell(q);
}

void memory_queue_wake(memory_queue *q) {
    pthread_mutex_lock(&q->lock);
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
}

bool memory_queue_is_alone(memory_queue *q, uint64_t *seen) {
    pthread_mutex_lock(&q->lock);
    *seen = q->given_back;
    bool alone = q->holders <= 1;
    pthread_mutex_unlock(&q->lock);
    return alone;
}

static bool is_over(const memory_queue *q, uint64_t seen) { return q->given_back != seen || q->holders == 0; }

/* Those behind the ones that wait may have their turn now. Needs the lock. */
static void stop_waiting(memory_queue *q) {
    atomic_fetch_sub(&q->waiting, 1);
    pthread_cond_broadcast(&q->changed);
}

void memory_queue_begin_wait(memory_queue *q) {
    pthread_mutex_lock(&q->lock);
    atomic_fetch_add(&q->waiting, 1);
    q->holders--;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
    tell(q);
}

bool memory_queue_end_wait(memory_queue *q, uint64_t seen) {
    pthread_mutex_lock(&q->lock);
    bool over = is_over(q, seen);
    if (over) {
        q->holders++;
        stop_waiting(q);
    }
    pthread_mutex_unlock(&q->lock);
    if (over) tell(q); /* those that have not begun */
    return over;
}

void memory_queue_give_up(memory_queue *q) {
    pthread_mutex_lock(&q->lock);
    stop_waiting(q);
    pthread_mutex_unlock(&q->lock);
    tell(q);
}

void memory_queue_wait(memory_queue *q, uint64_t seen, const _Atomic bool *cancelled) {
    memory_queue_begin_wait(q);
    pthread_mutex_lock(&q->lock);
    while (!is_over(q, seen) && !atomic_load(cancelled)) pthread_cond_wait(&q->changed, &q->lock);
    q->holders++;
    stop_waiting(q);
    pthread_mutex_unlock(&q->lock);
    tell(q);
}
