#include "decode/draft_acceptance.h"

#include <string.h>

void draft_acceptance_assume(draft_acceptance *acceptance, float first, float next, float observations) {
    for (int i = 0; i < BACKEND_MAX_DRAFT; i++) {
        acceptance->rate[i] = i == 0 ? first : next;
        acceptance->weight[i] = observations;
        acceptance->streak[i] = 0;
    }
}

void draft_acceptance_expect(draft_acceptance *acceptance, const float *rate, float observations) {
    for (int i = 0; i < BACKEND_MAX_DRAFT; i++) {
        acceptance->rate[i] = rate[i];
        acceptance->weight[i] = observations;
    }
}

void draft_acceptance_add(const draft_policy *policy, draft_acceptance *acceptance, int position, bool accepted) {
    float *rate = &acceptance->rate[position], *count = &acceptance->weight[position];
    int *streak = &acceptance->streak[position];
    if (accepted)
        *streak = *streak > 0 ? *streak + 1 : 1;
    else
        *streak = *streak < 0 ? *streak - 1 : -1;
    bool surprise =
        accepted ? *streak >= policy->surprises && *rate < 0.5f : -*streak >= policy->surprises && *rate > 0.5f;
    if (surprise && *count > policy->memory_after_surprise) *count = policy->memory_after_surprise;
    *rate += ((accepted ? 1.0f : 0.0f) - *rate) / (*count + 1);
    if (*count < policy->acceptance_memory) *count += 1;
}

void draft_acceptance_block(const draft_policy *policy, draft_acceptance *acceptance, int drafted, int accepted) {
    for (int i = 0; i < drafted && i <= accepted; i++) draft_acceptance_add(policy, acceptance, i, i < accepted);
}

double draft_acceptance_tokens(const draft_acceptance *acceptance, int length) {
    double tokens = 1, reached = 1;
    for (int i = 0; i < length; i++) {
        reached *= (double)acceptance->rate[i];
        tokens += reached;
    }
    return tokens;
}

bool shadow_draft_begin(shadow_draft *shadow, int ngram_match, const int32_t *tokens, int n, int first, int skip) {
    if (shadow->at < shadow->n) return false;
    *shadow = (shadow_draft){.n = n, .match = ngram_match, .first = first, .skip = skip};
    memcpy(shadow->tokens, tokens, (size_t)n * sizeof *tokens);
    return true;
}

void shadow_draft_token(const draft_policy *policy, shadow_draft *shadow, draft_acceptance *acceptance, int32_t token) {
    if (shadow->at == shadow->n) return;
    bool right = shadow->tokens[shadow->at] == token;
    if (shadow->at >= shadow->skip) draft_acceptance_add(policy, acceptance, shadow->at - shadow->first, right);
    shadow->at = right ? shadow->at + 1 : shadow->n;
}
