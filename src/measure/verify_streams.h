/* Streams of `kakeya verify`: what both of its processes do with one. */
#ifndef KAKEYA_MEASURE_VERIFY_STREAMS_H
#define KAKEYA_MEASURE_VERIFY_STREAMS_H

#include "measure/harness.h"
#include "measure/verify_plan.h"

typedef struct verify_run {
    eval_harness harness;
    verify_plan plan;
    const char *policies[VERIFY_POLICIES], *formats[VERIFY_FORMATS]; /* by the plan's indices */
    int max_tokens;
} verify_run;

/* Fills the plan and the formats (n = 0: the engine's own choice); policies are there. KAKEYA_INVALID_ARGUMENT names
 * what is unknown or named twice. */
kakeya_status verify_run_formats(verify_run *run, const char *const *formats, size_t n, kakeya_error *error);

typedef struct verify_prompt {
    char sample[32];
    int32_t *ids; /* [n], owned */
    size_t n;
} verify_prompt;

/* The prompt of a round's streams under a policy and a format; both processes draw the same. Freed by the caller. */
kakeya_status verify_prompt_draw(const verify_run *run, int round, int policy, int format, verify_prompt *out,
                                 kakeya_error *error);

/* One stream on its way to a row. It does not move while a request is under way. */
typedef struct verify_answer {
    verify_run *run;
    const verify_prompt *prompt;
    const verify_stream *plan;
    eval_row row;
    kakeya_session *session;
    kakeya_request *request;
    kakeya_generate_options generate;
    kakeya_stats stats; /* summed over the parts of the answer */
    size_t done;        /* tokens that were computed before, whose log-probabilities are in the row's hash already */
    double log_probability[VERIFY_MOST_TOKENS];
} verify_answer;

void verify_answer_init(verify_answer *answer, verify_run *run, int round, const verify_prompt *prompt,
                        const verify_stream *plan);
/* A session for it, with room for prompt and answer. */
kakeya_status verify_answer_open(verify_answer *answer, kakeya_error *error);
/* The prompt, in pieces as the plan says. */
kakeya_status verify_answer_prompt(verify_answer *answer, kakeya_error *error);
/* The next tokens of the answer. KAKEYA_CANCELLED where the caller wants to stop. */
kakeya_status verify_answer_go_on(verify_answer *answer, int tokens, kakeya_error *error);
/* The same, prompt included, beside others. */
kakeya_status verify_answer_submit(verify_answer *answer, kakeya_error *error);
kakeya_status verify_answer_wait(verify_answer *answer, kakeya_error *error);
/* The hash of the log-probabilities so far. */
uint64_t verify_answer_hash(const verify_answer *answer, size_t tokens);
/* The row goes into the report. */
kakeya_status verify_answer_report(verify_answer *answer, kakeya_error *error);
void verify_answer_close(verify_answer *answer); /* one that was never opened, too */

/* Of the file that one process leaves to the other. */
void verify_session_name(int round, const verify_stream *stream, char *out, size_t bytes);

#endif
