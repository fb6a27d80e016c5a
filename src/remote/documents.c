#include "remote/documents.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

const char document_report[] = "report.json", document_output[] = "output.json", document_log[] = "log.txt",
           document_tail[] = "tail.txt";

static const char *const result_files[] = {document_report, document_output, document_log};
enum { RESULT_FILES = sizeof result_files / sizeof result_files[0] };

/* ---------------------------------------------------------------------------------------------------------- common */

static kakeya_status print(cJSON *object, char **text, size_t *bytes, kakeya_error *error) {
    char *printed = cJSON_Print(object);
    cJSON_Delete(object);
    *bytes = printed ? strlen(printed) + 1 : 0;
    *text = printed ? malloc(*bytes + 1) : NULL;
    if (*text) snprintf(*text, *bytes + 1, "%s\n", printed);
    cJSON_free(printed);
    return *text ? KAKEYA_OK : error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
}

static cJSON *document(const char *kind) {
    cJSON *object = cJSON_CreateObject();
    cJSON_AddNumberToObject(object, "version", 1);
    cJSON_AddStringToObject(object, "kind", kind);
    return object;
}

static void add_time(cJSON *object, const char *key, int64_t seconds) {
    char text[REMOTE_TIME];
    remote_time_write(seconds, text);
    cJSON_AddStringToObject(object, key, text);
}

static kakeya_status parse(const char *name, const char *kind, const char *text, size_t bytes, cJSON **object,
                           json_reader *reader, kakeya_error *error) {
    *object = NULL;
    *reader = (json_reader){.name = name, .error = error};
    if (bytes > DOCUMENT_MAX_BYTES) return error_set(error, KAKEYA_FORMAT, "%s: %zu bytes", name, bytes);
    kakeya_status status = json_parse_object(name, text, bytes, object, error);
    if (status == KAKEYA_OK) status = json_refuse_repeated_keys(name, *object, error);
    if (status != KAKEYA_OK) return status;
    json_required_int(reader, *object, "version", 1, 1);
    if (strcmp(json_string(reader, *object, "kind", ""), kind) != 0)
        json_fail(reader, KAKEYA_FORMAT, "it is no %s", kind);
    return reader->status;
}

typedef bool form(const char *text);

static bool any_text(const char *text) { return text != NULL; }

/* A string of the form that fits into out[size]. */
static void take(json_reader *reader, const cJSON *object, const char *key, form *is_good, char *out, size_t size) {
    const char *text = json_string(reader, object, key, NULL);
    if (reader->status != KAKEYA_OK) return;
    if (!text || !is_good(text) || strlen(text) >= size) {
        json_fail(reader, KAKEYA_FORMAT, "%s is not what it should be", key);
        return;
    }
    size_t length = remote_printable(memcpy(out, text, strlen(text) + 1), strlen(text));
    out[length] = '\0';
}

static int64_t take_time(json_reader *reader, const cJSON *object, const char *key) {
    int64_t seconds = 0;
    if (!remote_time_read(json_string(reader, object, key, ""), &seconds))
        json_fail(reader, KAKEYA_FORMAT, "%s is no time", key);
    return seconds;
}

/* ----------------------------------------------------------------------------------------------------------- claims */

kakeya_status claim_write(const claim *c, char **text, size_t *bytes, kakeya_error *error) {
    cJSON *object = document("claim");
    cJSON_AddStringToObject(object, "nonce", c->nonce);
    cJSON_AddStringToObject(object, "worker", c->worker);
    cJSON_AddNumberToObject(object, "attempt", c->attempt);
    add_time(object, "since", c->since);
    add_time(object, "lease_until", c->lease_until);
    cJSON_AddNumberToObject(object, "rows", c->rows);
    cJSON_AddStringToObject(object, "host", c->host);
    cJSON_AddStringToObject(object, "tail_sha256", c->tail_sha256);
    return print(object, text, bytes, error);
}

kakeya_status claim_read(const char *text, size_t bytes, claim *out, kakeya_error *error) {
    cJSON *object;
    json_reader reader;
    *out = (claim){.attempt = 0};
    kakeya_status status = parse("claim.json", "claim", text, bytes, &object, &reader, error);
    if (status == KAKEYA_OK) {
        take(&reader, object, "nonce", remote_is_nonce, out->nonce, sizeof out->nonce);
        take(&reader, object, "worker", remote_is_name, out->worker, sizeof out->worker);
        out->attempt = json_required_int(&reader, object, "attempt", 1, 1000);
        out->since = take_time(&reader, object, "since");
        out->lease_until = take_time(&reader, object, "lease_until");
        out->rows = json_int(&reader, object, "rows", 0, 1 << 30, 0);
        take(&reader, object, "host", any_text, out->host, sizeof out->host);
        take(&reader, object, "tail_sha256", remote_is_sha256, out->tail_sha256, sizeof out->tail_sha256);
        status = reader.status;
    }
    cJSON_Delete(object);
    return status;
}

/* ---------------------------------------------------------------------------------------------------------- results */

void result_add_file(result *r, const char *name, const void *data, size_t bytes) {
    if (r->n_files == RESULT_MAX_FILES) return;
    snprintf(r->file[r->n_files].name, sizeof r->file[0].name, "%s", name);
    remote_sha256(data, bytes, r->file[r->n_files++].sha256);
}

kakeya_status result_write(const result *r, char **text, size_t *bytes, kakeya_error *error) {
    cJSON *object = document("result");
    cJSON_AddStringToObject(object, "nonce", r->nonce);
    cJSON_AddStringToObject(object, "request_sha256", r->request_sha256);
    cJSON_AddStringToObject(object, "requested_by", r->requested_by);
    cJSON_AddStringToObject(object, "preset", r->preset);
    cJSON_AddStringToObject(object, "outcome", r->outcome);
    cJSON_AddStringToObject(object, "reason", r->reason);
    cJSON *words = cJSON_AddArrayToObject(object, "argv");
    for (size_t i = 0; i < r->n_words; i++) cJSON_AddItemToArray(words, cJSON_CreateString(r->word[i]));
    cJSON_AddNumberToObject(object, "exit_status", r->exit_status);
    cJSON_AddNumberToObject(object, "seconds", (double)(long long)(r->seconds * 10) / 10);
    cJSON *gate = cJSON_AddObjectToObject(object, "gate");
    cJSON_AddStringToObject(gate, "verdict", r->verdict);
    cJSON *codes = cJSON_AddArrayToObject(gate, "codes");
    for (size_t i = 0; i < r->n_codes; i++) cJSON_AddItemToArray(codes, cJSON_CreateString(r->code[i]));
    cJSON *files = cJSON_AddObjectToObject(object, "files");
    for (size_t i = 0; i < r->n_files; i++) cJSON_AddStringToObject(files, r->file[i].name, r->file[i].sha256);
    cJSON_AddStringToObject(object, "worker", r->worker);
    cJSON_AddNumberToObject(object, "attempt", r->attempt);
    cJSON_AddStringToObject(object, "host", r->host);
    add_time(object, "finished", r->finished);
    return print(object, text, bytes, error);
}

static bool is_outcome(const char *text) {
    static const char *const outcomes[] = {"done", "failed", "timed_out", "cancelled", "rejected"};
    for (size_t i = 0; i < sizeof outcomes / sizeof outcomes[0]; i++)
        if (strcmp(outcomes[i], text) == 0) return true;
    return false;
}

static bool is_verdict(const char *text) {
    return strcmp(text, "passed") == 0 || strcmp(text, "refused") == 0 || strcmp(text, "none") == 0;
}

/* Strings of an array into out[most][size], printable. */
static size_t take_texts(json_reader *reader, const cJSON *object, const char *key, char *out, size_t most,
                         size_t size) {
    const cJSON *item, *array = json_array(reader, object, key);
    size_t n = 0;
    cJSON_ArrayForEach(item, array) {
        if (n == most || !cJSON_IsString(item) || strlen(item->valuestring) >= size) {
            json_fail(reader, KAKEYA_FORMAT, "%s is not what it should be", key);
            return n;
        }
        char *to = out + n++ * size;
        size_t length =
            remote_printable(memcpy(to, item->valuestring, strlen(item->valuestring) + 1), strlen(item->valuestring));
        to[length] = '\0';
    }
    return n;
}

static void take_files(json_reader *reader, const cJSON *files, result *out) {
    const cJSON *item;
    cJSON_ArrayForEach(item, files) {
        bool known = false;
        for (size_t i = 0; i < RESULT_FILES; i++) known |= strcmp(result_files[i], item->string) == 0;
        if (!known || out->n_files == RESULT_MAX_FILES || !cJSON_IsString(item) ||
            !remote_is_sha256(item->valuestring)) {
            json_fail(reader, KAKEYA_FORMAT, "files holds something else than files");
            return;
        }
        snprintf(out->file[out->n_files].name, sizeof out->file[0].name, "%s", item->string);
        memcpy(out->file[out->n_files++].sha256, item->valuestring, REMOTE_SHA256);
    }
}

kakeya_status result_read(const char *text, size_t bytes, result *out, kakeya_error *error) {
    cJSON *object;
    json_reader reader;
    *out = (result){.attempt = 0};
    kakeya_status status = parse("result.json", "result", text, bytes, &object, &reader, error);
    if (status == KAKEYA_OK) {
        take(&reader, object, "nonce", remote_is_nonce, out->nonce, sizeof out->nonce);
        take(&reader, object, "request_sha256", remote_is_sha256, out->request_sha256, sizeof out->request_sha256);
        take(&reader, object, "requested_by", any_text, out->requested_by, sizeof out->requested_by);
        take(&reader, object, "preset", any_text, out->preset, sizeof out->preset);
        take(&reader, object, "outcome", is_outcome, out->outcome, sizeof out->outcome);
        take(&reader, object, "reason", any_text, out->reason, sizeof out->reason);
        take(&reader, object, "worker", remote_is_name, out->worker, sizeof out->worker);
        take(&reader, object, "host", any_text, out->host, sizeof out->host);
        out->n_words = take_texts(&reader, object, "argv", out->word[0], RESULT_MAX_WORDS, sizeof out->word[0]);
        out->exit_status = json_int(&reader, object, "exit_status", -1, 1 << 20, -1);
        out->attempt = json_int(&reader, object, "attempt", 0, 1000, 0);
        out->seconds = json_number(&reader, object, "seconds", 0, 1e9, 0);
        const cJSON *gate = json_object(&reader, object, "gate");
        take(&reader, gate, "verdict", is_verdict, out->verdict, sizeof out->verdict);
        out->n_codes = take_texts(&reader, gate, "codes", out->code[0], RESULT_MAX_CODES, sizeof out->code[0]);
        take_files(&reader, json_object(&reader, object, "files"), out);
        out->finished = take_time(&reader, object, "finished");
        status = reader.status;
    }
    cJSON_Delete(object);
    return status;
}

/* ---------------------------------------------------------------------------------------------------- cancellations */

kakeya_status cancel_write(const cancel *c, char **text, size_t *bytes, kakeya_error *error) {
    cJSON *object = document("cancel");
    cJSON_AddStringToObject(object, "nonce", c->nonce);
    cJSON_AddStringToObject(object, "requested_by", c->requested_by);
    cJSON_AddStringToObject(object, "bus", c->bus);
    return print(object, text, bytes, error);
}

kakeya_status cancel_read(const char *text, size_t bytes, cancel *out, kakeya_error *error) {
    cJSON *object;
    json_reader reader;
    *out = (cancel){.nonce = ""};
    kakeya_status status = parse("cancel.json", "cancel", text, bytes, &object, &reader, error);
    if (status == KAKEYA_OK) {
        take(&reader, object, "nonce", remote_is_nonce, out->nonce, sizeof out->nonce);
        take(&reader, object, "requested_by", remote_is_name, out->requested_by, sizeof out->requested_by);
        take(&reader, object, "bus", remote_is_sha256, out->bus, sizeof out->bus);
        status = reader.status;
    }
    cJSON_Delete(object);
    return status;
}
