/* Attention of one row alone, and the norms of its heads. The partitions of a K/V head are a cluster of thread blocks:
 * each writes its part of the result to where the others merge it, in shared memory. Bound: latency. */
#include "backend/cuda/attention.cuh"
#include "backend/cuda/cluster.cuh"
#include "backend/cuda/heads.cuh"

enum { MOST_BLOCKS = 16, FEWEST_BLOCKS = 4, MOST_PARTS = MOST_BLOCKS + 1, ROW_THREADS = 256, FULL_THREADS = 512 };

/* Code that runs once is fetched for that, and fetching is what takes the time here. So what does not depend on the
 * product is computed before the wait for it, addresses too, and loops stay loops. */

/* What the blocks of a cluster tell each other: [partition][query] states, and [partition][query][the dimensions that
 * this block merges]. */
template <int VALUES, int QUERY_COUNT> struct row_results {
    float2 state[MOST_PARTS * QUERY_COUNT];
    float value[VALUES];
};

/* Where dimension d of a cell goes. */
template <class RESULTS>
static __device__ __forceinline__ uint32_t place_of_value(RESULTS &r, int cell, int slice_bits, int d) {
    return shared_of_block(r.value + (cell << slice_bits) + (d & ((1 << slice_bits) - 1)), d >> slice_bits);
}

/* As merge_kernel does it, a warp for a query. out: of the first query, the first dimension of this block. */
template <int D, class RESULTS>
static __device__ __forceinline__ void merge_parts(RESULTS &r, int parts, int queries, int slice_bits, bf16 *out) {
    int query = threadIdx.x >> 5, lane = threadIdx.x & 31;
    if (query >= queries) return;
    float2 state = lane < parts ? r.state[lane * queries + query] : make_float2(-INFINITY, 0);
    float top = state.x;
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, o));
    float weight = state.y > 0 ? expf(state.x - top) : 0, weighed = __fmul_rn(weight, state.y);
#pragma unroll 1
    for (int first = 0; first < 1 << slice_bits; first += 32) {
        int d = first + lane, slice = 1 << slice_bits;
        const float *value = r.value + (query << slice_bits) + min(d, slice - 1);
        float sum = 0, total = 0;
#pragma unroll 4
        for (int part = 0; part < parts; part++) {
            float w = __shfl_sync(0xffffffffu, weight, part), s = __shfl_sync(0xffffffffu, weighed, part);
            float mine = value[(part * queries) << slice_bits];
            if (w != 0) {
                sum = __fmaf_rn(w, mine, sum);
                total = __fadd_rn(total, s);
            }
        }
        if (d < slice) out[query * D + d] = __float2bfloat16_rn(sum / total);
    }
}

/* A head of the row that a warp makes; what it needs is loaded before the product has ended. PAIRS: that RoPE turns. */
template <int D, int PAIRS> struct row_head {
    static const int PER_LANE = D / 32, TURNED = (PAIRS + 31) / 32;
    float weight[PER_LANE], v[PER_LANE];
    float2 turn[TURNED];
    const float *source;

    __device__ __forceinline__ void prepare(const cuda_heads &h, const float *from, const float *norm) {
        source = from + (threadIdx.x & 31);
        load_head_norm(weight, norm, D);
#pragma unroll
        for (int e = 0; e < TURNED; e++) turn[e] = __ldcg(h.turns + min(e * 32 + (int)(threadIdx.x & 31), PAIRS - 1));
    }
    __device__ __forceinline__ void make(const cuda_heads &h, bool normed, bool turned) {
#pragma unroll
        for (int e = 0; e < PER_LANE; e++) v[e] = __ldcg(source + e * 32);
        norm_head(v, weight, normed, D, h.eps);
        if (!turned) return;
#pragma unroll
        for (int e = 0; e < TURNED; e++) { /* as turn_head */
            if (PAIRS % 32 && e * 32 + (int)(threadIdx.x & 31) >= PAIRS) continue;
            float low = v[e], high = v[e + PER_LANE / 2];
            v[e] = __fmaf_rn(low, turn[e].x, -__fmul_rn(high, turn[e].y));
            v[e + PER_LANE / 2] = __fmaf_rn(high, turn[e].x, __fmul_rn(low, turn[e].y));
        }
    }
};

/* Where a new key or value goes in the cache. */
struct new_place {
    bf16 *row, *sink;
};
static __device__ __forceinline__ new_place place_new(const attend_context &step, cuda_bf16 *rows, cuda_bf16 *sinks,
                                                      int kv_dim, int column) {
    bool in_sink = step.view.sink_v && step.position < step.sink;
    return {as_bf16(rows) + store_row(step.view, step.position) * kv_dim + column,
            in_sink ? as_bf16(sinks) + (size_t)step.position * kv_dim + column : nullptr};
}

template <int D, int PAIRS>
static __device__ __forceinline__ void store_new(const row_head<D, PAIRS> &r, bf16 *tile, const new_place &to) {
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int e = 0; e < D / 32; e++) tile[e * 32 + lane] = to.row[e * 32] = __float2bfloat16_rn(r.v[e]);
    if (!to.sink) return;
    __syncwarp();
#pragma unroll 1
    for (int e = 0; e < D / 32; e++) to.sink[e * 32] = tile[e * 32 + lane];
}

/* Where an older position's key and value lie: a row, of the sink with SINK_ROW; -1: it is not seen. */
enum { SINK_ROW = 1 << 30 };
static __device__ __forceinline__ int find_row(const attend_context &step, const visible_range &seen, int p) {
    if (p >= step.position || !sees_exactly(seen, p)) return -1;
    if (step.view.sink_v && p < step.sink) return p | SINK_ROW;
    return (int)store_row(step.view, p);
}

static __device__ __forceinline__ const bf16 *row_at(const cuda_bf16 *rows, const cuda_bf16 *sinks, int at,
                                                     int kv_dim) {
    return as_bf16(at & SINK_ROW ? sinks : rows) + (size_t)(at & (SINK_ROW - 1)) * kv_dim;
}

/* ------------------------------------------------------------------------------------------------- sliding layers */

enum { SLIDING_QUERIES = 4 };

/* Block i of a cluster has the i-th tile of the window; the last tile, which has the places in the first that the
 * window has left, lies in the first block, where its queries are rows of their own. */
template <int D> struct sliding_memory {
    attend_memory<D, false> tile;
    row_results<SLIDING_QUERIES * D *(FEWEST_BLOCKS + 1) / FEWEST_BLOCKS, SLIDING_QUERIES> results;
};

template <int D>
static __global__ __launch_bounds__(ROW_THREADS, 2) void attend_row_kernel(const cuda_batch *batch,
                                                                           const __grid_constant__ cuda_attention a,
                                                                           const __grid_constant__ cuda_heads h) {
    extern __shared__ __align__(16) unsigned char memory[];
    sliding_memory<D> &all = *reinterpret_cast<sliding_memory<D> *>(memory);
    attend_memory<D, false> &m = all.tile;
    int blocks = gridDim.x, rank = blockIdx.x, head = blockIdx.y, group = a.heads / a.kv_heads;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, window = a.sliding_window, tiles = window / KEYS;
    cluster_arrive_first();
    const attend_context step = load_context(&batch->step[0], a);
    visible_range seen = visible_of_row(step.position, window, step.view.bounded, step.sink, step.window);
    int base = (seen.begin / KEYS + rank) * KEYS, queries = rank ? group : 2 * group, kv_dim = a.kv_heads * D;
    bool works = rank < tiles && base <= step.position;
    int made = step.position - base; /* the place of the row's own key, if this block has it */
    if (rank == 0 && made >= window) made -= window;
    if (!works || made >= KEYS) made = -1;
    if (works) {
        int p = base + warp + (lane & 7) * 8;
        if (rank == 0 && p < seen.begin) p += window;
        int places = find_row(step, seen, p);
#pragma unroll 2
        for (int j = 0; j < KEYS / 8; j++) {
            int i = warp + j * 8, at = __shfl_sync(0xffffffffu, places, j), column = head * D + lane * 8;
            if (i == made || lane >= D / 8) continue;
            copy_async(&m.v[i][lane * 8], row_at(step.view.v, step.view.sink_v, max(at, 0), kv_dim) + column, at >= 0);
            copy_async(&m.k[i][lane * 8], row_at(step.view.k, step.view.sink_k, max(at, 0), kv_dim) + column, at >= 0);
        }
        for (int i = threadIdx.x; i < (QUERIES - queries) * (D / 8); i += ROW_THREADS)
            *reinterpret_cast<uint4 *>(&m.q[queries + i / (D / 8)][i % (D / 8) * 8]) = make_uint4(0, 0, 0, 0);
    }
    int unit = works && warp < group + (made >= 0 ? 2 : 0) ? warp : -1; /* queries, key, value */
    row_head<D, D / 2> mine;
    bool is_query = unit < group, is_key = unit == group;
    new_place to = {};
    if (unit >= 0) {
        mine.prepare(h, is_query ? h.q + (size_t)(head * group + unit) * D : (is_key ? h.k : h.v) + (size_t)head * D,
                     is_query ? h.q_norm
                     : is_key ? h.k_norm
                              : nullptr);
        if (!is_query)
            to = place_new(step, is_key ? step.view.k : step.view.v, is_key ? step.view.sink_k : step.view.sink_v,
                           kv_dim, head * D + lane);
    }
    int query = threadIdx.x / QUERY_THREADS, slice_bits = __ffs(D / blocks) - 1;
    uint32_t visible_keys = 0, values_at[output_tiles<D>::COUNT], state_at = 0;
#pragma unroll
    for (int i = 0; i < QUERY_KEYS; i++) {
        int p = base + i * QUERY_THREADS + (int)(threadIdx.x % QUERY_THREADS) + (query < group ? 0 : window);
        if (query < queries && sees_exactly(seen, p)) visible_keys |= 1u << i;
    }
    auto cell_of = [&](int row) { return row < group ? rank * group + row : tiles * group + row - group; };
#pragma unroll
    for (int n = 0; n < output_tiles<D>::COUNT; n++)
        values_at[n] = place_of_value(all.results, cell_of(lane >> 2), slice_bits,
                                      min((warp * output_tiles<D>::COUNT + n) * 8, D - 8) + 2 * (lane & 3));
    int state_row = threadIdx.x / MOST_BLOCKS, state_to = threadIdx.x % MOST_BLOCKS;
    bool tells = state_row < queries && state_to < blocks && rank < tiles;
    if (tells) state_at = shared_of_block(all.results.state + cell_of(state_row), state_to);
    bf16 *out = as_bf16(a.out) + (size_t)head * group * D + (rank << slice_bits);
    wait_for_predecessor();
    if (unit >= 0) {
        mine.make(h, unit <= group || h.norm_v, unit <= group);
        if (is_query) {
#pragma unroll
            for (int e = 0; e < D / 32; e++) {
                bf16 value = __float2bfloat16_rn(__fmul_rn(mine.v[e], h.q_scale));
                m.q[unit][e * 32 + lane] = value;
                if (rank == 0) m.q[group + unit][e * 32 + lane] = value;
            }
        } else {
            store_new(mine, (is_key ? m.k : m.v)[made], to);
        }
    }
    float o[output_tiles<D>::COUNT][4] = {};
    float2 told = make_float2(-INFINITY, 0);
    if (works) {
        wait_for_copies();
        __syncthreads();
        score_keys<D, false>(m.v[0], m.k[0], m.q[0], m.scores, warp, 0);
        __syncthreads();
        auto score = [&](int key) {
            return visible_keys >> key / QUERY_THREADS & 1 ? m.scores[query][key] : -INFINITY;
        };
        query_state state = soften(-INFINITY, 0, score, m.p[query], false, [](int) { return 1.0f; });
        told = make_float2(state.top, state.sum); /* state_row is the query, of all 16 threads */
        __syncthreads();
        add_tile<D>(o, m.v[0], m.p[0], 1, 1, warp * output_tiles<D>::COUNT);
    }
    release_successor();
    cluster_wait(); /* all of its blocks run */
    if (works && lane >> 2 < queries) {
#pragma unroll
        for (int n = 0; n < output_tiles<D>::COUNT; n++)
            if (warp * output_tiles<D>::COUNT + n < D / 8) store_in_block(values_at[n], make_float2(o[n][0], o[n][1]));
    }
    if (tells) store_in_block(state_at, told);
    cluster_arrive();
    cluster_wait();
    merge_parts<D>(all.results, tiles + 1, group, slice_bits, out);
}
static_assert((int)MOST_BLOCKS == (int)QUERY_THREADS, "a thread tells one block its query's state");

/* ------------------------------------------------------------------------------------- full-attention layers, K = V */

/* A partition of FINE_KEYS keys in a block. */
enum { FULL_TILES = FINE_KEYS / KEYS, FULL_WARPS = FULL_THREADS / 32, FULL_QUERIES = 8 };

template <int D> struct full_memory {
    bf16 v[FULL_TILES][KEYS][D + PAD];
    bf16 k[FULL_TILES][KEYS][KEY_COLUMNS<D, true>];
    bf16 q[QUERIES][D + PAD];
    float scores[FULL_TILES][QUERIES][KEYS + 4];
    bf16 p[FULL_TILES][QUERIES][KEYS + PAD];
    float rescale[FULL_TILES][QUERIES];
    float2 base_turn[FULL_TILES][D / 8];
    row_results<FULL_QUERIES * D, FULL_QUERIES> results;
};

template <int D>
static __global__ __launch_bounds__(FULL_THREADS,
                                    1) void attend_full_row_kernel(const cuda_batch *batch,
                                                                   const __grid_constant__ cuda_attention a,
                                                                   const __grid_constant__ cuda_heads h) {
    extern __shared__ __align__(16) unsigned char memory[];
    full_memory<D> &m = *reinterpret_cast<full_memory<D> *>(memory);
    int blocks = gridDim.x, rank = blockIdx.x, head = blockIdx.y, group = a.heads / a.kv_heads;
    constexpr int PAIRS = D / 8, turned = PAIRS;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    int tile = warp / (FULL_WARPS / FULL_TILES), warp_of_tile = warp % (FULL_WARPS / FULL_TILES);
    cluster_arrive_first();
    const attend_context step = load_context(&batch->step[0], a);
    visible_range seen = visible_of_row(step.position, 0, step.view.bounded, step.sink, step.window);
    int base = rank * FINE_KEYS, made = step.position - base;
    bool works = made >= 0;
    if (!works || made >= FINE_KEYS) made = -1;
    int kv_dim = a.kv_heads * D;
    if (works) {
        int places = find_row(step, seen, base + warp + (lane & 7) * FULL_WARPS);
        for (int j = threadIdx.x; j < PAIRS * FULL_TILES; j += FULL_THREADS)
            m.base_turn[j / PAIRS][j % PAIRS] = turn_of_tile(base + j / PAIRS * KEYS, a.inverse_frequency[j % PAIRS]);
#pragma unroll 2
        for (int j = 0; j < FINE_KEYS / FULL_WARPS; j++) {
            int i = warp + j * FULL_WARPS, at = __shfl_sync(0xffffffffu, places, j);
            if (i == made) continue;
            const bf16 *from = row_at(step.view.v, step.view.sink_v, max(at, 0), kv_dim) + head * D;
            for (int c = lane; c < D / 8; c += 32) copy_async(&m.v[i / KEYS][i % KEYS][c * 8], from + c * 8, at >= 0);
        }
        for (int i = threadIdx.x; i < (QUERIES - group) * (D / 8); i += FULL_THREADS)
            *reinterpret_cast<uint4 *>(&m.q[group + i / (D / 8)][i % (D / 8) * 8]) = make_uint4(0, 0, 0, 0);
    }
    int unit = works && warp < group + (made >= 0 ? 1 : 0) ? warp : -1; /* queries, value */
    bool is_query = unit < group;
    row_head<D, PAIRS> mine;
    new_place to = {};
    float k_norm[D / 32]; /* of what RoPE does not turn; 1 elsewhere */
    if (unit >= 0) {
        mine.prepare(h, is_query ? h.q + (size_t)(head * group + unit) * D : h.k + (size_t)head * D,
                     is_query ? h.q_norm : nullptr);
        if (!is_query) to = place_new(step, step.view.v, step.view.sink_v, kv_dim, head * D + lane);
#pragma unroll
        for (int e = 0; e < D / 32; e++) {
            int d = e * 32 + lane;
            k_norm[e] = key_column<D>(d / 16, turned) < 0 ? a.k_norm[d] : 1;
        }
    }
    int query = threadIdx.x / QUERY_THREADS, slice_bits = __ffs(D / blocks) - 1;
    constexpr int COUNT = (D / 8 + FULL_WARPS - 1) / FULL_WARPS;
    uint32_t visible_keys = 0, values_at[COUNT], state_at = 0;
#pragma unroll
    for (int i = 0; i < FULL_TILES * QUERY_KEYS; i++) {
        int p = base + i * QUERY_THREADS + (int)(threadIdx.x % QUERY_THREADS);
        if (query < group && sees_exactly(seen, p)) visible_keys |= 1u << i;
    }
#pragma unroll
    for (int n = 0; n < COUNT; n++)
        values_at[n] = place_of_value(m.results, rank * group + min(lane >> 2, group - 1), slice_bits,
                                      min((warp * COUNT + n) * 8, D - 8) + 2 * (lane & 3));
    bool tells = query < group && (int)(threadIdx.x % MOST_BLOCKS) < blocks;
    if (tells) state_at = shared_of_block(m.results.state + rank * group + query, threadIdx.x % MOST_BLOCKS);
    bf16 *out = as_bf16(a.out) + (size_t)head * group * D + (rank << slice_bits);
    if (works) { /* what RoPE turns of the older keys: a thread has the same columns and places in both tiles */
        constexpr int STRIDE = FULL_THREADS / turned, PLACES = KEYS / STRIDE;
        int c = threadIdx.x % turned, first = threadIdx.x / turned;
        float norm_low = a.k_norm[c], norm_high = a.k_norm[c + D / 2];
        float2 inside[PLACES];
#pragma unroll
        for (int j = 0; j < PLACES; j++) inside[j] = __ldg(a.key_turns + (first + j * STRIDE) * PAIRS + c);
        wait_for_copies();
        __syncthreads();
#pragma unroll 1
        for (int t = 0; t < FULL_TILES; t++) {
            float2 base_turn = m.base_turn[t][c];
#pragma unroll
            for (int j = 0; j < PLACES; j++) {
                int i = first + j * STRIDE;
                float2 pair = turn_key(__bfloat162float(m.v[t][i][c]) * norm_low,
                                       __bfloat162float(m.v[t][i][c + D / 2]) * norm_high, base_turn, inside[j]);
                if (t * KEYS + i == made) continue;
                m.k[t][i][c] = __float2bfloat16_rn(pair.x);
                m.k[t][i][turned + c] = __float2bfloat16_rn(pair.y);
            }
        }
    }
    wait_for_predecessor();
    if (unit >= 0) {
        mine.make(h, is_query || h.norm_v, is_query);
        if (is_query) {
#pragma unroll
            for (int e = 0; e < D / 32; e++) { /* what is scaled by 1 is not changed by it */
                bf16 value = __float2bfloat16_rn(__fmul_rn(mine.v[e], h.q_scale));
                m.q[unit][e * 32 + lane] = __float2bfloat16_rn(__fmul_rn(__bfloat162float(value), k_norm[e]));
            }
        } else {
            bf16 *value = m.v[made / KEYS][made % KEYS], *key = m.k[made / KEYS][made % KEYS];
            store_new(mine, value, to);
            __syncwarp();
#pragma unroll 1
            for (int c = lane; c < turned; c += 32) {
                float low = __bfloat162float(value[c]) * a.k_norm[c],
                      high = __bfloat162float(value[c + D / 2]) * a.k_norm[c + D / 2];
                float2 pair =
                    turn_key(low, high, m.base_turn[made / KEYS][c], __ldg(a.key_turns + made % KEYS * PAIRS + c));
                key[c] = __float2bfloat16_rn(pair.x);
                key[turned + c] = __float2bfloat16_rn(pair.y);
            }
        }
    }
    float o[COUNT][4] = {};
    float2 told = make_float2(-INFINITY, 0);
    if (works) {
        __syncthreads();
        score_keys<D, true>(m.v[tile][0], m.k[tile][0], m.q[0], m.scores[tile], warp_of_tile, turned);
        __syncthreads();
        if (query < QUERIES) {
            query_state state = {-INFINITY, 0, 1};
#pragma unroll 1
            for (int t = 0; t < FULL_TILES; t++, visible_keys >>= QUERY_KEYS) {
                auto score = [&](int key) {
                    return visible_keys >> key / QUERY_THREADS & 1 ? m.scores[t][query][key] : -INFINITY;
                };
                state = soften(state.top, state.sum, score, m.p[t][query], false, [](int) { return 1.0f; });
                if (threadIdx.x % QUERY_THREADS == 0) m.rescale[t][query] = state.rescale;
            }
            told = make_float2(state.top, state.sum);
        }
        __syncthreads();
#pragma unroll 1
        for (int t = 0; t < FULL_TILES; t++)
            add_tile<D>(o, m.v[t][0], m.p[t][0], m.rescale[t][lane >> 2], m.rescale[t][(lane >> 2) + 8], warp * COUNT);
    }
    release_successor();
    cluster_wait(); /* all of its blocks run */
    if (works && lane >> 2 < group) {
#pragma unroll
        for (int n = 0; n < COUNT; n++)
            if (warp * COUNT + n < D / 8) store_in_block(values_at[n], make_float2(o[n][0], o[n][1]));
    }
    if (tells) store_in_block(state_at, told);
    cluster_arrive();
    cluster_wait();
    merge_parts<D>(m.results, blocks, group, slice_bits, out);
}

/* --------------------------------------------------------------------------------------------------------- launches */

template <typename KERNEL> static cudaError_t allow(KERNEL kernel, size_t bytes) {
    cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    return status == cudaSuccess ? cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1)
                                 : status;
}

/* Clusters of 16 blocks, with as much shared memory as the largest kernel takes: sm_90 and what followed it in data
 * centres, and there devices whose processors lie so that such a cluster finds a place. A slice of a device may have
 * none. */
static bool device_serves(void) {
    int device = 0, capability = 0, most = 0, clusters = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&capability, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
        cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess ||
        capability < 9 || (size_t)most < sizeof(full_memory<512>))
        return false;
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = MOST_BLOCKS;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(MOST_BLOCKS);
    config.blockDim = dim3(FULL_THREADS);
    config.dynamicSmemBytes = sizeof(full_memory<512>);
    config.attrs = &cluster;
    config.numAttrs = 1;
    bool fits = allow(attend_full_row_kernel<512>, sizeof(full_memory<512>)) == cudaSuccess &&
                cudaOccupancyMaxActiveClusters(&clusters, attend_full_row_kernel<512>, &config) == cudaSuccess &&
                clusters > 0;
    if (!fits) cudaGetLastError(); /* the answer is all that is kept of it */
    return fits;
}

static bool alone(const cuda_attention *a, const cuda_heads *h) {
    return a->segments == 1 && a->segment_rows == 1 && !a->codes && !a->drafter && !a->final && !a->restored_k &&
           !a->chunk_v && h->k && !h->chunk_v && a->heads % a->kv_heads == 0;
}

/* Blocks of a cluster; 0: these kernels do not serve this case. */
static int blocks_of(const cuda_attention *a, const cuda_heads *h) {
    int group = a->heads / a->kv_heads;
    if (!alone(a, h)) return 0;
    if (a->sliding_window) {
        if (a->k_norm || !h->v || group > SLIDING_QUERIES || a->pairs * 2 != a->head_dim || a->sliding_window % KEYS)
            return 0;
        if (a->head_dim != 64 && a->head_dim != 128 && a->head_dim != 256) return 0;
        int tiles = a->sliding_window / KEYS, blocks = FEWEST_BLOCKS;
        while (blocks < tiles) blocks *= 2;
        return blocks <= MOST_BLOCKS ? blocks : 0;
    }
    if (!a->k_norm || h->v || group > FULL_QUERIES) return 0;
    if (a->head_dim != 128 && a->head_dim != 256 && a->head_dim != 512) return 0;
    if (a->pairs * 8 != a->head_dim || turned_columns(a->pairs) != a->pairs) return 0;
    return a->partitions == 8 || a->partitions == 16 ? a->partitions : 0;
}

template <int D>
static void launch_sliding(const cuda_launch *l, int blocks, const cuda_batch *batch, const cuda_attention *a,
                           const cuda_heads *h) {
    launch_cluster(l, blocks, attend_row_kernel<D>, dim3(blocks, a->kv_heads), dim3(ROW_THREADS),
                   sizeof(sliding_memory<D>), batch, *a, *h);
}
template <int D>
static void launch_full(const cuda_launch *l, int blocks, const cuda_batch *batch, const cuda_attention *a,
                        const cuda_heads *h) {
    launch_cluster(l, blocks, attend_full_row_kernel<D>, dim3(blocks, a->kv_heads), dim3(FULL_THREADS),
                   sizeof(full_memory<D>), batch, *a, *h);
}

bool cuda_attend_makes_heads(const cuda_attention *a, const cuda_heads *h) {
    return blocks_of(a, h) != 0 && device_serves();
}

void cuda_attend_new(const cuda_launch *l, const cuda_batch *batch, const cuda_attention *a, const cuda_heads *h) {
    int blocks = blocks_of(a, h);
    switch (a->head_dim + (a->sliding_window != 0)) {
    case 65:
        launch_sliding<64>(l, blocks, batch, a, h);
        break;
    case 129:
        launch_sliding<128>(l, blocks, batch, a, h);
        break;
    case 257:
        launch_sliding<256>(l, blocks, batch, a, h);
        break;
    case 128:
        launch_full<128>(l, blocks, batch, a, h);
        break;
    case 256:
        launch_full<256>(l, blocks, batch, a, h);
        break;
    case 512:
        launch_full<512>(l, blocks, batch, a, h);
        break;
    default:
        break;
    }
}

cudaError_t cuda_attend_row_prepare(int head_dim) {
    cudaError_t status;
    if (!device_serves()) return cudaSuccess; /* then they are never launched */
    switch (head_dim) {
    case 64:
        return allow(attend_row_kernel<64>, sizeof(sliding_memory<64>));
    case 128:
        status = allow(attend_row_kernel<128>, sizeof(sliding_memory<128>));
        return status == cudaSuccess ? allow(attend_full_row_kernel<128>, sizeof(full_memory<128>)) : status;
    case 256:
        status = allow(attend_row_kernel<256>, sizeof(sliding_memory<256>));
        return status == cudaSuccess ? allow(attend_full_row_kernel<256>, sizeof(full_memory<256>)) : status;
    case 512:
        return allow(attend_full_row_kernel<512>, sizeof(full_memory<512>));
    default:
        return cudaSuccess;
    }
}
