#include "session/scheduler.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "session/batch.h"

struct scheduler {
    kakeya_engine *engine;
    pthread_t thread;
    pthread_mutex_t lock; /* of everything up to `own` */
    pthread_cond_t wake, finished;
    kakeya_request *incoming; /* newest first */
    bool closing;
    batch own; /* the thread's */
};

/* Requests in the order in which they were submitted. */
static kakeya_request *take_incoming(scheduler *s) {
    kakeya_request *oldest = NULL;
    while (s->incoming) {
        kakeya_request *r = s->incoming;
        s->incoming = r->next;
        r->next = oldest;
        oldest = r;
    }
    return oldest;
}

/* Done requests leave the batch; whoever waits for them is told. */
static void hand_out(scheduler *s) {
    bool any = false;
    pthread_mutex_lock(&s->lock);
    for (kakeya_request **at = &s->own.requests; *at;) {
        kakeya_request *r = *at;
        if (r->state != REQUEST_DONE) {
            at = &r->next;
            continue;
        }
        *at = r->next;
        r->session->request = NULL;
        any = true;
    }
    if (any) pthread_cond_broadcast(&s->finished);
    pthread_mutex_unlock(&s->lock);
}

static void *scheduler_main(void *user) {
    scheduler *s = user;
    for (;;) {
        pthread_mutex_lock(&s->lock);
        while (!s->closing && !s->incoming && !s->own.requests) pthread_cond_wait(&s->wake, &s->lock);
        kakeya_request *incoming = take_incoming(s);
        bool closing = s->closing;
        pthread_mutex_unlock(&s->lock);
        if (closing) break;
        batch_add(&s->own, incoming);
        batch_step(&s->own);
        hand_out(s);
    }
    batch_free(&s->own);
    return NULL;
}

/* Signals are for the program's own threads. */
static int start_thread(scheduler *s) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failure = pthread_create(&s->thread, NULL, scheduler_main, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failure;
}

static void destroy_locks(scheduler *s) {
    pthread_cond_destroy(&s->finished);
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->lock);
}

static kakeya_status open_scheduler(kakeya_engine *engine, scheduler **out, kakeya_error *error) {
    scheduler *s = calloc(1, sizeof *s);
    if (!s) return error_set(error, KAKEYA_OUT_OF_MEMORY, "scheduler: out of memory");
    s->engine = engine;
    batch_init(&s->own, engine);
    int failure =
        pthread_mutex_init(&s->lock, NULL) | pthread_cond_init(&s->wake, NULL) | pthread_cond_init(&s->finished, NULL);
    if (!failure) failure = start_thread(s);
    if (failure) {
        destroy_locks(s);
        free(s);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "scheduler: no thread: %s", strerror(failure));
    }
    *out = s;
    return KAKEYA_OK;
}

void scheduler_close(scheduler *s) {
    pthread_mutex_lock(&s->lock);
    s->closing = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    destroy_locks(s);
    free(s);
}

/* The engine's, made by the first that asks. */
static kakeya_status find_scheduler(kakeya_engine *engine, scheduler **out, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    pthread_mutex_lock(&engine->scheduler_lock);
    if (!engine->scheduler) status = open_scheduler(engine, &engine->scheduler, error);
    *out = engine->scheduler;
    pthread_mutex_unlock(&engine->scheduler_lock);
    return status;
}

kakeya_status scheduler_submit(kakeya_request *request, kakeya_error *error) {
    scheduler *s;
    kakeya_session *session = request->session;
    kakeya_status status = find_scheduler(session->engine, &s, error);
    if (status != KAKEYA_OK) return status;
    pthread_mutex_lock(&s->lock);
    if (session->request) {
        status = error_set(error, KAKEYA_INVALID_ARGUMENT, "the session has a request under way, wait for it first");
    } else {
        session->request = request;
        request->next = s->incoming;
        s->incoming = request;
        pthread_cond_signal(&s->wake);
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

bool scheduler_is_done(kakeya_request *request) {
    scheduler *s = request->session->engine->scheduler;
    pthread_mutex_lock(&s->lock);
    bool done = request->session->request != request;
    pthread_mutex_unlock(&s->lock);
    return done;
}

kakeya_status scheduler_wait(kakeya_request *request, kakeya_error *error) {
    kakeya_session *session = request->session;
    scheduler *s = session->engine->scheduler;
    if (pthread_equal(pthread_self(), s->thread))
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "an event callback cannot wait for a session: the thread that computes is calling it");
    pthread_mutex_lock(&s->lock);
    while (session->request == request) pthread_cond_wait(&s->finished, &s->lock);
    pthread_mutex_unlock(&s->lock);
    if (error && request->status != KAKEYA_OK) *error = request->error;
    return request->status;
}

kakeya_status scheduler_run(kakeya_request *request, kakeya_error *error) {
    scheduler *s = NULL;
    kakeya_status status = find_scheduler(request->session->engine, &s, error);
    if (status != KAKEYA_OK) return status;
    if (pthread_equal(pthread_self(), s->thread))
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "an event callback cannot use a session: the thread that computes is calling it");
    status = scheduler_submit(request, error);
    return status == KAKEYA_OK ? scheduler_wait(request, error) : status;
}
