#include "serve/grpc_operation.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "text/utf8.h"

enum { SHOWN_NAME_BYTES = 64 };
static const double BUSY_SECONDS = 0.2; /* for which a call waits for a session that another one uses */

static const char *const method_names[GRPC_REQUEST_TYPES] = {"CreateSession", "AppendTokens",   "Generate",
                                                             "CloseSession",  "GetSessionInfo", "Check"};

/* --------------------------------------------------------------------------------------------------- operations */

static void tell_finished(const operation *op) {
    const grpc_service_options *o = &op->runtime->options;
    if (!o->on_finished) return;
    grpc_finished finished = {.method = method_names[op->type],
                              .session = op->type == GRPC_CREATE_SESSION || !op->request.name ? "" : op->request.name,
                              .label = op->type == GRPC_CREATE_SESSION ? op->request.name : "",
                              .code = op->code,
                              .seconds = clock_seconds() - op->started};
    finished.used_model =
        op->type == GRPC_CREATE_SESSION || op->type == GRPC_APPEND_TOKENS || op->type == GRPC_GENERATE;
    if (op->type == GRPC_APPEND_TOKENS && op->code == RPC_OK) finished.prompt_tokens = op->request.n_ids;
    if (op->first_token > 0) finished.first_token_seconds = op->first_token - op->started;
    if (op->task) {
        const grpc_task_result *result = grpc_task_settle(op->task);
        finished.generated_tokens = result->tokens;
        finished.decode_seconds = result->decode_seconds;
        finished.verifier_forwards = result->verifier_forwards;
        finished.drafted = result->drafted;
        finished.accepted = result->accepted;
        finished.drafted_at = result->drafted_at;
        finished.accepted_at = result->accepted_at;
        finished.n_positions = GRPC_POSITIONS;
        static const grpc_ended ended[] = {[GRPC_TASK_RUNNING] = GRPC_ENDED_CANCELLED,
                                           [GRPC_TASK_COMPLETE] = GRPC_ENDED_LENGTH,
                                           [GRPC_TASK_EOS] = GRPC_ENDED_STOP,
                                           [GRPC_TASK_CONTEXT_FULL] = GRPC_ENDED_LENGTH,
                                           [GRPC_TASK_CANCELLED] = GRPC_ENDED_CANCELLED,
                                           [GRPC_TASK_FAILED] = GRPC_ENDED_ERROR};
        if (op->type == GRPC_GENERATE) finished.ended = ended[result->end];
    }
    o->on_finished(o->user, &finished);
}

typedef struct give_job {
    grpc_job job;
    prefix_store *store;
    char *name;
    kakeya_session *session;
    bool undo;
    size_t history;
} give_job;

static void run_give(grpc_job *job) {
    give_job *g = (give_job *)job;
    store_named *named = store_names(g->store);
    if (g->undo) (void)kakeya_session_truncate(g->session, g->history, NULL);
    store_named_give(named, g->name, g->session);
    if (!g->session) (void)store_named_drop(named, g->name, NULL); /* its file, too */
    store_hand_end(g->store);
}

static void free_give(grpc_job *job) {
    free(((give_job *)job)->name);
    free(job);
}

void operation_release(operation *op, kakeya_session *session) {
    grpc_runtime *r = op->runtime;
    op->session = NULL;
    give_job *job = calloc(1, sizeof *job);
    char *name = strdup(op->request.name); /* the operation may end before the job */
    op->in_hand = false;
    if (!job || !name) {
        free(job);
        free(name);
        store_named_give(store_names(r->store), op->request.name, session);
        store_hand_end(r->store);
        return;
    }
    *job = (give_job){.job = {.run = run_give, .done = free_give},
                      .store = r->store,
                      .session = session,
                      .undo = session && op->undo,
                      .history = (size_t)op->history};
    job->name = name;
    grpc_work_add(r->work, &job->job);
}

void operation_end(operation *op) {
    grpc_runtime *r = op->runtime;
    tell_finished(op);
    grpc_task_free(op->task);
    if (op->session) operation_release(op, op->session);
    if (op->in_hand) store_hand_end(r->store);
    if (op->uses) r->wake(r->user); /* another call may wait for it */
    free(op->eos);
    *(op->previous ? &op->previous->next : &r->operations) = op->next;
    if (op->next) op->next->previous = op->previous;
    r->running--;
    grpc_request_free(&op->request);
    free(op);
}

void operation_fail(operation *op, rpc_code code, const char *format, ...) {
    char text[sizeof(kakeya_error)];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (!op->call) return;
    rpc_call_fail(op->call, code, "%s", text);
    op->call = NULL;
    op->code = (int)code;
}

void operation_answer(operation *op, const uint8_t *data, size_t bytes) {
    if (op->call) rpc_call_finish(op->call, data, bytes);
    op->call = NULL;
}

rpc_code operation_code_of(kakeya_status status) {
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

operation *operation_user_of(const grpc_runtime *r, const char *name) {
    operation *op = r->operations;
    while (op && !(op->uses && op->request.name && strcmp(op->request.name, name) == 0)) op = op->next;
    return op;
}

bool operation_use_session(operation *op) {
    const operation *user = operation_user_of(op->runtime, op->request.name);
    if (!user) {
        op->uses = true;
        return true;
    }
    /* A client that cancels its call and asks again at once may be heard in the other order. */
    if (!user->call || clock_seconds() < op->started + BUSY_SECONDS) {
        op->state = STATE_DEFERRED;
        return false;
    }
    operation_fail(op, RPC_ABORTED, "session '%.*s' is busy with another call", shown_bytes(op->request.name),
                   op->request.name);
    operation_end(op);
    return false;
}

bool operation_has_failed(const operation *op) {
    const _Atomic bool *failed = op->runtime->options.failed;
    return failed && atomic_load(failed);
}

bool operation_want_service(operation *op) {
    const grpc_runtime *r = op->runtime;
    const grpc_service_options *o = &r->options;
    const bool asleep = r->asleep || operation_has_failed(op);
    if (r->engine && !asleep && !r->draining) return true;
    if (asleep && !r->draining && clock_seconds() < op->started + o->wake_seconds) {
        op->state = STATE_DEFERRED;
        op->sleeps = true;
        if (o->on_wanted) o->on_wanted(o->user);
        return false;
    }
    operation_fail(op, RPC_UNAVAILABLE, r->draining ? "the server is stopping" : "the model is being loaded");
    operation_end(op);
    return false;
}

bool operation_want_store(operation *op) {
    if (op->runtime->store) return true;
    operation_fail(op, RPC_UNAVAILABLE, "the model is being loaded");
    operation_end(op);
    return false;
}

/* -------------------------------------------------------------------------------------------- jobs */

void operation_add_job(operation *op, void (*run)(grpc_job *job), void (*done)(grpc_job *job), char *note) {
    grpc_runtime *r = op->runtime;
    store_job *job = calloc(1, sizeof *job);
    if (!job) {
        free(note);
        operation_fail(op, RPC_RESOURCE_EXHAUSTED, "out of memory");
        operation_end(op);
        return;
    }
    job->job = (grpc_job){.run = run, .done = done};
    job->operation = op;
    job->store = r->store;
    job->note = note;
    op->state = STATE_WAITING;
    grpc_work_add(r->work, &job->job);
}

bool operation_check_result(const store_job *j) {
    operation *op = j->operation;
    const char *name = op->request.name;
    switch (j->result) {
    case STORE_NAMED_OK:
        return true;
    case STORE_NAMED_UNKNOWN:
        operation_fail(op, RPC_NOT_FOUND, "session '%.*s' does not exist", shown_bytes(name), name);
        return false;
    case STORE_NAMED_BUSY:
        operation_fail(op, RPC_ABORTED, "session '%.*s' is busy", shown_bytes(name), name);
        return false;
    case STORE_NAMED_FULL:
        operation_fail(op, RPC_RESOURCE_EXHAUSTED, "every session is busy");
        return false;
    default:
        operation_fail(op, operation_code_of(j->error.status), "%s", j->error.message);
        return false;
    }
}
