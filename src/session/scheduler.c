#include "session/scheduler.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/platform.h"
#include "session/batch.h"

struct scheduler {
    pthread_mutex_t lock; /* of everything up to `work` */
    pthread_cond_t changed;
    kakeya_request *incoming; /* newest first */
    int waiting;              /* requests that a caller waits for */
    int pending;              /* requests that are not done */
    uint64_t arrivals;        /* so far */
    bool nudged;              /* since the last iteration began */
    bool driven;
    pthread_t driver; /* with driven: the thread that computes */
    pthread_t thread; /* with threaded */
    bool threaded, closing;
    batch work; /* the driver's */
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

/* Done requests leave. Needs the lock. */
static void hand_out(scheduler *s, kakeya_request *done) {
    for (kakeya_request *r = done, *next; r; r = next) {
        next = r->next;
        r->session->request = NULL; /* who waits for it may free it once the lock is given back */
        s->pending--;
    }
    if (done) pthread_cond_broadcast(&s->changed);
}

/* While the requests are still the driver's: those who hear of it may wait for them and free them. */
static void tell_done(kakeya_request *done) {
    for (kakeya_request *r = done; r; r = r->next)
        if (r->on_done) r->on_done(r->done_user);
}

/* Until somebody comes, goes on or is to end, or there may be memory; or the driver is to be another one. Needs the
 * lock, and gives it back meanwhile. */
static void rest(scheduler *s, unsigned cancels, int waiting) {
    kakeya_engine *engine = s->work.engine;
    atomic_store(&engine->rests, true);
    while (!s->incoming && !s->nudged && s->waiting == waiting && atomic_load(&engine->cancels) == cancels)
        pthread_cond_wait(&s->changed, &s->lock);
    atomic_store(&engine->rests, false);
}

/* One iteration by the thread that drives. Who comes while others get their memory shares their forward. Needs the
 * lock, and gives it back meanwhile. */
static void drive(scheduler *s) {
    const unsigned cancels = atomic_load(&s->work.engine->cancels);
    const int waiting = s->waiting;
    s->nudged = false;
    kakeya_request *incoming = take_incoming(s);
    do {
        pthread_mutex_unlock(&s->lock);
        batch_add(&s->work, incoming);
        pthread_mutex_lock(&s->lock);
        incoming = take_incoming(s);
    } while (incoming);
    pthread_mutex_unlock(&s->lock);
    kakeya_request *done = batch_step(&s->work);
    tell_done(done);
    pthread_mutex_lock(&s->lock);
    hand_out(s, done);
    if (!done && batch_rests(&s->work)) rest(s, cancels, waiting);
}

static void begin_driving(scheduler *s) {
    s->driven = true;
    s->driver = pthread_self();
}

static void end_driving(scheduler *s) {
    s->driven = false;
    pthread_cond_broadcast(&s->changed);
}

/* Drives what nobody waits for, and what is left when those who waited and drove are gone. */
static void *scheduler_main(void *user) {
    scheduler *s = user;
    pthread_mutex_lock(&s->lock);
    while (!s->closing) {
        if (s->driven || !s->pending || s->waiting) {
            pthread_cond_wait(&s->changed, &s->lock);
            continue;
        }
        begin_driving(s);
        while (s->pending && !s->waiting) drive(s);
        end_driving(s);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* Signals are for the program's own threads. */
static int start_thread(scheduler *s) {
    sigset_t all, before;
    platform_foreign_signals(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failure = platform_thread_create(&s->thread, scheduler_main, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    s->threaded = !failure;
    return failure;
}

static kakeya_status open_scheduler(kakeya_engine *engine, scheduler **out, kakeya_error *error) {
    scheduler *s = calloc(1, sizeof *s);
    if (!s) return error_set(error, KAKEYA_OUT_OF_MEMORY, "scheduler: out of memory");
    batch_init(&s->work, engine);
    pthread_mutex_init(&s->lock, NULL); /* neither fails on the systems that there are */
    pthread_cond_init(&s->changed, NULL);
    *out = s;
    return KAKEYA_OK;
}

void scheduler_nudge(kakeya_engine *engine) {
    pthread_mutex_lock(&engine->scheduler_lock);
    scheduler *s = engine->scheduler;
    pthread_mutex_unlock(&engine->scheduler_lock);
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    s->nudged = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

void kakeya_engine_relieved(kakeya_engine *engine) { scheduler_nudge(engine); }

void scheduler_close(scheduler *s) {
    pthread_mutex_lock(&s->lock);
    s->closing = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (s->threaded) pthread_join(s->thread, NULL);
    batch_free(&s->work);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
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

/* Needs the lock. */
static kakeya_status enqueue(scheduler *s, kakeya_request *request, kakeya_error *error) {
    kakeya_session *session = request->session;
    if (session->request)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "the session has a request under way, wait for it first");
    if (!request->arrival) request->arrival = ++s->arrivals;
    session->request = request;
    request->next = s->incoming;
    s->incoming = request;
    s->pending++;
    pthread_cond_broadcast(&s->changed);
    return KAKEYA_OK;
}

kakeya_status scheduler_submit(kakeya_request *request, kakeya_error *error) {
    scheduler *s;
    kakeya_status status = find_scheduler(request->session->engine, &s, error);
    if (status != KAKEYA_OK) return status;
    pthread_mutex_lock(&s->lock);
    int failure = s->threaded ? 0 : start_thread(s);
    if (failure)
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "scheduler: no thread: %s", strerror(failure));
    else
        status = enqueue(s, request, error);
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

/* Who waits computes, if nobody does: for all, until what it waits for is done. So a program with one session has its
 * answers computed, and its callbacks called, where it asks for them. Needs the lock. */
static kakeya_status wait_for(scheduler *s, kakeya_request *request, kakeya_error *error) {
    kakeya_session *session = request->session;
    s->waiting++;
    if (atomic_load(&s->work.engine->rests)) pthread_cond_broadcast(&s->changed);
    while (session->request == request) {
        if (s->driven) {
            pthread_cond_wait(&s->changed, &s->lock);
            continue;
        }
        begin_driving(s);
        while (session->request == request) drive(s);
        end_driving(s);
    }
    s->waiting--;
    pthread_cond_broadcast(&s->changed);
    if (error && request->status != KAKEYA_OK) *error = request->error;
    return request->status;
}

static kakeya_status refuse_driver(const scheduler *s, kakeya_error *error) {
    if (!s->driven || !pthread_equal(pthread_self(), s->driver)) return KAKEYA_OK;
    return error_set(error, KAKEYA_INVALID_ARGUMENT,
                     "a callback cannot wait for a session of its engine: it is called by the thread that computes");
}

kakeya_status scheduler_wait(kakeya_request *request, kakeya_error *error) {
    scheduler *s = request->session->engine->scheduler;
    pthread_mutex_lock(&s->lock);
    kakeya_status status = refuse_driver(s, error);
    if (status == KAKEYA_OK) status = wait_for(s, request, error);
    pthread_mutex_unlock(&s->lock);
    return status;
}

kakeya_status scheduler_run(kakeya_request *request, kakeya_error *error) {
    scheduler *s = NULL;
    kakeya_status status = find_scheduler(request->session->engine, &s, error);
    if (status != KAKEYA_OK) return status;
    pthread_mutex_lock(&s->lock);
    status = refuse_driver(s, error);
    if (status == KAKEYA_OK) status = enqueue(s, request, error);
    if (status == KAKEYA_OK) status = wait_for(s, request, error);
    pthread_mutex_unlock(&s->lock);
    return status;
}
