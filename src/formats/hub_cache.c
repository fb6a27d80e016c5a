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
#include "formats/gguf.h"

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
    if (ref && file_read(ref, 256, &revision, &bytes, NULL) == KAKEYA_OK) {
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

kakeya_status checkpoint_resolve(const char *name_or_path, char **directory, kakeya_error *error) {
    *directory = NULL;
    if (!*name_or_path) return error_set(error, KAKEYA_INVALID_ARGUMENT, "the path of the model is empty");
    if (directory_exists(name_or_path)) {
        *directory = strdup(name_or_path);
        if (*directory) return KAKEYA_OK;
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for its path", name_or_path);
    }
    if (gguf_is_file(name_or_path)) {
        *directory = strdup(name_or_path);
        if (*directory) return KAKEYA_OK;
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for its path", name_or_path);
    }
    if (file_exists(name_or_path))
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "%s: a file, but a model is a directory or a GGUF file",
                         name_or_path);
    if (!is_model_name(name_or_path)) return error_set(error, KAKEYA_IO, "%s: no such directory", name_or_path);

    char *folder = folder_name(name_or_path);
    if (!folder) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for its path", name_or_path);
    char looked[768] = "";
    size_t end = 0;
    for (int i = 0; i < CACHE_PLACES && !*directory; i++) {
        char *cache = cache_place(i);
        char *model = cache ? path_join(cache, folder) : NULL;
        if (model) {
            *directory = main_snapshot(model);
            if (!*directory) *directory = newest_snapshot(model);
            if (end < sizeof looked)
                end += (size_t)snprintf(looked + end, sizeof looked - end, "%s%s", end ? ", " : "", model);
        }
        free(model);
        free(cache);
    }
    free(folder);
    if (*directory) return KAKEYA_OK;
    return error_set(error, KAKEYA_IO,
                     "%s: no such directory, and no snapshot in the Hugging Face cache (looked in %s)", name_or_path,
                     *looked ? looked : "no place: HF_HUB_CACHE, HF_HOME and HOME are not set");
}
