/* Figures derived from raw rows. The evaluation writes them into its report and prints them; the gate derives them
 * again and compares. Nothing but rows goes in. */
#ifndef KAKEYA_MEASURE_SUMMARY_H
#define KAKEYA_MEASURE_SUMMARY_H

#include "measure/rows.h"

/* The "summary" object of a report (docs/reference/reports.md), freed with cJSON_Delete; NULL when out of memory. */
cJSON *eval_summary_derive(eval_kind kind, const eval_rows *rows);

/* The part of kv-format (summary_kv_format.c); scratch is not used. False when out of memory. */
bool summarise_kv_format(cJSON *summary, const eval_rows *rows, double *scratch);
/* The part of verify (summary_verify.c); scratch: [rows->n]. */
bool summarise_verify(cJSON *summary, const eval_rows *rows, double *scratch);

/* Compares token streams that must be equal: rows of the same sample under the same policy, temperature and
 * drafter-free settings, against the autoregressive row among them (the first row, where there is none). */
typedef struct eval_lossless {
    size_t streams;     /* groups of rows that must agree */
    size_t comparisons; /* rows compared with their reference */
    size_t differences;
    size_t alone;           /* streams of one row: compared with nothing */
    size_t diagnostics;     /* rows that mix K/V: their tokens differ on purpose, and nothing is claimed of them */
    const eval_row *lonely; /* the first stream of one row */
    /* the first difference, where there is one */
    const eval_row *reference, *different;
    size_t position; /* index into token_ids; the shorter stream's length when it is a prefix of the other, or when the
                        log-probabilities alone differ */
} eval_lossless;

/* The row that row i must agree with: the first autoregressive one of its stream; NULL: there is none. */
const eval_row *eval_lossless_reference(const eval_rows *rows, size_t i);
/* Whether they agree, log-probabilities included where there are some. *position (may be NULL): as above. */
bool eval_lossless_equal(const eval_row *reference, const eval_row *row, size_t *position);

void eval_lossless_compare(const eval_rows *rows, eval_lossless *out);

/* How much faster `mode` rows decode than AR rows of the same sample and policy: the median over samples of seconds per
 * token (AR) / seconds per token (arm), each the median over repetitions. 0 when no pair exists. */
typedef struct eval_speedup {
    double ratio;
    size_t pairs;
    size_t tokens, ar_tokens; /* decoded by the arms in all */
} eval_speedup;

kakeya_status eval_speedup_derive(const eval_rows *rows, const eval_arm *arm, eval_speedup *out, kakeya_error *error);

/* The AR arm that `arm` is compared with: same policy and settings, no drafts. */
bool eval_arm_is_ar_of(const eval_arm *ar, const eval_arm *arm);

#endif
