/* The norm and RoPE of one head of a row, which a warp holds: PER_LANE elements a lane, e * 32 + lane. Operations are
 * spelled out, so that every kernel that has it makes the same bits. */
#ifndef KAKEYA_BACKEND_CUDA_HEADS_CUH
#define KAKEYA_BACKEND_CUDA_HEADS_CUH

#include "backend/cuda/common.cuh"

template <int PER_LANE>
static __device__ __forceinline__ void load_head(float (&v)[PER_LANE], const float *source, int d) {
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int e = 0; e < PER_LANE; e++) v[e] = e * 32 + lane < d ? __ldcg(source + e * 32 + lane) : 0;
}

template <int PER_LANE>
static __device__ __forceinline__ void load_head_norm(float (&weight)[PER_LANE], const float *norm, int d) {
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int e = 0; e < PER_LANE; e++) weight[e] = norm && e * 32 + lane < d ? norm[e * 32 + lane] : 1.0f;
}

template <int PER_LANE>
static __device__ __forceinline__ void norm_head(float (&v)[PER_LANE], const float (&weight)[PER_LANE], bool normed,
                                                 int d, float eps) {
    float sum = 0, scale = 1;
#pragma unroll
    for (int e = 0; e < PER_LANE; e++) sum = __fmaf_rn(v[e], v[e], sum);
    if (normed) scale = rsqrtf(__fadd_rn(__fdiv_rn(warp_sum(sum), (float)d), eps));
#pragma unroll
    for (int e = 0; e < PER_LANE; e++) v[e] = __fmul_rn(v[e], __fmul_rn(scale, weight[e]));
}

/* Elements j and j + d / 2 by turns[j], cosine and sine, for j below `pairs`. */
template <int PER_LANE>
static __device__ __forceinline__ void turn_head(float (&v)[PER_LANE], const float2 *turns, int pairs, int d) {
    int lane = threadIdx.x & 31;
    if constexpr (PER_LANE == 1) { /* a half lies in other lanes */
        int half = d / 2, j = lane < half ? lane : lane - half;
        float other = __shfl_xor_sync(0xffffffffu, v[0], half);
        if (lane >= d || j >= pairs) return;
        float2 turn = __ldcg(turns + j);
        float turned = __fmul_rn(other, turn.y);
        v[0] = __fmaf_rn(v[0], turn.x, lane < half ? -turned : turned);
    } else {
#pragma unroll
        for (int e = 0; e < PER_LANE / 2; e++) {
            int j = e * 32 + lane;
            if (j >= pairs) continue;
            float2 turn = __ldcg(turns + j);
            float low = v[e], high = v[e + PER_LANE / 2];
            v[e] = __fmaf_rn(low, turn.x, -__fmul_rn(high, turn.y));
            v[e + PER_LANE / 2] = __fmaf_rn(high, turn.x, __fmul_rn(low, turn.y));
        }
    }
}

/* Whose a row of a prompt pass is: the last segment that begins there, or before. */
static __device__ __forceinline__ const cuda_step *prompt_segment(const cuda_batch *batch, int row) {
    int low = 0, high = __ldcg(&batch->segments) - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (__ldcg(&batch->step[middle].first_row) <= row)
            low = middle;
        else
            high = middle - 1;
    }
    return &batch->step[low];
}

static __device__ __forceinline__ size_t store_row(const cuda_layer_view &view, int position) {
    return (size_t)(view.capacity ? position % view.capacity : position);
}

#endif
