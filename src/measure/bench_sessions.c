#include "measure/bench_sessions.h"

#include <stdlib.h>
#include <string.h>

#include "backend/kv_bytes.h"
#include "base/clock.h"
#include "base/random.h"
#include "session/session.h"

/* Steps after which sessions go back: the rings hold that many dropped positions. */
enum { STEPS_AT_ONCE = BACKEND_MAX_DRAFT };

typedef struct sessions_run {
    kakeya_engine *engine;
    const backend_measure_ops *measure;
    const bench_sessions_options *options;
    kakeya_session_options session; /* resolved */
    backend_cache_options cache_options;
    int most_sessions, largest_context, max_rows;
    backend_cache **cache; /* [most_sessions] behind the present context */
    int length;            /* that all of them go back to */
    int32_t *tokens;       /* arbitrary ids */
    int n_tokens;
    int32_t *text;        /* [largest_context] of the session that is filled */
    int next_token;       /* of the sessions' steps: goes round */
    float *logits;        /* [BACKEND_MAX_SEGMENTS + 1][vocab]; NULL where the backend finds greedy choices itself */
    int stall_ms;         /* resolved */
    int prompt_rows;      /* that the prompt's speed alone gives in the time of a stall */
    uint64_t done, total; /* progress */
} sessions_run;

/* What the repetitions of one case gave. */
typedef struct together_samples {
    double seconds[BENCH_MAX_REPEATS], bound[BENCH_MAX_REPEATS], byte_bound[BENCH_MAX_REPEATS];
    double share[BENCH_MAX_REPEATS], prompt_rate[BENCH_MAX_REPEATS];
} together_samples;

/* One timed call of a case. */
typedef struct timing {
    double seconds, longest; /* of all steps; of the longest */
    int steps;
} timing;

static int min_int(int a, int b) { return a < b ? a : b; }

bench_step_shape bench_shape_of(int sessions, int max_rows) {
    bench_step_shape shape = {.most = min_int(BACKEND_MAX_SEGMENTS, max_rows)};
    shape.forwards = (sessions + shape.most - 1) / shape.most;
    shape.last = sessions ? sessions - (shape.forwards - 1) * shape.most : 0;
    shape.prompt_room = max_rows - shape.last;
    return shape;
}

int bench_prompt_rows(double tokens_per_second, int stall_ms, int most) {
    double rows = tokens_per_second * stall_ms / 1000;
    if (rows >= most) return most;
    return rows > BENCH_LEAST_PROMPT_ROWS ? (int)rows : min_int(BENCH_LEAST_PROMPT_ROWS, most);
}

size_t bench_sessions_bytes(const kakeya_engine *engine, const backend_cache_options *options, size_t granule,
                            int sessions, int context, int prompt_tokens) {
    timeline_models models = engine_models(engine);
    int most = context + BENCH_WARM_STEPS + STEPS_AT_ONCE;
    timeline decoding = timeline_preview(&models, options, most), prompt = decoding, beside;
    /* At its first decode step the filled session holds the rings of its prompt beside those of its answer. */
    prompt.reserved_capacity = prompt.prompt_capacity;
    beside = timeline_preview(&models, options, prompt_tokens);
    beside.ring_capacity = beside.prompt_capacity;
    /* The filled session is gone when the prompt comes. */
    size_t filled = kv_bytes(&prompt, granule).total, new_prompt = kv_bytes(&beside, granule).total;
    return (size_t)sessions * kv_bytes(&decoding, granule).total + filled + (filled > new_prompt ? filled : new_prompt);
}

/* ------------------------------------------------------------------------------------------------------ one step */

/* The rows of a prompt in one step. */
typedef struct prompt_part {
    backend_cache *cache;
    const int32_t *tokens;
    int n;
    bool last;
} prompt_part;

/* One forward over `n` sessions from `first` on, and the prompt's part (NULL: none); then the rows are kept. */
static kakeya_status forward_together(sessions_run *run, int first, int n, const prompt_part *prompt,
                                      kakeya_error *error) {
    const backend_ops *ops = run->engine->ops;
    backend_segment segments[BACKEND_MAX_SEGMENTS + 1] = {0};
    int32_t tokens[BACKEND_MAX_SEGMENTS], argmax[BACKEND_MAX_SEGMENTS + 1];
    size_t vocab = (size_t)run->engine->verifier->config.vocab;
    int count = n + (prompt ? 1 : 0);
    for (int i = 0; i < count; i++) {
        bool decodes = i < n;
        backend_segment *s = &segments[i];
        s->argmax = ops->finds_argmax ? &argmax[i] : NULL;
        s->logits = ops->finds_argmax ? NULL : run->logits + (size_t)i * vocab;
        if (decodes) {
            tokens[i] = run->tokens[run->next_token];
            run->next_token = (run->next_token + 1) % run->n_tokens;
            s->cache = run->cache[first + i];
            s->tokens = &tokens[i];
            s->n = 1;
            s->kind = SEGMENT_DECODE;
        } else {
            s->cache = prompt->cache;
            s->tokens = prompt->tokens;
            s->n = prompt->n;
            s->kind = SEGMENT_PROMPT;
            s->first_logit_row = prompt->last ? prompt->n - 1 : prompt->n;
        }
    }
    kakeya_status status = ops->forward(run->engine->model, segments, count, error);
    for (int i = 0; i < count && !status; i++) status = ops->cache_commit(segments[i].cache, segments[i].n, error);
    return status;
}

static kakeya_status step(sessions_run *run, int sessions, const prompt_part *prompt, kakeya_error *error) {
    bench_step_shape shape = bench_shape_of(sessions, run->max_rows);
    bool beside = prompt && sessions && shape.prompt_room >= prompt->n;
    kakeya_status status = KAKEYA_OK;
    for (int first = 0; first < sessions && !status; first += shape.most) {
        bool last = first + shape.most >= sessions;
        status =
            forward_together(run, first, min_int(shape.most, sessions - first), last && beside ? prompt : NULL, error);
    }
    if (!status && prompt && !beside) status = forward_together(run, 0, 0, prompt, error);
    return status;
}

static kakeya_status timed_step(sessions_run *run, int sessions, const prompt_part *prompt, timing *t,
                                kakeya_error *error) {
    double start = clock_seconds();
    kakeya_status status = step(run, sessions, prompt, error);
    double seconds = clock_seconds() - start;
    t->seconds += seconds;
    t->steps++;
    if (seconds > t->longest) t->longest = seconds;
    return status;
}

static kakeya_status go_back(sessions_run *run, int sessions, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; i < sessions && !status; i++)
        status = run->engine->ops->cache_truncate(run->cache[i], run->length, error);
    return status;
}

/* ------------------------------------------------------------------------------------------------------ the cases */

static kakeya_status time_decodes(sessions_run *run, int sessions, timing *t, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; i < run->options->decode_tokens && !status; i++) {
        if (i % STEPS_AT_ONCE == 0) status = go_back(run, sessions, error);
        if (!status) status = timed_step(run, sessions, NULL, t, error);
    }
    return status ? status : go_back(run, sessions, error);
}

/* A new session's prompt, `rows` a step, beside so many sessions (0: alone). */
static kakeya_status time_prompt(sessions_run *run, int sessions, int rows, timing *t, kakeya_error *error) {
    const backend_ops *ops = run->engine->ops;
    backend_cache *cache = NULL;
    int n = run->options->prompt_tokens;
    kakeya_status status = ops->cache_create(run->engine->model, &run->cache_options, &cache, error);
    if (status) return status;
    for (int at = 0, i = 0; at < n && !status; at += rows, i++) {
        if (i % STEPS_AT_ONCE == 0) status = go_back(run, sessions, error);
        prompt_part part = {.cache = cache, .tokens = run->tokens + at, .n = min_int(rows, n - at)};
        part.last = at + part.n == n;
        if (!status) status = timed_step(run, sessions, &part, t, error);
    }
    ops->cache_destroy(cache);
    return status ? status : go_back(run, sessions, error);
}

static kakeya_status time_case(sessions_run *run, const bench_together_row *row, timing *t, kakeya_error *error) {
    *t = (timing){0};
    if (row->what == BENCH_TOGETHER_DECODE) return time_decodes(run, row->sessions, t, error);
    return time_prompt(run, row->sessions, row->prompt_rows, t, error);
}

/* The work of one forward of a step, added to the row. */
static void add_forward(const sessions_run *run, bench_together_row *row, int sessions, int prompt_at, int prompt_rows,
                        bool prompt_ends) {
    const kakeya_engine *engine = run->engine;
    row->forwards++;
    row->bytes += bench_together_bytes(engine, &run->session, run->length + 1, sessions, prompt_rows);
    row->operations += sessions * bench_forward_operations(engine, run->length, 1, 1);
    if (prompt_rows) row->operations += bench_forward_operations(engine, prompt_at, prompt_rows, prompt_ends);
}

static void add_step(const sessions_run *run, bench_together_row *row, int prompt_at, int prompt_rows,
                     bool prompt_ends) {
    bench_step_shape shape = bench_shape_of(row->sessions, run->max_rows);
    bool beside = prompt_rows && row->sessions && shape.prompt_room >= prompt_rows;
    for (int first = 0; first < row->sessions; first += shape.most) {
        bool last = first + shape.most >= row->sessions;
        add_forward(run, row, min_int(shape.most, row->sessions - first), prompt_at, last && beside ? prompt_rows : 0,
                    prompt_ends);
    }
    if (prompt_rows && !beside) add_forward(run, row, 0, prompt_at, prompt_rows, prompt_ends);
    row->steps++;
}

/* The row of a case, with the work that it cannot avoid. */
static bench_together_row describe(const sessions_run *run, bench_together what, int context, int sessions) {
    bench_together_row row = {.what = what, .context = context, .sessions = sessions};
    if (what == BENCH_TOGETHER_DECODE) {
        for (int i = 0; i < run->options->decode_tokens; i++) add_step(run, &row, 0, 0, false);
    } else {
        int room = bench_shape_of(sessions, run->max_rows).prompt_room, n = run->options->prompt_tokens;
        row.prompt_rows =
            what == BENCH_TOGETHER_ALONE ? run->max_rows : min_int(run->prompt_rows, room ? room : run->max_rows);
        row.prompt_rows = min_int(row.prompt_rows, n);
        for (int at = 0; at < n; at += row.prompt_rows)
            add_step(run, &row, at, min_int(row.prompt_rows, n - at), at + row.prompt_rows >= n);
    }
    row.bytes /= row.steps;
    row.operations /= row.steps;
    return row;
}

/* --------------------------------------------------------------------------------------------------- the sessions */

static void make_text(sessions_run *run, int index, int context) {
    const double vocab = run->engine->verifier->config.vocab;
    for (int i = 0; i < context; i++)
        run->text[i] = (int32_t)(random_uniform_at(2 + (uint64_t)index, (uint64_t)i) * vocab);
}

/* The cache of session `index` after a text of its own and the first decode step, made as any prompt is. */
static kakeya_status fill(sessions_run *run, int index, int context, kakeya_error *error) {
    const backend_ops *ops = run->engine->ops;
    kakeya_session *session = NULL;
    kakeya_status status = kakeya_session_open(run->engine, &run->session, &session, error);
    if (status) return status;
    make_text(run, index, context);
    status = kakeya_session_sync(session, run->text, (size_t)context, NULL, run->options->progress, NULL, error);
    run->cache[index] = session->timeline.cache; /* lent for the step */
    if (!status) status = forward_together(run, index, 1, NULL, error);
    run->cache[index] = NULL;
    if (!status) status = ops->cache_fork(session->timeline.cache, &run->engine->account, &run->cache[index], error);
    kakeya_session_close(session);
    return status;
}

static void destroy_sessions(sessions_run *run) {
    for (int i = 0; i < run->most_sessions; i++) {
        if (run->cache[i]) run->engine->ops->cache_destroy(run->cache[i]);
        run->cache[i] = NULL;
    }
}

static kakeya_status create_sessions(sessions_run *run, int context, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; i < run->most_sessions && !status; i++) status = fill(run, i, context, error);
    for (int i = 1; i < BENCH_WARM_STEPS && !status; i++) status = step(run, run->most_sessions, NULL, error);
    run->length = context + BENCH_WARM_STEPS;
    return status;
}

/* ------------------------------------------------------------------------------------------------------ measuring */

typedef struct probe_samples {
    double *read, *flops;
    size_t n;
} probe_samples;

static kakeya_status take(sessions_run *run, const bench_together_row *row, size_t repeat, together_samples *samples,
                          double *longest, probe_samples *probes, int *threads, kakeya_error *error) {
    backend_probe probe;
    timing t;
    kakeya_status status = run->measure->probe(run->engine->model, &probe, error);
    if (!status) status = time_case(run, row, &t, error);
    if (status) return status;
    double seconds = t.seconds / t.steps;
    double by_bytes = row->bytes / probe.read_bytes_per_second;
    double by_operations = row->operations / probe.flops_per_second;
    samples->seconds[repeat] = seconds;
    samples->byte_bound[repeat] = by_bytes;
    samples->bound[repeat] = by_bytes > by_operations ? by_bytes : by_operations;
    samples->share[repeat] = samples->bound[repeat] / seconds;
    samples->prompt_rate[repeat] = row->prompt_rows ? run->options->prompt_tokens / t.seconds : 0;
    if (t.longest > *longest) *longest = t.longest;
    probes->read[probes->n] = probe.read_bytes_per_second;
    probes->flops[probes->n++] = probe.flops_per_second;
    *threads = probe.threads;
    return KAKEYA_OK;
}

static size_t find_row(const bench_together_row *rows, size_t n, bench_together what, int sessions) {
    size_t i = 0;
    while (i < n && !(rows[i].what == what && rows[i].sessions == sessions)) i++;
    return i;
}

static void summarise(bench_together_row *rows, size_t n, const together_samples *samples, size_t repeats) {
    size_t one = find_row(rows, n, BENCH_TOGETHER_DECODE, 1), alone = find_row(rows, n, BENCH_TOGETHER_ALONE, 0);
    double values[BENCH_MAX_REPEATS];
    for (size_t i = 0; i < n; i++) {
        bench_together_row *row = &rows[i];
        together_samples s = samples[i];
        size_t by_bytes = 0;
        for (size_t r = 0; r < repeats; r++) by_bytes += s.byte_bound[r] >= s.bound[r];
        row->bound_by_bytes = 2 * by_bytes > repeats;
        if (row->what != BENCH_TOGETHER_ALONE && one < n) {
            for (size_t r = 0; r < repeats; r++)
                values[r] = row->sessions * samples[one].seconds[r] / samples[i].seconds[r];
            row->against_one = bench_spread_of(values, repeats).median;
        }
        if (row->what == BENCH_TOGETHER_PROMPT) {
            for (size_t r = 0; r < repeats; r++) values[r] = samples[i].prompt_rate[r] / samples[alone].prompt_rate[r];
            row->prompt_share = bench_spread_of(values, repeats).median;
        }
        row->seconds = bench_spread_of(s.seconds, repeats);
        row->bound_seconds = bench_spread_of(s.bound, repeats);
        row->share = bench_spread_of(s.share, repeats);
        row->prompt_tokens_per_second = bench_spread_of(s.prompt_rate, repeats).median;
        row->tokens_per_second = row->sessions / row->seconds.median;
    }
}

static size_t cases_of(const bench_sessions_options *o) {
    return 1 + (o->none_beside ? o->n_sessions : 2 * o->n_sessions);
}

static kakeya_status measure_context(sessions_run *run, int context, probe_samples *probes, bench_sessions_result *out,
                                     kakeya_error *error) {
    const bench_sessions_options *o = run->options;
    bench_together_row *rows = out->row + out->n;
    size_t n = 0, cases = cases_of(o), repeats = (size_t)o->repeats;
    together_samples *samples = calloc(cases, sizeof *samples);
    if (!samples) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    kakeya_status status = create_sessions(run, context, error);
    if (!status) { /* the prompt's own speed says how much of it a step takes */
        timing t;
        rows[n] = describe(run, BENCH_TOGETHER_ALONE, context, 0);
        status = time_case(run, &rows[n++], &t, error);
        if (!status && !run->prompt_rows)
            run->prompt_rows = bench_prompt_rows(o->prompt_tokens / t.seconds, run->stall_ms, run->max_rows);
    }
    for (size_t i = 0; i < o->n_sessions && !status; i++) {
        rows[n++] = describe(run, BENCH_TOGETHER_DECODE, context, o->sessions[i]);
        if (!o->none_beside) rows[n++] = describe(run, BENCH_TOGETHER_PROMPT, context, o->sessions[i]);
    }
    for (size_t i = 1; i < n && !status; i++) { /* warm-up, not counted */
        timing t;
        status = time_case(run, &rows[i], &t, error);
    }
    for (size_t r = 0; r < repeats && !status; r++) {
        for (size_t i = 0; i < n && !status; i++) {
            status = take(run, &rows[i], r, &samples[i], &rows[i].longest_seconds, probes, &out->threads, error);
            run->done++;
            if (!status && o->progress && !o->progress(NULL, "measuring", run->done, run->total))
                status = error_set(error, KAKEYA_CANCELLED, "interrupted");
        }
    }
    if (!status) {
        summarise(rows, n, samples, repeats);
        out->n += n;
    }
    destroy_sessions(run);
    free(samples);
    return status;
}

/* -------------------------------------------------------------------------------------------------------- the run */

/* Options as sessions have them; refuses sessions that cannot fit. */
static kakeya_status prepare(sessions_run *run, kakeya_error *error) {
    kakeya_engine *engine = run->engine;
    kakeya_session *session = NULL;
    kakeya_session_options options = run->options->session;
    options.without_drafter = true; /* one row each: nothing is drafted */
    kakeya_status status = kakeya_session_open(engine, &options, &session, error);
    if (status) return status;
    run->session = session->options;
    run->cache_options = session->cache_options;
    run->cache_options.account = &engine->account;
    kakeya_session_close(session);

    size_t granule = run->measure->page_granule ? run->measure->page_granule(engine->model) : 0;
    if (run->measure->devices) granule *= (size_t)run->measure->devices(engine->model); /* stores are dealt to them */
    size_t needed = bench_sessions_bytes(engine, &run->cache_options, granule, run->most_sessions, run->largest_context,
                                         run->options->prompt_tokens);
    size_t there = run->measure->free_bytes ? run->measure->free_bytes(engine->model) : 0;
    if (there == 0) there = SIZE_MAX; /* unknown */
    if (engine->account.limit_bytes) {
        size_t held = mem_total(&engine->account), limit = engine->account.limit_bytes;
        size_t left = limit > held ? limit - held : 0;
        if (left < there) there = left;
    }
    if (needed <= there) return KAKEYA_OK;
    return error_set(error, KAKEYA_OUT_OF_MEMORY,
                     "--sessions: %d sessions of %d tokens and a prompt of %d need %zu bytes of K/V memory, but "
                     "only %zu are available",
                     run->most_sessions, run->largest_context, run->options->prompt_tokens, needed, there);
}

static int largest(const int *values, size_t n) {
    int result = 0;
    for (size_t i = 0; i < n; i++) {
        if (values[i] > result) result = values[i];
    }
    return result;
}

kakeya_status bench_sessions_measure(kakeya_engine *engine, const bench_sessions_options *options,
                                     bench_sessions_result *out, kakeya_error *error) {
    const backend_ops *ops = engine->ops;
    sessions_run run = {.engine = engine,
                        .measure = backend_measure_find(ops),
                        .options = options,
                        .most_sessions = largest(options->sessions, options->n_sessions),
                        .largest_context = largest(options->contexts, options->n_contexts),
                        .max_rows = ops->model_prompt_chunk(engine->model)};
    run.stall_ms = options->stall_ms ? options->stall_ms : engine->max_stall_ms;
    *out = (bench_sessions_result){.prompt_chunk = run.max_rows, .stall_ms = run.stall_ms};
    if (!run.measure) return error_set(error, KAKEYA_UNSUPPORTED, "backend %s has no probe of its machine", ops->name);
    kakeya_status status = prepare(&run, error);
    if (status) return status;

    size_t vocab = (size_t)engine->verifier->config.vocab, cases = cases_of(options);
    run.total = options->n_contexts * cases * (size_t)options->repeats;
    /* Sessions of one step take tokens that follow each other; the rest keeps a step from meeting those of the last. */
    run.n_tokens = run.largest_context + options->prompt_tokens + 4 * BENCH_MAX_SESSIONS;
    run.tokens = malloc((size_t)run.n_tokens * sizeof *run.tokens);
    run.text = malloc(((size_t)run.largest_context + 1) * sizeof *run.text);
    run.cache = calloc((size_t)run.most_sessions, sizeof *run.cache);
    if (!ops->finds_argmax) run.logits = malloc((BACKEND_MAX_SEGMENTS + 1) * vocab * sizeof *run.logits);
    probe_samples probes = {.read = malloc(run.total * sizeof(double)), .flops = malloc(run.total * sizeof(double))};
    out->row = malloc(options->n_contexts * cases * sizeof *out->row);
    if (!run.tokens || !run.text || !run.cache || !(run.logits || ops->finds_argmax) || !probes.read || !probes.flops ||
        !out->row) {
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for %d token ids", run.n_tokens);
        goto done;
    }
    for (int i = 0; i < run.n_tokens; i++) run.tokens[i] = (int32_t)(random_uniform_at(1, (uint64_t)i) * (double)vocab);
    backend_probe probe; /* its own memory has to be there, too */
    status = run.measure->probe(engine->model, &probe, error);
    for (size_t i = 0; i < options->n_contexts && !status; i++)
        status = measure_context(&run, options->contexts[i], &probes, out, error);
    if (!status) {
        out->read_bytes_per_second = bench_spread_of(probes.read, probes.n);
        out->flops_per_second = bench_spread_of(probes.flops, probes.n);
    }
done:
    free(probes.flops);
    free(probes.read);
    free(run.logits);
    free(run.cache);
    free(run.text);
    free(run.tokens);
    return status;
}

void bench_sessions_result_free(bench_sessions_result *result) {
    free(result->row);
    result->row = NULL;
}
