/* Requests over HTTP/1.1, with or without TLS: what a program that looks at a running server, or asks it for answers,
 * needs. Waits; several threads may share a client. */
#ifndef KAKEYA_SERVE_HTTP_CLIENT_H
#define KAKEYA_SERVE_HTTP_CLIENT_H

#include "kakeya.h"
#include "serve/text.h"

typedef struct http_client http_client;

typedef struct http_client_options {
    const char *url;     /* http://HOST:PORT or https://HOST:PORT, a path in front of the server's may follow */
    const char *key;     /* sent as a bearer key; NULL: none */
    const char *ca_file; /* PEM certificates that are trusted instead of the system's; NULL: the system's */
    bool insecure;       /* whoever answers is believed */
    double seconds;      /* for a whole reply */
} http_client_options;

/* Copies what it needs; connects to nothing yet. KAKEYA_INVALID_ARGUMENT: the URL. */
kakeya_status http_client_open(const http_client_options *options, http_client **out, kakeya_error *error);
void http_client_close(http_client *client);
/* *status is the reply's, and *body (which is cleared before) its body. KAKEYA_IO: there is no reply, and the message
 * says why: it begins with the URL. */
kakeya_status http_client_get(http_client *client, const char *path, int *status, text_buffer *body,
                              kakeya_error *error);

/* Takes the next bytes of a reply's body. False: no more are wanted, and the rest is left. */
typedef bool (*http_client_take_fn)(void *user, const char *bytes, size_t n);

/* Sends a JSON body, and hands over the reply's as it comes: `take` is called by this thread, after *status is set. A
 * body that its chunks or its length say is cut off is KAKEYA_IO. */
kakeya_status http_client_post(http_client *client, const char *path, const char *json, size_t bytes, int *status,
                               http_client_take_fn take, void *user, kakeya_error *error);

#endif
