#include "measure/verify_streams.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "measure/mt19937.h"
#include "measure/niah.h"

/* Prompts reach beyond sink and window of the bounded policies in a third of the rounds, and beyond the model's own
 * window in the long ones. */
enum { LEAST_PROMPT = 24, MOST_PROMPT = 96, RANDOM_IDS = 2, TOKENS_PER_LINE = 8, SPARE_TOKENS = 8 };

/* ----------------------------------------------------------------------------------------------------- the plan */

static const kakeya_kv_format known_formats[] = {KAKEYA_KV_F32, KAKEYA_KV_BF16, KAKEYA_KV_Q8, KAKEYA_KV_Q4};
enum { KNOWN_FORMATS = sizeof known_formats / sizeof known_formats[0] };

static kakeya_kv_format format_of(const char *name) {
    for (int i = 0; i < KNOWN_FORMATS; i++)
        if (strcmp(kakeya_kv_format_name(known_formats[i]), name) == 0) return known_formats[i];
    return KAKEYA_KV_AUTO;
}

kakeya_status verify_run_formats(verify_run *run, const char *const *formats, size_t n, kakeya_error *error) {
    bool f32 = kakeya_engine_precision(run->harness.engine) == KAKEYA_PRECISION_F32;
    const char *own = kakeya_kv_format_name(f32 ? KAKEYA_KV_F32 : KAKEYA_KV_BF16);
    if (n == 0) {
        formats = &own;
        n = 1;
    }
    run->plan.formats = 0;
    for (size_t i = 0; i < n; i++) {
        kakeya_kv_format format = format_of(formats[i]);
        if (format == KAKEYA_KV_AUTO)
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "K/V format '%s' is none of f32, bf16, q8, q4",
                             formats[i]);
        const char *name = kakeya_kv_format_name(format);
        for (int j = 0; j < run->plan.formats; j++)
            if (run->formats[j] == name)
                return error_set(error, KAKEYA_INVALID_ARGUMENT, "K/V format '%s' is named twice", name);
        run->formats[run->plan.formats++] = name;
    }
    return KAKEYA_OK;
}

/* ------------------------------------------------------------------------------------------------------- prompts */

static kakeya_status read_needles(const verify_run *run, uint64_t seed, size_t tokens, int32_t **ids, size_t *n,
                                  kakeya_error *error) {
    niah_options options;
    niah_dataset dataset;
    niah_options_init(&options);
    options.samples = 1;
    options.min_lines = options.max_lines = 10 + (int)tokens / TOKENS_PER_LINE;
    options.seed = seed;
    kakeya_status status = niah_generate(&options, &dataset, error);
    if (status != KAKEYA_OK) return status;
    kakeya_message message = {"user", dataset.samples[0].prompt};
    status = kakeya_message_tokens(kakeya_engine_tokenizer(run->harness.engine), &message, 1, false, ids, n, error);
    niah_dataset_free(&dataset);
    return status;
}

/* The text's first token (<bos>), then some random ids, so that no two prompts begin alike, then a stretch of numbered
 * lines or more random ids. */
kakeya_status verify_prompt_draw(const verify_run *run, int round, int policy, int format, verify_prompt *out,
                                 kakeya_error *error) {
    const kakeya_engine *engine = run->harness.engine;
    mt19937 generator;
    int32_t *text = NULL;
    size_t n_text = 0;
    mt19937_seed(&generator, verify_seed(&run->plan, round, policy, format));
    *out = (verify_prompt){0};
    verify_sample(&run->plan, round, policy, format, out->sample, sizeof out->sample);
    int length = mt19937_between(&generator, LEAST_PROMPT, MOST_PROMPT);
    if (verify_is_long(round)) length += engine->verifier->config.sliding_window;
    int most = kakeya_engine_max_context(engine) - run->max_tokens - SPARE_TOKENS;
    out->n = (size_t)(length < most ? length : most);
    if (most < LEAST_PROMPT)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "a context of %d tokens has no room for %d tokens of answers",
                         kakeya_engine_max_context(engine), run->max_tokens);
    kakeya_status status = KAKEYA_OK;
    bool has_text = kakeya_engine_has_tokenizer(engine) && strcmp(verify_prompt_kind(round), "text") == 0;
    if (has_text) status = read_needles(run, mt19937_next(&generator), out->n, &text, &n_text, error);
    if (status == KAKEYA_OK) out->ids = malloc(out->n * sizeof *out->ids);
    if (status == KAKEYA_OK && !out->ids) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for a prompt");
    if (status == KAKEYA_OK) {
        uint32_t vocab = (uint32_t)kakeya_engine_vocab_size(engine);
        size_t taken = n_text > out->n ? out->n - 1 - RANDOM_IDS : 0;
        size_t from = taken ? 1 + mt19937_below(&generator, (uint32_t)(n_text - taken)) : 0;
        for (size_t i = 0; i < out->n; i++)
            out->ids[i] = taken && i > RANDOM_IDS ? text[from + i - 1 - RANDOM_IDS]
                          : taken && i == 0       ? text[0]
                                                  : (int32_t)mt19937_below(&generator, vocab);
    }
    kakeya_free(text);
    return status;
}

/* ------------------------------------------------------------------------------------------------------- answers */

static bool on_event(void *user, const kakeya_event *event) {
    verify_answer *answer = user;
    if (event->type != KAKEYA_EVENT_TOKEN) return true;
    size_t at = event->position - answer->prompt->n;
    if (at < VERIFY_MOST_TOKENS) answer->log_probability[at] = event->log_probability;
    return harness_wants_on(&answer->run->harness);
}

static bool on_prompt(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)what, (void)done, (void)total;
    const verify_answer *answer = user;
    return harness_wants_on(&answer->run->harness);
}

void verify_answer_init(verify_answer *answer, verify_run *run, int round, const verify_prompt *prompt,
                        const verify_stream *plan) {
    *answer = (verify_answer){.run = run, .prompt = prompt, .plan = plan};
    eval_row_init(&answer->row);
    harness_arm(&run->harness, run->policies[plan->policy], KAKEYA_MODE_AR, &answer->row.arm);
    verify_plan_row(&run->plan, round, plan, run->policies[plan->policy], run->formats[plan->format], &answer->row);
    answer->row.log_probability_hash = HASH_FNV1A_START;
    kakeya_generate_options *o = &answer->generate;
    KAKEYA_INIT(o);
    o->mode = harness_mode(&answer->row.arm);
    o->draft_length = plan->draft_length;
    o->max_tokens = run->max_tokens;
    o->sampling.temperature = (float)plan->temperature;
    o->sampling.seed = verify_seed(&run->plan, round, plan->policy, plan->format);
    o->ignore_stop_tokens = true; /* every stream is as long as any other */
    o->log_probabilities = true;
    o->on_event = on_event;
    o->user = answer;
    KAKEYA_INIT(&answer->stats);
}

kakeya_status verify_answer_open(verify_answer *answer, kakeya_error *error) {
    const verify_run *run = answer->run;
    kakeya_session_options options = harness_session_options(
        &run->harness, &answer->row.arm, answer->prompt->n + (size_t)run->max_tokens + SPARE_TOKENS);
    options.kv_format = format_of(answer->row.arm.kv_format);
    return kakeya_session_open(run->harness.engine, &options, &answer->session, error);
}

static void note_start(verify_answer *answer) {
    answer->row.started_seconds = clock_seconds() - answer->run->harness.report->begun_at;
}

kakeya_status verify_answer_prompt(verify_answer *answer, kakeya_error *error) {
    note_start(answer);
    return kakeya_session_sync(answer->session, answer->prompt->ids, answer->prompt->n, NULL, on_prompt, answer, error);
}

static kakeya_status stopped(const verify_answer *answer, kakeya_error *error) {
    return error_set(error, KAKEYA_CANCELLED, "interrupted after %llu streams",
                     (unsigned long long)answer->run->harness.done);
}

kakeya_status verify_answer_go_on(verify_answer *answer, int tokens, kakeya_error *error) {
    kakeya_stats stats;
    KAKEYA_INIT(&stats);
    if (!(answer->row.started_seconds > 0)) note_start(answer);
    answer->generate.max_tokens = tokens;
    const session_trace trace = {.assistant = answer->plan->assistant};
    kakeya_status status = session_generate(answer->session, &answer->generate, &trace, &stats, error);
    if (status == KAKEYA_OK) harness_add_stats(&answer->stats, &stats);
    if (status == KAKEYA_OK && stats.finish == KAKEYA_FINISH_CANCELLED) status = stopped(answer, error);
    return status;
}

kakeya_status verify_answer_submit(verify_answer *answer, kakeya_error *error) {
    kakeya_request_options options;
    KAKEYA_INIT(&options);
    options.tokens = answer->prompt->ids;
    options.n_tokens = answer->prompt->n;
    options.generate = &answer->generate;
    options.progress = on_prompt;
    options.progress_user = answer;
    note_start(answer);
    return kakeya_session_submit(answer->session, &options, &answer->request, error);
}

kakeya_status verify_answer_wait(verify_answer *answer, kakeya_error *error) {
    kakeya_request *request = answer->request;
    answer->request = NULL;
    kakeya_status status = request ? kakeya_request_wait(request, &answer->stats, error) : KAKEYA_OK;
    if (status == KAKEYA_OK && answer->stats.finish == KAKEYA_FINISH_CANCELLED) status = stopped(answer, error);
    return status;
}

uint64_t verify_answer_hash(const verify_answer *answer, size_t tokens) {
    uint64_t hash = answer->row.log_probability_hash;
    for (size_t i = answer->done; i < tokens; i++)
        hash = hash_fnv1a(hash, &answer->log_probability[i], sizeof answer->log_probability[i]);
    return hash;
}

kakeya_status verify_answer_report(verify_answer *answer, kakeya_error *error) {
    const harness_prompt prompt = {
        .sample = answer->prompt->sample, .ids = answer->prompt->ids, .n = answer->prompt->n};
    answer->row.log_probability_hash = verify_answer_hash(answer, (size_t)answer->run->max_tokens);
    kakeya_status status = harness_result(answer->session, &prompt, &answer->stats, &answer->row, error);
    return status ? status : harness_add(&answer->run->harness, &answer->row, error);
}

void verify_answer_close(verify_answer *answer) {
    kakeya_error ignored;
    if (answer->request) {
        kakeya_request_cancel(answer->request);
        (void)kakeya_request_wait(answer->request, NULL, &ignored);
    }
    kakeya_session_close(answer->session);
    eval_row_free(&answer->row);
    answer->session = NULL;
    answer->request = NULL;
}

void verify_session_name(int round, const verify_stream *stream, char *out, size_t bytes) {
    snprintf(out, bytes, "%d-%d-%d-%d.session", round, stream->policy, stream->format, stream->temperature);
}
