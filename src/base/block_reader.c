#include "base/block_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/clock.h"
#include "base/platform.h"
#include "base/random.h"
#include "base/read_ring.h"

/* Threads that read where the kernel does not by itself. A disk needs several; more only wait for each other. */
enum { READERS = 8 };
/* Reads that the kernel has under way: until others are tried, and what is tried. */
enum { DEPTH = 32, DEPTHS = 4 };
static const int depths[DEPTHS] = {8, 16, 32, RING_READS};
/* Fewer are taken where they are that near to the fastest. */
static const double near_fastest = 0.95;
/* With fewer bytes for each, nothing is tried. */
enum { TRIAL_BYTES = 16 << 20 };
/* Neighbours in a file become one read of at most so many bytes, in so many pieces: beyond them a read costs by its
 * bytes alone. */
enum { JOINED_BYTES = 1 << 20, JOINED = 16 };

typedef struct read_file {
    char *path;
    int fd;
    bool direct;
    bool hashed; /* block_reader_file_hashed */
    bool lost;
    struct stat about; /* when it was opened */
} read_file;

/* Reads [first, first + n) as one. */
typedef struct joined_read {
    size_t first;
    int n, pieces;
    size_t bytes;
    struct iovec to[JOINED];
} joined_read;

struct block_reader {
    read_file *files;
    int n_files;
    read_ring *ring; /* NULL: threads read */
    int depth;
    joined_read under_way[RING_READS];
    int idle[RING_READS], n_idle;  /* of under_way */
    pthread_t thread[READERS - 1]; /* beside the caller */
    int threads;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    bool ending;
    /* of the call under way; protected by the lock where threads read */
    block_read *reads;
    size_t n, next, left; /* left: reads that have not ended */
    int failed;           /* a value of errno, or one of the below; 0: none */
    size_t failed_at;
};

/* In the place of errno. */
enum { CUT_SHORT = -1, OTHER_BYTES = -2, FILE_LOST = -3 };

uint64_t block_hash(const void *data, size_t bytes) { return block_hash_value(XXH3_64bits(data, bytes)); }

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

/* A read that begins where another ends, or with its last block. */
static bool follows(const block_read *a, const block_read *b) {
    const uint64_t end = a->offset + a->bytes;
    return a->file == b->file && (b->offset == end || (b->offset + BLOCK_BYTES == end && b->bytes > BLOCK_BYTES));
}

static bool shares_block(const block_read *a, const block_read *b) { return b->offset < a->offset + a->bytes; }

/* The next reads as one. Needs the lock where threads read. */
static void take_joined(block_reader *reader, joined_read *j) {
    const block_read *reads = reader->reads;
    j->first = reader->next;
    j->n = j->pieces = 0;
    j->bytes = 0;
    do {
        const block_read *r = &reads[reader->next];
        const size_t skip = j->n > 0 && shares_block(r - 1, r) ? BLOCK_BYTES : 0;
        j->to[j->pieces++] = (struct iovec){(char *)r->to + skip, r->bytes - skip};
        j->bytes += r->bytes - skip;
        j->n++;
        reader->next++;
    } while (reader->next < reader->n && j->pieces < JOINED &&
             follows(&reads[reader->next - 1], &reads[reader->next]) &&
             j->bytes + reads[reader->next].bytes <= JOINED_BYTES);
}

/* What was read is what is wanted; gives every read its copy of a block that two have. got: bytes of them all, or a
 * negative value of errno. *at: of a failure. */
static int finish_joined(const block_reader *reader, const joined_read *j, long got, size_t *at) {
    block_read *r = reader->reads + j->first;
    const block_read *last = r + j->n - 1;
    const bool whole = got >= 0 && (size_t)got >= j->bytes - last->bytes + last->needed;
    for (int i = 0; i < j->n; i++, r++) {
        *at = j->first + (size_t)i;
        int failed = 0;
        if (!whole)
            failed = read_whole(reader->files[r->file].fd, r); /* which says what there is to say */
        else if (i > 0 && shares_block(r - 1, r))
            memcpy(r->to, (char *)r[-1].to + r[-1].bytes - BLOCK_BYTES, BLOCK_BYTES);
        if (failed) return failed;
        if (!r->hash) continue;
        r->hashed = block_hash((char *)r->to + r->lead, r->needed - r->lead);
        if (*r->hash && *r->hash != r->hashed) return OTHER_BYTES;
    }
    return 0;
}

static void note_end(block_reader *reader, const joined_read *j, int failed, size_t at) {
    if (failed && !reader->failed) {
        reader->failed = failed;
        reader->failed_at = at;
    }
    reader->left -= (size_t)j->n;
}

/* -------------------------------------------------------------------------------------------------- without threads */

static void put_reads(block_reader *reader) {
    while (reader->next < reader->n && RING_READS - reader->n_idle < reader->depth && !reader->failed) {
        const int which = reader->idle[--reader->n_idle];
        joined_read *j = &reader->under_way[which];
        take_joined(reader, j);
        read_ring_put(reader->ring, reader->files[reader->reads[j->first].file].fd, j->to, j->pieces,
                      reader->reads[j->first].offset, (size_t)which);
    }
    read_ring_begin(reader->ring);
}

static void make_idle(block_reader *reader) {
    for (reader->n_idle = 0; reader->n_idle < RING_READS; reader->n_idle++)
        reader->idle[reader->n_idle] = reader->n_idle;
}

/* After a failure the reads that are under way end, and no other begins. */
static void wait_for_ring(block_reader *reader) {
    while (reader->n_idle < RING_READS) {
        size_t which, at = 0;
        int got;
        if (!read_ring_take(reader->ring, &which, &got)) {
            read_ring_destroy(reader->ring);
            reader->ring = NULL;
            make_idle(reader);
            reader->next = 0; /* all again, by the caller alone */
            reader->left = reader->n;
            return;
        }
        const joined_read *j = &reader->under_way[which];
        int failed = reader->failed ? 0 : finish_joined(reader, j, got, &at);
        note_end(reader, j, failed, at);
        reader->idle[reader->n_idle++] = (int)which;
        put_reads(reader);
    }
}

/* ------------------------------------------------------------------------------------------------------ with threads
 */

/* Needs the lock, which it gives up while it reads. */
static void take_reads(block_reader *reader) {
    while (reader->next < reader->n) {
        joined_read j;
        size_t at = 0;
        take_joined(reader, &j);
        const block_read *r = &reader->reads[j.first];
        const int fd = reader->files[r->file].fd;
        bool skip = reader->failed != 0;
        pthread_mutex_unlock(&reader->lock);
        int failed = 0;
        if (!skip) {
            long got = j.n > 1 ? preadv(fd, j.to, j.pieces, (off_t)r->offset) : -1;
            failed = finish_joined(reader, &j, got, &at);
        }
        pthread_mutex_lock(&reader->lock);
        note_end(reader, &j, failed, at);
        if (reader->left == 0) pthread_cond_signal(&reader->done);
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
    reader->depth = DEPTH;
    make_idle(reader);
    reader->ring = read_ring_create();
    while (!reader->ring && reader->threads < READERS - 1 &&
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
    read_ring_destroy(reader->ring);
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

void block_reader_memory(block_reader *reader, void *memory, size_t bytes, size_t unit) {
    if (reader->ring) read_ring_memory(reader->ring, memory, bytes, unit);
}

/* ------------------------------------------------------------------------------------------------------------- files
 */

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

void block_reader_file_hashed(block_reader *reader, int file) { reader->files[file].hashed = true; }

/* A file that was written since may hold anything, unless hashes say what. */
static bool is_same(const read_file *f, int fd) {
    struct stat now;
    if (fstat(fd, &now) != 0 || now.st_size != f->about.st_size) return false;
    struct timespec a = platform_modified(&now), b = platform_modified(&f->about);
    return f->hashed || (a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec);
}

static const read_file *changed_file(block_reader *reader) {
    for (int i = 0; i < reader->n_files; i++) {
        read_file *f = &reader->files[i];
        if (is_same(f, f->fd)) continue;
        f->lost = true;
        return f;
    }
    return NULL;
}

/* A file that lay on a device which was unplugged, or that was overwritten, may be back. */
static void find_lost(block_reader *reader) {
    for (int i = 0; i < reader->n_files; i++) {
        read_file *f = &reader->files[i];
        bool direct = false;
        int fd = f->lost ? open_file(f->path, &direct) : -1;
        if (fd < 0) continue;
        if (is_same(f, fd)) {
            close(f->fd);
            f->fd = fd;
            f->direct = direct;
            f->lost = false;
        } else {
            close(fd);
        }
    }
}

static kakeya_status tell_failure(const block_reader *reader, kakeya_error *error) {
    const block_read *r = &reader->reads[reader->failed_at];
    const read_file *f = &reader->files[r->file];
    if (reader->failed == FILE_LOST)
        return error_set(error, KAKEYA_IO, "%s: the file is gone, or is not the one that was opened", f->path);
    const char *reason = reader->failed == CUT_SHORT     ? "the file ends before them"
                         : reader->failed == OTHER_BYTES ? "their checksum is not the one that is known"
                                                         : strerror(reader->failed);
    return error_set(error, KAKEYA_IO, "%s: reading %zu bytes at %llu fails: %s", f->path, r->needed,
                     (unsigned long long)r->offset, reason);
}

/* ------------------------------------------------------------------------------------------------------------- reads
 */

void block_reader_begin(block_reader *reader, block_read *reads, size_t n) {
    find_lost(reader);
    pthread_mutex_lock(&reader->lock);
    reader->reads = reads;
    reader->n = reader->left = n;
    reader->next = 0;
    reader->failed = 0;
    for (size_t i = 0; i < n && !reader->failed; i++) {
        if (!reader->files[reads[i].file].lost) continue;
        reader->failed = FILE_LOST;
        reader->failed_at = i;
    }
    if (reader->ring)
        put_reads(reader);
    else if (n > 0)
        pthread_cond_broadcast(&reader->work);
    pthread_mutex_unlock(&reader->lock);
}

kakeya_status block_reader_wait(block_reader *reader, kakeya_error *error) {
    const size_t n = reader->n;
    if (n == 0) return KAKEYA_OK;
    if (reader->ring) wait_for_ring(reader);
    if (!reader->ring) {
        pthread_mutex_lock(&reader->lock);
        take_reads(reader);
        while (reader->left > 0) pthread_cond_wait(&reader->done, &reader->lock);
        pthread_mutex_unlock(&reader->lock);
    }
    pthread_mutex_lock(&reader->lock);
    reader->n = reader->next = 0;
    pthread_mutex_unlock(&reader->lock);
    if (reader->failed) {
        reader->files[reader->reads[reader->failed_at].file].lost = true;
        return tell_failure(reader, error);
    }
    const read_file *changed = changed_file(reader);
    if (changed) return error_set(error, KAKEYA_IO, "%s: the file was changed while it is in use", changed->path);
    for (size_t i = 0; i < n; i++) {
        block_read *r = &reader->reads[i];
        if (r->hash) *r->hash = r->hashed;
    }
    return KAKEYA_OK;
}

kakeya_status block_reader_run(block_reader *reader, block_read *reads, size_t n, kakeya_error *error) {
    block_reader_begin(reader, reads, n);
    return block_reader_wait(reader, error);
}

/* How fast reads are with so many at a time. */
static kakeya_status run_with(block_reader *reader, int depth, block_read *reads, size_t n, double *rate,
                              kakeya_error *error) {
    const double start = clock_seconds();
    double bytes = 0;
    for (size_t i = 0; i < n; i++) bytes += (double)reads[i].bytes;
    reader->depth = depth; /* threads are as many as there are */
    kakeya_status status = block_reader_run(reader, reads, n, error);
    *rate = bytes / (clock_seconds() - start);
    return status;
}

int block_reader_depth(const block_reader *reader) { return reader->ring ? reader->depth : reader->threads + 1; }

static int choose_depth(const double rate[DEPTHS]) {
    double fastest = 0;
    int i = 0;
    for (int d = 0; d < DEPTHS; d++)
        if (rate[d] > fastest) fastest = rate[d];
    while (rate[i] < near_fastest * fastest) i++;
    return depths[i];
}

kakeya_status block_reader_run_trying(block_reader *reader, block_read *reads, size_t n, kakeya_error *error) {
    double rate[DEPTHS];
    size_t bytes = 0, first = 0, part = 0;
    kakeya_status status = KAKEYA_OK;
    for (size_t i = 0; i < n; i++) bytes += reads[i].bytes;
    if (!reader->ring || bytes < (size_t)DEPTHS * TRIAL_BYTES) return block_reader_run(reader, reads, n, error);
    for (int d = 0; d < DEPTHS && !status; d++) {
        size_t end = first;
        for (; end < n && (d == DEPTHS - 1 || part < bytes / DEPTHS * (size_t)(d + 1)); end++) part += reads[end].bytes;
        status = run_with(reader, depths[d], reads + first, end - first, &rate[d], error);
        first = end;
    }
    reader->depth = status ? DEPTH : choose_depth(rate);
    return status;
}

/* Reads that a probe issues together, at most. */
enum { PROBE_READS = 2 * RING_READS };
/* Of its time, for each number of reads at a time that is tried; then all the rest for the one that is chosen. */
static const double part_of_trial = 0.1;

typedef struct probe {
    block_reader *reader;
    int file;
    uint64_t begin, places, drawn;
    size_t bytes, room;
    unsigned char *memory;
} probe;

static kakeya_status probe_for(probe *p, int depth, double seconds, double *rate, kakeya_error *error) {
    const double start = clock_seconds();
    const size_t n = 2 * (size_t)depth;
    kakeya_status status = KAKEYA_OK;
    double done = 0;
    do {
        block_read reads[PROBE_READS];
        for (size_t i = 0; i < n; i++) {
            uint64_t at = p->begin + (uint64_t)(random_uniform_at(7, p->drawn++) * (double)p->places);
            reads[i] = block_read_of(p->file, at, p->bytes, p->memory + i * p->room);
            done += (double)reads[i].bytes;
        }
        double portion;
        status = run_with(p->reader, depth, reads, n, &portion, error);
    } while (!status && clock_seconds() - start < seconds);
    *rate = done / (clock_seconds() - start);
    return status;
}

kakeya_status block_reader_probe(block_reader *reader, int file, uint64_t begin, uint64_t end, size_t bytes,
                                 double seconds, double *rate, kakeya_error *error) {
    if (bytes > end - begin) bytes = (size_t)(end - begin);
    probe p = {.reader = reader,
               .file = file,
               .begin = begin,
               .places = end - begin - bytes + 1,
               .bytes = bytes,
               .room = block_room(BLOCK_BYTES - 1, bytes)};
    const size_t most = reader->ring ? PROBE_READS : 2 * READERS;
    if (posix_memalign((void **)(void *)&p.memory, BLOCK_BYTES, most * p.room) != 0)
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for reading files");
    kakeya_status status = KAKEYA_OK;
    double left = seconds, rates[DEPTHS];
    for (int d = 0; reader->ring && d < DEPTHS && !status; d++) {
        status = probe_for(&p, depths[d], seconds * part_of_trial, &rates[d], error);
        left -= seconds * part_of_trial;
    }
    if (reader->ring && !status) reader->depth = choose_depth(rates);
    if (!status) status = probe_for(&p, block_reader_depth(reader), left, rate, error);
    free(p.memory);
    return status;
}

const char *block_reader_method(const block_reader *reader) {
    bool direct = true;
    for (int i = 0; i < reader->n_files; i++) direct = direct && reader->files[i].direct;
    if (reader->ring) return direct ? "io_uring, direct" : "io_uring, through the page cache";
    return direct ? "threads, direct" : "threads, through the page cache";
}
