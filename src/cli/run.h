/* Parts of `kakeya run` that a single prompt and a chat share. */
#ifndef KAKEYA_CLI_RUN_H
#define KAKEYA_CLI_RUN_H

#include "cli/cli.h"

typedef struct run_options {
    cli_shared shared;
    const char *prompt, *prompt_file, *ids_file, *system;
    bool raw, thinking, ignore_eos;
    int max_tokens, mode, draft_length;
    kakeya_sampling sampling;
    cli_texts stop;
} run_options;

/* Streams to stdout while a request generates. */
typedef struct run_stream {
    bool quiet;     /* --json: collect only */
    bool as_ids;    /* no tokenizer: ids are the text */
    bool wrote_any; /* something is on stdout */
    bool ends_with_newline;
    char *text; /* all text so far, NUL-terminated */
    size_t bytes, capacity;
    bool out_of_memory;
} run_stream;

void run_stream_free(run_stream *stream);

/* Generates into *stream; interrupts and broken output end the answer. */
kakeya_status run_generate(const run_options *options, kakeya_session *session, run_stream *stream, kakeya_stats *stats,
                           kakeya_error *error);

/* The line of figures: speed, tokens per verifier forward, resident K/V against what native attention would hold. */
void run_print_figures(const kakeya_session *session, const kakeya_stats *stats);

/* The conversation on a terminal; returns an exit status. */
int run_chat(const run_options *options, kakeya_engine *engine, kakeya_session *session);

#endif
