/* What everything in this folder shares while the server runs: its settings, its parts, its state. */
#ifndef KAKEYA_SERVE_SERVER_H
#define KAKEYA_SERVE_SERVER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "kakeya_study.h"
#include "serve/admission.h"
#include "serve/auth.h"
#include "serve/grammar_cache.h"
#include "serve/http.h"
#include "serve/metrics.h"
#include "serve/reasoning_seal.h"
#include "serve/response_store.h"
#include "serve/settings.h"
#include "serve/store.h"
#include "serve/turn_memory.h"
#include "serve/workers.h"

typedef enum server_state {
    SERVER_LOADING = 0,
    SERVER_READY,
    SERVER_SLEEPING, /* the model is not in memory, or about to leave */
    SERVER_WAKING,   /* it is being loaded again */
    SERVER_DRAINING,
} server_state;

/* What is told about the model, in memory or not. */
typedef struct server_model_facts {
    kakeya_facts facts;
    char backend[64];
    char *chat_template; /* its text, malloc'ed */
    size_t weight_bytes;
    bool vision, sound;                       /* it reads pictures, or sounds, on this backend */
    kakeya_kv_bytes kv_of_one, kv_of_context; /* sessions of one token, and of the whole context */
} server_model_facts;

struct route;
struct lifecycle;
struct kv_events;

typedef struct server_context {
    const struct route *routes; /* n_routes of them */
    size_t n_routes;
    const serve_settings *settings;
    http_server *http;
    struct grpc_service *grpc; /* rpc.h; NULL: none */
    workers *workers;
    auth *auth;
    _Atomic int state;           /* server_state */
    _Atomic int pressure;        /* pressure_state (pressure.h), as it was when somebody last asked */
    struct lifecycle *lifecycle; /* lifecycle.h */
    /* For parts that lifecycle stands on, with `lifecycle`: a call waits for a model that was taken away; one that
     * needs it has ended. Any thread. */
    void (*model_wanted)(struct lifecycle *lifecycle), (*model_used)(struct lifecycle *lifecycle);
    /* For lifecycle, on whose part answers stand: a computation has failed, and all of them end. Any thread. */
    void (*model_failed)(struct server_context *server);
    _Atomic bool engine_failed; /* a forward has failed as a whole, and the engine has not been replaced */
    _Atomic unsigned progress;  /* of loading, in 1/1000 */
    double started;             /* clock_seconds */
    long long created;          /* Unix seconds */
    /* Only for those who hold it (lifecycle_hold), and for calls of gRPC that it was given to. */
    kakeya_engine *engine;
    /* Set before `loaded` becomes true, constant from then on. */
    _Atomic bool loaded;
    server_model_facts model;
    bool no_core_to_spare;       /* the threads that compute take all processors */
    struct kv_events *kv_events; /* NULL: none are published */
    prefix_store *store;
    turn_memory *turns;      /* NULL: answers are rendered as the format writes them */
    int context;             /* tokens of a session */
    int32_t stop_tokens[32]; /* the model's */
    size_t n_stop_tokens;
    kakeya_sampling sampling; /* where a request does not say */
    admission *admission;
    response_store *responses;
    grammar_cache *grammars;
    reasoning_seal seal;
    metrics metrics;
    pthread_mutex_t answers_lock;
    struct answer *answers;      /* that run or wait */
    _Atomic double prompt_speed; /* tokens per second, the best so far; 0: not known */
    _Atomic size_t calls;        /* that have not ended */
    bool single_token;           /* the last forward was one token of one answer. The thread that computes */
} server_context;

/* The served name that a request means: itself or an alias; NULL for a foreign one. */
const char *server_model(const server_context *server, const char *name);

#endif
