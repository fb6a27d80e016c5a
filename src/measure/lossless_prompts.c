#include "measure/lossless_prompts.h"

#include <stdlib.h>
#include <string.h>

#include "measure/niah.h"

static kakeya_status needle_prompt(lossless_prompts *prompts, lossless_prompt *prompt, kakeya_error *error) {
    niah_options options;
    niah_dataset dataset;
    niah_options_init(&options);
    options.samples = 1;
    options.min_lines = 10;
    options.max_lines = 16;
    options.seed = mt19937_next(&prompts->generator);
    kakeya_status status = niah_generate(&options, &dataset, error);
    if (status != KAKEYA_OK) return status;
    kakeya_message message = {"user", dataset.samples[0].prompt};
    int32_t *ids = NULL;
    status = kakeya_message_tokens(kakeya_engine_tokenizer(prompts->harness->engine), &message, 1, false, &ids,
                                   &prompt->n, error);
    niah_dataset_free(&dataset);
    if (status != KAKEYA_OK) return status;
    prompt->ids = malloc(prompt->n * sizeof *ids);
    if (prompt->ids) memcpy(prompt->ids, ids, prompt->n * sizeof *ids);
    kakeya_free(ids);
    return prompt->ids ? KAKEYA_OK : error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for a prompt");
}

/* A stretch of one of the texts, or random ids, behind the text's first token (<bos>). */
static kakeya_status stretch_prompt(lossless_prompts *prompts, lossless_prompt *prompt, bool random,
                                    kakeya_error *error) {
    mt19937 *generator = &prompts->generator;
    const eval_sequence *text = &prompts->texts.sequence[mt19937_below(generator, (uint32_t)prompts->texts.n)];
    int longest = random || text->n > LOSSLESS_MAX_PROMPT_TOKENS ? LOSSLESS_MAX_PROMPT_TOKENS : (int)text->n;
    prompt->n = (size_t)mt19937_between(generator, LOSSLESS_MIN_PROMPT_TOKENS, longest);
    prompt->ids = malloc(prompt->n * sizeof *prompt->ids);
    if (!prompt->ids) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for a prompt");
    uint32_t vocab = (uint32_t)kakeya_engine_vocab_size(prompts->harness->engine);
    size_t from = random ? 1 : 1 + mt19937_below(generator, (uint32_t)(text->n - prompt->n) + 1);
    prompt->ids[0] = text->ids[0];
    for (size_t i = 1; i < prompt->n; i++)
        prompt->ids[i] = random ? (int32_t)mt19937_below(generator, vocab) : text->ids[from + i - 1];
    return KAKEYA_OK;
}

static kakeya_status put_before(lossless_prompt *prompt, const int32_t *beginning, size_t n, kakeya_error *error) {
    if (n == 0) return KAKEYA_OK;
    int32_t *grown = realloc(prompt->ids, (prompt->n + n) * sizeof *grown);
    if (!grown) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for a prompt");
    memmove(grown + n, grown, prompt->n * sizeof *grown);
    memcpy(grown, beginning, n * sizeof *grown);
    prompt->ids = grown;
    prompt->n += n;
    return KAKEYA_OK;
}

/* Short texts have few stretches: one that was drawn before is drawn anew. */
kakeya_status lossless_prompts_draw(lossless_prompts *prompts, const int32_t *beginning, size_t beginning_n,
                                    lossless_prompt *out, kakeya_error *error) {
    enum { ATTEMPTS = 256 };
    kakeya_status status = KAKEYA_OK;
    out->ids = NULL;
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        status =
            out->kind == 0 ? needle_prompt(prompts, out, error) : stretch_prompt(prompts, out, out->kind == 2, error);
        if (status == KAKEYA_OK) status = put_before(out, beginning, beginning_n, error);
        if (status != KAKEYA_OK) return status;
        harness_prompt taken = {out->sample, out->ids, out->n};
        status = harness_take_prompt(prompts->harness, &taken, error);
        if (status != KAKEYA_INVALID_ARGUMENT) return status;
        free(out->ids);
        out->ids = NULL;
    }
    return error_prefix(error, status, "the texts are too short for so many different prompts");
}

kakeya_status lossless_prompts_open(lossless_prompts *prompts, eval_harness *harness, const char *const *files,
                                    size_t n_files, uint64_t seed, kakeya_error *error) {
    *prompts = (lossless_prompts){.harness = harness};
    mt19937_seed(&prompts->generator, seed);
    prompts->texts.sequence = calloc(n_files, sizeof *prompts->texts.sequence);
    if (!prompts->texts.sequence) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for %zu files", n_files);
    for (size_t i = 0; i < n_files; i++) {
        eval_sequence *text = &prompts->texts.sequence[i];
        kakeya_status status = harness_read_text(harness, files[i], text, error);
        if (status != KAKEYA_OK) return status;
        prompts->texts.n++;
        if (text->n < 2 * LOSSLESS_MIN_PROMPT_TOKENS)
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "%s: %zu tokens are too few for prompts", files[i],
                             text->n);
    }
    return KAKEYA_OK;
}

void lossless_prompts_close(lossless_prompts *prompts) { eval_sequences_free(&prompts->texts); }
