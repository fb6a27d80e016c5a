/* Reads that the kernel carries out by itself (io_uring): many are begun with one call, and none needs a thread of the
 * program. Where there is no such thing (another system, a sandbox that forbids it, a build without liburing),
 * read_ring_create says so. */
#ifndef KAKEYA_BASE_READ_RING_H
#define KAKEYA_BASE_READ_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

enum { RING_READS = 64 }; /* that can be under way */

typedef struct read_ring read_ring;

read_ring *read_ring_create(void);       /* NULL: there is none here */
void read_ring_destroy(read_ring *ring); /* NULL is fine; no read is under way */

/* Most reads will go to memory [bytes], in pieces that lie within multiples of `unit` from its begin. What is read to
 * is made known to the kernel, which then does not look up its pages at each read; where that is refused (a limit on
 * locked memory), reads work as they do elsewhere. The memory is given back before it is freed, with NULL. */
void read_ring_memory(read_ring *ring, void *memory, size_t bytes, size_t unit);

/* A read of file fd from `offset` on to the pieces of memory [n], which stay where they are, as the list does, until it
 * has ended. At most RING_READS are under way. */
void read_ring_put(read_ring *ring, int fd, const struct iovec *to, int n, uint64_t offset, size_t which);
/* Begins what was put, where the kernel takes it now; the rest begins with read_ring_take. */
void read_ring_begin(read_ring *ring);
/* Whether a read has ended that was not taken. */
bool read_ring_has(read_ring *ring);
/* Begins what was put, and waits for a read that ends. *which: as it was put. *result: the bytes that were read, or a
 * negative value of errno. false: the ring is broken, and is good for nothing but read_ring_destroy. */
bool read_ring_take(read_ring *ring, size_t *which, int *result);

#endif
