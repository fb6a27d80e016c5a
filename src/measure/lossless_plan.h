/* What `eval lossless` runs on its prompts. The evaluation follows this plan, and the gate derives it again from a
 * report's options to see that every run is there. */
#ifndef KAKEYA_MEASURE_LOSSLESS_PLAN_H
#define KAKEYA_MEASURE_LOSSLESS_PLAN_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>

enum {
    LOSSLESS_KINDS = 3,
    LOSSLESS_TEMPERATURES = 3,
    LOSSLESS_CHUNKS = 4,
    LOSSLESS_ENGINES = 2,
    LOSSLESS_MAX_VARIANTS = 9,
    LOSSLESS_MOST_DROPPED = 8, /* tokens of an answer that is cut */
};

extern const char *const lossless_kind_names[LOSSLESS_KINDS];
extern const int lossless_threads[LOSSLESS_ENGINES]; /* of the two engines */

/* Kinds and temperatures go round as in a Latin square: nine prompts show every pair. */
int lossless_kind(int prompt);
double lossless_temperature(int prompt);

typedef struct lossless_variant {
    const char *mode; /* as in eval_arm */
    int draft_length;
    int prompt_chunk; /* prompt tokens per forward; 0: the backend's choice */
    int engine;       /* index of lossless_threads */
    bool truncated;   /* the last tokens are cut off and said again */
} lossless_variant;

/* The runs of one prompt under one policy: the autoregressive reference, then everything that must give the same
 * tokens. Draft lengths, chunks and threads go round with the prompts, each with another period. The first
 * `reference_prompts` prompts also run the slow references. Under sink-window and restored-all a prompt runs once in
 * blocks, and once truncated. Returns their number. */
size_t lossless_variants(int prompt, const char *policy, bool drafter, int reference_prompts,
                         lossless_variant out[LOSSLESS_MAX_VARIANTS]);

/* How many tokens of a truncated answer of n are cut off. What memory is left goes back so far under every policy. */
size_t lossless_dropped(size_t n);

/* Adds "modes", "prompt_kinds", "temperatures", "threads" and "prompt_chunks" to the options of a report: what this
 * many prompts reach of each. False when out of memory. */
bool lossless_add_promises(cJSON *options, int prompts, bool drafter, int reference_prompts);

#endif
