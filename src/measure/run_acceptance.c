#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kakeya_study.h"
#include "measure/harness.h"
#include "measure/jsonl.h"

/* Every source drafts for the same prompts. Public engines disagree whether the block embeddings of a DFlash drafter
 * are multiplied by sqrt(hidden size), so it runs in both forms: acceptance tells which one the weights were trained
 * with. */
enum { FORMS = 2 };

typedef struct acceptance_run {
    eval_harness harness;
    const eval_options *options;
    kakeya_engine *engine[FORMS]; /* unscaled, scaled; one of them is the harness's, the other NULL without DFlash */
    const char *sources[HARNESS_SOURCES];
    size_t n_sources;
    jsonl_prompts prompts;
    bool categories;  /* a prompt has one */
    char sample[96];  /* whose prompt is at hand: all arms run on it */
    size_t begun;     /* prompts, without the one to warm up with */
    size_t looked_at; /* runs of the plan */
    int32_t *ids;     /* [n] */
    size_t n;
    int draft_length;
} acceptance_run;

static const char warmup_text[] =
    "def add_one(numbers):\n    \"\"\" Return the numbers, each of them one larger.\n    \"\"\"\n";

/* The plan's next sample: the one to warm up with, then those of the file. */
static kakeya_status next_prompt(acceptance_run *run, const eval_row *planned, kakeya_error *error) {
    const char *text = planned->warmup ? warmup_text : run->prompts.prompt[run->begun++].text;
    kakeya_message message = {"user", text};
    const kakeya_tokenizer *text_side = kakeya_engine_tokenizer(run->harness.engine);
    kakeya_free(run->ids);
    run->ids = NULL;
    snprintf(run->sample, sizeof run->sample, "%s", planned->sample);
    kakeya_status status =
        run->options->chat
            ? kakeya_message_tokens(text_side, &message, 1, false, &run->ids, &run->n, error)
            : kakeya_tokenize(text_side, text, strlen(text), KAKEYA_TEXT_PROMPT, &run->ids, &run->n, error);
    if (status != KAKEYA_OK) return error_prefix(error, status, "%s", run->sample);
    const harness_prompt taken = {.sample = run->sample, .ids = run->ids, .n = run->n};
    return harness_take_prompt(&run->harness, &taken, error);
}

static kakeya_status run_one(void *user, eval_row *row, kakeya_error *error) {
    acceptance_run *run = user;
    const size_t arms = run->harness.total / (1 + run->prompts.n);
    kakeya_status status = run->looked_at++ % arms == 0 ? next_prompt(run, row, error) : KAKEYA_OK;
    if (status != KAKEYA_OK || !harness_wants(&run->harness, row)) return status;
    const harness_prompt input = {.sample = run->sample, .ids = run->ids, .n = run->n};
    harness_run how = {.engine = run->engine[row->arm.scaled_embedding], .max_tokens = run->options->max_tokens};
    status = harness_generate(&run->harness, &input, &how, row, error);
    return status == KAKEYA_OK ? harness_add(&run->harness, row, error) : status;
}

static cJSON *options_json(const acceptance_run *run) {
    eval_options o = *run->options;
    const char *slash = strrchr(o.jsonl, '/');
    if (slash) o.jsonl = slash + 1;
    o.prompts = (int)run->prompts.n;
    o.draft_length = run->draft_length;
    cJSON *object = harness_options(&run->harness, EVAL_ACCEPTANCE, &o);
    cJSON *samples = cJSON_AddArrayToObject(object, "samples");
    for (size_t i = 0; i < run->prompts.n; i++)
        cJSON_AddItemToArray(samples, cJSON_CreateString(run->prompts.prompt[i].name));
    cJSON_AddItemToObject(object, "sources", harness_names(run->sources, run->n_sources));
    cJSON *categories = run->categories ? cJSON_AddArrayToObject(object, "categories") : NULL;
    for (size_t i = 0; categories && i < run->prompts.n; i++) {
        const char *category = run->prompts.prompt[i].category;
        cJSON_AddItemToArray(categories, cJSON_CreateString(*category ? category : "none"));
    }
    return object;
}

static kakeya_status open_forms(acceptance_run *run, const eval_setup *setup, kakeya_error *error) {
    bool scaled = harness_study(setup).drafter_scaled_embedding;
    kakeya_status status = KAKEYA_OK;
    run->engine[scaled] = run->harness.engine;
    if (!kakeya_engine_has_drafter(run->harness.engine))
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "acceptance needs a drafter, and the model has none beside it");
    int block = kakeya_engine_drafter_block_size(run->harness.engine);
    run->draft_length = run->options->draft_length ? run->options->draft_length : block - 1;
    run->n_sources = harness_sources(&run->harness, run->sources);
    for (size_t i = 0; i < run->n_sources && status == KAKEYA_OK; i++)
        if (strcmp(run->sources[i], "dflash") == 0)
            status = harness_open_engine(setup, run->harness.threads, !scaled, &run->engine[!scaled], error);
    for (size_t i = 0; i < run->prompts.n; i++) run->categories |= run->prompts.prompt[i].category[0] != '\0';
    return status;
}

kakeya_status eval_acceptance(const eval_setup *setup, const eval_options *options, eval_report **out,
                              kakeya_error *error) {
    *out = NULL;
    acceptance_run run = {.options = options};
    kakeya_status status = jsonl_read_prompts(options->jsonl, (size_t)options->prompts, &run.prompts, error);
    if (status == KAKEYA_OK) status = harness_open(&run.harness, setup, 0, error);
    if (status == KAKEYA_OK) status = open_forms(&run, setup, error);
    if (status == KAKEYA_OK) status = harness_report(&run.harness, EVAL_ACCEPTANCE, options_json(&run), error);
    if (status == KAKEYA_OK) status = harness_run_plan(&run.harness, run_one, &run, error);
    for (int form = 0; form < FORMS; form++)
        if (run.engine[form] && run.engine[form] != run.harness.engine) kakeya_engine_close(run.engine[form]);
    kakeya_free(run.ids);
    jsonl_prompts_free(&run.prompts);
    return harness_close(&run.harness, status, out, error);
}
