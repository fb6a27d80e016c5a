#include "base/files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/json.h"
#include "base/platform.h"

static kakeya_status status_of(int number) {
    return number == ENOMEM ? KAKEYA_OUT_OF_MEMORY : number == EINTR ? KAKEYA_CANCELLED : KAKEYA_IO;
}

static kakeya_status cannot_open(const char *path, kakeya_error *error) {
    char target[256];
    int number = errno;
    ssize_t length = number == ENOENT ? readlink(path, target, sizeof target) : -1;
    if (length > 0)
        return error_set(error, KAKEYA_IO, "%s: cannot open: it is a link to %.*s, which does not exist", path,
                         (int)length, target);
    return error_set(error, status_of(number), "%s: cannot open: %s", path, strerror(number));
}

/* Opens a file for reading; flags: more of open's. */
static kakeya_status open_input(const char *path, int flags, int *fd, struct stat *about, kakeya_error *error) {
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | flags);
    if (*fd < 0) return cannot_open(path, error);
    kakeya_status status = KAKEYA_OK;
    if (fstat(*fd, about) != 0)
        status = error_set(error, status_of(errno), "%s: cannot determine its type: %s", path, strerror(errno));
    else if (S_ISDIR(about->st_mode))
        status = error_set(error, KAKEYA_IO, "%s: is a directory, not a file", path);
    if (status != KAKEYA_OK) close(*fd);
    return status;
}

static kakeya_status check_regular(const char *path, const struct stat *about, kakeya_error *error) {
    if (S_ISREG(about->st_mode)) return KAKEYA_OK;
    const char *what = S_ISDIR(about->st_mode)                              ? "a directory"
                       : S_ISFIFO(about->st_mode)                           ? "a FIFO"
                       : S_ISSOCK(about->st_mode)                           ? "a socket"
                       : S_ISCHR(about->st_mode) || S_ISBLK(about->st_mode) ? "a device"
                                                                            : "something else";
    return error_set(error, KAKEYA_IO, "%s: is %s, not a regular file", path, what);
}

/* What is no regular file is not opened: a device may act on it. Nor is anything waited for, should it become a FIFO in
 * between. */
static kakeya_status open_regular(const char *path, int *fd, struct stat *about, kakeya_error *error) {
    if (stat(path, about) != 0) return cannot_open(path, error);
    kakeya_status status = check_regular(path, about, error);
    if (status == KAKEYA_OK) status = open_input(path, O_NONBLOCK, fd, about, error);
    if (status != KAKEYA_OK) return status;
    status = check_regular(path, about, error);
    if (status != KAKEYA_OK) close(*fd);
    return status;
}

kakeya_status file_find(const char *path, bool *there, kakeya_error *error) {
    struct stat about;
    int fd;
    *there = lstat(path, &about) == 0 || (errno != ENOENT && errno != ENOTDIR);
    if (!*there) return KAKEYA_OK;
    kakeya_status status = open_regular(path, &fd, &about, error);
    if (status == KAKEYA_OK) close(fd);
    return status;
}

kakeya_status file_map_open(const char *path, file_map *out, kakeya_error *error) {
    *out = (file_map){0};
    struct stat about;
    int fd;
    kakeya_status status = open_regular(path, &fd, &about, error);
    if (status != KAKEYA_OK) return status;
    size_t bytes = (size_t)about.st_size;
    if (bytes > 0) {
        void *data = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
        if (data == MAP_FAILED) {
            status = error_set(error, status_of(errno), "%s: cannot map %zu bytes: %s", path, bytes, strerror(errno));
            close(fd);
            return status;
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

bool file_map_offset(const file_map *map, const void *data, size_t bytes, uint64_t *offset) {
    uintptr_t begin = (uintptr_t)data, base = (uintptr_t)map->data;
    if (!map->data || begin < base || begin - base > map->bytes || bytes > map->bytes - (begin - base)) return false;
    *offset = begin - base;
    return true;
}

void file_map_unneeded(const file_map *map, const void *data, size_t bytes) {
    uintptr_t begin = (uintptr_t)data, page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uint64_t offset;
    if (!file_map_offset(map, data, bytes, &offset)) return;
    uintptr_t first = (begin + page - 1) / page * page, end = (begin + bytes) / page * page;
    if (first < end) (void)madvise((void *)first, end - first, MADV_DONTNEED);
}

kakeya_status file_read_descriptor(int fd, const char *name, size_t expected, size_t max_bytes, char **data,
                                   size_t *bytes, kakeya_error *error) {
    enum { FIRST_BYTES = 1 << 16 };
    *data = NULL;
    *bytes = 0;
    kakeya_status status = KAKEYA_OK;
    /* One byte more than is expected, so that the end of a file of that size is seen without growing. */
    size_t capacity = expected && expected <= max_bytes ? expected + 1 : FIRST_BYTES, have = 0;
    char *buffer = malloc(capacity + 1);
    for (;;) {
        if (!buffer) {
            status = error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for %zu bytes", name, capacity + 1);
            goto done;
        }
        ssize_t got = read(fd, buffer + have, capacity - have);
        if (got < 0) {
            /* Files are not interrupted. A pipe is, by the signals that end the program. */
            status = error_set(error, status_of(errno), "%s: cannot read: %s", name, strerror(errno));
            goto done;
        }
        if (got == 0) break;
        have += (size_t)got;
        if (have > max_bytes) {
            status = error_set(error, KAKEYA_FORMAT, "%s: more than the %zu bytes allowed", name, max_bytes);
            goto done;
        }
        if (have < capacity) continue;
        capacity = capacity <= max_bytes / 2 ? 2 * capacity : max_bytes + 1;
        char *grown = realloc(buffer, capacity + 1);
        if (!grown) free(buffer);
        buffer = grown;
    }
    buffer[have] = '\0';
    *data = buffer;
    *bytes = have;
    buffer = NULL;
done:
    free(buffer);
    return status;
}

/* Reads a file that open_input or open_regular has opened, and closes it. */
static kakeya_status read_opened(int fd, const struct stat *about, const char *path, size_t max_bytes, char **data,
                                 size_t *bytes, kakeya_error *error) {
    size_t expected = S_ISREG(about->st_mode) && about->st_size > 0 ? (size_t)about->st_size : 0;
    kakeya_status status = file_read_descriptor(fd, path, expected, max_bytes, data, bytes, error);
    close(fd);
    return status;
}

kakeya_status file_read(const char *path, size_t max_bytes, char **data, size_t *bytes, kakeya_error *error) {
    *data = NULL;
    *bytes = 0;
    struct stat about;
    int fd;
    kakeya_status status = open_input(path, 0, &fd, &about, error);
    return status == KAKEYA_OK ? read_opened(fd, &about, path, max_bytes, data, bytes, error) : status;
}

kakeya_status file_read_text(const char *path, size_t max_bytes, char **text, size_t *bytes, kakeya_error *error) {
    kakeya_status status = file_read(path, max_bytes, text, bytes, error);
    if (status != KAKEYA_OK) return status;
    bool wide = *bytes >= 2 && (memcmp(*text, "\xff\xfe", 2) == 0 || memcmp(*text, "\xfe\xff", 2) == 0);
    if (wide || memchr(*text, 0, *bytes)) {
        free(*text);
        *text = NULL;
        *bytes = 0;
        return error_set(error, KAKEYA_FORMAT, wide ? "%s: is UTF-16: save it as UTF-8" : "%s: there is a NUL in it",
                         path);
    }
    size_t mark = json_mark_bytes(*text, *bytes);
    *bytes -= mark;
    memmove(*text, *text + mark, *bytes + 1);
    return KAKEYA_OK;
}

kakeya_status file_read_regular(const char *path, size_t max_bytes, char **data, size_t *bytes, kakeya_error *error) {
    *data = NULL;
    *bytes = 0;
    struct stat about;
    int fd;
    kakeya_status status = open_regular(path, &fd, &about, error);
    return status == KAKEYA_OK ? read_opened(fd, &about, path, max_bytes, data, bytes, error) : status;
}

kakeya_status file_read_optional(const char *path, size_t max_bytes, char **data, size_t *bytes, kakeya_error *error) {
    bool there;
    *data = NULL;
    *bytes = 0;
    kakeya_status status = file_find(path, &there, error);
    return status == KAKEYA_OK && there ? file_read_regular(path, max_bytes, data, bytes, error) : status;
}

kakeya_status file_read_start(const char *path, void *start, size_t size, size_t *bytes, kakeya_error *error) {
    struct stat about;
    int fd;
    *bytes = 0;
    kakeya_status status = open_regular(path, &fd, &about, error);
    if (status != KAKEYA_OK) return status;
    ssize_t got = pread(fd, start, size, 0);
    if (got < 0) status = error_set(error, status_of(errno), "%s: cannot read: %s", path, strerror(errno));
    *bytes = got > 0 ? (size_t)got : 0;
    close(fd);
    return status;
}

FILE *file_unnamed(const char *directory) {
    int fd = -1;
#if defined(O_TMPFILE)
    fd = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
#endif
    if (fd < 0) { /* a file system, or a system, that has none such */
        char *name = path_join(directory, "kakeya-XXXXXX");
        fd = name ? mkostemp(name, O_CLOEXEC) : -1;
        if (fd >= 0) unlink(name);
        int why = name ? errno : ENOMEM;
        free(name);
        errno = why;
    }
    FILE *file = fd >= 0 ? fdopen(fd, "w+b") : NULL;
    if (!file && fd >= 0) close(fd);
    return file;
}

/* ------------------------------------------------------------------------------------------------- writing */

struct file_writer {
    int fd;
    bool stream;     /* written through: a device, a FIFO, a socket, an open descriptor */
    char *path;      /* as the caller named it, for messages */
    char *target;    /* the file behind all symbolic links; NULL: a stream */
    char *temporary; /* beside the target; NULL: the temporary file has no name yet (O_TMPFILE) */
};

static void writer_free(file_writer *writer) {
    free(writer->path);
    free(writer->target);
    free(writer->temporary);
    free(writer);
}

/* The number in "/dev/fd/3", "/proc/self/fd/3", "/dev/stdout" and "/dev/stderr"; -1 for other paths. Such a path means
 * the open descriptor, at its place, not the file that it happens to be connected with. */
static int named_descriptor(const char *path) {
    static const char *const folders[] = {"/dev/fd/", "/proc/self/fd/"};
    if (strcmp(path, "/dev/stdout") == 0) return STDOUT_FILENO;
    if (strcmp(path, "/dev/stderr") == 0) return STDERR_FILENO;
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        size_t length = strlen(folders[i]);
        if (strncmp(path, folders[i], length) != 0 || !path[length]) continue;
        size_t digits = strspn(path + length, "0123456789");
        if (digits <= 6 && !path[length + digits]) return atoi(path + length);
    }
    return -1;
}

/* A file name of its own in the folder of `target`. */
static char *temporary_name(const char *target) {
    static atomic_uint counter;
    const char *slash = strrchr(target, '/');
    int folder = slash ? (int)(slash - target) + 1 : 0;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    char *name = NULL;
    if (asprintf(&name, "%.*s.kakeya-%ld-%lx-%x", folder, target, (long)getpid(), (unsigned long)now.tv_nsec,
                 atomic_fetch_add(&counter, 1)) < 0)
        return NULL;
    return name;
}

/* Follows symbolic links to the path of the file itself, which need not exist. *out is malloc'ed. */
static kakeya_status follow_links(const char *path, char **out, kakeya_error *error) {
    enum { MAX_LINKS = 40 }; /* as the kernel has it */
    char *at = strdup(path);
    char link[PATH_MAX];
    for (int links = 0;; links++) {
        struct stat about;
        if (!at) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory to open it for writing", path);
        if (lstat(at, &about) != 0 || !S_ISLNK(about.st_mode)) break;
        ssize_t length = readlink(at, link, sizeof link - 1);
        if (length <= 0 || links == MAX_LINKS) {
            int number = length <= 0 ? errno : ELOOP;
            free(at);
            return error_set(error, status_of(number), "%s: cannot write: %s", path, strerror(number));
        }
        link[length] = '\0';
        const char *slash = strrchr(at, '/');
        char *next = NULL;
        if (asprintf(&next, "%.*s%s", link[0] == '/' || !slash ? 0 : (int)(slash - at) + 1, at, link) < 0) next = NULL;
        free(at);
        at = next;
    }
    *out = at;
    return KAKEYA_OK;
}

static kakeya_status cannot_write(const char *path, kakeya_error *error) {
    return error_set(error, status_of(errno), "%s: cannot write: %s", path, strerror(errno));
}

/* A socket that is listened on is connected to; descriptors are duplicated; the rest is opened. */
static int open_stream(const char *path, mode_t mode) {
    int descriptor = named_descriptor(path);
    if (descriptor >= 0) return fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    if (!S_ISSOCK(mode)) return open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(address.sun_path, path, strlen(path) + 1);
    int fd = platform_local_socket(SOCK_STREAM);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&address, sizeof address) == 0) return fd;
    int number = errno;
    if (fd >= 0) close(fd);
    errno = number;
    return -1;
}

/* Opens the temporary file: without a name where the file system can, so that nothing stays behind however the program
 * ends. */
static bool open_temporary(file_writer *writer) {
#if defined(O_TMPFILE)
    const char *slash = strrchr(writer->target, '/');
    char *folder = slash == writer->target ? strdup("/")
                   : slash                 ? strndup(writer->target, (size_t)(slash - writer->target))
                                           : strdup(".");
    if (!folder) return false;
    writer->fd = open(folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
    free(folder);
    if (writer->fd >= 0) {
        char self[40];
        snprintf(self, sizeof self, "/proc/self/fd/%d", writer->fd);
        if (access(self, F_OK) == 0) return true; /* it can be given a name later */
        close(writer->fd);
    }
#endif
    for (int attempt = 0; attempt < 100; attempt++) {
        free(writer->temporary);
        writer->temporary = temporary_name(writer->target);
        if (!writer->temporary) return false;
        writer->fd = open(writer->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (writer->fd >= 0 || errno != EEXIST) break;
    }
    return writer->fd >= 0;
}

static kakeya_status open_file(file_writer *writer, const struct stat *existing, kakeya_error *error) {
    /* Renaming would replace what nobody may write to, and for root every file is writable. */
    if (existing && !(existing->st_mode & 0222))
        return error_set(error, KAKEYA_IO, "%s: cannot write: the file is read-only (mode %04o)", writer->path,
                         (unsigned)(existing->st_mode & 07777));
    if (existing && access(writer->target, W_OK) != 0) return cannot_write(writer->path, error);
    errno = ENOMEM;
    if (!open_temporary(writer)) return cannot_write(writer->path, error);
    if (existing) { /* a replaced file keeps its mode and, where that is allowed, its owner */
        if (fchown(writer->fd, existing->st_uid, existing->st_gid) != 0) errno = 0;
        (void)fchmod(writer->fd, existing->st_mode & 0777);
    }
    return KAKEYA_OK;
}

kakeya_status file_writer_open(const char *path, file_writer **out, kakeya_error *error) {
    *out = NULL;
    if (!path[0]) return error_set(error, KAKEYA_IO, "cannot write: the name of the file is empty");
    file_writer *writer = calloc(1, sizeof *writer);
    if (!writer || !(writer->path = strdup(path))) {
        free(writer);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory to open it for writing", path);
    }
    writer->fd = -1;
    struct stat existing;
    bool exists = stat(path, &existing) == 0;
    kakeya_status status = KAKEYA_OK;
    if (exists && S_ISDIR(existing.st_mode)) {
        status = error_set(error, KAKEYA_IO, "%s: cannot write: is a directory", path);
    } else if (exists && S_ISBLK(existing.st_mode)) {
        status =
            error_set(error, KAKEYA_IO, "%s: cannot write: is a block device, and what is on it would be lost", path);
    } else if (named_descriptor(path) >= 0 || (exists && !S_ISREG(existing.st_mode))) {
        writer->stream = true;
        writer->fd = open_stream(path, exists ? existing.st_mode : 0);
        if (writer->fd < 0) status = cannot_write(path, error);
    } else if (!exists && errno != ENOENT) {
        status = cannot_write(path, error);
    } else {
        status = follow_links(path, &writer->target, error);
        if (status == KAKEYA_OK) status = open_file(writer, exists ? &existing : NULL, error);
    }
    if (status != KAKEYA_OK) {
        writer_free(writer);
        return status;
    }
    *out = writer;
    return KAKEYA_OK;
}

bool file_writer_is_stream(const file_writer *writer) { return writer->stream; }

kakeya_status file_writer_write(file_writer *writer, const void *data, size_t bytes, kakeya_error *error) {
    const char *next = data;
    while (bytes > 0) {
        ssize_t wrote = write(writer->fd, next, bytes);
        if (wrote < 0) return cannot_write(writer->path, error);
        next += wrote;
        bytes -= (size_t)wrote;
    }
    return KAKEYA_OK;
}

/* Gives the finished temporary file its name. */
static bool put_in_place(file_writer *writer) {
    if (!writer->temporary) {
        char self[40];
        snprintf(self, sizeof self, "/proc/self/fd/%d", writer->fd);
        writer->temporary = temporary_name(writer->target);
        errno = writer->temporary ? errno : ENOMEM;
        if (!writer->temporary || linkat(AT_FDCWD, self, AT_FDCWD, writer->temporary, AT_SYMLINK_FOLLOW) != 0) {
            free(writer->temporary);
            writer->temporary = NULL;
            return false;
        }
    }
    return rename(writer->temporary, writer->target) == 0;
}

kakeya_status file_writer_commit(file_writer *writer, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    /* EINVAL, EROFS, ENOTSUP: the target keeps nothing that could be brought to a disk (a pipe, a terminal). */
    if (fsync(writer->fd) != 0 && errno != EINVAL && errno != EROFS && errno != ENOTSUP)
        status = cannot_write(writer->path, error);
    if (status == KAKEYA_OK && !writer->stream && !put_in_place(writer))
        status = error_set(error, status_of(errno), "%s: cannot replace: %s", writer->path, strerror(errno));
    if (close(writer->fd) != 0 && status == KAKEYA_OK) status = cannot_write(writer->path, error);
    if (status != KAKEYA_OK && writer->temporary) unlink(writer->temporary);
    writer_free(writer);
    return status;
}

void file_writer_abort(file_writer *writer) {
    if (!writer) return;
    close(writer->fd);
    if (writer->temporary) unlink(writer->temporary);
    writer_free(writer);
}

bool file_same(const char *a, const char *b) {
    struct stat first, second;
    return stat(a, &first) == 0 && stat(b, &second) == 0 && first.st_dev == second.st_dev &&
           first.st_ino == second.st_ino;
}

bool file_exists(const char *path) {
    struct stat status;
    return stat(path, &status) == 0 && S_ISREG(status.st_mode);
}

bool directory_exists(const char *path) {
    struct stat status;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

kakeya_status directory_find(const char *path, bool *there, kakeya_error *error) {
    struct stat about;
    *there = lstat(path, &about) == 0 || (errno != ENOENT && errno != ENOTDIR);
    if (!*there) return KAKEYA_OK;
    if (stat(path, &about) != 0) return cannot_open(path, error);
    if (S_ISDIR(about.st_mode) && access(path, R_OK | X_OK) != 0) return cannot_open(path, error);
    return S_ISDIR(about.st_mode) ? KAKEYA_OK : error_set(error, KAKEYA_IO, "%s: is not a directory", path);
}

char *path_join(const char *a, const char *b) {
    size_t length = strlen(a);
    bool slash = length > 0 && a[length - 1] != '/';
    char *joined = malloc(length + slash + strlen(b) + 1);
    if (joined) sprintf(joined, "%s%s%s", a, slash ? "/" : "", b);
    return joined;
}
