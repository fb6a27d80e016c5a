#include "cli/train_report.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/files.h"
#include "kakeya_study.h"
#include "measure/eval.h"
#include "train/outputs.h"

static const double enough_kl = 0.25; /* of what dropping costs: a rank that costs no more is large enough */

static void add_row(train_score *score, const eval_row *row) {
    score->tokens += (double)row->scored_tokens;
    score->nll += row->nll;
    score->kl += row->kl;
    score->agreements += (double)row->agreements;
}

static kakeya_status fidelity(const eval_setup *setup, const char *ids_json, size_t n_policies, eval_report **rows,
                              kakeya_error *error) {
    static const char *const policies[] = {"native", "restored", "restored-all", "sink-window"};
    const int window = kakeya_options_window(&setup->session);
    const eval_options options = {
        .ids_json = ids_json, .windows = &window, .n_windows = 1, .policies = {policies, n_policies}};
    return eval_fidelity(setup, &options, rows, error);
}

kakeya_status train_report_kl(const train_report *report, const char *directory, const kakeya_engine_options *engine,
                              const kakeya_session_options *session, const char *ids_json, kakeya_progress_fn progress,
                              double *kl, kakeya_error *error) {
    eval_setup setup = {
        .engine = *engine, .session = *session, .argc = report->argc, .argv = report->argv, .progress = progress};
    setup.engine.f_theta = directory;
    setup.engine.progress = NULL;
    eval_report *rows = NULL;
    train_score restored = {0};
    kakeya_status status = fidelity(&setup, ids_json, 2, &rows, error);
    for (size_t i = 0; rows && i < rows->rows.n && !status; i++) {
        if (strcmp(rows->rows.row[i].arm.policy, "restored") == 0) add_row(&restored, &rows->rows.row[i]);
    }
    *kl = train_kl(&restored);
    eval_report_close(rows);
    return status;
}

static kakeya_status measure_fidelity(train_report *report, train_rank *rank, eval_setup *setup, const char *ids_json,
                                      bool first, kakeya_error *error) {
    eval_report *rows = NULL;
    kakeya_status status = fidelity(setup, ids_json, first ? 4 : 3, &rows, error);
    for (size_t i = 0; rows && i < rows->rows.n && !status; i++) {
        const eval_row *row = &rows->rows.row[i];
        if (strcmp(row->arm.policy, "restored") == 0) add_row(&rank->restored, row);
        if (strcmp(row->arm.policy, "restored-all") == 0) add_row(&rank->restored_all, row);
        if (first && strcmp(row->arm.policy, "native") == 0) add_row(&report->native, row);
        if (first && strcmp(row->arm.policy, "sink-window") == 0) add_row(&report->dropped, row);
    }
    eval_report_close(rows);
    return status;
}

static kakeya_status measure_recall(train_rank *rank, eval_setup *setup, kakeya_error *error) {
    static const char *const policies[] = {"restored", "restored-all"};
    static const int lines[] = {12, 40};
    const int draft_window = kakeya_options_draft_window(&setup->session);
    eval_options options = {.draft_windows = &draft_window,
                            .n_draft_windows = 1,
                            .lines = lines,
                            .n_lines = 2,
                            .samples = 2,
                            .max_tokens = 24,
                            .policies = {policies, 2},
                            .mode = KAKEYA_MODE_AR};
    eval_report *rows = NULL;
    kakeya_status status = eval_niah(setup, &options, &rows, error);
    int asked = 0, right = 0;
    for (size_t i = 0; rows && i < rows->rows.n && !status; i++) {
        asked += !rows->rows.row[i].warmup;
        right += !rows->rows.row[i].warmup && rows->rows.row[i].correct;
    }
    if (asked) rank->recall = (double)right / asked;
    eval_report_close(rows);
    return status;
}

kakeya_status train_report_measure(train_report *report, const kakeya_engine_options *engine,
                                   const kakeya_session_options *session, const char *ids_json, bool needles,
                                   kakeya_progress_fn progress, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    for (size_t i = 0; i < report->n && !status; i++) {
        train_rank *rank = &report->rank[i];
        eval_setup setup = {
            .engine = *engine, .session = *session, .argc = report->argc, .argv = report->argv, .progress = progress};
        setup.engine.f_theta = rank->directory;
        setup.engine.progress = NULL;
        rank->recall = -1;
        status = measure_fidelity(report, rank, &setup, ids_json, i == 0, error);
        if (!status && needles) status = measure_recall(rank, &setup, error);
    }
    return status;
}

double train_perplexity(const train_score *score) { return score->tokens > 0 ? exp(score->nll / score->tokens) : 0; }

double train_gap_closed(const train_report *report, const train_score *score) {
    double native = train_perplexity(&report->native), dropped = train_perplexity(&report->dropped);
    return dropped - native > 0 ? (dropped - train_perplexity(score)) / (dropped - native) : 1;
}

static double per_token(double sum, const train_score *score) { return score->tokens > 0 ? sum / score->tokens : 0; }

double train_kl(const train_score *score) { return per_token(score->kl, score); }

bool train_rank_loses(const train_report *report, const train_rank *rank) {
    return !(train_kl(&rank->restored) <= train_kl(&report->dropped));
}

void train_report_print(const train_report *r) {
    printf("\nHeld out: %.0f tokens; perplexity native %.4f, dropped %.4f (KL %.4f, top-1 %.4f)\n", r->native.tokens,
           train_perplexity(&r->native), train_perplexity(&r->dropped), per_token(r->dropped.kl, &r->dropped),
           per_token(r->dropped.agreements, &r->dropped));
    printf("\n%-11s %7s  %-40s %-28s %s\n", "", "bytes a", "restored", "all layers restored", "needles");
    printf("%-11s %8s %10s %7s %7s %11s  %10s %7s %7s  %7s\n", "rank", "position", "perplexity", "closed", "KL",
           "top-1", "perplexity", "KL", "top-1", "recall");
    for (size_t i = 0; i < r->n; i++) {
        const train_rank *k = &r->rank[i];
        char name[32], recall[16] = "-";
        int length = snprintf(name, sizeof name, k->rank_k == k->rank_v ? "%d" : "%d + %d", k->rank_k, k->rank_v);
        if (k->note) snprintf(name + length, sizeof name - (size_t)length, " %s", k->note);
        if (k->recall >= 0) snprintf(recall, sizeof recall, "%.2f", k->recall);
        printf("%-11s %8zu %10.4f %6.1f%% %7.4f %11.4f  %10.4f %7.4f %7.4f  %7s%s\n", name, k->latent_bytes,
               train_perplexity(&k->restored), 100 * train_gap_closed(r, &k->restored),
               per_token(k->restored.kl, &k->restored), per_token(k->restored.agreements, &k->restored),
               train_perplexity(&k->restored_all), per_token(k->restored_all.kl, &k->restored_all),
               per_token(k->restored_all.agreements, &k->restored_all), recall,
               train_rank_loses(r, k) ? "  worse than dropping" : "");
    }
}

static void put_score(cJSON *object, const char *name, const train_report *report, const train_score *score) {
    cJSON *json = cJSON_AddObjectToObject(object, name);
    cJSON_AddNumberToObject(json, "tokens", score->tokens);
    cJSON_AddNumberToObject(json, "perplexity", train_perplexity(score));
    cJSON_AddNumberToObject(json, "kl_from_native", per_token(score->kl, score));
    cJSON_AddNumberToObject(json, "top1_agreement", per_token(score->agreements, score));
    if (report) cJSON_AddNumberToObject(json, "gap_closed", train_gap_closed(report, score));
}

cJSON *train_report_json(const train_report *r) {
    cJSON *object = cJSON_CreateObject();
    if (!object) return NULL;
    put_score(object, "native", NULL, &r->native);
    put_score(object, "dropped", NULL, &r->dropped);
    cJSON *ranks = cJSON_AddArrayToObject(object, "ranks");
    for (size_t i = 0; i < r->n; i++) {
        const train_rank *k = &r->rank[i];
        cJSON *rank = cJSON_CreateObject();
        if (k->left_out)
            cJSON_AddNullToObject(rank, "directory");
        else
            cJSON_AddStringToObject(rank, "directory", k->directory);
        if (k->note) cJSON_AddStringToObject(rank, "note", k->note);
        cJSON_AddNumberToObject(rank, "rank_k", k->rank_k);
        cJSON_AddNumberToObject(rank, "rank_v", k->rank_v);
        cJSON_AddNumberToObject(rank, "latent_bytes", (double)k->latent_bytes);
        cJSON_AddBoolToObject(rank, "worse_than_dropping", train_rank_loses(r, k));
        put_score(rank, "restored", r, &k->restored);
        put_score(rank, "restored_all", r, &k->restored_all);
        if (k->recall >= 0)
            cJSON_AddNumberToObject(rank, "recall", k->recall);
        else
            cJSON_AddNullToObject(rank, "recall");
        cJSON_AddItemToArray(ranks, rank);
    }
    return object;
}

/* ------------------------------------------------------------------------------------------------ what is kept */

void train_report_choose(train_report *r) {
    size_t best = 0;
    for (size_t i = 1; i < r->n; i++) {
        double kl = train_kl(&r->rank[i].restored);
        if (kl <= enough_kl * train_kl(&r->dropped) || kl < train_kl(&r->rank[best].restored)) best = i;
    }
    train_rank first = r->rank[best];
    memmove(r->rank + 1, r->rank, best * sizeof first);
    r->rank[0] = first;
}

void train_report_drop(const char *directory) {
    static const char *const names[] = {TRAIN_CONFIG_NAME, TRAIN_WEIGHTS_NAME, TRAIN_SIZES_NAME, TRAIN_REPORT_NAME};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char *path = path_join(directory, names[i]);
        if (path) unlink(path);
        free(path);
    }
    train_drop_directory(directory);
}

/* The weights first: without its configuration a directory is no f_theta. */
static kakeya_status move_f_theta(const char *from, const char *to, kakeya_error *error) {
    static const char *const names[] = {TRAIN_WEIGHTS_NAME, TRAIN_SIZES_NAME, TRAIN_CONFIG_NAME};
    kakeya_status status = KAKEYA_OK;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && !status; i++) {
        char *old = path_join(from, names[i]), *new = path_join(to, names[i]);
        if (!old || !new)
            status = error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", to);
        else if (rename(old, new) && strcmp(names[i], TRAIN_SIZES_NAME) != 0) /* which not every training has */
            status = error_set(error, KAKEYA_IO, "%s: cannot be moved to %s: %s", old, new, strerror(errno));
        free(old);
        free(new);
    }
    if (!status) train_report_drop(from);
    return status;
}

kakeya_status train_report_keep(train_report *r, const char *out, bool even_if_worse, kakeya_error *error) {
    for (size_t i = 0; i < r->n; i++) {
        train_rank *rank = &r->rank[i];
        rank->left_out = !rank->note && !even_if_worse && train_rank_loses(r, rank);
        if (rank->left_out) train_report_drop(rank->directory);
    }
    if (r->rank[0].left_out) return KAKEYA_OK;
    char *directory = strdup(out);
    if (!directory) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", out);
    kakeya_status status = move_f_theta(r->rank[0].directory, out, error);
    free(r->rank[0].directory);
    r->rank[0].directory = directory;
    return status;
}

static kakeya_status write_report(const train_report *report, const cJSON *more, const char *directory,
                                  kakeya_error *error) {
    cJSON *json = train_report_json(report);
    char *path = path_join(directory, TRAIN_REPORT_NAME);
    const cJSON *item;
    kakeya_status status = json && path ? KAKEYA_OK : error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    if (!status) cJSON_ArrayForEach(item, more) cJSON_AddItemToObject(json, item->string, cJSON_Duplicate(item, true));
    if (!status) status = train_write_json(path, json, error);
    cJSON_Delete(json);
    free(path);
    return status;
}

kakeya_status train_report_write(const train_report *report, const cJSON *more, const char *out, kakeya_error *error) {
    kakeya_status status = write_report(report, more, out, error);
    for (size_t i = 1; i < report->n && !status; i++) {
        train_report own = *report;
        own.rank += i;
        own.n = 1;
        if (!own.rank->left_out) status = write_report(&own, NULL, own.rank->directory, error);
    }
    return status;
}
