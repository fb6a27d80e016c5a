#include "remote/folders.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/files.h"

kakeya_status folder_make(const char *path, kakeya_error *error) {
    char *text = strdup(path);
    if (!text) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    for (char *slash = text + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        mkdir(text, 0700);
        *slash = '/';
    }
    mkdir(text, 0700);
    int failed = errno;
    free(text);
    if (directory_exists(path)) return KAKEYA_OK;
    return error_set(error, KAKEYA_IO, "%s: no such folder, and it cannot be made: %s", path, strerror(failed));
}

static int remove_one(const char *path, const struct stat *about, int type, struct FTW *ftw) {
    (void)about, (void)type, (void)ftw;
    remove(path);
    return 0;
}

void folder_remove(const char *path) { nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT); }

kakeya_status folder_write(const char *folder, const char *name, const void *data, size_t bytes, kakeya_error *error) {
    char *path = path_join(folder, name);
    if (!path) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    file_writer *writer;
    kakeya_status status = file_writer_open(path, &writer, error);
    if (status == KAKEYA_OK) {
        status = file_writer_write(writer, data, bytes, error);
        if (status == KAKEYA_OK) {
            status = file_writer_commit(writer, error);
        } else {
            file_writer_abort(writer);
        }
    }
    free(path);
    return status;
}

kakeya_status folder_read(const char *folder, const char *name, size_t most, char **data, size_t *bytes,
                          kakeya_error *error) {
    char *path = path_join(folder, name);
    if (!path) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    kakeya_status status = file_read(path, most, data, bytes, error);
    free(path);
    return status;
}

bool folder_has(const char *folder, const char *name) {
    char *path = path_join(folder, name);
    bool has = path && file_exists(path);
    free(path);
    return has;
}
