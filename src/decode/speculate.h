/* Decoding, the same for every mode and for every number of streams. A block is [bonus, drafts...]: the bonus token is
 * the last sampled token, which the cache does not hold yet. One forward gives a row of logits behind each of its
 * tokens; each row is sampled at its position, and a draft is accepted exactly if it equals the sampled token. The
 * first sampled token that is not an accepted draft is the next block's bonus, so no second forward is ever needed. AR
 * is the block without drafts.
 *
 * Invariant between blocks: the cache holds all tokens of the timeline but the last one, whatever the mode.
 *
 * Whoever calls the backend is not decided here. A block goes in steps, and between them stands the backend's work,
 * which may serve any number of streams at once:
 *
 *   decode_plan      chooses the source of the drafts; no backend
 *   decode_asks      what the drafter shall answer, if anything; decode_answered takes it; until there is no question
 *   decode_segment   the block as a segment of a forward, with what a grammar allows in its rows
 *   decode_read      right behind the forward: tokens that need the backend once more
 *   decode_take      samples the rows in order, hands tokens to the output; no backend
 *   decode_commit    keeps the rows of the tokens that were taken
 *
 * decode_run does so for one stream alone. Nothing here locks: calls on one stream, its timeline and its buffers come
 * from one thread at a time. */
#ifndef KAKEYA_DECODE_SPECULATE_H
#define KAKEYA_DECODE_SPECULATE_H

#include <stdatomic.h>

#include "backend/backend.h"
#include "decode/decode_timeline.h"
#include "decode/draft_control.h"
#include "decode/ngram.h"
#include "decode/output.h"
#include "decode/prediction.h"
#include "decode/sampling.h"

/* N-gram drafts need no drafter whose block size would say how many; longer ones seldom hold. */
enum { DECODE_NGRAM_DRAFT = 7 };

typedef struct decode_trace_block {
    draft_block block;
    int taken; /* tokens that joined the timeline: accepted + 1 unless the text ended inside the block */
} decode_trace_block;

typedef void (*decode_trace_fn)(void *user, const decode_trace_block *block);

/* Drafts like backend_draft_one; takes its place in reference modes of the evaluation. Called in decode_plan. */
typedef kakeya_status (*decode_draft_fn)(void *user, int32_t bonus, int n, int32_t *drafts, kakeya_error *error);

typedef struct decode_options {
    kakeya_mode mode;
    backend_drafter drafter; /* whom speculative blocks ask; in auto the control chooses */
    int draft_length;        /* tokens per block in the fixed modes, the most in auto; 0 with AR */
    prediction prediction;   /* n 0: none */
    int max_rows;            /* rows that a decode segment may have under the attention policy */
    size_t max_tokens;       /* at least 1, fits into the timeline */
    bool log_probabilities;
    int top_log_probabilities;
    const atomic_bool *cancelled; /* looked at before every block and behind every token; NULL: never */
    decode_draft_fn draft;        /* NULL: the backend's */
    void *draft_user;
    decode_trace_fn trace; /* may be NULL */
    void *trace_user;
    const draft_block *follow; /* auto: source, asked, drafted and looked_up of every block, as an earlier run chose
                                  them, in place of the control's choice; NULL: none */
    size_t n_follow;
    double (*seconds)(void *user); /* NULL: the machine's clock; a replay of recorded texts has its own */
    void *seconds_user;
} decode_options;

/* What a stream needs besides the timeline; kept between turns. */
typedef struct decode_workspace {
    mem_account *account;
    sampler sampler;
    ngram_index ngram; /* memory only once n-gram drafts were wanted */
    draft_control control;
} decode_workspace;

void decode_workspace_free(decode_workspace *workspace);
/* Memory that drafts alone need; the next block takes it again if it can. False: there was none. */
bool decode_workspace_give_back(decode_workspace *workspace);

/* Vocabulary-sized memory: rows of one forward, and what sampling needs. One serves all streams of a thread. All zero
 * but for the accounts: empty. */
typedef struct decode_buffers {
    mem_account *account;
    int vocab;
    float *logits; /* [logit_rows][vocab] */
    int logit_rows;
    backend_leaders *leaders;                   /* [leader_rows] */
    token_log_probabilities *log_probabilities; /* [leader_rows], of rows whose token is chosen in advance */
    int leader_rows;
    uint32_t *masks; /* [mask_rows][(vocab + 31) / 32]: tokens that a grammar allows */
    int mask_rows;
    sampler_space sampling;
} decode_buffers;

/* Rows of the buffers, by what they hold. */
typedef struct decode_room {
    int logits, leaders, masks;
} decode_room;

void decode_buffers_init(decode_buffers *buffers, int vocab, mem_account *account);
void decode_buffers_free(decode_buffers *buffers);
/* At least so many rows. Grows by dropping what was there. */
kakeya_status decode_buffers_reserve(decode_buffers *buffers, decode_room room, kakeya_error *error);
decode_room decode_room_of_both(decode_room a, decode_room b);

/* Who finds the token of a row. */
typedef enum decode_choice {
    DECODE_FROM_LOGITS = 0, /* sampled here from whole rows */
    DECODE_FROM_LEADERS, /* from the leading logits that the backend finds, and from a whole row where they do not do */
    DECODE_BY_BACKEND,   /* the greedy choice, found by the backend; under a grammar, from what the mask of a row allows
                          */
} decode_choice;

/* The token behind a prompt's last row, where a whole row of logits is not needed to find it. Between the prompt's
 * last chunk and decode_begin:
 *
 *   decode_first_ask    in the segment of the chunk, instead of logits
 *   decode_first_read   right behind the forward, with the sampler that the answer will have */
typedef struct decode_first {
    decode_choice choice; /* who finds it; DECODE_FROM_LOGITS: the timeline's logits say it */
    bool known;           /* else nothing has been found yet */
    int32_t token;        /* -1: the logits are not numbers */
    token_log_probabilities log_probabilities;
    backend_leaders leaders;
} decode_first;

/* Who finds the tokens of streams with these options. */
decode_choice decode_choice_of(const backend_ops *ops, const sampler *sampler, const decode_options *options);
void decode_first_ask(decode_first *first, const sampler *sampler, backend_segment *segment);
/* segment: the chunk's index in the last forward; position: of the token. Where leading logits do not decide, the
 * timeline gets the whole row. */
kakeya_status decode_first_read(decode_first *first, decode_timeline *timeline, sampler *sampler,
                                const decode_options *options, int segment, size_t position, kakeya_error *error);

/* An answer in the making. Everything but the block is borrowed. */
typedef struct decode_stream {
    decode_timeline *timeline;
    decode_workspace *workspace;
    decode_buffers *buffers;
    const decode_options *options;
    decode_output *output;
    kakeya_stats *stats; /* added to */
    size_t start;        /* tokens of the timeline when the stream began */
    output_verdict verdict;
    decode_choice choice;
    /* --- the block */
    draft_block block;
    int32_t tokens[BACKEND_MAX_DECODE_ROWS]; /* bonus, drafts */
    int limit;                               /* drafts that the block may hold */
    draft_plan plan;
    bool priced; /* at `prices`: other streams share the forward */
    draft_prices prices;
    int forced;                       /* drafts that the grammar has forced, and that the block begins with */
    bool indexed;                     /* the n-gram index had memory: without it there are other drafts, or none */
    int32_t found[BACKEND_MAX_DRAFT]; /* by the n-gram index */
    int n_found, match;
    bool predicted; /* they come from the prediction, ... */
    size_t place;   /* ... of this place */
    int question;   /* of decode_asks */
    int32_t shadow_tokens[BACKEND_MAX_DRAFT];
    shadow_result shadow;
    int32_t known[BACKEND_MAX_DECODE_ROWS]; /* tokens chosen by the backend or in decode_read */
    float *logits;                          /* the block's part of the buffers */
    backend_leaders *leaders;
    token_log_probabilities *log_probabilities;
    uint32_t *masks;
    int taken;    /* rows whose token joined the timeline */
    bool batched; /* the forward served other streams, too: its time says nothing about this block */
} decode_stream;

/* Begins. sampler_configure comes before, with the sampling space of the buffers. A token that is known (`first`, or
 * NULL), or that the timeline's logits already decide, is taken at once: what the output does about it may end the
 * stream. */
kakeya_status decode_begin(decode_stream *stream, decode_timeline *timeline, decode_workspace *workspace,
                           decode_buffers *buffers, const decode_options *options, decode_output *output,
                           kakeya_stats *stats, const decode_first *first, kakeya_error *error);
/* The stream wants another block. */
bool decode_goes_on(const decode_stream *stream);

/* most_rows: of the block, at least 1. prices: of drafts in auto where the forward is shared; NULL: the stream is
 * alone, and its own measurements decide. May allocate; on failure nothing has changed. */
kakeya_status decode_plan(decode_stream *stream, int most_rows, const draft_prices *prices, kakeya_error *error);
bool decode_asks(decode_stream *stream, backend_draft_request *request);
/* seconds: what the answer took; of a batch, the share of this stream. */
void decode_answered(decode_stream *stream, double seconds);
int decode_rows(const decode_stream *stream);
/* Rows of the buffers that decode_segment needs; of logits one for read_logits at the least. */
decode_room decode_needs(const decode_stream *stream);
/* first: where the block's part of the buffers begins. */
backend_segment decode_segment(decode_stream *stream, decode_room first);
/* segment: the block's index in the last forward. A failure is the stream's own: decode_commit drops the rows. */
kakeya_status decode_read(decode_stream *stream, int segment, kakeya_error *error);
kakeya_status decode_take(decode_stream *stream, kakeya_error *error);
/* `status` of the steps before, handed on. verify_seconds: of the forward; read_seconds: of them, waiting for weights.
 * Adds to the stats. On failure the timeline holds what was committed and one token more, and can go on. */
kakeya_status decode_commit(decode_stream *stream, kakeya_status status, double verify_seconds, double read_seconds,
                            kakeya_error *error);

/* Sets stats->finish; `status`: of the last step, handed on. */
kakeya_status decode_end(decode_stream *stream, kakeya_status status, kakeya_error *error);

/* The whole stream, alone. */
kakeya_status decode_run(decode_timeline *timeline, decode_workspace *workspace, decode_buffers *buffers,
                         const decode_options *options, decode_output *output, kakeya_stats *stats,
                         kakeya_error *error);

#endif
