/* Inside of a kakeya_session, and what the evaluation harness needs beyond the public API: block traces and
 * reference decode modes. */
#ifndef KAKEYA_SESSION_SESSION_H
#define KAKEYA_SESSION_SESSION_H

#include <stdatomic.h>
#include <stdio.h>

#include "decode/speculate.h"
#include "kakeya_study.h"
#include "session/engine.h"

struct kakeya_session {
    kakeya_engine *engine;
    kakeya_session_options options; /* resolved: no zeros that stand for defaults */
    backend_cache_options cache_options;
    mem_account account; /* child of the engine's */
    /* The K/V memory is NULL until the first prompt, and after a failure that lost it; a sync makes a new one. */
    decode_timeline timeline;
    bool begun;   /* it has had K/V memory */
    FILE *parked; /* without K/V memory: what it held, for the next answer (park.h); NULL: nothing */
    decode_workspace workspace;
    size_t prompt_tokens, reused_tokens; /* of the syncs since the last generate */
    double prefill_seconds;
    double load_waited;             /* seconds of the last load in which others had the engine */
    atomic_bool cancelled;          /* by another thread; taken by the call that returns next */
    atomic_bool paused;             /* its request is to compute nothing */
    struct kakeya_request *request; /* in the scheduler's hands, whose lock protects this; NULL: none */
};

typedef enum session_reference {
    SESSION_FUSED = 0, /* the product's own loop */
    SESSION_REFORWARD, /* every token by recomputing the whole timeline in a fresh cache */
    SESSION_UNFUSED,   /* every block drafted from a drafter context rebuilt by recomputing the timeline */
} session_reference;

typedef struct session_trace {
    session_reference reference;
    decode_trace_fn block; /* may be NULL */
    void *user;
    bool assistant;            /* mode speculative asks the MTP assistant, also where there is a DFlash drafter */
    const draft_block *follow; /* [n_follow] as in decode_options; NULL: none */
    size_t n_follow;
} session_trace;

/* kakeya_session_generate with a trace (may be NULL). All references give the same tokens, slowly. */
kakeya_status session_generate(kakeya_session *session, const kakeya_generate_options *options,
                               const session_trace *trace, kakeya_stats *stats, kakeya_error *error);

/* kakeya_session_score that also says what K/V memory its own timeline held at the end, as the allocator counts it;
 * each_token stays 0. held may be NULL; it is written only on success. */
kakeya_status session_score(kakeya_session *session, const int32_t *tokens, size_t n,
                            const kakeya_score_options *options, kakeya_kv_bytes *held, kakeya_error *error);

/* A new cache of the session's options that holds tokens[0..n), each position computed as the kind of row it was
 * computed as in the timeline (positions beyond the timeline's: decode rows). logits (may be NULL) receives the last
 * row. */
kakeya_status session_replay(kakeya_session *session, const int32_t *tokens, size_t n, float *logits,
                             backend_cache **out, kakeya_error *error);

/* kakeya_session_save and kakeya_session_load with memory. *data is freed with free. */
kakeya_status session_to_memory(const kakeya_session *session, void **data, size_t *bytes, kakeya_error *error);
kakeya_status session_from_memory(kakeya_session *session, const void *data, size_t bytes, kakeya_error *error);

/* Rows that a decode segment may have under the session's policy. */
int session_decode_rows(const kakeya_session *session);

/* Forgets what was parked. */
void session_drop_parked(kakeya_session *session);
/* Of a session that no request holds. */
void session_free(kakeya_session *session);
/* What a session has from its first K/V memory on: a place among the engine's, and its experience with drafts. Needs
 * the turn. */
void session_begin(kakeya_session *session);
/* Inside: an empty cache in place of whatever there was. Needs the turn. */
kakeya_status session_reset_cache(kakeya_session *session, kakeya_error *error);
/* A call that can be cancelled returns: cancels that came before are its own. */
kakeya_status session_return(kakeya_session *session, kakeya_status status);
kakeya_status session_check_tokens(const kakeya_session *session, const int32_t *tokens, size_t n, kakeya_error *error);

#endif
