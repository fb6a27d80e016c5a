#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/files.h"
#include "base/json.h"
#include "measure/gate_private.h"
#include "measure/report.h"

enum {
    MAX_REPORT_BYTES = 1 << 30,
    MAX_PER_CODE = 5, /* messages; a broken run breaks a rule in every row */
};

void gate_violate(gate_context *context, const char *code, const char *format, ...) {
    gate_result *result = context->result;
    size_t same = 0;
    for (size_t i = 0; i < result->n_violations; i++) same += strcmp(result->violation[i].code, code) == 0;
    if (same >= MAX_PER_CODE) return;
    gate_violation *grown = realloc(result->violation, (result->n_violations + 1) * sizeof *grown);
    if (!grown) {
        context->out_of_memory = true;
        return;
    }
    result->violation = grown;
    gate_violation *violation = &grown[result->n_violations++];
    violation->code = code;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(violation->message, sizeof violation->message, format, arguments);
    va_end(arguments);
}

/* ------------------------------------------------------------------------------------------------- envelope */

static const cJSON *member(const cJSON *object, const char *name) {
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

static bool is_text(const cJSON *item) { return cJSON_IsString(item) && item->valuestring[0]; }

/* Whether the object is a report of ours that this version can judge. */
static bool recognise(gate_context *context) {
    const cJSON *kind = member(context->report, "kind"), *version = member(context->report, "schema_version");
    if (!cJSON_IsObject(context->report) || !is_text(kind)) {
        gate_violate(context, "NOT_A_REPORT", "no \"kind\": this is not a report of kakeya eval");
        return false;
    }
    if (!eval_kind_find(kind->valuestring, &context->kind)) {
        gate_violate(context, "UNKNOWN_KIND", "kind \"%.80s\" is not one that kakeya eval writes", kind->valuestring);
        return false;
    }
    context->result->recognised = true;
    context->result->kind = context->kind;
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

static void check_environment(gate_context *context) {
    static const char *const texts[] = {"kakeya_version", "date",  "cpu_model",   "os",
                                        "backend",        "model", "fingerprint", "precision"};
    static const char *const numbers[] = {"cores", "memory_bytes", "threads", "sliding_window"};
    if (!cJSON_IsObject(context->environment)) {
        gate_violate(context, "MISSING_ENVIRONMENT", "no \"environment\" object");
        return;
    }
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (!is_text(member(context->environment, texts[i])))
            gate_violate(context, "MISSING_ENVIRONMENT", "environment.%s is missing", texts[i]);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        const cJSON *item = member(context->environment, numbers[i]);
        if (!cJSON_IsNumber(item) || !(item->valuedouble > 0))
            gate_violate(context, "MISSING_ENVIRONMENT", "environment.%s is missing", numbers[i]);
    }
    if (!cJSON_IsArray(member(context->environment, "stop_tokens")))
        gate_violate(context, "MISSING_ENVIRONMENT", "environment.stop_tokens is missing");
}

static void check_options(gate_context *context) {
    static const char *const required[EVAL_KIND_COUNT][5] = {
        [EVAL_NIAH] = {"samples", "lines", "seed", "max_tokens", "policies"},
        [EVAL_FIDELITY] = {"prompt_length", "policies", "windows"},
        [EVAL_CODE] = {"max_tokens", "repetitions", "policies"},
        [EVAL_ACCEPTANCE] = {"max_tokens", "draft_length"},
        [EVAL_LOSSLESS] = {"prompts", "max_tokens", "seed", "policies", "temperatures"},
    };
    if (!cJSON_IsObject(context->options)) {
        gate_violate(context, "MISSING_OPTIONS", "no \"options\" object");
        return;
    }
    for (int i = 0; i < 5 && required[context->kind][i]; i++)
        if (!member(context->options, required[context->kind][i]))
            gate_violate(context, "MISSING_OPTIONS", "options.%s is missing", required[context->kind][i]);
}

static void check_envelope(gate_context *context) {
    if (!cJSON_IsTrue(member(context->report, "complete")))
        gate_violate(context, "INCOMPLETE", "the evaluation did not come to its end (\"complete\" is not true)");
    const cJSON *command = member(context->report, "command");
    bool named = cJSON_IsArray(command) && cJSON_GetArraySize(command) > 0;
    for (const cJSON *word = named ? command->child : NULL; word; word = word->next) named &= cJSON_IsString(word);
    if (!named) gate_violate(context, "MISSING_COMMAND", "the command line that made the report is not recorded");
    check_environment(context);
    check_options(context);
}

/* Rows are taken only whole: one bad row, and no rule that needs rows is asked. */
static bool read_rows(gate_context *context, kakeya_error *error) {
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
            gate_violate(context, "ROW_FIELD", "rows[%zu]: %.250s", index, problem.message);
        }
        index++;
    }
    if (bad) eval_rows_free(&context->rows);
    context->result->rows = context->rows.n;
    return true;
}

/* ---------------------------------------------------------------------------------------------------- rules */

#define KIND(name) (1u << (EVAL_##name))
#define GENERATION (KIND(NIAH) | KIND(CODE) | KIND(ACCEPTANCE) | KIND(LOSSLESS))
#define TIMED      (KIND(NIAH) | KIND(CODE) | KIND(ACCEPTANCE))
#define ALL        (GENERATION | KIND(FIDELITY))

static const struct {
    unsigned kinds;
    void (*check)(gate_context *context);
} rules[] = {
    {ALL, gate_rule_timing},
    {GENERATION, gate_rule_kv_sum},
    {GENERATION, gate_rule_counts},
    {GENERATION, gate_rule_turn_end},
    {ALL, gate_rule_duplicates},
    {TIMED, gate_rule_warmup},
    {ALL, gate_rule_samples},
    {GENERATION, gate_rule_self_comparison},
    {GENERATION, gate_rule_lossless},
    {KIND(NIAH), gate_rule_recall},
    {KIND(NIAH), gate_rule_memory},
    {KIND(NIAH), gate_rule_identity},
    {KIND(NIAH) | KIND(CODE), gate_rule_speed},
    {KIND(FIDELITY), gate_rule_fidelity},
    {KIND(ACCEPTANCE), gate_rule_forms},
    {KIND(LOSSLESS), gate_rule_coverage},
    {ALL, gate_rule_summary},
};

kakeya_status gate_check(const cJSON *report, gate_result *out, kakeya_error *error) {
    *out = (gate_result){0};
    gate_context context = {.report = report,
                            .environment = member(report, "environment"),
                            .options = member(report, "options"),
                            .result = out};
    if (recognise(&context)) {
        check_envelope(&context);
        if (!read_rows(&context, error)) context.out_of_memory = true;
        for (size_t i = 0; context.rows.n && i < sizeof rules / sizeof rules[0]; i++)
            if (rules[i].kinds & (1u << context.kind)) rules[i].check(&context);
    }
    eval_rows_free(&context.rows);
    if (context.out_of_memory) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory to judge the report");
    return KAKEYA_OK;
}

kakeya_status gate_check_file(const char *path, gate_result *out, kakeya_error *error) {
    *out = (gate_result){0};
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
    status = gate_check(report, out, error);
    cJSON_Delete(report);
    return status;
}

void gate_result_free(gate_result *result) {
    free(result->violation);
    *result = (gate_result){0};
}
