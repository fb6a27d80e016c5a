/* Sessions that are computed together against the same sessions alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "measure/lossless_batch_plan.h"
#include "measure/lossless_plan.h"
#include "measure/lossless_prompts.h"

typedef struct batch_run {
    eval_harness harness;
    const eval_options *options;
    const char *policies[HARNESS_POLICIES];
    size_t n_policies;
    lossless_batch_options plan;
    lossless_prompts prompts;
    eval_rows planned; /* of every composition its sessions alone, then all of them together */
    int first_session; /* of the composition in work, counted over all */
} batch_run;

/* One session, alone or in its composition. */
typedef struct batch_stream {
    const eval_harness *harness;
    const lossless_batch_session *plan;
    const lossless_prompt *prompt;
    eval_row row;
    kakeya_session *session;
    kakeya_request *request;
    kakeya_generate_options generate;
    kakeya_stats stats;
    int delivered;
    bool ended; /* by its plan; an answer that is cancelled otherwise was interrupted */
} batch_stream;

/* ------------------------------------------------------------------------------------------------------ one stream */

static bool on_event(void *user, const kakeya_event *event) {
    batch_stream *s = user;
    if (event->type != KAKEYA_EVENT_TOKEN) return true;
    if (s->plan->log_probabilities)
        s->row.log_probability_hash = hash_fnv1a(
            s->row.log_probability_hash, (const unsigned char *)&event->log_probability, sizeof event->log_probability);
    s->ended = ++s->delivered == s->plan->cancel_after;
    return !s->ended && harness_wants_on(s->harness);
}

static bool on_prompt(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)what, (void)done, (void)total;
    const batch_stream *s = user;
    return harness_wants_on(s->harness);
}

/* planned: its row, alone or among the others. */
static void stream_init(batch_stream *s, const batch_run *run, const lossless_batch_session *plan,
                        const lossless_prompt *prompt, int index, const eval_row *planned) {
    *s = (batch_stream){.harness = &run->harness, .plan = plan, .prompt = prompt};
    s->row = *planned;
    const eval_arm *arm = &s->row.arm;
    if (plan->log_probabilities) s->row.log_probability_hash = HASH_FNV1A_START;

    KAKEYA_INIT(&s->generate);
    s->generate.max_tokens = run->options->max_tokens;
    s->generate.mode = harness_mode(arm);
    s->generate.draft_length = arm->draft_length;
    s->generate.sampling.temperature = (float)arm->temperature;
    s->generate.sampling.seed = run->options->seed + (uint64_t)(run->first_session + index);
    s->generate.log_probabilities = plan->log_probabilities;
    s->generate.on_event = on_event;
    s->generate.user = s; /* streams do not move */
    KAKEYA_INIT(&s->stats);
}

static kakeya_status stream_open(batch_stream *s, const batch_run *run, size_t most_tokens, kakeya_error *error) {
    kakeya_session_options options =
        harness_session_options(&run->harness, &s->row.arm, most_tokens + (size_t)run->options->max_tokens);
    return kakeya_session_open(run->harness.engine, &options, &s->session, error);
}

static kakeya_status stream_submit(batch_stream *s, kakeya_error *error) {
    kakeya_request_options options;
    KAKEYA_INIT(&options);
    options.tokens = s->prompt->ids;
    options.n_tokens = s->prompt->n;
    options.media = s->prompt->media;
    options.n_media = s->prompt->n_media;
    options.generate = &s->generate;
    options.progress = on_prompt;
    options.progress_user = s;
    s->row.started_seconds = clock_seconds() - s->harness->report->begun_at;
    return kakeya_session_submit(s->session, &options, &s->request, error);
}

static kakeya_status stream_wait(batch_stream *s, kakeya_error *error) {
    kakeya_request *request = s->request;
    s->request = NULL;
    kakeya_status status = request ? kakeya_request_wait(request, &s->stats, error) : KAKEYA_OK;
    if (status != KAKEYA_OK || s->stats.finish != KAKEYA_FINISH_CANCELLED || s->ended) return status;
    return error_set(error, KAKEYA_CANCELLED, "interrupted after %llu of %llu runs",
                     (unsigned long long)s->harness->done, (unsigned long long)s->harness->total);
}

/* The row goes into the report. */
static kakeya_status stream_report(batch_stream *s, eval_harness *harness, kakeya_error *error) {
    const harness_prompt prompt = lossless_prompt_view(s->prompt);
    kakeya_status status = harness_result(s->session, &prompt, &s->stats, &s->row, error);
    if (status == KAKEYA_OK) status = harness_margin(harness, s->session, &prompt, &s->row, error);
    return status ? status : harness_add(harness, &s->row, error);
}

/* Nobody looks at a stream that is closed: what still runs is cancelled first. */
static void stream_close(batch_stream *s) {
    kakeya_error ignored;
    if (s->request) {
        kakeya_request_cancel(s->request);
        (void)kakeya_request_wait(s->request, NULL, &ignored);
    }
    kakeya_session_close(s->session);
    eval_row_free(&s->row);
}

/* ----------------------------------------------------------------------------------------------------- compositions */

typedef struct composition {
    lossless_batch_session plan[LOSSLESS_BATCH_SESSIONS];
    lossless_prompt prompt[LOSSLESS_BATCH_SESSIONS];
    batch_stream stream[LOSSLESS_BATCH_SESSIONS];
    int n;
} composition;

/* Half of the prompt before it, which a fork begins with, and its pictures. */
static size_t shared_tokens(const composition *c, int session, size_t *n_media) {
    const lossless_prompt *before = session ? &c->prompt[session - 1] : NULL;
    *n_media = 0;
    return c->plan[session].forked ? lossless_prompt_beginning(before, before->n / 2, n_media) : 0;
}

static kakeya_status draw_prompts(batch_run *run, composition *c, int index, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; i < c->n && status == KAKEYA_OK; i++) {
        lossless_prompt *prompt = &c->prompt[i];
        size_t n_media;
        prompt->kind = c->plan[i].kind;
        lossless_batch_sample(index, i, prompt->kind, prompt->sample, sizeof prompt->sample);
        status = lossless_prompts_draw(&run->prompts, i ? &c->prompt[i - 1] : NULL, shared_tokens(c, i, &n_media),
                                       prompt, error);
    }
    return status;
}

static kakeya_status run_alone(batch_run *run, composition *c, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; i < c->n && status == KAKEYA_OK; i++) {
        batch_stream *s = &c->stream[0];
        stream_init(s, run, &c->plan[i], &c->prompt[i], i, &run->planned.row[2 * run->first_session + i]);
        if (!harness_wants(&run->harness, &s->row)) continue;
        status = harness_poll(&run->harness, error);
        if (status == KAKEYA_OK) status = stream_open(s, run, s->prompt->n, error);
        if (status == KAKEYA_OK) status = stream_submit(s, error);
        if (status == KAKEYA_OK) status = stream_wait(s, error);
        if (status == KAKEYA_OK) status = stream_report(s, &run->harness, error);
        stream_close(s);
    }
    return status;
}

/* A session and the one behind it, which begins alike: the beginning is computed once. */
static kakeya_status open_forks(const batch_run *run, composition *c, int i, kakeya_error *error) {
    batch_stream *first = &c->stream[i], *second = &c->stream[i + 1];
    size_t most = first->prompt->n > second->prompt->n ? first->prompt->n : second->prompt->n, n_media;
    const size_t shared = shared_tokens(c, i + 1, &n_media);
    kakeya_status status = stream_open(first, run, most, error);
    if (status == KAKEYA_OK)
        status = kakeya_session_sync_media(first->session, first->prompt->ids, shared, first->prompt->media, n_media,
                                           NULL, on_prompt, first, error);
    return status ? status : kakeya_session_fork(first->session, &second->session, error);
}

static kakeya_status open_together(const batch_run *run, composition *c, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; i < c->n && status == KAKEYA_OK; i++) {
        if (c->plan[i].forked) continue; /* there since the one before it */
        bool forks = i + 1 < c->n && c->plan[i + 1].forked;
        status = forks ? open_forks(run, c, i, error) : stream_open(&c->stream[i], run, c->prompt[i].n, error);
    }
    return status;
}

static kakeya_status submit(composition *c, bool late, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; i < c->n && status == KAKEYA_OK; i++)
        if (c->plan[i].late == late) status = stream_submit(&c->stream[i], error);
    return status;
}

static kakeya_status run_together(batch_run *run, composition *c, kakeya_error *error) {
    bool wanted = false; /* all of them, or none: none could be computed without the others */
    for (int i = 0; i < c->n; i++) {
        stream_init(&c->stream[i], run, &c->plan[i], &c->prompt[i], i,
                    &run->planned.row[2 * run->first_session + c->n + i]);
        wanted |= harness_wants(&run->harness, &c->stream[i].row);
    }
    if (!wanted) return KAKEYA_OK;
    kakeya_status status = harness_poll(&run->harness, error);
    if (status == KAKEYA_OK) status = open_together(run, c, error);
    if (status == KAKEYA_OK) status = submit(c, false, error);
    if (status == KAKEYA_OK) status = stream_wait(&c->stream[0], error); /* the first session is never late */
    if (status == KAKEYA_OK) status = submit(c, true, error);
    for (int i = 1; i < c->n && status == KAKEYA_OK; i++) status = stream_wait(&c->stream[i], error);
    for (int i = 0; i < c->n && status == KAKEYA_OK; i++) status = stream_report(&c->stream[i], &run->harness, error);
    for (int i = 0; i < c->n; i++) stream_close(&c->stream[i]);
    return status;
}

/* ------------------------------------------------------------------------------------------------------------ runs */

static kakeya_status run_all(batch_run *run, composition *c, kakeya_error *error) {
    const eval_options *o = run->options;
    kakeya_status status = harness_plan(&run->harness, &run->planned, error);
    for (int i = 0; i < o->compositions && status == KAKEYA_OK; i++) {
        memset(c, 0, sizeof *c);
        c->n = lossless_batch_composition(&run->plan, i, c->plan);
        status = draw_prompts(run, c, i, error);
        if (status == KAKEYA_OK) status = run_alone(run, c, error);
        if (status == KAKEYA_OK) status = run_together(run, c, error);
        for (int s = 0; s < c->n; s++) lossless_prompt_free(&c->prompt[s]);
        run->first_session += c->n;
    }
    return status;
}

static cJSON *options_json(const batch_run *run) {
    eval_options o = *run->options;
    o.policies = (eval_policies){run->policies, run->n_policies};
    return harness_options(&run->harness, EVAL_BATCH, &o);
}

static kakeya_status choose_policies(batch_run *run, kakeya_error *error) {
    static const char *const names[] = {"native", "sink-window", "restored", "restored-all"};
    eval_policies policies = {names, kakeya_engine_has_f_theta(run->harness.engine) ? 4 : 2};
    if (run->options->policies.n) policies = run->options->policies;
    return harness_policies(&run->harness, &policies, false, run->policies, &run->n_policies, error);
}

kakeya_status eval_lossless_batch(const eval_setup *setup, const eval_options *options, eval_report **out,
                                  kakeya_error *error) {
    *out = NULL;
    batch_run run = {.options = options};
    composition *c = malloc(sizeof *c);
    if (!c) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for a composition");
    kakeya_status status = harness_open(&run.harness, setup, 0, error);
    if (status == KAKEYA_OK) status = choose_policies(&run, error);
    if (status == KAKEYA_OK)
        status = lossless_prompts_open(&run.prompts, &run.harness, options->files, options->n_files, &options->images,
                                       options->seed, error);
    if (status == KAKEYA_OK) {
        run.plan = (lossless_batch_options){.seed = options->seed,
                                            .sessions = options->sessions,
                                            .max_tokens = options->max_tokens,
                                            .policies = (int)run.n_policies,
                                            .drafter = kakeya_engine_has_drafter(run.harness.engine)};
        cJSON *said = options_json(&run);
        if (said) status = harness_add_pictures(&run.harness, &options->images, said, error);
        if (status == KAKEYA_OK)
            status = harness_report(&run.harness, EVAL_BATCH, said, error);
        else
            cJSON_Delete(said);
    }
    if (status == KAKEYA_OK) status = run_all(&run, c, error);
    lossless_prompts_close(&run.prompts);
    eval_rows_free(&run.planned);
    free(c);
    return harness_close(&run.harness, status, out, error);
}
