#include <string.h>

#include "measure/summary.h"
#include "measure/verify_comparison.h"

typedef struct tally {
    double streams, tokens, drafted, accepted, differ;
} tally;

static void put(cJSON *object, const char *name, double value) { cJSON_AddNumberToObject(object, name, value); }

static void put_tally(cJSON *entry, const tally *t) {
    put(entry, "streams", t->streams);
    put(entry, "completion_tokens", t->tokens);
    put(entry, "drafted_tokens", t->drafted);
    put(entry, "accepted_tokens", t->accepted);
    put(entry, "differ", t->differ);
}

static void count(tally *t, const eval_row *row, bool differs) {
    t->streams++;
    t->tokens += (double)row->n_token_ids;
    t->drafted += (double)row->drafted_tokens;
    t->accepted += (double)row->accepted_tokens;
    t->differ += differs;
}

/* By comparison, in the order of the plan, and by policy and K/V format, in that of the rows. */
bool summarise_verify(cJSON *summary, const eval_rows *rows, double *scratch) {
    tally all = {0}, by[VERIFY_COMPARISONS] = {{0}};
    for (size_t i = 0; i < rows->n; i++) {
        const eval_row *row = &rows->row[i], *reference = eval_lossless_reference(rows, i);
        verify_comparison comparison;
        scratch[i] = !reference || !eval_lossless_equal(reference, row, NULL);
        count(&all, row, scratch[i] > 0);
        if (verify_comparison_find(row->arm.comparison, &comparison)) count(&by[comparison], row, scratch[i] > 0);
    }
    put_tally(summary, &all);
    cJSON *comparisons = cJSON_AddArrayToObject(summary, "comparisons");
    for (int c = 0; c < VERIFY_COMPARISONS; c++) {
        if (by[c].streams <= 0) continue;
        cJSON *entry = cJSON_CreateObject();
        if (!entry) return false;
        cJSON_AddStringToObject(entry, "comparison", verify_comparison_name((verify_comparison)c));
        put_tally(entry, &by[c]);
        cJSON_AddItemToArray(comparisons, entry);
    }
    cJSON *policies = cJSON_AddArrayToObject(summary, "policies");
    for (size_t i = 0; i < rows->n; i++) {
        const eval_arm *arm = &rows->row[i].arm;
        bool seen = false;
        tally t = {0};
        for (size_t j = 0; j < rows->n && !seen; j++) {
            const eval_arm *other = &rows->row[j].arm;
            if (strcmp(other->policy, arm->policy) != 0 || strcmp(other->kv_format, arm->kv_format) != 0) continue;
            seen = j < i;
            count(&t, &rows->row[j], scratch[j] > 0);
        }
        if (seen) continue;
        cJSON *entry = cJSON_CreateObject();
        if (!entry) return false;
        cJSON_AddStringToObject(entry, "policy", arm->policy);
        cJSON_AddStringToObject(entry, "kv_format", arm->kv_format);
        put_tally(entry, &t);
        cJSON_AddItemToArray(policies, entry);
    }
    return true;
}
