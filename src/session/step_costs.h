/* What rows cost when many sessions share a forward, and thus which drafts are worth theirs. */
#ifndef KAKEYA_SESSION_STEP_COSTS_H
#define KAKEYA_SESSION_STEP_COSTS_H

#include "decode/draft_control.h"

/* Exponentially weighted sums over the last steps, for a straight line seconds = a + b rows. All zero: nothing yet. */
typedef struct step_costs {
    double weight, rows, seconds, rows_rows, rows_seconds;
    double tokens;        /* that joined timelines, weighted alike */
    double draft_seconds; /* of one session's drafts in a batch; 0: not measured */
} step_costs;

/* A step of decode rows alone that brought `tokens`. */
void step_costs_add(step_costs *costs, int rows, int tokens, double seconds);
void step_costs_add_drafts(step_costs *costs, int sessions, double seconds);
/* In tokens: what one more row costs, and one session's drafts. Infinite while nothing is known: no drafts then. */
draft_prices step_costs_prices(const step_costs *costs);

#endif
