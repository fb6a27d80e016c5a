#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kakeya_study.h"
#include "measure/harness.h"
#include "measure/lossless_plan.h"
#include "measure/lossless_prompts.h"

typedef struct lossless_run {
    eval_harness harness;
    const eval_options *options;
    kakeya_engine *engine[LOSSLESS_ENGINES]; /* by lossless_threads; the first is the harness's */
    const char *policies[HARNESS_POLICIES];
    size_t n_policies;
    bool drafter;
    lossless_prompts prompts;
    lossless_prompt prompt; /* at hand */
    int begun;              /* prompts */
} lossless_run;

/* -------------------------------------------------------------------------------------------------------- arms */

static session_reference reference_of(const eval_arm *arm) {
    return strcmp(arm->mode, "reforward") == 0 ? SESSION_REFORWARD
           : strcmp(arm->mode, "unfused") == 0 ? SESSION_UNFUSED
                                               : SESSION_FUSED;
}

static cJSON *options_json(const lossless_run *run) {
    eval_options o = *run->options;
    o.policies = (eval_policies){run->policies, run->n_policies};
    cJSON *object = harness_options(&run->harness, EVAL_LOSSLESS, &o);
    if (object && lossless_add_promises(object, o.prompts, run->drafter, o.reference_prompts)) return object;
    cJSON_Delete(object);
    return NULL;
}

/* Prompts come one after the other, each with all of its runs. */
static kakeya_status run_one(void *user, eval_row *row, kakeya_error *error) {
    lossless_run *run = user;
    kakeya_status status = KAKEYA_OK;
    if (strcmp(run->prompt.sample, row->sample) != 0) {
        lossless_prompt_free(&run->prompt);
        run->prompt = (lossless_prompt){.kind = lossless_kind(run->begun++)};
        snprintf(run->prompt.sample, sizeof run->prompt.sample, "%.31s", row->sample);
        status = lossless_prompts_draw(&run->prompts, NULL, 0, &run->prompt, error);
    }
    if (status != KAKEYA_OK || !harness_wants(&run->harness, row)) return status;
    harness_prompt input = lossless_prompt_view(&run->prompt);
    harness_run how = {.engine = run->engine[row->arm.threads != lossless_threads[0]],
                       .reference = reference_of(&row->arm),
                       .max_tokens = run->options->max_tokens,
                       .truncates = row->truncated,
                       .seed = run->options->seed + (uint64_t)run->begun - 1};
    status = harness_generate(&run->harness, &input, &how, row, error);
    return status == KAKEYA_OK ? harness_add(&run->harness, row, error) : status;
}

/* All that the model has. */
static kakeya_status choose_policies(lossless_run *run, kakeya_error *error) {
    static const char *const names[] = {"native", "sink-window", "restored", "restored-all"};
    eval_policies policies = {names, kakeya_engine_has_f_theta(run->harness.engine) ? 4 : 2};
    return harness_policies(&run->harness, &policies, false, run->policies, &run->n_policies, error);
}

kakeya_status eval_lossless_run(const eval_setup *setup, const eval_options *options, eval_report **out,
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
        status = lossless_prompts_open(&run.prompts, &run.harness, options->files, options->n_files, &options->images,
                                       options->seed, error);
    cJSON *said = status == KAKEYA_OK ? options_json(&run) : NULL;
    if (said) status = harness_add_pictures(&run.harness, &options->images, said, error);
    if (status == KAKEYA_OK)
        status = harness_report(&run.harness, EVAL_LOSSLESS, said, error);
    else
        cJSON_Delete(said);
    if (status == KAKEYA_OK) status = harness_run_plan(&run.harness, run_one, &run, error);
    if (threads) kakeya_engine_close(run.engine[1]);
    lossless_prompt_free(&run.prompt);
    lossless_prompts_close(&run.prompts);
    return harness_close(&run.harness, status, out, error);
}
