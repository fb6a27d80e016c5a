/* K/V in 8 bits (backend/kv_format.h; in 4: kv_q4.cuh): a vector is a float32 scale, then a signed code for each value.
 * Vectors are aligned to 4 bytes. */
#ifndef KAKEYA_BACKEND_CUDA_KV_CODES_CUH
#define KAKEYA_BACKEND_CUDA_KV_CODES_CUH

#include "backend/cuda/common.cuh"

enum { KV_CODES_AT = sizeof(float), KV_CODES_LARGEST = 127 };

static __host__ __device__ __forceinline__ size_t kv_codes_bytes(int head_dim) {
    return (size_t)head_dim + KV_CODES_AT;
}

/* A vector of a row of [kv_heads] vectors of so many bytes. */
static __device__ __forceinline__ const unsigned char *kv_codes_of(const cuda_bf16 *rows, size_t row, int kv_heads,
                                                                   int head, size_t bytes) {
    return reinterpret_cast<const unsigned char *>(rows) + (row * (size_t)kv_heads + (size_t)head) * bytes;
}

static __device__ __forceinline__ float kv_codes_scale(const unsigned char *vector) {
    return __ldcg(reinterpret_cast<const float *>(vector));
}

/* Codes 4 i to 4 i + 3. */
static __device__ __forceinline__ uint32_t kv_codes_four(const unsigned char *vector, int i) {
    return __ldcg(reinterpret_cast<const uint32_t *>(vector + KV_CODES_AT) + i);
}

/* Two codes, each in the low byte of a half: 128 + its low seven bits, less 128, or less 256 where it is negative. The
 * bits of 128 and of 256 differ where a code has its sign. */
static __device__ __forceinline__ uint32_t bf16_of_two(uint32_t two) {
    const uint32_t base = 0x43004300u;
    uint32_t from = (two & 0x007f007fu) | base, less = (two & 0x00800080u) | base;
    __nv_bfloat162 value =
        __hsub2(*reinterpret_cast<__nv_bfloat162 *>(&from), *reinterpret_cast<__nv_bfloat162 *>(&less));
    return *reinterpret_cast<uint32_t *>(&value);
}

/* Four codes as bf16, exactly. */
static __device__ __forceinline__ uint2 bf16_of_codes(uint32_t four) {
    return make_uint2(bf16_of_two(__byte_perm(four, 0, 0x4140)), bf16_of_two(__byte_perm(four, 0, 0x4342)));
}

#endif
