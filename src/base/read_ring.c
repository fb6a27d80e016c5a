#include "base/read_ring.h"

#if defined(KAKEYA_HAVE_URING)

#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <sys/mman.h>

/* Memory is made known in stripes of about so many bytes, when something is first read to one: pages that nothing was
 * read to take no memory. */
enum { STRIPE_BYTES = 32 << 20, MOST_STRIPES = 1024 };

typedef enum stripe_state { STRIPE_NEW, STRIPE_KNOWN, STRIPE_REFUSED } stripe_state;

struct read_ring {
    struct io_uring uring;
    unsigned char *memory;
    size_t bytes, stripe; /* 0: no memory is made known */
    unsigned char state[MOST_STRIPES];
};

read_ring *read_ring_create(void) {
    read_ring *ring = calloc(1, sizeof *ring);
    if (ring && io_uring_queue_init(RING_READS, &ring->uring, 0) == 0) return ring;
    free(ring);
    return NULL;
}

void read_ring_destroy(read_ring *ring) {
    if (!ring) return;
    read_ring_memory(ring, NULL, 0, 0);
    io_uring_queue_exit(&ring->uring);
    free(ring);
}

void read_ring_memory(read_ring *ring, void *memory, size_t bytes, size_t unit) {
    if (ring->stripe) (void)io_uring_unregister_buffers(&ring->uring);
    if (ring->memory) (void)madvise(ring->memory, ring->bytes, MADV_DOFORK);
    ring->memory = memory;
    ring->bytes = bytes;
    ring->stripe = 0;
    if (!memory || bytes == 0) return;
    /* Pages that the kernel holds would be copied for every child. */
    (void)madvise(memory, bytes, MADV_DONTFORK);
    size_t units = STRIPE_BYTES / unit + 1;
    while ((bytes + units * unit - 1) / (units * unit) > MOST_STRIPES) units *= 2;
    const size_t stripes = (bytes + units * unit - 1) / (units * unit);
    if (io_uring_register_buffers_sparse(&ring->uring, (unsigned)stripes) != 0) return;
    ring->stripe = units * unit;
    for (size_t i = 0; i < stripes; i++) ring->state[i] = STRIPE_NEW;
}

/* The stripe that holds a piece of memory and is known; negative: none is. */
static int known_stripe(read_ring *ring, const struct iovec *to) {
    const unsigned char *at = to->iov_base;
    if (!ring->stripe || at < ring->memory || at >= ring->memory + ring->bytes) return -1;
    const size_t i = (size_t)(at - ring->memory) / ring->stripe, begin = i * ring->stripe;
    if (at + to->iov_len > ring->memory + begin + ring->stripe) return -1;
    if (ring->state[i] == STRIPE_NEW) {
        const size_t left = ring->bytes - begin;
        const struct iovec stripe = {ring->memory + begin, left < ring->stripe ? left : ring->stripe};
        const int made = io_uring_register_buffers_update_tag(&ring->uring, (unsigned)i, &stripe, NULL, 1);
        ring->state[i] = made == 1 ? STRIPE_KNOWN : STRIPE_REFUSED;
    }
    return ring->state[i] == STRIPE_KNOWN ? (int)i : -1;
}

void read_ring_put(read_ring *ring, int fd, const struct iovec *to, int n, uint64_t offset, size_t which) {
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring->uring); /* has room: RING_READS are all that are under way */
    const int stripe = n == 1 ? known_stripe(ring, to) : -1;
    if (stripe >= 0)
        io_uring_prep_read_fixed(sqe, fd, to->iov_base, (unsigned)to->iov_len, offset, stripe);
    else
        io_uring_prep_readv(sqe, fd, to, (unsigned)n, offset);
    io_uring_sqe_set_data64(sqe, which);
}

void read_ring_begin(read_ring *ring) { (void)io_uring_submit(&ring->uring); }

bool read_ring_has(read_ring *ring) { return io_uring_cq_ready(&ring->uring) > 0; }

bool read_ring_take(read_ring *ring, size_t *which, int *result) {
    struct io_uring_cqe *cqe = NULL;
    while (io_uring_peek_cqe(&ring->uring, &cqe) != 0) {
        const int got = io_uring_submit_and_wait(&ring->uring, 1);
        if (got < 0 && got != -EINTR && got != -EAGAIN && got != -EBUSY) return false;
    }
    *which = (size_t)io_uring_cqe_get_data64(cqe);
    *result = cqe->res;
    io_uring_cqe_seen(&ring->uring, cqe);
    return true;
}

#else

read_ring *read_ring_create(void) { return NULL; }
void read_ring_destroy(read_ring *ring) { (void)ring; }

void read_ring_memory(read_ring *ring, void *memory, size_t bytes, size_t unit) {
    (void)ring;
    (void)memory;
    (void)bytes;
    (void)unit;
}

void read_ring_put(read_ring *ring, int fd, const struct iovec *to, int n, uint64_t offset, size_t which) {
    (void)ring;
    (void)fd;
    (void)to;
    (void)n;
    (void)offset;
    (void)which;
}

void read_ring_begin(read_ring *ring) { (void)ring; }

bool read_ring_has(read_ring *ring) {
    (void)ring;
    return false;
}

bool read_ring_take(read_ring *ring, size_t *which, int *result) {
    (void)ring;
    (void)which;
    (void)result;
    return false;
}

#endif
