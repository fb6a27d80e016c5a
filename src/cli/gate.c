/* kakeya gate: derives every verdict of a report again from its raw rows. */
#include "measure/gate.h"

#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/terminal.h"

static const cli_command command = {
    .name = "gate",
    .summary = "Checks reports of `kakeya eval`: derives every verdict again from the raw rows.",
    .operands = "FILE...",
    .details = "Exit status 0 if every report passes, 1 otherwise, with one line '[CODE] what is wrong' per violation. "
               "The codes are\n"
               "explained in docs/reports.md.\n",
    .examples = "  kakeya eval niah --report r.json && kakeya gate r.json\n",
};

static cJSON *result_json(const char *path, const gate_result *result) {
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "file", path);
    if (result->recognised) {
        cJSON_AddStringToObject(object, "kind", result->kind_name);
    } else {
        cJSON_AddNullToObject(object, "kind");
    }
    cJSON_AddBoolToObject(object, "passed", result->n_violations == 0);
    cJSON_AddNumberToObject(object, "rows", (double)result->rows);
    cJSON *violations = cJSON_AddArrayToObject(object, "violations");
    for (size_t i = 0; i < result->n_violations; i++) {
        cJSON *violation = cJSON_CreateObject();
        cJSON_AddStringToObject(violation, "code", result->violation[i].code);
        cJSON_AddStringToObject(violation, "message", result->violation[i].message);
        cJSON_AddItemToArray(violations, violation);
    }
    if (result->note[0]) cJSON_AddStringToObject(object, "note", result->note);
    return object;
}

static void print_result(const char *path, const gate_result *result) {
    if (!result->n_violations) {
        printf("%s: passed (%s, %zu rows)\n", path, result->kind_name, result->rows);
    } else {
        printf("%s: refused\n", path);
    }
    for (size_t i = 0; i < result->n_violations; i++)
        printf("  [%s] %s\n", result->violation[i].code, result->violation[i].message);
    if (result->note[0]) printf("  note: %s\n", result->note);
}

int cli_gate(int argc, char **argv) {
    bool json = false;
    const cli_option own[] = {
        CLI_OPTION(.name = "json", .kind = CLI_FLAG, .target = &json, .help = "print one JSON object on stdout"),
        {.name = NULL},
    };
    int first, status;
    if (!cli_parse(&command, own, NULL, argc, argv, &first, &status)) return status;
    if (first == argc) return cli_usage_error(&command, "name at least one report");

    bool passed = true;
    cJSON *reports = cJSON_CreateArray();
    for (int i = first; i < argc; i++) {
        gate_result result;
        kakeya_error error = {0};
        if (gate_check_file(argv[i], &result, &error) != KAKEYA_OK) {
            gate_result_free(&result);
            cJSON_Delete(reports);
            return cli_fail(command.name, &error);
        }
        passed &= result.n_violations == 0;
        if (json) {
            cJSON_AddItemToArray(reports, result_json(argv[i], &result));
        } else {
            print_result(argv[i], &result);
        }
        gate_result_free(&result);
    }
    if (json) {
        cJSON *object = cJSON_CreateObject();
        cJSON_AddBoolToObject(object, "passed", passed);
        cJSON_AddItemToObject(object, "reports", reports);
        char *text = cJSON_PrintUnformatted(object);
        if (text && terminal_write(text, strlen(text))) terminal_write("\n", 1);
        cJSON_free(text);
        cJSON_Delete(object);
    } else {
        cJSON_Delete(reports);
    }
    return passed ? CLI_DONE : CLI_FAILED;
}
