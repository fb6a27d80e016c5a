/* What `kakeya bench --requests` measures: how long a busy engine takes for many requests, each with a text of its own,
 * beside the time that its own two speeds allow. Nothing is printed here. */
#ifndef KAKEYA_MEASURE_BENCH_REQUESTS_H
#define KAKEYA_MEASURE_BENCH_REQUESTS_H

#include "measure/bench.h"
#include "measure/bench_traffic.h"

/* The two speeds that a run's ideal time is made of. 0: not known. */
typedef struct bench_speeds {
    double prompt_tokens_per_second; /* of one long prompt alone */
    double answer_tokens_per_second; /* of a full batch of sessions in step, each behind a text of its own */
} bench_speeds;

typedef struct bench_ideal {
    bench_speeds measured, recorded;
    int prompt_tokens;                     /* of the long prompt */
    int sessions, context;                 /* of the full batch, and behind how many tokens each of them decodes */
    double prompt_seconds, answer_seconds; /* of all requests, each at the faster of its speeds */
} bench_ideal;

/* What lies between the forwards of a run. */
typedef struct bench_between {
    uint64_t steps;
    double answer_rows, prompt_rows;       /* of a step, on average */
    bench_percentiles host;                /* seconds from the end of a step's forward to the begin of the next one's */
    double host_seconds;                   /* all of them */
    bool on_device;                        /* the next two are known */
    double kernel_gap, longest_kernel_gap; /* seconds from a forward's last kernel to the next one's first; mean */
    uint64_t graphs;                       /* captured in the run */
    double graph_seconds;
} bench_between;

typedef struct bench_requests_options {
    bench_load load;
    int repeats; /* 1 to BENCH_MAX_REPEATS */
    kakeya_mode mode;
    kakeya_session_options session; /* context_tokens is each request's own */
    bench_speeds recorded;          /* of an earlier run; 0: none */
    kakeya_progress_fn progress;
} bench_requests_options;

typedef struct bench_requests_result {
    bench_figures run;    /* the one with the median time */
    bench_spread seconds; /* of all runs */
    bench_ideal ideal;
    bench_between between; /* of a run of its own, before the others */
} bench_requests_result;

/* `figures` are those of all runs and are sorted by their time. */
void bench_requests_median(bench_figures *figures, int n, bench_figures *median, bench_spread *seconds);

/* Fills the times of an ideal whose speeds are set. Every answer's first token comes from its prompt's last row. */
void bench_ideal_times(bench_ideal *ideal, const bench_figures *run, int requests);

/* One run in which steps are watched, `repeats` that count, then the two speeds. */
kakeya_status bench_requests_measure(kakeya_engine *engine, const bench_requests_options *options,
                                     bench_requests_result *out, kakeya_error *error);

#endif
