/* Any body at every route that takes one, as far as the place where an answer would be computed: the gate is closed, so
 * a request that is right gets 503. The server is whole, but for the socket. Nothing that a client sends is a failure
 * of the server's: status 500 is a finding. The first byte chooses the route; a form's boundary is always the same.
 * Needs models/demo below the working directory. */
#include <event2/buffer.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/http_private.h"
#include "serve/routes.h"
#include "serve/serve.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
void __real_http_post(http_server *http, http_task *task, void (*fn)(void *argument), void *argument);
void __wrap_http_post(http_server *http, http_task *task, void (*fn)(void *argument), void *argument);

enum { MOST_ROUTES = 64 };

static server_context *server;
static const route *routes[MOST_ROUTES]; /* every function that takes a body, once */
static size_t places[MOST_ROUTES], n_routes;

static void open_server(void) {
    static const char *const names[] = {"m"};
    static serve_settings settings = {.host = "127.0.0.1",
                                      .names = names,
                                      .n_names = 1,
                                      .max_tool_calls = 8,
                                      .ping_seconds = 10,
                                      .keep_alive_seconds = 60,
                                      .log_json = true};
    kakeya_error error = {0};
    KAKEYA_INIT(&settings.engine);
    KAKEYA_INIT(&settings.session);
    settings.engine.model = "models/demo";
    settings.engine.threads = 1;
    settings.session.context_tokens = 4096;
    if (serve_start(&settings, &server, &error) != KAKEYA_OK) {
        fprintf(stderr, "fuzz_serve_requests: %s\n", error.message);
        abort();
    }
    while (atomic_load(&server->state) == SERVER_LOADING) sched_yield();
    admission_close(server->admission);
    for (size_t i = 0; i < serve_n_routes; i++) {
        const route *r = &serve_routes[i];
        bool known = !(r->methods & CALL_POST) || (r->flags & ROUTE_PREFIX);
        for (size_t k = 0; k < n_routes && !known; k++) known = routes[k]->handle == r->handle;
        if (known || n_routes == MOST_ROUTES) continue;
        places[n_routes] = i;
        routes[n_routes++] = r;
    }
    stderr = fopen("/dev/null", "w"); /* a line for every request; libFuzzer and the sanitizers have their own way */
    if (!stderr || n_routes == 0) abort();
}

/* What a request posts runs at once: a thread that is woken for every input would take longer than all the rest. */
static _Thread_local bool inputs_come_here;

void __wrap_http_post(http_server *http, http_task *task, void (*fn)(void *argument), void *argument) {
    if (!inputs_come_here) {
        __real_http_post(http, task, fn, argument);
        return;
    }
    fn(argument);
}

/* A request that the network layer has read, whose client has gone. */
static http_exchange *make_exchange(const route *to, const uint8_t *body, size_t bytes) {
    static const http_header form = {"content-type", "multipart/form-data; boundary=abcdefghijklmnop"};
    http_exchange *x = calloc(1, sizeof *x);
    char *copy = malloc(bytes + 1);
    if (!x || !copy) abort();
    memcpy(copy, body, bytes);
    copy[bytes] = '\0';
    *x = (http_exchange){.server = server->http,
                         .head = {.method = "POST",
                                  .path = (char *)(uintptr_t)to->path,
                                  .minor = 1,
                                  .keep_alive = true,
                                  .content_length = bytes},
                         .body = copy,
                         .body_bytes = bytes,
                         .peer = "127.0.0.1",
                         .headers = evbuffer_new()};
    if (!x->headers) abort();
    if (to->flags & ROUTE_FORM) x->head.headers[x->head.n_headers++] = form;
    return x;
}

static uint64_t failures(size_t place) {
    uint64_t n = 0;
    for (size_t i = 0; i < METRICS_STATUSES; i++) {
        int status = metrics_status(i);
        if (status == 500 || status == 0) n += server->metrics.requests[place][i];
    }
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!server) open_server();
    inputs_come_here = true;
    if (size == 0) return 0;
    size_t chosen = data[0] % n_routes;
    call *c = calloc(1, sizeof *c);
    if (!c) abort();
    c->server = server;
    c->route = routes[chosen];
    c->exchange = make_exchange(c->route, data + 1, size - 1);
    c->place = places[chosen];
    c->rest = "";
    pthread_mutex_init(&c->lock, NULL);
    c->begun = true;
    atomic_fetch_add(&server->calls, 1);
    memcpy(c->id, "req", 4);
    c->route->handle(c);
    if (atomic_load(&server->calls)) abort();
    if (failures(places[chosen])) abort();
    return 0;
}
