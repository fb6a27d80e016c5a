/* The server of the HTTP layer, and its exchanges. */
#include "serve/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <event2/thread.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/platform.h"
#include "serve/http_private.h"

enum { BACKLOG = 1024, STOP_SECONDS = 2 };

/* The server whose network thread this is. */
static _Thread_local const http_server *served_here;

/* ------------------------------------------------------------------------------------------------------ exchanges */

const http_head *http_request(const http_exchange *x) { return &x->head; }
const char *http_body(const http_exchange *x, size_t *bytes) {
    *bytes = x->body_bytes;
    return x->body ? x->body : "";
}
void http_set_user(http_exchange *x, void *user) { x->user = user; }
void *http_user(const http_exchange *x) { return x->user; }

const char *http_peer(const http_exchange *x) { return x->peer; }
double http_received(const http_exchange *x) { return x->received; }
bool http_is_gone(const http_exchange *x) { return x->connection == NULL; }

void http_on_gone(http_exchange *x, void (*fn)(void *user), void *user) {
    x->on_gone = fn;
    x->gone_user = user;
}

void http_on_sent(http_exchange *x, size_t below, void (*fn)(void *user), void *user) {
    x->sent_below = below;
    x->on_sent = fn;
    x->sent_user = user;
}

static struct evbuffer *output_of(const http_exchange *x) { return bufferevent_get_output(x->connection->stream); }

size_t http_unsent(const http_exchange *x) { return x->connection ? evbuffer_get_length(output_of(x)) : 0; }

void http_add_header(http_exchange *x, const char *name, const char *value) {
    if (value[strcspn(value, "\r\n")]) return;
    if (evbuffer_add_printf(x->headers, "%s: %s\r\n", name, value) < 0) x->broken = true;
}

static void put(http_exchange *x, const char *data, size_t bytes) {
    if (evbuffer_add(output_of(x), data, bytes) != 0) x->broken = true;
}

__attribute__((format(printf, 2, 3))) static void put_text(http_exchange *x, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    if (evbuffer_add_vprintf(output_of(x), format, arguments) < 0) x->broken = true;
    va_end(arguments);
}

static void write_head(http_exchange *x, int status, const char *content_type) {
    char date[64];
    time_t now = time(NULL);
    struct tm utc;
    gmtime_r(&now, &utc);
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", &utc);
    put_text(x,
             "HTTP/1.1 %d %s\r\nserver: kakeya/%s\r\ndate: %s\r\ncache-control: no-store\r\n"
             "x-content-type-options: nosniff\r\n",
             status, http_reason(status), kakeya_version(), date);
    if (content_type) put_text(x, "content-type: %s\r\n", content_type);
    if (evbuffer_add_buffer(output_of(x), x->headers) != 0) x->broken = true;
    if (!x->head.keep_alive) {
        put_text(x, "connection: close\r\n");
    } else if (x->head.minor == 0) {
        put_text(x, "connection: keep-alive\r\n");
    }
}

/* The reply is complete: the exchange goes, the connection goes on or closes when everything is out. */
static void finish(http_exchange *x) {
    http_connection *c = x->connection;
    if (c) {
        c->exchange = NULL;
        if (x->broken) {
            http_connection_close(c);
        } else if (x->head.keep_alive && !x->server->stopping) {
            http_connection_next(c);
        } else {
            http_connection_finish(c);
        }
    }
    http_exchange_free(x);
}

void http_reply(http_exchange *x, int status, const char *content_type, const char *body, size_t bytes) {
    if (x->connection) {
        write_head(x, status, bytes ? content_type : NULL);
        if (status != 204) put_text(x, "content-length: %zu\r\n", bytes);
        put(x, "\r\n", 2);
        if (bytes && strcmp(x->head.method, "HEAD") != 0) put(x, body, bytes);
    }
    finish(x);
}

/* A stream with a hole must not go on: whoever computes it is told as if the client had left. */
static void check_stream(http_exchange *x) {
    if (x->broken && x->connection) http_connection_close(x->connection);
}

void http_stream_begin(http_exchange *x, int status, const char *content_type) {
    x->streaming = true;
    x->chunked = x->head.minor == 1;
    if (!x->chunked) x->head.keep_alive = false; /* the end of the connection is the end of the reply */
    if (!x->connection) return;
    write_head(x, status, content_type);
    put_text(x, "%s\r\n", x->chunked ? "transfer-encoding: chunked\r\n" : "");
    check_stream(x);
}

/* What other threads could not send goes out in front of all that follows. */
static void take_spill(http_exchange *x) {
    pthread_mutex_lock(&x->lock);
    if (x->spill && x->connection && evbuffer_add_buffer(output_of(x), x->spill) != 0) x->broken = true;
    if (x->spill) evbuffer_free(x->spill);
    x->spill = NULL;
    pthread_mutex_unlock(&x->lock);
    check_stream(x);
}

static void on_told(void *user) {
    http_exchange *x = user;
    pthread_mutex_lock(&x->lock);
    x->told = false;
    pthread_mutex_unlock(&x->lock);
    take_spill(x);
}

/* Under the lock. */
static void tell(http_exchange *x) {
    if (!x->told) http_post(x->server, &x->task, on_told, x);
    x->told = true;
}

/* On a thread that is not the network's. What is left to it is told before this exchange can end: tasks keep their
 * order, and its end is one. */
static void write_beside(http_exchange *x, const struct iovec *parts, int n) {
    size_t bytes = 0;
    for (int i = 0; i < n; i++) bytes += parts[i].iov_len;
    pthread_mutex_lock(&x->lock);
    const http_connection *c = x->connection;
    bool clear = c && !x->spill && !x->server->tls && !atomic_load(&c->waiting);
    size_t sent = clear ? http_connection_send(c, parts, n) : 0;
    bool left = c && sent < bytes;
    if (left) {
        if (!x->spill) x->spill = evbuffer_new();
        if (!x->spill || !http_add_rest(x->spill, parts, n, sent)) x->broken = true;
    }
    if (left) tell(x);
    pthread_mutex_unlock(&x->lock);
}

bool http_stream_is_clear(http_exchange *x) {
    if (x->server->tls) return false;
    pthread_mutex_lock(&x->lock);
    bool clear = x->connection && !x->spill && !atomic_load(&x->connection->waiting);
    pthread_mutex_unlock(&x->lock);
    return clear;
}

void http_stream_write(http_exchange *x, const char *data, size_t bytes) {
    if (bytes == 0) return;
    char size[24] = "", end[] = "\r\n";
    if (x->chunked) snprintf(size, sizeof size, "%zx\r\n", bytes);
    const struct iovec parts[] = {{size, strlen(size)}, {(char *)(uintptr_t)data, bytes}, {end, x->chunked ? 2 : 0}};
    const int n = sizeof parts / sizeof *parts;
    if (served_here != x->server) {
        write_beside(x, parts, n);
        return;
    }
    if (x->spill) take_spill(x);
    if (!x->connection) return;
    if (!http_connection_write(x->connection, parts, n)) x->broken = true;
    check_stream(x);
}

void http_stream_break(http_exchange *x) {
    if (served_here == x->server) {
        x->broken = true;
        check_stream(x);
        return;
    }
    pthread_mutex_lock(&x->lock);
    x->broken = true;
    tell(x);
    pthread_mutex_unlock(&x->lock);
}

void http_stream_end(http_exchange *x) {
    if (x->connection && x->chunked) put(x, "0\r\n\r\n", 5);
    finish(x);
}

/* --------------------------------------------------------------------------------------------------------- server */

static void on_accept(struct evconnlistener *listener, evutil_socket_t socket, struct sockaddr *address, int length,
                      void *user) {
    (void)listener;
    (void)length;
    http_connection_open(user, socket, address);
}

/* Most likely there are no file descriptors left: listening goes on in a moment, instead of spinning until then. */
static void on_accept_error(struct evconnlistener *listener, void *user) {
    http_server *server = user;
    evconnlistener_disable(listener);
    event_add(server->listen_again, &(struct timeval){.tv_usec = 100000});
}

static void on_listen_again(evutil_socket_t socket, short what, void *user) {
    (void)socket;
    (void)what;
    http_server *server = user;
    if (server->listener) evconnlistener_enable(server->listener);
}

static void run_tasks(http_server *server) {
    pthread_mutex_lock(&server->lock);
    http_task *task = server->first;
    server->first = server->last = NULL;
    pthread_mutex_unlock(&server->lock);
    while (task) {
        http_task *next = task->next;
        task->fn(task->argument);
        task = next;
    }
}

static void on_wake(evutil_socket_t socket, short what, void *user) {
    (void)what;
    uint64_t count; /* one read takes all that was written */
    if (read(socket, &count, sizeof count) == (ssize_t)sizeof count) run_tasks(user);
}

static void on_tick(evutil_socket_t socket, short what, void *user) {
    (void)socket;
    (void)what;
    http_server *server = user;
    http_connections_check(server, clock_seconds());
    if (server->options.on_tick) server->options.on_tick(server->options.user);
}

void http_post(http_server *server, http_task *task, void (*fn)(void *argument), void *argument) {
    *task = (http_task){.fn = fn, .argument = argument};
    pthread_mutex_lock(&server->lock);
    bool wake = server->first == NULL;
    if (server->last) {
        server->last->next = task;
    } else {
        server->first = task;
    }
    server->last = task;
    pthread_mutex_unlock(&server->lock);
    if (wake) {
        const uint64_t one = 1;
        while (write(server->wake_fd[1], &one, sizeof one) < 0 && errno == EINTR) {
        }
    }
}

/* Those who have connected are answered: with the socket that listens, the kernel would cut them off. */
static void accept_waiting(http_server *server) {
    struct sockaddr_storage address;
    for (;;) {
        socklen_t length = sizeof address;
        int socket = accept(evconnlistener_get_fd(server->listener), (struct sockaddr *)&address, &length);
        if (socket < 0 && errno == EINTR) continue;
        if (socket < 0) return;
        evutil_make_socket_nonblocking(socket);
        evutil_make_socket_closeonexec(socket);
        http_connection_open(server, socket, (struct sockaddr *)&address);
    }
}

static void stop_listening(void *user) {
    http_server *server = user;
    if (!server->listener) return;
    accept_waiting(server);
    evconnlistener_free(server->listener);
    server->listener = NULL;
}

void http_stop_listening(http_server *server) { http_post(server, &server->end_of_listening, stop_listening, server); }

/* Replies that have been written are sent before the loop ends, but nobody is waited for longer than a moment. */
static void stop_when_sent(evutil_socket_t socket, short what, void *user) {
    (void)socket;
    (void)what;
    http_server *server = user;
    bool sent = true;
    for (http_connection *c = server->connections; c && sent; c = c->next)
        sent = evbuffer_get_length(bufferevent_get_output(c->stream)) == 0;
    const struct timeval moment = {.tv_usec = 10000};
    if (sent || clock_seconds() > server->stop_by ||
        event_base_once(server->base, -1, EV_TIMEOUT, stop_when_sent, server, &moment) != 0)
        event_base_loopbreak(server->base);
}

static void stop(void *user) {
    http_server *server = user;
    server->stopping = true;
    server->stop_by = clock_seconds() + STOP_SECONDS;
    stop_when_sent(-1, 0, server);
}

static void *run(void *user) {
    http_server *server = user;
    served_here = server;
    event_base_dispatch(server->base);
    return NULL;
}

http_counts http_count(const http_server *server) {
    return (http_counts){.connections = atomic_load_explicit(&server->open, memory_order_relaxed),
                         .accepted = atomic_load_explicit(&server->accepted, memory_order_relaxed),
                         .held_bytes = atomic_load_explicit(&server->held_bytes, memory_order_relaxed),
                         .disconnects = atomic_load_explicit(&server->disconnects, memory_order_relaxed)};
}

const char *http_url(const http_server *server) { return server->url; }
bool http_is_loopback(const http_server *server) { return server->loopback; }

/* What getsockname says, as a URL. */
static void name_address(http_server *server, int socket) {
    struct sockaddr_storage address = {0};
    socklen_t length = sizeof address;
    getsockname(socket, (struct sockaddr *)&address, &length);
    server->loopback = address_is_loopback((const struct sockaddr *)&address);
    const char *scheme = server->tls ? "https" : "http";
    char text[INET6_ADDRSTRLEN] = "";
    if (address.ss_family == AF_INET6) {
        const struct sockaddr_in6 *six = (const void *)&address;
        inet_ntop(AF_INET6, &six->sin6_addr, text, sizeof text);
        snprintf(server->url, sizeof server->url, "%s://[%s]:%d", scheme, text, ntohs(six->sin6_port));
    } else {
        const struct sockaddr_in *four = (const void *)&address;
        inet_ntop(AF_INET, &four->sin_addr, text, sizeof text);
        snprintf(server->url, sizeof server->url, "%s://%s:%d", scheme, text, ntohs(four->sin_port));
    }
}

static kakeya_status listen_on(http_server *server, kakeya_error *error) {
    const http_options *o = &server->options;
    char port[16];
    snprintf(port, sizeof port, "%d", o->port);
    struct addrinfo *found = NULL;
    const struct addrinfo want = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_ADDRCONFIG};
    const struct addrinfo numeric = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICHOST};
    int problem = getaddrinfo(o->host, port, &numeric, &found);
    if (problem) problem = getaddrinfo(o->host, port, &want, &found);
    if (problem) return error_set(error, KAKEYA_IO, "--host %s: %s", o->host, gai_strerror(problem));
    bool open_to_all = o->loopback_only && !address_is_loopback(found->ai_addr);
    if (!open_to_all)
        server->listener = evconnlistener_new_bind(server->base, on_accept, server,
                                                   LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC | LEV_OPT_REUSEABLE,
                                                   BACKLOG, found->ai_addr, (int)found->ai_addrlen);
    int reason = errno;
    freeaddrinfo(found);
    if (open_to_all)
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "--host %s: other machines can reach it, and no key is required; give --api-key or "
                         "--api-key-file, or --no-key to allow everybody",
                         o->host);
    if (!server->listener)
        return error_set(error, KAKEYA_IO, "cannot listen on %s, port %d: %s", o->host, o->port, strerror(reason));
    evconnlistener_set_error_cb(server->listener, on_accept_error);
    name_address(server, evconnlistener_get_fd(server->listener));
    return KAKEYA_OK;
}

static kakeya_status start(http_server *server, kakeya_error *error) {
    const http_options *o = &server->options;
    if (o->tls_certificate) {
        kakeya_status status = http_tls_open(o->tls_certificate, o->tls_key, &server->tls, error);
        if (status != KAKEYA_OK) return status;
    }
    server->base = platform_wake_open(server->wake_fd) == 0 ? event_base_new() : NULL;
    if (server->base) {
        server->wake = event_new(server->base, server->wake_fd[0], EV_READ | EV_PERSIST, on_wake, server);
        server->tick = event_new(server->base, -1, EV_PERSIST, on_tick, server);
        server->listen_again = evtimer_new(server->base, on_listen_again, server);
    }
    if (!server->wake || !server->tick || !server->listen_again)
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory or descriptors for the network thread");
    event_add(server->wake, NULL);
    event_add(server->tick, &(struct timeval){.tv_usec = 500000});
    kakeya_status status = listen_on(server, error);
    if (status != KAKEYA_OK) return status;
    int problem = platform_thread_create(&server->thread, run, server);
    return problem ? error_set(error, KAKEYA_IO, "network thread: %s", strerror(problem)) : KAKEYA_OK;
}

static void free_server(http_server *server) {
    while (server->connections) http_connection_close(server->connections);
    stop_listening(server);
    if (server->wake) event_free(server->wake);
    if (server->tick) event_free(server->tick);
    if (server->listen_again) event_free(server->listen_again);
    if (server->base) event_base_free(server->base);
    platform_wake_close(server->wake_fd);
    http_tls_close(server->tls);
    pthread_mutex_destroy(&server->lock);
    free(server);
}

/* As many files as the system lets this process have; some stay for what is not a connection. */
static size_t most_connections(size_t wanted) {
    enum { FEW_FILES = 1024 }; /* below it, waiting for a file has to do */
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0) return wanted;
    if (files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    size_t most = (size_t)(files.rlim_cur - files.rlim_cur / 8);
    return files.rlim_cur >= FEW_FILES && wanted > most ? most : wanted;
}

kakeya_status http_open(const http_options *options, http_server **out, kakeya_error *error) {
    *out = NULL;
    evthread_use_pthreads();
    http_server *server = calloc(1, sizeof *server);
    if (!server) return error_set(error, KAKEYA_OUT_OF_MEMORY, "server: out of memory");
    server->options = *options;
    server->most_open = most_connections(options->max_connections);
    server->wake_fd[0] = server->wake_fd[1] = -1;
    pthread_mutex_init(&server->lock, NULL);
    *out = server; /* the first request may come before this function returns */
    kakeya_status status = start(server, error);
    if (status != KAKEYA_OK) {
        *out = NULL;
        free_server(server);
    }
    return status;
}

void http_close(http_server *server) {
    if (!server) return;
    http_post(server, &server->end, stop, server);
    pthread_join(server->thread, NULL);
    served_here = server;
    run_tasks(server);
    served_here = NULL;
    free_server(server);
}
