#include "decode/draft_control.h"

#include <math.h>
#include <string.h>

const draft_policy draft_policy_default = {
    .probe_share = 0.005,
    .shadow_share = 0.006,
    .blocks_between_probes = 6,
    .cost_doubt = 0.25,
    .hope = 0.6,
    .advantage = 1.04,
    .passage_share = 0.5,
    .assumed_row_share = 0.15,
    .assumed_draft_share = 0.3,
    .acceptance_memory = 16,
    .surprises = 3,
    .memory_after_surprise = 3,
    .recent_blocks = 16,
    .enough_samples = 3,
    .assumed_weight = 0.5f,
    .expected_weight = 1,
    .assumed_dflash_rate = 0.8f,
    .assumed_ngram_rate = {0, 0.2f, 0.4f, 0.6f, 0.75f},
    .assumed_ngram_next_rate = 0.8f,
};

/* ------------------------------------------------------------------------------------------------- estimates */

static void cost_add(cost_samples *samples, double seconds) {
    samples->seconds[samples->next] = (float)seconds;
    samples->next = (samples->next + 1) % COST_SAMPLES;
    if (samples->n < COST_SAMPLES) samples->n++;
}

/* The second smallest: disturbances only ever add time. Of one or two samples the smaller, because a first run also
 * pays for cold caches. */
static double cost_estimate(const draft_policy *policy, const cost_samples *samples) {
    float smallest = INFINITY, second = INFINITY;
    for (int i = 0; i < samples->n; i++) {
        float x = samples->seconds[i];
        if (x < smallest) {
            second = smallest;
            smallest = x;
        } else if (x < second) {
            second = x;
        }
    }
    return (double)(samples->n < policy->enough_samples ? smallest : second);
}

/* More rows or drafts cannot cost less: a smaller figure measured further up holds below too. */
static double cost_at_most(const draft_policy *policy, const cost_samples *table, int size, int at) {
    double least = INFINITY;
    for (int i = at; i < size; i++) {
        if (table[i].n && cost_estimate(policy, &table[i]) < least) least = cost_estimate(policy, &table[i]);
    }
    return least;
}

/* Nearest measured counts around `at`: between two of them costs are interpolated. */
static void measured_neighbours(const cost_samples *table, int size, int at, int *below, int *above) {
    *below = at;
    while (*below > 0 && table[*below].n == 0) (*below)--;
    *above = at;
    while (*above < size && table[*above].n == 0) (*above)++;
    if (*above == size) *above = 0;
}

double draft_control_verify_seconds(const draft_policy *policy, const draft_costs *costs, int rows) {
    enum { SIZE = BACKEND_MAX_DECODE_ROWS + 1 };
    int below, above;
    measured_neighbours(costs->verify, SIZE, rows, &below, &above);
    double shape = 1 + policy->assumed_row_share * (rows - 1);
    if (below && above) {
        double low = cost_at_most(policy, costs->verify, SIZE, below);
        if (below == above) return low;
        double high = cost_at_most(policy, costs->verify, SIZE, above);
        /* in policy->hope of a step in between: whatever is chosen gets measured */
        return low + (high - low) * policy->hope * (rows - below) / (above - below);
    }
    int known = below ? below : above;
    if (!known) return shape;
    return cost_at_most(policy, costs->verify, SIZE, known) * shape / (1 + policy->assumed_row_share * (known - 1));
}

double draft_control_draft_seconds(const draft_policy *policy, const draft_costs *costs, int drafts) {
    enum { SIZE = BACKEND_MAX_DRAFT + 1 };
    int below, above;
    measured_neighbours(costs->draft, SIZE, drafts, &below, &above);
    if (!below && !above) return policy->assumed_draft_share * draft_control_verify_seconds(policy, costs, 1);
    return cost_at_most(policy, costs->draft, SIZE, above ? above : below);
}

double draft_control_tokens(const draft_acceptance *acceptance, int length) {
    double tokens = 1, reached = 1;
    for (int i = 0; i < length; i++) {
        reached *= (double)acceptance->rate[i];
        tokens += reached;
    }
    return tokens;
}

static void acceptance_init(const draft_policy *policy, draft_acceptance *acceptance, float first, float next) {
    for (int i = 0; i < BACKEND_MAX_DRAFT; i++) {
        acceptance->rate[i] = i == 0 ? first : next;
        acceptance->weight[i] = policy->assumed_weight;
        acceptance->streak[i] = 0;
    }
}

static void acceptance_add(const draft_policy *policy, draft_acceptance *acceptance, int position, bool accepted) {
    float *rate = &acceptance->rate[position], *count = &acceptance->weight[position];
    int *streak = &acceptance->streak[position];
    if (accepted)
        *streak = *streak > 0 ? *streak + 1 : 1;
    else
        *streak = *streak < 0 ? *streak - 1 : -1;
    bool surprise = accepted ? *streak >= policy->surprises && *rate < 0.5f : *streak <= -policy->surprises && *rate > 0.5f;
    if (surprise && *count > policy->memory_after_surprise) *count = policy->memory_after_surprise;
    *rate += ((accepted ? 1.0f : 0.0f) - *rate) / (*count + 1);
    if (*count < policy->acceptance_memory) *count += 1;
}

/* -------------------------------------------------------------------------------------------------- planning */

static void acceptance_expect(const draft_policy *policy, draft_acceptance *acceptance, const float *rate) {
    for (int i = 0; i < BACKEND_MAX_DRAFT; i++) {
        acceptance->rate[i] = rate[i];
        acceptance->weight[i] = policy->expected_weight;
    }
}

void draft_control_init(draft_control *control, const draft_policy *policy, int max_dflash, const draft_experience *experience) {
    memset(control, 0, sizeof *control);
    control->policy = policy ? policy : &draft_policy_default;
    policy = control->policy;
    control->max_dflash = max_dflash < BACKEND_MAX_DRAFT ? max_dflash : BACKEND_MAX_DRAFT;
    acceptance_init(control->policy, &control->dflash, policy->assumed_dflash_rate, policy->assumed_dflash_rate);
    for (int m = 0; m <= NGRAM_MAX_MATCH; m++) {
        acceptance_init(control->policy, &control->ngram[m], policy->assumed_ngram_rate[m], policy->assumed_ngram_next_rate);
        acceptance_init(control->policy, &control->extension[m], policy->assumed_ngram_rate[m], policy->assumed_ngram_next_rate);
    }
    if (!experience || !experience->known) return;
    control->costs = experience->costs;
    control->budget = experience->budget;
    acceptance_expect(control->policy, &control->dflash, experience->dflash_rate);
    for (int m = 0; m <= NGRAM_MAX_MATCH; m++) {
        acceptance_expect(control->policy, &control->ngram[m], experience->ngram_rate[m]);
        acceptance_expect(control->policy, &control->extension[m], experience->extension_rate[m]);
    }
}

/* A rate that this turn has observed moves half way to the turn's; the first turn's rates are taken as they are. */
static void share_rates(const draft_policy *policy, const draft_acceptance *acceptance, bool first, float *rate) {
    for (int i = 0; i < BACKEND_MAX_DRAFT; i++) {
        if (first) rate[i] = acceptance->rate[i];
        else if (acceptance->weight[i] > policy->expected_weight) rate[i] += (acceptance->rate[i] - rate[i]) / 2;
    }
}

void draft_control_share(const draft_control *control, draft_experience *experience) {
    bool first = !experience->known;
    experience->known = true;
    experience->costs = control->costs;
    experience->budget = control->budget;
    share_rates(control->policy, &control->dflash, first, experience->dflash_rate);
    for (int m = 0; m <= NGRAM_MAX_MATCH; m++) {
        share_rates(control->policy, &control->ngram[m], first, experience->ngram_rate[m]);
        share_rates(control->policy, &control->extension[m], first, experience->extension_rate[m]);
    }
}

/* Expected tokens and seconds of a block. */
typedef struct outlook {
    double tokens, seconds;
} outlook;

static outlook outlook_of(const draft_control *control, draft_source source, int length, int match) {
    outlook o = {1, draft_control_verify_seconds(control->policy, &control->costs, length + 1)};
    if (source == DRAFT_DFLASH) {
        o.tokens = draft_control_tokens(&control->dflash, length);
        o.seconds += draft_control_draft_seconds(control->policy, &control->costs, length);
    } else if (source == DRAFT_NGRAM) {
        o.tokens = draft_control_tokens(&control->ngram[match], length);
    }
    return o;
}

static bool any_verify_cost(const draft_costs *costs) {
    for (int rows = 1; rows <= BACKEND_MAX_DECODE_ROWS; rows++)
        if (costs->verify[rows].n) return true;
    return false;
}

/* Probed in turn: plain autoregression, the neighbours of the best length, the longest, and every length one by one. */
enum probe_kind { PROBE_NONE = 0, PROBE_LONGER, PROBE_SHORTER, PROBE_LONGEST, PROBE_EVERY, PROBE_KINDS };

static draft_plan probe_plan(const draft_control *control, draft_plan best, int longest) {
    draft_plan plan = {.source = DRAFT_DFLASH};
    int current = best.source == DRAFT_DFLASH ? best.length : 0;
    switch (control->next_probe) {
    case PROBE_LONGER:
        plan.length = current + 1;
        break;
    case PROBE_SHORTER:
        plan.length = current - 1;
        break;
    case PROBE_LONGEST:
        plan.length = longest;
        break;
    case PROBE_EVERY:
        plan.length = longest ? 1 + control->next_length % longest : 0;
        break;
    default:
        break;
    }
    if (plan.length > longest) plan.length = longest;
    if (plan.length <= 0) plan = (draft_plan){.source = DRAFT_NONE};
    return plan;
}

static void next_probe(draft_control *control) {
    if (control->next_probe == PROBE_EVERY) control->next_length++;
    control->next_probe = (control->next_probe + 1) % PROBE_KINDS;
}

/* Replaces `best` by a probe if one is due, could teach something and fits the budget. */
static void consider_probe(draft_control *control, draft_plan *best, int longest) {
    const draft_policy *policy = control->policy;
    if (control->blocks_since_probe < policy->blocks_between_probes) return;
    for (int tried = 0; tried < PROBE_KINDS; tried++) {
        draft_plan plan = probe_plan(control, *best, longest);
        bool same = plan.source == best->source && plan.length == best->length;
        outlook o = outlook_of(control, plan.source, plan.length, 0);
        double loss = o.seconds - o.tokens / control->best_rate;
        if (same || o.tokens < control->best_rate * o.seconds * policy->cost_doubt) {
            next_probe(control);
            continue;
        }
        /* too dear: its turn stays until the budget has grown */
        if (loss > 0 && control->budget.probe_seconds + loss > policy->probe_share * control->budget.elapsed_seconds) return;
        next_probe(control);
        control->probing = true;
        *best = plan;
        return;
    }
}

draft_plan draft_control_plan(draft_control *control, int limit, int ngram_available, int ngram_match) {
    const draft_policy *policy = control->policy;
    int longest = control->max_dflash < limit ? control->max_dflash : limit;
    int longest_ngram = ngram_available < limit ? ngram_available : limit;
    control->probing = false;

    /* Start in policy->hope: a full block, one without drafts to compare it with, and unless all was rejected a second full
     * one, because the first also paid for cold caches. */
    const cost_samples *verify = control->costs.verify;
    draft_plan best = {.source = DRAFT_NONE};
    bool known = verify[1].n > 0;
    bool again = known && verify[longest + 1].n == 1 && control->dflash.streak[0] > 0;
    if (longest > 0 && (again || !any_verify_cost(&control->costs)))
        best = (draft_plan){.source = DRAFT_DFLASH, .length = longest};
    outlook first = outlook_of(control, best.source, best.length, 0);
    control->best_rate = first.tokens / first.seconds;
    if (best.source != DRAFT_NONE || !known) return best;

    double threshold = control->best_rate * (control->drafting ? 1 : policy->advantage);
    for (int length = 1; length <= longest; length++) {
        outlook o = outlook_of(control, DRAFT_DFLASH, length, 0);
        if (o.tokens <= threshold * o.seconds) continue;
        control->best_rate = threshold = o.tokens / o.seconds;
        best = (draft_plan){.source = DRAFT_DFLASH, .length = length};
    }
    for (int length = 1; length <= longest_ngram; length++) {
        outlook o = outlook_of(control, DRAFT_NGRAM, length, ngram_match);
        if (o.tokens <= threshold * o.seconds) continue;
        control->best_rate = threshold = o.tokens / o.seconds;
        best = (draft_plan){.source = DRAFT_NGRAM, .length = length};
    }
    control->drafting = best.source != DRAFT_NONE;
    if (best.source != DRAFT_NGRAM) consider_probe(control, &best, longest);
    if (best.source != DRAFT_DFLASH && longest > 0 && control->shadow_dflash.at == control->shadow_dflash.n &&
        control->budget.shadow_seconds + draft_control_draft_seconds(control->policy, &control->costs, longest) <=
            policy->shadow_share * control->budget.elapsed_seconds)
        best.shadow_length = longest;
    return best;
}

/* What a block of more rows may cost: one disturbed measurement of a number of rows must not keep it from being chosen, and thus
 * measured, again. */
static double hoped_verify_seconds(const draft_policy *policy, const draft_costs *costs, int rows) {
    double seconds = draft_control_verify_seconds(policy, costs, rows), shape = 1 + policy->assumed_row_share * (rows - 1);
    for (int fewer = 1; fewer < rows && costs->verify[rows].n < policy->enough_samples; fewer++) {
        if (costs->verify[fewer].n < policy->enough_samples) continue;
        double hoped = cost_estimate(policy, &costs->verify[fewer]) * shape / (1 + policy->assumed_row_share * (fewer - 1));
        if (hoped < seconds) seconds = hoped;
    }
    return seconds;
}

/* More rows are worth their time if they bring a share of what time brings on average, good and poor blocks together: a passage
 * that ends inside this block saves the next, which would be a poor one. */
draft_extension draft_control_extend(const draft_control *control, int kept, int available, int ngram_match) {
    const draft_policy *policy = control->policy;
    const float *next = control->extension[ngram_match].rate;
    const draft_budget *budget = &control->budget;
    double tokens = draft_control_tokens(&control->dflash, kept), reached = 1;
    double seconds = draft_control_verify_seconds(control->policy, &control->costs, kept + 1);
    double worth = budget->recent_seconds > 0
                       ? budget->recent_tokens / budget->recent_seconds
                       : tokens / (seconds + draft_control_draft_seconds(control->policy, &control->costs, kept));
    worth *= policy->passage_share;
    for (int i = 0; i < kept; i++) reached *= (double)control->dflash.rate[i];
    draft_extension best = {.kept = kept, .value = tokens - worth * seconds};
    for (int more = 1; more <= available && !control->probing; more++) { /* a probe is about DFlash alone */
        reached *= (double)next[more - 1];
        tokens += reached;
        double value = tokens - worth * hoped_verify_seconds(control->policy, &control->costs, kept + 1 + more);
        if (value > best.value) best = (draft_extension){.kept = kept, .more = more, .value = value};
    }
    return best;
}

/* ---------------------------------------------------------------------------------------------------- learning */

static bool watch(draft_shadow *shadow, int ngram_match, const int32_t *tokens, int n) {
    if (shadow->at < shadow->n) return false; /* the one being watched goes on */
    *shadow = (draft_shadow){.n = n, .match = ngram_match};
    memcpy(shadow->tokens, tokens, (size_t)n * sizeof *tokens);
    return true;
}

void draft_control_watch(draft_control *control, draft_source source, int ngram_match, const int32_t *tokens, int verified, int n) {
    draft_shadow *shadow = source == DRAFT_DFLASH ? &control->shadow_dflash : &control->shadow_ngram;
    if (watch(shadow, ngram_match, tokens, n)) shadow->skip = verified;
}

void draft_control_watch_extension(draft_control *control, int ngram_match, const int32_t *tokens, int kept, int verified, int n) {
    draft_shadow *shadow = &control->shadow_extension;
    if (!watch(shadow, ngram_match, tokens, n)) return;
    shadow->first = kept;
    shadow->skip = verified;
}

static void shadow_step(const draft_policy *policy, draft_shadow *shadow, draft_acceptance *acceptance, int32_t token) {
    if (shadow->at == shadow->n) return;
    bool right = shadow->tokens[shadow->at] == token;
    if (shadow->at >= shadow->skip) acceptance_add(policy, acceptance, shadow->at - shadow->first, right);
    shadow->at = right ? shadow->at + 1 : shadow->n;
}

void draft_control_token(draft_control *control, int32_t token) {
    shadow_step(control->policy, &control->shadow_dflash, &control->dflash, token);
    shadow_step(control->policy, &control->shadow_ngram, &control->ngram[control->shadow_ngram.match], token);
    shadow_step(control->policy, &control->shadow_extension, &control->extension[control->shadow_extension.match], token);
}

/* Of `drafted` drafts the first `accepted` were accepted, or all where that is more. */
static void acceptance_of(const draft_policy *policy, draft_acceptance *acceptance, int drafted, int accepted) {
    for (int i = 0; i < drafted && i <= accepted; i++) acceptance_add(policy, acceptance, i, i < accepted);
}

void draft_control_record(draft_control *control, const draft_block *block, double shadow_seconds, int shadow_drafts) {
    const draft_policy *policy = control->policy;
    cost_add(&control->costs.verify[block->drafted + 1], block->verify_seconds);
    int own = block->drafted - block->looked_up;
    if (block->source == DRAFT_DFLASH) cost_add(&control->costs.draft[block->asked], block->draft_seconds);
    if (shadow_drafts) cost_add(&control->costs.draft[shadow_drafts], shadow_seconds);

    if (block->source == DRAFT_DFLASH) acceptance_of(control->policy, &control->dflash, own, block->accepted);
    if (block->source == DRAFT_DFLASH && block->accepted >= own)
        acceptance_of(control->policy, &control->extension[block->ngram_match], block->looked_up, block->accepted - own);
    if (block->source == DRAFT_NGRAM) acceptance_of(control->policy, &control->ngram[block->ngram_match], block->drafted, block->accepted);

    double seconds = block->draft_seconds + block->verify_seconds;
    control->budget.elapsed_seconds += seconds + shadow_seconds;
    control->budget.recent_tokens += block->accepted + 1 - control->budget.recent_tokens / policy->recent_blocks;
    control->budget.recent_seconds += seconds - control->budget.recent_seconds / policy->recent_blocks;
    control->budget.shadow_seconds += shadow_seconds;
    control->blocks_since_probe++;
    if (control->probing) {
        control->budget.probe_seconds += seconds - (block->accepted + 1) / control->best_rate;
        if (control->budget.probe_seconds < 0) control->budget.probe_seconds = 0; /* a lucky probe saves up nothing */
        control->blocks_since_probe = 0;
        control->probing = false;
    }
}
