#include "train/outputs.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/files.h"

static bool is_called(const char *name, const char *pattern) {
    size_t length = strlen(pattern);
    if (length && pattern[length - 1] == '*') return strncmp(name, pattern, length - 1) == 0;
    return strcmp(name, pattern) == 0;
}

static bool is_listed(const char *name, const char *const *list) {
    while (*list && !is_called(name, *list)) list++;
    return *list != NULL;
}

kakeya_status train_check_out(const char *path, const train_files *own, kakeya_error *error) {
    bool there, finished = false, goes_on = false;
    char foreign[256] = "";
    kakeya_status status = directory_find(path, &there, error);
    if (status != KAKEYA_OK || !there) return status;
    DIR *listing = opendir(path);
    if (!listing) return error_set(error, KAKEYA_IO, "%s: cannot be listed: %s", path, strerror(errno));
    for (struct dirent *entry; (entry = readdir(listing));) {
        const char *name = entry->d_name;
        bool state = is_listed(name, own->states), last = strcmp(name, own->finished) == 0;
        goes_on |= state;
        finished |= last;
        if (*name != '.' && !state && !last && !is_listed(name, own->others) && !*foreign)
            snprintf(foreign, sizeof foreign, "%s", name);
    }
    closedir(listing);
    if (*foreign)
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "%s: contains %s, which is not a file of %s; choose a new --out", path, foreign, own->what);
    if (finished && !goes_on)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "%s: already has %s; remove it, or choose another --out", path,
                         own->what);
    return KAKEYA_OK;
}

kakeya_status train_make_directory(const char *path, kakeya_error *error) {
    if (mkdir(path, 0777) == 0 || (errno == EEXIST && directory_exists(path))) return KAKEYA_OK;
    return error_set(error, KAKEYA_IO, "%s: cannot be made a directory: %s", path, strerror(errno));
}

void train_drop_directory(const char *path) { (void)rmdir(path); }

kakeya_status train_write_json(const char *path, const struct cJSON *json, kakeya_error *error) {
    char *text = json ? cJSON_Print(json) : NULL;
    file_writer *writer = NULL;
    if (!text) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", path);
    kakeya_status status = file_writer_open(path, &writer, error);
    if (!status) status = file_writer_write(writer, text, strlen(text), error);
    if (!status) status = file_writer_write(writer, "\n", 1, error);
    if (!status)
        status = file_writer_commit(writer, error);
    else
        file_writer_abort(writer);
    cJSON_free(text);
    return status;
}
