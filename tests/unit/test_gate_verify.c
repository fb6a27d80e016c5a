/* Protects the gate's judgement of certificates: for every way to forge one there is a true report with that one
 * change, which is refused for what it is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "measure/verify_plan.h"
#include "report_support.h"

static eval_row *row_of(eval_report *r, verify_comparison comparison) {
    for (size_t i = 0; i < r->rows.n; i++)
        if (strcmp(r->rows.row[i].arm.comparison, verify_comparison_name(comparison)) == 0) return &r->rows.row[i];
    fail_msg("no row of %s", verify_comparison_name(comparison));
    return NULL;
}

static void set_option(eval_report *r, const char *key, double value) {
    cJSON_SetNumberValue(part_of(r->options, key), value);
}

/* --- rows */
static void other_token(eval_report *r) { row_of(r, VERIFY_PARKED)->token_ids[3]++; }
static void other_log_probability(eval_report *r) { row_of(r, VERIFY_SAVED)->log_probability_hash++; }
static void nothing_cut_off(eval_report *r) {
    for (size_t i = 0; i < r->rows.n; i++) r->rows.row[i].dropped_tokens = 0;
}
static void nothing_accepted(eval_report *r) {
    for (size_t i = 0; i < r->rows.n; i++) {
        eval_row *row = &r->rows.row[i];
        if (strcmp(row->arm.comparison, "rows") != 0) continue;
        row->accepted_tokens = 0;
        memset(row->accepted_at, 0, sizeof row->accepted_at);
        row->verifier_forwards = (int64_t)row->n_token_ids - 1;
        row->drafted_tokens = row->drafted_at[0] = 1;
        memset(row->drafted_at + 1, 0, sizeof row->drafted_at - sizeof *row->drafted_at);
    }
}
static void nothing_drafted(eval_report *r) {
    eval_row *row = row_of(r, VERIFY_ROWS);
    row->drafted_tokens = row->accepted_tokens = 0;
    memset(row->accepted_at, 0, sizeof row->accepted_at);
    memset(row->drafted_at, 0, sizeof row->drafted_at);
    row->verifier_forwards = (int64_t)row->n_token_ids - 1;
}
static void shorter_answers(eval_report *r) {
    const char *sample = r->rows.row[0].sample;
    for (size_t i = 0; i < r->rows.n; i++)
        if (strcmp(r->rows.row[i].sample, sample) == 0) r->rows.row[i].n_token_ids--;
}
static void ends_as_stopped(eval_report *r) { strcpy(row_of(r, VERIFY_BATCH)->finish, "stop"); }
static void more_memory(eval_report *r) {
    row_of(r, VERIFY_FORKED)->kv.full += 64;
    row_of(r, VERIFY_FORKED)->kv.total += 64;
}

/* --- what was run */
static void kind_is_gone(eval_report *r, verify_comparison comparison) {
    for (size_t i = r->rows.n; i-- > 0;)
        if (strcmp(r->rows.row[i].arm.comparison, verify_comparison_name(comparison)) == 0)
            remove_row(r, &r->rows.row[i]);
}
static void one_row_is_gone(eval_report *r) { remove_row(r, row_of(r, VERIFY_AUTO)); }
static void references_are_gone(eval_report *r) { kind_is_gone(r, VERIFY_REFERENCE); }
static void relabelled(eval_report *r) { strcpy(row_of(r, VERIFY_PARKED)->arm.comparison, "truncated"); }
static void format_relabelled(eval_report *r) { strcpy(row_of(r, VERIFY_PARKED)->arm.kv_format, "q8"); }
static void temperature_relabelled(eval_report *r) { row_of(r, VERIFY_PARKED)->arm.temperature = 1; }
static void threads_relabelled(eval_report *r) {
    for (size_t i = 0; i < r->rows.n; i++) r->rows.row[i].arm.threads = 2;
}
static void second_round_is_the_first(eval_report *r) {
    for (size_t i = 0; i < r->rows.n; i++) {
        eval_row *row = &r->rows.row[i];
        if (strncmp(row->sample, "001", 3) == 0) row->prompt_hash = r->rows.row[0].prompt_hash;
    }
}
static void one_round_more(eval_report *r) { set_option(r, "rounds", 3); }
static void one_round_less(eval_report *r) { set_option(r, "rounds", 1); }
static void more_elsewhere(eval_report *r) { set_option(r, "rounds_elsewhere", 3); }
static void no_other_threads(eval_report *r) {
    set_option(r, "threads_elsewhere", part_of(r->environment, "threads")->valuedouble);
    threads_relabelled(r);
}
static void long_answers(eval_report *r) { set_option(r, "max_tokens", 1000); }
static void policy_added(eval_report *r) {
    cJSON_AddItemToArray(part_of(r->options, "policies"), cJSON_CreateString("sink-window"));
}
static void format_added(eval_report *r) {
    cJSON_AddItemToArray(part_of(r->options, "kv_formats"), cJSON_CreateString("q4"));
}
static void no_drafter(eval_report *r) { part_of(r->environment, "drafter")->type = cJSON_False; }

static const struct {
    const char *name, *code;
    void (*change)(eval_report *report);
} cases[] = {
#define CASE(code, change)                                                                                             \
    { #change, code, change }
    CASE("LOSSLESS", other_token),
    CASE("LOSSLESS", other_log_probability),
    CASE("VERIFY_COVERAGE", nothing_cut_off),
    CASE("VERIFY_COVERAGE", nothing_accepted),
    CASE("VERIFY_COVERAGE", nothing_drafted),
    CASE("TURN_END", shorter_answers),
    CASE("TURN_END", ends_as_stopped),
    CASE("KV_FORMULA", more_memory),
    CASE("ROW_MISSING", one_row_is_gone),
    CASE("ROW_MISSING", references_are_gone),
    CASE("ROW_UNPROMISED", relabelled),
    CASE("ROW_UNPROMISED", format_relabelled),
    CASE("ROW_UNPROMISED", temperature_relabelled),
    CASE("ROW_UNPROMISED", threads_relabelled),
    CASE("PROMPT_REUSED", second_round_is_the_first),
    CASE("ROW_MISSING", one_round_more),
    CASE("ROW_UNPROMISED", one_round_less),
    CASE("OPTIONS_FORM", more_elsewhere),
    CASE("VERIFY_COVERAGE", no_other_threads),
    CASE("OPTIONS_FORM", long_answers),
    CASE("ROW_MISSING", policy_added),
    CASE("ROW_MISSING", format_added),
    CASE("ROW_UNPROMISED", no_drafter),
#undef CASE
};

static bool refused_for(eval_report *report, const char *code) {
    cJSON *json = eval_report_to_json(report);
    assert_non_null(json);
    gate_result result = judge(json);
    bool found = raises(&result, code);
    gate_result_free(&result);
    cJSON_Delete(json);
    return found;
}

static void every_forgery_is_refused(void **state) {
    (void)state;
    size_t failures = 0;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        eval_report *report = sound(EVAL_VERIFY);
        cases[c].change(report);
        if (!refused_for(report, cases[c].code)) {
            print_error("%s: does not raise %s\n", cases[c].name, cases[c].code);
            failures++;
        }
        eval_report_close(report);
    }
    assert_int_equal(failures, 0);
}

/* No kind of comparison can be left out. */
static void every_kind_is_wanted(void **state) {
    (void)state;
    for (int c = 0; c < VERIFY_COMPARISONS; c++) {
        eval_report *report = sound(EVAL_VERIFY);
        kind_is_gone(report, (verify_comparison)c);
        if (!refused_for(report, "ROW_MISSING"))
            fail_msg("without %s it passes", verify_comparison_name((verify_comparison)c));
        eval_report_close(report);
    }
}

static void a_true_one_passes(void **state) {
    (void)state;
    eval_report *report = sound(EVAL_VERIFY);
    cJSON *json = eval_report_to_json(report);
    gate_result result = judge(json);
    for (size_t i = 0; i < result.n_violations; i++)
        print_error("[%s] %s\n", result.violation[i].code, result.violation[i].message);
    assert_int_equal(result.n_violations, 0);
    gate_result_free(&result);
    cJSON_Delete(json);
    eval_report_close(report);
}

/* ------------------------------------------------------------------------------------- logits that were made elsewhere
 */

/* 20 rows: `differing` of them hold another token likeliest; every one diverges by kl. */
static cJSON *new_logits(double kl, int differing) {
    enum { ROWS = 20 };
    cJSON *logits = cJSON_CreateObject(), *rows = cJSON_AddArrayToObject(logits, "rows");
    for (int i = 0; i < ROWS; i++) {
        cJSON *row = cJSON_CreateObject();
        cJSON_AddNumberToObject(row, "token", i);
        cJSON_AddNumberToObject(row, "kl", kl);
        cJSON_AddNumberToObject(row, "nll", 1.5);
        cJSON_AddNumberToObject(row, "reference_nll", 1.5);
        cJSON_AddBoolToObject(row, "same_choice", i >= differing);
        cJSON_AddItemToArray(rows, row);
    }
    cJSON_AddStringToObject(logits, "file", "theirs.safetensors");
    cJSON_AddNumberToObject(logits, "tokens", ROWS);
    cJSON_AddNumberToObject(logits, "kl", kl);
    cJSON_AddNumberToObject(logits, "same_choice", 1 - (double)differing / ROWS);
    return logits;
}

static bool logits_raise(cJSON *logits, const char *code) {
    eval_report *report = sound(EVAL_VERIFY);
    report->logits = logits;
    bool found;
    if (code) {
        found = refused_for(report, code);
    } else {
        cJSON *json = eval_report_to_json(report);
        gate_result result = judge(json);
        found = result.n_violations > 0;
        gate_result_free(&result);
        cJSON_Delete(json);
    }
    eval_report_close(report);
    return found;
}

static void logits_from_elsewhere_are_judged(void **state) {
    (void)state;
    assert_false(logits_raise(new_logits(0.004, 1), NULL));
    assert_true(logits_raise(new_logits(0.03, 1), "LOGITS"));
    assert_true(logits_raise(new_logits(0.004, 3), "LOGITS"));
    cJSON *fewer = new_logits(0.004, 0);
    cJSON_DeleteItemFromArray(part_of(fewer, "rows"), 0);
    assert_true(logits_raise(fewer, "LOGITS_FORM"));
    cJSON *better = new_logits(0.03, 0);
    cJSON_SetNumberValue(part_of(better, "kl"), 0.001);
    assert_true(logits_raise(better, "LOGITS_FORM"));
    cJSON *impossible = new_logits(0.0001, 0); /* the two likelihoods of one row are too far apart */
    cJSON_SetNumberValue(part_of(part_of(impossible, "rows")->child, "nll"), 4);
    assert_true(logits_raise(impossible, "LOGITS_FORM"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_true_one_passes),
        cmocka_unit_test(every_forgery_is_refused),
        cmocka_unit_test(every_kind_is_wanted),
        cmocka_unit_test(logits_from_elsewhere_are_judged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
