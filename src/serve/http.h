/* HTTP/1.1 on one thread: listening, reading requests, writing replies and streams, deadlines. Sockets, buffers,
 * timers and TLS are libevent's; its own HTTP layer is not used, because it takes two Content-Length headers, never
 * ends a request that comes a byte a second, does not see that a client leaves while a reply is computed, and answers
 * errors in HTML. Nobody else includes event2.
 *
 * An exchange is one request and its reply. It is handed to on_head on the network thread, and must be ended exactly
 * once, by http_reply or http_stream_end, also when its client has gone. While the body is read, that is: in on_gone,
 * if the client goes, or once on_request or on_refusal has come. Functions are called on the network thread unless they
 * say otherwise; http_post leads there. */
#ifndef KAKEYA_SERVE_HTTP_H
#define KAKEYA_SERVE_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kakeya.h"
#include "serve/http_parse.h"

typedef struct http_server http_server;
typedef struct http_exchange http_exchange;

typedef struct http_options {
    const char *host;                      /* numeric address or name */
    int port;                              /* 0: a free one */
    const char *tls_certificate, *tls_key; /* PEM files; NULL: no TLS */
    bool loopback_only;                    /* no address is taken that others can reach */
    size_t max_head_bytes, max_body_bytes;
    size_t max_held_bytes;  /* of all bodies that there are, and what http_hold adds; 0: no limit */
    size_t max_connections; /* 0: no limit. Beyond it, one that is idle gives way, or the new one is refused */
    size_t max_per_address; /* connections; 0: no limit */
    bool spare_loopback;    /* that limit is not for clients on this machine, such as a proxy */
    double idle_seconds;    /* between requests */
    double receive_seconds; /* for a head; for a body too, and a second more for every 64 KiB of it */
    double send_seconds;    /* a client that takes nothing for so long is dropped */
    /* The head has come, and none of the body has been asked for. True: the body is wanted. False: it is not, and what
     * comes of it is dropped. NULL: every body is wanted. */
    bool (*on_head)(void *user, http_exchange *exchange);
    void (*on_request)(void *user, http_exchange *exchange); /* the body is complete */
    /* The body cannot be taken; why: a literal. */
    void (*on_refusal)(void *user, http_exchange *exchange, int status, const char *why);
    void (*on_tick)(void *user); /* twice a second; may be NULL */
    /* The body for a refusal that happens before there is a request; NUL-terminated JSON. */
    void (*refusal)(int status, const char *why, char *out, size_t bytes);
    void *user;
} http_options;

/* Binds, listens and starts the network thread. The options' texts need not outlive the call. */
kakeya_status http_open(const http_options *options, http_server **out, kakeya_error *error);
const char *http_url(const http_server *server);  /* "http://127.0.0.1:8080"; any thread */
bool http_is_loopback(const http_server *server); /* the bound address is; any thread */
/* New connections are refused from now on; those that wait to be accepted still are. Any thread. */
void http_stop_listening(http_server *server);
/* Ends the thread, once what was posted before has run, and closes all connections. All exchanges must have ended. */
void http_close(http_server *server);

/* What is to be done on the network thread. It lies with whoever posts it, so that posting needs no memory, until fn is
 * called: then it may be posted again, or go. */
typedef struct http_task {
    void (*fn)(void *argument);
    void *argument;
    struct http_task *next;
} http_task;
/* Calls fn(argument) on the network thread, in the order of posting. Any thread. */
void http_post(http_server *server, http_task *task, void (*fn)(void *argument), void *argument);

typedef struct http_counts {
    uint64_t connections, accepted, disconnects; /* open now; ever; clients that left before their reply ended */
    uint64_t held_bytes;                         /* of bodies, and by http_hold */
} http_counts;
http_counts http_count(const http_server *server); /* any thread */

/* --- the request: constant from on_request until the exchange ends, readable on any thread */
const http_head *http_request(const http_exchange *exchange);
const char *http_body(const http_exchange *exchange, size_t *bytes); /* a NUL stands behind it */
const char *http_peer(const http_exchange *exchange);                /* "127.0.0.1" */
double http_received(const http_exchange *exchange);                 /* clock_seconds of its last byte */
void http_set_user(http_exchange *exchange, void *user);
void *http_user(const http_exchange *exchange);
/* Counts memory that the request takes besides its body among max_held_bytes, until the exchange ends. False: there is
 * not so much left. Any thread, but one at a time. */
bool http_hold(http_exchange *exchange, size_t bytes);

/* --- the reply */
/* Before the reply begins. Values must be single lines; others are left out. */
void http_add_header(http_exchange *exchange, const char *name, const char *value);
/* A whole reply; ends the exchange. */
void http_reply(http_exchange *exchange, int status, const char *content_type, const char *body, size_t bytes);
/* A reply of unknown length. */
void http_stream_begin(http_exchange *exchange, int status, const char *content_type);
/* Any thread, but one at a time, and not together with http_stream_break or the end. */
void http_stream_write(http_exchange *exchange, const char *data, size_t bytes);
/* Whether the client has taken all that was written, so that the socket is likely to take more at once; false with TLS.
 * As http_stream_write. */
bool http_stream_is_clear(http_exchange *exchange);
/* A part of the stream is missing: the client must not take what follows for the whole. The connection ends, as if the
 * client had left; the exchange goes on. As http_stream_write. */
void http_stream_break(http_exchange *exchange);
void http_stream_end(http_exchange *exchange);     /* ends the exchange */
size_t http_unsent(const http_exchange *exchange); /* bytes that the client has not taken yet */
bool http_is_gone(const http_exchange *exchange);

/* Called once if the client goes before the exchange ends; the exchange stays, and takes replies that nobody gets. */
void http_on_gone(http_exchange *exchange, void (*fn)(void *user), void *user);
/* Called whenever the client has taken something and less than `below` bytes are left. Must not use the exchange. */
void http_on_sent(http_exchange *exchange, size_t below, void (*fn)(void *user), void *user);

#endif
