/* Rules of single kinds: fidelity, code, acceptance and lossless reports. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "measure/gate_private.h"

/* ------------------------------------------------------------------------------------------------- fidelity */

typedef struct fidelity {
    double tokens, kl, agreements;
} fidelity;

static fidelity fidelity_of(const gate_context *context, const eval_arm *arm) {
    fidelity f = {0};
    for (size_t i = 0; i < context->rows.n; i++) {
        const eval_row *row = &context->rows.row[i];
        if (!gate_measured(row) || !eval_arm_equal(&row->arm, arm)) continue;
        f.tokens += (double)row->scored_tokens;
        f.kl += row->kl;
        f.agreements += (double)row->agreements;
    }
    return f;
}

/* KL of a distribution with itself is rounding of its sum. */
static const double zero_kl_per_token = 1e-6;

static void check_score(gate_context *context, size_t i) {
    const eval_row *row = &context->rows.row[i];
    double tokens = (double)row->scored_tokens;
    if (row->scored_tokens < 1 || row->agreements > row->scored_tokens || row->nll < 0 ||
        row->kl < -zero_kl_per_token * tokens)
        gate_violate(context, "COUNTS", "rows[%zu] (%s): %lld of %lld tokens agree, nll %g, KL %g", i, row->sample,
                     (long long)row->agreements, (long long)row->scored_tokens, row->nll, row->kl);
    if (gate_is_reference(context, row) &&
        (row->agreements != row->scored_tokens || fabs(row->kl) > zero_kl_per_token * tokens))
        gate_violate(context, "FIDELITY_ORACLE", "rows[%zu] (%s): the reference differs from itself (KL %g)", i,
                     row->sample, row->kl);
}

/* The row of the same sequence and sizes under another policy. */
static const eval_row *counterpart(const gate_context *context, const eval_row *row, const char *policy) {
    for (size_t i = 0; i < context->rows.n; i++) {
        const eval_row *other = &context->rows.row[i];
        if (gate_measured(other) && strcmp(other->arm.policy, policy) == 0 && strcmp(other->sample, row->sample) == 0 &&
            other->arm.sink == row->arm.sink && other->arm.window == row->arm.window)
            return other;
    }
    return NULL;
}

/* What the text itself says: its tokens are to be no less likely than they are where K/V are dropped. Of so few tokens
 * the mean is a matter of chance, too: two standard errors of the difference, token by token, are left to it. */
static void check_likelihood(gate_context *context, const eval_row *of, const char *label) {
    double n = 0, sum = 0, squares = 0;
    for (size_t i = 0; i < context->rows.n; i++) {
        const eval_row *row = &context->rows.row[i];
        if (!gate_measured(row) || !eval_arm_equal(&row->arm, &of->arm)) continue;
        const eval_row *dropped = counterpart(context, row, "sink-window");
        if (!dropped || dropped->n_token_ids != row->n_token_ids) continue; /* another rule says so */
        for (size_t t = 0; t < row->n_token_ids; t++) {
            double worse = row->token_nll[t] - dropped->token_nll[t];
            n++;
            sum += worse;
            squares += worse * worse;
        }
    }
    if (n < 2) return;
    double mean = sum / n, error = sqrt(fmax(0, squares / n - mean * mean) / (n - 1));
    if (mean > 2 * error + zero_kl_per_token)
        gate_violate(context, "FIDELITY_LIKELIHOOD",
                     "%s: the text's tokens are less likely than where K/V are dropped, by %.6f +- %.6f nats each",
                     label, mean, error);
}

static void check_restored_arm(gate_context *context, const eval_row *row) {
    const eval_row *dropped = counterpart(context, row, "sink-window");
    char label[160];
    eval_arm_label(&row->arm, label, sizeof label);
    if (!dropped) {
        gate_violate(context, "ABLATION_MISSING",
                     "%s: no sink-window rows of the same sizes to show what restoring adds", label);
        return;
    }
    fidelity restored = fidelity_of(context, &row->arm), drop = fidelity_of(context, &dropped->arm);
    if (strcmp(row->arm.policy, "restored") == 0 && restored.kl > drop.kl + zero_kl_per_token * drop.tokens)
        gate_violate(context, "FIDELITY_NO_BENEFIT", "%s: KL from native %.6f per token, dropping alone gives %.6f",
                     label, restored.kl / restored.tokens, drop.kl / drop.tokens);
    if (strcmp(row->arm.policy, "restored") == 0) check_likelihood(context, row, label);
    double exact = (double)row->arm.sink + (double)row->arm.window;
    bool evicts = context->has_geometry && exact < context->geometry.verifier.sliding_window &&
                  (double)row->prompt_tokens + (double)row->scored_tokens > exact;
    if (evicts && restored.kl <= zero_kl_per_token * restored.tokens)
        gate_violate(context, "SELF_COMPARISON",
                     "%s: no difference from native attention, though positions are evicted", label);
    if (evicts && fabs(restored.kl - drop.kl) <= 0 && fabs(restored.agreements - drop.agreements) <= 0)
        gate_violate(context, "RESTORATION_INACTIVE", "%s: no difference from sink-window", label);
}

/* Sums are what their tokens give, and top-1 agreement follows from the likeliest ids of both arms. */
static void check_tokens(gate_context *context, size_t i, const eval_row *native) {
    const eval_row *row = &context->rows.row[i];
    double nll = 0, kl = 0;
    int64_t agreements = 0;
    for (size_t t = 0; t < row->n_token_ids; t++) {
        nll += row->token_nll[t];
        kl += row->token_kl[t];
        agreements += row->token_ids[t] == native->token_ids[t];
    }
    if (fabs(nll - row->nll) > 1e-9 * fmax(1, fabs(nll)) || fabs(kl - row->kl) > 1e-9 * fmax(1, fabs(kl)) ||
        agreements != row->agreements)
        gate_violate(context, "SCORE_SUM", "rows[%zu] (%s): its tokens give nll %.9g, KL %.9g and %lld agreements", i,
                     row->sample, nll, kl, (long long)agreements);
}

/* The divergence of two distributions is at least that of any event under them. Take the scored token: native attention
 * gives it the probability p, the other arm q. What is claimed to be near native attention cannot score far from it. */
static double least_divergence(double p, double q) {
    double rest = p < 1 ? (1 - p) * log((1 - p) / (1 - q)) : 0;
    return p * log(p / q) + rest;
}

/* Nor can it be more than what all other tokens could add, each at the least likelihood that logits give. */
static double most_divergence(double p, double q) {
    static const double least_log_likelihood = -150;
    double rest = p < 1 ? (1 - p) * (log(1 - p) - least_log_likelihood) : 0;
    return p * log(p / q) + rest;
}

static void check_divergence(gate_context *context, size_t i, const eval_row *native) {
    /* What float32 logits, and sums over a vocabulary, leave open. */
    static const double relative = 1e-3, absolute = 1e-5, most_absolute = 1e-3, likeliest = 1 - 1e-6, half = 0.501;
    const eval_row *row = &context->rows.row[i];
    for (size_t t = 0; t < row->n_token_ids; t++) {
        double p = exp(-native->token_nll[t]), q = exp(-row->token_nll[t]), kl = row->token_kl[t];
        bool possible = row->token_nll[t] >= -1e-6 && kl >= -zero_kl_per_token;
        /* Nearly certain tokens count as a little less so: that makes no divergence larger. */
        double fewer_p = fmin(p, likeliest), fewer_q = fmin(q, likeliest);
        if (possible && p > 0 && q > 0) possible = least_divergence(fewer_p, fewer_q) <= kl * (1 + relative) + absolute;
        if (p > 0 && q > 0 && kl > most_divergence(p, q) * (1 + relative) + most_absolute) possible = false;
        /* What has more than half of the probability is the likeliest token, under both. */
        if (p > half && q > half && row->token_ids[t] != native->token_ids[t]) possible = false;
        /* Other likeliest tokens need other distributions. */
        if (row->token_ids[t] != native->token_ids[t] && kl <= 0) possible = false;
        if (possible) continue;
        gate_violate(context, "SCORE_IMPOSSIBLE",
                     "rows[%zu] (%s): token %zu has probability %.6g, %.6g under native attention, and KL %.6g", i,
                     row->sample, t, q, p, kl);
        return;
    }
}

/* The native row of the same sequence: the other rows' scores are relative to it. */
static const eval_row *native_of(const gate_context *context, const eval_row *row) {
    for (size_t i = 0; i < context->rows.n; i++) {
        const eval_row *other = &context->rows.row[i];
        if (gate_is_reference(context, other) && strcmp(other->sample, row->sample) == 0) return other;
    }
    return NULL;
}

static void check_against_native(gate_context *context, size_t i) {
    const eval_row *row = &context->rows.row[i], *native = native_of(context, row);
    if (!native) return; /* the plan or ORACLE_MISSING says so */
    if (native->scored_tokens != row->scored_tokens) {
        gate_violate(context, "SCORED_TOKENS", "rows[%zu] (%s): %lld tokens scored, %lld under native attention", i,
                     row->sample, (long long)row->scored_tokens, (long long)native->scored_tokens);
        return;
    }
    check_tokens(context, i, native);
    check_divergence(context, i, native);
}

static void check_prompt_length(gate_context *context, size_t i) {
    const eval_row *row = &context->rows.row[i];
    if (row->prompt_tokens != gate_option(context, "prompt_length"))
        gate_violate(context, "PROMPT_MISMATCH",
                     "rows[%zu] (%s): a prompt of %lld tokens, but options.prompt_length is %d", i, row->sample,
                     (long long)row->prompt_tokens, gate_option(context, "prompt_length"));
}

void gate_rule_fidelity(gate_context *context) {
    bool oracle = false;
    for (size_t i = 0; i < context->rows.n; i++) {
        const eval_row *row = &context->rows.row[i];
        check_score(context, i);
        check_against_native(context, i);
        check_prompt_length(context, i);
        oracle |= gate_measured(row) && gate_is_reference(context, row);
        if (gate_is_restored(row) && gate_first_of_arm(context, i, false)) check_restored_arm(context, row);
    }
    if (!oracle) gate_violate(context, "ORACLE_MISSING", "no rows under native attention");
}

/* ----------------------------------------------------------------------------------------------------- code */

void gate_rule_code_prompts(gate_context *context) {
    const int most = gate_option(context, "prompt_tokens");
    for (size_t i = 0; i < context->rows.n; i++) {
        const eval_row *row = &context->rows.row[i];
        if (row->prompt_tokens > most)
            gate_violate(context, "PROMPT_MISMATCH",
                         "rows[%zu] (%s): a prompt of %lld tokens, but options.prompt_tokens is %d", i, row->sample,
                         (long long)row->prompt_tokens, most);
    }
}

/* ----------------------------------------------------------------------------------------------- acceptance */

void gate_rule_forms(gate_context *context) {
    const cJSON *sources = cJSON_GetObjectItemCaseSensitive(context->options, "sources"), *source;
    bool form[2] = {false, false}, wanted = !sources;
    cJSON_ArrayForEach(source, sources) wanted |= cJSON_IsString(source) && strcmp(source->valuestring, "dflash") == 0;
    for (size_t i = 0; i < context->rows.n; i++) {
        const eval_arm *arm = &context->rows.row[i].arm;
        if (gate_measured(&context->rows.row[i]) && strcmp(arm->mode, "speculative") == 0 && !arm->source[0])
            form[arm->scaled_embedding] = true;
    }
    if (wanted && (!form[0] || !form[1]))
        gate_violate(context, "FORM_MISSING", "the drafter's %s embedding form was not run",
                     form[0] ? "scaled" : "unscaled");
}

/* ------------------------------------------------------------------------------------------------- lossless */

/* Each stream has its autoregressive reference, and something was drafted and something accepted: otherwise equality
 * shows nothing. That every promised run is there, gate_plan.c sees to. */
void gate_rule_coverage(gate_context *context) {
    int64_t drafted = 0, accepted = 0;
    for (size_t i = 0; i < context->rows.n; i++) {
        const eval_row *row = &context->rows.row[i];
        drafted += row->drafted_tokens;
        accepted += row->accepted_tokens;
        bool reference = false;
        for (size_t j = 0; j < context->rows.n && !reference; j++) {
            const eval_row *other = &context->rows.row[j];
            reference = strcmp(other->arm.mode, "ar") == 0 && strcmp(other->sample, row->sample) == 0 &&
                        strcmp(other->arm.policy, row->arm.policy) == 0;
        }
        if (!reference)
            gate_violate(context, "AR_MISSING", "rows[%zu] (%s, %s): no autoregressive row to compare with", i,
                         row->sample, row->arm.policy);
    }
    if (!drafted || !accepted)
        gate_violate(context, "SPECULATION_INACTIVE", "%lld tokens drafted and %lld accepted in all rows",
                     (long long)drafted, (long long)accepted);
}
