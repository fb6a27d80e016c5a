/* Reports: one JSON object of kind, command, environment, options, raw rows and a summary derived from the rows. A
 * report file is always readable: it is written whole beside its final name and renamed, first empty, then after the
 * first row and after every few seconds, and "complete" only at the end. A pipe or a device gets the report once, at
 * the end. docs/reference/reports.md documents the format. */
#ifndef KAKEYA_MEASURE_REPORT_H
#define KAKEYA_MEASURE_REPORT_H

#include "base/files.h"
#include "measure/rows.h"

enum { EVAL_SCHEMA_VERSION = 2 };

typedef struct eval_report {
    eval_kind kind;
    char *path;         /* NULL: kept in memory only */
    cJSON *command;     /* array of strings: the command line */
    cJSON *environment; /* object, from environment_describe */
    cJSON *options;     /* object: every option of the evaluation, defaults included */
    eval_rows rows;
    cJSON *logits; /* verify: what a comparison with logits from elsewhere has found; NULL: there was none */
    bool complete;
    double begun_at;     /* clock_seconds of eval_report_open */
    double saved_at;     /* of the last save */
    file_writer *stream; /* where `path` is a pipe or a device: open until the end */
} eval_report;

/* Takes environment and options over (freed with the report, also on failure). With a path, writes the empty report at
 * once, so that an unwritable file is noticed before hours of work. */
kakeya_status eval_report_open(eval_kind kind, const char *path, int argc, const char *const *argv, cJSON *environment,
                               cJSON *options, eval_report **out, kakeya_error *error);
/* Moves *row into the report and saves it: the first, and later ones when the last save is some seconds old. */
kakeya_status eval_report_add(eval_report *report, eval_row *row, kakeya_error *error);
/* Saves with complete = true where the evaluation came to its end. */
kakeya_status eval_report_finish(eval_report *report, bool complete, kakeya_error *error);
void eval_report_close(eval_report *report); /* NULL is fine */

/* The whole report; freed by the caller with cJSON_Delete. NULL when out of memory. */
cJSON *eval_report_to_json(const eval_report *report);

/* What the machine and the build are: version, CPU, cores, memory, system, date. */
cJSON *environment_describe(void);

#endif
