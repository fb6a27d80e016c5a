/* Rules on the rows of any kind, of what they say together: names stand for prompts, runs follow one another, K/V
 * memory is what the model's sizes give, and the summary is what the rows give. Whether a row is what the model gives
 * is for a replay to say. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "measure/gate_private.h"
#include "measure/summary.h"

bool gate_measured(const eval_row *row) { return !row->warmup && row->arm.mix_alpha < 0; }
bool gate_same_rung(const eval_row *a, const eval_row *b) { return a->lines == b->lines; }
bool gate_is_reference(const gate_context *context, const eval_row *row) {
    if (context->kind != EVAL_KV_FORMAT) return gate_is_native(row);
    return strcmp(row->arm.kv_format, eval_reference_format(row->arm.as_stored)) == 0;
}

bool gate_is_native(const eval_row *row) { return strcmp(row->arm.policy, "native") == 0; }
bool gate_is_restored(const eval_row *row) { return strncmp(row->arm.policy, "restored", 8) == 0; }

bool gate_first_of_arm(const gate_context *context, size_t i, bool by_rung) {
    const eval_row *row = &context->rows.row[i];
    if (!gate_measured(row)) return false;
    for (size_t j = 0; j < i; j++) {
        const eval_row *earlier = &context->rows.row[j];
        if (gate_measured(earlier) && eval_arm_equal(&earlier->arm, &row->arm) &&
            (!by_rung || gate_same_rung(earlier, row)))
            return false;
    }
    return true;
}

/* ---------------------------------------------------------------------------------------------------------- samples */

static bool same_text(const char *a, const char *b) { return a && b ? strcmp(a, b) == 0 : a == b; }

/* Every name stands for one prompt, and every prompt has one name. */
void gate_rule_samples(gate_context *context) {
    for (size_t i = 0; i < context->rows.n; i++) {
        const eval_row *a = &context->rows.row[i];
        for (size_t j = 0; j < i; j++) {
            const eval_row *b = &context->rows.row[j];
            if (strcmp(a->sample, b->sample) != 0) {
                if (a->prompt_hash == b->prompt_hash)
                    gate_violate(context, "PROMPT_REUSED", "%s and %s are the same prompt under two names", b->sample,
                                 a->sample);
                continue;
            }
            const char *what = a->prompt_hash != b->prompt_hash       ? "prompt_hash"
                               : a->prompt_tokens != b->prompt_tokens ? "prompt_tokens"
                               : !same_text(a->expected, b->expected) ? "expected"
                                                                      : NULL;
            if (what)
                gate_violate(context, "PROMPT_MISMATCH",
                             "rows[%zu] and rows[%zu] are of the sample %s, but their %s differ", j, i, a->sample,
                             what);
        }
    }
}

/* ------------------------------------------------------------------------------------------------------------ times */

/* Rows stand in the order in which they ran, one at a time. Nobody can measure again how long they took. */
void gate_rule_times(gate_context *context) {
    double end = 0;
    for (size_t i = 0; i < context->rows.n; i++) {
        const eval_row *row = &context->rows.row[i];
        double own = eval_kind_scores(context->kind) ? row->seconds : row->prefill_seconds + row->decode_seconds;
        if (!(own > 0)) gate_violate(context, "TIMING", "rows[%zu] (%s) took %g s", i, row->sample, own);
        if (!(row->started_seconds >= end))
            gate_violate(context, "TIMING", "rows[%zu] (%s) begins at %g s, before the row before ends at %g s", i,
                         row->sample, row->started_seconds, end);
        end = fmax(end, row->started_seconds) + own * (1 - 1e-9);
    }
}

/* ------------------------------------------------------------------------------------------------------- K/V memory */

enum { MAX_POSITIONS = 1 << 28 };

typedef size_t (*kv_part)(const backend_cache_bytes *bytes);
static size_t full_part(const backend_cache_bytes *b) { return b->full; }
static size_t sliding_part(const backend_cache_bytes *b) { return b->sliding; }
static size_t latent_part(const backend_cache_bytes *b) { return b->latent; }
static size_t draft_part(const backend_cache_bytes *b) { return b->draft; }

/* Positions that a row's memory was asked for. All scored tokens are committed, of generated ones all but the last.
 * A decode block may have asked for room after them: one of a single row has not, unless it was computed ahead for an
 * answer that its session's callback ended. */
static int positions(const gate_context *context, const eval_row *row, int *pending) {
    bool scored = eval_kind_scores(context->kind);
    bool alone = context->kind != EVAL_BATCH && !row->arm.together;
    bool exact = scored || (alone && strcmp(row->arm.mode, "ar") == 0);
    *pending = exact ? 0 : BACKEND_MAX_DECODE_ROWS;
    return (int)(row->prompt_tokens + (int64_t)row->n_token_ids) - !scored;
}

static void check_part(gate_context *context, size_t i, const char *name, kv_part part, size_t stated) {
    const eval_row *row = &context->rows.row[i];
    int pending, committed = positions(context, row, &pending);
    backend_cache_bytes first = kv_geometry_bytes(&context->geometry, &row->arm, committed);
    for (int more = 0; more <= pending; more++) {
        backend_cache_bytes bytes = kv_geometry_bytes(&context->geometry, &row->arm, committed + more);
        if (part(&bytes) == stated) return;
    }
    gate_violate(context, "KV_FORMULA", "rows[%zu] (%s, %s): %zu bytes of %s K/V, but the model's sizes give %zu", i,
                 row->sample, row->arm.policy, stated, name, part(&first));
}

void gate_rule_kv_formula(gate_context *context) {
    if (!context->has_geometry) return; /* refused already */
    for (size_t i = 0; i < context->rows.n; i++) {
        const eval_row *row = &context->rows.row[i];
        if (row->prompt_tokens < 1 || row->prompt_tokens > MAX_POSITIONS || row->n_token_ids > MAX_POSITIONS) {
            gate_violate(context, "KV_FORMULA", "rows[%zu] (%s): a prompt of %lld tokens", i, row->sample,
                         (long long)row->prompt_tokens);
            continue;
        }
        if (row->arm.mix_alpha >= 0) continue; /* diagnostics keep all raw K/V besides */
        check_part(context, i, "draft", draft_part, row->kv.draft);
        /* Eviction begins with the first decoded row. */
        if (row->verifier_forwards == 0 && !eval_kind_scores(context->kind)) continue;
        check_part(context, i, "full", full_part, row->kv.full);
        check_part(context, i, "sliding", sliding_part, row->kv.sliding);
        check_part(context, i, "latent", latent_part, row->kv.latent);
    }
}

/* -------------------------------------------------------------------------------------------------- summary */

/* Figures are printed with 15 or more digits. */
static bool same_number(double a, double b) { return fabs(a - b) <= 1e-9 * fmax(1, fmax(fabs(a), fabs(b))); }

static void compare(gate_context *context, const char *path, const cJSON *stated, const cJSON *derived) {
    char inner[200];
    if (!stated || (stated->type & 0xff) != (derived->type & 0xff)) {
        gate_violate(context, "SUMMARY_MISMATCH", "%s is %s, unlike what the rows give", path,
                     stated ? "of another type" : "missing");
    } else if (cJSON_IsNumber(derived)) {
        if (!same_number(stated->valuedouble, derived->valuedouble))
            gate_violate(context, "SUMMARY_MISMATCH", "%s is %.6g, but the rows give %.6g", path, stated->valuedouble,
                         derived->valuedouble);
    } else if (cJSON_IsString(derived)) {
        if (strcmp(stated->valuestring, derived->valuestring) != 0)
            gate_violate(context, "SUMMARY_MISMATCH", "%s is \"%.60s\", but the rows give \"%.60s\"", path,
                         stated->valuestring, derived->valuestring);
    } else if (cJSON_IsArray(derived) || cJSON_IsObject(derived)) {
        if (cJSON_GetArraySize(stated) != cJSON_GetArraySize(derived)) {
            gate_violate(context, "SUMMARY_MISMATCH", "%s has %d entries, but the rows give %d", path,
                         cJSON_GetArraySize(stated), cJSON_GetArraySize(derived));
            return;
        }
        int i = 0;
        for (const cJSON *item = derived->child; item; item = item->next, i++) {
            if (cJSON_IsArray(derived)) {
                snprintf(inner, sizeof inner, "%.180s[%d]", path, i);
            } else {
                snprintf(inner, sizeof inner, "%.120s.%.60s", path, item->string);
            }
            compare(context, inner,
                    cJSON_IsArray(derived) ? cJSON_GetArrayItem(stated, i)
                                           : cJSON_GetObjectItemCaseSensitive(stated, item->string),
                    item);
        }
    }
}

void gate_rule_summary(gate_context *context) {
    cJSON *derived = eval_summary_derive(context->kind, &context->rows);
    if (!derived) {
        context->out_of_memory = true;
        return;
    }
    compare(context, "summary", cJSON_GetObjectItemCaseSensitive(context->report, "summary"), derived);
    cJSON_Delete(derived);
}

void gate_rule_lossless(gate_context *context) {
    eval_lossless result;
    eval_lossless_compare(&context->rows, &result);
    char label[160], reference[160];
    if (result.alone && result.comparisons) {
        eval_arm_label(&result.lonely->arm, label, sizeof label);
        gate_violate(context, "LOSSLESS_REFERENCE", "%zu token streams have nothing to be compared with; first %s, %s",
                     result.alone, result.lonely->sample, label);
    }
    if (!result.differences) return;
    eval_arm_label(&result.different->arm, label, sizeof label);
    eval_arm_label(&result.reference->arm, reference, sizeof reference);
    gate_violate(context, "LOSSLESS", "%zu of %zu token streams differ; first %s, token %zu: %s against %s",
                 result.differences, result.comparisons, result.different->sample, result.position, label, reference);
}
