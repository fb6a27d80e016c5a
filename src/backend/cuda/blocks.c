#include "backend/cuda/blocks.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Of the two kinds one is there. */
typedef struct block {
    void *data;
    CUmemGenericAllocationHandle granule;
    size_t bytes;
} block;

struct cuda_blocks {
    pthread_mutex_t lock;
    block *kept; /* the oldest first */
    size_t n, capacity;
    size_t bytes, most_bytes;
    CUresult (*release)(CUmemGenericAllocationHandle);
};

cuda_blocks *cuda_blocks_create(size_t most_bytes, CUresult (*release)(CUmemGenericAllocationHandle)) {
    cuda_blocks *b = calloc(1, sizeof *b);
    if (!b) return NULL;
    b->most_bytes = most_bytes;
    b->release = release;
    (void)pthread_mutex_init(&b->lock, NULL);
    return b;
}

static void release(const cuda_blocks *b, const block *kept) {
    if (kept->data)
        (void)cudaFree(kept->data);
    else
        (void)b->release(kept->granule);
}

/* With the lock. */
static size_t trim(cuda_blocks *b, size_t bytes) {
    size_t n = 0, before = b->bytes;
    while (b->bytes > bytes) {
        release(b, &b->kept[n]);
        b->bytes -= b->kept[n++].bytes;
    }
    b->n -= n;
    if (n) memmove(b->kept, b->kept + n, b->n * sizeof *b->kept);
    return before - b->bytes;
}

size_t cuda_blocks_trim(cuda_blocks *b, size_t bytes) {
    (void)pthread_mutex_lock(&b->lock);
    size_t freed = trim(b, bytes);
    (void)pthread_mutex_unlock(&b->lock);
    return freed;
}

void cuda_blocks_destroy(cuda_blocks *b) {
    if (!b) return;
    (void)trim(b, 0);
    (void)pthread_mutex_destroy(&b->lock);
    free(b->kept);
    free(b);
}

/* The youngest of the kind. */
static bool take(cuda_blocks *b, bool granule, size_t bytes, block *out) {
    (void)pthread_mutex_lock(&b->lock);
    size_t i = b->n;
    while (i > 0 && (b->kept[i - 1].bytes != bytes || !b->kept[i - 1].data != granule)) i--;
    if (i > 0) {
        *out = b->kept[i - 1];
        b->bytes -= bytes;
        b->n--;
        memmove(b->kept + i - 1, b->kept + i, (b->n - (i - 1)) * sizeof *b->kept);
    }
    (void)pthread_mutex_unlock(&b->lock);
    return i > 0;
}

void *cuda_blocks_take(cuda_blocks *b, size_t bytes) {
    block found;
    return take(b, false, bytes, &found) ? found.data : NULL;
}

bool cuda_blocks_take_granule(cuda_blocks *b, CUmemGenericAllocationHandle *granule, size_t bytes) {
    block found;
    if (!take(b, true, bytes, &found)) return false;
    *granule = found.granule;
    return true;
}

/* With the lock: is there a place for one more? */
static int has_place(cuda_blocks *b) {
    if (b->n < b->capacity) return 1;
    size_t capacity = b->capacity ? 2 * b->capacity : 64;
    block *kept = realloc(b->kept, capacity * sizeof *kept);
    if (!kept) return 0;
    b->kept = kept;
    b->capacity = capacity;
    return 1;
}

static void give(cuda_blocks *b, block given) {
    (void)pthread_mutex_lock(&b->lock);
    int keeps = given.bytes <= b->most_bytes && has_place(b);
    if (keeps) {
        (void)trim(b, b->most_bytes - given.bytes);
        b->kept[b->n++] = given;
        b->bytes += given.bytes;
    }
    (void)pthread_mutex_unlock(&b->lock);
    if (!keeps) release(b, &given);
}

void cuda_blocks_give(cuda_blocks *b, void *data, size_t bytes) { give(b, (block){.data = data, .bytes = bytes}); }

void cuda_blocks_give_granule(cuda_blocks *b, CUmemGenericAllocationHandle granule, size_t bytes) {
    give(b, (block){.granule = granule, .bytes = bytes});
}
