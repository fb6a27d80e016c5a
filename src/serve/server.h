/* What everything in this folder shares while the server runs: its settings, its parts, its state. */
#ifndef KAKEYA_SERVE_SERVER_H
#define KAKEYA_SERVE_SERVER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "kakeya.h"
#include "serve/auth.h"
#include "serve/http.h"
#include "serve/settings.h"
#include "serve/workers.h"

typedef enum server_state { SERVER_LOADING = 0, SERVER_READY, SERVER_DRAINING } server_state;

typedef struct server_context {
    const serve_settings *settings;
    http_server *http;
    workers *workers;
    auth *auth;
    _Atomic int state;         /* server_state */
    _Atomic unsigned progress; /* of loading, in 1/1000 */
    double started;            /* clock_seconds */
    long long created;         /* Unix seconds */
    /* Set before the state becomes SERVER_READY, constant from then on. */
    kakeya_engine *engine;
    int context;          /* tokens of a session */
    _Atomic size_t calls; /* that have not ended */
} server_context;

/* The served name that a request means: itself or an alias; NULL for a foreign one. */
const char *server_model(const server_context *server, const char *name);

#endif
