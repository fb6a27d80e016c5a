/* Protects the gate: a sound report of every kind passes, and for every rule there is a report that breaks this rule
 * and no other. Each broken report is a sound one with one change; its summary is derived again unless the summary
 * itself is what the case breaks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "measure/gate.h"
#include "measure/report.h"

enum { STOP = 1, SAMPLES = 5, RUNGS = 3, MAX_TOKENS = 40 };
static const int rung_lines[RUNGS] = {12, 60, 150};

/* ------------------------------------------------------------------------------------------- sound reports */

static cJSON *environment(void) {
    cJSON *object = environment_describe();
    cJSON_AddStringToObject(object, "backend", "cpu/scalar");
    cJSON_AddStringToObject(object, "model", "demo");
    cJSON_AddStringToObject(object, "fingerprint", "0123456789abcdef");
    cJSON_AddStringToObject(object, "precision", "bf16");
    cJSON_AddNumberToObject(object, "threads", 2);
    cJSON_AddNumberToObject(object, "sliding_window", 256);
    cJSON_AddItemToObject(object, "stop_tokens", cJSON_CreateIntArray((int[]){STOP, 106}, 2));
    return object;
}

static cJSON *options(eval_kind kind) {
    static const char *const text[EVAL_KIND_COUNT] = {
        [EVAL_NIAH] = "{\"samples\":5,\"lines\":[12,60,150],\"seed\":42,\"max_tokens\":40,"
                      "\"policies\":[\"native\",\"sink-window\",\"restored\"]}",
        [EVAL_FIDELITY] =
            "{\"prompt_length\":600,\"windows\":[64],\"policies\":[\"native\",\"sink-window\",\"restored\"]}",
        [EVAL_CODE] = "{\"max_tokens\":40,\"repetitions\":5,\"policies\":[\"native\"]}",
        [EVAL_ACCEPTANCE] = "{\"max_tokens\":40,\"draft_length\":7}",
        [EVAL_LOSSLESS] = "{\"prompts\":6,\"max_tokens\":40,\"seed\":42,\"policies\":[\"native\",\"restored\"],"
                          "\"modes\":[\"speculative\",\"auto\"],\"prompt_kinds\":[\"needle\",\"code\",\"random\"],"
                          "\"temperatures\":[0,0.7],\"threads\":[1,2],\"prompt_chunks\":[0,37]}",
    };
    return cJSON_Parse(text[kind]);
}

static eval_row *add(eval_report *report, const char *policy, const char *mode, bool warmup, int group, int sample) {
    eval_row row;
    eval_row_init(&row);
    snprintf(row.sample, sizeof row.sample, "%s-%d-%d", warmup ? "warmup" : "sample", group, sample);
    snprintf(row.arm.policy, sizeof row.arm.policy, "%s", policy);
    snprintf(row.arm.mode, sizeof row.arm.mode, "%s", mode);
    row.arm.sink = 4;
    row.arm.window = 64;
    row.arm.draft_window = 1024;
    row.arm.threads = 2;
    row.warmup = warmup;
    row.prompt_hash = (uint64_t)(1000 * warmup + 10 * group + sample);
    kakeya_error error;
    assert_int_equal(eval_rows_add(&report->rows, &row, &error), KAKEYA_OK);
    return &report->rows.row[report->rows.n - 1];
}

/* A continuation of 12 tokens that ends with a stop token; speculation takes four forwards and half the time. */
static void generate(eval_row *row, int64_t prompt_tokens) {
    enum { TOKENS = 12, BLOCKS = 4, DRAFTS = 7 };
    bool ar = strcmp(row->arm.mode, "ar") == 0;
    row->prompt_tokens = prompt_tokens;
    row->token_ids = calloc(TOKENS, sizeof *row->token_ids);
    assert_non_null(row->token_ids);
    for (int i = 0; i < TOKENS; i++) row->token_ids[i] = i == TOKENS - 1 ? STOP : 200 + i;
    row->n_token_ids = TOKENS;
    row->text = strdup("The secret code is MAPLE-1234.");
    row->prefill_seconds = 0.001 * (double)prompt_tokens;
    row->decode_seconds = ar ? 0.012 : 0.006;
    row->verifier_forwards = ar ? TOKENS - 1 : BLOCKS;
    if (!ar) {
        row->drafted_tokens = BLOCKS * DRAFTS;
        row->accepted_tokens = BLOCKS + 3;
        for (int i = 0; i < DRAFTS; i++) row->drafted_at[i] = BLOCKS;
        row->accepted_at[0] = BLOCKS;
        row->accepted_at[1] = 3;
    }
    bool native = strcmp(row->arm.policy, "native") == 0, restored = strncmp(row->arm.policy, "restored", 8) == 0;
    row->kv.full = (size_t)prompt_tokens * 512;
    row->kv.sliding = native ? 256 * 100 : 85 * 100;
    row->kv.latent = restored ? 256 * 30 : 0;
    row->kv.draft = (size_t)(prompt_tokens < 1024 ? prompt_tokens : 1024) * 10;
    row->kv.total = row->kv.full + row->kv.sliding + row->kv.latent + row->kv.draft;
    snprintf(row->finish, sizeof row->finish, "stop");
}

static void needle(eval_row *row, int lines) {
    generate(row, lines * 26);
    row->lines = lines;
    row->expected = strdup("MAPLE-1234");
    row->correct = true;
}

static void fill_niah(eval_report *report) {
    static const char *const policies[] = {"native", "sink-window", "restored"};
    static const char *const modes[] = {"ar", "auto"};
    for (int p = 0; p < 3; p++)
        for (int m = 0; m < 2; m++) needle(add(report, policies[p], modes[m], true, 0, 0), rung_lines[0]);
    for (int r = 0; r < RUNGS; r++)
        for (int s = 0; s < SAMPLES; s++)
            for (int p = 0; p < 3; p++)
                for (int m = 0; m < 2; m++) needle(add(report, policies[p], modes[m], false, r, s), rung_lines[r]);
    for (int s = 0; s < 2; s++) {
        eval_row *row = add(report, "restored-all", "ar", false, 0, s);
        needle(row, rung_lines[0]);
        row->arm.mix_alpha = 1;
        row->relative_mse[0] = 0.2;
        row->relative_mse[1] = 1.4;
    }
}

static void fill_fidelity(eval_report *report) {
    static const char *const policies[] = {"native", "sink-window", "restored"};
    for (int s = 0; s < SAMPLES; s++) {
        for (int p = 0; p < 3; p++) {
            eval_row *row = add(report, policies[p], "score", false, 0, s);
            row->prompt_tokens = 600;
            row->scored_tokens = 64;
            row->nll = 90 + 5 * p;
            row->kl = p == 0 ? 0 : p == 1 ? 12 : 5;
            row->agreements = p == 0 ? 64 : p == 1 ? 55 : 58;
            row->seconds = 0.1;
        }
    }
}

static void fill_code(eval_report *report) {
    static const struct {
        const char *mode;
        int draft_length;
        double speed;
    } arms[] = {{"ar", 0, 1}, {"speculative", 2, 1.5}, {"speculative", 16, 0.7}, {"auto", 0, 1.6}};
    for (int repetition = -1; repetition < 5; repetition++) {
        for (int s = 0; s < 2; s++) {
            for (int a = 0; a < 4; a++) {
                if (repetition < 0 && s) continue;
                eval_row *row = add(report, "native", arms[a].mode, repetition < 0, 0, s);
                row->arm.draft_length = arms[a].draft_length;
                row->repetition = repetition < 0 ? 0 : repetition;
                generate(row, 700);
                row->decode_seconds = 0.012 / arms[a].speed;
            }
        }
    }
}

static void fill_acceptance(eval_report *report) {
    for (int scaled = 0; scaled < 2; scaled++) {
        for (int s = -1; s < SAMPLES; s++) {
            eval_row *row = add(report, "native", "speculative", s < 0, 0, s < 0 ? 0 : s);
            row->arm.draft_length = 7;
            row->arm.scaled_embedding = scaled;
            generate(row, 150);
        }
    }
}

static void fill_lossless(eval_report *report) {
    static const char *const kinds[] = {"needle", "code", "random"}, *const policies[] = {"native", "restored"};
    for (int s = 0; s < 6; s++) {
        for (int p = 0; p < 2; p++) {
            for (int m = 0; m < 4; m++) {
                static const char *const modes[] = {"ar", "speculative", "auto", "ar"};
                eval_row *row = add(report, policies[p], modes[m], false, 0, s);
                row->arm.draft_length = m == 1 ? s + 1 : 0;
                row->arm.threads = m == 2 ? 1 : 2;
                row->arm.prompt_chunk = m == 3 ? 37 : 0;
                row->arm.temperature = s % 2 ? 0.7 : 0;
                snprintf(row->prompt_kind, sizeof row->prompt_kind, "%s", kinds[s % 3]);
                generate(row, 300);
            }
        }
    }
}

static eval_report *sound(eval_kind kind) {
    static void (*const fill[EVAL_KIND_COUNT])(eval_report *) = {fill_niah, fill_fidelity, fill_code, fill_acceptance,
                                                                 fill_lossless};
    static const char *const command[] = {"kakeya", "eval", "--report", "r.json"};
    eval_report *report = NULL;
    kakeya_error error;
    assert_int_equal(eval_report_open(kind, NULL, 4, command, environment(), options(kind), &report, &error),
                     KAKEYA_OK);
    fill[kind](report);
    report->complete = true;
    return report;
}

/* ---------------------------------------------------------------------------------------------- broken ones */

/* Row i of the measured rows of an arm. */
static eval_row *row_of(eval_report *report, const char *policy, const char *mode, int i) {
    for (size_t r = 0; r < report->rows.n; r++) {
        eval_row *row = &report->rows.row[r];
        if (row->warmup || row->arm.mix_alpha >= 0 || strcmp(row->arm.policy, policy) != 0 ||
            strcmp(row->arm.mode, mode) != 0 || i--)
            continue;
        return row;
    }
    fail_msg("no such row");
    return NULL;
}

static void remove_row(eval_report *report, eval_row *row) {
    size_t at = (size_t)(row - report->rows.row);
    eval_row_free(row);
    memmove(row, row + 1, (report->rows.n - at - 1) * sizeof *row);
    report->rows.n--;
}

/* Removes all rows, or the warm-up rows, of a policy and mode (NULL: any). */
static void remove_rows(eval_report *report, const char *policy, const char *mode, bool warmup_only) {
    for (size_t r = report->rows.n; r-- > 0;) {
        eval_row *row = &report->rows.row[r];
        if ((policy && strcmp(row->arm.policy, policy) != 0) || (mode && strcmp(row->arm.mode, mode) != 0)) continue;
        if (!warmup_only || row->warmup) remove_row(report, row);
    }
}

static void lose_answer(eval_row *row) {
    free(row->text);
    row->text = strdup("I do not know.");
    row->correct = false;
}

static void no_prefill_time(eval_report *r) { row_of(r, "restored", "auto", 0)->prefill_seconds = 0; }
static void no_score_time(eval_report *r) { row_of(r, "restored", "score", 0)->seconds = 0; }
static void wrong_total(eval_report *r) { row_of(r, "native", "ar", 3)->kv.total += 64; }
static void too_many_tokens(eval_report *r) { row_of(r, "native", "auto", 0)->accepted_tokens = 1; }
static void gaps_in_acceptance(eval_report *r) {
    int64_t *accepted = row_of(r, "native", "auto", 0)->accepted_at;
    accepted[5] = accepted[1];
    accepted[1] = 0;
}
static void goes_on_after_stop(eval_report *r) {
    for (size_t i = 0; i < r->rows.n; i++) r->rows.row[i].token_ids[5] = 106;
}
static void claims_length(eval_report *r) { strcpy(row_of(r, "native", "ar", 0)->finish, "length"); }
static void claims_cancelled(eval_report *r) { strcpy(row_of(r, "native", "ar", 0)->finish, "cancelled"); }
static void run_twice(eval_report *r) {
    eval_row *copy = add(r, "native", "ar", false, 0, 0);
    needle(copy, rung_lines[0]);
}
static void no_warmup(eval_report *r) { remove_rows(r, "restored", "auto", true); }
static void late_warmup(eval_report *r) {
    eval_row first = r->rows.row[0];
    memmove(&r->rows.row[0], &r->rows.row[1], (r->rows.n - 1) * sizeof first);
    r->rows.row[r->rows.n - 1] = first;
}
static void warmup_measured_by_name(eval_report *r) {
    for (int i = 0; i < 6; i++) strcpy(r->rows.row[i].sample, row_of(r, "native", "ar", 2)->sample);
}
static void warmup_measured_by_prompt(eval_report *r) {
    for (int i = 0; i < 6; i++) r->rows.row[i].prompt_hash = row_of(r, "native", "ar", 2)->prompt_hash;
}
static void four_samples(eval_report *r) {
    for (size_t i = r->rows.n; i-- > 0;)
        if (!r->rows.row[i].warmup && strcmp(r->rows.row[i].sample, "sample-2-4") == 0) remove_row(r, &r->rows.row[i]);
}
static void rung_left_out(eval_report *r) {
    cJSON_AddItemToArray(cJSON_GetObjectItem(r->options, "lines"), cJSON_CreateNumber(280));
}
static void four_repetitions(eval_report *r) {
    for (size_t i = r->rows.n; i-- > 0;)
        if (r->rows.row[i].repetition == 4) remove_row(r, &r->rows.row[i]);
}
static void four_sequences(eval_report *r) {
    for (size_t i = r->rows.n; i-- > 0;)
        if (strcmp(r->rows.row[i].sample, "sample-0-4") >= 0) remove_row(r, &r->rows.row[i]);
}
static void sample_only_in_one_arm(eval_report *r) { needle(add(r, "native", "ar", false, 2, 7), rung_lines[2]); }
static void native_with_latents(eval_report *r) {
    eval_row *row = row_of(r, "native", "auto", 0);
    row->kv.latent += 64;
    row->kv.total += 64;
}
static void ar_with_drafts(eval_report *r) {
    row_of(r, "native", "ar", 0)->drafted_tokens = 1;
    row_of(r, "native", "ar", 0)->drafted_at[0] = 1;
}
static void no_latents(eval_report *r) {
    for (size_t i = 0; i < r->rows.n; i++) {
        eval_row *row = &r->rows.row[i];
        row->kv.total -= row->kv.latent;
        row->kv.latent = 0;
    }
}
static void bounded_holds_all(eval_report *r) {
    for (size_t i = 0; i < r->rows.n; i++) {
        eval_row *row = &r->rows.row[i];
        row->kv.total += 256 * 100 - row->kv.sliding;
        row->kv.sliding = 256 * 100;
    }
}
static void nothing_drafted(eval_report *r) {
    for (size_t i = 0; i < r->rows.n; i++) {
        eval_row *row = &r->rows.row[i];
        if (row->arm.draft_length != 16) continue;
        row->drafted_tokens = row->accepted_tokens = 0;
        row->verifier_forwards = 11;
        memset(row->drafted_at, 0, sizeof row->drafted_at);
        memset(row->accepted_at, 0, sizeof row->accepted_at);
    }
}
static void nothing_drafted_at_all(eval_report *r) {
    for (size_t i = 0; i < r->rows.n; i++) {
        eval_row *row = &r->rows.row[i];
        row->drafted_tokens = row->accepted_tokens = 0;
        row->verifier_forwards = 11;
        memset(row->drafted_at, 0, sizeof row->drafted_at);
        memset(row->accepted_at, 0, sizeof row->accepted_at);
    }
}
static void other_token(eval_report *r) { row_of(r, "restored", "auto", 4)->token_ids[7]++; }
static void other_token_between_forms(eval_report *r) { row_of(r, "native", "speculative", 8)->token_ids[0]++; }
static void one_token_less(eval_report *r) {
    eval_row *row = row_of(r, "native", "speculative", 3);
    row->token_ids[10] = STOP;
    row->n_token_ids = 11;
}
static void no_expected_answer(eval_report *r) {
    for (size_t i = 0; i < r->rows.n; i++) {
        free(r->rows.row[i].expected);
        r->rows.row[i].expected = strdup("");
        r->rows.row[i].correct = false;
    }
}
static void claims_correct(eval_report *r) {
    eval_row *row = row_of(r, "sink-window", "ar", 0);
    lose_answer(row);
    row->correct = true;
}
static void no_oracle(eval_report *r) { remove_rows(r, "native", NULL, false); }
static void needle_lost(eval_report *r) { lose_answer(row_of(r, "restored", "auto", 6)); }
static void nobody_finds_it(eval_report *r) {
    for (size_t i = 0; i < r->rows.n; i++)
        if (!r->rows.row[i].warmup && r->rows.row[i].lines == rung_lines[1]) lose_answer(&r->rows.row[i]);
}
static void one_rung(eval_report *r) {
    for (size_t i = r->rows.n; i-- > 0;)
        if (!r->rows.row[i].warmup && r->rows.row[i].lines != rung_lines[0]) remove_row(r, &r->rows.row[i]);
    cJSON_ReplaceItemInObject(r->options, "lines", cJSON_CreateIntArray(rung_lines, 1));
}
static void native_only(eval_report *r) {
    remove_rows(r, "sink-window", NULL, false);
    remove_rows(r, "restored", NULL, false);
}
static void grow(eval_report *r, const char *policy, size_t bytes, bool draft) {
    for (size_t i = 0; i < r->rows.n; i++) {
        eval_row *row = &r->rows.row[i];
        if (row->lines != rung_lines[2] || strcmp(row->arm.policy, policy) != 0) continue;
        if (draft)
            row->kv.draft += bytes;
        else
            row->kv.latent += bytes;
        row->kv.total += bytes;
    }
}
static void sliding_grows(eval_report *r) {
    for (size_t i = 0; i < r->rows.n; i++) {
        eval_row *row = &r->rows.row[i];
        if (strcmp(row->arm.policy, "restored") != 0) continue;
        row->kv.sliding += (size_t)row->lines;
        row->kv.total += (size_t)row->lines;
    }
}
static void latents_grow(eval_report *r) { grow(r, "restored", 640, false); }
static void draft_grows(eval_report *r) { grow(r, "restored", 640, true); }
static void identity_fails(eval_report *r) {
    for (size_t i = 0; i < r->rows.n; i++)
        if (r->rows.row[i].arm.mix_alpha >= 1) lose_answer(&r->rows.row[i]);
}
static void slower(eval_report *r) {
    for (size_t i = 0; i < r->rows.n; i++)
        if (strcmp(r->rows.row[i].arm.policy, "native") == 0 && strcmp(r->rows.row[i].arm.mode, "auto") == 0)
            r->rows.row[i].decode_seconds = 0.0128;
}
static void all_lengths_slower(eval_report *r) {
    for (size_t i = 0; i < r->rows.n; i++)
        if (strcmp(r->rows.row[i].arm.mode, "speculative") == 0) r->rows.row[i].decode_seconds = 0.02;
}
static void few_tokens(eval_report *r) {
    for (size_t i = r->rows.n; i-- > 0;)
        if (strcmp(r->rows.row[i].sample, "sample-0-1") == 0) remove_row(r, &r->rows.row[i]);
    for (size_t i = 0; i < r->rows.n; i++) {
        eval_row *row = &r->rows.row[i];
        row->n_token_ids = 6;
        row->token_ids[5] = STOP;
        if (row->verifier_forwards > 5) row->verifier_forwards = 5;
    }
}
static void no_ar(eval_report *r) { remove_rows(r, NULL, "ar", false); }
static void no_ar_for_one_policy(eval_report *r) { remove_rows(r, "restored", "ar", false); }
static void one_form(eval_report *r) {
    for (size_t i = r->rows.n; i-- > 0;)
        if (r->rows.row[i].arm.scaled_embedding) remove_row(r, &r->rows.row[i]);
}
static void native_differs(eval_report *r) { row_of(r, "native", "score", 1)->agreements = 63; }
static void more_agreements_than_tokens(eval_report *r) { row_of(r, "restored", "score", 1)->agreements = 65; }
static void no_sink_window(eval_report *r) { remove_rows(r, "sink-window", NULL, false); }
static void no_benefit(eval_report *r) {
    for (int i = 0; i < SAMPLES; i++) row_of(r, "restored", "score", i)->kl = 13;
}
static void restored_is_native(eval_report *r) {
    for (int i = 0; i < SAMPLES; i++) row_of(r, "restored", "score", i)->kl = 0;
}
static void restored_is_dropped(eval_report *r) {
    for (int i = 0; i < SAMPLES; i++) {
        row_of(r, "restored", "score", i)->kl = row_of(r, "sink-window", "score", i)->kl;
        row_of(r, "restored", "score", i)->agreements = row_of(r, "sink-window", "score", i)->agreements;
    }
}
static void promised_mode_missing(eval_report *r) {
    cJSON_AddItemToArray(cJSON_GetObjectItem(r->options, "modes"), cJSON_CreateString("ngram"));
}
static void promised_temperature_missing(eval_report *r) {
    cJSON_AddItemToArray(cJSON_GetObjectItem(r->options, "temperatures"), cJSON_CreateNumber(1));
}
static void silent_about_threads(eval_report *r) { cJSON_DeleteItemFromObject(r->options, "threads"); }
static void interrupted(eval_report *r) { r->complete = false; }
static void no_options(eval_report *r) { cJSON_DeleteItemFromObject(r->options, "max_tokens"); }
static void no_fingerprint(eval_report *r) { cJSON_DeleteItemFromObject(r->environment, "fingerprint"); }
static void no_stop_tokens(eval_report *r) {
    cJSON_ReplaceItemInObject(r->environment, "stop_tokens", cJSON_CreateNumber(1));
    for (size_t i = 0; i < r->rows.n; i++) strcpy(r->rows.row[i].finish, "length");
    cJSON_ReplaceItemInObject(r->options, "max_tokens", cJSON_CreateNumber(12));
}
static void empty_command(eval_report *r) {
    while (r->command->child) cJSON_DeleteItemFromArray(r->command, 0);
}
static void no_rows(eval_report *r) {
    while (r->rows.n) remove_row(r, &r->rows.row[r->rows.n - 1]);
}

static void edit_kind(cJSON *j) { cJSON_ReplaceItemInObject(j, "kind", cJSON_CreateString("kakeya.eval.opinion")); }
static void foreign(cJSON *j) { cJSON_DeleteItemFromObject(j, "kind"); }
static void old_schema(cJSON *j) { cJSON_ReplaceItemInObject(j, "schema_version", cJSON_CreateNumber(0)); }
static void new_schema(cJSON *j) { cJSON_ReplaceItemInObject(j, "schema_version", cJSON_CreateNumber(2)); }
static void no_schema(cJSON *j) { cJSON_DeleteItemFromObject(j, "schema_version"); }
static void no_environment(cJSON *j) {
    cJSON_DeleteItemFromObject(j, "environment");
    cJSON *rows = cJSON_GetObjectItem(j, "rows");
    while (cJSON_GetArraySize(rows)) cJSON_DeleteItemFromArray(rows, 0);
}
static void no_row_field(cJSON *j) {
    cJSON_DeleteItemFromObject(cJSON_GetObjectItem(j, "rows")->child, "decode_seconds");
}
static void row_of_text(cJSON *j) {
    cJSON_ReplaceItemInArray(cJSON_GetObjectItem(j, "rows"), 1, cJSON_CreateString("fast, trust me"));
}
static void negative_count(cJSON *j) {
    cJSON_ReplaceItemInObject(cJSON_GetObjectItem(j, "rows")->child, "prompt_tokens", cJSON_CreateNumber(-5));
}
static void token_count_lies(cJSON *j) {
    cJSON_ReplaceItemInObject(cJSON_GetObjectItem(j, "rows")->child, "completion_tokens", cJSON_CreateNumber(13));
}
static void better_recall(cJSON *j) {
    cJSON *arm = cJSON_GetObjectItem(cJSON_GetObjectItem(j, "summary"), "arms")->child;
    cJSON_ReplaceItemInObject(arm, "recall", cJSON_CreateNumber(0.99));
}
static void summary_forgotten(cJSON *j) { cJSON_DeleteItemFromObject(j, "summary"); }
static void summary_embellished(cJSON *j) {
    cJSON *arms = cJSON_GetObjectItem(cJSON_GetObjectItem(j, "summary"), "arms");
    cJSON_AddItemToArray(arms, cJSON_Duplicate(arms->child, true));
}

typedef struct broken_case {
    const char *codes; /* every code that the report must raise, no other; most cases: one */
    eval_kind kind;
    void (*rows)(eval_report *report); /* before the summary is derived */
    void (*json)(cJSON *report);       /* after */
    const char *name;
} broken_case;

#define ROWS(codes, kind, change)                                                                                      \
    { codes, kind, change, NULL, #change }
#define JSON(codes, kind, change)                                                                                      \
    { codes, kind, NULL, change, #change }

static const broken_case cases[] = {
    JSON("NOT_A_REPORT", EVAL_NIAH, foreign),
    JSON("UNKNOWN_KIND", EVAL_NIAH, edit_kind),
    JSON("SCHEMA_VERSION", EVAL_NIAH, old_schema),
    JSON("SCHEMA_VERSION", EVAL_CODE, new_schema),
    JSON("SCHEMA_VERSION", EVAL_FIDELITY, no_schema),
    ROWS("INCOMPLETE", EVAL_NIAH, interrupted),
    ROWS("MISSING_COMMAND", EVAL_NIAH, empty_command),
    ROWS("MISSING_ENVIRONMENT", EVAL_NIAH, no_fingerprint),
    ROWS("MISSING_ENVIRONMENT", EVAL_LOSSLESS, no_stop_tokens),
    JSON("MISSING_ENVIRONMENT NO_ROWS", EVAL_NIAH, no_environment),
    ROWS("MISSING_OPTIONS", EVAL_ACCEPTANCE, no_options),
    ROWS("NO_ROWS", EVAL_LOSSLESS, no_rows),
    JSON("ROW_FIELD", EVAL_NIAH, no_row_field),
    JSON("ROW_FIELD", EVAL_NIAH, row_of_text),
    JSON("ROW_FIELD", EVAL_FIDELITY, negative_count),
    JSON("ROW_FIELD", EVAL_NIAH, token_count_lies),
    ROWS("TIMING", EVAL_NIAH, no_prefill_time),
    ROWS("TIMING", EVAL_FIDELITY, no_score_time),
    ROWS("KV_SUM", EVAL_NIAH, wrong_total),
    ROWS("COUNTS", EVAL_NIAH, too_many_tokens),
    ROWS("COUNTS", EVAL_NIAH, gaps_in_acceptance),
    ROWS("COUNTS", EVAL_FIDELITY, more_agreements_than_tokens),
    ROWS("TURN_END", EVAL_NIAH, goes_on_after_stop),
    ROWS("TURN_END", EVAL_NIAH, claims_length),
    ROWS("TURN_END", EVAL_NIAH, claims_cancelled),
    ROWS("DUPLICATE_ROW", EVAL_NIAH, run_twice),
    ROWS("WARMUP_MISSING", EVAL_NIAH, no_warmup),
    ROWS("WARMUP_MISSING", EVAL_NIAH, late_warmup),
    ROWS("WARMUP_OVERLAP DUPLICATE_ROW", EVAL_NIAH, warmup_measured_by_name),
    ROWS("WARMUP_OVERLAP", EVAL_NIAH, warmup_measured_by_prompt),
    ROWS("SAMPLE_COUNT", EVAL_NIAH, four_samples),
    ROWS("SAMPLE_COUNT", EVAL_NIAH, rung_left_out),
    ROWS("SAMPLE_COUNT", EVAL_CODE, four_repetitions),
    ROWS("SAMPLE_COUNT", EVAL_LOSSLESS, four_sequences),
    ROWS("SAMPLE_MISMATCH", EVAL_NIAH, sample_only_in_one_arm),
    ROWS("SELF_COMPARISON", EVAL_NIAH, native_with_latents),
    ROWS("SELF_COMPARISON", EVAL_NIAH, ar_with_drafts),
    ROWS("SELF_COMPARISON", EVAL_NIAH, bounded_holds_all),
    ROWS("SELF_COMPARISON", EVAL_FIDELITY, restored_is_native),
    ROWS("RESTORATION_INACTIVE", EVAL_NIAH, no_latents),
    ROWS("RESTORATION_INACTIVE", EVAL_FIDELITY, restored_is_dropped),
    ROWS("SPECULATION_INACTIVE", EVAL_LOSSLESS, nothing_drafted_at_all),
    ROWS("SPECULATION_INACTIVE", EVAL_CODE, nothing_drafted),
    ROWS("LOSSLESS", EVAL_NIAH, other_token),
    ROWS("LOSSLESS", EVAL_ACCEPTANCE, other_token_between_forms),
    ROWS("LOSSLESS", EVAL_LOSSLESS, one_token_less),
    ROWS("EMPTY_EXPECTED RECALL_UNPROVEN", EVAL_NIAH, no_expected_answer),
    ROWS("RECALL_FLAG", EVAL_NIAH, claims_correct),
    ROWS("ORACLE_MISSING", EVAL_NIAH, no_oracle),
    ROWS("RECALL", EVAL_NIAH, needle_lost),
    ROWS("RECALL_UNPROVEN", EVAL_NIAH, nobody_finds_it),
    ROWS("MEMORY_UNPROVEN", EVAL_NIAH, one_rung),
    ROWS("MEMORY_UNPROVEN", EVAL_NIAH, native_only),
    ROWS("MEMORY_GROWS", EVAL_NIAH, sliding_grows),
    ROWS("MEMORY_GROWS", EVAL_NIAH, latents_grow),
    ROWS("DRAFT_GROWS", EVAL_NIAH, draft_grows),
    ROWS("IDENTITY_RESTORE", EVAL_NIAH, identity_fails),
    ROWS("SPEED", EVAL_NIAH, slower),
    ROWS("SPEED", EVAL_CODE, all_lengths_slower),
    ROWS("SPEED_TOKENS", EVAL_CODE, few_tokens),
    ROWS("AR_MISSING", EVAL_CODE, no_ar),
    ROWS("AR_MISSING", EVAL_LOSSLESS, no_ar_for_one_policy),
    ROWS("FORM_MISSING", EVAL_ACCEPTANCE, one_form),
    ROWS("FIDELITY_ORACLE", EVAL_FIDELITY, native_differs),
    ROWS("ORACLE_MISSING", EVAL_FIDELITY, no_oracle),
    ROWS("ABLATION_MISSING", EVAL_FIDELITY, no_sink_window),
    ROWS("FIDELITY_NO_BENEFIT", EVAL_FIDELITY, no_benefit),
    ROWS("LOSSLESS_COVERAGE", EVAL_LOSSLESS, promised_mode_missing),
    ROWS("LOSSLESS_COVERAGE", EVAL_LOSSLESS, promised_temperature_missing),
    ROWS("LOSSLESS_COVERAGE", EVAL_LOSSLESS, silent_about_threads),
    JSON("SUMMARY_MISMATCH", EVAL_NIAH, better_recall),
    JSON("SUMMARY_MISMATCH", EVAL_FIDELITY, summary_forgotten),
    JSON("SUMMARY_MISMATCH", EVAL_CODE, summary_embellished),
};

/* Judges the report as it comes back from a file. */
static gate_result judge(const cJSON *report) {
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

static void sound_reports_pass(void **state) {
    (void)state;
    for (int kind = 0; kind < EVAL_KIND_COUNT; kind++) {
        eval_report *report = sound((eval_kind)kind);
        cJSON *json = eval_report_to_json(report);
        gate_result result = judge(json);
        for (size_t i = 0; i < result.n_violations; i++)
            print_error("%s: [%s] %s\n", eval_kind_name((eval_kind)kind), result.violation[i].code,
                        result.violation[i].message);
        assert_int_equal(result.n_violations, 0);
        assert_true(result.recognised);
        assert_int_equal(result.kind, kind);
        assert_int_equal(result.rows, report->rows.n);
        gate_result_free(&result);
        cJSON_Delete(json);
        eval_report_close(report);
    }
}

static bool listed(const char *codes, const char *code) {
    size_t length = strlen(code);
    for (const char *at = codes; (at = strstr(at, code)) != NULL; at += length)
        if ((at == codes || at[-1] == ' ') && (at[length] == ' ' || !at[length])) return true;
    return false;
}

static void every_rule_catches_its_report(void **state) {
    (void)state;
    size_t failures = 0;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        const broken_case *broken = &cases[c];
        eval_report *report = sound(broken->kind);
        if (broken->rows) broken->rows(report);
        cJSON *json = eval_report_to_json(report);
        assert_non_null(json);
        if (broken->json) broken->json(json);
        gate_result result = judge(json);
        char raised[400] = "";
        for (size_t i = 0; i < result.n_violations; i++) {
            const gate_violation *violation = &result.violation[i];
            assert_true(violation->message[0] != '\0');
            if (listed(raised, violation->code)) continue;
            if (raised[0]) strcat(raised, " ");
            strcat(raised, violation->code);
            if (listed(broken->codes, violation->code)) continue;
            print_error("%s: unexpected [%s] %s\n", broken->name, violation->code, violation->message);
            failures++;
        }
        if (strlen(raised) != strlen(broken->codes)) {
            print_error("%s: raised '%s', wanted '%s'\n", broken->name, raised, broken->codes);
            failures++;
        }
        gate_result_free(&result);
        cJSON_Delete(json);
        eval_report_close(report);
    }
    assert_int_equal(failures, 0);
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
        gate_result result = judge(json);
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

/* The drafter's bound cannot be seen below its window; the report still passes, and says so. */
static void short_rungs_leave_a_note(void **state) {
    (void)state;
    eval_report *report = sound(EVAL_NIAH);
    for (size_t i = 0; i < report->rows.n; i++) report->rows.row[i].arm.draft_window = 100000;
    cJSON *json = eval_report_to_json(report);
    gate_result result = judge(json);
    assert_int_equal(result.n_violations, 0);
    assert_non_null(strstr(result.note, "draft window"));
    gate_result_free(&result);
    cJSON_Delete(json);
    eval_report_close(report);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sound_reports_pass),
        cmocka_unit_test(every_rule_catches_its_report),
        cmocka_unit_test(unreadable_files_are_refused),
        cmocka_unit_test(short_rungs_leave_a_note),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
