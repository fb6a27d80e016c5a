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

/* What is wanted now, and what is read ahead: while there is room, and behind the others. */
enum { WANTED_CALL, AHEAD_CALL, CALLS };
/* Of the reads that are under way at a time, those ahead are at most so many: a read that is wanted waits for them. */
enum { AHEAD_DEPTH = 24 };

/* What one call of block_reader_begin began. */
typedef struct read_call {
    block_read *reads;
    size_t n, next, left; /* left: reads that have not ended */
    int failed;           /* a value of errno, or one of the below; 0: none */
    size_t failed_at;
} read_call;

/* Reads [first, first + n) of a call as one. */
typedef struct joined_read {
    int call;
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
    int under_way_of[CALLS];       /* joined reads */
    pthread_t thread[READERS - 1]; /* beside the caller */
    int threads;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    bool ending;
    read_call call[CALLS]; /* protected by the lock where threads read */
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

/* The next reads of a call as one. Needs the lock where threads read. */
static void take_joined(block_reader *reader, int call, joined_read *j) {
    read_call *c = &reader->call[call];
    const block_read *reads = c->reads;
    j->call = call;
    j->first = c->next;
    j->n = j->pieces = 0;
    j->bytes = 0;
    do {
        const block_read *r = &reads[c->next];
        const size_t skip = j->n > 0 && shares_block(r - 1, r) ? BLOCK_BYTES : 0;
        j->to[j->pieces++] = (struct iovec){(char *)r->to + skip, r->bytes - skip};
        j->bytes += r->bytes - skip;
        j->n++;
        c->next++;
    } while (c->next < c->n && j->pieces < JOINED && follows(&reads[c->next - 1], &reads[c->next]) &&
             j->bytes + reads[c->next].bytes <= JOINED_BYTES);
    reader->under_way_of[call]++;
}

/* What was read is what is wanted; gives every read its copy of a block that two have. got: bytes of them all, or a
 * negative value of errno. *at: of a failure. */
static int finish_joined(const block_reader *reader, const joined_read *j, long got, size_t *at) {
    block_read *r = reader->call[j->call].reads + j->first;
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
    read_call *c = &reader->call[j->call];
    if (failed && !c->failed) {
        c->failed = failed;
        c->failed_at = at;
    }
    c->left -= (size_t)j->n;
    for (int i = 0; i < j->n; i++) c->reads[j->first + (size_t)i].ended = true;
    reader->under_way_of[j->call]--;
}

/* Whether the first reads of a call have ended. */
static bool have_ended(const read_call *c, size_t first) {
    if (c->left == 0) return true;
    for (size_t i = 0; i < first; i++)
        if (!c->reads[i].ended) return false;
    return true;
}

/* Whose read comes next; CALLS: nobody's. After a failure no read of a call begins any more. */
static int next_call(const block_reader *reader) {
    int call = WANTED_CALL;
    while (call < CALLS && (reader->call[call].next >= reader->call[call].n || reader->call[call].failed)) call++;
    return call;
}

/* Some of a call's reads are under way, or will be. */
static bool call_goes_on(const block_reader *reader, int call) {
    const read_call *c = &reader->call[call];
    return reader->under_way_of[call] > 0 || (c->next < c->n && !c->failed);
}

/* -------------------------------------------------------------------------------------------------- without threads */

static void put_reads(block_reader *reader) {
    for (int call; (call = next_call(reader)) < CALLS && reader->n_idle > 0;) {
        const read_call *c = &reader->call[call];
        if (reader->under_way_of[call] >= (call == AHEAD_CALL ? AHEAD_DEPTH : reader->depth)) break;
        const int which = reader->idle[--reader->n_idle];
        joined_read *j = &reader->under_way[which];
        take_joined(reader, call, j);
        read_ring_put(reader->ring, reader->files[c->reads[j->first].file].fd, j->to, j->pieces,
                      c->reads[j->first].offset, (size_t)which);
    }
    read_ring_begin(reader->ring);
}

static void make_idle(block_reader *reader) {
    for (reader->n_idle = 0; reader->n_idle < RING_READS; reader->n_idle++)
        reader->idle[reader->n_idle] = reader->n_idle;
    for (int i = 0; i < CALLS; i++) reader->under_way_of[i] = 0;
}

/* Takes a read that has ended, and begins others. wait: for one. False: there is none, or no ring any more. */
static bool take_one(block_reader *reader, bool wait) {
    size_t which, at = 0;
    int got;
    if (!wait && !read_ring_has(reader->ring)) return false;
    if (!read_ring_take(reader->ring, &which, &got)) {
        read_ring_destroy(reader->ring);
        reader->ring = NULL;
        make_idle(reader);
        for (int i = 0; i < CALLS; i++) { /* all again, by the caller alone */
            reader->call[i].next = 0;
            reader->call[i].left = reader->call[i].n;
        }
        return false;
    }
    const joined_read *j = &reader->under_way[which];
    int failed = reader->call[j->call].failed ? 0 : finish_joined(reader, j, got, &at);
    note_end(reader, j, failed, at);
    reader->idle[reader->n_idle++] = (int)which;
    put_reads(reader);
    return true;
}

static void wait_for_ring(block_reader *reader, int call, size_t first) {
    const read_call *c = &reader->call[call];
    while (reader->ring && call_goes_on(reader, call) && (c->failed || !have_ended(c, first)))
        (void)take_one(reader, true);
}

/* ------------------------------------------------------------------------------------------------------ with threads
 */

/* Reads one of the next. Needs the lock, which it gives up while it reads. */
static void take_next(block_reader *reader, int call) {
    joined_read j;
    size_t at = 0;
    read_call *c = &reader->call[call];
    take_joined(reader, call, &j);
    const block_read *r = &c->reads[j.first];
    const int fd = reader->files[r->file].fd;
    bool skip = c->failed != 0;
    pthread_mutex_unlock(&reader->lock);
    int failed = 0;
    if (!skip) {
        long got = j.n > 1 ? preadv(fd, j.to, j.pieces, (off_t)r->offset) : -1;
        failed = finish_joined(reader, &j, got, &at);
    }
    pthread_mutex_lock(&reader->lock);
    note_end(reader, &j, failed, at);
    pthread_cond_broadcast(&reader->done);
}

static void *run_reader(void *user) {
    block_reader *reader = user;
    pthread_mutex_lock(&reader->lock);
    for (;;) {
        int call = CALLS;
        while (!reader->ending && (call = next_call(reader)) == CALLS) pthread_cond_wait(&reader->work, &reader->lock);
        if (reader->ending) break;
        take_next(reader, call);
    }
    pthread_mutex_unlock(&reader->lock);
    return NULL;
}

/* The caller reads, too. Needs the lock. */
static void wait_for_threads(block_reader *reader, int call, size_t first) {
    read_call *c = &reader->call[call];
    while (c->failed ? c->left > 0 : !have_ended(c, first)) {
        if (c->next < c->n)
            take_next(reader, call);
        else
            pthread_cond_wait(&reader->done, &reader->lock);
    }
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

static kakeya_status tell_failure(const block_reader *reader, const read_call *c, kakeya_error *error) {
    const block_read *r = &c->reads[c->failed_at];
    const read_file *f = &reader->files[r->file];
    if (c->failed == FILE_LOST)
        return error_set(error, KAKEYA_IO, "%s: the file is gone, or is not the one that was opened", f->path);
    const char *reason = c->failed == CUT_SHORT     ? "the file ends before them"
                         : c->failed == OTHER_BYTES ? "their checksum is not the one that is known"
                                                    : strerror(c->failed);
    return error_set(error, KAKEYA_IO, "%s: reading %zu bytes at %llu fails: %s", f->path, r->needed,
                     (unsigned long long)r->offset, reason);
}

/* ------------------------------------------------------------------------------------------------------------- reads
 */

static void begin(block_reader *reader, int call, block_read *reads, size_t n) {
    pthread_mutex_lock(&reader->lock);
    bool idle = true; /* no read is under way that uses a file which is to be opened again */
    for (int i = 0; i < CALLS; i++) idle &= !call_goes_on(reader, i);
    if (idle) find_lost(reader);
    read_call *c = &reader->call[call];
    *c = (read_call){.reads = reads, .n = n, .left = n};
    for (size_t i = 0; i < n; i++) {
        reads[i].ended = false;
        if (!reader->files[reads[i].file].lost || c->failed) continue;
        c->failed = FILE_LOST;
        c->failed_at = i;
    }
    if (reader->ring)
        put_reads(reader);
    else if (n > 0)
        pthread_cond_broadcast(&reader->work);
    pthread_mutex_unlock(&reader->lock);
}

void block_reader_begin(block_reader *reader, block_read *reads, size_t n) { begin(reader, WANTED_CALL, reads, n); }
void block_reader_begin_ahead(block_reader *reader, block_read *reads, size_t n) {
    begin(reader, AHEAD_CALL, reads, n);
}

/* A call has ended, with or without success. */
static void end_call(block_reader *reader, read_call *c) {
    pthread_mutex_lock(&reader->lock);
    c->n = c->next = c->left = 0;
    pthread_mutex_unlock(&reader->lock);
}

static kakeya_status wait_for(block_reader *reader, int call, size_t first, kakeya_error *error) {
    read_call *c = &reader->call[call];
    if (c->n == 0) return KAKEYA_OK;
    if (first > c->n) first = c->n;
    const bool all = first == c->n;
    if (reader->ring) wait_for_ring(reader, call, first);
    pthread_mutex_lock(&reader->lock);
    if (!reader->ring) wait_for_threads(reader, call, first);
    const int failed = c->failed;
    pthread_mutex_unlock(&reader->lock);
    if (failed) {
        reader->files[c->reads[c->failed_at].file].lost = true;
        end_call(reader, c);
        return tell_failure(reader, c, error);
    }
    const read_file *changed = changed_file(reader);
    if (changed) {
        kakeya_error again;
        if (!all) (void)wait_for(reader, call, c->n, &again); /* which says the same */
        end_call(reader, c);
        return error_set(error, KAKEYA_IO, "%s: the file was changed while it is in use", changed->path);
    }
    if (!all) return KAKEYA_OK;
    for (size_t i = 0; i < c->n; i++) {
        block_read *r = &c->reads[i];
        if (r->hash) *r->hash = r->hashed;
    }
    end_call(reader, c);
    return KAKEYA_OK;
}

kakeya_status block_reader_wait(block_reader *reader, kakeya_error *error) {
    return wait_for(reader, WANTED_CALL, SIZE_MAX, error);
}

kakeya_status block_reader_wait_first(block_reader *reader, size_t first, kakeya_error *error) {
    return wait_for(reader, WANTED_CALL, first, error);
}

kakeya_status block_reader_wait_ahead(block_reader *reader, kakeya_error *error) {
    return wait_for(reader, AHEAD_CALL, SIZE_MAX, error);
}

bool block_reader_is_ahead(block_reader *reader) {
    block_reader_poll(reader);
    pthread_mutex_lock(&reader->lock);
    const bool is = call_goes_on(reader, AHEAD_CALL);
    pthread_mutex_unlock(&reader->lock);
    return is;
}

void block_reader_poll(block_reader *reader) {
    while (reader->ring && take_one(reader, false)) continue;
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
