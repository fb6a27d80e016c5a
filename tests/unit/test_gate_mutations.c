/* Protects gate and replay against edits that nobody thought of: thousands of random changes to true reports of every
 * kind. A change may pass only where docs/reference/reports.md says that nobody can know; whatever else passes is a
 * hole. The summary and the rates in the rows are derived again after every change, as a careful forger would. Whole
 * runs only: test_gate has the rules. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "backend/timeline.h"
#include "report_support.h"
#include "sweep.h"

#if defined(__SANITIZE_ADDRESS__)
enum { MUTATIONS = 80, SHORT = 30 };
#else
enum { MUTATIONS = 400, SHORT = 30 }; /* of each kind */
#endif

/* ------------------------------------------------------------------------------------------------------ chance */

static uint64_t state_of_chance;

static uint64_t chance(uint64_t below) { /* splitmix64 */
    uint64_t z = state_of_chance += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % below;
}

static cJSON *any_child(const cJSON *parent) {
    int n = cJSON_GetArraySize(parent);
    return n ? cJSON_GetArrayItem(parent, (int)chance((uint64_t)n)) : NULL;
}

/* A value somewhere below, and the object or array that holds it. */
static cJSON *any_leaf(cJSON *root, cJSON **holder) {
    cJSON *item = any_child(root);
    *holder = root;
    while (item && item->child) {
        *holder = item;
        item = any_child(item);
    }
    return item;
}

/* ---------------------------------------------------------------------------------------------------- mutations */

static const double factors[] = {0, -1, 0.5, 0.9, 0.99, 1.01, 1.1, 2, 100, 1e-300, 1e300, 1e-6};

static void change_value(cJSON *item) {
    static const char *const words[] = {"native",      "sink-window", "restored", "restored-all", "ar",
                                        "auto",        "speculative", "ngram",    "stop",         "lines-12/0",
                                        "0/events.py", "code",        "",         "random"};
    if (cJSON_IsNumber(item)) {
        double value = item->valuedouble;
        switch (chance(3)) {
        case 0:
            value *= factors[chance(sizeof factors / sizeof *factors)];
            break;
        case 1:
            value += chance(2) ? 1 : -1;
            break;
        default:
            value = floor(value * factors[chance(sizeof factors / sizeof *factors)]);
            break;
        }
        cJSON_SetNumberValue(item, value);
    } else if (cJSON_IsBool(item)) {
        item->type = cJSON_IsTrue(item) ? cJSON_False : cJSON_True;
    } else if (cJSON_IsString(item)) {
        if (chance(2)) {
            cJSON_SetValuestring(item, words[chance(sizeof words / sizeof *words)]);
        } else if (item->valuestring[0]) {
            item->valuestring[chance(strlen(item->valuestring))] ^= 1;
        }
    }
}

static void change_leaf(cJSON *root) {
    cJSON *holder, *item = any_leaf(root, &holder);
    if (item) change_value(item);
}

static void drop_leaf(cJSON *root) {
    cJSON *holder, *item = any_leaf(root, &holder);
    if (item) cJSON_Delete(cJSON_DetachItemViaPointer(holder, item));
}

static void copy_leaf(cJSON *root) {
    cJSON *holder, *item = any_leaf(root, &holder);
    if (!item) return;
    cJSON *copy = cJSON_Duplicate(item, true);
    if (chance(2)) change_value(copy);
    if (cJSON_IsArray(holder)) {
        cJSON_AddItemToArray(holder, copy);
    } else {
        char key[64];
        snprintf(key, sizeof key, "%s", item->string);
        if (chance(2)) key[0] = (char)(key[0] ^ 0x20);
        cJSON_AddItemToObject(holder, key, copy);
    }
}

static cJSON *any_row(cJSON *json) { return any_child(part_of(json, "rows")); }

static void drop_row(cJSON *json) {
    cJSON *rows = part_of(json, "rows");
    cJSON_DeleteItemFromArray(rows, (int)chance((uint64_t)cJSON_GetArraySize(rows)));
}

/* The row takes place `at`. cJSON 1.7.15 refuses some inserts, but it always appends. */
static void insert_row(cJSON *rows, int at, cJSON *row) {
    int behind = cJSON_GetArraySize(rows) - at;
    cJSON_AddItemToArray(rows, row);
    while (behind-- > 0) cJSON_AddItemToArray(rows, cJSON_DetachItemFromArray(rows, at));
}

static void copy_row(cJSON *json) {
    cJSON *rows = part_of(json, "rows"), *copy = cJSON_Duplicate(any_row(json), true);
    if (chance(2)) change_leaf(copy);
    insert_row(rows, (int)chance((uint64_t)cJSON_GetArraySize(rows)), copy);
}

/* All rows of a sample again, under a name and a prompt of their own. */
static void copy_sample(cJSON *json) {
    cJSON *rows = part_of(json, "rows");
    const char *sample = part_of(any_row(json), "sample")->valuestring;
    int n = cJSON_GetArraySize(rows);
    for (int i = 0; i < n; i++) {
        cJSON *row = cJSON_GetArrayItem(rows, i);
        if (strcmp(part_of(row, "sample")->valuestring, sample) != 0) continue;
        cJSON *copy = cJSON_Duplicate(row, true);
        cJSON_SetValuestring(part_of(copy, "sample"), "a/copy");
        cJSON_SetValuestring(part_of(copy, "prompt_hash"), "0123456789abcdef");
        cJSON_AddItemToArray(rows, copy);
    }
}

static void drop_sample(cJSON *json) {
    cJSON *rows = part_of(json, "rows");
    char sample[96];
    snprintf(sample, sizeof sample, "%s", part_of(any_row(json), "sample")->valuestring);
    for (int i = cJSON_GetArraySize(rows); i-- > 0;)
        if (strcmp(part_of(cJSON_GetArrayItem(rows, i), "sample")->valuestring, sample) == 0)
            cJSON_DeleteItemFromArray(rows, i);
}

static void swap_rows(cJSON *json) {
    cJSON *rows = part_of(json, "rows");
    int n = cJSON_GetArraySize(rows), a = (int)chance((uint64_t)n), b = (int)chance((uint64_t)n);
    if (a == b) return;
    cJSON *first = cJSON_DetachItemFromArray(rows, a > b ? a : b),
          *second = cJSON_DetachItemFromArray(rows, a < b ? a : b);
    insert_row(rows, a < b ? a : b, first);
    insert_row(rows, a > b ? a : b, second);
}

static void swap_fields(cJSON *json) {
    cJSON *a = any_row(json), *b = any_row(json), *field = any_child(a);
    if (a == b || !cJSON_GetObjectItemCaseSensitive(b, field->string)) return;
    char key[64];
    snprintf(key, sizeof key, "%s", field->string);
    cJSON *first = cJSON_Duplicate(field, true), *second = cJSON_Duplicate(part_of(b, key), true);
    if (!cJSON_ReplaceItemInObjectCaseSensitive(a, key, second)) cJSON_Delete(second);
    if (!cJSON_ReplaceItemInObjectCaseSensitive(b, key, first)) cJSON_Delete(first);
}

/* One field of every row, or of all rows that have the same value in it. */
static void change_column(cJSON *json) {
    cJSON *model = any_row(json), *field = any_child(model), *row;
    char key[64];
    snprintf(key, sizeof key, "%s", field->string);
    cJSON *before = cJSON_Duplicate(field, true), *after = cJSON_Duplicate(field, true);
    bool all = chance(2);
    if (after->child)
        change_leaf(after);
    else
        change_value(after);
    cJSON_ArrayForEach(row, part_of(json, "rows")) {
        const cJSON *own = cJSON_GetObjectItemCaseSensitive(row, key);
        if (own && (all || cJSON_Compare(own, before, true)))
            cJSON_ReplaceItemInObjectCaseSensitive(row, key, cJSON_Duplicate(after, true));
    }
    cJSON_Delete(before);
    cJSON_Delete(after);
}

/* ---- consistent ones: the same change in rows, options and command, as a careful forger makes it */

static const char *const policies[] = {"native", "sink-window", "restored", "restored-all"};
enum { POLICIES = sizeof policies / sizeof policies[0] };

static void relabel_policy(cJSON *json) {
    char from[32];
    snprintf(from, sizeof from, "%s", part_of(any_row(json), "policy")->valuestring);
    relabel(json, "policy", from, policies[chance(POLICIES)]);
}

static void exchange_policies(cJSON *json) {
    const char *a = policies[chance(POLICIES)], *b = policies[chance(POLICIES)];
    relabel(json, "policy", a, "neither");
    relabel(json, "policy", b, a);
    relabel(json, "policy", "neither", b);
}

static void relabel_size(cJSON *json) {
    static const char *const keys[] = {"sink", "window", "window", "draft_window", "threads"};
    static const char *const others[] = {"0", "1", "8", "48", "64", "100", "1000", "4096"};
    const char *key = keys[chance(sizeof keys / sizeof keys[0])];
    double value = part_of(any_row(json), key)->valuedouble;
    char from[24], near[24];
    snprintf(from, sizeof from, "%.0f", value);
    snprintf(near, sizeof near, "%.0f", value + (double)chance(5) - 2);
    relabel(json, key, from, chance(3) ? others[chance(sizeof others / sizeof others[0])] : near);
}

/* The prompt of one sample is said to be a little longer or shorter. */
static void move_prompt_length(cJSON *json) {
    const char *sample = part_of(any_row(json), "sample")->valuestring;
    double by = (double)chance(200) - 100;
    cJSON *row;
    cJSON_ArrayForEach(row, part_of(json, "rows")) {
        cJSON *length = part_of(row, "prompt_tokens");
        if (strcmp(part_of(row, "sample")->valuestring, sample) == 0)
            cJSON_SetNumberValue(length, length->valuedouble + by);
    }
}

static void change_row(cJSON *json) { change_leaf(any_row(json)); }
static void drop_field(cJSON *json) { drop_leaf(any_row(json)); }
static void copy_field(cJSON *json) { copy_leaf(any_row(json)); }
static void change_options(cJSON *json) { change_leaf(part_of(json, "options")); }
static void drop_option(cJSON *json) { drop_leaf(part_of(json, "options")); }
static void copy_option(cJSON *json) { copy_leaf(part_of(json, "options")); }
static void change_environment(cJSON *json) { change_leaf(part_of(json, "environment")); }
static void drop_environment(cJSON *json) { drop_leaf(part_of(json, "environment")); }
static void copy_environment(cJSON *json) { copy_leaf(part_of(json, "environment")); }
static void change_anything(cJSON *json) { change_leaf(json); }

#define MUTATION(function)                                                                                             \
    { function, #function }
static const struct {
    void (*apply)(cJSON *json);
    const char *name;
} mutations[] = {
    MUTATION(drop_row),           MUTATION(copy_row),          MUTATION(copy_sample),      MUTATION(drop_sample),
    MUTATION(swap_rows),          MUTATION(swap_fields),       MUTATION(swap_fields),      MUTATION(change_column),
    MUTATION(change_row),         MUTATION(change_row),        MUTATION(change_row),       MUTATION(drop_field),
    MUTATION(copy_field),         MUTATION(change_options),    MUTATION(drop_option),      MUTATION(copy_option),
    MUTATION(change_environment), MUTATION(drop_environment),  MUTATION(copy_environment), MUTATION(change_anything),
    MUTATION(relabel_policy),     MUTATION(exchange_policies), MUTATION(relabel_size),     MUTATION(relabel_size),
    MUTATION(move_prompt_length),
};

/* What follows from other fields of a row is written to fit them. */
static void repair(cJSON *json) {
    cJSON *row;
    cJSON_ArrayForEach(row, part_of(json, "rows")) {
        static const char *const rates[][3] = {
            {"prefill_tokens_per_second", "prompt_tokens", "prefill_seconds"},
            {"decode_tokens_per_second", "completion_tokens", "decode_seconds"},
        };
        const cJSON *ids = cJSON_GetObjectItemCaseSensitive(row, "token_ids");
        cJSON *count = cJSON_GetObjectItemCaseSensitive(row, "completion_tokens");
        if (cJSON_IsArray(ids) && cJSON_IsNumber(count)) cJSON_SetNumberValue(count, cJSON_GetArraySize(ids));
        for (int i = 0; i < 2; i++) {
            cJSON *rate = cJSON_GetObjectItemCaseSensitive(row, rates[i][0]);
            const cJSON *tokens = cJSON_GetObjectItemCaseSensitive(row, rates[i][1]);
            const cJSON *seconds = cJSON_GetObjectItemCaseSensitive(row, rates[i][2]);
            if (!cJSON_IsNumber(rate) || !cJSON_IsNumber(tokens) || !cJSON_IsNumber(seconds)) continue;
            cJSON_SetNumberValue(rate, seconds->valuedouble > 0 ? tokens->valuedouble / seconds->valuedouble : 0);
        }
    }
}

/* ------------------------------------------------------------------------------------------- what nobody can know */

static int model_window; /* of the report that is mutated */

static double number_in(const cJSON *row, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(row, key);
    return cJSON_IsNumber(item) ? item->valuedouble : 0;
}

/* Sizes show in the bytes of rings, which come in steps, and only under policies that use them. */
static bool size_may_differ(const char *key, const cJSON *before, const cJSON *after) {
    const char *policy = part_of(before, "policy")->valuestring, *mode = part_of(before, "mode")->valuestring;
    int from = (int)number_in(before, key), to = (int)number_in(after, key);
    if (strcmp(key, "sink") == 0) return strcmp(policy, "native") == 0;
    if (strcmp(key, "window") == 0) {
        from = from < model_window ? from : model_window;
        to = to < model_window ? to : model_window;
        return strcmp(policy, "native") == 0 || kv_ring_positions(from) == kv_ring_positions(to);
    }
    if (strcmp(key, "draft_window") != 0) return false;
    bool plain = strcmp(mode, "ar") == 0 || strcmp(mode, "ngram") == 0 || strcmp(mode, "reforward") == 0;
    return (plain && strncmp(policy, "restored", 8) != 0) || kv_ring_positions(from) == kv_ring_positions(to);
}

static bool is_one_of(const char *const *keys, size_t n, const char *key) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(keys[i], key) == 0) return true;
    return false;
}
#define IS_ONE_OF(keys, key) is_one_of(keys, sizeof(keys) / sizeof(keys)[0], key)

/* Of a key of a row whose value has changed. docs/reference/reports.md, "What a gate cannot know". */
static bool row_may_differ(eval_kind kind, const char *key, const cJSON *before, const cJSON *after) {
    static const char *const times[] = {
        "prefill_seconds",           "decode_seconds",           "seconds",       "started_seconds",
        "prefill_tokens_per_second", "decode_tokens_per_second", "store_seconds", "load_seconds"};
    static const char *const drafts[] = {"verifier_forwards", "drafted_tokens", "accepted_tokens", "drafted_at",
                                         "accepted_at",       "draft_blocks",   "kv_bytes"};
    static const char *const contents[] = {"text", "prompt_hash", "token_ids", "log_probability_hash",
                                           "dropped_tokens"};
    if (IS_ONE_OF(times, key)) return true;
    if (strcmp(key, "threads") == 0) return kind != EVAL_LOSSLESS;
    if (kind == EVAL_BATCH) return number_in(before, "together") > 0 && IS_ONE_OF(drafts, key);
    if (kind != EVAL_VERIFY) return false;
    /* A certificate is not computed again. Memory grows by pages; the block that decodes last may have asked for one
     * more. */
    if (strcmp(key, "prompt_tokens") == 0)
        return fabs(number_in(before, key) - number_in(after, key)) < KV_PAGE_POSITIONS + BACKEND_MAX_DECODE_ROWS;
    return size_may_differ(key, before, after) || IS_ONE_OF(drafts, key) || IS_ONE_OF(contents, key);
}

static bool option_may_differ(eval_kind kind, const char *key) {
    /* The rows are held to them, and judged by what they say. */
    static const char *const certified[] = {"sink", "window", "draft_window", "seed", "max_tokens", "seconds"};
    return kind == EVAL_VERIFY ? IS_ONE_OF(certified, key) : strcmp(key, "jsonl") == 0;
}

static bool environment_may_differ(eval_kind kind, const char *key) {
    static const char *const machine[] = {"kakeya_version", "date", "cpu_model", "cores",
                                          "memory_bytes",   "os",   "backend",   "model"};
    static const char *const certified[] = {"fingerprint",        "precision", "vocabulary",     "stop_tokens",
                                            "drafter_block_size", "layers",    "sliding_window", "f_theta"};
    if (strcmp(key, "threads") == 0) return kind != EVAL_LOSSLESS;
    return IS_ONE_OF(machine, key) || (kind == EVAL_VERIFY && IS_ONE_OF(certified, key));
}

/* The first key in which two objects differ so that a claim changes; NULL: none. */
static const char *claim_changed(eval_kind kind, const cJSON *before, const cJSON *after) {
    static char path[160];
    const cJSON *item, *row, *other;
    cJSON_ArrayForEach(item, after) {
        const cJSON *own = cJSON_GetObjectItemCaseSensitive(before, item->string);
        bool known = strcmp(item->string, "summary") == 0 || strcmp(item->string, "command") == 0 ||
                     strcmp(item->string, "rows") == 0 || strcmp(item->string, "environment") == 0 ||
                     strcmp(item->string, "options") == 0;
        if (known || (own && cJSON_Compare(own, item, true))) continue;
        return item->string;
    }
    for (int options = 0; options < 2; options++) {
        const char *part = options ? "options" : "environment";
        const cJSON *from = part_of(before, part), *to = part_of(after, part);
        if (cJSON_GetArraySize(from) != cJSON_GetArraySize(to)) return part;
        cJSON_ArrayForEach(item, from) {
            other = cJSON_GetObjectItemCaseSensitive(to, item->string);
            if (other && cJSON_Compare(item, other, true)) continue;
            if (other && (options ? option_may_differ(kind, item->string) : environment_may_differ(kind, item->string)))
                continue;
            snprintf(path, sizeof path, "%s.%s", part, item->string);
            return path;
        }
    }
    const cJSON *rows = part_of(before, "rows");
    if (cJSON_GetArraySize(rows) != cJSON_GetArraySize(part_of(after, "rows"))) return "rows";
    row = part_of(after, "rows")->child;
    for (const cJSON *own = rows->child; own; own = own->next, row = row->next) {
        if (cJSON_GetArraySize(own) != cJSON_GetArraySize(row)) return "keys of a row";
        cJSON_ArrayForEach(item, own) {
            other = cJSON_GetObjectItemCaseSensitive(row, item->string);
            if (other && (cJSON_Compare(item, other, true) || row_may_differ(kind, item->string, own, row))) continue;
            snprintf(path, sizeof path, "rows[].%s (%s)", item->string, part_of(own, "sample")->valuestring);
            return path;
        }
    }
    return NULL;
}

/* -------------------------------------------------------------------------------------------------------- the tests */

enum { STRIDE = 6 }; /* from seed to seed; kinds that came later share their chance with others */

static void no_mutation_passes_that_changes_a_claim(void **state) {
    (void)state;
    size_t holes = 0;
    const size_t count = sweep_whole() ? MUTATIONS : SHORT;
    for (int k = 0; k < EVAL_KIND_COUNT; k++) {
        eval_kind kind = (eval_kind)k;
        cJSON *report = true_report(kind);
        model_window = (int)part_of(part_of(report, "environment"), "sliding_window")->valuedouble;
        repair(report);
        derive_again(kind, report);
        char *unchanged = cJSON_PrintUnformatted(report);
        size_t refused = 0, unknowable = 0, same = 0;
        for (uint64_t seed = 0; seed < count; seed++) {
            state_of_chance = seed * STRIDE + (uint64_t)k;
            size_t m = chance(sizeof mutations / sizeof mutations[0]);
            cJSON *mutated = cJSON_Duplicate(report, true);
            mutations[m].apply(mutated);
            repair(mutated);
            derive_again(kind, mutated);
            gate_result result = judge_replayed(kind, mutated);
            refused += result.n_violations > 0;
            if (!result.n_violations) {
                const char *claim = claim_changed(kind, report, mutated);
                if (claim && holes++ < 20)
                    print_error("%s, seed %llu, %s: passes, though %s has changed\n", eval_kind_name(kind),
                                (unsigned long long)seed, mutations[m].name, claim);
                char *text = cJSON_PrintUnformatted(mutated);
                bool changed = strcmp(text, unchanged) != 0;
                cJSON_free(text);
                same += !changed;
                unknowable += changed && !claim;
            }
            gate_result_free(&result);
            cJSON_Delete(mutated);
        }
        print_message("%s: %zu mutations, %zu refused, %zu passed that the gate cannot know, %zu changed nothing\n",
                      eval_kind_name(kind), count, refused, unknowable, same);
        /* A mutator that no longer reaches what is checked would pass, too. */
        assert_true(refused > count / 2);
        cJSON_free(unchanged);
        cJSON_Delete(report);
    }
    assert_int_equal(holes, 0);
}

/* Where, with what and when a true report was made changes no claim. */
static void harmless_edits_pass(void **state) {
    (void)state;
    static const char *const texts[] = {"kakeya_version", "cpu_model", "os", "model", "backend"};
    for (int k = 0; k < EVAL_KIND_COUNT; k++) {
        cJSON *report = true_report((eval_kind)k), *environment = part_of(report, "environment");
        for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
            cJSON_ReplaceItemInObject(environment, texts[i], cJSON_CreateString("another"));
        cJSON_ReplaceItemInObject(environment, "date", cJSON_CreateString("2031-02-03T04:05:06Z"));
        cJSON_ReplaceItemInObject(environment, "cores", cJSON_CreateNumber(128));
        /* the order of keys */
        cJSON *rows = cJSON_DetachItemFromObject(report, "rows"), *row = rows->child;
        cJSON_AddItemToObject(row, "sample", cJSON_DetachItemFromObject(row, "sample"));
        cJSON *first = cJSON_DetachItemFromArray(report, 0);
        cJSON_AddItemToObject(report, "rows", rows);
        char key[32];
        snprintf(key, sizeof key, "%s", first->string);
        cJSON_AddItemToObject(report, key, first);
        gate_result result = judge(report);
        for (size_t i = 0; i < result.n_violations; i++)
            print_error("[%s] %s\n", result.violation[i].code, result.violation[i].message);
        assert_int_equal(result.n_violations, 0);
        gate_result_free(&result);
        cJSON_Delete(report);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(harmless_edits_pass),
        cmocka_unit_test(no_mutation_passes_that_changes_a_claim),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
