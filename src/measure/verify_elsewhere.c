/* The second process of `kakeya verify`: other threads, and sessions that the first one has saved. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/files.h"
#include "base/json.h"
#include "measure/verify.h"
#include "measure/verify_streams.h"

enum { MAX_PLAN_BYTES = 1 << 26, MAX_ROUNDS = 1 << 20 };

typedef struct other_job {
    verify_run run;
    const char *directory;
    cJSON *plan;
    const cJSON *saved; /* by file */
    int rounds;
    double begun, seconds;
    verify_stream streams[VERIFY_STREAMS];
} other_job;

/* names: [most], of the plan */
static size_t read_names(json_reader *reader, const cJSON *plan, const char *key, const char **names, size_t most) {
    const cJSON *list = json_array(reader, plan, key), *name;
    size_t n = 0;
    cJSON_ArrayForEach(name, list) {
        if (n == most || !cJSON_IsString(name)) {
            json_fail(reader, KAKEYA_FORMAT, "%s is no list of names", key);
            return 0;
        }
        names[n++] = name->valuestring;
    }
    return n;
}

static uint64_t read_seed(const cJSON *plan) {
    const cJSON *seed = json_get(plan, "seed");
    return cJSON_IsString(seed)   ? strtoull(seed->valuestring, NULL, 10)
           : cJSON_IsNumber(seed) ? (uint64_t)seed->valuedouble
                                  : 0;
}

static kakeya_status read_plan(other_job *job, kakeya_error *error) {
    verify_run *run = &job->run;
    char *path = path_join(job->directory, VERIFY_PLAN_FILE), *text = NULL;
    size_t bytes = 0, n = 0;
    kakeya_status status = path ? file_read(path, MAX_PLAN_BYTES, &text, &bytes, error)
                                : error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory");
    if (status == KAKEYA_OK) status = json_parse_object(VERIFY_PLAN_FILE, text, bytes, &job->plan, error);
    free(text);
    free(path);
    if (status != KAKEYA_OK) return status;
    const char *policy_names[VERIFY_POLICIES], *format_names[VERIFY_FORMATS];
    json_reader reader = {.name = VERIFY_PLAN_FILE, .error = error};
    run->plan.seed = read_seed(job->plan);
    run->plan.drafter = kakeya_engine_has_drafter(run->harness.engine);
    run->plan.assistant = run->harness.engine->drafter && run->harness.engine->assistant;
    run->max_tokens = json_required_int(&reader, job->plan, "max_tokens", VERIFY_LEAST_TOKENS, VERIFY_MOST_TOKENS);
    job->rounds = json_required_int(&reader, job->plan, "rounds", 1, MAX_ROUNDS);
    job->seconds = json_number(&reader, job->plan, "seconds", -1e9, 1e9, 0);
    job->saved = json_object(&reader, job->plan, "saved");
    eval_policies policies = {policy_names, read_names(&reader, job->plan, "policies", policy_names, VERIFY_POLICIES)};
    status = reader.status;
    if (status == KAKEYA_OK) status = harness_policies(&run->harness, &policies, false, run->policies, &n, error);
    run->plan.policies = (int)n;
    size_t formats = read_names(&reader, job->plan, "kv_formats", format_names, VERIFY_FORMATS);
    if (status == KAKEYA_OK) status = reader.status;
    return status ? status : verify_run_formats(run, format_names, formats, error);
}

static kakeya_status run_anew(verify_answer *answer, const verify_answer *base, double seconds, kakeya_error *error) {
    answer->stats.prefill_seconds = seconds;
    kakeya_status status = kakeya_session_fork(base->session, &answer->session, error);
    return status ? status : verify_answer_go_on(answer, answer->run->max_tokens, error);
}

/* What the first process has computed of the answer. */
static kakeya_status take_half(const other_job *job, const char *name, verify_answer *answer, kakeya_error *error) {
    json_reader reader = {.name = VERIFY_PLAN_FILE, .error = error};
    const cJSON *entry = json_object(&reader, job->saved, name);
    const char *hash = json_string(&reader, entry, "log_probability_hash", "");
    answer->row.log_probability_hash = strtoull(hash, NULL, 16);
    answer->stats.prefill_seconds = json_number(&reader, entry, "prefill_seconds", 0, 1e9, 0);
    answer->stats.decode_seconds = json_number(&reader, entry, "decode_seconds", 0, 1e9, 0);
    answer->stats.verifier_forwards = (uint64_t)json_required_int(&reader, entry, "verifier_forwards", 0, 1 << 20);
    answer->done = (size_t)answer->run->max_tokens / 2;
    return reader.status;
}

static kakeya_status run_saved(const other_job *job, int round, verify_answer *answer, kakeya_error *error) {
    char name[64];
    verify_session_name(round, answer->plan, name, sizeof name);
    char *path = path_join(job->directory, name);
    kakeya_status status =
        path ? take_half(job, name, answer, error) : error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory");
    if (status == KAKEYA_OK) status = verify_answer_open(answer, error);
    if (status == KAKEYA_OK) status = kakeya_session_load_file(answer->session, path, error);
    if (status == KAKEYA_OK) status = verify_answer_go_on(answer, answer->run->max_tokens - (int)answer->done, error);
    if (path) unlink(path);
    free(path);
    return status;
}

static kakeya_status run_stream(const other_job *job, int round, const verify_prompt *prompt,
                                const verify_stream *stream, const verify_answer *base, double seconds,
                                kakeya_error *error) {
    verify_answer answer;
    verify_answer_init(&answer, (verify_run *)&job->run, round, prompt, stream);
    kakeya_status status = harness_poll(answer.run ? &answer.run->harness : NULL, error);
    if (status == KAKEYA_OK)
        status = stream->comparison == VERIFY_THREADS ? run_anew(&answer, base, seconds, error)
                                                      : run_saved(job, round, &answer, error);
    if (status == KAKEYA_OK) status = verify_answer_report(&answer, error);
    verify_answer_close(&answer);
    return status;
}

static kakeya_status run_prompt(other_job *job, int round, int policy, int format, int n, kakeya_error *error) {
    verify_answer base;
    verify_prompt prompt;
    const verify_stream *first = &job->streams[0];
    kakeya_status status = verify_prompt_draw(&job->run, round, policy, format, &prompt, error);
    while (first->policy != policy || first->format != format) first++;
    verify_answer_init(&base, &job->run, round, &prompt, first);
    double start = clock_seconds();
    if (status == KAKEYA_OK) status = verify_answer_open(&base, error);
    if (status == KAKEYA_OK) status = verify_answer_prompt(&base, error);
    double seconds = clock_seconds() - start;
    for (int i = 0; i < n && status == KAKEYA_OK; i++)
        if (job->streams[i].policy == policy && job->streams[i].format == format)
            status = run_stream(job, round, &prompt, &job->streams[i], &base, seconds, error);
    verify_answer_close(&base);
    free(prompt.ids);
    return status;
}

/* As many rounds as the time allows; at least one. */
static kakeya_status run_rounds(other_job *job, kakeya_error *error) {
    verify_run *run = &job->run;
    eval_harness *harness = &run->harness;
    double start = clock_seconds();
    int done = 0;
    kakeya_status status = KAKEYA_OK;
    while (status == KAKEYA_OK && done < job->rounds) {
        int n = verify_round(&run->plan, done, true, job->streams);
        harness->total = (uint64_t)(n * job->rounds);
        for (int p = 0; p < run->plan.policies; p++)
            for (int f = 0; f < run->plan.formats && status == KAKEYA_OK; f++)
                status = run_prompt(job, done, p, f, n, error);
        if (status != KAKEYA_OK) break;
        double now = clock_seconds(), each = (now - start) / ++done;
        if (now + each - job->begun > job->seconds) break;
    }
    cJSON_AddNumberToObject(harness->report->options, "rounds", done);
    cJSON_AddNumberToObject(harness->report->options, "elapsed", clock_seconds() - harness->report->begun_at);
    return status;
}

kakeya_status verify_elsewhere(const eval_setup *setup, const char *directory,
                               void (*on_engine)(void *user, kakeya_engine *engine), void *user, kakeya_error *error) {
    other_job job = {.directory = directory, .begun = clock_seconds()};
    eval_setup own = *setup;
    eval_report *report = NULL;
    char *path = path_join(directory, VERIFY_REPORT_FILE);
    own.report_path = path;
    kakeya_status status =
        path ? harness_open(&job.run.harness, &own, 0, error) : error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory");
    if (status == KAKEYA_OK && on_engine) on_engine(user, job.run.harness.engine);
    if (status == KAKEYA_OK) status = read_plan(&job, error);
    if (status == KAKEYA_OK) status = harness_report(&job.run.harness, EVAL_VERIFY, cJSON_CreateObject(), error);
    if (status == KAKEYA_OK) status = run_rounds(&job, error);
    status = harness_close(&job.run.harness, status, &report, error);
    eval_report_close(report);
    cJSON_Delete(job.plan);
    free(path);
    return status;
}
