/* Model names in the local Hugging Face cache: <cache>/models--org--name/refs/main holds the revision whose files are
 * in <cache>/models--org--name/snapshots/<revision>. */
#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/platform.h"
#include "formats/checkpoint.h"
#include "formats/foreign.h"
#include "formats/gguf.h"
#include "formats/gguf_choice.h"

/* "name" or "org/name" of letters, digits, '.', '_' and '-'; no part may start with '.'. */
static bool is_model_name(const char *name) {
    int slashes = 0;
    for (const char *c = name; *c; c++) {
        bool first = c == name || c[-1] == '/';
        if (first && *c == '.') return false;
        if (*c == '/') {
            if (first || !c[1] || ++slashes > 1) return false;
        } else if (!isalnum((unsigned char)*c) && !strchr("._-", *c)) {
            return false;
        }
    }
    return *name != '\0';
}

/* "org/name" -> "models--org--name"; NULL when out of memory. */
static char *folder_name(const char *model) {
    const char *slash = strchr(model, '/');
    char *folder = NULL;
    int length = slash ? asprintf(&folder, "models--%.*s--%s", (int)(slash - model), model, slash + 1)
                       : asprintf(&folder, "models--%s", model);
    return length < 0 ? NULL : folder;
}

/* The i-th place that may be a cache, best first: malloc'ed, NULL where its variable is not set. */
static char *cache_place(int i) {
    static const struct {
        const char *variable, *below;
    } places[] = {{"HF_HUB_CACHE", ""}, {"HF_HOME", "hub"}, {"HOME", ".cache/huggingface/hub"}};
    const char *value = getenv(places[i].variable);
    if (!value || !*value) return NULL;
    return *places[i].below ? path_join(value, places[i].below) : strdup(value);
}

enum { CACHE_PLACES = 3 };

/* The snapshot that refs/main names, if it is there. */
static char *main_snapshot(const char *model) {
    char *ref = path_join(model, "refs/main"), *revision = NULL, *path = NULL;
    size_t bytes = 0;
    if (ref && file_read_regular(ref, 256, &revision, &bytes, NULL) == KAKEYA_OK) {
        revision[strcspn(revision, " \t\r\n")] = '\0';
        bool valid = *revision && *revision != '.' && !strchr(revision, '/');
        if (valid && asprintf(&path, "%s/snapshots/%s", model, revision) < 0) path = NULL;
    }
    free(ref);
    free(revision);
    if (path && !directory_exists(path)) {
        free(path);
        path = NULL;
    }
    return path;
}

/* The snapshot that was changed last; the greatest name where times are equal, so that the choice is stable. */
static char *newest_snapshot(const char *model) {
    char *folder = path_join(model, "snapshots"), *best = NULL;
    DIR *listing = folder ? opendir(folder) : NULL;
    struct timespec newest = {0};
    for (struct dirent *entry; listing && (entry = readdir(listing));) {
        struct stat status;
        if (entry->d_name[0] == '.') continue;
        char *candidate = path_join(folder, entry->d_name);
        if (!candidate || stat(candidate, &status) != 0 || !S_ISDIR(status.st_mode)) {
            free(candidate);
            continue;
        }
        struct timespec time = platform_modified(&status);
        bool same = time.tv_sec == newest.tv_sec && time.tv_nsec == newest.tv_nsec;
        bool newer = time.tv_sec > newest.tv_sec || (time.tv_sec == newest.tv_sec && time.tv_nsec > newest.tv_nsec);
        if (!best || newer || (same && strcmp(candidate, best) > 0)) {
            free(best);
            best = candidate;
            newest = time;
        } else {
            free(candidate);
        }
    }
    if (listing) closedir(listing);
    free(folder);
    return best;
}

/* The snapshot of a model in the cache; NULL with *error set where there is none. */
static char *find_snapshot(const char *name, kakeya_error *error) {
    char *folder = folder_name(name), *directory = NULL;
    if (!folder) {
        error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for its path", name);
        return NULL;
    }
    char looked[768] = "";
    size_t end = 0;
    for (int i = 0; i < CACHE_PLACES && !directory; i++) {
        char *cache = cache_place(i);
        char *model = cache ? path_join(cache, folder) : NULL;
        if (model) {
            directory = main_snapshot(model);
            if (!directory) directory = newest_snapshot(model);
            if (end < sizeof looked)
                end += (size_t)snprintf(looked + end, sizeof looked - end, "%s%s", end ? ", " : "", model);
        }
        free(model);
        free(cache);
    }
    free(folder);
    if (!directory)
        error_set(error, KAKEYA_IO, "%s: no such directory, and no snapshot in the Hugging Face cache (looked in %s)",
                  name, *looked ? looked : "no place: HF_HUB_CACHE, HF_HOME and HOME are not set");
    return directory;
}

/* A path that is no directory: a GGUF file, or what is wrong with it. */
static kakeya_status resolve_file(const char *path, char **out, kakeya_error *error) {
    enum { START = 64 };
    char start[START];
    size_t bytes;
    kakeya_status status = file_read_start(path, start, sizeof start, &bytes, error);
    if (status != KAKEYA_OK) return status;
    if (!gguf_is_file(path)) {
        status = foreign_refuse(path, start, bytes, error);
        if (status != KAKEYA_OK) return status;
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "%s: a file, but a model is a directory or a GGUF file", path);
    }
    *out = strdup(path);
    return *out ? KAKEYA_OK : error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for its path", path);
}

/* Files that a model's directory may have, also those that are not read or not always: one that has the name and cannot
 * be read, as the links of a cache whose files are gone, says that something is missing. */
static kakeya_status check_files(const char *directory, kakeya_error *error) {
    static const char *const names[] = {
        "config.json",         "generation_config.json", "hf_quant_config.json",     "model.safetensors.index.json",
        "tokenizer.json",      "tokenizer_config.json",  "special_tokens_map.json",  "added_tokens.json",
        "chat_template.jinja", "chat_template.json",     "preprocessor_config.json", "processor_config.json",
        "f_theta_config.json",
    };
    kakeya_status status = KAKEYA_OK;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && status == KAKEYA_OK; i++) {
        char *path = path_join(directory, names[i]);
        bool there;
        status = path ? file_find(path, &there, error)
                      : error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for a path", directory);
        free(path);
    }
    return status;
}

/* The directory itself, or the file in it that is meant. */
static kakeya_status resolve_directory(const char *directory, const char *tag, char **out, kakeya_error *error) {
    kakeya_status status = check_files(directory, error);
    if (status == KAKEYA_OK) status = gguf_choose(directory, tag, out, error);
    if (status != KAKEYA_OK || *out) return status;
    *out = strdup(directory);
    return *out ? KAKEYA_OK : error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for its path", directory);
}

/* NAME:TAG, where what is there is not called so as a whole. */
static kakeya_status split_tag(const char *text, char **name, const char **tag, kakeya_error *error) {
    const char *colon = strrchr(text, ':');
    bool tagged = colon && colon != text && colon[1] && !strchr(colon, '/');
    *tag = tagged ? colon + 1 : NULL;
    *name = tagged ? strndup(text, (size_t)(colon - text)) : strdup(text);
    return *name ? KAKEYA_OK : error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for its path", text);
}

kakeya_status checkpoint_resolve(const char *name_or_path, char **directory, kakeya_error *error) {
    struct stat about;
    char *name = NULL, *snapshot = NULL;
    const char *tag = NULL;
    *directory = NULL;
    if (!*name_or_path) return error_set(error, KAKEYA_INVALID_ARGUMENT, "the path of the model is empty");
    if (directory_exists(name_or_path)) return resolve_directory(name_or_path, NULL, directory, error);
    if (lstat(name_or_path, &about) == 0) return resolve_file(name_or_path, directory, error);
    kakeya_status status = split_tag(name_or_path, &name, &tag, error);
    if (status != KAKEYA_OK) return status;
    if (tag && directory_exists(name)) {
        status = resolve_directory(name, tag, directory, error);
    } else if (!is_model_name(name)) {
        status = error_set(error, KAKEYA_IO, "%s: no such directory", name_or_path);
    } else {
        kakeya_error reason = {0};
        snapshot = find_snapshot(name, &reason);
        status = snapshot ? resolve_directory(snapshot, tag, directory, error)
                          : error_set(error, reason.status, "%s", reason.message);
    }
    free(snapshot);
    free(name);
    return status;
}
