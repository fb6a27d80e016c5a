#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "measure/harness.h"
#include "measure/lossless_plan.h"
#include "measure/mt19937.h"
#include "measure/niah.h"

enum { MAX_PROMPT_TOKENS = 400, MIN_PROMPT_TOKENS = 24 };

typedef struct lossless_run {
    eval_harness harness;
    const eval_lossless_options *options;
    kakeya_engine *engine[LOSSLESS_ENGINES]; /* by lossless_threads; the first is the harness's */
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
    status = kakeya_message_tokens(kakeya_engine_tokenizer(run->harness.engine), &message, 1, false, &ids, &prompt->n,
                                   error);
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

/* Short texts have few stretches: one that was drawn before is drawn anew. */
static kakeya_status make_prompt(lossless_run *run, int index, lossless_prompt *out, kakeya_error *error) {
    enum { ATTEMPTS = 256 };
    kakeya_status status = KAKEYA_OK;
    *out = (lossless_prompt){.kind = lossless_kind(index), .temperature = lossless_temperature(index)};
    snprintf(out->sample, sizeof out->sample, "%03d/%s", index, lossless_kind_names[out->kind]);
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        status = out->kind == 0 ? needle_prompt(run, out, error) : stretch_prompt(run, out, out->kind == 2, error);
        if (status != KAKEYA_OK) return status;
        harness_prompt taken = {out->sample, out->ids, out->n};
        status = harness_take_prompt(&run->harness, &taken, error);
        if (status != KAKEYA_INVALID_ARGUMENT) return status;
        free(out->ids);
        out->ids = NULL;
    }
    return error_prefix(error, status, "the texts are too short for %d different prompts", run->options->prompts);
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

static void make_arm(const lossless_run *run, const char *policy, double temperature, const lossless_variant *variant,
                     eval_arm *out) {
    harness_arm(&run->harness, policy, KAKEYA_MODE_AR, out);
    snprintf(out->mode, sizeof out->mode, "%s", variant->mode);
    out->threads = lossless_threads[variant->engine];
    out->prompt_chunk = variant->prompt_chunk;
    out->draft_length = variant->draft_length;
    out->temperature = temperature;
}

static session_reference reference_of(const lossless_variant *variant) {
    return strcmp(variant->mode, "reforward") == 0 ? SESSION_REFORWARD
           : strcmp(variant->mode, "unfused") == 0 ? SESSION_UNFUSED
                                                   : SESSION_FUSED;
}

static cJSON *options_json(const lossless_run *run) {
    const eval_lossless_options *o = run->options;
    cJSON *object = cJSON_CreateObject();
    if (!object) return NULL;
    cJSON_AddNumberToObject(object, "prompts", o->prompts);
    cJSON_AddNumberToObject(object, "reference_prompts", o->reference_prompts);
    cJSON_AddNumberToObject(object, "max_tokens", o->max_tokens);
    harness_add_seed(object, o->seed);
    cJSON_AddItemToObject(object, "policies", harness_names(run->policies, run->n_policies));
    harness_add_sizes(&run->harness, object);
    if (lossless_add_promises(object, o->prompts, run->drafter, o->reference_prompts)) return object;
    cJSON_Delete(object);
    return NULL;
}

static kakeya_status run_prompt(lossless_run *run, int index, const char *policy, const lossless_prompt *prompt,
                                kakeya_error *error) {
    lossless_variant variants[LOSSLESS_MAX_VARIANTS];
    size_t n = lossless_variants(index, run->drafter, run->options->reference_prompts, variants);
    kakeya_status status = KAKEYA_OK;
    for (size_t v = 0; status == KAKEYA_OK && v < n; v++) {
        eval_row row;
        eval_row_init(&row);
        make_arm(run, policy, prompt->temperature, &variants[v], &row.arm);
        snprintf(row.prompt_kind, sizeof row.prompt_kind, "%s", lossless_kind_names[prompt->kind]);
        harness_prompt input = {prompt->sample, prompt->ids, prompt->n};
        harness_run how = {.engine = run->engine[variants[v].engine],
                           .reference = reference_of(&variants[v]),
                           .max_tokens = run->options->max_tokens,
                           .seed = run->options->seed + (uint64_t)index};
        status = harness_generate(&run->harness, &input, &how, &row, error);
        if (status == KAKEYA_OK) status = harness_add(&run->harness, &row, error);
    }
    return status;
}

static kakeya_status run_all(lossless_run *run, kakeya_error *error) {
    const eval_lossless_options *o = run->options;
    lossless_variant variants[LOSSLESS_MAX_VARIANTS];
    for (int i = 0; i < o->prompts; i++)
        run->harness.total += run->n_policies * lossless_variants(i, run->drafter, o->reference_prompts, variants);
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
    kakeya_status status = harness_open(&run.harness, setup, lossless_threads[0], error);
    run.engine[0] = run.harness.engine;
    if (status == KAKEYA_OK)
        status = harness_open_engine(setup, lossless_threads[1], setup->engine.drafter_scaled_embedding, &run.engine[1],
                                     error);
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
