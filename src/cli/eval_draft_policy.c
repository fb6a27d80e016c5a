#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/eval_output.h"

enum { MAX_GROUPS = 16, FIXED_LENGTHS = 5 };
static const int fixed_lengths[FIXED_LENGTHS] = {1, 2, 3, 5, 7};

/* Texts of one kind under one attention policy: a column. */
typedef struct group {
    const char *workload, *policy;
    bool one_text;
} group;

typedef struct table {
    const draft_traces *traces;
    group groups[MAX_GROUPS];
    int n_groups;
    double usual[MAX_GROUPS]; /* seconds of the product's policy */
    cJSON *rows;              /* NULL: as text */
} table;

static void find_groups(table *t) {
    for (int i = 0; i < t->traces->n; i++) {
        const draft_trace *trace = &t->traces->trace[i];
        int g = 0;
        while (g < t->n_groups &&
               (strcmp(t->groups[g].workload, trace->workload) || strcmp(t->groups[g].policy, trace->policy)))
            g++;
        if (g == t->n_groups && g < MAX_GROUPS)
            t->groups[t->n_groups++] = (group){trace->workload, trace->policy, false};
    }
    for (int g = 0, n = t->n_groups; g < n && t->n_groups < MAX_GROUPS; g++) {
        if (g && strcmp(t->groups[g].policy, t->groups[g - 1].policy) == 0) continue;
        t->groups[t->n_groups++] = (group){NULL, t->groups[g].policy, false};
        t->groups[t->n_groups++] = (group){NULL, t->groups[g].policy, true};
    }
}

/* One line: the speed of every group against the product's policy. */
static kakeya_status add_row(table *t, const char *name, kakeya_mode mode, int length, const draft_policy *policy,
                             kakeya_error *error) {
    double speed[MAX_GROUPS];
    for (int g = 0; g < t->n_groups; g++) {
        draft_replay_result result;
        kakeya_status status = draft_replay(t->traces, t->groups[g].one_text, t->groups[g].workload,
                                            t->groups[g].policy, mode, length, policy, &result, error);
        if (status) return status;
        if (t->usual[g] <= 0) t->usual[g] = result.seconds;
        speed[g] = t->usual[g] / result.seconds;
    }
    if (t->rows) {
        cJSON *row = cJSON_CreateObject();
        cJSON_AddStringToObject(row, "policy", name);
        cJSON_AddItemToObject(row, "speed", cJSON_CreateDoubleArray(speed, t->n_groups));
        cJSON_AddItemToArray(t->rows, row);
        return KAKEYA_OK;
    }
    printf("%-34s", name);
    for (int g = 0; g < t->n_groups; g++) printf(" %14.3f", speed[g]);
    putchar('\n');
    return KAKEYA_OK;
}

static kakeya_status add_rows(table *t, kakeya_error *error) {
    static draft_variant variants[DRAFT_MAX_VARIANTS];
    bool drafter = t->traces->trace[0].max_drafts > 0;
    kakeya_status status = add_row(t, "auto", KAKEYA_MODE_AUTO, BACKEND_MAX_DRAFT, NULL, error);
    if (!status) status = add_row(t, "ar", KAKEYA_MODE_AR, 0, NULL, error);
    if (!status) status = add_row(t, "ngram 7", KAKEYA_MODE_NGRAM, 7, NULL, error);
    for (int i = 0; drafter && i < FIXED_LENGTHS && !status; i++) {
        char name[32];
        snprintf(name, sizeof name, "speculative %d", fixed_lengths[i]);
        if (fixed_lengths[i] <= t->traces->trace[0].max_drafts) {
            status = add_row(t, name, KAKEYA_MODE_SPECULATIVE, fixed_lengths[i], NULL, error);
        }
    }
    int n = draft_variants(variants);
    for (int i = 0; i < n && !status; i++) {
        status = add_row(t, variants[i].name, KAKEYA_MODE_AUTO, BACKEND_MAX_DRAFT, &variants[i].policy, error);
    }
    return status;
}

kakeya_status eval_print_draft_policies(const draft_traces *traces, bool json, kakeya_error *error) {
    table t = {.traces = traces, .rows = json ? cJSON_CreateArray() : NULL};
    find_groups(&t);
    if (!json) {
        printf("speed against the product's policy (1.000), %d recorded texts of %s\n%-34s", traces->n,
               traces->trace[0].backend, "");
        for (int g = 0; g < t.n_groups; g++) printf(" %14s", t.groups[g].workload ? t.groups[g].workload : "mixed");
        printf("\n%-34s", "policy");
        for (int g = 0; g < t.n_groups; g++) printf(" %14s", t.groups[g].policy);
        putchar('\n');
    }
    kakeya_status status = add_rows(&t, error);
    if (!json) return status;
    cJSON *root = cJSON_CreateObject(), *groups = cJSON_CreateArray();
    for (int g = 0; g < t.n_groups; g++) {
        cJSON *entry = cJSON_CreateObject();
        cJSON_AddStringToObject(entry, "workload", t.groups[g].workload ? t.groups[g].workload : "mixed");
        cJSON_AddStringToObject(entry, "attention", t.groups[g].policy);
        cJSON_AddNumberToObject(entry, "seconds", t.usual[g]);
        cJSON_AddItemToArray(groups, entry);
    }
    cJSON_AddStringToObject(root, "backend", traces->trace[0].backend);
    cJSON_AddItemToObject(root, "groups", groups);
    cJSON_AddItemToObject(root, "rows", t.rows);
    if (!status) status = cli_print_json(root, error);
    cJSON_Delete(root);
    return status;
}
