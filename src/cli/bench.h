/* Shared by the files of `kakeya bench`. */
#ifndef KAKEYA_CLI_BENCH_H
#define KAKEYA_CLI_BENCH_H

#include "base/files.h"
#include "cli/cli.h"
#include "measure/bench_requests.h"

typedef struct bench_arguments {
    cli_shared shared;
    cli_ints contexts, verify_rows, sessions;
    int prompt_tokens, decode_tokens, repeats, stall_ms;
    int requests, answer_tokens, outstanding, mode; /* --requests; 0: none */
    float rate;
    bool profile;
    const char *csv, *url, *key, *recorded;
} bench_arguments;

/* The tables of --profile on stdout. */
void bench_print_profiles(const bench_result *result);
/* One object per context, in an array. */
struct cJSON *bench_profiles_json(const bench_result *result);

/* "what the machine reads and computes", on a line of its own. */
void bench_print_probes(const bench_spread *read, const bench_spread *flops, int threads, int repeats);
/* An object with the engine's facts. */
struct cJSON *bench_facts_json(const kakeya_engine *engine, const bench_arguments *arguments);
/* The same and the probes, which rows are added to. */
struct cJSON *bench_json(const kakeya_engine *engine, const bench_arguments *arguments, const bench_spread *read,
                         const bench_spread *flops, int threads);
void bench_add_spread(struct cJSON *object, const char *key, const bench_spread *spread);

/* --sessions: measures, writes the CSV (NULL: none) and prints. Takes the writer. */
kakeya_status bench_sessions(kakeya_engine *engine, const bench_arguments *arguments, file_writer *csv,
                             kakeya_error *error);

/* --weights-limit: an engine for each limit of the list. */
kakeya_status bench_weights(bench_arguments *arguments, kakeya_error *error);

/* --requests: measures and prints, with an engine or, with --url, without. */
kakeya_status bench_requests(kakeya_engine *engine, const bench_arguments *arguments, kakeya_error *error);
kakeya_status bench_url(const bench_arguments *arguments, kakeya_error *error);
/* The runs of the latter. KAKEYA_IO: what the server said instead of an answer. */
kakeya_status bench_url_measure(const bench_arguments *arguments, const bench_load *load, bench_figures *median,
                                bench_spread *seconds, kakeya_error *error);

#endif
