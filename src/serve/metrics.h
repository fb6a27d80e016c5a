/* Counters of the server, and Prometheus's text form of them. Whoever counts adds with relaxed atomics: nothing waits.
 */
#ifndef KAKEYA_SERVE_METRICS_H
#define KAKEYA_SERVE_METRICS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "serve/text.h"

enum {
    METRICS_SECONDS = 16,
    METRICS_TOKENS = 19,
    METRICS_ROUTES = 64,
    METRICS_STATUSES = 16,
    METRICS_POSITIONS = 16,
    METRICS_FIELDS = 24
};

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
    FINISHED_CACHE_THRESHOLD,
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
    _Atomic uint64_t memory_refusals;
    _Atomic uint64_t drafted_at[METRICS_POSITIONS], accepted_at[METRICS_POSITIONS];
    _Atomic uint64_t fields_ignored[METRICS_FIELDS]; /* by place in a list of names; the last: all others */
    _Atomic uint64_t token_repairs, call_repairs, grammar_redraws, grammar_masks, grammar_keywords_ignored;
    histogram first_token, inter_token, whole, queue, prefill, decode, iteration; /* seconds */
    histogram prompt_size, answer_size;                                           /* tokens */
    histogram iteration_prompt, iteration_decode, iteration_both;                 /* positions */
} metrics;

/* Which names /metrics has: the project's, vLLM's where there is one, or both. */
typedef enum metrics_names { METRICS_KAKEYA = 0, METRICS_VLLM, METRICS_BOTH } metrics_names;

void metrics_add(_Atomic uint64_t *counter, uint64_t value);
void metrics_seconds(histogram *h, double seconds);
void metrics_tokens(histogram *h, uint64_t tokens);
void metrics_request(metrics *m, size_t route, int status);
/* names: fields of one request, "a, b[0].c". Only what stands in front of the first . [ and ( counts, so that the names
 * are few. */
void metrics_fields(metrics *m, const char *names);
/* The status of a column of requests, and the name of a place of fields_ignored; NULL: there is none. */
int metrics_status(size_t column);
const char *metrics_field(size_t place);

/* The text, family by family. */
typedef struct metrics_page {
    const char *model;
    metrics_names names;
    text_buffer own, vllm;
    const char *own_name, *vllm_name; /* of the family; NULL: it does not have this name here */
} metrics_page;

/* name without "kakeya_", vllm without "vllm:"; NULL: none. */
void metrics_family(metrics_page *page, const char *name, const char *vllm, const char *type, const char *help);
/* Of the family; suffix "" or "_sum"; labels as `a="b",` or "". */
void metrics_sample(metrics_page *page, const char *suffix, const char *labels, double value);
/* A family of one value. */
void metrics_one(metrics_page *page, const char *name, const char *vllm, const char *type, const char *help,
                 double value);
/* Samples of the family. */
void metrics_histogram(metrics_page *page, const char *labels, const histogram *h, bool seconds);
/* All of it, the page's own buffers given up. */
void metrics_page_end(metrics_page *page, text_buffer *out);

#endif
