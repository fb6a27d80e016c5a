/* `kakeya verify`: the certificate that what a session says does not depend on how it is computed, for the weights that
 * are loaded, on this machine. One engine is open at a time: its memory is a server's. */
#ifndef KAKEYA_MEASURE_VERIFY_H
#define KAKEYA_MEASURE_VERIFY_H

#include "measure/eval.h"

typedef struct verify_options {
    eval_policies policies;        /* n = 0: native, and restored or, without an f_theta, sink-window */
    const char *const *kv_formats; /* "f32", "bf16", "q8", "q4"; n = 0: the engine's own choice */
    size_t n_kv_formats;
    int max_tokens; /* of every answer, VERIFY_LEAST_TOKENS to VERIFY_MOST_TOKENS */
    uint64_t seed;
    double seconds;     /* in which rounds are begun; at least one is made */
    int rounds;         /* most of them; 0: as many as the time allows */
    const char *logits; /* safetensors: logits [n, vocab] of ids [n], made elsewhere (verify_logits.h); NULL: none */
    /* Does verify_elsewhere(directory) in another process, with so many threads. */
    kakeya_status (*elsewhere)(void *user, const char *directory, int threads, kakeya_error *error);
    void *elsewhere_user;
    void (*on_engine)(void *user, kakeya_engine *engine); /* may be NULL: called when the engine has been opened */
    void *engine_user;
} verify_options;

/* On failure *out is the report as far as it came, or NULL. That streams differ is no failure: the report says so, and
 * verify_differences. */
kakeya_status verify_run_all(const eval_setup *setup, const verify_options *options, eval_report **out,
                             kakeya_error *error);

/* The other process's part: reads what the first has left in the directory, and leaves a report there. on_engine may be
 * NULL. */
kakeya_status verify_elsewhere(const eval_setup *setup, const char *directory,
                               void (*on_engine)(void *user, kakeya_engine *engine), void *user, kakeya_error *error);

/* Streams of the report that are not their reference's. */
size_t verify_differences(const eval_report *report);

/* What the two processes call their files. */
#define VERIFY_PLAN_FILE   "plan.json"
#define VERIFY_REPORT_FILE "rows.json"

#endif
