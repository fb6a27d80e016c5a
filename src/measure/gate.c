#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/files.h"
#include "base/json.h"
#include "measure/gate.h"
#include "measure/gate_private.h"
#include "measure/mac.h"
#include "measure/report.h"

enum { MAX_REPORT_BYTES = 1 << 28 };

/* ------------------------------------------------------------------------------------------------- envelope */

static const cJSON *member(const cJSON *object, const char *name) {
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

static bool is_text(const cJSON *item) { return cJSON_IsString(item) && item->valuestring[0]; }

bool gate_recognise(gate_context *context) {
    const cJSON *kind = member(context->report, "kind"), *version = member(context->report, "schema_version");
    if (!cJSON_IsObject(context->report) || !is_text(kind)) {
        gate_violate(context, "NOT_A_REPORT", "no \"kind\": this is not a report of kakeya eval");
        return false;
    }
    bool mac = strcmp(kind->valuestring, mac_kind) == 0;
    if (!mac && !eval_kind_find(kind->valuestring, &context->kind)) {
        gate_violate(context, "UNKNOWN_KIND", "kind \"%.80s\" is not one that kakeya eval writes", kind->valuestring);
        return false;
    }
    context->result->recognised = true;
    context->result->kind = context->kind;
    context->result->kind_name = mac ? mac_kind : eval_kind_name(context->kind);
    if (!cJSON_IsNumber(version)) {
        gate_violate(context, "SCHEMA_VERSION", "no schema_version; this gate judges version %d", EVAL_SCHEMA_VERSION);
        return false;
    }
    if (version->valuedouble < EVAL_SCHEMA_VERSION || version->valuedouble > EVAL_SCHEMA_VERSION) {
        gate_violate(context, "SCHEMA_VERSION", "schema_version %g; this gate judges version %d", version->valuedouble,
                     EVAL_SCHEMA_VERSION);
        return false;
    }
    return true;
}

bool gate_read_rows(gate_context *context, kakeya_error *error) {
    const cJSON *rows = member(context->report, "rows"), *item;
    if (!cJSON_IsArray(rows) || !rows->child) {
        gate_violate(context, "NO_ROWS", "the report holds no raw rows, so nothing can be derived");
        return true;
    }
    size_t index = 0, bad = 0;
    cJSON_ArrayForEach(item, rows) {
        eval_row row;
        kakeya_error problem = {0};
        kakeya_status status = eval_row_from_json(context->kind, item, &row, &problem);
        if (status == KAKEYA_OK) {
            if (eval_rows_add(&context->rows, &row, error) != KAKEYA_OK) return false;
        } else {
            eval_row_free(&row);
            bad++;
            if (status == KAKEYA_OUT_OF_MEMORY) context->out_of_memory = true;
            gate_violate(context, status == KAKEYA_INVALID_ARGUMENT ? "UNKNOWN_ARM" : "ROW_FIELD", "rows[%zu]: %.250s",
                         index, problem.message);
        }
        index++;
    }
    if (bad) eval_rows_free(&context->rows);
    context->result->rows = context->rows.n;
    return true;
}

/* ---------------------------------------------------------------------------------------------------- rules */

#define KIND(name) (1u << (EVAL_##name))
#define GENERATION (KIND(NIAH) | KIND(CODE) | KIND(ACCEPTANCE) | KIND(LOSSLESS) | KIND(BATCH) | KIND(VERIFY))
#define TOGETHER   (KIND(BATCH) | KIND(VERIFY)) /* sessions share the rows of a forward, and their times overlap */
#define SCORED     (KIND(FIDELITY) | KIND(KV_FORMAT))
#define ALL        (GENERATION | SCORED)

static const struct {
    unsigned kinds;
    void (*check)(gate_context *context);
} rules[] = {
    {ALL, gate_rule_plan},
    {ALL, gate_rule_samples},
    {ALL & ~TOGETHER, gate_rule_times},
    {ALL, gate_rule_kv_formula},
    {GENERATION & ~TOGETHER, gate_rule_drafts},
    {GENERATION, gate_rule_lossless},
    {KIND(NIAH) | KIND(KV_FORMAT), gate_rule_recall},
    {KIND(NIAH), gate_rule_memory},
    {KIND(NIAH), gate_rule_identity},
    {KIND(NIAH) | KIND(CODE), gate_rule_speed},
    {SCORED, gate_rule_fidelity},
    {KIND(KV_FORMAT), gate_rule_kv_formats},
    {KIND(LOSSLESS) | TOGETHER, gate_rule_coverage},
    {KIND(VERIFY), gate_rule_verify},
    {ALL, gate_rule_summary},
};

/* Parts that are reports of their own. What is wrong with them is the whole's, with their name before it. */
static void judge_parts(gate_context *context) {
    static const char *const parts[] = {"lossless", "niah"};
    for (size_t p = 0; p < sizeof parts / sizeof parts[0]; p++) {
        const cJSON *part = member(context->report, parts[p]);
        if (!part) continue;
        gate_result result;
        if (gate_check(part, &result, NULL) != KAKEYA_OK) context->out_of_memory = true;
        for (size_t i = 0; i < result.n_violations; i++)
            gate_violate(context, result.violation[i].code, "%s: %s", parts[p], result.violation[i].message);
        context->result->rows += result.rows;
        gate_result_free(&result);
    }
}

kakeya_status gate_check(const cJSON *report, gate_result *out, kakeya_error *error) {
    *out = (gate_result){0};
    gate_context context = {.report = report,
                            .environment = member(report, "environment"),
                            .options = member(report, "options"),
                            .result = out};
    bool known = gate_recognise(&context);
    if (known && out->kind_name == mac_kind) {
        gate_check_mac(&context);
        judge_parts(&context);
    } else if (known) {
        gate_check_form(&context);
        if (!gate_read_rows(&context, error)) context.out_of_memory = true;
        for (size_t i = 0; context.rows.n && i < sizeof rules / sizeof rules[0]; i++)
            if (rules[i].kinds & (1u << context.kind)) rules[i].check(&context);
    }
    eval_rows_free(&context.rows);
    if (context.out_of_memory) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory to judge the report");
    return KAKEYA_OK;
}

kakeya_status gate_check_file(const char *path, gate_result *out, kakeya_error *error) {
    cJSON *report;
    kakeya_status status = gate_read_file(path, out, &report, error);
    cJSON_Delete(report);
    return status;
}

kakeya_status gate_read_file(const char *path, gate_result *out, cJSON **parsed, kakeya_error *error) {
    *out = (gate_result){0};
    *parsed = NULL;
    gate_context context = {.result = out};
    kakeya_error problem = {0};
    char *text = NULL;
    size_t bytes = 0;
    cJSON *report = NULL;
    kakeya_status status = file_read(path, MAX_REPORT_BYTES, &text, &bytes, &problem);
    if (status == KAKEYA_OK) status = json_parse(path, text, bytes, &report, &problem);
    free(text);
    if (status == KAKEYA_OUT_OF_MEMORY) return error_set(error, status, "%s", problem.message);
    if (status != KAKEYA_OK) {
        gate_violate(&context, "UNREADABLE", "%.300s", problem.message);
        return context.out_of_memory ? error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory to judge %s", path)
                                     : KAKEYA_OK;
    }
    *parsed = report;
    return gate_check(report, out, error);
}

kakeya_status gate_refuse(gate_result *result, const char *code, const char *message, kakeya_error *error) {
    gate_context context = {.result = result};
    gate_violate(&context, code, "%.300s", message);
    return context.out_of_memory ? error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for a violation") : KAKEYA_OK;
}

void gate_result_free(gate_result *result) {
    free(result->violation);
    *result = (gate_result){0};
}
