/* What `kakeya bench` measures: prompt and decode speed, what verifying and drafting cost, beside what the machine
 * allows. Nothing is printed here. */
#ifndef KAKEYA_MEASURE_BENCH_H
#define KAKEYA_MEASURE_BENCH_H

#include "backend/measure.h"
#include "session/engine.h"

typedef enum bench_what { BENCH_PREFILL = 0, BENCH_DECODE, BENCH_VERIFY, BENCH_DRAFT } bench_what;

enum { BENCH_MAX_REPEATS = 100 };

/* Median and extremes of repeated measurements. */
typedef struct bench_spread {
    double median, low, high;
} bench_spread;

/* One measured case. The bound of a repetition is the time that its own probe, taken just before, allows: the larger of
 * bytes / read bandwidth and operations / FLOP/s; the share is bound / measured, so that a machine whose speed drifts
 * is compared with itself. */
typedef struct bench_row {
    bench_what what;
    int context;
    int rows;          /* prompt tokens, verified rows or drafted tokens; 1 for decode */
    double bytes;      /* that one call must read: weights once and K/V */
    double operations; /* floating-point operations of one call, a multiply-add counted as 2 */
    bool bound_by_bytes;
    bench_spread seconds, bound_seconds, share;
    double cost, cost_bound; /* BENCH_VERIFY: relative to one row: measured, and by bytes */
} bench_row;

typedef struct bench_options {
    const int *contexts;
    size_t n_contexts;
    const int *verify_rows;
    size_t n_verify_rows;
    int prompt_tokens, decode_tokens, repeats;
    bool profile;
    kakeya_session_options session;
    kakeya_progress_fn progress;
} bench_options;

/* Where one decode step behind `context` positions spends its time. */
typedef struct bench_profile {
    int context;
    backend_profile step;
} bench_profile;

typedef struct bench_result {
    bench_row *row; /* freed by bench_result_free */
    size_t n;
    bench_profile *profile; /* by context; freed by bench_result_free */
    size_t n_profiles;
    bench_spread read_bytes_per_second, flops_per_second;
    int threads, draft_length;
} bench_result;

/* Sorts the values. */
bench_spread bench_spread_of(double *values, size_t n);

/* Measures all cases of all contexts: every repetition takes each case once, so that a disturbance of the machine meets
 * all cases alike. Every state but the measured call (filling the context, copying caches) is outside the timed
 * windows. */
kakeya_status bench_measure(kakeya_engine *engine, const bench_options *options, bench_result *out,
                            kakeya_error *error);
void bench_result_free(bench_result *result);

/* Seconds that a kernel needs at least to read and do what it must, at the run's own rates; 0: nothing is known of it.
 */
double bench_kernel_bound(const bench_result *result, const backend_profile_row *row);

/* Bytes that a forward of `rows` rows reads: every weight that one row needs, once, with as many experts as `rows` rows
 * choose on average when routing is uniform (E = n (1 - (1 - k/n)^rows)), and the K/V of `context` positions. */
double bench_forward_bytes(const kakeya_engine *engine, const kakeya_session_options *session, int context, int rows);
/* Bytes that one forward reads in which each of `sessions` caches of `context` positions has one row, and one more
 * cache `prompt_rows` rows of a prompt (0: none): the weights once, the experts that all rows choose, every session's
 * own K/V. What the prompt's rows read of their own prompt is not counted. */
double bench_together_bytes(const kakeya_engine *engine, const kakeya_session_options *session, int context,
                            int sessions, int prompt_rows);
/* Operations of `rows` rows behind `context` positions, with the head computed for `logit_rows` of them. */
double bench_forward_operations(const kakeya_engine *engine, int context, int rows, int logit_rows);
/* Bytes that drafting one block reads: the drafter, the verifier's head, the drafter's context K/V. */
double bench_draft_bytes(const kakeya_engine *engine, const kakeya_session_options *session, int context);
double bench_draft_operations(const kakeya_engine *engine, const kakeya_session_options *session, int context,
                              int drafts);

#endif
