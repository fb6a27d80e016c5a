/* Products of prompt chunks. Bound: 2 m n k over the tensor cores' rate (an H200: about 790 TFLOP/s of bf16 on random
 * data) from a few hundred rows on; below, the bytes of W.
 *
 * A persistent kernel walks output tiles. Blocks of 64 columns of A (rows may be gathered) and W come through a ring of
 * shared memory stages by cp.async; the tile's products run on wgmma where the target has it and on mma.sync elsewhere.
 * The next tile's first stages are in flight while this one's results are written. Gated outputs interleave eight rows
 * of the gate with eight of the up matrix in one tile of W, so that a thread holds both factors of its elements. On
 * sm_90a the largest tiles are prompt_gemm_fit.cuh's. */
#include "backend/cuda/prompt_gemm.h"
#include "backend/cuda/prompt_gemm_codes.cuh"
#include "backend/cuda/prompt_gemm_f8.cuh"
#include "backend/cuda/prompt_gemm_f8.h"
#include "backend/cuda/prompt_gemm_fit.cuh"
#include "backend/cuda/prompt_gemm_restore.cuh"
#include "backend/cuda/prompt_gemm_tile.cuh"
#include "backend/cuda/prompt_wgmma.cuh"
#include "backend/cuda/tensor_maps.cuh"

namespace {

using namespace prompt;

/* RESIDENT: thread blocks of a multiprocessor; WARP_COLUMNS: columns of warps in the mma.sync form. */
template <int ROWS, int COLUMNS, int STAGE_COUNT, int THREAD_COUNT, int RESIDENT, int WARP_COLUMNS> struct tile_shape {
    static constexpr int M = ROWS, N = COLUMNS, STAGES = STAGE_COUNT, THREADS = THREAD_COUNT, BLOCKS = RESIDENT,
                         WARPS_N = WARP_COLUMNS;
    static constexpr int STAGE_BYTES = (M + N) * PANEL_ROW_BYTES, BYTES = STAGES * STAGE_BYTES + TILE_ALIGNMENT;
};
using large_tile = tile_shape<128, 256, 4, 256, 1, 4>;
using medium_tile = tile_shape<128, 128, 3, 256, 2, 4>;
using small_tile = tile_shape<64, 64, 5, 128, 2, 2>;

/* One thread's share of the copies: chunk `chunk` of every (THREADS / 8)-th row. */
template <class T, bool GATED> struct tile_loader {
    static constexpr int ROWS = T::THREADS / 8, A_COPIES = T::M / ROWS, W_COPIES = T::N / ROWS;
    const __nv_bfloat16 *a[A_COPIES], *w;
    size_t w_step;
    int w_row, w_row_step, column, n, k;
    unsigned a_valid;
    uint32_t offset;

    __device__ __forceinline__ void place(const gemm_params &p, const tile_place &t) {
        int row = static_cast<int>(threadIdx.x) / 8, chunk = static_cast<int>(threadIdx.x) % 8;
        column = chunk * 8;
        n = p.n;
        k = p.k;
        offset = chunk_offset(row, chunk, T::M);
        a_valid = 0;
#pragma unroll
        for (int i = 0; i < A_COPIES; i++) {
            int r = row + i * ROWS;
            bool valid = r < t.rows;
            int slot = t.first_row + (valid ? r : 0);
            int source = p.rows ? p.rows[slot] : slot;
            a[i] = p.a + static_cast<size_t>(source) * p.lda + column;
            a_valid |= valid ? 1u << i : 0;
        }
        const __nv_bfloat16 *matrix = p.w;
        w_row = t.first_column + row;
        w_row_step = ROWS;
        if (GATED) {
            static_assert(ROWS % 16 == 0, "a thread stays on one of the two matrices");
            if (row % 16 >= 8) matrix = p.w_up;
            w_row = t.first_column + row / 16 * 8 + row % 8;
            w_row_step = ROWS / 2;
        }
        w = matrix + static_cast<size_t>(t.expert) * p.expert_stride + static_cast<size_t>(w_row) * p.ldw + column;
        w_step = static_cast<size_t>(w_row_step) * p.ldw;
        if (w_row >= n) w = matrix, w_step = 0;
    }

    __device__ __forceinline__ void load(uint32_t stage, int step) const {
        int at = step * TILE_K;
        bool inside = at + column < k;
#pragma unroll
        for (int i = 0; i < A_COPIES; i++) {
            bool valid = inside && (a_valid >> i & 1);
            copy_async(stage + offset + static_cast<uint32_t>(i * ROWS * PANEL_ROW_BYTES),
                       a[i] + (valid ? at : -column), valid);
        }
        uint32_t to = stage + T::M * PANEL_ROW_BYTES + offset;
        const __nv_bfloat16 *from = w;
#pragma unroll
        for (int i = 0; i < W_COPIES; i++) {
            bool valid = inside && w_row + i * w_row_step < n;
            copy_async(to + static_cast<uint32_t>(i * ROWS * PANEL_ROW_BYTES), valid ? from + at : w, valid);
            from += w_step;
        }
    }
};

/* The fragment of one warp: ROWS / 16 x COLUMNS / 8 blocks in mma.sync's (and wgmma's) accumulator order. */
template <class T> struct fragment {
#if PROMPT_WGMMA
    static constexpr int ROWS = 16, COLUMNS = T::N;
    static __device__ __forceinline__ int first_row(int warp) { return warp / 4 * 64 + warp % 4 * 16; }
    static __device__ __forceinline__ int first_column(int) { return 0; }
    static __device__ __forceinline__ int skip_row(int warp) { return warp / 4 * 64; }
#else
    static constexpr int WARPS_M = T::THREADS / 32 / T::WARPS_N, ROWS = T::M / WARPS_M, COLUMNS = T::N / T::WARPS_N;
    static __device__ __forceinline__ int first_row(int warp) { return warp / T::WARPS_N * ROWS; }
    static __device__ __forceinline__ int first_column(int warp) { return warp % T::WARPS_N * COLUMNS; }
    static __device__ __forceinline__ int skip_row(int warp) { return first_row(warp); }
#endif
    static constexpr int ROW_BLOCKS = ROWS / 16, COLUMN_BLOCKS = COLUMNS / 8, SIZE = ROW_BLOCKS * COLUMN_BLOCKS * 4;
};

#if !PROMPT_WGMMA
/* acc += A[rows][64] W[columns][64]^T of one stage. */
template <class T>
__device__ __forceinline__ void multiply_stage(float (&acc)[fragment<T>::SIZE], uint32_t stage, int warp, int lane) {
    using F = fragment<T>;
    uint32_t a_rows = stage, w_rows = stage + T::M * PANEL_ROW_BYTES;
    int a_row = F::first_row(warp) + lane % 16, w_row = F::first_column(warp) + lane / 16 * 8 + lane % 8;
#pragma unroll
    for (int k = 0; k < TILE_K / 16; k++) {
        uint32_t a[F::ROW_BLOCKS][4];
#pragma unroll
        for (int i = 0; i < F::ROW_BLOCKS; i++) {
            load_matrices(a[i], a_rows + chunk_offset(a_row + i * 16, k * 2 + lane / 16, T::M));
        }
#pragma unroll
        for (int j = 0; j < F::COLUMN_BLOCKS; j += 2) {
            uint32_t w[4];
            load_matrices(w, w_rows + chunk_offset(w_row + j * 8, k * 2 + lane / 8 % 2, T::N));
#pragma unroll
            for (int i = 0; i < F::ROW_BLOCKS; i++) {
                float(*c)[4] = reinterpret_cast<float(*)[4]>(acc + (i * F::COLUMN_BLOCKS + j) * 4);
                multiply(c[0], a[i], w[0], w[1]);
                multiply(c[1], a[i], w[2], w[3]);
            }
        }
    }
}
#endif

template <class T, bool GATED>
__device__ __forceinline__ void write_tile(const gemm_params &p, const tile_place &t,
                                           const float (&acc)[fragment<T>::SIZE], int warp, int lane) {
    using F = fragment<T>;
    int column = t.first_column + F::first_column(warp) / (GATED ? 2 : 1) + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < F::ROW_BLOCKS; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = F::first_row(warp) + i * 16 + half * 8 + lane / 4;
            if (row >= t.rows) continue;
            write_row<GATED, true, F::COLUMN_BLOCKS>(p, static_cast<size_t>(t.first_row + row), column,
                                                     acc + i * F::COLUMN_BLOCKS * 4 + half * 2);
        }
    }
}

/* The walk of one thread block over its tiles, blockIdx.x, blockIdx.x + gridDim.x, ..., as a single stream of stages:
 * the loads of the next tile's first steps are in flight while this one is finished and written. */
template <class T, bool GATED> struct tile_stream {
    static constexpr int AHEAD = T::STAGES - 1;           /* stages loaded before they are used */
    static constexpr int WIDTH = GATED ? T::N / 2 : T::N; /* output columns of a tile */

    const gemm_params &p;
    const int *tiles_before;
    uint32_t base;
    int n_tiles, tiles, steps;
    int stage = 0; /* next to be used */
    int load_tile, load_step = 0, load_stage = 0;
    tile_loader<T, GATED> loader;

    __device__ __forceinline__ tile_stream(const gemm_params &params, const int *before, uint32_t tile_base)
        : p(params), tiles_before(before), base(tile_base), n_tiles((p.n + WIDTH - 1) / WIDTH),
          steps((p.k + TILE_K - 1) / TILE_K), load_tile(static_cast<int>(blockIdx.x)) {
        tiles = (p.expert_begin ? tiles_before[p.experts] : (p.m + T::M - 1) / T::M) * n_tiles;
        if (load_tile < tiles) loader.place(p, find(load_tile));
        for (int s = 0; s < AHEAD; s++) load_next();
    }

    __device__ __forceinline__ tile_place find(int tile) const {
        return find_tile<T::M>(p, tiles_before, tile, n_tiles, WIDTH);
    }

    __device__ __forceinline__ void load_next() {
        if (load_tile < tiles) {
            loader.load(base + static_cast<uint32_t>(load_stage * T::STAGE_BYTES), load_step);
            if (++load_step == steps) {
                load_step = 0;
                load_tile += static_cast<int>(gridDim.x);
                if (load_tile < tiles) loader.place(p, find(load_tile));
            }
        }
        load_stage = load_stage + 1 == T::STAGES ? 0 : load_stage + 1;
        copy_commit();
    }

    /* Waits for the next stage and returns its address. */
    __device__ __forceinline__ uint32_t next_stage() {
        uint32_t here = base + static_cast<uint32_t>(stage * T::STAGE_BYTES);
        stage = stage + 1 == T::STAGES ? 0 : stage + 1;
        copy_wait<AHEAD - 1>();
#if PROMPT_WGMMA
        warpgroup_publish();
#endif
        __syncthreads();
        return here;
    }

    /* acc = the tile's product; `idle`: none of this warp's (group's) rows exist. */
    __device__ __forceinline__ void multiply_tile(float (&acc)[fragment<T>::SIZE], bool idle, int warp, int lane) {
#pragma unroll
        for (int i = 0; i < fragment<T>::SIZE; i++) acc[i] = 0;
        for (int step = 0; step < steps; step++) {
            uint32_t here = next_stage();
#if PROMPT_WGMMA
            if (!idle) {
                uint64_t a = panel_descriptor(here + static_cast<uint32_t>(warp / 4 * 64 * PANEL_ROW_BYTES));
                uint64_t w = panel_descriptor(here + T::M * PANEL_ROW_BYTES);
                warpgroup_begin();
#pragma unroll
                for (int k = 0; k < TILE_K / 16; k++) warpgroup_multiply(acc, a + 2 * k, w + 2 * k, 1);
                warpgroup_commit();
            }
            load_next();
            warpgroup_wait<0>();
#else
            load_next();
            if (!idle) multiply_stage<T>(acc, here, warp, lane);
#endif
        }
#if PROMPT_WGMMA
        warpgroup_hold(acc);
#endif
    }
};

template <class T, bool GATED>
__global__ void __launch_bounds__(T::THREADS, PROMPT_WGMMA ? T::BLOCKS : 1)
    gemm_kernel(const __grid_constant__ gemm_params p) {
    using F = fragment<T>;
    static_assert(T::THREADS % (32 * T::WARPS_N) == 0, "whole rows of warps");
    extern __shared__ char memory[];
    int *tiles_before = reinterpret_cast<int *>(memory + T::BYTES);
    int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    if (p.expert_begin) count_tiles<T::M, T::THREADS>(p, tiles_before);
    tile_stream<T, GATED> stream(p, tiles_before, align_tile(shared_address(memory)));
    for (int tile = static_cast<int>(blockIdx.x); tile < stream.tiles; tile += static_cast<int>(gridDim.x)) {
        tile_place place = stream.find(tile);
        bool idle = F::skip_row(warp) >= place.rows;
        float acc[F::SIZE];
        stream.multiply_tile(acc, idle, warp, lane);
        if (!idle) write_tile<T, GATED>(p, place, acc, warp, lane);
    }
}

struct device_limits {
    int multiprocessors, shared_bytes;
};

cudaError_t query_limits(device_limits *limits) {
    int device = 0;
    cudaError_t status = cudaGetDevice(&device);
    if (status == cudaSuccess) {
        status = cudaDeviceGetAttribute(&limits->multiprocessors, cudaDevAttrMultiProcessorCount, device);
    }
    if (status == cudaSuccess) {
        status = cudaDeviceGetAttribute(&limits->shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    }
    return status;
}

/* Shared memory behind the tiles: count_tiles' table. */
int table_bytes(const gemm_params &p) { return p.expert_begin ? (p.experts + 1) * static_cast<int>(sizeof(int)) : 0; }

template <class T, bool GATED>
cudaError_t launch(const gemm_params &p, const device_limits &limits, cudaStream_t stream) {
    int bytes = T::BYTES + table_bytes(p), blocks = limits.multiprocessors * T::BLOCKS;
    if (!p.expert_begin) {
        constexpr int WIDTH = GATED ? T::N / 2 : T::N;
        int tiles = (p.m + T::M - 1) / T::M * ((p.n + WIDTH - 1) / WIDTH);
        if (tiles < blocks) blocks = tiles;
    }
    cudaError_t status =
        cudaFuncSetAttribute(gemm_kernel<T, GATED>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (status != cudaSuccess) return status;
    gemm_kernel<T, GATED><<<static_cast<unsigned>(blocks), T::THREADS, static_cast<size_t>(bytes), stream>>>(p);
    return cudaGetLastError();
}

template <class T> cudaError_t launch_tile(const gemm_params &p, const device_limits &limits, cudaStream_t stream) {
    return p.w_up ? launch<T, true>(p, limits, stream) : launch<T, false>(p, limits, stream);
}

/* Time of a dense product cut into tiles of T when one tile takes `work` on one multiprocessor. */
template <class T> float estimate(const gemm_params &p, const device_limits &limits, float work) {
    int width = p.w_up ? T::N / 2 : T::N;
    int tiles = (p.m + T::M - 1) / T::M * ((p.n + width - 1) / width);
    return static_cast<float>((tiles + limits.multiprocessors - 1) / limits.multiprocessors) * work;
}

bool fits_large(const gemm_params &p, const device_limits &limits) {
    return large_tile::BYTES + table_bytes(p) <= limits.shared_bytes;
}

/* Whether this device has the bulk tensor copy engine and code for it (sm_90a), and memory enough. */
bool has_bulk(const gemm_params &p, const device_limits &limits) {
    cudaFuncAttributes attributes;
    if (cudaFuncGetAttributes(&attributes, fit_kernel<false>) != cudaSuccess) {
        cudaGetLastError();
        return false;
    }
    return attributes.maxThreadsPerBlock >= bulk_tile::THREADS &&
           fit_tile::BYTES + table_bytes(p) <= limits.shared_bytes;
}

/* The map of W, or of the gate and the up matrix, as fit_maps has it. */
bool encode_dealt(encode_function encode, fit_maps *maps, const gemm_params &p, int experts, size_t expert_stride) {
    bool gated = p.w_up != nullptr;
    const __nv_bfloat16 *low = p.w, *high = p.w_up;
    maps->up_first = gated && high < low;
    if (maps->up_first) low = p.w_up, high = p.w;
    cuuint64_t row = p.ldw * sizeof(__nv_bfloat16),
               apart = gated ? static_cast<cuuint64_t>(high - low) * sizeof(__nv_bfloat16) : row;
    cuuint64_t block = gated ? 8 : 16, eight = gated ? row : 2 * row;
    cuuint64_t sizes[5] = {static_cast<cuuint64_t>(p.k), 8, 2, static_cast<cuuint64_t>(p.n) / block,
                           static_cast<cuuint64_t>(experts)};
    cuuint64_t strides[4] = {eight, apart, block * row, expert_stride * sizeof(__nv_bfloat16)};
    cuuint32_t box[5] = {PANEL_COLUMNS, 8, 2, fit_tile::W_ROWS / 16, 1}, steps[5] = {1, 1, 1, 1, 1};
    return encode(&maps->w, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 5, const_cast<__nv_bfloat16 *>(low), sizes, strides, box,
                  steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* The map of the results, in boxes of what a warpgroup stages at a time. False: they have to leave without it. */
bool encode_results(encode_function encode, CUtensorMap *map, const gemm_params &p) {
    bool wide = p.output == PROMPT_GEMM_F32, gated = p.w_up != nullptr;
    size_t size = wide ? sizeof(float) : sizeof(__nv_bfloat16);
    if (p.ldo * size % 16 != 0 || reinterpret_cast<uintptr_t>(p.out) % 16 != 0) return false;
    cuuint64_t sizes[2] = {static_cast<cuuint64_t>(p.n), static_cast<cuuint64_t>(p.m)}, stride = p.ldo * size;
    cuuint32_t box[2] = {wide || gated ? 32u : 64u, wide ? 32u : 64u}, steps[2] = {1, 1};
    return encode(map, wide ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, p.out, sizes,
                  &stride, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                  gated ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* Outputs of one tile of W. */
int fit_outputs(const gemm_params &p) { return p.w_up ? fit_tile::W_ROWS / 2 : fit_tile::W_ROWS; }

/* Whether this device runs fit_kernel on this product: its code is there (sm_90a), its memory suffices, rows of A are
 * neighbours, and whole groups of W's rows can be dealt. */
bool has_fit(const gemm_params &p, const device_limits &limits) {
    return has_bulk(p, limits) && !p.rows && (p.w_up || p.n % 16 == 0);
}

struct fit_choice {
    int width;
    float time; /* relative to one tile of 128 x 256 */
};

/* The width of a dense product's tiles that takes the least time. */
fit_choice choose_width(const gemm_params &p, const device_limits &limits) {
    int w_tiles = (p.n + fit_outputs(p) - 1) / fit_outputs(p);
    fit_choice best = {0, 0};
    for (int width = fit_tile::MOST_ROWS; width >= 64; width = fit_width(width - (width > 128 ? 8 : 16))) {
        int tiles = (p.m + width - 1) / width * w_tiles,
            rounds = (tiles + limits.multiprocessors - 1) / limits.multiprocessors;
        float time = static_cast<float>(rounds * (width + fit_tile::OVERHEAD)) /
                     static_cast<float>(fit_tile::MOST_ROWS + fit_tile::OVERHEAD);
        if (!best.width || time < best.time) best = {width, time};
    }
    return best;
}

/* Blocks and shared memory of a launch, and, of a dense product, the width of its tiles. */
struct fit_launch_size {
    unsigned blocks;
    int bytes, width;
};

fit_launch_size fit_size(const gemm_params &p, const device_limits &limits) {
    fit_launch_size size = {static_cast<unsigned>(limits.multiprocessors), fit_tile::BYTES + table_bytes(p), 0};
    if (!p.expert_begin) {
        size.width = choose_width(p, limits).width;
        int tiles = (p.m + size.width - 1) / size.width * ((p.n + fit_outputs(p) - 1) / fit_outputs(p));
        if (tiles < limits.multiprocessors) size.blocks = static_cast<unsigned>(tiles);
    }
    return size;
}

template <bool GATED> cudaError_t launch_fit(const gemm_params &p, const device_limits &limits, cudaStream_t stream) {
    encode_function encode;
    cudaError_t status = find_encode(&encode);
    if (status != cudaSuccess) return status;
    int experts = p.expert_begin ? p.experts : 1;
    size_t expert_stride = p.expert_begin ? p.expert_stride : static_cast<size_t>(p.n) * p.ldw;
    fit_maps maps = {};
    if (!encode_dealt(encode, &maps, p, experts, expert_stride) ||
        !encode_map(encode, &maps.a, 2, p.a, p.k, p.lda, p.m, 0, 1, fit_tile::BOX)) {
        return cudaErrorInvalidValue;
    }
    maps.staged = encode_results(encode, &maps.out, p);
    fit_launch_size size = fit_size(p, limits);
    status = cudaFuncSetAttribute(fit_kernel<GATED>, cudaFuncAttributeMaxDynamicSharedMemorySize, size.bytes);
    if (status != cudaSuccess) return status;
    fit_kernel<GATED><<<size.blocks, fit_tile::THREADS, static_cast<size_t>(size.bytes), stream>>>(p, maps, size.width);
    return cudaGetLastError();
}

/* The largest tiles this device has. */
cudaError_t launch_large(const gemm_params &p, const device_limits &limits, cudaStream_t stream) {
    if (!has_fit(p, limits)) return launch_tile<large_tile>(p, limits, stream);
    return p.w_up ? launch_fit<true>(p, limits, stream) : launch_fit<false>(p, limits, stream);
}

/* The maps of f8_kernel: A in bytes, and W by sixteens: {bytes, rows of a strip, strips of sixteen, sixteens, units}.
 */
bool encode_f8(encode_function encode, fit_maps *maps, const gemm_params &p, const f8_weights &w) {
    cuuint64_t a_sizes[2] = {static_cast<cuuint64_t>(p.lda), static_cast<cuuint64_t>(p.m)}, a_stride = p.lda;
    cuuint32_t a_box[2] = {PANEL_ROW_BYTES, fit_tile::BOX}, steps[5] = {1, 1, 1, 1, 1};
    cuuint64_t sizes[5] = {QUANT_VALUES, QUANT_ROWS, 2, static_cast<cuuint64_t>(w.all),
                           static_cast<cuuint64_t>(w.units)};
    cuuint64_t strides[4] = {QUANT_VALUES, static_cast<cuuint64_t>(w.apart), w.stride, f8_tile::UNIT_BYTES};
    cuuint32_t box[5] = {QUANT_VALUES, QUANT_ROWS, 2, fit_tile::W_ROWS / 16, f8_tile::STEP_UNITS};
    return encode(&maps->a, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<__nv_bfloat16 *>(p.a), a_sizes, &a_stride,
                  a_box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS &&
           encode(&maps->w, CU_TENSOR_MAP_DATA_TYPE_UINT8, 5, const_cast<char *>(w.low), sizes, strides, box, steps,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_64B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

f8_weights f8_weights_of(const prompt_gemm_f8_args *args, fit_maps *maps) {
    size_t strip = quant_strip_bytes(CUDA_FORM_F8, args->units * QUANT_VALUES);
    const char *low = static_cast<const char *>(args->w), *high = static_cast<const char *>(args->w_up);
    maps->up_first = high && high < low;
    if (maps->up_first) low = high, high = static_cast<const char *>(args->w);
    int rows = high ? QUANT_ROWS : 2 * QUANT_ROWS, experts = args->expert_begin ? args->experts : 1;
    f8_weights w = {};
    w.low = low;
    w.apart = high ? high - low : static_cast<long long>(strip);
    w.stride = high ? strip : 2 * strip;
    w.of_expert = args->expert_begin ? args->expert_rows / rows : 0;
    w.all = (experts - 1) * w.of_expert + args->n / rows;
    w.units = args->units;
    w.row_scale = args->a_scale;
    return w;
}

template <bool GATED> cudaError_t launch_f8(const prompt_gemm_f8_args *args, gemm_params p, cudaStream_t stream) {
    device_limits limits;
    encode_function encode;
    cudaError_t status = query_limits(&limits);
    if (status == cudaSuccess) status = find_encode(&encode);
    if (status != cudaSuccess) return status;
    if (!has_bulk(p, limits)) return cudaErrorNotSupported;
    fit_maps maps = {};
    f8_weights w = f8_weights_of(args, &maps);
    if (!encode_f8(encode, &maps, p, w)) return cudaErrorInvalidValue;
    maps.staged = encode_results(encode, &maps.out, p);
    fit_launch_size size = fit_size(p, limits);
    status = cudaFuncSetAttribute(f8_kernel<GATED>, cudaFuncAttributeMaxDynamicSharedMemorySize, size.bytes);
    if (status != cudaSuccess) return status;
    f8_kernel<GATED>
        <<<size.blocks, fit_tile::THREADS, static_cast<size_t>(size.bytes), stream>>>(p, maps, w, size.width);
    return cudaGetLastError();
}

template <bool GATED, bool NARROW>
cudaError_t start_codes(const gemm_params &p, const fit_maps &maps, const code_weights &w, fit_launch_size size,
                        cudaStream_t stream) {
    cudaError_t status =
        cudaFuncSetAttribute(codes_kernel<GATED, NARROW>, cudaFuncAttributeMaxDynamicSharedMemorySize, size.bytes);
    if (status != cudaSuccess) return status;
    codes_kernel<GATED, NARROW>
        <<<size.blocks, codes_tile<NARROW>::THREADS, static_cast<size_t>(size.bytes), stream>>>(p, maps, w, size.width);
    return cudaGetLastError();
}

/* Experts of few rows have hardly more of them than a narrow tile. */
template <bool GATED> cudaError_t launch_codes(const gemm_params &p, const code_weights &w, cudaStream_t stream) {
    constexpr int FEW_ROWS = 96, NARROW_ROWS = codes_tile<true>::MOST_ROWS;
    device_limits limits;
    encode_function encode;
    cudaError_t status = query_limits(&limits);
    if (status == cudaSuccess) status = find_encode(&encode);
    if (status != cudaSuccess) return status;
    if (!has_bulk(p, limits)) return cudaErrorNotSupported;
    fit_maps maps = {};
    if (!encode_map(encode, &maps.a, 2, p.a, p.k, p.lda, p.m, 0, 1, fit_tile::BOX)) return cudaErrorInvalidValue;
    maps.staged = encode_results(encode, &maps.out, p);
    fit_launch_size size = fit_size(p, limits);
    bool narrow = p.expert_begin ? p.m <= p.experts * FEW_ROWS : size.width <= NARROW_ROWS;
    return narrow ? start_codes<GATED, true>(p, maps, w, size, stream)
                  : start_codes<GATED, false>(p, maps, w, size, stream);
}

gemm_params make_params(const prompt_gemm_args *args) {
    gemm_params p = {};
    bool gated = args->output == PROMPT_GEMM_GELU_BF16 || args->output == PROMPT_GEMM_SILU_BF16;
    p.a = reinterpret_cast<const __nv_bfloat16 *>(args->a);
    p.w = reinterpret_cast<const __nv_bfloat16 *>(args->w);
    p.w_up = gated ? reinterpret_cast<const __nv_bfloat16 *>(args->w_up) : nullptr;
    p.lda = args->lda;
    p.ldw = args->ldw;
    p.ldo = args->ldo;
    p.out = args->out;
    p.m = args->m;
    p.n = args->n;
    p.k = args->k;
    p.output = args->output;
    return p;
}

gemm_params make_grouped(const prompt_gemm_grouped_args *args) {
    gemm_params p = make_params(&args->product);
    if (!args->expert_begin) return p;
    p.expert_begin = args->expert_begin;
    p.rows = args->rows;
    p.counter = args->counter;
    p.experts = args->experts;
    p.expert_stride = args->expert_stride;
    return p;
}

} // namespace

extern "C" cudaError_t prompt_gemm(const prompt_gemm_args *args, cudaStream_t stream) {
    if (!prompt_gemm_takes(args)) return cudaErrorInvalidValue;
    device_limits limits;
    cudaError_t status = query_limits(&limits);
    if (status != cudaSuccess) return status;
    gemm_params p = make_params(args);
    /* relative times, measured on an H200 */
    float large = has_fit(p, limits) ? choose_width(p, limits).time : estimate<large_tile>(p, limits, 1.0f);
    float medium = estimate<medium_tile>(p, limits, 0.67f), small = estimate<small_tile>(p, limits, 0.28f);
    if (fits_large(p, limits) && large <= medium && large <= small) {
        return launch_large(p, limits, stream);
    }
    return medium <= small ? launch_tile<medium_tile>(p, limits, stream) : launch_tile<small_tile>(p, limits, stream);
}

extern "C" int prompt_gemm_restores(const cuda_restore *r) {
    device_limits limits;
    return r->head_dim == bulk_tile::N && r->pairs == bulk_tile::N / 2 && query_limits(&limits) == cudaSuccess &&
           has_bulk(gemm_params(), limits);
}

extern "C" cudaError_t prompt_gemm_restore(const cuda_launch *l, const cuda_batch *batch, const cuda_restore *r,
                                           int rows, int chained) {
    if (rows <= 0 || r->rank_k % 8 != 0 || r->rank_v % 8 != 0 || r->gathered.pairs != r->pairs)
        return cudaErrorInvalidValue;
    encode_function encode;
    cudaError_t status = find_encode(&encode);
    if (status != cudaSuccess) return status;
    restore_maps maps;
    for (int half = 0; half < 2; half++) {
        const __nv_bfloat16 *a = reinterpret_cast<const __nv_bfloat16 *>(r->gathered.codes) + half * r->latent.first_v;
        const cuda_matrix *decoder = half ? r->decoder_v : r->decoder_k;
        const __nv_bfloat16 *w = reinterpret_cast<const __nv_bfloat16 *>(decoder->data);
        int rank = half ? r->rank_v : r->rank_k;
        size_t lda = static_cast<size_t>(r->latent.width), ldw = static_cast<size_t>(decoder->ld);
        if (!encode_map(encode, &maps.latents[half], 2, a, rank, lda, rows, 0, 1, bulk_tile::BOX) ||
            !encode_decoder(encode, &maps.decoder[half], w, rank, ldw, decoder->out, bulk_tile::BOX)) {
            return cudaErrorInvalidValue;
        }
    }
    status = cudaFuncSetAttribute(restore_latents_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, RESTORE_BYTES);
    if (status != cudaSuccess) return status;
    int tiles = 2 * r->kv_heads * ((rows + bulk_tile::M - 1) / bulk_tile::M);
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(tiles < l->multiprocessors ? tiles : l->multiprocessors));
    config.blockDim = dim3(bulk_tile::THREADS);
    config.dynamicSmemBytes = RESTORE_BYTES;
    config.stream = l->stream;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = l->programmatic ? 1 : 0;
    return cudaLaunchKernelEx(&config, restore_latents_kernel, restore_params{batch, *r, chained != 0}, maps);
}

extern "C" cudaError_t prompt_gemm_grouped(const prompt_gemm_grouped_args *args, cudaStream_t stream) {
    if (!prompt_gemm_takes_experts(args)) return cudaErrorInvalidValue;
    device_limits limits;
    cudaError_t status = query_limits(&limits);
    if (status != cudaSuccess) return status;
    gemm_params p = make_grouped(args);
    return fits_large(p, limits) ? launch_large(p, limits, stream) : launch_tile<medium_tile>(p, limits, stream);
}

extern "C" int prompt_gemm_bulk_runs(void) {
    device_limits limits;
    return query_limits(&limits) == cudaSuccess && has_bulk(gemm_params(), limits);
}

extern "C" cudaError_t prompt_gemm_codes(const prompt_gemm_codes_args *args, cudaStream_t stream) {
    const prompt_gemm_grouped_args *grouped = &args->grouped;
    if (!prompt_gemm_takes(&grouped->product) || args->form == CUDA_FORM_BF16 ||
        (grouped->expert_begin &&
         (grouped->rows || !grouped->counter || grouped->experts <= 0 || grouped->experts > PROMPT_GEMM_MAX_EXPERTS)))
        return cudaErrorInvalidValue;
    gemm_params p = make_grouped(grouped);
    code_weights w = {};
    w.w = reinterpret_cast<const char *>(p.w);
    w.w_up = reinterpret_cast<const char *>(p.w_up);
    w.strip_bytes = quant_strip_bytes(args->form, p.k);
    w.of_expert = p.expert_stride;
    w.strips = (p.n + QUANT_ROWS - 1) / QUANT_ROWS;
    w.form = args->form;
    return p.w_up ? launch_codes<true>(p, w, stream) : launch_codes<false>(p, w, stream);
}

extern "C" cudaError_t prompt_gemm_f8(const prompt_gemm_f8_args *args, cudaStream_t stream) {
    bool gated = args->output == PROMPT_GEMM_GELU_BF16 || args->output == PROMPT_GEMM_SILU_BF16;
    if (!args->a || !args->a_scale || !args->w || !args->out || gated != (args->w_up != nullptr) || args->m <= 0 ||
        args->n <= 0 || args->n % 16 != 0 || args->units <= 0 || args->ldo % 2 != 0 ||
        (args->expert_begin && (args->experts <= 0 || args->experts > PROMPT_GEMM_MAX_EXPERTS ||
                                args->expert_rows % 16 != 0 || !args->counter))) {
        return cudaErrorInvalidValue;
    }
    gemm_params p = {};
    p.a = reinterpret_cast<const __nv_bfloat16 *>(args->a);
    p.w_up = reinterpret_cast<const __nv_bfloat16 *>(args->w_up); /* not read: says that outputs are gated */
    p.lda = static_cast<size_t>(args->units) * QUANT_VALUES;
    p.ldo = args->ldo;
    p.out = args->out;
    p.expert_begin = args->expert_begin;
    p.counter = args->expert_begin ? args->counter : nullptr;
    p.m = args->m;
    p.n = args->n;
    p.experts = args->expert_begin ? args->experts : 0;
    p.output = args->output;
    return gated ? launch_f8<true>(args, p, stream) : launch_f8<false>(args, p, stream);
}
