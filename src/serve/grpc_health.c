#include "serve/grpc_health.h"

#include <stdlib.h>
#include <string.h>

#include "serve/grpc_messages.h"

/* HealthCheckResponse.ServingStatus */
enum { HEALTH_NONE = -1, HEALTH_SERVING = 1, HEALTH_NOT_SERVING = 2, HEALTH_SERVICE_UNKNOWN = 3 };

typedef struct watcher {
    rpc_call *call;
    bool known; /* the service that it watches is one of this server's */
    bool sending;
    int told; /* the last status */
    struct watcher *next, *previous;
} watcher;

struct grpc_health {
    bool serving;
    watcher *watchers;
};

grpc_health *grpc_health_new(void) { return calloc(1, sizeof(grpc_health)); }

void grpc_health_free(grpc_health *health) { free(health); }

static int status_of(const grpc_health *health, bool known) {
    if (!known) return HEALTH_SERVICE_UNKNOWN;
    return health->serving ? HEALTH_SERVING : HEALTH_NOT_SERVING;
}

/* Reads the request and finds its service; false: the call has been answered. */
static bool read_service(rpc_call *call, const uint8_t *data, size_t bytes, bool *known) {
    grpc_request request;
    kakeya_error error = {0};
    kakeya_status status = grpc_request_read(GRPC_HEALTH, data, bytes, &request, &error);
    if (status == KAKEYA_OK)
        *known = request.name[0] == '\0' || strcmp(request.name, "kakeya.v1.RuntimeService") == 0;
    else
        rpc_call_fail(call, RPC_INVALID_ARGUMENT, "%s", error.message);
    grpc_request_free(&request);
    return status == KAKEYA_OK;
}

void grpc_health_check(grpc_health *health, rpc_call *call, const uint8_t *data, size_t bytes) {
    bool known = false;
    if (!read_service(call, data, bytes, &known)) return;
    if (!known) {
        rpc_call_fail(call, RPC_NOT_FOUND, "this server does not have the service");
        return;
    }
    uint8_t response[GRPC_RESPONSE_ROOM];
    rpc_call_finish(call, response, grpc_write_health(status_of(health, true), response));
}

/* Sends the status as it is now, if the watcher was told another one. */
static void tell(const grpc_health *health, watcher *w) {
    int status = status_of(health, w->known);
    if (w->sending || status == w->told) return;
    w->told = status;
    w->sending = true;
    uint8_t response[GRPC_RESPONSE_ROOM];
    rpc_call_send(w->call, response, grpc_write_health(status, response));
}

void grpc_health_watch(grpc_health *health, rpc_call *call, const uint8_t *data, size_t bytes) {
    bool known = false;
    if (!read_service(call, data, bytes, &known)) return;
    watcher *w = calloc(1, sizeof *w);
    if (!w) {
        rpc_call_fail(call, RPC_RESOURCE_EXHAUSTED, "out of memory");
        return;
    }
    *w = (watcher){.call = call, .known = known, .told = HEALTH_NONE, .next = health->watchers};
    if (w->next) w->next->previous = w;
    health->watchers = w;
    rpc_call_set_state(call, w);
    tell(health, w);
}

static void forget(grpc_health *health, watcher *w) {
    *(w->previous ? &w->previous->next : &health->watchers) = w->next;
    if (w->next) w->next->previous = w->previous;
    free(w);
}

void grpc_health_sent(grpc_health *health, rpc_call *call) {
    watcher *w = rpc_call_state(call);
    w->sending = false;
    tell(health, w);
}

void grpc_health_gone(grpc_health *health, rpc_call *call) {
    watcher *w = rpc_call_state(call);
    if (w) forget(health, w);
}

void grpc_health_set(grpc_health *health, bool serving) {
    health->serving = serving;
    for (watcher *w = health->watchers; w; w = w->next) tell(health, w);
}

void grpc_health_stop(grpc_health *health) {
    while (health->watchers) {
        watcher *w = health->watchers;
        rpc_call_fail(w->call, RPC_UNAVAILABLE, "the server is stopping");
        forget(health, w);
    }
}
