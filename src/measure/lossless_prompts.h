/* Prompts of the lossless evaluations: needles, stretches of texts and random ids, drawn by seed, no two alike. */
#ifndef KAKEYA_MEASURE_LOSSLESS_PROMPTS_H
#define KAKEYA_MEASURE_LOSSLESS_PROMPTS_H

#include "measure/harness.h"
#include "measure/mt19937.h"

enum { LOSSLESS_MIN_PROMPT_TOKENS = 24, LOSSLESS_MAX_PROMPT_TOKENS = 400 /* needles aside */ };

typedef struct lossless_prompts {
    eval_harness *harness;
    eval_sequences texts;
    mt19937 generator;
} lossless_prompts;

typedef struct lossless_prompt {
    char sample[32];
    int kind; /* index of lossless_kind_names */
    int32_t *ids;
    size_t n;
} lossless_prompt;

/* Reads the texts. lossless_prompts_close also after a failure. */
kakeya_status lossless_prompts_open(lossless_prompts *prompts, eval_harness *harness, const char *const *files,
                                    size_t n_files, uint64_t seed, kakeya_error *error);
void lossless_prompts_close(lossless_prompts *prompts);

/* Draws the prompt whose sample and kind are set; the caller frees out->ids. beginning_n ids of `beginning` (0: none)
 * stand before what is drawn. KAKEYA_INVALID_ARGUMENT: the texts have no stretch left that was not drawn before. */
kakeya_status lossless_prompts_draw(lossless_prompts *prompts, const int32_t *beginning, size_t beginning_n,
                                    lossless_prompt *out, kakeya_error *error);

#endif
