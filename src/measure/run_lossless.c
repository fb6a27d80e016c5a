#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kakeya_study.h"
#include "measure/harness.h"
#include "measure/lossless_plan.h"
#include "measure/lossless_prompts.h"

typedef struct lossless_run {
    eval_harness harness;
    const eval_lossless_options *options;
    kakeya_engine *engine[LOSSLESS_ENGINES]; /* by lossless_threads; the first is the harness's */
    const char *policies[HARNESS_POLICIES];
    size_t n_policies;
    bool drafter;
    lossless_prompts prompts;
} lossless_run;

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
    size_t n = lossless_variants(index, policy, run->drafter, run->options->reference_prompts, variants);
    kakeya_status status = KAKEYA_OK;
    for (size_t v = 0; status == KAKEYA_OK && v < n; v++) {
        eval_row row;
        eval_row_init(&row);
        make_arm(run, policy, lossless_temperature(index), &variants[v], &row.arm);
        snprintf(row.prompt_kind, sizeof row.prompt_kind, "%s", lossless_kind_names[prompt->kind]);
        row.truncated = variants[v].truncated;
        if (!harness_wants(&run->harness, prompt->sample, &row)) continue;
        harness_prompt input = lossless_prompt_view(prompt);
        harness_run how = {.engine = run->engine[variants[v].engine],
                           .reference = reference_of(&variants[v]),
                           .max_tokens = run->options->max_tokens,
                           .truncates = variants[v].truncated,
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
        for (size_t p = 0; p < run->n_policies; p++)
            run->harness.total += lossless_variants(i, run->policies[p], run->drafter, o->reference_prompts, variants);
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; status == KAKEYA_OK && i < o->prompts; i++) {
        lossless_prompt prompt = {.kind = lossless_kind(i)};
        snprintf(prompt.sample, sizeof prompt.sample, "%03d/%s", i, lossless_kind_names[prompt.kind]);
        status = lossless_prompts_draw(&run->prompts, NULL, 0, &prompt, error);
        for (size_t p = 0; status == KAKEYA_OK && p < run->n_policies; p++)
            status = run_prompt(run, i, run->policies[p], &prompt, error);
        lossless_prompt_free(&prompt);
    }
    return status;
}

/* All that the model has. */
static kakeya_status choose_policies(lossless_run *run, kakeya_error *error) {
    static const char *const names[] = {"native", "sink-window", "restored", "restored-all"};
    eval_policies policies = {names, kakeya_engine_has_f_theta(run->harness.engine) ? 4 : 2};
    return harness_policies(&run->harness, &policies, false, run->policies, &run->n_policies, error);
}

kakeya_status eval_lossless_run(const eval_setup *setup, const eval_lossless_options *options, eval_report **out,
                                kakeya_error *error) {
    *out = NULL;
    lossless_run run = {.options = options};
    kakeya_status status = harness_open(&run.harness, setup, lossless_threads[0], error);
    run.engine[0] = run.harness.engine;
    /* Only the CPU backend has threads. Another one would hold its weights twice for nothing. */
    bool threads = status == KAKEYA_OK && strcmp(run.harness.engine->ops->name, "cpu") == 0;
    run.engine[1] = run.harness.engine;
    if (threads)
        status = harness_open_engine(setup, lossless_threads[1], harness_study(setup).drafter_scaled_embedding,
                                     &run.engine[1], error);
    if (status == KAKEYA_OK) {
        run.drafter = kakeya_engine_has_drafter(run.harness.engine);
        status = choose_policies(&run, error);
    }
    if (status == KAKEYA_OK)
        status = lossless_prompts_open(&run.prompts, &run.harness, options->files, options->n_files, &options->pictures,
                                       options->seed, error);
    cJSON *said = status == KAKEYA_OK ? options_json(&run) : NULL;
    if (said) status = harness_add_pictures(&run.harness, &options->pictures, said, error);
    if (status == KAKEYA_OK)
        status = harness_report(&run.harness, EVAL_LOSSLESS, said, error);
    else
        cJSON_Delete(said);
    if (status == KAKEYA_OK) status = run_all(&run, error);
    if (threads) kakeya_engine_close(run.engine[1]);
    lossless_prompts_close(&run.prompts);
    return harness_close(&run.harness, status, out, error);
}
