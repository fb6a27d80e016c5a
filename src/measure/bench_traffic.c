#include "measure/bench_traffic.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/platform.h"

/* Ids of texts: whatever the model, they are neither control tokens nor beyond a small vocabulary. */
enum { FIRST_ID = 5, MOST_IDS = 900 };

/* --------------------------------------------------------------------------------------------------------- texts */

/* Numerical Recipes' generator: other programs that measure the same load can make the same texts in one line. */
static uint32_t draw(uint32_t *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static void make_texts(bench_traffic *t, int vocab, int32_t *ids, double *gaps) {
    uint32_t seed = 7, kinds = MOST_IDS;
    if (vocab && vocab < FIRST_ID + MOST_IDS) kinds = vocab > FIRST_ID ? (uint32_t)(vocab - FIRST_ID) : 1;
    for (int i = 0; i < t->load.requests; i++) {
        bench_stream *s = &t->stream[i];
        s->n_prompt = t->load.prompt_tokens / 2 + (int)(draw(&seed) % (uint32_t)t->load.prompt_tokens);
        s->prompt = ids;
        s->gap = gaps;
        s->most_gaps = t->load.answer_tokens;
        for (int k = 0; k < s->n_prompt; k++) ids[k] = FIRST_ID + (int32_t)(draw(&seed) % kinds);
        ids += s->n_prompt;
        gaps += t->load.answer_tokens;
    }
    t->kinds = (int)kinds;
}

static void change_texts(bench_traffic *t) {
    for (int i = 0; i < t->load.requests; i++) {
        bench_stream *s = &t->stream[i];
        for (int k = 0; k < s->n_prompt; k++) s->prompt[k] = FIRST_ID + (s->prompt[k] - FIRST_ID + 1) % t->kinds;
    }
}

kakeya_status bench_traffic_open(const bench_load *load, int vocab, bench_traffic *out, kakeya_error *error) {
    const size_t n = (size_t)load->requests, most = (size_t)load->prompt_tokens / 2 + (size_t)load->prompt_tokens;
    const size_t gaps = n * (size_t)load->answer_tokens * sizeof(double), streams = n * sizeof(bench_stream);
    *out = (bench_traffic){.load = *load};
    char *memory = calloc(1, streams + gaps + n * sizeof(int) + n * most * sizeof(int32_t));
    if (!memory) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for %zu requests", n);
    out->memory = memory;
    out->stream = (bench_stream *)(void *)memory;
    out->over = (int *)(void *)(memory + streams + gaps);
    make_texts(out, vocab, (int32_t *)(void *)(out->over + n), (double *)(void *)(memory + streams));
    pthread_mutex_init(&out->lock, NULL);
    platform_condition_init(&out->changed);
    return KAKEYA_OK;
}

void bench_traffic_free(bench_traffic *t) {
    if (!t->memory) return;
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->changed);
    free(t->memory);
    t->memory = NULL;
}

/* ------------------------------------------------------------------------------------------------------- running */

void bench_stream_piece(bench_stream *s, int tokens) {
    double now = clock_seconds();
    if (s->first == 0) s->first = now;
    s->tokens += tokens;
    if (s->last > 0 && s->gaps < s->most_gaps) s->gap[s->gaps++] = now - s->last;
    s->last = now;
}

void bench_traffic_over(bench_traffic *t, int request) {
    pthread_mutex_lock(&t->lock);
    t->over[t->n_over++] = request;
    pthread_cond_signal(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

/* The next request that is over, once there is one or the time has come; -1: none. */
static int wait_for_one(bench_traffic *t, int ended, double until) {
    pthread_mutex_lock(&t->lock);
    while (t->n_over == ended && platform_condition_wait(&t->changed, &t->lock, until)) continue;
    int request = t->n_over > ended ? t->over[ended] : -1;
    pthread_mutex_unlock(&t->lock);
    return request;
}

static void start_clocks(bench_traffic *t) {
    t->n_over = 0;
    for (int i = 0; i < t->load.requests; i++) {
        bench_stream *s = &t->stream[i];
        s->first = s->last = 0;
        s->tokens = s->gaps = s->cached = 0;
    }
    if (t->runs++) change_texts(t);
    t->begun = t->ended = clock_seconds();
}

static double time_of(const bench_traffic *t, int request) {
    return t->load.rate > 0 ? t->begun + request / t->load.rate : t->begun;
}

kakeya_status bench_traffic_run(bench_traffic *t, const bench_traffic_verbs *verbs, void *user,
                                kakeya_progress_fn progress, kakeya_error *error) {
    static const double glance = 0.1; /* seconds between looks at `progress` while nothing happens */
    const bench_load *load = &t->load;
    const int most = load->outstanding ? load->outstanding : load->requests;
    kakeya_status status = KAKEYA_OK;
    int begun = 0, ended = 0, cancelled = 0;
    start_clocks(t);
    while (ended < begun || (status == KAKEYA_OK && begun < load->requests)) {
        bool more = status == KAKEYA_OK && begun < load->requests && begun - ended < most;
        double now = clock_seconds(), until = now + glance;
        if (more && time_of(t, begun) < until) until = time_of(t, begun);
        int request = wait_for_one(t, ended, until);
        kakeya_error why = {0};
        kakeya_status happened = KAKEYA_OK;
        if (request >= 0) {
            happened = verbs->end(user, request, &why);
            ended++;
        } else if (more && clock_seconds() >= time_of(t, begun)) {
            t->stream[begun].begun = clock_seconds();
            happened = verbs->begin(user, begun, &why);
            if (happened == KAKEYA_OK) begun++;
        }
        if (happened == KAKEYA_OK && progress && !progress(NULL, "requests", (uint64_t)ended, (uint64_t)load->requests))
            happened = error_set(&why, KAKEYA_CANCELLED, "interrupted after %d of %d requests", ended, load->requests);
        if (happened != KAKEYA_OK && status == KAKEYA_OK) {
            status = happened;
            if (error) *error = why;
        }
        for (; status != KAKEYA_OK && cancelled < begun; cancelled++) verbs->cancel(user, cancelled);
    }
    t->ended = clock_seconds();
    return status;
}

/* ------------------------------------------------------------------------------------------------------- figures */

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

bench_percentiles bench_percentiles_of(double *values, size_t n) {
    if (!n) return (bench_percentiles){0};
    qsort(values, n, sizeof *values, ascending);
    return (bench_percentiles){.p50 = values[n / 2], .p99 = values[n * 99 / 100], .most = values[n - 1]};
}

kakeya_status bench_traffic_figures(const bench_traffic *t, bench_figures *out, kakeya_error *error) {
    const int n = t->load.requests;
    size_t first = 0, gaps = 0, all = (size_t)n;
    *out = (bench_figures){.seconds = t->ended - t->begun};
    for (int i = 0; i < n; i++) {
        out->prompt_tokens += (uint64_t)t->stream[i].n_prompt;
        out->cached_tokens += (uint64_t)t->stream[i].cached;
        out->answer_tokens += (uint64_t)t->stream[i].tokens;
        all += (size_t)t->stream[i].gaps;
    }
    double *values = malloc(all * sizeof *values);
    if (!values) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for %zu gaps", all);
    for (int i = 0; i < n; i++)
        if (t->stream[i].first > 0) values[first++] = t->stream[i].first - t->stream[i].begun;
    out->first_token = bench_percentiles_of(values, first);
    for (int i = 0; i < n; i++) {
        memcpy(values + gaps, t->stream[i].gap, (size_t)t->stream[i].gaps * sizeof *values);
        gaps += (size_t)t->stream[i].gaps;
    }
    out->gap = bench_percentiles_of(values, gaps);
    free(values);
    return KAKEYA_OK;
}
