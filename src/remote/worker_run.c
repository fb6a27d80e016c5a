/* One run: its folder, its limits, signs of life while it goes on, and what comes of it. */
#include <cjson/cJSON.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/files.h"
#include "base/json.h"
#include "remote/folders.h"
#include "remote/gate_check.h"
#include "remote/worker_private.h"

/* ------------------------------------------------------------------------------------------------------ its folder */

/* models/NAME leads to the model, and so do its auxiliary models beside it: reports name no path of this machine. */
static kakeya_status link_model(const char *folder, const char *name, const char *directory, kakeya_error *error) {
    static const char *const suffixes[] = {"", "-dflash", "-f-theta"};
    char *models = path_join(folder, "models");
    kakeya_status status =
        models ? folder_make(models, error) : error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    for (size_t i = 0; status == KAKEYA_OK && i < sizeof suffixes / sizeof suffixes[0]; i++) {
        char target[PATH_MAX], path[PATH_MAX];
        int a = snprintf(target, sizeof target, "%s%s", directory, suffixes[i]);
        int b = snprintf(path, sizeof path, "%s/%s%s", models, name, suffixes[i]);
        if (a >= PATH_MAX || b >= PATH_MAX)
            status = error_set(error, KAKEYA_IO, "%s: too long", directory);
        else if (directory_exists(target) && symlink(target, path) != 0)
            status = error_set(error, KAKEYA_IO, "%s: %s", path, strerror(errno));
    }
    free(models);
    return status;
}

/* Files of the request, under names of ours: inputs/NN. */
static kakeya_status write_inputs(const char *folder, const incoming *in, kakeya_error *error) {
    char *inputs = path_join(folder, "inputs");
    kakeya_status status =
        inputs ? folder_make(inputs, error) : error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    for (size_t i = 0; status == KAKEYA_OK && i < in->request.n_inputs; i++) {
        char name[96], place[24];
        snprintf(name, sizeof name, "inputs/%s", in->request.input[i].name);
        snprintf(place, sizeof place, "%02zu", i);
        const bus_file *file = bus_tree_find(&in->tree, name);
        status = file ? folder_write(inputs, place, file->data, file->bytes, error)
                      : error_set(error, KAKEYA_FORMAT, "inputs: %s is missing", in->request.input[i].name);
    }
    free(inputs);
    return status;
}

/* Begins with an empty folder, whatever an earlier attempt has left; the claim stays. */
static kakeya_status prepare_folder(worker *w, const incoming *in, const char *folder, const char *oid,
                                    kakeya_error *error) {
    folder_remove(folder);
    kakeya_status status = folder_make(folder, error);
    if (status == KAKEYA_OK) status = folder_write(folder, "claim", oid, strlen(oid), error);
    const char *model = config_model(&w->config, in->request.model);
    if (status == KAKEYA_OK && model) status = link_model(folder, in->request.model, model, error);
    if (status == KAKEYA_OK) status = write_inputs(folder, in, error);
    char *temporary = path_join(folder, "tmp");
    if (status == KAKEYA_OK)
        status = temporary ? folder_make(temporary, error) : error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    free(temporary);
    return status;
}

/* ---------------------------------------------------------------------------------------------------------- its end */

/* Rows of the report so far; an evaluation replaces its report every few seconds. */
static int count_rows(const char *folder) {
    char *text = NULL;
    size_t bytes = 0;
    int rows = 0;
    cJSON *report = NULL;
    if (folder_has(folder, document_report) &&
        folder_read(folder, document_report, RESULT_MAX_REPORT, &text, &bytes, NULL) == KAKEYA_OK &&
        json_parse_object("report", text, bytes, &report, NULL) == KAKEYA_OK)
        rows = cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(report, "rows"));
    cJSON_Delete(report);
    free(text);
    return rows;
}

/* Adds a file of the run to the result. */
static kakeya_status add_file(result *r, const char *folder, const char *name, kakeya_error *error) {
    char *text;
    size_t bytes;
    if (!folder_has(folder, name)) return KAKEYA_OK;
    kakeya_status status = folder_read(folder, name, RESULT_MAX_REPORT, &text, &bytes, error);
    if (status != KAKEYA_OK) return status;
    result_add_file(r, name, text, bytes);
    free(text);
    return KAKEYA_OK;
}

static void set_outcome(result *r, const runner_end *end, bool cancelled) {
    const char *outcome = "failed";
    r->exit_status = end->exit_status;
    r->seconds = end->seconds;
    snprintf(r->reason, sizeof r->reason, "%s", end->message);
    if (cancelled) {
        outcome = "cancelled";
        snprintf(r->reason, sizeof r->reason, "cancelled by %s", r->requested_by);
    } else if (end->reason == RUNNER_FAILED) { /* why, the worker's log says: it may name paths */
        snprintf(r->reason, sizeof r->reason, "its program did not start, or was lost");
    } else if (end->reason == RUNNER_TIMED_OUT) {
        outcome = "timed_out";
        snprintf(r->reason, sizeof r->reason, "it was ended after %.0f s", end->seconds);
    } else if (end->reason == RUNNER_EXITED && end->exit_status == 0) {
        outcome = "done";
    } else if (end->reason == RUNNER_EXITED) {
        snprintf(r->reason, sizeof r->reason, end->exit_status > 128 ? "signal %d ended it" : "exit status %d",
                 end->exit_status > 128 ? end->exit_status - 128 : end->exit_status);
    }
    snprintf(r->outcome, sizeof r->outcome, "%s", outcome);
}

/* The result of a run that has ended: the gate's verdict, and the files that go with it. */
static kakeya_status conclude(worker *w, incoming *in, const preset *p, result *r, const char *folder,
                              kakeya_error *error) {
    size_t bytes;
    char *log = runner_log_tail(folder, RESULT_MAX_LOG, &bytes);
    kakeya_status status = log ? folder_write(folder, document_log, log, bytes, error)
                               : error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    free(log);
    bool done = strcmp(r->outcome, "done") == 0;
    if (status == KAKEYA_OK && p->gated && done) status = gate_check_report(w->config.program, folder, NULL, r, error);
    if (status == KAKEYA_OK && done && strcmp(r->verdict, "refused") == 0) {
        snprintf(r->outcome, sizeof r->outcome, "failed");
        snprintf(r->reason, sizeof r->reason, "the gate refuses the report");
    }
    /* Rows of a report that was begun are worth something; half an output is not. */
    if (status == KAKEYA_OK && p->gated) status = add_file(r, folder, document_report, error);
    if (status == KAKEYA_OK && !p->gated && done) status = add_file(r, folder, document_output, error);
    if (status != KAKEYA_OK) { /* too large, or damaged: the run has failed, and the reason goes back */
        snprintf(r->outcome, sizeof r->outcome, "failed");
        snprintf(r->reason, sizeof r->reason, "its report cannot be sent");
        worker_event(w, in->nonce, "%s", error->message);
    }
    r->finished = worker_now();
    status = add_file(r, folder, document_log, error);
    return status == KAKEYA_OK ? worker_finish_result(w, in, r, error) : status;
}

/* ------------------------------------------------------------------------------------------------------- meanwhile */

typedef struct meanwhile {
    double next_renewal, next_look;
    char request_oid[BUS_OID]; /* of the request as it was read */
    bool cancelled, lost;
} meanwhile;

static void look_for_cancel(worker *w, const incoming *in, meanwhile *m, kakeya_error *error) {
    bus_ref *refs;
    size_t n;
    if (bus_list(w->bus, in->nonce, &refs, &n, error) != KAKEYA_OK) return;
    bool changed = n && *refs[0].oid[BUS_REQUEST] && strcmp(refs[0].oid[BUS_REQUEST], m->request_oid) != 0;
    if (changed) {
        bus_tree tree;
        if (bus_fetch(w->bus, BUS_REQUEST, in->nonce, worker_request_rules, worker_request_rules_n, &tree, error) ==
            KAKEYA_OK) {
            m->cancelled = worker_is_cancelled(w, &tree, &in->request);
            bus_tree_free(&tree);
        }
        memcpy(m->request_oid, refs[0].oid[BUS_REQUEST], BUS_OID); /* not again */
    }
    free(refs);
}

/* A sign of life with the end of the log. */
static void renew(worker *w, const incoming *in, int attempt, const char *folder, char oid[BUS_OID], meanwhile *m) {
    size_t bytes = 0;
    kakeya_error error;
    char next[BUS_OID], *tail = runner_log_tail(folder, CLAIM_MAX_TAIL, &bytes);
    kakeya_status status =
        worker_claim(w, in->nonce, oid, attempt, count_rows(folder), tail, bytes, next, &m->lost, &error);
    if (status == KAKEYA_OK && !m->lost) {
        memcpy(oid, next, BUS_OID);
    } else if (status != KAKEYA_OK && !worker_stopped(w)) {
        worker_event(w, in->nonce, "no sign of life could be given: %s", error.message);
    }
    free(tail);
}

static bool attend(worker *w, incoming *in, int attempt, const char *folder, runner *run, char oid[BUS_OID],
                   meanwhile *m, runner_end *end) {
    bool asked = false;
    while (!runner_wait(run, 0.2, end)) {
        double now = clock_seconds();
        if (!asked && now >= m->next_look) {
            look_for_cancel(w, in, m, &(kakeya_error){0});
            m->next_look = clock_seconds() + w->options->poll_seconds;
        }
        if (!asked && now >= m->next_renewal) {
            renew(w, in, attempt, folder, oid, m);
            m->next_renewal = clock_seconds() + w->config.limits.renew_seconds;
        }
        if (!asked && (m->cancelled || m->lost || worker_stopped(w))) {
            asked = true;
            runner_stop(run);
        }
    }
    return asked;
}

/* Seconds that the run may take: its preset's, this worker's and what is left of the requester's day. */
static double allowed_seconds(const worker *w, const incoming *in, const preset *p) {
    int day = 0, minutes = p->minutes < w->config.limits.minutes ? p->minutes : w->config.limits.minutes;
    double seconds = 60.0 * minutes;
    config_may(&w->config, in->principal, p->name, &day);
    double left = 60.0 * day - served_seconds_today(w->served, in->principal, worker_now());
    return day && left < seconds ? left : seconds;
}

kakeya_status worker_run(worker *w, incoming *in, int attempt, char oid[BUS_OID], bool *lost, kakeya_error *error) {
    const preset *p = preset_find(in->request.preset);
    char *folder = worker_run_folder(w, in->nonce, true, error), *home = NULL, *temporary = NULL;
    preset_command *command = malloc(sizeof *command);
    result *r = malloc(sizeof *r);
    bool named = folder && asprintf(&home, "HOME=%s", folder) > 0 && asprintf(&temporary, "TMPDIR=%s/tmp", folder) > 0;
    const char *const fixed[] = {
        "PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8", "NO_COLOR=1", home, temporary, NULL};
    static const char *const kept[] = {"CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", NULL};
    char **environment = named ? process_environment_of(fixed, kept) : NULL;
    kakeya_status status =
        command && r && environment ? KAKEYA_OK : error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    *lost = false;
    if (status == KAKEYA_OK && !runner_wait_alone(folder, 30))
        status = error_set(error, KAKEYA_IO, "an earlier run has not ended yet");
    if (status == KAKEYA_OK) status = prepare_folder(w, in, folder, oid, error);
    if (status == KAKEYA_OK)
        status = served_add(w->served, worker_now(), in->nonce, in->sha256, SERVED_START, in->principal, 0, error);
    runner run;
    meanwhile m = {.cancelled = false};
    if (status == KAKEYA_OK) {
        preset_make_command(p, &in->request, command);
        worker_begin_result(w, in, r);
        r->attempt = attempt;
        for (size_t i = 0; i < command->n && i < RESULT_MAX_WORDS; i++)
            snprintf(r->word[r->n_words++], sizeof r->word[0], "%s", command->word[i]);
        command->word[0] = w->config.program;
        double seconds = allowed_seconds(w, in, p);
        long processors = sysconf(_SC_NPROCESSORS_ONLN);
        const config_limits *limits = &w->config.limits;
        runner_job job = {
            .argv = command->word,
            .name = r->word[0],
            .environment = (const char *const *)environment,
            .folder = folder,
            .output = p->gated ? NULL : document_output,
            .seconds = seconds,
            .grace_seconds = limits->grace_seconds,
            .limits = {.cpu_seconds = limits->cpu_seconds
                                          ? limits->cpu_seconds
                                          : (size_t)(seconds * (double)(processors > 0 ? processors : 1)) + 1,
                       .file_bytes = limits->file_bytes,
                       .memory_bytes = limits->memory_bytes,
                       .no_network = true},
            .log_bytes = limits->log_bytes,
            .output_bytes = RESULT_MAX_REPORT};
        worker_event(w, in->nonce, "runs %s for %s (attempt %d, at most %.0f s)", p->name, in->principal, attempt,
                     seconds);
        status = runner_start(&job, &run, error);
    }
    if (status == KAKEYA_OK) {
        runner_end end;
        memcpy(m.request_oid, in->tree.oid, BUS_OID);
        m.next_look = clock_seconds() + w->options->poll_seconds;
        m.next_renewal = clock_seconds() + w->config.limits.renew_seconds;
        bool asked = attend(w, in, attempt, folder, &run, oid, &m, &end);
        *lost = m.lost;
        if (asked && !m.cancelled && !m.lost && end.reason == RUNNER_STOPPED) {
            status = error_set(error, KAKEYA_CANCELLED, "stopped; it runs again with the next worker");
        } else if (!m.lost) {
            if (end.reason == RUNNER_FAILED) worker_event(w, in->nonce, "%s", end.message);
            set_outcome(r, &end, m.cancelled);
            status = conclude(w, in, p, r, folder, error);
        }
    }
    process_environment_free(environment);
    free(home);
    free(temporary);
    free(folder);
    free(command);
    free(r);
    return status;
}
