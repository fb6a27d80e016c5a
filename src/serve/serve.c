#include "serve/serve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "serve/answer.h"
#include "serve/routes.h"
#include "serve/rpc.h"
#include "serve/seal_file.h"

enum { MAX_HEAD = 64 << 10, MAX_BODY = 32 << 20, SPARE_WORKERS = 8, DEFAULT_BATCH = 64, MAX_NAMED_SESSIONS = 256 };

#define DEFAULT_CACHE ((size_t)8 << 30)

typedef struct running_server {
    server_context server; /* first: callers hold a pointer to it */
    pthread_t loader;
    bool loading;
    _Atomic int load_failed;
    kakeya_error load_error;
} running_server;

static void on_request(void *user, http_exchange *exchange) { call_begin(user, exchange); }

static void on_tick(void *user) {
    double now = clock_seconds();
    answers_tick(user, now);
    answers_expire(user, now);
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

static void log_line(void *user, const char *line) {
    (void)user;
    fprintf(stderr, "kakeya serve: %s\n", line);
}

static char *notes(void *user, const int32_t *ids, size_t n) {
    const server_context *s = user;
    return turn_memory_export(s->turns, ids, n);
}

static void take_notes(void *user, const char *json) {
    const server_context *s = user;
    turn_memory_import(s->turns, json);
}

size_t serve_default_cache_bytes(void) {
    size_t tenth = (size_t)sysconf(_SC_PHYS_PAGES) / 10 * (size_t)sysconf(_SC_PAGESIZE);
    return tenth < DEFAULT_CACHE ? tenth : DEFAULT_CACHE;
}

int serve_batch(const serve_settings *settings) {
    return settings->engine.max_batch > 0 ? settings->engine.max_batch : DEFAULT_BATCH;
}

/* What the model's makers recommend, where its directory says so. */
static void read_sampling(server_context *s) {
    s->sampling = (kakeya_sampling){.temperature = 1, .top_p = 1, .repetition_penalty = 1};
    const char *model = s->settings->engine.model;
    char *path = model ? path_join(model, "generation_config.json") : NULL, *text = NULL;
    size_t bytes = 0;
    cJSON *json = NULL;
    enum { MOST = 1 << 20 };
    if (path && file_read(path, MOST, &text, &bytes, NULL) == KAKEYA_OK &&
        json_parse_object(path, text, bytes, &json, NULL) == KAKEYA_OK) {
        json_reader reader = {.name = path};
        s->sampling.temperature = (float)json_number(&reader, json, "temperature", 0, 2, 1);
        s->sampling.top_p = (float)json_number(&reader, json, "top_p", 1e-6, 1, 1);
        s->sampling.top_k = json_int(&reader, json, "top_k", 0, 1 << 30, 0);
    }
    cJSON_Delete(json);
    free(text);
    free(path);
}

/* What stands on the engine. */
static bool prepare(running_server *r) {
    server_context *s = &r->server;
    const serve_settings *settings = s->settings;
    enum { MAX_STOPS = sizeof s->stop_tokens / sizeof *s->stop_tokens };
    for (int32_t t = 0; t < kakeya_engine_vocab_size(s->engine) && s->n_stop_tokens < MAX_STOPS; t++)
        if (kakeya_engine_is_stop_token(s->engine, t)) s->stop_tokens[s->n_stop_tokens++] = t;
    read_sampling(s);
    if (settings->exact_replay && !s->turns) s->turns = turn_memory_open(TURN_MEMORY_ENTRIES, TURN_MEMORY_BYTES);
    size_t ram = settings->cache_ram_bytes == SIZE_MAX ? serve_default_cache_bytes() : settings->cache_ram_bytes;
    const store_options store = {.ram_bytes = ram,
                                 .disk_bytes = settings->cache_disk_bytes,
                                 .directory = settings->session_directory,
                                 .reuse_any = settings->reuse_any,
                                 .session_ttl = settings->session_ttl,
                                 .max_named = MAX_NAMED_SESSIONS,
                                 .notes = s->turns ? notes : NULL,
                                 .take_notes = s->turns ? take_notes : NULL,
                                 .notes_user = s,
                                 .log = log_line};
    if (store_open(s->engine, &settings->session, &store, &s->store, &r->load_error) != KAKEYA_OK) return false;
    store_read_notes(s->store);
    return true;
}

/* What is kept beside sessions. A directory that cannot be used costs what it would have kept; the store of sessions
 * says so. */
static void open_directory(server_context *s) {
    const char *directory = s->settings->session_directory;
    kakeya_error error = {0};
    response_disk *disk = NULL;
    if (!directory) return;
    if (seal_file_open(directory, &s->seal, &error) != KAKEYA_OK)
        fprintf(stderr, "kakeya serve: %s; sealed reasoning is known until the end of this server\n", error.message);
    char *path = path_join(directory, "responses"); /* what comes and goes there is no news about sessions */
    if (!path)
        error_set(&error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", directory);
    else if (response_disk_open(path, log_line, NULL, &disk, &error) == KAKEYA_OK)
        response_store_use(s->responses, disk);
    if (!disk) fprintf(stderr, "kakeya serve: responses: %s; they are kept in memory alone\n", error.message);
    free(path);
}

static void *load(void *user) {
    running_server *r = user;
    server_context *s = &r->server;
    open_directory(s);
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
    if (!prepare(r)) {
        atomic_store(&r->load_failed, 1);
        return NULL;
    }
    int most = kakeya_engine_max_context(s->engine), wanted = s->settings->session.context_tokens;
    s->context = wanted && wanted < most ? wanted : most;
    int loading = SERVER_LOADING;
    rpc_serve(s);
    if (atomic_compare_exchange_strong(&s->state, &loading, SERVER_READY)) {
        fprintf(stderr, "kakeya serve: ready: %s on %s, %.1f MB allocated for weights, %.1f MB for workspace\n",
                s->settings->names[0], kakeya_engine_backend(s->engine),
                (double)kakeya_engine_memory(s->engine, KAKEYA_MEMORY_WEIGHTS) / 1e6,
                (double)kakeya_engine_memory(s->engine, KAKEYA_MEMORY_WORKSPACE) / 1e6);
        if (s->settings->on_ready) s->settings->on_ready();
    }
    return NULL;
}

kakeya_status serve_start(const serve_settings *settings, server_context **out, kakeya_error *error) {
    *out = NULL;
    running_server *r = calloc(1, sizeof *r);
    if (!r) return error_set(error, KAKEYA_OUT_OF_MEMORY, "server: out of memory");
    server_context *s = &r->server;
    s->settings = settings;
    s->routes = serve_routes;
    s->n_routes = serve_n_routes;
    s->started = clock_seconds();
    s->created = (long long)time(NULL);
    const http_options http = {.host = settings->host,
                               .port = settings->port,
                               .tls_certificate = settings->tls_certificate,
                               .tls_key = settings->tls_key,
                               .max_head_bytes = MAX_HEAD,
                               .max_body_bytes = MAX_BODY,
                               .idle_seconds = settings->keep_alive_seconds,
                               .receive_seconds = 20,
                               .send_seconds = 60,
                               .on_request = on_request,
                               .on_tick = on_tick,
                               .refusal = refusal,
                               .user = s};
    pthread_mutex_init(&s->answers_lock, NULL);
    pthread_mutex_init(&s->memory_lock, NULL);
    pthread_cond_init(&s->memory_changed, NULL);
    size_t running = (size_t)serve_batch(settings);
    size_t waiting = settings->max_queue ? (size_t)settings->max_queue : 4 * running < 64 ? 64 : 4 * running;
    s->gate = gate_open(running, waiting);
    s->responses = response_store_open(RESPONSE_STORE_ENTRIES, RESPONSE_STORE_BYTES, RESPONSE_STORE_SECONDS);
    kakeya_status status = auth_open(&settings->auth, &s->auth, error);
    if (status == KAKEYA_OK && (!s->gate || !s->responses))
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "server: out of memory");
    if (status == KAKEYA_OK && !reasoning_seal_init(&s->seal))
        status = error_set(error, KAKEYA_IO, "the system has no random numbers");
    if (status == KAKEYA_OK) status = workers_open(running + waiting + SPARE_WORKERS, &s->workers, error);
    if (status == KAKEYA_OK) status = http_open(&http, &s->http, error);
    if (status == KAKEYA_OK) status = rpc_open(s, error);
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

const char *serve_grpc(const server_context *s) { return rpc_address(s); }

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
    rpc_drain(s);
    gate_close(s->gate);
    const struct timespec moment = {.tv_nsec = 10000000};
    double until = clock_seconds() + s->settings->drain_seconds;
    while ((atomic_load(&s->calls) || rpc_is_running(s)) && clock_seconds() < until) nanosleep(&moment, NULL);
    answers_stop(s);
    while (atomic_load(&s->calls)) nanosleep(&moment, NULL);
}

void serve_stop(server_context *s) {
    running_server *r = (running_server *)s;
    atomic_store(&s->state, SERVER_DRAINING);
    if (r->loading) pthread_join(r->loader, NULL);
    rpc_close(s);
    workers_close(s->workers);
    http_close(s->http);
    store_close(s->store, s->settings->save_seconds);
    turn_memory_close(s->turns);
    kakeya_engine_close(s->engine);
    auth_close(s->auth);
    gate_free(s->gate);
    response_store_close(s->responses);
    pthread_cond_destroy(&s->memory_changed);
    pthread_mutex_destroy(&s->memory_lock);
    pthread_mutex_destroy(&s->answers_lock);
    free(r);
}
