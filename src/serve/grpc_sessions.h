/* The sessions that gRPC clients have made, by name. A table without threads and without opinions: who may use a
 * session is the caller's business. */
#ifndef KAKEYA_SERVE_GRPC_SESSIONS_H
#define KAKEYA_SERVE_GRPC_SESSIONS_H

#include "serve/grpc_messages.h"

typedef struct grpc_session {
    char id[GRPC_SESSION_ID_BYTES + 1]; /* "sess-" and 32 hexadecimal digits */
    kakeya_session *session;            /* never NULL */
    uint32_t *eos;                      /* n_eos tokens, ascending */
    size_t n_eos;
    void *user;        /* the caller's: who uses it; NULL: it is idle */
    uint64_t history;  /* tokens, as of the last idle moment */
    uint64_t kv_bytes; /* likewise */
    double touched;    /* clock_seconds when a token was appended or generated */
    struct grpc_session *next_of_bucket, *older, *newer;
} grpc_session;

typedef struct grpc_sessions grpc_sessions;

/* NULL: out of memory. */
grpc_sessions *grpc_sessions_new(void);
/* Every session must have been removed. NULL is fine. */
void grpc_sessions_free(grpc_sessions *sessions);
size_t grpc_sessions_count(const grpc_sessions *sessions);
/* A session under a new name that nobody can guess. Takes `session` over and copies eos. NULL: out of memory. */
grpc_session *grpc_sessions_add(grpc_sessions *sessions, kakeya_session *session, const uint32_t *eos, size_t n_eos);
grpc_session *grpc_sessions_find(const grpc_sessions *sessions, const char *id);
/* It was used now. */
void grpc_sessions_touch(grpc_sessions *sessions, grpc_session *session);
/* The idle session that was touched first; NULL: there is none. */
grpc_session *grpc_sessions_oldest_idle(const grpc_sessions *sessions);
/* Any session; NULL: there is none. */
grpc_session *grpc_sessions_any(const grpc_sessions *sessions);
/* Forgets it and frees what belongs to it; what was its session is returned and the caller's again. */
kakeya_session *grpc_sessions_remove(grpc_sessions *sessions, grpc_session *session);

#endif
