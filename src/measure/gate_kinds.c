/* Rules of single kinds: fidelity, acceptance and lossless reports. */
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
    if (gate_is_native(row) && (row->agreements != row->scored_tokens || fabs(row->kl) > zero_kl_per_token * tokens))
        gate_violate(context, "FIDELITY_ORACLE", "rows[%zu] (%s): native attention differs from itself (KL %g)", i,
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
    const cJSON *model_window = cJSON_GetObjectItemCaseSensitive(context->environment, "sliding_window");
    bool evicts = cJSON_IsNumber(model_window) && row->arm.sink + row->arm.window < model_window->valuedouble &&
                  row->prompt_tokens + row->scored_tokens > row->arm.sink + row->arm.window;
    if (evicts && restored.kl <= zero_kl_per_token * restored.tokens)
        gate_violate(context, "SELF_COMPARISON",
                     "%s: no difference from native attention, though positions are evicted", label);
    if (evicts && fabs(restored.kl - drop.kl) <= 0 && fabs(restored.agreements - drop.agreements) <= 0)
        gate_violate(context, "RESTORATION_INACTIVE", "%s: no difference from sink-window", label);
}

void gate_rule_fidelity(gate_context *context) {
    bool oracle = false;
    for (size_t i = 0; i < context->rows.n; i++) {
        const eval_row *row = &context->rows.row[i];
        check_score(context, i);
        oracle |= gate_measured(row) && gate_is_native(row);
        if (gate_is_restored(row) && gate_first_of_arm(context, i, false)) check_restored_arm(context, row);
    }
    if (!oracle) gate_violate(context, "ORACLE_MISSING", "no rows under native attention");
}

/* ----------------------------------------------------------------------------------------------- acceptance */

void gate_rule_forms(gate_context *context) {
    bool form[2] = {false, false};
    for (size_t i = 0; i < context->rows.n; i++)
        if (gate_measured(&context->rows.row[i])) form[context->rows.row[i].arm.scaled_embedding] = true;
    if (!form[0] || !form[1])
        gate_violate(context, "FORM_MISSING", "the drafter's %s embedding form was not run",
                     form[0] ? "scaled" : "unscaled");
}

/* ------------------------------------------------------------------------------------------------- lossless */

/* Counts rows whose property equals the value. */
static size_t rows_with(const gate_context *context, const char *option, const cJSON *value) {
    size_t n = 0;
    for (size_t i = 0; i < context->rows.n; i++) {
        const eval_row *row = &context->rows.row[i];
        if (strcmp(option, "policies") == 0) n += strcmp(row->arm.policy, value->valuestring) == 0;
        if (strcmp(option, "modes") == 0) n += strcmp(row->arm.mode, value->valuestring) == 0;
        if (strcmp(option, "prompt_kinds") == 0) n += strcmp(row->prompt_kind, value->valuestring) == 0;
        if (strcmp(option, "temperatures") == 0) n += fabs(row->arm.temperature - value->valuedouble) < 1e-9;
        if (strcmp(option, "threads") == 0) n += row->arm.threads == value->valueint;
        if (strcmp(option, "prompt_chunks") == 0) n += row->arm.prompt_chunk == value->valueint;
    }
    return n;
}

/* Every kind of run that the options promise is there, each stream has its autoregressive reference, and something was
 * drafted and something accepted: otherwise equality shows nothing. */
void gate_rule_coverage(gate_context *context) {
    static const struct {
        const char *option;
        bool text;
    } promised[] = {{"policies", true},      {"modes", true},    {"prompt_kinds", true},
                    {"temperatures", false}, {"threads", false}, {"prompt_chunks", false}};
    for (size_t p = 0; p < sizeof promised / sizeof promised[0]; p++) {
        const cJSON *list = cJSON_GetObjectItemCaseSensitive(context->options, promised[p].option), *value;
        if (!cJSON_IsArray(list) || !list->child)
            gate_violate(context, "LOSSLESS_COVERAGE", "options.%s does not say what was compared", promised[p].option);
        cJSON_ArrayForEach(value, list) {
            if (promised[p].text ? !cJSON_IsString(value) : !cJSON_IsNumber(value)) {
                gate_violate(context, "LOSSLESS_COVERAGE", "options.%s holds a value of another type",
                             promised[p].option);
            } else if (!rows_with(context, promised[p].option, value)) {
                char text[32];
                snprintf(text, sizeof text, "%g", promised[p].text ? 0 : value->valuedouble);
                gate_violate(context, "LOSSLESS_COVERAGE", "options.%s promises %.40s, but no row has it",
                             promised[p].option, promised[p].text ? value->valuestring : text);
            }
        }
    }
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
