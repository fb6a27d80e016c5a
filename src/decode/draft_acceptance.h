/* How often drafts hold: moving averages by draft position, fed by verified blocks and by shadow drafts, which are only
 * compared with what comes. */
#ifndef KAKEYA_DECODE_DRAFT_ACCEPTANCE_H
#define KAKEYA_DECODE_DRAFT_ACCEPTANCE_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/backend.h"
#include "decode/draft_policy.h"

typedef struct draft_acceptance {
    float rate[BACKEND_MAX_DRAFT];   /* that a draft is accepted if all before it were, by position */
    float weight[BACKEND_MAX_DRAFT]; /* observations behind it, capped: the average forgets */
    int streak[BACKEND_MAX_DRAFT];   /* equal outcomes in a row: > 0 accepted, < 0 rejected */
} draft_acceptance;

/* `first`: rate of the first draft, `next`: of every other. */
void draft_acceptance_assume(draft_acceptance *acceptance, float first, float next, float observations);
/* Rates [BACKEND_MAX_DRAFT] that earlier texts let expect. */
void draft_acceptance_expect(draft_acceptance *acceptance, const float *rate, float observations);
void draft_acceptance_add(const draft_policy *policy, draft_acceptance *acceptance, int position, bool accepted);
/* Of `drafted` drafts the first `accepted` were accepted, or all where that is more. */
void draft_acceptance_block(const draft_policy *policy, draft_acceptance *acceptance, int drafted, int accepted);
/* Tokens that a block of `length` drafts yields: 1 + q1 + q1 q2 + ... */
double draft_acceptance_tokens(const draft_acceptance *acceptance, int length);

/* A shadow draft: a prediction that is only compared with the tokens that follow. All zero: none is under way. */
typedef struct shadow_draft {
    int32_t tokens[BACKEND_MAX_DRAFT];
    int n, at;       /* tokens[at] is compared with the next token; at == n: none is under way */
    int match;       /* of an n-gram prediction */
    int first, skip; /* tokens before `first` are another source's, those before `skip` have been verified: neither is
                        learned from */
} shadow_draft;

/* False where another one is under way: that one goes on. */
bool shadow_draft_begin(shadow_draft *shadow, int ngram_match, const int32_t *tokens, int n, int first, int skip);
void shadow_draft_token(const draft_policy *policy, shadow_draft *shadow, draft_acceptance *acceptance, int32_t token);

#endif
