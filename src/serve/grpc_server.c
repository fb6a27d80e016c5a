#include "serve/grpc_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/platform.h"
#include "serve/address.h"
#include "serve/grpc_core.h"

static const double TICK_SECONDS = 0.5;
/* For calls that have been answered to bring it to their clients, at the end. */
static const double GRACE_SECONDS = 1;
enum { MAX_STATUS_TEXT = 512, MIN_PING_SECONDS = 10, MAX_PEM_BYTES = 1 << 20 };

/* What a completion is about. The queue hands out pointers to these. */
typedef enum event_kind {
    EVENT_ARRIVED = 0, /* a new call */
    EVENT_RECEIVED,    /* its request */
    EVENT_CLOSED,      /* how the call ended, for the server */
    EVENT_SENT,        /* a message */
    EVENT_FINISHED,    /* the status */
    EVENT_WAKE,
    EVENT_STOPPED, /* no call is left */
    EVENT_KINDS,
} event_kind;

typedef struct event_tag {
    event_kind kind;
    rpc_call *call;
} event_tag;

struct rpc_call {
    rpc_server *server;
    grpc_call *call;
    grpc_call_details details;
    grpc_metadata_array metadata;
    grpc_byte_buffer *received, *outgoing;
    event_tag tags[EVENT_FINISHED + 1];
    const void *method;
    void *state;
    int pending;   /* completions to come */
    int cancelled; /* written by the core with EVENT_CLOSED */
    bool begun;    /* initial metadata went out */
    bool released; /* the handlers are done with it */
};

struct rpc_server {
    rpc_handlers handlers;
    grpc_server *server;
    grpc_completion_queue *queue;
    /* A call that is never made. An empty batch on it is how another thread puts a completion into the queue. */
    grpc_channel *lame;
    grpc_call *waker;
    event_tag wake, stopped;
    atomic_bool woken, stopping;
    double next_tick, cancel_at; /* clock_seconds; cancel_at: with stopping, when the calls that are left are cut */
    bool awaits;                 /* the core has a place for the next call */
    bool quiet;                  /* no call is left, and none comes */
    bool threaded;
    pthread_t thread;
    char address[300];
};

/* ---------------------------------------------------------------------------------------------------------- calls */

void rpc_call_set_state(rpc_call *call, void *state) { call->state = state; }

void *rpc_call_state(const rpc_call *call) { return call->state; }

static void free_call(rpc_call *c) {
    if (c->call) grpc_core.grpc_call_unref(c->call);
    grpc_core.grpc_call_details_destroy(&c->details);
    grpc_core.grpc_metadata_array_destroy(&c->metadata);
    if (c->received) grpc_core.grpc_byte_buffer_destroy(c->received);
    if (c->outgoing) grpc_core.grpc_byte_buffer_destroy(c->outgoing);
    free(c);
}

/* Refused batches are programming errors, but a call that waits for a completion that never comes would be worse. */
static void start_batch(rpc_call *c, const grpc_op *ops, size_t n, event_kind kind) {
    c->tags[kind] = (event_tag){.kind = kind, .call = c};
    if (grpc_core.grpc_call_start_batch(c->call, ops, n, &c->tags[kind], NULL) == GRPC_CALL_OK)
        c->pending++;
    else
        grpc_core.grpc_call_cancel(c->call, NULL);
}

static void await_call(rpc_server *s) {
    rpc_call *c = calloc(1, sizeof *c);
    if (!c) return; /* the next tick tries again */
    s->awaits = true;
    c->server = s;
    grpc_core.grpc_call_details_init(&c->details);
    grpc_core.grpc_metadata_array_init(&c->metadata);
    c->tags[EVENT_ARRIVED] = (event_tag){.kind = EVENT_ARRIVED, .call = c};
    if (grpc_core.grpc_server_request_call(s->server, &c->call, &c->details, &c->metadata, s->queue, s->queue,
                                           &c->tags[EVENT_ARRIVED]) == GRPC_CALL_OK)
        return;
    s->awaits = false;
    free_call(c);
}

static size_t add_begin(rpc_call *c, grpc_op *ops) {
    if (c->begun) return 0;
    c->begun = true;
    ops[0] = (grpc_op){.op = GRPC_OP_SEND_INITIAL_METADATA};
    return 1;
}

static size_t add_message(rpc_call *c, grpc_op *op, const uint8_t *data, size_t bytes) {
    if (c->outgoing) grpc_core.grpc_byte_buffer_destroy(c->outgoing);
    grpc_slice slice = grpc_core.grpc_slice_from_copied_buffer((const char *)data, bytes);
    c->outgoing = grpc_core.grpc_raw_byte_buffer_create(&slice, 1);
    grpc_core.grpc_slice_unref(slice);
    *op = (grpc_op){.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = c->outgoing};
    return 1;
}

void rpc_call_send(rpc_call *call, const uint8_t *data, size_t bytes) {
    grpc_op ops[2];
    size_t n = add_begin(call, ops);
    n += add_message(call, &ops[n], data, bytes);
    start_batch(call, ops, n, EVENT_SENT);
}

static void finish(rpc_call *c, rpc_code code, const char *text, const uint8_t *data, size_t bytes) {
    grpc_op ops[3];
    size_t n = add_begin(c, ops);
    if (data) n += add_message(c, &ops[n], data, bytes);
    grpc_slice details = grpc_core.grpc_slice_from_copied_string(text ? text : "");
    ops[n++] = (grpc_op){
        .op = GRPC_OP_SEND_STATUS_FROM_SERVER,
        .data.send_status_from_server = {.status = (grpc_status_code)code, .status_details = text ? &details : NULL}};
    start_batch(c, ops, n, EVENT_FINISHED);
    grpc_core.grpc_slice_unref(details);
    c->released = true;
}

void rpc_call_finish(rpc_call *call, const uint8_t *data, size_t bytes) { finish(call, RPC_OK, NULL, data, bytes); }

void rpc_call_fail(rpc_call *call, rpc_code code, const char *format, ...) {
    char text[MAX_STATUS_TEXT];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    finish(call, code, text, NULL, 0);
}

void rpc_call_abort(rpc_call *call, rpc_code code, const char *text) {
    call->released = true;
    grpc_core.grpc_call_cancel_with_status(call->call, (grpc_status_code)code, text, NULL);
}

/* --------------------------------------------------------------------------------------------------------- events */

/* The value of a header, in the caller's buffer; NULL where it is absent, longer than any that is right, or there
 * twice.
 */
static const char *find_header(const grpc_metadata_array *metadata, const char *name, char *value, size_t room) {
    const char *found = NULL;
    for (size_t i = 0; i < metadata->count; i++) {
        const grpc_metadata *m = &metadata->metadata[i];
        if (grpc_core.grpc_slice_str_cmp(m->key, name) != 0) continue;
        if (found || GRPC_SLICE_LENGTH(m->value) >= room) return NULL;
        memcpy(value, GRPC_SLICE_START_PTR(m->value), GRPC_SLICE_LENGTH(m->value));
        value[GRPC_SLICE_LENGTH(m->value)] = '\0';
        found = value;
    }
    return found;
}

static void begin_call(rpc_call *c) {
    rpc_handlers *h = &c->server->handlers;
    const grpc_op closed = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER, .data.recv_close_on_server.cancelled = &c->cancelled};
    start_batch(c, &closed, 1, EVENT_CLOSED);
    char path[256] = "", authorization[1024];
    if (GRPC_SLICE_LENGTH(c->details.method) < sizeof path)
        memcpy(path, GRPC_SLICE_START_PTR(c->details.method), GRPC_SLICE_LENGTH(c->details.method));
    c->method = h->find_method(h->user, path);
    if (!c->method) {
        rpc_call_fail(c, RPC_UNIMPLEMENTED, "this server does not have the method");
        return;
    }
    if (!h->may_call(h->user, c->method,
                     find_header(&c->metadata, "authorization", authorization, sizeof authorization))) {
        rpc_call_fail(c, RPC_UNAUTHENTICATED,
                      "the server requires a key: metadata authorization with the value Bearer KEY");
        return;
    }
    const grpc_op message = {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &c->received};
    start_batch(c, &message, 1, EVENT_RECEIVED);
}

static void handle_request(rpc_call *c, bool success) {
    if (c->released) return;
    if (!success || !c->received) {
        /* What could not be read has ended the call: EVENT_CLOSED says so. */
        if (success) rpc_call_fail(c, RPC_INVALID_ARGUMENT, "the call has no request message");
        return;
    }
    grpc_byte_buffer_reader reader;
    if (!grpc_core.grpc_byte_buffer_reader_init(&reader, c->received)) {
        rpc_call_fail(c, RPC_INVALID_ARGUMENT, "the request cannot be decompressed");
        return;
    }
    grpc_slice whole = grpc_core.grpc_byte_buffer_reader_readall(&reader);
    grpc_core.grpc_byte_buffer_reader_destroy(&reader);
    grpc_core.grpc_byte_buffer_destroy(c->received);
    c->received = NULL;
    rpc_handlers *h = &c->server->handlers;
    h->on_request(h->user, c, c->method, GRPC_SLICE_START_PTR(whole), GRPC_SLICE_LENGTH(whole));
    grpc_core.grpc_slice_unref(whole);
}

static void handle_closed(rpc_call *c) {
    if (!c->cancelled || c->released) return;
    c->released = true;
    rpc_handlers *h = &c->server->handlers;
    if (c->method) h->on_gone(h->user, c, c->method);
}

/* One completion of a call. The last one frees it. */
static void handle_call(rpc_call *c, event_kind kind, bool success) {
    rpc_server *s = c->server;
    if (kind == EVENT_ARRIVED) {
        s->awaits = false;
        if (!success) { /* the server stops */
            free_call(c);
            return;
        }
        await_call(s);
        begin_call(c);
    } else {
        c->pending--;
    }
    if (kind == EVENT_RECEIVED) handle_request(c, success);
    if (kind == EVENT_CLOSED) handle_closed(c);
    if (kind == EVENT_SENT && success && !c->released) s->handlers.on_sent(s->handlers.user, c, c->method);
    if (c->pending == 0) free_call(c);
}

/* At least twice a second, however many completions there are. */
static void tick(rpc_server *s) {
    const double now = clock_seconds();
    if (now < s->next_tick) return;
    s->next_tick = now + TICK_SECONDS;
    s->handlers.on_wake(s->handlers.user);
    if (!atomic_load(&s->stopping)) {
        if (!s->awaits) await_call(s);
    } else if (s->cancel_at == 0) {
        s->cancel_at = now + GRACE_SECONDS;
    } else if (now > s->cancel_at) {
        grpc_core.grpc_server_cancel_all_calls(s->server);
    }
}

static void handle_event(rpc_server *s, const event_tag *tag, bool success) {
    if (tag->kind == EVENT_WAKE) {
        if (!s->quiet) atomic_store(&s->woken, false);
        s->handlers.on_wake(s->handlers.user);
    } else if (tag->kind == EVENT_STOPPED) {
        s->quiet = true;
        atomic_store(&s->woken, true); /* nobody puts anything into the queue any more */
        grpc_core.grpc_completion_queue_shutdown(s->queue);
    } else {
        handle_call(tag->call, tag->kind, success);
    }
}

static void *serve(void *user) {
    rpc_server *s = user;
    for (;;) {
        gpr_timespec wait = grpc_core.gpr_time_from_millis((int64_t)(TICK_SECONDS * 1e3), GPR_TIMESPAN);
        grpc_event event = grpc_core.grpc_completion_queue_next(
            s->queue, grpc_core.gpr_time_add(grpc_core.gpr_now(GPR_CLOCK_MONOTONIC), wait), NULL);
        if (event.type == GRPC_QUEUE_SHUTDOWN) return NULL;
        if (event.type == GRPC_OP_COMPLETE) handle_event(s, event.tag, event.success != 0);
        tick(s);
    }
}

void rpc_server_wake(rpc_server *s) {
    if (!atomic_exchange(&s->woken, true)) grpc_core.grpc_call_start_batch(s->waker, NULL, 0, &s->wake, NULL);
}

/* -------------------------------------------------------------------------------------------------- start and end */

static void log_nothing(gpr_log_func_args *arguments) { (void)arguments; }

/* "HOST:PORT" or "[HOST]:PORT". */
static bool split_address(const char *address, char host[256], int *port) {
    const char *colon = strrchr(address, ':');
    if (!colon || colon == address || !colon[1]) return false;
    char *end;
    long number = strtol(colon + 1, &end, 10);
    size_t length = (size_t)(colon - address);
    if (*end || number < 0 || number > 65535 || length >= 256) return false;
    if (address[0] == '[' && address[length - 1] == ']') address++, length -= 2;
    memcpy(host, address, length);
    host[length] = '\0';
    *port = (int)number;
    return true;
}

/* Whether the address can be bound, since the core does not say why it cannot. 0, or an errno value. *loopback: whether
 * only this machine reaches it. */
static int try_address(const char *host, int port, bool *loopback, const char **reason) {
    char service[8];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found = NULL;
    snprintf(service, sizeof service, "%d", port);
    int failure = getaddrinfo(host, service, &hints, &found);
    if (failure) {
        *reason = gai_strerror(failure);
        return EADDRNOTAVAIL;
    }
    *loopback = address_is_loopback(found->ai_addr);
    int result = 0, one = 1;
    int probe = platform_socket(found->ai_family, SOCK_STREAM, 0);
    if (probe < 0 || setsockopt(probe, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
        bind(probe, found->ai_addr, found->ai_addrlen) != 0 || listen(probe, 1) != 0)
        result = errno;
    if (probe >= 0) close(probe);
    freeaddrinfo(found);
    *reason = strerror(result);
    return result;
}

static kakeya_status make_credentials(const rpc_server_options *o, grpc_server_credentials **out, kakeya_error *error) {
    *out = NULL;
    if (!o->tls_certificate != !o->tls_key)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "TLS needs both a certificate and a key");
    if (!o->tls_certificate) {
        *out = grpc_core.grpc_insecure_server_credentials_create();
        return KAKEYA_OK;
    }
    char *certificate = NULL, *key = NULL;
    size_t bytes;
    kakeya_status status = file_read_text(o->tls_certificate, MAX_PEM_BYTES, &certificate, &bytes, error);
    if (status == KAKEYA_OK) status = file_read_text(o->tls_key, MAX_PEM_BYTES, &key, &bytes, error);
    if (status == KAKEYA_OK) {
        grpc_ssl_pem_key_cert_pair pair = {.private_key = key, .cert_chain = certificate};
        *out = grpc_core.grpc_ssl_server_credentials_create_ex(NULL, &pair, 1, GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
                                                               NULL);
        if (!*out) status = error_set(error, KAKEYA_FORMAT, "%s: no certificate", o->tls_certificate);
    }
    free(certificate);
    free(key);
    return status;
}

static int add_port(rpc_server *s, const char *host, int port, grpc_server_credentials *credentials) {
    char address[300];
    snprintf(address, sizeof address, strchr(host, ':') ? "[%s]:%d" : "%s:%d", host, port);
    int bound = grpc_core.grpc_server_add_http2_port(s->server, address, credentials);
    if (bound > 0 && !s->address[0])
        snprintf(s->address, sizeof s->address, strchr(host, ':') ? "[%s]:%d" : "%s:%d", host, bound);
    return bound;
}

static kakeya_status listen_on(rpc_server *s, const rpc_server_options *o, kakeya_error *error) {
    char host[256];
    const char *reason;
    int port;
    if (!split_address(o->address, host, &port))
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "gRPC address '%s' is not HOST:PORT", o->address);
    bool both = strcmp(host, "127.0.0.1") == 0 || strcmp(host, "localhost") == 0;
    if (both) strcpy(host, "127.0.0.1");
    bool loopback = false;
    if (try_address(host, port, &loopback, &reason) != 0)
        return error_set(error, KAKEYA_IO, "gRPC cannot listen on %s: %s", o->address, reason);
    if (o->loopback_only && !loopback)
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "--grpc %s: other machines can reach it, and no key is required; give --api-key or "
                         "--api-key-file, or --no-key to allow everybody",
                         o->address);
    grpc_server_credentials *credentials;
    kakeya_status status = make_credentials(o, &credentials, error);
    if (status != KAKEYA_OK) return status;
    int bound = add_port(s, host, port, credentials);
    if (bound > 0 && both && try_address("::1", bound, &loopback, &reason) == 0) add_port(s, "::1", bound, credentials);
    grpc_core.grpc_server_credentials_release(credentials);
    if (bound > 0) return KAKEYA_OK;
    return error_set(error, KAKEYA_IO, "gRPC cannot listen on %s%s", o->address,
                     o->tls_certificate ? " with this certificate and key" : "");
}

static void make_server(rpc_server *s, const rpc_server_options *o) {
    static char max_connections[] = "grpc.max_allowed_incoming_connections"; /* of cores that are newer than headers */
    const double most_idle_ms = INT_MAX, idle_ms = o->idle_seconds > 0 ? o->idle_seconds * 1e3 : most_idle_ms;
    const int idle = idle_ms < most_idle_ms ? (int)idle_ms : INT_MAX;
    grpc_arg arguments[] = {
        {.type = GRPC_ARG_INTEGER, .key = GRPC_ARG_MAX_CONNECTION_IDLE_MS, .value.integer = idle},
        {.type = GRPC_ARG_INTEGER, .key = GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, .value.integer = idle},
        {.type = GRPC_ARG_INTEGER,
         .key = max_connections,
         .value.integer = o->max_connections > 0 ? o->max_connections : INT_MAX},
        {.type = GRPC_ARG_INTEGER,
         .key = GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH,
         .value.integer = (int)o->max_request_bytes},
        {.type = GRPC_ARG_INTEGER, .key = GRPC_ARG_MAX_CONCURRENT_STREAMS, .value.integer = o->max_streams},
        {.type = GRPC_ARG_INTEGER,
         .key = GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
         .value.integer = MIN_PING_SECONDS * 1000},
        {.type = GRPC_ARG_INTEGER, .key = GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, .value.integer = 1},
        /* Otherwise a second server would share the port in silence. */
        {.type = GRPC_ARG_INTEGER, .key = GRPC_ARG_ALLOW_REUSEPORT, .value.integer = 0},
    };
    const grpc_channel_args all = {.num_args = sizeof arguments / sizeof arguments[0], .args = arguments};
    s->queue = grpc_core.grpc_completion_queue_create_for_next(NULL);
    s->server = grpc_core.grpc_server_create(&all, NULL);
    grpc_core.grpc_server_register_completion_queue(s->server, s->queue, NULL);
    s->lame = grpc_core.grpc_lame_client_channel_create("waker", GRPC_STATUS_UNAVAILABLE, "never called");
    s->waker =
        grpc_core.grpc_channel_create_call(s->lame, NULL, 0, s->queue, grpc_core.grpc_slice_from_static_string("/wake"),
                                           NULL, grpc_core.gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
    s->wake.kind = EVENT_WAKE;
    s->stopped.kind = EVENT_STOPPED;
}

kakeya_status rpc_server_open(const rpc_server_options *options, rpc_server **out, kakeya_error *error) {
    *out = NULL;
    kakeya_status status = grpc_core_load(error);
    if (status != KAKEYA_OK) return status;
    rpc_server *s = calloc(1, sizeof *s);
    if (!s) return error_set(error, KAKEYA_OUT_OF_MEMORY, "gRPC server: out of memory");
    s->handlers = options->handlers;
    /* Signals are for the program's own threads, and the core starts some of its own here. */
    sigset_t all, before;
    platform_foreign_signals(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    grpc_core.gpr_set_log_function(log_nothing); /* what matters comes back as errors */
    grpc_core.grpc_init();
    make_server(s, options);
    status = listen_on(s, options, error);
    if (status == KAKEYA_OK) {
        grpc_core.grpc_server_start(s->server);
        await_call(s);
        *out = s; /* handlers may want it at once */
        int failure = platform_thread_create(&s->thread, serve, s);
        s->threaded = !failure;
        if (failure) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "gRPC server: no thread: %s", strerror(failure));
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (status != KAKEYA_OK) {
        rpc_server_close(s);
        *out = NULL;
        return status;
    }
    return KAKEYA_OK;
}

const char *rpc_server_address(const rpc_server *server) { return server->address; }

void rpc_server_stop(rpc_server *server) {
    if (!atomic_exchange(&server->stopping, true))
        grpc_core.grpc_server_shutdown_and_notify(server->server, server->queue, &server->stopped);
}

void rpc_server_close(rpc_server *server) {
    if (!server) return;
    rpc_server_stop(server);
    if (server->threaded)
        pthread_join(server->thread, NULL);
    else
        serve(server);
    grpc_core.grpc_call_unref(server->waker);
    grpc_core.grpc_channel_destroy(server->lame);
    grpc_core.grpc_server_destroy(server->server);
    grpc_core.grpc_completion_queue_destroy(server->queue);
    grpc_core.grpc_shutdown();
    free(server);
}
