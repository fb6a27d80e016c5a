/* The runs of every evaluation, in their order. */
#include "measure/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "measure/lossless_batch_plan.h"
#include "measure/lossless_plan.h"
#include "measure/niah.h"
#include "measure/options.h"
#include "measure/verify_plan.h"

typedef struct plan {
    const cJSON *options, *environment;
    size_t limit;
    eval_rows *rows;
    kakeya_error *error;
    kakeya_status status;
} plan;

static const cJSON *option(const plan *p, const char *key) { return cJSON_GetObjectItemCaseSensitive(p->options, key); }

static int number(const plan *p, const char *key) {
    const cJSON *item = option(p, key);
    return json_is_integer(item, INT32_MIN, INT32_MAX) ? (int)item->valuedouble : 0;
}

static uint64_t seed_of(const plan *p) {
    uint64_t seed = 0;
    (void)eval_seed_read(option(p, "seed"), &seed);
    return seed;
}

static bool environment_flag(const plan *p, const char *key) {
    return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(p->environment, key));
}

static int environment_threads(const plan *p) {
    const cJSON *threads = cJSON_GetObjectItemCaseSensitive(p->environment, "threads");
    return cJSON_IsNumber(threads) && threads->valuedouble < 1e9 ? (int)threads->valuedouble : 0;
}

static eval_arm arm_of(const plan *p, const char *policy, const char *mode) {
    eval_arm arm = {.sink = number(p, "sink"),
                    .window = number(p, "window"),
                    .draft_window = number(p, "draft_window"),
                    .threads = environment_threads(p),
                    .scaled_embedding = environment_flag(p, "drafter_scaled_embedding"),
                    .mix_alpha = -1};
    snprintf(arm.policy, sizeof arm.policy, "%s", policy);
    snprintf(arm.mode, sizeof arm.mode, "%s", mode);
    return arm;
}

/* NULL when out of memory. */
static eval_row *add(plan *p, const char *sample, const eval_arm *arm, bool warmup) {
    eval_row row;
    eval_row_init(&row);
    snprintf(row.sample, sizeof row.sample, "%s", sample);
    row.arm = *arm;
    row.warmup = warmup;
    p->status = eval_rows_add(p->rows, &row, p->error);
    return p->status == KAKEYA_OK ? &p->rows->row[p->rows->n - 1] : NULL;
}

/* ---------------------------------------------------------------------------------------------------------- niah */

enum { MAX_ARMS = 64, MAX_RUNGS = 64 };

static size_t needle_arms(const plan *p, eval_arm arms[MAX_ARMS]) {
    const cJSON *policy, *window, *windows = option(p, "draft_windows");
    const char *mode = option(p, "mode")->valuestring;
    size_t n = 0;
    cJSON_ArrayForEach(policy, option(p, "policies")) {
        if (n == MAX_ARMS) return n;
        arms[n] = arm_of(p, policy->valuestring, "ar");
        arms[n++].draft_window = (int)windows->child->valuedouble;
        cJSON_ArrayForEach(window, windows) {
            if (strcmp(mode, "ar") == 0 || n == MAX_ARMS) break;
            arms[n] = arm_of(p, policy->valuestring, mode);
            arms[n].draft_window = (int)window->valuedouble;
            arms[n++].draft_length = number(p, "draft_length");
        }
    }
    return n;
}

static bool add_needle(plan *p, const char *sample, const eval_arm *arm, bool warmup, int lines, const char *answer) {
    eval_row *row = add(p, sample, arm, warmup);
    if (!row) return false;
    row->lines = lines;
    row->expected = strdup(answer);
    if (!row->expected) p->status = error_set(p->error, KAKEYA_OUT_OF_MEMORY, "no memory for a plan");
    return row->expected != NULL;
}

/* The warm-up prompt, then rung by rung; arms take turns on every prompt and begin with another one each time. The
 * diagnostics follow. */
static void add_ladder(plan *p, const niah_dataset *drawn, int samples) {
    eval_arm arms[MAX_ARMS];
    size_t n_arms = needle_arms(p, arms), measured = drawn->n - 1;
    const niah_sample *warmup = &drawn->samples[measured];
    const cJSON *alpha;
    for (size_t a = 0; a < n_arms; a++)
        if (!add_needle(p, "warmup", &arms[a], true, warmup->lines, warmup->answer)) return;
    for (size_t i = 0; i < 2 * measured && p->rows->n <= p->limit; i++) {
        const niah_sample *s = &drawn->samples[i % measured];
        char sample[96];
        snprintf(sample, sizeof sample, "lines-%d/%zu", s->lines, i % measured % (size_t)samples);
        for (size_t a = 0; i < measured && a < n_arms; a++)
            if (!add_needle(p, sample, &arms[(a + i + 1) % n_arms], false, s->lines, s->answer)) return;
        if (i < measured) continue;
        cJSON_ArrayForEach(alpha, option(p, "mix_alpha")) {
            eval_arm arm = arm_of(p, "restored-all", "ar");
            arm.mix_alpha = alpha->valuedouble;
            if (!add_needle(p, sample, &arm, false, s->lines, s->answer)) return;
        }
    }
}

static void plan_niah(plan *p) {
    int samples = number(p, "samples"), lines[MAX_RUNGS];
    size_t n = 0;
    const cJSON *rung;
    niah_dataset drawn;
    cJSON_ArrayForEach(rung, option(p, "lines")) {
        if (n == MAX_RUNGS) return;
        lines[n++] = (int)rung->valuedouble;
    }
    if (n * (size_t)samples > p->limit) return; /* nothing is drawn for a promise that the rows cannot keep */
    const bool pictures = cJSON_IsTrue(option(p, "pictures"));
    p->status = niah_ladder(lines, n, samples, seed_of(p), pictures, true, &drawn, p->error);
    if (p->status != KAKEYA_OK) return;
    add_ladder(p, &drawn, samples);
    niah_dataset_free(&drawn);
}

/* ------------------------------------------------------------------------------------------------------ other kinds */

static void plan_fidelity(plan *p) {
    const cJSON *sample, *policy, *window;
    cJSON_ArrayForEach(sample, option(p, "samples")) {
        if (p->rows->n > p->limit) return;
        eval_arm native = arm_of(p, "native", "score");
        native.scaled_embedding = false; /* not recorded: nothing is drafted */
        add(p, sample->valuestring, &native, false);
        for (policy = option(p, "policies")->child->next; policy; policy = policy->next) {
            cJSON_ArrayForEach(window, option(p, "windows")) {
                eval_arm arm = native;
                snprintf(arm.policy, sizeof arm.policy, "%s", policy->valuestring);
                arm.window = (int)window->valuedouble;
                add(p, sample->valuestring, &arm, false);
            }
        }
    }
}

/* Draft lengths of a source, of n-grams one arm. */
static void add_source(plan *p, const char *policy, const char *source, eval_arm arms[MAX_ARMS], size_t *n) {
    const cJSON *length;
    eval_arm arm = arm_of(p, policy, "speculative");
    eval_arm_source(&arm, source);
    if (strcmp(source, "ngram") == 0) {
        if (*n < MAX_ARMS) arms[(*n)++] = arm;
        return;
    }
    cJSON_ArrayForEach(length, option(p, "draft_lengths")) {
        if (*n == MAX_ARMS) return;
        arms[*n] = arm;
        arms[(*n)++].draft_length = (int)length->valuedouble;
    }
}

/* Reports without `sources` are of one drafter, and without n-grams. */
static void plan_code(plan *p) {
    eval_arm arms[MAX_ARMS];
    size_t n = 0, turn = 0;
    const cJSON *policy, *source, *file;
    cJSON_ArrayForEach(policy, option(p, "policies")) {
        if (n == MAX_ARMS) break;
        arms[n++] = arm_of(p, policy->valuestring, "ar");
        if (!option(p, "sources") && environment_flag(p, "drafter"))
            add_source(p, policy->valuestring, "dflash", arms, &n);
        cJSON_ArrayForEach(source, option(p, "sources"))
            add_source(p, policy->valuestring, source->valuestring, arms, &n);
        if (n < MAX_ARMS) arms[n++] = arm_of(p, policy->valuestring, "auto");
    }
    for (size_t a = 0; a < n; a++) add(p, "warmup", &arms[a], true);
    for (int r = 0; r < number(p, "repetitions"); r++) {
        cJSON_ArrayForEach(file, option(p, "files")) {
            for (size_t a = 0; a < n; a++) {
                if (p->rows->n > p->limit) return;
                eval_row *row = add(p, file->valuestring, &arms[(a + turn) % n], false);
                if (!row) return;
                row->repetition = r;
            }
            turn++;
        }
    }
}

/* A source's arms, of DFlash both forms. */
static size_t source_arms(const plan *p, const char *source, eval_arm *arms) {
    const bool forms = strcmp(source, "dflash") == 0;
    arms[0] = arm_of(p, "native", "speculative");
    eval_arm_source(&arms[0], source);
    arms[0].draft_length = number(p, "draft_length");
    arms[1] = arms[0];
    if (!forms) return 1;
    arms[0].scaled_embedding = false;
    arms[1].scaled_embedding = true;
    return 2;
}

/* Reports without `sources` are of DFlash alone. */
static void plan_acceptance(plan *p) {
    eval_arm arms[8];
    size_t n = 0;
    const cJSON *sample, *source;
    if (!option(p, "sources")) n = source_arms(p, "dflash", arms);
    cJSON_ArrayForEach(source, option(p, "sources")) n += source_arms(p, source->valuestring, arms + n);
    for (size_t a = 0; a < n; a++) add(p, "warmup", &arms[a], true);
    const cJSON *category = option(p, "categories") ? option(p, "categories")->child : NULL;
    cJSON_ArrayForEach(sample, option(p, "samples")) {
        if (p->rows->n > p->limit) return;
        for (size_t a = 0; a < n; a++) {
            eval_row *row = add(p, sample->valuestring, &arms[a], false);
            if (row && category) snprintf(row->category, sizeof row->category, "%s", category->valuestring);
        }
        if (category) category = category->next;
    }
}

static void plan_lossless(plan *p) {
    lossless_variant variants[LOSSLESS_MAX_VARIANTS];
    int prompts = number(p, "prompts"), slow = number(p, "reference_prompts");
    const cJSON *policy;
    for (int i = 0; i < prompts && p->rows->n <= p->limit; i++) {
        char sample[96];
        snprintf(sample, sizeof sample, "%03d/%s", i, lossless_kind_names[lossless_kind(i)]);
        cJSON_ArrayForEach(policy, option(p, "policies")) {
            size_t n = lossless_variants(i, policy->valuestring, environment_flag(p, "drafter"), slow, variants);
            for (size_t v = 0; v < n; v++) {
                eval_arm arm = arm_of(p, policy->valuestring, variants[v].mode);
                arm.threads = lossless_threads[variants[v].engine];
                arm.prompt_chunk = variants[v].prompt_chunk;
                arm.draft_length = variants[v].draft_length;
                arm.temperature = lossless_temperature(i);
                eval_row *row = add(p, sample, &arm, false);
                if (!row) return;
                row->truncated = variants[v].truncated;
                snprintf(row->prompt_kind, sizeof row->prompt_kind, "%s", lossless_kind_names[lossless_kind(i)]);
            }
        }
    }
}

static const char *policy_at(const plan *p, int index) {
    const cJSON *policy = cJSON_GetArrayItem(option(p, "policies"), index);
    return policy->valuestring;
}

static bool add_session(plan *p, int composition, int session, const lossless_batch_session *s, int together) {
    char sample[96];
    lossless_batch_sample(composition, session, s->kind, sample, sizeof sample);
    eval_arm arm = arm_of(p, policy_at(p, s->policy), together ? s->mode : "ar");
    arm.temperature = s->temperature;
    arm.together = together;
    if (together) {
        arm.draft_length = s->draft_length;
        arm.prompt_chunk = s->prompt_chunk;
    }
    eval_row *row = add(p, sample, &arm, false);
    if (!row) return false;
    snprintf(row->prompt_kind, sizeof row->prompt_kind, "%s", lossless_kind_names[s->kind]);
    row->forked = together && s->forked;
    row->cancel_after = s->cancel_after;
    row->has_log_probabilities = s->log_probabilities;
    return true;
}

/* Every session alone, then all of them together. */
static void plan_batch(plan *p) {
    lossless_batch_session sessions[LOSSLESS_BATCH_SESSIONS];
    const lossless_batch_options options = {.seed = seed_of(p),
                                            .sessions = number(p, "sessions"),
                                            .max_tokens = number(p, "max_tokens"),
                                            .policies = cJSON_GetArraySize(option(p, "policies")),
                                            .drafter = environment_flag(p, "drafter")};
    int compositions = number(p, "compositions");
    for (int c = 0; c < compositions && p->rows->n <= p->limit; c++) {
        int n = lossless_batch_composition(&options, c, sessions);
        for (int i = 0; i < 2 * n; i++)
            if (!add_session(p, c, i % n, &sessions[i % n], i < n ? 0 : n)) return;
    }
}

/* Every sequence, with its needle prompt, under every format. */
static void plan_kv_format(plan *p) {
    const cJSON *samples = option(p, "samples"), *format, *sample;
    niah_dataset drawn = {0};
    size_t at = 0;
    int lines = number(p, "lines"), n = cJSON_GetArraySize(samples);
    bool as_stored = cJSON_IsTrue(option(p, "as_stored"));
    if ((size_t)n > p->limit) return;
    p->status = niah_rung(lines, n, seed_of(p), true, &drawn, p->error);
    if (p->status != KAKEYA_OK) return;
    cJSON_ArrayForEach(sample, samples) {
        const char *answer = drawn.samples[at++].answer;
        cJSON_ArrayForEach(format, option(p, "formats")) {
            eval_arm arm = arm_of(p, "native", "score");
            arm.scaled_embedding = false;
            arm.as_stored = as_stored;
            snprintf(arm.kv_format, sizeof arm.kv_format, "%s", format->valuestring);
            if (!add_needle(p, sample->valuestring, &arm, false, lines, answer)) break;
        }
    }
    niah_dataset_free(&drawn);
}

static const char *name_at(const plan *p, const char *list, int index) {
    return cJSON_GetArrayItem(option(p, list), index)->valuestring;
}

/* Rounds of this process, then those of the other one. */
static void plan_verify(plan *p) {
    verify_stream streams[VERIFY_STREAMS];
    const cJSON *geometry = cJSON_GetObjectItemCaseSensitive(p->environment, "kv_geometry");
    const verify_plan verify = {.seed = seed_of(p),
                                .policies = cJSON_GetArraySize(option(p, "policies")),
                                .formats = cJSON_GetArraySize(option(p, "kv_formats")),
                                .drafter = environment_flag(p, "drafter"),
                                .assistant = cJSON_IsObject(cJSON_GetObjectItemCaseSensitive(geometry, "drafter")) &&
                                             cJSON_HasObjectItem(geometry, "assistant_state_values")};
    for (int elsewhere = 0; elsewhere < 2; elsewhere++) {
        int rounds = number(p, elsewhere ? "rounds_elsewhere" : "rounds");
        for (int r = 0; r < rounds && p->rows->n <= p->limit; r++) {
            int n = verify_round(&verify, r, elsewhere, streams);
            for (int i = 0; i < n; i++) {
                eval_arm arm = arm_of(p, "native", "ar");
                if (elsewhere) arm.threads = number(p, "threads_elsewhere");
                eval_row *row = add(p, "", &arm, false);
                if (!row) return;
                verify_plan_row(&verify, r, &streams[i], name_at(p, "policies", streams[i].policy),
                                name_at(p, "kv_formats", streams[i].format), row);
            }
        }
    }
}

kakeya_status eval_plan(eval_kind kind, const cJSON *options, const cJSON *environment, size_t limit, eval_rows *out,
                        kakeya_error *error) {
    static void (*const make[EVAL_KIND_COUNT])(plan *) = {plan_niah,     plan_fidelity, plan_code,      plan_acceptance,
                                                          plan_lossless, plan_batch,    plan_kv_format, plan_verify};
    plan p = {.options = options, .environment = environment, .limit = limit, .rows = out, .error = error};
    *out = (eval_rows){0};
    make[kind](&p);
    if (p.status != KAKEYA_OK) eval_rows_free(out);
    return p.status;
}
