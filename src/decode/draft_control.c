#include "decode/draft_control.h"

#include <string.h>

const draft_policy draft_policy_default = {
    .probe_share = 0.005,
    .watch_share = 0.006,
    .passage_share = 0.5,
    .recent_blocks = 16,
    .advantage = 1.04,
    .acceptance_memory = 12,
    .surprises = 3,
    .memory_after_surprise = 3,
    .assumed_row_share = 0.15,
    .assumed_draft_share = 0.3,
    .assumed_dflash_rate = 0.8f,
    .assumed_ngram_rate = {0, 0.2f, 0.4f, 0.6f, 0.75f},
    .assumed_ngram_next_rate = 0.8f,
    .assumed_weight = 0.5f,
    .expected_weight = 1,
};

/* -------------------------------------------------------------------------------------------------- planning */

void draft_control_init(draft_control *control, const draft_policy *policy, int max_dflash,
                        const draft_experience *experience) {
    memset(control, 0, sizeof *control);
    control->policy = policy ? policy : &draft_policy_default;
    policy = control->policy;
    control->max_dflash = max_dflash < BACKEND_MAX_DRAFT ? max_dflash : BACKEND_MAX_DRAFT;
    draft_acceptance_assume(&control->dflash, policy->assumed_dflash_rate, policy->assumed_dflash_rate,
                            policy->assumed_weight);
    for (int m = 0; m <= NGRAM_MAX_MATCH; m++) {
        draft_acceptance_assume(&control->ngram[m], policy->assumed_ngram_rate[m], policy->assumed_ngram_next_rate,
                                policy->assumed_weight);
        draft_acceptance_assume(&control->extension[m], policy->assumed_ngram_rate[m], policy->assumed_ngram_next_rate,
                                policy->assumed_weight);
    }
    if (!experience || !experience->known) return;
    control->costs = experience->costs;
    control->budget = experience->budget;
    draft_acceptance_expect(&control->dflash, experience->dflash_rate, policy->expected_weight);
    for (int m = 0; m <= NGRAM_MAX_MATCH; m++) {
        draft_acceptance_expect(&control->ngram[m], experience->ngram_rate[m], policy->expected_weight);
        draft_acceptance_expect(&control->extension[m], experience->extension_rate[m], policy->expected_weight);
    }
}

/* A rate that this turn has observed moves half way to the turn's; the first turn's rates are taken as they are. */
static void share_rates(const draft_policy *policy, const draft_acceptance *acceptance, bool first, float *rate) {
    for (int i = 0; i < BACKEND_MAX_DRAFT; i++) {
        if (first)
            rate[i] = acceptance->rate[i];
        else if (acceptance->weight[i] > policy->expected_weight)
            rate[i] += (acceptance->rate[i] - rate[i]) / 2;
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

static double drafting(const draft_control *control, int drafts) {
    return control->chained ? draft_costs_chain(control->policy, &control->costs, drafts)
                            : draft_costs_draft(control->policy, &control->costs, drafts);
}

/* Drafts that the drafter may be asked for in the next block. */
static int longest_of(const draft_control *control, int limit) {
    if (control->unready) return 0;
    return control->max_dflash < limit ? control->max_dflash : limit;
}

/* Expected tokens and seconds of a block. */
typedef struct outlook {
    double tokens, seconds;
} outlook;

static outlook outlook_of(const draft_control *control, draft_source source, int length, int match) {
    const draft_policy *policy = control->policy;
    outlook o = {1, draft_costs_verify(policy, &control->costs, length + 1)};
    if (source == DRAFT_DFLASH) {
        o.tokens = draft_acceptance_tokens(&control->dflash, length);
        o.seconds += drafting(control, length);
    } else if (source == DRAFT_NGRAM) {
        o.tokens = draft_acceptance_tokens(&control->ngram[match], length);
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

/* Replaces `best` by a probe that differs from it, if what the probe is expected to lose fits the budget. */
static void consider_probe(draft_control *control, draft_plan *best, int longest) {
    const draft_policy *policy = control->policy;
    for (int tried = 0; tried < PROBE_KINDS; tried++) {
        draft_plan plan = probe_plan(control, *best, longest);
        bool same = plan.source == best->source && plan.length == best->length;
        outlook o = outlook_of(control, plan.source, plan.length, 0);
        double loss = o.seconds - o.tokens / control->best_rate;
        if (same) {
            next_probe(control);
            continue;
        }
        /* too dear: its turn stays until the budget has grown */
        if (loss > 0 && control->budget.probe_seconds + loss > policy->probe_share * control->budget.elapsed_seconds)
            return;
        next_probe(control);
        control->probing = true;
        *best = plan;
        return;
    }
}

draft_plan draft_control_plan(draft_control *control, int limit, int ngram_available, int ngram_match) {
    const draft_policy *policy = control->policy;
    int longest = longest_of(control, limit);
    int longest_ngram = ngram_available < limit ? ngram_available : limit;
    control->probing = false;

    /* Start in hope: a full block, one without drafts to compare it with, and if its first draft held a second full
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
    if (best.source != DRAFT_DFLASH && longest > 0 && control->watch_dflash.at == control->watch_dflash.n &&
        control->budget.watch_seconds + drafting(control, longest) <=
            policy->watch_share * control->budget.elapsed_seconds)
        best.watch_length = longest;
    return best;
}

/* Drafts of the source that are worth their rows, and in *value the tokens that they leave beyond all costs. */
static int worth_drafting(const float *rate, int longest, double row, double *value) {
    double reached = 1, sum = *value, best = 0;
    int length = 0;
    for (int i = 0; i < longest; i++) {
        reached *= (double)rate[i];
        sum += reached - row;
        if (sum <= best) continue;
        best = sum;
        length = i + 1;
    }
    *value = best;
    return length;
}

draft_plan draft_control_plan_at(draft_control *control, int limit, int ngram_available, int ngram_match,
                                 const draft_prices *prices) {
    int longest = longest_of(control, limit);
    int longest_ngram = ngram_available < limit ? ngram_available : limit;
    double dflash = control->chained ? 0 : -prices->drafts, ngram = 0;
    double row = prices->row + (control->chained ? prices->drafts : 0);
    int drafted = worth_drafting(control->dflash.rate, longest, row, &dflash);
    int found = worth_drafting(control->ngram[ngram_match].rate, longest_ngram, prices->row, &ngram);
    control->probing = false;
    if (drafted && dflash > ngram) return (draft_plan){.source = DRAFT_DFLASH, .length = drafted};
    if (found) return (draft_plan){.source = DRAFT_NGRAM, .length = found};
    return (draft_plan){.source = DRAFT_NONE};
}

/* More rows are worth their time if they bring a share of what time brings on average, good and poor blocks together: a
 * passage that ends inside this block saves the next, which would be a poor one. */
draft_extension draft_control_extend(const draft_control *control, int kept, int available, int ngram_match) {
    const draft_policy *policy = control->policy;
    const float *next = control->extension[ngram_match].rate;
    const draft_budget *budget = &control->budget;
    double tokens = draft_acceptance_tokens(&control->dflash, kept), reached = 1;
    double seconds = draft_costs_verify(policy, &control->costs, kept + 1);
    double worth = budget->recent_seconds > 0 ? budget->recent_tokens / budget->recent_seconds
                                              : tokens / (seconds + drafting(control, kept));
    worth *= policy->passage_share;
    for (int i = 0; i < kept; i++) reached *= (double)control->dflash.rate[i];
    draft_extension best = {.kept = kept, .value = tokens - worth * seconds};
    for (int more = 1; more <= available && !control->probing; more++) { /* a probe is about DFlash alone */
        reached *= (double)next[more - 1];
        tokens += reached;
        double value = tokens - worth * draft_costs_hoped_verify(policy, &control->costs, kept + 1 + more);
        if (value > best.value) best = (draft_extension){.kept = kept, .more = more, .value = value};
    }
    return best;
}

/* ---------------------------------------------------------------------------------------------------- learning */

void draft_control_watch(draft_control *control, draft_source source, int ngram_match, const int32_t *tokens,
                         int verified, int n) {
    draft_watch *watch = source == DRAFT_DFLASH ? &control->watch_dflash : &control->watch_ngram;
    draft_watch_begin(watch, ngram_match, tokens, n, 0, verified);
}

void draft_control_watch_extension(draft_control *control, int ngram_match, const int32_t *tokens, int kept,
                                   int verified, int n) {
    draft_watch_begin(&control->watch_extension, ngram_match, tokens, n, kept, verified);
}

void draft_control_token(draft_control *control, int32_t token) {
    draft_watch_token(control->policy, &control->watch_dflash, &control->dflash, token);
    draft_watch_token(control->policy, &control->watch_ngram, &control->ngram[control->watch_ngram.match], token);
    draft_watch_token(control->policy, &control->watch_extension, &control->extension[control->watch_extension.match],
                      token);
}

void draft_control_record_accepted(draft_control *control, const draft_block *block) {
    const draft_policy *policy = control->policy;
    int own = block->drafted - block->looked_up;
    if (block->source == DRAFT_DFLASH) draft_acceptance_block(policy, &control->dflash, own, block->accepted);
    if (block->source == DRAFT_DFLASH && block->accepted >= own)
        draft_acceptance_block(policy, &control->extension[block->ngram_match], block->looked_up,
                               block->accepted - own);
    if (block->source == DRAFT_NGRAM)
        draft_acceptance_block(policy, &control->ngram[block->ngram_match], block->drafted, block->accepted);
}

void draft_control_record(draft_control *control, const draft_block *block, double watch_seconds, int watch_drafts) {
    const draft_policy *policy = control->policy;
    draft_costs_add(&control->costs.verify[block->drafted + 1], block->verify_seconds);
    if (block->source == DRAFT_DFLASH) draft_costs_add(&control->costs.draft[block->asked], block->draft_seconds);
    if (watch_drafts) draft_costs_add(&control->costs.draft[watch_drafts], watch_seconds);
    draft_control_record_accepted(control, block);

    double seconds = block->draft_seconds + block->verify_seconds;
    control->budget.elapsed_seconds += seconds + watch_seconds;
    control->budget.recent_tokens += block->accepted + 1 - control->budget.recent_tokens / policy->recent_blocks;
    control->budget.recent_seconds += seconds - control->budget.recent_seconds / policy->recent_blocks;
    control->budget.watch_seconds += watch_seconds;
    if (control->probing) {
        control->budget.probe_seconds += seconds - (block->accepted + 1) / control->best_rate;
        if (control->budget.probe_seconds < 0) control->budget.probe_seconds = 0; /* a lucky probe saves up nothing */
        control->probing = false;
    }
}
