/* `kakeya eval mac-acceptance`: whether the MLX backend does on this machine what it does on MLX's CPU device, in one
 * report that a Mac's owner sends back. Its parts: tokens under both backends row by row, greedy answers, decode modes,
 * sessions that move between the backends, memory along a long session, speed beside what the device allows, and, in
 * whole runs, the reports of `eval lossless` and `eval niah`. docs/reference/reports.md documents the format. */
#ifndef KAKEYA_MEASURE_MAC_H
#define KAKEYA_MEASURE_MAC_H

#include "measure/eval.h"
#include "measure/gate_private.h"

enum {
    MAC_TEXT_TOKENS = 96,   /* that sessions begin with: beyond sink and window */
    MAC_PROMPT_TOKENS = 40, /* of the compared text */
    MAC_DECODE_TOKENS = 24, /* behind them, one row at a time */
    MAC_GREEDY_TOKENS = 12, /* of every answer */
    MAC_MOVED_AFTER = 5,    /* tokens of an answer, before its session moves to the other backend */
    MAC_MEMORY_STEPS = 7,   /* at which memory is looked at */
    MAC_STEP_TOKENS = 4,    /* decoded at each of them */
    MAC_LOSSLESS_PROMPTS = 10,
    MAC_NIAH_SAMPLES = 5
};

/* The "kind" of these reports. */
extern const char mac_kind[];

typedef struct eval_mac_options {
    bool quick;               /* without lossless and niah, and a short session for memory */
    int memory_tokens;        /* of that session; 0: 7,000, quick: 700 */
    const char *const *files; /* sources of code prompts; at least one, unless quick */
    size_t n_files;
} eval_mac_options;

/* Runs everything. On failure *out is the report as far as it came ("complete" false, with the failure's text), or NULL
 * if there is none; the caller deletes it. Writes no file. */
kakeya_status eval_mac_acceptance(const eval_setup *setup, const eval_mac_options *options, cJSON **out,
                                  kakeya_error *error);

/* The modes in which the first answer is given again. */
typedef struct mac_stream {
    const char *mode;
    int draft_length, prompt_chunk;
    bool drafter; /* needs one */
} mac_stream;
enum { MAC_STREAMS = 6 };
extern const mac_stream mac_streams[MAC_STREAMS];
extern const int mac_bench_contexts[2], mac_bench_rows[5];

/* The gate's judgement of such a report (measure/gate.h); the context's report is an object of this kind. */
void gate_check_mac(gate_context *context); /* but for the parts that are reports */

#endif
