/* What all kernels share: conversions, reductions in a fixed order, programmatic dependent launch. */
#ifndef KAKEYA_BACKEND_CUDA_COMMON_CUH
#define KAKEYA_BACKEND_CUDA_COMMON_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "backend/cuda/recorder.h"

typedef __nv_bfloat16 bf16;

static __device__ __forceinline__ const bf16 *as_bf16(const cuda_bf16 *p) { return reinterpret_cast<const bf16 *>(p); }
static __device__ __forceinline__ bf16 *as_bf16(cuda_bf16 *p) { return reinterpret_cast<bf16 *>(p); }

/* Until here a kernel may read weights only: what earlier kernels wrote is visible after it. */
static __device__ __forceinline__ void wait_for_predecessor() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* The successor may be started as soon as every block has come here or has ended. Short kernels do it first thing, so
 * that what follows them is resident (and its first weights are on their way) when they end; products when their last
 * weights are requested. What the successor reads before its own wait must be older than this kernel. */
static __device__ __forceinline__ void release_successor() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

static __device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}

/* Sum over a block in a fixed order; every thread gets it. `shared` holds one float per warp. */
template <int THREADS> static __device__ __forceinline__ float block_sum(float v, float *shared) {
    v = warp_sum(v);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = v;
    __syncthreads();
    float sum = 0;
#pragma unroll
    for (int w = 0; w < THREADS / 32; w++) sum += shared[w];
    return sum;
}

static __device__ __forceinline__ float gelu_tanh(float z) {
    return 0.5f * z * (1.0f + tanhf(0.797884560802865356f * (z + 0.044715f * z * z * z)));
}

static __device__ __forceinline__ float silu(float z) { return z / (1.0f + expf(-z)); }

/* Streams that are read once: past L1. */
static __device__ __forceinline__ uint4 load_weights(const void *p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

/* D (16 x 8) += A (16 x 16) B (16 x 8), bf16 in, float32 accumulated. */
static __device__ __forceinline__ void mma_bf16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                                uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

template <typename... Parameters, typename... Arguments>
static void launch_kernel(const cuda_launch *l, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared,
                          Arguments... arguments) {
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = l->stream;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = l->programmatic ? 1 : 0;
    cuda_profile_begin(l, reinterpret_cast<const void *>(kernel));
    cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
    cuda_profile_end(l);
}

static inline int ceil_div(int a, int b) { return (a + b - 1) / b; }

#endif
