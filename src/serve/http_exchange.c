/* The life of an exchange, and the memory that is counted for it. */
#include <stdlib.h>
#include <string.h>

#include "serve/http_private.h"

http_exchange *http_exchange_open(http_connection *c, http_head *head) {
    http_exchange *x = calloc(1, sizeof *x);
    struct evbuffer *headers = x ? evbuffer_new() : NULL;
    if (!headers) {
        free(x);
        return NULL;
    }
    *x = (http_exchange){.server = c->server, .connection = c, .head = *head, .headers = headers};
    *head = (http_head){0};
    pthread_mutex_init(&x->lock, NULL);
    memcpy(x->peer, c->peer, sizeof x->peer);
    return x;
}

void http_exchange_free(http_exchange *x) {
    if (x->spill) evbuffer_free(x->spill);
    pthread_mutex_destroy(&x->lock);
    evbuffer_free(x->headers);
    http_head_free(&x->head);
    free(x->body);
    atomic_fetch_sub(&x->server->held_bytes, x->held);
    free(x);
}

bool http_hold(http_exchange *x, size_t bytes) {
    const size_t most = x->server->options.max_held_bytes;
    size_t before = atomic_fetch_add(&x->server->held_bytes, bytes);
    if (most && (before > most || bytes > most - before)) {
        atomic_fetch_sub(&x->server->held_bytes, bytes);
        return false;
    }
    x->held += bytes;
    return true;
}
