#include "serve/grpc_memory.h"

#include <stdlib.h>

typedef struct memory_job {
    grpc_job job;
    operation *operation;
    bool relieved, alone, parked;
    uint64_t seen;
    size_t tokens; /* of the session */
} memory_job;

bool grpc_memory_enter(operation *op) {
    op->holds = op->holds || memory_queue_try_enter(op->runtime->options.memory);
    if (!op->holds) op->state = STATE_QUEUED;
    return op->holds;
}

static void begin_waiting(operation *op) {
    op->waits = true;
    op->holds = false;
    memory_queue_begin_wait(op->runtime->options.memory);
}

/* Who had the memory may have ended meanwhile: an operation that is alone tries again once for as many tokens. */
static bool tries_again(operation *op, size_t tokens) {
    bool again = op->said_alone != tokens + 1;
    op->said_alone = tokens + 1;
    return again;
}

bool grpc_memory_relieve(operation *op, const kakeya_error *why) {
    return why->status == KAKEYA_OUT_OF_MEMORY && operation_relieve(op->runtime->store);
}

bool grpc_memory_wait(operation *op, const kakeya_error *why) {
    if (why->status != KAKEYA_OUT_OF_MEMORY || !op->call) return false;
    bool alone = memory_queue_is_alone(op->runtime->options.memory, &op->seen);
    if (alone && !tries_again(op, 0)) return false;
    if (!alone) begin_waiting(op);
    op->state = STATE_QUEUED;
    return true;
}

/* Nothing is computed until the job is done, so that the session is the job's. False: out of memory. */
static bool ask(operation *op, void (*run)(grpc_job *job), void (*done)(grpc_job *job)) {
    memory_job *job = calloc(1, sizeof *job);
    if (!job) return false;
    job->job = (grpc_job){.run = run, .done = done};
    job->operation = op;
    op->asks = true;
    grpc_task_hold(op->task);
    grpc_work_add(op->runtime->work, &job->job);
    return true;
}

static operation *take_answer(memory_job *j) {
    operation *op = j->operation;
    op->asks = false;
    op->preemptions += j->parked;
    return op;
}

static bool put_into_file(kakeya_session *session) {
    return !kakeya_session_is_parked(session) && kakeya_session_park(session, NULL) == KAKEYA_OK;
}

/* ------------------------------------------------------------------------------------------------- finding memory */

/* Idle sessions give way; where there are none the session itself does, unless nobody else has any memory. */
static void run_make_room(grpc_job *job) {
    memory_job *j = (memory_job *)job;
    operation *op = j->operation;
    (void)kakeya_session_tokens(op->session, &j->tokens);
    j->relieved = operation_relieve(op->runtime->store);
    if (j->relieved) return;
    j->alone = memory_queue_is_alone(op->runtime->options.memory, &j->seen);
    if (!j->alone)
        j->parked = put_into_file(op->session);
    else if (op->type == GRPC_APPEND_TOKENS && op->said_alone == j->tokens + 1) /* it is refused, and changes nothing */
        (void)kakeya_session_truncate(op->session, op->history, NULL);
}

static void done_make_room(grpc_job *job) {
    memory_job *j = (memory_job *)job;
    operation *op = take_answer(j);
    if (j->relieved || !op->call) {
        grpc_task_go_on(op->task);
    } else if (!j->alone) {
        op->seen = j->seen;
        begin_waiting(op);
    } else if (tries_again(op, j->tokens)) {
        grpc_task_go_on(op->task);
    } else {
        grpc_task_give_up(op->task);
    }
    free(j);
}

/* ------------------------------------------------------------------------------------------------- lending memory */

static void run_lend(grpc_job *job) {
    memory_job *j = (memory_job *)job;
    j->parked = put_into_file(j->operation->session);
}

static void done_lend(grpc_job *job) {
    memory_job *j = (memory_job *)job;
    operation *op = take_answer(j);
    if (j->parked) {
        op->lent = true;
        op->holds = false;
        memory_queue_leave(op->runtime->options.memory);
    } else { /* there is no room for a file */
        op->keeps = true;
        grpc_task_go_on(op->task);
    }
    free(j);
}

/* --------------------------------------------------------------------------------------------------- in between */

/* Whether it has memory again, or needs none because its client is gone. */
static bool ends_waiting(operation *op) {
    memory_queue *queue = op->runtime->options.memory;
    if (!op->call)
        memory_queue_give_up(queue);
    else if (!memory_queue_end_wait(queue, op->seen))
        return false;
    op->holds = op->call != NULL;
    op->waits = false;
    return true;
}

bool grpc_memory_goes_on(operation *op) { return op->waits ? ends_waiting(op) : grpc_memory_enter(op); }

static bool ends_lending(operation *op) {
    if (op->call && !grpc_task_is_wanted(op->task)) return false;
    memory_queue_hold(op->runtime->options.memory);
    op->holds = true;
    op->lent = false;
    return true;
}

void grpc_memory_tend(operation *op) {
    (void)grpc_task_settle(op->task);
    if (op->asks) return;
    if (op->waits || op->lent) {
        if (op->waits ? !ends_waiting(op) : !ends_lending(op)) return;
        grpc_task_go_on(op->task);
        (void)grpc_task_settle(op->task);
    }
    const bool may_lend = op->type == GRPC_GENERATE && op->call && op->holds && !op->keeps &&
                          grpc_task_pauses(op->task) && !grpc_task_is_wanted(op->task);
    if (grpc_task_starved(op->task)) {
        if (!ask(op, run_make_room, done_make_room)) grpc_task_give_up(op->task);
    } else if (may_lend && memory_queue_is_wanted(op->runtime->options.memory)) {
        (void)ask(op, run_lend, done_lend);
    }
}
