#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kakeya_study.h"
#include "measure/harness.h"
#include "measure/jsonl.h"

/* Every source drafts for the same prompts. Public engines disagree whether the block embeddings of a DFlash drafter
 * are multiplied by sqrt(hidden size), so it runs in both forms: acceptance tells which one the weights were trained
 * with. */
enum { FORMS = 2, MAX_ARMS = FORMS + HARNESS_SOURCES - 1 };

typedef struct acceptance_run {
    eval_harness harness;
    const eval_acceptance_options *options;
    kakeya_engine *engine[FORMS]; /* unscaled, scaled; one of them is the harness's, the other NULL without DFlash */
    const char *sources[HARNESS_SOURCES];
    size_t n_sources;
    eval_arm arms[MAX_ARMS];
    size_t n_arms;
    jsonl_prompts prompts;
    bool categories; /* a prompt has one */
    int draft_length;
} acceptance_run;

static const char warmup_text[] =
    "def add_one(numbers):\n    \"\"\" Return the numbers, each of them one larger.\n    \"\"\"\n";

/* prompt: NULL for the one to warm up with. */
static kakeya_status run_one(acceptance_run *run, const jsonl_prompt *prompt, size_t arm, kakeya_error *error) {
    const char *name = prompt ? prompt->name : "warmup", *text = prompt ? prompt->text : warmup_text;
    int32_t *ids = NULL;
    size_t n = 0;
    kakeya_message message = {"user", text};
    const kakeya_tokenizer *text_side = kakeya_engine_tokenizer(run->harness.engine);
    kakeya_status status = run->options->chat
                               ? kakeya_message_tokens(text_side, &message, 1, false, &ids, &n, error)
                               : kakeya_tokenize(text_side, text, strlen(text), KAKEYA_TEXT_PROMPT, &ids, &n, error);
    if (status != KAKEYA_OK) return error_prefix(error, status, "%s", name);
    harness_prompt input = {.sample = name, .ids = ids, .n = n};
    /* All arms run on every prompt: noted once. */
    if (arm == 0) status = harness_take_prompt(&run->harness, &input, error);
    if (status != KAKEYA_OK) {
        kakeya_free(ids);
        return status;
    }
    eval_row row;
    eval_row_init(&row);
    row.arm = run->arms[arm];
    row.warmup = !prompt;
    if (run->categories && prompt)
        snprintf(row.category, sizeof row.category, "%s", prompt->category[0] ? prompt->category : "none");
    harness_run how = {.engine = run->engine[row.arm.scaled_embedding], .max_tokens = run->options->max_tokens};
    if (harness_wants(&run->harness, name, &row)) {
        status = harness_generate(&run->harness, &input, &how, &row, error);
        if (status == KAKEYA_OK) status = harness_add(&run->harness, &row, error);
    }
    kakeya_free(ids);
    return status;
}

static kakeya_status run_all(acceptance_run *run, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    run->harness.total = run->n_arms * (1 + run->prompts.n);
    for (size_t a = 0; status == KAKEYA_OK && a < run->n_arms; a++) status = run_one(run, NULL, a, error);
    for (size_t p = 0; status == KAKEYA_OK && p < run->prompts.n; p++)
        for (size_t a = 0; status == KAKEYA_OK && a < run->n_arms; a++)
            status = run_one(run, &run->prompts.prompt[p], a, error);
    return status;
}

static cJSON *options_json(const acceptance_run *run) {
    const eval_acceptance_options *o = run->options;
    cJSON *object = cJSON_CreateObject();
    if (!object) return NULL;
    const char *slash = strrchr(o->jsonl, '/');
    cJSON_AddStringToObject(object, "jsonl", slash ? slash + 1 : o->jsonl);
    cJSON_AddNumberToObject(object, "prompts", (double)run->prompts.n);
    cJSON_AddNumberToObject(object, "max_tokens", o->max_tokens);
    cJSON_AddNumberToObject(object, "draft_length", run->draft_length);
    cJSON_AddBoolToObject(object, "chat", o->chat);
    cJSON *samples = cJSON_AddArrayToObject(object, "samples");
    for (size_t i = 0; i < run->prompts.n; i++)
        cJSON_AddItemToArray(samples, cJSON_CreateString(run->prompts.prompt[i].name));
    cJSON_AddItemToObject(object, "sources", harness_names(run->sources, run->n_sources));
    cJSON *categories = run->categories ? cJSON_AddArrayToObject(object, "categories") : NULL;
    for (size_t i = 0; categories && i < run->prompts.n; i++) {
        const char *category = run->prompts.prompt[i].category;
        cJSON_AddItemToArray(categories, cJSON_CreateString(*category ? category : "none"));
    }
    harness_add_sizes(&run->harness, object);
    return object;
}

static void add_arm(acceptance_run *run, const char *source, bool scaled) {
    eval_arm *arm = &run->arms[run->n_arms++];
    harness_arm(&run->harness, "native", KAKEYA_MODE_SPECULATIVE, arm);
    eval_arm_source(arm, source);
    arm->draft_length = run->draft_length;
    arm->scaled_embedding = scaled;
}

static kakeya_status open_arms(acceptance_run *run, const eval_setup *setup, kakeya_error *error) {
    bool scaled = harness_study(setup).drafter_scaled_embedding;
    kakeya_status status = KAKEYA_OK;
    run->engine[scaled] = run->harness.engine;
    if (!kakeya_engine_has_drafter(run->harness.engine))
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "acceptance needs a drafter, and the model has none beside it");
    int block = kakeya_engine_drafter_block_size(run->harness.engine);
    run->draft_length = run->options->draft_length ? run->options->draft_length : block - 1;
    run->n_sources = harness_sources(&run->harness, run->sources);
    for (size_t i = 0; i < run->n_sources; i++) {
        const bool forms = strcmp(run->sources[i], "dflash") == 0;
        if (forms) add_arm(run, run->sources[i], false);
        add_arm(run, run->sources[i], forms || scaled);
        if (forms) status = harness_open_engine(setup, run->harness.threads, !scaled, &run->engine[!scaled], error);
        if (status != KAKEYA_OK) return status;
    }
    for (size_t i = 0; i < run->prompts.n; i++) run->categories |= run->prompts.prompt[i].category[0] != '\0';
    return KAKEYA_OK;
}

kakeya_status eval_acceptance(const eval_setup *setup, const eval_acceptance_options *options, eval_report **out,
                              kakeya_error *error) {
    *out = NULL;
    acceptance_run run = {.options = options};
    kakeya_status status = jsonl_read_prompts(options->jsonl, (size_t)options->prompts, &run.prompts, error);
    if (status == KAKEYA_OK) status = harness_open(&run.harness, setup, 0, error);
    if (status == KAKEYA_OK) status = open_arms(&run, setup, error);
    if (status == KAKEYA_OK) status = harness_report(&run.harness, EVAL_ACCEPTANCE, options_json(&run), error);
    if (status == KAKEYA_OK) status = run_all(&run, error);
    for (int form = 0; form < FORMS; form++)
        if (run.engine[form] && run.engine[form] != run.harness.engine) kakeya_engine_close(run.engine[form]);
    jsonl_prompts_free(&run.prompts);
    return harness_close(&run.harness, status, out, error);
}
