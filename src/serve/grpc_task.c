#include "serve/grpc_task.h"

#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kakeya_study.h"

enum { STEP_TOKENS = 64, MOST_STARVED = 8 }; /* that a step says at most; requests in a row that find no memory */

struct grpc_task {
    grpc_task_options options;
    grpc_task_result result; /* but `tokens`, of the settling thread */
    int32_t *prompt;         /* the options' tokens */
    kakeya_request *request; /* NULL: nothing is being computed */
    bool cancelled;
    uint64_t arrival; /* of the first request; 0: none yet */
    size_t starved;   /* requests in a row that found no memory for a further token */
    size_t starved_at;
    pthread_mutex_t lock; /* of what follows */
    size_t room;          /* of the ring: ring_tokens, and a step's more */
    int32_t *ring;
    size_t first, n; /* of the ring */
    size_t tokens;   /* generated */
    bool eos;        /* the last token ended the answer */
    bool paused;     /* the ring is full */
    bool done;       /* the request is */
};

static int compare(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* On the thread that computes. */
static bool take_token(void *user, const kakeya_event *event) {
    grpc_task *t = user;
    if (event->type != KAKEYA_EVENT_TOKEN) return true;
    const uint32_t token = (uint32_t)event->token;
    const grpc_task_options *o = &t->options;
    pthread_mutex_lock(&t->lock);
    t->ring[(t->first + t->n++) % t->room] = event->token;
    t->tokens++;
    t->eos = o->n_eos && bsearch(&token, o->eos, o->n_eos, sizeof token, compare);
    if (t->n >= o->ring_tokens) {
        t->paused = true;
        kakeya_session_pause(o->session);
    }
    /* a step whose tokens do not fit any more ends the request: never, unless drafts get longer */
    bool go_on = !t->eos && t->n < t->room;
    pthread_mutex_unlock(&t->lock);
    o->on_news(o->user);
    return go_on;
}

static void take_done(void *user) {
    grpc_task *t = user;
    /* Whoever sees `done` may free the task. */
    void (*on_news)(void *) = t->options.on_news;
    void *news_user = t->options.user;
    store_hand_begin(t->options.store);
    pthread_mutex_lock(&t->lock);
    t->done = true;
    pthread_mutex_unlock(&t->lock);
    on_news(news_user);
}

static kakeya_status submit(grpc_task *t, kakeya_error *error) {
    const grpc_task_options *o = &t->options;
    kakeya_generate_options generate;
    KAKEYA_INIT(&generate);
    uint64_t left = o->max_tokens - t->tokens;
    generate.max_tokens = left > INT_MAX ? INT_MAX : (int)left;
    generate.sampling = o->sampling;
    generate.sampling.top_p = kakeya_options_top_p(o->sampling.top_p);
    generate.ignore_stop_tokens = true;
    generate.on_event = take_token;
    generate.user = t;
    kakeya_request_options request;
    KAKEYA_INIT(&request);
    request.tokens = t->tokens ? NULL : t->prompt; /* behind a token that was said the timeline is right */
    request.n_tokens = request.tokens ? o->n_tokens : 0;
    request.generate = o->max_tokens ? &generate : NULL;
    request.on_done = take_done;
    request.done_user = t;
    request.arrival = t->arrival;
    t->done = t->eos = false;
    if (t->paused) kakeya_session_pause(o->session); /* which has ended with the request before */
    kakeya_status status = kakeya_session_submit(o->session, &request, &t->request, error);
    if (status != KAKEYA_OK) return status;
    t->arrival = kakeya_request_arrival(t->request);
    store_hand_end(o->store);
    return KAKEYA_OK;
}

kakeya_status grpc_task_start(const grpc_task_options *options, grpc_task **out, kakeya_error *error) {
    *out = NULL;
    grpc_task *t = calloc(1, sizeof *t);
    if (!t) return error_set(error, KAKEYA_OUT_OF_MEMORY, "request: out of memory");
    t->options = *options;
    pthread_mutex_init(&t->lock, NULL); /* never fails on the systems that there are */
    kakeya_status status = KAKEYA_OK;
    if (options->max_tokens) {
        if (t->options.ring_tokens > options->max_tokens) t->options.ring_tokens = options->max_tokens;
        t->room = t->options.ring_tokens + STEP_TOKENS;
        t->ring = malloc(t->room * sizeof *t->ring);
        if (!t->ring) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "request: out of memory");
    }
    if (status == KAKEYA_OK && options->tokens) {
        t->prompt = malloc(options->n_tokens * sizeof *t->prompt + 1);
        if (t->prompt)
            memcpy(t->prompt, options->tokens, options->n_tokens * sizeof *t->prompt);
        else
            status = error_set(error, KAKEYA_OUT_OF_MEMORY, "request: out of memory");
    }
    if (status == KAKEYA_OK) status = submit(t, error);
    if (status != KAKEYA_OK) {
        grpc_task_free(t);
        return status;
    }
    *out = t;
    return KAKEYA_OK;
}

bool grpc_task_next(grpc_task *t, int32_t *token) {
    pthread_mutex_lock(&t->lock);
    bool found = t->n > 0;
    if (found) {
        *token = t->ring[t->first];
        t->first = (t->first + 1) % t->room;
        t->n--;
    }
    if (t->paused && t->n <= t->options.ring_tokens / 2) {
        t->paused = false;
        if (!t->done) kakeya_session_resume(t->options.session);
    }
    pthread_mutex_unlock(&t->lock);
    return found;
}

static void fail(grpc_task *t, const kakeya_error *error) {
    t->result.end = GRPC_TASK_FAILED;
    t->result.error = *error;
}

/* As an answer over HTTP does it (answer_run.c): what finds no memory beside others goes on as another request. */
static bool goes_on(grpc_task *t, kakeya_status status, kakeya_error *error) {
    if (status != KAKEYA_OUT_OF_MEMORY || t->cancelled) return false;
    t->starved = t->tokens > t->starved_at ? 1 : t->starved + 1;
    t->starved_at = t->tokens;
    return t->starved < MOST_STARVED && submit(t, error) == KAKEYA_OK;
}

/* The request is done. */
static void take_request(grpc_task *t) {
    kakeya_stats stats;
    KAKEYA_INIT(&stats);
    kakeya_error error = {0};
    kakeya_status status = kakeya_request_wait(t->request, &stats, &error);
    t->request = NULL;
    t->result.prefill_seconds += stats.prefill_seconds;
    t->result.decode_seconds += stats.decode_seconds;
    t->result.verifier_forwards += stats.verifier_forwards;
    t->result.drafted += stats.drafted_tokens;
    t->result.accepted += stats.accepted_tokens;
    for (int i = 0; i < GRPC_POSITIONS; i++) {
        t->result.drafted_at[i] += stats.drafted_at[i];
        t->result.accepted_at[i] += stats.accepted_at[i];
    }
    if (goes_on(t, status, &error)) return;
    if (t->cancelled || status == KAKEYA_CANCELLED)
        t->result.end = GRPC_TASK_CANCELLED;
    else if (status == KAKEYA_CONTEXT_FULL && t->options.max_tokens)
        t->result.end = GRPC_TASK_CONTEXT_FULL;
    else if (status != KAKEYA_OK)
        fail(t, &error);
    else if (t->eos)
        t->result.end = GRPC_TASK_EOS;
    else if (t->tokens >= t->options.max_tokens)
        t->result.end = GRPC_TASK_COMPLETE;
    else if (stats.finish == KAKEYA_FINISH_LENGTH)
        t->result.end = GRPC_TASK_CONTEXT_FULL;
}

const grpc_task_result *grpc_task_settle(grpc_task *t) {
    pthread_mutex_lock(&t->lock);
    bool done = t->done;
    pthread_mutex_unlock(&t->lock);
    if (t->request && done) take_request(t);
    pthread_mutex_lock(&t->lock);
    t->result.tokens = t->tokens;
    pthread_mutex_unlock(&t->lock);
    return &t->result;
}

void grpc_task_cancel(grpc_task *t) {
    t->cancelled = true;
    if (t->request) kakeya_request_cancel(t->request);
}

void grpc_task_free(grpc_task *t) {
    if (!t) return;
    pthread_mutex_destroy(&t->lock);
    free(t->prompt);
    free(t->ring);
    free(t);
}
