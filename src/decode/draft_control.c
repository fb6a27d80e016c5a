#include "decode/draft_control.h"

#include <string.h>

const draft_policy draft_policy_default = {
    .probe_share = 0.005,
    .shadow_share = 0.006,
    .passage_share = 0.5,
    .recent_blocks = 16,
    .advantage = 1.04,
    .acceptance_memory = 12,
    .surprises = 3,
    .memory_after_surprise = 3,
    .assumed_row_share = 0.15,
    .assumed_draft_share = 0.3,
    .assumed_forced_rate = 0.7f,
    .assumed_dflash_rate = 0.8f,
    .assumed_ngram_rate = {0, 0.2f, 0.4f, 0.6f, 0.75f},
    .assumed_ngram_next_rate = 0.8f,
    .assumed_weight = 0.5f,
    .expected_weight = 1,
};

/* -------------------------------------------------------------------------------------------------- planning */

/* The next drafter that there is; the same one where there is no other. */
static int drafter_after(const draft_control *control, int drafter) {
    for (int i = 1; i < BACKEND_DRAFTERS; i++) {
        int next = (drafter + i) % BACKEND_DRAFTERS;
        if (control->drafter[next].longest) return next;
    }
    return drafter;
}

void draft_control_init(draft_control *control, const draft_policy *policy, const int longest[BACKEND_DRAFTERS],
                        const draft_experience *experience) {
    memset(control, 0, sizeof *control);
    control->policy = policy ? policy : &draft_policy_default;
    policy = control->policy;
    for (int d = 0; d < BACKEND_DRAFTERS; d++) {
        control->drafter[d].longest = longest[d] < BACKEND_MAX_DRAFT ? longest[d] : BACKEND_MAX_DRAFT;
        draft_acceptance_assume(&control->drafter[d].acceptance, policy->assumed_dflash_rate,
                                policy->assumed_dflash_rate, policy->assumed_weight);
    }
    for (int m = 0; m <= NGRAM_MAX_MATCH; m++) {
        draft_acceptance_assume(&control->ngram[m], policy->assumed_ngram_rate[m], policy->assumed_ngram_next_rate,
                                policy->assumed_weight);
        draft_acceptance_assume(&control->extension[m], policy->assumed_ngram_rate[m], policy->assumed_ngram_next_rate,
                                policy->assumed_weight);
    }
    draft_acceptance_assume(&control->forced, policy->assumed_forced_rate, policy->assumed_forced_rate,
                            policy->assumed_weight);
    control->next_drafter = control->next_shadow = drafter_after(control, BACKEND_DRAFTERS - 1); /* the first */
    if (!experience || !experience->known) return;
    control->costs = experience->costs;
    control->budget = experience->budget;
    for (int d = 0; d < BACKEND_DRAFTERS; d++)
        draft_acceptance_expect(&control->drafter[d].acceptance, experience->drafter_rate[d], policy->expected_weight);
    for (int m = 0; m <= NGRAM_MAX_MATCH; m++) {
        draft_acceptance_expect(&control->ngram[m], experience->ngram_rate[m], policy->expected_weight);
        draft_acceptance_expect(&control->extension[m], experience->extension_rate[m], policy->expected_weight);
    }
    draft_acceptance_expect(&control->forced, experience->forced_rate, policy->expected_weight);
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
    for (int d = 0; d < BACKEND_DRAFTERS; d++)
        share_rates(control->policy, &control->drafter[d].acceptance, first, experience->drafter_rate[d]);
    for (int m = 0; m <= NGRAM_MAX_MATCH; m++) {
        share_rates(control->policy, &control->ngram[m], first, experience->ngram_rate[m]);
        share_rates(control->policy, &control->extension[m], first, experience->extension_rate[m]);
    }
    share_rates(control->policy, &control->forced, first, experience->forced_rate);
}

static double drafting(const draft_control *control, backend_drafter drafter, int drafts) {
    return draft_costs_draft(control->policy, &control->costs, drafter, drafts);
}

/* Drafts that the drafter may be asked for in the next block. */
static int longest_of(const draft_control *control, backend_drafter drafter, int limit) {
    const draft_drafter *d = &control->drafter[drafter];
    if (d->unready) return 0;
    return d->longest < limit ? d->longest : limit;
}

/* Expected tokens and seconds of a block. */
typedef struct outlook {
    double tokens, seconds;
} outlook;

static outlook outlook_of(const draft_control *control, draft_source source, int length, int match) {
    const draft_policy *policy = control->policy;
    outlook o = {1, draft_costs_verify(policy, &control->costs, length + 1)};
    if (draft_source_asks(source)) {
        backend_drafter drafter = draft_source_drafter(source);
        o.tokens = draft_acceptance_tokens(&control->drafter[drafter].acceptance, length);
        o.seconds += drafting(control, drafter, length);
    } else if (source == DRAFT_NGRAM) {
        o.tokens = draft_acceptance_tokens(&control->ngram[match], length);
    }
    return o;
}

static bool any_cost(const cost_samples *table, int most) {
    for (int i = 1; i <= most; i++)
        if (table[i].n) return true;
    return false;
}

/* Start in hope: a full block of each drafter, and between them one without drafts to compare with; if its first draft
 * held a second full one, because the first also paid for cold caches. */
static bool starts(const draft_control *control, backend_drafter drafter, int longest) {
    const cost_samples *drafts = control->costs.draft[drafter];
    bool known = control->costs.verify[1].n > 0;
    if (longest <= 0) return false;
    if (!any_cost(drafts, BACKEND_MAX_DRAFT)) return known || !any_cost(control->costs.verify, BACKEND_MAX_DECODE_ROWS);
    return known && drafts[longest].n == 1 && control->drafter[drafter].acceptance.streak[0] > 0;
}

/* Probed in turn: plain autoregression, the neighbours of the best length, the longest, and every length one by one;
 * then the same of the next drafter. */
enum probe_kind { PROBE_NONE = 0, PROBE_LONGER, PROBE_SHORTER, PROBE_LONGEST, PROBE_EVERY, PROBE_KINDS };

static draft_plan probe_plan(const draft_control *control, draft_plan best, int limit) {
    const backend_drafter drafter = (backend_drafter)control->next_drafter;
    const int longest = longest_of(control, drafter, limit);
    draft_plan plan = {.source = draft_source_of(drafter)};
    int current = best.source == plan.source ? best.length : 0;
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
    if (control->next_probe == PROBE_EVERY) {
        control->next_drafter = drafter_after(control, control->next_drafter);
        control->next_length++;
    }
    control->next_probe = (control->next_probe + 1) % PROBE_KINDS;
}

/* Replaces `best` by a probe that differs from it, if what the probe is expected to lose fits the budget. */
static void consider_probe(draft_control *control, draft_plan *best, int limit) {
    const draft_policy *policy = control->policy;
    for (int tried = 0; tried < PROBE_KINDS; tried++) {
        draft_plan plan = probe_plan(control, *best, limit);
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

/* Lets a drafter that does not draft in this block make a shadow draft, each in its turn. */
static void consider_shadow(draft_control *control, draft_plan *plan, int limit) {
    const draft_budget *budget = &control->budget;
    for (int tried = 0, d = control->next_shadow; tried < BACKEND_DRAFTERS; tried++) {
        const backend_drafter drafter = (backend_drafter)d;
        const shadow_draft *shadow = &control->drafter[d].shadow;
        const int longest = longest_of(control, drafter, limit);
        d = drafter_after(control, d);
        if (plan->source == draft_source_of(drafter) || longest <= 0 || shadow->at < shadow->n) continue;
        if (budget->shadow_seconds + drafting(control, drafter, longest) >
            control->policy->shadow_share * budget->elapsed_seconds)
            return;
        plan->shadow_length = longest;
        plan->shadow = drafter;
        control->next_shadow = d;
        return;
    }
}

/* The length of the source that promises more than *threshold, which it raises. */
static void consider(draft_control *control, draft_source source, int longest, int match, double *threshold,
                     draft_plan *best) {
    for (int length = 1; length <= longest; length++) {
        outlook o = outlook_of(control, source, length, match);
        if (o.tokens <= *threshold * o.seconds) continue;
        control->best_rate = *threshold = o.tokens / o.seconds;
        *best = (draft_plan){.source = source, .length = length};
    }
}

draft_plan draft_control_plan(draft_control *control, int limit, int ngram_available, int ngram_match) {
    int longest_ngram = ngram_available < limit ? ngram_available : limit;
    draft_plan best = {.source = DRAFT_NONE};
    control->probing = false;
    for (int d = BACKEND_DRAFTERS - 1; d >= 0; d--) {
        const backend_drafter drafter = (backend_drafter)d;
        const int longest = longest_of(control, drafter, limit);
        if (starts(control, drafter, longest))
            best = (draft_plan){.source = draft_source_of(drafter), .length = longest};
    }
    outlook first = outlook_of(control, best.source, best.length, 0);
    control->best_rate = first.tokens / first.seconds;
    if (best.source != DRAFT_NONE || control->costs.verify[1].n == 0) return best;

    double threshold = control->best_rate * (control->drafting ? 1 : control->policy->advantage);
    for (int d = 0; d < BACKEND_DRAFTERS; d++) {
        const backend_drafter drafter = (backend_drafter)d;
        consider(control, draft_source_of(drafter), longest_of(control, drafter, limit), 0, &threshold, &best);
    }
    consider(control, DRAFT_NGRAM, longest_ngram, ngram_match, &threshold, &best);
    control->drafting = best.source != DRAFT_NONE;
    if (best.source != DRAFT_NGRAM) consider_probe(control, &best, limit);
    consider_shadow(control, &best, limit);
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
    int longest_ngram = ngram_available < limit ? ngram_available : limit;
    double most = 0;
    draft_plan best = {.source = DRAFT_NONE};
    control->probing = false;
    int found = worth_drafting(control->ngram[ngram_match].rate, longest_ngram, prices->row, &most);
    if (found) best = (draft_plan){.source = DRAFT_NGRAM, .length = found};
    for (int d = 0; d < BACKEND_DRAFTERS; d++) {
        const backend_drafter drafter = (backend_drafter)d;
        const bool chain = drafter == BACKEND_ASSISTANT; /* each draft has its price, otherwise each block */
        double value = chain ? 0 : -prices->drafts[d], row = prices->row + (chain ? prices->drafts[d] : 0);
        int drafted =
            worth_drafting(control->drafter[d].acceptance.rate, longest_of(control, drafter, limit), row, &value);
        if (!drafted || value <= most) continue;
        most = value;
        best = (draft_plan){.source = draft_source_of(drafter), .length = drafted};
    }
    return best;
}

bool draft_control_asks_forced(draft_control *control, const draft_prices *prices) {
    enum { BLOCKS = 16 };
    return (double)control->forced.rate[0] > prices->row || control->forced_blocks++ % BLOCKS == 0;
}

int draft_control_forced_at(draft_control *control, const int32_t *tokens, int n, const draft_prices *prices) {
    double value = 0;
    const int worth = worth_drafting(control->forced.rate, n, prices->row, &value);
    if (n) shadow_draft_begin(&control->shadow_forced, 0, tokens, n, 0, worth);
    return worth;
}

void draft_control_record_forced(draft_control *control, int drafted, int accepted) {
    draft_acceptance_block(control->policy, &control->forced, drafted, accepted);
}

/* More rows are worth their time if they bring a share of what time brings on average, good and poor blocks together: a
 * passage that ends inside this block saves the next, which would be a poor one. */
draft_extension draft_control_extend(const draft_control *control, backend_drafter drafter, int kept, int available,
                                     int ngram_match, const draft_prices *prices) {
    const draft_acceptance *acceptance = &control->drafter[drafter].acceptance;
    const draft_policy *policy = control->policy;
    const float *next = control->extension[ngram_match].rate;
    const draft_budget *budget = &control->budget;
    double tokens = draft_acceptance_tokens(acceptance, kept), reached = 1;
    double seconds = draft_costs_verify(policy, &control->costs, kept + 1);
    double worth = budget->recent_seconds > 0 ? budget->recent_tokens / budget->recent_seconds
                                              : tokens / (seconds + drafting(control, drafter, kept));
    worth *= policy->passage_share;
    for (int i = 0; i < kept; i++) reached *= (double)acceptance->rate[i];
    draft_extension best = {.kept = kept, .value = tokens - (prices ? prices->row * kept : worth * seconds)};
    for (int more = 1; more <= available && !control->probing; more++) { /* a probe is about the drafter alone */
        reached *= (double)next[more - 1];
        tokens += reached;
        double value = tokens - (prices ? prices->row * (kept + more)
                                        : worth * draft_costs_hoped_verify(policy, &control->costs, kept + 1 + more));
        if (value > best.value) best = (draft_extension){.kept = kept, .more = more, .value = value};
    }
    return best;
}

/* ---------------------------------------------------------------------------------------------------- learning */

void draft_control_shadow(draft_control *control, draft_source source, int ngram_match, const int32_t *tokens,
                          int verified, int n) {
    shadow_draft *shadow =
        draft_source_asks(source) ? &control->drafter[draft_source_drafter(source)].shadow : &control->shadow_ngram;
    shadow_draft_begin(shadow, ngram_match, tokens, n, 0, verified);
}

void draft_control_shadow_extension(draft_control *control, int ngram_match, const int32_t *tokens, int kept,
                                    int verified, int n) {
    shadow_draft_begin(&control->shadow_extension, ngram_match, tokens, n, kept, verified);
}

void draft_control_token(draft_control *control, int32_t token) {
    for (int d = 0; d < BACKEND_DRAFTERS; d++)
        shadow_draft_token(control->policy, &control->drafter[d].shadow, &control->drafter[d].acceptance, token);
    shadow_draft_token(control->policy, &control->shadow_ngram, &control->ngram[control->shadow_ngram.match], token);
    shadow_draft_token(control->policy, &control->shadow_extension,
                       &control->extension[control->shadow_extension.match], token);
    shadow_draft_token(control->policy, &control->shadow_forced, &control->forced, token);
}

void draft_control_record_accepted(draft_control *control, const draft_block *block) {
    const draft_policy *policy = control->policy;
    int own = block->drafted - block->looked_up;
    const bool asked = draft_source_asks(block->source);
    if (asked)
        draft_acceptance_block(policy, &control->drafter[draft_source_drafter(block->source)].acceptance, own,
                               block->accepted);
    if (asked && block->accepted >= own)
        draft_acceptance_block(policy, &control->extension[block->ngram_match], block->looked_up,
                               block->accepted - own);
    if (block->source == DRAFT_NGRAM)
        draft_acceptance_block(policy, &control->ngram[block->ngram_match], block->drafted, block->accepted);
}

void draft_control_record(draft_control *control, const draft_block *block, const shadow_result *shadow) {
    const draft_policy *policy = control->policy;
    draft_costs_add(&control->costs.verify[block->drafted + 1], block->verify_seconds, block->read_seconds);
    if (draft_source_asks(block->source))
        draft_costs_add(&control->costs.draft[draft_source_drafter(block->source)][block->asked], block->draft_seconds,
                        0);
    if (shadow->drafts) draft_costs_add(&control->costs.draft[shadow->drafter][shadow->drafts], shadow->seconds, 0);
    draft_control_record_accepted(control, block);

    double seconds = block->draft_seconds + block->verify_seconds;
    control->budget.elapsed_seconds += seconds + shadow->seconds;
    control->budget.recent_tokens += block->accepted + 1 - control->budget.recent_tokens / policy->recent_blocks;
    control->budget.recent_seconds += seconds - control->budget.recent_seconds / policy->recent_blocks;
    control->budget.shadow_seconds += shadow->seconds;
    if (control->probing) {
        control->budget.probe_seconds += seconds - (block->accepted + 1) / control->best_rate;
        if (control->budget.probe_seconds < 0) control->budget.probe_seconds = 0; /* a lucky probe saves up nothing */
        control->probing = false;
    }
}
