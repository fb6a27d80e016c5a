/* The gate: derives every verdict of a report again from its raw rows, and refuses reports that cannot show it. Rules
 * have stable codes (docs/reference/reports.md lists them). */
#ifndef KAKEYA_MEASURE_GATE_H
#define KAKEYA_MEASURE_GATE_H

#include "measure/rows.h"

typedef struct gate_violation {
    const char *code; /* static text, e.g. "RECALL" */
    char message[320];
} gate_violation;

typedef struct gate_result {
    bool recognised; /* kind_name is set, and kind, unless parts of the report are judged by kinds of their own */
    const char *kind_name;
    eval_kind kind;
    size_t rows;               /* rows that the rules looked at */
    gate_violation *violation; /* [n_violations] */
    size_t n_violations;
    char note[320]; /* "" or something the report does not show and need not show */
} gate_result;

/* Judges one report file. A file that cannot be judged (missing, not JSON, another program's, another schema) is a
 * violation like any other; only lack of memory is an error. *out needs gate_result_free in every case. */
kakeya_status gate_check_file(const char *path, gate_result *out, kakeya_error *error);
/* The same, which hands the parsed file out (cJSON_Delete; NULL where it is not JSON). */
kakeya_status gate_read_file(const char *path, gate_result *out, cJSON **report, kakeya_error *error);
/* The same for a report in memory. */
kakeya_status gate_check(const cJSON *report, gate_result *out, kakeya_error *error);
/* Adds a violation that comes from somewhere else. */
kakeya_status gate_refuse(gate_result *result, const char *code, const char *message, kakeya_error *error);
void gate_result_free(gate_result *result);

#endif
