#include "measure/niah.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "measure/mt19937.h"

enum {
    MIN_LINES = 10,
    MAX_LINES = 1000000,
    NEEDLE_MARGIN = 4, /* lines kept before and after the needle */
};

static const char *const default_prefixes[] = {"ALPHA", "BETA",  "GAMMA",  "DELTA", "EPSILON", "ZETA", "ETA",  "THETA",
                                               "IOTA",  "KAPPA", "ORCHID", "PINE",  "MAPLE",   "OAK",  "BIRCH"};

void niah_options_init(niah_options *options) {
    *options = (niah_options){
        .samples = 30,
        .min_lines = 60,
        .max_lines = 80,
        .seed = 42,
        .prefixes = default_prefixes,
        .n_prefixes = sizeof default_prefixes / sizeof default_prefixes[0],
        .min_code = 1000,
        .max_code = 9999,
    };
}

static kakeya_status check(const niah_options *options, kakeya_error *error) {
    if (options->samples <= 0)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "samples must be at least 1, not %d", options->samples);
    if (options->min_lines > options->max_lines)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "fewest lines (%d) exceed most lines (%d)", options->min_lines,
                         options->max_lines);
    if (options->min_lines < MIN_LINES || options->max_lines > MAX_LINES)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "a haystack has %d to %d lines, not %d", MIN_LINES, MAX_LINES,
                         options->min_lines < MIN_LINES ? options->min_lines : options->max_lines);
    if (!options->n_prefixes) return error_set(error, KAKEYA_INVALID_ARGUMENT, "no code prefixes given");
    if (options->min_code < 0 || options->min_code > options->max_code)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "lowest code (%d) and highest code (%d) make no range",
                         options->min_code, options->max_code);
    return KAKEYA_OK;
}

static char *make_prompt(int lines, int needle_line, const char *needle) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    if (!stream) return NULL;
    for (int i = 0; i < lines; i++) {
        if (i == needle_line) fprintf(stream, "%s\n", needle);
        fprintf(stream, "Note %04d: this paragraph is unrelated padding and does not contain the answer.\n", i);
    }
    fputs("Question: what is the secret code? Answer:", stream);
    if (fclose(stream) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

static bool make_sample(const niah_options *options, mt19937 *generator, niah_sample *sample) {
    sample->lines = mt19937_between(generator, options->min_lines, options->max_lines);
    const char *prefix = options->prefixes[mt19937_below(generator, (uint32_t)options->n_prefixes)];
    int code = mt19937_between(generator, options->min_code, options->max_code);
    sample->needle_line = mt19937_between(generator, NEEDLE_MARGIN, sample->lines - NEEDLE_MARGIN);
    if (asprintf(&sample->answer, "%s-%d", prefix, code) < 0) {
        sample->answer = NULL;
        return false;
    }
    if (asprintf(&sample->needle, "\nIMPORTANT: the secret code is %s.\n", sample->answer) < 0) {
        sample->needle = NULL;
        return false;
    }
    if (options->without_prompts) return true;
    sample->prompt = make_prompt(sample->lines, sample->needle_line, sample->needle);
    return sample->prompt != NULL;
}

kakeya_status niah_generate(const niah_options *options, niah_dataset *out, kakeya_error *error) {
    *out = (niah_dataset){0};
    kakeya_status status = check(options, error);
    if (status != KAKEYA_OK) return status;

    mt19937 generator;
    mt19937_seed(&generator, options->seed);
    out->samples = calloc((size_t)options->samples, sizeof *out->samples);
    if (!out->samples) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for %d samples", options->samples);
    for (; out->n < (size_t)options->samples; out->n++) {
        if (!make_sample(options, &generator, &out->samples[out->n])) {
            out->n++; /* the failed sample's parts are freed too */
            niah_dataset_free(out);
            return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for %d samples", options->samples);
        }
    }
    return KAKEYA_OK;
}

kakeya_status niah_rung(int lines, int samples, uint64_t seed, bool without_prompts, niah_dataset *out,
                        kakeya_error *error) {
    niah_options options;
    niah_options_init(&options);
    options.samples = samples;
    options.min_lines = options.max_lines = lines;
    options.seed = seed;
    options.without_prompts = without_prompts;
    return niah_generate(&options, out, error);
}

static bool same_prompt(const niah_sample *a, const niah_sample *b) {
    return a->lines == b->lines && a->needle_line == b->needle_line && strcmp(a->answer, b->answer) == 0;
}

static void sample_free(niah_sample *sample) {
    free(sample->prompt);
    free(sample->answer);
    free(sample->needle);
}

kakeya_status niah_warmup(int lines, int samples, uint64_t seed, bool without_prompts, niah_dataset *out,
                          kakeya_error *error) {
    enum { CANDIDATES = 16 };
    niah_dataset measured;
    kakeya_status status = niah_rung(lines, CANDIDATES, seed + 1, without_prompts, out, error);
    if (status != KAKEYA_OK) return status;
    status = niah_rung(lines, samples, seed, true, &measured, error);
    if (status != KAKEYA_OK) {
        niah_dataset_free(out);
        return status;
    }
    size_t chosen = 0;
    for (bool taken = true; taken && chosen < out->n; chosen += taken) {
        taken = false;
        for (size_t i = 0; i < measured.n; i++) taken |= same_prompt(&out->samples[chosen], &measured.samples[i]);
    }
    niah_dataset_free(&measured);
    if (chosen == out->n) {
        niah_dataset_free(out);
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "%d lines: all prompts of seed %llu are measured ones, none is left to warm up", lines,
                         (unsigned long long)seed + 1);
    }
    niah_sample kept = out->samples[chosen];
    out->samples[chosen] = out->samples[0];
    out->samples[0] = kept;
    while (out->n > 1) sample_free(&out->samples[--out->n]);
    return KAKEYA_OK;
}

void niah_dataset_free(niah_dataset *dataset) {
    for (size_t i = 0; i < dataset->n; i++) sample_free(&dataset->samples[i]);
    free(dataset->samples);
    *dataset = (niah_dataset){0};
}
