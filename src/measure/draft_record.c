#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "measure/draft_study.h"
#include "measure/harness.h"
#include "measure/niah.h"

enum {
    CODE_PROMPT_TOKENS = 600,
    RANDOM_PROMPT_TOKENS = 300,
    /* generated to measure blocks of one length: as many as are recorded, within these */
    LEAST_COST_TOKENS = 40, /* a few blocks of the longest */
    COST_TOKENS = 160,
    NEEDLE_LEAST_LINES = 20,
    NEEDLE_MOST_LINES = 80,
};
static const float random_temperature = 2.5f;

typedef struct recording {
    eval_harness harness;
    const draft_record_options *options;
    draft_traces *traces;
    /* the text in work */
    draft_trace *trace;
    kakeya_session *session;
    float temperature;
    int block; /* blocks begun while costs are measured */
} recording;

/* --------------------------------------------------------------------------------------------- tokens and drafts */

static kakeya_status generate_one(recording *r, kakeya_session *session, bool may_end, bool *ended,
                                  kakeya_error *error) {
    kakeya_generate_options options;
    KAKEYA_INIT(&options);
    options.max_tokens = 1;
    options.mode = KAKEYA_MODE_AR;
    options.sampling.temperature = r->temperature;
    options.sampling.seed = r->options->seed;
    options.ignore_stop_tokens = !may_end || strcmp(r->trace->workload, "needle") != 0;
    kakeya_stats stats = {0};
    kakeya_status status = session_generate(session, &options, NULL, &stats, error);
    *ended = !status && stats.finish == KAKEYA_FINISH_STOP;
    return status;
}

static void add_cost(trace_cost *cost, double seconds) {
    if (cost->n < TRACE_COST_SAMPLES) cost->seconds[cost->n++] = (float)seconds;
}

/* A block of k drafts behind the session's last token, and what it took. */
static kakeya_status time_block(recording *r, int k, int32_t *drafts, double *seconds, kakeya_error *error) {
    decode_timeline *t = &r->session->timeline;
    engine_turn_begin(r->session->engine);
    double start = clock_seconds();
    kakeya_status status = backend_draft_by(t->ops, t->model, engine_drafter(r->session->engine), t->cache,
                                            t->tokens[t->n - 1], k, drafts, error);
    *seconds = clock_seconds() - start;
    engine_turn_end(r->session->engine);
    return status;
}

/* Blocks of every length. The first that is asked for pays for the drafter's context, as a block does in decoding; its
 * length goes round. */
static kakeya_status draft_all_lengths(recording *r, int32_t *drafts, kakeya_error *error) {
    int longest = r->trace->max_drafts, turn = (int)r->session->timeline.n;
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; i < longest && !status; i++) {
        int k = 1 + (turn + i) % longest;
        double seconds;
        status = time_block(r, k, drafts + (size_t)(k - 1) * (size_t)longest, &seconds, error);
        if (!status && i == 0) add_cost(&r->trace->draft[k], seconds);
    }
    return status;
}

/* A text of fewer tokens than there are lengths has not come to all of them: the session goes on, unrecorded. */
static kakeya_status measure_other_lengths(recording *r, kakeya_error *error) {
    int32_t drafts[BACKEND_MAX_DRAFT];
    kakeya_status status = KAKEYA_OK;
    for (int k = 1; k <= r->trace->max_drafts && !status; k++) {
        if (r->trace->draft[k].n) continue;
        bool ended;
        double seconds;
        status = generate_one(r, r->session, false, &ended, error);
        if (!status) status = time_block(r, k, drafts, &seconds, error);
        if (!status) add_cost(&r->trace->draft[k], seconds);
    }
    return status;
}

/* Generates the text token by token. */
static kakeya_status record_tokens(recording *r, int most, kakeya_error *error) {
    draft_trace *t = r->trace;
    size_t block = (size_t)t->max_drafts * (size_t)t->max_drafts;
    bool ended = false;
    kakeya_status status = KAKEYA_OK;
    int n = 0;
    while (n < most && !ended && !status) {
        status = generate_one(r, r->session, true, &ended, error);
        if (!status) status = draft_all_lengths(r, t->drafts + (size_t)n * block, error);
        if (!status) status = harness_poll(&r->harness, error);
        n++;
    }
    if (status) return status;
    t->n = t->prompt_tokens + n;
    memcpy(t->tokens, r->session->timeline.tokens, (size_t)t->n * sizeof *t->tokens);
    return KAKEYA_OK;
}

/* ---------------------------------------------------------------------------------------------------------- costs */

/* Drafts for a block whose cost is measured: the tokens that come and, in every other block, the prompt's tokens
 * instead. */
static kakeya_status draft_for_cost(void *user, int32_t bonus, int n, int32_t *drafts, kakeya_error *error) {
    (void)bonus, (void)error;
    recording *r = user;
    const draft_trace *t = r->trace;
    size_t at = r->session->timeline.n;
    bool wrong = r->block++ % 2;
    for (int i = 0; i < n; i++) {
        bool known = !wrong && at + (size_t)i < (size_t)t->n;
        drafts[i] = known ? t->tokens[at + (size_t)i] : t->tokens[(size_t)(r->block + i) % (size_t)t->prompt_tokens];
    }
    return KAKEYA_OK;
}

static void take_cost(void *user, const decode_trace_block *block) {
    recording *r = user;
    add_cost(&r->trace->verify[block->block.drafted + 1], block->block.verify_seconds);
}

static size_t cost_tokens(const draft_record_options *options) {
    int n = options->max_tokens < COST_TOKENS ? options->max_tokens : COST_TOKENS;
    return n < LEAST_COST_TOKENS ? LEAST_COST_TOKENS : (size_t)n;
}

/* Blocks of one length in a copy of the session whose text has just begun. */
static kakeya_status measure_length(recording *r, const kakeya_session *begun, int drafts, kakeya_error *error) {
    kakeya_session *copy = NULL, *session = r->session;
    kakeya_status status = kakeya_session_fork(begun, &copy, error);
    if (status) return status;
    r->session = copy;
    r->block = 0;
    decode_options options = {
        .mode = drafts ? KAKEYA_MODE_SPECULATIVE : KAKEYA_MODE_AR,
        .draft_length = drafts,
        .max_rows = session_decode_rows(copy),
        .max_tokens = cost_tokens(r->options),
        .draft = draft_for_cost,
        .draft_user = r,
        .trace = take_cost,
        .trace_user = r,
    };
    decode_output output = {0};
    output_begin(&output);
    kakeya_sampling sampling = {
        .temperature = r->temperature, .top_p = 1, .repetition_penalty = 1, .seed = r->options->seed};
    kakeya_stats stats = {0};
    decode_buffers buffers;
    decode_buffers_init(&buffers, copy->timeline.vocab, &copy->account);
    copy->workspace.sampler.space = &buffers.sampling;
    status = sampler_configure(&copy->workspace.sampler, &sampling, NULL, error);
    if (!status) status = decode_run(&copy->timeline, &copy->workspace, &buffers, &options, &output, &stats, error);
    decode_buffers_free(&buffers);
    r->session = session;
    kakeya_session_close(copy);
    return status;
}

/* --------------------------------------------------------------------------------------------------------- texts */

static kakeya_status record_text(recording *r, const char *policy, const char *workload, const char *name,
                                 const int32_t *ids, size_t n, kakeya_error *error) {
    int most = r->options->max_tokens;
    eval_arm arm;
    harness_arm(&r->harness, policy, KAKEYA_MODE_AUTO, &arm);
    kakeya_session_options options = harness_session_options(&r->harness, &arm, n + (size_t)most + 2 * COST_TOKENS);
    r->trace = draft_traces_add(r->traces);
    if (!r->trace) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for recorded texts");
    draft_trace *t = r->trace;
    snprintf(t->name, sizeof t->name, "%s", name);
    snprintf(t->workload, sizeof t->workload, "%s", workload);
    snprintf(t->policy, sizeof t->policy, "%s", policy);
    snprintf(t->backend, sizeof t->backend, "%s", kakeya_engine_backend(r->harness.engine));
    r->temperature = strcmp(workload, "random") == 0 ? random_temperature : 0;
    int drafts = kakeya_engine_drafter_block_size(r->harness.engine) - 1;
    if (drafts < 0) drafts = 0;
    if (drafts > BACKEND_MAX_DRAFT) drafts = BACKEND_MAX_DRAFT;

    kakeya_session *begun = NULL;
    bool ended;
    kakeya_status status = draft_trace_allocate(t, (int)n + most, (int)n, drafts, error);
    if (!status) status = kakeya_session_open(r->harness.engine, &options, &r->session, error);
    if (!status) status = kakeya_session_sync(r->session, ids, n, NULL, NULL, NULL, error);
    if (!status) status = kakeya_session_fork(r->session, &begun, error);
    if (!status) status = generate_one(r, begun, true, &ended, error);
    if (!status) status = record_tokens(r, most, error);
    if (!status) status = measure_other_lengths(r, error);
    for (int length = 0; length < session_decode_rows(r->session) && !status; length++) {
        status = measure_length(r, begun, length, error);
        if (!status) status = harness_poll(&r->harness, error);
    }
    kakeya_session_close(begun);
    kakeya_session_close(r->session);
    r->session = NULL;
    r->harness.done++;
    return status;
}

static kakeya_status record_code(recording *r, const char *policy, const char *file, kakeya_error *error) {
    eval_sequence text = {0};
    kakeya_status status = harness_read_text(&r->harness, file, &text, error);
    if (!status) {
        size_t n = text.n < CODE_PROMPT_TOKENS ? text.n : CODE_PROMPT_TOKENS;
        status = record_text(r, policy, "code", text.name, text.ids, n, error);
    }
    free(text.ids);
    return status;
}

static kakeya_status record_needle(recording *r, const char *policy, const niah_sample *sample, int index,
                                   kakeya_error *error) {
    kakeya_message message = {"user", sample->prompt};
    int32_t *ids = NULL;
    size_t n = 0;
    char name[32];
    snprintf(name, sizeof name, "needle %d", index);
    kakeya_status status =
        kakeya_message_tokens(kakeya_engine_tokenizer(r->harness.engine), &message, 1, false, &ids, &n, error);
    if (!status) status = record_text(r, policy, "needle", name, ids, n, error);
    kakeya_free(ids);
    return status;
}

static kakeya_status record_random(recording *r, const char *policy, int index, kakeya_error *error) {
    enum { ORDINARY = 5 }; /* ids below are control tokens */
    int32_t ids[RANDOM_PROMPT_TOKENS];
    int vocab = kakeya_engine_vocab_size(r->harness.engine);
    uint64_t state = r->options->seed + (uint64_t)index * 0x9e3779b97f4a7c15u;
    for (int i = 0; i < RANDOM_PROMPT_TOKENS; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        ids[i] = ORDINARY + (int32_t)((state >> 33) % (uint64_t)(vocab - ORDINARY));
    }
    char name[32];
    snprintf(name, sizeof name, "random %d", index);
    return record_text(r, policy, "random", name, ids, RANDOM_PROMPT_TOKENS, error);
}

kakeya_status draft_record(const eval_setup *setup, const draft_record_options *options, draft_traces *out,
                           kakeya_error *error) {
    *out = (draft_traces){0};
    recording r = {.options = options, .traces = out};
    const char *policies[HARNESS_POLICIES];
    size_t n_policies = 0;
    niah_dataset needles = {0};
    niah_options niah;
    niah_options_init(&niah);
    niah.samples = options->needles;
    niah.min_lines = NEEDLE_LEAST_LINES;
    niah.max_lines = NEEDLE_MOST_LINES;
    niah.seed = options->seed;
    kakeya_status status = harness_open(&r.harness, setup, 0, error);
    if (!status) status = harness_policies(&r.harness, &options->policies, true, policies, &n_policies, error);
    if (!status && options->needles) status = niah_generate(&niah, &needles, error);
    r.harness.total = n_policies * (options->n_files + (size_t)options->needles + (size_t)options->random_texts);
    for (size_t p = 0; p < n_policies && !status; p++) {
        for (size_t i = 0; i < options->n_files && !status; i++)
            status = record_code(&r, policies[p], options->files[i], error);
        for (size_t i = 0; i < needles.n && !status; i++) {
            status = record_needle(&r, policies[p], &needles.samples[i], (int)i, error);
        }
        for (int i = 0; i < options->random_texts && !status; i++) status = record_random(&r, policies[p], i, error);
    }
    niah_dataset_free(&needles);
    kakeya_engine_close(r.harness.engine);
    if (status) draft_traces_free(out);
    return status;
}
