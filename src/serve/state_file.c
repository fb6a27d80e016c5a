#include "serve/state_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/files.h"
#include "base/platform.h"
#include "serve/temporary.h"

static kakeya_status failed(const char *name, int why, kakeya_error *error) {
    return error_set(error, KAKEYA_IO, "%s: %s", name, strerror(why));
}

int state_directory(const char *path, kakeya_error *error) {
    int directory = -1;
    if (mkdir(path, 0700) == 0 || errno == EEXIST) directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0) failed(path, errno, error);
    return directory;
}

static bool write_fully(int fd, const char *data, size_t n) {
    while (n) {
        ssize_t put = write(fd, data, n);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return false;
        data += put;
        n -= (size_t)put;
    }
    return true;
}

kakeya_status state_file_write(int directory, const char *name, const void *data, size_t bytes, bool only_new,
                               kakeya_error *error) {
    char temporary[TEMPORARY_NAME_BYTES];
    int fd = temporary_open(directory, name, temporary);
    if (fd < 0 && errno == EEXIST) return error_set(error, KAKEYA_CANCELLED, "%s: another process is writing it", name);
    if (fd < 0) return failed(name, errno, error);
    kakeya_status status = KAKEYA_OK;
    if (!write_fully(fd, data, bytes) || platform_sync_data(fd) != 0) {
        status = failed(name, errno, error);
    } else if (only_new && linkat(directory, temporary, directory, name, 0) != 0) {
        status = errno == EEXIST ? error_set(error, KAKEYA_CANCELLED, "%s: already exists", name)
                                 : failed(name, errno, error);
    } else if (!only_new && renameat(directory, temporary, directory, name) != 0) {
        status = failed(name, errno, error);
    }
    if (only_new || status != KAKEYA_OK) (void)unlinkat(directory, temporary, 0);
    if (status == KAKEYA_OK) (void)fsync(directory);
    close(fd);
    return status;
}

kakeya_status state_file_read(int directory, const char *name, size_t most, char **data, size_t *bytes,
                              kakeya_error *error) {
    struct stat about;
    int fd = openat(directory, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    *data = NULL;
    *bytes = 0;
    if (fd < 0 && errno == ENOENT) return error_set(error, KAKEYA_CANCELLED, "%s: there is no such file", name);
    if (fd < 0) return failed(name, errno, error);
    kakeya_status status = fstat(fd, &about) != 0 ? failed(name, errno, error) : KAKEYA_OK;
    if (status == KAKEYA_OK && !S_ISREG(about.st_mode))
        status = error_set(error, KAKEYA_FORMAT, "%s: not a regular file", name);
    if (status == KAKEYA_OK) status = file_read_descriptor(fd, name, (size_t)about.st_size, most, data, bytes, error);
    close(fd);
    return status;
}
