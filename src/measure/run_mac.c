#include "measure/mac.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/hash.h"
#include "base/json.h"
#include "kakeya_study.h"
#include "measure/bench.h"
#include "measure/harness.h"
#include "measure/niah.h"
#include "session/divergence.h"

const char mac_kind[] = "kakeya.eval.mac-acceptance";
const mac_stream mac_streams[MAC_STREAMS] = {
    {"ar", 0, 0, false},         {"ar", 0, 7, false},          {"ngram", 5, 0, false},
    {"speculative", 0, 0, true}, {"speculative", 3, 13, true}, {"auto", 0, 0, false},
};
const int mac_bench_contexts[2] = {0, 1024}, mac_bench_rows[5] = {1, 2, 4, 8, 16};

enum { COMPARED = MAC_PROMPT_TOKENS + MAC_DECODE_TOKENS, POLICIES = 2 };

/* A session that moves: what it was at home, and what became of it. */
typedef struct moved_session {
    void *data;
    size_t bytes;
    int32_t home[MAC_GREEDY_TOKENS], there[MAC_GREEDY_TOKENS];
    uint64_t digest, digest_there;
} moved_session;

typedef struct mac_run {
    const eval_setup *setup;
    const eval_mac_options *options;
    eval_setup cpu; /* the same on the CPU backend */
    eval_harness harness;
    const char *policies[POLICIES];
    int32_t *text; /* token ids that everything begins with */
    size_t n_text;
    uint64_t fingerprint;
    float *logits[2], *nll[2];         /* of the compared tokens: CPU, device */
    int32_t greedy[MAC_GREEDY_TOKENS]; /* on the CPU */
    moved_session moved[2][POLICIES];  /* from the CPU, from the device */
    cJSON *report;
} mac_run;

enum { FROM_CPU = 0, FROM_DEVICE };

static kakeya_status no_memory(kakeya_error *error) {
    return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for the report");
}

static kakeya_status tell(const mac_run *run, const char *what, int done, int total, kakeya_error *error) {
    const eval_setup *s = run->setup;
    if (!s->progress || s->progress(s->user, what, (uint64_t)done, (uint64_t)total)) return KAKEYA_OK;
    return error_set(error, KAKEYA_CANCELLED, "interrupted at %s", what);
}

/* ----------------------------------------------------------------------------------------------------- the text */

/* The beginning of a needle prompt; arbitrary tokens where the model has no tokenizer. */
static kakeya_status read_text(mac_run *run, kakeya_error *error) {
    const kakeya_engine *engine = run->harness.engine;
    if (!kakeya_engine_has_tokenizer(engine)) {
        run->n_text = MAC_TEXT_TOKENS;
        run->text = malloc(run->n_text * sizeof *run->text);
        if (!run->text) return no_memory(error);
        int vocab = kakeya_engine_vocab_size(engine);
        for (size_t i = 0; i < run->n_text; i++) run->text[i] = (int32_t)((i * 7919 + 13) % (size_t)vocab);
        return KAKEYA_OK;
    }
    niah_dataset needles;
    kakeya_status status = niah_rung(12, 1, 42, false, &needles, error);
    if (!status) {
        kakeya_message message = {"user", needles.samples[0].prompt};
        status =
            kakeya_message_tokens(kakeya_engine_tokenizer(engine), &message, 1, false, &run->text, &run->n_text, error);
    }
    niah_dataset_free(&needles);
    if (run->n_text > MAC_TEXT_TOKENS) run->n_text = MAC_TEXT_TOKENS;
    if (!status && run->n_text < COMPARED)
        return error_set(error, KAKEYA_FORMAT, "a needle prompt of %zu tokens: %d are compared", run->n_text,
                         (int)COMPARED);
    return status;
}

/* ------------------------------------------------------------------------------------------------------ sessions */

static eval_arm arm_of(const mac_run *run, const char *policy, const char *mode, int draft_length, int prompt_chunk) {
    eval_arm arm;
    harness_arm(&run->harness, policy, KAKEYA_MODE_AR, &arm);
    snprintf(arm.mode, sizeof arm.mode, "%s", mode);
    arm.draft_length = draft_length;
    arm.prompt_chunk = prompt_chunk;
    return arm;
}

static kakeya_status open_session(const mac_run *run, const eval_arm *arm, size_t tokens, kakeya_session **out,
                                  kakeya_error *error) {
    kakeya_session_options options = harness_session_options(&run->harness, arm, tokens);
    options.without_drafter = !kakeya_engine_has_drafter(run->harness.engine); /* moves with the session */
    return kakeya_session_open(run->harness.engine, &options, out, error);
}

/* n tokens behind what the session holds, greedy, stop tokens like any others. */
static kakeya_status answer(kakeya_session *session, const eval_arm *arm, int n, int32_t *out, kakeya_stats *stats,
                            kakeya_error *error) {
    size_t before, after;
    kakeya_session_tokens(session, &before);
    kakeya_generate_options options;
    KAKEYA_INIT(&options);
    options.max_tokens = n;
    options.mode = harness_mode(arm);
    options.draft_length = arm->draft_length;
    options.ignore_stop_tokens = true;
    kakeya_stats unused;
    KAKEYA_INIT(stats ? stats : &unused);
    kakeya_status status = kakeya_session_generate(session, &options, stats ? stats : &unused, error);
    if (status) return status;
    const int32_t *tokens = kakeya_session_tokens(session, &after);
    if (after != before + (size_t)n)
        return error_set(error, KAKEYA_BACKEND, "%zu tokens were generated, not %d", after - before, n);
    if (out) memcpy(out, tokens + before, (size_t)n * sizeof *out);
    return KAKEYA_OK;
}

/* ------------------------------------------------------------------------------------------ what both backends do */

static kakeya_status score(mac_run *run, int which, kakeya_error *error) {
    size_t vocab = (size_t)kakeya_engine_vocab_size(run->harness.engine);
    run->logits[which] = malloc(COMPARED * vocab * sizeof(float));
    run->nll[which] = malloc(COMPARED * sizeof(float));
    if (!run->logits[which] || !run->nll[which]) return no_memory(error);
    eval_arm arm = arm_of(run, "native", "ar", 0, 0);
    kakeya_session *session = NULL;
    kakeya_status status = open_session(run, &arm, COMPARED, &session, error);
    kakeya_score_options options;
    KAKEYA_INIT(&options);
    options.prompt_length = MAC_PROMPT_TOKENS;
    options.nll = run->nll[which];
    options.logits = run->logits[which];
    if (!status) status = kakeya_session_score(session, run->text, COMPARED, &options, error);
    kakeya_session_close(session);
    return status;
}

static uint64_t digest_of(const void *data, size_t bytes) { return hash_fnv1a(HASH_FNV1A_START, data, bytes); }

/* A session that stands in the middle of an answer is kept, and goes on here. */
static kakeya_status leave(mac_run *run, int from, int policy, kakeya_error *error) {
    moved_session *m = &run->moved[from][policy];
    eval_arm arm = arm_of(run, run->policies[policy], "ar", 0, 0);
    kakeya_session *session = NULL;
    kakeya_status status = open_session(run, &arm, run->n_text + 4 * MAC_GREEDY_TOKENS, &session, error);
    if (!status) status = kakeya_session_sync(session, run->text, run->n_text, NULL, NULL, NULL, error);
    if (!status) status = answer(session, &arm, MAC_MOVED_AFTER, NULL, NULL, error);
    if (!status) status = session_to_memory(session, &m->data, &m->bytes, error);
    if (!status) m->digest = digest_of(m->data, m->bytes);
    if (!status) status = answer(session, &arm, MAC_GREEDY_TOKENS, m->home, NULL, error);
    kakeya_session_close(session);
    return status;
}

/* What has come from the other backend is kept again, which changes no byte, and goes on here. */
static kakeya_status arrive(mac_run *run, int from, int policy, kakeya_error *error) {
    moved_session *m = &run->moved[from][policy];
    eval_arm arm = arm_of(run, run->policies[policy], "ar", 0, 0);
    kakeya_session *session = NULL;
    void *again = NULL;
    size_t bytes = 0;
    kakeya_status status = open_session(run, &arm, run->n_text + 4 * MAC_GREEDY_TOKENS, &session, error);
    if (!status) status = session_from_memory(session, m->data, m->bytes, error);
    if (!status) status = session_to_memory(session, &again, &bytes, error);
    if (!status) m->digest_there = digest_of(again, bytes);
    if (!status) status = answer(session, &arm, MAC_GREEDY_TOKENS, m->there, NULL, error);
    kakeya_free(again);
    kakeya_session_close(session);
    return status;
}

static kakeya_status first_answer(mac_run *run, kakeya_error *error) {
    eval_arm arm = arm_of(run, "native", "ar", 0, 0);
    kakeya_session *session = NULL;
    kakeya_status status = open_session(run, &arm, run->n_text + MAC_GREEDY_TOKENS, &session, error);
    if (!status) status = kakeya_session_sync(session, run->text, run->n_text, NULL, NULL, NULL, error);
    if (!status) status = answer(session, &arm, MAC_GREEDY_TOKENS, run->greedy, NULL, error);
    kakeya_session_close(session);
    return status;
}

/* ------------------------------------------------------------------------------------------------------- streams */

static kakeya_status add_stream(mac_run *run, const char *policy, const mac_stream *how, cJSON *streams,
                                kakeya_error *error) {
    eval_arm arm = arm_of(run, policy, how->mode, how->draft_length, how->prompt_chunk);
    int32_t tokens[MAC_GREEDY_TOKENS];
    kakeya_stats stats = {0};
    kakeya_session *session = NULL;
    kakeya_status status = open_session(run, &arm, run->n_text + MAC_GREEDY_TOKENS, &session, error);
    if (!status) status = kakeya_session_sync(session, run->text, run->n_text, NULL, NULL, NULL, error);
    if (!status) status = answer(session, &arm, MAC_GREEDY_TOKENS, tokens, &stats, error);
    kakeya_session_close(session);
    if (status) return status;
    cJSON *stream = cJSON_CreateObject();
    if (!cJSON_AddItemToArray(streams, stream)) return no_memory(error);
    cJSON_AddStringToObject(stream, "policy", policy);
    cJSON_AddStringToObject(stream, "mode", how->mode);
    cJSON_AddNumberToObject(stream, "draft_length", how->draft_length);
    cJSON_AddNumberToObject(stream, "prompt_chunk", how->prompt_chunk);
    cJSON_AddNumberToObject(stream, "verifier_forwards", (double)stats.verifier_forwards);
    cJSON_AddNumberToObject(stream, "drafted_tokens", (double)stats.drafted_tokens);
    cJSON_AddNumberToObject(stream, "accepted_tokens", (double)stats.accepted_tokens);
    cJSON_AddItemToObject(stream, "token_ids", cJSON_CreateIntArray(tokens, MAC_GREEDY_TOKENS));
    return KAKEYA_OK;
}

static kakeya_status run_streams(mac_run *run, kakeya_error *error) {
    cJSON *streams = cJSON_AddArrayToObject(run->report, "streams");
    kakeya_status status = streams ? KAKEYA_OK : no_memory(error);
    for (int p = 0; p < POLICIES && !status; p++) {
        for (int s = 0; s < MAC_STREAMS && !status; s++) {
            if (mac_streams[s].drafter && !kakeya_engine_has_drafter(run->harness.engine)) continue;
            status = tell(run, "modes", p * MAC_STREAMS + s, POLICIES * MAC_STREAMS, error);
            if (!status) status = add_stream(run, run->policies[p], &mac_streams[s], streams, error);
        }
    }
    return status;
}

/* -------------------------------------------------------------------------------------------------------- memory */

static double resident_most(void) {
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage)) return 0;
#if defined(__APPLE__)
    return (double)usage.ru_maxrss;
#else
    return 1024.0 * (double)usage.ru_maxrss;
#endif
}

static void describe_device(const mac_run *run, backend_device *out) {
    kakeya_engine *engine = run->harness.engine;
    const backend_measure_ops *measure = backend_measure_find(engine->ops);
    *out = (backend_device){0};
    if (!measure || !measure->device) return;
    engine_turn_begin(engine);
    measure->device(engine->model, out);
    engine_turn_end(engine);
}

static kakeya_status add_memory(mac_run *run, const kakeya_session *session, size_t tokens, cJSON *rows,
                                kakeya_error *error) {
    const kakeya_engine *engine = run->harness.engine;
    kakeya_kv_bytes kv = kakeya_session_kv_bytes(session);
    backend_device device;
    describe_device(run, &device);
    cJSON *row = cJSON_CreateObject(), *bytes = cJSON_CreateObject();
    if (!cJSON_AddItemToArray(rows, row) || !cJSON_AddItemToObject(row, "kv_bytes", bytes)) return no_memory(error);
    cJSON_AddNumberToObject(row, "tokens", (double)tokens);
    cJSON_AddNumberToObject(bytes, "full", (double)kv.full);
    cJSON_AddNumberToObject(bytes, "sliding", (double)kv.sliding);
    cJSON_AddNumberToObject(bytes, "latent", (double)kv.latent);
    cJSON_AddNumberToObject(bytes, "draft", (double)kv.draft);
    cJSON_AddNumberToObject(bytes, "total", (double)kv.total);
    cJSON_AddNumberToObject(row, "weights", (double)kakeya_engine_memory(engine, KAKEYA_MEMORY_WEIGHTS));
    cJSON_AddNumberToObject(row, "workspace", (double)kakeya_engine_memory(engine, KAKEYA_MEMORY_WORKSPACE));
    cJSON_AddNumberToObject(row, "device_held", (double)device.held_bytes);
    cJSON_AddNumberToObject(row, "device_most", (double)device.most_bytes);
    cJSON_AddNumberToObject(row, "resident_most", resident_most());
    return KAKEYA_OK;
}

/* One session that grows: a prompt in parts, and a few decoded tokens behind each, which evict. */
static kakeya_status run_memory(mac_run *run, kakeya_error *error) {
    size_t all = (size_t)run->options->memory_tokens, n = 0, text = run->n_text;
    cJSON *rows = cJSON_AddArrayToObject(run->report, "memory");
    int32_t *tokens = malloc((all + MAC_MEMORY_STEPS * MAC_STEP_TOKENS) * sizeof *tokens);
    eval_arm arm = arm_of(run, run->policies[1], "auto", 0, 0);
    kakeya_session *session = NULL;
    kakeya_status status = rows && tokens ? KAKEYA_OK : no_memory(error);
    if (!status) status = open_session(run, &arm, all + MAC_MEMORY_STEPS * MAC_STEP_TOKENS, &session, error);
    for (int step = 1; step <= MAC_MEMORY_STEPS && !status; step++) {
        status = tell(run, "memory", step - 1, MAC_MEMORY_STEPS, error);
        size_t until = all * (size_t)step / MAC_MEMORY_STEPS;
        for (; n < until; n++) tokens[n] = run->text[n % text];
        if (!status) status = kakeya_session_sync(session, tokens, n, NULL, NULL, NULL, error);
        if (!status) status = answer(session, &arm, MAC_STEP_TOKENS, tokens + n, NULL, error);
        n += MAC_STEP_TOKENS;
        if (!status) status = add_memory(run, session, n, rows, error);
    }
    kakeya_session_close(session);
    free(tokens);
    return status;
}

/* --------------------------------------------------------------------------------------------------------- speed */

static void add_spread(cJSON *object, const char *key, const bench_spread *spread) {
    cJSON *json = cJSON_AddObjectToObject(object, key);
    cJSON_AddNumberToObject(json, "median", spread->median);
    cJSON_AddNumberToObject(json, "low", spread->low);
    cJSON_AddNumberToObject(json, "high", spread->high);
}

static kakeya_status run_speed(mac_run *run, kakeya_error *error) {
    static const char *const what[] = {"prefill", "decode", "verify", "draft"};
    bool quick = run->options->quick;
    eval_arm arm = arm_of(run, run->policies[1], "auto", 0, 0);
    bench_options options = {.contexts = mac_bench_contexts,
                             .n_contexts = quick ? 1 : 2,
                             .verify_rows = mac_bench_rows,
                             .n_verify_rows = quick ? 2 : 5,
                             .prompt_tokens = quick ? 64 : 512,
                             .decode_tokens = quick ? 4 : 32,
                             .repeats = quick ? 2 : 5,
                             .session = harness_session_options(&run->harness, &arm, 4096)};
    bench_result result;
    cJSON *speed = cJSON_AddObjectToObject(run->report, "speed");
    kakeya_status status = tell(run, "speed", 0, 1, error);
    if (!status) status = speed ? bench_measure(run->harness.engine, &options, &result, error) : no_memory(error);
    if (status) return status;
    add_spread(speed, "read_bytes_per_second", &result.read_bytes_per_second);
    add_spread(speed, "flops_per_second", &result.flops_per_second);
    cJSON *rows = cJSON_AddArrayToObject(speed, "rows");
    for (size_t i = 0; i < result.n; i++) {
        const bench_row *r = &result.row[i];
        cJSON *row = cJSON_CreateObject();
        cJSON_AddItemToArray(rows, row);
        cJSON_AddStringToObject(row, "what", what[r->what]);
        cJSON_AddNumberToObject(row, "context", r->context);
        cJSON_AddNumberToObject(row, "rows", r->rows);
        cJSON_AddNumberToObject(row, "bytes", r->bytes);
        cJSON_AddNumberToObject(row, "operations", r->operations);
        add_spread(row, "seconds", &r->seconds);
        add_spread(row, "bound_seconds", &r->bound_seconds);
        add_spread(row, "share", &r->share);
    }
    bench_result_free(&result);
    return KAKEYA_OK;
}

/* ----------------------------------------------------------------------------------------- the report's own parts */

/* Every compared row: how far the device's logits are from the CPU's. */
static kakeya_status add_vectors(mac_run *run, kakeya_error *error) {
    size_t vocab = (size_t)kakeya_engine_vocab_size(run->harness.engine);
    cJSON *rows = cJSON_AddArrayToObject(run->report, "vectors");
    for (size_t t = 0; rows && t + 1 < COMPARED; t++) {
        const float *cpu = run->logits[FROM_CPU] + t * vocab, *device = run->logits[FROM_DEVICE] + t * vocab;
        int top;
        bool same;
        double kl = logits_divergence(cpu, device, (int)vocab, &top, &same), most = 0;
        for (size_t v = 0; v < vocab; v++) most = fmax(most, fabs((double)cpu[v] - (double)device[v]));
        cJSON *row = cJSON_CreateObject();
        if (!cJSON_AddItemToArray(rows, row)) return no_memory(error);
        cJSON_AddNumberToObject(row, "row", (double)t);
        cJSON_AddBoolToObject(row, "decoded", t >= MAC_PROMPT_TOKENS);
        cJSON_AddNumberToObject(row, "token", run->text[t + 1]);
        cJSON_AddNumberToObject(row, "cpu_nll", (double)run->nll[FROM_CPU][t]);
        cJSON_AddNumberToObject(row, "nll", (double)run->nll[FROM_DEVICE][t]);
        cJSON_AddNumberToObject(row, "kl", kl);
        cJSON_AddNumberToObject(row, "largest_difference", most);
        cJSON_AddBoolToObject(row, "same_choice", same);
    }
    cJSON *greedy = cJSON_CreateIntArray(run->greedy, MAC_GREEDY_TOKENS);
    return rows && cJSON_AddItemToObject(run->report, "cpu_token_ids", greedy) ? KAKEYA_OK : no_memory(error);
}

static kakeya_status add_moved(mac_run *run, kakeya_error *error) {
    cJSON *sessions = cJSON_AddArrayToObject(run->report, "moved_sessions");
    for (int i = 0; sessions && i < 2 * POLICIES; i++) {
        const moved_session *m = &run->moved[i / POLICIES][i % POLICIES];
        char digest[20], there[20];
        snprintf(digest, sizeof digest, "%016" PRIx64, m->digest);
        snprintf(there, sizeof there, "%016" PRIx64, m->digest_there);
        cJSON *session = cJSON_CreateObject();
        if (!cJSON_AddItemToArray(sessions, session)) return no_memory(error);
        cJSON_AddStringToObject(session, "policy", run->policies[i % POLICIES]);
        cJSON_AddStringToObject(session, "from", i / POLICIES == FROM_CPU ? "cpu" : "mlx");
        cJSON_AddNumberToObject(session, "bytes", (double)m->bytes);
        cJSON_AddStringToObject(session, "digest", digest);
        cJSON_AddStringToObject(session, "digest_there", there);
        cJSON_AddItemToObject(session, "token_ids", cJSON_CreateIntArray(m->home, MAC_GREEDY_TOKENS));
        cJSON_AddItemToObject(session, "token_ids_there", cJSON_CreateIntArray(m->there, MAC_GREEDY_TOKENS));
    }
    return sessions ? KAKEYA_OK : no_memory(error);
}

static kakeya_status add_checks(mac_run *run, kakeya_error *error) {
    backend_check checks[BACKEND_MAX_CHECKS];
    kakeya_engine *engine = run->harness.engine;
    const backend_measure_ops *measure = backend_measure_find(engine->ops);
    int n = measure && measure->checks ? measure->checks(engine->model, checks) : 0;
    cJSON *rows = cJSON_AddArrayToObject(run->report, "self_check");
    for (int i = 0; rows && i < n; i++) {
        cJSON *row = cJSON_CreateObject();
        if (!cJSON_AddItemToArray(rows, row)) return no_memory(error);
        cJSON_AddStringToObject(row, "operation", checks[i].operation);
        cJSON_AddStringToObject(row, "chosen", checks[i].chosen);
        cJSON_AddBoolToObject(row, "first_choice", checks[i].first_choice);
        cJSON_AddStringToObject(row, "reason", checks[i].reason);
    }
    return rows ? KAKEYA_OK : no_memory(error);
}

/* What the machine and the program are, and what is asked of them. */
static kakeya_status describe(mac_run *run, kakeya_error *error) {
    const kakeya_engine *engine = run->harness.engine;
    backend_device device;
    describe_device(run, &device);
    cJSON *r = run->report, *options = cJSON_AddObjectToObject(r, "options"), *about, *notes;
    cJSON_AddItemToObject(r, "environment", harness_environment(&run->harness));
    about = cJSON_AddObjectToObject(r, "device");
    notes = cJSON_AddArrayToObject(r, "notes");
    if (!options || !about || !notes) return no_memory(error);
    cJSON_AddBoolToObject(options, "quick", run->options->quick);
    cJSON_AddNumberToObject(options, "memory_tokens", run->options->memory_tokens);
    cJSON_AddItemToObject(options, "policies", cJSON_CreateStringArray(run->policies, POLICIES));
    harness_add_sizes(&run->harness, options);
    cJSON_AddStringToObject(about, "name", device.name);
    cJSON_AddNumberToObject(about, "memory_bytes", (double)device.memory_bytes);
    cJSON_AddNumberToObject(about, "working_set_bytes", (double)device.working_set_bytes);
    for (size_t i = 0; kakeya_engine_note(engine, i); i++)
        cJSON_AddItemToArray(notes, cJSON_CreateString(kakeya_engine_note(engine, i)));
    return KAKEYA_OK;
}

/* ------------------------------------------------------------------------------------------ whole evaluations */

/* A report of another evaluation as a part of this one. */
static kakeya_status add_part(mac_run *run, const char *name, eval_report *part, kakeya_status status,
                              kakeya_error *error) {
    cJSON *json = part ? eval_report_to_json(part) : NULL;
    cJSON *copy = json ? cJSON_Duplicate(json, true) : NULL; /* of what the report owns */
    cJSON_Delete(json);
    eval_report_close(part);
    if (!copy) return status ? status : no_memory(error);
    return cJSON_AddItemToObject(run->report, name, copy) || status ? status : no_memory(error);
}

static kakeya_status run_lossless(mac_run *run, kakeya_error *error) {
    static const char *const words[] = {
        "kakeya", "eval", "lossless", "--prompts", "10", "--max-tokens", "32", "--reference-prompts", "1"};
    eval_setup setup = *run->setup;
    setup.argv = words;
    setup.argc = sizeof words / sizeof words[0];
    setup.report_path = NULL;
    const eval_options options = {.prompts = MAC_LOSSLESS_PROMPTS,
                                  .max_tokens = 32,
                                  .seed = 42,
                                  .files = run->options->files,
                                  .n_files = run->options->n_files,
                                  .reference_prompts = 1};
    eval_report *part = NULL;
    kakeya_status status = eval_lossless_run(&setup, &options, &part, error);
    return add_part(run, "lossless", part, status, error);
}

static kakeya_status run_niah(mac_run *run, kakeya_error *error) {
    static const char *const words[] = {"kakeya",    "eval", "niah",         "--lines", "12,60,150",
                                        "--samples", "5",    "--max-tokens", "24"};
    static const int lines[] = {12, 60, 150};
    eval_setup setup = *run->setup;
    setup.argv = words;
    setup.argc = sizeof words / sizeof words[0];
    setup.report_path = NULL;
    const int draft_window = kakeya_options_draft_window(&setup.session);
    const double none = 0; /* a list without values is one, too */
    const eval_options options = {.lines = lines,
                                  .n_lines = 3,
                                  .samples = MAC_NIAH_SAMPLES,
                                  .seed = 42,
                                  .max_tokens = 24,
                                  .mode = KAKEYA_MODE_AUTO,
                                  .draft_windows = &draft_window,
                                  .n_draft_windows = 1,
                                  .mix_alpha = &none};
    eval_report *part = NULL;
    kakeya_status status = eval_niah(&setup, &options, &part, error);
    return add_part(run, "niah", part, status, error);
}

/* ------------------------------------------------------------------------------------------------------ the whole */

/* An engine at a time: a Mac's memory may not hold the weights twice. */
static void close_engine(mac_run *run) {
    kakeya_engine_close(run->harness.engine);
    run->harness.engine = NULL;
}

static kakeya_status on_cpu_before(mac_run *run, kakeya_error *error) {
    kakeya_status status = harness_open(&run->harness, &run->cpu, 0, error);
    if (!status) status = read_text(run, error);
    if (!status) {
        run->fingerprint = kakeya_engine_fingerprint(run->harness.engine);
        run->policies[0] = "native";
        run->policies[1] = kakeya_engine_has_f_theta(run->harness.engine) ? "restored" : "sink-window";
        status = score(run, FROM_CPU, error);
    }
    if (!status) status = first_answer(run, error);
    for (int p = 0; p < POLICIES && !status; p++) status = leave(run, FROM_CPU, p, error);
    close_engine(run);
    return status;
}

static kakeya_status on_device(mac_run *run, kakeya_error *error) {
    kakeya_status status = harness_open(&run->harness, run->setup, 0, error);
    if (!status && kakeya_engine_fingerprint(run->harness.engine) != run->fingerprint)
        status = error_set(error, KAKEYA_BACKEND, "the two backends do not hold the same model: precision %s here",
                           kakeya_precision_name(kakeya_engine_precision(run->harness.engine)));
    if (!status) status = describe(run, error);
    if (!status) status = add_checks(run, error);
    if (!status) status = score(run, FROM_DEVICE, error);
    if (!status) status = add_vectors(run, error);
    if (!status) status = run_streams(run, error);
    for (int p = 0; p < POLICIES && !status; p++) {
        status = arrive(run, FROM_CPU, p, error);
        if (!status) status = leave(run, FROM_DEVICE, p, error);
    }
    if (!status) status = run_memory(run, error);
    if (!status) status = run_speed(run, error);
    close_engine(run);
    return status;
}

static kakeya_status on_cpu_after(mac_run *run, kakeya_error *error) {
    kakeya_status status = harness_open(&run->harness, &run->cpu, 0, error);
    for (int p = 0; p < POLICIES && !status; p++) status = arrive(run, FROM_DEVICE, p, error);
    close_engine(run);
    return status ? status : add_moved(run, error);
}

kakeya_status eval_mac_acceptance(const eval_setup *setup, const eval_mac_options *options, cJSON **out,
                                  kakeya_error *error) {
    eval_mac_options resolved = *options;
    if (!resolved.memory_tokens) resolved.memory_tokens = resolved.quick ? 700 : 7000;
    eval_setup device = *setup; /* both backends in one precision: the CPU's own choice may be int8 */
    if (device.engine.precision == KAKEYA_PRECISION_AUTO) device.engine.precision = KAKEYA_PRECISION_BF16;
    mac_run run = {.setup = &device, .options = &resolved, .cpu = device, .report = cJSON_CreateObject()};
    run.cpu.engine.backend = "cpu";
    *out = run.report;
    if (!run.report) return no_memory(error);
    cJSON_AddStringToObject(run.report, "kind", mac_kind);
    cJSON_AddNumberToObject(run.report, "schema_version", EVAL_SCHEMA_VERSION);
    cJSON_AddItemToObject(run.report, "command", cJSON_CreateStringArray(setup->argv, setup->argc));
    kakeya_status status = tell(&run, "the CPU backend", 0, 1, error);
    if (!status) status = on_cpu_before(&run, error);
    if (!status) status = on_device(&run, error);
    if (!status) status = on_cpu_after(&run, error);
    if (!status && !resolved.quick) status = run_lossless(&run, error);
    if (!status && !resolved.quick) status = run_niah(&run, error);
    cJSON_AddBoolToObject(run.report, "complete", status == KAKEYA_OK);
    if (status && error) cJSON_AddStringToObject(run.report, "failure", error->message);
    close_engine(&run);
    kakeya_free(run.text);
    for (int i = 0; i < 2; i++) {
        free(run.logits[i]);
        free(run.nll[i]);
        for (int p = 0; p < POLICIES; p++) kakeya_free(run.moved[i][p].data);
    }
    return status;
}
