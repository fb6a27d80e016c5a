/* Heads of new rows: norms and RoPE of queries and keys, and where new K/V are stored; the positions' cosines and
 * sines. Bound: latency. */
#include <float.h>

#include "backend/cuda/heads.cuh"
#include "backend/cuda/kv_codes.cuh"
#include "backend/cuda/kv_q4.cuh"

enum { HEAD_WARPS = 4 };

/* kv_q8_store of a vector that a warp holds, to the byte; to two places, the second one or NULL. */
template <int PER_LANE>
static __device__ __forceinline__ void store_codes(const float (&v)[PER_LANE], int d, int lane, unsigned char *out,
                                                   unsigned char *sink) {
    float largest = 0;
    bool finite = true;
#pragma unroll
    for (int e = 0; e < PER_LANE; e++) {
        if (e * 32 + lane >= d) continue;
        finite &= fabsf(v[e]) <= FLT_MAX;
        largest = fmaxf(largest, fabsf(v[e]));
    }
    finite = __all_sync(0xffffffffu, finite);
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, o));
    bool empty = !finite || largest < 0x1p-100f;
    float scale = __uint_as_float(0x7fc00000u), inverse = 0;
    if (finite) scale = empty ? 0.0f : __fdiv_rn(largest, (float)KV_CODES_LARGEST);
    if (__fmul_rn(scale, (float)KV_CODES_LARGEST) > FLT_MAX) scale = __uint_as_float(__float_as_uint(scale) - 1);
    if (!empty) inverse = __fdiv_rn((float)KV_CODES_LARGEST, largest);
    if (lane == 0) {
        *reinterpret_cast<float *>(out) = scale;
        if (sink) *reinterpret_cast<float *>(sink) = scale;
    }
#pragma unroll
    for (int e = 0; e < PER_LANE; e++) {
        if (e * 32 + lane >= d) continue;
        unsigned char code = empty ? 0 : (unsigned char)(int8_t)rintf(__fmul_rn(v[e], inverse));
        out[KV_CODES_AT + e * 32 + lane] = code;
        if (sink) sink[KV_CODES_AT + e * 32 + lane] = code;
    }
}

/* One warp per head of a row; PER_LANE = head_dim / 32 elements in registers. Q4: for layers in 4 bits alone, whose
 * storing takes registers. */
template <int PER_LANE, bool Q4>
static __global__ __launch_bounds__(HEAD_WARPS * 32) void head_rows_kernel(const cuda_batch *batch, int prompt,
                                                                           const __grid_constant__ cuda_heads a) {
    [[maybe_unused]] __shared__ float buffers[HEAD_WARPS][Q4 ? PER_LANE * 32 : 1];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, d = a.head_dim;
    int row = blockIdx.x, unit = blockIdx.y * HEAD_WARPS + warp;
    int keys = a.k && a.v ? a.kv_heads : 0, values = a.k ? a.kv_heads : 0;
    bool is_q = unit < a.heads, is_k = !is_q && unit < a.heads + keys;
    const float *norm = is_q ? a.q_norm : is_k ? a.k_norm : nullptr;
    float weight[PER_LANE], v[PER_LANE];
    if (unit >= a.heads + keys + values) return;
    load_head_norm(weight, norm, d);
    /* Written before the step's first kernel. */
    const cuda_step *segment = prompt ? prompt_segment(batch, row) : nullptr;
    const cuda_row *mine = &batch->row[prompt ? 0 : row];
    const cuda_cache_view *cache = prompt ? segment->cache : mine->cache;
    int position = prompt ? segment->position + row - segment->first_row : mine->position,
        sink_end = prompt ? segment->sink : mine->sink;
    release_successor();
    wait_for_predecessor();
    int head = is_q ? unit : is_k ? unit - a.heads : unit - a.heads - keys;
    const float *source =
        is_q ? a.q + (size_t)row * a.heads * d : (is_k || !a.v ? a.k : a.v) + (size_t)row * a.kv_heads * d;
    source += (size_t)head * d;
    load_head(v, source, d);
    norm_head(v, weight, is_q || is_k || a.norm_v, d, a.eps);
    if (is_q || is_k) turn_head(v, a.turns + (size_t)row * a.pairs, a.pairs, d);
    if (is_q) {
        bf16 *out = as_bf16(a.q_out) + ((size_t)row * a.heads + head) * d;
#pragma unroll
        for (int e = 0; e < PER_LANE; e++) {
            if (e * 32 + lane < d) out[e * 32 + lane] = __float2bfloat16_rn(v[e] * a.q_scale);
        }
        return;
    }
    size_t kv_dim = (size_t)a.kv_heads * d, column = (size_t)head * d;
    bf16 *out, *sink = nullptr;
    if (!cache) return;
    if (a.codes) {
        const cuda_layer_view &view = cache->layer[a.layer];
        auto place = [&](cuda_bf16 *rows, size_t at) {
            return const_cast<unsigned char *>(
                kv_codes_of(rows, at, a.kv_heads, head, Q4 ? kv_q4_vector_bytes(d) : kv_codes_bytes(d)));
        };
        bool in_sink = view.sink_v && position < sink_end;
        unsigned char *at = place(is_k ? view.k : view.v, store_row(view, position)),
                      *at_sink = in_sink ? place(is_k ? view.sink_k : view.sink_v, (size_t)position) : nullptr;
        if constexpr (Q4) {
            __syncwarp();
#pragma unroll
            for (int e = 0; e < PER_LANE; e++) buffers[warp][e * 32 + lane] = v[e];
            __syncwarp();
            kv_q4_store_warp(buffers[warp], d, lane, at, at_sink);
        } else {
            store_codes<PER_LANE>(v, d, lane, at, at_sink);
        }
        return;
    }
    if (a.chunk_v) {
        out = as_bf16(is_k ? a.chunk_k : a.chunk_v) + (size_t)row * kv_dim + column;
    } else {
        const cuda_layer_view &view = cache->layer[a.layer];
        out = as_bf16(is_k ? view.k : view.v) + store_row(view, position) * kv_dim + column;
        if (view.sink_v && position < sink_end)
            sink = as_bf16(is_k ? view.sink_k : view.sink_v) + (size_t)position * kv_dim + column;
    }
#pragma unroll
    for (int e = 0; e < PER_LANE; e++) {
        if (e * 32 + lane >= d) continue;
        bf16 rounded = __float2bfloat16_rn(v[e]);
        out[e * 32 + lane] = rounded;
        if (sink) sink[e * 32 + lane] = rounded;
    }
}

template <int PER_LANE>
static void launch_head_rows(const cuda_launch *l, dim3 grid, const cuda_batch *batch, int prompt,
                             const cuda_heads *h) {
    launch_kernel(l, h->codes == CUDA_KV_Q4 ? head_rows_kernel<PER_LANE, true> : head_rows_kernel<PER_LANE, false>,
                  grid, dim3(HEAD_WARPS * 32), 0, batch, prompt, *h);
}

void cuda_head_rows(const cuda_launch *l, const cuda_batch *batch, int prompt, const cuda_heads *h, int rows) {
    int units = h->heads + (h->k ? h->kv_heads : 0) + (h->k && h->v ? h->kv_heads : 0);
    dim3 grid(rows, ceil_div(units, HEAD_WARPS));
    switch ((h->head_dim + 31) / 32) {
    case 1:
        launch_head_rows<1>(l, grid, batch, prompt, h);
        break;
    case 2:
        launch_head_rows<2>(l, grid, batch, prompt, h);
        break;
    case 4:
        launch_head_rows<4>(l, grid, batch, prompt, h);
        break;
    case 8:
        launch_head_rows<8>(l, grid, batch, prompt, h);
        break;
    case 16:
        launch_head_rows<16>(l, grid, batch, prompt, h);
        break;
    default:
        break; /* model.c refuses other dimensions */
    }
}

static __global__ void turns_kernel(const cuda_batch *batch, int prompt, const float *inverse_frequency, int pairs,
                                    float2 *turns) {
    release_successor();
    wait_for_predecessor();
    int row = blockIdx.x, position;
    if (prompt) {
        const cuda_step *segment = prompt_segment(batch, row);
        position = segment->position + row - segment->first_row;
    } else {
        position = batch->row[row].position;
    }
    for (int j = threadIdx.x; j < pairs; j += blockDim.x) {
        float2 turn;
        sincosf((float)position * inverse_frequency[j], &turn.y, &turn.x);
        turns[(size_t)row * pairs + j] = turn;
    }
}

void cuda_turns(const cuda_launch *l, const cuda_batch *batch, int prompt, const float *inverse_frequency, int pairs,
                float2 *turns, int rows) {
    if (pairs) launch_kernel(l, turns_kernel, dim3(rows), dim3(128), 0, batch, prompt, inverse_frequency, pairs, turns);
}

static __global__ void store_chunk_kernel(const cuda_batch *batch, const cuda_bf16 *chunk_k, const cuda_bf16 *chunk_v,
                                          int kv_dim, int layer) {
    wait_for_predecessor();
    int row = blockIdx.x;
    const cuda_step *step = prompt_segment(batch, row);
    const cuda_layer_view &view = step->cache->layer[layer];
    int index = row - step->first_row, position = step->position + index;
    bool keep = index >= step->rows - view.capacity, sink = view.sink_v && position < step->sink;
    size_t to = store_row(view, position) * kv_dim, from = (size_t)row * kv_dim, sink_to = (size_t)position * kv_dim;
    for (int i = threadIdx.x; i < kv_dim; i += blockDim.x) {
        if (keep) {
            view.v[to + i] = chunk_v[from + i];
            if (view.k) view.k[to + i] = chunk_k[from + i];
        }
        if (sink) {
            view.sink_v[sink_to + i] = chunk_v[from + i];
            if (view.sink_k) view.sink_k[sink_to + i] = chunk_k[from + i];
        }
    }
}

void cuda_store_chunk(const cuda_launch *l, const cuda_batch *batch, const cuda_bf16 *chunk_k, const cuda_bf16 *chunk_v,
                      int kv_dim, int layer, int rows) {
    launch_kernel(l, store_chunk_kernel, dim3(rows), dim3(256), 0, batch, chunk_k, chunk_v, kv_dim, layer);
}

static __global__ void keep_last_rows_kernel(const cuda_batch *batch, const cuda_bf16 *x, int ldx, cuda_bf16 *to) {
    wait_for_predecessor();
    const cuda_step *step = &batch->step[blockIdx.x];
    if (step->last_row < 0) return;
    const cuda_bf16 *from = x + (size_t)(step->first_row + step->rows - 1) * ldx;
    to += (size_t)step->last_row * ldx;
    for (int i = threadIdx.x; i < ldx; i += blockDim.x) to[i] = from[i];
}

void cuda_keep_last_rows(const cuda_launch *l, const cuda_batch *batch, const cuda_bf16 *x, int ldx, cuda_bf16 *to,
                         int segments) {
    launch_kernel(l, keep_last_rows_kernel, dim3(segments), dim3(256), 0, batch, x, ldx, to);
}

static __global__ void set_aside_kernel(const cuda_cache_view *cache, int position, int back) {
    wait_for_predecessor();
    const cuda_layer_view &view = cache->layer[blockIdx.x];
    cuda_bf16 *stored = blockIdx.y ? view.k : view.v, *aside = blockIdx.y ? view.aside_k : view.aside_v;
    if (!stored || !aside) return;
    stored += store_row(view, position) * view.values;
    for (int i = threadIdx.x; i < view.values; i += blockDim.x) {
        if (back)
            stored[i] = aside[i];
        else
            aside[i] = stored[i];
    }
}

void cuda_set_aside(const cuda_launch *l, const cuda_cache_view *cache, int layers, int position, int back) {
    launch_kernel(l, set_aside_kernel, dim3(layers, 2), dim3(256), 0, cache, position, back);
}
