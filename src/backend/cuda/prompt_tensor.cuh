/* Device pieces that the prompt kernels share: asynchronous copies, fragments, tensor core instructions, and the layout
 * of their tiles in shared memory.
 *
 * A tile is cut into panels of 64 bf16 columns; a panel's row is 128 bytes, and the 16-byte chunk c of row r lies at
 * chunk c ^ (r % 8). ldmatrix meets no bank conflict in it, and it is the 128-byte swizzle that wgmma's descriptors
 * name, so that mma.sync and wgmma read the same bytes. */
#ifndef KAKEYA_BACKEND_CUDA_PROMPT_TENSOR_CUH
#define KAKEYA_BACKEND_CUDA_PROMPT_TENSOR_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define PROMPT_WGMMA 1
#else
#define PROMPT_WGMMA 0
#endif

namespace prompt {

constexpr int PANEL_COLUMNS = 64; /* bf16 columns of one panel */
constexpr int PANEL_ROW_BYTES = 128;
constexpr int TILE_ALIGNMENT = 1024; /* of a tile in shared memory: eight swizzled rows */

__device__ __forceinline__ uint32_t shared_address(const void *p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ uint32_t align_tile(uint32_t address) {
    return (address + TILE_ALIGNMENT - 1) / TILE_ALIGNMENT * TILE_ALIGNMENT;
}

/* Byte offset of 16-byte chunk `chunk` of row `row` in a tile of `rows` rows. */
__device__ __forceinline__ uint32_t chunk_offset(int row, int chunk, int rows) {
    return static_cast<uint32_t>((chunk >> 3) * rows * PANEL_ROW_BYTES + row * PANEL_ROW_BYTES +
                                 (((chunk & 7) ^ (row & 7)) << 4));
}

/* 16 bytes from global to shared memory; zeros when !valid (the source is then not read, but must be a valid address).
 */
__device__ __forceinline__ void copy_async(uint32_t to, const void *from, bool valid) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(valid ? 16 : 0)
                 : "memory");
}

__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }

template <int PENDING> __device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(PENDING) : "memory");
}

__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void load_matrices(uint32_t (&r)[2], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];\n"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

/* c[16][8] += a[16][16] b[8][16]^T */
__device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};\n"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint32_t pack_pair(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<uint32_t *>(&pair);
}

} // namespace prompt

#endif
