/* What products of many decode rows share, whatever form the weights have (products_wide.cu, quant_many.cuh): requests
 * of chunks of 16 bytes, and tiles of 64 outputs and 32 rows of a warp, whose sums meet in shared memory. */
#ifndef KAKEYA_BACKEND_CUDA_PRODUCTS_WIDE_CUH
#define KAKEYA_BACKEND_CUDA_PRODUCTS_WIDE_CUH

#include "backend/cuda/product_items.cuh"

enum {
    CHUNK = 16, /* bytes that one request brings */
    WIDE_LEAST_BLOCK_BYTES =
        200 << 10,  /* of shared memory: data centres' devices, which have room for two blocks of half of it */
    WIDE_OUTS = 64, /* rows of weights of a warp; of gate and up half of them each, eight in turns */
    WIDE_ROWS = 32, /* of x at once */
    WIDE_TILES = WIDE_OUTS / 16,
    WIDE_COLUMNS = WIDE_ROWS / 8,
    WIDE_SUMS = WIDE_OUTS * WIDE_ROWS / 32, /* of a lane */
};

static __device__ __forceinline__ void request_chunk(unsigned char *shared, const void *global, bool wanted) {
    uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
    int bytes = wanted ? CHUNK : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes));
}

/* Of experts' weights, whose neighbours other warps request at the same time: memory is read in longer pieces. (Dense
 * products, which come back for them later, lose by it.) */
static __device__ __forceinline__ void request_weights_chunk(unsigned char *shared, const void *global) {
    uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(to), "l"(global));
}

static __device__ __forceinline__ void close_group(void) { asm volatile("cp.async.commit_group;" ::: "memory"); }
static __device__ __forceinline__ void wait_all(void) { asm volatile("cp.async.wait_all;" ::: "memory"); }
template <int LEFT> static __device__ __forceinline__ void wait_groups(void) {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

/* A warp's sums of n rows to where collect_sums finds them. The whole block meets before that. */
static __device__ __forceinline__ void put_sums(float *sums, const float (&acc)[WIDE_TILES][WIDE_COLUMNS][4], int n) {
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
#pragma unroll
    for (int t = 0; t < WIDE_TILES; t++) {
#pragma unroll
        for (int c = 0; c < WIDE_COLUMNS; c++) {
            if (c * 8 >= n) break;
#pragma unroll
            for (int k = 0; k < 4; k++)
                sums[(warp * WIDE_SUMS + (t * WIDE_COLUMNS + c) * 4 + k) * 32 + lane] = acc[t][c][k];
        }
    }
}

/* take(row, output, y, up) for each output of a warp's n rows, whose sums are its own; group: of outputs. As below. */
template <bool GATED, class TAKE>
static __device__ __forceinline__ void take_sums(const float (&acc)[WIDE_TILES][WIDE_COLUMNS][4], int group, int n,
                                                 TAKE take) {
    const int OUTS = GATED ? WIDE_OUTS / 2 : WIDE_OUTS;
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int t = 0; t < WIDE_TILES; t++) {
#pragma unroll
        for (int c = 0; c < WIDE_COLUMNS; c++) {
#pragma unroll
            for (int k = 0; k < (GATED ? 2 : 4); k++) {
                int row = c * 8 + (lane & 3) * 2 + (k & 1);
                if (row < n)
                    take(row, group * OUTS + t * (OUTS / WIDE_TILES) + (lane >> 2) + (k & 2) * 4, 0 + acc[t][c][k],
                         GATED ? 0 + acc[t][c][k + 2 < 4 ? k + 2 : k] : 0);
            }
        }
    }
}

/* take(row, output, y, up) for each of this thread's outputs of n rows: sums of `split` warps, in their order.
 * Neighbours of split warps are a group, whose outputs lie behind those of the group before. GATED: y is of gate. */
template <bool GATED, class TAKE>
static __device__ __forceinline__ void collect_sums(const float *sums, int split, int n, TAKE take) {
    const int OUTS = GATED ? WIDE_OUTS / 2 : WIDE_OUTS, EACH = GATED ? WIDE_SUMS / 2 : WIDE_SUMS;
    auto collect = [&](int group, int at) {
        float sum = 0;
        for (int s = 0; s < split; s++) sum += sums[(group * split + s) * WIDE_SUMS * 32 + at];
        return sum;
    };
    for (int i = threadIdx.x; i < WARPS / split * EACH * 32; i += THREADS) {
        int group = i / (EACH * 32), value = i / 32 % EACH, from = i & 31;
        int c = GATED ? value / 2 % WIDE_COLUMNS : value / 4 % WIDE_COLUMNS, t = value / (GATED ? 2 : 4) / WIDE_COLUMNS;
        int k = GATED ? value % 2 : value % 4, row = c * 8 + (from & 3) * 2 + (k & 1);
        if (row >= n) continue;
        int at = ((t * WIDE_COLUMNS + c) * 4 + k) * 32 + from;
        take(row, group * OUTS + t * (OUTS / WIDE_TILES) + (from >> 2) + (k & 2) * 4, collect(group, at),
             GATED ? collect(group, at + 2 * 32) : 0);
    }
}

#endif
