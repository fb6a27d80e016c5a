/* Rules on what a report claims: recall, bounded memory, speed, nearness to native attention, and that what is said to
 * be equal was computed in different ways. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "measure/gate_private.h"
#include "measure/summary.h"

static bool is_ar(const eval_row *row) { return strcmp(row->arm.mode, "ar") == 0; }

static bool same_cell(const eval_row *a, const eval_row *b) {
    return gate_measured(a) && gate_measured(b) && gate_same_rung(a, b) && eval_arm_equal(&a->arm, &b->arm);
}

/* Of sink and window; their sum may be no int. */
static double exact_positions(const eval_row *row) { return (double)row->arm.sink + (double)row->arm.window; }

/* --------------------------------------------------------------------------------------------------- recall */

static double recall_of(const gate_context *context, const eval_row *of) {
    double n = 0, correct = 0;
    for (size_t i = 0; i < context->rows.n; i++) {
        if (!same_cell(&context->rows.row[i], of)) continue;
        n++;
        correct += context->rows.row[i].correct;
    }
    return correct / n;
}

/* What the arm's answers are compared with: native attention, one token at a time where that was run; of formats the
 * one that is not quantised. */
static const eval_row *oracle_of(const gate_context *context, const eval_row *rung) {
    const eval_row *found = NULL;
    for (size_t i = 0; i < context->rows.n; i++) {
        const eval_row *row = &context->rows.row[i];
        if (!gate_measured(row) || !gate_is_reference(context, row) || !gate_same_rung(row, rung)) continue;
        if (!found || (is_ar(row) && !is_ar(found))) found = row;
    }
    return found;
}

/* Dropping (sink-window) is measured as the arm that restoration is compared with; nothing is claimed about its recall.
 * Of formats, those claim it in which sessions keep K/V. */
static bool claims_recall(const eval_row *row) {
    static const char offered[] = "bf16 q8 q4";
    if (row->arm.kv_format[0]) return eval_is_listed(offered, row->arm.kv_format);
    return gate_is_native(row) || gate_is_restored(row);
}

void gate_rule_recall(gate_context *context) {
    for (size_t i = 0; i < context->rows.n; i++) {
        const eval_row *row = &context->rows.row[i];
        if (!gate_first_of_arm(context, i, true)) continue;
        const eval_row *oracle = oracle_of(context, row);
        if (!oracle) {
            gate_violate(context, "ORACLE_MISSING", "%d lines: no rows of what the others are compared with",
                         row->lines);
            continue;
        }
        double wanted = recall_of(context, oracle), got = recall_of(context, row);
        char label[160];
        eval_arm_label(&row->arm, label, sizeof label);
        if (row == oracle && wanted <= 0)
            gate_violate(context, "RECALL_UNPROVEN", "%d lines: the oracle finds no needle, so the rung shows nothing",
                         row->lines);
        if (claims_recall(row) && got < wanted - GATE_RECALL_TOLERANCE - 1e-9)
            gate_violate(context, "RECALL", "%d lines, %s: recall %.3f, the oracle's is %.3f", row->lines, label, got,
                         wanted);
    }
}

/* --------------------------------------------------------------------------------------------------- memory */

/* Rungs of the arm whose prompts are longer than what stays exact. What they hold, KV_FORMULA has said. */
static size_t long_rungs(const gate_context *context, const eval_row *arm) {
    size_t n = 0;
    for (size_t i = 0; i < context->rows.n; i++)
        n += gate_first_of_arm(context, i, true) && eval_arm_equal(&context->rows.row[i].arm, &arm->arm) &&
             (double)context->rows.row[i].prompt_tokens >= exact_positions(arm);
    return n;
}

void gate_rule_memory(gate_context *context) {
    bool bounded = false;
    for (size_t i = 0; i < context->rows.n; i++) {
        const eval_row *row = &context->rows.row[i];
        if (!gate_first_of_arm(context, i, false) || gate_is_native(row)) continue;
        bounded = true;
        char label[160];
        eval_arm_label(&row->arm, label, sizeof label);
        if (long_rungs(context, row) < 2)
            gate_violate(context, "MEMORY_UNPROVEN",
                         "%s: bounded memory needs two rungs longer than sink + window (%.0f), not %zu", label,
                         exact_positions(row), long_rungs(context, row));
    }
    if (!bounded) gate_violate(context, "MEMORY_UNPROVEN", "no rows under a bounded policy (sink-window, restored)");
}

/* ---------------------------------------------------------------------------------------------------- drafts */

/* Equality with a speculative arm that drafted nothing shows nothing. */
void gate_rule_drafts(gate_context *context) {
    for (size_t i = 0; i < context->rows.n; i++) {
        const eval_row *row = &context->rows.row[i];
        if (!gate_first_of_arm(context, i, true) || strcmp(row->arm.mode, "speculative") != 0) continue;
        int64_t drafted = 0;
        for (size_t j = i; j < context->rows.n; j++)
            if (same_cell(&context->rows.row[j], row)) drafted += context->rows.row[j].drafted_tokens;
        char label[160];
        eval_arm_label(&row->arm, label, sizeof label);
        if (!drafted) gate_violate(context, "SPECULATION_INACTIVE", "%s, %s: nothing was drafted", row->sample, label);
    }
}

/* The same of all rows together, and something accepted: an arm can be one answer that its callback ends at once. */
void gate_rule_coverage(gate_context *context) {
    int64_t drafted = 0, accepted = 0;
    for (size_t i = 0; i < context->rows.n; i++) {
        drafted += context->rows.row[i].drafted_tokens;
        accepted += context->rows.row[i].accepted_tokens;
    }
    if (!drafted || !accepted)
        gate_violate(context, "SPECULATION_INACTIVE", "%lld tokens drafted and %lld accepted in all rows",
                     (long long)drafted, (long long)accepted);
}

/* ---------------------------------------------------------------------------------------------------- speed */

static kakeya_status speedup_of(gate_context *context, const eval_row *row, eval_speedup *out) {
    kakeya_status status = eval_speedup_derive(&context->rows, &row->arm, out, NULL);
    if (status != KAKEYA_OK) context->out_of_memory = true;
    return status;
}

/* The automatic choice must pay or stay out; of fixed draft lengths and draft windows, the best one must pay. */
void gate_rule_speed(gate_context *context) {
    bool compared = false;
    for (size_t i = 0; i < context->rows.n; i++) {
        const eval_row *row = &context->rows.row[i];
        if (!gate_first_of_arm(context, i, false) || is_ar(row)) continue;
        eval_speedup own;
        if (speedup_of(context, row, &own) != KAKEYA_OK) return;
        if (!own.pairs) continue;
        compared = true;
        char label[160];
        eval_arm_label(&row->arm, label, sizeof label);
        if (own.tokens < GATE_MIN_SPEED_TOKENS || own.ar_tokens < GATE_MIN_SPEED_TOKENS)
            gate_violate(context, "SPEED_TOKENS", "%s: speed from %zu tokens against %zu; at least %d are needed",
                         label, own.tokens, own.ar_tokens, GATE_MIN_SPEED_TOKENS);
        double best = own.ratio;
        for (size_t j = 0; strcmp(row->arm.mode, "auto") != 0 && j < context->rows.n; j++) {
            const eval_row *other = &context->rows.row[j];
            eval_speedup rival;
            if (!gate_first_of_arm(context, j, false) || strcmp(other->arm.mode, row->arm.mode) != 0 ||
                strcmp(other->arm.policy, row->arm.policy) != 0)
                continue;
            if (speedup_of(context, other, &rival) != KAKEYA_OK) return;
            if (rival.ratio > best) best = rival.ratio;
        }
        if (best < GATE_SPEED_RATIO)
            gate_violate(context, "SPEED",
                         "%s: %.3f times the speed of ar (median of %zu samples); at least %.2f is needed", label, best,
                         own.pairs, GATE_SPEED_RATIO);
    }
    if (!compared && context->kind == EVAL_CODE)
        gate_violate(context, "AR_MISSING", "no autoregressive rows to compare speculation with");
}

/* ---------------------------------------------------------------------------------------------- diagnostics */

/* Own K/V put back at every evicted position is native attention: anything else is an error of the machinery. */
void gate_rule_identity(gate_context *context) {
    for (size_t i = 0; i < context->rows.n; i++) {
        const eval_row *row = &context->rows.row[i];
        if (row->arm.mix_alpha < 1) continue;
        for (size_t j = 0; j < context->rows.n; j++) {
            const eval_row *native = &context->rows.row[j];
            if (!gate_measured(native) || !gate_is_native(native) || native->prompt_hash != row->prompt_hash) continue;
            if (eval_answer_correct(native->text, native->expected) == eval_answer_correct(row->text, row->expected))
                break;
            gate_violate(context, "IDENTITY_RESTORE",
                         "%s: own K/V restored gives \"%.60s\", native attention \"%.60s\"", row->sample,
                         row->text ? row->text : "", native->text ? native->text : "");
            break;
        }
    }
}

/* --------------------------------------------------------------------------------------------------- scores */

typedef struct fidelity {
    double tokens, kl;
} fidelity;

static fidelity fidelity_of(const gate_context *context, const eval_arm *arm) {
    fidelity f = {0};
    for (size_t i = 0; i < context->rows.n; i++) {
        const eval_row *row = &context->rows.row[i];
        if (!gate_measured(row) || !eval_arm_equal(&row->arm, arm)) continue;
        f.tokens += (double)row->scored_tokens;
        f.kl += row->kl;
    }
    return f;
}

/* KL of a distribution with itself is rounding of its sum. */
static const double zero_kl_per_token = 1e-6;

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
}

void gate_rule_fidelity(gate_context *context) {
    bool oracle = false;
    for (size_t i = 0; i < context->rows.n; i++) {
        const eval_row *row = &context->rows.row[i];
        check_against_native(context, i);
        oracle |= gate_measured(row) && gate_is_reference(context, row);
        if (gate_is_restored(row) && gate_first_of_arm(context, i, false)) check_restored_arm(context, row);
    }
    if (!oracle) gate_violate(context, "ORACLE_MISSING", "no rows under native attention");
}

/* Formats that sessions offer are faithful. What is measured through a backend's own sessions is said, with what that
 * leaves out. */
void gate_rule_kv_formats(gate_context *context) {
    for (size_t i = 0; i < context->rows.n; i++) {
        const eval_row *row = &context->rows.row[i];
        if (!gate_first_of_arm(context, i, false) || !claims_recall(row)) continue;
        fidelity own = fidelity_of(context, &row->arm);
        if (own.kl > GATE_KV_DIVERGENCE * own.tokens)
            gate_violate(context, "KV_FORMAT_UNFAITHFUL", "%s: mean divergence %.6f, at most %.3f is needed",
                         row->arm.kv_format, own.kl / own.tokens, GATE_KV_DIVERGENCE);
    }
    const cJSON *backend = cJSON_GetObjectItemCaseSensitive(context->environment, "backend");
    if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(context->options, "as_stored")))
        gate_note(context,
                  "K/V as sessions of backend %.40s keep them, relative to bf16: no errors by layer, no float32, no "
                  "format that sessions do not keep",
                  cJSON_IsString(backend) ? backend->valuestring : "cpu");
}
