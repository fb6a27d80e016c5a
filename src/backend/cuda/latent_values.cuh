/* Latents as sessions keep them (backend/latent_row.h): where a row lies, and its values. */
#ifndef KAKEYA_BACKEND_CUDA_LATENT_VALUES_CUH
#define KAKEYA_BACKEND_CUDA_LATENT_VALUES_CUH

#include "backend/cuda/common.cuh"
#include "backend/cuda/kernels.h"

enum { LATENT_Q4_GROUP = 32, LATENT_Q4_ZERO = 8 };

static __device__ __forceinline__ size_t latent_place(const cuda_latent_view &latent, int position) {
    return (size_t)(latent.capacity ? position % latent.capacity : position);
}

static __device__ __forceinline__ uint32_t latent_pair(float scale, int low, int high) {
    __nv_bfloat162 pair = __halves2bfloat162(__float2bfloat16_rn(__fmul_rn(scale, (float)low)),
                                             __float2bfloat16_rn(__fmul_rn(scale, (float)high)));
    return *reinterpret_cast<uint32_t *>(&pair);
}

/* Values [i, i + 8) of a latent of n values, in bf16. Ranks are multiples of 8: rows in 8 bits are aligned to 4 bytes,
 * those in 4 bits to 2. */
static __device__ __forceinline__ uint4 latent_eight(const unsigned char *from, cuda_latent_form form, int n, int i) {
    if (form == CUDA_LATENT_BF16) return __ldcg(reinterpret_cast<const uint4 *>(from + 2 * i));
    uint32_t out[4];
    if (form == CUDA_LATENT_Q8) {
        float scale = __ldcg(reinterpret_cast<const float *>(from));
        const uint32_t *codes = reinterpret_cast<const uint32_t *>(from + sizeof(float) + i);
        uint32_t four[2] = {__ldcg(codes), __ldcg(codes + 1)};
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint32_t two = four[k / 2] >> (16 * (k % 2));
            out[k] = latent_pair(scale, (int8_t)(two & 0xff), (int8_t)(two >> 8 & 0xff));
        }
    } else {
        int groups = (n + LATENT_Q4_GROUP - 1) / LATENT_Q4_GROUP;
        const uint16_t *scales = reinterpret_cast<const uint16_t *>(from);
        float scale = __uint_as_float((uint32_t)__ldcg(scales + i / LATENT_Q4_GROUP) << 16);
        const uint16_t *codes = scales + groups + i / 4;
        uint32_t eight = __ldcg(codes) | (uint32_t)__ldcg(codes + 1) << 16;
#pragma unroll
        for (int k = 0; k < 4; k++)
            out[k] = latent_pair(scale, (int)(eight >> (8 * k) & 15) - LATENT_Q4_ZERO,
                                 (int)(eight >> (8 * k + 4) & 15) - LATENT_Q4_ZERO);
    }
    return make_uint4(out[0], out[1], out[2], out[3]);
}

#endif
