/* What the files of the HTTP layer share: the server, its connections, exchanges. */
#ifndef KAKEYA_SERVE_HTTP_PRIVATE_H
#define KAKEYA_SERVE_HTTP_PRIVATE_H

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/uio.h>

#include "serve/address.h"
#include "serve/http.h"

typedef struct ssl_ctx_st SSL_CTX;

typedef enum connection_state {
    READING_HEAD = 0,
    READING_BODY,
    ANSWERING,     /* its exchange is with whoever answers */
    SKIPPING_BODY, /* it has been answered, and nobody wanted its body */
    CLOSING,       /* what was written goes out, what comes is dropped */
} connection_state;

typedef struct http_connection {
    http_server *server;
    struct bufferevent *stream;
    int socket;           /* the stream's */
    _Atomic bool waiting; /* the output holds what the socket has not taken */
    connection_state state;
    bool head_begun;    /* READING_HEAD: bytes of a head have come */
    bool paused;        /* READING_HEAD: the next request is read when the client has taken the last replies */
    bool flushed;       /* CLOSING: everything is out, and our side is shut */
    double deadline;    /* 0: none; while the client has yet to take what was written, its progress counts instead */
    double body_since;  /* READING_BODY */
    double last_sent;   /* when the client took something last */
    size_t searched;    /* bytes of the input that hold no end of a head */
    http_chunks chunks; /* READING_BODY, SKIPPING_BODY: chunked */
    bool skips, skips_chunks; /* a body is to be skipped */
    size_t unwanted;          /* bytes of it that may come yet */
    http_exchange *exchange;  /* READING_BODY, ANSWERING */
    address_count *from;
    char peer[INET6_ADDRSTRLEN];
    struct http_connection *next, **link;
} http_connection;

struct http_exchange {
    http_server *server;
    pthread_mutex_t lock;        /* of what follows, where another thread writes */
    http_connection *connection; /* NULL: the client has gone. Changed by the network thread alone */
    struct evbuffer *spill;      /* what other threads wrote and the socket did not take; NULL: nothing */
    bool told;                   /* the network thread is to look at it, by this task */
    http_task task;
    http_head head;
    char *body; /* NULL: none */
    size_t body_bytes, body_room;
    size_t held; /* of the server's held_bytes */
    double received;
    void *user;
    char peer[INET6_ADDRSTRLEN];
    struct evbuffer *headers; /* of the reply, so far */
    bool streaming, chunked;
    bool broken; /* a part of the reply found no memory: the connection ends, and what was written with it */
    void (*on_gone)(void *user);
    void *gone_user;
    size_t sent_below;
    void (*on_sent)(void *user);
    void *sent_user;
};

struct http_server {
    http_options options;
    struct event_base *base;
    struct evconnlistener *listener;
    struct event *wake, *tick, *listen_again;
    int wake_fd[2]; /* the end that is read, the one that is written */
    SSL_CTX *tls;
    char url[96];
    bool loopback;
    pthread_t thread;
    pthread_mutex_t lock; /* of the tasks */
    http_task *first, *last;
    http_task end_of_listening, end;
    bool stopping;
    double stop_by; /* stopping: what is unsent then is lost */
    http_connection *connections;
    address_table addresses;
    size_t most_open; /* connections; 0: no limit */
    _Atomic size_t held_bytes;
    _Atomic uint64_t open, accepted, disconnects;
};

/* A certificate and its key from PEM files. */
kakeya_status http_tls_open(const char *certificate, const char *key, SSL_CTX **out, kakeya_error *error);
void http_tls_close(SSL_CTX *tls);
/* The stream of one accepted socket; NULL when out of memory. */
struct bufferevent *http_tls_accept(SSL_CTX *tls, struct event_base *base, int socket);

/* NULL: out of memory. The head is the exchange's. */
http_exchange *http_exchange_open(http_connection *connection, http_head *head);
void http_exchange_free(http_exchange *exchange);

/* A connection that a listener has accepted. Owns the socket. */
void http_connection_open(http_server *server, int socket, const struct sockaddr *address);
void http_connection_close(http_connection *connection);
/* Ends connections whose deadline has passed. */
void http_connections_check(http_server *server, double now);
/* After a reply: reads the next request, or closes once everything is out. */
void http_connection_next(http_connection *connection);
void http_connection_finish(http_connection *connection);
/* Sends what the socket takes at once, and says how many bytes that were. Nothing may wait in the output. Any thread
 * that keeps the connection from closing. */
size_t http_connection_send(const http_connection *connection, const struct iovec *parts, int n);
/* Adds what lies behind the first `sent` bytes of the parts. False: out of memory. */
bool http_add_rest(struct evbuffer *out, const struct iovec *parts, int n, size_t sent);
/* Sends what the socket takes at once and leaves the rest, behind what waits already, to the loop. False: out of
 * memory. */
bool http_connection_write(http_connection *connection, const struct iovec *parts, int n);
/* Writes a refusal of our own and closes. */
void http_connection_refuse(http_connection *connection, int status, const char *why);
/* "Bad Request" */
const char *http_reason(int status);

#endif
