#include "serve/serve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/platform.h"
#include "serve/answer.h"
#include "serve/kv_events.h"
#include "serve/lifecycle.h"
#include "serve/routes.h"
#include "serve/rpc.h"

enum { MAX_HEAD = 64 << 10, MAX_BODY = 32 << 20, MAX_PER_ADDRESS = 1024, SPARE_WORKERS = 8 };

static bool on_head(void *user, http_exchange *exchange) { return call_head(user, exchange); }

static void on_request(void *user, http_exchange *exchange) {
    (void)user;
    call_begin(exchange);
}

static void on_refusal(void *user, http_exchange *exchange, int status, const char *why) {
    (void)user;
    call_refuse(exchange, status, why);
}

static void on_tick(void *user) {
    server_context *s = user;
    double now = clock_seconds();
    answers_tick(user, now);
    answers_expire(user, now);
    lifecycle_tick(s->lifecycle, now);
}

static void refusal(int status, const char *why, char *out, size_t bytes) {
    api_error error = {0};
    text_buffer body = {0};
    api_fail(&error, status, api_code(status), NULL, "%s", why);
    api_error_openai(&error, &body);
    snprintf(out, bytes, "%s", body.data ? body.data : "");
    text_free(&body);
}

static kakeya_status open_http(server_context *s, kakeya_error *error) {
    const serve_settings *settings = s->settings;
    const http_options http = {.host = settings->host,
                               .port = settings->port,
                               .tls_certificate = settings->tls_certificate,
                               .tls_key = settings->tls_key,
                               .loopback_only = !settings->no_key && !auth_needs_key(s->auth),
                               .max_head_bytes = MAX_HEAD,
                               .max_body_bytes = MAX_BODY,
                               .max_held_bytes = settings->max_bodies_bytes,
                               .max_connections = (size_t)settings->max_connections,
                               .max_per_address =
                                   settings->max_per_address ? (size_t)settings->max_per_address : MAX_PER_ADDRESS,
                               .spare_loopback = settings->max_per_address == 0,
                               .idle_seconds = settings->keep_alive_seconds,
                               .receive_seconds = 20,
                               .send_seconds = 60,
                               .on_head = on_head,
                               .on_request = on_request,
                               .on_refusal = on_refusal,
                               .on_tick = on_tick,
                               .refusal = refusal,
                               .user = s};
    return http_open(&http, &s->http, error);
}

kakeya_status serve_start(const serve_settings *settings, server_context **out, kakeya_error *error) {
    *out = NULL;
    server_context *s = calloc(1, sizeof *s);
    if (!s) return error_set(error, KAKEYA_OUT_OF_MEMORY, "server: out of memory");
    s->settings = settings;
    s->routes = serve_routes;
    s->n_routes = serve_n_routes;
    s->started = clock_seconds();
    s->created = (long long)time(NULL);
    pthread_mutex_init(&s->answers_lock, NULL);
    size_t running = (size_t)settings->engine.max_batch;
    size_t waiting = settings->max_queue ? (size_t)settings->max_queue : 4 * running < 64 ? 64 : 4 * running;
    s->admission = admission_open(running, waiting);
    s->responses = response_store_open(RESPONSE_STORE_ENTRIES, RESPONSE_STORE_BYTES, RESPONSE_STORE_SECONDS);
    kakeya_status status = auth_open(&settings->auth, &s->auth, error);
    if (status == KAKEYA_OK && (!s->admission || !s->responses))
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "server: out of memory");
    if (status == KAKEYA_OK && !reasoning_seal_init(&s->seal))
        status = error_set(error, KAKEYA_IO, "the system has no random numbers");
    s->grammars = grammar_cache_open(GRAMMAR_CACHE_ENTRIES, GRAMMAR_CACHE_BYTES);
    if (status == KAKEYA_OK && !s->grammars) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "server: out of memory");
    s->lifecycle = lifecycle_open(s);
    s->model_wanted = lifecycle_wake;
    s->model_used = lifecycle_touch;
    s->model_failed = answers_fail;
    if (status == KAKEYA_OK && !s->lifecycle) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "server: out of memory");
    if (status == KAKEYA_OK) status = workers_open(running + SPARE_WORKERS, waiting, &s->workers, error);
    if (status == KAKEYA_OK) status = open_http(s, error);
    if (status == KAKEYA_OK) status = rpc_open(s, error);
    if (status == KAKEYA_OK && settings->kv_events) /* while the model is loaded, subscribers find the address */
        status = kv_events_open(settings->kv_events, settings->kv_events_topic, settings->kv_events_replay,
                                &s->kv_events, error);
    if (status == KAKEYA_OK) status = lifecycle_begin(s->lifecycle, error);
    if (status != KAKEYA_OK) {
        serve_stop(s);
        return status;
    }
    *out = s;
    return KAKEYA_OK;
}

const char *serve_url(const server_context *s) { return http_url(s->http); }

const char *serve_grpc(const server_context *s) { return rpc_address(s); }

const char *serve_kv_events(const server_context *s) { return s->kv_events ? kv_events_address(s->kv_events) : NULL; }

const char *serve_kv_events_replay(const server_context *s) {
    return s->kv_events ? kv_events_replay_address(s->kv_events) : NULL;
}

int serve_wait(server_context *s, const sigset_t *wanted, kakeya_error *error) {
    for (;;) {
        int number = platform_wait_signal(wanted, 100);
        if (number > 0) return number;
        if (lifecycle_failed(s->lifecycle, error)) return 0;
    }
}

kakeya_status serve_reload_keys(server_context *s, kakeya_error *error) { return auth_reload(s->auth, error); }

void serve_drain(server_context *s) {
    atomic_store(&s->state, SERVER_DRAINING);
    lifecycle_stop(s->lifecycle);
    http_stop_listening(s->http);
    rpc_drain(s);
    admission_close(s->admission);
    const struct timespec moment = {.tv_nsec = 10000000};
    double until = clock_seconds() + s->settings->drain_seconds;
    while ((atomic_load(&s->calls) || rpc_is_running(s)) && clock_seconds() < until) nanosleep(&moment, NULL);
    answers_stop(s);
    while (atomic_load(&s->calls)) nanosleep(&moment, NULL);
}

void serve_stop(server_context *s) {
    atomic_store(&s->state, SERVER_DRAINING);
    lifecycle_stop(s->lifecycle);
    lifecycle_join(s->lifecycle);
    rpc_close(s);
    workers_close(s->workers);
    http_close(s->http);
    lifecycle_close(s->lifecycle);
    kv_blocks_clear(kv_events_blocks(s->kv_events), true);
    store_close(s->store, s->settings->save_seconds);
    kv_events_close(s->kv_events);
    turn_memory_close(s->turns);
    free(s->model.chat_template);
    grammar_cache_close(s->grammars);
    kakeya_engine_close(s->engine);
    auth_close(s->auth);
    admission_free(s->admission);
    response_store_close(s->responses);
    pthread_mutex_destroy(&s->answers_lock);
    free(s);
}
