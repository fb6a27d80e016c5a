#include "measure/harness.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/measure.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/threads.h"
#include "kakeya_study.h"
#include "measure/kv_geometry.h"
#include "measure/lossless_plan.h"
#include "measure/options.h"
#include "measure/plan.h"

static const char *const policy_names[HARNESS_POLICIES] = {"native", "sink-window", "restored", "restored-all"};
static const char *const mode_names[] = {"auto", "ar", "speculative", "ngram"};

struct harness_taken {
    char *sample;
    uint64_t hash;
};

enum { MAX_TEXT_BYTES = 1 << 28 };

/* --------------------------------------------------------------------------------------------- engine, report */

kakeya_study_options harness_study(const eval_setup *setup) {
    return setup->engine.study ? *setup->engine.study : (kakeya_study_options){.size = sizeof(kakeya_study_options)};
}

kakeya_status harness_open_engine(const eval_setup *setup, int threads, bool scaled_embedding, kakeya_engine **out,
                                  kakeya_error *error) {
    kakeya_engine_options options = setup->engine;
    kakeya_study_options study = harness_study(setup);
    if (threads) options.threads = threads;
    study.drafter_scaled_embedding = scaled_embedding;
    options.study = &study;
    return kakeya_engine_open(&options, out, error);
}

/* How many threads an engine takes by itself. */
static kakeya_status default_threads(int *out, kakeya_error *error) {
    thread_pool *pool;
    kakeya_status status = thread_pool_create(0, &pool, error);
    if (status != KAKEYA_OK) return status;
    *out = thread_pool_size(pool);
    thread_pool_destroy(pool);
    return KAKEYA_OK;
}

kakeya_status harness_open(eval_harness *harness, const eval_setup *setup, int threads, kakeya_error *error) {
    *harness = (eval_harness){.setup = setup, .threads = threads ? threads : setup->engine.threads};
    int own = 0;
    if (!harness->threads || (setup->replay && !threads)) {
        kakeya_status status = default_threads(&own, error);
        if (status != KAKEYA_OK) return status;
    }
    if (!harness->threads) harness->threads = own;
    /* A replay says how many threads there were, and takes no more than there are here: no bit depends on it. */
    bool fewer = own && own < harness->threads;
    return harness_open_engine(setup, fewer ? own : harness->threads, harness_study(setup).drafter_scaled_embedding,
                               &harness->engine, error);
}

static const char *last_component(const char *path) {
    size_t end = strlen(path);
    while (end && path[end - 1] == '/') end--;
    size_t start = end;
    while (start && path[start - 1] != '/') start--;
    return path + start;
}

cJSON *harness_environment(const eval_harness *harness) {
    const kakeya_engine *engine = harness->engine;
    const model_config *config = &engine->verifier->config;
    cJSON *object = environment_describe();
    if (!object) return NULL;
    const kakeya_engine_options *options = &harness->setup->engine;
    const kakeya_study_options study = harness_study(harness->setup);
    char fingerprint[20];
    snprintf(fingerprint, sizeof fingerprint, "%016" PRIx64, engine->fingerprint);
    cJSON_AddStringToObject(object, "backend", kakeya_engine_backend(engine));
    cJSON_AddStringToObject(object, "precision", kakeya_precision_name(kakeya_engine_precision(engine)));
    cJSON_AddNumberToObject(object, "threads", harness->threads);
    cJSON_AddStringToObject(object, "model", options->model ? last_component(options->model) : study.synthetic);
    cJSON_AddStringToObject(object, "fingerprint", fingerprint);
    cJSON_AddBoolToObject(object, "drafter", kakeya_engine_has_drafter(engine));
    cJSON_AddBoolToObject(object, "f_theta", kakeya_engine_has_f_theta(engine));
    cJSON_AddNumberToObject(object, "drafter_block_size", kakeya_engine_drafter_block_size(engine));
    cJSON_AddNumberToObject(object, "layers", config->layers);
    cJSON_AddNumberToObject(object, "vocabulary", config->vocab);
    cJSON_AddNumberToObject(object, "sliding_window", config->sliding_window);
    cJSON_AddItemToObject(object, "stop_tokens", cJSON_CreateIntArray(config->stop_tokens, config->n_stop_tokens));
    cJSON_AddBoolToObject(object, "drafter_scaled_embedding", study.drafter_scaled_embedding);
    kakeya_kv_format format = harness->setup->session.kv_format;
    if (format == KAKEYA_KV_AUTO)
        format = kakeya_engine_precision(engine) == KAKEYA_PRECISION_F32 ? KAKEYA_KV_F32 : KAKEYA_KV_BF16;
    kv_geometry geometry;
    kv_geometry_of(config, engine->drafter ? &engine->drafter->config : NULL,
                   engine->f_theta ? &engine->f_theta->config : NULL, backend_kv_format(format), &geometry);
    if (engine->assistant) geometry.state_values = config->hidden;
    const backend_measure_ops *measure = backend_measure_find(engine->ops);
    if (measure && measure->page_granule) geometry.page_granule = measure->page_granule(engine->model);
    if (measure && measure->devices) geometry.devices = measure->devices(engine->model);
    cJSON *sizes = kv_geometry_to_json(&geometry);
    if (sizes && cJSON_AddItemToObject(object, "kv_geometry", sizes)) return object;
    cJSON_Delete(object);
    return NULL;
}

kakeya_status harness_report(eval_harness *harness, eval_kind kind, cJSON *options, kakeya_error *error) {
    const eval_replay *replay = harness->setup->replay;
    kakeya_status status =
        eval_report_open(kind, harness->setup->report_path, harness->setup->argc, harness->setup->argv,
                         harness_environment(harness), options, &harness->report, error);
    if (status == KAKEYA_OK && replay) replay->begin(replay->user, harness->report->environment);
    return status;
}

kakeya_status harness_close(eval_harness *harness, kakeya_status status, eval_report **out, kakeya_error *error) {
    if (harness->report) {
        kakeya_status finished =
            eval_report_finish(harness->report, status == KAKEYA_OK, status == KAKEYA_OK ? error : NULL);
        if (status == KAKEYA_OK) status = finished;
    }
    for (size_t i = 0; i < harness->n_taken; i++) free(harness->taken[i].sample);
    free(harness->taken);
    kakeya_engine_close(harness->engine);
    *out = harness->report;
    return status;
}

/* ------------------------------------------------------------------------------------------------------ arms */

kakeya_status harness_policies(const eval_harness *harness, const eval_policies *given, bool native_only,
                               const char *out[HARNESS_POLICIES], size_t *n, kakeya_error *error) {
    *n = 0;
    for (size_t i = 0; i < given->n; i++) {
        size_t p = 0;
        while (p < HARNESS_POLICIES && strcmp(policy_names[p], given->names[i]) != 0) p++;
        if (p == HARNESS_POLICIES)
            return error_set(error, KAKEYA_INVALID_ARGUMENT,
                             "policy '%s' is none of native, sink-window, restored, restored-all", given->names[i]);
        if (strncmp(policy_names[p], "restored", 8) == 0 && !kakeya_engine_has_f_theta(harness->engine))
            return error_set(error, KAKEYA_INVALID_ARGUMENT,
                             "policy '%s' needs an f_theta, and the engine was opened without one%s%s", policy_names[p],
                             harness->engine->f_theta_sought ? ": looked for " : "",
                             harness->engine->f_theta_sought ? harness->engine->f_theta_sought : "");
        for (size_t j = 0; j < *n; j++)
            if (out[j] == policy_names[p])
                return error_set(error, KAKEYA_INVALID_ARGUMENT, "policy '%s' is named twice", given->names[i]);
        out[(*n)++] = policy_names[p];
    }
    if (given->n) return KAKEYA_OK;
    size_t all = native_only ? 1 : kakeya_engine_has_f_theta(harness->engine) ? 3 : 2;
    for (; *n < all; (*n)++) out[*n] = policy_names[*n];
    return KAKEYA_OK;
}

size_t harness_sources(const eval_harness *harness, const char *out[HARNESS_SOURCES]) {
    size_t n = 0;
    if (harness->engine->drafter) out[n++] = "dflash";
    if (harness->engine->assistant) out[n++] = "assistant";
    out[n++] = "ngram";
    return n;
}

void harness_arm(const eval_harness *harness, const char *policy, kakeya_mode mode, eval_arm *out) {
    const kakeya_session_options *session = &harness->setup->session;
    *out = (eval_arm){
        .sink = kakeya_options_sink(session),
        .window = kakeya_options_window(session),
        .draft_window = kakeya_options_draft_window(session),
        .threads = harness->threads,
        .scaled_embedding = harness_study(harness->setup).drafter_scaled_embedding,
        .mix_alpha = -1,
    };
    snprintf(out->policy, sizeof out->policy, "%s", policy);
    snprintf(out->mode, sizeof out->mode, "%s", mode_names[mode]);
}

kakeya_mode harness_mode(const eval_arm *arm) {
    for (int m = 0; m < (int)(sizeof mode_names / sizeof mode_names[0]); m++)
        if (strcmp(mode_names[m], arm->mode) == 0) return (kakeya_mode)m;
    /* The slow references: reforward computes every token anew, unfused is speculative with another drafter context. */
    return strcmp(arm->mode, "reforward") == 0 ? KAKEYA_MODE_AR : KAKEYA_MODE_SPECULATIVE;
}

kakeya_session_options harness_session_options(const eval_harness *harness, const eval_arm *arm, size_t tokens) {
    kakeya_session_options options = harness->setup->session;
    options.attention = strcmp(arm->policy, "native") == 0        ? KAKEYA_ATTENTION_NATIVE
                        : strcmp(arm->policy, "sink-window") == 0 ? KAKEYA_ATTENTION_SINK_WINDOW
                                                                  : KAKEYA_ATTENTION_RESTORED;
    options.restore_layers = strcmp(arm->policy, "restored-all") == 0 ? KAKEYA_RESTORE_ALL : KAKEYA_RESTORE_SLIDING;
    options.sink = arm->sink ? arm->sink : KAKEYA_NO_SINK;
    options.window = arm->window;
    options.draft_window = arm->draft_window;
    options.prompt_chunk_tokens = arm->prompt_chunk;
    options.context_tokens = tokens > INT32_MAX ? INT32_MAX : (int)tokens;
    /* Plain decoding is measured as what it is: without the memory and the work of a drafter. */
    kakeya_mode mode = harness_mode(arm);
    options.without_drafter = mode == KAKEYA_MODE_AR || mode == KAKEYA_MODE_NGRAM;
    return options;
}

/* -------------------------------------------------------------------------------------------------- one run */

bool harness_wants_on(const eval_harness *harness) {
    const eval_setup *setup = harness->setup;
    const char *what = harness->report && harness->report->kind == EVAL_VERIFY ? "verify" : "eval";
    return !setup->progress || setup->progress(setup->user, what, harness->done, harness->total);
}

kakeya_status harness_poll(eval_harness *harness, kakeya_error *error) {
    if (harness_wants_on(harness)) return KAKEYA_OK;
    return error_set(error, KAKEYA_CANCELLED, "interrupted after %llu of %llu runs", (unsigned long long)harness->done,
                     (unsigned long long)harness->total);
}

static bool on_prompt(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)what, (void)done, (void)total;
    return harness_wants_on(user);
}

static bool on_event(void *user, const kakeya_event *event) {
    (void)event;
    return harness_wants_on(user);
}

uint64_t harness_prompt_hash(const int32_t *ids, size_t n) {
    uint64_t hash = HASH_FNV1A_START;
    for (size_t i = 0; i < n; i++) {
        const unsigned char bytes[4] = {(unsigned char)ids[i], (unsigned char)(ids[i] >> 8),
                                        (unsigned char)(ids[i] >> 16), (unsigned char)(ids[i] >> 24)};
        hash = hash_fnv1a(hash, bytes, sizeof bytes);
    }
    return hash;
}

static uint64_t hash_of(const harness_prompt *prompt) {
    return harness_prompt_hash(prompt->keys ? prompt->keys : prompt->ids, prompt->n);
}

kakeya_status harness_result(const kakeya_session *session, const harness_prompt *prompt, const kakeya_stats *stats,
                             eval_row *row, kakeya_error *error) {
    size_t n;
    const int32_t *tokens = kakeya_session_tokens(session, &n);
    row->n_token_ids = n - prompt->n;
    row->token_ids = malloc((row->n_token_ids + 1) * sizeof *row->token_ids);
    if (!row->token_ids) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for %zu token ids", row->n_token_ids);
    memcpy(row->token_ids, tokens + prompt->n, row->n_token_ids * sizeof *tokens);
    row->prompt_hash = hash_of(prompt);
    row->prompt_tokens = (int64_t)prompt->n;
    row->kv = kakeya_session_kv_bytes(session);
    row->prefill_seconds = stats->prefill_seconds;
    row->decode_seconds = stats->decode_seconds;
    row->verifier_forwards = (int64_t)stats->verifier_forwards;
    row->drafted_tokens = (int64_t)stats->drafted_tokens;
    row->accepted_tokens = (int64_t)stats->accepted_tokens;
    for (int i = 0; i < EVAL_DRAFT_POSITIONS; i++) {
        row->drafted_at[i] = (int64_t)stats->drafted_at[i];
        row->accepted_at[i] = (int64_t)stats->accepted_at[i];
    }
    snprintf(row->finish, sizeof row->finish, "%s",
             stats->finish == KAKEYA_FINISH_STOP        ? "stop"
             : stats->finish == KAKEYA_FINISH_CANCELLED ? "cancelled"
                                                        : "length");
    if (!kakeya_engine_has_tokenizer(session->engine)) return KAKEYA_OK;
    char *text;
    size_t bytes;
    kakeya_status status = kakeya_detokenize(kakeya_engine_tokenizer(session->engine), row->token_ids, row->n_token_ids,
                                             false, &text, &bytes, error);
    if (status != KAKEYA_OK) return status;
    row->text = strdup(text); /* JSON texts end at a NUL anyway */
    kakeya_free(text);
    return row->text ? KAKEYA_OK : error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for %zu bytes of text", bytes);
}

/* --- diagnostics: the session's cache, still empty, keeps own K/V beside what it restores */

static kakeya_status mix_own(kakeya_session *session, float alpha, kakeya_error *error) {
    const backend_measure_ops *measure = backend_measure_find(session->engine->ops);
    if (!measure || !measure->cache_mix_own)
        return error_set(error, KAKEYA_UNSUPPORTED, "restoration diagnostics need backend cpu, not %s",
                         session->engine->ops->name);
    kakeya_status status = kakeya_session_sync(session, NULL, 0, NULL, NULL, NULL, error); /* makes the cache */
    if (status != KAKEYA_OK) return status;
    engine_turn_begin(session->engine);
    status = measure->cache_mix_own(session->timeline.cache, alpha, error);
    engine_turn_end(session->engine);
    return status;
}

static kakeya_status restoration_error(kakeya_session *session, double relative_mse[2], kakeya_error *error) {
    const backend_measure_ops *measure = backend_measure_find(session->engine->ops);
    engine_turn_begin(session->engine);
    kakeya_status status = measure->cache_restoration_error(session->timeline.cache, relative_mse, error);
    engine_turn_end(session->engine);
    return status;
}

static const eval_row *replayed(const eval_harness *harness, const eval_row *row) {
    const eval_replay *replay = harness->setup->replay;
    return replay ? replay->row(replay->user, row) : NULL;
}

bool harness_wants(eval_harness *harness, const eval_row *row) {
    bool wanted = !harness->setup->replay || replayed(harness, row);
    harness->done += !wanted;
    return wanted;
}

kakeya_status harness_plan(eval_harness *harness, eval_rows *out, kakeya_error *error) {
    const eval_report *report = harness->report;
    kakeya_status status = eval_plan(report->kind, report->options, report->environment, SIZE_MAX, out, error);
    harness->total = out->n;
    return status;
}

kakeya_status harness_run_plan(eval_harness *harness, harness_run_fn run, void *user, kakeya_error *error) {
    eval_rows planned;
    kakeya_status status = harness_plan(harness, &planned, error);
    for (size_t i = 0; status == KAKEYA_OK && i < planned.n; i++) {
        eval_row row = planned.row[i]; /* its texts go with it */
        eval_row_init(&planned.row[i]);
        status = run(user, &row, error);
        eval_row_free(&row);
    }
    eval_rows_free(&planned);
    return status;
}

static double margin_of(const float *logits, int vocab, const eval_row *row, size_t t, int32_t there) {
    double temperature = row->arm.temperature, sum = 0;
    if (there < 0 || there >= vocab) return temperature > 0 ? 0 : (double)INFINITY;
    if (!(temperature > 0)) return (double)logits[row->token_ids[t]] - (double)logits[there];
    for (int i = 0; i < vocab; i++) sum += exp(((double)logits[i] - (double)logits[there]) / temperature);
    return 1 / sum;
}

kakeya_status harness_margin(const eval_harness *harness, kakeya_session *session, const harness_prompt *prompt,
                             eval_row *row, kakeya_error *error) {
    const eval_row *before = replayed(harness, row);
    size_t t = 0;
    if (!before || row->arm.mix_alpha >= 0) return KAKEYA_OK;
    while (t < row->n_token_ids && t < before->n_token_ids && row->token_ids[t] == before->token_ids[t]) t++;
    if (t == row->n_token_ids || t == before->n_token_ids) return KAKEYA_OK;
    const decode_timeline *held = &session->timeline;
    backend_cache *cache = NULL;
    float *logits = malloc((size_t)held->vocab * sizeof *logits);
    if (!logits) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for a row of logits");
    kakeya_status status = session_replay(session, held->tokens, prompt->n + t, logits, &cache, error);
    if (status == KAKEYA_OK) {
        row->replay_margin = margin_of(logits, held->vocab, row, t, before->token_ids[t]);
        engine_turn_begin(session->engine);
        held->ops->cache_destroy(cache);
        engine_turn_end(session->engine);
    }
    free(logits);
    return status;
}

typedef struct block_record {
    draft_blocks blocks;
    bool lost; /* no memory */
} block_record;

static void record_block(void *user, const decode_trace_block *block) {
    block_record *record = user;
    record->lost |= !draft_blocks_add(&record->blocks, &block->block);
}

void harness_add_stats(kakeya_stats *sum, const kakeya_stats *more) {
    sum->prefill_seconds += more->prefill_seconds;
    sum->decode_seconds += more->decode_seconds;
    sum->verifier_forwards += more->verifier_forwards;
    sum->drafted_tokens += more->drafted_tokens;
    sum->accepted_tokens += more->accepted_tokens;
    for (int i = 0; i < EVAL_DRAFT_POSITIONS; i++) {
        sum->drafted_at[i] += more->drafted_at[i];
        sum->accepted_at[i] += more->accepted_at[i];
    }
    sum->finish = more->finish;
}

/* What is to be followed behind the first n blocks. */
static const session_trace *behind(session_trace *trace, size_t n) {
    size_t taken = n < trace->n_follow ? n : trace->n_follow;
    if (trace->follow) trace->follow += taken;
    trace->n_follow -= taken;
    return trace;
}

/* Cuts the answer's last tokens off and says them again. */
static kakeya_status say_again(kakeya_session *session, const harness_prompt *prompt, kakeya_generate_options *options,
                               const session_trace *trace, kakeya_stats *stats, eval_row *row, kakeya_error *error) {
    size_t n;
    kakeya_stats more = {0};
    (void)kakeya_session_tokens(session, &n);
    size_t dropped = lossless_dropped(n - prompt->n);
    kakeya_status status = KAKEYA_OK;
    /* the rejected rows of a long last block may have overwritten what the shorter answer needs */
    while (dropped && (status = kakeya_session_truncate(session, n - dropped, error)) == KAKEYA_INVALID_ARGUMENT)
        dropped--;
    row->truncated = true;
    row->dropped_tokens = (int)dropped;
    if (!dropped) return KAKEYA_OK;
    options->max_tokens -= (int)(n - prompt->n - dropped);
    if (status == KAKEYA_OK) status = session_generate(session, options, trace, &more, error);
    harness_add_stats(stats, &more);
    return status;
}

kakeya_status harness_generate(eval_harness *harness, const harness_prompt *prompt, const harness_run *run,
                               eval_row *row, kakeya_error *error) {
    kakeya_engine *engine = run->engine ? run->engine : harness->engine;
    kakeya_session *session = NULL;
    kakeya_session_options session_options =
        harness_session_options(harness, &row->arm, prompt->n + (size_t)run->max_tokens);
    const eval_row *before = replayed(harness, row);
    block_record record = {{0}, false};
    session_trace trace = {.reference = run->reference, .assistant = strcmp(row->arm.source, "assistant") == 0};
    row->has_blocks = strcmp(row->arm.mode, "auto") == 0;
    if (row->has_blocks) {
        trace.block = record_block;
        trace.user = &record;
    }
    if (row->has_blocks && before && before->has_blocks) {
        static const draft_block none[1];
        trace.follow = before->blocks.n ? before->blocks.block : none;
        trace.n_follow = before->blocks.n;
    }
    kakeya_generate_options options;
    KAKEYA_INIT(&options);
    options.max_tokens = run->max_tokens;
    options.mode = harness_mode(&row->arm);
    options.draft_length = row->arm.draft_length;
    options.sampling.temperature = (float)row->arm.temperature;
    options.sampling.seed = run->seed;
    options.on_event = on_event;
    options.user = harness;
    kakeya_stats stats = {0};
    row->started_seconds = clock_seconds() - harness->report->begun_at;

    kakeya_status status = harness_poll(harness, error);
    if (status == KAKEYA_OK) status = kakeya_session_open(engine, &session_options, &session, error);
    if (status == KAKEYA_OK && row->arm.mix_alpha >= 0) status = mix_own(session, (float)row->arm.mix_alpha, error);
    if (status == KAKEYA_OK)
        status = kakeya_session_sync_media(session, prompt->ids, prompt->n, prompt->media, prompt->n_media, NULL,
                                           on_prompt, harness, error);
    if (status == KAKEYA_OK) status = session_generate(session, &options, &trace, &stats, error);
    if (status == KAKEYA_OK && run->truncates && stats.finish != KAKEYA_FINISH_CANCELLED)
        status = say_again(session, prompt, &options, behind(&trace, record.blocks.n), &stats, row, error);
    if (status == KAKEYA_OK && stats.finish == KAKEYA_FINISH_CANCELLED)
        status = error_set(error, KAKEYA_CANCELLED, "interrupted after %llu of %llu runs",
                           (unsigned long long)harness->done, (unsigned long long)harness->total);
    row->blocks = record.blocks;
    if (status == KAKEYA_OK && record.lost) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for blocks");
    if (status == KAKEYA_OK) status = harness_result(session, prompt, &stats, row, error);
    if (status == KAKEYA_OK) status = harness_margin(harness, session, prompt, row, error);
    if (status == KAKEYA_OK && row->arm.mix_alpha >= 0) status = restoration_error(session, row->relative_mse, error);
    kakeya_session_close(session);
    if (status != KAKEYA_OK) eval_row_free(row);
    return status;
}

kakeya_status harness_take_prompt(eval_harness *harness, const harness_prompt *prompt, kakeya_error *error) {
    uint64_t hash = hash_of(prompt);
    const eval_replay *replay = harness->setup->replay;
    for (size_t i = 0; i < harness->n_taken; i++) {
        if (strcmp(harness->taken[i].sample, prompt->sample) == 0)
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "two samples are named '%s'", prompt->sample);
        if (harness->taken[i].hash == hash)
            return error_set(error, KAKEYA_INVALID_ARGUMENT,
                             "samples '%s' and '%s' have the same prompt of %zu tokens, and would count as two",
                             harness->taken[i].sample, prompt->sample, prompt->n);
    }
    struct harness_taken *grown = realloc(harness->taken, (harness->n_taken + 1) * sizeof *grown);
    if (grown) {
        harness->taken = grown;
        grown[harness->n_taken] = (struct harness_taken){strdup(prompt->sample), hash};
        if (grown[harness->n_taken].sample) {
            harness->n_taken++;
            if (replay) replay->prompt(replay->user, prompt->sample, hash);
            return KAKEYA_OK;
        }
    }
    return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for %zu prompts", harness->n_taken + 1);
}

kakeya_status harness_distinct(const char *option, const int *values, size_t n, kakeya_error *error) {
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++)
            if (values[i] == values[j])
                return error_set(error, KAKEYA_INVALID_ARGUMENT, "%s: %d is named twice", option, values[i]);
    return KAKEYA_OK;
}

kakeya_status harness_add(eval_harness *harness, eval_row *row, kakeya_error *error) {
    harness->done++;
    return eval_report_add(harness->report, row, error);
}

/* --------------------------------------------------------------------------------------------------- inputs */

kakeya_status harness_read_text(const eval_harness *harness, const char *path, eval_sequence *out,
                                kakeya_error *error) {
    *out = (eval_sequence){0};
    char *text;
    size_t bytes;
    kakeya_status status = file_read(path, MAX_TEXT_BYTES, &text, &bytes, error);
    if (status != KAKEYA_OK) return status;
    /* <bos> in front as the tokenizer's post-processor has it; special tokens in the text are text. */
    int32_t *literal = NULL, *empty = NULL;
    size_t n = 0, n_bos = 0;
    const kakeya_tokenizer *text_side = kakeya_engine_tokenizer(harness->engine);
    status = kakeya_tokenize(text_side, text, bytes, KAKEYA_TEXT_LITERAL, &literal, &n, error);
    if (status == KAKEYA_OK) status = kakeya_tokenize(text_side, "", 0, KAKEYA_TEXT_PROMPT, &empty, &n_bos, error);
    free(text);
    if (status == KAKEYA_OK) {
        out->ids = malloc((n + n_bos + 1) * sizeof *out->ids);
        if (!out->ids) {
            status = error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for %zu tokens", path, n);
        } else {
            memcpy(out->ids, empty, n_bos * sizeof *empty);
            memcpy(out->ids + n_bos, literal, n * sizeof *literal);
            out->n = n + n_bos;
            snprintf(out->name, sizeof out->name, "%s", last_component(path));
        }
    } else {
        error_prefix(error, status, "%s", path);
    }
    kakeya_free(literal);
    kakeya_free(empty);
    return status;
}

void eval_sequences_free(eval_sequences *sequences) {
    for (size_t i = 0; i < sequences->n; i++) free(sequences->sequence[i].ids);
    free(sequences->sequence);
    *sequences = (eval_sequences){0};
}

void harness_add_sizes(const eval_harness *harness, cJSON *options) {
    const kakeya_session_options *session = &harness->setup->session;
    cJSON_AddNumberToObject(options, "sink", kakeya_options_sink(session));
    cJSON_AddNumberToObject(options, "window", kakeya_options_window(session));
    cJSON_AddNumberToObject(options, "draft_window", kakeya_options_draft_window(session));
}

cJSON *harness_options(const eval_harness *harness, eval_kind kind, const eval_options *options) {
    cJSON *object = eval_options_json(kind, options);
    if (object) harness_add_sizes(harness, object);
    return object;
}

cJSON *harness_sequence_names(const eval_sequences *sequences) {
    cJSON *names = cJSON_CreateArray();
    for (size_t i = 0; names && i < sequences->n; i++)
        cJSON_AddItemToArray(names, cJSON_CreateString(sequences->sequence[i].name));
    return names;
}

kakeya_status harness_add_pictures(const eval_harness *harness, const eval_pictures *pictures, cJSON *options,
                                   kakeya_error *error) {
    cJSON *list = pictures->n ? cJSON_AddArrayToObject(options, "images") : NULL;
    for (size_t i = 0; list && i < pictures->n; i++) {
        kakeya_media media = pictures->media[i];
        kakeya_image_fit fit;
        int tokens;
        KAKEYA_INIT(&fit);
        if (!media.budget) media.budget = kakeya_description_facts(&harness->engine->description).vision_budget;
        kakeya_status status = kakeya_engine_image_tokens(harness->engine, &media, &tokens, error);
        if (status == KAKEYA_OK) status = kakeya_image_fit_budget(media.image, media.budget, &fit, error);
        if (status != KAKEYA_OK) return status;
        cJSON_AddItemToArray(list, cJSON_CreateString(fit.digest));
    }
    return KAKEYA_OK;
}

cJSON *harness_names(const char *const *names, size_t n) { return cJSON_CreateStringArray(names, (int)n); }
