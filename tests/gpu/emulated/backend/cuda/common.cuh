/* In place of the real common.cuh where kernels of training run without a device: a grid is computed block after block
 * on the calling thread, the threads of a block as coroutines that change places at every barrier. Slow, and exact in
 * what it is for: the kernels' own indices, barriers and sums. */
#ifndef KAKEYA_TESTS_GPU_EMULATED_COMMON_CUH
#define KAKEYA_TESTS_GPU_EMULATED_COMMON_CUH

#include <math.h>
#include <stdint.h>

#include <functional>

#define __global__
#define __device__
#define __host__
#define __forceinline__        inline
#define __launch_bounds__(...) /* nothing */
#define __shared__             static
#define __noinline__           /* nothing */
#define __grid_constant__      /* nothing */

#include "backend/cuda/recorder.h"

/* Of the thread that runs. */
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

void emulated_barrier(void);
uint64_t emulated_exchange(uint64_t bits, int lane_mask); /* of a warp's lanes */
void emulated_run(dim3 grid, dim3 block, const std::function<void()> &kernel);

static inline void __syncthreads() { emulated_barrier(); }

template <typename T> static inline T __shfl_xor_sync(unsigned, T v, int lane_mask) {
    uint64_t bits = 0;
    T other;
    __builtin_memcpy(&bits, &v, sizeof v);
    bits = emulated_exchange(bits, lane_mask);
    __builtin_memcpy(&other, &bits, sizeof other);
    return other;
}

template <typename T> static inline T __shfl_sync(unsigned, T v, int lane) {
    return __shfl_xor_sync(0xffffffffu, v, (int)(threadIdx.x & 31) ^ lane);
}
static inline void __syncwarp() { (void)emulated_exchange(0, 0); }

static inline float warp_sum(float v) {
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}

template <int THREADS> static inline float block_sum(float v, float *shared) {
    v = warp_sum(v);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = v;
    __syncthreads();
    float sum = 0;
    for (int w = 0; w < THREADS / 32; w++) sum += shared[w];
    return sum;
}

static inline float gelu_tanh(float z) {
    return 0.5f * z * (1.0f + tanhf(0.797884560802865356f * (z + 0.044715f * z * z * z)));
}

/* bf16, rounded to the nearest even */
struct emulated_bf16 {
    uint16_t bits;
};
static inline emulated_bf16 __float2bfloat16(float x) {
    uint32_t bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    return {(uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
static inline float __bfloat162float(emulated_bf16 x) {
    uint32_t bits = (uint32_t)x.bits << 16;
    float out;
    __builtin_memcpy(&out, &bits, sizeof out);
    return out;
}

typedef emulated_bf16 bf16;
static inline emulated_bf16 __float2bfloat16_rn(float x) {
    return x == x ? __float2bfloat16(x) : emulated_bf16{0x7fff};
}
static inline const bf16 *as_bf16(const cuda_bf16 *p) { return reinterpret_cast<const bf16 *>(p); }
static inline bf16 *as_bf16(cuda_bf16 *p) { return reinterpret_cast<bf16 *>(p); }

static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline uint32_t __float_as_uint(float x) {
    uint32_t bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    return bits;
}
static inline float __uint_as_float(uint32_t bits) {
    float x;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
}
/* Without the selector's sign bits, which nobody sets. */
static inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t selector) {
    uint64_t bytes = (uint64_t)high << 32 | low;
    uint32_t out = 0;
    for (unsigned i = 0; i < 4; i++) out |= (uint32_t)(bytes >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return out;
}
static inline uint32_t __funnelshift_l(uint32_t low, uint32_t high, uint32_t shift) {
    return (uint32_t)(((uint64_t)high << 32 | low) << (shift & 31) >> 32);
}
template <typename T> static inline T __ldcg(const T *p) {
    T v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}
/* One thread runs at a time. */
template <typename T> static inline T atomicAdd(T *p, T v) {
    T before = *p;
    *p += v;
    return before;
}
static inline void __threadfence() {}
static inline int max(int a, int b) { return a > b ? a : b; }
static inline void wait_for_predecessor() {}
static inline void release_successor() {}

template <typename... Parameters, typename... Arguments>
static void launch_kernel(const cuda_launch *, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t,
                          Arguments... arguments) {
    emulated_run(grid, block, [=] { kernel(static_cast<Parameters>(arguments)...); });
}

static inline int ceil_div(int a, int b) { return (a + b - 1) / b; }

#endif
