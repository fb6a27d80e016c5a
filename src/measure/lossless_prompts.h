/* Prompts of the lossless evaluations: needles, stretches of texts and random ids, drawn by seed, no two alike. */
#ifndef KAKEYA_MEASURE_LOSSLESS_PROMPTS_H
#define KAKEYA_MEASURE_LOSSLESS_PROMPTS_H

#include "measure/harness.h"
#include "measure/mt19937.h"

enum {
    LOSSLESS_MIN_PROMPT_TOKENS = 24,
    LOSSLESS_MAX_PROMPT_TOKENS = 400, /* needles and pictures aside */
    LOSSLESS_OWN_PICTURES = 2,        /* of a prompt, at most, beside those of its beginning */
    LOSSLESS_MOST_PICTURES = 2 * LOSSLESS_OWN_PICTURES,
};

typedef struct lossless_prompts {
    eval_harness *harness;
    eval_sequences texts;
    eval_pictures pictures;
    mt19937 generator;
} lossless_prompts;

typedef struct lossless_prompt {
    char sample[32];
    int kind; /* index of lossless_kind_names */
    int32_t *ids;
    size_t n;
    int32_t *keys; /* NULL, or where it has pictures: what it is known by */
    kakeya_media media[LOSSLESS_MOST_PICTURES];
    size_t picture_begin[LOSSLESS_MOST_PICTURES], picture_end[LOSSLESS_MOST_PICTURES]; /* with the tokens around it */
    size_t n_media;
} lossless_prompt;

void lossless_prompt_free(lossless_prompt *prompt); /* a zeroed one is fine */
harness_prompt lossless_prompt_view(const lossless_prompt *prompt);
/* At most n of the prompt's first tokens, so that no picture is cut; *n_media of its pictures lie in them. */
size_t lossless_prompt_beginning(const lossless_prompt *prompt, size_t n, size_t *n_media);

/* Reads the texts. pictures: NULL, or those of which every prompt has one or two; they outlive *prompts.
 * lossless_prompts_close also after a failure. */
kakeya_status lossless_prompts_open(lossless_prompts *prompts, eval_harness *harness, const char *const *files,
                                    size_t n_files, const eval_pictures *pictures, uint64_t seed, kakeya_error *error);
void lossless_prompts_close(lossless_prompts *prompts);

/* Draws the prompt whose sample and kind are set; the caller frees it (lossless_prompt_free). beginning_n tokens of
 * `beginning` (0: none), which cut none of its pictures, stand before what is drawn. KAKEYA_INVALID_ARGUMENT: the texts
 * have no stretch left that was not drawn before. */
kakeya_status lossless_prompts_draw(lossless_prompts *prompts, const lossless_prompt *beginning, size_t beginning_n,
                                    lossless_prompt *out, kakeya_error *error);

#endif
