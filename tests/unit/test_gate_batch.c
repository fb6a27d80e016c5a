/* Protects the gate's judgement of batches: for every claim there is a report that breaks it, a true one with one
 * change. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "report_support.h"

/* The first row of a batch that was computed together and is what is asked for. */
static bool is_forked(const eval_row *row) { return row->forked; }
static bool is_cancelled(const eval_row *row) { return strcmp(row->finish, "cancelled") == 0; }
static bool is_hashed(const eval_row *row) { return row->has_log_probabilities; }
static bool is_any(const eval_row *row) { return row->n_token_ids > 2; }
static eval_row *together(eval_report *r, bool (*what)(const eval_row *)) {
    for (size_t i = 0; i < r->rows.n; i++)
        if (r->rows.row[i].arm.together && what(&r->rows.row[i])) return &r->rows.row[i];
    fail_msg("no such row");
    return NULL;
}
static void other_token_together(eval_report *r) { together(r, is_any)->token_ids[2]++; }
static void other_log_probability(eval_report *r) { together(r, is_hashed)->log_probability_hash++; }
static void no_log_probability(eval_report *r) { together(r, is_hashed)->has_log_probabilities = false; }
static void fork_relabelled(eval_report *r) { together(r, is_forked)->forked = false; }
static void cancel_relabelled(eval_report *r) { together(r, is_cancelled)->cancel_after++; }
static void cancelled_is_length(eval_report *r) { strcpy(together(r, is_cancelled)->finish, "length"); }
static void length_is_cancelled(eval_report *r) {
    for (size_t i = 0; i < r->rows.n; i++)
        if (strcmp(r->rows.row[i].finish, "length") == 0) strcpy(r->rows.row[i].finish, "cancelled");
}
static void together_relabelled(eval_report *r) { together(r, is_any)->arm.together--; }
static void together_is_gone(eval_report *r) { remove_row(r, together(r, is_any)); }
static void nothing_together(eval_report *r) {
    for (size_t i = r->rows.n; i-- > 0;)
        if (r->rows.row[i].arm.together) remove_row(r, &r->rows.row[i]);
}
static void command_without_batch(cJSON *json) {
    cJSON *word;
    cJSON_ArrayForEach(word, part_of(json, "command")) {
        if (strcmp(word->valuestring, "--batch") == 0) cJSON_SetValuestring(word, "--json");
    }
}
static void command_with_batch(cJSON *json) {
    cJSON_AddItemToArray(part_of(json, "command"), cJSON_CreateString("--batch"));
}
static void one_session_at_most(cJSON *json) {
    cJSON_ReplaceItemInObject(part_of(json, "options"), "sessions", cJSON_CreateNumber(1));
}

typedef struct broken_case {
    const char *name, *code;
    eval_kind kind;
    void (*rows)(eval_report *report); /* one of the two */
    void (*json)(cJSON *json);
} broken_case;

#define ROWS(code, change)                                                                                             \
    { #change, code, EVAL_BATCH, change, NULL }
#define JSON(code, kind, change)                                                                                       \
    { #change, code, kind, NULL, change }

static const broken_case cases[] = {
    ROWS("LOSSLESS", other_token_together),
    ROWS("LOSSLESS", other_log_probability),
    ROWS("LOSSLESS", no_log_probability),
    ROWS("ROW_UNPROMISED", no_log_probability),
    ROWS("ROW_UNPROMISED", fork_relabelled),
    ROWS("ROW_UNPROMISED", cancel_relabelled),
    ROWS("REPLAY_ROW", cancelled_is_length),
    ROWS("REPLAY_ROW", length_is_cancelled),
    ROWS("ROW_UNPROMISED", together_relabelled),
    ROWS("ROW_MISSING", together_is_gone),
    ROWS("ROW_MISSING", nothing_together),
    JSON("COMMAND", EVAL_BATCH, command_without_batch),
    JSON("COMMAND", EVAL_LOSSLESS, command_with_batch),
    JSON("OPTIONS_FORM", EVAL_BATCH, one_session_at_most),
};

static void every_change_is_refused(void **state) {
    (void)state;
    size_t failures = 0;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        const broken_case *broken = &cases[c];
        eval_report *report = sound(broken->kind);
        if (broken->rows) broken->rows(report);
        cJSON *json = eval_report_to_json(report);
        assert_non_null(json);
        if (broken->json) broken->json(json);
        gate_result result = judge_replayed(broken->kind, json);
        if (!raises(&result, broken->code)) {
            print_error("%s: does not raise %s\n", broken->name, broken->code);
            failures++;
        }
        gate_result_free(&result);
        cJSON_Delete(json);
        eval_report_close(report);
    }
    assert_int_equal(failures, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_change_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
