/* One request on its way through a route: who asks, what for, and the one reply. */
#ifndef KAKEYA_SERVE_CALL_H
#define KAKEYA_SERVE_CALL_H

#include <cjson/cJSON.h>
#include <pthread.h>

#include "serve/body.h"
#include "serve/errors.h"
#include "serve/server.h"
#include "serve/text.h"
#include "text/chat_conversation.h"

typedef struct call call;

enum {
    CALL_GET = 1,
    CALL_POST = 2,
    CALL_DELETE = 4,
    ROUTE_PUBLIC = 1, /* no key is asked for */
    ROUTE_EARLY = 2,  /* answered while the model is loading, and while the server drains */
    ROUTE_WORKER = 4, /* handled on a thread of the pool, not on the network thread */
    ROUTE_PREFIX = 8, /* the path goes on behind the route's: call_rest */
    ROUTE_MODEL = 16, /* with ROUTE_WORKER: the call has the model until it ends, and its worker until it returns */
    ROUTE_FORM = 32,  /* its body is a form of multipart/form-data, not JSON */
};

typedef struct route {
    const char *path;
    int methods;
    unsigned flags;
    void (*handle)(call *c); /* must end the call, on whatever thread */
} route;

enum { CALL_ID_BYTES = 129, RANDOM_ID_BYTES = 25 };

struct call {
    server_context *server;
    http_exchange *exchange;
    const route *route;
    size_t place;     /* of the route in its table */
    const char *rest; /* of the path, behind the route's; "" without ROUTE_PREFIX */
    char id[CALL_ID_BYTES];
    unsigned long long client;      /* who asks, for fairness: a key or an address */
    cJSON *body;                    /* after call_body */
    chat_conversation conversation; /* that its body holds; texts of it may lie in the body */
    char *tools;                    /* JSON text of the tools that it offers; NULL: none */
    struct call_media *media;       /* that its body holds (media.h); NULL: none */
    int image_budget;               /* tokens, where the request says it for all pictures; 0: it does not */
    text_buffer ignored;            /* names of fields that had no effect */
    text_buffer log;                /* what the log line says besides */
    _Atomic bool gone;              /* the client has left */
    bool has_model;                 /* ROUTE_MODEL, and it holds the model */
    bool begun;                     /* its body has come, or was not wanted: it is replied to */
    /* --- the reply, on its way to the network thread */
    int status;
    const char *content_type;
    text_buffer reply;
    bool streaming;
    int retry_after;
    bool never_retry;
    const char *allow; /* with 405: the methods that the path has */
    http_task task;
    worker_task work;
    /* --- what a leaving client stops */
    pthread_mutex_t lock;
    void (*cancel)(void *user);
    void *cancel_user;
};

/* Network thread. The head of a request has come: who asks, and whether what is asked can be done, is decided before
 * any of its body is taken. True: the body is to come, then call_begin. False: the call has begun already, as one that
 * is refused, or as one that has no use for a body. */
bool call_head(server_context *server, http_exchange *exchange);
/* The body has come: hands over to the route. */
void call_begin(http_exchange *exchange);
/* The body cannot be taken. why: a literal. */
void call_refuse(http_exchange *exchange, int status, const char *why);

/* Parses the body into c->body. */
bool call_body(call *c, api_error *error);
/* Counts memory that the call takes until its end, besides its body, among --max-bodies. False: *error, for later. */
bool call_hold(call *c, size_t bytes, api_error *error);

/* The value of a field of the query, as it stands there. False: there is none, or it is longer than the room. */
bool call_query(const call *c, const char *name, char *out, size_t room);
/* Whether the query has that field, and not as 0 or false. */
bool call_query_asks(const call *c, const char *name);

/* Whole replies, from any thread; each ends the call, which must not be used afterwards. */
void call_reply(call *c, int status, const char *content_type, text_buffer *body); /* takes the text_buffer */
void call_reply_json(call *c, text_buffer *body);                                  /* 200 */
void call_fail(call *c, const api_error *error);

/* Streams; network thread. */
void call_stream_begin(call *c);
/* Sends what is in the buffer and empties it. Where a part of it found no memory, the stream breaks off: no client
 * reads an answer with a hole. */
void call_stream_write(call *c, text_buffer *out);
void call_stream_end(call *c); /* ends the call */

/* fn is called once, on any thread, when the client leaves before the call ends: at once if it has left. NULL: nobody
 * is called any more once this returns. */
void call_on_cancel(call *c, void (*fn)(void *user), void *user);
/* Stops what the call computes as a leaving client would; it is replied to all the same. From any thread, before the
 * call ends. */
void call_cancel(call *c);

/* 24 characters that nobody can guess, and a NUL. */
void random_id(char out[RANDOM_ID_BYTES]);

#endif
