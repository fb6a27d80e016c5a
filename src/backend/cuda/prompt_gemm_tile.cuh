/* What the forms of the prompt products share: parameters, the walk over tiles, and the results' way out. */
#ifndef KAKEYA_BACKEND_CUDA_PROMPT_GEMM_TILE_CUH
#define KAKEYA_BACKEND_CUDA_PROMPT_GEMM_TILE_CUH

#include "backend/cuda/prompt_gemm_output.h"
#include "backend/cuda/prompt_tensor.cuh"

namespace prompt {

constexpr int TILE_K = PANEL_COLUMNS;

struct gemm_params {
    const __nv_bfloat16 *a, *w, *w_up;
    size_t lda, ldw, ldo, expert_stride;
    void *out;
    const int *expert_begin, *rows; /* expert_begin NULL: one dense product of m rows */
    unsigned *counter;              /* of tiles of experts that blocks have taken; zero between launches */
    int m, n, k, experts;
    prompt_gemm_output output;
};

struct tile_place {
    int first_row; /* slot of the tile's first row */
    int rows;      /* valid rows, may be more than the tile's */
    int first_column;
    int expert;
};

/* table[i] = the sum of table[1 .. i], table[0] = 0; by a whole block, which has written the table. */
__device__ __forceinline__ void sum_table(int *table, int entries) {
    if (threadIdx.x == 0) table[0] = 0;
    __syncthreads();
    if (threadIdx.x < 32) {
        int lane = static_cast<int>(threadIdx.x), carry = 0;
        for (int base = 1; base <= entries; base += 32) {
            int e = base + lane, sum = e <= entries ? table[e] : 0;
            for (int step = 1; step < 32; step *= 2) {
                int other = __shfl_up_sync(~0u, sum, step);
                if (lane >= step) sum += other;
            }
            sum += carry;
            if (e <= entries) table[e] = sum;
            carry = __shfl_sync(~0u, sum, 31);
        }
    }
    __syncthreads();
}

/* tiles_before[e] = row tiles (of M rows) of the experts below e. */
template <int M, int THREADS> __device__ void count_tiles(const gemm_params &p, int *tiles_before) {
    for (int e = static_cast<int>(threadIdx.x); e < p.experts; e += THREADS) {
        tiles_before[e + 1] = (p.expert_begin[e + 1] - p.expert_begin[e] + M - 1) / M;
    }
    sum_table(tiles_before, p.experts);
}

/* Row tiles run fastest within an expert, so that neighbours in time read the same stretch of W. */
template <int M>
__device__ __forceinline__ tile_place find_tile(const gemm_params &p, const int *tiles_before, int tile, int n_tiles,
                                                int width) {
    if (!p.expert_begin) {
        int m_tiles = (p.m + M - 1) / M, row = tile % m_tiles * M;
        return {row, p.m - row, tile / m_tiles * width, 0};
    }
    int low = 0, high = p.experts - 1; /* the last expert that begins at or before `tile` */
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (tiles_before[middle] * n_tiles <= tile)
            low = middle;
        else
            high = middle - 1;
    }
    int m_tiles = tiles_before[low + 1] - tiles_before[low], local = tile - tiles_before[low] * n_tiles;
    int row = p.expert_begin[low] + local % m_tiles * M;
    return {row, p.expert_begin[low + 1] - row, local / m_tiles * width, low};
}

__device__ __forceinline__ float activate(float x, prompt_gemm_output output) {
    if (output == PROMPT_GEMM_SILU_BF16) return __fdividef(x, 1.0f + __expf(-x));
    /* x (1 + tanh u) / 2 = x / (1 + exp(-2 u)) */
    return __fdividef(x, 1.0f + __expf(-1.5957691216057308f * (x + 0.044715f * x * x * x)));
}

/* Writes one row of a fragment: `c` points to its two values of the first block of eight columns, `column` is the
 * column of the first. Gated: the gate's blocks are j and the up matrix's j + 1 for even j when INTERLEAVED, else j and
 * j + BLOCKS / 2. */
template <bool GATED, bool INTERLEAVED, int BLOCKS>
__device__ __forceinline__ void write_row(const gemm_params &p, size_t row, int column, const float *c) {
    size_t line = row * p.ldo;
    if (GATED) {
        constexpr int UP = INTERLEAVED ? 1 : BLOCKS / 2;
        __nv_bfloat16 *out = static_cast<__nv_bfloat16 *>(p.out) + line;
#pragma unroll
        for (int i = 0; i < BLOCKS / 2; i++) {
            int j = INTERLEAVED ? 2 * i : i;
            float low = activate(c[j * 4], p.output) * c[(j + UP) * 4],
                  high = activate(c[j * 4 + 1], p.output) * c[(j + UP) * 4 + 1];
            if (column + i * 8 < p.n) *reinterpret_cast<uint32_t *>(out + column + i * 8) = pack_pair(low, high);
        }
    } else if (p.output == PROMPT_GEMM_F32) {
        float *out = static_cast<float *>(p.out) + line;
#pragma unroll
        for (int j = 0; j < BLOCKS; j++) {
            if (column + j * 8 < p.n)
                *reinterpret_cast<float2 *>(out + column + j * 8) = make_float2(c[j * 4], c[j * 4 + 1]);
        }
    } else {
        __nv_bfloat16 *out = static_cast<__nv_bfloat16 *>(p.out) + line;
#pragma unroll
        for (int j = 0; j < BLOCKS; j++) {
            if (column + j * 8 < p.n)
                *reinterpret_cast<uint32_t *>(out + column + j * 8) = pack_pair(c[j * 4], c[j * 4 + 1]);
        }
    }
}

} // namespace prompt

#endif
