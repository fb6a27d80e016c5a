/* One connection: reads requests, one at a time, and keeps their deadlines. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "serve/http_private.h"

enum { LINGER_SECONDS = 2, BODY_BYTES_PER_SECOND = 65536, FIRST_BODY_ROOM = 65536 };

const char *http_reason(int status) {
    static const struct {
        int status;
        const char *reason;
    } reasons[] = {{200, "OK"},
                   {204, "No Content"},
                   {400, "Bad Request"},
                   {401, "Unauthorized"},
                   {403, "Forbidden"},
                   {404, "Not Found"},
                   {405, "Method Not Allowed"},
                   {413, "Content Too Large"},
                   {415, "Unsupported Media Type"},
                   {429, "Too Many Requests"},
                   {500, "Internal Server Error"},
                   {503, "Service Unavailable"},
                   {529, "Overloaded"}};
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (reasons[i].status == status) return reasons[i].reason;
    return "Unknown";
}

static void drop_request(http_connection *c) {
    http_head_free(&c->head);
    free(c->body);
    c->body = NULL;
    c->body_bytes = c->body_room = 0;
    c->chunks = (http_chunks){0};
}

void http_connection_close(http_connection *c) {
    http_exchange *x = c->exchange;
    if (x) {
        pthread_mutex_lock(&x->lock);
        x->connection = NULL;
        pthread_mutex_unlock(&x->lock);
        atomic_fetch_add_explicit(&c->server->disconnects, 1, memory_order_relaxed);
    }
    *c->link = c->next;
    if (c->next) c->next->link = c->link;
    atomic_fetch_sub_explicit(&c->server->open, 1, memory_order_relaxed);
    bufferevent_free(c->stream);
    drop_request(c);
    free(c);
    if (x && x->on_gone) x->on_gone(x->gone_user);
}

/* What was written goes out before the connection ends. Closing at once would make the kernel reset a connection whose
 * client still sends, and the client might never read why. */
void http_connection_finish(http_connection *c) {
    c->state = CLOSING;
    c->deadline = clock_seconds() + LINGER_SECONDS; /* counts once everything is out */
    struct evbuffer *input = bufferevent_get_input(c->stream);
    evbuffer_drain(input, evbuffer_get_length(input));
    bufferevent_enable(c->stream, EV_READ | EV_WRITE);
    if (evbuffer_get_length(bufferevent_get_output(c->stream)) == 0) {
        c->flushed = true;
        shutdown(bufferevent_getfd(c->stream), SHUT_WR);
    }
}

void http_connection_refuse(http_connection *c, int status, const char *why) {
    char body[512];
    c->server->options.refusal(status, why, body, sizeof body);
    evbuffer_add_printf(bufferevent_get_output(c->stream),
                        "HTTP/1.1 %d %s\r\nserver: kakeya/%s\r\ncontent-type: application/json\r\n"
                        "cache-control: no-store\r\nx-content-type-options: nosniff\r\n"
                        "content-length: %zu\r\nconnection: close\r\n\r\n%s",
                        status, http_reason(status), kakeya_version(), strlen(body), body);
    drop_request(c);
    http_connection_finish(c); /* also where there was no memory for the words */
}

/* The request is whole: an exchange begins. */
static void begin_exchange(http_connection *c) {
    http_exchange *x = calloc(1, sizeof *x);
    struct evbuffer *headers = x ? evbuffer_new() : NULL;
    if (!headers) {
        free(x);
        http_connection_refuse(c, 500, "out of memory");
        return;
    }
    *x = (http_exchange){.server = c->server,
                         .connection = c,
                         .head = c->head,
                         .body = c->body,
                         .body_bytes = c->body_bytes,
                         .received = clock_seconds(),
                         .headers = headers};
    pthread_mutex_init(&x->lock, NULL);
    memcpy(x->peer, c->peer, sizeof x->peer);
    c->head = (http_head){0};
    c->body = NULL;
    c->body_bytes = c->body_room = 0;
    c->chunks = (http_chunks){0};
    c->exchange = x;
    c->state = ANSWERING;
    c->deadline = 0;
    c->last_sent = clock_seconds();
    c->server->options.on_request(c->server->options.user, x);
}

static bool body_add(http_connection *c, const char *data, size_t bytes) {
    if (c->body_bytes + bytes + 1 > c->body_room) {
        size_t room = c->body_room ? c->body_room * 2 : FIRST_BODY_ROOM;
        if (room < c->body_bytes + bytes + 1) room = c->body_bytes + bytes + 1;
        char *grown = realloc(c->body, room);
        if (!grown) return false;
        c->body = grown;
        c->body_room = room;
    }
    if (bytes) memcpy(c->body + c->body_bytes, data, bytes);
    c->body_bytes += bytes;
    c->body[c->body_bytes] = '\0';
    return true;
}

/* Takes what has come of the body. Returns whether the connection may be looked at again: its state has changed. */
static bool read_body(http_connection *c) {
    struct evbuffer *input = bufferevent_get_input(c->stream);
    size_t limit = c->server->options.max_body_bytes;
    for (;;) {
        bool complete = c->head.chunked ? c->chunks.done : c->body_bytes == c->head.content_length;
        if (complete) {
            begin_exchange(c);
            return false;
        }
        struct evbuffer_iovec piece;
        if (evbuffer_peek(input, -1, NULL, &piece, 1) < 1 || piece.iov_len == 0) break;
        size_t consumed = 0, bytes = 0;
        const char *data = NULL;
        if (c->head.chunked) {
            if (!http_chunks_feed(&c->chunks, piece.iov_base, piece.iov_len, &consumed, &data, &bytes)) {
                http_connection_refuse(c, 400, "malformed chunked body");
                return false;
            }
        } else {
            size_t left = (size_t)(c->head.content_length - c->body_bytes);
            data = piece.iov_base;
            consumed = bytes = piece.iov_len < left ? piece.iov_len : left;
        }
        if (c->body_bytes + bytes > limit) {
            http_connection_refuse(c, 413, "the body is too large");
            return false;
        }
        if (!body_add(c, data, bytes)) {
            http_connection_refuse(c, 500, "out of memory");
            return false;
        }
        evbuffer_drain(input, consumed);
    }
    c->deadline =
        c->body_since + c->server->options.receive_seconds + (double)c->body_bytes / (double)BODY_BYTES_PER_SECOND;
    return false;
}

static void begin_body(http_connection *c) {
    c->state = READING_BODY;
    c->head_begun = false;
    c->body_since = clock_seconds();
    c->deadline = c->body_since + c->server->options.receive_seconds;
    if (c->head.has_length && c->head.content_length > c->server->options.max_body_bytes) {
        http_connection_refuse(c, 413, "the body is too large");
        return;
    }
    if (!body_add(c, "", 0)) {
        http_connection_refuse(c, 500, "out of memory");
        return;
    }
    if (c->head.expects_continue && c->head.minor == 1 && (c->head.chunked || c->head.content_length))
        evbuffer_add_printf(bufferevent_get_output(c->stream), "HTTP/1.1 100 Continue\r\n\r\n");
    if (!c->head.chunked && !c->head.has_length) c->head.content_length = 0;
    read_body(c);
}

static void read_head(http_connection *c) {
    struct evbuffer *input = bufferevent_get_input(c->stream);
    /* Empty lines before a request are to be ignored; a few, not a stream of them. */
    char line[2];
    for (int i = 0; i < 4 && evbuffer_copyout(input, line, 2) == 2 && memcmp(line, "\r\n", 2) == 0; i++) {
        evbuffer_drain(input, 2);
        c->searched -= c->searched < 2 ? c->searched : 2;
    }
    size_t have = evbuffer_get_length(input);
    if (have == 0) return;
    if (!c->head_begun) c->deadline = clock_seconds() + c->server->options.receive_seconds;
    c->head_begun = true;
    struct evbuffer_ptr from;
    evbuffer_ptr_set(input, &from, c->searched > 3 ? c->searched - 3 : 0, EVBUFFER_PTR_SET);
    struct evbuffer_ptr end = evbuffer_search(input, "\r\n\r\n", 4, &from);
    size_t limit = c->server->options.max_head_bytes;
    if (end.pos < 0) {
        c->searched = have;
        if (have > limit) http_connection_refuse(c, 400, "the head is too large");
        return;
    }
    size_t bytes = (size_t)end.pos + 4;
    if (bytes > limit) {
        http_connection_refuse(c, 400, "the head is too large");
        return;
    }
    const char *why = "out of memory", *head = (const char *)evbuffer_pullup(input, (ev_ssize_t)bytes);
    int status = head ? http_head_parse(head, bytes, &c->head, &why) : 500;
    c->searched = 0;
    evbuffer_drain(input, bytes);
    if (status) {
        http_connection_refuse(c, status, why);
        return;
    }
    begin_body(c);
}

/* A request that no head can begin with, such as a TLS greeting, is refused at its first line, not at a deadline. */
static bool is_foreign(struct evbuffer *input) {
    char first;
    if (evbuffer_copyout(input, &first, 1) != 1) return false;
    return first != '\r' && (first < 'A' || first > 'Z') && (first < 'a' || first > 'z');
}

bool http_add_rest(struct evbuffer *out, const struct iovec *parts, int n, size_t sent) {
    for (int i = 0; i < n; i++) {
        size_t skipped = sent < parts[i].iov_len ? sent : parts[i].iov_len;
        sent -= skipped;
        if (skipped < parts[i].iov_len &&
            evbuffer_add(out, (const char *)parts[i].iov_base + skipped, parts[i].iov_len - skipped) != 0)
            return false;
    }
    return true;
}

/* Libevent would ask the kernel whether the socket takes anything, write, and take the question back: three calls
 * for every token. A failure to send is left to its own attempt, which ends the connection. */
size_t http_connection_send(const http_connection *c, const struct iovec *parts, int n) {
    struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)parts};
    message.msg_iovlen += (unsigned)n; /* of another type on macOS */
    ssize_t taken = sendmsg(c->socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    return taken > 0 ? (size_t)taken : 0;
}

bool http_connection_write(http_connection *c, const struct iovec *parts, int n) {
    struct evbuffer *output = bufferevent_get_output(c->stream);
    bool direct = !c->server->tls && evbuffer_get_length(output) == 0;
    return http_add_rest(output, parts, n, direct ? http_connection_send(c, parts, n) : 0);
}

static void on_read(struct bufferevent *stream, void *user) {
    http_connection *c = user;
    struct evbuffer *input = bufferevent_get_input(stream);
    if (c->state == CLOSING) {
        evbuffer_drain(input, evbuffer_get_length(input));
    } else if (c->state == READING_HEAD) {
        if (is_foreign(input)) {
            http_connection_refuse(c, 400, "this is not HTTP/1.1");
        } else {
            read_head(c);
        }
    } else if (c->state == READING_BODY) {
        read_body(c);
    } else if (evbuffer_get_length(input) > c->server->options.max_head_bytes) {
        bufferevent_disable(stream, EV_READ); /* what has come waits; not more of it than this. Not libevent's
                                               * watermark: it crashes where there is no memory for it */
    }
}

static void on_written(struct bufferevent *stream, void *user) {
    http_connection *c = user;
    if (c->state != CLOSING || c->flushed || evbuffer_get_length(bufferevent_get_output(stream))) return;
    c->flushed = true;
    c->deadline = clock_seconds() + LINGER_SECONDS;
    shutdown(bufferevent_getfd(stream), SHUT_WR);
}

static void on_event(struct bufferevent *stream, short what, void *user) {
    (void)stream;
    if (what & (BEV_EVENT_EOF | BEV_EVENT_ERROR)) http_connection_close(user);
}

static void on_output(struct evbuffer *output, const struct evbuffer_cb_info *info, void *user) {
    http_connection *c = user;
    atomic_store(&c->waiting, evbuffer_get_length(output) > 0);
    if (info->orig_size == 0) c->last_sent = clock_seconds(); /* nothing has been waiting for the client until now */
    if (info->n_deleted == 0) return;
    c->last_sent = clock_seconds();
    /* The time without a request begins when the client has the last reply. */
    if (c->state == READING_HEAD && !c->head_begun) c->deadline = c->last_sent + c->server->options.idle_seconds;
    http_exchange *x = c->exchange;
    if (x && x->on_sent && evbuffer_get_length(output) < x->sent_below) x->on_sent(x->sent_user);
}

void http_connection_open(http_server *server, int socket, const struct sockaddr *address) {
    http_connection *c = calloc(1, sizeof *c);
    struct bufferevent *stream = NULL;
    if (c) {
        stream = server->tls ? http_tls_accept(server->tls, server->base, socket)
                             : bufferevent_socket_new(server->base, socket, BEV_OPT_CLOSE_ON_FREE);
    }
    if (!stream) {
        free(c);
        evutil_closesocket(socket);
        return;
    }
    /* Small writes go out at once: an event that waited for the client to confirm the one before it would be late by
     * the 40 ms for which clients put that off. */
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    c->server = server;
    c->stream = stream;
    c->socket = socket;
    c->deadline = clock_seconds() + server->options.idle_seconds;
    c->link = &server->connections;
    c->next = server->connections;
    if (c->next) c->next->link = &c->next;
    server->connections = c;
    const void *ip = address->sa_family == AF_INET6 ? (const void *)&((const struct sockaddr_in6 *)address)->sin6_addr
                                                    : (const void *)&((const struct sockaddr_in *)address)->sin_addr;
    if (!inet_ntop(address->sa_family, ip, c->peer, sizeof c->peer)) c->peer[0] = '\0';
    atomic_fetch_add_explicit(&server->open, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&server->accepted, 1, memory_order_relaxed);
    bool watched = evbuffer_add_cb(bufferevent_get_output(stream), on_output, c) != NULL;
    bufferevent_setcb(stream, on_read, on_written, on_event, c);
    if (!watched || bufferevent_enable(stream, EV_READ | EV_WRITE) != 0) http_connection_close(c);
}

void http_connection_next(http_connection *c) {
    c->exchange = NULL;
    c->state = READING_HEAD;
    c->searched = 0;
    c->head_begun = false;
    c->deadline = clock_seconds() + c->server->options.idle_seconds;
    if (bufferevent_enable(c->stream, EV_READ) != 0) {
        http_connection_close(c);
        return;
    }
    /* A request that has come already is read on the loop's next turn, so that replies do not nest. */
    if (evbuffer_get_length(bufferevent_get_input(c->stream)))
        bufferevent_trigger(c->stream, EV_READ, BEV_TRIG_IGNORE_WATERMARKS | BEV_TRIG_DEFER_CALLBACKS);
}

/* Whether it is the client's turn to take what was written: then only its standing still ends the connection. */
static bool is_sending(const http_connection *c) {
    bool reply =
        c->state == ANSWERING || (c->state == CLOSING && !c->flushed) || (c->state == READING_HEAD && !c->head_begun);
    return reply && evbuffer_get_length(bufferevent_get_output(c->stream)) > 0;
}

void http_connections_check(http_server *server, double now) {
    for (http_connection *c = server->connections, *next; c; c = next) {
        next = c->next;
        double deadline = is_sending(c) ? c->last_sent + server->options.send_seconds : c->deadline;
        if (deadline > 0 && now > deadline) http_connection_close(c);
    }
}
