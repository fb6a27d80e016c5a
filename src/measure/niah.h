/* Needle-in-a-haystack prompts: numbered filler lines, one line with a secret code, and the question for it. */
#ifndef KAKEYA_MEASURE_NIAH_H
#define KAKEYA_MEASURE_NIAH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct niah_options {
    int samples;
    int min_lines, max_lines; /* filler lines, drawn evenly from this range; at least 10 */
    uint64_t seed;
    const char *const *prefixes; /* first half of the code, e.g. "ALPHA" */
    size_t n_prefixes;
    int min_code, max_code; /* second half of the code */
    bool without_prompts;   /* leave `prompt` NULL: only the answers are asked for */
} niah_options;

typedef struct niah_sample {
    char *prompt; /* the user's message, without turn format */
    char *answer; /* "ALPHA-1234", a substring of every right answer */
    char *needle; /* the inserted line with the blank lines around it */
    int lines;
    int needle_line; /* index of the needle among the lines */
} niah_sample;

typedef struct niah_dataset {
    niah_sample *samples;
    size_t n;
} niah_dataset;

/* 30 samples of 60 to 80 lines, seed 42, fifteen prefixes, codes 1000 to 9999. */
void niah_options_init(niah_options *options);

/* The data set that random.Random(seed) draws: per sample the number of lines, the prefix, the code and the place. */
kakeya_status niah_generate(const niah_options *options, niah_dataset *out, kakeya_error *error);
/* The samples of one rung of `eval niah`, and its warm-up sample: one of the next seed that is none of the rung's. The
 * gate draws them again without their prompts. */
kakeya_status niah_rung(int lines, int samples, uint64_t seed, bool without_prompts, niah_dataset *out,
                        kakeya_error *error);
kakeya_status niah_warmup(int lines, int samples, uint64_t seed, bool without_prompts, niah_dataset *out,
                          kakeya_error *error);
void niah_dataset_free(niah_dataset *dataset);

#endif
