/* Protects the replay of reports: honest rows of every kind come out again to the bit, whatever the options; with other
 * kernels within the bounds; and a forger who changes rows, files or options with care is found, with the probability
 * that is stated.
 * Whole runs only: tests/cli/test_replay.sh has a case of each. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/files.h"
#include "kakeya_study.h"
#include "measure/eval.h"
#include "measure/lossless_batch_plan.h"
#include "measure/replay.h"
#include "scratch.h"
#include "sweep.h"

static const char *const source = KAKEYA_MODELS "/../examples/code/inventory.py";
static const char *const other_source = KAKEYA_MODELS "/../examples/code/matrix.c";

/* -------------------------------------------------------------------------------------------- small evaluations */

typedef struct small {
    eval_kind kind;
    const char *isa;
    kakeya_precision precision;
    const char *drafter, *f_theta;
    uint64_t seed;
    const char *file;
    bool as_stored;
} small;

static kakeya_status run_niah(const eval_setup *setup, const small *s, eval_report **out, kakeya_error *error) {
    static const int lines[] = {10, 12}, draft_windows[] = {1024};
    static const char *const policies[] = {"native", "restored"};
    static const double alphas[] = {0.5};
    bool restored = !s->f_theta;
    const eval_options o = {.lines = lines,
                            .n_lines = 2,
                            .samples = 1,
                            .seed = s->seed,
                            .max_tokens = 20,
                            .mode = KAKEYA_MODE_AUTO,
                            .policies = {policies, restored ? 2 : 1},
                            .draft_windows = draft_windows,
                            .n_draft_windows = 1,
                            .mix_alpha = alphas,
                            .n_mix_alpha = restored};
    return eval_niah(setup, &o, out, error);
}

static kakeya_status run_fidelity(const eval_setup *setup, const small *s, eval_report **out, kakeya_error *error) {
    static const int windows[] = {16};
    const eval_options o = {.files = &s->file,
                            .n_files = 1,
                            .prompt_length = 40,
                            .score_tokens = 6,
                            .max_sequences = 4,
                            .windows = windows,
                            .n_windows = 1};
    return eval_fidelity(setup, &o, out, error);
}

static kakeya_status run_code(const eval_setup *setup, const small *s, eval_report **out, kakeya_error *error) {
    static const int lengths[] = {3};
    const eval_options o = {.files = &s->file,
                            .n_files = 1,
                            .prompt_tokens = 32,
                            .max_tokens = 20,
                            .repetitions = 3,
                            .draft_lengths = lengths,
                            .n_draft_lengths = 1};
    return eval_code(setup, &o, out, error);
}

static kakeya_status run_acceptance(const eval_setup *setup, const small *s, eval_report **out, kakeya_error *error) {
    static const char lines[] =
        "{\"task_id\":\"A\",\"prompt\":\"def add(a, b):\\n\"}\n{\"prompt\":\"int main(void) {\\n\"}\n";
    (void)s;
    const eval_options o = {.jsonl = scratch_write("prompts.jsonl", lines, sizeof lines - 1), .max_tokens = 10};
    return eval_acceptance(setup, &o, out, error);
}

static kakeya_status run_lossless(const eval_setup *setup, const small *s, eval_report **out, kakeya_error *error) {
    const eval_options o = {
        .prompts = 3, .max_tokens = 8, .seed = s->seed, .files = &s->file, .n_files = 1, .reference_prompts = 1};
    return eval_lossless_run(setup, &o, out, error);
}

static kakeya_status run_batch(const eval_setup *setup, const small *s, eval_report **out, kakeya_error *error) {
    const eval_options o = {
        .compositions = 2, .sessions = 4, .max_tokens = 8, .seed = s->seed, .files = &s->file, .n_files = 1};
    return eval_lossless_batch(setup, &o, out, error);
}

static kakeya_status run_kv_format(const eval_setup *setup, const small *s, eval_report **out, kakeya_error *error) {
    static const char *const formats[] = {"q8", "q4"};
    const eval_options o = {.files = &s->file,
                            .n_files = 1,
                            .prompt_length = 40,
                            .score_tokens = 6,
                            .sequences = 3,
                            .haystack_lines = 10,
                            .max_tokens = 10,
                            .seed = s->seed,
                            .formats = formats,
                            .n_formats = 2,
                            .as_stored = s->as_stored};
    return eval_kv_format(setup, &o, out, error);
}

static kakeya_status run_small(const small *s, const eval_replay *part, eval_report **out, kakeya_error *error) {
    static kakeya_status (*const run[EVAL_KIND_COUNT])(const eval_setup *, const small *, eval_report **,
                                                       kakeya_error *) = {
        [EVAL_NIAH] = run_niah,          [EVAL_FIDELITY] = run_fidelity,
        [EVAL_CODE] = run_code,          [EVAL_ACCEPTANCE] = run_acceptance,
        [EVAL_LOSSLESS] = run_lossless,  [EVAL_BATCH] = run_batch,
        [EVAL_KV_FORMAT] = run_kv_format};
    static const char *const command[] = {"kakeya", "eval", "small"};
    const kakeya_study_options study = {.size = sizeof study, .cpu_isa = s->isa};
    eval_setup setup = {.argc = 3, .argv = command, .replay = part};
    KAKEYA_INIT(&setup.engine);
    KAKEYA_INIT(&setup.session);
    setup.engine.model = KAKEYA_MODELS "/demo";
    setup.engine.precision = s->precision;
    setup.engine.study = &study;
    setup.engine.drafter = s->drafter;
    setup.engine.f_theta = s->f_theta;
    setup.engine.threads = 1;
    return run[s->kind](&setup, s, out, error);
}

static cJSON *report_of(const small *s) {
    eval_report *report;
    kakeya_error error = {0};
    if (run_small(s, NULL, &report, &error) != KAKEYA_OK) fail_msg("%s", error.message);
    /* as it is read from a file */
    cJSON *json = eval_report_to_json(report);
    char *text = cJSON_PrintUnformatted(json);
    cJSON_Delete(json);
    eval_report_close(report);
    json = cJSON_Parse(text);
    cJSON_free(text);
    assert_non_null(json);
    return json;
}

/* What a replay has against the report, and what it states. */
static gate_result replayed(const cJSON *json, const small *s, const replay_options *options, replay_outcome *outcome) {
    gate_result result = {0};
    replay *r;
    eval_report *again;
    kakeya_error error = {0};
    if (replay_open(json, options, &r, &error) != KAKEYA_OK) fail_msg("%s", error.message);
    if (run_small(s, replay_hook(r), &again, &error) != KAKEYA_OK) fail_msg("%s", error.message);
    assert_int_equal(replay_judge(r, again, &result, outcome, &error), KAKEYA_OK);
    eval_report_close(again);
    replay_close(r);
    return result;
}

static bool raises(const gate_result *result, const char *code) {
    for (size_t i = 0; i < result->n_violations; i++)
        if (strcmp(result->violation[i].code, code) == 0) return true;
    return false;
}

static void assert_none(gate_result result, const char *what) {
    for (size_t i = 0; i < result.n_violations; i++)
        print_error("%s: [%s] %s\n", what, result.violation[i].code, result.violation[i].message);
    assert_int_equal(result.n_violations, 0);
    gate_result_free(&result);
}

/* ---------------------------------------------------------------------------------------------------- honest ones */

static const replay_options everything = {.all = true};

static void honest_rows_come_out_again(void **state) {
    (void)state;
    static const struct {
        small small;
        enum { SHORT, LONG, WHOLE } runs; /* the shortest that have it */
    } cases[] = {
        {{.kind = EVAL_NIAH, .seed = 7}, SHORT},
        {{.kind = EVAL_FIDELITY}, SHORT},
        {{.kind = EVAL_CODE}, SHORT},
        {{.kind = EVAL_ACCEPTANCE}, LONG},
        {{.kind = EVAL_LOSSLESS, .seed = 12}, LONG},
        {{.kind = EVAL_BATCH, .seed = UINT64_MAX - 3}, LONG},
        {{.kind = EVAL_KV_FORMAT, .seed = 1}, WHOLE},
        {{.kind = EVAL_KV_FORMAT, .seed = 1, .as_stored = true}, LONG},
        {{.kind = EVAL_CODE, .precision = KAKEYA_PRECISION_F32, .isa = "scalar"}, WHOLE},
        {{.kind = EVAL_NIAH, .drafter = "none", .f_theta = "none", .seed = 3}, LONG},
        {{.kind = EVAL_CODE, .drafter = "none"}, WHOLE},
        {{.kind = EVAL_FIDELITY, .f_theta = "none", .precision = KAKEYA_PRECISION_F32}, WHOLE},
        {{.kind = EVAL_LOSSLESS, .drafter = "none", .f_theta = "none", .seed = 12}, WHOLE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (cases[i].runs > (sweep_short() ? SHORT : sweep_whole() ? WHOLE : LONG)) continue;
        small s = cases[i].small;
        s.file = source;
        cJSON *json = report_of(&s);
        replay_outcome outcome;
        char what[40];
        snprintf(what, sizeof what, "case %zu", i);
        assert_none(replayed(json, &s, &everything, &outcome), what);
        assert_true(outcome.exact);
        assert_int_equal(outcome.replayed, cJSON_GetArraySize(cJSON_GetObjectItem(json, "rows")));
        assert_true(outcome.found_one >= 1 && outcome.found_half >= 1 && outcome.found_arm >= 1);
        assert_true(outcome.timed > 0 && outcome.speed > 0);
        cJSON_Delete(json);
    }
}

/* The same report on other kernels: within the bounds, and said to be no more than that. */
static void other_kernels_stay_within_bounds(void **state) {
    (void)state;
    static const eval_kind kinds[] = {EVAL_FIDELITY, EVAL_CODE, EVAL_NIAH, EVAL_LOSSLESS, EVAL_BATCH, EVAL_KV_FORMAT};
    /* Scalar kernels take their time; whole runs have every kind in both precisions. */
    const size_t n = sweep_short() ? 1 : sweep_whole() ? sizeof kinds / sizeof kinds[0] : 2;
    for (size_t k = 0; k < n; k++) {
        for (int f32 = 0; f32 < 2; f32++) {
            if (f32 && k && !sweep_whole()) continue;
            small s = {.kind = kinds[k], .file = source, .seed = 5};
            s.precision = f32 ? KAKEYA_PRECISION_F32 : KAKEYA_PRECISION_AUTO;
            cJSON *json = report_of(&s);
            s.isa = "scalar";
            replay_outcome outcome;
            assert_none(replayed(json, &s, &everything, &outcome), f32 ? "f32" : "bf16");
            const char *backend = cJSON_GetObjectItem(cJSON_GetObjectItem(json, "environment"), "backend")->valuestring;
            assert_true(outcome.exact == (strncmp(backend, "cpu/scalar", 10) == 0));
            cJSON_Delete(json);
        }
    }
}

/* -------------------------------------------------------------------------------------------------------- forgers */

static cJSON *row_at(cJSON *json, int i) { return cJSON_GetArrayItem(cJSON_GetObjectItem(json, "rows"), i); }

static bool is_arm(const cJSON *row, const char *policy, const char *mode) {
    const cJSON *own = cJSON_GetObjectItem(row, "policy"), *how = cJSON_GetObjectItem(row, "mode");
    return !cJSON_IsTrue(cJSON_GetObjectItem(row, "warmup")) && (!policy || !strcmp(own->valuestring, policy)) &&
           (!mode || !strcmp(how->valuestring, mode));
}

static void set(cJSON *object, const char *key, double value) {
    cJSON_SetNumberValue(cJSON_GetObjectItem(object, key), value);
}

static double get(const cJSON *object, const char *key) { return cJSON_GetObjectItem(object, key)->valuedouble; }

/* One accepted draft more and one forward less, in every count that has it: rows of a mode tell of better drafts. */
static bool more_accepted(cJSON *row) {
    cJSON *at = cJSON_GetObjectItem(row, "accepted_at"), *drafted = cJSON_GetObjectItem(row, "drafted_at");
    if (get(row, "verifier_forwards") < 2 || !cJSON_GetArraySize(drafted)) return false;
    set(row, "verifier_forwards", get(row, "verifier_forwards") - 1);
    set(row, "accepted_tokens", get(row, "accepted_tokens") + 1);
    if (!at->child) cJSON_AddItemToArray(at, cJSON_CreateNumber(0));
    cJSON_SetNumberValue(at->child, at->child->valuedouble + 1);
    return true;
}

static int every_row(cJSON *json, const char *policy, const char *mode, bool (*change)(cJSON *row)) {
    cJSON *row;
    int n = 0;
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(json, "rows")) {
        if (is_arm(row, policy, mode)) n += change(row);
    }
    return n;
}

static void accepted_raised(cJSON *json) { assert_true(every_row(json, NULL, "speculative", more_accepted) > 0); }

static bool pretend_blocks(cJSON *row) {
    cJSON *blocks = cJSON_GetObjectItem(row, "draft_blocks");
    int tokens = (int)get(row, "completion_tokens");
    if (tokens < 10) return false;
    cJSON *counts[2] = {cJSON_CreateArray(), cJSON_CreateArray()};
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 2; k++) cJSON_AddItemToArray(counts[k], cJSON_CreateNumber(1));
    cJSON_ReplaceItemInObject(row, "drafted_at", counts[0]);
    cJSON_ReplaceItemInObject(row, "accepted_at", counts[1]);
    set(row, "drafted_tokens", 4);
    set(row, "accepted_tokens", 4);
    set(row, "verifier_forwards", tokens - 5);
    char text[256] = "n4";
    for (int i = 1; i < tokens - 5 && i < 100; i++) strcat(text, " 0");
    cJSON_SetValuestring(blocks, text);
    return true;
}

/* Blocks of auto that were never drafted so: all counts fit, and only the model knows better. */
static void blocks_invented(cJSON *json) { assert_true(every_row(json, NULL, "auto", pretend_blocks) > 0); }

static bool without_blocks(cJSON *row) {
    cJSON_DeleteItemFromObject(row, "draft_blocks");
    return true;
}
static void blocks_withheld(cJSON *json) { assert_true(every_row(json, NULL, "auto", without_blocks) > 0); }

static const char *divergence_of(const cJSON *row) {
    return cJSON_GetObjectItem(row, "kl_from_native") ? "kl_from_native" : "kl_from_identity";
}

static bool smaller_divergence(cJSON *row) {
    const char *key = divergence_of(row);
    cJSON *kl;
    if (!(get(row, key) > 1e-4)) return false;
    set(row, key, get(row, key) * 0.6);
    cJSON_ArrayForEach(kl, cJSON_GetObjectItem(row, "token_kl")) cJSON_SetNumberValue(kl, kl->valuedouble * 0.6);
    return true;
}
static void divergence_scaled(cJSON *json) { assert_true(every_row(json, NULL, "score", smaller_divergence) > 0); }

static bool likelier(cJSON *row) {
    cJSON *nll;
    set(row, "nll", get(row, "nll") * 0.5);
    cJSON_ArrayForEach(nll, cJSON_GetObjectItem(row, "token_nll")) cJSON_SetNumberValue(nll, nll->valuedouble * 0.5);
    return true;
}
static void likelihoods_raised(cJSON *json) { assert_true(every_row(json, "restored", NULL, likelier) > 0); }

/* The answer of plain decoding under native attention stands in every row of another policy. */
static void answers_copied(cJSON *json) {
    cJSON *row, *other;
    int n = 0;
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(json, "rows")) {
        if (!is_arm(row, "restored", NULL)) continue;
        cJSON_ArrayForEach(other, cJSON_GetObjectItem(json, "rows")) {
            if (!is_arm(other, "native", "ar") || !cJSON_Compare(cJSON_GetObjectItem(row, "prompt_hash"),
                                                                 cJSON_GetObjectItem(other, "prompt_hash"), true))
                continue;
            if (cJSON_Compare(cJSON_GetObjectItem(row, "token_ids"), cJSON_GetObjectItem(other, "token_ids"), true))
                continue;
            static const char *const keys[] = {"token_ids", "text", "completion_tokens", "finish_reason"};
            for (int k = 0; k < 4; k++)
                cJSON_ReplaceItemInObject(row, keys[k], cJSON_Duplicate(cJSON_GetObjectItem(other, keys[k]), true));
            n++;
        }
    }
    assert_true(n > 0);
}

static bool one_other_token(cJSON *row) {
    cJSON *id = cJSON_GetArrayItem(cJSON_GetObjectItem(row, "token_ids"), 2);
    if (!id) return false;
    cJSON_SetNumberValue(id, id->valuedouble + 7);
    return true;
}
static void tokens_changed(cJSON *json) { assert_true(every_row(json, NULL, NULL, one_other_token) > 0); }

static bool other_prompt(cJSON *row) {
    cJSON_SetValuestring(cJSON_GetObjectItem(row, "prompt_hash"), "0123456789abcdef");
    return true;
}
static void prompts_changed(cJSON *json) { assert_true(every_row(json, NULL, NULL, other_prompt) > 0); }

/* The last sequence goes, from rows and options alike. */
static void sequence_dropped(cJSON *json) {
    cJSON *rows = cJSON_GetObjectItem(json, "rows"), *options = cJSON_GetObjectItem(json, "options");
    cJSON *samples = cJSON_GetObjectItem(options, "samples");
    int last = cJSON_GetArraySize(samples) - 1;
    const char *name = cJSON_GetArrayItem(samples, last)->valuestring;
    for (int i = cJSON_GetArraySize(rows); i-- > 0;)
        if (strcmp(cJSON_GetObjectItem(row_at(json, i), "sample")->valuestring, name) == 0)
            cJSON_DeleteItemFromArray(rows, i);
    cJSON_DeleteItemFromArray(samples, last);
    set(options, "sequences", last);
}

static void other_seed(cJSON *json) {
    cJSON_ReplaceItemInObject(cJSON_GetObjectItem(json, "options"), "seed", cJSON_CreateNumber(77));
}
static void other_fingerprint(cJSON *json) {
    cJSON_SetValuestring(cJSON_GetObjectItem(cJSON_GetObjectItem(json, "environment"), "fingerprint"),
                         "0123456789abcdef");
}
static void no_drafter(cJSON *json) {
    cJSON_ReplaceItemInObject(cJSON_GetObjectItem(json, "environment"), "drafter", cJSON_CreateFalse());
}

static bool less_memory(cJSON *row) {
    cJSON *kv = cJSON_GetObjectItem(row, "kv_bytes");
    set(kv, "sliding", get(kv, "sliding") - 64);
    set(kv, "total", get(kv, "total") - 64);
    return true;
}
static void memory_lowered(cJSON *json) { assert_true(every_row(json, "restored", NULL, less_memory) > 0); }

static void forgeries_are_found(void **state) {
    (void)state;
    static const struct {
        const char *code;
        eval_kind kind;
        void (*forge)(cJSON *json);
        bool often;
    } cases[] = {
        {"REPLAY_ROW", EVAL_CODE, accepted_raised, true},
        {"REPLAY_ROW", EVAL_ACCEPTANCE, accepted_raised, false},
        {"REPLAY_ROW", EVAL_LOSSLESS, accepted_raised, false},
        {"REPLAY_ROW", EVAL_CODE, blocks_invented, true},
        {"REPLAY_ROW", EVAL_NIAH, blocks_invented, false},
        {"REPLAY_ROW", EVAL_LOSSLESS, answers_copied, false},
        {"REPLAY_DRAFTS", EVAL_CODE, blocks_withheld, true},
        {"REPLAY_ROW", EVAL_FIDELITY, divergence_scaled, true},
        {"REPLAY_ROW", EVAL_KV_FORMAT, divergence_scaled, false},
        {"REPLAY_ROW", EVAL_FIDELITY, likelihoods_raised, true},
        {"REPLAY_ROW", EVAL_BATCH, tokens_changed, false},
        {"REPLAY_ROW", EVAL_LOSSLESS, tokens_changed, false},
        {"REPLAY_ROW", EVAL_CODE, tokens_changed, false},
        {"REPLAY_PROMPT", EVAL_FIDELITY, prompts_changed, true},
        {"REPLAY_OPTIONS", EVAL_FIDELITY, sequence_dropped, true},
        {"REPLAY_OPTIONS", EVAL_LOSSLESS, other_seed, false},
        {"REPLAY_MODEL", EVAL_CODE, other_fingerprint, true},
        {"REPLAY_ENVIRONMENT", EVAL_FIDELITY, no_drafter, true},
        {"REPLAY_ROW", EVAL_FIDELITY, memory_lowered, true},
    };
    cJSON *honest[EVAL_KIND_COUNT] = {NULL};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        small s = {.kind = cases[i].kind, .file = source, .seed = 12};
        if (sweep_short() && !cases[i].often) continue;
        if (!honest[s.kind]) honest[s.kind] = report_of(&s);
        cJSON *forged = cJSON_Duplicate(honest[s.kind], true);
        cases[i].forge(forged);
        replay_outcome outcome;
        /* what concerns an arm needs no draw, its best row is always computed; answers that are another policy's are
         * few here */
        const replay_options none = {.rows = 0, .seed = 1};
        gate_result result = replayed(forged, &s, cases[i].forge == answers_copied ? &everything : &none, &outcome);
        if (!raises(&result, cases[i].code)) fail_msg("case %zu does not raise %s", i, cases[i].code);
        gate_result_free(&result);
        cJSON_Delete(forged);
    }
    for (int k = 0; k < EVAL_KIND_COUNT; k++) cJSON_Delete(honest[k]);
}

/* On other kernels, too, what is beyond the bounds is found. */
static void forgeries_are_found_on_other_kernels(void **state) {
    (void)state;
    static const struct {
        eval_kind kind;
        void (*forge)(cJSON *json);
    } cases[] = {
        {EVAL_FIDELITY, divergence_scaled}, {EVAL_FIDELITY, likelihoods_raised}, {EVAL_FIDELITY, prompts_changed},
        {EVAL_CODE, tokens_changed},        {EVAL_LOSSLESS, tokens_changed},
    };
    /* Scalar kernels take their time. */
    const size_t n = sweep_short() ? 1 : sweep_whole() ? sizeof cases / sizeof cases[0] : 4;
    cJSON *honest[EVAL_KIND_COUNT] = {NULL};
    for (size_t i = 0; i < n; i++) {
        small s = {.kind = cases[i].kind, .file = source, .seed = 12, .isa = "scalar"};
        if (!honest[s.kind]) honest[s.kind] = report_of(&s);
        cJSON *forged = cJSON_Duplicate(honest[s.kind], true);
        cases[i].forge(forged);
        s.isa = NULL;
        replay_outcome outcome;
        gate_result result = replayed(forged, &s, &everything, &outcome);
        if (!result.n_violations) fail_msg("case %zu passes", i);
        gate_result_free(&result);
        cJSON_Delete(forged);
    }
    for (int k = 0; k < EVAL_KIND_COUNT; k++) cJSON_Delete(honest[k]);
}

/* A file that is another one has other prompts. */
static void another_file_is_found(void **state) {
    (void)state;
    small s = {.kind = EVAL_FIDELITY, .file = source};
    cJSON *json = report_of(&s);
    char *text;
    size_t bytes;
    kakeya_error error;
    assert_int_equal(file_read(other_source, 1 << 20, &text, &bytes, &error), KAKEYA_OK);
    s.file = scratch_write("inventory.py", text, bytes);
    free(text);
    replay_outcome outcome;
    gate_result result = replayed(json, &s, &everything, &outcome);
    assert_true(raises(&result, "REPLAY_PROMPT"));
    gate_result_free(&result);
    cJSON_Delete(json);
}

/* One row in a report of many is changed, one that nothing makes stand out: as often as stated, a draw of three finds
 * it. The draw alone decides, so nothing is computed but the choice. */
static size_t times_chosen;
static const char *watched_sample;
static bool is_watched(const replay *r, const eval_row *row) {
    const eval_replay *hook = replay_hook(r);
    return strcmp(row->sample, watched_sample) == 0 && hook->row(hook->user, row) != NULL;
}

static void the_stated_probability_is_the_draws(void **state) {
    (void)state;
    enum { DRAWS = 2000, ROWS = 3 };
    small s = {.kind = EVAL_CODE, .file = source};
    cJSON *json = report_of(&s);
    /* repetition 1 of plain decoding: the decisive row of its arm is the first */
    cJSON *item, *watched = NULL;
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(json, "rows")) {
        if (is_arm(item, NULL, "ar") && get(item, "repetition") > 0) watched = item;
    }
    eval_row row;
    kakeya_error error;
    assert_int_equal(eval_row_from_json(EVAL_CODE, watched, &row, &error), KAKEYA_OK);
    watched_sample = row.sample;
    for (uint64_t seed = 0; seed < DRAWS; seed++) {
        const replay_options options = {.rows = ROWS, .seed = seed};
        replay *r;
        assert_int_equal(replay_open(json, &options, &r, &error), KAKEYA_OK);
        times_chosen += is_watched(r, &row);
        replay_close(r);
    }
    const replay_options options = {.rows = ROWS, .seed = 1};
    replay_outcome outcome;
    assert_none(replayed(json, &s, &options, &outcome), "honest");
    /* 12 rows in four arms, four of them decisive: 3 of 8 */
    assert_true(fabs(outcome.found_one - 3.0 / 8) < 1e-9);
    assert_true(fabs(outcome.found_half - (1 - 5.0 / 8 * 4 / 7)) < 1e-9);
    double share = (double)times_chosen / DRAWS;
    if (fabs(share - outcome.found_one) > 0.05) fail_msg("found in %.3f of the draws", share);
    eval_row_free(&row);
    cJSON_Delete(json);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(honest_rows_come_out_again), cmocka_unit_test(other_kernels_stay_within_bounds),
        cmocka_unit_test(forgeries_are_found),        cmocka_unit_test(forgeries_are_found_on_other_kernels),
        cmocka_unit_test(another_file_is_found),      cmocka_unit_test(the_stated_probability_is_the_draws),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
