/* Counters of the server, and Prometheus's text form of them. Whoever counts adds with relaxed atomics: nothing waits.
 */
#ifndef KAKEYA_SERVE_METRICS_H
#define KAKEYA_SERVE_METRICS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "serve/text.h"

enum { METRICS_SECONDS = 16, METRICS_TOKENS = 19, METRICS_ROUTES = 64, METRICS_STATUSES = 16, METRICS_POSITIONS = 16 };

/* Upper bounds are those of metrics.c; the last bucket is +Inf. */
typedef struct histogram {
    _Atomic uint64_t buckets[METRICS_TOKENS + 1];
    _Atomic uint64_t sum; /* nanoseconds, or tokens */
    _Atomic uint64_t count;
} histogram;

typedef enum finished_reason {
    FINISHED_STOP = 0,
    FINISHED_LENGTH,
    FINISHED_TOOL_CALLS,
    FINISHED_CANCELLED,
    FINISHED_ERROR,
    FINISHED_REASONS
} finished_reason;

typedef struct metrics {
    _Atomic uint64_t
        requests[METRICS_ROUTES][METRICS_STATUSES]; /* by place in the table of routes; the last: no route */
    _Atomic uint64_t finished[FINISHED_REASONS];
    _Atomic uint64_t prompt_tokens, generation_tokens;
    _Atomic uint64_t cached_tokens[4]; /* by store_source */
    _Atomic uint64_t draft_tokens, draft_accepted, forwards, preemptions;
    _Atomic uint64_t drafted_at[METRICS_POSITIONS], accepted_at[METRICS_POSITIONS];
    _Atomic uint64_t fields_ignored, parser_repairs, grammar_redraws, grammar_masks;
    histogram first_token, inter_token, whole, queue, prefill, decode; /* seconds */
    histogram prompt_size, answer_size;                                /* tokens */
} metrics;

void metrics_add(_Atomic uint64_t *counter, uint64_t value);
void metrics_seconds(histogram *h, double seconds);
void metrics_tokens(histogram *h, uint64_t tokens);
void metrics_request(metrics *m, size_t route, int status);
/* The status of a column of requests. */
int metrics_status(size_t column);

/* Lines of one metric; name without "kakeya_", labels as `a="b",` or "". */
void metrics_header(text_buffer *out, const char *name, const char *type, const char *help);
void metrics_value(text_buffer *out, const char *name, const char *model, const char *labels, double value);
void metrics_histogram(text_buffer *out, const char *name, const char *help, const char *model, const histogram *h,
                       bool seconds);

#endif
