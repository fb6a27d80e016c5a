/* Protects reports as files: rows come back as they were, every missing or mistyped field is named, what an interrupted
 * evaluation leaves is readable, and prompts are read from plain and compressed JSON lines alike. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <zlib.h>

#include "base/files.h"
#include "measure/jsonl.h"
#include "measure/report.h"
#include "scratch.h"

static char *copy(const char *text) {
    char *result = strdup(text);
    assert_non_null(result);
    return result;
}

/* A row in which every field of the kind has a value of its own. */
static eval_row full_row(eval_kind kind) {
    eval_row row;
    eval_row_init(&row);
    strcpy(row.sample, "lines-12/3");
    strcpy(row.arm.policy, "restored-all");
    strcpy(row.arm.mode, "speculative");
    row.arm.sink = 4;
    row.arm.window = 65;
    row.arm.draft_window = 1025;
    row.arm.threads = 2;
    row.warmup = true;
    row.prompt_hash = UINT64_C(0xfedcba9876543210);
    row.prompt_tokens = 7312;
    row.started_seconds = 17.25;
    if (eval_kind_scores(kind)) {
        row.scored_tokens = 2;
        row.agreements = 1;
        row.nll = 90.12345678901234;
        row.kl = 0.1;
        row.seconds = 1.0 / 3;
        row.n_token_ids = 2;
        row.token_ids = calloc(2, sizeof *row.token_ids);
        row.token_nll = calloc(2, sizeof *row.token_nll);
        row.token_kl = calloc(2, sizeof *row.token_kl);
        assert_true(row.token_ids && row.token_nll && row.token_kl);
        row.token_ids[1] = 262143;
        row.token_nll[0] = 1.0 / 7;
        row.token_kl[1] = 1e-9;
        row.kv = (kakeya_kv_bytes){.full = 1, .sliding = 2, .latent = 3, .draft = 4, .total = 10};
        if (kind == EVAL_FIDELITY) return row;
        strcpy(row.arm.kv_format, "e8-151");
        row.lines = 41;
        row.expected = strdup("MAPLE-7890");
        row.text = strdup("It is MAPLE-7890.");
        row.correct = true;
        row.stored_vectors = 602;
        row.stored_values = 77056;
        row.stored_bytes = 80668;
        row.store_seconds = 0.003;
        row.load_seconds = 1.0 / 700;
        row.layers = 2;
        row.layer_error = calloc(2, sizeof *row.layer_error);
        row.layer_energy = calloc(2, sizeof *row.layer_energy);
        assert_true(row.expected && row.text && row.layer_error && row.layer_energy);
        row.layer_error[1] = 1.0 / 3;
        row.layer_energy[0] = 12345.6789;
        return row;
    }
    row.arm.draft_length = 7;
    row.arm.prompt_chunk = 129;
    row.arm.temperature = 0.7;
    row.arm.scaled_embedding = true;
    row.repetition = 3;
    row.kv = (kakeya_kv_bytes){.full = 1, .sliding = 2, .latent = 3, .draft = 4, .total = 10};
    strcpy(row.finish, "stop");
    row.prefill_seconds = 0.1;
    row.decode_seconds = 1e-7;
    row.verifier_forwards = 11;
    row.drafted_tokens = 70;
    row.accepted_tokens = 30;
    row.drafted_at[0] = row.drafted_at[6] = 10;
    row.accepted_at[0] = 9;
    row.n_token_ids = 3;
    row.token_ids = calloc(3, sizeof *row.token_ids);
    assert_non_null(row.token_ids);
    row.token_ids[0] = 262143;
    row.token_ids[2] = 1;
    row.text = copy("\"quotes\",\n\ttabs and \xe2\x82\xac");
    if (kind == EVAL_NIAH) {
        row.lines = 12;
        row.expected = copy("MAPLE-1234");
        row.arm.mix_alpha = 0.25;
        row.relative_mse[0] = 0.08;
        row.relative_mse[1] = 1.4;
    }
    if (kind == EVAL_LOSSLESS || kind == EVAL_BATCH) strcpy(row.prompt_kind, "random");
    if (kind == EVAL_VERIFY) {
        strcpy(row.prompt_kind, "text");
        strcpy(row.arm.comparison, "saved");
        strcpy(row.arm.kv_format, "q8");
        row.arm.as_stored = row.has_log_probabilities = true;
        row.log_probability_hash = UINT64_C(0xfedcba9876543210);
    }
    if (kind == EVAL_BATCH) {
        row.arm.together = 5;
        row.forked = true;
        row.cancel_after = 2;
        row.has_log_probabilities = true;
        row.log_probability_hash = UINT64_C(0xfedcba9876543211);
    }
    return row;
}

static bool same(double a, double b) { return fabs(a - b) <= 1e-15 * fabs(a); }

static void assert_rows_equal(const eval_row *a, const eval_row *b) {
    assert_string_equal(a->sample, b->sample);
    assert_string_equal(a->prompt_kind, b->prompt_kind);
    assert_true(eval_arm_equal(&a->arm, &b->arm));
    assert_int_equal(a->warmup, b->warmup);
    assert_int_equal(a->repetition, b->repetition);
    assert_int_equal(a->lines, b->lines);
    assert_int_equal(a->forked, b->forked);
    assert_int_equal(a->cancel_after, b->cancel_after);
    assert_int_equal(a->has_log_probabilities, b->has_log_probabilities);
    assert_true(a->log_probability_hash == b->log_probability_hash);
    assert_true(a->prompt_hash == b->prompt_hash);
    assert_int_equal(a->prompt_tokens, b->prompt_tokens);
    assert_memory_equal(&a->kv, &b->kv, sizeof a->kv);
    assert_string_equal(a->finish, b->finish);
    assert_true(same(a->started_seconds, b->started_seconds));
    for (size_t i = 0; i < a->n_token_ids && a->token_nll; i++)
        assert_true(same(a->token_nll[i], b->token_nll[i]) && same(a->token_kl[i], b->token_kl[i]));
    assert_true(same(a->prefill_seconds, b->prefill_seconds) && same(a->decode_seconds, b->decode_seconds));
    assert_int_equal(a->verifier_forwards, b->verifier_forwards);
    assert_int_equal(a->drafted_tokens, b->drafted_tokens);
    assert_int_equal(a->accepted_tokens, b->accepted_tokens);
    assert_memory_equal(a->drafted_at, b->drafted_at, sizeof a->drafted_at);
    assert_memory_equal(a->accepted_at, b->accepted_at, sizeof a->accepted_at);
    assert_int_equal(a->n_token_ids, b->n_token_ids);
    if (a->n_token_ids) assert_memory_equal(a->token_ids, b->token_ids, a->n_token_ids * sizeof *a->token_ids);
    assert_int_equal(a->text == NULL, b->text == NULL);
    if (a->text) assert_string_equal(a->text, b->text);
    assert_int_equal(a->expected == NULL, b->expected == NULL);
    if (a->expected) assert_string_equal(a->expected, b->expected);
    assert_int_equal(a->correct, b->correct);
    assert_true(same(a->relative_mse[0], b->relative_mse[0]) && same(a->relative_mse[1], b->relative_mse[1]));
    assert_int_equal(a->scored_tokens, b->scored_tokens);
    assert_int_equal(a->stored_vectors, b->stored_vectors);
    assert_int_equal(a->stored_values, b->stored_values);
    assert_int_equal(a->stored_bytes, b->stored_bytes);
    assert_true(same(a->store_seconds, b->store_seconds) && same(a->load_seconds, b->load_seconds));
    assert_int_equal(a->layers, b->layers);
    for (int i = 0; i < a->layers; i++)
        assert_true(same(a->layer_error[i], b->layer_error[i]) && same(a->layer_energy[i], b->layer_energy[i]));
    assert_int_equal(a->agreements, b->agreements);
    assert_true(same(a->nll, b->nll) && same(a->kl, b->kl) && same(a->seconds, b->seconds));
}

static void rows_survive_the_round_trip(void **state) {
    (void)state;
    for (int kind = 0; kind < EVAL_KIND_COUNT; kind++) {
        eval_row row = full_row((eval_kind)kind), back;
        cJSON *json = eval_row_to_json((eval_kind)kind, &row);
        char *text = cJSON_PrintUnformatted(json);
        cJSON *parsed = cJSON_Parse(text);
        kakeya_error error;
        if (eval_row_from_json((eval_kind)kind, parsed, &back, &error) != KAKEYA_OK)
            fail_msg("%s: %s", eval_kind_name((eval_kind)kind), error.message);
        assert_rows_equal(&row, &back);
        eval_row_free(&row);
        eval_row_free(&back);
        cJSON_Delete(json);
        cJSON_Delete(parsed);
        cJSON_free(text);
    }
}

/* Every field of every kind is needed, and a row without it is refused by name. */
static void every_missing_field_is_named(void **state) {
    (void)state;
    for (int kind = 0; kind < EVAL_KIND_COUNT; kind++) {
        eval_row row = full_row((eval_kind)kind);
        cJSON *whole = eval_row_to_json((eval_kind)kind, &row);
        for (const cJSON *field = whole->child; field; field = field->next) {
            for (int wrong_type = 0; wrong_type < 2; wrong_type++) {
                cJSON *damaged = cJSON_Duplicate(whole, true);
                if (wrong_type) {
                    cJSON_ReplaceItemInObject(damaged, field->string, cJSON_Parse("[{}]"));
                } else {
                    cJSON_DeleteItemFromObject(damaged, field->string);
                }
                eval_row back;
                kakeya_error error = {0};
                kakeya_status status = eval_row_from_json((eval_kind)kind, damaged, &back, &error);
                /* what a diagnostic row holds is named by what is left of it */
                const char *named =
                    strcmp(field->string, "mix_alpha") == 0 && !wrong_type ? "relative_mse" : field->string;
                if (status != KAKEYA_FORMAT || !strstr(error.message, named))
                    fail_msg("%s without %s: status %d, '%s'", eval_kind_name((eval_kind)kind), field->string,
                             (int)status, error.message);
                eval_row_free(&back);
                cJSON_Delete(damaged);
            }
        }
        eval_row_free(&row);
        cJSON_Delete(whole);
    }
}

/* docs/reference/reports.md has a row for every field. */
static void every_field_is_documented(void **state) {
    (void)state;
    char *text, word[64];
    const char *key;
    size_t bytes;
    unsigned kinds;
    assert_int_equal(file_read(KAKEYA_MODELS "/../docs/reference/reports.md", 1 << 20, &text, &bytes, NULL), KAKEYA_OK);
    char *rows = strstr(text, "### Rows"), *end = strstr(rows, "### Summary");
    *end = '\0';
    for (size_t i = 0; (key = eval_row_key(i, &kinds, NULL)) != NULL; i++) {
        const char *point = strchr(key, '.');
        snprintf(word, sizeof word, "`%s`", point ? point + 1 : key);
        if (!strstr(rows, word)) fail_msg("%s is not in docs/reference/reports.md", key);
    }
    free(text);
}

static void arms_differ_in_every_property(void **state) {
    (void)state;
    eval_row row = full_row(EVAL_NIAH);
    eval_arm arms[13];
    for (int i = 0; i < 13; i++) arms[i] = row.arm;
    strcpy(arms[1].policy, "native");
    strcpy(arms[2].mode, "ar");
    arms[3].sink++;
    arms[4].window++;
    arms[5].draft_window++;
    arms[6].draft_length++;
    arms[7].threads++;
    arms[8].prompt_chunk++;
    arms[9].temperature = 1;
    arms[10].scaled_embedding = false;
    arms[11].mix_alpha = 0.5;
    arms[12].together = 2;
    for (int i = 0; i < 13; i++) {
        for (int j = 0; j < 13; j++)
            if (eval_arm_equal(&arms[i], &arms[j]) != (i == j)) fail_msg("arms %d and %d", i, j);
        char label[160];
        eval_arm_label(&arms[i], label, sizeof label);
        assert_non_null(strstr(label, arms[i].policy));
        assert_non_null(strstr(label, arms[i].mode));
        char tight[8];
        eval_arm_label(&arms[i], tight, sizeof tight);
        assert_true(strlen(tight) < sizeof tight);
    }
    eval_row_free(&row);
}

static void answers_are_substrings(void **state) {
    (void)state;
    assert_true(eval_answer_correct("It is MAPLE-1234.", "MAPLE-1234"));
    assert_false(eval_answer_correct("It is maple-1234.", "MAPLE-1234"));
    assert_false(eval_answer_correct("anything", ""));
    assert_false(eval_answer_correct(NULL, "MAPLE-1234"));
    assert_false(eval_answer_correct("anything", NULL));
}

static const char *const command[] = {"kakeya", "eval", "niah"};

static cJSON *load(const char *path) {
    char *text;
    size_t bytes;
    assert_int_equal(file_read(path, 1 << 20, &text, &bytes, NULL), KAKEYA_OK);
    cJSON *json = cJSON_Parse(text);
    free(text);
    assert_non_null(json);
    return json;
}

static void files_are_readable_at_every_moment(void **state) {
    (void)state;
    const char *path = scratch_path("report.json");
    eval_report *report;
    kakeya_error error;
    assert_int_equal(
        eval_report_open(EVAL_NIAH, path, 3, command, environment_describe(), cJSON_CreateObject(), &report, &error),
        KAKEYA_OK);
    cJSON *json = load(path); /* before the first row */
    assert_true(cJSON_IsFalse(cJSON_GetObjectItem(json, "complete")));
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(json, "rows")), 0);
    cJSON_Delete(json);

    eval_row row = full_row(EVAL_NIAH);
    assert_int_equal(eval_report_add(report, &row, &error), KAKEYA_OK);
    json = load(path); /* a run that is killed behind its first row leaves it */
    assert_true(cJSON_IsFalse(cJSON_GetObjectItem(json, "complete")));
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(json, "rows")), 1);
    cJSON_Delete(json);
    assert_int_equal(eval_report_finish(report, false, &error), KAKEYA_OK); /* interrupted */
    json = load(path);
    assert_true(cJSON_IsFalse(cJSON_GetObjectItem(json, "complete")));
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(json, "rows")), 1);
    cJSON_Delete(json);

    assert_int_equal(eval_report_finish(report, true, &error), KAKEYA_OK);
    json = load(path);
    assert_true(cJSON_IsTrue(cJSON_GetObjectItem(json, "complete")));
    assert_int_equal(cJSON_GetObjectItem(json, "schema_version")->valueint, EVAL_SCHEMA_VERSION);
    assert_string_equal(cJSON_GetObjectItem(json, "kind")->valuestring, "kakeya.eval.niah");
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(json, "command")), 3);
    const cJSON *environment = cJSON_GetObjectItem(json, "environment");
    assert_true(cJSON_GetObjectItem(environment, "cores")->valuedouble >= 1);
    assert_true(cJSON_GetObjectItem(environment, "memory_bytes")->valuedouble > 1e6);
    assert_true(strlen(cJSON_GetObjectItem(environment, "cpu_model")->valuestring) > 0);
    const char *date = cJSON_GetObjectItem(environment, "date")->valuestring;
    assert_int_equal(strlen(date), strlen("2000-01-01T00:00:00Z"));
    assert_int_equal(date[10], 'T');
    cJSON_Delete(json);
    eval_report_close(report);
}

static void unwritable_reports_fail_at_once(void **state) {
    (void)state;
    eval_report *report;
    kakeya_error error = {0};
    const char *path = scratch_path("missing/report.json");
    assert_int_equal(
        eval_report_open(EVAL_NIAH, path, 3, command, environment_describe(), cJSON_CreateObject(), &report, &error),
        KAKEYA_IO);
    assert_null(report);
    assert_non_null(strstr(error.message, path));
}

/* --------------------------------------------------------------------------------------------------- JSON lines */

static const char good_lines[] = "{\"task_id\": \"T/0\", \"prompt\": \"def a():\\n\"}\n"
                                 "\n"
                                 "{\"prompt\": \"int b;\", \"other\": [1, 2]}\r\n"
                                 "{\"task_id\": 7, \"prompt\": \"last\"}";

static void check_good_lines(const char *path) {
    jsonl_prompts prompts;
    kakeya_error error;
    if (jsonl_read_prompts(path, 0, &prompts, &error) != KAKEYA_OK) fail_msg("%s", error.message);
    assert_int_equal(prompts.n, 3);
    assert_string_equal(prompts.prompt[0].name, "T/0");
    assert_string_equal(prompts.prompt[0].text, "def a():\n");
    assert_string_equal(prompts.prompt[1].name, "line-3");
    assert_string_equal(prompts.prompt[2].name, "7");
    assert_string_equal(prompts.prompt[2].text, "last");
    jsonl_prompts_free(&prompts);
    assert_int_equal(jsonl_read_prompts(path, 2, &prompts, &error), KAKEYA_OK);
    assert_int_equal(prompts.n, 2);
    jsonl_prompts_free(&prompts);
}

static void prompts_are_read_plain_and_compressed(void **state) {
    (void)state;
    check_good_lines(scratch_write("p.jsonl", good_lines, strlen(good_lines)));
    const char *path = scratch_path("p.jsonl.gz");
    gzFile file = gzopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(gzwrite(file, good_lines, (unsigned)strlen(good_lines)), strlen(good_lines));
    gzclose(file);
    check_good_lines(path);
}

/* Lines around the sizes at which the buffer grows. */
static void long_lines_are_read_whole(void **state) {
    (void)state;
    static const size_t lengths[] = {4095, 12287, 12288, 16383, 16384, 100000};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        char *text = NULL;
        size_t bytes;
        FILE *stream = open_memstream(&text, &bytes);
        fprintf(stream, "{\"prompt\":\"%*d\"}\n{\"prompt\":\"b\"}\n", (int)(lengths[i] - 13), 7);
        fclose(stream);
        const char *path = scratch_write("long.jsonl", text, bytes);
        jsonl_prompts prompts;
        kakeya_error error;
        if (jsonl_read_prompts(path, 0, &prompts, &error) != KAKEYA_OK) fail_msg("%zu: %s", lengths[i], error.message);
        assert_int_equal(prompts.n, 2);
        assert_int_equal(strlen(prompts.prompt[0].text), lengths[i] - 13);
        jsonl_prompts_free(&prompts);
        free(text);
    }
}

static void bad_lines_are_named(void **state) {
    (void)state;
    static const struct {
        const char *text, *word;
    } cases[] = {
        {"{\"prompt\": \"a\"}\n{\"prompt\": \n", "line 2"},
        {"{\"prompt\": \"a\"}\n\n{\"text\": \"b\"}\n", "line 3"},
        {"{\"prompt\": \"\"}\n", "line 1"},
        {"{\"prompt\": 5}\n", "line 1"},
        {"[1]\n", "line 1"},
        {"", "no prompts"},
        {"\n \n", "no prompts"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *path = scratch_write("bad.jsonl", cases[i].text, strlen(cases[i].text));
        jsonl_prompts prompts;
        kakeya_error error = {0};
        assert_int_equal(jsonl_read_prompts(path, 0, &prompts, &error), KAKEYA_FORMAT);
        if (!strstr(error.message, cases[i].word) || !strstr(error.message, path))
            fail_msg("case %zu: '%s' does not say '%s'", i, error.message, cases[i].word);
        jsonl_prompts_free(&prompts);
    }
    static const char with_nul[] = "{\"prompt\": \"a\"}\0{\n"; /* what stands behind the NUL is part of the line */
    const char *nul_path = scratch_write("nul.jsonl", with_nul, sizeof with_nul - 1);
    jsonl_prompts prompts;
    kakeya_error nul_error;
    assert_int_equal(jsonl_read_prompts(nul_path, 0, &prompts, &nul_error), KAKEYA_FORMAT);
    kakeya_error error = {0};
    assert_int_equal(jsonl_read_prompts("/nonexistent.jsonl", 0, &prompts, &error), KAKEYA_IO);

    const char *cut = scratch_path("cut.jsonl.gz");
    gzFile file = gzopen(cut, "wb");
    for (int i = 0; i < 1000; i++) gzprintf(file, "{\"prompt\":\"%d %d\"}\n", i * 7919 % 1009, i * i);
    gzclose(file);
    assert_int_equal(truncate(cut, 400), 0);
    assert_int_not_equal(jsonl_read_prompts(cut, 0, &prompts, &error), KAKEYA_OK);
    assert_non_null(strstr(error.message, cut));
    jsonl_prompts_free(&prompts);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_survive_the_round_trip),     cmocka_unit_test(every_missing_field_is_named),
        cmocka_unit_test(every_field_is_documented),       cmocka_unit_test(arms_differ_in_every_property),
        cmocka_unit_test(answers_are_substrings),          cmocka_unit_test(files_are_readable_at_every_moment),
        cmocka_unit_test(unwritable_reports_fail_at_once), cmocka_unit_test(prompts_are_read_plain_and_compressed),
        cmocka_unit_test(long_lines_are_read_whole),       cmocka_unit_test(bad_lines_are_named),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
