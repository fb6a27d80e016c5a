/* What one session computes for one call: a prompt, or an answer whose reader may be slow. Tokens of the answer go into
 * a ring. When it is full the request pauses, until half of the ring has been read. */
#ifndef KAKEYA_SERVE_GRPC_TASK_H
#define KAKEYA_SERVE_GRPC_TASK_H

#include "serve/store.h"

typedef struct grpc_task grpc_task;

enum { GRPC_POSITIONS = 16 }; /* of drafts, that are counted apart */

typedef struct grpc_task_options {
    kakeya_session *session;
    prefix_store *store;   /* the session is in the caller's hands before and after (store_hand_begin) */
    const int32_t *tokens; /* that the timeline becomes first; NULL: it stays as it is */
    size_t n_tokens;
    uint32_t max_tokens; /* of the answer; 0: none */
    kakeya_sampling sampling;
    const uint32_t *eos; /* n_eos tokens, ascending, that end the answer and belong to it; must live as long */
    size_t n_eos;
    size_t ring_tokens;
    void (*on_news)(void *user); /* from any thread: tokens, or an end. Settle and read soon */
    void *user;
} grpc_task_options;

typedef enum grpc_task_end {
    GRPC_TASK_RUNNING = 0,
    GRPC_TASK_COMPLETE, /* a prompt alone, or max_tokens are reached */
    GRPC_TASK_EOS,
    GRPC_TASK_CONTEXT_FULL,
    GRPC_TASK_CANCELLED,
    GRPC_TASK_FAILED,
} grpc_task_end;

typedef struct grpc_task_result {
    grpc_task_end end;
    kakeya_error error; /* with GRPC_TASK_FAILED */
    size_t tokens;      /* generated so far */
    double prefill_seconds, decode_seconds;
    uint64_t verifier_forwards;
    uint64_t drafted, accepted, drafted_at[GRPC_POSITIONS], accepted_at[GRPC_POSITIONS];
} grpc_task_result;

/* The functions are for one thread. *out is freed with grpc_task_free once it has ended. */
kakeya_status grpc_task_start(const grpc_task_options *options, grpc_task **out, kakeya_error *error);
/* The next token; false: there is none now. */
bool grpc_task_next(grpc_task *task, int32_t *token);
/* Takes note of what has happened; the result as it is now. Ended: tokens may be left in the ring, but the session is
 * free. */
const grpc_task_result *grpc_task_settle(grpc_task *task);
/* Ends it soon: settle tells when. */
void grpc_task_cancel(grpc_task *task);
void grpc_task_free(grpc_task *task);

#endif
