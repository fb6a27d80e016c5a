/* Where all partial results of a row meet: sums of latents are merged with each other, decoded, and added to what the
 * row sees exactly. Bound: one read of the sums. */
#include "backend/cuda/common.cuh"
#include "backend/cuda/latent_attention.h"

namespace {

enum {
    MERGE_THREADS = 256,
    COLUMNS = 8,  /* queries of a block */
    MERGE_K = 32, /* of the rank: at a time */
    K_WARPS = 2,  /* warps that share it */
    DIM_WARPS = MERGE_THREADS / 32 / K_WARPS,
    WARPS_DIMS = 16 * DIM_WARPS, /* of a head: those of one turn */
    MOST_STEPS = LATENT_MOST_RANK / MERGE_K,
    RANK_PITCH = LATENT_MOST_RANK + 8,
    PLACES = LATENT_MOST_RANK / 2, /* of a latent, two by two: as many threads take a column */
    SUMS_AHEAD = 10,               /* partitions whose sums are requested together */
    EXACT_AHEAD = 3,               /* the same of exact values */
};
static_assert(MERGE_THREADS / 32 == COLUMNS, "a warp weighs the partial results of a query");
static_assert((int)MERGE_THREADS == 2 * (int)PLACES, "two columns at a time");

template <int DIMS> struct merge_memory {
    bf16 high[COLUMNS][RANK_PITCH], low[COLUMNS][RANK_PITCH]; /* a sum of latents in two parts */
    float decoded[K_WARPS][COLUMNS][DIMS + 4];
    float sum[COLUMNS];
    float weight[1]; /* [COLUMNS][exact partitions, then those of latents] */
};

/* Weights of a query's partial results and their sum, by a warp. In ascending order, for where a partition stands among
 * those of a step depends on the step's first row. */
__device__ __forceinline__ void weigh_partitions(const float2 *exact, int n_exact, const float2 *latent, int partitions,
                                                 float *weights, float *sums, int lane) {
    auto state_of = [&](int i) { return i < n_exact ? __ldcg(exact + i) : __ldcg(latent + i - n_exact); };
    float2 mine = lane < partitions ? state_of(lane) : make_float2(-INFINITY, 0);
    float top = mine.x, sum = 0;
    for (int i = lane + 32; i < partitions; i += 32) top = fmaxf(top, state_of(i).x);
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, o));
    for (int first = 0; first < partitions; first += 32) {
        int i = first + lane;
        float2 s = first == 0 ? mine : i < partitions ? state_of(i) : make_float2(-INFINITY, 0);
        float weight = s.y > 0 ? expf(__fsub_rn(s.x, top)) : 0, part = __fmul_rn(weight, s.y);
        if (i < partitions) weights[i] = weight;
        for (int k = 0; k < 32 && first + k < partitions; k++) sum = __fadd_rn(sum, __shfl_sync(0xffffffffu, part, k));
    }
    if (lane == 0) *sums = sum;
}

/* grid: blocks of DIMS dimensions, K/V heads, blocks of queries. Few dimensions a block suit few rows; bits are the
 * same. */
template <int DIMS>
__global__ __launch_bounds__(MERGE_THREADS) void latent_merge_kernel(const __grid_constant__ latent_attention a,
                                                                     const cuda_bf16 *decoder_v, int ld) {
    extern __shared__ __align__(16) unsigned char memory[];
    merge_memory<DIMS> &m = *reinterpret_cast<merge_memory<DIMS> *>(memory);
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, heads = a.exact.heads,
        group = heads / a.exact.kv_heads, first_dim = (int)blockIdx.x * DIMS, kv_head = blockIdx.y,
        first_query = (int)blockIdx.z * COLUMNS, queries = min(a.rows * group - first_query, (int)COLUMNS),
        n_exact = a.exact.partitions, partitions = n_exact + a.partitions;
    auto cell_of = [&](int column) {
        int query = first_query + column;
        return (size_t)(query / group) * heads + kv_head * group + query % group;
    };
    auto sums_of = [&](int column) {
        return a.sums + cell_of(column) * a.partitions * a.rank_v + threadIdx.x % PLACES * 2;
    };
    auto exact_of = [&](int column, int dim) {
        return a.exact.partial + cell_of(column) * n_exact * LATENT_HEAD_DIM + first_dim + dim;
    };
    /* The decoder is older than all of it. */
    int k_warp = warp / DIM_WARPS, of_dims = warp % DIM_WARPS, steps = ld / MERGE_K;
    uint4 w[MOST_STEPS / K_WARPS][2];
    auto load_decoder = [&](int dims) {
        const bf16 *decoder =
            as_bf16(decoder_v) + (size_t)(kv_head * LATENT_HEAD_DIM + first_dim + dims + of_dims * 16 + g) * ld + 8 * t;
#pragma unroll
        for (int i = 0; i < MOST_STEPS / K_WARPS; i++) {
            int step = i * K_WARPS + k_warp;
            w[i][0] = w[i][1] = make_uint4(0, 0, 0, 0);
            if (step >= steps) continue;
            w[i][0] = __ldg(reinterpret_cast<const uint4 *>(decoder + step * MERGE_K));
            w[i][1] = __ldg(reinterpret_cast<const uint4 *>(decoder + (size_t)8 * ld + step * MERGE_K));
        }
    };
    load_decoder(0);
    wait_for_predecessor();
    release_successor();
    /* Everything that the first two columns need is requested at once. Sums of partitions without a visible position
     * were never written: they are loaded, and then left out. */
    int half = threadIdx.x / PLACES, place = threadIdx.x % PLACES * 2;
    float2 ahead[SUMS_AHEAD];
    auto request_sums = [&](int column) {
        bool there = column < queries && place < a.rank_v;
        const float *sums = there ? sums_of(column) : a.sums;
#pragma unroll
        for (int i = 0; i < SUMS_AHEAD; i++) {
            ahead[i] = make_float2(0, 0);
            if (there && i < a.partitions)
                ahead[i] = __ldcg(reinterpret_cast<const float2 *>(sums + (size_t)i * a.rank_v));
        }
    };
    request_sums(half);
    float exact_ahead[EXACT_AHEAD];
#pragma unroll
    for (int i = 0; i < EXACT_AHEAD; i++) {
        bool there = (int)threadIdx.x < queries * DIMS && i < n_exact;
        exact_ahead[i] =
            there ? __ldcg(exact_of(threadIdx.x / DIMS, threadIdx.x % DIMS) + (size_t)i * LATENT_HEAD_DIM) : 0;
    }
    if (warp < queries)
        weigh_partitions(a.exact.state + cell_of(warp) * n_exact, n_exact, a.state + cell_of(warp) * a.partitions,
                         partitions, m.weight + warp * partitions, &m.sum[warp], lane);
    __syncthreads();
#pragma unroll 1
    for (int column = half; column < COLUMNS; column += 2) { /* code that runs once is cold: there is little of it */
        float x = 0, y = 0;
        if (column < queries && place < a.rank_v) {
            const float *weight = m.weight + column * partitions + n_exact;
#pragma unroll
            for (int i = 0; i < SUMS_AHEAD; i++) {
                if (i >= a.partitions || weight[i] == 0) continue;
                x = __fmaf_rn(weight[i], ahead[i].x, x);
                y = __fmaf_rn(weight[i], ahead[i].y, y);
            }
#pragma unroll 1
            for (int i = SUMS_AHEAD; i < a.partitions; i++) {
                if (weight[i] == 0) continue;
                float2 value = __ldcg(reinterpret_cast<const float2 *>(sums_of(column) + (size_t)i * a.rank_v));
                x = __fmaf_rn(weight[i], value.x, x);
                y = __fmaf_rn(weight[i], value.y, y);
            }
        }
        if (column + 2 < queries) request_sums(column + 2);
        bf16 high[2] = {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
        *reinterpret_cast<__nv_bfloat162 *>(&m.high[column][place]) = __halves2bfloat162(high[0], high[1]);
        *reinterpret_cast<__nv_bfloat162 *>(&m.low[column][place]) =
            __halves2bfloat162(__float2bfloat16_rn(__fsub_rn(x, __bfloat162float(high[0]))),
                               __float2bfloat16_rn(__fsub_rn(y, __bfloat162float(high[1]))));
    }
    __syncthreads();
#pragma unroll 1
    for (int dims = 0; dims < DIMS; dims += WARPS_DIMS) {
        if (dims > 0) load_decoder(dims);
        float d[4] = {};
#pragma unroll
        for (int i = 0; i < MOST_STEPS / K_WARPS; i++) {
            int k = (i * K_WARPS + k_warp) * MERGE_K + 8 * t;
            uint4 high = *reinterpret_cast<const uint4 *>(&m.high[g][k]),
                  low = *reinterpret_cast<const uint4 *>(&m.low[g][k]);
            mma_bf16(d, w[i][0].x, w[i][1].x, w[i][0].y, w[i][1].y, low.x, low.y);
            mma_bf16(d, w[i][0].z, w[i][1].z, w[i][0].w, w[i][1].w, low.z, low.w);
            mma_bf16(d, w[i][0].x, w[i][1].x, w[i][0].y, w[i][1].y, high.x, high.y);
            mma_bf16(d, w[i][0].z, w[i][1].z, w[i][0].w, w[i][1].w, high.z, high.w);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) m.decoded[k_warp][2 * t + (i & 1)][dims + of_dims * 16 + g + (i >> 1) * 8] = d[i];
    }
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < queries * DIMS; i += MERGE_THREADS) {
        int column = i / DIMS, dim = i % DIMS, query = first_query + column;
        const float *exact = exact_of(column, dim), *weight = m.weight + column * partitions;
        bool is_first = i < MERGE_THREADS;
        float out = 0;
#pragma unroll
        for (int k = 0; k < EXACT_AHEAD; k++) {
            if (k >= n_exact || weight[k] == 0) continue;
            out = __fmaf_rn(weight[k], is_first ? exact_ahead[k] : __ldcg(exact + (size_t)k * LATENT_HEAD_DIM), out);
        }
        for (int k = EXACT_AHEAD; k < n_exact; k++)
            if (weight[k] != 0) out = __fmaf_rn(weight[k], __ldcg(exact + (size_t)k * LATENT_HEAD_DIM), out);
        out = __fadd_rn(out, __fadd_rn(m.decoded[0][column][dim], m.decoded[1][column][dim]));
        as_bf16(a.exact.out)[(size_t)(query / group) * a.exact.ldo +
                             (size_t)(kv_head * group + query % group) * LATENT_HEAD_DIM + first_dim + dim] =
            __float2bfloat16_rn(__fdiv_rn(out, m.sum[column]));
    }
}

template <int DIMS> void launch_merge(const cuda_launch *l, const latent_attention *a, int blocks) {
    size_t bytes =
        sizeof(merge_memory<DIMS>) + (size_t)(COLUMNS * (a->exact.partitions + a->partitions)) * sizeof(float);
    launch_kernel(l, latent_merge_kernel<DIMS>,
                  dim3(LATENT_HEAD_DIM / DIMS, (unsigned)a->exact.kv_heads, (unsigned)blocks), dim3(MERGE_THREADS),
                  bytes, *a, (const cuda_bf16 *)a->decoder_v->data, a->decoder_v->ld);
}

} // namespace

extern "C" void latent_attention_merge(const cuda_launch *l, const latent_attention *a) {
    int blocks = ceil_div(a->rows * (a->exact.heads / a->exact.kv_heads), COLUMNS);
    if (blocks * a->exact.kv_heads * 2 <= l->multiprocessors)
        launch_merge<WARPS_DIMS>(l, a, blocks);
    else
        launch_merge<LATENT_HEAD_DIM>(l, a, blocks);
}
