#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "measure/harness.h"
#include "measure/mt19937.h"
#include "measure/niah.h"

enum {
    KINDS = 3,
    TEMPERATURES = 3,
    CHUNKS = 4,
    ENGINES = 2,
    VARIANTS = 6,
    MAX_PROMPT_TOKENS = 400,
    MIN_PROMPT_TOKENS = 24
};
static const char *const kind_names[KINDS] = {"needle", "code", "random"};
static const double temperatures[TEMPERATURES] = {0, 0.7, 1};
static const int chunks[CHUNKS] = {0, 13, 64, 129}; /* prompt tokens per forward; 0: the backend's choice */
static const int thread_counts[ENGINES] = {2, 1};

typedef struct lossless_run {
    eval_harness harness;
    const eval_lossless_options *options;
    kakeya_engine *engine[ENGINES]; /* by thread_counts; the first is the harness's */
    const char *policies[HARNESS_POLICIES];
    size_t n_policies;
    bool drafter;
    eval_sequences texts;
    mt19937 generator; /* of everything drawn for prompts */
} lossless_run;

typedef struct lossless_prompt {
    char sample[32];
    int kind;
    double temperature;
    int32_t *ids;
    size_t n;
} lossless_prompt;

/* ----------------------------------------------------------------------------------------------------- prompts */

static kakeya_status needle_prompt(lossless_run *run, lossless_prompt *prompt, kakeya_error *error) {
    niah_options options;
    niah_dataset dataset;
    niah_options_init(&options);
    options.samples = 1;
    options.min_lines = 10;
    options.max_lines = 16;
    options.seed = mt19937_next(&run->generator);
    kakeya_status status = niah_generate(&options, &dataset, error);
    if (status != KAKEYA_OK) return status;
    kakeya_message message = {"user", dataset.samples[0].prompt};
    int32_t *ids = NULL;
    status = kakeya_chat_tokens(run->harness.engine, &message, 1, false, &ids, &prompt->n, error);
    niah_dataset_free(&dataset);
    if (status != KAKEYA_OK) return status;
    prompt->ids = malloc(prompt->n * sizeof *ids);
    if (prompt->ids) memcpy(prompt->ids, ids, prompt->n * sizeof *ids);
    kakeya_free(ids);
    return prompt->ids ? KAKEYA_OK : error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for a prompt");
}

/* A stretch of one of the texts, or random ids, behind the text's first token (<bos>). */
static kakeya_status stretch_prompt(lossless_run *run, lossless_prompt *prompt, bool random, kakeya_error *error) {
    mt19937 *generator = &run->generator;
    const eval_sequence *text = &run->texts.sequence[mt19937_below(generator, (uint32_t)run->texts.n)];
    int longest = random || text->n > MAX_PROMPT_TOKENS ? MAX_PROMPT_TOKENS : (int)text->n;
    prompt->n = (size_t)mt19937_between(generator, MIN_PROMPT_TOKENS, longest);
    prompt->ids = malloc(prompt->n * sizeof *prompt->ids);
    if (!prompt->ids) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for a prompt");
    uint32_t vocab = (uint32_t)kakeya_engine_vocab_size(run->harness.engine);
    size_t from = random ? 1 : 1 + mt19937_below(generator, (uint32_t)(text->n - prompt->n) + 1);
    prompt->ids[0] = text->ids[0];
    for (size_t i = 1; i < prompt->n; i++)
        prompt->ids[i] = random ? (int32_t)mt19937_below(generator, vocab) : text->ids[from + i - 1];
    return KAKEYA_OK;
}

/* Kinds and temperatures go round as in a Latin square: nine prompts show every pair. */
static kakeya_status make_prompt(lossless_run *run, int index, lossless_prompt *out, kakeya_error *error) {
    *out =
        (lossless_prompt){.kind = index % KINDS, .temperature = temperatures[(index + index / KINDS) % TEMPERATURES]};
    snprintf(out->sample, sizeof out->sample, "%03d/%s", index, kind_names[out->kind]);
    return out->kind == 0 ? needle_prompt(run, out, error) : stretch_prompt(run, out, out->kind == 2, error);
}

static kakeya_status read_texts(lossless_run *run, kakeya_error *error) {
    run->texts.sequence = calloc(run->options->n_files, sizeof *run->texts.sequence);
    if (!run->texts.sequence)
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for %zu files", run->options->n_files);
    for (size_t i = 0; i < run->options->n_files; i++) {
        eval_sequence *text = &run->texts.sequence[i];
        kakeya_status status = harness_read_text(&run->harness, run->options->files[i], text, error);
        if (status != KAKEYA_OK) return status;
        run->texts.n++;
        if (text->n < 2 * MIN_PROMPT_TOKENS)
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "%s: %zu tokens are too few for prompts",
                             run->options->files[i], text->n);
    }
    return KAKEYA_OK;
}

/* -------------------------------------------------------------------------------------------------------- arms */

typedef struct variant {
    eval_arm arm;
    int engine; /* index of thread_counts */
    session_reference reference;
} variant;

/* The autoregressive reference, then everything that must give the same tokens. Draft lengths, chunks and threads go
 * round with the prompts, each with another period. */
static size_t choose_variants(const lossless_run *run, int index, const char *policy, double temperature,
                              variant *out) {
    bool slow = index < run->options->reference_prompts;
    int length = index % BACKEND_MAX_DRAFT + 1, other_length = (index * 5 + 3) % BACKEND_MAX_DRAFT + 1;
    int chunk = chunks[1 + index % (CHUNKS - 1)];
    const struct {
        kakeya_mode mode;
        const char *name; /* NULL: the mode's */
        int draft_length, chunk, engine;
        session_reference reference;
        bool wanted;
    } plan[] = {
        {KAKEYA_MODE_AR, NULL, 0, 0, 0, SESSION_FUSED, true},
        {KAKEYA_MODE_SPECULATIVE, NULL, length, 0, 0, SESSION_FUSED, run->drafter},
        {KAKEYA_MODE_SPECULATIVE, NULL, other_length, chunk, 1, SESSION_FUSED, run->drafter},
        {KAKEYA_MODE_NGRAM, NULL, other_length, 0, 0, SESSION_FUSED, true},
        {KAKEYA_MODE_AUTO, NULL, 0, 0, 0, SESSION_FUSED, true},
        {KAKEYA_MODE_AR, NULL, 0, chunk, 1, SESSION_FUSED, true},
        {KAKEYA_MODE_AR, "reforward", 0, 0, 0, SESSION_REFORWARD, slow},
        {KAKEYA_MODE_SPECULATIVE, "unfused", length, 0, 0, SESSION_UNFUSED, slow && run->drafter},
    };
    size_t n = 0;
    for (size_t i = 0; i < sizeof plan / sizeof plan[0]; i++) {
        if (!plan[i].wanted) continue;
        variant *v = &out[n++];
        *v = (variant){.engine = plan[i].engine, .reference = plan[i].reference};
        harness_arm(&run->harness, policy, plan[i].mode, &v->arm);
        if (plan[i].name) snprintf(v->arm.mode, sizeof v->arm.mode, "%s", plan[i].name);
        v->arm.threads = thread_counts[plan[i].engine];
        v->arm.prompt_chunk = plan[i].chunk;
        v->arm.draft_length = plan[i].draft_length;
        v->arm.temperature = temperature;
    }
    return n;
}

static cJSON *options_json(const lossless_run *run) {
    const eval_lossless_options *o = run->options;
    static const char *const modes[] = {"ar", "ngram", "auto", "speculative"};
    static const char *const slow_modes[] = {"reforward", "unfused"};
    cJSON *object = cJSON_CreateObject();
    if (!object) return NULL;
    /* What this many prompts reach of each list. */
    int n = o->prompts;
    cJSON_AddNumberToObject(object, "prompts", n);
    cJSON_AddNumberToObject(object, "max_tokens", o->max_tokens);
    cJSON_AddNumberToObject(object, "seed", (double)o->seed);
    cJSON_AddItemToObject(object, "policies", harness_names(run->policies, run->n_policies));
    cJSON *names = harness_names(modes, run->drafter ? 4 : 3);
    for (int i = 0; o->reference_prompts > 0 && i < 1 + run->drafter; i++)
        cJSON_AddItemToArray(names, cJSON_CreateString(slow_modes[i]));
    cJSON_AddItemToObject(object, "modes", names);
    cJSON_AddItemToObject(object, "prompt_kinds", harness_names(kind_names, n < KINDS ? (size_t)n : KINDS));
    cJSON_AddItemToObject(object, "temperatures",
                          cJSON_CreateDoubleArray(temperatures, n < TEMPERATURES ? n : TEMPERATURES));
    cJSON_AddItemToObject(object, "threads", cJSON_CreateIntArray(thread_counts, ENGINES));
    cJSON_AddItemToObject(object, "prompt_chunks", cJSON_CreateIntArray(chunks, n < CHUNKS ? n + 1 : CHUNKS));
    return object;
}

static kakeya_status run_prompt(lossless_run *run, int index, const char *policy, const lossless_prompt *prompt,
                                kakeya_error *error) {
    variant variants[VARIANTS + 2];
    size_t n = choose_variants(run, index, policy, prompt->temperature, variants);
    kakeya_status status = KAKEYA_OK;
    for (size_t v = 0; status == KAKEYA_OK && v < n; v++) {
        eval_row row;
        eval_row_init(&row);
        row.arm = variants[v].arm;
        snprintf(row.prompt_kind, sizeof row.prompt_kind, "%s", kind_names[prompt->kind]);
        harness_prompt input = {prompt->sample, prompt->ids, prompt->n};
        harness_run how = {.engine = run->engine[variants[v].engine],
                           .reference = variants[v].reference,
                           .max_tokens = run->options->max_tokens,
                           .seed = run->options->seed + (uint64_t)index};
        status = harness_generate(&run->harness, &input, &how, &row, error);
        if (status == KAKEYA_OK) status = harness_add(&run->harness, &row, error);
    }
    return status;
}

static kakeya_status run_all(lossless_run *run, kakeya_error *error) {
    const eval_lossless_options *o = run->options;
    variant variants[VARIANTS + 2];
    for (int i = 0; i < o->prompts; i++)
        run->harness.total += run->n_policies * choose_variants(run, i, run->policies[0], 0, variants);
    kakeya_status status = KAKEYA_OK;
    mt19937_seed(&run->generator, o->seed);
    for (int i = 0; status == KAKEYA_OK && i < o->prompts; i++) {
        lossless_prompt prompt;
        status = make_prompt(run, i, &prompt, error);
        for (size_t p = 0; status == KAKEYA_OK && p < run->n_policies; p++)
            status = run_prompt(run, i, run->policies[p], &prompt, error);
        free(prompt.ids);
    }
    return status;
}

/* Native attention and, where the model has an f_theta, restored. */
static kakeya_status choose_policies(lossless_run *run, kakeya_error *error) {
    static const char *const names[] = {"native", "restored"};
    eval_policies policies = {names, kakeya_engine_has_f_theta(run->harness.engine) ? 2 : 1};
    return harness_policies(&run->harness, &policies, false, run->policies, &run->n_policies, error);
}

kakeya_status eval_lossless_run(const eval_setup *setup, const eval_lossless_options *options, eval_report **out,
                                kakeya_error *error) {
    *out = NULL;
    lossless_run run = {.options = options};
    kakeya_status status = harness_open(&run.harness, setup, thread_counts[0], error);
    run.engine[0] = run.harness.engine;
    if (status == KAKEYA_OK)
        status =
            harness_open_engine(setup, thread_counts[1], setup->engine.drafter_scaled_embedding, &run.engine[1], error);
    if (status == KAKEYA_OK) {
        run.drafter = kakeya_engine_has_drafter(run.harness.engine);
        status = choose_policies(&run, error);
    }
    if (status == KAKEYA_OK) status = read_texts(&run, error);
    if (status == KAKEYA_OK) status = harness_report(&run.harness, EVAL_LOSSLESS, options_json(&run), error);
    if (status == KAKEYA_OK) status = run_all(&run, error);
    kakeya_engine_close(run.engine[1]);
    eval_sequences_free(&run.texts);
    return harness_close(&run.harness, status, out, error);
}
