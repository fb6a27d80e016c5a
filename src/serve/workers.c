#include "serve/workers.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/platform.h"

typedef struct task {
    void (*fn)(void *argument);
    void *argument;
    struct task *next;
} task;

struct workers {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    size_t most, started, idle, waiting;
    task *first, *last;
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
        task *next = pool->first;
        if (!next) break;
        pool->first = next->next;
        if (!pool->first) pool->last = NULL;
        pool->waiting--;
        pthread_mutex_unlock(&pool->lock);
        next->fn(next->argument);
        free(next);
        pthread_mutex_lock(&pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

kakeya_status workers_open(size_t most, workers **out, kakeya_error *error) {
    *out = calloc(1, sizeof **out + most * sizeof(pthread_t));
    if (!*out) return error_set(error, KAKEYA_OUT_OF_MEMORY, "workers: out of memory");
    pthread_mutex_init(&(*out)->lock, NULL);
    pthread_cond_init(&(*out)->changed, NULL);
    (*out)->most = most;
    return KAKEYA_OK;
}

bool workers_run(workers *pool, void (*fn)(void *argument), void *argument) {
    task *added = malloc(sizeof *added);
    if (!added) return false;
    *added = (task){.fn = fn, .argument = argument};
    pthread_mutex_lock(&pool->lock);
    if (pool->waiting >= pool->idle && pool->started < pool->most &&
        platform_thread_create(&pool->threads[pool->started], work, pool) == 0)
        pool->started++;
    bool accepted = pool->started > 0;
    if (accepted) {
        if (pool->last) {
            pool->last->next = added;
        } else {
            pool->first = added;
        }
        pool->last = added;
        pool->waiting++;
        pthread_cond_signal(&pool->changed);
    }
    pthread_mutex_unlock(&pool->lock);
    if (!accepted) free(added);
    return accepted;
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
