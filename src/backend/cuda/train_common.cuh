/* What kernels of training share beside common.cuh: sums of a block, launches of so many threads. */
#ifndef KAKEYA_BACKEND_CUDA_TRAIN_COMMON_CUH
#define KAKEYA_BACKEND_CUDA_TRAIN_COMMON_CUH

#include <string.h>

#include "backend/cuda/common.cuh"
#include "backend/cuda/train_kernels.h"

enum { TRAIN_THREADS = 128, TRAIN_WARPS = TRAIN_THREADS / 32 };

static __device__ __forceinline__ float warp_largest(float v) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, o));
    return v;
}

static __device__ __forceinline__ double warp_sum_double(double v) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}

/* Of a number, to the nearest even. */
static __device__ __forceinline__ cuda_bf16 train_rounded(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (cuda_bf16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static __device__ __forceinline__ float train_widened(cuda_bf16 x) {
    uint32_t bits = (uint32_t)x << 16;
    float out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

/* A logit after the soft cap; 0: none. */
static __device__ __forceinline__ float capped(float z, float cap) { return cap > 0 ? cap * tanhf(z / cap) : z; }

/* Over a block of TRAIN_THREADS; every thread gets it. `shared` holds one number per warp. */
static __device__ __forceinline__ float block_largest(float v, float *shared) {
    v = warp_largest(v);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = v;
    __syncthreads();
    for (int w = 0; w < TRAIN_WARPS; w++) v = fmaxf(v, shared[w]);
    return v;
}

static __device__ __forceinline__ double block_sum_double(double v, double *shared, int warps) {
    v = warp_sum_double(v);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = v;
    __syncthreads();
    double sum = 0;
    for (int w = 0; w < warps; w++) sum += shared[w];
    return sum;
}

/* Blocks for n threads, at most so many that a grid's stride does the rest. */
static inline dim3 train_blocks(size_t n) {
    size_t blocks = (n + TRAIN_THREADS - 1) / TRAIN_THREADS, most = 8192;
    return dim3((unsigned)(blocks < most ? blocks : most));
}

#endif
