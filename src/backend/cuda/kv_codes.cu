/* K/V in 8 bits for the attention of prompts, whose kernels read bf16. Bound: one read of the codes, one write. */
#include "backend/cuda/kv_codes.cuh"

enum { EXPAND_WARPS = 8 };

static __global__ __launch_bounds__(EXPAND_WARPS * 32) void expand_kernel(const cuda_bf16 *from, int head_dim,
                                                                          size_t vectors, cuda_bf16 *to) {
    int lane = threadIdx.x & 31;
    wait_for_predecessor();
    size_t at = (size_t)blockIdx.x * EXPAND_WARPS + (threadIdx.x >> 5);
    if (at >= vectors) return;
    const unsigned char *vector = kv_codes_of(from, at, 1, 0, kv_codes_bytes(head_dim));
    float scale = kv_codes_scale(vector);
    uint2 *out = reinterpret_cast<uint2 *>(to + at * (size_t)head_dim);
    for (int i = lane; i < head_dim / 4; i += 32) {
        uint32_t four = kv_codes_four(vector, i), pairs[2];
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float low = (float)(int8_t)(four >> (16 * k) & 0xff), high = (float)(int8_t)(four >> (16 * k + 8) & 0xff);
            __nv_bfloat162 pair = __floats2bfloat162_rn(__fmul_rn(scale, low), __fmul_rn(scale, high));
            pairs[k] = *reinterpret_cast<uint32_t *>(&pair);
        }
        out[i] = make_uint2(pairs[0], pairs[1]);
    }
}

void cuda_expand_codes(const cuda_launch *l, cuda_kv_codes codes, const cuda_bf16 *from, int kv_heads, int head_dim,
                       int rows, cuda_bf16 *to) {
    size_t vectors = (size_t)rows * (size_t)kv_heads;
    if (codes == CUDA_KV_Q4) {
        cuda_expand_q4(l, from, head_dim, vectors, to);
        return;
    }
    launch_kernel(l, expand_kernel, dim3((unsigned)((vectors + EXPAND_WARPS - 1) / EXPAND_WARPS)),
                  dim3(EXPAND_WARPS * 32), 0, from, head_dim, vectors, to);
}
