#include "measure/replay_bounds.h"

#include <math.h>
#include <string.h>

/* What the order of sums may change. In float32 it is rounding; below, what enters a product is rounded too, and a
 * value that lies between two numbers falls to either side. A mean over n tokens has its own bound and `few` by the
 * root of n.
 */
typedef struct bounds {
    double nll, mean_nll, few_nll;       /* of one token; mean of absolute differences */
    double divergence_share, kl, few_kl; /* mean divergence: by this share, and this much */
    double logit;                        /* by which a chosen token may be below the choice here, greedily */
    double probability;                  /* that a sampled token has here, at least */
    double share, count;                 /* of forwards */
} bounds;

static const bounds f32_bounds = {0.01, 0.001, 0.002, 0.02, 1e-5, 1e-4, 0.02, 1e-4, 0.25, 2},
                    other_bounds = {1.5, 0.05, 0.4, 0.25, 0.003, 0.06, 1, 1e-4, 0.25, 2};

static void compare_scores(gate_context *c, size_t i, const eval_row *there, const eval_row *here, const bounds *b) {
    double sum = 0, most = 0, tokens = (double)here->n_token_ids;
    if (there->n_token_ids != here->n_token_ids || !here->n_token_ids) {
        gate_violate(c, "REPLAY_ROW", "rows[%zu] (%s): %zu scored tokens, here %zu", i, there->sample,
                     there->n_token_ids, here->n_token_ids);
        return;
    }
    for (size_t t = 0; t < here->n_token_ids; t++) {
        double difference = fabs(there->token_nll[t] - here->token_nll[t]);
        sum += difference;
        most = fmax(most, difference);
    }
    double allowed_nll = b->mean_nll + b->few_nll / sqrt(tokens);
    if (!(most <= b->nll) || !(sum / tokens <= allowed_nll))
        gate_violate(c, "REPLAY_ROW",
                     "rows[%zu] (%s, %s): likelihoods differ from those here by %.3g at most, %.3g in the mean; %.3g "
                     "and %.3g are allowed",
                     i, there->sample, there->arm.policy, most, sum / tokens, b->nll, allowed_nll);
    double difference = fabs(there->kl - here->kl) / tokens,
           allowed = b->divergence_share * here->kl / tokens + b->kl + b->few_kl / sqrt(tokens);
    if (!(difference <= allowed))
        gate_violate(c, "REPLAY_ROW",
                     "rows[%zu] (%s, %s): a divergence of %.6f, here %.6f; a difference of %.6f is allowed", i,
                     there->sample, there->arm.policy, there->kl / tokens, here->kl / tokens, allowed);
}

static void compare_answers(gate_context *c, size_t i, const eval_row *there, const eval_row *here, const bounds *b) {
    size_t least = there->n_token_ids < here->n_token_ids ? there->n_token_ids : here->n_token_ids, t = 0;
    while (t < least && there->token_ids[t] == here->token_ids[t]) t++;
    if (t == least && there->n_token_ids != here->n_token_ids) {
        gate_violate(c, "REPLAY_ROW", "rows[%zu] (%s, %s %s): %zu tokens, here %zu that begin alike", i, there->sample,
                     there->arm.policy, there->arm.mode, there->n_token_ids, here->n_token_ids);
    } else if (t < least) {
        /* From here on, the two go on from other texts. */
        bool sampled = there->arm.temperature > 0;
        if (sampled ? !(here->replay_margin >= b->probability) : !(here->replay_margin <= b->logit))
            gate_violate(c, "REPLAY_ROW", "rows[%zu] (%s, %s %s): token %zu is %d, which here %s %.3g; %.3g is allowed",
                         i, there->sample, there->arm.policy, there->arm.mode, t, there->token_ids[t],
                         sampled ? "has the probability" : "has a logit below the highest by", here->replay_margin,
                         sampled ? b->probability : b->logit);
    } else {
        double forwards = fabs((double)(there->verifier_forwards - here->verifier_forwards));
        bool own = !there->arm.together && (there->has_blocks || !here->has_blocks);
        if (own && forwards > b->share * (double)here->verifier_forwards + b->count)
            gate_violate(c, "REPLAY_ROW", "rows[%zu] (%s, %s %s): %lld forwards for the same tokens, here %lld", i,
                         there->sample, there->arm.policy, there->arm.mode, (long long)there->verifier_forwards,
                         (long long)here->verifier_forwards);
    }
}

void replay_compare_bounds(gate_context *c, size_t i, const eval_row *there, const eval_row *here) {
    const cJSON *precision = cJSON_GetObjectItemCaseSensitive(c->environment, "precision");
    const bounds *b =
        cJSON_IsString(precision) && strcmp(precision->valuestring, "f32") == 0 ? &f32_bounds : &other_bounds;
    if (eval_kind_scores(c->kind))
        compare_scores(c, i, there, here, b);
    else if (there->arm.mix_alpha < 0)
        compare_answers(c, i, there, here, b);
}
