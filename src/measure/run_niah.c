#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "measure/code_picture.h"
#include "measure/harness.h"
#include "measure/niah.h"

enum { MAX_ARMS = 64 };

/* A needle prompt as token ids of one user message. */
typedef struct needle_prompt {
    char sample[64];
    int32_t *ids;
    size_t n;
    int32_t *keys;      /* with a picture: [n], what it is known by; else NULL */
    kakeya_media shown; /* the picture */
} needle_prompt;

typedef struct needle_run {
    eval_harness harness;
    const eval_options *options;
    const char *policies[HARNESS_POLICIES];
    size_t n_policies;
    needle_prompt *prompts; /* the warm-up prompt first */
    size_t n_prompts;
} needle_run;

static kakeya_status check_arms(const needle_run *run, kakeya_error *error) {
    const eval_options *o = run->options;
    bool drafting = o->mode != KAKEYA_MODE_AR;
    kakeya_status status = harness_distinct("draft windows", o->draft_windows, o->n_draft_windows, error);
    if (status == KAKEYA_OK) status = harness_distinct("lines", o->lines, o->n_lines, error);
    if (status != KAKEYA_OK) return status;
    for (size_t a = 0; a < o->n_mix_alpha; a++)
        for (size_t b = 0; b < a; b++)
            if (fabs(o->mix_alpha[a] - o->mix_alpha[b]) < 1e-9)
                return error_set(error, KAKEYA_INVALID_ARGUMENT, "mix alpha: %g is named twice", o->mix_alpha[a]);
    if (o->mode == KAKEYA_MODE_SPECULATIVE && !kakeya_engine_has_drafter(run->harness.engine))
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "mode 'speculative' needs a drafter, and the engine was opened without one");
    if (o->n_mix_alpha && !kakeya_engine_has_f_theta(run->harness.engine))
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "diagnostics of restored K/V need an f_theta, and the engine was opened without one");
    if (run->n_policies * (1 + drafting * o->n_draft_windows) + o->n_mix_alpha > MAX_ARMS)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "%zu policies with %zu draft windows make more than %d arms",
                         run->n_policies, o->n_draft_windows, MAX_ARMS);
    return KAKEYA_OK;
}

/* {"type": TYPE, "text": TEXT}, without the text where it is NULL. */
static void add_part(cJSON *parts, const char *type, const char *text) {
    cJSON *part = cJSON_CreateObject();
    cJSON_AddStringToObject(part, "type", type);
    if (text) cJSON_AddStringToObject(part, "text", text);
    cJSON_AddItemToArray(parts, part);
}

/* A list of one user's message: text, picture, text. Freed with cJSON_free; NULL when out of memory. */
static char *message_of(const niah_sample *sample) {
    cJSON *list = cJSON_CreateArray(), *message = cJSON_CreateObject();
    cJSON_AddItemToArray(list, message);
    cJSON_AddStringToObject(message, "role", "user");
    cJSON *parts = cJSON_AddArrayToObject(message, "content");
    add_part(parts, "text", sample->prompt);
    add_part(parts, "image", NULL);
    add_part(parts, "text", sample->after);
    char *text = parts ? cJSON_PrintUnformatted(list) : NULL;
    cJSON_Delete(list);
    return text;
}

/* The prompt whose needle is a picture, as any other conversation with one. */
static kakeya_status show_code(const needle_run *run, const niah_sample *sample, needle_prompt *prompt,
                               kakeya_error *error) {
    const kakeya_engine *engine = run->harness.engine;
    kakeya_image *picture = NULL;
    int rows = 0;
    const uint64_t seed = hash_fnv1a(hash_fnv1a(HASH_FNV1A_START, &run->options->seed, sizeof run->options->seed),
                                     sample->answer, strlen(sample->answer));
    kakeya_status status = code_picture(sample->answer, seed, &picture, error);
    prompt->shown = (kakeya_media){.image = picture};
    if (status == KAKEYA_OK) status = kakeya_engine_image_tokens(engine, &prompt->shown, &rows, error);
    if (status != KAKEYA_OK) return status;
    char *json = message_of(sample);
    if (!json) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for prompts");
    kakeya_chat_options options;
    KAKEYA_INIT(&options);
    options.image_tokens = &rows;
    options.n_images = 1;
    status = kakeya_chat_tokens(kakeya_engine_tokenizer(engine), json, strlen(json), &options, &prompt->ids, &prompt->n,
                                NULL, error);
    cJSON_free(json);
    if (status != KAKEYA_OK) return status;
    prompt->keys = malloc(prompt->n * sizeof *prompt->keys);
    if (!prompt->keys) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for prompts");
    return kakeya_prompt_keys(engine, prompt->ids, prompt->n, &prompt->shown, 1, prompt->keys, error);
}

static harness_prompt view(const needle_prompt *prompt) {
    return (harness_prompt){.sample = prompt->sample,
                            .ids = prompt->ids,
                            .n = prompt->n,
                            .keys = prompt->keys,
                            .media = &prompt->shown,
                            .n_media = prompt->shown.image != NULL};
}

static kakeya_status add_prompt(needle_run *run, const niah_sample *sample, const char *name, kakeya_error *error) {
    needle_prompt *prompt = &run->prompts[run->n_prompts++];
    snprintf(prompt->sample, sizeof prompt->sample, "%s", name);
    const kakeya_tokenizer *text_side = kakeya_engine_tokenizer(run->harness.engine);
    kakeya_status status;
    if (run->options->facts) {
        char *text = niah_facts(sample);
        status =
            text ? kakeya_tokenize(text_side, text, strlen(text), KAKEYA_TEXT_PROMPT, &prompt->ids, &prompt->n, error)
                 : error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for prompts");
        free(text);
    } else if (run->options->pictures) {
        status = show_code(run, sample, prompt, error);
    } else {
        kakeya_message message = {"user", sample->prompt};
        status = kakeya_message_tokens(text_side, &message, 1, false, &prompt->ids, &prompt->n, error);
    }
    if (status != KAKEYA_OK) return status;
    const harness_prompt taken = view(prompt);
    return harness_take_prompt(&run->harness, &taken, error);
}

/* The warm-up prompt, then rung by rung. */
static kakeya_status make_prompts(needle_run *run, kakeya_error *error) {
    const eval_options *o = run->options;
    niah_dataset drawn;
    kakeya_status status = niah_ladder(o->lines, o->n_lines, o->samples, o->seed, o->pictures, o->facts, &drawn, error);
    if (status != KAKEYA_OK) return status;
    run->prompts = calloc(drawn.n, sizeof *run->prompts);
    if (!run->prompts) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for prompts");
    if (status == KAKEYA_OK) status = add_prompt(run, &drawn.samples[drawn.n - 1], "warmup", error);
    for (size_t i = 0; status == KAKEYA_OK && i + 1 < drawn.n; i++) {
        char name[64];
        snprintf(name, sizeof name, "lines-%d/%zu", drawn.samples[i].lines, i % (size_t)o->samples);
        status = add_prompt(run, &drawn.samples[i], name, error);
    }
    niah_dataset_free(&drawn);
    return status;
}

static cJSON *options_json(const needle_run *run) {
    eval_options o = *run->options;
    o.policies = (eval_policies){run->policies, run->n_policies};
    return harness_options(&run->harness, EVAL_NIAH, &o);
}

static kakeya_status run_one(void *user, eval_row *row, kakeya_error *error) {
    needle_run *run = user;
    if (!harness_wants(&run->harness, row)) return KAKEYA_OK;
    const needle_prompt *prompt = run->prompts;
    while (strcmp(prompt->sample, row->sample) != 0) prompt++; /* every one of the plan is there */
    const harness_prompt input = view(prompt);
    harness_run how = {.max_tokens = run->options->max_tokens, .seed = run->options->seed};
    kakeya_status status = harness_generate(&run->harness, &input, &how, row, error);
    if (status != KAKEYA_OK) return status;
    row->correct = eval_answer_correct(row->text, row->expected);
    return harness_add(&run->harness, row, error);
}

kakeya_status eval_niah(const eval_setup *setup, const eval_options *options, eval_report **out, kakeya_error *error) {
    *out = NULL;
    needle_run run = {.options = options};
    kakeya_status status = harness_open(&run.harness, setup, 0, error);
    if (status == KAKEYA_OK)
        status = harness_policies(&run.harness, &options->policies, false, run.policies, &run.n_policies, error);
    if (status == KAKEYA_OK) status = check_arms(&run, error);
    if (status == KAKEYA_OK) status = make_prompts(&run, error);
    if (status == KAKEYA_OK) status = harness_report(&run.harness, EVAL_NIAH, options_json(&run), error);
    if (status == KAKEYA_OK) status = harness_run_plan(&run.harness, run_one, &run, error);
    for (size_t i = 0; i < run.n_prompts; i++) {
        kakeya_free(run.prompts[i].ids);
        kakeya_image_close((kakeya_image *)(uintptr_t)run.prompts[i].shown.image);
        free(run.prompts[i].keys);
    }
    free(run.prompts);
    return harness_close(&run.harness, status, out, error);
}
