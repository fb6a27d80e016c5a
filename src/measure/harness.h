/* What the evaluations share: an engine, a report, and one function that runs one arm on one prompt. */
#ifndef KAKEYA_MEASURE_HARNESS_H
#define KAKEYA_MEASURE_HARNESS_H

#include "kakeya_study.h"
#include "measure/eval.h"
#include "session/session.h"

typedef struct eval_harness {
    const eval_setup *setup;
    kakeya_engine *engine;
    eval_report *report;
    int threads;                 /* of the engine */
    uint64_t done, total;        /* rows */
    struct harness_taken *taken; /* names and hashes of the prompts so far */
    size_t n_taken;
} eval_harness;

/* The setup's switches of tests; all zeros if it has none. */
kakeya_study_options harness_study(const eval_setup *setup);

/* Opens the engine (threads > 0 overrides the setup's). */
kakeya_status harness_open_engine(const eval_setup *setup, int threads, bool scaled_embedding, kakeya_engine **out,
                                  kakeya_error *error);
/* The engine and the number of its threads. */
kakeya_status harness_open(eval_harness *harness, const eval_setup *setup, int threads, kakeya_error *error);
/* What a report says of machine, program and models; NULL when out of memory. */
cJSON *harness_environment(const eval_harness *harness);
/* The report, once the options are known; takes options over. */
kakeya_status harness_report(eval_harness *harness, eval_kind kind, cJSON *options, kakeya_error *error);
/* Ends the report: complete where status is KAKEYA_OK, and hands it to *out. Closes the engine. Returns the first
 * failure. */
kakeya_status harness_close(eval_harness *harness, kakeya_status status, eval_report **out, kakeya_error *error);

/* The policies to run: those given, or the default ones. *n of at most HARNESS_POLICIES names. */
enum { HARNESS_POLICIES = 4 };
kakeya_status harness_policies(const eval_harness *harness, const eval_policies *given, bool native_only,
                               const char *out[HARNESS_POLICIES], size_t *n, kakeya_error *error);

/* Who can draft: "dflash" and "assistant", as far as the engine has them, and "ngram". */
enum { HARNESS_SOURCES = 3 };
size_t harness_sources(const eval_harness *harness, const char *out[HARNESS_SOURCES]);
/* Fills policy, mode and sizes from the setup. */
void harness_arm(const eval_harness *harness, const char *policy, kakeya_mode mode, eval_arm *out);

typedef struct harness_prompt {
    const char *sample;
    const int32_t *ids;
    size_t n;
    const int32_t *keys; /* NULL, or [n]: what it is known by where it has pictures (kakeya_prompt_keys) */
    const kakeya_media *media;
    size_t n_media;
} harness_prompt;

typedef struct harness_run {
    kakeya_engine *engine; /* NULL: the harness's own */
    session_reference reference;
    int max_tokens;
    uint64_t seed;
    bool truncates; /* cuts the last tokens off and generates them again */
} harness_run;

/* A run of the plan, whose row is the callee's: sample, arm and what else the plan says are set. */
typedef kakeya_status (*harness_run_fn)(void *user, eval_row *planned, kakeya_error *error);
/* The runs that the report's options promise; counts them. *out needs eval_rows_free. */
kakeya_status harness_plan(eval_harness *harness, eval_rows *out, kakeya_error *error);
/* Makes every run that the report's options promise, in their order. Once the report is there. */
kakeya_status harness_run_plan(eval_harness *harness, harness_run_fn run, void *user, kakeya_error *error);

/* Whether the run is wanted of which the row says what a plan knows. In a replay, it may not be. */
bool harness_wants(eval_harness *harness, const eval_row *row);
/* Generates from the prompt under row->arm in a session of its own and fills the rest of the row; what a plan knows of
 * it is there. On failure or when stopped the row is freed. */
kakeya_status harness_generate(eval_harness *harness, const harness_prompt *prompt, const harness_run *run,
                               eval_row *row, kakeya_error *error);
/* What a session holds behind the prompt, and how it came to it: for runs that harness_generate does not make. The
 * session's tokens begin with the prompt's. */
kakeya_status harness_result(const kakeya_session *session, const harness_prompt *prompt, const kakeya_stats *stats,
                             eval_row *row, kakeya_error *error);
/* Adds what one more part of an answer has taken. */
void harness_add_stats(kakeya_stats *sum, const kakeya_stats *more);
kakeya_mode harness_mode(const eval_arm *arm);
/* In a replay: what the first token of the report's row that is another has for it here (replay_margin). */
kakeya_status harness_margin(const eval_harness *harness, kakeya_session *session, const harness_prompt *prompt,
                             eval_row *row, kakeya_error *error);
/* False once the caller wants to stop. */
bool harness_wants_on(const eval_harness *harness);
/* Adds the row to the report and counts it. */
kakeya_status harness_add(eval_harness *harness, eval_row *row, kakeya_error *error);
/* KAKEYA_CANCELLED once the caller wants to stop. */
kakeya_status harness_poll(eval_harness *harness, kakeya_error *error);

/* Session options of an arm for a timeline of up to `tokens`. */
kakeya_session_options harness_session_options(const eval_harness *harness, const eval_arm *arm, size_t tokens);

/* Notes a prompt under its name. KAKEYA_INVALID_ARGUMENT where the name, or the prompt's tokens, were noted before:
 * every sample of a report has a name and a prompt of its own. */
kakeya_status harness_take_prompt(eval_harness *harness, const harness_prompt *prompt, kakeya_error *error);
/* Options that make equal arms are refused: KAKEYA_INVALID_ARGUMENT names the value that is there twice. */
kakeya_status harness_distinct(const char *option, const int *values, size_t n, kakeya_error *error);

uint64_t harness_prompt_hash(const int32_t *ids, size_t n);

/* Text files as token ids with <bos>, read as raw text. */
kakeya_status harness_read_text(const eval_harness *harness, const char *path, eval_sequence *out, kakeya_error *error);
void eval_sequences_free(eval_sequences *sequences);

/* Sizes of the sessions that the arms do not vary, for the report's options. */
void harness_add_sizes(const eval_harness *harness, cJSON *options);
/* What a report says of options that are settled, sizes included; NULL when out of memory. */
cJSON *harness_options(const eval_harness *harness, eval_kind kind, const eval_options *options);
/* "images": the digests of pictures, where there are any. Fails where the engine reads none. */
kakeya_status harness_add_pictures(const eval_harness *harness, const eval_pictures *pictures, cJSON *options,
                                   kakeya_error *error);
/* Arrays for the report's options. */
cJSON *harness_names(const char *const *names, size_t n);
cJSON *harness_sequence_names(const eval_sequences *sequences); /* NULL when out of memory */

#endif
