/* The rows must be the runs that the options promise, whole: a row that is missing, added or given another label leaves
 * a gap here, whatever the summary says. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "measure/gate_private.h"
#include "measure/lossless_plan.h"
#include "measure/plan.h"

bool gate_same_run(const eval_row *a, const eval_row *b) {
    return a->warmup == b->warmup && a->repetition == b->repetition && a->lines == b->lines &&
           strcmp(a->sample, b->sample) == 0 && strcmp(a->prompt_kind, b->prompt_kind) == 0 &&
           strcmp(a->category, b->category) == 0 && a->forked == b->forked && a->truncated == b->truncated &&
           a->cancel_after == b->cancel_after && a->has_log_probabilities == b->has_log_probabilities &&
           eval_arm_equal(&a->arm, &b->arm);
}

static void describe(const eval_row *row, char *out, size_t bytes) {
    char label[160];
    eval_arm_label(&row->arm, label, sizeof label);
    snprintf(out, bytes, "%s%.60s, %s%s", row->warmup ? "warm-up " : "", row->sample, label,
             row->repetition ? ", repeated" : "");
}

static void check_answer(gate_context *context, size_t i, const eval_row *planned) {
    const eval_row *row = &context->rows.row[i];
    if (!planned->expected || (row->expected && strcmp(planned->expected, row->expected) == 0)) return;
    gate_violate(context, "ANSWER_MISMATCH",
                 "rows[%zu] (%s): the expected answer is \"%.40s\", the seed draws \"%.40s\"", i, row->sample,
                 row->expected ? row->expected : "", planned->expected);
}

/* Rows out of place are looked for; what is then left over on either side is missing or was never promised. */
static void explain(gate_context *context, const eval_rows *planned) {
    char text[300];
    size_t missing = 0, unpromised = 0;
    bool *found = calloc(planned->n + 1, sizeof *found);
    if (!found) context->out_of_memory = true;
    for (size_t i = 0; found && i < context->rows.n; i++) {
        size_t j = 0;
        while (j < planned->n && (found[j] || !gate_same_run(&context->rows.row[i], &planned->row[j]))) j++;
        found[j] = true;
        if (j < planned->n || unpromised++ >= GATE_MAX_PER_CODE) continue;
        describe(&context->rows.row[i], text, sizeof text);
        gate_violate(context, "ROW_UNPROMISED", "rows[%zu] (%s): the options do not promise this run", i, text);
    }
    for (size_t j = 0; found && j < planned->n; j++) {
        if (found[j] || missing++ >= GATE_MAX_PER_CODE) continue;
        describe(&planned->row[j], text, sizeof text);
        gate_violate(context, "ROW_MISSING", "the options promise %s, but no row holds it", text);
    }
    if (found && !missing && !unpromised)
        gate_violate(context, "ROW_ORDER", "the rows do not stand in the order in which the evaluation runs them");
    free(found);
}

/* What others are compared with comes first, and the machine is as the plan has it. */
static void check_first(gate_context *context) {
    const cJSON *first = cJSON_GetObjectItemCaseSensitive(context->options,
                                                          context->kind == EVAL_KV_FORMAT ? "formats" : "policies"),
                *threads = cJSON_GetObjectItemCaseSensitive(context->environment, "threads");
    bool as_stored = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(context->options, "as_stored"));
    const char *reference = context->kind == EVAL_KV_FORMAT ? eval_reference_format(as_stored) : "native";
    if (eval_kind_scores(context->kind) && strcmp(first->child->valuestring, reference) != 0)
        gate_violate(context, "OPTIONS_FORM", "options do not begin with %s", reference);
    if (context->kind == EVAL_LOSSLESS && !json_is_integer(threads, lossless_threads[0], lossless_threads[0]))
        gate_violate(context, "ENVIRONMENT", "environment.threads is not %d, with which the evaluation begins",
                     lossless_threads[0]);
}

/* How many samples there are: as many as are named, and enough of them for a figure to mean anything. */
static void check_numbers(gate_context *context, size_t planned) {
    static const char *const keys[EVAL_KIND_COUNT] = {
        [EVAL_NIAH] = "samples",        [EVAL_CODE] = "repetitions", [EVAL_FIDELITY] = "sequences",
        [EVAL_KV_FORMAT] = "sequences", [EVAL_LOSSLESS] = "prompts", [EVAL_ACCEPTANCE] = "prompts",
    };
    if (context->kind == EVAL_VERIFY) return;
    const char *key = keys[context->kind];
    const cJSON *samples = cJSON_GetObjectItemCaseSensitive(context->options, "samples");
    int n = key ? gate_option(context, key) : (int)planned / 2; /* of a batch every session, alone and together */
    if (cJSON_IsArray(samples) && n != cJSON_GetArraySize(samples))
        gate_violate(context, "ROW_MISSING", "options.%s is %d, but %d samples are named", key, n,
                     cJSON_GetArraySize(samples));
    if (n < GATE_MIN_SAMPLES)
        gate_violate(context, "SAMPLE_COUNT", "%d %s; at least %d are needed", n, key ? key : "sessions",
                     GATE_MIN_SAMPLES);
}

void gate_rule_plan(gate_context *context) {
    eval_rows planned;
    if (!context->options_sound) return; /* refused already */
    check_first(context);
    const size_t limit =
        4 * context->rows.n + 4096; /* what promises so much more than there is need not be told whole */
    if (eval_plan(context->kind, context->options, context->environment, limit, &planned, NULL) == KAKEYA_OUT_OF_MEMORY)
        context->out_of_memory = true;
    bool same = planned.n == context->rows.n;
    for (size_t i = 0; same && i < planned.n; i++) same = gate_same_run(&context->rows.row[i], &planned.row[i]);
    if (!same && !context->out_of_memory) explain(context, &planned);
    for (size_t i = 0; same && i < planned.n; i++) check_answer(context, i, &planned.row[i]);
    check_numbers(context, planned.n);
    eval_rows_free(&planned);
}
