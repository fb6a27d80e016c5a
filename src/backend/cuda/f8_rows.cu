/* Rows rounded to e4m3 (f8_rows.h). Bound: a row is read once, 2 bytes a value, and written once, 1 byte for each of
 * its slots. */
#include <cuda_fp8.h>

#include "backend/cuda/common.cuh"
#include "backend/cuda/f8_rows.h"

enum { F8_BLOCK = 128, VALUES = 8 }; /* threads of a block at least; values that a thread has side by side */

static __device__ __forceinline__ unsigned largest_of(unsigned pair) {
    unsigned low = pair & 0x7fffu, high = pair >> 16 & 0x7fffu;
    return low > high ? low : high;
}

/* The codes of two neighbouring values in bits 0 to 7 and 16 to 23. */
static __device__ __forceinline__ unsigned code_pair(unsigned pair, float inverse) {
    float2 v = make_float2(__uint_as_float(pair << 16) * inverse, __uint_as_float(pair & 0xffff0000u) * inverse);
    unsigned codes = __nv_cvt_float2_to_fp8x2(v, __NV_SATFINITE, __NV_E4M3);
    return (codes & 0xffu) | (codes & 0xff00u) << 8;
}

/* THREADS to a row, of which each has up to CHUNKS times VALUES. */
template <int THREADS, int CHUNKS>
static __global__ __launch_bounds__(THREADS < F8_BLOCK
                                        ? F8_BLOCK
                                        : THREADS) void round_kernel(const __grid_constant__ cuda_route route,
                                                                     const cuda_bf16 *x, size_t ldx, int width,
                                                                     unsigned char *codes, float *scale, int rows) {
    constexpr int ROWS = THREADS < F8_BLOCK ? F8_BLOCK / THREADS : 1;
    __shared__ unsigned largest_of_warp[THREADS / 32];
    int at = (int)threadIdx.x % THREADS;
    size_t row = blockIdx.x * (size_t)ROWS + threadIdx.x / THREADS;
    wait_for_predecessor();
    if (row >= (size_t)rows) return; /* a whole warp, and the only one of its row */
    uint4 v[CHUNKS];
    unsigned largest = 0;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        int k = (i * THREADS + at) * VALUES;
        v[i] = make_uint4(0, 0, 0, 0);
        if (k < width) v[i] = *reinterpret_cast<const uint4 *>(x + row * ldx + k);
        largest =
            max(max(largest, max(largest_of(v[i].x), largest_of(v[i].y))), max(largest_of(v[i].z), largest_of(v[i].w)));
    }
    largest = __reduce_max_sync(0xffffffffu, largest);
    if (THREADS > 32) {
        if (at % 32 == 0) largest_of_warp[at / 32] = largest;
        __syncthreads();
#pragma unroll
        for (int w = 0; w < THREADS / 32; w++) largest = max(largest, largest_of_warp[w]);
    }
    unsigned bits = f8_scale_bits(largest);
    float inverse = __uint_as_float(f8_inverse_bits(bits));
    size_t ld = (size_t)quant_units(width) * QUANT_VALUES;
    int copies = route.slot_of ? route.rank : 1;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        int k = (i * THREADS + at) * VALUES;
        if (k >= (int)ld) break;
        /* Bytes 0, 2, 1, 3 of a word are values in order. */
        unsigned a = code_pair(v[i].x, inverse), b = code_pair(v[i].y, inverse), c = code_pair(v[i].z, inverse),
                 d = code_pair(v[i].w, inverse);
        uint2 word = make_uint2(a | b << 8, c | d << 8);
        for (int copy = 0; copy < copies; copy++) {
            size_t to = route.slot_of ? (size_t)__ldg(route.slot_of + row * route.rank + copy) : row;
            *reinterpret_cast<uint2 *>(codes + to * ld + f8_place(k)) = word;
        }
    }
    if (at < copies) scale[route.slot_of ? (size_t)route.slot_of[row * route.rank + at] : row] = __uint_as_float(bits);
}

template <int THREADS, int CHUNKS>
static void round_rows(const cuda_launch *l, const cuda_route &route, const cuda_bf16 *x, size_t ldx, int width,
                       unsigned char *codes, float *scale, int rows) {
    constexpr int BLOCK = THREADS < F8_BLOCK ? F8_BLOCK : THREADS;
    launch_kernel(l, round_kernel<THREADS, CHUNKS>, dim3(ceil_div(rows, BLOCK / THREADS)), dim3(BLOCK), 0, route, x,
                  ldx, width, codes, scale, rows);
}

void f8_round_rows(const cuda_launch *l, const cuda_route *route, const cuda_bf16 *x, size_t ldx, int width,
                   unsigned char *codes, float *scale, int rows) {
    cuda_route r = route ? *route : cuda_route{};
    int most = quant_units(width) * QUANT_VALUES / VALUES; /* places of eight */
    if (most <= 32 * 4)
        round_rows<32, 4>(l, r, x, ldx, width, codes, scale, rows);
    else if (most <= 128 * 3)
        round_rows<128, 3>(l, r, x, ldx, width, codes, scale, rows);
    else if (most <= 512 * 2)
        round_rows<512, 2>(l, r, x, ldx, width, codes, scale, rows);
    else
        round_rows<512, 8>(l, r, x, ldx, width, codes, scale, rows);
}
