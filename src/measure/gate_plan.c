/* The runs that a report's options promise, in their order. The rows must be these runs, whole: a row that is missing,
 * added or given another label leaves a gap here, whatever the summary says. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "measure/gate_private.h"
#include "measure/lossless_batch_plan.h"
#include "measure/lossless_plan.h"
#include "measure/niah.h"
#include "measure/verify_plan.h"

typedef struct plan_run {
    eval_row row; /* sample, prompt_kind, arm, warmup, repetition, lines; expected, where the seed says it */
    bool found;
} plan_run;

typedef struct plan {
    gate_context *context;
    plan_run *run;
    size_t n, capacity;
    size_t limit; /* about: what promises so much more than the rows hold need not be written down whole */
} plan;

static const cJSON *option(const plan *p, const char *key) {
    return cJSON_GetObjectItemCaseSensitive(p->context->options, key);
}

static bool environment_flag(const plan *p, const char *key) {
    return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(p->context->environment, key));
}

static int environment_threads(const plan *p) {
    const cJSON *threads = cJSON_GetObjectItemCaseSensitive(p->context->environment, "threads");
    return cJSON_IsNumber(threads) && threads->valuedouble < 1e9 ? (int)threads->valuedouble : 0;
}

static eval_arm arm_of(const plan *p, const char *policy, const char *mode) {
    eval_arm arm = {.sink = gate_option(p->context, "sink"),
                    .window = gate_option(p->context, "window"),
                    .draft_window = gate_option(p->context, "draft_window"),
                    .threads = environment_threads(p),
                    .scaled_embedding = environment_flag(p, "drafter_scaled_embedding"),
                    .mix_alpha = -1};
    snprintf(arm.policy, sizeof arm.policy, "%s", policy);
    snprintf(arm.mode, sizeof arm.mode, "%s", mode);
    return arm;
}

/* NULL when out of memory. */
static eval_row *add(plan *p, const char *sample, const eval_arm *arm, bool warmup) {
    if (p->n == p->capacity) {
        size_t capacity = p->capacity ? 2 * p->capacity : 256;
        plan_run *grown = realloc(p->run, capacity * sizeof *grown);
        if (!grown) {
            p->context->out_of_memory = true;
            return NULL;
        }
        p->run = grown;
        p->capacity = capacity;
    }
    plan_run *run = &p->run[p->n++];
    *run = (plan_run){0};
    eval_row_init(&run->row);
    snprintf(run->row.sample, sizeof run->row.sample, "%s", sample);
    run->row.arm = *arm;
    run->row.warmup = warmup;
    return &run->row;
}

static void plan_free(plan *p) {
    for (size_t i = 0; i < p->n; i++) eval_row_free(&p->run[i].row);
    free(p->run);
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
            arms[n++].draft_length = gate_option(p->context, "draft_length");
        }
    }
    return n;
}

static bool add_needle(plan *p, const char *sample, const eval_arm *arm, bool warmup, int lines, const char *answer) {
    eval_row *row = add(p, sample, arm, warmup);
    if (!row) return false;
    row->lines = lines;
    row->expected = strdup(answer);
    if (!row->expected) p->context->out_of_memory = true;
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
    for (size_t i = 0; i < 2 * measured && p->n <= p->limit; i++) {
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
    int samples = gate_option(p->context, "samples"), lines[MAX_RUNGS];
    size_t n = 0;
    const cJSON *rung;
    niah_dataset drawn;
    kakeya_error problem;
    cJSON_ArrayForEach(rung, option(p, "lines")) {
        if (n == MAX_RUNGS) return;
        lines[n++] = (int)rung->valuedouble;
    }
    if (n * (size_t)samples > p->limit) return; /* nothing is drawn for a promise that the rows cannot keep */
    const bool pictures = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(p->context->options, "pictures"));
    if (niah_ladder(lines, n, samples, gate_option_seed(p->context), pictures, true, &drawn, &problem) != KAKEYA_OK)
        return;
    add_ladder(p, &drawn, samples);
    niah_dataset_free(&drawn);
}

/* ------------------------------------------------------------------------------------------------------ other kinds */

static void plan_fidelity(plan *p) {
    const cJSON *sample, *policy, *window;
    if (strcmp(option(p, "policies")->child->valuestring, "native") != 0)
        gate_violate(p->context, "OPTIONS_FORM", "options.policies does not begin with native attention");
    cJSON_ArrayForEach(sample, option(p, "samples")) {
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
    for (int r = 0; r < gate_option(p->context, "repetitions"); r++) {
        cJSON_ArrayForEach(file, option(p, "files")) {
            for (size_t a = 0; a < n; a++) {
                if (p->n > p->limit) return;
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
    arms[0].draft_length = gate_option(p->context, "draft_length");
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
        for (size_t a = 0; a < n; a++) {
            eval_row *row = add(p, sample->valuestring, &arms[a], false);
            if (row && category) snprintf(row->category, sizeof row->category, "%s", category->valuestring);
        }
        if (category) category = category->next;
    }
}

static void plan_lossless(plan *p) {
    lossless_variant variants[LOSSLESS_MAX_VARIANTS];
    int prompts = gate_option(p->context, "prompts"), slow = gate_option(p->context, "reference_prompts");
    const cJSON *policy;
    if (environment_threads(p) != lossless_threads[0])
        gate_violate(p->context, "ENVIRONMENT", "environment.threads is %d, but the evaluation begins with %d",
                     environment_threads(p), lossless_threads[0]);
    for (int i = 0; i < prompts && p->n <= p->limit; i++) {
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
    const lossless_batch_options options = {.seed = gate_option_seed(p->context),
                                            .sessions = gate_option(p->context, "sessions"),
                                            .max_tokens = gate_option(p->context, "max_tokens"),
                                            .policies = cJSON_GetArraySize(option(p, "policies")),
                                            .drafter = environment_flag(p, "drafter")};
    int compositions = gate_option(p->context, "compositions");
    for (int c = 0; c < compositions && p->n <= p->limit; c++) {
        int n = lossless_batch_composition(&options, c, sessions);
        for (int i = 0; i < 2 * n; i++)
            if (!add_session(p, c, i % n, &sessions[i % n], i < n ? 0 : n)) return;
    }
}

/* Every sequence, with its needle prompt, under every format. */
static void plan_kv_format(plan *p) {
    const cJSON *samples = option(p, "samples"), *format, *sample;
    niah_dataset drawn = {0};
    kakeya_error problem;
    size_t at = 0;
    int lines = gate_option(p->context, "lines"), n = cJSON_GetArraySize(samples);
    bool as_stored = cJSON_IsTrue(option(p, "as_stored"));
    const char *reference = eval_reference_format(as_stored);
    if (strcmp(option(p, "formats")->child->valuestring, reference) != 0)
        gate_violate(p->context, "OPTIONS_FORM", "options.formats does not begin with %s", reference);
    if ((size_t)n > p->limit || niah_rung(lines, n, gate_option_seed(p->context), true, &drawn, &problem)) return;
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
    const verify_plan verify = {.seed = gate_option_seed(p->context),
                                .policies = cJSON_GetArraySize(option(p, "policies")),
                                .formats = cJSON_GetArraySize(option(p, "kv_formats")),
                                .drafter = environment_flag(p, "drafter"),
                                .assistant = p->context->geometry.has_drafter && p->context->geometry.state_values};
    for (int elsewhere = 0; elsewhere < 2; elsewhere++) {
        int rounds = gate_option(p->context, elsewhere ? "rounds_elsewhere" : "rounds");
        for (int r = 0; r < rounds && p->n <= p->limit; r++) {
            int n = verify_round(&verify, r, elsewhere, streams);
            for (int i = 0; i < n; i++) {
                eval_arm arm = arm_of(p, "native", "ar");
                if (elsewhere) arm.threads = gate_option(p->context, "threads_elsewhere");
                eval_row *row = add(p, "", &arm, false);
                if (!row) return;
                verify_plan_row(&verify, r, &streams[i], name_at(p, "policies", streams[i].policy),
                                name_at(p, "kv_formats", streams[i].format), row);
            }
        }
    }
}

/* ------------------------------------------------------------------------------------------------------- comparison */

bool gate_same_run(const eval_row *a, const eval_row *b) {
    return a->warmup == b->warmup && a->repetition == b->repetition && a->lines == b->lines &&
           strcmp(a->sample, b->sample) == 0 && strcmp(a->prompt_kind, b->prompt_kind) == 0 &&
           strcmp(a->category, b->category) == 0 && a->forked == b->forked && a->truncated == b->truncated &&
           a->cancel_after == b->cancel_after && a->has_log_probabilities == b->has_log_probabilities &&
           eval_arm_equal(&a->arm, &b->arm);
}

static void describe(const eval_row *row, char *out, size_t bytes) {
    char label[160];
    eval_arm_label(&row->arm, label, sizeof label);
    snprintf(out, bytes, "%s%.60s, %s%s", row->warmup ? "warm-up " : "", row->sample, label,
             row->repetition ? ", repeated" : "");
}

static void check_answer(gate_context *context, size_t i, const eval_row *planned) {
    const eval_row *row = &context->rows.row[i];
    if (!planned->expected || (row->expected && strcmp(planned->expected, row->expected) == 0)) return;
    gate_violate(context, "ANSWER_MISMATCH",
                 "rows[%zu] (%s): the expected answer is \"%.40s\", the seed draws \"%.40s\"", i, row->sample,
                 row->expected ? row->expected : "", planned->expected);
}

/* Rows out of place are looked for; what is then left over on either side is missing or was never promised. */
static void explain(plan *p) {
    gate_context *context = p->context;
    char text[300];
    size_t missing = 0, unpromised = 0;
    for (size_t i = 0; i < context->rows.n; i++) {
        bool found = false;
        for (size_t j = 0; j < p->n && !found; j++) {
            if (p->run[j].found || !gate_same_run(&context->rows.row[i], &p->run[j].row)) continue;
            found = p->run[j].found = true;
        }
        if (found || unpromised++ >= GATE_MAX_PER_CODE) continue;
        describe(&context->rows.row[i], text, sizeof text);
        gate_violate(context, "ROW_UNPROMISED", "rows[%zu] (%s): the options do not promise this run", i, text);
    }
    for (size_t j = 0; j < p->n; j++) {
        if (p->run[j].found || missing++ >= GATE_MAX_PER_CODE) continue;
        describe(&p->run[j].row, text, sizeof text);
        gate_violate(context, "ROW_MISSING", "the options promise %s, but no row holds it", text);
    }
    if (!missing && !unpromised)
        gate_violate(context, "ROW_ORDER", "the rows do not stand in the order in which the evaluation runs them");
}

/* How many samples there are: as many as are named, and enough of them for a figure to mean anything. */
static void check_numbers(const plan *p) {
    static const char *const keys[EVAL_KIND_COUNT] = {
        [EVAL_NIAH] = "samples",        [EVAL_CODE] = "repetitions", [EVAL_FIDELITY] = "sequences",
        [EVAL_KV_FORMAT] = "sequences", [EVAL_LOSSLESS] = "prompts", [EVAL_ACCEPTANCE] = "prompts",
    };
    gate_context *context = p->context;
    if (context->kind == EVAL_VERIFY) return;
    const char *key = keys[context->kind];
    const cJSON *samples = cJSON_IsArray(option(p, "samples")) ? option(p, "samples") : NULL;
    int n = key ? gate_option(context, key) : (int)p->n / 2; /* of a batch every session, alone and together */
    if (samples && n != cJSON_GetArraySize(samples))
        gate_violate(context, "ROW_MISSING", "options.%s is %d, but %d samples are named", key, n,
                     cJSON_GetArraySize(samples));
    if (n < GATE_MIN_SAMPLES)
        gate_violate(context, "SAMPLE_COUNT", "%d %s; at least %d are needed", n, key ? key : "sessions",
                     GATE_MIN_SAMPLES);
}

void gate_rule_plan(gate_context *context) {
    static void (*const make[EVAL_KIND_COUNT])(plan *) = {plan_niah,     plan_fidelity, plan_code,      plan_acceptance,
                                                          plan_lossless, plan_batch,    plan_kv_format, plan_verify};
    if (!context->options_sound) return; /* refused already */
    plan p = {.context = context, .limit = 4 * context->rows.n + 4096};
    make[context->kind](&p);
    bool same = p.n == context->rows.n;
    for (size_t i = 0; same && i < p.n; i++) same = gate_same_run(&context->rows.row[i], &p.run[i].row);
    if (!same && !context->out_of_memory) explain(&p);
    for (size_t i = 0; same && i < p.n; i++) check_answer(context, i, &p.run[i].row);
    check_numbers(&p);
    plan_free(&p);
}
