/* What the kernels of the tower stand on. Without a device there is another file of this name, which computes the same
 * on the host (tests/gpu/emulated). */
#ifndef KAKEYA_BACKEND_CUDA_TOWER_COMMON_CUH
#define KAKEYA_BACKEND_CUDA_TOWER_COMMON_CUH

#include "backend/cuda/common.cuh"
#include "backend/cuda/prompt_tensor.cuh"

/* The memory that a block is launched with. */
#define TOWER_MEMORY(name) extern __shared__ __align__(16) unsigned char name[]

template <typename Kernel> static cudaError_t tower_allow(Kernel kernel, int bytes) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

static __device__ __forceinline__ float tower_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif
