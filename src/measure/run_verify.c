#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/files.h"
#include "base/json.h"
#include "measure/lossless_plan.h"
#include "measure/options.h"
#include "measure/summary.h"
#include "measure/verify.h"
#include "measure/verify_logits.h"
#include "measure/verify_streams.h"

/* Sessions that hold a prompt, which streams are forked from: it is computed once for all of them. */
typedef enum base_kind { BASE_PLAIN = 0, BASE_DRAFTED, BASE_CHUNKS, BASES } base_kind;

typedef struct base_session {
    verify_answer answer; /* of which the prompt alone is computed */
    double seconds;
} base_session;

typedef struct verify_job {
    verify_run run;
    const verify_options *options;
    double begun, opened; /* clock; seconds that opening took */
    char directory[256];  /* of files for the other process */
    cJSON *saved;         /* what it must know of each */
    int rounds;
    verify_stream streams[VERIFY_STREAMS];
    verify_prompt prompt[VERIFY_UNITS]; /* of the round, by policy and format */
    verify_answer batch[2 * VERIFY_UNITS];
} verify_job;

/* ------------------------------------------------------------------------------------------------ a prompt's streams
 */

typedef struct prompt_work {
    verify_job *job;
    int round;
    const verify_prompt *prompt;
    base_session base[BASES];
    int32_t *reference[VERIFY_TEMPERATURES]; /* [max_tokens] */
} prompt_work;

static base_kind base_of(const verify_stream *stream) {
    if (stream->comparison == VERIFY_CHUNKS) return BASE_CHUNKS;
    bool drafts = strcmp(stream->mode, "speculative") == 0 || strcmp(stream->mode, "auto") == 0;
    return drafts ? BASE_DRAFTED : BASE_PLAIN;
}

/* The answer's session is a copy of one that holds the prompt. */
static kakeya_status fork_base(prompt_work *w, verify_answer *answer, kakeya_error *error) {
    base_session *base = &w->base[base_of(answer->plan)];
    kakeya_status status = KAKEYA_OK;
    if (!base->answer.session) {
        double start = clock_seconds();
        verify_answer_init(&base->answer, &w->job->run, w->round, w->prompt, answer->plan);
        status = verify_answer_open(&base->answer, error);
        if (status == KAKEYA_OK) status = verify_answer_prompt(&base->answer, error);
        base->seconds = clock_seconds() - start;
    }
    answer->stats.prefill_seconds = base->seconds;
    if (status == KAKEYA_OK) status = kakeya_session_fork(base->answer.session, &answer->session, error);
    return status;
}

/* In the middle of the answer the session is copied. The copy goes on as planned, after the original has gone on with
 * other tokens. */
static kakeya_status leave_for_copy(verify_answer *answer, kakeya_error *error) {
    kakeya_session *copy = NULL;
    kakeya_generate_options other = answer->generate;
    other.on_event = NULL;
    other.max_tokens = 2;
    other.sampling.temperature = 1;
    other.sampling.seed++;
    kakeya_status status = kakeya_session_fork(answer->session, &copy, error);
    if (status != KAKEYA_OK) return status;
    status = kakeya_session_generate(answer->session, &other, NULL, error);
    kakeya_session_close(answer->session);
    answer->session = copy;
    return status;
}

static kakeya_status cut_off(verify_answer *answer, int *left, kakeya_error *error) {
    size_t n;
    (void)kakeya_session_tokens(answer->session, &n);
    *left = answer->row.dropped_tokens = (int)lossless_dropped((size_t)answer->run->max_tokens);
    return kakeya_session_truncate(answer->session, n - (size_t)*left, error);
}

static kakeya_status run_stream(prompt_work *w, const verify_stream *stream, kakeya_error *error) {
    verify_run *run = &w->job->run;
    verify_answer answer;
    const int all = run->max_tokens, half = all / 2;
    verify_answer_init(&answer, run, w->round, w->prompt, stream);
    int32_t **reference = &w->reference[stream->temperature];
    bool own = stream->comparison == VERIFY_REFERENCE;
    kakeya_status status = own ? verify_answer_open(&answer, error) : fork_base(w, &answer, error);
    if (status == KAKEYA_OK && own) status = verify_answer_prompt(&answer, error);
    if (stream->comparison == VERIFY_ROWS && *reference) {
        answer.generate.prediction = *reference;
        answer.generate.n_prediction = (size_t)all;
    }
    int left = all;
    bool in_half = stream->comparison == VERIFY_FORKED || stream->comparison == VERIFY_PARKED;
    if (in_half) left -= half;
    if (status == KAKEYA_OK) status = verify_answer_go_on(&answer, in_half ? half : all, error);
    if (!in_half) left = 0;
    if (status == KAKEYA_OK && stream->comparison == VERIFY_FORKED) status = leave_for_copy(&answer, error);
    if (status == KAKEYA_OK && stream->comparison == VERIFY_PARKED) status = kakeya_session_park(answer.session, error);
    if (status == KAKEYA_OK && stream->comparison == VERIFY_TRUNCATED) status = cut_off(&answer, &left, error);
    if (status == KAKEYA_OK && left) status = verify_answer_go_on(&answer, left, error);
    if (status == KAKEYA_OK && own) {
        size_t n;
        const int32_t *tokens = kakeya_session_tokens(answer.session, &n);
        *reference = malloc((size_t)all * sizeof **reference);
        if (!*reference) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for an answer");
        if (*reference) memcpy(*reference, tokens + w->prompt->n, (size_t)all * sizeof **reference);
    }
    if (status == KAKEYA_OK) status = verify_answer_report(&answer, error);
    verify_answer_close(&answer);
    return status;
}

/* Half of an answer goes into a file, with which the other process goes on. */
static kakeya_status save_half(prompt_work *w, const verify_stream *stream, kakeya_error *error) {
    verify_job *job = w->job;
    verify_answer answer;
    char name[64], hash[20];
    verify_answer_init(&answer, &job->run, w->round, w->prompt, stream);
    verify_session_name(w->round, stream, name, sizeof name);
    char *path = path_join(job->directory, name);
    kakeya_status status = path ? fork_base(w, &answer, error) : error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory");
    if (status == KAKEYA_OK) status = verify_answer_go_on(&answer, job->run.max_tokens / 2, error);
    if (status == KAKEYA_OK) status = kakeya_session_save_file(answer.session, path, error);
    cJSON *entry = status == KAKEYA_OK ? cJSON_CreateObject() : NULL;
    if (status == KAKEYA_OK && !cJSON_AddItemToObject(job->saved, name, entry)) {
        cJSON_Delete(entry);
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for the plan");
    }
    if (status == KAKEYA_OK) {
        snprintf(hash, sizeof hash, "%016" PRIx64, verify_answer_hash(&answer, (size_t)job->run.max_tokens / 2));
        cJSON_AddStringToObject(entry, "log_probability_hash", hash);
        cJSON_AddNumberToObject(entry, "prefill_seconds", answer.stats.prefill_seconds);
        cJSON_AddNumberToObject(entry, "decode_seconds", answer.stats.decode_seconds);
        cJSON_AddNumberToObject(entry, "verifier_forwards", (double)answer.stats.verifier_forwards);
    }
    free(path);
    verify_answer_close(&answer);
    return status;
}

static kakeya_status run_prompt(verify_job *job, int round, int policy, int format, int n, kakeya_error *error) {
    verify_stream left[VERIFY_STREAMS];
    prompt_work w = {.job = job, .round = round, .prompt = &job->prompt[policy * job->run.plan.formats + format]};
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; i < n && status == KAKEYA_OK; i++) {
        const verify_stream *s = &job->streams[i];
        if (s->policy != policy || s->format != format || s->together) continue;
        status = harness_poll(&job->run.harness, error);
        if (status == KAKEYA_OK) status = run_stream(&w, s, error);
    }
    int saved = verify_round(&job->run.plan, round, true, left);
    for (int i = 0; i < saved && status == KAKEYA_OK; i++)
        if (left[i].comparison == VERIFY_SAVED && left[i].policy == policy && left[i].format == format)
            status = save_half(&w, &left[i], error);
    for (int b = 0; b < BASES; b++) verify_answer_close(&w.base[b].answer);
    for (int t = 0; t < VERIFY_TEMPERATURES; t++) free(w.reference[t]);
    return status;
}

/* ------------------------------------------------------------------------------------------------------- together */

/* Half of them come once the first one is answered: then prompts stand beside answers. */
static kakeya_status run_together(verify_job *job, int round, int n, kakeya_error *error) {
    const verify_plan *plan = &job->run.plan;
    int sessions = 0;
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; i < n && status == KAKEYA_OK; i++) {
        const verify_stream *s = &job->streams[i];
        if (!s->together) continue;
        verify_answer *answer = &job->batch[sessions++];
        verify_answer_init(answer, &job->run, round, &job->prompt[s->policy * plan->formats + s->format], s);
        status = verify_answer_open(answer, error);
    }
    for (int i = 0; i < sessions && status == KAKEYA_OK; i += 2) status = verify_answer_submit(&job->batch[i], error);
    if (status == KAKEYA_OK) status = verify_answer_wait(&job->batch[0], error);
    for (int i = 1; i < sessions && status == KAKEYA_OK; i += 2) status = verify_answer_submit(&job->batch[i], error);
    for (int i = 1; i < sessions && status == KAKEYA_OK; i++) status = verify_answer_wait(&job->batch[i], error);
    for (int i = 0; i < sessions && status == KAKEYA_OK; i++) status = verify_answer_report(&job->batch[i], error);
    for (int i = 0; i < sessions; i++) verify_answer_close(&job->batch[i]);
    return status;
}

/* --------------------------------------------------------------------------------------------------------- rounds */

static kakeya_status run_round(verify_job *job, int round, kakeya_error *error) {
    const verify_plan *plan = &job->run.plan;
    int n = verify_round(plan, round, false, job->streams);
    kakeya_status status = KAKEYA_OK;
    memset(job->prompt, 0, sizeof job->prompt);
    for (int p = 0; p < plan->policies; p++) {
        for (int f = 0; f < plan->formats && status == KAKEYA_OK; f++) {
            verify_prompt *prompt = &job->prompt[p * plan->formats + f];
            status = verify_prompt_draw(&job->run, round, p, f, prompt, error);
            const harness_prompt taken = {.sample = prompt->sample, .ids = prompt->ids, .n = prompt->n};
            if (status == KAKEYA_OK) status = harness_take_prompt(&job->run.harness, &taken, error);
            if (status == KAKEYA_OK) status = run_prompt(job, round, p, f, n, error);
        }
    }
    if (status == KAKEYA_OK) status = run_together(job, round, n, error);
    for (int i = 0; i < VERIFY_UNITS; i++) free(job->prompt[i].ids);
    return status;
}

static double elapsed(const verify_job *job) { return clock_seconds() - job->begun; }

/* Of the time that a round takes here, the other process takes so much for its part of it: two answers and a prompt of
 * a dozen, with fewer threads. */
static const double share_elsewhere = 0.35;

static kakeya_status run_rounds(verify_job *job, kakeya_error *error) {
    const verify_options *o = job->options;
    eval_harness *harness = &job->run.harness;
    cJSON *rounds = cJSON_GetObjectItemCaseSensitive(harness->report->options, "rounds");
    double start = elapsed(job);
    kakeya_status status = KAKEYA_OK;
    while (status == KAKEYA_OK) {
        status = run_round(job, job->rounds, error);
        if (status != KAKEYA_OK) break;
        cJSON_SetNumberValue(rounds, ++job->rounds);
        double each = (elapsed(job) - start) / job->rounds, left = o->seconds - elapsed(job);
        double others = job->opened + each * share_elsewhere * (job->rounds + 1);
        harness->total = harness->done + (uint64_t)((left > 0 ? left : 0) / each * (double)harness->done / job->rounds);
        if (o->rounds ? job->rounds == o->rounds : left < each + others) break;
    }
    return status;
}

/* ------------------------------------------------------------------------------------------------ the other process */

/* A half and a whole are other numbers of threads; a backend without threads takes no notice. */
static int other_threads(int threads) { return threads > 1 ? threads / 2 : 2; }

/* Where rounds are counted, and not time. */
enum { MOST_SECONDS = 1000000000 };

static kakeya_status write_plan(const verify_job *job, kakeya_error *error) {
    const verify_run *run = &job->run;
    cJSON *plan = cJSON_CreateObject();
    char *path = path_join(job->directory, VERIFY_PLAN_FILE), *text = NULL;
    file_writer *writer = NULL;
    if (plan) {
        cJSON_AddItemToObject(plan, "seed", eval_seed_json(run->plan.seed));
        cJSON_AddItemToObject(plan, "policies", harness_names(run->policies, (size_t)run->plan.policies));
        cJSON_AddItemToObject(plan, "kv_formats", harness_names(run->formats, (size_t)run->plan.formats));
        cJSON_AddNumberToObject(plan, "max_tokens", run->max_tokens);
        cJSON_AddNumberToObject(plan, "rounds", job->rounds);
        cJSON_AddNumberToObject(plan, "seconds",
                                job->options->rounds ? MOST_SECONDS : job->options->seconds - elapsed(job));
        json_add_reference(plan, "saved", job->saved);
        text = cJSON_PrintUnformatted(plan);
    }
    kakeya_status status = text && path ? KAKEYA_OK : error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for the plan");
    if (status == KAKEYA_OK) status = file_writer_open(path, &writer, error);
    if (status == KAKEYA_OK) status = file_writer_write(writer, text, strlen(text), error);
    if (status == KAKEYA_OK)
        status = file_writer_commit(writer, error);
    else
        file_writer_abort(writer);
    cJSON_free(text);
    cJSON_Delete(plan);
    free(path);
    return status;
}

static kakeya_status read_report(verify_job *job, kakeya_error *error) {
    enum { MAX_REPORT_BYTES = 1 << 28 };
    eval_harness *harness = &job->run.harness;
    char *path = path_join(job->directory, VERIFY_REPORT_FILE), *text = NULL;
    size_t bytes = 0;
    cJSON *report = NULL;
    const cJSON *row;
    kakeya_status status = path ? file_read(path, MAX_REPORT_BYTES, &text, &bytes, error)
                                : error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory");
    if (status == KAKEYA_OK) status = json_parse_object(VERIFY_REPORT_FILE, text, bytes, &report, error);
    json_reader reader = {.name = VERIFY_REPORT_FILE, .error = error, .status = status};
    const cJSON *options = json_object(&reader, report, "options"), *rows = json_array(&reader, report, "rows");
    int rounds = json_required_int(&reader, options, "rounds", 1, job->rounds);
    double offset = elapsed(job) - json_number(&reader, options, "elapsed", 0, 1e9, 0);
    status = reader.status;
    cJSON_ArrayForEach(row, rows) {
        if (status != KAKEYA_OK) break;
        eval_row read;
        status = eval_row_from_json(EVAL_VERIFY, row, &read, error);
        read.started_seconds += offset;
        if (status == KAKEYA_OK)
            status = harness_add(harness, &read, error);
        else
            eval_row_free(&read);
    }
    if (status == KAKEYA_OK)
        cJSON_SetNumberValue(cJSON_GetObjectItemCaseSensitive(harness->report->options, "rounds_elsewhere"), rounds);
    cJSON_Delete(report);
    free(text);
    free(path);
    return status;
}

/* The engine is closed first: two never stand in memory beside each other. */
static kakeya_status go_elsewhere(verify_job *job, kakeya_error *error) {
    eval_harness *harness = &job->run.harness;
    const verify_options *o = job->options;
    kakeya_status status = write_plan(job, error);
    kakeya_engine_close(harness->engine);
    harness->engine = NULL;
    if (status == KAKEYA_OK)
        status = o->elsewhere(o->elsewhere_user, job->directory, other_threads(harness->threads), error);
    return status == KAKEYA_OK ? read_report(job, error) : status;
}

/* --------------------------------------------------------------------------------------------------------- the whole
 */

static cJSON *options_json(const verify_job *job) {
    const verify_options *o = job->options;
    const verify_run *run = &job->run;
    cJSON *object = cJSON_CreateObject();
    if (!object) return NULL;
    cJSON_AddNumberToObject(object, "seconds", o->seconds);
    cJSON_AddNumberToObject(object, "rounds", 0);
    cJSON_AddNumberToObject(object, "rounds_elsewhere", 0);
    cJSON_AddNumberToObject(object, "threads_elsewhere", other_threads(run->harness.threads));
    cJSON_AddNumberToObject(object, "max_tokens", o->max_tokens);
    cJSON_AddItemToObject(object, "seed", eval_seed_json(o->seed));
    cJSON_AddItemToObject(object, "policies", harness_names(run->policies, (size_t)run->plan.policies));
    cJSON_AddItemToObject(object, "kv_formats", harness_names(run->formats, (size_t)run->plan.formats));
    harness_add_sizes(&run->harness, object);
    return object;
}

static kakeya_status choose_policies(verify_job *job, kakeya_error *error) {
    verify_run *run = &job->run;
    const char *own[] = {"native", kakeya_engine_has_f_theta(run->harness.engine) ? "restored" : "sink-window"};
    eval_policies policies = {own, 2};
    size_t n;
    if (job->options->policies.n) policies = job->options->policies;
    kakeya_status status = harness_policies(&run->harness, &policies, false, run->policies, &n, error);
    run->plan.policies = (int)n;
    return status;
}

static kakeya_status make_directory(verify_job *job, kakeya_error *error) {
    const char *given = job->run.harness.setup->engine.spill_directory, *named = getenv("TMPDIR");
    snprintf(job->directory, sizeof job->directory, "%s/kakeya-verify-XXXXXX",
             given             ? given
             : named && *named ? named
                               : "/var/tmp");
    if (mkdtemp(job->directory)) return KAKEYA_OK;
    kakeya_status status = error_set(error, KAKEYA_IO, "%s: cannot make a folder there", job->directory);
    job->directory[0] = '\0';
    return status;
}

static void remove_directory(const verify_job *job) {
    static const char *const others[] = {VERIFY_PLAN_FILE, VERIFY_REPORT_FILE};
    if (!job->directory[0]) return;
    size_t n = sizeof others / sizeof others[0];
    const cJSON *entry = job->saved ? job->saved->child : NULL;
    for (size_t i = 0; i < n || entry; i++) {
        char *path = path_join(job->directory, i < n ? others[i] : entry->string);
        if (path) unlink(path);
        free(path);
        if (i >= n) entry = entry->next;
    }
    rmdir(job->directory);
}

kakeya_status verify_run_all(const eval_setup *setup, const verify_options *options, eval_report **out,
                             kakeya_error *error) {
    *out = NULL;
    verify_job *job = calloc(1, sizeof *job);
    if (!job) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for a certificate");
    job->options = options;
    job->begun = clock_seconds();
    verify_run *run = &job->run;
    eval_harness *harness = &run->harness;
    run->max_tokens = options->max_tokens;
    run->plan.seed = options->seed;
    kakeya_status status = harness_open(harness, setup, 0, error);
    job->opened = elapsed(job);
    if (status == KAKEYA_OK && options->on_engine) options->on_engine(options->engine_user, harness->engine);
    if (status == KAKEYA_OK) status = choose_policies(job, error);
    if (status == KAKEYA_OK) status = verify_run_formats(run, options->kv_formats, options->n_kv_formats, error);
    if (status == KAKEYA_OK) {
        run->plan.drafter = kakeya_engine_has_drafter(harness->engine);
        run->plan.assistant = harness->engine->drafter && harness->engine->assistant;
        job->saved = cJSON_CreateObject();
        if (!job->saved) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for a certificate");
    }
    if (status == KAKEYA_OK) status = make_directory(job, error);
    if (status == KAKEYA_OK) status = harness_report(harness, EVAL_VERIFY, options_json(job), error);
    if (status == KAKEYA_OK && options->logits)
        status = verify_logits(harness, options->logits, &harness->report->logits, error);
    if (status == KAKEYA_OK) status = run_rounds(job, error);
    if (status == KAKEYA_OK) status = go_elsewhere(job, error);
    remove_directory(job);
    cJSON_Delete(job->saved);
    status = harness_close(harness, status, out, error);
    free(job);
    return status;
}

size_t verify_differences(const eval_report *report) {
    size_t n = 0;
    for (size_t i = 0; i < report->rows.n; i++) {
        const eval_row *reference = eval_lossless_reference(&report->rows, i);
        n += !reference || !eval_lossless_equal(reference, &report->rows.row[i], NULL);
    }
    return n;
}
