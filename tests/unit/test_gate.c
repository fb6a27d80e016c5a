/* Protects the gate: a true report of every kind passes, and for every rule there is a report that breaks it. Each
 * broken report is a true one with one change, made to its rows with everything that follows from them derived again,
 * or to its JSON. The change may break other rules, too: what a change must raise is its own code. What the file alone
 * does not show, a replay finds. */
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

#include "measure/kv_geometry.h"
#include "report_support.h"

enum { SAMPLES = 5, RUNGS = 3 };
static const int rung_lines[RUNGS] = {12, 16, 60};

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

static eval_row *copy_row(eval_report *r, const eval_row *of) {
    cJSON *json = eval_row_to_json(r->kind, of);
    eval_row copy;
    kakeya_error error;
    assert_int_equal(eval_row_from_json(r->kind, json, &copy, &error), KAKEYA_OK);
    cJSON_Delete(json);
    assert_int_equal(eval_rows_add(&r->rows, &copy, &error), KAKEYA_OK);
    return &r->rows.row[r->rows.n - 1];
}
static void set_text(char **text, const char *to) {
    free(*text);
    *text = strdup(to);
}
static void negative_time(eval_report *r) { row_of(r, "restored", "auto", 0)->decode_seconds = -1; }
static void all_the_time(eval_report *r) { row_of(r, "native", "ar", 3)->decode_seconds = 1e300; }
static void no_score_time(eval_report *r) { row_of(r, "restored", "score", 0)->seconds = 0; }
static void longer_than_there_was_time(eval_report *r) { row_of(r, "native", "ar", 3)->decode_seconds *= 50; }
static void began_before_its_turn(eval_report *r) { row_of(r, "restored", "auto", 4)->started_seconds = 0; }
static void wrong_total(eval_report *r) { row_of(r, "native", "ar", 3)->kv.total += 64; }
static void wrong_total_of_scores(eval_report *r) { row_of(r, "restored", "score", 3)->kv.total += 64; }
static void too_many_tokens(eval_report *r) { row_of(r, "native", "auto", 0)->accepted_tokens = 1; }
static void gaps_in_acceptance(eval_report *r) {
    int i = 0; /* a machine may have found drafts to be worth nothing in some rows */
    while (!row_of(r, "native", "auto", i)->accepted_at[1]) i++;
    int64_t *accepted = row_of(r, "native", "auto", i)->accepted_at;
    accepted[5] = accepted[1];
    accepted[1] = 0;
}
static void goes_on_after_stop(eval_report *r) {
    for (size_t i = 0; i < r->rows.n; i++)
        r->rows.row[i].token_ids[5] =
            row_of(r, "native", "ar", 0)->token_ids[row_of(r, "native", "ar", 0)->n_token_ids - 1];
}
static void claims_length(eval_report *r) { strcpy(row_of(r, "native", "ar", 0)->finish, "length"); }
static void claims_cancelled(eval_report *r) { strcpy(row_of(r, "native", "ar", 0)->finish, "cancelled"); }
static void run_twice(eval_report *r) { copy_row(r, row_of(r, "native", "ar", 0))->decode_seconds *= 1.01; }
static void no_warmup(eval_report *r) { remove_rows(r, "restored", "auto", true); }
static void late_warmup(eval_report *r) {
    eval_row first = r->rows.row[0];
    memmove(&r->rows.row[0], &r->rows.row[1], (r->rows.n - 1) * sizeof first);
    r->rows.row[r->rows.n - 1] = first;
}
static void warmup_measured_by_name(eval_report *r) {
    for (size_t i = 0; r->rows.row[i].warmup; i++) strcpy(r->rows.row[i].sample, row_of(r, "native", "ar", 2)->sample);
}
static void warmup_measured_by_prompt(eval_report *r) {
    for (size_t i = 0; r->rows.row[i].warmup; i++)
        r->rows.row[i].prompt_hash = row_of(r, "native", "ar", 2)->prompt_hash;
}
static void four_samples(eval_report *r) {
    for (size_t i = r->rows.n; i-- > 0;)
        if (!r->rows.row[i].warmup && strcmp(r->rows.row[i].sample, "lines-60/4") == 0) remove_row(r, &r->rows.row[i]);
}
static void four_promised(eval_report *r) {
    const char *key = r->kind == EVAL_NIAH ? "samples" : r->kind == EVAL_CODE ? "repetitions" : "prompts";
    cJSON_SetNumberValue(part_of(r->options, key), 4);
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
        if (atoi(r->rows.row[i].sample) >= 4) remove_row(r, &r->rows.row[i]);
}
static void sample_only_in_one_arm(eval_report *r) {
    eval_row *row = copy_row(r, row_of(r, "native", "ar", 14));
    strcpy(row->sample, "lines-60/5");
    row->prompt_hash++;
}
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
        size_t native = row_of(r, "native", "ar", 0)->kv.sliding;
        row->kv.total += native - row->kv.sliding;
        row->kv.sliding = native;
    }
}
static void nothing_drafted(eval_report *r) {
    for (size_t i = 0; i < r->rows.n; i++) {
        eval_row *row = &r->rows.row[i];
        if (row->arm.draft_length != 7) continue;
        row->drafted_tokens = row->accepted_tokens = 0;
        row->verifier_forwards = (int64_t)row->n_token_ids - 1;
        memset(row->drafted_at, 0, sizeof row->drafted_at);
        memset(row->accepted_at, 0, sizeof row->accepted_at);
    }
}
static void nothing_drafted_at_all(eval_report *r) {
    for (size_t i = 0; i < r->rows.n; i++) {
        eval_row *row = &r->rows.row[i];
        row->drafted_tokens = row->accepted_tokens = 0;
        row->verifier_forwards = (int64_t)row->n_token_ids - 1;
        memset(row->drafted_at, 0, sizeof row->drafted_at);
        memset(row->accepted_at, 0, sizeof row->accepted_at);
    }
}
static void other_token(eval_report *r) { row_of(r, "restored", "auto", 4)->token_ids[7]++; }
static void other_token_between_forms(eval_report *r) { row_of(r, "native", "speculative", 8)->token_ids[0]++; }
static void one_token_less(eval_report *r) { row_of(r, "native", "speculative", 3)->n_token_ids--; }
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
static void one_letter_expected(eval_report *r) {
    for (size_t i = 0; i < r->rows.n; i++) set_text(&r->rows.row[i].expected, "A");
}
static void blanks_expected(eval_report *r) {
    for (size_t i = 0; i < r->rows.n; i++) set_text(&r->rows.row[i].expected, "      ");
}
static void other_answer_expected(eval_report *r) {
    for (size_t i = 0; i < r->rows.n; i++) set_text(&r->rows.row[i].expected, "secret");
}
static void answers_of_another_seed(eval_report *r) {
    cJSON_ReplaceItemInObject(r->options, "seed", cJSON_CreateNumber(43));
}
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
    remove_rows(r, "restored-all", NULL, false);
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
static void draft_grows(eval_report *r) {
    for (size_t i = 0; i < r->rows.n; i++) r->rows.row[i].arm.draft_window = 64; /* so that two rungs exceed it */
    grow(r, "restored", 640, true);
}
static void identity_fails(eval_report *r) {
    for (size_t i = 0; i < r->rows.n; i++)
        if (r->rows.row[i].arm.mix_alpha >= 1) lose_answer(&r->rows.row[i]);
}
static void slower(eval_report *r) {
    for (size_t i = 0; i < r->rows.n; i++)
        if (strcmp(r->rows.row[i].arm.policy, "native") == 0 && strcmp(r->rows.row[i].arm.mode, "auto") == 0)
            r->rows.row[i].decode_seconds *= 50;
}
static void all_lengths_slower(eval_report *r) {
    for (size_t i = 0; i < r->rows.n; i++)
        if (strcmp(r->rows.row[i].arm.mode, "speculative") == 0) r->rows.row[i].decode_seconds *= 50;
}
static void few_tokens(eval_report *r) {
    for (size_t i = r->rows.n; i-- > 0;)
        if (!r->rows.row[i].warmup && atoi(r->rows.row[i].sample) == 1) remove_row(r, &r->rows.row[i]);
    for (size_t i = 0; i < r->rows.n; i++) r->rows.row[i].n_token_ids = 6;
}
static void no_ar(eval_report *r) { remove_rows(r, NULL, "ar", false); }
static void no_ar_for_one_policy(eval_report *r) { remove_rows(r, "restored", "ar", false); }
static void one_form(eval_report *r) {
    for (size_t i = r->rows.n; i-- > 0;)
        if (r->rows.row[i].arm.scaled_embedding) remove_row(r, &r->rows.row[i]);
}
static void native_differs(eval_report *r) { row_of(r, "native", "score", 1)->agreements--; }
static void more_agreements_than_tokens(eval_report *r) { row_of(r, "restored", "score", 1)->agreements = 65; }
static void one_agreement_more(eval_report *r) { row_of(r, "restored", "score", 1)->agreements++; }
static void better_likelihood(eval_report *r) { row_of(r, "restored", "score", 1)->nll *= 0.9; }
static void scale_tokens(eval_row *row, double by) {
    row->nll *= by;
    for (size_t t = 0; t < row->n_token_ids; t++) row->token_nll[t] *= by;
}
static void better_tokens(eval_report *r) { scale_tokens(row_of(r, "restored", "score", 1), 0.5); }
static void less_likely(eval_report *r) {
    for (int i = 0; i < 2 * SAMPLES; i++) scale_tokens(row_of(r, "restored", "score", i), 2);
}
static void nearer_to_native(eval_report *r) {
    for (size_t i = 0; i < r->rows.n; i++) {
        eval_row *row = &r->rows.row[i];
        if (strcmp(row->arm.policy, "restored") != 0) continue;
        row->kl = 0;
        for (size_t t = 0; t < row->n_token_ids; t++) row->kl += row->token_kl[t] *= 0.01;
    }
}
static void fewer_tokens_scored(eval_report *r) {
    eval_row *row = row_of(r, "restored", "score", 2);
    row->scored_tokens = (int64_t)--row->n_token_ids;
    row->nll -= row->token_nll[row->n_token_ids];
    row->kl -= row->token_kl[row->n_token_ids];
    const eval_row *native = row_of(r, "native", "score", 1);
    row->agreements -= row->token_ids[row->n_token_ids] == native->token_ids[row->n_token_ids];
}
static void no_sink_window(eval_report *r) { remove_rows(r, "sink-window", NULL, false); }
static void no_benefit(eval_report *r) {
    for (int i = 0; i < 2 * SAMPLES; i++) row_of(r, "restored", "score", i)->kl += 100;
}
static void restored_is_native(eval_report *r) {
    for (int i = 0; i < 2 * SAMPLES; i++) row_of(r, "restored", "score", i)->kl = 0;
}
static void restored_is_dropped(eval_report *r) {
    for (int i = 0; i < 2 * SAMPLES; i++) {
        row_of(r, "restored", "score", i)->kl = row_of(r, "sink-window", "score", i)->kl;
        row_of(r, "restored", "score", i)->agreements = row_of(r, "sink-window", "score", i)->agreements;
    }
}
static void promised_mode_missing(eval_report *r) {
    cJSON_AddItemToArray(cJSON_GetObjectItem(r->options, "modes"), cJSON_CreateString("ideal"));
}
static void promised_temperature_missing(eval_report *r) {
    cJSON_AddItemToArray(cJSON_GetObjectItem(r->options, "temperatures"), cJSON_CreateNumber(1.5));
}
/* A stream that differs from its reference, set apart from it by a label. */
static eval_row *differing(eval_report *r) {
    eval_row *row = row_of(r, "restored", "speculative", 4);
    row->token_ids[2]++;
    return row;
}
static void differing_prompt(eval_report *r) { differing(r)->prompt_hash++; }
static void differing_temperature(eval_report *r) { differing(r)->arm.temperature = 0.35; }
static void differing_window(eval_report *r) { differing(r)->arm.window++; }
static void differing_policy(eval_report *r) { strcpy(differing(r)->arm.policy, "sink-window"); }
static void differing_sample(eval_report *r) { strcpy(differing(r)->sample, "099/needle"); }
static void differing_alone(eval_report *r) {
    differing(r)->prompt_hash++;
    strcpy(differing(r)->sample, "099/needle");
}
static void differing_diagnostic(eval_report *r) {
    eval_row *row = row_of(r, "restored", "auto", 4);
    row->token_ids[2]++;
    row->arm.mix_alpha = 0.5;
}
static void differing_is_gone(eval_report *r) { remove_row(r, row_of(r, "restored", "speculative", 4)); }
static void threads_relabelled(eval_report *r) { row_of(r, "native", "auto", 2)->arm.threads = 64; }
static void copied_under_new_names(eval_report *r) {
    for (size_t i = 0; i < r->rows.n; i++)
        if (!r->rows.row[i].warmup) r->rows.row[i].prompt_hash = row_of(r, "native", "speculative", 0)->prompt_hash;
}
static void copied_answer(eval_report *r) {
    eval_row *from = row_of(r, "native", "ar", 0), *to = row_of(r, "native", "ar", 1);
    to->prompt_tokens = from->prompt_tokens;
    to->n_token_ids = from->n_token_ids;
    to->token_ids = realloc(to->token_ids, from->n_token_ids * sizeof *to->token_ids);
    memcpy(to->token_ids, from->token_ids, from->n_token_ids * sizeof *to->token_ids);
}
/* Every row of one sample says what the row of another sample and the same arm says, its times aside. */
static void copy_sample(eval_report *r, const char *from_name, const char *to_name, int longer) {
    size_t copied = 0;
    for (size_t i = 0; i < r->rows.n; i++) {
        eval_row *to = &r->rows.row[i];
        for (size_t j = 0; j < r->rows.n && strcmp(to->sample, to_name) == 0; j++) {
            const eval_row *from = &r->rows.row[j];
            if (strcmp(from->sample, from_name) != 0 || !eval_arm_equal(&from->arm, &to->arm) ||
                from->repetition != to->repetition)
                continue;
            cJSON *json = eval_row_to_json(r->kind, from);
            eval_row copy;
            kakeya_error error;
            assert_int_equal(eval_row_from_json(r->kind, json, &copy, &error), KAKEYA_OK);
            cJSON_Delete(json);
            strcpy(copy.sample, to_name);
            copy.prompt_hash = to->prompt_hash;
            copy.prompt_tokens += longer;
            copy.seconds = to->seconds;
            copy.prefill_seconds = to->prefill_seconds;
            copy.decode_seconds = to->decode_seconds;
            copy.started_seconds = to->started_seconds;
            eval_row_free(to);
            *to = copy;
            copied++;
            break;
        }
    }
    assert_true(copied > 0);
}
static void sequence_copied(eval_report *r) {
    copy_sample(r, r->rows.row[0].sample, r->rows.row[r->rows.n - 1].sample, 0);
}
static void file_copied_with_another_length(eval_report *r) { copy_sample(r, "0/events.py", "1/ring_buffer.c", -1); }
static void prompt_copied_with_another_length(eval_report *r) { copy_sample(r, "task/1", "task/4", 2); }
static void longer_prompts_than_promised(eval_report *r) {
    for (size_t i = 0; i < r->rows.n; i++) r->rows.row[i].prompt_tokens += 3;
}
/* By less than a block: plain decoding shows it, where its last position is said to lie in the page before. */
static void answers_to_shorter_prompts(eval_report *r) {
    for (size_t i = 0; i < r->rows.n; i++) r->rows.row[i].prompt_tokens -= 12;
}
static void another_prompt_in_one_arm(eval_report *r) { row_of(r, "native", "ar", 1)->prompt_tokens += 1; }
static void text_alone_improved(eval_report *r) { set_text(&row_of(r, "native", "ar", 1)->text, "a better text"); }
static void unknown_id(eval_report *r) { row_of(r, "native", "ar", 1)->token_ids[0] = 1 << 20; }
static void one_byte_of_latents(eval_report *r) {
    for (size_t i = 0; i < r->rows.n; i++) {
        eval_row *row = &r->rows.row[i];
        if (!row->kv.latent || row->arm.mix_alpha >= 0) continue;
        row->kv.total -= row->kv.latent - 1;
        row->kv.latent = 1;
    }
}
static void full_attention_forgets(eval_report *r) {
    for (size_t i = 0; i < r->rows.n; i++) {
        eval_row *row = &r->rows.row[i];
        if (strcmp(row->arm.policy, "sink-window") != 0) continue;
        row->kv.total += row->kv.full;
        row->kv.full *= 2;
    }
}
static void wide_window(eval_report *r) {
    cJSON_ReplaceItemInObject(r->environment, "sliding_window", cJSON_CreateNumber(100000));
    bounded_holds_all(r);
}
static void wide_geometry(eval_report *r) {
    cJSON *geometry = cJSON_GetObjectItem(r->environment, "kv_geometry");
    cJSON_ReplaceItemInObject(geometry, "sliding_window", cJSON_CreateNumber(100000));
}
/* With care: the sizes, their fingerprint and what the environment repeats of them. Left over are the rows. */
static void consistent_geometry(eval_report *r) {
    kv_geometry geometry;
    kakeya_error error;
    assert_int_equal(kv_geometry_from_json(cJSON_GetObjectItem(r->environment, "kv_geometry"), &geometry, &error),
                     KAKEYA_OK);
    geometry.verifier.sliding_window = 100000;
    cJSON_ReplaceItemInObject(r->environment, "kv_geometry", kv_geometry_to_json(&geometry));
    cJSON_ReplaceItemInObject(r->environment, "sliding_window", cJSON_CreateNumber(100000));
}
static void two_devices(eval_report *r) {
    kv_geometry geometry;
    kakeya_error error;
    assert_int_equal(kv_geometry_from_json(cJSON_GetObjectItem(r->environment, "kv_geometry"), &geometry, &error),
                     KAKEYA_OK);
    geometry.devices = 2;
    cJSON_ReplaceItemInObject(r->environment, "kv_geometry", kv_geometry_to_json(&geometry));
}
static void silent_geometry(eval_report *r) {
    const cJSON *geometry = cJSON_GetObjectItem(r->environment, "kv_geometry");
    cJSON_DeleteItemFromObject(cJSON_GetObjectItem(geometry, "layers")->child, "k_eq_v");
}
static void window_beyond_int(eval_report *r) {
    for (size_t i = 0; i < r->rows.n; i++) r->rows.row[i].arm.sink = r->rows.row[i].arm.window = INT32_MAX;
}
static void one_length_left_out(eval_report *r) {
    for (size_t i = r->rows.n; i-- > 0;)
        if (r->rows.row[i].arm.draft_length == 3) remove_row(r, &r->rows.row[i]);
}
static void one_policy_left_out(eval_report *r) { remove_rows(r, "restored-all", NULL, false); }
static void one_repetition_more(eval_report *r) {
    eval_row *row = copy_row(r, row_of(r, "native", "ar", 0));
    row->repetition = 7;
    row->decode_seconds *= 1.01;
    row->started_seconds = r->rows.row[r->rows.n - 2].started_seconds + 1000;
}
static void arms_one_after_the_other(eval_report *r) {
    eval_row kept = r->rows.row[20];
    r->rows.row[20] = r->rows.row[21];
    r->rows.row[21] = kept;
    double started = r->rows.row[20].started_seconds;
    r->rows.row[20].started_seconds = r->rows.row[21].started_seconds;
    r->rows.row[21].started_seconds = started;
    r->rows.row[20].decode_seconds = r->rows.row[20].prefill_seconds = 1e-4;
    r->rows.row[21].decode_seconds = r->rows.row[21].prefill_seconds = 1.1e-4;
}
static void another_evaluation(eval_report *r) {
    cJSON_ReplaceItemInArray(r->command, 2, cJSON_CreateString("fidelity"));
}
static void date_of_a_day(eval_report *r) {
    cJSON_ReplaceItemInObject(r->environment, "date", cJSON_CreateString("yesterday"));
}
static void lines_is_no_list(eval_report *r) { cJSON_ReplaceItemInObject(r->options, "lines", cJSON_CreateNumber(12)); }
static void rungs_twice(eval_report *r) {
    cJSON_AddItemToArray(cJSON_GetObjectItem(r->options, "lines"), cJSON_CreateNumber(12));
}
static void samples_is_huge(eval_report *r) {
    cJSON_ReplaceItemInObject(r->options, "samples", cJSON_CreateNumber(1e300));
}
static void other_case(eval_report *r) {
    cJSON_AddItemToObject(r->options, "Lines", cJSON_DetachItemFromObject(r->options, "lines"));
}
static void stated_twice(eval_report *r) { cJSON_AddItemToObject(r->options, "samples", cJSON_CreateNumber(1)); }
static void stated_twice_in_case(eval_report *r) {
    cJSON_AddItemToObject(r->options, "SAMPLES", cJSON_CreateNumber(1));
}
static void silent_about_threads(eval_report *r) { cJSON_DeleteItemFromObject(r->options, "threads"); }
static void interrupted(eval_report *r) { r->complete = false; }
static void no_options(eval_report *r) { cJSON_DeleteItemFromObject(r->options, "max_tokens"); }
static void no_fingerprint(eval_report *r) { cJSON_DeleteItemFromObject(r->environment, "fingerprint"); }
static void no_stop_tokens(eval_report *r) {
    cJSON_ReplaceItemInObject(r->environment, "stop_tokens", cJSON_CreateNumber(1));
}
static void empty_command(eval_report *r) {
    while (r->command->child) cJSON_DeleteItemFromArray(r->command, 0);
}
static void no_rows(eval_report *r) { remove_rows(r, NULL, NULL, false); }

static void edit_kind(cJSON *j) { cJSON_ReplaceItemInObject(j, "kind", cJSON_CreateString("kakeya.eval.opinion")); }
static void foreign(cJSON *j) { cJSON_DeleteItemFromObject(j, "kind"); }
static void old_schema(cJSON *j) { cJSON_ReplaceItemInObject(j, "schema_version", cJSON_CreateNumber(0)); }
static void new_schema(cJSON *j) {
    cJSON_ReplaceItemInObject(j, "schema_version", cJSON_CreateNumber(EVAL_SCHEMA_VERSION + 1));
}
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

static cJSON *first_row(cJSON *j) { return cJSON_GetObjectItem(j, "rows")->child; }
static void unknown_policy(cJSON *j) {
    cJSON_ReplaceItemInObject(first_row(j), "policy", cJSON_CreateString("restored-best"));
}
static void unknown_mode(cJSON *j) { cJSON_ReplaceItemInObject(first_row(j), "mode", cJSON_CreateString("oracle")); }
static void rate_alone(cJSON *j) {
    cJSON_ReplaceItemInObject(first_row(j), "decode_tokens_per_second", cJSON_CreateNumber(1e6));
}
static void time_alone(cJSON *j) {
    cJSON_ReplaceItemInObject(first_row(j), "decode_seconds", cJSON_CreateNumber(1e-3));
}
static void endless_number(cJSON *j) { cJSON_ReplaceItemInObject(first_row(j), "window", cJSON_CreateNumber(1e30)); }
static void infinite_number(cJSON *j) {
    cJSON_ReplaceItemInObject(first_row(j), "decode_seconds", cJSON_CreateNumber((double)INFINITY));
}
static void row_key_twice(cJSON *j) { cJSON_AddItemToObject(first_row(j), "policy", cJSON_CreateString("native")); }
static void remark_in_row(cJSON *j) { cJSON_AddItemToObject(first_row(j), "remark", cJSON_CreateString("checked")); }
static void remark_in_report(cJSON *j) { cJSON_AddItemToObject(j, "verdict", cJSON_CreateString("passed")); }
static void diagnostics_without_share(cJSON *j) {
    cJSON_AddItemToObject(first_row(j), "relative_mse", cJSON_Parse("{\"sliding\": 0, \"full\": 0}"));
}

/* Everywhere in the report, its summary included: what is left to contradict it are the bytes that were held. */
static void relabelled(cJSON *j, eval_kind kind, const char *key, const char *from, const char *to) {
    relabel(j, key, from, to);
    derive_again(kind, j);
}
static void restored_called_restored_all(cJSON *j) {
    relabelled(j, EVAL_FIDELITY, "policy", "restored", "restored-all");
}
static void dropped_called_restored(cJSON *j) {
    relabel(j, "policy", "restored", "restored-all");
    relabelled(j, EVAL_FIDELITY, "policy", "sink-window", "restored");
}
static void window_called_smaller(cJSON *j) { relabelled(j, EVAL_FIDELITY, "window", "32", "8"); }
static void sink_called_none(cJSON *j) { relabelled(j, EVAL_FIDELITY, "sink", "4", "0"); }
static void draft_window_called_larger(cJSON *j) { relabelled(j, EVAL_FIDELITY, "draft_window", "96", "4096"); }
static void window_of_needles_called_smaller(cJSON *j) { relabelled(j, EVAL_NIAH, "window", "64", "8"); }
static void draft_length_called_larger(cJSON *j) { relabelled(j, EVAL_CODE, "draft_length", "7", "8"); }
static void no_bytes_of_scores(cJSON *j) { cJSON_DeleteItemFromObject(first_row(j), "kv_bytes"); }

typedef struct broken_case {
    const char *codes; /* codes that the report must raise; it may raise others */
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
    ROWS("TIMING", EVAL_FIDELITY, no_score_time),
    ROWS("ROW_FIELD", EVAL_NIAH, wrong_total),
    ROWS("REPLAY_ROW", EVAL_NIAH, too_many_tokens),
    ROWS("REPLAY_ROW", EVAL_NIAH, gaps_in_acceptance),
    ROWS("SCORE_SUM", EVAL_FIDELITY, more_agreements_than_tokens),
    ROWS("REPLAY_ROW", EVAL_NIAH, goes_on_after_stop),
    ROWS("REPLAY_ROW", EVAL_NIAH, claims_length),
    ROWS("REPLAY_ROW", EVAL_NIAH, claims_cancelled),
    ROWS("ROW_UNPROMISED", EVAL_NIAH, run_twice),
    ROWS("ROW_MISSING", EVAL_NIAH, no_warmup),
    ROWS("ROW_ORDER", EVAL_NIAH, late_warmup),
    ROWS("ROW_UNPROMISED", EVAL_NIAH, warmup_measured_by_name),
    ROWS("PROMPT_REUSED", EVAL_NIAH, warmup_measured_by_prompt),
    ROWS("ROW_MISSING", EVAL_NIAH, four_samples),
    ROWS("SAMPLE_COUNT", EVAL_NIAH, four_promised),
    ROWS("SAMPLE_COUNT", EVAL_CODE, four_promised),
    ROWS("SAMPLE_COUNT", EVAL_LOSSLESS, four_promised),
    ROWS("ROW_MISSING", EVAL_NIAH, rung_left_out),
    ROWS("ROW_MISSING", EVAL_CODE, four_repetitions),
    ROWS("ROW_MISSING", EVAL_LOSSLESS, four_sequences),
    ROWS("ROW_UNPROMISED", EVAL_NIAH, sample_only_in_one_arm),
    ROWS("KV_FORMULA", EVAL_NIAH, native_with_latents),
    ROWS("REPLAY_ROW", EVAL_NIAH, ar_with_drafts),
    ROWS("KV_FORMULA", EVAL_NIAH, bounded_holds_all),
    ROWS("SCORE_SUM", EVAL_FIDELITY, restored_is_native),
    ROWS("KV_FORMULA", EVAL_NIAH, no_latents),
    ROWS("SCORE_SUM", EVAL_FIDELITY, restored_is_dropped),
    ROWS("SPECULATION_INACTIVE", EVAL_LOSSLESS, nothing_drafted_at_all),
    ROWS("SPECULATION_INACTIVE", EVAL_CODE, nothing_drafted),
    ROWS("LOSSLESS", EVAL_NIAH, other_token),
    ROWS("LOSSLESS", EVAL_ACCEPTANCE, other_token_between_forms),
    ROWS("LOSSLESS", EVAL_LOSSLESS, one_token_less),
    ROWS("ANSWER_MISMATCH", EVAL_NIAH, no_expected_answer),
    ROWS("ROW_FIELD", EVAL_NIAH, claims_correct),
    ROWS("ORACLE_MISSING", EVAL_NIAH, no_oracle),
    ROWS("RECALL", EVAL_NIAH, needle_lost),
    ROWS("RECALL_UNPROVEN", EVAL_NIAH, nobody_finds_it),
    ROWS("MEMORY_UNPROVEN", EVAL_NIAH, one_rung),
    ROWS("MEMORY_UNPROVEN", EVAL_NIAH, native_only),
    ROWS("KV_FORMULA", EVAL_NIAH, sliding_grows),
    ROWS("KV_FORMULA", EVAL_NIAH, latents_grow),
    ROWS("KV_FORMULA", EVAL_NIAH, draft_grows),
    ROWS("IDENTITY_RESTORE", EVAL_NIAH, identity_fails),
    ROWS("SPEED", EVAL_NIAH, slower),
    ROWS("SPEED", EVAL_CODE, all_lengths_slower),
    ROWS("SPEED_TOKENS", EVAL_CODE, few_tokens),
    ROWS("AR_MISSING", EVAL_CODE, no_ar),
    ROWS("ROW_MISSING", EVAL_LOSSLESS, no_ar_for_one_policy),
    ROWS("ROW_MISSING", EVAL_ACCEPTANCE, one_form),
    ROWS("SCORE_SUM", EVAL_FIDELITY, native_differs),
    ROWS("ORACLE_MISSING", EVAL_FIDELITY, no_oracle),
    ROWS("ABLATION_MISSING", EVAL_FIDELITY, no_sink_window),
    ROWS("FIDELITY_NO_BENEFIT", EVAL_FIDELITY, no_benefit),
    ROWS("FIDELITY_LIKELIHOOD", EVAL_FIDELITY, less_likely),
    ROWS("REPLAY_OPTIONS", EVAL_LOSSLESS, promised_mode_missing),
    ROWS("REPLAY_OPTIONS", EVAL_LOSSLESS, promised_temperature_missing),
    ROWS("MISSING_OPTIONS", EVAL_LOSSLESS, silent_about_threads),
    JSON("SUMMARY_MISMATCH", EVAL_NIAH, better_recall),
    JSON("SUMMARY_MISMATCH", EVAL_FIDELITY, summary_forgotten),
    JSON("SUMMARY_MISMATCH", EVAL_CODE, summary_embellished),
    ROWS("ROW_FIELD", EVAL_NIAH, negative_time),
    ROWS("TIMING", EVAL_NIAH, all_the_time),
    ROWS("TIMING", EVAL_NIAH, longer_than_there_was_time),
    ROWS("TIMING", EVAL_NIAH, began_before_its_turn),
    JSON("ROW_FIELD", EVAL_NIAH, rate_alone),
    JSON("ROW_FIELD", EVAL_NIAH, time_alone),
    JSON("NUMBER_RANGE", EVAL_NIAH, endless_number),
    JSON("NUMBER_RANGE", EVAL_NIAH, infinite_number),
    ROWS("OPTIONS_FORM", EVAL_NIAH, lines_is_no_list),
    ROWS("OPTIONS_FORM", EVAL_NIAH, rungs_twice),
    ROWS("OPTIONS_FORM NUMBER_RANGE", EVAL_NIAH, samples_is_huge),
    ROWS("UNKNOWN_KEY MISSING_OPTIONS", EVAL_NIAH, other_case),
    ROWS("DUPLICATE_KEY", EVAL_NIAH, stated_twice),
    ROWS("DUPLICATE_KEY", EVAL_NIAH, stated_twice_in_case),
    JSON("DUPLICATE_KEY", EVAL_FIDELITY, row_key_twice),
    JSON("UNKNOWN_KEY", EVAL_CODE, remark_in_row),
    JSON("UNKNOWN_KEY", EVAL_LOSSLESS, remark_in_report),
    JSON("UNKNOWN_KEY", EVAL_LOSSLESS, diagnostics_without_share),
    JSON("UNKNOWN_ARM", EVAL_NIAH, unknown_policy),
    JSON("UNKNOWN_ARM", EVAL_CODE, unknown_mode),
    ROWS("COMMAND", EVAL_NIAH, another_evaluation),
    ROWS("ENVIRONMENT", EVAL_NIAH, date_of_a_day),
    ROWS("ROW_FIELD", EVAL_NIAH, one_letter_expected),
    ROWS("ROW_FIELD", EVAL_NIAH, blanks_expected),
    ROWS("ANSWER_MISMATCH", EVAL_NIAH, other_answer_expected),
    ROWS("ANSWER_MISMATCH", EVAL_NIAH, answers_of_another_seed),
    ROWS("ROW_MISSING", EVAL_NIAH, one_policy_left_out),
    ROWS("ROW_MISSING", EVAL_CODE, one_length_left_out),
    ROWS("ROW_MISSING", EVAL_LOSSLESS, differing_is_gone),
    ROWS("ROW_UNPROMISED", EVAL_CODE, one_repetition_more),
    ROWS("ROW_UNPROMISED", EVAL_LOSSLESS, threads_relabelled),
    ROWS("ROW_ORDER", EVAL_NIAH, arms_one_after_the_other),
    ROWS("PROMPT_MISMATCH", EVAL_LOSSLESS, differing_prompt),
    ROWS("ROW_UNPROMISED LOSSLESS_REFERENCE", EVAL_LOSSLESS, differing_temperature),
    ROWS("ROW_UNPROMISED LOSSLESS_REFERENCE", EVAL_LOSSLESS, differing_window),
    ROWS("ROW_UNPROMISED ROW_MISSING LOSSLESS", EVAL_LOSSLESS, differing_policy),
    ROWS("ROW_UNPROMISED LOSSLESS_REFERENCE PROMPT_REUSED", EVAL_LOSSLESS, differing_sample),
    ROWS("ROW_UNPROMISED LOSSLESS_REFERENCE", EVAL_LOSSLESS, differing_alone),
    ROWS("LOSSLESS REPLAY_ROW", EVAL_LOSSLESS, differing_diagnostic),
    ROWS("PROMPT_REUSED", EVAL_ACCEPTANCE, copied_under_new_names),
    ROWS("REPLAY_ROW", EVAL_CODE, copied_answer),
    ROWS("REPLAY_ROW", EVAL_CODE, file_copied_with_another_length),
    ROWS("REPLAY_ROW", EVAL_ACCEPTANCE, prompt_copied_with_another_length),
    ROWS("REPLAY_ROW", EVAL_FIDELITY, sequence_copied),
    ROWS("REPLAY_ROW", EVAL_CODE, longer_prompts_than_promised),
    ROWS("PROMPT_MISMATCH", EVAL_NIAH, another_prompt_in_one_arm),
    ROWS("REPLAY_ROW", EVAL_CODE, text_alone_improved),
    ROWS("REPLAY_ROW", EVAL_NIAH, unknown_id),
    ROWS("KV_FORMULA", EVAL_NIAH, one_byte_of_latents),
    ROWS("KV_FORMULA", EVAL_NIAH, full_attention_forgets),
    ROWS("KV_FORMULA REPLAY_ENVIRONMENT", EVAL_NIAH, wide_window),
    ROWS("KV_GEOMETRY", EVAL_NIAH, wide_geometry),
    ROWS("KV_GEOMETRY", EVAL_LOSSLESS, silent_geometry),
    ROWS("KV_FORMULA", EVAL_NIAH, consistent_geometry),
    ROWS("REPLAY_ENVIRONMENT", EVAL_NIAH, two_devices),
    ROWS("KV_FORMULA", EVAL_NIAH, answers_to_shorter_prompts),
    ROWS("ROW_UNPROMISED", EVAL_NIAH, window_beyond_int),
    JSON("KV_FORMULA", EVAL_FIDELITY, restored_called_restored_all),
    JSON("KV_FORMULA", EVAL_FIDELITY, dropped_called_restored),
    JSON("KV_FORMULA", EVAL_FIDELITY, window_called_smaller),
    JSON("KV_FORMULA", EVAL_FIDELITY, sink_called_none),
    JSON("KV_FORMULA", EVAL_FIDELITY, draft_window_called_larger),
    JSON("KV_FORMULA", EVAL_NIAH, window_of_needles_called_smaller),
    JSON("REPLAY_OPTIONS", EVAL_CODE, draft_length_called_larger),
    JSON("ROW_FIELD", EVAL_FIDELITY, no_bytes_of_scores),
    ROWS("ROW_FIELD", EVAL_FIDELITY, wrong_total_of_scores),
    ROWS("SCORED_TOKENS", EVAL_FIDELITY, fewer_tokens_scored),
    ROWS("SCORE_SUM", EVAL_FIDELITY, one_agreement_more),
    ROWS("SCORE_SUM", EVAL_FIDELITY, better_likelihood),
    ROWS("REPLAY_ROW", EVAL_FIDELITY, better_tokens),
    ROWS("REPLAY_ROW", EVAL_FIDELITY, nearer_to_native),
};

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
        gate_result result = judge_replayed(broken->kind, json);
        char codes[200];
        snprintf(codes, sizeof codes, "%s", broken->codes);
        for (char *rest = codes, *code; (code = strsep(&rest, " ")) != NULL;) {
            if (raises(&result, code)) continue;
            print_error("%s: does not raise %s; what it raises:\n", broken->name, code);
            for (size_t i = 0; i < result.n_violations; i++)
                print_error("    [%s] %s\n", result.violation[i].code, result.violation[i].message);
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
        cmocka_unit_test(sound_reports_pass),
        cmocka_unit_test(every_rule_catches_its_report),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
