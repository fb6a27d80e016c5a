/* What the kernels of latent attention share: queries and keys as operands of m16n8k16, whose sums come in one order
 * wherever they are made. A head is two parts: part h has the dimensions 64 h to 64 h + 63 and those that RoPE turns
 * with them, 128 further. In each 32 of them a thread holds the eight from 8 * (lane % 4) on. The 16 rows of a product
 * are the positions of a group, its columns queries; the sums of both parts are added last.
 *
 * Arithmetic is spelled out operation by operation, so that no kernel fuses what another one does not. */
#ifndef KAKEYA_BACKEND_CUDA_LATENT_KEYS_CUH
#define KAKEYA_BACKEND_CUDA_LATENT_KEYS_CUH

#include "backend/cuda/common.cuh"
#include "backend/cuda/latent_attention.h"
#include "backend/cuda/prompt_tensor.cuh"

namespace latent {

constexpr int DIM = LATENT_HEAD_DIM, HALF = DIM / 2, PART = HALF / 2, PARTS = 2;
constexpr int QUERIES_AT_ONCE = 4;        /* columns of a product that are used */
constexpr int QUERY_PITCH = 2 * PART + 8; /* a part of a query in shared memory: low dimensions, then high ones */
constexpr int QUERY_VALUES = QUERIES_AT_ONCE * QUERY_PITCH;

/* A part of the keys of 16 positions: words of the rows lane / 4 and lane / 4 + 8, by 32 dimensions. */
struct key_rows {
    uint32_t low[2][2][4], high[2][2][4];
};

/* Eight dimensions of a row: of low[i] or high[i]. */
__device__ __forceinline__ void put_row(uint32_t (&words)[2][4], int half, const uint4 &row) {
    words[0][half] = row.x;
    words[0][2 + half] = row.y;
    words[1][half] = row.z;
    words[1][2 + half] = row.w;
}

__device__ __forceinline__ uint4 row_of(const uint32_t (&words)[2][4], int half) {
    return make_uint4(words[0][half], words[0][2 + half], words[1][half], words[1][2 + half]);
}

__device__ __forceinline__ void turn_back(uint32_t low, uint32_t high, float cosine_0, float sine_0, float cosine_1,
                                          float sine_1, uint32_t *low_out, uint32_t *high_out) {
    float u = __uint_as_float(low << 16), v = __uint_as_float(low & 0xffff0000u), x = __uint_as_float(high << 16),
          y = __uint_as_float(high & 0xffff0000u);
    *low_out =
        prompt::pack_pair(__fmaf_rn(u, cosine_0, __fmul_rn(x, sine_0)), __fmaf_rn(v, cosine_1, __fmul_rn(y, sine_1)));
    *high_out =
        prompt::pack_pair(__fmaf_rn(x, cosine_0, -__fmul_rn(u, sine_0)), __fmaf_rn(y, cosine_1, -__fmul_rn(v, sine_1)));
}

/* A thread's share of a part of up to QUERIES_AT_ONCE queries, and of the turns of a group's first position. */
struct query_words {
    uint2 low[QUERIES_AT_ONCE / 2], high[QUERIES_AT_ONCE / 2];
    float4 by[2];
};

/* Of a K/V head, from the `first` of `queries` on; turns NULL: they stay as they are. */
__device__ __forceinline__ void request_queries(query_words &w, const cuda_attention &a, int part, int first_row,
                                                int head, const float2 *turns, int first, int queries, int lane) {
    int group = a.heads / a.kv_heads, dim = part * PART + lane % 16 * 4;
    w.by[0] = w.by[1] = make_float4(1, 0, 1, 0);
    if (turns) {
        w.by[0] = __ldcg(reinterpret_cast<const float4 *>(turns + dim));
        w.by[1] = __ldcg(reinterpret_cast<const float4 *>(turns + dim) + 1);
    }
#pragma unroll
    for (int i = 0; i < QUERIES_AT_ONCE / 2; i++) {
        int query = first + 2 * i + lane / 16;
        w.low[i] = w.high[i] = make_uint2(0, 0);
        if (query >= queries) continue;
        const uint16_t *from =
            a.q + (static_cast<size_t>(first_row + query / group) * a.heads + head * group + query % group) * DIM + dim;
        w.low[i] = __ldcg(reinterpret_cast<const uint2 *>(from));
        w.high[i] = __ldcg(reinterpret_cast<const uint2 *>(from + HALF));
    }
}

/* Turned back, into shared memory, by a warp. An angle of zero changes no value. */
__device__ __forceinline__ void put_queries(uint16_t *rows, const query_words &w, int lane) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < QUERIES_AT_ONCE / 2; i++) {
        uint2 x, y;
        turn_back(w.low[i].x, w.high[i].x, w.by[0].x, w.by[0].y, w.by[0].z, w.by[0].w, &x.x, &y.x);
        turn_back(w.low[i].y, w.high[i].y, w.by[1].x, w.by[1].y, w.by[1].z, w.by[1].w, &x.y, &y.y);
        uint16_t *to = rows + (2 * i + lane / 16) * QUERY_PITCH + lane % 16 * 4;
        *reinterpret_cast<uint2 *>(to) = x;
        *reinterpret_cast<uint2 *>(to + PART) = y;
    }
    __syncwarp();
}

__device__ __forceinline__ void load_queries(uint16_t *rows, const cuda_attention &a, int part, int first_row, int head,
                                             const float2 *turns, int first, int queries, int lane) {
    query_words w;
    request_queries(w, a, part, first_row, head, turns, first, queries, lane);
    put_queries(rows, w, lane);
}

/* d[0], d[1]: row lane / 4 with queries 2 * (lane % 4) and the next; d[2], d[3]: row lane / 4 + 8. */
__device__ __forceinline__ void multiply_keys(float (&d)[4], const key_rows &k, const uint16_t *rows, int lane) {
    float sums[4][4] = {};
    const uint16_t *query = rows + lane / 4 * QUERY_PITCH + 8 * (lane % 4);
    bool column = lane / 4 < QUERIES_AT_ONCE;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint4 low = make_uint4(0, 0, 0, 0), high = low;
        if (column) {
            low = *reinterpret_cast<const uint4 *>(query + 32 * i);
            high = *reinterpret_cast<const uint4 *>(query + PART + 32 * i);
        }
        mma_bf16(sums[0], k.low[i][0][0], k.low[i][0][1], k.low[i][0][2], k.low[i][0][3], low.x, low.y);
        mma_bf16(sums[1], k.low[i][1][0], k.low[i][1][1], k.low[i][1][2], k.low[i][1][3], low.z, low.w);
        mma_bf16(sums[2], k.high[i][0][0], k.high[i][0][1], k.high[i][0][2], k.high[i][0][3], high.x, high.y);
        mma_bf16(sums[3], k.high[i][1][0], k.high[i][1][1], k.high[i][1][2], k.high[i][1][3], high.z, high.w);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) d[i] = __fadd_rn(__fadd_rn(sums[0][i], sums[1][i]), __fadd_rn(sums[2][i], sums[3][i]));
}

/* A score from its two parts and the scale of the key's norm. */
__device__ __forceinline__ float finish_score(float first, float second, float scale) {
    return __fmul_rn(__fadd_rn(first, second), scale);
}

} // namespace latent

#endif
