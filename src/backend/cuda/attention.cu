/* Attention of few rows over long caches: head norms and RoPE, split-K/V flash decoding, the merge of its partitions.
 *
 * Keys are walked in tiles of 64 absolute positions. Decode rows are cut into partitions whose edges are fixed
 * positions, one thread block each, and merged in ascending order; a tile that holds nothing for a row leaves its state
 * as it is, exactly. So a row's result does not depend on the rows beside it. Bound: one read of the K/V.
 *
 * What a query at position t sees (backend.h): its layer's causal / sliding range; of the evicted part [sink, E)
 * nothing or, under `restored`, the keys and values that cuda_restore_rows has decoded from the latents; the rest
 * exactly.
 *
 * K = V layers keep V alone and K = RoPE(k_norm * V). Dimensions that RoPE turns are derived per tile; for the others
 * k_norm is folded into the query once, and the tile of values serves as keys too. */
#include <limits.h>

#include "backend/cuda/common.cuh"

enum { ATTEND_THREADS = 256, ATTEND_WARPS = ATTEND_THREADS / 32, QUERIES = 16, KEYS = CUDA_ATTENTION_TILE, PAD = 8 };
/* Partitions of full-attention layers: fine where contexts are short, coarse where partial results would weigh. */
enum { FINE_KEYS = 128, FINE_END = 4096, COARSE_KEYS = 256 };

/* --------------------------------------------------------------------------------------------- heads of new rows */

static __device__ __forceinline__ size_t store_row(const cuda_layer_view &view, int position) {
    return (size_t)(view.capacity ? position % view.capacity : position);
}

enum { HEAD_WARPS = 4 };

/* One warp per head of a row; PER_LANE = head_dim / 32 elements in registers, exchanged through shared memory for RoPE.
 */
template <int PER_LANE>
static __global__ __launch_bounds__(HEAD_WARPS * 32) void head_rows_kernel(const cuda_batch *batch, int prompt,
                                                                           const __grid_constant__ cuda_heads a) {
    __shared__ float buffers[HEAD_WARPS][PER_LANE * 32];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, d = a.head_dim, half = d / 2;
    int row = blockIdx.x, unit = blockIdx.y * HEAD_WARPS + warp;
    int keys = a.k && a.v ? a.kv_heads : 0, values = a.k ? a.kv_heads : 0;
    bool is_q = unit < a.heads, is_k = !is_q && unit < a.heads + keys;
    const float *norm = is_q ? a.q_norm : is_k ? a.k_norm : nullptr;
    float weight[PER_LANE], v[PER_LANE], sum = 0;
    if (unit >= a.heads + keys + values) return;
#pragma unroll
    for (int e = 0; e < PER_LANE; e++) weight[e] = norm && e * 32 + lane < d ? norm[e * 32 + lane] : 1.0f;
    /* Written before the step's first kernel. */
    const cuda_row *mine = &batch->row[prompt ? 0 : row];
    const cuda_cache_view *cache = prompt ? batch->step[0].cache : mine->cache;
    int position = prompt ? batch->step[0].position + row : mine->position,
        sink_end = prompt ? batch->step[0].sink : mine->sink;
    release_successor();
    wait_for_predecessor();
    int head = is_q ? unit : is_k ? unit - a.heads : unit - a.heads - keys;
    const float *source =
        is_q ? a.q + (size_t)row * a.heads * d : (is_k || !a.v ? a.k : a.v) + (size_t)row * a.kv_heads * d;
    source += (size_t)head * d;
    const float2 *turns = a.turns + (size_t)row * a.pairs;
#pragma unroll
    for (int e = 0; e < PER_LANE; e++) {
        v[e] = e * 32 + lane < d ? __ldcg(source + e * 32 + lane) : 0;
        sum += v[e] * v[e];
    }
    float scale = 1.0f;
    if (is_q || is_k || a.norm_v) scale = rsqrtf(warp_sum(sum) / (float)d + a.eps);
#pragma unroll
    for (int e = 0; e < PER_LANE; e++) {
        v[e] *= scale * weight[e];
        buffers[warp][e * 32 + lane] = v[e];
    }
    __syncwarp();
    if (is_q || is_k) {
#pragma unroll
        for (int e = 0; e < PER_LANE; e++) {
            int i = e * 32 + lane, j = i < half ? i : i - half;
            if (i >= d || j >= a.pairs) continue;
            float2 turn = __ldcg(turns + j); /* cosine, sine */
            float other = buffers[warp][i < half ? i + half : j];
            v[e] = i < half ? v[e] * turn.x - other * turn.y : v[e] * turn.x + other * turn.y;
        }
    }
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

void cuda_head_rows(const cuda_launch *l, const cuda_batch *batch, int prompt, const cuda_heads *h, int rows) {
    int units = h->heads + (h->k ? h->kv_heads : 0) + (h->k && h->v ? h->kv_heads : 0);
    dim3 grid(rows, ceil_div(units, HEAD_WARPS)), block(HEAD_WARPS * 32);
    switch ((h->head_dim + 31) / 32) {
    case 1:
        launch_kernel(l, head_rows_kernel<1>, grid, block, 0, batch, prompt, *h);
        break;
    case 2:
        launch_kernel(l, head_rows_kernel<2>, grid, block, 0, batch, prompt, *h);
        break;
    case 4:
        launch_kernel(l, head_rows_kernel<4>, grid, block, 0, batch, prompt, *h);
        break;
    case 8:
        launch_kernel(l, head_rows_kernel<8>, grid, block, 0, batch, prompt, *h);
        break;
    case 16:
        launch_kernel(l, head_rows_kernel<16>, grid, block, 0, batch, prompt, *h);
        break;
    default:
        break; /* model.c refuses other dimensions */
    }
}

static __global__ void turns_kernel(const cuda_batch *batch, int prompt, const float *inverse_frequency, int pairs,
                                    float2 *turns) {
    release_successor();
    wait_for_predecessor();
    int row = blockIdx.x, position = prompt ? batch->step[0].position + row : batch->row[row].position;
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

static __global__ void store_chunk_kernel(const cuda_step *step, const cuda_bf16 *chunk_k, const cuda_bf16 *chunk_v,
                                          int kv_dim, int layer, int rows) {
    wait_for_predecessor();
    const cuda_layer_view &view = step->cache->layer[layer];
    int row = blockIdx.x, position = step->position + row;
    bool keep = row >= rows - view.capacity, sink = view.sink_v && position < step->sink;
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

void cuda_store_chunk(const cuda_launch *l, const cuda_step *step, const cuda_bf16 *chunk_k, const cuda_bf16 *chunk_v,
                      int kv_dim, int layer, int rows) {
    launch_kernel(l, store_chunk_kernel, dim3(rows), dim3(256), 0, step, chunk_k, chunk_v, kv_dim, layer, rows);
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

/* ------------------------------------------------------------------------------------------------ flash decoding */

static __device__ __forceinline__ void copy_async(void *shared, const void *global, bool wanted) {
    uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
    int bytes = wanted ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes));
}

static __device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

static __device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const bf16 *shared) {
    uint32_t at = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}

static __device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], const bf16 *shared) {
    uint32_t at = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}

/* What a block needs to know of the step and the layer, loaded once. */
struct attend_context {
    int position, rows, first_row, prompt, frontier, sink, window, draft_from, restored_begin, restored_end;
    int partitions;    /* of each row */
    size_t first_cell; /* of the segment */
    cuda_layer_view view;
    cuda_draft_view draft;
};

/* Exact and restored keys of the same positions are partitions of their own: neither waits for the other. In sliding
 * layers, where few tiles hold both, all restored ones come first; in full-attention layers they alternate. */
static __host__ __device__ __forceinline__ int partition_sources(const cuda_attention &a) {
    return !a.final && a.restored_k && !a.sliding_window ? 2 : 1;
}

/* Where a segment's partial results lie. In full-attention layers every row has the partitions that it needs; elsewhere
 * all rows have the same number. */
struct cells_of {
    int partitions;
    size_t first;
};

static __device__ __forceinline__ cells_of find_cells(const cuda_step *step, const cuda_attention &a) {
    if (a.sliding_window || a.drafter || a.final)
        return {a.partitions, (size_t)__ldcg(&step->first_row) * a.heads * a.partitions};
    int sources = partition_sources(a);
    return {sources * __ldcg(&step->partitions), (size_t)sources * __ldcg(&step->first_partition) * a.heads};
}

static __device__ __forceinline__ attend_context load_context(const cuda_step *step, const cuda_attention &a) {
    attend_context c = {};
    c.position = __ldcg(&step->position);
    c.rows = __ldcg(&step->rows);
    c.first_row = __ldcg(&step->first_row);
    c.prompt = __ldcg(&step->prompt);
    c.frontier = __ldcg(&step->frontier);
    c.sink = __ldcg(&step->sink);
    c.window = __ldcg(&step->window);
    c.draft_from = __ldcg(&step->draft_from);
    c.restored_begin = __ldcg(&step->restored_begin[a.sliding_window == 0]);
    c.restored_end = __ldcg(&step->restored_end);
    cells_of cells = find_cells(step, a);
    c.partitions = cells.partitions;
    c.first_cell = cells.first;
    if (c.rows == 0) return c;
    if (a.drafter)
        c.draft = step->cache->draft[a.layer];
    else
        c.view = step->cache->layer[a.layer];
    return c;
}

/* Positions that one query sees: [begin, end), of which [sink, evicted) is evicted. */
struct visible_range {
    int begin, end, sink, evicted;
};

static __device__ visible_range visible(const attend_context &step, const cuda_attention &a, int token) {
    int t = step.position + token;
    visible_range r = {0, t + 1, 0, 0};
    if (a.drafter) {
        r.begin = max(step.position - step.draft.window, step.draft_from);
        if (a.sliding_window) r.begin = max(r.begin, t - a.sliding_window + 1);
        if (!a.causal) r.end = min(step.position + step.rows, a.sliding_window ? t + a.sliding_window : INT_MAX);
    } else {
        if (a.sliding_window) r.begin = t - a.sliding_window + 1;
        if (step.view.bounded) {
            r.sink = step.sink;
            r.evicted = step.prompt ? step.frontier : t - step.window + 1;
            if (r.evicted <= r.sink) r.evicted = 0;
        }
    }
    r.begin = max(r.begin, 0);
    return r;
}

static __device__ __forceinline__ bool sees_exactly(const visible_range &r, int p) {
    return p >= r.begin && p < r.end && (p >= r.evicted || p < r.sink);
}

static __device__ __forceinline__ bool sees_restored(const visible_range &r, int p) {
    return p >= r.begin && p < r.end && p >= r.sink && p < r.evicted;
}

enum tile_source { TILE_EXACT, TILE_RESTORED, TILE_BOTH };

/* Key positions of a partition, and which of them; row 0 of the step decides where sliding partitions begin. */
static __device__ tile_source partition_range(const cuda_attention &a, const visible_range &first, int sink, int index,
                                              int *begin, int *end) {
    tile_source source = TILE_BOTH;
    if (a.sliding_window || a.drafter) {
        int tile = first.begin / KEYS + index;
        if (a.restored_partitions) {
            source = index < a.restored_partitions ? TILE_RESTORED : TILE_EXACT;
            if (source == TILE_RESTORED) {
                tile = max(first.begin, sink) / KEYS + index;
            } else { /* visible tiles of the sink, then those from the first exact position on */
                int oldest = first.begin / KEYS, recent = max(first.evicted / KEYS, oldest);
                int of_sink = max(min((sink + KEYS - 1) / KEYS, recent) - oldest, 0);
                index -= a.restored_partitions;
                tile = index < of_sink ? oldest + index : recent + index - of_sink;
            }
        }
        *begin = tile * KEYS;
        *end = *begin + KEYS;
        return source;
    }
    if (partition_sources(a) == 2) {
        source = index % 2 ? TILE_RESTORED : TILE_EXACT;
        index /= 2;
    }
    if (index < FINE_END / FINE_KEYS) {
        *begin = index * FINE_KEYS;
        *end = *begin + FINE_KEYS;
    } else {
        *begin = FINE_END + (index - FINE_END / FINE_KEYS) * COARSE_KEYS;
        *end = *begin + COARSE_KEYS;
    }
    return source;
}

template <int D, bool SPLIT> struct attend_memory {
    bf16 v[KEYS][D + PAD];
    bf16 k[KEYS][(SPLIT ? D / 4 : D) + PAD]; /* SPLIT: the turned dimensions only */
    bf16 q[QUERIES][D + PAD];
    float scores[QUERIES][KEYS + 4];
    bf16 p[QUERIES][KEYS + PAD];
    float top[QUERIES], sum[QUERIES], rescale[QUERIES];
    float2 base_turn[D / 2];
};

static __host__ __device__ int turned_columns(int pairs) { return (pairs + 15) / 16 * 16; }

/* Where the columns [16 c, 16 c + 16) of the keys lie: in the key tile at the returned column, or (-1) in the values.
 */
template <int D> static __device__ __forceinline__ int key_column(int c, int turned) {
    int at = c * 16, half = D / 2;
    if (at < turned) return at;
    if (at >= half && at < half + turned) return turned + at - half;
    return -1;
}

template <int D, bool SPLIT>
static __device__ void request_tile(attend_memory<D, SPLIT> &m, const attend_context &step, const cuda_attention &a,
                                    tile_source source, int base, const visible_range &first, const visible_range &last,
                                    int head, bool of_step) {
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31,
        capacity = a.drafter ? step.draft.capacity : step.view.capacity;
    size_t kv_dim = (size_t)a.kv_heads * D, column = (size_t)head * D;
    int base_slot = capacity ? base % capacity : base;
#pragma unroll 2
    for (int i = warp; i < KEYS; i += ATTEND_WARPS) {
        int slot = base_slot + i;
        if (capacity && slot >= capacity) slot = (base + i) % capacity;
        int p = base + i;
        if ((p >= step.position) != of_step) continue;
        const cuda_bf16 *v = nullptr, *k = nullptr;
        size_t row = 0;
        if (source == TILE_RESTORED) {
            if (p >= max(first.begin, first.sink) && p < last.evicted) {
                row = (size_t)(p - step.restored_begin);
                v = a.restored_v;
                k = a.restored_k;
            }
        } else if (p >= first.begin && p < last.end && (p >= first.evicted || p < first.sink)) {
            if (a.drafter) {
                bool block = p >= step.position;
                row = (size_t)(block ? step.first_row + p - step.position : slot);
                v = block ? a.chunk_v : step.draft.v;
                k = block ? a.chunk_k : step.draft.k;
            } else if (a.chunk_v && p >= step.position) {
                row = (size_t)(p - step.position);
                v = a.chunk_v;
                k = a.chunk_k;
            } else if (step.view.sink_v && p < step.sink) {
                row = (size_t)p;
                v = step.view.sink_v;
                k = step.view.sink_k;
            } else {
                row = (size_t)slot;
                v = step.view.v;
                k = step.view.k;
            }
        }
        bool wanted = v != nullptr;
        const cuda_bf16 *from_v = wanted ? v + row * kv_dim + column : a.q;
        const cuda_bf16 *from_k = k ? k + row * kv_dim + column : a.q;
        for (int c = lane; c < D / 8; c += 32) {
            copy_async(&m.v[i][c * 8], from_v + c * 8, wanted);
            if (!SPLIT && (k || !wanted)) copy_async(&m.k[i][c * 8], from_k + c * 8, wanted);
        }
    }
}

/* Keys of a K = V tile: all dimensions, or with SPLIT the turned ones. The angle of position base + key is the sum of
 * two: of the tile's base, made here, and of the key inside the tile, from a table. */
template <int D, bool SPLIT>
static __device__ void derive_keys(attend_memory<D, SPLIT> &m, const cuda_attention &a, int base, int turned) {
    const int half = D / 2;
    int columns = SPLIT ? turned : half;
    for (int j = threadIdx.x; j < a.pairs; j += ATTEND_THREADS) {
        float2 turn;
        sincosf((float)base * a.inverse_frequency[j], &turn.y, &turn.x);
        m.base_turn[j] = turn;
    }
    __syncthreads();
    int per_pass = ATTEND_THREADS / columns, j = threadIdx.x % columns;
    if (per_pass == 0) per_pass = 1;
    for (int c = j; c < columns; c += ATTEND_THREADS) {
        float norm_low = a.k_norm[c], norm_high = a.k_norm[c + half];
        float2 tile = c < a.pairs ? m.base_turn[c] : make_float2(1, 0);
#pragma unroll 4
        for (int key = threadIdx.x / columns; key < KEYS; key += per_pass) {
            if (key >= KEYS) break;
            float u = __bfloat162float(m.v[key][c]) * norm_low, w = __bfloat162float(m.v[key][c + half]) * norm_high;
            if (c < a.pairs) {
                float2 inside = __ldg(a.key_turns + key * a.pairs + c);
                float cosine = tile.x * inside.x - tile.y * inside.y, sine = tile.y * inside.x + tile.x * inside.y;
                float x = u, y = w;
                u = x * cosine - y * sine;
                w = y * cosine + x * sine;
            }
            m.k[key][c] = __float2bfloat16_rn(u);
            m.k[key][SPLIT ? turned + c : c + half] = __float2bfloat16_rn(w);
        }
    }
}

/* Scores of 16 queries with the 8 keys of this warp; two accumulators shorten the chain of dependent products. */
template <int D, bool SPLIT> static __device__ void compute_scores(attend_memory<D, SPLIT> &m, int turned) {
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    float s[2][4] = {};
    int key = warp * 8 + (lane & 7), offset = (lane >> 3 & 1) * 8, upper = lane >> 4;
    int query = (lane & 7) + (lane >> 3 & 1) * 8, query_offset = (lane >> 4) * 8;
#pragma unroll 4
    for (int c = 0; c < D / 16; c += 2) {
        uint32_t q[4], k[4];
        int mine = min(c + upper, D / 16 - 1), at = SPLIT ? key_column<D>(mine, turned) : mine * 16;
        load_matrices(k, SPLIT && at < 0 ? &m.v[key][mine * 16 + offset] : &m.k[key][at + offset]);
        load_matrices(q, &m.q[query][c * 16 + query_offset]);
        mma_bf16(s[0], q[0], q[1], q[2], q[3], k[0], k[1]);
        if (c + 1 >= D / 16) continue;
        load_matrices(q, &m.q[query][c * 16 + 16 + query_offset]);
        mma_bf16(s[1], q[0], q[1], q[2], q[3], k[2], k[3]);
    }
    int g = lane >> 2, column = warp * 8 + 2 * (lane & 3);
    *reinterpret_cast<float2 *>(&m.scores[g][column]) = make_float2(s[0][0] + s[1][0], s[0][1] + s[1][1]);
    *reinterpret_cast<float2 *>(&m.scores[g + 8][column]) = make_float2(s[0][2] + s[1][2], s[0][3] + s[1][3]);
}

enum { QUERY_THREADS = ATTEND_THREADS / QUERIES, QUERY_KEYS = KEYS / QUERY_THREADS };

/* QUERY_THREADS threads per query: mask, maximum, probabilities, sums. */
template <int D, bool SPLIT>
static __device__ void update_softmax(attend_memory<D, SPLIT> &m, tile_source source, int base,
                                      const visible_range &mine, bool valid) {
    int query = threadIdx.x / QUERY_THREADS, part = threadIdx.x % QUERY_THREADS;
    float s[QUERY_KEYS], top = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < QUERY_KEYS; i++) {
        int key = i * QUERY_THREADS + part;
        bool seen = valid && (source == TILE_EXACT ? sees_exactly(mine, base + key) : sees_restored(mine, base + key));
        s[i] = seen ? m.scores[query][key] : -INFINITY;
        top = fmaxf(top, s[i]);
    }
#pragma unroll
    for (int o = QUERY_THREADS / 2; o > 0; o >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, o));
    float before = m.top[query], now = fmaxf(before, top);
    float rescale = now == before ? 1.0f : expf(before - now);
#pragma unroll
    for (int i = 0; i < QUERY_KEYS; i++) {
        bf16 p = __float2bfloat16_rn(s[i] == -INFINITY ? 0.0f : expf(s[i] - now));
        m.p[query][i * QUERY_THREADS + part] = p;
        sum += __bfloat162float(p);
    }
#pragma unroll
    for (int o = QUERY_THREADS / 2; o > 0; o >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, o);
    __syncwarp();
    if (part == 0) {
        m.top[query] = now;
        m.sum[query] = m.sum[query] * rescale + sum;
        m.rescale[query] = rescale;
    }
}

template <int D> struct output_tiles {
    static const int COUNT = (D / 8 + ATTEND_WARPS - 1) / ATTEND_WARPS; /* n-tiles of 8 dimensions per warp */
};

template <int D, bool SPLIT>
static __device__ void accumulate_values(attend_memory<D, SPLIT> &m, float (&o)[output_tiles<D>::COUNT][4]) {
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2;
    float low = m.rescale[g], high = m.rescale[g + 8];
    int query = (lane & 7) + (lane >> 3 & 1) * 8, query_offset = (lane >> 4) * 8;
#pragma unroll
    for (int n = 0; n < output_tiles<D>::COUNT; n++) {
        o[n][0] *= low;
        o[n][1] *= low;
        o[n][2] *= high;
        o[n][3] *= high;
    }
#pragma unroll
    for (int k = 0; k < KEYS; k += 32) {
        uint32_t p0[4], p1[4];
        load_matrices(p0, &m.p[query][k + query_offset]);
        load_matrices(p1, &m.p[query][k + 16 + query_offset]);
#pragma unroll
        for (int n = 0; n < output_tiles<D>::COUNT; n++) {
            int tile = warp * output_tiles<D>::COUNT + n;
            if (tile >= D / 8) break;
            uint32_t v[4];
            load_matrices_transposed(v, &m.v[k + lane][tile * 8]);
            mma_bf16(o[n], p0[0], p0[1], p0[2], p0[3], v[0], v[1]);
            mma_bf16(o[n], p1[0], p1[1], p1[2], p1[3], v[2], v[3]);
        }
    }
}

template <int D, bool SPLIT>
static __device__ void load_queries(attend_memory<D, SPLIT> &m, const cuda_attention &a, int first_row, int first_query,
                                    int queries, int head, int turned) {
    int group = a.heads / a.kv_heads;
    for (int i = threadIdx.x; i < QUERIES * (D / 8); i += ATTEND_THREADS) {
        int query = i / (D / 8), c = i % (D / 8), index = first_query + query;
        uint4 value = make_uint4(0, 0, 0, 0);
        if (index < queries) {
            size_t at = ((size_t)(first_row + index / group) * a.heads + head * group + index % group) * D + c * 8;
            value = __ldcg(reinterpret_cast<const uint4 *>(a.q + at));
        }
        if (SPLIT && key_column<D>(c / 2, turned) < 0) {
            bf16 *x = reinterpret_cast<bf16 *>(&value);
#pragma unroll
            for (int j = 0; j < 8; j++) x[j] = __float2bfloat16_rn(__bfloat162float(x[j]) * a.k_norm[c * 8 + j]);
        }
        *reinterpret_cast<uint4 *>(&m.q[query][c * 8]) = value;
    }
    if (threadIdx.x < QUERIES) {
        m.top[threadIdx.x] = -INFINITY;
        m.sum[threadIdx.x] = 0;
    }
}

template <int D, bool SPLIT>
static __global__ __launch_bounds__(ATTEND_THREADS,
                                    D <= 128   ? 3
                                    : D <= 256 ? 2
                                               : 1) void attend_kernel(const cuda_batch *batch,
                                                                       const __grid_constant__ cuda_attention a,
                                                                       int tiles) {
    extern __shared__ __align__(16) unsigned char memory[];
    attend_memory<D, SPLIT> &m = *reinterpret_cast<attend_memory<D, SPLIT> *>(memory);
    int head = blockIdx.y, group = a.heads / a.kv_heads, first_query = (int)blockIdx.z % tiles * QUERIES;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    /* Written before the step's first kernel. */
    const attend_context step = load_context(&batch->step[blockIdx.z / tiles], a);
    int queries = step.rows * group;
    if (first_query >= queries || (int)blockIdx.x >= step.partitions) return;
    int last_query = min(first_query + QUERIES, queries) - 1;
    visible_range first = visible(step, a, first_query / group), last = visible(step, a, last_query / group);
    int turned = turned_columns(a.pairs);
    int begin = 0, end = INT_MAX;
    tile_source only = TILE_BOTH;
    if (!a.final) only = partition_range(a, visible(step, a, 0), step.sink, blockIdx.x, &begin, &end);
    begin = max(begin, first.begin);
    end = min(end, last.end);
    int my_query = first_query + (int)threadIdx.x / QUERY_THREADS;
    bool valid = my_query < queries, begun = false;
    visible_range mine = visible(step, a, min(my_query, queries - 1) / group);
    float o[output_tiles<D>::COUNT][4] = {};
    for (int base = begin / KEYS * KEYS; base < end; base += KEYS) {
        int from = max(base, begin), to = min(base + KEYS, end);
        bool exact = to > first.evicted || from < first.sink;
        bool restored = a.restored_k && max(from, first.sink) < min(to, last.evicted);
        for (int pass = 0; pass < 2; pass++) {
            tile_source source = pass ? TILE_RESTORED : TILE_EXACT;
            if (!(pass ? restored : exact) || (only != TILE_BOTH && only != source)) continue;
            if (begun) __syncthreads();
            /* What earlier steps stored is there before the predecessor has ended. */
            for (int of_step = 0; of_step < 2; of_step++) {
                if (of_step) wait_for_predecessor();
                if (!of_step || base + KEYS > step.position)
                    request_tile<D, SPLIT>(m, step, a, source, base, first, last, head, of_step);
            }
            if (!begun) load_queries<D, SPLIT>(m, a, step.first_row, first_query, queries, head, turned);
            begun = true;
            wait_for_copies();
            __syncthreads();
            if (source == TILE_EXACT && !a.drafter && !step.view.k) {
                derive_keys<D, SPLIT>(m, a, base, turned);
                __syncthreads();
            }
            compute_scores<D, SPLIT>(m, turned);
            __syncthreads();
            update_softmax<D, SPLIT>(m, source, base, mine, valid);
            __syncthreads();
            accumulate_values<D, SPLIT>(m, o);
        }
    }
    wait_for_predecessor(); /* blocks without keys too, before they write */
    __syncthreads();
#pragma unroll
    for (int n = 0; n < output_tiles<D>::COUNT; n++) {
        int tile = warp * output_tiles<D>::COUNT + n;
        if (tile >= D / 8) break;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int query = g + half * 8, index = first_query + query;
            if (index >= queries || !begun) continue;
            size_t row = (size_t)(index / group), column = (size_t)head * group + index % group;
            int d = tile * 8 + 2 * t;
            if (a.final) {
                float inverse = 1.0f / m.sum[query];
                bf16 *out = as_bf16(a.out) + (step.first_row + row) * a.ldo + column * D + d;
                out[0] = __float2bfloat16_rn(o[n][half * 2] * inverse);
                out[1] = __float2bfloat16_rn(o[n][half * 2 + 1] * inverse);
            } else {
                size_t cell = step.first_cell + (row * a.heads + column) * step.partitions + blockIdx.x;
                float *out = a.partial + cell * D + d;
                *reinterpret_cast<float2 *>(out) = make_float2(o[n][half * 2], o[n][half * 2 + 1]);
            }
        }
    }
    if (!a.final && threadIdx.x < QUERIES && first_query + (int)threadIdx.x < queries) {
        int index = first_query + threadIdx.x;
        size_t row = (size_t)(index / group) * a.heads + head * group + index % group;
        a.state[step.first_cell + row * step.partitions + blockIdx.x] =
            make_float2(begun ? m.top[threadIdx.x] : -INFINITY, begun ? m.sum[threadIdx.x] : 0);
    }
}

/* ---------------------------------------------------------------------------------------------------------- merge */

enum { MERGE_THREADS = 128, MERGE_AHEAD = 40 /* partitions whose values are requested with their states */ };

/* Partitions that hold keys when a step of `rows` rows ends at position `end` (exclusive). */
static __host__ __device__ int partitions_until(int sliding_window, int rows, int end) {
    if (sliding_window) return (sliding_window + rows - 2) / KEYS + 2;
    if (end <= FINE_END) return (end + FINE_KEYS - 1) / FINE_KEYS;
    return FINE_END / FINE_KEYS + (end - FINE_END + COARSE_KEYS - 1) / COARSE_KEYS;
}

static __global__ __launch_bounds__(MERGE_THREADS) void merge_kernel(const cuda_batch *batch,
                                                                     const __grid_constant__ cuda_attention a) {
    extern __shared__ float2 weight[]; /* [partitions]: of values, times their sums */
    __shared__ float shared[MERGE_THREADS / 32];
    int head = blockIdx.x % a.heads, row = blockIdx.x / a.heads, d = blockIdx.y * MERGE_THREADS + threadIdx.x;
    int used = a.partitions;
    size_t at = (size_t)blockIdx.x * used;
    if (!a.sliding_window && !a.drafter) { /* see find_cells; written before the step's first kernel */
        int sources = partition_sources(a);
        used = sources * __ldcg(&batch->row[row].partitions);
        at = (size_t)sources * __ldcg(&batch->row[row].first_partition) * a.heads + (size_t)head * used;
    }
    const float2 *state = a.state + at;
    const float *partial = a.partial + at * a.head_dim + min(d, a.head_dim - 1);
    release_successor();
    wait_for_predecessor();
    /* Values of partitions without a visible key were never written: they are loaded, and then left out. */
    float2 mine = (int)threadIdx.x < used ? __ldcg(state + threadIdx.x) : make_float2(-INFINITY, 0);
    float ahead[MERGE_AHEAD], top = mine.x;
#pragma unroll
    for (int i = 0; i < MERGE_AHEAD; i++) ahead[i] = i < used ? __ldcg(partial + (size_t)i * a.head_dim) : 0;
    for (int i = threadIdx.x + MERGE_THREADS; i < used; i += MERGE_THREADS) top = fmaxf(top, __ldcg(state + i).x);
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, o));
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = top;
    __syncthreads();
    for (int w = 0; w < MERGE_THREADS / 32; w++) top = fmaxf(top, shared[w]);
    for (int i = threadIdx.x; i < used; i += MERGE_THREADS) {
        float2 s = i < MERGE_THREADS ? mine : __ldcg(state + i);
        float w = s.y > 0 ? expf(s.x - top) : 0;
        weight[i] = make_float2(w, w * s.y);
    }
    __syncthreads();
    if (d >= a.head_dim) return;
    /* In ascending order, for where a partition stands among those of a step depends on the step's first row. */
    float out = 0, sum = 0;
#pragma unroll
    for (int i = 0; i < MERGE_AHEAD; i++) {
        if (i >= used || weight[i].x == 0) continue;
        out += weight[i].x * ahead[i];
        sum += weight[i].y;
    }
#pragma unroll 16
    for (int i = MERGE_AHEAD; i < used; i++) {
        float value = __ldcg(partial + (size_t)i * a.head_dim);
        if (weight[i].x == 0) continue;
        out += weight[i].x * value;
        sum += weight[i].y;
    }
    as_bf16(a.out)[(size_t)row * a.ldo + (size_t)head * a.head_dim + d] = __float2bfloat16_rn(out / sum);
}

int cuda_attention_partitions(int sliding_window, int rows, int end) {
    return partitions_until(sliding_window, rows, end);
}

/* Tiles that so many neighbouring positions can touch. */
static int most_tiles(int positions) { return positions > 0 ? (positions - 2 + KEYS) / KEYS + 1 : 0; }

int cuda_attention_restored_partitions(int sliding_window, int window, int rows) {
    return window < sliding_window ? most_tiles(sliding_window - window + rows - 1) : 0;
}

int cuda_attention_exact_partitions(int sliding_window, int sink, int window, int rows) {
    int all = partitions_until(sliding_window, rows, 0), bounded = ceil_div(sink, KEYS) + most_tiles(window + rows - 1);
    return bounded < all ? bounded : all;
}

template <int D, bool SPLIT>
static void launch_attend(const cuda_launch *l, const cuda_batch *batch, const cuda_attention *a, int rows) {
    size_t bytes = sizeof(attend_memory<D, SPLIT>);
    int tiles = ceil_div(a->segment_rows * (a->heads / a->kv_heads), QUERIES);
    launch_kernel(l, attend_kernel<D, SPLIT>, dim3(a->final ? 1 : a->partitions, a->kv_heads, tiles * a->segments),
                  dim3(ATTEND_THREADS), bytes, batch, *a, tiles);
    if (a->final) return;
    launch_kernel(l, merge_kernel, dim3(rows * a->heads, ceil_div(D, MERGE_THREADS)), dim3(MERGE_THREADS),
                  (size_t)a->partitions * sizeof(float2), batch, *a);
}

template <int D>
static void launch_split(const cuda_launch *l, const cuda_batch *batch, const cuda_attention *a, int rows) {
    bool split = a->k_norm && !a->restored_k && turned_columns(a->pairs) * 8 <= D;
    if (split)
        launch_attend<D, true>(l, batch, a, rows);
    else
        launch_attend<D, false>(l, batch, a, rows);
}

void cuda_attend(const cuda_launch *l, const cuda_batch *batch, const cuda_attention *a, int rows) {
    switch (a->head_dim) {
    case 16:
        launch_split<16>(l, batch, a, rows);
        break;
    case 32:
        launch_split<32>(l, batch, a, rows);
        break;
    case 64:
        launch_split<64>(l, batch, a, rows);
        break;
    case 128:
        launch_split<128>(l, batch, a, rows);
        break;
    case 256:
        launch_split<256>(l, batch, a, rows);
        break;
    case 512:
        launch_split<512>(l, batch, a, rows);
        break;
    default:
        break; /* model.c refuses other dimensions */
    }
}

template <int D> static cudaError_t allow_shared_memory(void) {
    cudaError_t status = cudaFuncSetAttribute(attend_kernel<D, true>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                              (int)sizeof(attend_memory<D, true>));
    if (status != cudaSuccess) return status;
    return cudaFuncSetAttribute(attend_kernel<D, false>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)sizeof(attend_memory<D, false>));
}

cudaError_t cuda_attention_prepare(int head_dim) {
    switch (head_dim) {
    case 16:
        return allow_shared_memory<16>();
    case 32:
        return allow_shared_memory<32>();
    case 64:
        return allow_shared_memory<64>();
    case 128:
        return allow_shared_memory<128>();
    case 256:
        return allow_shared_memory<256>();
    case 512:
        return allow_shared_memory<512>();
    default:
        return cudaErrorInvalidValue;
    }
}
