/* An answer while it is generated: shown as it comes, and kept as what the model meant. A single prompt and a chat
 * share it. */
#ifndef KAKEYA_CLI_ANSWER_H
#define KAKEYA_CLI_ANSWER_H

#include "cli/options.h"
#include "kakeya.h"

struct cJSON;

typedef struct answer_options {
    int max_tokens, mode, draft_length;
    kakeya_sampling sampling;
    cli_texts stop;
    bool ignore_eos;
    bool thinking;                 /* reasoning is shown and kept */
    bool quiet;                    /* collect only */
    const kakeya_grammar *grammar; /* NULL: none */
} answer_options;

typedef enum answer_form {
    ANSWER_TEXT = 0, /* the tokens' text */
    ANSWER_IDS,      /* the tokens' ids: the model has no tokenizer */
    ANSWER_MESSAGE,  /* the model's turn: content, reasoning and tool calls */
} answer_form;

/* Text that grows; NUL-terminated once there is any. */
typedef struct answer_text {
    char *text;
    size_t bytes, capacity;
} answer_text;

typedef struct answer_call {
    char *id, *name;
    answer_text arguments;
} answer_call;

typedef struct answer {
    answer_text text; /* the content, or all there is */
    answer_text reasoning;
    answer_call *calls;
    size_t n_calls;
    const char *finish_reason; /* "stop", "length", "tool_calls", "cancelled" */

    /* private: while it is generated */
    const answer_options *options;
    answer_form form;
    kakeya_chat_parser *parser;
    kakeya_status status;
    kakeya_error error;
    bool wrote_any;      /* something is on stdout */
    bool ends_with_line; /* and it ends with a line end */
    bool in_thought;     /* stderr stands behind a thought without line end */
    bool stopped;        /* a stop string of the content is complete */
} answer;

/* Continues the session's timeline, which ends with the prompt. Content goes to stdout, reasoning to stderr, dimmed
 * where that is a terminal, and a call is a line on stdout. Interrupts and broken output end the answer. tools: JSON
 * text that declared them, or NULL. *out is freed by answer_free, also on failure. */
kakeya_status answer_generate(const answer_options *options, answer_form form, const char *tools, size_t tools_bytes,
                              const kakeya_engine *engine, kakeya_session *session, answer *out, kakeya_stats *stats,
                              kakeya_error *error);
void answer_free(answer *a); /* a zeroed answer is fine */

/* {"role":"assistant","content":...} with reasoning_content and tool_calls where there are any, as OpenAI's clients
 * know it; NULL when out of memory. */
struct cJSON *answer_message(const answer *a);

/* One line on stderr: speed, tokens per verifier forward, resident K/V against what native attention would hold. */
void answer_print_figures(const kakeya_engine *engine, const kakeya_session_options *options,
                          const kakeya_session *session, const kakeya_stats *stats);

double answer_tokens_per_forward(const kakeya_stats *stats);
double answer_prefill_tokens_per_second(const kakeya_stats *stats);
double answer_decode_tokens_per_second(const kakeya_stats *stats);

#endif
