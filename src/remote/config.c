#include "remote/config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/files.h"
#include "base/json.h"
#include "remote/folders.h"
#include "remote/keys.h"
#include "remote/presets.h"

enum { MAX_CONFIG_BYTES = 1 << 20, MAX_KEY_BYTES = 64 << 10 };

static const char ref_root[] = "refs/heads/kakeya";

/* $VARIABLE/kakeya/remote, else $HOME/FALLBACK/kakeya/remote; malloc'ed, or NULL. */
static char *usual_folder(const char *variable, const char *fallback) {
    const char *base = getenv(variable), *home = getenv("HOME");
    char *path = NULL;
    if (base && *base == '/') {
        if (asprintf(&path, "%s/kakeya/remote", base) < 0) path = NULL;
    } else if (home && *home == '/') {
        if (asprintf(&path, "%s/%s/kakeya/remote", home, fallback) < 0) path = NULL;
    }
    return path;
}

/* Absolute, because runs begin in folders of their own. */
static char *absolute(const char *path) {
    if (*path == '/') return strdup(path);
    char *here = getcwd(NULL, 0), *joined = here ? path_join(here, path) : NULL;
    free(here);
    return joined;
}

kakeya_status config_folders(const char *folder, const char *state, remote_config *out, kakeya_error *error) {
    *out = (remote_config){.folder = folder ? absolute(folder) : usual_folder("XDG_CONFIG_HOME", ".config"),
                           .state = state ? absolute(state) : usual_folder("XDG_STATE_HOME", ".local/state")};
    if (!out->folder || !out->state)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "no home folder: set HOME, or give --config and --state");
    out->requesters = path_join(out->folder, "requesters");
    out->workers = path_join(out->folder, "workers");
    if (!out->requesters || !out->workers) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    return KAKEYA_OK;
}

static size_t read_size(json_reader *reader, const cJSON *limits, const char *key, double fallback) {
    return (size_t)json_number(reader, limits, key, 0, 1e15, fallback);
}

static void read_limits(json_reader *reader, const cJSON *limits, config_limits *out) {
    out->renew_seconds = json_int(reader, limits, "renew_seconds", 1, 3600, 60);
    out->lease_seconds = json_int(reader, limits, "lease_seconds", 1, 86400, 300);
    out->reject_after_seconds = json_int(reader, limits, "reject_after_seconds", 0, 86400, 60);
    out->bus_seconds = json_int(reader, limits, "bus_seconds", 1, 3600, 60);
    out->grace_seconds = json_int(reader, limits, "grace_seconds", 0, 600, 10);
    out->minutes = json_int(reader, limits, "minutes", 1, 10000, 120);
    out->cpu_seconds = read_size(reader, limits, "cpu_seconds", 0);
    out->file_bytes = read_size(reader, limits, "file_bytes", 256 << 20);
    out->memory_bytes = read_size(reader, limits, "memory_bytes", 0);
    out->log_bytes = read_size(reader, limits, "log_bytes", 64 << 20);
}

static void check_models(json_reader *reader, const cJSON *models) {
    const cJSON *item;
    cJSON_ArrayForEach(item, models) {
        if (!remote_is_name(item->string) || !cJSON_IsString(item) || item->valuestring[0] != '/')
            json_fail(reader, KAKEYA_FORMAT, "models: '%s' is not a name with an absolute path", item->string);
    }
}

static void check_requesters(json_reader *reader, const cJSON *requesters) {
    const cJSON *item, *name;
    cJSON_ArrayForEach(item, requesters) {
        if (!remote_is_name(item->string) || !cJSON_IsObject(item))
            json_fail(reader, KAKEYA_FORMAT, "requesters: '%s' is not a name with an object", item->string);
        json_int(reader, item, "minutes_per_day", 0, 1440, 0);
        const cJSON *presets = json_array(reader, item, "presets");
        cJSON_ArrayForEach(name, presets) {
            if (!cJSON_IsString(name) || !preset_find(name->valuestring))
                json_fail(reader, KAKEYA_FORMAT, "requesters: '%s' has a preset that does not exist", item->string);
        }
    }
}

static void read_config(json_reader *reader, remote_config *c) {
    c->bus = json_string(reader, c->json, "bus", "");
    if (!*c->bus || *c->bus == '-') json_fail(reader, KAKEYA_FORMAT, "bus is missing: the git remote");
    const char *bus_name = json_string(reader, c->json, "bus_name", c->bus);
    char text[4096];
    int length = snprintf(text, sizeof text, "%s\n%s", ref_root, bus_name);
    if (length < 0 || length >= (int)sizeof text)
        json_fail(reader, KAKEYA_FORMAT, "bus is too long");
    else
        remote_sha256(text, (size_t)length, c->bus_digest);
    const char *name = json_string(reader, c->json, "name", "");
    if (!remote_is_name(name) || strcmp(name, "any") == 0)
        json_fail(reader, KAKEYA_FORMAT, "name '%s' is not valid: use up to 64 of a-z, 0-9, '.', '_' and '-'", name);
    else
        memcpy(c->name, name, strlen(name) + 1);
    c->key = json_string(reader, c->json, "key", "");
    if (*c->key != '/') json_fail(reader, KAKEYA_FORMAT, "key is not an absolute path");
    c->program = json_string(reader, c->json, "program", NULL);
    if (c->program && *c->program != '/') json_fail(reader, KAKEYA_FORMAT, "program is not an absolute path");
    c->is_worker = json_bool(reader, c->json, "worker", false);
    check_models(reader, json_object(reader, c->json, "models"));
    check_requesters(reader, json_object(reader, c->json, "requesters"));
    read_limits(reader, json_object(reader, c->json, "limits"), &c->limits);
}

kakeya_status config_load(const char *folder, const char *state, remote_config *out, kakeya_error *error) {
    kakeya_status status = config_folders(folder, state, out, error);
    char *path = status == KAKEYA_OK ? path_join(out->folder, "remote.json") : NULL, *text = NULL;
    size_t bytes;
    if (path && !file_exists(path)) {
        status = error_set(error, KAKEYA_IO, "%s does not exist: `kakeya remote init` writes it", path);
    } else if (path) {
        status = file_read(path, MAX_CONFIG_BYTES, &text, &bytes, error);
        if (status == KAKEYA_OK) status = json_parse_object(path, text, bytes, &out->json, error);
        if (status == KAKEYA_OK) status = json_refuse_repeated_keys(path, out->json, error);
        json_reader reader = {.name = path, .status = status, .error = error};
        if (status == KAKEYA_OK) read_config(&reader, out);
        status = reader.status;
    } else if (status == KAKEYA_OK) {
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    }
    free(text);
    free(path);
    return status;
}

void config_free(remote_config *c) {
    cJSON_Delete(c->json);
    free(c->folder);
    free(c->state);
    free(c->requesters);
    free(c->workers);
    *c = (remote_config){0};
}

/* --------------------------------------------------------------------------------------------------------- writing */

static kakeya_status write_config(const remote_config *c, kakeya_error *error) {
    char *path = path_join(c->folder, "remote.json"), *text = cJSON_Print(c->json);
    file_writer *writer = NULL;
    kakeya_status status =
        path && text ? file_writer_open(path, &writer, error) : error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    if (status == KAKEYA_OK) status = file_writer_write(writer, text, strlen(text), error);
    if (status == KAKEYA_OK) status = file_writer_write(writer, "\n", 1, error);
    if (status == KAKEYA_OK)
        status = file_writer_commit(writer, error);
    else
        file_writer_abort(writer);
    cJSON_free(text);
    free(path);
    return status;
}

static kakeya_status add_model(cJSON *models, const char *model, kakeya_error *error) {
    const char *sign = strchr(model, '=');
    char name[REMOTE_NAME] = "";
    if (sign && sign - model < (long)sizeof name) memcpy(name, model, (size_t)(sign - model));
    char *directory = sign ? realpath(sign + 1, NULL) : NULL;
    kakeya_status status = KAKEYA_OK;
    if (!remote_is_name(name)) {
        status = error_set(error, KAKEYA_INVALID_ARGUMENT, "--model: '%s' is not NAME=DIRECTORY", model);
    } else if (!directory || !directory_exists(directory)) {
        status = error_set(error, KAKEYA_IO, "--model: '%s' is not a directory", sign + 1);
    } else {
        cJSON_AddStringToObject(models, name, directory);
    }
    free(directory);
    return status;
}

kakeya_status config_create(const char *folder, const char *state, const char *bus, const char *bus_name,
                            const char *name, const char *key, bool worker, const char *const *models, size_t n_models,
                            kakeya_error *error) {
    remote_config c;
    kakeya_status status = config_folders(folder, state, &c, error);
    char *path = status == KAKEYA_OK ? path_join(c.folder, "remote.json") : NULL;
    char *own_key = status == KAKEYA_OK ? path_join(c.folder, "key") : NULL, *given = key ? realpath(key, NULL) : NULL;
    if (status == KAKEYA_OK && (!remote_is_name(name) || strcmp(name, "any") == 0))
        status = error_set(error, KAKEYA_INVALID_ARGUMENT,
                           "--name '%s' is not valid: use up to 64 of a-z, 0-9, '.', '_' and '-'", name);
    if (status == KAKEYA_OK && (!*bus || *bus == '-'))
        status = error_set(error, KAKEYA_INVALID_ARGUMENT, "--bus: '%s' is not a git remote", bus);
    if (status == KAKEYA_OK && key && !given)
        status = error_set(error, KAKEYA_IO, "--key: %s: %s", key, strerror(errno));
    if (status == KAKEYA_OK && file_exists(path))
        status = error_set(error, KAKEYA_INVALID_ARGUMENT, "%s already exists: change it, or remove it first", path);
    if (status == KAKEYA_OK) status = folder_make(c.folder, error);
    if (status == KAKEYA_OK && !key && !file_exists(own_key)) status = keys_make(own_key, name, error);
    c.json = cJSON_CreateObject();
    cJSON_AddStringToObject(c.json, "bus", bus);
    if (bus_name) cJSON_AddStringToObject(c.json, "bus_name", bus_name);
    cJSON_AddStringToObject(c.json, "name", name);
    if (status == KAKEYA_OK) cJSON_AddStringToObject(c.json, "key", given ? given : own_key);
    if (worker) {
        cJSON_AddTrueToObject(c.json, "worker");
        cJSON *list = cJSON_AddObjectToObject(c.json, "models");
        for (size_t i = 0; status == KAKEYA_OK && i < n_models; i++) status = add_model(list, models[i], error);
        cJSON_AddObjectToObject(c.json, "requesters");
    }
    if (status == KAKEYA_OK) status = write_config(&c, error);
    free(path);
    free(own_key);
    free(given);
    config_free(&c);
    return status;
}

kakeya_status config_public_key(const remote_config *c, char **out, kakeya_error *error) {
    char *path = NULL, *text = NULL;
    size_t bytes, length = strlen(c->key);
    bool is_public = length > 4 && strcmp(c->key + length - 4, ".pub") == 0;
    *out = NULL;
    if (asprintf(&path, "%s%s", c->key, is_public ? "" : ".pub") < 0)
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    kakeya_status status = file_read_text(path, MAX_KEY_BYTES, &text, &bytes, error);
    if (status == KAKEYA_OK) status = keys_read_public(text, out, error);
    free(text);
    free(path);
    return status;
}

const char *config_model(const remote_config *c, const char *name) {
    const cJSON *item = json_get(json_get(c->json, "models"), name);
    return cJSON_IsString(item) ? item->valuestring : NULL;
}

bool config_may(const remote_config *c, const char *requester, const char *wanted, int *minutes) {
    const cJSON *entry = json_get(json_get(c->json, "requesters"), requester);
    if (!entry) return false;
    const cJSON *limit = json_get(entry, "minutes_per_day"), *presets = json_get(entry, "presets"), *item;
    *minutes = limit ? limit->valueint : 0;
    if (!presets) return true;
    cJSON_ArrayForEach(item, presets) {
        if (strcmp(item->valuestring, wanted) == 0) return true;
    }
    return false;
}

kakeya_status config_allow_requester(remote_config *c, const char *name, const char *key, const char *const *presets,
                                     size_t n, int minutes, kakeya_error *error) {
    for (size_t i = 0; i < n; i++)
        if (!preset_find(presets[i]))
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "--preset: there is no preset '%s'", presets[i]);
    if (!c->is_worker)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "%s: this end is not a worker (init --worker)", c->folder);
    kakeya_status status = keys_allow(c->requesters, name, key, error);
    if (status != KAKEYA_OK) return status;
    cJSON *list = cJSON_GetObjectItemCaseSensitive(c->json, "requesters");
    if (!list) list = cJSON_AddObjectToObject(c->json, "requesters");
    cJSON_DeleteItemFromObjectCaseSensitive(list, name);
    cJSON *entry = cJSON_AddObjectToObject(list, name);
    cJSON *names = n ? cJSON_AddArrayToObject(entry, "presets") : NULL;
    for (size_t i = 0; i < n; i++) cJSON_AddItemToArray(names, cJSON_CreateString(presets[i]));
    if (minutes) cJSON_AddNumberToObject(entry, "minutes_per_day", minutes);
    return write_config(c, error);
}

kakeya_status config_allow_worker(remote_config *c, const char *name, const char *key, kakeya_error *error) {
    return keys_allow(c->workers, name, key, error);
}
