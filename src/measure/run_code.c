#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "measure/harness.h"

enum { MAX_ARMS = 64 };

typedef struct code_run {
    eval_harness harness;
    const eval_options *options;
    eval_sequences prompts;
    eval_sequence warmup;
    const char *sources[HARNESS_SOURCES];
    size_t n_sources;
} code_run;

static kakeya_status check_arms(code_run *run, size_t n, kakeya_error *error) {
    const eval_options *o = run->options;
    run->n_sources = harness_sources(&run->harness, run->sources);
    const size_t each = 3 + (run->n_sources - 1) * o->n_draft_lengths;
    kakeya_status status = harness_distinct("draft lengths", o->draft_lengths, o->n_draft_lengths, error);
    if (status != KAKEYA_OK) return status;
    if (n * each > MAX_ARMS)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "%zu policies with %zu draft lengths make more than %d arms",
                         n, o->n_draft_lengths, MAX_ARMS);
    return KAKEYA_OK;
}

/* The first part of every file is its prompt; half of the first one is the warm-up prompt. */
static kakeya_status read_prompts(code_run *run, kakeya_error *error) {
    const eval_options *o = run->options;
    size_t want = (size_t)o->prompt_tokens;
    run->prompts.sequence = calloc(o->n_files, sizeof *run->prompts.sequence);
    if (!run->prompts.sequence) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for %zu files", o->n_files);
    for (size_t i = 0; i < o->n_files; i++) {
        eval_sequence *prompt = &run->prompts.sequence[i];
        kakeya_status status = harness_read_text(&run->harness, o->files[i], prompt, error);
        if (status != KAKEYA_OK) return status;
        char name[sizeof prompt->name];
        snprintf(name, sizeof name, "%zu/%.40s", i, prompt->name);
        memcpy(prompt->name, name, sizeof name);
        run->prompts.n++;
        if (prompt->n < 16)
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "%s: %zu tokens are too few to continue", o->files[i],
                             prompt->n);
        if (!i) {
            size_t half = (prompt->n < want ? prompt->n : want) / 2;
            run->warmup.ids = malloc(half * sizeof *run->warmup.ids);
            if (!run->warmup.ids) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for a prompt");
            memcpy(run->warmup.ids, prompt->ids, half * sizeof *prompt->ids);
            run->warmup.n = half;
        }
        if (prompt->n > want) prompt->n = want;
        harness_prompt taken = {.sample = prompt->name, .ids = prompt->ids, .n = prompt->n},
                       warmup = {.sample = "warmup", .ids = run->warmup.ids, .n = run->warmup.n};
        status = i ? KAKEYA_OK : harness_take_prompt(&run->harness, &warmup, error);
        if (status == KAKEYA_OK) status = harness_take_prompt(&run->harness, &taken, error);
        if (status != KAKEYA_OK) return status;
    }
    return KAKEYA_OK;
}

static cJSON *options_json(const code_run *run, const char *const *policies, size_t n) {
    eval_options o = *run->options;
    o.policies = (eval_policies){policies, n};
    cJSON *object = harness_options(&run->harness, EVAL_CODE, &o);
    if (!object) return NULL;
    cJSON_AddItemToObject(object, "files", harness_sequence_names(&run->prompts));
    cJSON_AddItemToObject(object, "sources", harness_names(run->sources, run->n_sources));
    return object;
}

static kakeya_status run_one(void *user, eval_row *row, kakeya_error *error) {
    code_run *run = user;
    if (!harness_wants(&run->harness, row)) return KAKEYA_OK;
    const eval_sequence *prompt = row->warmup ? &run->warmup : run->prompts.sequence;
    while (!row->warmup && strcmp(prompt->name, row->sample) != 0) prompt++; /* every one of the plan is there */
    harness_prompt input = {.sample = row->sample, .ids = prompt->ids, .n = prompt->n};
    harness_run how = {.max_tokens = run->options->max_tokens};
    kakeya_status status = harness_generate(&run->harness, &input, &how, row, error);
    return status == KAKEYA_OK ? harness_add(&run->harness, row, error) : status;
}

kakeya_status eval_code(const eval_setup *setup, const eval_options *options, eval_report **out, kakeya_error *error) {
    *out = NULL;
    code_run run = {.options = options};
    const char *policies[HARNESS_POLICIES];
    size_t n_policies = 0;
    kakeya_status status = harness_open(&run.harness, setup, 0, error);
    if (status == KAKEYA_OK)
        status = harness_policies(&run.harness, &options->policies, true, policies, &n_policies, error);
    if (status == KAKEYA_OK) status = check_arms(&run, n_policies, error);
    if (status == KAKEYA_OK) status = read_prompts(&run, error);
    if (status == KAKEYA_OK)
        status = harness_report(&run.harness, EVAL_CODE, options_json(&run, policies, n_policies), error);
    if (status == KAKEYA_OK) status = harness_run_plan(&run.harness, run_one, &run, error);
    eval_sequences_free(&run.prompts);
    free(run.warmup.ids);
    return harness_close(&run.harness, status, out, error);
}
