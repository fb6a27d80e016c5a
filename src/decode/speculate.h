/* The decode loop, the same for every mode. A block is [bonus, drafts...]: the bonus token is the last sampled token,
 * which the cache does not hold yet. One forward gives a row of logits behind each of its tokens; each row is sampled
 * at its position, and a draft is accepted exactly if it equals the sampled token. The first sampled token that is not
 * an accepted draft is the next block's bonus, so no second forward is ever needed. AR is the block without drafts.
 *
 * Invariant between blocks: the cache holds all tokens of the timeline but the last one, whatever the mode. */
#ifndef KAKEYA_DECODE_SPECULATE_H
#define KAKEYA_DECODE_SPECULATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "backend/backend.h"
#include "decode/draft_control.h"
#include "decode/ngram.h"
#include "decode/output.h"
#include "decode/sampling.h"

/* Tokens and their K/V memory. The cache's length is n, and then `logits` predict the next token, or n - 1. */
typedef struct decode_timeline {
    const backend_ops *ops;
    backend_model *model;
    backend_cache *cache;
    pthread_mutex_t *turn;   /* held around backend calls that compute: sessions of one engine take turns */
    int32_t *tokens;         /* [capacity] */
    unsigned char *row_kind; /* [capacity]: the segment_kind that each committed position was computed as */
    size_t n, capacity;
    int vocab;
    float *logits; /* [vocab] */
    bool has_logits;
} decode_timeline;

typedef struct decode_trace_block {
    draft_block block;
    int taken; /* tokens that joined the timeline: accepted + 1 unless the text ended inside the block */
} decode_trace_block;

typedef void (*decode_trace_fn)(void *user, const decode_trace_block *block);

/* Drafts like backend_ops.draft; takes its place in reference modes of the evaluation. */
typedef kakeya_status (*decode_draft_fn)(void *user, int32_t bonus, int n, int32_t *drafts, kakeya_error *error);

typedef struct decode_options {
    kakeya_mode mode;
    int draft_length;  /* tokens per block in the fixed modes, the most in auto; 0 with AR */
    int max_rows;      /* rows that a decode segment may have under the attention policy */
    size_t max_tokens; /* at least 1, fits into the timeline */
    bool log_probabilities;
    int top_log_probabilities;
    const atomic_bool *cancelled; /* looked at before every block and behind every token; NULL: never */
    decode_draft_fn draft;        /* NULL: the backend's */
    void *draft_user;
    decode_trace_fn trace; /* may be NULL */
    void *trace_user;
    double (*seconds)(void *user); /* NULL: the machine's clock; a replay of recorded texts has its own */
    void *seconds_user;
} decode_options;

/* What a loop needs besides the timeline; kept between turns. */
typedef struct decode_workspace {
    mem_account *account;
    int rows;                 /* of a block, at most */
    bool greedy;              /* the backend finds the next tokens itself */
    bool leading;             /* it finds the leading logits, from which they are chosen */
    float leader_temperature; /* of the leaders' weights */
    float *logits;            /* [logit_rows][vocab], where tokens are sampled here */
    int logit_rows;
    backend_leaders *leaders;                   /* [BACKEND_MAX_DECODE_ROWS] once they were wanted */
    token_log_probabilities *log_probabilities; /* [BACKEND_MAX_DECODE_ROWS] of rows whose token is chosen in advance */
    sampler sampler;
    ngram_index ngram; /* memory only once n-gram drafts were wanted */
    draft_control control;
} decode_workspace;

/* Allocates what the options need; afterwards decode_run allocates nothing. */
kakeya_status decode_prepare(decode_workspace *workspace, const decode_timeline *timeline,
                             const decode_options *options, kakeya_error *error);
void decode_workspace_free(decode_workspace *workspace);

/* Adds to *stats; sets stats->finish. On failure the timeline holds what was committed and one token more, and can go
 * on. */
kakeya_status decode_run(decode_timeline *timeline, decode_workspace *workspace, const decode_options *options,
                         decode_output *output, kakeya_stats *stats, kakeya_error *error);

#endif
