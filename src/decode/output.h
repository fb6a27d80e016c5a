/* What happens to a sampled token: stop tokens, text, stop strings, the caller's callback. Decides which tokens join
 * the timeline; sees them one by one in order, so its decisions are the same for every block length. */
#ifndef KAKEYA_DECODE_OUTPUT_H
#define KAKEYA_DECODE_OUTPUT_H

#include "decode/log_probabilities.h"
#include "decode/stop_text.h"

/* Tokens to text. Both functions hand out memory of the source, valid until the next call. */
typedef struct text_source {
    /* The whole characters that the token completes; *incomplete: bytes of an unfinished character remain. */
    kakeya_status (*push)(void *source, int32_t token, const char **text, size_t *bytes, bool *incomplete,
                          kakeya_error *error);
    /* What becomes of an unfinished character at the end. */
    kakeya_status (*finish)(void *source, const char **text, size_t *bytes, kakeya_error *error);
    void *source;
} text_source;

/* A token on its way to the caller. */
typedef struct output_token {
    int32_t token; /* -1: none */
    size_t position;
    token_log_probabilities log_probabilities;
} output_token;

typedef struct decode_output {
    text_source text; /* push == NULL: no text */
    stop_text stop;   /* used only with text */
    const int32_t *stop_tokens;
    int n_stop_tokens;        /* 0: stop tokens are ordinary tokens */
    kakeya_event_fn on_event; /* may be NULL */
    void *user;
    const kakeya_stats *stats; /* what events tell of the answer so far */
    /* The newest token while some of its text is undecided: if the stream ended now, that text would go with it. */
    output_token withheld;
    kakeya_finish finish;
    int32_t stop_token, stop_string;                /* what ended the answer; -1: not this */
    token_log_probabilities stop_log_probabilities; /* of stop_token */
} decode_output;

typedef enum output_verdict {
    OUTPUT_TAKEN = 0,  /* the token joins the timeline, decoding goes on */
    OUTPUT_TAKEN_LAST, /* it joins and is the last; output->finish says why */
    OUTPUT_REFUSED,    /* the callback stopped after the token before: this one does not join */
} output_verdict;

/* Nothing is withheld, nothing has ended. */
void output_begin(decode_output *output);

/* last: no further token can follow, because of max_tokens or the context's end. */
kakeya_status output_take(decode_output *output, const output_token *token, bool last, output_verdict *verdict,
                          kakeya_error *error);

/* Ends an answer whose last token did not end it: what is withheld is delivered. */
kakeya_status output_cut(decode_output *output, kakeya_finish finish, kakeya_error *error);

/* The last event. status and error: what the call is going to return. */
void output_finish(decode_output *output, kakeya_status status, const kakeya_error *error);

#endif
