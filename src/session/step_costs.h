/* What rows cost when many sessions share a forward, and thus which drafts are worth theirs. */
#ifndef KAKEYA_SESSION_STEP_COSTS_H
#define KAKEYA_SESSION_STEP_COSTS_H

#include "decode/draft_control.h"

enum { STEP_COSTS_SIZES = 9 }; /* up to BACKEND_MAX_SEGMENTS = 2^8 */

/* Exponentially weighted sums over the last steps, for a straight line seconds = a + b rows. All zero: nothing yet. */
typedef struct step_costs {
    double weight, rows, seconds, rows_rows, rows_seconds;
    double tokens; /* that joined timelines, weighted alike */
    /* Of one session's drafts in a batch, of an assistant of one draft, by drafter and binary logarithm of the
     * sessions that drafted together; 0: not measured. */
    double draft_seconds[BACKEND_DRAFTERS][STEP_COSTS_SIZES];
} step_costs;

/* A step of decode rows alone that brought `tokens`. */
void step_costs_add(step_costs *costs, int rows, int tokens, double seconds);
/* `drafts`: of the assistant, over all sessions; not looked at of the other drafter. */
void step_costs_add_drafts(step_costs *costs, backend_drafter drafter, int sessions, int drafts, double seconds);
/* In tokens: what one more row costs, and one session's drafts where so many draft together. Infinite while nothing is
 * known: no drafts then. */
draft_prices step_costs_prices(const step_costs *costs, int sessions);

#endif
