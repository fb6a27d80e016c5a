/* Attention of few rows over long caches: split-K/V flash decoding, one thread block for each partition of 16 queries
 * of one K/V head. Bound: one read of the K/V. */
#include "backend/cuda/attention.cuh"
#include "backend/cuda/attention_ahead.h"

/* A warp has a vector; NULL: zeros. */
template <int D>
static __device__ __forceinline__ void load_codes(bf16 *to, float *scale, const unsigned char *vector, int lane) {
    if (lane == 0) *scale = vector ? kv_codes_scale(vector) : 1.0f;
    for (int c = lane; c < D / 4; c += 32)
        *reinterpret_cast<uint2 *>(to + c * 4) = bf16_of_codes(vector ? kv_codes_four(vector, c) : 0);
}

/* Exact K/V in 4 bits. Only layers that grow are kept so: no rings. */
template <int D, bool SPLIT>
static __device__ __forceinline__ void load_q4_tile(attend_memory<D, SPLIT> &m, const attend_context &step,
                                                    const cuda_attention &a, int base, const visible_range &first,
                                                    const visible_range &last, int head, bool of_step) {
    const cuda_layer_view &view = step.view;
    auto of_head = [&](const cuda_bf16 *rows) { return kv_codes_of(rows, 0, a.kv_heads, head, kv_q4_form<D>::BYTES); };
    kv_q4_rows r = {.rows = of_head(view.v),
                    .sinks = of_head(view.sink_v),
                    .stride = a.kv_heads * kv_q4_form<D>::BYTES,
                    .base = base,
                    .from = of_step ? step.position : base,
                    .to = of_step ? INT_MAX : step.position,
                    .begin = first.begin,
                    .end = last.end,
                    .sink = first.sink,
                    .evicted = first.evicted,
                    .in_sink = view.sink_v ? step.sink : 0};
    kv_q4_load_rows<D, D + PAD, KEYS, ATTEND_WARPS>(m.v[0], r, threadIdx.x >> 5);
    if constexpr (!SPLIT) {
        if (a.k_norm) return;
        r.rows = of_head(view.k);
        r.sinks = of_head(view.sink_k);
        kv_q4_load_rows<D, D + PAD, KEYS, ATTEND_WARPS>(m.k[0], r, threadIdx.x >> 5);
    }
}

template <int D, bool SPLIT, bool Q4>
static __device__ void request_tile(attend_memory<D, SPLIT> &m, const attend_context &step, const cuda_attention &a,
                                    tile_source source, int base, const visible_range &first, const visible_range &last,
                                    int head, bool of_step) {
    if constexpr (Q4) {
        if (source == TILE_EXACT) {
            load_q4_tile<D, SPLIT>(m, step, a, base, first, last, head, of_step);
            return;
        }
    }
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
                row = (size_t)(step.first_row + p - step.position);
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
        if (!Q4 && a.codes && source == TILE_EXACT) {
            load_codes<D>(m.v[i], &m.scale_v[i], v ? kv_codes_of(v, row, a.kv_heads, head, kv_codes_bytes(D)) : nullptr,
                          lane);
            if (!SPLIT && !a.k_norm)
                load_codes<D>(m.k[i], &m.scale_k[i],
                              k ? kv_codes_of(k, row, a.kv_heads, head, kv_codes_bytes(D)) : nullptr, lane);
            continue;
        }
        if (!Q4 && a.codes && lane == 0) m.scale_v[i] = m.scale_k[i] = 1;
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
    for (int j = threadIdx.x; j < a.pairs; j += ATTEND_THREADS)
        m.base_turn[j] = turn_of_tile(base, a.inverse_frequency[j]);
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
                float2 turned_pair = turn_key(u, w, tile, inside);
                u = turned_pair.x;
                w = turned_pair.y;
            }
            m.k[key][c] = __float2bfloat16_rn(u);
            m.k[key][SPLIT ? turned + c : c + half] = __float2bfloat16_rn(w);
        }
    }
}

static_assert(ATTEND_THREADS == QUERIES * QUERY_THREADS, "all threads share the softmax of a tile");

template <int D, bool SPLIT, bool Q4>
static __device__ void update_softmax(attend_memory<D, SPLIT> &m, const cuda_attention &a, tile_source source, int base,
                                      const visible_range &mine, bool valid) {
    int query = threadIdx.x / QUERY_THREADS;
    bool codes = !Q4 && a.codes;
    const float *scales = a.k_norm ? m.scale_v : m.scale_k;
    auto score = [&](int key) {
        bool seen = valid && (source == TILE_EXACT ? sees_exactly(mine, base + key) : sees_restored(mine, base + key));
        return !seen ? -INFINITY : codes ? m.scores[query][key] * scales[key] : m.scores[query][key];
    };
    query_state state =
        soften(m.top[query], m.sum[query], score, m.p[query], codes, [&](int key) { return m.scale_v[key]; });
    __syncwarp();
    if (threadIdx.x % QUERY_THREADS == 0) {
        m.top[query] = state.top;
        m.sum[query] = state.sum;
        m.rescale[query] = state.rescale;
    }
}

template <int D, bool SPLIT>
static __device__ void accumulate_values(attend_memory<D, SPLIT> &m, float (&o)[output_tiles<D>::COUNT][4]) {
    int g = (threadIdx.x & 31) >> 2;
    add_tile<D>(o, m.v[0], m.p[0], m.rescale[g], m.rescale[g + 8], ((int)threadIdx.x >> 5) * output_tiles<D>::COUNT);
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
        if (SPLIT && key_column<D>(c / 2, turned) < 0) value = scale_query(value, a.k_norm + c * 8);
        *reinterpret_cast<uint4 *>(&m.q[query][c * 8]) = value;
    }
    if (threadIdx.x < QUERIES) {
        m.top[threadIdx.x] = -INFINITY;
        m.sum[threadIdx.x] = 0;
    }
}

/* Rows of a picture see its end (attention_ahead.h). */
static __device__ __forceinline__ visible_range visible_ahead(const attend_context &step, const cuda_attention &a,
                                                              const int32_t *sight, int token) {
    visible_range r = visible(step, a, token);
    if (sight) r.end = max(r.end, __ldcg(sight + step.first_row + token));
    return r;
}

template <int D, bool SPLIT, bool Q4>
static __global__ __launch_bounds__(ATTEND_THREADS,
                                    D <= 128   ? 3
                                    : D <= 256 ? 2
                                               : 1) void attend_kernel(const cuda_batch *batch,
                                                                       const __grid_constant__ cuda_attention a,
                                                                       int tiles, const int32_t *sight) {
    extern __shared__ __align__(16) unsigned char memory[];
    attend_memory<D, SPLIT> &m = *reinterpret_cast<attend_memory<D, SPLIT> *>(memory);
    int head = blockIdx.y, group = a.heads / a.kv_heads, first_query = (int)blockIdx.z % tiles * QUERIES;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    /* Written before the step's first kernel. */
    const attend_context step = load_context(&batch->step[blockIdx.z / tiles], a);
    int queries = step.rows * group;
    if (first_query >= queries || (int)blockIdx.x >= step.partitions) return;
    int last_query = min(first_query + QUERIES, queries) - 1;
    visible_range first = visible_ahead(step, a, sight, first_query / group),
                  last = visible_ahead(step, a, sight, last_query / group);
    int turned = turned_columns(a.pairs);
    int begin = 0, end = INT_MAX;
    tile_source only = TILE_BOTH;
    if (!a.final) only = partition_range(a, visible(step, a, 0), step.sink, blockIdx.x, &begin, &end);
    begin = max(begin, first.begin);
    end = min(end, last.end);
    int my_query = first_query + (int)threadIdx.x / QUERY_THREADS;
    bool valid = my_query < queries, begun = false;
    visible_range mine = visible_ahead(step, a, sight, min(my_query, queries - 1) / group);
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
                    request_tile<D, SPLIT, Q4>(m, step, a, source, base, first, last, head, of_step);
            }
            if (!begun) load_queries<D, SPLIT>(m, a, step.first_row, first_query, queries, head, turned);
            begun = true;
            wait_for_copies();
            __syncthreads();
            if (source == TILE_EXACT && !a.drafter && !step.view.k) {
                derive_keys<D, SPLIT>(m, a, base, turned);
                __syncthreads();
            }
            score_keys<D, SPLIT>(m.v[0], m.k[0], m.q[0], m.scores, warp, turned);
            __syncthreads();
            update_softmax<D, SPLIT, Q4>(m, a, source, base, mine, valid);
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

/* By a kernel whose blocks are dealt units of a list of segments. False: none takes it, and then none takes any part of
 * it, since the number of segments is rounded up to a power of two. */
static bool attend_listed(const cuda_launch *l, const cuda_batch *batch, const cuda_attention *a) {
    const int most = cuda_attend_runs_segments(a);
    cuda_attention some = *a;
    some.segments = a->segments < most ? a->segments : most;
    for (; some.first_segment < a->segments; some.first_segment += most) {
        if (!cuda_attend_wide(l, batch, &some) && !cuda_attend_codes(l, batch, &some) &&
            !cuda_attend_runs(l, batch, &some))
            return false;
    }
    return true;
}

template <int D, bool SPLIT>
static void launch_attend(const cuda_launch *l, const cuda_batch *batch, const cuda_attention *a, const int32_t *sight,
                          int rows) {
    size_t bytes = sizeof(attend_memory<D, SPLIT>);
    if (attend_listed(l, batch, a)) {
        cuda_merge_partitions(l, batch, a, rows);
        return;
    }
    int tiles = ceil_div(a->segment_rows * (a->heads / a->kv_heads), QUERIES);
    launch_kernel(l, a->codes == CUDA_KV_Q4 ? attend_kernel<D, SPLIT, true> : attend_kernel<D, SPLIT, false>,
                  dim3(a->final ? 1 : a->partitions, a->kv_heads, tiles * a->segments), dim3(ATTEND_THREADS), bytes,
                  batch, *a, tiles, sight);
    if (!a->final) cuda_merge_partitions(l, batch, a, rows);
}

template <int D>
static void launch_split(const cuda_launch *l, const cuda_batch *batch, const cuda_attention *a, const int32_t *sight,
                         int rows) {
    bool split = a->k_norm && !a->restored_k && turned_columns(a->pairs) * 8 <= D;
    if (split)
        launch_attend<D, true>(l, batch, a, sight, rows);
    else
        launch_attend<D, false>(l, batch, a, sight, rows);
}

void cuda_attend(const cuda_launch *l, const cuda_batch *batch, const cuda_attention *a, int rows) {
    cuda_attend_ahead(l, batch, a, nullptr, rows);
}

void cuda_attend_ahead(const cuda_launch *l, const cuda_batch *batch, const cuda_attention *a, const int32_t *sight,
                       int rows) {
    switch (a->head_dim) {
    case 16:
        launch_split<16>(l, batch, a, sight, rows);
        break;
    case 32:
        launch_split<32>(l, batch, a, sight, rows);
        break;
    case 64:
        launch_split<64>(l, batch, a, sight, rows);
        break;
    case 128:
        launch_split<128>(l, batch, a, sight, rows);
        break;
    case 256:
        launch_split<256>(l, batch, a, sight, rows);
        break;
    case 512:
        launch_split<512>(l, batch, a, sight, rows);
        break;
    default:
        break; /* model.c refuses other dimensions */
    }
}

template <int D, bool SPLIT, bool Q4> static cudaError_t allow_kernel(void) {
    return cudaFuncSetAttribute(attend_kernel<D, SPLIT, Q4>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)sizeof(attend_memory<D, SPLIT>));
}

template <int D> static cudaError_t allow_shared_memory(void) {
    cudaError_t status = allow_kernel<D, true, false>();
    if (status == cudaSuccess) status = allow_kernel<D, false, false>();
    if (status == cudaSuccess) status = allow_kernel<D, true, true>();
    return status == cudaSuccess ? allow_kernel<D, false, true>() : status;
}

cudaError_t cuda_attention_prepare(int head_dim) {
    cudaError_t status = cuda_attend_runs_prepare(head_dim);
    if (status == cudaSuccess) status = cuda_attend_row_prepare(head_dim);
    if (status == cudaSuccess) status = cuda_attend_wide_prepare(head_dim);
    if (status == cudaSuccess) status = cuda_attend_codes_prepare(head_dim);
    if (status != cudaSuccess) return status;
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
