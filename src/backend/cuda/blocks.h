/* Device memory of closed sessions, kept for the next ones, which get theirs while no forward runs
 * (docs/reference/cuda.md, K/V memory). What is kept is in no account. */
#ifndef KAKEYA_BACKEND_CUDA_BLOCKS_H
#define KAKEYA_BACKEND_CUDA_BLOCKS_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>

/* Blocks that cudaMalloc made, and granules that cuMemCreate made, of which nobody uses any. Any thread may call what
 * follows. */
typedef struct cuda_blocks cuda_blocks;

/* Keeps `most_bytes` at most; `release` gives back a granule. NULL: out of memory. */
cuda_blocks *cuda_blocks_create(size_t most_bytes, CUresult (*release)(CUmemGenericAllocationHandle));
/* Frees what is kept, while the device is current. NULL is fine. */
void cuda_blocks_destroy(cuda_blocks *blocks);

/* A block of exactly that many bytes, with whatever it held, or NULL. Blocks are used in the order of one stream. */
void *cuda_blocks_take(cuda_blocks *blocks, size_t bytes);
/* Keeps the block, or frees it where it does not fit; the oldest ones are freed for it. */
void cuda_blocks_give(cuda_blocks *blocks, void *data, size_t bytes);
/* The same of granules, which are mapped nowhere. False: none is kept. */
bool cuda_blocks_take_granule(cuda_blocks *blocks, CUmemGenericAllocationHandle *granule, size_t bytes);
void cuda_blocks_give_granule(cuda_blocks *blocks, CUmemGenericAllocationHandle granule, size_t bytes);
/* Frees the oldest blocks until at most so many bytes are kept. Returns the bytes freed. */
size_t cuda_blocks_trim(cuda_blocks *blocks, size_t bytes);

#endif
