#include "serve/grpc_runtime.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/platform.h"
#include "kakeya_study.h"
#include "serve/grpc_operation.h"

enum { MAX_EOS = 1024 };

/* -------------------------------------------------------------------------------------------- CreateSession */

static void run_create(grpc_job *job) {
    store_job *j = (store_job *)job;
    store_named *named = store_names(j->store);
    const char *note = j->note;
    j->result = store_named_create(named, note, j->id, &j->error);
}

static void done_create(grpc_job *job) {
    store_job *j = (store_job *)job;
    operation *op = j->operation;
    if (operation_check_result(j) && op->call) {
        uint8_t data[GRPC_RESPONSE_ROOM];
        operation_answer(op, data, grpc_write_created(j->id, data));
    } else if (j->result == STORE_NAMED_OK) { /* the client is gone */
        (void)store_named_drop(store_names(j->store), j->id, NULL);
    }
    operation_end(op);
    free(j->note);
    free(j);
}

static int compare_ids(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* The end tokens stay with the session in the store as text. NULL: out of memory. */
static char *note_of(uint32_t *eos, size_t n) {
    char *note = malloc(n * 11 + 1), *at = note; /* ten digits and a blank */
    if (!note) return NULL;
    if (n) qsort(eos, n, sizeof *eos, compare_ids);
    *at = '\0';
    for (size_t i = 0; i < n; i++) at += sprintf(at, "%u ", (unsigned)eos[i]);
    return note;
}

/* The way back; false: out of memory. */
static bool read_note(operation *op, const char *note) {
    size_t n = 0;
    for (const char *at = note; at && *at; at++) n += *at == ' ';
    op->eos = malloc(n * sizeof *op->eos + 1);
    if (!op->eos) return false;
    for (char *at = (char *)note; op->n_eos < n; at++) op->eos[op->n_eos++] = (uint32_t)strtoul(at, &at, 10);
    return true;
}

static void start_create(operation *op) {
    char *note = note_of(op->request.ids, op->request.n_ids);
    if (!note) {
        operation_fail(op, RPC_RESOURCE_EXHAUSTED, "out of memory");
        operation_end(op);
        return;
    }
    operation_add_job(op, run_create, done_create, note);
}

static void begin_create(operation *op) {
    if (!operation_want_service(op)) return;
    if (op->request.n_ids > MAX_EOS) {
        operation_fail(op, RPC_INVALID_ARGUMENT, "eos_token_ids has %zu entries, %d are allowed", op->request.n_ids,
                       MAX_EOS);
        operation_end(op);
        return;
    }
    start_create(op);
}

/* -------------------------------------------------------------------------------------------- tasks */

static void news(void *user) {
    grpc_runtime *r = user;
    r->wake(r->user);
}

static void begin_task(operation *op);

static void run_take(grpc_job *job) {
    store_job *j = (store_job *)job;
    const char *name = j->operation->request.name;
    j->result = store_named_take(store_names(j->store), name, &j->session, &j->note, &j->error);
}

static void done_take(grpc_job *job) {
    store_job *j = (store_job *)job;
    operation *op = j->operation;
    bool taken = operation_check_result(j), noted = taken && read_note(op, j->note);
    op->session = j->session;
    free(j->note);
    free(j);
    if (taken && op->call && noted) {
        size_t n = 0;
        kakeya_session_tokens(op->session, &n);
        op->history = n;
        op->kv_bytes = kakeya_session_kv_bytes(op->session).total;
        begin_task(op);
        return;
    }
    if (taken && !noted) operation_fail(op, RPC_RESOURCE_EXHAUSTED, "out of memory");
    operation_end(op);
}

/* AppendTokens and Generate: the session comes from the store first, which may read a file. */
static void take_session(operation *op) {
    if (!operation_want_service(op) || !operation_use_session(op)) return;
    op->in_hand = true;
    store_hand_begin(op->runtime->store);
    operation_add_job(op, run_take, done_take, NULL);
}

static kakeya_status start_task(operation *op, grpc_task_options *options, kakeya_error *error) {
    options->session = op->session;
    options->store = op->runtime->store;
    options->on_news = news;
    options->user = op->runtime;
    kakeya_status status = grpc_task_start(options, &op->task, error);
    if (status != KAKEYA_OK) return status;
    op->state = STATE_COMPUTING;
    return KAKEYA_OK;
}

/* The task has failed, or did not start. What the model or the device did wrong ends the session too. */
static void fail_task(operation *op, const kakeya_error *error) {
    rpc_code code = operation_code_of(error->status);
    operation_fail(op, code, "%s", error->message);
    if (code != RPC_INTERNAL || !op->session) return;
    kakeya_session_close(op->session);
    operation_release(op, NULL);
}

/* -------------------------------------------------------------------------------------------- AppendTokens */

/* Whether the tokens can stand behind the session's own. */
static bool check_tokens(operation *op) {
    const grpc_runtime *r = op->runtime;
    const kakeya_session_options *session = &r->options.session;
    const uint32_t vocab = (uint32_t)kakeya_engine_vocab_size(r->engine);
    const int most = kakeya_engine_max_context(r->engine);
    const size_t n = op->request.n_ids, context = (size_t)(session->context_tokens ? session->context_tokens : most);
    for (size_t i = 0; i < n; i++) {
        if (op->request.ids[i] < vocab) continue;
        operation_fail(op, RPC_INVALID_ARGUMENT, "token_ids[%zu] is %u, the vocabulary has ids 0 to %u", i,
                       (unsigned)op->request.ids[i], (unsigned)(vocab - 1));
        return false;
    }
    if (n <= context && op->history <= context - n) return true;
    operation_fail(op, RPC_INVALID_ARGUMENT, "%zu tokens after %zu do not fit into the context of %zu", n,
                   (size_t)op->history, context);
    return false;
}

/* Whether a session of so many tokens has room when nobody else has any: what cannot succeed is refused before it
 * changes the session. */
static bool check_room(operation *op) {
    const grpc_runtime *r = op->runtime;
    const size_t n = (size_t)op->history + op->request.n_ids, room = kakeya_engine_kv_room(r->engine);
    kakeya_kv_bytes bytes;
    KAKEYA_INIT(&bytes);
    const kakeya_description *model = kakeya_engine_description(r->engine);
    if (room == 0 || kakeya_description_kv_bytes(model, &r->options.session, n, &bytes, NULL) != KAKEYA_OK) return true;
    if (bytes.total <= room) return true;
    operation_fail(op, RPC_RESOURCE_EXHAUSTED, "a session of %zu tokens takes %.1f MB, and there is room for %.1f MB",
                   n, (double)bytes.total / 1e6, (double)room / 1e6);
    return false;
}

/* The session's tokens and the new ones; NULL: out of memory. */
static int32_t *joined_tokens(const operation *op, size_t *n) {
    size_t n_old;
    const int32_t *old = kakeya_session_tokens(op->session, &n_old);
    const grpc_request *request = &op->request;
    int32_t *tokens = malloc((n_old + request->n_ids) * sizeof *tokens);
    if (!tokens) return NULL;
    if (n_old) memcpy(tokens, old, n_old * sizeof *tokens);
    for (size_t i = 0; i < request->n_ids; i++) tokens[n_old + i] = (int32_t)request->ids[i];
    *n = n_old + request->n_ids;
    return tokens;
}

static void answer_append(operation *op, uint64_t history) {
    uint8_t data[GRPC_RESPONSE_ROOM];
    operation_answer(op, data, grpc_write_appended(history, data));
}

static void start_append(operation *op) {
    grpc_task_options options = {0};
    kakeya_error error = {.status = KAKEYA_OUT_OF_MEMORY, .message = "out of memory"};
    int32_t *tokens = joined_tokens(op, &options.n_tokens);
    options.tokens = tokens;
    kakeya_status status = tokens ? start_task(op, &options, &error) : KAKEYA_OUT_OF_MEMORY;
    free(tokens);
    if (status == KAKEYA_OK) return;
    fail_task(op, &error);
    operation_end(op);
}

/* What was computed behind a failure of the whole engine is lost with the engine. */
static bool is_lost(operation *op) {
    const kakeya_error lost = {.status = KAKEYA_BACKEND, .message = "the computation has failed"};
    if (!operation_has_failed(op)) return false;
    fail_task(op, &lost);
    return true;
}

static void advance_append(operation *op) {
    const grpc_task_result *result = grpc_task_settle(op->task);
    if (result->end == GRPC_TASK_RUNNING) return;
    if (result->end == GRPC_TASK_COMPLETE) {
        if (is_lost(op)) {
            operation_end(op);
            return;
        }
        size_t n = 0;
        kakeya_session_tokens(op->session, &n);
        answer_append(op, n);
    } else if (result->end == GRPC_TASK_FAILED) {
        op->undo = result->error.status == KAKEYA_OUT_OF_MEMORY; /* it is refused, and changes nothing */
        fail_task(op, &result->error);
    }
    operation_end(op);
}

/* -------------------------------------------------------------------------------------------- Generate */

static bool check_sampling(operation *op) {
    const grpc_request *q = &op->request;
    if (q->max_tokens == 0)
        operation_fail(op, RPC_INVALID_ARGUMENT, "max_tokens is 0, must be at least 1");
    else if (q->has_temperature && !(q->temperature >= 0 && q->temperature <= 2))
        operation_fail(op, RPC_INVALID_ARGUMENT, "temperature is %g, must be 0 to 2", (double)q->temperature);
    else if (q->has_top_p && !(q->top_p >= 0 && q->top_p <= 1))
        operation_fail(op, RPC_INVALID_ARGUMENT, "top_p is %g, must be 0 to 1", (double)q->top_p);
    else
        return true;
    return false;
}

static kakeya_sampling sampling_of(const grpc_request *q) {
    kakeya_sampling sampling = {.repetition_penalty = 1};
    sampling.temperature = q->has_temperature ? q->temperature : 0;
    sampling.top_p = q->has_top_p ? q->top_p : 1;
    sampling.top_k = !q->has_top_k ? 0 : q->top_k > INT_MAX ? INT_MAX : (int)q->top_k;
    sampling.seed = q->seed;
    if (!q->has_seed && !platform_random(&sampling.seed, sizeof sampling.seed))
        sampling.seed = (uint64_t)(clock_seconds() * 1e9);
    return sampling;
}

static void pump(operation *op);

/* What the answer cannot see exactly any more. */
static uint64_t dropped_tokens(const grpc_runtime *r, uint64_t history) {
    const kakeya_session_options *s = &r->options.session;
    if (s->attention != KAKEYA_ATTENTION_SINK_WINDOW) return 0;
    const uint64_t kept = (uint64_t)kakeya_options_sink(s) + (uint64_t)kakeya_options_window(s);
    return history > kept ? history - kept : 0;
}

static void start_generate(operation *op) {
    grpc_task_options options = {.max_tokens = op->request.max_tokens,
                                 .sampling = sampling_of(&op->request),
                                 .eos = op->eos,
                                 .n_eos = op->n_eos,
                                 .ring_tokens = op->runtime->options.ring_tokens};
    kakeya_error error = {0};
    op->dropped = dropped_tokens(op->runtime, op->history);
    op->progress = clock_seconds();
    if (start_task(op, &options, &error) == KAKEYA_OK) {
        pump(op);
        return;
    }
    fail_task(op, &error);
    operation_end(op);
}

/* The session is there. */
static void begin_task(operation *op) {
    if (op->type == GRPC_APPEND_TOKENS) {
        if (op->request.n_ids == 0) {
            answer_append(op, op->history);
        } else if (check_tokens(op) && check_room(op)) {
            start_append(op);
            return;
        }
    } else if (op->history == 0) {
        operation_fail(op, RPC_INVALID_ARGUMENT, "session '%s' has no tokens: append some first", op->request.name);
    } else if (check_sampling(op)) {
        start_generate(op);
        return;
    }
    operation_end(op);
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
    } else if (result->end == GRPC_TASK_CANCELLED || !is_lost(op)) {
        uint8_t data[GRPC_RESPONSE_ROOM];
        double total = result->prefill_seconds + clock_seconds() - op->started;
        operation_answer(
            op, data,
            grpc_write_done(reasons[result->end], (uint32_t)result->tokens, result->prefill_seconds, total, data));
    }
    operation_end(op);
}

/* Sends the next message, if there is one and the last one has been taken. May end the operation. */
static void pump(operation *op) {
    const grpc_task_result *result = grpc_task_settle(op->task);
    uint8_t data[GRPC_RESPONSE_ROOM];
    int32_t token;
    const bool ended = result->end != GRPC_TASK_RUNNING;
    if (ended && op->session && result->end != GRPC_TASK_FAILED && !operation_has_failed(op))
        operation_release(op, op->session); /* its memory need not wait for the reader */
    if (!op->call) {
        if (ended) operation_end(op);
    } else if (op->sending) {
        return;
    } else if (op->dropped) {
        size_t n = grpc_write_truncated(op->dropped, data);
        op->dropped = 0;
        send_message(op, data, n);
    } else if (grpc_task_next(op->task, &token)) {
        if (op->first_token == 0) op->first_token = clock_seconds();
        send_message(op, data, grpc_write_token((uint32_t)token, data));
    } else if (ended) {
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

static void run_drop(grpc_job *job) {
    store_job *j = (store_job *)job;
    j->result = store_named_drop(store_names(j->store), j->operation->request.name, &j->tokens);
}

static void done_drop(grpc_job *job) {
    store_job *j = (store_job *)job;
    operation *op = j->operation;
    uint8_t data[GRPC_RESPONSE_ROOM];
    if (operation_check_result(j)) operation_answer(op, data, grpc_write_closed(j->tokens, data));
    free(j);
    operation_end(op);
}

static void begin_close(operation *op) {
    if (operation_want_store(op) && operation_use_session(op)) operation_add_job(op, run_drop, done_drop, NULL);
}

static void run_look(grpc_job *job) {
    store_job *j = (store_job *)job;
    j->result = store_named_look(store_names(j->store), j->operation->request.name, &j->info);
}

static void done_look(grpc_job *job) {
    store_job *j = (store_job *)job;
    operation *op = j->operation;
    uint8_t data[GRPC_RESPONSE_ROOM];
    if (operation_check_result(j))
        operation_answer(op, data, grpc_write_info(j->info.tokens, j->info.kv_bytes, j->info.idle_seconds, data));
    free(j);
    operation_end(op);
}

/* Also while the session is busy: what it held when it was taken, and what was generated since. */
static void begin_info(operation *op) {
    if (!operation_want_store(op)) return;
    operation *user = operation_user_of(op->runtime, op->request.name);
    if (user && !user->call) {
        op->state = STATE_DEFERRED;
    } else if (user && user->state == STATE_COMPUTING) {
        uint64_t history = user->history;
        if (user->type == GRPC_GENERATE) history += grpc_task_settle(user->task)->tokens;
        double since = user->progress > user->started ? user->progress : user->started;
        uint8_t data[GRPC_RESPONSE_ROOM];
        operation_answer(op, data, grpc_write_info(history, user->kv_bytes, clock_seconds() - since, data));
        operation_end(op);
    } else {
        operation_add_job(op, run_look, done_look, NULL);
    }
}

static void begin(operation *op) {
    op->state = STATE_NEW;
    op->sleeps = false;
    if (op->runtime->stopped) {
        (void)operation_want_service(op);
        return;
    }
    switch (op->type) {
    case GRPC_CREATE_SESSION:
        begin_create(op);
        return;
    case GRPC_APPEND_TOKENS:
    case GRPC_GENERATE:
        take_session(op);
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
        rpc_call_fail(call, operation_code_of(status), "%s", error.message);
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
        operation_end(op);
}

void grpc_runtime_gone(grpc_runtime *r, rpc_call *call) {
    operation *op = rpc_call_state(call);
    if (!op) return; /* its request never came */
    op->code = RPC_CANCELLED;
    give_up(op);
    r->wake(r->user); /* a task that has ended has no news of its own */
}

void grpc_runtime_advance(grpc_runtime *r) {
    grpc_work_settle(r->work);
    for (operation *next, *op = r->operations; op; op = next) {
        next = op->next;
        if (op->state != STATE_COMPUTING) continue;
        if (op->type == GRPC_APPEND_TOKENS)
            advance_append(op);
        else
            advance_generate(op);
    }
    /* Each of them may end itself, but no other one. */
    for (operation *next, *op = r->operations; op; op = next) {
        next = op->next;
        if (op->state == STATE_DEFERRED) begin(op);
    }
}

void grpc_runtime_serve(grpc_runtime *r, kakeya_engine *engine, prefix_store *store) {
    r->engine = engine;
    r->store = store;
    r->asleep = false;
}

bool grpc_runtime_unload(grpc_runtime *r, bool failed) {
    size_t busy = 0;
    r->asleep |= failed;
    for (operation *next, *op = r->operations; op; op = next) {
        next = op->next;
        if (op->state == STATE_DEFERRED && op->sleeps) continue;
        busy++;
        if (!failed || op->state != STATE_COMPUTING) continue;
        operation_fail(op, RPC_INTERNAL, "the computation has failed");
        give_up(op);
    }
    /* A session on its way back would reach the store after the store has given up its sessions. */
    if (busy > 0 || !grpc_work_is_idle(r->work)) return false;
    r->engine = NULL;
    r->asleep = true;
    return true;
}

void grpc_runtime_wake_failed(grpc_runtime *r, const char *why) {
    for (operation *next, *op = r->operations; op; op = next) {
        next = op->next;
        if (!op->sleeps) continue;
        operation_fail(op, RPC_UNAVAILABLE, "the model cannot be loaded again: %s", why);
        operation_end(op);
    }
}

void grpc_runtime_drain(grpc_runtime *r) { r->draining = true; }

void grpc_runtime_stop(grpc_runtime *r) {
    r->draining = r->stopped = true;
    for (operation *next, *op = r->operations; op; op = next) {
        next = op->next;
        operation_fail(op, RPC_UNAVAILABLE, "the server is stopping");
        give_up(op);
    }
}

size_t grpc_runtime_running(const grpc_runtime *r) { return r->running + !grpc_work_is_idle(r->work); }

kakeya_status grpc_runtime_open(const grpc_service_options *options, void (*wake)(void *user), void *user,
                                grpc_runtime **out, kakeya_error *error) {
    *out = NULL;
    grpc_runtime *r = calloc(1, sizeof *r);
    if (!r) return error_set(error, KAKEYA_OUT_OF_MEMORY, "gRPC service: out of memory");
    r->options = *options;
    r->wake = wake;
    r->user = user;
    kakeya_status status = grpc_work_open(wake, user, &r->work, error);
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
    free(r);
}
