/* The boundary around grpc core: calls in, messages out, one thread. Nobody else but
 * grpc_core.h, which loads it, includes grpc/: the C interface of the core comes without a promise of stability.
 *
 * All handlers are called on the server's thread, and all functions but rpc_server_wake, rpc_server_stop and
 * rpc_server_close are for that thread. A call belongs to the handlers until they finish it or hear that it is gone;
 * afterwards they must not use it. */
#ifndef KAKEYA_SERVE_GRPC_SERVER_H
#define KAKEYA_SERVE_GRPC_SERVER_H

#include "kakeya.h"

typedef struct rpc_server rpc_server;
typedef struct rpc_call rpc_call;

/* The codes of the protocol that this server uses. */
typedef enum rpc_code {
    RPC_OK = 0,
    RPC_CANCELLED = 1,
    RPC_INVALID_ARGUMENT = 3,
    RPC_DEADLINE_EXCEEDED = 4,
    RPC_NOT_FOUND = 5,
    RPC_RESOURCE_EXHAUSTED = 8,
    RPC_ABORTED = 10,
    RPC_UNIMPLEMENTED = 12,
    RPC_INTERNAL = 13,
    RPC_UNAVAILABLE = 14,
    RPC_UNAUTHENTICATED = 16,
} rpc_code;

typedef struct rpc_handlers {
    void *user;
    /* Before the request is read: NULL refuses the method, otherwise what on_request gets as `method`. */
    const void *(*find_method)(void *user, const char *path);
    /* Whether the call may be made; authorization: the value of that header, or NULL. */
    bool (*may_call)(void *user, const void *method, const char *authorization);
    /* A whole request. */
    void (*on_request)(void *user, rpc_call *call, const void *method, const uint8_t *data, size_t bytes);
    /* The message has been taken; the next one may be sent. */
    void (*on_sent)(void *user, rpc_call *call, const void *method);
    /* The client has cancelled, is gone, or its deadline has passed. Also for calls whose request
     * never came: their state is NULL. */
    void (*on_gone)(void *user, rpc_call *call, const void *method);
    /* After rpc_server_wake, and at least twice a second. */
    void (*on_wake)(void *user);
} rpc_handlers;

typedef struct rpc_server_options {
    const char *address; /* "HOST:PORT" or "[HOST]:PORT"; port 0 chooses a free one. 127.0.0.1 and localhost take ::1
                            too, where there is IPv6 */
    const char *tls_certificate, *tls_key; /* PEM files; both or neither */
    bool loopback_only;                    /* no address is taken that others can reach */
    size_t max_request_bytes;
    int max_streams;     /* of one connection */
    int max_connections; /* 0: no limit. Cores that do not know one, as 1.51, have none but that of files */
    double idle_seconds; /* that a connection may have no call, or not have said what it speaks; 0: any time */
    rpc_handlers handlers;
} rpc_server_options;

/* Listens and answers. *out is closed with rpc_server_close. */
kakeya_status rpc_server_open(const rpc_server_options *options, rpc_server **out, kakeya_error *error);
/* HOST:PORT with the port that was chosen. */
const char *rpc_server_address(const rpc_server *server);
/* Any thread: on_wake is called soon. */
void rpc_server_wake(rpc_server *server);
/* Any thread: no more calls are taken; those that there are go on. */
void rpc_server_stop(rpc_server *server);
/* Waits for the end of the calls, cuts those that are left after a second, and frees. */
void rpc_server_close(rpc_server *server);

/* What the handlers have to do with the call; NULL at first. */
void rpc_call_set_state(rpc_call *call, void *state);
void *rpc_call_state(const rpc_call *call);
/* Sends one message; on_sent follows. One at a time. */
void rpc_call_send(rpc_call *call, const uint8_t *data, size_t bytes);
/* Ends the call well, with a last message (NULL: none). Not while a message is being sent. */
void rpc_call_finish(rpc_call *call, const uint8_t *data, size_t bytes);
/* Ends the call with an error. The text must be valid UTF-8. Behind a message that is being sent. */
void rpc_call_fail(rpc_call *call, rpc_code code, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Ends the call at once, whatever is being sent: for a client that does not read. */
void rpc_call_abort(rpc_call *call, rpc_code code, const char *text);

#endif
