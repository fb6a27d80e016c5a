#include "measure/bench_weights.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/random.h"
#include "session/session.h"

typedef struct weights_run {
    kakeya_engine *engine;
    const backend_measure_ops *measure;
    const bench_options *options;
    int32_t *tokens; /* of one repetition */
    int n_tokens;
} weights_run;

typedef struct case_samples {
    double seconds[BENCH_MAX_REPEATS], share[BENCH_MAX_REPEATS], bound[BENCH_MAX_REPEATS], waited[BENCH_MAX_REPEATS];
    double wanted, found, bytes, missed;
    int by[BOUND_STEP + 1];
} case_samples;

typedef struct weights_samples {
    case_samples prompt, decode;
    double disk[BENCH_MAX_REPEATS], read[BENCH_MAX_REPEATS], flops[BENCH_MAX_REPEATS];
} weights_samples;

static kakeya_status decode(weights_run *run, backend_cache *cache, int first, int n, kakeya_error *error) {
    const backend_ops *ops = run->engine->ops;
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; i < n && !status; i++) {
        int32_t choice;
        backend_segment segment = {
            .cache = cache, .tokens = run->tokens + first + i, .n = 1, .kind = SEGMENT_DECODE, .argmax = &choice};
        status = ops->forward(run->engine->model, &segment, 1, error);
        if (!status) status = ops->cache_commit(cache, 1, error);
    }
    return status;
}

/* A call that took so many seconds, and what it cannot avoid. */
static void add_sample(case_samples *s, int repeat, double seconds, double calls, const kakeya_weights *before,
                       const kakeya_weights *after, double memory, double computing, double disk) {
    const double bytes = (double)(after->bytes_read - before->bytes_read) / calls;
    const double missing = (double)(after->wanted - after->found) - (double)(before->wanted - before->found);
    const double whole = missing * (double)after->slot_bytes / calls, missed = whole < bytes ? whole : bytes;
    const double waited = (after->read_seconds - before->read_seconds) / calls;
    const double bounds[] = {[BOUND_DISK] = missed / disk,
                             [BOUND_MEMORY] = memory,
                             [BOUND_COMPUTING] = computing,
                             [BOUND_STEP] = waited > 0 ? seconds / calls - waited : 0};
    int by = BOUND_DISK;
    for (int b = BOUND_MEMORY; b <= BOUND_STEP; b++)
        if (bounds[b] > bounds[by]) by = b;
    s->seconds[repeat] = seconds / calls;
    s->bound[repeat] = bounds[by];
    s->share[repeat] = bounds[by] / (seconds / calls);
    s->by[by]++;
    s->wanted += (double)(after->wanted - before->wanted);
    s->found += (double)(after->found - before->found);
    s->bytes += bytes;
    s->missed += missed;
    s->waited[repeat] = waited;
}

static bench_weights_case case_of(case_samples *s, int repeats) {
    const size_t n = (size_t)repeats;
    bench_weights_case out = {.seconds = bench_spread_of(s->seconds, n), .share = bench_spread_of(s->share, n)};
    out.bound_seconds = bench_spread_of(s->bound, n).median;
    for (int b = BOUND_MEMORY; b <= BOUND_STEP; b++)
        if (s->by[b] > s->by[out.bound]) out.bound = (bench_weights_bound)b;
    out.hit_rate = s->wanted > 0 ? s->found / s->wanted : 1;
    out.bytes_read = s->bytes / repeats;
    out.missed = s->missed / repeats;
    out.waited = bench_spread_of(s->waited, n);
    return out;
}

static kakeya_status repeat_once(weights_run *run, int repeat, const backend_probe *machine, double disk,
                                 weights_samples *s, kakeya_error *error) {
    const bench_options *o = run->options;
    const int context = o->contexts[0], prompt = context + o->prompt_tokens, decoded = o->decode_tokens;
    kakeya_engine *engine = run->engine;
    const int vocab = engine->verifier->config.vocab;
    for (int i = 0; i < run->n_tokens; i++)
        run->tokens[i] = (int32_t)(random_uniform_at(3 + (uint64_t)repeat, (uint64_t)i) * vocab);
    kakeya_session *session = NULL;
    kakeya_session_options options = o->session;
    options.without_drafter = true;
    kakeya_status status = kakeya_session_open(engine, &options, &session, error);
    if (status) return status;
    if (context) status = kakeya_session_sync(session, run->tokens, (size_t)context, NULL, NULL, NULL, error);
    kakeya_weights before = kakeya_engine_weights(engine), after;
    double start = clock_seconds();
    if (!status) status = kakeya_session_sync(session, run->tokens, (size_t)prompt, NULL, NULL, NULL, error);
    double seconds = clock_seconds() - start;
    after = kakeya_engine_weights(engine);
    const kakeya_session_options *resolved = &session->options;
    if (!status)
        add_sample(&s->prompt, repeat, seconds, 1, &before, &after,
                   bench_forward_bytes(engine, resolved, prompt, o->prompt_tokens) / machine->read_bytes_per_second,
                   bench_forward_operations(engine, context, o->prompt_tokens, 1) / machine->flops_per_second, disk);
    backend_cache *cache = NULL;
    if (!status) status = engine->ops->cache_fork(session->timeline.cache, &engine->account, &cache, error);
    if (!status) status = decode(run, cache, prompt, decoded, error);
    before = kakeya_engine_weights(engine);
    start = clock_seconds();
    if (!status) status = decode(run, cache, prompt + decoded, decoded, error);
    seconds = clock_seconds() - start;
    after = kakeya_engine_weights(engine);
    const int middle = prompt + decoded + decoded / 2;
    if (!status)
        add_sample(&s->decode, repeat, seconds, decoded, &before, &after,
                   bench_forward_bytes(engine, resolved, middle, 1) / machine->read_bytes_per_second,
                   bench_forward_operations(engine, middle, 1, 1) / machine->flops_per_second, disk);
    if (cache) engine->ops->cache_destroy(cache);
    kakeya_session_close(session);
    return status;
}

static kakeya_status measure_all(weights_run *run, weights_samples *s, bench_weights_row *out, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    const int repeats = run->options->repeats;
    for (int r = 0; r < repeats && !status; r++) {
        backend_probe machine;
        status = run->measure->probe(run->engine->model, &machine, error);
        if (!status) status = run->measure->probe_weights(run->engine->model, &s->disk[r], error);
        if (!status) status = repeat_once(run, r, &machine, s->disk[r], s, error);
        if (status) break;
        s->read[r] = machine.read_bytes_per_second;
        s->flops[r] = machine.flops_per_second;
        out->threads = machine.threads;
        if (run->options->progress && !run->options->progress(NULL, "measuring", (uint64_t)r + 1, (uint64_t)repeats))
            status = error_set(error, KAKEYA_CANCELLED, "interrupted");
    }
    if (status) return status;
    out->state = kakeya_engine_weights(run->engine);
    out->prompt = case_of(&s->prompt, repeats);
    out->decode = case_of(&s->decode, repeats);
    out->disk = bench_spread_of(s->disk, (size_t)repeats);
    out->read_bytes_per_second = bench_spread_of(s->read, (size_t)repeats);
    out->flops_per_second = bench_spread_of(s->flops, (size_t)repeats);
    return KAKEYA_OK;
}

kakeya_status bench_weights_measure(kakeya_engine *engine, const bench_options *options, bench_weights_row *out,
                                    kakeya_error *error) {
    weights_run run = {.engine = engine, .measure = backend_measure_find(engine->ops), .options = options};
    *out = (bench_weights_row){0};
    if (!run.measure || !run.measure->probe_weights)
        return error_set(error, KAKEYA_UNSUPPORTED, "backend %s has no limit on weights", engine->ops->name);
    run.n_tokens = options->contexts[0] + options->prompt_tokens + 2 * options->decode_tokens;
    run.tokens = malloc((size_t)run.n_tokens * sizeof *run.tokens);
    weights_samples *samples = calloc(1, sizeof *samples);
    kakeya_status status = KAKEYA_OK;
    if (!run.tokens || !samples)
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for %d token ids", run.n_tokens);
    else
        status = measure_all(&run, samples, out, error);
    free(samples);
    free(run.tokens);
    return status;
}
