#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/files.h"
#include "base/json.h"
#include "kakeya_study.h"
#include "measure/harness.h"
#include "session/divergence.h"

enum { DEFAULT_PROMPT_LENGTH = 600, MAX_FILE_BYTES = 1 << 30, MAX_ARMS = 64 };

typedef struct fidelity_run {
    eval_harness harness;
    const eval_options *options;
    int prompt_length;
    eval_sequences sequences;
    float *nll;    /* [longest - 1] */
    float *native; /* [longest][vocab] */
    float *logits; /* [longest][vocab] */
    size_t longest;
} fidelity_run;

static size_t earlier_turns(const fidelity_run *run) {
    return run->options->turns > 1 ? (size_t)run->options->turns - 1 : 0;
}

/* --------------------------------------------------------------------------------------------------- sequences */

/* An empty place at the end of the list, or NULL. */
static eval_sequence *append(eval_sequences *sequences) {
    eval_sequence *grown = realloc(sequences->sequence, (sequences->n + 1) * sizeof *grown);
    if (!grown) return NULL;
    sequences->sequence = grown;
    grown[sequences->n] = (eval_sequence){0};
    return &grown[sequences->n++];
}

static kakeya_status read_sequence(fidelity_run *run, const char *path, const cJSON *item, kakeya_error *error) {
    size_t index = run->sequences.n;
    const cJSON *ids = cJSON_IsArray(item) ? item : json_get(item, "input_ids"), *source = json_get(item, "source"),
                *id;
    int n = cJSON_GetArraySize(ids), vocab = kakeya_engine_vocab_size(run->harness.engine);
    if (!cJSON_IsArray(ids) || !n)
        return error_set(error, KAKEYA_FORMAT, "%s: sequences[%zu] holds no \"input_ids\"", path, index);
    eval_sequence *sequence = append(&run->sequences);
    int32_t *copy = malloc((size_t)n * sizeof *copy);
    if (!sequence || !copy) {
        free(copy);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for sequences[%zu]", path, index);
    }
    sequence->ids = copy;
    snprintf(sequence->name, sizeof sequence->name, "%zu/%s", index,
             cJSON_IsString(source) ? source->valuestring : "ids");
    cJSON_ArrayForEach(id, ids) {
        if (!json_is_integer(id, 0, vocab - 1))
            return error_set(error, KAKEYA_FORMAT,
                             "%s: sequences[%zu] contains something that is not a token id "
                             "below %d",
                             path, index, vocab);
        sequence->ids[sequence->n++] = id->valueint;
    }
    return KAKEYA_OK;
}

static kakeya_status read_ids(fidelity_run *run, kakeya_error *error) {
    const char *path = run->options->ids_json;
    char *text;
    size_t bytes;
    cJSON *json = NULL;
    kakeya_status status = file_read(path, MAX_FILE_BYTES, &text, &bytes, error);
    if (status != KAKEYA_OK) return status;
    status = json_parse_object(path, text, bytes, &json, error);
    free(text);
    if (status != KAKEYA_OK) return status;
    const cJSON *list = json_get(json, "sequences"), *item, *length = json_get(json, "prompt_length");
    if (!cJSON_IsArray(list) || !list->child) status = error_set(error, KAKEYA_FORMAT, "%s: no \"sequences\"", path);
    if (!run->prompt_length && json_is_integer(length, 1, INT32_MAX)) run->prompt_length = length->valueint;
    cJSON_ArrayForEach(item, list) {
        if (status != KAKEYA_OK) break;
        if (run->options->max_sequences && run->sequences.n >= (size_t)run->options->max_sequences) break;
        status = read_sequence(run, path, item, error);
    }
    cJSON_Delete(json);
    return status;
}

/* Cuts a text into stretches of prompt and scored tokens; a rest that is too short is left out. */
static kakeya_status cut_text(fidelity_run *run, const char *path, kakeya_error *error) {
    eval_sequence text;
    kakeya_status status = harness_read_text(&run->harness, path, &text, error);
    if (status != KAKEYA_OK) return status;
    size_t length = (size_t)run->prompt_length + (size_t)run->options->score_tokens;
    size_t pieces = text.n / length;
    if (!pieces)
        status =
            error_set(error, KAKEYA_INVALID_ARGUMENT, "%s: %zu tokens are fewer than a prompt of %d and %d to score",
                      path, text.n, run->prompt_length, run->options->score_tokens);
    for (size_t p = 0; status == KAKEYA_OK && p < pieces; p++) {
        if (run->options->max_sequences && run->sequences.n >= (size_t)run->options->max_sequences) break;
        eval_sequence *sequence = append(&run->sequences);
        int32_t *ids = malloc(length * sizeof *ids);
        if (!sequence || !ids) {
            free(ids);
            status = error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for sequences", path);
            break;
        }
        memcpy(ids, text.ids + p * length, length * sizeof *ids);
        *sequence = (eval_sequence){.ids = ids, .n = length};
        snprintf(sequence->name, sizeof sequence->name, "%zu/%.48s", run->sequences.n - 1, text.name);
    }
    free(text.ids);
    return status;
}

static kakeya_status read_sequences(fidelity_run *run, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    run->prompt_length = run->options->prompt_length;
    if (run->options->ids_json) status = read_ids(run, error);
    if (!run->prompt_length) run->prompt_length = DEFAULT_PROMPT_LENGTH;
    for (size_t i = 0; status == KAKEYA_OK && i < run->options->n_files; i++)
        status = cut_text(run, run->options->files[i], error);
    for (size_t i = 0; status == KAKEYA_OK && i < run->sequences.n; i++) {
        const eval_sequence *sequence = &run->sequences.sequence[i];
        harness_prompt prompt = {.sample = sequence->name, .ids = sequence->ids, .n = sequence->n};
        if (sequence->n > run->longest) run->longest = sequence->n;
        if (sequence->n <= (size_t)run->prompt_length)
            status = error_set(error, KAKEYA_INVALID_ARGUMENT,
                               "sequence %s: nothing to score after a prompt of %d in %zu tokens", sequence->name,
                               run->prompt_length, sequence->n);
        else if ((sequence->n - (size_t)run->prompt_length) * 2 * earlier_turns(run) >= (size_t)run->prompt_length)
            status = error_set(
                error, KAKEYA_INVALID_ARGUMENT,
                "sequence %s: a prompt of %d tokens is too short for the turns before turn %d, of 2 x %zu",
                sequence->name, run->prompt_length, run->options->turns, sequence->n - (size_t)run->prompt_length);
        if (status == KAKEYA_OK) status = harness_take_prompt(&run->harness, &prompt, error);
    }
    if (status == KAKEYA_OK && !run->sequences.n)
        status = error_set(error, KAKEYA_INVALID_ARGUMENT, "no sequences to score: give text files or a file of ids");
    return status;
}

/* -------------------------------------------------------------------------------------------------------- arms */

static kakeya_status check_arms(const fidelity_run *run, size_t n, kakeya_error *error) {
    const eval_options *o = run->options;
    if (1 + n * o->n_windows > MAX_ARMS)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "%zu policies with %zu windows make more than %d arms", n,
                         o->n_windows, MAX_ARMS);
    return harness_distinct("windows", o->windows, o->n_windows, error);
}

static cJSON *options_json(const fidelity_run *run, const char *const *policies, size_t n) {
    eval_options o = *run->options;
    const char *names[HARNESS_POLICIES + 1] = {"native"}; /* always: the others are compared with it */
    size_t n_names = 1;
    for (size_t i = 0; i < n; i++)
        if (strcmp(policies[i], names[0]) != 0) names[n_names++] = policies[i];
    o.policies = (eval_policies){names, n_names};
    o.prompt_length = run->prompt_length;
    o.sequences = (int)run->sequences.n;
    cJSON *object = harness_options(&run->harness, EVAL_FIDELITY, &o);
    if (!object) return NULL;
    cJSON_AddItemToObject(object, "samples", harness_sequence_names(&run->sequences));
    return object;
}

/* ----------------------------------------------------------------------------------------------------- scoring */

static bool on_progress(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)what, (void)done, (void)total;
    return harness_poll(user, NULL) == KAKEYA_OK;
}

/* Scores one sequence under one arm; the native arm comes first and leaves its logits for the others. */
static kakeya_status run_one(void *user, eval_row *row, kakeya_error *error) {
    fidelity_run *run = user;
    const eval_sequence *sequence = run->sequences.sequence;
    if (!harness_wants(&run->harness, row)) return KAKEYA_OK;    /* if native is not, no other arm of the sequence is */
    while (strcmp(sequence->name, row->sample) != 0) sequence++; /* every one of the plan is there */
    row->prompt_tokens = run->prompt_length;
    row->prompt_hash = harness_prompt_hash(sequence->ids, sequence->n);
    float *logits = strcmp(row->arm.policy, "native") == 0 ? run->native : run->logits;

    kakeya_session *session = NULL;
    kakeya_session_options options = harness_session_options(&run->harness, &row->arm, sequence->n);
    kakeya_status status = harness_poll(&run->harness, error);
    if (status == KAKEYA_OK) status = kakeya_session_open(run->harness.engine, &options, &session, error);
    if (status == KAKEYA_OK) {
        double start = clock_seconds();
        row->started_seconds = start - run->harness.report->begun_at;
        kakeya_score_options score;
        KAKEYA_INIT(&score);
        score.prompt_length = (size_t)run->prompt_length;
        score.earlier_turns = earlier_turns(run);
        score.nll = run->nll;
        score.logits = logits;
        score.progress = on_progress;
        score.user = &run->harness;
        status = session_score(session, sequence->ids, sequence->n, &score, &row->kv, error);
        row->seconds = clock_seconds() - start;
    }
    kakeya_session_close(session);
    if (status != KAKEYA_OK) return status;

    int vocab = kakeya_engine_vocab_size(run->harness.engine);
    size_t scored = sequence->n - (size_t)run->prompt_length;
    row->token_ids = calloc(scored, sizeof *row->token_ids);
    row->token_nll = calloc(scored, sizeof *row->token_nll);
    row->token_kl = calloc(scored, sizeof *row->token_kl);
    if (!row->token_ids || !row->token_nll || !row->token_kl)
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for a report row");
    for (size_t t = (size_t)run->prompt_length - 1; t + 1 < sequence->n; t++) {
        bool agree;
        int top = 0;
        size_t i = row->n_token_ids++;
        row->token_nll[i] = (double)run->nll[t];
        row->token_kl[i] =
            logits_divergence(run->native + t * (size_t)vocab, logits + t * (size_t)vocab, vocab, &top, &agree);
        row->token_ids[i] = top;
        row->nll += row->token_nll[i];
        row->kl += row->token_kl[i];
        row->agreements += agree;
        row->scored_tokens++;
    }
    return harness_add(&run->harness, row, error);
}

static kakeya_status run_all(fidelity_run *run, kakeya_error *error) {
    size_t row_bytes = (size_t)kakeya_engine_vocab_size(run->harness.engine) * sizeof(float);
    run->nll = malloc(run->longest * sizeof *run->nll);
    run->native = malloc(run->longest * row_bytes);
    run->logits = malloc(run->longest * row_bytes);
    if (!run->nll || !run->native || !run->logits)
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for the logits of %zu positions, %zu bytes",
                         run->longest, 2 * run->longest * row_bytes);
    return harness_run_plan(&run->harness, run_one, run, error);
}

kakeya_status eval_fidelity(const eval_setup *setup, const eval_options *options, eval_report **out,
                            kakeya_error *error) {
    *out = NULL;
    fidelity_run run = {.options = options};
    const char *policies[HARNESS_POLICIES];
    size_t n_policies = 0;
    kakeya_status status = harness_open(&run.harness, setup, 0, error);
    if (status == KAKEYA_OK)
        status = harness_policies(&run.harness, &options->policies, false, policies, &n_policies, error);
    if (status == KAKEYA_OK) status = read_sequences(&run, error);
    if (status == KAKEYA_OK) status = check_arms(&run, n_policies, error);
    if (status == KAKEYA_OK)
        status = harness_report(&run.harness, EVAL_FIDELITY, options_json(&run, policies, n_policies), error);
    if (status == KAKEYA_OK) status = run_all(&run, error);
    eval_sequences_free(&run.sequences);
    free(run.nll);
    free(run.native);
    free(run.logits);
    return harness_close(&run.harness, status, out, error);
}
