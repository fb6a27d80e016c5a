/* What blocks cost on this machine: the last few measurements by number of rows and of drafts, and estimates from them.
 */
#ifndef KAKEYA_DECODE_DRAFT_COSTS_H
#define KAKEYA_DECODE_DRAFT_COSTS_H

#include "backend/backend.h"
#include "decode/draft_policy.h"

enum { COST_SAMPLES = 5 };

/* The last few measurements of one kind of block: computing, and waiting for weights that are read from files. */
typedef struct cost_samples {
    float seconds[COST_SAMPLES], reading[COST_SAMPLES];
    int n, next;
} cost_samples;

/* Of the machine and the attention policy, not of a text. All zero: nothing measured yet. */
typedef struct draft_costs {
    cost_samples verify[BACKEND_MAX_DECODE_ROWS + 1];            /* by rows, with commit */
    cost_samples draft[BACKEND_DRAFTERS][BACKEND_MAX_DRAFT + 1]; /* of each drafter, by drafts */
} draft_costs;

/* reading: of the seconds, those that were waited for weights. */
void draft_costs_add(cost_samples *samples, double seconds, double reading);
/* Interpolated between measured numbers of rows; beyond them the time grows as the policy assumes. Where nothing is
 * measured one row costs 1. */
double draft_costs_verify(const draft_policy *policy, const draft_costs *costs, int rows);
/* The same, but a number of rows that was seldom measured is taken for no dearer than fewer rows let expect: one
 * disturbed measurement must not keep a length from being chosen, and thus measured, again. */
double draft_costs_hoped_verify(const draft_policy *policy, const draft_costs *costs, int rows);
/* DFlash drafts a block at once, and more drafts are hardly dearer; of an assistant each takes as long as the one
 * before. Interpolated and continued accordingly. */
double draft_costs_draft(const draft_policy *policy, const draft_costs *costs, backend_drafter drafter, int drafts);

#endif
