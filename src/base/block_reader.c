#include "base/block_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/platform.h"
#include "base/random.h"

/* Reads under way at a time. A disk needs several; more than these only wait for each other. */
enum { READERS = 8 };

typedef struct read_file {
    char *path;
    int fd;
    bool direct;
    struct stat about; /* when it was opened */
} read_file;

struct block_reader {
    read_file *files;
    int n_files;
    pthread_t thread[READERS - 1]; /* beside the caller */
    int threads;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    bool ending;
    /* of the call under way; protected by the lock */
    const block_read *reads;
    size_t n, next, left;
    int failed; /* a value of errno; 0: none */
    size_t failed_at;
};

enum { CUT_SHORT = -1 }; /* in the place of errno */

/* 0, a value of errno, or CUT_SHORT. */
static int read_whole(int fd, const block_read *r) {
    for (size_t done = 0; done < r->needed;) {
        ssize_t got = pread(fd, (char *)r->to + done, r->bytes - done, (off_t)(r->offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return errno;
        if (got == 0) return CUT_SHORT;
        done += (size_t)got;
        if (done % BLOCK_BYTES && done < r->needed) return CUT_SHORT; /* which the end of a file alone does */
    }
    return 0;
}

/* Needs the lock, which it gives up while it reads. */
static void take_reads(block_reader *reader) {
    while (reader->next < reader->n) {
        const size_t i = reader->next++;
        const block_read *r = &reader->reads[i];
        const int fd = reader->files[r->file].fd;
        bool skip = reader->failed != 0;
        pthread_mutex_unlock(&reader->lock);
        int failed = skip ? 0 : read_whole(fd, r);
        pthread_mutex_lock(&reader->lock);
        if (failed && !reader->failed) {
            reader->failed = failed;
            reader->failed_at = i;
        }
        if (--reader->left == 0) pthread_cond_signal(&reader->done);
    }
}

static void *run_reader(void *user) {
    block_reader *reader = user;
    pthread_mutex_lock(&reader->lock);
    for (;;) {
        while (!reader->ending && reader->next >= reader->n) pthread_cond_wait(&reader->work, &reader->lock);
        if (reader->ending) break;
        take_reads(reader);
    }
    pthread_mutex_unlock(&reader->lock);
    return NULL;
}

kakeya_status block_reader_create(block_reader **out, kakeya_error *error) {
    *out = NULL;
    block_reader *reader = calloc(1, sizeof *reader);
    if (!reader) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for reading files");
    (void)pthread_mutex_init(&reader->lock, NULL);
    (void)pthread_cond_init(&reader->work, NULL);
    (void)pthread_cond_init(&reader->done, NULL);
    while (reader->threads < READERS - 1 &&
           platform_thread_create(&reader->thread[reader->threads], run_reader, reader) == 0)
        reader->threads++; /* with fewer, reads take longer */
    *out = reader;
    return KAKEYA_OK;
}

void block_reader_destroy(block_reader *reader) {
    if (!reader) return;
    pthread_mutex_lock(&reader->lock);
    reader->ending = true;
    pthread_cond_broadcast(&reader->work);
    pthread_mutex_unlock(&reader->lock);
    for (int i = 0; i < reader->threads; i++) (void)pthread_join(reader->thread[i], NULL);
    for (int i = 0; i < reader->n_files; i++) {
        close(reader->files[i].fd);
        free(reader->files[i].path);
    }
    free(reader->files);
    pthread_cond_destroy(&reader->done);
    pthread_cond_destroy(&reader->work);
    pthread_mutex_destroy(&reader->lock);
    free(reader);
}

/* Whether the file system takes direct reads; some open a file for them and then refuse each. */
static bool reads_directly(int fd) {
    void *block = NULL;
    if (posix_memalign(&block, BLOCK_BYTES, BLOCK_BYTES) != 0) return false;
    ssize_t got = pread(fd, block, BLOCK_BYTES, 0);
    free(block);
    return got >= 0;
}

static int open_file(const char *path, bool *direct) {
    *direct = false;
#if defined(O_DIRECT)
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    *direct = fd >= 0 && reads_directly(fd);
    if (*direct) return fd;
    if (fd >= 0) close(fd);
#endif
    return open(path, O_RDONLY | O_CLOEXEC);
}

kakeya_status block_reader_file(block_reader *reader, const char *path, int *file, kakeya_error *error) {
    for (*file = 0; *file < reader->n_files; ++*file)
        if (strcmp(reader->files[*file].path, path) == 0) return KAKEYA_OK;
    read_file *files = realloc(reader->files, ((size_t)reader->n_files + 1) * sizeof *files);
    if (!files) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for reading files");
    reader->files = files;
    read_file f = {.path = strdup(path)};
    if (!f.path) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for reading files");
    f.fd = open_file(path, &f.direct);
    if (f.fd < 0 || fstat(f.fd, &f.about) != 0) {
        kakeya_status status = error_set(error, KAKEYA_IO, "%s: cannot open: %s", path, strerror(errno));
        if (f.fd >= 0) close(f.fd);
        free(f.path);
        return status;
    }
    reader->files[reader->n_files++] = f;
    return KAKEYA_OK;
}

/* A file that was written since may hold anything. */
static const read_file *changed_file(const block_reader *reader) {
    for (int i = 0; i < reader->n_files; i++) {
        const read_file *f = &reader->files[i];
        struct stat now;
        if (fstat(f->fd, &now) != 0) return f;
        struct timespec a = platform_modified(&now), b = platform_modified(&f->about);
        if (now.st_size != f->about.st_size || a.tv_sec != b.tv_sec || a.tv_nsec != b.tv_nsec) return f;
    }
    return NULL;
}

static kakeya_status tell_failure(const block_reader *reader, kakeya_error *error) {
    const block_read *r = &reader->reads[reader->failed_at];
    return error_set(error, KAKEYA_IO, "%s: reading %zu bytes at %llu fails: %s", reader->files[r->file].path,
                     r->needed, (unsigned long long)r->offset,
                     reader->failed == CUT_SHORT ? "the file ends before them" : strerror(reader->failed));
}

void block_reader_begin(block_reader *reader, const block_read *reads, size_t n) {
    pthread_mutex_lock(&reader->lock);
    reader->reads = reads;
    reader->n = reader->left = n;
    reader->next = 0;
    reader->failed = 0;
    if (n > 0) pthread_cond_broadcast(&reader->work);
    pthread_mutex_unlock(&reader->lock);
}

kakeya_status block_reader_wait(block_reader *reader, kakeya_error *error) {
    pthread_mutex_lock(&reader->lock);
    const bool any = reader->n > 0;
    take_reads(reader);
    while (reader->left > 0) pthread_cond_wait(&reader->done, &reader->lock);
    reader->n = reader->next = 0;
    pthread_mutex_unlock(&reader->lock);
    if (!any) return KAKEYA_OK;
    if (reader->failed) return tell_failure(reader, error);
    const read_file *changed = changed_file(reader);
    if (!changed) return KAKEYA_OK;
    return error_set(error, KAKEYA_IO, "%s: the file was changed while it is in use", changed->path);
}

/* Reads that a probe issues together, as those of a layer's experts are. */
enum { PROBE_READS = 2 * READERS };

kakeya_status block_reader_probe(block_reader *reader, int file, uint64_t begin, uint64_t end, size_t bytes,
                                 double seconds, double *rate, kakeya_error *error) {
    const size_t room = block_room(BLOCK_BYTES - 1, bytes);
    unsigned char *memory = NULL;
    if (bytes > end - begin) bytes = (size_t)(end - begin);
    if (posix_memalign((void **)(void *)&memory, BLOCK_BYTES, PROBE_READS * room) != 0)
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for reading files");
    const double start = clock_seconds();
    kakeya_status status = KAKEYA_OK;
    uint64_t done = 0, drawn = 0;
    do {
        block_read reads[PROBE_READS];
        for (size_t i = 0; i < PROBE_READS; i++) {
            uint64_t places = end - begin - bytes + 1;
            uint64_t at = begin + (uint64_t)(random_uniform_at(7, drawn++) * (double)places);
            reads[i] = block_read_of(file, at, bytes, memory + i * room);
            done += reads[i].bytes;
        }
        status = block_reader_run(reader, reads, PROBE_READS, error);
    } while (!status && clock_seconds() - start < seconds);
    *rate = (double)done / (clock_seconds() - start);
    free(memory);
    return status;
}

kakeya_status block_reader_run(block_reader *reader, const block_read *reads, size_t n, kakeya_error *error) {
    block_reader_begin(reader, reads, n);
    return block_reader_wait(reader, error);
}

const char *block_reader_method(const block_reader *reader) {
    for (int i = 0; i < reader->n_files; i++)
        if (!reader->files[i].direct) return "reads through the page cache";
    return "direct reads";
}
