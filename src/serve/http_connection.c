/* One connection: reads requests, one at a time, and keeps their deadlines. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "serve/http_private.h"

enum {
    LINGER_SECONDS = 2,
    BODY_BYTES_PER_SECOND = 65536,
    FIRST_BODY_ROOM = 65536,
    MOST_UNWANTED = 65536, /* bytes of a body that are read to keep the connection of a request that was refused */
    MOST_UNSENT = 65536,   /* bytes of replies that the client has yet to take when its next request is read */
    TOLD_WHY = 64,         /* connections beyond the limit that hear of it; further ones are closed at once */
};

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
    if (c->from) address_leave(&c->server->addresses, c->from);
    atomic_fetch_sub_explicit(&c->server->open, 1, memory_order_relaxed);
    bufferevent_free(c->stream);
    bool held = c->state == ANSWERING;
    free(c);
    if (x && x->on_gone) {
        x->on_gone(x->gone_user);
    } else if (x && !held) {
        http_exchange_free(x);
    }
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
                        "cache-control: no-store\r\nx-content-type-options: nosniff\r\n%s"
                        "content-length: %zu\r\nconnection: close\r\n\r\n%s",
                        status, http_reason(status), kakeya_version(), status == 503 ? "retry-after: 1\r\n" : "",
                        strlen(body), body);
    http_connection_finish(c); /* also where there was no memory for the words */
}

/* -------------------------------------------------------------------------------------------------------- requests */

/* From here on the connection answers, and its exchange belongs to whoever is told of it: it may be gone when that
 * function returns. */
static http_exchange *answer_from_now_on(http_connection *c) {
    http_exchange *x = c->exchange;
    c->state = ANSWERING;
    c->deadline = 0;
    c->last_sent = x->received = clock_seconds();
    return x;
}

/* The body cannot be taken. */
static void refuse_body(http_connection *c, int status, const char *why) {
    http_exchange *x = answer_from_now_on(c);
    const http_options *o = &c->server->options;
    x->head.keep_alive = false; /* the rest of it would be read as a request */
    o->on_refusal(o->user, x, status, why);
}

/* Room doubles, but not beyond what the body can have. */
static bool body_grow(http_connection *c, size_t bytes) {
    http_exchange *x = c->exchange;
    size_t need = x->body_bytes + bytes + 1, room = x->body_room ? x->body_room * 2 : FIRST_BODY_ROOM;
    size_t most = 1 + (x->head.chunked ? c->server->options.max_body_bytes : (size_t)x->head.content_length);
    if (room > most) room = most;
    if (room < need) room = need;
    if (!http_hold(x, room - x->body_room)) {
        refuse_body(c, 503, "the bodies of all requests take too much memory");
        return false;
    }
    char *grown = realloc(x->body, room);
    if (!grown) {
        refuse_body(c, 503, "out of memory");
        return false;
    }
    x->body = grown;
    x->body_room = room;
    return true;
}

/* False: there was no room, and the request has been refused. */
static bool body_add(http_connection *c, const char *data, size_t bytes) {
    http_exchange *x = c->exchange;
    if (bytes == 0) return true;
    if (x->body_bytes + bytes + 1 > x->body_room && !body_grow(c, bytes)) return false;
    memcpy(x->body + x->body_bytes, data, bytes);
    x->body_bytes += bytes;
    x->body[x->body_bytes] = '\0';
    return true;
}

/* Takes what has come of the body. */
static void read_body(http_connection *c) {
    struct evbuffer *input = bufferevent_get_input(c->stream);
    const http_options *o = &c->server->options;
    http_exchange *x = c->exchange;
    for (;;) {
        bool complete = x->head.chunked ? c->chunks.done : x->body_bytes == x->head.content_length;
        if (complete) {
            o->on_request(o->user, answer_from_now_on(c));
            return;
        }
        struct evbuffer_iovec piece;
        if (evbuffer_peek(input, -1, NULL, &piece, 1) < 1 || piece.iov_len == 0) break;
        size_t consumed = 0, bytes = 0;
        const char *data = NULL;
        if (x->head.chunked) {
            if (!http_chunks_feed(&c->chunks, piece.iov_base, piece.iov_len, &consumed, &data, &bytes)) {
                refuse_body(c, 400, "malformed chunked body");
                return;
            }
        } else {
            size_t left = (size_t)(x->head.content_length - x->body_bytes);
            data = piece.iov_base;
            consumed = bytes = piece.iov_len < left ? piece.iov_len : left;
        }
        if (x->body_bytes + bytes > o->max_body_bytes) {
            refuse_body(c, 413, "the body is too large");
            return;
        }
        if (!body_add(c, data, bytes)) return;
        evbuffer_drain(input, consumed);
    }
    c->deadline = c->body_since + o->receive_seconds + (double)x->body_bytes / (double)BODY_BYTES_PER_SECOND;
}

/* Whoever answers says whether the body is wanted, before any of it is asked for. One that is not is dropped when it
 * comes, or, if it is large or may not come, ends with the connection. */
static void begin_request(http_connection *c, http_head *head) {
    const http_options *o = &c->server->options;
    bool expects = head->expects_continue && head->minor == 1 && (head->chunked || head->content_length);
    http_exchange *x = http_exchange_open(c, head);
    if (!x) {
        http_head_free(head);
        http_connection_refuse(c, 503, "out of memory");
        return;
    }
    c->exchange = x;
    c->head_begun = false;
    c->chunks = (http_chunks){0};
    answer_from_now_on(c);
    bool keep_alive = x->head.keep_alive;
    if (expects || x->head.content_length > MOST_UNWANTED) x->head.keep_alive = false;
    c->skips_chunks = x->head.chunked;
    c->unwanted = x->head.chunked ? MOST_UNWANTED : (size_t)x->head.content_length;
    c->skips = c->unwanted > 0;
    if (o->on_head && !o->on_head(o->user, x)) return;
    x->head.keep_alive = keep_alive;
    c->skips = false;
    if (x->head.content_length > o->max_body_bytes) {
        refuse_body(c, 413, "the body is too large");
        return;
    }
    c->state = READING_BODY;
    c->body_since = clock_seconds();
    c->deadline = c->body_since + o->receive_seconds;
    if (expects) evbuffer_add_printf(bufferevent_get_output(c->stream), "HTTP/1.1 100 Continue\r\n\r\n");
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
    http_head parsed = {0};
    const char *why = "out of memory", *head = (const char *)evbuffer_pullup(input, (ev_ssize_t)bytes);
    int status = head ? http_head_parse(head, bytes, &parsed, &why) : 500;
    c->searched = 0;
    evbuffer_drain(input, bytes);
    if (status) {
        http_connection_refuse(c, status, why);
        return;
    }
    begin_request(c, &parsed);
}

static void skip_body(http_connection *c) {
    struct evbuffer *input = bufferevent_get_input(c->stream);
    struct evbuffer_iovec piece;
    bool done = false, good = true;
    while (good && !done && c->unwanted && evbuffer_peek(input, -1, NULL, &piece, 1) >= 1 && piece.iov_len) {
        size_t n = piece.iov_len < c->unwanted ? piece.iov_len : c->unwanted, bytes;
        const char *data;
        if (c->skips_chunks) good = http_chunks_feed(&c->chunks, piece.iov_base, n, &n, &data, &bytes);
        evbuffer_drain(input, n);
        c->unwanted -= n;
        done = c->skips_chunks ? c->chunks.done : c->unwanted == 0;
    }
    if (done) {
        c->skips = false;
        http_connection_next(c);
    } else if (!good || c->unwanted == 0) {
        http_connection_finish(c);
    }
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
    } else if (c->state == SKIPPING_BODY) {
        skip_body(c);
    } else if (evbuffer_get_length(input) > c->server->options.max_head_bytes) {
        bufferevent_disable(stream, EV_READ); /* what has come waits; not more of it than this. Not libevent's
                                               * watermark: it crashes where there is no memory for it */
    }
}

static void on_written(struct bufferevent *stream, void *user) {
    http_connection *c = user;
    if (c->paused) {
        c->paused = false;
        http_connection_next(c);
        return;
    }
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

/* Of those that wait for a request, the one that has done so for longest. */
static http_connection *find_idle(const http_server *server) {
    http_connection *oldest = NULL;
    for (http_connection *c = server->connections; c; c = c->next)
        if (c->state == READING_HEAD && !c->head_begun && (!oldest || c->deadline < oldest->deadline) &&
            evbuffer_get_length(bufferevent_get_output(c->stream)) == 0)
            oldest = c;
    return oldest;
}

/* Whether there is a place for one more connection from there. `told`: how many more would hear that there is none. */
static bool has_place(http_server *server, const address_count *from, const struct sockaddr *address, bool *told) {
    const http_options *o = &server->options;
    size_t open = (size_t)atomic_load_explicit(&server->open, memory_order_relaxed);
    bool spared = o->max_per_address == 0 || (o->spare_loopback && address_is_loopback(address));
    if (!spared && from->n > o->max_per_address) {
        *told = from->n <= o->max_per_address + TOLD_WHY && (server->most_open == 0 || open < server->most_open);
        return false;
    }
    if (server->most_open == 0 || open < server->most_open) return true;
    http_connection *idle = find_idle(server);
    *told = open < server->most_open + TOLD_WHY;
    if (idle) http_connection_close(idle);
    return idle != NULL;
}

void http_connection_open(http_server *server, int socket, const struct sockaddr *address) {
    address_count *from = address_enter(&server->addresses, address);
    bool told = true, place = from && has_place(server, from, address, &told);
    if (!from || (!place && !told)) {
        if (from) address_leave(&server->addresses, from);
        evutil_closesocket(socket);
        return;
    }
    http_connection *c = calloc(1, sizeof *c);
    struct bufferevent *stream = NULL;
    if (c) {
        stream = server->tls ? http_tls_accept(server->tls, server->base, socket)
                             : bufferevent_socket_new(server->base, socket, BEV_OPT_CLOSE_ON_FREE);
    }
    if (!stream) {
        free(c);
        address_leave(&server->addresses, from);
        evutil_closesocket(socket);
        return;
    }
    /* Small writes go out at once: an event that waited for the client to confirm the one before it would be late by
     * the 40 ms for which clients put that off. */
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    c->server = server;
    c->stream = stream;
    c->socket = socket;
    c->from = from;
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
    if (!watched || bufferevent_enable(stream, EV_READ | EV_WRITE) != 0) {
        http_connection_close(c);
    } else if (!place) {
        http_connection_refuse(c, 503, "too many connections");
    }
}

void http_connection_next(http_connection *c) {
    const http_options *o = &c->server->options;
    c->exchange = NULL;
    c->state = c->skips ? SKIPPING_BODY : READING_HEAD;
    c->searched = 0;
    c->head_begun = false;
    c->deadline = clock_seconds() + (c->skips ? o->receive_seconds : o->idle_seconds);
    c->paused = !c->skips && evbuffer_get_length(bufferevent_get_output(c->stream)) > MOST_UNSENT;
    if (c->paused) {
        bufferevent_disable(c->stream, EV_READ);
        return;
    }
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
