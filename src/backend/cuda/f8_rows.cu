/* Rows rounded to e4m3 (f8_rows.h). Bound: a row is read once, 2 bytes a value, and written once, 1 byte for each of
 * its slots. */
#include <cuda_fp8.h>

#include "backend/cuda/common.cuh"
#include "backend/cuda/f8_rows.h"

enum { F8_BLOCK = 128, VALUES = 16 }; /* threads of a block of narrow rows; values of a thread at a time */

static __device__ __forceinline__ unsigned largest_of(unsigned pair) {
    return max(pair & 0x7fffu, pair >> 16 & 0x7fffu);
}
static __device__ __forceinline__ unsigned largest_of(const uint4 &v) {
    return max(max(largest_of(v.x), largest_of(v.y)), max(largest_of(v.z), largest_of(v.w)));
}

/* The codes of two neighbouring values in bits 0 to 7 and 16 to 23. */
static __device__ __forceinline__ unsigned code_pair(unsigned pair, float inverse) {
    float2 v = make_float2(__uint_as_float(pair << 16) * inverse, __uint_as_float(pair & 0xffff0000u) * inverse);
    unsigned codes = __nv_cvt_float2_to_fp8x2(v, __NV_SATFINITE, __NV_E4M3);
    return (codes & 0xffu) | (codes & 0xff00u) << 8;
}

/* Of eight values; bytes 0, 2, 1, 3 of a word are values in order. */
static __device__ __forceinline__ uint2 codes_of(const uint4 &v, float inverse) {
    return make_uint2(code_pair(v.x, inverse) | code_pair(v.y, inverse) << 8,
                      code_pair(v.z, inverse) | code_pair(v.w, inverse) << 8);
}

static __device__ __forceinline__ uint4 eight_values(const cuda_bf16 *row, int k, int width) {
    return k < width ? *reinterpret_cast<const uint4 *>(row + k) : make_uint4(0, 0, 0, 0);
}

/* THREADS to a row, of which each has up to CHUNKS places of a unit: eight values of each of its two blocks, whose
 * codes lie side by side. */
template <int THREADS, int CHUNKS>
static __global__ void round_kernel(const __grid_constant__ cuda_route route, const cuda_bf16 *x, size_t ldx, int width,
                                    unsigned char *codes, float *scale, int rows) {
    constexpr int ROWS = THREADS == 32 ? F8_BLOCK / THREADS : 1, LANES = QUANT_BLOCK / (VALUES / 2);
    __shared__ unsigned largest_of_warp[THREADS / 32];
    int at = (int)threadIdx.x % THREADS, lane = at % 32, copies = route.slot_of ? route.rank : 1;
    size_t row = blockIdx.x * (size_t)ROWS + threadIdx.x / THREADS;
    wait_for_predecessor();
    if (row >= (size_t)rows) return; /* a whole warp, and the only one of its row */
    int slot = (int)row;
    if (route.slot_of && lane < copies) slot = __ldg(route.slot_of + row * route.rank + lane);
    uint4 v[CHUNKS][2];
    unsigned largest = 0;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        int place = i * THREADS + at, k = place / LANES * QUANT_VALUES + place % LANES * 8;
        v[i][0] = eight_values(x + row * ldx, k, width);
        v[i][1] = eight_values(x + row * ldx, k + QUANT_BLOCK, width);
        largest = max(largest, max(largest_of(v[i][0]), largest_of(v[i][1])));
    }
    largest = __reduce_max_sync(0xffffffffu, largest);
    if (THREADS > 32) {
        if (lane == 0) largest_of_warp[at / 32] = largest;
        __syncthreads();
#pragma unroll
        for (int w = 0; w < THREADS / 32; w++) largest = max(largest, largest_of_warp[w]);
    }
    unsigned bits = f8_scale_bits(largest);
    float inverse = __uint_as_float(f8_inverse_bits(bits));
    int places = quant_units(width) * LANES;
    uint4 words[CHUNKS];
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        uint2 first = codes_of(v[i][0], inverse), second = codes_of(v[i][1], inverse);
        words[i] = make_uint4(first.x, first.y, second.x, second.y);
    }
    for (int copy = 0; copy < copies; copy++) {
        size_t to = (size_t)__shfl_sync(0xffffffffu, slot, copy);
        uint4 *out = reinterpret_cast<uint4 *>(codes) + to * (size_t)places;
#pragma unroll
        for (int i = 0; i < CHUNKS; i++)
            if (i * THREADS + at < places) out[i * THREADS + at] = words[i];
    }
    if (at < copies) scale[slot] = __uint_as_float(bits);
}

template <int THREADS, int CHUNKS>
static void round_rows(const cuda_launch *l, const cuda_route &route, const cuda_bf16 *x, size_t ldx, int width,
                       unsigned char *codes, float *scale, int rows) {
    constexpr int BLOCK = THREADS == 32 ? F8_BLOCK : THREADS;
    launch_kernel(l, round_kernel<THREADS, CHUNKS>, dim3(ceil_div(rows, BLOCK / THREADS)), dim3(BLOCK), 0, route, x,
                  ldx, width, codes, scale, rows);
}

void f8_round_rows(const cuda_launch *l, const cuda_route *route, const cuda_bf16 *x, size_t ldx, int width,
                   unsigned char *codes, float *scale, int rows) {
    cuda_route r = route ? *route : cuda_route{};
    int places = quant_units(width) * (QUANT_VALUES / VALUES);
    if (places <= 32 * 2)
        round_rows<32, 2>(l, r, x, ldx, width, codes, scale, rows);
    else if (places <= 64 * 3)
        round_rows<64, 3>(l, r, x, ldx, width, codes, scale, rows);
    else if (places <= 128 * 4)
        round_rows<128, 4>(l, r, x, ldx, width, codes, scale, rows);
    else
        round_rows<512, 4>(l, r, x, ldx, width, codes, scale, rows);
}
