#include "measure/niah.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
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

static char *make_lines(int from, int to, const char *end) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    if (!stream) return NULL;
    for (int i = from; i < to; i++)
        fprintf(stream, "Note %04d: this paragraph is unrelated padding and does not contain the answer.\n", i);
    fputs(end, stream);
    if (fclose(stream) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

static const char question[] = "Question: what is the secret code? Answer:";

static bool make_prompt(niah_sample *sample) {
    const int at = sample->needle_line;
    char *before = make_lines(0, at, ""), *after = make_lines(at, sample->lines, question);
    bool made = before && after;
    if (made && !sample->needle) {
        sample->prompt = before;
        sample->after = after;
        return true;
    }
    if (made) made = asprintf(&sample->prompt, "%s%s\n%s", before, sample->needle, after) >= 0;
    if (!made) sample->prompt = NULL;
    free(before);
    free(after);
    return made;
}

static bool make_sample(const niah_options *options, mt19937 *generator, niah_sample *sample) {
    sample->lines = mt19937_between(generator, options->min_lines, options->max_lines);
    const char *prefix = options->prefixes[mt19937_below(generator, (uint32_t)options->n_prefixes)];
    int code = mt19937_between(generator, options->min_code, options->max_code);
    sample->needle_line = mt19937_between(generator, NEEDLE_MARGIN, sample->lines - NEEDLE_MARGIN);
    if (asprintf(&sample->answer, "%s%s%d", options->pictures ? "" : prefix, options->pictures ? "" : "-", code) < 0) {
        sample->answer = NULL;
        return false;
    }
    if (!options->pictures && asprintf(&sample->needle, "\nIMPORTANT: the secret code is %s.\n", sample->answer) < 0) {
        sample->needle = NULL;
        return false;
    }
    return options->without_prompts || make_prompt(sample);
}

static void sample_free(niah_sample *sample) {
    free(sample->prompt);
    free(sample->after);
    free(sample->answer);
    free(sample->needle);
}

static bool has_answer(const niah_dataset *dataset, const char *answer) {
    for (size_t i = 0; i < dataset->n; i++)
        if (strcmp(dataset->samples[i].answer, answer) == 0) return true;
    return false;
}

/* distinct: drawn again while a sample before it has its answer. */
static kakeya_status add_sample(const niah_options *options, mt19937 *generator, bool distinct, niah_dataset *out,
                                kakeya_error *error) {
    niah_sample *sample = &out->samples[out->n];
    for (;;) {
        bool made = make_sample(options, generator, sample);
        if (made && !(distinct && has_answer(out, sample->answer))) break;
        sample_free(sample);
        *sample = (niah_sample){0};
        if (!made) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for %zu samples", out->n + 1);
    }
    out->n++;
    return KAKEYA_OK;
}

static kakeya_status draw_sequence(const niah_options *options, bool distinct, niah_dataset *out, kakeya_error *error) {
    *out = (niah_dataset){0};
    kakeya_status status = check(options, error);
    if (status != KAKEYA_OK) return status;
    mt19937 generator;
    mt19937_seed(&generator, options->seed);
    out->samples = calloc((size_t)options->samples, sizeof *out->samples);
    if (!out->samples) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for %d samples", options->samples);
    for (int i = 0; i < options->samples && status == KAKEYA_OK; i++)
        status = add_sample(options, &generator, distinct, out, error);
    if (status != KAKEYA_OK) niah_dataset_free(out);
    return status;
}

kakeya_status niah_generate(const niah_options *options, niah_dataset *out, kakeya_error *error) {
    return draw_sequence(options, false, out, error);
}

static niah_options rung_options(int lines, int samples, uint64_t seed, bool without_prompts) {
    niah_options options;
    niah_options_init(&options);
    options.samples = samples;
    options.min_lines = options.max_lines = lines;
    options.seed = seed;
    options.without_prompts = without_prompts;
    return options;
}

kakeya_status niah_rung(int lines, int samples, uint64_t seed, bool without_prompts, niah_dataset *out,
                        kakeya_error *error) {
    niah_options options = rung_options(lines, samples, seed, without_prompts);
    return draw_sequence(&options, true, out, error);
}

/* Random.seed of one sample: FNV-1a of "SEED/LINES/INDEX". */
static uint64_t sample_seed(uint64_t seed, int lines, size_t index) {
    char text[48];
    int length = snprintf(text, sizeof text, "%" PRIu64 "/%d/%zu", seed, lines, index);
    return hash_fnv1a(HASH_FNV1A_START, text, (size_t)length);
}

kakeya_status niah_ladder(const int *lines, size_t n_lines, int samples, uint64_t seed, bool pictures,
                          bool without_prompts, niah_dataset *out, kakeya_error *error) {
    const size_t most = pictures ? NIAH_MAX_PICTURES : NIAH_MAX_LADDER;
    *out = (niah_dataset){0};
    if (samples > 0 && n_lines * (size_t)samples >= most)
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "%zu rungs of %d samples: a ladder%s has fewer than %zu samples", n_lines, samples,
                         pictures ? " of pictures" : "", most);
    kakeya_status status = KAKEYA_OK;
    for (size_t r = 0; r < n_lines && status == KAKEYA_OK; r++) {
        niah_options options = rung_options(lines[r], samples, seed, without_prompts);
        status = check(&options, error);
    }
    if (status != KAKEYA_OK) return status;
    out->samples = calloc(n_lines * (size_t)samples + 1, sizeof *out->samples);
    if (!out->samples) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for %d samples", samples);
    for (size_t i = 0; i <= n_lines * (size_t)samples && status == KAKEYA_OK; i++) {
        bool warmup = i == n_lines * (size_t)samples;
        size_t rung = warmup ? 0 : i / (size_t)samples, index = warmup ? (size_t)samples : i % (size_t)samples;
        niah_options options = rung_options(lines[rung], samples, seed, without_prompts);
        options.pictures = pictures;
        mt19937 generator;
        mt19937_seed(&generator, sample_seed(seed, lines[rung], index));
        status = add_sample(&options, &generator, true, out, error);
    }
    if (status != KAKEYA_OK) niah_dataset_free(out);
    return status;
}

/* Line i is about somebody whom no other line is about. */
static void print_subject(FILE *stream, int i) {
    static const char *const trades[] = {"baker",   "tailor",   "sailor", "miller",  "mason",  "painter", "printer",
                                         "teacher", "gardener", "weaver", "brewer",  "cooper", "glazier", "joiner",
                                         "porter",  "roofer",   "potter", "plumber", "smith",  "tanner"};
    static const char *const towns[] = {"Oslo",   "Lima",   "Cairo",  "Delhi",  "Rome",   "Paris", "Berlin",
                                        "Dublin", "Havana", "Tokyo",  "Vienna", "Madrid", "Sofia", "Quito",
                                        "Athens", "Seoul",  "Boston", "Prague", "Geneva", "Lagos"};
    enum { TRADES = sizeof trades / sizeof *trades, TOWNS = sizeof towns / sizeof *towns };
    int round = i / (TRADES * TOWNS), in_round = i % (TRADES * TOWNS);
    const char *trade = trades[in_round % TRADES], *town = towns[(in_round / TRADES + in_round) % TOWNS];
    if (round)
        fprintf(stream, "The code of the %s number %d in %s is", trade, round + 1, town);
    else
        fprintf(stream, "The code of the %s in %s is", trade, town);
}

/* A code that is not the sample's. */
static void print_other_code(FILE *stream, const niah_sample *sample, int i) {
    enum { LOWEST = 1000, CODES = 9000, PREFIXES = sizeof default_prefixes / sizeof *default_prefixes };
    char code[32];
    uint64_t hash = hash_fnv1a(hash_fnv1a(HASH_FNV1A_START, sample->answer, strlen(sample->answer)), &i, sizeof i);
    do {
        snprintf(code, sizeof code, "%s-%d", default_prefixes[hash % PREFIXES],
                 LOWEST + (int)(hash / PREFIXES % CODES));
        hash += PREFIXES;
    } while (strcmp(code, sample->answer) == 0);
    fprintf(stream, " %s.\n", code);
}

char *niah_facts(const niah_sample *sample) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    if (!stream) return NULL;
    for (int i = 0; i < sample->lines; i++) {
        print_subject(stream, i);
        if (i == sample->needle_line)
            fprintf(stream, " %s.\n", sample->answer);
        else
            print_other_code(stream, sample, i);
    }
    print_subject(stream, sample->needle_line);
    if (fclose(stream) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

void niah_dataset_free(niah_dataset *dataset) {
    for (size_t i = 0; i < dataset->n; i++) sample_free(&dataset->samples[i]);
    free(dataset->samples);
    *dataset = (niah_dataset){0};
}
