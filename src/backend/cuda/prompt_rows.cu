/* Rows of prompts between their products. Bound: bytes. A thread owns eight neighbouring elements at a time, so that
 * rounded rows are read and written sixteen bytes at a time, and blocks are small enough for several on a
 * multiprocessor: one waits for memory while another adds. A row's result depends on that row alone. */
#include "backend/cuda/prompt_rows.h"

#include "backend/cuda/heads.cuh"

namespace {

constexpr int WIDTH = 8; /* elements of a thread */

struct eight {
    float v[WIDTH];
};

__device__ __forceinline__ eight zeros() { return eight{{0, 0, 0, 0, 0, 0, 0, 0}}; }

__device__ __forceinline__ eight load_eight(const float *from) {
    float4 low = *reinterpret_cast<const float4 *>(from), high = *reinterpret_cast<const float4 *>(from + 4);
    return eight{{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
}

__device__ __forceinline__ void store_eight(float *to, const eight &e) {
    *reinterpret_cast<float4 *>(to) = make_float4(e.v[0], e.v[1], e.v[2], e.v[3]);
    *reinterpret_cast<float4 *>(to + 4) = make_float4(e.v[4], e.v[5], e.v[6], e.v[7]);
}

__device__ __forceinline__ uint32_t pack_two(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<uint32_t *>(&pair);
}

__device__ __forceinline__ void store_rounded(cuda_bf16 *to, const eight &e) {
    *reinterpret_cast<uint4 *>(to) = make_uint4(pack_two(e.v[0], e.v[1]), pack_two(e.v[2], e.v[3]),
                                                pack_two(e.v[4], e.v[5]), pack_two(e.v[6], e.v[7]));
}

__device__ __forceinline__ float squares(const eight &e) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < WIDTH; i++) sum += e.v[i] * e.v[i];
    return sum;
}

/* Sums of two values over the block, in a fixed order. `shared` holds a pair for each warp; successive calls alternate
 * between two of them. */
template <int THREADS> __device__ __forceinline__ float2 sum_pair(float a, float b, float2 *shared) {
    a = warp_sum(a);
    b = warp_sum(b);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = make_float2(a, b);
    __syncthreads();
    float2 sum = make_float2(0, 0);
#pragma unroll
    for (int w = 0; w < THREADS / 32; w++) {
        sum.x += shared[w].x;
        sum.y += shared[w].y;
    }
    return sum;
}

__device__ __forceinline__ float scale_of(float sum, int n, float eps) {
    return rsqrtf(sum / static_cast<float>(n) + eps);
}

/* PARTS: of a thread, THREADS * WIDTH elements apart. */
template <int THREADS, int PARTS>
__global__ __launch_bounds__(THREADS) void after_ffn_kernel(const __grid_constant__ cuda_after_ffn a,
                                                            const cuda_bf16 *experts,
                                                            const __grid_constant__ cuda_route route) {
    __shared__ float2 shared[2][THREADS / 32];
    int n = a.hidden;
    size_t row = blockIdx.x, at = row * static_cast<size_t>(n);
    eight h[PARTS], dense[PARTS], mixed[PARTS];
    wait_for_predecessor();
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        int i = (p * THREADS + static_cast<int>(threadIdx.x)) * WIDTH;
        h[p] = dense[p] = mixed[p] = zeros();
        if (i >= n) continue;
        h[p] = load_eight(a.h_in + at + i);
        dense[p] = load_eight(a.dense + at + i);
    }
    const int *slots = route.slot_of + row * static_cast<size_t>(route.rank);
    const float *weights = route.weight + row * static_cast<size_t>(route.rank);
#pragma unroll 8
    for (int r = 0; r < route.rank; r++) {
        const cuda_bf16 *expert = experts + static_cast<size_t>(__ldg(slots + r)) * static_cast<size_t>(n);
        float weight = __ldg(weights + r);
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
            int i = (p * THREADS + static_cast<int>(threadIdx.x)) * WIDTH;
            if (i >= n) continue;
            uint4 packed = __ldcs(reinterpret_cast<const uint4 *>(expert + i));
            const __nv_bfloat162 *pairs = reinterpret_cast<const __nv_bfloat162 *>(&packed);
#pragma unroll
            for (int j = 0; j < WIDTH / 2; j++) {
                float2 pair = __bfloat1622float2(pairs[j]);
                mixed[p].v[2 * j] = fmaf(pair.x, weight, mixed[p].v[2 * j]);
                mixed[p].v[2 * j + 1] = fmaf(pair.y, weight, mixed[p].v[2 * j + 1]);
            }
        }
    }
    float of_dense = 0, of_mixed = 0;
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        of_dense += squares(dense[p]);
        of_mixed += squares(mixed[p]);
    }
    float2 sums = sum_pair<THREADS>(of_dense, of_mixed, shared[0]);
    float scale_dense = scale_of(sums.x, n, a.eps), scale_mixed = scale_of(sums.y, n, a.eps), sum = 0;
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        int i = (p * THREADS + static_cast<int>(threadIdx.x)) * WIDTH;
        if (i >= n) continue;
        eight one = load_eight(a.post_ffn_norm_1 + i), two = load_eight(a.post_ffn_norm_2 + i);
#pragma unroll
        for (int j = 0; j < WIDTH; j++)
            dense[p].v[j] = dense[p].v[j] * scale_dense * one.v[j] + mixed[p].v[j] * scale_mixed * two.v[j];
        sum += squares(dense[p]);
    }
    float scale = scale_of(sum_pair<THREADS>(sum, 0, shared[1]).x, n, a.eps);
    sum = 0;
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        int i = (p * THREADS + static_cast<int>(threadIdx.x)) * WIDTH;
        if (i >= n) continue;
        eight post = load_eight(a.post_ffn_norm + i);
#pragma unroll
        for (int j = 0; j < WIDTH; j++) h[p].v[j] = (h[p].v[j] + dense[p].v[j] * scale * post.v[j]) * a.layer_scalar;
        sum += squares(h[p]);
    }
    scale = 1;
    if (a.next_norm) scale = scale_of(sum_pair<THREADS>(sum, 0, shared[0]).x, n, a.eps);
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        int i = (p * THREADS + static_cast<int>(threadIdx.x)) * WIDTH;
        if (i >= n) continue;
        store_eight(a.h + at + i, h[p]);
        if (a.aux.width)
            store_eight(a.aux.aux + row * static_cast<size_t>(a.aux.width) + a.aux.column[a.aux.form] + i, h[p]);
        eight next = h[p];
        if (a.next_norm) {
            eight norm = load_eight(a.next_norm + i);
#pragma unroll
            for (int j = 0; j < WIDTH; j++) next.v[j] = h[p].v[j] * scale * norm.v[j];
        }
        store_rounded(a.x + row * static_cast<size_t>(a.ldx) + i, next);
        if (a.normed) store_eight(a.normed + at + i, next);
    }
}

template <int THREADS, int PARTS>
__global__ __launch_bounds__(THREADS) void after_attention_kernel(const __grid_constant__ cuda_after_attention a) {
    __shared__ float2 shared[2][THREADS / 32];
    int n = a.hidden;
    size_t row = blockIdx.x, at = row * static_cast<size_t>(n), to = row * static_cast<size_t>(a.ldx);
    eight h[PARTS], branch[PARTS];
    float sum = 0;
    wait_for_predecessor();
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        int i = (p * THREADS + static_cast<int>(threadIdx.x)) * WIDTH;
        h[p] = branch[p] = zeros();
        if (i >= n) continue;
        branch[p] = load_eight(a.branch + at + i);
        h[p] = load_eight(a.h + at + i);
        sum += squares(branch[p]);
    }
    float scale = scale_of(sum_pair<THREADS>(sum, 0, shared[0]).x, n, a.eps);
    sum = 0;
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        int i = (p * THREADS + static_cast<int>(threadIdx.x)) * WIDTH;
        if (i >= n) continue;
        eight post = load_eight(a.post_attention_norm + i);
#pragma unroll
        for (int j = 0; j < WIDTH; j++) h[p].v[j] += branch[p].v[j] * scale * post.v[j];
        sum += squares(h[p]);
    }
    scale = scale_of(sum_pair<THREADS>(sum, 0, shared[1]).x, n, a.eps);
    float constant = rsqrtf(static_cast<float>(n));
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        int i = (p * THREADS + static_cast<int>(threadIdx.x)) * WIDTH;
        if (i >= n) continue;
        store_eight(a.h_out + at + i, h[p]);
        eight normed, out, factor = load_eight(a.pre_ffn_norm + i);
#pragma unroll
        for (int j = 0; j < WIDTH; j++) {
            normed.v[j] = h[p].v[j] * scale;
            out.v[j] = normed.v[j] * factor.v[j];
        }
        store_rounded(a.x_dense + to + i, out);
        if (!a.x_experts) continue;
        factor = load_eight(a.pre_ffn_norm_2 + i);
#pragma unroll
        for (int j = 0; j < WIDTH; j++) out.v[j] = normed.v[j] * factor.v[j];
        store_rounded(a.x_experts + to + i, out);
        factor = load_eight(a.router_scale + i);
#pragma unroll
        for (int j = 0; j < WIDTH; j++) out.v[j] = normed.v[j] * factor.v[j] * constant;
        store_eight(a.x_router + at + i, out);
    }
}

template <int THREADS, int PARTS>
void launch_after_attention(const cuda_launch *l, const cuda_after_attention *a, int rows) {
    launch_kernel(l, after_attention_kernel<THREADS, PARTS>, dim3(static_cast<unsigned>(rows)), dim3(THREADS), 0, *a);
}

template <int THREADS, int PARTS>
void launch_after_ffn(const cuda_launch *l, const cuda_after_ffn *a, const cuda_bf16 *experts, const cuda_route *route,
                      int rows) {
    launch_kernel(l, after_ffn_kernel<THREADS, PARTS>, dim3(static_cast<unsigned>(rows)), dim3(THREADS), 0, *a, experts,
                  *route);
}

constexpr int GATHER_THREADS = 128;

__global__ __launch_bounds__(GATHER_THREADS) void gather_kernel(const __grid_constant__ cuda_route route,
                                                                const cuda_bf16 *x, cuda_bf16 *to, int ld) {
    size_t row = blockIdx.x, width = static_cast<size_t>(ld);
    const int *slots = route.slot_of + row * static_cast<size_t>(route.rank);
    wait_for_predecessor();
    for (int i = static_cast<int>(threadIdx.x) * WIDTH; i < ld; i += GATHER_THREADS * WIDTH) {
        uint4 v = *reinterpret_cast<const uint4 *>(x + row * width + i);
        for (int r = 0; r < route.rank; r++)
            *reinterpret_cast<uint4 *>(to + static_cast<size_t>(__ldg(slots + r)) * width + i) = v;
    }
}

/* Heads of prompt rows: norms and RoPE of queries and keys, new K/V into the chunk buffers or the cache. 32 lanes share
 * a head of 32 * WIDTH dimensions times PARTS; a lane's dimensions turn with those of the lane 16 further, or of the
 * other half of its parts. */
enum { HEAD_ROWS_WARPS = 8 };

template <int PARTS>
__global__ __launch_bounds__(HEAD_ROWS_WARPS * 32) void head_rows_kernel(const cuda_batch *batch, int rows,
                                                                         const __grid_constant__ cuda_heads a) {
    constexpr int D = 32 * WIDTH * PARTS;
    int lane = static_cast<int>(threadIdx.x) % 32;
    int keys = a.k && a.v ? a.kv_heads : 0, values = a.k ? a.kv_heads : 0, units = a.heads + keys + values;
    int item = static_cast<int>(blockIdx.x) * HEAD_ROWS_WARPS + static_cast<int>(threadIdx.x) / 32;
    int row = item / units, unit = item % units;
    if (row >= rows) return;
    bool is_q = unit < a.heads, is_k = !is_q && unit < a.heads + keys;
    int head = is_q ? unit : is_k ? unit - a.heads : unit - a.heads - keys;
    const float *source = is_q ? a.q + static_cast<size_t>(row) * a.heads * D
                               : (is_k || !a.v ? a.k : a.v) + static_cast<size_t>(row) * a.kv_heads * D;
    const float *norm = is_q ? a.q_norm : is_k ? a.k_norm : nullptr;
    source += static_cast<size_t>(head) * D + lane * WIDTH;
    const float2 *turns = a.turns + static_cast<size_t>(row) * a.pairs;
    int pair = PARTS == 1 ? lane % 16 * WIDTH : lane * WIDTH; /* of this lane's first dimension */
    bool turned = (is_q || is_k) && pair < a.pairs;
    eight v[PARTS], weight[PARTS], turn[2] = {zeros(), zeros()}; /* of cosines and sines by turns */
    float sum = 0;
    wait_for_predecessor();
#pragma unroll
    for (int p = 0; p < PARTS; p++) v[p] = load_eight(source + p * (D / PARTS)); /* all is asked for at once */
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        weight[p] = eight{{1, 1, 1, 1, 1, 1, 1, 1}};
        if (norm) weight[p] = load_eight(norm + p * (D / PARTS) + lane * WIDTH);
    }
    if (turned) {
        turn[0] = load_eight(reinterpret_cast<const float *>(turns + pair));
        turn[1] = load_eight(reinterpret_cast<const float *>(turns + pair) + WIDTH);
    }
#pragma unroll
    for (int p = 0; p < PARTS; p++) sum += squares(v[p]);
    float scale = 1.0f;
    if (is_q || is_k || a.norm_v) scale = scale_of(warp_sum(sum), D, a.eps);
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
#pragma unroll
        for (int j = 0; j < WIDTH; j++) v[p].v[j] *= scale * weight[p].v[j];
    }
    if (is_q || is_k) {
        eight partner[PARTS];
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
#pragma unroll
            for (int j = 0; j < WIDTH; j++)
                partner[p].v[j] = PARTS == 1 ? __shfl_xor_sync(~0u, v[p].v[j], 16) : v[PARTS - 1 - p].v[j];
        }
        if (turned) {
#pragma unroll
            for (int j = 0; j < WIDTH; j++) {
                float cosine = turn[j / 4].v[j % 4 * 2], sine = turn[j / 4].v[j % 4 * 2 + 1];
#pragma unroll
                for (int p = 0; p < PARTS; p++) {
                    bool low = PARTS == 1 ? lane < 16 : p == 0;
                    float other = partner[p].v[j] * sine;
                    v[p].v[j] = low ? v[p].v[j] * cosine - other : v[p].v[j] * cosine + other;
                }
            }
        }
    }
    cuda_bf16 *out, *sink = nullptr;
    if (is_q) {
        out = a.q_out + (static_cast<size_t>(row) * a.heads + head) * D;
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
#pragma unroll
            for (int j = 0; j < WIDTH; j++) v[p].v[j] *= a.q_scale;
        }
    } else {
        size_t kv_dim = static_cast<size_t>(a.kv_heads) * D, column = static_cast<size_t>(head) * D;
        const cuda_step &step = *prompt_segment(batch, row);
        if (!step.cache) return;
        if (a.chunk_v) {
            out = (is_k ? a.chunk_k : a.chunk_v) + static_cast<size_t>(row) * kv_dim + column;
        } else {
            const cuda_layer_view &view = step.cache->layer[a.layer];
            int position = step.position + row - step.first_row;
            size_t stored = static_cast<size_t>(view.capacity ? position % view.capacity : position);
            out = (is_k ? view.k : view.v) + stored * kv_dim + column;
            if (view.sink_v && position < step.sink)
                sink = (is_k ? view.sink_k : view.sink_v) + static_cast<size_t>(position) * kv_dim + column;
        }
    }
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        store_rounded(out + p * (D / PARTS) + lane * WIDTH, v[p]);
        if (sink) store_rounded(sink + p * (D / PARTS) + lane * WIDTH, v[p]);
    }
}

template <int PARTS>
void launch_head_rows(const cuda_launch *l, const cuda_batch *batch, const cuda_heads *h, int rows) {
    int units = h->heads + (h->k ? h->kv_heads : 0) + (h->k && h->v ? h->kv_heads : 0);
    launch_kernel(l, head_rows_kernel<PARTS>, dim3(static_cast<unsigned>(ceil_div(rows * units, HEAD_ROWS_WARPS))),
                  dim3(HEAD_ROWS_WARPS * 32), 0, batch, rows, *h);
}

} // namespace

extern "C" void prompt_gather_rows(const cuda_launch *l, const cuda_route *route, const cuda_bf16 *x, cuda_bf16 *to,
                                   int ld, int rows) {
    launch_kernel(l, gather_kernel, dim3(static_cast<unsigned>(rows)), dim3(GATHER_THREADS), 0, *route, x, to, ld);
}

extern "C" void prompt_after_attention_rows(const cuda_launch *l, const cuda_after_attention *a, int rows) {
    if (a->hidden <= 128 * WIDTH)
        launch_after_attention<128, 1>(l, a, rows);
    else if (a->hidden <= 384 * WIDTH)
        launch_after_attention<384, 1>(l, a, rows);
    else
        launch_after_attention<512, 2>(l, a, rows);
}

extern "C" int prompt_head_rows_fit(const cuda_heads *h) {
    return (h->head_dim == 256 || h->head_dim == 512) && h->pairs % WIDTH == 0;
}

extern "C" void prompt_head_rows(const cuda_launch *l, const cuda_batch *batch, const cuda_heads *h, int rows) {
    if (h->head_dim == 256)
        launch_head_rows<1>(l, batch, h, rows);
    else
        launch_head_rows<2>(l, batch, h, rows);
}

extern "C" void prompt_after_ffn_rows(const cuda_launch *l, const cuda_after_ffn *a, const cuda_bf16 *experts,
                                      const cuda_route *route, int rows) {
    if (a->hidden <= 128 * WIDTH)
        launch_after_ffn<128, 1>(l, a, experts, route, rows);
    else if (a->hidden <= 384 * WIDTH)
        launch_after_ffn<384, 1>(l, a, experts, route, rows);
    else
        launch_after_ffn<512, 2>(l, a, experts, route, rows);
}
