#include "measure/report.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/files.h"
#include "base/json.h"
#include "measure/summary.h"

static const double save_interval_seconds = 5;

cJSON *eval_report_to_json(const eval_report *report) {
    cJSON *object = cJSON_CreateObject();
    cJSON *rows = cJSON_CreateArray();
    cJSON *summary = eval_summary_derive(report->kind, &report->rows);
    if (!object || !rows || !summary) {
        cJSON_Delete(object);
        cJSON_Delete(rows);
        cJSON_Delete(summary);
        return NULL;
    }
    cJSON_AddStringToObject(object, "kind", eval_kind_name(report->kind));
    cJSON_AddNumberToObject(object, "schema_version", EVAL_SCHEMA_VERSION);
    cJSON_AddBoolToObject(object, "complete", report->complete);
    json_add_reference(object, "command", report->command);
    json_add_reference(object, "environment", report->environment);
    json_add_reference(object, "options", report->options);
    cJSON_AddItemToObject(object, "summary", summary);
    cJSON_AddItemToObject(object, "rows", rows);
    if (report->logits) json_add_reference(object, "logits", report->logits);
    for (size_t i = 0; i < report->rows.n; i++) {
        cJSON *row = eval_row_to_json(report->kind, &report->rows.row[i]);
        if (!row) {
            cJSON_Delete(object);
            return NULL;
        }
        cJSON_AddItemToArray(rows, row);
    }
    return object;
}

/* Writes the report as it stands; the writer is used up. */
static kakeya_status write_report(const eval_report *report, file_writer *writer, kakeya_error *error) {
    cJSON *object = eval_report_to_json(report);
    char *text = object ? cJSON_PrintUnformatted(object) : NULL;
    cJSON_Delete(object);
    if (!text) {
        file_writer_abort(writer);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory to write the report", report->path);
    }
    kakeya_status status = file_writer_write(writer, text, strlen(text), error);
    if (status == KAKEYA_OK) status = file_writer_write(writer, "\n", 1, error);
    if (status == KAKEYA_OK) {
        status = file_writer_commit(writer, error);
    } else {
        file_writer_abort(writer);
    }
    cJSON_free(text);
    return status;
}

/* What was written to a pipe or a device cannot be replaced: such a report is opened at once and written at its end. */
static kakeya_status save(eval_report *report, bool last, kakeya_error *error) {
    if (!report->path || (report->stream && !last)) return KAKEYA_OK;
    file_writer *writer = report->stream;
    report->stream = NULL;
    kakeya_status status = writer ? KAKEYA_OK : file_writer_open(report->path, &writer, error);
    if (status == KAKEYA_OK && !last && file_writer_is_stream(writer)) {
        report->stream = writer;
        return KAKEYA_OK;
    }
    if (status == KAKEYA_OK) status = write_report(report, writer, error);
    report->saved_at = clock_seconds();
    return status;
}

kakeya_status eval_report_open(eval_kind kind, const char *path, int argc, const char *const *argv, cJSON *environment,
                               cJSON *options, eval_report **out, kakeya_error *error) {
    *out = NULL;
    eval_report *report = calloc(1, sizeof *report);
    cJSON *command = cJSON_CreateStringArray(argv, argc);
    char *copy = path ? strdup(path) : NULL;
    if (!report || !environment || !options || !command || (path && !copy)) {
        free(report);
        free(copy);
        cJSON_Delete(command);
        cJSON_Delete(environment);
        cJSON_Delete(options);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for a report");
    }
    *report = (eval_report){.kind = kind,
                            .path = copy,
                            .command = command,
                            .environment = environment,
                            .options = options,
                            .begun_at = clock_seconds()};
    kakeya_status status = save(report, false, error);
    if (status != KAKEYA_OK) {
        eval_report_close(report);
        return status;
    }
    *out = report;
    return KAKEYA_OK;
}

kakeya_status eval_report_add(eval_report *report, eval_row *row, kakeya_error *error) {
    kakeya_status status = eval_rows_add(&report->rows, row, error);
    if (status != KAKEYA_OK) return status;
    bool due = report->rows.n == 1 || clock_seconds() - report->saved_at >= save_interval_seconds;
    return due ? save(report, false, error) : KAKEYA_OK;
}

kakeya_status eval_report_finish(eval_report *report, bool complete, kakeya_error *error) {
    report->complete = complete;
    return save(report, true, error);
}

void eval_report_close(eval_report *report) {
    if (!report) return;
    file_writer_abort(report->stream);
    free(report->path);
    cJSON_Delete(report->command);
    cJSON_Delete(report->environment);
    cJSON_Delete(report->options);
    cJSON_Delete(report->logits);
    eval_rows_free(&report->rows);
    free(report);
}
