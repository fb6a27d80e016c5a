/* True reports for tests of the gate: tests/data/reports holds one of every kind, made by tools/make_reports.sh from
 * real runs on the demo model. A test changes one and derives the summary again, as somebody would who edits a report
 * with care. Include after cmocka. */
#ifndef KAKEYA_TESTS_REPORT_SUPPORT_H
#define KAKEYA_TESTS_REPORT_SUPPORT_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "measure/gate.h"
#include "measure/replay.h"
#include "measure/report.h"
#include "measure/summary.h"

/* The report of a kind as JSON; freed with cJSON_Delete. */
static inline cJSON *true_report(eval_kind kind) {
    static char *texts[EVAL_KIND_COUNT];
    if (!texts[kind]) {
        enum { MAX_BYTES = 1 << 24 };
        char path[512];
        snprintf(path, sizeof path, "%s/reports/%s.json.gz", KAKEYA_TEST_DATA, strrchr(eval_kind_name(kind), '.') + 1);
        gzFile file = gzopen(path, "rb");
        if (!file) fail_msg("%s: cannot open", path);
        texts[kind] = calloc(MAX_BYTES, 1);
        assert_non_null(texts[kind]);
        assert_true(gzread(file, texts[kind], MAX_BYTES - 1) > 0);
        gzclose(file);
    }
    cJSON *json = cJSON_Parse(texts[kind]);
    assert_non_null(json);
    return json;
}

static inline cJSON *part_of(const cJSON *object, const char *key) {
    cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!item) fail_msg("the report has no %s", key);
    return item;
}

/* The rows in memory; a row that cannot be read is left out, and *unread counts it. */
static inline eval_rows rows_of(eval_kind kind, const cJSON *json, size_t *unread) {
    eval_rows rows = {0};
    const cJSON *item;
    kakeya_error error;
    *unread = 0;
    cJSON_ArrayForEach(item, part_of(json, "rows")) {
        eval_row row;
        if (eval_row_from_json(kind, item, &row, &error) == KAKEYA_OK) {
            assert_int_equal(eval_rows_add(&rows, &row, &error), KAKEYA_OK);
        } else {
            eval_row_free(&row);
            ++*unread;
        }
    }
    return rows;
}

/* Replaces the summary by what the rows give, where they can be read. */
static inline void derive_again(eval_kind kind, cJSON *json) {
    size_t unread;
    eval_rows rows = rows_of(kind, json, &unread);
    cJSON *summary = unread ? NULL : eval_summary_derive(kind, &rows);
    if (summary) cJSON_ReplaceItemInObjectCaseSensitive(json, "summary", summary);
    eval_rows_free(&rows);
}

/* Writes rows back, with everything in them that follows from other fields, and a summary. */
static inline void put_rows(eval_kind kind, cJSON *json, const eval_rows *rows) {
    cJSON *array = cJSON_CreateArray();
    for (size_t i = 0; i < rows->n; i++) cJSON_AddItemToArray(array, eval_row_to_json(kind, &rows->row[i]));
    cJSON_ReplaceItemInObjectCaseSensitive(json, "rows", array);
    cJSON_ReplaceItemInObjectCaseSensitive(json, "summary", eval_summary_derive(kind, rows));
}

/* ---- what a report says in several places, changed in all of them */

static inline bool says(const cJSON *item, const char *word) {
    char *end;
    if (cJSON_IsString(item)) return strcmp(item->valuestring, word) == 0;
    if (!cJSON_IsNumber(item)) return false;
    double value = strtod(word, &end);
    return end != word && !*end && !(item->valuedouble < value) && !(item->valuedouble > value);
}

static inline void say(cJSON *item, const char *word) {
    if (cJSON_IsString(item)) cJSON_SetValuestring(item, word);
    if (cJSON_IsNumber(item)) cJSON_SetNumberValue(item, strtod(word, NULL));
}

/* The words of a list with commas that are `from` become `to`. */
static inline void say_in_list(cJSON *list, const char *from, const char *to) {
    char text[400] = "", kept[400], *rest = kept;
    snprintf(kept, sizeof kept, "%s", list->valuestring);
    for (char *word; (word = strsep(&rest, ",")) != NULL;) {
        size_t at = strlen(text);
        snprintf(text + at, sizeof text - at, "%s%s", at ? "," : "", strcmp(word, from) == 0 ? to : word);
    }
    cJSON_SetValuestring(list, text);
}

/* Of policy, sink, window, draft_window, threads: the value `from` becomes `to` in every row, option and word of the
 * command, as somebody would do who relabels an arm with care. */
static inline void relabel(cJSON *json, const char *key, const char *from, const char *to) {
    char plural[32], flag[40], flags[40];
    cJSON *item, *value;
    snprintf(plural, sizeof plural, "%s", strcmp(key, "policy") == 0 ? "policies" : key);
    if (strcmp(key, "policy") != 0 && strcmp(key, "threads") != 0) strcat(plural, "s");
    cJSON_ArrayForEach(item, part_of(json, "rows")) {
        value = cJSON_GetObjectItemCaseSensitive(item, key);
        if (value && says(value, from)) say(value, to);
    }
    const char *const objects[] = {"options", "environment"};
    for (int i = 0; i < 2; i++) {
        cJSON *object = cJSON_GetObjectItemCaseSensitive(json, objects[i]);
        value = cJSON_GetObjectItemCaseSensitive(object, key);
        if (value && says(value, from)) say(value, to);
        cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(object, plural)) {
            if (says(item, from)) say(item, to);
        }
    }
    snprintf(flag, sizeof flag, "--%s", key);
    snprintf(flags, sizeof flags, "--%s", plural);
    for (char *at = flag; *at; at++) *at = *at == '_' ? '-' : *at;
    for (char *at = flags; *at; at++) *at = *at == '_' ? '-' : *at;
    cJSON_ArrayForEach(item, part_of(json, "command")) {
        bool named =
            cJSON_IsString(item) && (strcmp(item->valuestring, flag) == 0 || strcmp(item->valuestring, flags) == 0);
        if (named && item->next && cJSON_IsString(item->next)) say_in_list(item->next, from, to);
    }
}

static inline gate_result judge(const cJSON *json) {
    gate_result result;
    kakeya_error error;
    assert_int_equal(gate_check(json, &result, &error), KAKEYA_OK);
    return result;
}

static inline bool raises(const gate_result *result, const char *code) {
    for (size_t i = 0; i < result->n_violations; i++)
        if (strcmp(result->violation[i].code, code) == 0) return true;
    return false;
}

/* A true report in memory. */
static inline eval_report *sound(eval_kind kind) {
    cJSON *json = true_report(kind);
    eval_report *report = calloc(1, sizeof *report);
    assert_non_null(report);
    size_t unread;
    *report = (eval_report){.kind = kind,
                            .command = cJSON_DetachItemFromObject(json, "command"),
                            .environment = cJSON_DetachItemFromObject(json, "environment"),
                            .options = cJSON_DetachItemFromObject(json, "options"),
                            .rows = rows_of(kind, json, &unread),
                            .complete = true};
    assert_int_equal(unread, 0);
    cJSON_Delete(json);
    return report;
}

static inline void remove_row(eval_report *report, eval_row *row) {
    size_t at = (size_t)(row - report->rows.row);
    eval_row_free(row);
    memmove(row, row + 1, (report->rows.n - at - 1) * sizeof *row);
    report->rows.n--;
}

/* What gate and replay have against a report of which every row is computed again: what comes out are the rows of the
 * true one. A certificate is not computed again. */
static inline gate_result judge_replayed(eval_kind kind, const cJSON *json) {
    static eval_report *truth[EVAL_KIND_COUNT];
    gate_result result = judge(json);
    replay *r = NULL;
    kakeya_error error;
    const replay_options everything = {.all = true};
    if (!truth[kind]) truth[kind] = sound(kind);
    if (result.rows && kind != EVAL_VERIFY && replay_open(json, &everything, &r, &error) == KAKEYA_OK) {
        const eval_report *t = truth[kind];
        const eval_replay *hook = replay_hook(r);
        eval_report again = *t; /* its rows are those of *t */
        replay_outcome outcome;
        again.rows = (eval_rows){.row = calloc(t->rows.n, sizeof *t->rows.row)};
        assert_non_null(again.rows.row);
        hook->begin(hook->user, t->environment);
        for (size_t i = 0; i < t->rows.n; i++) {
            const eval_row *row = &t->rows.row[i];
            size_t j = 0;
            while (strcmp(t->rows.row[j].sample, row->sample) != 0) j++;
            if (j == i) hook->prompt(hook->user, row->sample, row->prompt_hash);
            if (hook->row(hook->user, row)) again.rows.row[again.rows.n++] = *row;
        }
        assert_int_equal(replay_judge(r, &again, &result, &outcome, &error), KAKEYA_OK);
        free(again.rows.row);
    }
    replay_close(r);
    return result;
}

#endif
