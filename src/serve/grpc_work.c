#include "serve/grpc_work.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/platform.h"

typedef struct job_list {
    grpc_job *first, **end;
} job_list;

struct grpc_work {
    pthread_mutex_t lock; /* of the lists and closing */
    pthread_cond_t changed;
    job_list wanted, run;
    bool closing;
    size_t unsettled; /* of the thread that adds */
    void (*wake)(void *user);
    void *user;
    pthread_t thread;
};

static void clear(job_list *list) { *list = (job_list){.first = NULL, .end = &list->first}; }

static void append(job_list *list, grpc_job *job) {
    job->next = NULL;
    *list->end = job;
    list->end = &job->next;
}

static grpc_job *take_first(job_list *list) {
    grpc_job *job = list->first;
    if (!job) return NULL;
    list->first = job->next;
    if (!list->first) list->end = &list->first;
    return job;
}

static void *run_jobs(void *user) {
    grpc_work *w = user;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        grpc_job *job = take_first(&w->wanted);
        if (!job) {
            if (w->closing) break;
            pthread_cond_wait(&w->changed, &w->lock);
            continue;
        }
        pthread_mutex_unlock(&w->lock);
        job->run(job);
        pthread_mutex_lock(&w->lock);
        append(&w->run, job);
        if (!w->closing) w->wake(w->user);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

kakeya_status grpc_work_open(void (*wake)(void *user), void *user, grpc_work **out, kakeya_error *error) {
    *out = NULL;
    grpc_work *w = calloc(1, sizeof *w);
    if (!w) return error_set(error, KAKEYA_OUT_OF_MEMORY, "gRPC server: out of memory");
    w->wake = wake;
    w->user = user;
    clear(&w->wanted);
    clear(&w->run);
    pthread_mutex_init(&w->lock, NULL); /* neither fails on the systems that there are */
    pthread_cond_init(&w->changed, NULL);
    sigset_t all, before; /* signals are for the program's own threads */
    platform_foreign_signals(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failure = platform_thread_create(&w->thread, run_jobs, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failure) {
        pthread_cond_destroy(&w->changed);
        pthread_mutex_destroy(&w->lock);
        free(w);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "gRPC server: no thread: %s", strerror(failure));
    }
    *out = w;
    return KAKEYA_OK;
}

void grpc_work_add(grpc_work *work, grpc_job *job) {
    work->unsettled++;
    pthread_mutex_lock(&work->lock);
    append(&work->wanted, job);
    pthread_cond_signal(&work->changed);
    pthread_mutex_unlock(&work->lock);
}

void grpc_work_settle(grpc_work *work) {
    for (;;) {
        pthread_mutex_lock(&work->lock);
        grpc_job *job = take_first(&work->run);
        pthread_mutex_unlock(&work->lock);
        if (!job) return;
        work->unsettled--;
        job->done(job); /* may add jobs */
    }
}

bool grpc_work_is_idle(const grpc_work *work) { return work->unsettled == 0; }

void grpc_work_close(grpc_work *work) {
    if (!work) return;
    pthread_mutex_lock(&work->lock);
    work->closing = true;
    pthread_cond_signal(&work->changed);
    pthread_mutex_unlock(&work->lock);
    pthread_join(work->thread, NULL);
    grpc_work_settle(work);
    pthread_cond_destroy(&work->changed);
    pthread_mutex_destroy(&work->lock);
    free(work);
}
