/* Protects the gate from reports of another evaluation than their command's, from values of no form, and, with a
 * replay, from rows that are possible and yet not what the model gives. */
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

/* The command names the evaluation; what else it says is run by a replay, which compares options and environment. */
static void commands_name_their_kind(void **state) {
    (void)state;
    static const struct {
        eval_kind kind;
        const char *words;
        bool passes;
    } cases[] = {
        {EVAL_LOSSLESS, "--batch", false},        {EVAL_LOSSLESS, "--bat", false}, /* as earlier versions took it */
        {EVAL_LOSSLESS, "--backend cpu", true},   {EVAL_BATCH, "--batch --json", true},
        {EVAL_NIAH, "--sample 5 --max 24", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cJSON *json = with_words(cases[i].kind, cases[i].words);
        gate_result result = judge(json);
        if (raises(&result, "COMMAND") == cases[i].passes || (cases[i].passes && result.n_violations))
            fail_msg("%s: \"%s\"", eval_kind_name(cases[i].kind), cases[i].words);
        gate_result_free(&result);
        cJSON_Delete(json);
    }
}

/* ---------------------------------------------------------------------------------- contradictions elsewhere */

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
        const char *code;
        eval_kind kind;
        void (*change)(cJSON *json);
    } cases[] = {
        {"REPLAY_OPTIONS", EVAL_FIDELITY, sequence_left_out},
        {"REPLAY_OPTIONS", EVAL_KV_FORMAT, sequence_left_out},
        {"REPLAY_DRAFTS", EVAL_NIAH, blocks_too_long},
        {"REPLAY_ROW", EVAL_CODE, blocks_too_long},
        {"REPLAY_ROW", EVAL_NIAH, blocks_of_another_row},
        {"ROW_FIELD", EVAL_NIAH, blocks_that_are_none},
        {"REPLAY_ROW", EVAL_FIDELITY, divergence_out_of_nothing},
        {"REPLAY_ROW", EVAL_FIDELITY, other_likeliest},
        {"REPLAY_ROW", EVAL_FIDELITY, certain_without_divergence},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cJSON *json = true_report(cases[i].kind);
        cases[i].change(json);
        derive_again(cases[i].kind, json);
        gate_result result = judge_replayed(cases[i].kind, json);
        if (!raises(&result, cases[i].code)) fail_msg("case %zu does not raise %s", i, cases[i].code);
        gate_result_free(&result);
        cJSON_Delete(json);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commands_name_their_kind),
        cmocka_unit_test(other_contradictions_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
