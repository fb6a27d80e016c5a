/* What the gRPC service is told, and what it tells. */
#ifndef KAKEYA_SERVE_GRPC_OPTIONS_H
#define KAKEYA_SERVE_GRPC_OPTIONS_H

#include <stdatomic.h>

#include "kakeya.h"

/* How an answer ended; the first: it was none, or did not begin. */
typedef enum grpc_ended {
    GRPC_ENDED_NOT = 0,
    GRPC_ENDED_STOP,
    GRPC_ENDED_LENGTH,
    GRPC_ENDED_CANCELLED,
    GRPC_ENDED_ERROR,
} grpc_ended;

/* A call of RuntimeService that has ended, for logs and metrics. */
typedef struct grpc_finished {
    const char *method;                  /* "Generate" */
    const char *session;                 /* its id; "" where there is none */
    const char *label;                   /* CreateSession: what the client calls itself */
    int code;                            /* of the protocol: 0 is OK */
    size_t prompt_tokens;                /* appended */
    size_t generated_tokens;             /* generated */
    double seconds, first_token_seconds; /* since the request; the second is 0 where there was no token */
    double decode_seconds;
    uint64_t verifier_forwards, drafted, accepted;
    const uint64_t *drafted_at, *accepted_at; /* n_positions, by position; NULL: nothing was generated */
    size_t n_positions;
    grpc_ended ended;
    bool used_model; /* the method needs it */
} grpc_finished;

typedef struct grpc_service_options {
    const char *address;                   /* "127.0.0.1:50051"; port 0 chooses a free one */
    const char *tls_certificate, *tls_key; /* PEM files; both or neither */
    bool loopback_only;                    /* no address is taken that others can reach */
    int max_connections;                   /* 0: no limit; where grpc core has one */
    double idle_seconds;                   /* that a connection may have no call; 0: any time */
    kakeya_session_options session;        /* that the store makes sessions with */
    double reader_seconds;                 /* until a client that reads nothing is dropped */
    size_t ring_tokens;                    /* of an answer that nobody reads; then it pauses */
    double wake_seconds;                   /* that a call waits for a model that was taken away */
    /* A forward has failed as a whole: what is computed with this engine from then on is lost with it. May be NULL.
     * Until the next grpc_service_serve calls wait, and those that end do so with INTERNAL. */
    const _Atomic bool *failed;
    void (*on_wanted)(void *user); /* such a call waits; on the service's thread, again and again */
    /* Whether a call may be made; authorization: the value of that header, or NULL. NULL: anybody may. */
    bool (*allows)(void *user, const char *authorization);
    void (*on_finished)(void *user, const grpc_finished *finished); /* on the service's thread; may be NULL */
    void *user;
} grpc_service_options;

void grpc_service_options_init(grpc_service_options *options);

#endif
