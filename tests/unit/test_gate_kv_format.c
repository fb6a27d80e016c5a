/* Protects the gate's judgement of formats of K/V: for every claim there is a report that breaks it, a true one with
 * one change. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "report_support.h"

#define FOR_FORMAT(r, row, name)                                                                                       \
    for (eval_row *row = (r)->rows.row; row < (r)->rows.row + (r)->rows.n; row++)                                      \
        if (strcmp(row->arm.kv_format, name) == 0)

static void half_the_bytes(eval_report *r) { FOR_FORMAT(r, row, "q8") row->stored_bytes /= 2; }
static void vectors_left_out(eval_report *r) { r->rows.row[2].stored_vectors--; }
static void layers_left_out(eval_report *r) { r->rows.row[2].layers--; }
static void identity_with_error(eval_report *r) { FOR_FORMAT(r, row, "identity") row->layer_error[0] = 1e-9; }
static void codes_without_error(eval_report *r) { FOR_FORMAT(r, row, "affine4") row->layer_error[1] = 0; }
static void q8_far_away(eval_report *r) {
    FOR_FORMAT(r, row, "q8") {
        for (size_t t = 0; t < row->n_token_ids; t++) row->token_kl[t] += 0.01;
        row->kl += 0.01 * (double)row->n_token_ids;
    }
}
static void answer_nothing(eval_row *row) {
    strcpy(row->text, "");
    row->correct = false;
}
static void q8_finds_nothing(eval_report *r) { FOR_FORMAT(r, row, "q8") answer_nothing(row); }
static void no_format_finds_it(eval_report *r) {
    for (size_t i = 0; i < r->rows.n; i++) answer_nothing(&r->rows.row[i]);
}
static void says_it_found_it(eval_report *r) { strcpy(r->rows.row[1].text, ""); }
static void identity_left_out(eval_report *r) {
    for (size_t i = r->rows.n; i-- > 0;)
        if (strcmp(r->rows.row[i].arm.kv_format, "identity") == 0) remove_row(r, &r->rows.row[i]);
}
static void identity_differs(eval_report *r) {
    r->rows.row[0].token_kl[0] += 0.5;
    r->rows.row[0].kl += 0.5;
}
static void formats_exchanged(eval_report *r) { FOR_FORMAT(r, row, "q8") strcpy(row->arm.kv_format, "q4"); }
static void one_row_as_stored(eval_report *r) {
    int n = 0;
    FOR_FORMAT(r, row, "q8") row->arm.as_stored = n++ == 1;
}
static void lattice_called_justified(cJSON *j) {
    const cJSON *verdict;
    cJSON_ArrayForEach(verdict, part_of(part_of(j, "summary"), "verdicts")) {
        cJSON *flag = cJSON_GetObjectItemCaseSensitive(verdict, "port_justified");
        if (flag) flag->type = cJSON_IsTrue(flag) ? cJSON_False : cJSON_True;
    }
}
static void nobody_knows_the_format(cJSON *j) {
    cJSON_SetValuestring(part_of(part_of(j, "rows")->child, "format"), "q9");
}

typedef struct broken_case {
    const char *codes;                 /* every one of them must be raised */
    void (*rows)(eval_report *report); /* one of the two */
    void (*json)(cJSON *json);
    const char *name;
} broken_case;

#define ROWS(codes, change)                                                                                            \
    { codes, change, NULL, #change }
#define JSON(codes, change)                                                                                            \
    { codes, NULL, change, #change }

static const broken_case cases[] = {
    ROWS("REPLAY_ROW", half_the_bytes),
    ROWS("REPLAY_ROW", vectors_left_out),
    ROWS("REPLAY_ROW", layers_left_out),
    ROWS("REPLAY_ROW", identity_with_error),
    ROWS("REPLAY_ROW", codes_without_error),
    ROWS("KV_FORMAT_UNFAITHFUL", q8_far_away),
    ROWS("RECALL", q8_finds_nothing),
    ROWS("RECALL_UNPROVEN", no_format_finds_it),
    ROWS("ROW_FIELD", says_it_found_it),
    ROWS("ORACLE_MISSING ROW_MISSING", identity_left_out),
    ROWS("REPLAY_ROW", identity_differs),
    ROWS("ROW_UNPROMISED", formats_exchanged),
    ROWS("ROW_UNPROMISED", one_row_as_stored),
    JSON("SUMMARY_MISMATCH", lattice_called_justified),
    JSON("UNKNOWN_ARM", nobody_knows_the_format),
};

static void every_claim_has_a_rule(void **state) {
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        const broken_case *broken = &cases[c];
        eval_report *report = sound(EVAL_KV_FORMAT);
        if (broken->rows) broken->rows(report);
        cJSON *json = eval_report_to_json(report);
        assert_non_null(json);
        if (broken->json) broken->json(json);
        gate_result result = judge_replayed(EVAL_KV_FORMAT, json);
        char codes[200];
        snprintf(codes, sizeof codes, "%s", broken->codes);
        for (char *rest = codes, *code; (code = strsep(&rest, " ")) != NULL;) {
            if (raises(&result, code)) continue;
            for (size_t i = 0; i < result.n_violations; i++)
                print_error("    [%s] %s\n", result.violation[i].code, result.violation[i].message);
            fail_msg("%s: does not raise %s", broken->name, code);
        }
        gate_result_free(&result);
        cJSON_Delete(json);
        eval_report_close(report);
    }
}

/* What the summary says of a format follows from its rows alone. */
static void verdicts_follow_from_rows(void **state) {
    (void)state;
    eval_report *report = sound(EVAL_KV_FORMAT);
    cJSON *summary = eval_summary_derive(EVAL_KV_FORMAT, &report->rows);
    const cJSON *verdict;
    int lattices = 0;
    cJSON_ArrayForEach(verdict, part_of(summary, "verdicts")) {
        const char *format = part_of(verdict, "format")->valuestring;
        const cJSON *justified = cJSON_GetObjectItemCaseSensitive(verdict, "port_justified");
        assert_int_equal(justified != NULL, strcmp(format, "d4-10") == 0);
        lattices += justified != NULL;
        if (strcmp(format, "q8") == 0) assert_string_equal(part_of(verdict, "rival")->valuestring, "d4-10");
    }
    assert_int_equal(lattices, 1);
    cJSON_Delete(summary);
    /* a lattice as far off as can be is worth nothing, whatever its bits */
    FOR_FORMAT(report, row, "d4-10") row->layer_error[0] = row->layer_energy[0];
    summary = eval_summary_derive(EVAL_KV_FORMAT, &report->rows);
    cJSON_ArrayForEach(verdict, part_of(summary, "verdicts")) {
        const cJSON *justified = cJSON_GetObjectItemCaseSensitive(verdict, "port_justified");
        if (justified) assert_true(cJSON_IsFalse(justified));
    }
    cJSON_Delete(summary);
    eval_report_close(report);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_claim_has_a_rule),
        cmocka_unit_test(verdicts_follow_from_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
