#include "session/step_costs.h"

#include <math.h>

/* Weight of the past at each step: the last thirty or so count. */
static const double memory_of_steps = 0.97;
/* A row beside others costs this share of a row alone where steps of one size say nothing about it. */
static const double assumed_row_share = 0.5;

void step_costs_add(step_costs *c, int rows, int tokens, double seconds) {
    double *sums[] = {&c->weight, &c->rows, &c->seconds, &c->rows_rows, &c->rows_seconds, &c->tokens};
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++) *sums[i] *= memory_of_steps;
    c->weight += 1;
    c->rows += rows;
    c->seconds += seconds;
    c->rows_rows += (double)rows * rows;
    c->rows_seconds += rows * seconds;
    c->tokens += tokens;
}

void step_costs_add_drafts(step_costs *c, int sessions, double seconds) {
    double each = seconds / sessions;
    c->draft_seconds = c->draft_seconds > 0 ? 0.9 * c->draft_seconds + 0.1 * each : each;
}

draft_prices step_costs_prices(const step_costs *c) {
    if (c->weight == 0 || c->tokens <= 0) return (draft_prices){.row = INFINITY, .drafts = INFINITY};
    double spread = c->weight * c->rows_rows - c->rows * c->rows;
    double row = assumed_row_share * c->seconds / c->rows;
    if (spread > 0.05 * c->rows * c->rows) row = (c->weight * c->rows_seconds - c->rows * c->seconds) / spread;
    if (row < 0) row = 0;
    double token = c->seconds / c->tokens, drafts = c->draft_seconds > 0 ? c->draft_seconds : row;
    return (draft_prices){.row = row / token, .drafts = drafts / token};
}
