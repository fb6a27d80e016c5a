/* What a limit on weights costs, measured: prompt and decode speed of an engine whose experts come from files, beside
 * what its disk, its memory and its kernels allow. */
#ifndef KAKEYA_MEASURE_BENCH_WEIGHTS_H
#define KAKEYA_MEASURE_BENCH_WEIGHTS_H

#include "measure/bench.h"

/* What takes the longest of what cannot be avoided: reading experts that are not there, once; reading weights and K/V
 * from memory; computing; what was computed without the waits for reads, which is measured in the same calls. */
typedef enum bench_weights_bound { BOUND_DISK = 0, BOUND_MEMORY, BOUND_COMPUTING, BOUND_STEP } bench_weights_bound;

/* One of the two: all tokens of a prompt, or one decoded token. */
typedef struct bench_weights_case {
    bench_spread seconds, share; /* share: of the bound, as in bench_row */
    double bound_seconds;        /* median */
    bench_weights_bound bound;
    double hit_rate;     /* of experts that forwards wanted, those in memory */
    double bytes_read;   /* from files, by one call */
    double missed;       /* bytes of the experts that were not there, by one call: the fewest to read */
    bench_spread waited; /* seconds that one call waited for reads; 0 of a device, which does not say */
} bench_weights_case;

typedef struct bench_weights_row {
    kakeya_weights state; /* behind the measurement */
    bench_weights_case prompt, decode;
    bench_spread disk; /* bytes per second */
    bench_spread read_bytes_per_second, flops_per_second;
    int threads;
} bench_weights_row;

/* Of an engine with a limit on weights: options->prompt_tokens from the first of its contexts on, and decode_tokens
 * behind them, other tokens in every repetition. As many tokens again are decoded first, so that memory holds what
 * decoding leaves there. */
kakeya_status bench_weights_measure(kakeya_engine *engine, const bench_options *options, bench_weights_row *out,
                                    kakeya_error *error);

#endif
