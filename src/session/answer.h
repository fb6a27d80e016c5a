/* An answer on its way: the options of kakeya_session_generate, resolved, and the stream that they start. */
#ifndef KAKEYA_SESSION_ANSWER_H
#define KAKEYA_SESSION_ANSWER_H

#include "session/session.h"
#include "text/detokenizer.h"

typedef struct token_text {
    const tokenizer *tokenizer;
    detokenizer *detokenizer;
    bool incomplete; /* a run of byte pieces may be open */
} token_text;

/* Not to be moved once begun: the stream points into it. */
typedef struct answer_work {
    kakeya_generate_options options; /* what they point to is borrowed */
    session_trace trace;             /* all zero: none */
    decode_options decode;
    decode_output output;
    token_text text;
    matcher *grammar;   /* NULL: none */
    decode_first first; /* behind a prompt */
    decode_stream stream;
    kakeya_stats counted;
    double started; /* clock_seconds */
    bool begun;     /* events have an end to come */
} answer_work;

/* Takes and checks what does not depend on the timeline. options NULL: all defaults. */
kakeya_status answer_prepare(const kakeya_session *session, const kakeya_generate_options *options, answer_work *answer,
                             kakeya_error *error);
/* Checks the rest and makes everything ready: the sampler in the buffers' space, text and output. */
kakeya_status answer_open(kakeya_session *session, answer_work *answer, decode_buffers *buffers, kakeya_error *error);
/* Who finds the first token, for the prompt before it, of n tokens: whole logits are needed by what only answer_open
 * makes ready. */
void answer_choose_first(kakeya_session *session, answer_work *answer, const int32_t *tokens, size_t n,
                         decode_buffers *buffers);
/* The row that predicts the first token is missing although the cache holds all tokens, after a sync that failed. */
bool answer_needs_row(const kakeya_session *session);
/* Ends the answer: the last event, the statistics, what was learned about drafts. `status`: how it went, handed on.
 * Takes the turn for a moment. */
kakeya_status answer_close(kakeya_session *session, answer_work *answer, kakeya_status status, kakeya_error *error);

#endif
