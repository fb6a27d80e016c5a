/* Protects the gate from what comes in and what it prints: files that are no reports are refused as such, reports come
 * through a file as they are in memory, and nothing in a report can fake a line of output. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "report_support.h"

/* Judges the report as it comes back from a file. */
static gate_result judge_file(const cJSON *report) {
    char path[] = "/tmp/kakeya-gate-XXXXXX";
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    char *text = cJSON_PrintUnformatted(report);
    assert_non_null(text);
    assert_int_equal(write(descriptor, text, strlen(text)), strlen(text));
    close(descriptor);
    cJSON_free(text);
    gate_result result;
    kakeya_error error;
    assert_int_equal(gate_check_file(path, &result, &error), KAKEYA_OK);
    unlink(path);
    return result;
}

static void true_reports_pass_as_files(void **state) {
    (void)state;
    for (int kind = 0; kind < EVAL_KIND_COUNT; kind++) {
        cJSON *json = true_report((eval_kind)kind);
        gate_result result = judge_file(json);
        assert_int_equal(result.n_violations, 0);
        gate_result_free(&result);
        cJSON_Delete(json);
    }
}

/* Names from a report cannot write lines or escape sequences of their own. */
static void what_a_report_says_is_printed_escaped(void **state) {
    (void)state;
    static const char evil[] = "x\nr.json: passed (kakeya.eval.niah, 96 rows)\033[2K\x7f\xc2\x9b";
    static const char *const fields[] = {"sample", "policy", "finish_reason"};
    for (size_t f = 0; f < sizeof fields / sizeof fields[0]; f++) {
        cJSON *json = true_report(EVAL_CODE);
        cJSON *row = part_of(json, "rows")->child;
        cJSON_ReplaceItemInObject(row, fields[f], cJSON_CreateString(f ? "a\n[OK] b" : evil));
        cJSON_AddItemToObject(part_of(json, "options"), evil, cJSON_CreateNull());
        cJSON_ReplaceItemInObject(part_of(json, "environment"), "date", cJSON_CreateString(evil));
        derive_again(EVAL_CODE, json);
        gate_result result = judge(json);
        assert_true(result.n_violations > 0);
        for (size_t i = 0; i < result.n_violations; i++)
            for (const char *c = result.violation[i].message; *c; c++)
                if (*c < ' ' || *c > '~') fail_msg("[%s] holds byte %d", result.violation[i].code, *c);
        gate_result_free(&result);
        cJSON_Delete(json);
    }
}

static void unreadable_files_are_refused(void **state) {
    (void)state;
    static const char *const texts[] = {"", "{\"kind\": \"kakeya.eval.niah\", ", "not JSON", "[1,2", "\xff\xfe\x00"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        char path[] = "/tmp/kakeya-gate-XXXXXX";
        int descriptor = mkstemp(path);
        assert_true(descriptor >= 0);
        assert_int_equal(write(descriptor, texts[i], strlen(texts[i])), strlen(texts[i]));
        close(descriptor);
        gate_result result;
        kakeya_error error;
        assert_int_equal(gate_check_file(path, &result, &error), KAKEYA_OK);
        assert_int_equal(result.n_violations, 1);
        assert_string_equal(result.violation[0].code, "UNREADABLE");
        assert_non_null(strstr(result.violation[0].message, path));
        gate_result_free(&result);
        unlink(path);
    }
    static const char *const foreign_texts[] = {"[]", "null", "3", "{}", "{\"kind\": 7}", "{\"schema_version\": 1}"};
    for (size_t i = 0; i < sizeof foreign_texts / sizeof foreign_texts[0]; i++) {
        cJSON *json = cJSON_Parse(foreign_texts[i]);
        gate_result result = judge_file(json);
        assert_int_equal(result.n_violations, 1);
        assert_string_equal(result.violation[0].code, "NOT_A_REPORT");
        gate_result_free(&result);
        cJSON_Delete(json);
    }
    gate_result result;
    kakeya_error error;
    assert_int_equal(gate_check_file("/nonexistent/report.json", &result, &error), KAKEYA_OK);
    assert_string_equal(result.violation[0].code, "UNREADABLE");
    gate_result_free(&result);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(true_reports_pass_as_files),
        cmocka_unit_test(what_a_report_says_is_printed_escaped),
        cmocka_unit_test(unreadable_files_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
