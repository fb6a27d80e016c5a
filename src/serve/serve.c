#include "serve/serve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "serve/routes.h"

enum { MAX_HEAD = 64 << 10, MAX_BODY = 32 << 20, MAX_WORKERS = 512 };

typedef struct running_server {
    server_context server; /* first: callers hold a pointer to it */
    pthread_t loader;
    bool loading;
    _Atomic int load_failed;
    kakeya_error load_error;
} running_server;

const char *server_model(const server_context *s, const char *name) {
    for (size_t i = 0; i < s->settings->n_names; i++)
        if (strcmp(s->settings->names[i], name) == 0) return s->settings->names[i];
    return NULL;
}

static void on_request(void *user, http_exchange *exchange) {
    call_begin(user, serve_routes, serve_n_routes, exchange);
}

static void refusal(int status, const char *why, char *out, size_t bytes) {
    api_error error = {0};
    text_buffer body = {0};
    api_fail(&error, status, status == 413 ? "request_too_large" : NULL, NULL, "%s", why);
    api_error_openai(&error, &body);
    snprintf(out, bytes, "%s", body.data ? body.data : "");
    text_free(&body);
}

static bool on_progress(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)what;
    server_context *s = user;
    if (total) atomic_store(&s->progress, (unsigned)(1000 * done / total));
    return atomic_load(&s->state) == SERVER_LOADING;
}

static void *load(void *user) {
    running_server *r = user;
    server_context *s = &r->server;
    kakeya_engine_options options = s->settings->engine;
    options.progress = on_progress;
    options.user = s;
    if (kakeya_engine_open(&options, &s->engine, &r->load_error) != KAKEYA_OK) {
        atomic_store(&r->load_failed, 1);
        return NULL;
    }
    const char *note;
    for (size_t i = 0; (note = kakeya_engine_note(s->engine, i)) != NULL; i++)
        fprintf(stderr, "kakeya serve: note: %s\n", note);
    int most = kakeya_engine_max_context(s->engine), wanted = s->settings->session.context_tokens;
    s->context = wanted && wanted < most ? wanted : most;
    int loading = SERVER_LOADING;
    if (atomic_compare_exchange_strong(&s->state, &loading, SERVER_READY))
        fprintf(stderr, "kakeya serve: ready: %s on %s\n", s->settings->names[0], kakeya_engine_backend(s->engine));
    return NULL;
}

kakeya_status serve_start(const serve_settings *settings, server_context **out, kakeya_error *error) {
    *out = NULL;
    running_server *r = calloc(1, sizeof *r);
    if (!r) return error_set(error, KAKEYA_OUT_OF_MEMORY, "server: out of memory");
    server_context *s = &r->server;
    s->settings = settings;
    s->started = clock_seconds();
    s->created = (long long)time(NULL);
    const http_options http = {.host = settings->host,
                               .port = settings->port,
                               .tls_certificate = settings->tls_certificate,
                               .tls_key = settings->tls_key,
                               .max_head_bytes = MAX_HEAD,
                               .max_body_bytes = MAX_BODY,
                               .idle_seconds = 60,
                               .receive_seconds = 20,
                               .send_seconds = 60,
                               .on_request = on_request,
                               .refusal = refusal,
                               .user = s};
    kakeya_status status = auth_open(&settings->auth, &s->auth, error);
    if (status == KAKEYA_OK) status = workers_open(MAX_WORKERS, &s->workers, error);
    if (status == KAKEYA_OK) status = http_open(&http, &s->http, error);
    if (status == KAKEYA_OK && pthread_create(&r->loader, NULL, load, r) != 0)
        status = error_set(error, KAKEYA_IO, "no thread could be started");
    r->loading = status == KAKEYA_OK;
    if (status != KAKEYA_OK) {
        serve_stop(s);
        return status;
    }
    *out = s;
    return KAKEYA_OK;
}

const char *serve_url(const server_context *s) { return http_url(s->http); }

int serve_wait(server_context *s, const sigset_t *wanted, kakeya_error *error) {
    running_server *r = (running_server *)s;
    const struct timespec moment = {.tv_nsec = 100000000};
    for (;;) {
        int number = sigtimedwait(wanted, NULL, &moment);
        if (number > 0) return number;
        if (atomic_load(&r->load_failed)) {
            *error = r->load_error;
            return 0;
        }
    }
}

kakeya_status serve_reload_keys(server_context *s, kakeya_error *error) { return auth_reload(s->auth, error); }

void serve_drain(server_context *s) {
    atomic_store(&s->state, SERVER_DRAINING);
    http_stop_listening(s->http);
    const struct timespec moment = {.tv_nsec = 10000000};
    double until = clock_seconds() + s->settings->drain_seconds;
    while (atomic_load(&s->calls) && clock_seconds() < until) nanosleep(&moment, NULL);
}

void serve_stop(server_context *s) {
    running_server *r = (running_server *)s;
    atomic_store(&s->state, SERVER_DRAINING);
    if (r->loading) pthread_join(r->loader, NULL);
    workers_close(s->workers);
    http_close(s->http);
    kakeya_engine_close(s->engine);
    auth_close(s->auth);
    free(r);
}
