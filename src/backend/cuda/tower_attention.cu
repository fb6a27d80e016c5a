/* Attention of a picture's patches: all of them see all of them. Bound: 4 head_dim FLOPs per head and pair of patches
 * over the tensor cores' rate.
 *
 * A thread block has 128 queries of one head, a warp 32 of them: what a warp loads of keys and values serves two tiles
 * of 16 queries, or shared memory would be the bound. Queries stay in registers. Blocks of 64 keys and their values
 * come by cp.async while the block before is computed. Heads of 72 are 80 wide where they are summed over, with zeros,
 * and 72 wide where values are. */
#include "backend/cuda/tower_common.cuh"
#include "backend/cuda/tower_kernels.h"

namespace {

using namespace prompt;

constexpr int THREADS = 128, QUERIES = 128, KEYS = 64, WARP_QUERIES = 32;

/* Rows in shared memory are WIDE + 8 values apart, which spreads eight of them over all banks. */
template <int D> struct shape {
    static constexpr int WIDE = (D + 15) / 16 * 16, STEPS = WIDE / 16, COLUMNS = D / 8, PITCH = (WIDE + 8) * 2;
    static constexpr int Q = 0, BLOCK = KEYS * PITCH, K = QUERIES * PITCH, V = K + 2 * BLOCK, BYTES = V + 2 * BLOCK;
};

/* Rows [first, first + ROWS) of [rows][D]; those behind the last one become zero. */
template <int D, int ROWS>
__device__ __forceinline__ void load_tile(const cuda_bf16 *from, int first, int rows, uint32_t to) {
    constexpr int CHUNKS = D / 8;
    for (int i = static_cast<int>(threadIdx.x); i < ROWS * CHUNKS; i += THREADS) {
        const int row = i / CHUNKS, chunk = i % CHUNKS;
        const bool there = first + row < rows;
        const size_t at = (there ? static_cast<size_t>(first + row) * D : 0) + static_cast<size_t>(chunk * 8);
        copy_async(to + static_cast<uint32_t>(row * shape<D>::PITCH + chunk * 16), from + at, there);
    }
}

/* The columns that no row has, of queries and both blocks of keys. */
template <int D> __device__ __forceinline__ void clear_rest(unsigned char *memory) {
    constexpr int REST = shape<D>::WIDE - D;
    if constexpr (REST > 0) {
        static_assert(REST == 8, "one chunk");
        for (int row = static_cast<int>(threadIdx.x); row < QUERIES + 2 * KEYS; row += THREADS)
            *reinterpret_cast<uint4 *>(memory + shape<D>::Q + row * shape<D>::PITCH + D * 2) = make_uint4(0, 0, 0, 0);
    }
}

/* Over the four lanes that hold a row. */
__device__ __forceinline__ float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ float row_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

template <int D>
__global__ void __launch_bounds__(THREADS, 2) attend_kernel(const __grid_constant__ tower_attention a) {
    using S = shape<D>;
    constexpr float LOG2_E = 1.4426950408889634f;
    TOWER_MEMORY(memory);
    const uint32_t base = shared_address(memory);
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int first = static_cast<int>(blockIdx.x) * QUERIES, blocks = (a.rows + KEYS - 1) / KEYS;
    const int parts = static_cast<int>(gridDim.z), part = static_cast<int>(blockIdx.z);
    const int begin = blocks * part / parts, end = blocks * (part + 1) / parts;
    const size_t head = static_cast<size_t>(blockIdx.y) * static_cast<size_t>(a.rows) * D;
    const cuda_bf16 *keys = a.k + head, *values = a.v + head;
    auto load_block = [&](int j) {
        if (j < end) {
            const uint32_t stage = static_cast<uint32_t>(j % 2 * S::BLOCK);
            load_tile<D, KEYS>(keys, j * KEYS, a.rows, base + S::K + stage);
            load_tile<D, KEYS>(values, j * KEYS, a.rows, base + S::V + stage);
        }
        copy_commit();
    };
    wait_for_predecessor();
    clear_rest<D>(memory);
    load_tile<D, QUERIES>(a.q + head, first, a.rows, base + S::Q);
    load_block(begin);
    copy_wait<0>();
    __syncthreads();

    uint32_t q[2][S::STEPS][4];
#pragma unroll
    for (int t = 0; t < 2; t++) {
#pragma unroll
        for (int k = 0; k < S::STEPS; k++)
            load_matrices(q[t][k],
                          base + static_cast<uint32_t>(S::Q + (warp * WARP_QUERIES + t * 16 + lane % 16) * S::PITCH +
                                                       k * 32 + lane / 16 * 16));
    }
    float o[2][S::COLUMNS][4], top[2][2], sum[2][2];
#pragma unroll
    for (int t = 0; t < 2; t++) {
        top[t][0] = top[t][1] = -INFINITY;
        sum[t][0] = sum[t][1] = 0;
#pragma unroll
        for (int c = 0; c < S::COLUMNS; c++) o[t][c][0] = o[t][c][1] = o[t][c][2] = o[t][c][3] = 0;
    }

    for (int j = begin; j < end; j++) {
        if (j > begin) {
            copy_wait<0>();
            __syncthreads(); /* this block has landed, the one before is used up */
        }
        load_block(j + 1);
        const uint32_t k_tile = base + static_cast<uint32_t>(S::K + j % 2 * S::BLOCK),
                       v_tile = base + static_cast<uint32_t>(S::V + j % 2 * S::BLOCK);
        float s[2][KEYS / 8][4];
#pragma unroll
        for (int n = 0; n < KEYS / 8; n += 2) {
#pragma unroll
            for (int t = 0; t < 2; t++) {
#pragma unroll
                for (int e = 0; e < 4; e++) s[t][n][e] = s[t][n + 1][e] = 0;
            }
#pragma unroll
            for (int k = 0; k < S::STEPS; k++) {
                uint32_t b[4];
                load_matrices(b, k_tile + static_cast<uint32_t>((n * 8 + lane / 16 * 8 + lane % 8) * S::PITCH + k * 32 +
                                                                lane / 8 % 2 * 16));
#pragma unroll
                for (int t = 0; t < 2; t++) {
                    multiply(s[t][n], q[t][k], b[0], b[1]);
                    multiply(s[t][n + 1], q[t][k], b[2], b[3]);
                }
            }
        }
        if ((j + 1) * KEYS > a.rows) {
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++) {
                const int key = j * KEYS + n * 8 + lane % 4 * 2;
#pragma unroll
                for (int t = 0; t < 2; t++) {
                    if (key >= a.rows) s[t][n][0] = s[t][n][2] = -INFINITY;
                    if (key + 1 >= a.rows) s[t][n][1] = s[t][n][3] = -INFINITY;
                }
            }
        }
#pragma unroll
        for (int t = 0; t < 2; t++) {
            float scale[2], shift[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float largest = -INFINITY;
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++) largest = fmaxf(largest, fmaxf(s[t][n][2 * i], s[t][n][2 * i + 1]));
                largest = fmaxf(top[t][i], row_max(largest)); /* every block has a key */
                scale[i] = tower_exp2((top[t][i] - largest) * LOG2_E);
                shift[i] = largest * LOG2_E;
                top[t][i] = largest;
                sum[t][i] *= scale[i];
            }
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    s[t][n][e] = tower_exp2(fmaf(s[t][n][e], LOG2_E, -shift[e / 2]));
                    sum[t][e / 2] += s[t][n][e];
                }
            }
#pragma unroll
            for (int c = 0; c < S::COLUMNS; c++) {
                o[t][c][0] *= scale[0];
                o[t][c][1] *= scale[0];
                o[t][c][2] *= scale[1];
                o[t][c][3] *= scale[1];
            }
        }
#pragma unroll
        for (int i = 0; i < KEYS / 16; i++) {
            uint32_t p[2][4];
#pragma unroll
            for (int t = 0; t < 2; t++) {
                p[t][0] = pack_pair(s[t][2 * i][0], s[t][2 * i][1]);
                p[t][1] = pack_pair(s[t][2 * i][2], s[t][2 * i][3]);
                p[t][2] = pack_pair(s[t][2 * i + 1][0], s[t][2 * i + 1][1]);
                p[t][3] = pack_pair(s[t][2 * i + 1][2], s[t][2 * i + 1][3]);
            }
#pragma unroll
            for (int c = 0; c < S::COLUMNS; c += 2) {
                uint32_t b[4];
                load_matrices_transposed(
                    b, v_tile + static_cast<uint32_t>((i * 16 + lane % 16) * S::PITCH + c * 16 + lane / 16 * 16));
#pragma unroll
                for (int t = 0; t < 2; t++) {
                    multiply(o[t][c], p[t], b[0], b[1]);
                    if (c + 1 < S::COLUMNS) multiply(o[t][c + 1], p[t], b[2], b[3]);
                }
            }
        }
    }
#pragma unroll
    for (int t = 0; t < 2; t++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int row = first + warp * WARP_QUERIES + t * 16 + i * 8 + lane / 4;
            const float all = row_sum(sum[t][i]), by = 1.0f / all;
            if (row >= a.rows) continue;
            if (parts > 1) {
                const size_t cell =
                    (static_cast<size_t>(part) * static_cast<size_t>(a.rows) + static_cast<size_t>(row)) *
                        static_cast<size_t>(a.heads) +
                    blockIdx.y;
                float *out = a.partial + cell * D + lane % 4 * 2;
#pragma unroll
                for (int c = 0; c < S::COLUMNS; c++)
                    *reinterpret_cast<float2 *>(out + c * 8) = make_float2(o[t][c][2 * i], o[t][c][2 * i + 1]);
                if (lane % 4 == 0) a.state[cell] = make_float2(top[t][i], all);
                continue;
            }
            cuda_bf16 *out = a.out + static_cast<size_t>(row) * static_cast<size_t>(a.ldo) +
                             static_cast<size_t>(blockIdx.y) * D + lane % 4 * 2;
#pragma unroll
            for (int c = 0; c < S::COLUMNS; c++)
                *reinterpret_cast<uint32_t *>(out + c * 8) = pack_pair(o[t][c][2 * i] * by, o[t][c][2 * i + 1] * by);
        }
    }
}

/* A row for each block, two values for each thread at a time. */
__global__ void __launch_bounds__(THREADS) merge_kernel(const __grid_constant__ tower_attention a, int parts) {
    constexpr float LOG2_E = 1.4426950408889634f;
    const int width = a.heads * a.head_dim;
    const size_t row = blockIdx.x, rows = static_cast<size_t>(a.rows);
    wait_for_predecessor();
    for (int c = static_cast<int>(threadIdx.x) * 2; c < width; c += THREADS * 2) {
        const size_t head = static_cast<size_t>(c / a.head_dim), heads = static_cast<size_t>(a.heads);
        float2 state[TOWER_MOST_PARTS], x[TOWER_MOST_PARTS];
        float top = -INFINITY, sum = 0, y[2] = {0, 0};
#pragma unroll
        for (int p = 0; p < TOWER_MOST_PARTS; p++) {
            if (p >= parts) continue;
            const size_t at = static_cast<size_t>(p) * rows + row;
            state[p] = a.state[at * heads + head];
            x[p] = *reinterpret_cast<const float2 *>(a.partial + at * static_cast<size_t>(width) + c);
            top = fmaxf(top, state[p].x);
        }
#pragma unroll
        for (int p = 0; p < TOWER_MOST_PARTS; p++) {
            if (p >= parts) continue;
            const float weight = tower_exp2((state[p].x - top) * LOG2_E);
            sum += weight * state[p].y;
            y[0] += weight * x[p].x;
            y[1] += weight * x[p].y;
        }
        *reinterpret_cast<uint32_t *>(a.out + row * static_cast<size_t>(a.ldo) + c) = pack_pair(y[0] / sum, y[1] / sum);
    }
}

/* Thread blocks run in waves of two for each multiprocessor, and a wave takes as long for one block as for all: the
 * number of parts whose waves take least time, one for pictures of many waves. */
int parts_of(const cuda_launch *l, int tiles, int blocks) {
    const int wave = 2 * (l->multiprocessors > 0 ? l->multiprocessors : 1);
    int best = 1;
    for (int parts = 2; parts <= TOWER_MOST_PARTS && parts <= blocks; parts++) {
        /* waves / parts, and a tenth of a wave for each part more */
        const int cost = 10 * ceil_div(tiles * parts, wave) + parts * parts,
                  least = 10 * ceil_div(tiles * best, wave) + best * best;
        if (cost * best < least * parts) best = parts;
    }
    return best;
}

template <int D> cudaError_t launch(const cuda_launch *l, const tower_attention *a) {
    const cudaError_t status = tower_allow(attend_kernel<D>, shape<D>::BYTES);
    if (status != cudaSuccess) return status;
    const int tiles = ceil_div(a->rows, QUERIES), parts = parts_of(l, tiles * a->heads, ceil_div(a->rows, KEYS));
    launch_kernel(l, attend_kernel<D>,
                  dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(a->heads), static_cast<unsigned>(parts)),
                  dim3(THREADS), static_cast<size_t>(shape<D>::BYTES), *a);
    if (parts > 1) launch_kernel(l, merge_kernel, dim3(static_cast<unsigned>(a->rows)), dim3(THREADS), 0, *a, parts);
    return cudaSuccess;
}

} // namespace

bool tower_attends(int head_dim) {
    return head_dim == 16 || head_dim == 24 || head_dim == 32 || head_dim == 64 || head_dim == 72 || head_dim == 80 ||
           head_dim == 96;
}

cudaError_t tower_attend(const cuda_launch *l, const tower_attention *a) {
    switch (a->head_dim) {
    case 16:
        return launch<16>(l, a);
    case 24:
        return launch<24>(l, a);
    case 32:
        return launch<32>(l, a);
    case 64:
        return launch<64>(l, a);
    case 72:
        return launch<72>(l, a);
    case 80:
        return launch<80>(l, a);
    case 96:
        return launch<96>(l, a);
    default:
        return cudaErrorInvalidValue;
    }
}
