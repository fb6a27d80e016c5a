#include "base/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Opens a regular file for reading and finds its size; -1 with *error set. */
static int open_regular(const char *path, size_t *bytes, kakeya_error *error) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        error_set(error, KAKEYA_IO, "%s: cannot open: %s", path, strerror(errno));
        return -1;
    }
    struct stat status;
    if (fstat(fd, &status) != 0) {
        error_set(error, KAKEYA_IO, "%s: cannot find its size: %s", path, strerror(errno));
    } else if (!S_ISREG(status.st_mode)) {
        error_set(error, KAKEYA_IO, "%s: not a regular file", path);
    } else {
        *bytes = (size_t)status.st_size;
        return fd;
    }
    close(fd);
    return -1;
}

kakeya_status file_map_open(const char *path, file_map *out, kakeya_error *error) {
    *out = (file_map){0};
    size_t bytes = 0;
    int fd = open_regular(path, &bytes, error);
    if (fd < 0) return KAKEYA_IO;
    if (bytes > 0) {
        void *data = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
        if (data == MAP_FAILED) {
            error_set(error, KAKEYA_IO, "%s: cannot map %zu bytes: %s", path, bytes, strerror(errno));
            close(fd);
            return KAKEYA_IO;
        }
        *out = (file_map){.data = data, .bytes = bytes};
    }
    close(fd); /* the mapping keeps the file */
    return KAKEYA_OK;
}

void file_map_close(file_map *map) {
    if (map->data) munmap((void *)(uintptr_t)map->data, map->bytes);
    *map = (file_map){0};
}

kakeya_status file_read(const char *path, size_t max_bytes, char **data, size_t *bytes, kakeya_error *error) {
    *data = NULL;
    *bytes = 0;
    size_t size = 0;
    int fd = open_regular(path, &size, error);
    if (fd < 0) return KAKEYA_IO;
    kakeya_status status = KAKEYA_OK;
    char *buffer = NULL;
    if (size > max_bytes) {
        status = error_set(error, KAKEYA_FORMAT, "%s: %zu bytes, more than the %zu allowed", path, size, max_bytes);
        goto done;
    }
    buffer = malloc(size + 1);
    if (!buffer) {
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for %zu bytes", path, size + 1);
        goto done;
    }
    size_t have = 0;
    while (have < size) {
        ssize_t got = read(fd, buffer + have, size - have);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            status = error_set(error, KAKEYA_IO, "%s: cannot read: %s", path, strerror(errno));
            goto done;
        }
        if (got == 0) break; /* the file was shortened meanwhile */
        have += (size_t)got;
    }
    buffer[have] = '\0';
    *data = buffer;
    *bytes = have;
    buffer = NULL;
done:
    free(buffer);
    close(fd);
    return status;
}

struct file_writer {
    int fd;
    char *path, *temporary;
};

static void writer_free(file_writer *writer) {
    free(writer->path);
    free(writer->temporary);
    free(writer);
}

kakeya_status file_writer_open(const char *path, file_writer **out, kakeya_error *error) {
    *out = NULL;
    file_writer *writer = calloc(1, sizeof *writer);
    static const char suffix[] = ".XXXXXX";
    size_t length = strlen(path);
    if (writer) {
        writer->path = strdup(path);
        writer->temporary = malloc(length + sizeof suffix);
    }
    if (!writer || !writer->path || !writer->temporary) {
        if (writer) writer_free(writer);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory to open it for writing", path);
    }
    memcpy(writer->temporary, path, length);
    memcpy(writer->temporary + length, suffix, sizeof suffix);
    /* A directory would only be noticed by the rename, after all the work that produced the data. */
    if (directory_exists(path)) {
        writer_free(writer);
        return error_set(error, KAKEYA_IO, "%s: cannot write: is a directory", path);
    }
    writer->fd = mkostemp(writer->temporary, O_CLOEXEC);
    if (writer->fd < 0) {
        kakeya_status status = error_set(error, KAKEYA_IO, "%s: cannot write: %s", path, strerror(errno));
        writer_free(writer);
        return status;
    }
    /* mkostemp makes the file private; give it the mode that open() would have: an existing file's, else 0644. */
    struct stat existing;
    mode_t mode = stat(path, &existing) == 0 ? existing.st_mode & 0777 : 0644;
    (void)fchmod(writer->fd, mode);
    *out = writer;
    return KAKEYA_OK;
}

kakeya_status file_writer_write(file_writer *writer, const void *data, size_t bytes, kakeya_error *error) {
    const char *next = data;
    while (bytes > 0) {
        ssize_t wrote = write(writer->fd, next, bytes);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote < 0) return error_set(error, KAKEYA_IO, "%s: cannot write: %s", writer->path, strerror(errno));
        next += wrote;
        bytes -= (size_t)wrote;
    }
    return KAKEYA_OK;
}

kakeya_status file_writer_commit(file_writer *writer, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    if (fsync(writer->fd) != 0 && errno != EINVAL && errno != EROFS)
        status = error_set(error, KAKEYA_IO, "%s: cannot write: %s", writer->path, strerror(errno));
    if (close(writer->fd) != 0 && status == KAKEYA_OK)
        status = error_set(error, KAKEYA_IO, "%s: cannot write: %s", writer->path, strerror(errno));
    if (status == KAKEYA_OK && rename(writer->temporary, writer->path) != 0)
        status = error_set(error, KAKEYA_IO, "%s: cannot replace: %s", writer->path, strerror(errno));
    if (status != KAKEYA_OK) unlink(writer->temporary);
    writer_free(writer);
    return status;
}

void file_writer_abort(file_writer *writer) {
    if (!writer) return;
    close(writer->fd);
    unlink(writer->temporary);
    writer_free(writer);
}

bool file_exists(const char *path) {
    struct stat status;
    return stat(path, &status) == 0 && S_ISREG(status.st_mode);
}

bool directory_exists(const char *path) {
    struct stat status;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

char *path_join(const char *a, const char *b) {
    size_t length = strlen(a);
    bool slash = length > 0 && a[length - 1] != '/';
    char *joined = malloc(length + slash + strlen(b) + 1);
    if (joined) sprintf(joined, "%s%s%s", a, slash ? "/" : "", b);
    return joined;
}
