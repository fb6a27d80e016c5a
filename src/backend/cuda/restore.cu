/* What evicted positions get back from latents.
 *
 * cuda_restore_rows decodes keys and values of evicted positions for one layer: raw = decoder * latent on tensor cores,
 * then k_norm and RoPE on keys; values need only their stored v_norm scalar. It depends on committed positions alone,
 * not on the step's rows. */
#include "backend/cuda/common.cuh"
#include "backend/cuda/latent_attention.h"
#include "backend/cuda/latent_values.cuh"

enum { RESTORE_THREADS = 128, ROWS = 64, DIMENSIONS = 64 };

/* The segment whose evicted position is this row of the restore buffers. */
static __device__ __forceinline__ const cuda_step *step_of_row(const cuda_batch *batch, int full, int row) {
    int low = 0, high = __ldcg(&batch->segments) - 1; /* the last one that begins there, or before: it has rows */
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (__ldcg(&batch->step[middle].restored_first[full]) <= row)
            low = middle;
        else
            high = middle - 1;
    }
    return &batch->step[low];
}

static __device__ __forceinline__ int position_of_row(const cuda_step *step, int full, int row) {
    return __ldcg(&step->restored_begin[full]) + row - __ldcg(&step->restored_first[full]);
}

/* grid: tiles of 64 rows, K/V heads, {K, V}. */
static __global__ __launch_bounds__(RESTORE_THREADS) void restore_kernel(const cuda_batch *batch,
                                                                         const __grid_constant__ cuda_restore r,
                                                                         const cuda_bf16 *decoder_k,
                                                                         const cuda_bf16 *decoder_v, int ld_k,
                                                                         int ld_v) {
    extern __shared__ float raw[]; /* [ROWS][head_dim + 1] */
    wait_for_predecessor();
    int base = (int)blockIdx.x * ROWS, end = __ldcg(&batch->restored_rows[r.full]);
    if (base >= end) return;
    bool is_k = blockIdx.z == 0;
    int ld = is_k ? ld_k : ld_v, rank = is_k ? r.rank_k : r.rank_v;
    int head = blockIdx.y, d = r.head_dim, warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2,
        t = lane & 3;
    const unsigned char *rows[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = base + warp * 16 + g + i * 8;
        rows[i] = nullptr;
        if (row >= end) continue;
        const cuda_step *step = step_of_row(batch, r.full, row);
        const cuda_latent_view &latent = step->cache->latent;
        rows[i] = latent.codes + latent_place(latent, position_of_row(step, r.full, row)) * r.latent.bytes +
                  (is_k ? 0 : r.latent.v_at);
    }
    const bf16 *decoder = as_bf16(is_k ? decoder_k : decoder_v) + (size_t)head * d * ld + 8 * t;
    for (int first = 0; first < d; first += DIMENSIONS) {
        float acc[DIMENSIONS / 8][4] = {};
        for (int k = 0; k < ld; k += CUDA_K_STEP) {
            uint4 a[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                bool inside = rows[i] && k + 8 * t < rank;
                a[i] = inside ? latent_eight(rows[i], r.latent.form, rank, k + 8 * t) : make_uint4(0, 0, 0, 0);
            }
#pragma unroll
            for (int n = 0; n < DIMENSIONS / 8; n++) {
                int o = first + n * 8 + g;
                uint4 b = make_uint4(0, 0, 0, 0);
                if (o < d) b = __ldg(reinterpret_cast<const uint4 *>(decoder + (size_t)o * ld + k));
                mma_bf16(acc[n], a[0].x, a[1].x, a[0].y, a[1].y, b.x, b.y);
                mma_bf16(acc[n], a[0].z, a[1].z, a[0].w, a[1].w, b.z, b.w);
            }
        }
#pragma unroll
        for (int n = 0; n < DIMENSIONS / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int o = first + n * 8 + 2 * t + (i & 1), row = warp * 16 + g + (i >> 1) * 8;
                if (o < d) raw[row * (d + 1) + o] = acc[n][i];
            }
        }
    }
    __syncwarp();
    size_t kv_dim = (size_t)r.kv_heads * d;
    for (int i = 0; i < 16; i++) {
        int row = base + warp * 16 + i;
        if (row >= end) return;
        const cuda_step *step = step_of_row(batch, r.full, row);
        int p = position_of_row(step, r.full, row);
        float *x = raw + (warp * 16 + i) * (d + 1);
        bf16 *out = as_bf16(is_k ? r.k : r.v) + (size_t)row * kv_dim + (size_t)head * d;
        float scale;
        if (is_k) {
            float sum = 0;
            for (int j = lane; j < d; j += 32) sum += x[j] * x[j];
            scale = rsqrtf(warp_sum(sum) / (float)d + r.eps);
        } else {
            const cuda_latent_view &latent = step->cache->latent;
            scale = __ldcg(latent.scales + latent_place(latent, p) * latent.heads + r.latent_head + head);
        }
        for (int j = lane; j < d; j += 32) x[j] *= is_k ? scale * r.k_norm[j] : scale;
        __syncwarp();
        for (int j = lane; is_k && j < r.pairs; j += 32) {
            float sine, cosine, u = x[j], w = x[j + d / 2];
            sincosf((float)p * r.inverse_frequency[j], &sine, &cosine);
            x[j] = u * cosine - w * sine;
            x[j + d / 2] = w * cosine + u * sine;
        }
        __syncwarp();
        for (int j = lane; j < d; j += 32) out[j] = __float2bfloat16_rn(x[j]);
    }
}

void cuda_restore_rows(const cuda_launch *l, const cuda_batch *batch, const cuda_restore *r, int rows) {
    size_t bytes = (size_t)ROWS * (r->head_dim + 1) * sizeof(float);
    launch_kernel(l, restore_kernel, dim3(ceil_div(rows, ROWS), r->kv_heads, 2), dim3(RESTORE_THREADS), bytes, batch,
                  *r, (const cuda_bf16 *)r->decoder_k->data, (const cuda_bf16 *)r->decoder_v->data, r->decoder_k->ld,
                  r->decoder_v->ld);
}

/* Norms and RoPE of raw keys, scales of raw values: one warp per (row, head, {K, V}). */
static __global__ void finish_restored_kernel(const cuda_batch *batch, const __grid_constant__ cuda_restore r,
                                              const float *raw_k, const float *raw_v) {
    extern __shared__ float buffers[];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, d = r.head_dim, head = blockIdx.y * (blockDim.x >> 5) + warp;
    float *x = buffers + warp * d;
    wait_for_predecessor();
    int row = blockIdx.x;
    if (head >= r.kv_heads || row >= __ldcg(&batch->restored_rows[r.full])) return;
    bool is_k = blockIdx.z == 0;
    size_t at = (size_t)row * r.kv_heads * d + (size_t)head * d;
    const float *raw = (is_k ? raw_k : raw_v) + at;
    bf16 *out = as_bf16(is_k ? r.k : r.v) + at;
    if (!is_k) {
        float scale = r.gathered.scales[(size_t)row * r.gathered.heads + r.latent_head + head];
        for (int i = lane; i < d; i += 32) out[i] = __float2bfloat16_rn(raw[i] * scale);
        return;
    }
    int p = r.gathered.positions[row];
    float sum = 0;
    for (int i = lane; i < d; i += 32) {
        x[i] = raw[i];
        sum += x[i] * x[i];
    }
    float scale = rsqrtf(warp_sum(sum) / (float)d + r.eps);
    for (int i = lane; i < d; i += 32) x[i] *= scale * r.k_norm[i];
    __syncwarp();
    for (int j = lane; j < r.pairs; j += 32) {
        float sine, cosine, u = x[j], w = x[j + d / 2];
        sincosf((float)p * r.inverse_frequency[j], &sine, &cosine);
        x[j] = u * cosine - w * sine;
        x[j + d / 2] = w * cosine + u * sine;
    }
    __syncwarp();
    for (int i = lane; i < d; i += 32) out[i] = __float2bfloat16_rn(x[i]);
}

void cuda_finish_restored(const cuda_launch *l, const cuda_batch *batch, const cuda_restore *r, const float *raw_k,
                          const float *raw_v, int rows) {
    int warps = r->kv_heads < 8 ? r->kv_heads : 8;
    launch_kernel(l, finish_restored_kernel, dim3(rows, ceil_div(r->kv_heads, warps), 2), dim3(32 * warps),
                  (size_t)(warps * r->head_dim) * sizeof(float), batch, *r, raw_k, raw_v);
}

/* What latent_scores.cu reads: the first row of a group says whose it is, and how its first position turns; the first
 * rows of all say how positions inside of a group do. */
static __device__ __forceinline__ void gather_group(const cuda_step *step, const cuda_gathered &to,
                                                    const float *inverse_frequency, int row, int position, int segment,
                                                    int index) {
    int group = row / LATENT_GROUP, inside = row % LATENT_GROUP;
    if (inside == 0 && threadIdx.x == 0)
        to.groups[group] = {__ldcg(&step->first_row), __ldcg(&step->rows), index, segment};
    for (int j = threadIdx.x; j < to.pairs; j += blockDim.x) {
        float2 turn;
        if (inside == 0) {
            sincosf((float)position * inverse_frequency[j], &turn.y, &turn.x);
            to.bases[(size_t)group * to.pairs + j] = turn;
        }
        if (row >= LATENT_GROUP) continue;
        int block = j >> 5, quarter = j >> 3 & 3, place = j >> 1 & 3;
        sincosf((float)row * inverse_frequency[j], &turn.y, &turn.x);
        to.inside[(((block * 4 + place) * LATENT_GROUP + row) * 4 + quarter) * 2 + (j & 1)] = turn;
    }
}

/* A row's latents as bf16, its scales and turns. Bound: latents, read and written once. */
static __global__ void gather_kernel(const cuda_batch *batch, const __grid_constant__ cuda_gathered to,
                                     const float *inverse_frequency) {
    wait_for_predecessor();
    int row = blockIdx.x;
    if (row >= __ldcg(&batch->restored_rows[0])) return;
    const cuda_step *step = step_of_row(batch, 0, row);
    int p = position_of_row(step, 0, row);
    const cuda_latent_view &latent = step->cache->latent;
    size_t at = latent_place(latent, p);
    const unsigned char *from = latent.codes + at * to.latent.bytes;
    uint4 *out = reinterpret_cast<uint4 *>(to.codes + (size_t)row * to.latent.width);
    for (int i = 8 * threadIdx.x; i < to.latent.width; i += 8 * blockDim.x) {
        bool of_v = i >= to.latent.rank_k;
        out[i / 8] = of_v ? latent_eight(from + to.latent.v_at, to.latent.form, to.latent.rank_v, i - to.latent.first_v)
                          : latent_eight(from, to.latent.form, to.latent.rank_k, i);
    }
    for (int i = threadIdx.x; i < to.heads; i += blockDim.x)
        to.scales[(size_t)row * to.heads + i] = __ldcg(latent.scales + at * latent.heads + i);
    if (threadIdx.x == 0) to.positions[row] = p;
    if (to.groups) {
        gather_group(step, to, inverse_frequency, row, p, (int)(step - batch->step),
                     row - __ldcg(&step->restored_first[0]));
        return;
    }
    for (int j = threadIdx.x; j < to.pairs; j += blockDim.x) {
        float2 turn;
        int pair =
            (j & ~31) | (j >> 1 & 3) << 3 | (j >> 3 & 3) << 1 | (j & 1); /* as prompt_gemm_restore.cuh orders columns */
        sincosf((float)p * inverse_frequency[pair], &turn.y, &turn.x);
        to.turns[(size_t)row * to.pairs + j] = turn;
    }
}

void cuda_gather_latents(const cuda_launch *l, const cuda_batch *batch, const cuda_gathered *to,
                         const float *inverse_frequency, int rows) {
    launch_kernel(l, gather_kernel, dim3(rows), dim3(128), 0, batch, *to, inverse_frequency);
}

cudaError_t cuda_restore_prepare(int head_dim) {
    cudaError_t status = latent_attention_prepare();
    if (status != cudaSuccess) return status;
    return cudaFuncSetAttribute(restore_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)((size_t)ROWS * (head_dim + 1) * sizeof(float)));
}
