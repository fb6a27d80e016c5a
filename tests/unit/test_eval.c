/* Protects the evaluations end to end, with the bundled demo model: the figures of the reference come out, every decode
 * mode gives the tokens of plain decoding, and an interrupted run leaves its finished rows. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "base/files.h"
#include "measure/eval.h"
#include "measure/gate.h"
#include "measure/harness.h"
#include "measure/lossless_batch_plan.h"
#include "measure/summary.h"
#include "packed.h"
#include "scratch.h"
#include "sweep.h"

static const char *const source = KAKEYA_MODELS "/../examples/code/inventory.py";

static eval_setup setup_for(const char *name, kakeya_precision precision) {
    static const char *command[] = {"kakeya", "eval", NULL};
    command[2] = name;
    eval_setup setup = {.argc = 3, .argv = command};
    KAKEYA_INIT(&setup.engine);
    KAKEYA_INIT(&setup.session);
    setup.engine.model = KAKEYA_MODELS "/demo";
    setup.engine.precision = precision;
    setup.engine.threads = 1; /* which takes less of the processors */
    return setup;
}

/* The gate's codes for the report, apart from those that small runs cannot satisfy. */
static void assert_only(const eval_report *report, const char *allowed) {
    cJSON *json = eval_report_to_json(report);
    gate_result result;
    kakeya_error error;
    assert_int_equal(gate_check(json, &result, &error), KAKEYA_OK);
    for (size_t i = 0; i < result.n_violations; i++)
        if (!strstr(allowed, result.violation[i].code))
            fail_msg("[%s] %s", result.violation[i].code, result.violation[i].message);
    gate_result_free(&result);
    cJSON_Delete(json);
}

static double number(const cJSON *object, const char *name) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    assert_true(cJSON_IsNumber(item));
    return item->valuedouble;
}

/* Negative log-likelihoods of two sequences under four policies, by Hugging Face transformers in float32. */
static void fidelity_reproduces_the_reference(void **state) {
    (void)state;
    const char *path = KAKEYA_TEST_DATA "/eval/fidelity.json";
    static const char *const all[] = {"native", "sink-window", "restored", "restored-all"};
    static const char *const some[] = {"native", "sink-window", "restored-all"}; /* test_eval.sh takes "restored" */
    const char *const *policies = sweep_short() ? some : all;
    const int windows[] = {64};
    eval_setup setup = setup_for("fidelity", KAKEYA_PRECISION_F32);
    setup.engine.f_theta = KAKEYA_TEST_DATA "/golden/demo-f-theta-regression"; /* the reference's */
    const size_t sequences = sweep_short() ? 1 : 2, n_policies = sweep_short() ? 3 : 4;
    eval_options options = {.ids_json = path,
                            .max_sequences = (int)sequences,
                            .policies = {policies, n_policies},
                            .windows = windows,
                            .n_windows = 1};
    eval_report *report;
    kakeya_error error;
    if (eval_fidelity(&setup, &options, &report, &error) != KAKEYA_OK) fail_msg("%s", error.message);

    char *text;
    size_t bytes;
    assert_int_equal(file_read(path, 1 << 24, &text, &bytes, &error), KAKEYA_OK);
    cJSON *reference = cJSON_Parse(text);
    free(text);
    const cJSON *expected = cJSON_GetObjectItem(reference, "nll_per_sequence");
    assert_int_equal(report->rows.n, sequences * n_policies);
    for (size_t i = 0; i < report->rows.n; i++) {
        const eval_row *row = &report->rows.row[i];
        double want =
            cJSON_GetArrayItem(cJSON_GetObjectItem(expected, row->arm.policy), (int)(i / n_policies))->valuedouble;
        assert_int_equal(row->scored_tokens, 64);
        if (fabs(row->nll - want) > 0.01 * want)
            fail_msg("%s, %s: nll %.6f, the reference has %.6f", row->sample, row->arm.policy, row->nll, want);
    }
    cJSON_Delete(reference);
    assert_only(report, "SAMPLE_COUNT");
    eval_report_close(report);
}

static void needles_are_found_under_every_policy(void **state) {
    (void)state;
    const int lines[] = {10}, draft_windows[] = {64, 1024};
    static const char *const some[] = {"native", "restored"}; /* of a short run, with one draft window */
    const size_t windows = sweep_short() ? 1 : 2, policies = sweep_short() ? 2 : 3;
    const double alphas[] = {1};
    eval_setup setup = setup_for("niah", KAKEYA_PRECISION_AUTO);
    eval_options options = {.lines = lines,
                            .n_lines = 1,
                            .samples = 1,
                            .seed = 42,
                            .max_tokens = 24,
                            .mode = KAKEYA_MODE_SPECULATIVE,
                            .draft_windows = draft_windows,
                            .n_draft_windows = windows,
                            .mix_alpha = alphas,
                            .n_mix_alpha = 1};
    if (sweep_short()) options.policies.names = some, options.policies.n = 2;
    eval_report *report;
    kakeya_error error;
    if (eval_niah(&setup, &options, &report, &error) != KAKEYA_OK) fail_msg("%s", error.message);
    /* three policies, each ar and with every draft window, on a warm-up and a measured prompt; one diagnostic row */
    assert_int_equal(report->rows.n, 2 * policies * (1 + windows) + 1);
    size_t drafted = 0, latents = 0;
    for (size_t i = 0; i < report->rows.n; i++) {
        const eval_row *row = &report->rows.row[i];
        if (!row->correct)
            fail_msg("%s %s: '%s' instead of %s", row->arm.policy, row->arm.mode, row->text, row->expected);
        assert_string_equal(row->finish, "stop");
        drafted += row->drafted_tokens > 0;
        latents += row->kv.latent > 0;
        /* own K/V in place of f_theta's: nothing is left of its error */
        if (row->arm.mix_alpha >= 0) assert_true(row->relative_mse[0] > 0 && row->relative_mse[1] > 0);
    }
    assert_int_equal(drafted, 2 * policies * windows);
    assert_int_equal(latents, 2 * (1 + windows) + 1);
    eval_lossless lossless;
    eval_lossless_compare(&report->rows, &lossless);
    assert_int_equal(lossless.comparisons, 2 * policies * windows);
    assert_int_equal(lossless.differences, 0);
    /* one rung and one sample show neither bounds nor speed */
    assert_only(report, "SAMPLE_COUNT MEMORY_UNPROVEN SPEED_TOKENS SPEED");
    eval_report_close(report);
}

static void every_mode_gives_the_same_tokens(void **state) {
    (void)state;
    eval_setup setup = setup_for("lossless", KAKEYA_PRECISION_AUTO);
    /* a short run has one needle in every mode, the long one code and random text, too, and the slow references */
    const int prompts = sweep_short() ? 1 : 3, references = sweep_short() ? 0 : 1;
    eval_options options = {.prompts = prompts,
                            .max_tokens = sweep_short()   ? 3
                                          : sweep_whole() ? 12
                                                          : 6,
                            .seed = 12, /* a short needle */
                            .files = &source,
                            .n_files = 1,
                            .reference_prompts = references};
    eval_report *report;
    kakeya_error error;
    if (eval_lossless_run(&setup, &options, &report, &error) != KAKEYA_OK) fail_msg("%s", error.message);
    eval_lossless lossless;
    eval_lossless_compare(&report->rows, &lossless);
    /* two policies with six more runs each and the slow references, two with two more */
    assert_int_equal(lossless.streams, prompts * 4);
    assert_int_equal(lossless.comparisons, 2 * (prompts * (6 + 2) + 2 * references));
    if (lossless.differences) {
        char label[160];
        eval_arm_label(&lossless.different->arm, label, sizeof label);
        fail_msg("%s, %s: token %zu differs", lossless.different->sample, label, lossless.position);
    }
    assert_only(report, "SAMPLE_COUNT");
    eval_report_close(report);
}

/* Sessions that are computed together against the same sessions alone. */
static void batches_give_the_same_tokens(void **state) {
    (void)state;
    eval_setup setup = setup_for("lossless", KAKEYA_PRECISION_AUTO);
    static const char *const command[] = {"kakeya", "eval", "lossless", "--batch"};
    setup.argc = 4;
    setup.argv = command;
    eval_options options = {.compositions = sweep_short()   ? 1
                                            : sweep_whole() ? 4
                                                            : 2,
                            .sessions = sweep_short() ? 3 : 12,
                            .max_tokens = sweep_short() ? 6 : 16,
                            .seed = 11,
                            .files = &source,
                            .n_files = 1};
    eval_report *report;
    kakeya_error error;
    if (eval_lossless_batch(&setup, &options, &report, &error) != KAKEYA_OK) fail_msg("%s", error.message);
    eval_lossless lossless;
    eval_lossless_compare(&report->rows, &lossless);
    assert_true(lossless.streams >= (size_t)options.sessions);
    assert_int_equal(lossless.streams, report->rows.n / 2);
    assert_int_equal(lossless.comparisons, lossless.streams);
    if (lossless.differences) {
        char label[160];
        eval_arm_label(&lossless.different->arm, label, sizeof label);
        fail_msg("%s, %s: token %zu differs", lossless.different->sample, label, lossless.position);
    }
    assert_only(report, "SAMPLE_COUNT SPECULATION_INACTIVE");
    eval_report_close(report);
}

/* A seed draws the same compositions again, and many of them hold everything there is. */
static void batches_are_drawn_by_seed(void **state) {
    (void)state;
    enum { COMPOSITIONS = 400 };
    lossless_batch_options options = {
        .seed = 42, .sessions = LOSSLESS_BATCH_SESSIONS, .max_tokens = 32, .policies = 4, .drafter = true};
    lossless_batch_session drawn[LOSSLESS_BATCH_SESSIONS], again[LOSSLESS_BATCH_SESSIONS];
    int sizes[LOSSLESS_BATCH_SESSIONS + 1] = {0}, policies[4] = {0}, kinds[3] = {0}, temperatures[2] = {0};
    int modes[4] = {0}, lengths[BACKEND_MAX_DRAFT + 1] = {0}, late = 0, forked = 0, cancelled = 0, hashed = 0, n = 0;
    for (int c = 0; c < COMPOSITIONS; c++) {
        int count = lossless_batch_composition(&options, c, drawn);
        assert_in_range(count, 1, LOSSLESS_BATCH_SESSIONS);
        if (c == 0) assert_int_equal(count, LOSSLESS_BATCH_SESSIONS);
        assert_int_equal(lossless_batch_composition(&options, c, again), count);
        sizes[count]++;
        for (int i = 0; i < count; i++) {
            const lossless_batch_session *s = &drawn[i];
            static const char *const names[] = {"ar", "ngram", "auto", "speculative"};
            for (int m = 0; m < 4; m++) modes[m] += strcmp(s->mode, names[m]) == 0;
            assert_true(s->policy == again[i].policy && s->cancel_after == again[i].cancel_after &&
                        s->draft_length == again[i].draft_length && s->late == again[i].late);
            policies[s->policy]++, kinds[s->kind]++, temperatures[s->temperature]++, lengths[s->draft_length]++;
            late += s->late, cancelled += s->cancel_after > 0, hashed += s->log_probabilities, n++;
            assert_in_range(s->cancel_after, 0, options.max_tokens / 2);
            if (i == 0) assert_false(s->late || s->forked);
            if (!s->forked) continue;
            forked++;
            assert_true(s->policy == drawn[i - 1].policy && strcmp(s->mode, drawn[i - 1].mode) == 0);
            assert_false(drawn[i - 1].forked);
        }
    }
    for (int i = 1; i <= LOSSLESS_BATCH_SESSIONS; i++) assert_true(sizes[i] > 0);
    for (int i = 0; i < 4; i++) assert_true(policies[i] > n / 6 && modes[i] > n / 6);
    for (int i = 0; i <= BACKEND_MAX_DRAFT; i++) assert_true(lengths[i] > 0);
    assert_true(kinds[0] && kinds[1] && kinds[2] && temperatures[0] > n / 3 && temperatures[1] > n / 3);
    assert_true(late > n / 4 && forked > n / 10 && cancelled > n / 10 && hashed > n / 3);
    int alike = 0;
    (void)lossless_batch_composition(&options, 0, drawn);
    options.seed++;
    (void)lossless_batch_composition(&options, 0, again);
    for (int i = 0; i < LOSSLESS_BATCH_SESSIONS; i++)
        alike += drawn[i].policy == again[i].policy && strcmp(drawn[i].mode, again[i].mode) == 0;
    assert_true(alike < LOSSLESS_BATCH_SESSIONS);
}

static void code_and_acceptance_leave_sound_reports(void **state) {
    (void)state;
    const int lengths[] = {3, 16}, n_lengths = sweep_short() ? 1 : 2;
    eval_setup setup = setup_for("code", KAKEYA_PRECISION_AUTO);
    eval_options code = {.files = &source,
                         .n_files = 1,
                         .prompt_tokens = sweep_short() ? 24 : 64,
                         .max_tokens = 16,
                         .repetitions = 2,
                         .draft_lengths = lengths,
                         .n_draft_lengths = (size_t)n_lengths};
    eval_report *report;
    kakeya_error error;
    if (eval_code(&setup, &code, &report, &error) != KAKEYA_OK) fail_msg("%s", error.message);
    assert_int_equal(report->rows.n, 3 * (3 + n_lengths));
    assert_only(report, "SAMPLE_COUNT SPEED");
    eval_report_close(report);

    static const char lines[] = "{\"task_id\":\"A\",\"prompt\":\"def add(a, b):\\n\",\"category\":\"python\"}\n"
                                "{\"question_id\":7,\"turns\":[\"int main(void) {\\n\",\"more\"],\"category\":\"c\"}\n";
    eval_options acceptance = {.jsonl = scratch_write("prompts.jsonl", lines, sizeof lines - 1),
                               .max_tokens = sweep_short() ? 8 : 16};
    setup = setup_for("acceptance", KAKEYA_PRECISION_AUTO);
    if (eval_acceptance(&setup, &acceptance, &report, &error) != KAKEYA_OK) fail_msg("%s", error.message);
    assert_int_equal(report->rows.n, 3 * (1 + 2)); /* both forms of DFlash, and n-grams */
    assert_string_equal(report->rows.row[8].sample, "7");
    assert_only(report, "SAMPLE_COUNT");
    cJSON *summary = eval_summary_derive(EVAL_ACCEPTANCE, &report->rows);
    const cJSON *arm;
    cJSON_ArrayForEach(arm, cJSON_GetObjectItem(summary, "arms")) {
        double blocks = 0, by_position = number(arm, "drafted_tokens"), accepted = 0;
        const cJSON *count;
        int length = 0;
        cJSON_ArrayForEach(count, cJSON_GetObjectItem(arm, "blocks_by_accepted_length")) {
            blocks += count->valuedouble;
            accepted += count->valuedouble * length++;
        }
        const bool looked_up = strcmp(cJSON_GetObjectItem(arm, "mode")->valuestring, "ngram") == 0;
        assert_true(by_position > 0 || looked_up);
        const cJSON *categories = cJSON_GetObjectItem(arm, "categories"), *category;
        double in_categories = 0;
        assert_int_equal(cJSON_GetArraySize(categories), 2);
        assert_string_equal(cJSON_GetObjectItem(categories->child, "category")->valuestring, "python");
        cJSON_ArrayForEach(category, categories) in_categories += number(category, "blocks");
        assert_true(fabs(in_categories - number(arm, "blocks")) < 0.5);
        assert_true(fabs(blocks - number(arm, "blocks")) < 0.5);
        assert_true(fabs(accepted - number(arm, "accepted_tokens")) < 0.5);
    }
    cJSON_Delete(summary);
    eval_report_close(report);
}

/* Each drafter of an engine that has two drafts by itself, and its row says which one. */
static void all_sources_are_compared(void **state) {
    (void)state;
    static const char model[] = KAKEYA_TEST_DATA "/golden/gemma4-tiny-dense";
    eval_setup setup = setup_for("acceptance", KAKEYA_PRECISION_AUTO);
    setup.engine.model = model;
    setup.engine.drafter = unpacked_folder(KAKEYA_TEST_DATA "/golden/dflash-tiny");
    setup.engine.second_drafter = unpacked_folder(KAKEYA_TEST_DATA "/golden/mtp/dense");
    kakeya_error error;
    eval_harness harness;
    const char *sources[HARNESS_SOURCES];
    assert_int_equal(harness_open(&harness, &setup, 0, &error), KAKEYA_OK);
    assert_int_equal(harness_sources(&harness, sources), 3);
    assert_string_equal(sources[1], "assistant");
    int32_t ids[40], said[2][20];
    for (int i = 0; i < 40; i++) ids[i] = 3 + i * 7 % 11;
    const harness_prompt prompt = {.sample = "sample", .ids = ids, .n = 40};
    assert_int_equal(harness_report(&harness, EVAL_ACCEPTANCE, cJSON_CreateObject(), &error), KAKEYA_OK);
    for (int i = 0; i < 2; i++) {
        eval_row row;
        eval_row_init(&row);
        harness_arm(&harness, "native", KAKEYA_MODE_SPECULATIVE, &row.arm);
        eval_arm_source(&row.arm, sources[i]);
        row.arm.draft_length = 3;
        strcpy(row.sample, prompt.sample);
        const harness_run how = {.max_tokens = 20};
        if (harness_generate(&harness, &prompt, &how, &row, &error) != KAKEYA_OK) fail_msg("%s", error.message);
        assert_int_equal(row.n_token_ids, 20);
        assert_true(row.drafted_tokens > 0);
        assert_string_equal(row.arm.source, i ? "assistant" : "");
        memcpy(said[i], row.token_ids, sizeof said[i]);
        cJSON *json = eval_row_to_json(EVAL_ACCEPTANCE, &row);
        eval_row again;
        assert_int_equal(eval_row_from_json(EVAL_ACCEPTANCE, json, &again, &error), KAKEYA_OK);
        assert_true(eval_arm_equal(&row.arm, &again.arm));
        cJSON_Delete(json);
        eval_row_free(&again);
        eval_row_free(&row);
    }
    assert_memory_equal(said[0], said[1], sizeof said[0]);
    eval_report *report = NULL;
    assert_int_equal(harness_close(&harness, KAKEYA_OK, &report, &error), KAKEYA_OK);
    eval_report_close(report);
}

typedef struct interruption {
    uint64_t after;      /* finished rows */
    uint64_t calls_left; /* until then: inside the next row */
} interruption;

static bool interrupt(void *user, const char *what, uint64_t done, uint64_t total) {
    interruption *state = user;
    (void)what;
    assert_true(done <= total);
    if (done < state->after) return true;
    return state->calls_left && state->calls_left--;
}

static void interrupted_runs_leave_their_finished_rows(void **state) {
    (void)state;
    const int lines[] = {10}, draft_windows[] = {1024};
    static const char *const policies[] = {"native"};
    for (uint64_t calls = 0; calls < 6; calls += 5) { /* before a run, and in the middle of its tokens */
        interruption plan = {.after = 1, .calls_left = calls};
        const char *path = scratch_path("interrupted.json");
        eval_setup setup = setup_for("niah", KAKEYA_PRECISION_AUTO);
        setup.report_path = path;
        setup.progress = interrupt;
        setup.user = &plan;
        eval_options options = {.lines = lines,
                                .n_lines = 1,
                                .samples = 1,
                                .seed = 1,
                                .max_tokens = 8,
                                .policies = {policies, 1},
                                .draft_windows = draft_windows,
                                .n_draft_windows = 1};
        eval_report *report;
        kakeya_error error;
        assert_int_equal(eval_niah(&setup, &options, &report, &error), KAKEYA_CANCELLED);
        assert_non_null(strstr(error.message, "1 of 4"));
        assert_non_null(report);
        assert_int_equal(report->rows.n, 1);
        eval_report_close(report);

        gate_result result;
        assert_int_equal(gate_check_file(path, &result, &error), KAKEYA_OK);
        assert_true(result.recognised);
        assert_int_equal(result.rows, 1);
        assert_true(result.n_violations > 0);
        assert_string_equal(result.violation[0].code, "INCOMPLETE");
        gate_result_free(&result);
    }
}

static void wrong_requests_are_named(void **state) {
    (void)state;
    const int lines[] = {12}, draft_windows[] = {1024}, windows[] = {64};
    static const char *const unknown[] = {"nativ"}, *const twice[] = {"native", "native"};
    eval_setup setup = setup_for("niah", KAKEYA_PRECISION_AUTO);
    eval_report *report;
    kakeya_error error = {0};
    eval_options niah = {.lines = lines,
                         .n_lines = 1,
                         .samples = 1,
                         .max_tokens = 8,
                         .policies = {unknown, 1},
                         .draft_windows = draft_windows,
                         .n_draft_windows = 1};
    assert_int_equal(eval_niah(&setup, &niah, &report, &error), KAKEYA_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "nativ"));
    assert_null(report);
    niah.policies = (eval_policies){twice, 2};
    assert_int_equal(eval_niah(&setup, &niah, &report, &error), KAKEYA_INVALID_ARGUMENT);

    static const struct {
        const char *text, *word;
    } files[] = {
        {"{\"sequences\": []}", "sequences"},
        {"{\"sequences\": [[1, 2, 99999999]], \"prompt_length\": 2}", "8192"},
        {"{\"sequences\": [[1, 2, 3]], \"prompt_length\": 3}", "prompt of 3"},
        {"{\"sequences\": [{\"ids\": [1]}]}", "input_ids"},
        {"{\"sequences\": ", "ids.json"},
    };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        const char *path = scratch_write("ids.json", files[i].text, strlen(files[i].text));
        eval_options fidelity = {.ids_json = path, .windows = windows, .n_windows = 1};
        assert_int_not_equal(eval_fidelity(&setup, &fidelity, &report, &error), KAKEYA_OK);
        assert_null(report);
        if (!strstr(error.message, files[i].word)) fail_msg("'%s' does not say '%s'", error.message, files[i].word);
    }
    setup.engine.drafter = "none";
    const char *path = scratch_write("one.jsonl", "{\"prompt\":\"a\"}\n", 15);
    eval_options acceptance = {.jsonl = path, .max_tokens = 8};
    assert_int_equal(eval_acceptance(&setup, &acceptance, &report, &error), KAKEYA_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "drafter"));
}

/* Samples and arms that would count twice are refused before anything runs: the gate would refuse the report. */
static void nothing_counts_twice(void **state) {
    (void)state;
    const int windows[] = {64};
    eval_setup setup = setup_for("code", KAKEYA_PRECISION_AUTO);
    eval_report *report;
    kakeya_error error;
    const char *const twice[] = {source, source};
    eval_options code = {.files = twice,
                         .n_files = 2,
                         .prompt_tokens = 64,
                         .max_tokens = 8,
                         .repetitions = 1,
                         .draft_lengths = windows,
                         .n_draft_lengths = 1};
    assert_int_equal(eval_code(&setup, &code, &report, &error), KAKEYA_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "the same prompt"));
    const int equal[] = {12, 12};
    eval_options niah = {
        .lines = equal, .n_lines = 2, .samples = 1, .max_tokens = 8, .draft_windows = windows, .n_draft_windows = 1};
    assert_int_equal(eval_niah(&setup, &niah, &report, &error), KAKEYA_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "lines: 12 is named twice"));
    static const char same_name[] =
        "{\"task_id\":\"A\",\"prompt\":\"a b c\"}\n{\"task_id\":\"A\",\"prompt\":\"d e f\"}\n";
    eval_options named = {.jsonl = scratch_write("names.jsonl", same_name, sizeof same_name - 1), .max_tokens = 2};
    assert_int_not_equal(eval_acceptance(&setup, &named, &report, &error), KAKEYA_OK);
    assert_non_null(strstr(error.message, "two samples are named 'A'"));
    eval_report_close(report);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fidelity_reproduces_the_reference),
        cmocka_unit_test(needles_are_found_under_every_policy),
        cmocka_unit_test(every_mode_gives_the_same_tokens),
        cmocka_unit_test(batches_give_the_same_tokens),
        cmocka_unit_test(batches_are_drawn_by_seed),
        cmocka_unit_test(code_and_acceptance_leave_sound_reports),
        cmocka_unit_test(all_sources_are_compared),
        cmocka_unit_test(interrupted_runs_leave_their_finished_rows),
        cmocka_unit_test(wrong_requests_are_named),
        cmocka_unit_test(nothing_counts_twice),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
