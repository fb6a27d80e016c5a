/* Requests of `kakeya bench --requests` as their callers see them, whoever answers: the library or a server. */
#ifndef KAKEYA_MEASURE_BENCH_TRAFFIC_H
#define KAKEYA_MEASURE_BENCH_TRAFFIC_H

#include <pthread.h>

#include "base/error.h"
#include "kakeya.h"

enum { BENCH_MAX_REQUESTS = 4096 };

typedef struct bench_load {
    int requests;      /* 1 to BENCH_MAX_REQUESTS */
    int prompt_tokens; /* A: prompts have A/2 to 3A/2 - 1 tokens; at least 2 */
    int answer_tokens; /* of every answer */
    double rate;       /* requests a second; 0: all at once */
    int outstanding;   /* requests under way, at most; 0: no limit */
} bench_load;

/* One request and when its pieces came; clock_seconds. */
typedef struct bench_stream {
    int32_t *prompt; /* [n_prompt] */
    int n_prompt;
    double begun, first, last; /* 0: not yet */
    int tokens;                /* of its answer so far */
    double *gap;               /* [gaps] between pieces that came one after the other; at most most_gaps */
    int gaps, most_gaps;
    int cached; /* tokens of the prompt that were not computed, as far as is known */
} bench_stream;

typedef struct bench_traffic {
    bench_load load;
    bench_stream *stream; /* [load.requests] */
    double begun, ended;
    void *memory;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    int *over; /* [requests] those that are over, in this order */
    int n_over;
    int kinds; /* of ids in texts */
    int runs;  /* so far */
} bench_traffic;

/* Texts are random ids, each request's its own; the same load has the same ones in every program, and each run of it
 * others than the run before, of the same lengths: nobody can keep what was computed of them. vocab: of the model; 0:
 * unknown. */
kakeya_status bench_traffic_open(const bench_load *load, int vocab, bench_traffic *out, kakeya_error *error);
void bench_traffic_free(bench_traffic *traffic);

/* Who answers. A request that has begun is over once, whatever happens: bench_traffic_over is called, by any thread. */
typedef struct bench_traffic_verbs {
    kakeya_status (*begin)(void *user, int request, kakeya_error *error);
    /* Of a request that is over, on the thread of bench_traffic_run. */
    kakeya_status (*end)(void *user, int request, kakeya_error *error);
    void (*cancel)(void *user, int request); /* of one that may be over already */
} bench_traffic_verbs;

/* A piece of an answer, of so many tokens, has come. */
void bench_stream_piece(bench_stream *stream, int tokens);
void bench_traffic_over(bench_traffic *traffic, int request);

/* Hands over all requests in order, as the load says, and waits for them. The first failure cancels the others.
 * KAKEYA_CANCELLED where `progress` (may be NULL), which is told of requests that are over, says so. */
kakeya_status bench_traffic_run(bench_traffic *traffic, const bench_traffic_verbs *verbs, void *user,
                                kakeya_progress_fn progress, kakeya_error *error);

typedef struct bench_percentiles {
    double p50, p99, most;
} bench_percentiles;

/* Of n values, which are sorted; all 0 for none. */
bench_percentiles bench_percentiles_of(double *values, size_t n);

typedef struct bench_figures {
    double seconds; /* from the first request's handing over to the last one's end */
    uint64_t prompt_tokens, cached_tokens, answer_tokens; /* cached: of the prompts' */
    bench_percentiles first_token, gap;                   /* seconds; of all requests, of all gaps in all answers */
} bench_figures;

kakeya_status bench_traffic_figures(const bench_traffic *traffic, bench_figures *out, kakeya_error *error);

#endif
