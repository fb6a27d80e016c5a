/* A call of RuntimeService from its request to its end: who uses which session, what the store is asked for, how a call
 * is answered. Private to grpc_runtime.c and grpc_operation.c; for the server's thread. */
#ifndef KAKEYA_SERVE_GRPC_OPERATION_H
#define KAKEYA_SERVE_GRPC_OPERATION_H

#include "serve/grpc_messages.h"
#include "serve/grpc_options.h"
#include "serve/grpc_server.h"
#include "serve/grpc_task.h"
#include "serve/grpc_work.h"
#include "serve/store.h"

typedef struct grpc_runtime grpc_runtime;

typedef enum operation_state {
    STATE_NEW = 0,
    STATE_DEFERRED,  /* the session is still ending what a client has given up, or the model sleeps */
    STATE_WAITING,   /* for a job */
    STATE_COMPUTING, /* with a task */
} operation_state;

/* A call, from its request to its end, or until what it has begun has ended. */
typedef struct operation {
    grpc_runtime *runtime;
    rpc_call *call; /* NULL: it has been answered, or the client is gone */
    grpc_request_type type;
    grpc_request request;
    operation_state state;
    bool sleeps;                /* with STATE_DEFERRED: waits for the model */
    bool uses;                  /* the session of the request's name: nobody else may */
    kakeya_session *session;    /* taken from the store; NULL: not yet */
    uint64_t history, kv_bytes; /* of the session when it was taken */
    uint32_t *eos;              /* n_eos tokens, ascending */
    size_t n_eos;
    grpc_task *task;                       /* with STATE_COMPUTING */
    double started, first_token, progress; /* clock_seconds; progress: when the client last took a message */
    bool sending;
    uint64_t dropped; /* tokens of a HistoryTruncated that has to be sent; 0: none */
    int code;
    bool in_hand; /* its session, while it has no request (store_hand_begin): the store is to be told of its end */
    bool undo;    /* the session is to hold what it held before, `history` tokens */
    struct operation *next, *previous;
} operation;

struct grpc_runtime {
    grpc_service_options options;
    void (*wake)(void *user);
    void *user;
    kakeya_engine *engine; /* NULL: not there yet, or taken away */
    prefix_store *store;   /* once there was an engine */
    bool asleep;           /* the engine was taken away */
    bool draining, stopped;
    grpc_work *work;
    operation *operations;
    size_t running;
};

/* What the store is asked for, and what it says. */
typedef struct store_job {
    grpc_job job;
    operation *operation;
    prefix_store *store;
    store_named_result result;
    kakeya_error error;
    char *note;
    char id[STORE_ID_BYTES];
    kakeya_session *session;
    size_t tokens;
    store_named_info info;
} store_job;

/* Answers the call, if anybody listens; the operation goes on. */
void operation_answer(operation *op, const uint8_t *data, size_t bytes);
void operation_fail(operation *op, rpc_code code, const char *format, ...) __attribute__((format(printf, 3, 4)));
rpc_code operation_code_of(kakeya_status status);
/* The call has been answered, or nobody listens, and nothing is being computed for it. Frees the operation. */
void operation_end(operation *op);

/* Who uses the session of this name; NULL: nobody. */
operation *operation_user_of(const grpc_runtime *runtime, const char *name);
/* Whether the operation has the session that its request names for itself; otherwise it has been answered and ended, or
 * it waits. A session that is still busy for a client that has gone is free within a step, so that is waited for. So is
 * any session for a fifth of a second: a cancel and the call behind it can arrive in either order. */
bool operation_use_session(operation *op);
/* The store has the session again, before any job that is added later; NULL: it is lost. The session is then in
 * nobody's hand, but the operation's as long as it lasts: no other one may use it. */
void operation_release(operation *op, kakeya_session *session);
/* Whether a forward of this engine has failed as a whole. */
bool operation_has_failed(const operation *op);
/* Whether new work is taken; otherwise the operation has been answered and ended, or it waits for the model. */
bool operation_want_service(operation *op);
/* Whether there are sessions to ask about; otherwise likewise. */
bool operation_want_store(operation *op);

/* Asks the store, on the thread of grpc_work. `done` owns the store_job. note: taken over; may be NULL. */
void operation_add_job(operation *op, void (*run)(grpc_job *job), void (*done)(grpc_job *job), char *note);
/* Whether the store has done what it was asked for; otherwise the call has been answered. */
bool operation_check_result(const store_job *job);

#endif
