/* Protects the gate's table of options: a command that contradicts the rest of its report is refused, and whatever
 * spelling getopt_long takes is not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "report_support.h"

/* Words behind the command's own, with blanks between; nothing else of the report changes. */
static cJSON *with_words(eval_kind kind, const char *words) {
    cJSON *json = true_report(kind), *command = part_of(json, "command");
    char text[256], *rest = text;
    snprintf(text, sizeof text, "%s", words);
    for (char *word; (word = strsep(&rest, " ")) != NULL;)
        if (*word) cJSON_AddItemToArray(command, cJSON_CreateString(word));
    return json;
}

typedef struct words {
    eval_kind kind;
    const char *words;
} words;

static void contradictions_are_refused(void **state) {
    (void)state;
    static const words cases[] = {
        /* the model and what is beside it */
        {EVAL_NIAH, "--f-theta none"},
        {EVAL_NIAH, "--drafter none"},
        {EVAL_FIDELITY, "--drafter=none"},
        {EVAL_CODE, "--model models/other"},
        {EVAL_CODE, "--model demo/x"},
        {EVAL_CODE, "other.gguf"},
        {EVAL_FIDELITY, "--synthetic 31b"},
        {EVAL_LOSSLESS, "--synthetic demo"},
        {EVAL_BATCH, "--drafter-scaled-embedding"},
        /* the machine */
        {EVAL_FIDELITY, "--precision f32"},
        {EVAL_CODE, "--prec f32"},
        {EVAL_NIAH, "--isa scalar"},
        {EVAL_NIAH, "--isa avx"},
        {EVAL_LOSSLESS, "--isa=scalar"},
        {EVAL_ACCEPTANCE, "--backend cuda"},
        {EVAL_BATCH, "--backend mlx"},
        {EVAL_CODE, "--backend tpu"},
        {EVAL_CODE, "--threads 5"},
        {EVAL_CODE, "--threads 2000"},
        {EVAL_NIAH, "--kv-format q8"},
        {EVAL_NIAH, "--kv-format f32"},
        {EVAL_FIDELITY, "--devices 0,1"},
        {EVAL_CODE, "--precision bf16 --precision f32"},
        {EVAL_CODE, "--memory-limit much"},
        /* what was run */
        {EVAL_FIDELITY, "--score-tokens 500"},
        {EVAL_KV_FORMAT, "--score-tokens 500"},
        {EVAL_FIDELITY, "--max-sequences 3"},
        {EVAL_FIDELITY, "--prompt-length 600"},
        {EVAL_FIDELITY, "--turns 3"},
        {EVAL_FIDELITY, "--policies native,restored-all"},
        {EVAL_FIDELITY, "--policies native,restored"},
        {EVAL_FIDELITY, "--sink 8"},
        {EVAL_KV_FORMAT, "--sequences 6"},
        {EVAL_KV_FORMAT, "--formats bf16,q8,q4"},
        {EVAL_KV_FORMAT, "--formats bf16"},
        {EVAL_KV_FORMAT, "--as-stored"},
        {EVAL_KV_FORMAT, "--lines 40"},
        {EVAL_NIAH, "--lines 12,16"},
        {EVAL_NIAH, "--samples 50"},
        {EVAL_NIAH, "--seed 43"},
        {EVAL_NIAH, "--mode speculative"},
        {EVAL_NIAH, "--mode fast"},
        {EVAL_NIAH, "--mix-alpha 0.25"},
        {EVAL_NIAH, "--draft-window 64,1024"},
        {EVAL_NIAH, "--draft-length 3"},
        {EVAL_CODE, "--draft-lengths 3"},
        {EVAL_CODE, "--draft-lengths 3,7,17"},
        {EVAL_CODE, "--repetitions 9"},
        {EVAL_CODE, "--max-tokens 96"},
        {EVAL_CODE, "examples/code/matrix.c"},
        {EVAL_ACCEPTANCE, "--chat"},
        {EVAL_ACCEPTANCE, "--prompts 3"},
        {EVAL_ACCEPTANCE, "--jsonl other.jsonl"},
        {EVAL_ACCEPTANCE, "--draft-length 3"},
        {EVAL_LOSSLESS, "--prompts 200"},
        {EVAL_LOSSLESS, "--batch"},
        {EVAL_BATCH, "--sessions 9"},
        {EVAL_BATCH, "--sessions 64"},
        {EVAL_BATCH, "--policies native"},
        /* options that do not exist, or not there */
        {EVAL_NIAH, "--fast"},
        {EVAL_NIAH, "--repetitions 5"},
        {EVAL_NIAH, "-f"},
        {EVAL_CODE, "--seed 42"},
        {EVAL_FIDELITY, "--max-tokens 5"},
        {EVAL_LOSSLESS, "--threads 2"},
        {EVAL_KV_FORMAT, "--window 64"},
        {EVAL_ACCEPTANCE, "--attention native"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cJSON *json = with_words(cases[i].kind, cases[i].words);
        gate_result result = judge(json);
        if (!raises(&result, "COMMAND"))
            fail_msg("%s: \"%s\" does not raise COMMAND", eval_kind_name(cases[i].kind), cases[i].words);
        gate_result_free(&result);
        cJSON_Delete(json);
    }
}

static void legal_spellings_pass(void **state) {
    (void)state;
    static const words cases[] = {
        {EVAL_NIAH, "--precision auto"},
        {EVAL_NIAH, "--precision=bf16"},
        {EVAL_NIAH, "--kv-format auto --kv-format bf16"},
        {EVAL_NIAH, "--backend auto"},
        {EVAL_NIAH, "--backend cpu"},
        {EVAL_NIAH, "--threads 0 --threads 2"},
        {EVAL_NIAH, "--model /usr/share/models/demo/"},
        {EVAL_NIAH, "--model other --model demo"},
        {EVAL_NIAH, "--seed 1 --seed 42"},
        {EVAL_NIAH, "--sample 5 --max 24"},
        {EVAL_NIAH, "--identity-restore"},
        {EVAL_NIAH, "--draft-window=1024 --draft-length 0"},
        {EVAL_NIAH, "--json --plot --fast"}, /* a file's name */
        {EVAL_NIAH, "--memory-limit 20G"},
        {EVAL_NIAH, "--drafter dir --f-theta dir"},
        {EVAL_FIDELITY, "--turns 1"},
        {EVAL_FIDELITY, "--policies sink-window,restored"},
        {EVAL_FIDELITY, "--policies restored,native,sink-window"},
        {EVAL_FIDELITY, "--prompt-length 0 --prompt-length 100"},
        {EVAL_FIDELITY, "--max-seq 0 --max-seq=5"},
        {EVAL_FIDELITY, "--devices 0"},
        {EVAL_FIDELITY, "-- --fast"}, /* a file's name that gives no sequence, since there were enough */
        {EVAL_KV_FORMAT, "--formats identity,bf16,q8,affine4,d4-10"},
        {EVAL_KV_FORMAT, "--seq 5"},
        {EVAL_CODE, "--draft-lengths 2,4 --draft-lengths 3,7"},
        {EVAL_ACCEPTANCE, "--draft-length 0 --prompts 0"},
        {EVAL_ACCEPTANCE, "--prompts 100 --draft-length 7"},
        {EVAL_LOSSLESS, "--compositions 3 --sessions 8"},
        {EVAL_BATCH, "--prompts 9 --reference-prompts 1"},
        {EVAL_BATCH, "--policies native,sink-window,restored,restored-all"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cJSON *json = with_words(cases[i].kind, cases[i].words);
        gate_result result = judge(json);
        for (size_t v = 0; v < result.n_violations; v++)
            print_error("%s: \"%s\": [%s] %s\n", eval_kind_name(cases[i].kind), cases[i].words,
                        result.violation[v].code, result.violation[v].message);
        assert_int_equal(result.n_violations, 0);
        gate_result_free(&result);
        cJSON_Delete(json);
    }
}

/* Kernels that are those of the report. */
static void own_kernels_pass(void **state) {
    (void)state;
    cJSON *json = with_words(EVAL_NIAH, "--isa");
    const char *backend = part_of(part_of(json, "environment"), "backend")->valuestring;
    char isa[32];
    assert_int_equal(sscanf(backend, "cpu/%31[^,]", isa), 1);
    cJSON_AddItemToArray(part_of(json, "command"), cJSON_CreateString(isa));
    gate_result result = judge(json);
    assert_int_equal(result.n_violations, 0);
    gate_result_free(&result);
    cJSON_Delete(json);
}

/* The demo's own GGUF file as the first operand. */
static void a_file_as_model_passes(void **state) {
    (void)state;
    cJSON *json = with_words(EVAL_LOSSLESS, "dir/demo.gguf");
    cJSON_ReplaceItemInObject(part_of(json, "environment"), "model", cJSON_CreateString("demo.gguf"));
    gate_result result = judge(json);
    assert_int_equal(result.n_violations, 0);
    gate_result_free(&result);
    cJSON_Delete(json);
}

/* ---------------------------------------------------------------------------------- contradictions elsewhere */

static void date(cJSON *json, const char *text) {
    cJSON_ReplaceItemInObject(part_of(json, "environment"), "date", cJSON_CreateString(text));
}
static void thirtieth_of_february(cJSON *json) { date(json, "2026-02-30T10:00:00Z"); }
static void thirteenth_month(cJSON *json) { date(json, "2026-13-01T10:00:00Z"); }
static void no_day(cJSON *json) { date(json, "2026-12-00T10:00:00Z"); }
static void hour_twenty_four(cJSON *json) { date(json, "2026-12-01T24:00:00Z"); }
static void minute_sixty(cJSON *json) { date(json, "2026-12-01T10:60:00Z"); }
static void no_leap_year(cJSON *json) { date(json, "2100-02-29T10:00:00Z"); }
static void leap_year(cJSON *json) { date(json, "2024-02-29T23:59:60Z"); }

/* A sequence is left out of rows and options; the others keep their names. */
static void sequence_left_out(cJSON *json) {
    cJSON *rows = part_of(json, "rows"), *options = part_of(json, "options");
    for (int i = cJSON_GetArraySize(rows); i-- > 0;)
        if (strcmp(part_of(cJSON_GetArrayItem(rows, i), "sample")->valuestring, "2/events.py") == 0)
            cJSON_DeleteItemFromArray(rows, i);
    cJSON_DeleteItemFromArray(part_of(options, "samples"), 2);
    cJSON_SetNumberValue(part_of(options, "sequences"), 4);
}

/* Rows of auto that draft twenty tokens in a block, with counts that fit. */
static void blocks_too_long(cJSON *json) {
    cJSON *row;
    cJSON_ArrayForEach(row, part_of(json, "rows")) {
        if (strcmp(part_of(row, "mode")->valuestring, "auto") != 0) continue;
        int n = (int)part_of(row, "completion_tokens")->valuedouble;
        double counts[20];
        for (int i = 0; i < 20; i++) counts[i] = 1;
        cJSON_DeleteItemFromObject(row, "draft_blocks"); /* as in reports of earlier versions */
        cJSON_ReplaceItemInObject(row, "drafted_at", cJSON_CreateDoubleArray(counts, 20));
        cJSON_ReplaceItemInObject(row, "accepted_at", cJSON_CreateDoubleArray(counts, n > 6 ? 2 : 0));
        cJSON_SetNumberValue(part_of(row, "drafted_tokens"), 20);
        cJSON_SetNumberValue(part_of(row, "accepted_tokens"), n > 6 ? 2 : 0);
        cJSON_SetNumberValue(part_of(row, "verifier_forwards"), n > 6 ? n - 3 : n - 1);
    }
}

static void blocks_of_another_row(cJSON *json) {
    cJSON *row;
    cJSON_ArrayForEach(row, part_of(json, "rows")) {
        cJSON *blocks = cJSON_GetObjectItemCaseSensitive(row, "draft_blocks");
        if (blocks) cJSON_SetValuestring(blocks, "d7 n3");
    }
}
static void blocks_that_are_none(cJSON *json) {
    cJSON *row;
    cJSON_ArrayForEach(row, part_of(json, "rows")) {
        cJSON *blocks = cJSON_GetObjectItemCaseSensitive(row, "draft_blocks");
        if (blocks) cJSON_SetValuestring(blocks, "d7 x");
    }
}

/* Every token as likely under both, a far divergence all the same. */
static void divergence_out_of_nothing(cJSON *json) {
    cJSON *row, *kl;
    cJSON_ArrayForEach(row, part_of(json, "rows")) {
        if (strcmp(part_of(row, "policy")->valuestring, "sink-window") != 0) continue;
        double sum = 0;
        cJSON_ArrayForEach(kl, part_of(row, "token_kl")) {
            cJSON_SetNumberValue(kl, 400);
            sum += 400;
        }
        cJSON_SetNumberValue(part_of(row, "kl_from_native"), sum);
    }
}

/* A token that native attention is certain of, and the other arm is not, without a divergence. */
static void certain_without_divergence(cJSON *json) {
    cJSON *row;
    cJSON_ArrayForEach(row, part_of(json, "rows")) {
        bool native = strcmp(part_of(row, "policy")->valuestring, "native") == 0;
        cJSON *nll = part_of(row, "token_nll")->child, *kl = part_of(row, "token_kl")->child, *sum;
        double to = native ? 0 : 0.6;
        sum = part_of(row, "nll");
        cJSON_SetNumberValue(sum, sum->valuedouble - nll->valuedouble + to);
        cJSON_SetNumberValue(nll, to);
        sum = part_of(row, "kl_from_native");
        cJSON_SetNumberValue(sum, sum->valuedouble - kl->valuedouble);
        cJSON_SetNumberValue(kl, 0);
    }
}

/* A token that both hold likely is the likeliest under both. */
static void other_likeliest(cJSON *json) {
    cJSON *row, *native = NULL;
    int changed = 0;
    cJSON_ArrayForEach(row, part_of(json, "rows")) {
        if (strcmp(part_of(row, "policy")->valuestring, "native") == 0) native = row;
        if (strcmp(part_of(row, "policy")->valuestring, "restored") != 0) continue;
        cJSON *ids = part_of(row, "top1_ids"), *agreements = part_of(row, "top1_agreements");
        for (int t = 0; t < cJSON_GetArraySize(ids); t++) {
            double own = cJSON_GetArrayItem(part_of(row, "token_nll"), t)->valuedouble,
                   other = cJSON_GetArrayItem(part_of(native, "token_nll"), t)->valuedouble,
                   kl = cJSON_GetArrayItem(part_of(row, "token_kl"), t)->valuedouble;
            if (own > 0.3 || other > 0.3 || kl <= 0) continue;
            cJSON *id = cJSON_GetArrayItem(ids, t);
            cJSON_SetNumberValue(id, id->valuedouble + 1);
            cJSON_SetNumberValue(agreements, agreements->valuedouble - 1);
            changed++;
        }
    }
    assert_true(changed > 0);
}

static void other_contradictions_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *code; /* NULL: passes */
        eval_kind kind;
        void (*change)(cJSON *json);
    } cases[] = {
        {"ENVIRONMENT", EVAL_CODE, thirtieth_of_february},
        {"ENVIRONMENT", EVAL_CODE, thirteenth_month},
        {"ENVIRONMENT", EVAL_CODE, no_day},
        {"ENVIRONMENT", EVAL_CODE, hour_twenty_four},
        {"ENVIRONMENT", EVAL_CODE, minute_sixty},
        {"ENVIRONMENT", EVAL_CODE, no_leap_year},
        {NULL, EVAL_CODE, leap_year},
        {"SAMPLE_GAP", EVAL_FIDELITY, sequence_left_out},
        {"SAMPLE_GAP", EVAL_KV_FORMAT, sequence_left_out},
        {"COUNTS", EVAL_NIAH, blocks_too_long},
        {"COUNTS", EVAL_CODE, blocks_too_long},
        {"COUNTS", EVAL_NIAH, blocks_of_another_row},
        {"ROW_FIELD", EVAL_NIAH, blocks_that_are_none},
        {"SCORE_IMPOSSIBLE", EVAL_FIDELITY, divergence_out_of_nothing},
        {"SCORE_IMPOSSIBLE", EVAL_FIDELITY, other_likeliest},
        {"SCORE_IMPOSSIBLE", EVAL_FIDELITY, certain_without_divergence},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cJSON *json = true_report(cases[i].kind);
        cases[i].change(json);
        derive_again(cases[i].kind, json);
        gate_result result = judge(json);
        if (cases[i].code && !raises(&result, cases[i].code)) fail_msg("case %zu does not raise %s", i, cases[i].code);
        if (!cases[i].code) assert_int_equal(result.n_violations, 0);
        gate_result_free(&result);
        cJSON_Delete(json);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contradictions_are_refused),
        cmocka_unit_test(legal_spellings_pass),
        cmocka_unit_test(own_kernels_pass),
        cmocka_unit_test(a_file_as_model_passes),
        cmocka_unit_test(other_contradictions_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
