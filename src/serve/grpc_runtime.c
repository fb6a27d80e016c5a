#include "serve/grpc_runtime.h"

#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/error.h"
#include "serve/grpc_sessions.h"
#include "serve/grpc_task.h"
#include "serve/grpc_work.h"
#include "text/utf8.h"

enum { MAX_EOS = 1024, SHOWN_NAME_BYTES = 64 };

typedef enum operation_state {
    STATE_NEW = 0,
    STATE_DEFERRED,  /* the session is still ending what a client has given up */
    STATE_OPENING,   /* a session is being opened */
    STATE_RELIEVING, /* sessions are being closed for their memory */
    STATE_COMPUTING, /* with a task */
} operation_state;

/* A call, from its request to its end, or until what it has begun has ended. */
typedef struct operation {
    grpc_runtime *runtime;
    rpc_call *call; /* NULL: it has been answered, or the client is gone */
    grpc_request_type type;
    grpc_request request;
    operation_state state;
    grpc_session *session;                 /* that it uses alone; NULL: none */
    grpc_task *task;                       /* with STATE_COMPUTING */
    double started, first_token, progress; /* clock_seconds; progress: when the client last took a message */
    bool sending;
    uint64_t dropped; /* tokens of a HistoryTruncated that has to be sent; 0: none */
    int code;
    struct operation *next, *previous;
} operation;

struct grpc_runtime {
    grpc_service_options options;
    void (*wake)(void *user);
    void *user;
    kakeya_engine *engine; /* NULL: not there yet */
    bool draining, stopped;
    grpc_sessions *sessions;
    grpc_work *work;
    operation *operations;
    size_t running;
};

static const char *const method_names[GRPC_REQUEST_TYPES] = {"CreateSession", "AppendTokens",   "Generate",
                                                             "CloseSession",  "GetSessionInfo", "Check"};

/* ----------------------------------------------------------------------------------------------------- sessions */

static int context_of(const grpc_runtime *r) {
    return r->options.session.context_tokens ? r->options.session.context_tokens : kakeya_engine_max_context(r->engine);
}

typedef struct close_job {
    grpc_job job;
    kakeya_session *session;
} close_job;

static void run_close(grpc_job *job) { kakeya_session_close(((close_job *)job)->session); }

static void free_job(grpc_job *job) { free(job); }

/* Closing waits for the engine's turn, so the work's thread does it. */
static void close_session(grpc_runtime *r, kakeya_session *session) {
    close_job *job = calloc(1, sizeof *job);
    if (!job) {
        kakeya_session_close(session);
        return;
    }
    *job = (close_job){.job = {.run = run_close, .done = free_job}, .session = session};
    grpc_work_add(r->work, &job->job);
}

static void drop_session(grpc_runtime *r, grpc_session *x) { close_session(r, grpc_sessions_remove(r->sessions, x)); }

/* False: no session is idle. */
static bool drop_oldest(grpc_runtime *r) {
    grpc_session *x = grpc_sessions_oldest_idle(r->sessions);
    if (x) drop_session(r, x);
    return x != NULL;
}

/* --------------------------------------------------------------------------------------------------- operations */

static void tell_finished(const operation *op) {
    const grpc_service_options *o = &op->runtime->options;
    if (!o->on_finished) return;
    grpc_finished finished = {.method = method_names[op->type],
                              .session = op->type == GRPC_CREATE_SESSION ? "" : op->request.name,
                              .label = op->type == GRPC_CREATE_SESSION ? op->request.name : "",
                              .code = op->code,
                              .seconds = clock_seconds() - op->started};
    if (op->type == GRPC_APPEND_TOKENS && op->code == RPC_OK) finished.prompt_tokens = op->request.n_ids;
    if (op->first_token > 0) finished.first_token_seconds = op->first_token - op->started;
    if (op->task) {
        const grpc_task_result *result = grpc_task_settle(op->task);
        finished.generated_tokens = result->tokens;
        finished.decode_seconds = result->decode_seconds;
        finished.verifier_forwards = result->verifier_forwards;
    }
    o->on_finished(o->user, &finished);
}

/* The session is idle again, and what it holds is known. */
static void release_session(operation *op) {
    grpc_runtime *r = op->runtime;
    grpc_session *x = op->session;
    if (!x) return;
    op->session = NULL;
    x->user = NULL;
    size_t n = 0;
    kakeya_session_tokens(x->session, &n);
    if (n != x->history) grpc_sessions_touch(r->sessions, x);
    x->history = n;
    x->kv_bytes = kakeya_session_kv_bytes(x->session).total;
    r->wake(r->user); /* another call may wait for it */
}

/* The call is answered, or nobody listens; nothing is being computed for it. */
static void end_operation(operation *op) {
    grpc_runtime *r = op->runtime;
    tell_finished(op);
    release_session(op);
    grpc_task_free(op->task);
    *(op->previous ? &op->previous->next : &r->operations) = op->next;
    if (op->next) op->next->previous = op->previous;
    r->running--;
    grpc_request_free(&op->request);
    free(op);
}

static void fail_call(operation *op, rpc_code code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Answers the call, if anybody listens; the operation goes on until its task has ended. */
static void fail_call(operation *op, rpc_code code, const char *format, ...) {
    char text[sizeof(kakeya_error)];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (!op->call) return;
    rpc_call_fail(op->call, code, "%s", text);
    op->call = NULL;
    op->code = code;
}

static void answer_call(operation *op, const uint8_t *data, size_t bytes) {
    if (op->call) rpc_call_finish(op->call, data, bytes);
    op->call = NULL;
}

static rpc_code code_of(kakeya_status status) {
    switch (status) {
    case KAKEYA_INVALID_ARGUMENT:
    case KAKEYA_CONTEXT_FULL:
        return RPC_INVALID_ARGUMENT;
    case KAKEYA_OUT_OF_MEMORY:
        return RPC_RESOURCE_EXHAUSTED;
    case KAKEYA_CANCELLED:
        return RPC_CANCELLED;
    default:
        return RPC_INTERNAL;
    }
}

/* The part of a client's text that an error message shows: whole characters. */
static int shown_bytes(const char *text) {
    size_t at = 0, n = strlen(text);
    while (at < n) {
        size_t length = utf8_length(text + at, n - at);
        if (length == 0 || at + length > SHOWN_NAME_BYTES) break;
        at += length;
    }
    return (int)at;
}

/* The session that the request names, which nobody uses; NULL: the operation has been answered and ended, or it waits.
 * A session that is still busy for a client that has gone is free within a step, so that is waited for. */
static grpc_session *want_session(operation *op, bool shared) {
    const char *name = op->request.name;
    grpc_session *x = grpc_sessions_find(op->runtime->sessions, name);
    const operation *user = x ? x->user : NULL;
    if (!x) {
        fail_call(op, RPC_NOT_FOUND, "session '%.*s' does not exist", shown_bytes(name), name);
    } else if (user && !user->call) {
        op->state = STATE_DEFERRED;
        return NULL;
    } else if (user && !shared) {
        fail_call(op, RPC_ABORTED, "session '%s' is busy with another call", x->id);
    } else {
        return x;
    }
    end_operation(op);
    return NULL;
}

/* Whether new work is taken; otherwise the operation has been answered and ended. */
static bool want_service(operation *op) {
    const grpc_runtime *r = op->runtime;
    if (r->engine && !r->draining) return true;
    fail_call(op, RPC_UNAVAILABLE, r->draining ? "the server is stopping" : "the model is being loaded");
    end_operation(op);
    return false;
}

/* -------------------------------------------------------------------------------------------- CreateSession */

typedef struct open_job {
    grpc_job job;
    operation *operation;
    kakeya_engine *engine;
    kakeya_session_options options;
    kakeya_session *session;
    kakeya_status status;
    kakeya_error error;
} open_job;

static void run_open(grpc_job *job) {
    open_job *o = (open_job *)job;
    o->status = kakeya_session_open(o->engine, &o->options, &o->session, &o->error);
}

static void open_session(operation *op);

static void finish_create(operation *op, kakeya_session *session) {
    grpc_runtime *r = op->runtime;
    grpc_session *x = op->call ? grpc_sessions_add(r->sessions, session, op->request.ids, op->request.n_ids) : NULL;
    if (!x) { /* out of memory, or the client is gone */
        close_session(r, session);
        fail_call(op, RPC_RESOURCE_EXHAUSTED, "out of memory");
    } else {
        x->kv_bytes = kakeya_session_kv_bytes(session).total;
        uint8_t data[GRPC_RESPONSE_ROOM];
        answer_call(op, data, grpc_write_created(x->id, data));
    }
    end_operation(op);
}

static void done_open(grpc_job *job) {
    open_job *o = (open_job *)job;
    operation *op = o->operation;
    if (o->status == KAKEYA_OK) {
        finish_create(op, o->session);
    } else if (o->status == KAKEYA_OUT_OF_MEMORY && op->call && drop_oldest(op->runtime)) {
        open_session(op); /* behind the closing */
    } else {
        fail_call(op, code_of(o->status), "%s", o->error.message);
        end_operation(op);
    }
    free(o);
}

static void open_session(operation *op) {
    grpc_runtime *r = op->runtime;
    open_job *job = calloc(1, sizeof *job);
    if (!job) {
        fail_call(op, RPC_RESOURCE_EXHAUSTED, "out of memory");
        end_operation(op);
        return;
    }
    job->job = (grpc_job){.run = run_open, .done = done_open};
    job->operation = op;
    job->engine = r->engine;
    job->options = r->options.session;
    op->state = STATE_OPENING;
    grpc_work_add(r->work, &job->job);
}

static void begin_create(operation *op) {
    grpc_runtime *r = op->runtime;
    if (!want_service(op)) return;
    if (op->request.n_ids > MAX_EOS) {
        fail_call(op, RPC_INVALID_ARGUMENT, "eos_token_ids has %zu entries, %d are allowed", op->request.n_ids,
                  MAX_EOS);
    } else if (grpc_sessions_count(r->sessions) >= r->options.max_sessions && !drop_oldest(r)) {
        fail_call(op, RPC_RESOURCE_EXHAUSTED, "all %zu sessions are busy", r->options.max_sessions);
    } else {
        open_session(op);
        return;
    }
    end_operation(op);
}

/* -------------------------------------------------------------------------------------------- tasks */

static void news(void *user) {
    grpc_runtime *r = user;
    r->wake(r->user);
}

static kakeya_status start_task(operation *op, grpc_session *x, grpc_task_options *options, kakeya_error *error) {
    grpc_runtime *r = op->runtime;
    options->session = x->session;
    options->on_news = news;
    options->user = r;
    kakeya_status status = grpc_task_start(options, &op->task, error);
    if (status != KAKEYA_OK) return status;
    op->state = STATE_COMPUTING;
    op->session = x;
    x->user = op;
    return KAKEYA_OK;
}

/* The task has failed. What the model or the device did wrong ends the session too. */
static void fail_task(operation *op, const kakeya_error *error) {
    grpc_runtime *r = op->runtime;
    rpc_code code = code_of(error->status);
    fail_call(op, code, "%s", error->message);
    if (code != RPC_INTERNAL || !op->session) return;
    grpc_session *x = op->session;
    op->session = NULL;
    drop_session(r, x);
}

/* -------------------------------------------------------------------------------------------- AppendTokens */

static void begin_append(operation *op);

typedef struct relief_job {
    grpc_job job;
    operation *operation;
} relief_job;

static void run_nothing(grpc_job *job) { (void)job; }

static void done_relief(grpc_job *job) {
    operation *op = ((relief_job *)job)->operation;
    free(job);
    if (op->call) {
        begin_append(op);
        return;
    }
    end_operation(op);
}

/* No room beside the idle sessions: one of them goes, and the tokens are tried again when it has. False: none goes. */
static bool relieve(operation *op) {
    grpc_runtime *r = op->runtime;
    relief_job *job = op->call && !r->draining ? calloc(1, sizeof *job) : NULL;
    if (!job || !drop_oldest(r)) {
        free(job);
        return false;
    }
    grpc_task_free(op->task);
    op->task = NULL;
    release_session(op);
    op->state = STATE_RELIEVING;
    *job = (relief_job){.job = {.run = run_nothing, .done = done_relief}, .operation = op};
    grpc_work_add(r->work, &job->job);
    return true;
}

/* Whether the tokens can stand behind the session's own. */
static bool check_tokens(operation *op, const grpc_session *x) {
    const grpc_runtime *r = op->runtime;
    const uint32_t vocab = (uint32_t)kakeya_engine_vocab_size(r->engine);
    const size_t n = op->request.n_ids, context = (size_t)context_of(r);
    for (size_t i = 0; i < n; i++) {
        if (op->request.ids[i] < vocab) continue;
        fail_call(op, RPC_INVALID_ARGUMENT, "token_ids[%zu] is %u, the vocabulary has ids 0 to %u", i,
                  (unsigned)op->request.ids[i], (unsigned)(vocab - 1));
        return false;
    }
    if (n <= context - x->history) return true;
    fail_call(op, RPC_INVALID_ARGUMENT, "%zu tokens behind %zu do not fit into the context of %zu", n,
              (size_t)x->history, context);
    return false;
}

/* The session's tokens and the new ones; NULL: out of memory. */
static int32_t *joined_tokens(const grpc_session *x, const grpc_request *request, size_t *n) {
    size_t n_old;
    const int32_t *old = kakeya_session_tokens(x->session, &n_old);
    int32_t *tokens = malloc((n_old + request->n_ids) * sizeof *tokens);
    if (!tokens) return NULL;
    if (n_old) memcpy(tokens, old, n_old * sizeof *tokens);
    for (size_t i = 0; i < request->n_ids; i++) tokens[n_old + i] = (int32_t)request->ids[i];
    *n = n_old + request->n_ids;
    return tokens;
}

static void answer_append(operation *op, uint64_t history) {
    uint8_t data[GRPC_RESPONSE_ROOM];
    answer_call(op, data, grpc_write_appended(history, data));
}

static void begin_append(operation *op) {
    if (!want_service(op)) return;
    grpc_session *x = want_session(op, false);
    if (!x) return;
    if (op->request.n_ids == 0) {
        grpc_sessions_touch(op->runtime->sessions, x);
        answer_append(op, x->history);
    } else if (check_tokens(op, x)) {
        grpc_task_options options = {0};
        kakeya_error error = {.status = KAKEYA_OUT_OF_MEMORY, .message = "out of memory"};
        int32_t *tokens = joined_tokens(x, &op->request, &options.n_tokens);
        options.tokens = tokens;
        kakeya_status status = tokens ? start_task(op, x, &options, &error) : KAKEYA_OUT_OF_MEMORY;
        free(tokens);
        if (status == KAKEYA_OK) return;
        fail_task(op, &error);
    }
    end_operation(op);
}

static void advance_append(operation *op) {
    const grpc_task_result *result = grpc_task_settle(op->task);
    if (result->end == GRPC_TASK_RUNNING) return;
    if (result->end == GRPC_TASK_COMPLETE) {
        size_t n = 0;
        kakeya_session_tokens(op->session->session, &n);
        answer_append(op, n);
    } else if (result->end == GRPC_TASK_FAILED) {
        if (result->error.status == KAKEYA_OUT_OF_MEMORY && relieve(op)) return;
        fail_task(op, &result->error);
    }
    end_operation(op);
}

/* -------------------------------------------------------------------------------------------- Generate */

static bool check_sampling(operation *op) {
    const grpc_request *q = &op->request;
    if (q->max_tokens == 0)
        fail_call(op, RPC_INVALID_ARGUMENT, "max_tokens is 0, must be at least 1");
    else if (q->has_temperature && !(q->temperature >= 0 && q->temperature <= 2))
        fail_call(op, RPC_INVALID_ARGUMENT, "temperature is %g, must be 0 to 2", (double)q->temperature);
    else if (q->has_top_p && !(q->top_p > 0 && q->top_p <= 1))
        fail_call(op, RPC_INVALID_ARGUMENT, "top_p is %g, must be above 0 and at most 1", (double)q->top_p);
    else
        return true;
    return false;
}

static kakeya_sampling sampling_of(const grpc_request *q) {
    kakeya_generate_options defaults;
    kakeya_generate_options_init(&defaults);
    kakeya_sampling sampling = defaults.sampling;
    sampling.temperature = q->has_temperature ? q->temperature : 0;
    sampling.top_p = q->has_top_p ? q->top_p : 1;
    sampling.top_k = !q->has_top_k ? 0 : q->top_k > INT_MAX ? INT_MAX : (int)q->top_k;
    sampling.seed = q->seed;
    if (!q->has_seed && getrandom(&sampling.seed, sizeof sampling.seed, 0) != sizeof sampling.seed)
        sampling.seed = (uint64_t)(clock_seconds() * 1e9);
    return sampling;
}

static void pump(operation *op);

/* What the answer cannot see exactly any more. */
static uint64_t dropped_tokens(const grpc_runtime *r, uint64_t history) {
    const kakeya_session_options *s = &r->options.session;
    if (s->attention != KAKEYA_ATTENTION_SINK_WINDOW) return 0;
    const uint64_t kept = (uint64_t)s->sink + (uint64_t)s->window;
    return history > kept ? history - kept : 0;
}

static void begin_generate(operation *op) {
    if (!want_service(op)) return;
    grpc_session *x = want_session(op, false);
    if (!x) return;
    if (x->history == 0) {
        fail_call(op, RPC_INVALID_ARGUMENT, "session '%s' has no tokens: append some first", x->id);
    } else if (check_sampling(op)) {
        grpc_task_options options = {.max_tokens = op->request.max_tokens,
                                     .sampling = sampling_of(&op->request),
                                     .eos = x->eos,
                                     .n_eos = x->n_eos,
                                     .ring_tokens = op->runtime->options.ring_tokens};
        kakeya_error error = {0};
        op->dropped = dropped_tokens(op->runtime, x->history);
        op->progress = clock_seconds();
        if (start_task(op, x, &options, &error) == KAKEYA_OK) {
            pump(op);
            return;
        }
        fail_task(op, &error);
    }
    end_operation(op);
}

static void send_message(operation *op, const uint8_t *data, size_t bytes) {
    op->sending = true;
    op->progress = clock_seconds();
    rpc_call_send(op->call, data, bytes);
}

static void finish_generate(operation *op, const grpc_task_result *result) {
    static const grpc_stop_reason reasons[] = {[GRPC_TASK_COMPLETE] = GRPC_STOP_MAX_TOKENS,
                                               [GRPC_TASK_EOS] = GRPC_STOP_EOS,
                                               [GRPC_TASK_CONTEXT_FULL] = GRPC_STOP_TRUNCATED,
                                               [GRPC_TASK_CANCELLED] = GRPC_STOP_CANCELLED};
    if (result->end == GRPC_TASK_FAILED) {
        fail_task(op, &result->error);
    } else {
        uint8_t data[GRPC_RESPONSE_ROOM];
        double total = result->prefill_seconds + clock_seconds() - op->started;
        answer_call(
            op, data,
            grpc_write_done(reasons[result->end], (uint32_t)result->tokens, result->prefill_seconds, total, data));
    }
    end_operation(op);
}

/* Sends the next message, if there is one and the last one has been taken. May end the operation. */
static void pump(operation *op) {
    const grpc_task_result *result = grpc_task_settle(op->task);
    uint8_t data[GRPC_RESPONSE_ROOM];
    int32_t token;
    if (!op->call) {
        if (result->end != GRPC_TASK_RUNNING) end_operation(op);
    } else if (op->sending) {
        return;
    } else if (op->dropped) {
        size_t n = grpc_write_truncated(op->dropped, data);
        op->dropped = 0;
        send_message(op, data, n);
    } else if (grpc_task_next(op->task, &token)) {
        if (op->first_token == 0) op->first_token = clock_seconds();
        grpc_sessions_touch(op->runtime->sessions, op->session);
        send_message(op, data, grpc_write_token((uint32_t)token, data));
    } else if (result->end != GRPC_TASK_RUNNING) {
        finish_generate(op, result);
    }
}

static void advance_generate(operation *op) {
    const double limit = op->runtime->options.reader_seconds;
    if (op->call && op->sending && clock_seconds() - op->progress > limit) {
        rpc_call_abort(op->call, RPC_ABORTED, "the client has read nothing for too long");
        op->call = NULL;
        op->code = RPC_ABORTED;
        grpc_task_cancel(op->task);
    }
    pump(op);
}

/* -------------------------------------------------------------------------------------------- the other methods */

static void begin_close(operation *op) {
    grpc_session *x = want_session(op, false);
    if (!x) return;
    uint8_t data[GRPC_RESPONSE_ROOM];
    uint64_t history = x->history;
    drop_session(op->runtime, x);
    answer_call(op, data, grpc_write_closed(history, data));
    end_operation(op);
}

static void begin_info(operation *op) {
    const grpc_session *x = want_session(op, true);
    if (!x) return;
    const operation *user = x->user;
    uint64_t history = x->history;
    if (user && user->type == GRPC_GENERATE) history += grpc_task_settle(user->task)->tokens;
    uint8_t data[GRPC_RESPONSE_ROOM];
    answer_call(op, data, grpc_write_info(history, x->kv_bytes, clock_seconds() - x->touched, data));
    end_operation(op);
}

static void begin(operation *op) {
    op->state = STATE_NEW;
    if (op->runtime->stopped) {
        (void)want_service(op);
        return;
    }
    switch (op->type) {
    case GRPC_CREATE_SESSION:
        begin_create(op);
        return;
    case GRPC_APPEND_TOKENS:
        begin_append(op);
        return;
    case GRPC_GENERATE:
        begin_generate(op);
        return;
    case GRPC_CLOSE_SESSION:
        begin_close(op);
        return;
    default:
        begin_info(op);
        return;
    }
}

/* -------------------------------------------------------------------------------------------- calls and time */

void grpc_runtime_request(grpc_runtime *r, rpc_call *call, grpc_request_type type, const uint8_t *data, size_t bytes) {
    operation *op = calloc(1, sizeof *op);
    if (!op) {
        rpc_call_fail(call, RPC_RESOURCE_EXHAUSTED, "out of memory");
        return;
    }
    kakeya_error error = {0};
    kakeya_status status = grpc_request_read(type, data, bytes, &op->request, &error);
    if (status != KAKEYA_OK) {
        rpc_call_fail(call, code_of(status), "%s", error.message);
        grpc_request_free(&op->request);
        free(op);
        return;
    }
    op->runtime = r;
    op->call = call;
    op->type = type;
    op->started = clock_seconds();
    op->next = r->operations;
    if (op->next) op->next->previous = op;
    r->operations = op;
    r->running++;
    rpc_call_set_state(call, op);
    begin(op);
}

void grpc_runtime_sent(grpc_runtime *r, rpc_call *call) {
    (void)r;
    operation *op = rpc_call_state(call);
    op->sending = false;
    pump(op);
}

/* What is being computed for the call ends within a step; its session stays. */
static void give_up(operation *op) {
    op->call = NULL;
    if (op->state == STATE_COMPUTING)
        grpc_task_cancel(op->task);
    else if (op->state == STATE_DEFERRED)
        end_operation(op);
}

void grpc_runtime_gone(grpc_runtime *r, rpc_call *call) {
    operation *op = rpc_call_state(call);
    if (!op) return; /* its request never came */
    op->code = RPC_CANCELLED;
    give_up(op);
    r->wake(r->user); /* a task that paused has no news of its own */
}

static void expire(grpc_runtime *r) {
    const double limit = r->options.session_ttl;
    if (limit <= 0 || r->stopped) return;
    for (;;) {
        grpc_session *x = grpc_sessions_oldest_idle(r->sessions);
        if (!x || clock_seconds() - x->touched <= limit) return;
        drop_session(r, x);
    }
}

void grpc_runtime_advance(grpc_runtime *r) {
    grpc_work_settle(r->work);
    for (operation *next, *op = r->operations; op; op = next) {
        next = op->next;
        if (op->state == STATE_COMPUTING && op->type == GRPC_APPEND_TOKENS)
            advance_append(op);
        else if (op->state == STATE_COMPUTING)
            advance_generate(op);
    }
    /* Each of them may end itself, but no other one. */
    for (operation *next, *op = r->operations; op; op = next) {
        next = op->next;
        if (op->state == STATE_DEFERRED) begin(op);
    }
    expire(r);
}

void grpc_runtime_serve(grpc_runtime *r, kakeya_engine *engine) { r->engine = engine; }

void grpc_runtime_drain(grpc_runtime *r) { r->draining = true; }

void grpc_runtime_stop(grpc_runtime *r) {
    r->draining = r->stopped = true;
    for (operation *next, *op = r->operations; op; op = next) {
        next = op->next;
        fail_call(op, RPC_UNAVAILABLE, "the server is stopping");
        give_up(op);
    }
}

size_t grpc_runtime_running(const grpc_runtime *r) { return r->running + !grpc_work_is_idle(r->work); }

size_t grpc_runtime_sessions(const grpc_runtime *r) { return grpc_sessions_count(r->sessions); }

kakeya_status grpc_runtime_open(const grpc_service_options *options, void (*wake)(void *user), void *user,
                                grpc_runtime **out, kakeya_error *error) {
    *out = NULL;
    grpc_runtime *r = calloc(1, sizeof *r);
    if (!r) return error_set(error, KAKEYA_OUT_OF_MEMORY, "gRPC service: out of memory");
    r->options = *options;
    r->wake = wake;
    r->user = user;
    r->sessions = grpc_sessions_new();
    kakeya_status status = r->sessions ? grpc_work_open(wake, user, &r->work, error)
                                       : error_set(error, KAKEYA_OUT_OF_MEMORY, "gRPC service: out of memory");
    if (status != KAKEYA_OK) {
        grpc_runtime_close(r);
        return status;
    }
    *out = r;
    return KAKEYA_OK;
}

void grpc_runtime_close(grpc_runtime *r) {
    if (!r) return;
    grpc_work_close(r->work);
    for (grpc_session *x; r->sessions && (x = grpc_sessions_any(r->sessions));)
        kakeya_session_close(grpc_sessions_remove(r->sessions, x));
    grpc_sessions_free(r->sessions);
    free(r);
}
