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

static const double gate_seconds = 300;
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

static void take_answer(const process_answer *answer, result *r) {
    cJSON *object = NULL;
    const cJSON *report, *violation;
    json_parse_object("gate", answer->output, answer->bytes, &object, NULL);
    bool passed = answer->exit_status == 0 && cJSON_IsTrue(json_get(object, "passed"));
    snprintf(r->verdict, sizeof r->verdict, "%s", passed ? "passed" : "refused");
    cJSON_ArrayForEach(report, json_get(object, "reports")) {
        cJSON_ArrayForEach(violation, json_get(report, "violations")) {
            const cJSON *code = json_get(violation, "code");
            if (cJSON_IsString(code)) add_code(r, code->valuestring);
        }
    }
    cJSON_Delete(object);
    if (!passed && !r->n_codes) add_code(r, "NO_VERDICT");
}

kakeya_status gate_check_report(const char *program, const char *folder, result *r, kakeya_error *error) {
    char *path = path_join(folder, document_report);
    if (!path) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    const char *const argv[] = {program, "gate", "--json", path, NULL};
    const char *const environment[] = {"PATH=/usr/bin:/bin", "LANG=C.UTF-8", NULL};
    process_call call = {
        .argv = argv,
        .environment = environment,
        .most_output = GATE_OUTPUT,
        .seconds = gate_seconds,
        .limits = {.cpu_seconds = GATE_CPU_SECONDS, .file_bytes = 1 << 20, .memory_bytes = gate_memory}};
    process_answer answer = {0};
    r->n_codes = 0;
    kakeya_error cause;
    if (process_run(&call, &answer, &cause) == KAKEYA_OK) {
        take_answer(&answer, r);
    } else {
        snprintf(r->verdict, sizeof r->verdict, "refused");
        add_code(r, "NO_VERDICT");
    }
    process_answer_free(&answer);
    free(path);
    return KAKEYA_OK;
}
