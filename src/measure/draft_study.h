/* The study behind `kakeya eval draft-policy`: what the choice of draft lengths is worth, and how much each of its
 * constants matters. Texts are recorded once (draft_trace.h) and decoded again and again by the product's own loop over
 * a backend that plays the recording back, on a clock that advances by what each step cost on the machine that recorded
 * it. */
#ifndef KAKEYA_MEASURE_DRAFT_STUDY_H
#define KAKEYA_MEASURE_DRAFT_STUDY_H

#include "decode/draft_control.h"
#include "measure/draft_trace.h"
#include "measure/eval.h"

typedef struct draft_record_options {
    const char *const *files; /* code to continue, at least one */
    size_t n_files;
    int needles;      /* prompts that ask for a code in a long text */
    int random_texts; /* prompts of random tokens, answered at a temperature that makes the answer random, too */
    int max_tokens;   /* per text */
    uint64_t seed;
    eval_policies policies; /* n = 0: native */
} draft_record_options;

/* Records all texts under all policies. On failure *out holds nothing. */
kakeya_status draft_record(const eval_setup *setup, const draft_record_options *options, draft_traces *out,
                           kakeya_error *error);

typedef struct draft_replay_result {
    double seconds; /* as the clock of the recordings has it */
    int64_t tokens, forwards;
} draft_replay_result;

/* Decodes trace after trace, as sessions of one engine that share what they learn. `policy` NULL: the product's; mode
 * and draft_length as in kakeya_generate_options, resolved. Only traces for which `workload` and `attention` are NULL
 * or equal take part. KAKEYA_BACKEND where the loop does not reproduce a recorded text. */
kakeya_status draft_replay(const draft_traces *traces, bool one_text, const char *workload, const char *attention,
                           kakeya_mode mode, int draft_length, const draft_policy *policy, draft_replay_result *out,
                           kakeya_error *error);

/* A policy that differs from the product's, for the table: one constant halved or doubled, or a mechanism left out. */
typedef struct draft_variant {
    char name[64];
    draft_policy policy;
} draft_variant;
enum { DRAFT_MAX_VARIANTS = 96 };
/* All variants; returns their number. */
int draft_variants(draft_variant out[DRAFT_MAX_VARIANTS]);

#endif
