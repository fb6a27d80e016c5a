#include "measure/bench.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/random.h"
#include "kakeya_study.h"
#include "session/session.h"

/* One engine being measured at one context. */
typedef struct bench_run {
    kakeya_engine *engine;
    const backend_measure_ops *measure;
    const bench_options *options;
    kakeya_session_options session; /* resolved */
    backend_cache *cache;           /* holds the context; measured on copies */
    backend_cache *draft_cache;     /* the same with drafter context; NULL without drafter */
    int32_t *tokens;                /* arbitrary ids */
    int n_tokens;
    float *logits; /* [BACKEND_MAX_DECODE_ROWS][vocab] */
    int draft_length;
    uint64_t steps, total_steps; /* progress */
} bench_run;

/* What repetitions of one case gave. */
typedef struct bench_samples {
    double seconds[BENCH_MAX_REPEATS], bound[BENCH_MAX_REPEATS], share[BENCH_MAX_REPEATS];
    double byte_bound[BENCH_MAX_REPEATS];
} bench_samples;

typedef struct bench_probes {
    double *read, *flops;
    size_t n;
} bench_probes;

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

bench_spread bench_spread_of(double *values, size_t n) {
    qsort(values, n, sizeof *values, compare_doubles);
    double median = n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
    return (bench_spread){.median = median, .low = values[0], .high = values[n - 1]};
}

static kakeya_status forward(bench_run *run, backend_cache *cache, segment_kind kind, const int32_t *tokens, int n,
                             int logit_rows, kakeya_error *error) {
    int32_t argmax[BACKEND_MAX_DECODE_ROWS]; /* where a backend finds the greedy choice itself, as greedy decoding asks
                                                it to */
    bool greedy = run->engine->ops->finds_argmax;
    backend_segment segment = {.cache = cache,
                               .tokens = tokens,
                               .n = n,
                               .kind = kind,
                               .first_logit_row = n - logit_rows,
                               .logits = greedy ? NULL : run->logits,
                               .argmax = greedy ? argmax : NULL};
    return run->engine->ops->forward(run->engine->model, &segment, 1, error);
}

/* Each of these times one call of its case on `cache`. */

static kakeya_status time_prefill(bench_run *run, backend_cache *cache, double *seconds, kakeya_error *error) {
    const backend_ops *ops = run->engine->ops;
    int chunk = ops->model_prompt_chunk(run->engine->model), n = run->options->prompt_tokens;
    double start = clock_seconds();
    for (int at = 0; at < n; at += chunk) {
        int rows = n - at < chunk ? n - at : chunk;
        kakeya_status status = forward(run, cache, SEGMENT_PROMPT, run->tokens + at, rows, at + rows == n, error);
        if (!status) status = ops->cache_commit(cache, rows, error);
        if (status) return status;
    }
    *seconds = clock_seconds() - start;
    return KAKEYA_OK;
}

static kakeya_status time_decode(bench_run *run, backend_cache *cache, double *seconds, kakeya_error *error) {
    const backend_ops *ops = run->engine->ops;
    double start = clock_seconds();
    for (int i = 0; i < run->options->decode_tokens; i++) {
        kakeya_status status = forward(run, cache, SEGMENT_DECODE, run->tokens + i, 1, 1, error);
        if (!status) status = ops->cache_commit(cache, 1, error);
        if (status) return status;
    }
    *seconds = (clock_seconds() - start) / run->options->decode_tokens;
    return KAKEYA_OK;
}

/* The rows are dropped again, so the cache serves all lengths; other tokens each time choose other experts. */
static kakeya_status time_verify(bench_run *run, backend_cache *cache, int rows, int repeat, double *seconds,
                                 kakeya_error *error) {
    const int32_t *tokens = run->tokens + repeat * BACKEND_MAX_DECODE_ROWS % (run->n_tokens - BACKEND_MAX_DECODE_ROWS);
    double start = clock_seconds();
    kakeya_status status = forward(run, cache, SEGMENT_DECODE, tokens, rows, rows, error);
    if (!status) status = run->engine->ops->cache_commit(cache, 0, error);
    *seconds = clock_seconds() - start;
    return status;
}

static kakeya_status time_draft(bench_run *run, backend_cache *cache, int repeat, double *seconds,
                                kakeya_error *error) {
    int32_t drafts[BACKEND_MAX_DRAFT];
    double start = clock_seconds();
    kakeya_status status = backend_draft_by(run->engine->ops, run->engine->model, engine_drafter(run->engine), cache,
                                            run->tokens[repeat], run->draft_length, drafts, error);
    *seconds = clock_seconds() - start;
    return status;
}

static kakeya_status time_case(bench_run *run, const bench_row *row, int repeat, double *seconds, kakeya_error *error) {
    const backend_ops *ops = run->engine->ops;
    backend_cache *copy = NULL;
    backend_cache *base = row->what == BENCH_DRAFT ? run->draft_cache : run->cache;
    kakeya_status status = ops->cache_fork(base, &run->engine->account, &copy, error);
    if (status) return status;
    /* An untimed step first: under the bounded policies the first decode step evicts, and all cases start with warm
     * caches. */
    if (row->what != BENCH_PREFILL) {
        status = forward(run, copy, SEGMENT_DECODE, run->tokens + repeat, 1, 1, error);
        if (!status) status = ops->cache_commit(copy, 1, error);
        if (!status && row->what == BENCH_DRAFT) status = time_draft(run, copy, repeat, seconds, error);
    }
    if (!status) {
        switch (row->what) {
        case BENCH_PREFILL:
            status = time_prefill(run, copy, seconds, error);
            break;
        case BENCH_DECODE:
            status = time_decode(run, copy, seconds, error);
            break;
        case BENCH_VERIFY:
            status = time_verify(run, copy, row->rows, repeat, seconds, error);
            break;
        case BENCH_DRAFT:
            status = time_draft(run, copy, repeat, seconds, error);
            break;
        }
    }
    ops->cache_destroy(copy);
    return status;
}

/* The cases of one context, with the work that each cannot avoid. */
static size_t list_cases(const bench_run *run, int context, bench_row *rows) {
    const bench_options *o = run->options;
    const kakeya_engine *engine = run->engine;
    size_t n = 0;
    int chunk = engine->ops->model_prompt_chunk(engine->model), last = o->prompt_tokens % chunk;
    double prefill_bytes = o->prompt_tokens / chunk * bench_forward_bytes(engine, &run->session, context, chunk);
    if (last) prefill_bytes += bench_forward_bytes(engine, &run->session, context, last);
    rows[n++] = (bench_row){.what = BENCH_PREFILL,
                            .context = context,
                            .rows = o->prompt_tokens,
                            .bytes = prefill_bytes,
                            .operations = bench_forward_operations(engine, context, o->prompt_tokens, 1)};
    int middle = context + 1 + o->decode_tokens / 2;
    rows[n++] = (bench_row){.what = BENCH_DECODE,
                            .context = context,
                            .rows = 1,
                            .bytes = bench_forward_bytes(engine, &run->session, middle, 1),
                            .operations = bench_forward_operations(engine, middle, 1, 1)};
    for (size_t i = 0; i < o->n_verify_rows; i++) {
        int length = o->verify_rows[i];
        if (run->session.attention != KAKEYA_ATTENTION_NATIVE && length > kakeya_options_window(&run->session))
            continue;
        rows[n++] = (bench_row){.what = BENCH_VERIFY,
                                .context = context,
                                .rows = length,
                                .bytes = bench_forward_bytes(engine, &run->session, context + length, length),
                                .operations = bench_forward_operations(engine, context, length, length)};
    }
    if (run->draft_cache) {
        rows[n++] =
            (bench_row){.what = BENCH_DRAFT,
                        .context = context,
                        .rows = run->draft_length,
                        .bytes = bench_draft_bytes(engine, &run->session, context + 1),
                        .operations = bench_draft_operations(engine, &run->session, context + 1, run->draft_length)};
    }
    return n;
}

static void summarise(bench_row *rows, size_t n, bench_samples *samples, size_t repeats) {
    size_t one = n; /* the row of a single verified token: what the others are compared with */
    for (size_t i = 0; i < n; i++) {
        if (rows[i].what == BENCH_VERIFY && rows[i].rows == 1) one = i;
    }
    for (size_t i = 0; i < n; i++) {
        if (rows[i].what != BENCH_VERIFY || one == n) continue;
        double cost[BENCH_MAX_REPEATS];
        for (size_t r = 0; r < repeats; r++) cost[r] = samples[i].seconds[r] / samples[one].seconds[r];
        rows[i].cost = bench_spread_of(cost, repeats).median;
        rows[i].cost_bound = rows[i].bytes / rows[one].bytes;
    }
    for (size_t i = 0; i < n; i++) {
        size_t by_bytes = 0;
        for (size_t r = 0; r < repeats; r++) by_bytes += samples[i].byte_bound[r] >= samples[i].bound[r];
        rows[i].bound_by_bytes = 2 * by_bytes > repeats;
        rows[i].seconds = bench_spread_of(samples[i].seconds, repeats);
        rows[i].bound_seconds = bench_spread_of(samples[i].bound, repeats);
        rows[i].share = bench_spread_of(samples[i].share, repeats);
    }
}

static bool report_progress(bench_run *run) {
    run->steps++;
    return !run->options->progress || run->options->progress(NULL, "measuring", run->steps, run->total_steps);
}

static kakeya_status measure_cases(bench_run *run, int context, bench_probes *probes, bench_result *out,
                                   kakeya_error *error) {
    bench_row *rows = out->row + out->n;
    size_t n = list_cases(run, context, rows), repeats = (size_t)run->options->repeats;
    bench_samples *samples = calloc(n, sizeof *samples);
    if (!samples) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    kakeya_status status = KAKEYA_OK;
    for (size_t i = 0; i < n && !status; i++) { /* warm-up, not counted */
        double seconds;
        status = time_case(run, &rows[i], 0, &seconds, error);
    }
    for (size_t r = 0; r < repeats && !status; r++) {
        for (size_t i = 0; i < n && !status; i++) {
            backend_probe probe;
            double seconds = 0;
            status = run->measure->probe(run->engine->model, &probe, error);
            if (!status) status = time_case(run, &rows[i], (int)r + 1, &seconds, error);
            if (status) break;
            double by_bytes = rows[i].bytes / probe.read_bytes_per_second;
            double by_operations = rows[i].operations / probe.flops_per_second;
            samples[i].seconds[r] = seconds;
            samples[i].byte_bound[r] = by_bytes;
            samples[i].bound[r] = by_bytes > by_operations ? by_bytes : by_operations;
            samples[i].share[r] = samples[i].bound[r] / seconds;
            probes->read[probes->n] = probe.read_bytes_per_second;
            probes->flops[probes->n++] = probe.flops_per_second;
            out->threads = probe.threads;
            if (!report_progress(run)) status = error_set(error, KAKEYA_CANCELLED, "interrupted");
        }
    }
    if (!status) {
        summarise(rows, n, samples, repeats);
        out->n += n;
    }
    free(samples);
    return status;
}

/* A cache of `context` arbitrary tokens, made by a session as any prompt is. */
static kakeya_status fill(bench_run *run, int context, bool with_drafter, backend_cache **out, kakeya_error *error) {
    kakeya_session *session = NULL;
    kakeya_session_options options = run->options->session;
    options.without_drafter = !with_drafter;
    kakeya_status status = kakeya_session_open(run->engine, &options, &session, error);
    if (status) return status;
    run->session = session->options;
    status = kakeya_session_sync(session, run->tokens, (size_t)context, NULL, run->options->progress, NULL, error);
    if (!status) {
        status = run->engine->ops->cache_fork(session->timeline.cache, &run->engine->account, out, error);
    }
    kakeya_session_close(session);
    return status;
}

static kakeya_status measure_profile(bench_run *run, int context, bench_result *out, kakeya_error *error) {
    const backend_ops *ops = run->engine->ops;
    backend_cache *copy = NULL;
    kakeya_status status = ops->cache_fork(run->cache, &run->engine->account, &copy, error);
    if (status) return status;
    bench_profile *profile = &out->profile[out->n_profiles];
    *profile = (bench_profile){.context = context};
    /* As for the cases: under the bounded policies the first step that is kept evicts. */
    status = forward(run, copy, SEGMENT_DECODE, run->tokens, 1, 1, error);
    if (!status) status = ops->cache_commit(copy, 1, error);
    if (!status) status = run->measure->profile(copy, run->tokens[0], run->options->repeats, &profile->step, error);
    ops->cache_destroy(copy);
    if (!status) out->n_profiles++;
    return status;
}

static kakeya_status measure_context(bench_run *run, int context, bench_probes *probes, bench_result *out,
                                     kakeya_error *error) {
    kakeya_status status = fill(run, context, false, &run->cache, error);
    if (!status && kakeya_engine_has_drafter(run->engine)) status = fill(run, context, true, &run->draft_cache, error);
    if (!status) status = measure_cases(run, context, probes, out, error);
    if (!status && run->options->profile) status = measure_profile(run, context, out, error);
    if (run->cache) run->engine->ops->cache_destroy(run->cache);
    if (run->draft_cache) run->engine->ops->cache_destroy(run->draft_cache);
    run->cache = run->draft_cache = NULL;
    return status;
}

kakeya_status bench_measure(kakeya_engine *engine, const bench_options *options, bench_result *out,
                            kakeya_error *error) {
    bench_run run = {.engine = engine, .measure = backend_measure_find(engine->ops), .options = options};
    *out = (bench_result){0};
    if (!run.measure) {
        return error_set(error, KAKEYA_UNSUPPORTED, "backend %s has no probe of its machine", engine->ops->name);
    }
    if (options->profile && !run.measure->profile) {
        return error_set(error, KAKEYA_UNSUPPORTED, "--profile: backend %s has no profile of its kernels",
                         engine->ops->name);
    }
    int largest = 0;
    for (size_t i = 0; i < options->n_contexts; i++) {
        if (options->contexts[i] > largest) largest = options->contexts[i];
    }
    int vocab = engine->verifier->config.vocab;
    run.n_tokens =
        largest + options->prompt_tokens + options->decode_tokens + BACKEND_MAX_DECODE_ROWS + BENCH_MAX_REPEATS;
    run.tokens = malloc((size_t)run.n_tokens * sizeof *run.tokens);
    run.logits = malloc((size_t)BACKEND_MAX_DECODE_ROWS * (size_t)vocab * sizeof *run.logits);
    size_t cases = 2 + options->n_verify_rows + (kakeya_engine_has_drafter(engine) ? 1 : 0);
    run.total_steps = options->n_contexts * (size_t)options->repeats * cases;
    bench_probes probes = {.read = malloc(run.total_steps * sizeof(double)),
                           .flops = malloc(run.total_steps * sizeof(double))};
    out->row = malloc(options->n_contexts * cases * sizeof *out->row);
    if (options->profile) out->profile = malloc(options->n_contexts * sizeof *out->profile);
    kakeya_status status = KAKEYA_OK;
    if (!run.tokens || !run.logits || !probes.read || !probes.flops || !out->row ||
        (options->profile && !out->profile)) {
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for %d token ids", run.n_tokens);
        goto done;
    }
    for (int i = 0; i < run.n_tokens; i++) run.tokens[i] = (int32_t)(random_uniform_at(1, (uint64_t)i) * vocab);
    if (kakeya_engine_has_drafter(engine)) {
        run.draft_length = kakeya_engine_drafter_block_size(engine) - 1;
        if (run.draft_length > BACKEND_MAX_DRAFT) run.draft_length = BACKEND_MAX_DRAFT;
    }
    out->draft_length = run.draft_length;
    for (size_t i = 0; i < options->n_contexts && !status; i++) {
        status = measure_context(&run, options->contexts[i], &probes, out, error);
    }
    if (!status) {
        out->read_bytes_per_second = bench_spread_of(probes.read, probes.n);
        out->flops_per_second = bench_spread_of(probes.flops, probes.n);
    }
done:
    free(probes.flops);
    free(probes.read);
    free(run.logits);
    free(run.tokens);
    return status;
}

void bench_result_free(bench_result *result) {
    free(result->row);
    free(result->profile);
    result->row = NULL;
    result->profile = NULL;
}
