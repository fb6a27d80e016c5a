#include "remote/gate_check.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/files.h"
#include "base/json.h"
#include "base/platform.h"
#include "remote/process.h"

static const double gate_seconds = 300, replay_seconds = 24 * 60 * 60;
enum { GATE_OUTPUT = 4 << 20, GATE_CPU_SECONDS = 300 };
static const size_t gate_memory = (size_t)4 << 30;

char *gate_own_program(kakeya_error *error) {
    char path[PATH_MAX];
    if (platform_program(path, sizeof path)) {
        static const char gone[] = " (deleted)"; /* replaced by another version meanwhile, which is then the program */
        size_t length = strlen(path), kept = length - (sizeof gone - 1);
        if (length > sizeof gone && strcmp(path + kept, gone) == 0) path[kept] = '\0';
        if (file_exists(path)) return strdup(path);
    }
    error_set(error, KAKEYA_IO, "the path of this program cannot be found out: set \"program\" in remote.json");
    return NULL;
}

static void add_code(result *r, const char *code) {
    for (size_t i = 0; i < r->n_codes; i++)
        if (strcmp(r->code[i], code) == 0) return;
    if (r->n_codes < RESULT_MAX_CODES) snprintf(r->code[r->n_codes++], sizeof r->code[0], "%.31s", code);
}

/* What the gate says of a replay, in one line. */
static void take_replay(const cJSON *json, gate_replay *replay) {
    const cJSON *found = json_get(json, "detection_probability"), *rows = json_get(json, "replayed_rows"),
                *compared = json_get(json, "compared"), *one = json_get(found, "one_row"),
                *half = json_get(found, "half_an_arm"), *arm = json_get(found, "whole_arm");
    if (cJSON_IsNumber(rows) && cJSON_IsString(compared) && cJSON_IsNumber(one) && cJSON_IsNumber(half) &&
        cJSON_IsNumber(arm))
        snprintf(replay->outcome, sizeof replay->outcome,
                 "%.0f rows computed again, compared %s; a change is found with probability %.3g in one row, %.3g "
                 "in half of an arm, %.3g in a whole arm",
                 rows->valuedouble, strcmp(compared->valuestring, "bits") == 0 ? "bit for bit" : "within bounds",
                 one->valuedouble, half->valuedouble, arm->valuedouble);
}

static void take_answer(const process_answer *answer, gate_replay *replay, result *r) {
    cJSON *object = NULL;
    const cJSON *report, *violation;
    json_parse_object("gate", answer->output, answer->bytes, &object, NULL);
    bool passed = answer->exit_status == 0 && cJSON_IsTrue(json_get(object, "passed"));
    snprintf(r->verdict, sizeof r->verdict, "%s", passed ? "passed" : "refused");
    cJSON_ArrayForEach(report, json_get(object, "reports")) {
        if (replay) take_replay(json_get(report, "replay"), replay);
        cJSON_ArrayForEach(violation, json_get(report, "violations")) {
            const cJSON *code = json_get(violation, "code");
            if (cJSON_IsString(code)) add_code(r, code->valuestring);
        }
    }
    cJSON_Delete(object);
    if (!passed && !r->n_codes) add_code(r, "NO_VERDICT");
}

kakeya_status gate_check_report(const char *program, const char *folder, gate_replay *replay, result *r,
                                kakeya_error *error) {
    static const char *const fixed[] = {"PATH=/usr/bin:/bin", "LANG=C.UTF-8", NULL};
    /* where models and the caches of models are */
    static const char *const models[] = {"HOME", "KAKEYA_MODEL", "HF_HOME", "HF_HUB_CACHE", NULL};
    enum { MAX_WORDS = 12 };
    char *path = path_join(folder, document_report);
    char **environment = process_environment_of(fixed, replay ? models : (const char *const[]){NULL});
    if (!path || !environment) {
        free(path);
        process_environment_free(environment);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    }
    const char *argv[MAX_WORDS] = {program, "gate", "--json", path};
    process_call call = {
        .argv = argv,
        .environment = (const char *const *)environment,
        .most_output = GATE_OUTPUT,
        .seconds = gate_seconds,
        .limits = {
            .cpu_seconds = GATE_CPU_SECONDS, .file_bytes = 1 << 20, .memory_bytes = gate_memory, .no_network = true}};
    if (replay) {
        size_t n = 4;
        const char *const options[][2] = {
            {"--replay", replay->rows}, {"--model", replay->model}, {"--files", replay->files}};
        for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
            if (!options[i][1]) continue;
            argv[n++] = options[i][0];
            argv[n++] = options[i][1];
        }
        call.seconds = replay_seconds;
        call.limits = (process_limits){.file_bytes = 1 << 20, .no_network = true};
    }
    process_answer answer = {0};
    r->n_codes = 0;
    kakeya_error cause;
    if (process_run(&call, &answer, &cause) == KAKEYA_OK) {
        take_answer(&answer, replay, r);
    } else {
        snprintf(r->verdict, sizeof r->verdict, "refused");
        add_code(r, "NO_VERDICT");
    }
    process_answer_free(&answer);
    process_environment_free(environment);
    free(path);
    return KAKEYA_OK;
}
