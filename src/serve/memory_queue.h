/* Who has K/V memory for what it computes, and who waits for some: answers over HTTP and calls of gRPC together. Those
 * that wait come before those that have not begun. All functions may be called by several threads at a time. */
#ifndef KAKEYA_SERVE_MEMORY_QUEUE_H
#define KAKEYA_SERVE_MEMORY_QUEUE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MEMORY_QUEUE_LISTENERS = 2 };

typedef struct memory_queue {
    pthread_mutex_t lock; /* of what follows up to `waiting` */
    pthread_cond_t changed;
    size_t holders;      /* that may have sessions and do not wait */
    uint64_t given_back; /* how often one of them has ended, or lent its memory */
    _Atomic size_t waiting;
    pthread_mutex_t listeners_lock;
    struct {
        void (*tell)(void *user);
        void *user;
    } listeners[MEMORY_QUEUE_LISTENERS];
} memory_queue;

void memory_queue_init(memory_queue *queue);
void memory_queue_destroy(memory_queue *queue);

/* Who is told, without the queue's lock, that somebody has begun to wait or has given memory back. */
void memory_queue_listen(memory_queue *queue, void (*tell)(void *user), void *user);
/* Afterwards it is not told any more. */
void memory_queue_forget(memory_queue *queue, const void *user);

static inline bool memory_queue_is_wanted(memory_queue *queue) { return atomic_load(&queue->waiting) > 0; }

/* The caller is a holder from now on. False: others wait, and it is none yet. */
bool memory_queue_try_enter(memory_queue *queue);
/* The same, but waits for its turn, or until *cancelled (then it is a holder, too). */
void memory_queue_enter(memory_queue *queue, const _Atomic bool *cancelled);
/* Without a turn: for one that goes on where it was. */
void memory_queue_hold(memory_queue *queue);
/* A holder has no sessions any more. */
void memory_queue_leave(memory_queue *queue);
/* Whoever waits in memory_queue_enter or memory_queue_wait looks whether it is cancelled. */
void memory_queue_wake(memory_queue *queue);

/* For a holder that found too little. True: nobody else holds memory. *seen is for the functions below. */
bool memory_queue_is_alone(memory_queue *queue, uint64_t *seen);
/* Until another holder has given memory back, nobody holds any, or *cancelled; afterwards the caller is a holder. */
void memory_queue_wait(memory_queue *queue, uint64_t seen, const _Atomic bool *cancelled);
/* The same in pieces, for callers that must not stand still: it is no holder until memory_queue_end_wait is true. */
void memory_queue_begin_wait(memory_queue *queue);
bool memory_queue_end_wait(memory_queue *queue, uint64_t seen);
/* It waits no more, and is no holder. */
void memory_queue_give_up(memory_queue *queue);

#endif
