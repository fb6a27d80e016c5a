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

static int size_of(int sessions) {
    int size = 0;
    while (size + 1 < STEP_COSTS_SIZES && sessions >> (size + 1)) size++;
    return size;
}

void step_costs_add_drafts(step_costs *c, backend_drafter drafter, int sessions, int drafts, double seconds) {
    double *known = &c->draft_seconds[drafter][size_of(sessions)];
    double each = seconds / (drafter == BACKEND_ASSISTANT ? drafts : sessions);
    *known = *known > 0 ? 0.9 * *known + 0.1 * each : each;
}

/* Of so many sessions, or of the nearest number that was measured; 0: none was. */
static double draft_seconds_of(const step_costs *c, int drafter, int sessions) {
    const double *known = c->draft_seconds[drafter];
    const int size = size_of(sessions);
    for (int far = 0; far < STEP_COSTS_SIZES; far++) {
        if (size - far >= 0 && known[size - far] > 0) return known[size - far];
        if (size + far < STEP_COSTS_SIZES && known[size + far] > 0) return known[size + far];
    }
    return 0;
}

draft_prices step_costs_prices(const step_costs *c, int sessions) {
    draft_prices prices = {.row = (double)INFINITY, .drafts = {(double)INFINITY, (double)INFINITY}};
    if (c->weight == 0 || c->tokens <= 0) return prices;
    double spread = c->weight * c->rows_rows - c->rows * c->rows;
    double row = assumed_row_share * c->seconds / c->rows;
    if (spread > 0.05 * c->rows * c->rows) row = (c->weight * c->rows_seconds - c->rows * c->seconds) / spread;
    if (row < 0) row = 0;
    double token = c->seconds / c->tokens;
    prices.row = row / token;
    for (int d = 0; d < BACKEND_DRAFTERS; d++) {
        double drafts = draft_seconds_of(c, d, sessions);
        prices.drafts[d] = (drafts > 0 ? drafts : row) / token;
    }
    return prices;
}
