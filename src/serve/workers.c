#include "serve/workers.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/platform.h"

struct workers {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    size_t most, room; /* threads that may be there now, and ever */
    size_t started, idle, waiting;
    worker_task *first, *last;
    bool closing;
    pthread_t threads[];
};

static void *work(void *user) {
    workers *pool = user;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (!pool->first && !pool->closing) {
            pool->idle++;
            pthread_cond_wait(&pool->changed, &pool->lock);
            pool->idle--;
        }
        worker_task *next = pool->first;
        if (!next) break;
        pool->first = next->next;
        if (!pool->first) pool->last = NULL;
        pool->waiting--;
        pthread_mutex_unlock(&pool->lock);
        next->fn(next->argument); /* after which the task may be gone */
        pthread_mutex_lock(&pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

kakeya_status workers_open(size_t most, size_t waiting, workers **out, kakeya_error *error) {
    *out = calloc(1, sizeof **out + (most + waiting) * sizeof(pthread_t));
    if (!*out) return error_set(error, KAKEYA_OUT_OF_MEMORY, "workers: out of memory");
    pthread_mutex_init(&(*out)->lock, NULL);
    pthread_cond_init(&(*out)->changed, NULL);
    (*out)->most = most;
    (*out)->room = most + waiting;
    return KAKEYA_OK;
}

/* Under the lock: another thread, where tasks wait for one and there may be one. */
static void start(workers *pool) {
    if (pool->waiting > pool->idle && pool->started < pool->most && pool->started < pool->room &&
        platform_thread_create(&pool->threads[pool->started], work, pool) == 0)
        pool->started++;
}

static bool add(workers *pool, worker_task *task, bool in_front) {
    pthread_mutex_lock(&pool->lock);
    pool->waiting++;
    start(pool);
    bool accepted = pool->started > 0;
    if (accepted && in_front) {
        task->next = pool->first;
        pool->first = task;
        if (!task->next) pool->last = task;
    } else if (accepted) {
        task->next = NULL;
        *(pool->last ? &pool->last->next : &pool->first) = task;
        pool->last = task;
    } else {
        pool->waiting--;
    }
    if (accepted) pthread_cond_signal(&pool->changed);
    pthread_mutex_unlock(&pool->lock);
    return accepted;
}

bool workers_run(workers *pool, worker_task *task) { return add(pool, task, false); }

void workers_go_on(workers *pool, worker_task *task) { (void)add(pool, task, true); }

void workers_wait_begin(workers *pool) {
    pthread_mutex_lock(&pool->lock);
    pool->most++;
    start(pool);
    pthread_mutex_unlock(&pool->lock);
}

void workers_wait_end(workers *pool) {
    pthread_mutex_lock(&pool->lock);
    pool->most--; /* the thread that came instead stays: it was wanted once */
    pthread_mutex_unlock(&pool->lock);
}

void workers_close(workers *pool) {
    if (!pool) return;
    pthread_mutex_lock(&pool->lock);
    pool->closing = true;
    pthread_cond_broadcast(&pool->changed);
    pthread_mutex_unlock(&pool->lock);
    for (size_t i = 0; i < pool->started; i++) pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->changed);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}
