/* Many stretches of files at a time, read into memory past the page cache where the system can: for data that the
 * program keeps itself. */
#ifndef KAKEYA_BASE_BLOCK_READER_H
#define KAKEYA_BASE_BLOCK_READER_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* What offsets, lengths and addresses of reads are multiples of. */
enum { BLOCK_BYTES = 4096 };

typedef struct block_reader block_reader;

typedef struct block_read {
    int file;        /* block_reader_file */
    uint64_t offset; /* in the file, a multiple of BLOCK_BYTES, as are bytes and the address `to` */
    size_t bytes;
    size_t needed; /* a file may end behind so many of them */
    void *to;
} block_read;

kakeya_status block_reader_create(block_reader **out, kakeya_error *error);
void block_reader_destroy(block_reader *reader); /* NULL is fine */

/* Opens a file, once, whatever the number of calls with its path. *file: its number. The file must not change from then
 * on; it may be renamed or removed. */
kakeya_status block_reader_file(block_reader *reader, const char *path, int *file, kakeya_error *error);

/* Begins reads [n], which stay where they are until block_reader_wait has returned; one call at a time. */
void block_reader_begin(block_reader *reader, const block_read *reads, size_t n);
/* Waits until all of them are there. KAKEYA_IO: one could not be read, ended early, or its file has changed: nothing of
 * what was read may be used. */
kakeya_status block_reader_wait(block_reader *reader, kakeya_error *error);
/* Both. */
kakeya_status block_reader_run(block_reader *reader, const block_read *reads, size_t n, kakeya_error *error);

/* Bytes per second of reads of `bytes` at random places of [begin, end) of a file, as many at a time as the reader has
 * under way, for about so many seconds. */
kakeya_status block_reader_probe(block_reader *reader, int file, uint64_t begin, uint64_t end, size_t bytes,
                                 double seconds, double *rate, kakeya_error *error);

/* How bytes come: "direct reads", "reads through the page cache". */
const char *block_reader_method(const block_reader *reader);

/* The room that bytes [offset, offset + bytes) take when whole blocks are read. */
static inline size_t block_room(uint64_t offset, size_t bytes) {
    uint64_t begin = offset / BLOCK_BYTES * BLOCK_BYTES;
    uint64_t end = (offset + bytes + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
    return (size_t)(end - begin);
}

/* The read of these bytes into room that begins at `to`; they then lie offset % BLOCK_BYTES behind it. */
static inline block_read block_read_of(int file, uint64_t offset, size_t bytes, void *to) {
    uint64_t begin = offset / BLOCK_BYTES * BLOCK_BYTES;
    return (block_read){.file = file,
                        .offset = begin,
                        .bytes = block_room(offset, bytes),
                        .needed = (size_t)(offset - begin) + bytes,
                        .to = to};
}

#endif
