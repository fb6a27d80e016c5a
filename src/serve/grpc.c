#include "serve/grpc.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "serve/grpc_health.h"
#include "serve/grpc_runtime.h"

enum {
    MAX_REQUEST_BYTES = 16 << 20, /* a million ids take 3 MB */
    MAX_STREAMS = 256,
    DEFAULT_RING_TOKENS = 16384,
};

/* What the program wants of the service's thread. */
typedef enum phase { PHASE_LOADING = 0, PHASE_SERVING, PHASE_DRAINING, PHASE_STOPPING } phase;

/* Whether the engine may be taken away. */
typedef enum unload_state { UNLOAD_NOT_ASKED = 0, UNLOAD_ASKED, UNLOAD_GRANTED, UNLOAD_REFUSED } unload_state;

struct grpc_service {
    grpc_service_options options;
    rpc_server *server;
    grpc_runtime *runtime;
    grpc_health *health;
    pthread_mutex_t lock; /* of what follows, but `reached` */
    pthread_cond_t quiet;
    phase wanted;
    kakeya_engine *engine;
    prefix_store *store;
    bool news; /* about the engine */
    unload_state unload;
    bool failed;          /* with UNLOAD_ASKED: the engine has */
    kakeya_error failure; /* why there is no engine again; KAKEYA_OK: nothing has failed */
    size_t running;
    phase reached; /* of the service's thread */
};

typedef struct method {
    const char *path;
    grpc_request_type type;
    bool watch, open; /* open: for anybody, as health checks are */
} method;

#define RUNTIME "/kakeya.v1.RuntimeService/"
#define HEALTH  "/grpc.health.v1.Health/"
static const method methods[] = {
    {RUNTIME "CreateSession", GRPC_CREATE_SESSION, false, false},
    {RUNTIME "AppendTokens", GRPC_APPEND_TOKENS, false, false},
    {RUNTIME "Generate", GRPC_GENERATE, false, false},
    {RUNTIME "CloseSession", GRPC_CLOSE_SESSION, false, false},
    {RUNTIME "GetSessionInfo", GRPC_GET_SESSION_INFO, false, false},
    {HEALTH "Check", GRPC_HEALTH, false, true},
    {HEALTH "Watch", GRPC_HEALTH, true, true},
};

static const void *find_method(void *user, const char *path) {
    (void)user;
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++)
        if (strcmp(methods[i].path, path) == 0) return &methods[i];
    return NULL;
}

static bool may_call(void *user, const void *called, const char *authorization) {
    const grpc_service *s = user;
    const method *m = called;
    return m->open || !s->options.allows || s->options.allows(s->options.user, authorization);
}

/* A call belongs to the runtime or to health for good; on_sent and on_gone ask which. */
static bool is_health(const method *m) { return m->type == GRPC_HEALTH; }

static void take_request(void *user, rpc_call *call, const void *called, const uint8_t *data, size_t bytes) {
    grpc_service *s = user;
    const method *m = called;
    if (!is_health(m))
        grpc_runtime_request(s->runtime, call, m->type, data, bytes);
    else if (m->watch)
        grpc_health_watch(s->health, call, data, bytes);
    else
        grpc_health_check(s->health, call, data, bytes);
}

static void take_sent(void *user, rpc_call *call, const void *called) {
    grpc_service *s = user;
    if (is_health(called))
        grpc_health_sent(s->health, call);
    else
        grpc_runtime_sent(s->runtime, call);
}

static void take_gone(void *user, rpc_call *call, const void *called) {
    grpc_service *s = user;
    if (is_health(called))
        grpc_health_gone(s->health, call);
    else
        grpc_runtime_gone(s->runtime, call);
}

static void reach(grpc_service *s, phase wanted) {
    if (wanted == s->reached) return;
    s->reached = wanted;
    if (wanted == PHASE_DRAINING) grpc_runtime_drain(s->runtime);
    grpc_health_set(s->health, wanted == PHASE_SERVING);
    if (wanted == PHASE_STOPPING) {
        grpc_runtime_stop(s->runtime);
        grpc_health_stop(s->health);
    }
}

static void take_wake(void *user) {
    grpc_service *s = user;
    pthread_mutex_lock(&s->lock);
    const phase wanted = s->wanted;
    kakeya_engine *engine = s->engine;
    prefix_store *store = s->store;
    const bool news = s->news, unload = s->unload == UNLOAD_ASKED, failed = s->failed;
    const kakeya_error failure = s->failure;
    s->news = false;
    s->failure = (kakeya_error){0};
    pthread_mutex_unlock(&s->lock);
    if (news) grpc_runtime_serve(s->runtime, engine, store);
    if (failure.status != KAKEYA_OK) grpc_runtime_wake_failed(s->runtime, failure.message);
    reach(s, wanted);
    grpc_runtime_advance(s->runtime);
    const bool granted = unload && wanted == PHASE_SERVING && grpc_runtime_unload(s->runtime, failed);
    pthread_mutex_lock(&s->lock);
    if (unload) s->unload = granted ? UNLOAD_GRANTED : UNLOAD_REFUSED;
    if (unload) pthread_cond_broadcast(&s->quiet);
    s->running = grpc_runtime_running(s->runtime);
    if (s->reached == PHASE_STOPPING && s->running == 0) pthread_cond_broadcast(&s->quiet);
    pthread_mutex_unlock(&s->lock);
}

/* Any thread. Before the server is there nobody has news. */
static void wake(void *user) {
    grpc_service *s = user;
    rpc_server_wake(s->server);
}

void grpc_service_options_init(grpc_service_options *options) {
    *options =
        (grpc_service_options){.address = "127.0.0.1:50051", .reader_seconds = 60, .ring_tokens = DEFAULT_RING_TOKENS};
    KAKEYA_INIT(&options->session);
}

static void free_service(grpc_service *s) {
    rpc_server_close(s->server);
    grpc_runtime_close(s->runtime);
    grpc_health_free(s->health);
    pthread_cond_destroy(&s->quiet);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

kakeya_status grpc_service_start(const grpc_service_options *options, grpc_service **out, kakeya_error *error) {
    *out = NULL;
    grpc_service *s = calloc(1, sizeof *s);
    if (!s) return error_set(error, KAKEYA_OUT_OF_MEMORY, "gRPC service: out of memory");
    s->options = *options;
    pthread_mutex_init(&s->lock, NULL); /* neither fails on the systems that there are */
    pthread_cond_init(&s->quiet, NULL);
    s->health = grpc_health_new();
    kakeya_status status = s->health ? grpc_runtime_open(options, wake, s, &s->runtime, error)
                                     : error_set(error, KAKEYA_OUT_OF_MEMORY, "gRPC service: out of memory");
    const rpc_server_options server = {
        .address = options->address,
        .tls_certificate = options->tls_certificate,
        .tls_key = options->tls_key,
        .loopback_only = options->loopback_only,
        .max_request_bytes = MAX_REQUEST_BYTES,
        .max_streams = MAX_STREAMS,
        .max_connections = options->max_connections,
        .idle_seconds = options->idle_seconds,
        .handlers = {.user = s,
                     .find_method = find_method,
                     .may_call = may_call,
                     .on_request = take_request,
                     .on_sent = take_sent,
                     .on_gone = take_gone,
                     .on_wake = take_wake},
    };
    if (status == KAKEYA_OK) status = rpc_server_open(&server, &s->server, error);
    if (status != KAKEYA_OK) {
        free_service(s);
        return status;
    }
    *out = s;
    return KAKEYA_OK;
}

const char *grpc_service_address(const grpc_service *service) { return rpc_server_address(service->server); }

static void want(grpc_service *s, phase wanted, kakeya_engine *engine, prefix_store *store) {
    pthread_mutex_lock(&s->lock);
    if (wanted > s->wanted) s->wanted = wanted;
    if (wanted >= PHASE_DRAINING)
        s->running = SIZE_MAX; /* until the thread has counted: a call may have come just now */
    if (engine) {
        s->engine = engine;
        s->store = store;
        s->news = true;
    }
    pthread_mutex_unlock(&s->lock);
    rpc_server_wake(s->server);
}

void grpc_service_serve(grpc_service *service, kakeya_engine *engine, prefix_store *store) {
    want(service, PHASE_SERVING, engine, store);
}

bool grpc_service_unload(grpc_service *service, bool failed) {
    grpc_service *s = service;
    pthread_mutex_lock(&s->lock);
    bool serving = s->wanted == PHASE_SERVING;
    if (serving) s->unload = UNLOAD_ASKED;
    s->failed = failed;
    pthread_mutex_unlock(&s->lock);
    if (!serving) return false;
    rpc_server_wake(s->server);
    pthread_mutex_lock(&s->lock);
    while (s->unload == UNLOAD_ASKED) pthread_cond_wait(&s->quiet, &s->lock);
    bool granted = s->unload == UNLOAD_GRANTED;
    pthread_mutex_unlock(&s->lock);
    return granted;
}

void grpc_service_wake_failed(grpc_service *service, const char *why) {
    pthread_mutex_lock(&service->lock);
    (void)error_set(&service->failure, KAKEYA_IO, "%s", why);
    pthread_mutex_unlock(&service->lock);
    rpc_server_wake(service->server);
}

void grpc_service_drain(grpc_service *service) { want(service, PHASE_DRAINING, NULL, NULL); }

size_t grpc_service_running(grpc_service *service) {
    pthread_mutex_lock(&service->lock);
    size_t running = service->running;
    pthread_mutex_unlock(&service->lock);
    return running;
}

void grpc_service_stop(grpc_service *service) {
    grpc_service *s = service;
    if (!s) return;
    want(s, PHASE_STOPPING, NULL, NULL);
    pthread_mutex_lock(&s->lock);
    while (s->running) pthread_cond_wait(&s->quiet, &s->lock);
    pthread_mutex_unlock(&s->lock);
    free_service(s);
}
