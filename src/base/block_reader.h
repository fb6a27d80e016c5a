/* Many stretches of files at a time, read into memory past the page cache where the system can: for data that the
 * program keeps itself. The kernel carries them out by itself where it can (base/read_ring.h), else a few threads do.
 */
#ifndef KAKEYA_BASE_BLOCK_READER_H
#define KAKEYA_BASE_BLOCK_READER_H

#include <stdbool.h>
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
    size_t lead, needed; /* bytes [lead, needed) are wanted; the file may end after them */
    void *to;
    uint64_t *hash;  /* block_hash of what is wanted, which is checked; 0: not known, and learned; NULL: not checked */
    uint64_t hashed; /* the reader's own, ... */
    bool ended;      /* ... as this is */
} block_read;

kakeya_status block_reader_create(block_reader **out, kakeya_error *error);
void block_reader_destroy(block_reader *reader); /* NULL is fine */

/* Opens a file, once, whatever the number of calls with its path. *file: its number. The file must not change from then
 * on; it may be renamed or removed. A file that was lost (reads failed, or it was written to) is opened again by its
 * path with each later read until it is as it was. */
kakeya_status block_reader_file(block_reader *reader, const char *path, int *file, kakeya_error *error);
/* All that will be read of the file has a hash that is known: another file of the same length does as well. */
void block_reader_file_hashed(block_reader *reader, int file);

/* Reads will go to this memory, in pieces that lie within multiples of `unit`; the system may prepare for that. The
 * memory outlives the reader, or is taken back with NULL. */
void block_reader_memory(block_reader *reader, void *memory, size_t bytes, size_t unit);

/* Begins reads [n], which stay where they are until block_reader_wait has returned; one call at a time. Neighbours in
 * the list that lie side by side in the file, and are small, are one read. */
void block_reader_begin(block_reader *reader, block_read *reads, size_t n);
/* Waits until all of them are there. KAKEYA_IO: one could not be read, ended early, is not what its hash says, or its
 * file has changed: nothing of what was read may be used. */
kakeya_status block_reader_wait(block_reader *reader, kakeya_error *error);
/* Waits until the first of them are there, and may be used; the others are still to be waited for. A failure, of
 * whatever read, ends them all. */
kakeya_status block_reader_wait_first(block_reader *reader, size_t first, kakeya_error *error);
/* Begin and wait. */
kakeya_status block_reader_run(block_reader *reader, block_read *reads, size_t n, kakeya_error *error);
/* Reads ahead: beside those above, and after them where not all have room. The same holds of them, one call at a time.
 */
void block_reader_begin_ahead(block_reader *reader, block_read *reads, size_t n);
kakeya_status block_reader_wait_ahead(block_reader *reader, kakeya_error *error);
/* Some of them have not ended. */
bool block_reader_is_ahead(block_reader *reader);
/* Where the kernel reads by itself, it has no more reads to do than were under way when the last ones were waited for:
 * this begins others in the place of those that have ended. */
void block_reader_poll(block_reader *reader);
/* As begin and wait together. From then on as many reads are under way at a time as were the fastest, of those that
 * were tried. */
kakeya_status block_reader_run_trying(block_reader *reader, block_read *reads, size_t n, kakeya_error *error);

/* Bytes per second of reads of `bytes` at random places of [begin, end) of a file, as many at a time as the reader has
 * under way, for about so many seconds. Before that, so many are tried: block_reader_run_trying. */
kakeya_status block_reader_probe(block_reader *reader, int file, uint64_t begin, uint64_t end, size_t bytes,
                                 double seconds, double *rate, kakeya_error *error);

/* How bytes come: "io_uring, direct", "threads, through the page cache" and the like. */
const char *block_reader_method(const block_reader *reader);
/* Reads that are under way at a time. */
int block_reader_depth(const block_reader *reader);

/* Of bytes that are checked when they are read: their XXH3 of 64 bits, but never 0. */
uint64_t block_hash(const void *data, size_t bytes);
static inline uint64_t block_hash_value(uint64_t xxh3) { return xxh3 ? xxh3 : 1; }

/* The room that bytes [offset, offset + bytes) take when whole blocks are read. */
static inline size_t block_room(uint64_t offset, size_t bytes) {
    uint64_t begin = offset / BLOCK_BYTES * BLOCK_BYTES;
    uint64_t end = (offset + bytes + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
    return (size_t)(end - begin);
}

/* The read of these bytes into room that begins at `to`; they then lie offset % BLOCK_BYTES bytes after it. */
static inline block_read block_read_of(int file, uint64_t offset, size_t bytes, void *to) {
    uint64_t begin = offset / BLOCK_BYTES * BLOCK_BYTES;
    return (block_read){.file = file,
                        .offset = begin,
                        .bytes = block_room(offset, bytes),
                        .lead = (size_t)(offset - begin),
                        .needed = (size_t)(offset - begin) + bytes,
                        .to = to};
}

#endif
