#include "measure/lossless_prompts.h"

#include <stdlib.h>
#include <string.h>

#include "measure/niah.h"
#include "model/vision_model.h"

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

/* ------------------------------------------------------------------------------------------------------- pictures */

void lossless_prompt_free(lossless_prompt *prompt) {
    free(prompt->ids);
    free(prompt->keys);
    prompt->ids = prompt->keys = NULL;
    prompt->n_media = 0;
}

harness_prompt lossless_prompt_view(const lossless_prompt *prompt) {
    return (harness_prompt){.sample = prompt->sample,
                            .ids = prompt->ids,
                            .n = prompt->n,
                            .keys = prompt->keys,
                            .media = prompt->media,
                            .n_media = prompt->n_media};
}

size_t lossless_prompt_beginning(const lossless_prompt *prompt, size_t n, size_t *n_media) {
    for (*n_media = 0; *n_media < prompt->n_media; ++*n_media) {
        if (prompt->picture_end[*n_media] <= n) continue;
        return prompt->picture_begin[*n_media] < n ? prompt->picture_begin[*n_media] : n;
    }
    return n;
}

static kakeya_status put_before(lossless_prompt *prompt, const lossless_prompt *beginning, size_t n,
                                kakeya_error *error) {
    if (n == 0) return KAKEYA_OK;
    int32_t *grown = realloc(prompt->ids, (prompt->n + n) * sizeof *grown);
    if (!grown) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for a prompt");
    memmove(grown + n, grown, prompt->n * sizeof *grown);
    memcpy(grown, beginning->ids, n * sizeof *grown);
    prompt->ids = grown;
    prompt->n += n;
    (void)lossless_prompt_beginning(beginning, n, &prompt->n_media);
    memcpy(prompt->media, beginning->media, sizeof prompt->media);
    memcpy(prompt->picture_begin, beginning->picture_begin, sizeof prompt->picture_begin);
    memcpy(prompt->picture_end, beginning->picture_end, sizeof prompt->picture_end);
    return KAKEYA_OK;
}

/* Puts a picture before token `at`, behind all pictures that the prompt has. */
static kakeya_status put_picture(lossless_prompt *prompt, const kakeya_engine *engine, const kakeya_media *media,
                                 size_t at, kakeya_error *error) {
    const vision_model *v = engine->verifier->vision;
    int rows;
    kakeya_status status = kakeya_engine_image_tokens(engine, media, &rows, error);
    if (status != KAKEYA_OK) return status;
    const size_t n = (size_t)rows + 2;
    int32_t *grown = realloc(prompt->ids, (prompt->n + n) * sizeof *grown);
    if (!grown) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for a prompt");
    memmove(grown + at + n, grown + at, (prompt->n - at) * sizeof *grown);
    for (size_t i = 0; i < n; i++) grown[at + i] = i == 0 ? v->begin_token : i + 1 == n ? v->end_token : v->image_token;
    prompt->ids = grown;
    prompt->n += n;
    prompt->media[prompt->n_media] = *media;
    prompt->picture_begin[prompt->n_media] = at;
    prompt->picture_end[prompt->n_media++] = at + n;
    return KAKEYA_OK;
}

/* One or two pictures behind the first `from` tokens, and what the prompt is then known by. */
static kakeya_status put_pictures(lossless_prompts *prompts, lossless_prompt *prompt, size_t from,
                                  kakeya_error *error) {
    const kakeya_engine *engine = prompts->harness->engine;
    mt19937 *generator = &prompts->generator;
    if (!prompts->pictures.n) return KAKEYA_OK;
    const int32_t token = kakeya_engine_image_token(engine);
    for (size_t i = from; i < prompt->n; i++) /* random ids have all tokens */
        if (prompt->ids[i] == token) prompt->ids[i] = prompt->ids[0];
    kakeya_status status = KAKEYA_OK;
    size_t at = from > 0 ? from : 1; /* behind <bos> */
    for (int own = mt19937_between(generator, 1, LOSSLESS_OWN_PICTURES); own > 0 && status == KAKEYA_OK; own--) {
        const kakeya_media *media = &prompts->pictures.media[mt19937_below(generator, (uint32_t)prompts->pictures.n)];
        at += mt19937_below(generator, (uint32_t)(prompt->n - at) + 1);
        status = put_picture(prompt, engine, media, at, error);
        if (status == KAKEYA_OK) at = prompt->picture_end[prompt->n_media - 1];
    }
    if (status != KAKEYA_OK) return status;
    prompt->keys = malloc(prompt->n * sizeof *prompt->keys);
    if (!prompt->keys) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for a prompt");
    return kakeya_prompt_keys(engine, prompt->ids, prompt->n, prompt->media, prompt->n_media, prompt->keys, error);
}

/* ------------------------------------------------------------------------------------------------------- drawing */

/* Short texts have few stretches: one that was drawn before is drawn anew. */
kakeya_status lossless_prompts_draw(lossless_prompts *prompts, const lossless_prompt *beginning, size_t beginning_n,
                                    lossless_prompt *out, kakeya_error *error) {
    enum { ATTEMPTS = 256 };
    kakeya_status status = KAKEYA_OK;
    out->ids = out->keys = NULL;
    out->n_media = 0;
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        status =
            out->kind == 0 ? needle_prompt(prompts, out, error) : stretch_prompt(prompts, out, out->kind == 2, error);
        if (status == KAKEYA_OK) status = put_before(out, beginning, beginning_n, error);
        if (status == KAKEYA_OK) status = put_pictures(prompts, out, beginning_n, error);
        if (status != KAKEYA_OK) return status;
        harness_prompt taken = lossless_prompt_view(out);
        status = harness_take_prompt(prompts->harness, &taken, error);
        if (status != KAKEYA_INVALID_ARGUMENT) return status;
        lossless_prompt_free(out);
    }
    return error_prefix(error, status, "the texts are too short for so many different prompts");
}

kakeya_status lossless_prompts_open(lossless_prompts *prompts, eval_harness *harness, const char *const *files,
                                    size_t n_files, const eval_pictures *pictures, uint64_t seed, kakeya_error *error) {
    *prompts = (lossless_prompts){.harness = harness};
    if (pictures) prompts->pictures = *pictures;
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
