/* Rules of `kakeya verify` alone. That streams are equal, that every run of the plan is there and that rows are
 * possible is asked as of other kinds. */
#include <math.h>
#include <string.h>

#include "base/json.h"
#include "measure/gate_private.h"
#include "measure/verify_logits.h"
#include "measure/verify_plan.h"

static const cJSON *member(const cJSON *object, const char *name) {
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

static double number(const cJSON *object, const char *name) {
    const cJSON *item = member(object, name);
    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

static void check_options(gate_context *context) {
    int rounds = gate_option(context, "rounds"), elsewhere = gate_option(context, "rounds_elsewhere");
    int tokens = gate_option(context, "max_tokens"), threads = gate_option(context, "threads_elsewhere");
    if (elsewhere > rounds) gate_violate(context, "OPTIONS_FORM", "%d rounds elsewhere, of %d", elsewhere, rounds);
    if (tokens < VERIFY_LEAST_TOKENS || tokens > VERIFY_MOST_TOKENS)
        gate_violate(context, "OPTIONS_FORM", "answers of %d tokens: %d to %d are compared", tokens,
                     (int)VERIFY_LEAST_TOKENS, (int)VERIFY_MOST_TOKENS);
    if (!(fabs(number(context->environment, "threads") - threads) > 0))
        gate_violate(context, "VERIFY_COVERAGE", "the other process had the same number of threads (%d)", threads);
}

/* Stop tokens end nothing here, so every answer is as long as was asked for. */
static void check_length(gate_context *context, size_t i) {
    const eval_row *row = &context->rows.row[i];
    int tokens = gate_option(context, "max_tokens");
    if (row->n_token_ids != (size_t)tokens || strcmp(row->finish, "length") != 0)
        gate_violate(context, "TURN_END", "rows[%zu] (%s): finish_reason \"%s\" after %zu tokens of %d", i, row->sample,
                     row->finish, row->n_token_ids, tokens);
}

/* What shows nothing: rows that should have been many were one, or none of them counted. */
static void check_drafts(gate_context *context) {
    int64_t accepted = 0, cut = 0;
    for (size_t i = 0; i < context->rows.n; i++) {
        const eval_row *row = &context->rows.row[i];
        cut += row->dropped_tokens;
        if (strcmp(row->arm.comparison, verify_comparison_name(VERIFY_ROWS)) != 0) continue;
        accepted += row->accepted_tokens;
        if (!row->drafted_tokens)
            gate_violate(context, "VERIFY_COVERAGE", "rows[%zu] (%s): k + 1 rows, but nothing was drafted", i,
                         row->sample);
    }
    if (!accepted) gate_violate(context, "VERIFY_COVERAGE", "k + 1 rows, but no draft was accepted");
    if (!cut) gate_violate(context, "VERIFY_COVERAGE", "truncated streams, but nothing was cut off");
}

/* ----------------------------------------------------------------------------------------- logits made elsewhere */

static void check_logits(gate_context *context, const cJSON *logits) {
    const cJSON *row;
    double kl = 0, agreed = 0, n = 0;
    cJSON_ArrayForEach(row, member(logits, "rows")) {
        double own = number(row, "kl"), nll = number(row, "nll"), reference = number(row, "reference_nll");
        bool same = cJSON_IsTrue(member(row, "same_choice"));
        gate_allow_keys(context, "logits.rows", row, "token kl nll reference_nll same_choice", "");
        if (!(own > -1e-6) || !(nll >= 0) || !(reference >= 0) || !cJSON_IsBool(member(row, "same_choice")) ||
            !json_is_integer(member(row, "token"), 0, number(context->environment, "vocabulary") - 1))
            gate_violate(context, "LOGITS_FORM", "logits.rows[%.0f] is no comparison of two rows", n);
        /* The data-processing inequality, for the one token whose probabilities are known. */
        double p = exp(-reference), q = exp(-nll), rest = fmax(1 - p, 1e-12);
        double least = p * (nll - reference) + rest * log(rest / fmax(1 - q, 1e-12));
        if (own < least - verify_logits_rounding)
            gate_violate(context, "LOGITS_FORM", "logits.rows[%.0f] diverges by %g, its likelihoods by %g at least", n,
                         own, least);
        kl += own;
        agreed += same;
        n++;
    }
    gate_allow_keys(context, "logits", logits, "file tokens kl same_choice rows", "");
    if (!(n > 0) || fabs(number(logits, "tokens") - n) > 0 || fabs(number(logits, "kl") - kl / n) > 1e-9 ||
        fabs(number(logits, "same_choice") - agreed / n) > 1e-9)
        gate_violate(context, "LOGITS_FORM", "logits: figures that its %.0f rows do not give", n);
    else if (!(kl / n <= verify_logits_divergence) || agreed / n < verify_logits_agreement)
        gate_violate(context, "LOGITS",
                     "mean divergence %g from the logits made elsewhere (%g is allowed), the same choice in %.1f %% of "
                     "the rows (%.0f %%)",
                     kl / n, verify_logits_divergence, 100 * agreed / n, 100 * verify_logits_agreement);
}

void gate_rule_verify(gate_context *context) {
    const cJSON *logits = member(context->report, "logits");
    if (!context->options_sound) return;
    check_options(context);
    for (size_t i = 0; i < context->rows.n; i++) check_length(context, i);
    check_drafts(context);
    if (logits)
        check_logits(context, logits);
    else
        gate_note(context, "weights and kernels are compared with nothing from elsewhere (--logits)");
}
