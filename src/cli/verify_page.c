#include "cli/verify_page.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "cli/terminal.h"
#include "measure/summary.h"
#include "measure/verify_logits.h"
#include "measure/verify_plan.h"

enum { MOST_SHOWN = 5 };

char *verify_signature_path(const char *report) {
    static const char ending[] = ".sig";
    size_t length = strlen(report);
    char *path = malloc(length + sizeof ending);
    if (!path) return NULL;
    memcpy(path, report, length);
    memcpy(path + length, ending, sizeof ending);
    return path;
}

static const char *text(const cJSON *object, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsString(item) ? item->valuestring : "";
}

static double number(const cJSON *object, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNumber(item) ? item->valuedouble : 0;
}

static void print_names(const cJSON *list) {
    const cJSON *name;
    cJSON_ArrayForEach(name, list) printf("%s%s", name == list->child ? "" : ", ", name->valuestring);
}

static void print_head(const eval_report *report) {
    const cJSON *e = report->environment, *o = report->options;
    printf("%s (fingerprint %s), %s, precision %s\n%s\n\n", text(e, "model"), text(e, "fingerprint"),
           text(e, "backend"), text(e, "precision"), text(e, "cpu_model"));
    printf(
        "Every stream goes on from its prompt for %.0f tokens. Its tokens, and every bit of their log-probabilities,\n"
        "must be those of the reference: the same prompt alone, in one piece, one row at a time.\n\n",
        number(o, "max_tokens"));
}

static void print_table(const cJSON *summary) {
    const cJSON *entry;
    printf("%-48s%9s%9s%10s%10s%9s\n", "computed", "streams", "tokens", "drafted", "accepted", "differ");
    cJSON_ArrayForEach(entry, cJSON_GetObjectItemCaseSensitive(summary, "comparisons")) {
        verify_comparison comparison = VERIFY_REFERENCE;
        (void)verify_comparison_find(text(entry, "comparison"), &comparison);
        bool reference = comparison == VERIFY_REFERENCE;
        printf("%-48s%9.0f%9.0f%10.0f%10.0f", reference ? "the reference" : verify_comparison_text(comparison),
               number(entry, "streams"), number(entry, "completion_tokens"), number(entry, "drafted_tokens"),
               number(entry, "accepted_tokens"));
        if (reference)
            printf("%9s\n", "-");
        else
            printf("%9.0f\n", number(entry, "differ"));
    }
}

/* Rows name a source only where there are two. */
static bool has_assistant_beside(const eval_report *report) {
    for (size_t i = 0; i < report->rows.n; i++)
        if (report->rows.row[i].arm.source[0]) return true;
    return false;
}

static void print_scope(const eval_report *report) {
    const cJSON *e = report->environment, *o = report->options;
    printf("\nPolicies: ");
    print_names(cJSON_GetObjectItemCaseSensitive(o, "policies"));
    printf(". K/V: ");
    print_names(cJSON_GetObjectItemCaseSensitive(o, "kv_formats"));
    printf(". Temperature 0 and 1. Drafters: n-grams%s%s.\n",
           cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(e, "drafter")) ? ", the model's drafter" : "",
           has_assistant_beside(report) ? ", its MTP assistant" : "");
    printf("Threads: %.0f here, %.0f in the other process, which made %.0f of %.0f rounds.\n", number(e, "threads"),
           number(o, "threads_elsewhere"), number(o, "rounds_elsewhere"), number(o, "rounds"));
}

static void print_differences(const eval_report *report, double differ) {
    int shown = 0;
    for (size_t i = 0; i < report->rows.n && shown < MOST_SHOWN; i++) {
        const eval_row *row = &report->rows.row[i], *reference = eval_lossless_reference(&report->rows, i);
        size_t at = 0;
        char label[200];
        if (reference && eval_lossless_equal(reference, row, &at)) continue;
        shown++;
        eval_arm_label(&row->arm, label, sizeof label);
        printf("  %s, %s: ", row->sample, label);
        if (!reference)
            printf("no reference\n");
        else if (at < row->n_token_ids && at < reference->n_token_ids)
            printf("token %zu is %d, not %d\n", at, row->token_ids[at], reference->token_ids[at]);
        else
            printf("the same tokens with other log-probabilities\n");
    }
    if (differ > shown) printf("  and %.0f more\n", differ - shown);
}

static void print_logits(const cJSON *logits) {
    if (!logits) return;
    printf(
        "Logits made elsewhere (%s): over %.0f rows the mean divergence is %.3g, and the likeliest token is the same "
        "in %.1f %%%s\n",
        text(logits, "file"), number(logits, "tokens"), number(logits, "kl"), 100 * number(logits, "same_choice"),
        verify_logits_hold(logits) ? "." : ": THESE ARE OTHER WEIGHTS, OR WRONG ARITHMETIC.");
}

kakeya_status verify_print_page(const eval_report *report, const char *path, bool is_signed, kakeya_error *error) {
    char streams[32], tokens[32];
    cJSON *summary = eval_summary_derive(report->kind, &report->rows);
    if (!summary) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    double differ = number(summary, "differ");
    print_head(report);
    print_table(summary);
    print_scope(report);
    print_logits(report->logits);
    printf("\n%s streams, %s tokens in %.0f s: ", format_count(streams, report->rows.n),
           format_count(tokens, (uint64_t)number(summary, "completion_tokens")), clock_seconds() - report->begun_at);
    if (differ > 0)
        printf("%.0f STREAMS DIFFER.\n", differ);
    else
        printf("nothing differs.\n");
    print_differences(report, differ);
    if (path) printf("Report: %s. `kakeya gate %s` judges it.%s\n", path, path, is_signed ? " Signed." : "");
    cJSON_Delete(summary);
    return KAKEYA_OK;
}
