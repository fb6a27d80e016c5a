/* What `kakeya verify` runs: rounds of streams, each of which must be what a reference says. The certificate follows
 * this plan, and the gate derives it again from a report's options. */
#ifndef KAKEYA_MEASURE_VERIFY_PLAN_H
#define KAKEYA_MEASURE_VERIFY_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "measure/rows.h"
#include "measure/verify_comparison.h"

enum {
    VERIFY_POLICIES = 4,
    VERIFY_FORMATS = 4,
    VERIFY_TEMPERATURES = 2,                                               /* 0 and 1 */
    VERIFY_UNITS = VERIFY_POLICIES * VERIFY_FORMATS * VERIFY_TEMPERATURES, /* of a round, at most */
    VERIFY_STREAMS = VERIFY_UNITS * (VERIFY_COMPARISONS + 1),              /* of the drafter there may be two */
    VERIFY_LEAST_TOKENS = 4,
    VERIFY_MOST_TOKENS = 256,
};

typedef struct verify_plan {
    uint64_t seed;
    int policies, formats;   /* how many there are */
    bool drafter, assistant; /* assistant: an MTP assistant beside a DFlash drafter, each of which is asked */
} verify_plan;

typedef struct verify_stream {
    verify_comparison comparison;
    int policy, format, temperature;
    bool assistant;   /* of VERIFY_DRAFTER: the MTP assistant is asked, and not the DFlash drafter */
    const char *mode; /* as in eval_arm, like the next three */
    int draft_length, prompt_chunk, together;
} verify_stream;

/* Streams of a round (0, 1, ...) in their order: those of this process, or those of the other. Returns their number. */
int verify_round(const verify_plan *plan, int round, bool elsewhere, verify_stream out[VERIFY_STREAMS]);

/* The prompt of all streams of a round that share policy and format: its name, kind and sampling seed. */
void verify_sample(const verify_plan *plan, int round, int policy, int format, char *out, size_t bytes);
const char *verify_prompt_kind(int round); /* "text" or "random" */
uint64_t verify_seed(const verify_plan *plan, int round, int policy, int format);
/* A round whose prompts are longer than the model's sliding window. */
bool verify_is_long(int round);

/* Fills what the plan says of a row: arm (but sizes and threads), sample, kind. */
void verify_plan_row(const verify_plan *plan, int round, const verify_stream *stream, const char *policy,
                     const char *format, eval_row *row);

#endif
