/* The bulk tensor copy engine of Hopper and the barriers that count what it has brought. */
#ifndef KAKEYA_BACKEND_CUDA_PROMPT_BULK_CUH
#define KAKEYA_BACKEND_CUDA_PROMPT_BULK_CUH

#include <cuda.h>

#include "backend/cuda/prompt_tensor.cuh"

namespace prompt {

#if PROMPT_WGMMA

__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
    asm volatile("{.reg .b64 state;\nmbarrier.arrive.shared::cta.b64 state, [%0];}\n" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void barrier_arrive_expecting(uint32_t barrier, int bytes) {
    asm volatile("{.reg .b64 state;\nmbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1;}\n" ::"r"(barrier),
                 "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void barrier_wait(uint32_t barrier, int parity) {
    asm volatile("{.reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;}\n" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap &map, int column, int row, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];\n" ::
            "r"(to),
        "l"(&map), "r"(barrier), "r"(column), "r"(row)
        : "memory");
}

__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap &map, int column, int row, int matrix,
                                         uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, "
                 "%5}], [%2];\n" ::"r"(to),
                 "l"(&map), "r"(barrier), "r"(column), "r"(row), "r"(matrix)
                 : "memory");
}

#endif

} // namespace prompt

#endif
