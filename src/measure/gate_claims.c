/* Rules on what a report claims: recall, bounded memory, speed, and that the compared arms really differ. */
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

static double sliding_window(const gate_context *context) {
    const cJSON *window = cJSON_GetObjectItemCaseSensitive(context->environment, "sliding_window");
    return cJSON_IsNumber(window) ? window->valuedouble : 0;
}

/* --------------------------------------------------------------------------------------------------- recall */

typedef struct recall {
    size_t n, correct;
} recall;

static recall recall_of(const gate_context *context, const eval_row *of) {
    recall r = {0};
    for (size_t i = 0; i < context->rows.n; i++) {
        const eval_row *row = &context->rows.row[i];
        if (!same_cell(row, of)) continue;
        r.n++;
        r.correct += eval_answer_correct(row->text, row->expected);
    }
    return r;
}

/* The oracle of a rung: native attention, one token at a time where that was run. */
static const eval_row *oracle_of(const gate_context *context, const eval_row *rung) {
    const eval_row *found = NULL;
    for (size_t i = 0; i < context->rows.n; i++) {
        const eval_row *row = &context->rows.row[i];
        if (!gate_measured(row) || !gate_is_native(row) || !gate_same_rung(row, rung)) continue;
        if (!found || (is_ar(row) && !is_ar(found))) found = row;
    }
    return found;
}

/* Dropping (sink-window) is measured as the arm that restoration is compared with; nothing is claimed about its recall.
 */
static bool claims_recall(const eval_row *row) { return gate_is_native(row) || gate_is_restored(row); }

/* Letters and digits that a text does not hold by chance. */
static bool is_answer(const char *expected) {
    int visible = 0;
    for (const char *c = expected ? expected : ""; *c; c++) visible += (unsigned char)*c > ' ';
    return visible >= GATE_MIN_ANSWER;
}

void gate_rule_recall(gate_context *context) {
    for (size_t i = 0; i < context->rows.n; i++) {
        const eval_row *row = &context->rows.row[i];
        if (!is_answer(row->expected)) {
            gate_violate(context, "EMPTY_EXPECTED",
                         "rows[%zu] (%s): no expected answer of %d characters, so any text would count", i, row->sample,
                         GATE_MIN_ANSWER);
        } else if (row->correct != eval_answer_correct(row->text, row->expected)) {
            gate_violate(context, "RECALL_FLAG", "rows[%zu] (%s): \"correct\" is %s, but the text says otherwise", i,
                         row->sample, row->correct ? "true" : "false");
        }
        if (!gate_first_of_arm(context, i, true)) continue;
        const eval_row *oracle = oracle_of(context, row);
        if (!oracle) {
            gate_violate(context, "ORACLE_MISSING", "%d lines: no rows under native attention", row->lines);
            continue;
        }
        recall reference = recall_of(context, oracle), own = recall_of(context, row);
        double wanted = (double)reference.correct / (double)reference.n;
        double got = (double)own.correct / (double)own.n;
        char label[160];
        eval_arm_label(&row->arm, label, sizeof label);
        if (row == oracle && !reference.correct)
            gate_violate(context, "RECALL_UNPROVEN", "%d lines: the oracle finds no needle, so the rung shows nothing",
                         row->lines);
        if (claims_recall(row) && got < wanted - GATE_RECALL_TOLERANCE - 1e-9)
            gate_violate(context, "RECALL", "%d lines, %s: recall %.3f, the oracle's is %.3f", row->lines, label, got,
                         wanted);
    }
}

/* --------------------------------------------------------------------------------------------------- memory */

typedef struct growth {
    size_t rungs; /* of different lengths, all beyond the bound */
    size_t smallest, largest;
    int64_t shortest_prompt, longest_prompt;
} growth;

typedef size_t (*kv_part)(const eval_row *row);
static size_t sliding_bytes(const eval_row *row) { return row->kv.sliding; }
static size_t latent_bytes(const eval_row *row) { return row->kv.latent; }
static size_t draft_bytes(const eval_row *row) { return row->kv.draft; }

/* How a part of the resident K/V of one arm behaves over all rungs whose prompts are longer than `bound` positions. */
static growth growth_of(const gate_context *context, const eval_arm *arm, kv_part part, double bound) {
    growth g = {0};
    for (size_t i = 0; i < context->rows.n; i++) {
        const eval_row *row = &context->rows.row[i];
        if (!gate_measured(row) || !eval_arm_equal(&row->arm, arm) || (double)row->prompt_tokens < bound) continue;
        bool new_rung = true;
        for (size_t j = 0; j < i && new_rung; j++) {
            const eval_row *other = &context->rows.row[j];
            new_rung = !(gate_measured(other) && eval_arm_equal(&other->arm, arm) && gate_same_rung(other, row) &&
                         (double)other->prompt_tokens >= bound);
        }
        size_t bytes = part(row);
        if (!g.rungs || bytes < g.smallest) g.smallest = bytes;
        if (!g.rungs || bytes > g.largest) g.largest = bytes;
        if (!g.rungs || row->prompt_tokens < g.shortest_prompt) g.shortest_prompt = row->prompt_tokens;
        if (!g.rungs || row->prompt_tokens > g.longest_prompt) g.longest_prompt = row->prompt_tokens;
        g.rungs += new_rung;
    }
    return g;
}

static void require_constant(gate_context *context, const char *code, const char *what, const eval_arm *arm, growth g) {
    if (g.largest <= g.smallest) return;
    char label[160];
    eval_arm_label(arm, label, sizeof label);
    gate_violate(context, code, "%s: %s hold between %zu and %zu bytes at prompts of %lld to %lld tokens", label, what,
                 g.smallest, g.largest, (long long)g.shortest_prompt, (long long)g.longest_prompt);
}

static void check_arm_memory(gate_context *context, const eval_row *row, bool *shown) {
    char label[160];
    eval_arm_label(&row->arm, label, sizeof label);
    growth draft = growth_of(context, &row->arm, draft_bytes, row->arm.draft_window);
    if (draft.rungs > 1) {
        require_constant(context, "DRAFT_GROWS", "the drafter's context K/V", &row->arm, draft);
    } else if (growth_of(context, &row->arm, draft_bytes, 0).largest) {
        gate_note(context, "%s: fewer than two rungs exceed the draft window, so the drafter's bound is not shown",
                  label);
    }
    if (gate_is_native(row)) return;

    growth sliding = growth_of(context, &row->arm, sliding_bytes, exact_positions(row));
    if (sliding.rungs < 2) {
        gate_violate(context, "MEMORY_UNPROVEN",
                     "%s: bounded memory needs two rungs longer than sink + window (%.0f), not %zu", label,
                     exact_positions(row), sliding.rungs);
    } else {
        *shown = true;
        require_constant(context, "MEMORY_GROWS", "the sliding layers' exact K/V", &row->arm, sliding);
    }
    /* Under S5 only positions inside the model's own sliding window are ever restored. */
    if (strcmp(row->arm.policy, "restored") == 0)
        require_constant(context, "MEMORY_GROWS", "f_theta's latents", &row->arm,
                         growth_of(context, &row->arm, latent_bytes, sliding_window(context)));
}

void gate_rule_memory(gate_context *context) {
    bool shown = false, bounded = false;
    for (size_t i = 0; i < context->rows.n; i++) {
        if (!gate_first_of_arm(context, i, false)) continue;
        bounded |= !gate_is_native(&context->rows.row[i]);
        check_arm_memory(context, &context->rows.row[i], &shown);
    }
    if (!bounded) gate_violate(context, "MEMORY_UNPROVEN", "no rows under a bounded policy (sink-window, restored)");
}

/* ------------------------------------------------------------------------------------ arms that really differ */

static void check_row_differs(gate_context *context, size_t i) {
    const eval_row *row = &context->rows.row[i];
    if (gate_is_native(row) && row->kv.latent)
        gate_violate(context, "SELF_COMPARISON", "rows[%zu] (%s): native attention, but %zu bytes of latents", i,
                     row->sample, row->kv.latent);
    if (is_ar(row) && row->drafted_tokens)
        gate_violate(context, "SELF_COMPARISON", "rows[%zu] (%s): mode ar, but %lld tokens were drafted", i,
                     row->sample, (long long)row->drafted_tokens);
    if (gate_is_restored(row) && (double)row->prompt_tokens > exact_positions(row) && !row->kv.latent)
        gate_violate(context, "RESTORATION_INACTIVE",
                     "rows[%zu] (%s): %s with a prompt of %lld tokens, but no latents are resident", i, row->sample,
                     row->arm.policy, (long long)row->prompt_tokens);
}

/* Beyond the model's own window, a bounded policy must hold less in the sliding layers than native attention. */
static void check_arm_differs(gate_context *context, const eval_row *row) {
    /* An arm of a batch can be one answer that its callback ends at once: there, all rows together must have drafted.
     */
    if (strcmp(row->arm.mode, "speculative") == 0 && context->kind != EVAL_BATCH && context->kind != EVAL_VERIFY) {
        int64_t drafted = 0;
        for (size_t i = 0; i < context->rows.n; i++)
            if (same_cell(&context->rows.row[i], row)) drafted += context->rows.row[i].drafted_tokens;
        char label[160];
        eval_arm_label(&row->arm, label, sizeof label);
        if (!drafted) gate_violate(context, "SPECULATION_INACTIVE", "%s, %s: nothing was drafted", row->sample, label);
    }
    if (gate_is_native(row) || (double)row->prompt_tokens <= sliding_window(context) ||
        exact_positions(row) >= sliding_window(context))
        return;
    for (size_t i = 0; i < context->rows.n; i++) {
        const eval_row *native = &context->rows.row[i];
        if (!gate_measured(native) || !gate_is_native(native) || strcmp(native->sample, row->sample) != 0 ||
            strcmp(native->arm.kv_format, row->arm.kv_format) != 0)
            continue;
        if (row->kv.sliding >= native->kv.sliding)
            gate_violate(context, "SELF_COMPARISON", "%s: %s holds %zu bytes in sliding layers, native attention %zu",
                         row->sample, row->arm.policy, row->kv.sliding, native->kv.sliding);
        return;
    }
}

void gate_rule_self_comparison(gate_context *context) {
    for (size_t i = 0; i < context->rows.n; i++) {
        check_row_differs(context, i);
        if (gate_first_of_arm(context, i, true)) check_arm_differs(context, &context->rows.row[i]);
    }
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
