#include "measure/bench_requests.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base/clock.h"
#include "measure/bench_sessions.h"
#include "session/session.h"

enum {
    SPARE_TOKENS = 8,     /* of a session's context behind its answer */
    LONG_CHUNKS = 2,      /* of the prompt that the prompts' speed is taken from */
    IDEAL_REPEATS = 3,    /* of the two speeds, whose medians count */
    IDEAL_STEPS = 16,     /* of the full batch in one measurement */
    FIRST_STEPS = 1 << 12 /* steps that a watch has room for at first */
};

/* The steps of a run. The thread that computes writes here. */
typedef struct step_watch {
    double *host; /* [room] seconds in front of a step; those after which nothing was under way are left out */
    size_t n, room;
    bool lost; /* there was no memory for all */
    double last;
    uint64_t steps, answer_rows, prompt_rows;
    atomic_int under_way; /* requests */
    atomic_bool idle;     /* nothing was, since the last step */
} step_watch;

typedef struct library_run {
    kakeya_engine *engine;
    const bench_requests_options *options;
    bench_traffic traffic;
    kakeya_session **session; /* [requests] NULL: not open */
    kakeya_request **request;
    struct library_end *ends; /* [requests] */
    step_watch watch;
} library_run;

typedef struct library_end {
    library_run *run;
    int request;
} library_end;

/* ------------------------------------------------------------------------------------------------------ requests */

static bool on_event(void *user, const kakeya_event *event) {
    if (event->type == KAKEYA_EVENT_TOKEN) bench_stream_piece(user, 1);
    return true;
}

static void on_done(void *user) {
    const library_end *end = user;
    step_watch *watch = &end->run->watch;
    if (atomic_fetch_sub(&watch->under_way, 1) == 1) atomic_store(&watch->idle, true);
    bench_traffic_over(&end->run->traffic, end->request);
}

static kakeya_status begin_request(void *user, int i, kakeya_error *error) {
    library_run *run = user;
    bench_stream *stream = &run->traffic.stream[i];
    kakeya_session_options session = run->options->session;
    session.context_tokens = stream->n_prompt + run->traffic.load.answer_tokens + SPARE_TOKENS;
    kakeya_generate_options generate;
    KAKEYA_INIT(&generate);
    generate.mode = run->options->mode;
    generate.ignore_stop_tokens = true;
    generate.max_tokens = run->traffic.load.answer_tokens;
    generate.on_event = on_event;
    generate.user = stream;
    kakeya_request_options wanted;
    KAKEYA_INIT(&wanted);
    wanted.tokens = stream->prompt;
    wanted.n_tokens = (size_t)stream->n_prompt;
    wanted.generate = &generate;
    wanted.on_done = on_done;
    wanted.done_user = &run->ends[i];
    kakeya_status status = kakeya_session_open(run->engine, &session, &run->session[i], error);
    if (status != KAKEYA_OK) return status;
    atomic_fetch_add(&run->watch.under_way, 1);
    status = kakeya_session_submit(run->session[i], &wanted, &run->request[i], error);
    if (status == KAKEYA_OK) return status;
    atomic_fetch_sub(&run->watch.under_way, 1);
    kakeya_session_close(run->session[i]);
    run->session[i] = NULL;
    return status;
}

static kakeya_status end_request(void *user, int i, kakeya_error *error) {
    library_run *run = user;
    kakeya_status status = kakeya_request_wait(run->request[i], NULL, error);
    kakeya_session_close(run->session[i]);
    run->session[i] = NULL;
    return status;
}

static void cancel_request(void *user, int i) {
    library_run *run = user;
    if (run->session[i]) kakeya_session_cancel(run->session[i]);
}

/* --------------------------------------------------------------------------------------------------------- steps */

static void add_gap(step_watch *w, double seconds) {
    if (w->n == w->room) {
        size_t room = w->room ? 2 * w->room : FIRST_STEPS;
        double *grown = realloc(w->host, room * sizeof *grown);
        if (!grown) {
            w->lost = true;
            return;
        }
        w->host = grown;
        w->room = room;
    }
    w->host[w->n++] = seconds;
}

static void on_step(void *user, const kakeya_step *step) {
    step_watch *w = user;
    double now = clock_seconds();
    if (w->last > 0 && !atomic_exchange(&w->idle, false)) add_gap(w, now - step->seconds - w->last);
    w->last = now;
    w->steps++;
    w->answer_rows += step->answer_positions;
    w->prompt_rows += step->prompt_positions;
}

static kakeya_status sum_up(step_watch *w, const backend_forwards *before, const backend_forwards *after,
                            bench_between *out, kakeya_error *error) {
    if (w->lost) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for the times of %zu steps", w->n);
    *out = (bench_between){.steps = w->steps};
    for (size_t i = 0; i < w->n; i++) out->host_seconds += w->host[i];
    out->host = bench_percentiles_of(w->host, w->n);
    if (w->steps) {
        out->answer_rows = (double)w->answer_rows / (double)w->steps;
        out->prompt_rows = (double)w->prompt_rows / (double)w->steps;
    }
    out->graphs = after->graphs - before->graphs;
    out->graph_seconds = after->graph_seconds - before->graph_seconds;
    const uint64_t gaps = after->gaps - before->gaps;
    if (!gaps) return KAKEYA_OK;
    out->on_device = true;
    out->kernel_gap = (after->gap_seconds - before->gap_seconds) / (double)gaps;
    out->longest_kernel_gap = after->longest_gap_seconds;
    return KAKEYA_OK;
}

/* ---------------------------------------------------------------------------------------------------------- runs */

static const bench_traffic_verbs library = {begin_request, end_request, cancel_request};

static kakeya_status run_once(library_run *run, bench_figures *out, kakeya_error *error) {
    kakeya_status status = bench_traffic_run(&run->traffic, &library, run, run->options->progress, error);
    return status == KAKEYA_OK ? bench_traffic_figures(&run->traffic, out, error) : status;
}

static void count_forwards(const library_run *run, bool watch, backend_forwards *out) {
    const backend_measure_ops *measure = backend_measure_find(run->engine->ops);
    *out = (backend_forwards){0};
    if (!measure || !measure->forwards) return;
    engine_turn_begin(run->engine);
    if (measure->watch_forwards) measure->watch_forwards(run->engine->model, watch);
    measure->forwards(run->engine->model, out);
    engine_turn_end(run->engine);
}

/* Nothing is under way before and after it. */
static kakeya_status run_watched(library_run *run, bench_between *out, kakeya_error *error) {
    kakeya_engine *engine = run->engine;
    const kakeya_step_fn told = engine->on_step;
    void *const user = engine->step_user;
    bench_figures figures;
    backend_forwards before, after;
    count_forwards(run, true, &before);
    engine->on_step = on_step;
    engine->step_user = &run->watch;
    kakeya_status status = run_once(run, &figures, error);
    engine->on_step = told;
    engine->step_user = user;
    count_forwards(run, false, &after);
    if (status == KAKEYA_OK) status = sum_up(&run->watch, &before, &after, out, error);
    free(run->watch.host);
    return status;
}

static int by_time(const void *a, const void *b) {
    double x = ((const bench_figures *)a)->seconds, y = ((const bench_figures *)b)->seconds;
    return (x > y) - (x < y);
}

void bench_requests_median(bench_figures *figures, int n, bench_figures *median, bench_spread *seconds) {
    qsort(figures, (size_t)n, sizeof *figures, by_time);
    *median = figures[(n - 1) / 2];
    *seconds = (bench_spread){
        .median = (figures[(n - 1) / 2].seconds + figures[n / 2].seconds) / 2,
        .low = figures[0].seconds,
        .high = figures[n - 1].seconds,
    };
}

/* --------------------------------------------------------------------------------------------------------- ideal */

static double faster(double a, double b) { return a > b ? a : b; }

void bench_ideal_times(bench_ideal *i, const bench_figures *run, int requests) {
    double prompt = faster(i->measured.prompt_tokens_per_second, i->recorded.prompt_tokens_per_second);
    double answer = faster(i->measured.answer_tokens_per_second, i->recorded.answer_tokens_per_second);
    uint64_t first = run->answer_tokens < (uint64_t)requests ? run->answer_tokens : (uint64_t)requests;
    i->prompt_seconds = prompt > 0 ? (double)run->prompt_tokens / prompt : 0;
    i->answer_seconds = answer > 0 ? (double)(run->answer_tokens - first) / answer : 0;
}

/* Half as many sessions where so many do not fit. */
static kakeya_status measure_ideal(library_run *run, const bench_figures *figures, bench_ideal *out,
                                   kakeya_error *error) {
    const bench_load *load = &run->traffic.load;
    kakeya_engine *engine = run->engine;
    const int longest = LONG_CHUNKS * engine->ops->model_prompt_chunk(engine->model);
    bench_sessions_result result = {0};
    *out = (bench_ideal){
        .recorded = run->options->recorded,
        .prompt_tokens = figures->prompt_tokens < (uint64_t)longest ? (int)figures->prompt_tokens : longest,
        .sessions = load->requests < engine->max_batch ? load->requests : engine->max_batch,
        .context = (int)(figures->prompt_tokens / (uint64_t)load->requests) + load->answer_tokens / 2,
    };
    const int room = engine->verifier->config.max_context - SPARE_TOKENS;
    if (out->prompt_tokens > room) out->prompt_tokens = room;
    bench_sessions_options options = {.contexts = &out->context,
                                      .n_contexts = 1,
                                      .sessions = &out->sessions,
                                      .n_sessions = 1,
                                      .prompt_tokens = out->prompt_tokens,
                                      .decode_tokens = IDEAL_STEPS,
                                      .repeats = IDEAL_REPEATS,
                                      .none_beside = true,
                                      .session = run->options->session,
                                      .progress = run->options->progress};
    options.session.context_tokens = 0;
    kakeya_status status = bench_sessions_measure(engine, &options, &result, error);
    while (status == KAKEYA_OUT_OF_MEMORY && out->sessions > 1) {
        bench_sessions_result_free(&result);
        out->sessions /= 2;
        status = bench_sessions_measure(engine, &options, &result, error);
    }
    for (size_t i = 0; i < result.n && status == KAKEYA_OK; i++) {
        const bench_together_row *row = &result.row[i];
        if (row->what == BENCH_TOGETHER_ALONE) out->measured.prompt_tokens_per_second = row->prompt_tokens_per_second;
        if (row->what == BENCH_TOGETHER_DECODE) out->measured.answer_tokens_per_second = row->tokens_per_second;
    }
    bench_sessions_result_free(&result);
    if (status == KAKEYA_OK) bench_ideal_times(out, figures, load->requests);
    return status;
}

/* -------------------------------------------------------------------------------------------------- the whole of it */

static kakeya_status check_lengths(const kakeya_engine *engine, const bench_load *load, kakeya_error *error) {
    const int longest = load->prompt_tokens / 2 + load->prompt_tokens - 1;
    if (longest + load->answer_tokens + SPARE_TOKENS <= engine->verifier->config.max_context) return KAKEYA_OK;
    return error_set(error, KAKEYA_INVALID_ARGUMENT,
                     "--requests: prompts of up to %d tokens and answers of %d do not fit a context of %d", longest,
                     load->answer_tokens, engine->verifier->config.max_context);
}

kakeya_status bench_requests_measure(kakeya_engine *engine, const bench_requests_options *options,
                                     bench_requests_result *out, kakeya_error *error) {
    library_run run = {.engine = engine, .options = options};
    const size_t n = (size_t)options->load.requests;
    bench_figures figures[BENCH_MAX_REPEATS];
    *out = (bench_requests_result){0};
    kakeya_status status = check_lengths(engine, &options->load, error);
    if (status == KAKEYA_OK)
        status = bench_traffic_open(&options->load, engine->verifier->config.vocab, &run.traffic, error);
    if (status != KAKEYA_OK) return status;
    run.session = calloc(n, sizeof(kakeya_session *));
    run.request = calloc(n, sizeof(kakeya_request *));
    run.ends = calloc(n, sizeof *run.ends);
    if (!run.session || !run.request || !run.ends)
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for %zu requests", n);
    for (int i = 0; status == KAKEYA_OK && i < options->load.requests; i++) run.ends[i] = (library_end){&run, i};
    if (status == KAKEYA_OK) status = run_watched(&run, &out->between, error);
    for (int i = 0; status == KAKEYA_OK && i < options->repeats; i++) status = run_once(&run, &figures[i], error);
    if (status == KAKEYA_OK) {
        bench_requests_median(figures, options->repeats, &out->run, &out->seconds);
        status = measure_ideal(&run, &out->run, &out->ideal, error);
    }
    free(run.ends);
    free(run.request);
    free(run.session);
    bench_traffic_free(&run.traffic);
    return status;
}
