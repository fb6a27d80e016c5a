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
    bool pictures;          /* the needle is a picture (code_picture.h) that shows four digits: a code of its own */
} niah_options;

typedef struct niah_sample {
    char *prompt; /* the user's message, without turn format; with a picture, what is before it */
    char *after;  /* with a picture, what is after it; else NULL */
    char *answer; /* "ALPHA-1234", or "1234" in a picture: a substring of every right answer */
    char *needle; /* the inserted line with the blank lines around it; NULL with a picture */
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
/* One number of lines, drawn like any data set, but for samples whose code an earlier one has: those are drawn again.
 */
kakeya_status niah_rung(int lines, int samples, uint64_t seed, bool without_prompts, niah_dataset *out,
                        kakeya_error *error);

/* The samples of `eval niah`, `samples` for each rung in turn, and behind them the warm-up sample, one more of the
 * first rung. A sample is drawn by random.Random(FNV-1a of "SEED/LINES/INDEX"), as often as it takes to find a code
 * that no sample before it has: rungs have other codes than each other. The gate draws them again, without prompts. */
enum {
    NIAH_MAX_LADDER = 20000, /* samples; there are 135,000 codes */
    NIAH_MAX_PICTURES = 2000 /* the same in pictures, which show 9,000 */
};
kakeya_status niah_ladder(const int *lines, size_t n_lines, int samples, uint64_t seed, bool pictures,
                          bool without_prompts, niah_dataset *out, kakeya_error *error);
void niah_dataset_free(niah_dataset *dataset);

/* The sample as text that a base model continues: a list of facts, `lines` of them, each with a code of its own, and
 * the beginning of the needle's once more. What follows is the answer. malloc'ed; NULL when out of memory. */
char *niah_facts(const niah_sample *sample);

#endif
