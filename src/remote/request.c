#include "remote/request.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"

static const char file_name[] = "request.json";

static bool is_value(const char *text) {
    static const char set[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._,+-";
    size_t length = strspn(text, set);
    return length > 0 && length < REQUEST_VALUE && !text[length] && text[0] != '-';
}

/* Characters that no form of ours has cannot hide anything in escapes, in what terminals do with them, or behind a NUL.
 */
static kakeya_status check_characters(const char *text, size_t bytes, kakeya_error *error) {
    if (bytes > REQUEST_MAX_BYTES)
        return error_set(error, KAKEYA_FORMAT, "%s: %zu bytes, more than %d", file_name, bytes, REQUEST_MAX_BYTES);
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)text[i];
        bool blank = c == '\n' || c == '\t' || c == '\r';
        if ((c < 0x20 && !blank) || c > 0x7e || c == '\\')
            return error_set(error, KAKEYA_FORMAT, "%s: byte %zu is 0x%02x", file_name, i, c);
    }
    return KAKEYA_OK;
}

typedef bool form(const char *text);

/* Copies a string of the form into out[size]. The caller has sized it for the form. */
static void read_text(json_reader *reader, const cJSON *object, const char *key, form *is_good, char *out,
                      size_t size) {
    const char *text = json_string(reader, object, key, NULL);
    if (reader->status != KAKEYA_OK) return;
    if (!text) {
        json_fail(reader, KAKEYA_FORMAT, "%s is missing", key);
    } else if (!is_good(text) || strlen(text) >= size) {
        json_fail(reader, KAKEYA_FORMAT, "%s is '%.80s', which is not a valid %s", key, text, key);
    } else {
        memcpy(out, text, strlen(text) + 1);
    }
}

static int64_t read_time(json_reader *reader, const cJSON *object, const char *key) {
    int64_t seconds = 0;
    const char *text = json_string(reader, object, key, NULL);
    if (reader->status == KAKEYA_OK && (!text || !remote_time_read(text, &seconds)))
        json_fail(reader, KAKEYA_FORMAT, "%s must be a time such as 2026-11-21T20:30:12Z", key);
    return seconds;
}

static void read_params(json_reader *reader, const cJSON *params, request *out) {
    const cJSON *item;
    cJSON_ArrayForEach(item, params) {
        if (out->n_params == REQUEST_MAX_PARAMS) {
            json_fail(reader, KAKEYA_FORMAT, "more than %d parameters", REQUEST_MAX_PARAMS);
            return;
        }
        request_param *p = &out->param[out->n_params++];
        if (!remote_is_name(item->string) || !cJSON_IsString(item) || !is_value(item->valuestring)) {
            json_fail(reader, KAKEYA_FORMAT, "parameter '%.80s': its name or its value is not valid", item->string);
            return;
        }
        memcpy(p->name, item->string, strlen(item->string) + 1);
        memcpy(p->value, item->valuestring, strlen(item->valuestring) + 1);
    }
}

static void read_inputs(json_reader *reader, const cJSON *inputs, request *out) {
    const cJSON *item;
    cJSON_ArrayForEach(item, inputs) {
        if (out->n_inputs == REQUEST_MAX_INPUTS) {
            json_fail(reader, KAKEYA_FORMAT, "more than %d inputs", REQUEST_MAX_INPUTS);
            return;
        }
        request_input *input = &out->input[out->n_inputs++];
        if (!remote_is_name(item->string) || !cJSON_IsString(item) || !remote_is_sha256(item->valuestring)) {
            json_fail(reader, KAKEYA_FORMAT, "input '%.80s': its name or its SHA-256 is not valid", item->string);
            return;
        }
        memcpy(input->name, item->string, strlen(item->string) + 1);
        memcpy(input->sha256, item->valuestring, sizeof input->sha256);
    }
}

static void check_keys(json_reader *reader, const cJSON *object) {
    static const char *const known[] = {"version", "kind",   "nonce", "preset",       "params",  "inputs",
                                        "model",   "worker", "bus",   "requested_by", "created", "expires"};
    const cJSON *item;
    cJSON_ArrayForEach(item, object) {
        bool found = false;
        for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) found |= strcmp(item->string, known[i]) == 0;
        if (!found) json_fail(reader, KAKEYA_FORMAT, "the key '%.80s' is not known", item->string);
    }
}

kakeya_status request_read(const char *text, size_t bytes, request *out, kakeya_error *error) {
    *out = (request){0};
    kakeya_status status = check_characters(text, bytes, error);
    if (status != KAKEYA_OK) return status;
    cJSON *object;
    status = json_parse_object(file_name, text, bytes, &object, error);
    if (status == KAKEYA_OK) status = json_refuse_repeated_keys(file_name, object, error);
    if (status != KAKEYA_OK) {
        cJSON_Delete(object);
        return status;
    }
    json_reader reader = {.name = file_name, .error = error};
    check_keys(&reader, object);
    json_required_int(&reader, object, "version", 1, 1);
    const char *kind = json_string(&reader, object, "kind", "");
    if (strcmp(kind, "request") != 0) json_fail(&reader, KAKEYA_FORMAT, "kind is '%.80s', not request", kind);
    read_text(&reader, object, "nonce", remote_is_nonce, out->nonce, sizeof out->nonce);
    read_text(&reader, object, "preset", remote_is_name, out->preset, sizeof out->preset);
    read_text(&reader, object, "model", remote_is_name, out->model, sizeof out->model);
    read_text(&reader, object, "worker", remote_is_name, out->worker, sizeof out->worker);
    read_text(&reader, object, "bus", remote_is_sha256, out->bus, sizeof out->bus);
    read_text(&reader, object, "requested_by", remote_is_name, out->requested_by, sizeof out->requested_by);
    out->created = read_time(&reader, object, "created");
    out->expires = read_time(&reader, object, "expires");
    const cJSON *params = json_object(&reader, object, "params"), *inputs = json_object(&reader, object, "inputs");
    if (reader.status == KAKEYA_OK) read_params(&reader, params, out);
    if (reader.status == KAKEYA_OK) read_inputs(&reader, inputs, out);
    cJSON_Delete(object);
    return reader.status;
}

static cJSON *as_json(const request *r) {
    char created[REMOTE_TIME], expires[REMOTE_TIME];
    remote_time_write(r->created, created);
    remote_time_write(r->expires, expires);
    cJSON *object = cJSON_CreateObject();
    cJSON_AddNumberToObject(object, "version", 1);
    cJSON_AddStringToObject(object, "kind", "request");
    cJSON_AddStringToObject(object, "nonce", r->nonce);
    cJSON_AddStringToObject(object, "preset", r->preset);
    cJSON *params = cJSON_AddObjectToObject(object, "params");
    for (size_t i = 0; i < r->n_params; i++) cJSON_AddStringToObject(params, r->param[i].name, r->param[i].value);
    cJSON *inputs = cJSON_AddObjectToObject(object, "inputs");
    for (size_t i = 0; i < r->n_inputs; i++) cJSON_AddStringToObject(inputs, r->input[i].name, r->input[i].sha256);
    cJSON_AddStringToObject(object, "model", r->model);
    cJSON_AddStringToObject(object, "worker", r->worker);
    cJSON_AddStringToObject(object, "bus", r->bus);
    cJSON_AddStringToObject(object, "requested_by", r->requested_by);
    cJSON_AddStringToObject(object, "created", created);
    cJSON_AddStringToObject(object, "expires", expires);
    return object;
}

kakeya_status request_write(const request *r, char **text, size_t *bytes, kakeya_error *error) {
    cJSON *object = as_json(r);
    char *printed = cJSON_Print(object);
    cJSON_Delete(object);
    size_t length = printed ? strlen(printed) : 0;
    *text = printed ? malloc(length + 2) : NULL;
    if (*text) {
        memcpy(*text, printed, length);
        memcpy(*text + length, "\n", 2);
    }
    cJSON_free(printed);
    if (!*text) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", file_name);
    *bytes = length + 1;
    request again;
    kakeya_status status = request_read(*text, *bytes, &again, error);
    if (status != KAKEYA_OK) {
        free(*text);
        *text = NULL;
    }
    return status;
}

kakeya_status request_check_time(const request *r, int64_t now, kakeya_error *error) {
    if (r->expires > r->created + REQUEST_LIFE_SECONDS || r->expires <= r->created)
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "it expires %lld s after it was made; between 1 and %d are allowed",
                         (long long)(r->expires - r->created), REQUEST_LIFE_SECONDS);
    if (r->created > now + REQUEST_CLOCK_SECONDS)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "it was made %lld s from now: one of the two clocks is wrong",
                         (long long)(r->created - now));
    if (r->expires + REQUEST_CLOCK_SECONDS <= now)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "it has expired %lld s ago", (long long)(now - r->expires));
    return KAKEYA_OK;
}

const char *request_value(const request *r, const char *param) {
    for (size_t i = 0; i < r->n_params; i++)
        if (strcmp(r->param[i].name, param) == 0) return r->param[i].value;
    return NULL;
}
