#include "decode/draft_costs.h"

#include <math.h>

enum { ENOUGH_SAMPLES = 3 };

void draft_costs_add(cost_samples *samples, double seconds, double reading) {
    samples->seconds[samples->next] = (float)(seconds - reading);
    samples->reading[samples->next] = (float)reading;
    samples->next = (samples->next + 1) % COST_SAMPLES;
    if (samples->n < COST_SAMPLES) samples->n++;
}

/* Of computing the second smallest: disturbances only ever add time. Of one or two samples the smaller, because a first
 * run also pays for cold caches. Of reading the mean: blocks differ in the experts that they have to fetch. */
static double cost_estimate(const cost_samples *samples) {
    float smallest = INFINITY, second = INFINITY, reading = 0;
    for (int i = 0; i < samples->n; i++) {
        reading += samples->reading[i] / (float)samples->n;
        float x = samples->seconds[i];
        if (x < smallest) {
            second = smallest;
            smallest = x;
        } else if (x < second) {
            second = x;
        }
    }
    return (double)((samples->n < ENOUGH_SAMPLES ? smallest : second) + reading);
}

/* More rows or drafts cannot cost less: a smaller figure measured further up holds below too. */
static double cost_at_most(const cost_samples *table, int size, int at) {
    double least = INFINITY;
    for (int i = at; i < size; i++) {
        if (table[i].n && cost_estimate(&table[i]) < least) least = cost_estimate(&table[i]);
    }
    return least;
}

/* Nearest measured counts around `at`, 0: none. */
static void measured_neighbours(const cost_samples *table, int size, int at, int *below, int *above) {
    *below = at;
    while (*below > 0 && table[*below].n == 0) (*below)--;
    *above = at;
    while (*above < size && table[*above].n == 0) (*above)++;
    if (*above == size) *above = 0;
}

double draft_costs_verify(const draft_policy *policy, const draft_costs *costs, int rows) {
    enum { SIZE = BACKEND_MAX_DECODE_ROWS + 1 };
    int below, above;
    measured_neighbours(costs->verify, SIZE, rows, &below, &above);
    if (below && above) {
        double low = cost_at_most(costs->verify, SIZE, below);
        if (below == above) return low;
        return low + (cost_at_most(costs->verify, SIZE, above) - low) * (rows - below) / (above - below);
    }
    double share = policy->assumed_row_share, shape = 1 + share * (rows - 1);
    int known = below ? below : above;
    return known ? cost_at_most(costs->verify, SIZE, known) * shape / (1 + share * (known - 1)) : shape;
}

double draft_costs_hoped_verify(const draft_policy *policy, const draft_costs *costs, int rows) {
    double seconds = draft_costs_verify(policy, costs, rows), share = policy->assumed_row_share;
    for (int fewer = 1; fewer < rows && costs->verify[rows].n < ENOUGH_SAMPLES; fewer++) {
        if (costs->verify[fewer].n < ENOUGH_SAMPLES) continue;
        double hoped = cost_estimate(&costs->verify[fewer]) * (1 + share * (rows - 1)) / (1 + share * (fewer - 1));
        if (hoped < seconds) seconds = hoped;
    }
    return seconds;
}

static double block_seconds(const draft_policy *policy, const draft_costs *costs, int drafts) {
    enum { SIZE = BACKEND_MAX_DRAFT + 1 };
    const cost_samples *table = costs->draft[BACKEND_BLOCK_DRAFTER];
    int below, above;
    measured_neighbours(table, SIZE, drafts, &below, &above);
    if (!below && !above) return policy->assumed_draft_share * draft_costs_verify(policy, costs, 1);
    return cost_at_most(table, SIZE, above ? above : below);
}

static double chain_seconds(const draft_policy *policy, const draft_costs *costs, int drafts) {
    enum {
        SIZE = BACKEND_MAX_DRAFT + 1,
        ASSUMED_DRAFTS = 4 /* for the share of a forward that drafting is assumed to take */
    };
    const cost_samples *table = costs->draft[BACKEND_ASSISTANT];
    int below, above;
    measured_neighbours(table, SIZE, drafts, &below, &above);
    if (!below && !above)
        return policy->assumed_draft_share * draft_costs_verify(policy, costs, 1) * drafts / ASSUMED_DRAFTS;
    if (!below || !above) {
        int known = below ? below : above;
        return cost_at_most(table, SIZE, known) * drafts / known;
    }
    double low = cost_at_most(table, SIZE, below);
    if (below == above) return low;
    return low + (cost_at_most(table, SIZE, above) - low) * (drafts - below) / (above - below);
}

double draft_costs_draft(const draft_policy *policy, const draft_costs *costs, backend_drafter drafter, int drafts) {
    return (drafter == BACKEND_ASSISTANT ? chain_seconds : block_seconds)(policy, costs, drafts);
}
