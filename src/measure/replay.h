/* A report's rows computed again. Tokens, likelihoods and drafts are bits, so nobody has to believe them: some rows are
 * drawn, the evaluation that the report's command names runs once more with all other rows left out, and what it finds
 * is compared. Times alone are nobody else's to find. */
#ifndef KAKEYA_MEASURE_REPLAY_H
#define KAKEYA_MEASURE_REPLAY_H

#include "measure/eval.h"
#include "measure/gate.h"

typedef struct replay_options {
    size_t rows; /* drawn at random, beside those on which the verdict hangs most */
    bool all;    /* every row, warm-up rows included */
    uint64_t seed;
} replay_options;

/* What was looked at, and what a change of the report would have had to escape. */
typedef struct replay_outcome {
    size_t rows, replayed;  /* of the report; of them computed again */
    size_t decisive, drawn; /* of those: the ones that matter most to the verdict, and the random ones */
    bool exact;             /* same backend and instruction set: compared on bits; otherwise within bounds */
    char backend[64];       /* here */
    size_t arm_rows;        /* of the smallest arm */
    /* With which a change is found that was made to one row, to half of that arm's rows, to all rows of an arm. */
    double found_one, found_half, found_arm;
    size_t timed;                        /* rows whose times are compared */
    double speed;                        /* here, relative to the report: the median over them. Not reproducible */
    double slowest_usual, fastest_usual; /* tolerance of `speed`: beyond it, another machine or other times */
} replay_outcome;

typedef struct replay replay;

/* Reads a report that the gate does not refuse, and chooses its rows. The report outlives the replay.
 * KAKEYA_UNSUPPORTED: a kind whose rows are not computed again. */
kakeya_status replay_open(const cJSON *report, const replay_options *options, replay **out, kakeya_error *error);
/* For eval_setup, while the evaluation runs. */
const eval_replay *replay_hook(const replay *r);
/* Compares; adds to *result what the report says otherwise. */
kakeya_status replay_judge(replay *r, const eval_report *again, gate_result *result, replay_outcome *outcome,
                           kakeya_error *error);
void replay_close(replay *r); /* NULL is fine */

#endif
