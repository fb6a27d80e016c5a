/* Partial results of decode rows over evicted and exact positions. A block weighs LATENT_PARTITION positions, cut at
 * absolute ones, and sums their values: latents, or the exact values of one K/V head. Scores of latents are there
 * already, of all heads, or they are made here, from keys of one head that were decoded ahead; so are those of exact
 * keys. Bound: one read of what is summed. */
#include "backend/cuda/attention.cuh"
#include "backend/cuda/latent_keys.cuh"

namespace {

using latent::DIM;
using latent::HALF;
using latent::key_rows;
using latent::PART;
using latent::PARTS;
using latent::QUERIES_AT_ONCE;
using latent::QUERY_VALUES;

enum {
    LATENT_THREADS = 256,
    LATENT_WARPS = LATENT_THREADS / 32,
    POSITIONS = LATENT_PARTITION,
    VALUES = LATENT_HEAD_DIM, /* of a position, at most */
    WARP_VALUES = VALUES / LATENT_WARPS,
    SHARES = LATENT_THREADS / QUERIES, /* threads that share the positions of a query */
    EACH = POSITIONS / SHARES,
};
static_assert(POSITIONS == LATENT_WARPS * LATENT_GROUP, "a warp has the keys of a group");
static_assert((int)LATENT_MOST_RANK <= (int)VALUES, "latents lie where values do");

struct attend_memory {
    bf16 values[POSITIONS][VALUES + PAD];
    bf16 p[QUERIES][POSITIONS + PAD];
    float scores[QUERIES][POSITIONS + 4];
    uint16_t queries[LATENT_WARPS][QUERY_VALUES];
    float scales[1]; /* of values: [kv_heads or 1][POSITIONS] */
};

/* What a block is about. */
struct attend_block {
    int head;      /* K/V head; -1: all */
    int partition; /* among those of its kind */
    int base;      /* first position */
    bool exact;
    int position, rows, first_row, sink, window;
    int begin, end;   /* positions that some row sees lie in [begin, end) ... */
    int first_latent; /* row of latents of position 0 */
    const cuda_step *step;
};

/* Of the row at position t: what it sees of the kind lies in [from, to), and of exact positions before the sink. */
__device__ __forceinline__ bool is_seen(const attend_block &b, int sliding_window, int t, int p) {
    int oldest = t - sliding_window + 1, evicted = t - b.window + 1;
    if (!b.exact) return p >= oldest && p >= b.sink && p < evicted;
    return p >= oldest && p >= 0 && p <= t && (evicted <= b.sink || p >= evicted || p < b.sink);
}

/* Whether a row of the step may see it. */
__device__ __forceinline__ bool is_wanted(const attend_block &b, int p) {
    return p >= b.begin && p < b.end && (!b.exact || p < b.sink || p > b.position - b.window);
}

/* Where keys and values of an exact position lie. */
__device__ __forceinline__ size_t exact_row(const cuda_layer_view &view, int sink, int p, const cuda_bf16 **k,
                                            const cuda_bf16 **v) {
    if (view.sink_v && p < sink) {
        *k = view.sink_k;
        *v = view.sink_v;
        return static_cast<size_t>(p);
    }
    *k = view.k;
    *v = view.v;
    return static_cast<size_t>(view.capacity ? p % view.capacity : p);
}

/* Values into shared memory and keys into registers: positions of earlier steps, or of this one. */
__device__ __forceinline__ void request_exact(attend_memory &m, key_rows (&keys)[PARTS], const latent_attention &a,
                                              const attend_block &b, bool of_step) {
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const cuda_layer_view &view = b.step->cache->layer[a.exact.layer];
    size_t kv_dim = static_cast<size_t>(a.exact.kv_heads) * DIM, column = static_cast<size_t>(b.head) * DIM;
    for (int i = warp; i < POSITIONS; i += LATENT_WARPS) {
        int p = b.base + i;
        if ((p >= b.position) != of_step) continue;
        const cuda_bf16 *k, *v = a.exact.q;
        bool wanted = is_wanted(b, p);
        if (wanted) {
            size_t row = exact_row(view, b.sink, p, &k, &v);
            v += row * kv_dim + column + lane * 8;
        }
        copy_async(&m.values[i][lane * 8], v, wanted);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int p = b.base + warp * LATENT_GROUP + lane / 4 + 8 * half;
        if ((p >= b.position) != of_step || !is_wanted(b, p)) continue;
        const cuda_bf16 *k, *v;
        size_t row = exact_row(view, b.sink, p, &k, &v);
        k += row * kv_dim + column + lane % 4 * 8;
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const cuda_bf16 *at = k + part * PART + 32 * i;
                latent::put_row(keys[part].low[i], half, __ldcg(reinterpret_cast<const uint4 *>(at)));
                latent::put_row(keys[part].high[i], half, __ldcg(reinterpret_cast<const uint4 *>(at + HALF)));
            }
        }
    }
}

/* The same of latents, all of which are older; with the scales of values, and of keys. */
template <bool AHEAD>
__device__ __forceinline__ void request_latents(attend_memory &m, key_rows (&keys)[PARTS], float2 &key_scale,
                                                const latent_attention &a, const attend_block &b) {
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, columns = a.rank_v / 8, kv_heads = a.exact.kv_heads;
    size_t codes = static_cast<size_t>(a.gathered.latent.width);
    if (AHEAD) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int p = b.base + warp * LATENT_GROUP + lane / 4 + 8 * half;
            if (!is_wanted(b, p)) continue;
            size_t at = static_cast<size_t>(p + b.first_latent) * kv_heads + b.head;
            const cuda_bf16 *k = a.keys + at * DIM + lane % 4 * 8;
#pragma unroll
            for (int part = 0; part < PARTS; part++) {
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const cuda_bf16 *from = k + part * PART + 32 * i;
                    latent::put_row(keys[part].low[i], half, __ldcg(reinterpret_cast<const uint4 *>(from)));
                    latent::put_row(keys[part].high[i], half, __ldcg(reinterpret_cast<const uint4 *>(from + HALF)));
                }
            }
            float scale = __ldcg(a.key_scales + at);
            if (half)
                key_scale.y = scale;
            else
                key_scale.x = scale;
        }
    }
    for (int i = warp; i < POSITIONS; i += LATENT_WARPS) {
        int p = b.base + i;
        bool wanted = is_wanted(b, p);
        const cuda_bf16 *from = a.gathered.codes;
        if (wanted) from += static_cast<size_t>(p + b.first_latent) * codes + a.gathered.latent.first_v;
        if (lane < columns) copy_async(&m.values[i][lane * 8], from + (wanted ? lane * 8 : 0), wanted);
    }
    int heads = AHEAD ? 1 : kv_heads;
    for (int i = threadIdx.x; i < POSITIONS * heads; i += LATENT_THREADS) {
        int row = i / heads, head = AHEAD ? b.head : i % heads, p = b.base + row;
        float scale = 0;
        if (is_wanted(b, p))
            scale = __ldcg(a.gathered.scales + static_cast<size_t>(p + b.first_latent) * a.gathered.heads +
                           a.latent_head + head);
        m.scales[(AHEAD ? 0 : head) * POSITIONS + row] = scale;
    }
}

/* Scores of a warp's group of positions with QUERIES queries of the block's head from `first` on. */
__device__ __forceinline__ void score_keys(attend_memory &m, const key_rows (&keys)[PARTS], const float2 &scale,
                                           const latent_attention &a, const attend_block &b, int first, int queries) {
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, row = warp * LATENT_GROUP + lane / 4;
    /* Groups of latents begin where positions do; a group that nobody sees has no place among them. */
    int latent_group = (b.base + warp * LATENT_GROUP + b.first_latent) / LATENT_GROUP;
    const float2 *turns = nullptr;
    bool seen = true;
    if (!b.exact) {
        int p = b.base + warp * LATENT_GROUP;
        seen = p + LATENT_GROUP > b.begin && p < b.end;
        turns = a.gathered.bases + static_cast<size_t>(latent_group) * HALF;
    }
    if (!seen) return; /* what lies in m.scores is not looked at */
#pragma unroll 1
    for (int from = first; from < queries && from < first + QUERIES; from += QUERIES_AT_ONCE) {
        float d[PARTS][4];
        latent::query_words words[PARTS];
#pragma unroll
        for (int part = 0; part < PARTS; part++)
            latent::request_queries(words[part], a.exact, part, b.first_row, b.head, turns, from, queries, lane);
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            latent::put_queries(m.queries[warp], words[part], lane);
            latent::multiply_keys(d[part], keys[part], m.queries[warp], lane);
        }
        int column = 2 * (lane % 4);
        if (column >= QUERIES_AT_ONCE) continue;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            m.scores[from - first + column + e][row] = latent::finish_score(d[0][e], d[1][e], scale.x);
            m.scores[from - first + column + e][row + 8] = latent::finish_score(d[0][2 + e], d[1][2 + e], scale.y);
        }
    }
}

/* Maximum and sum of a query over the block's positions; its probabilities, times the scales of values, into m.p.
 * SHARES neighbouring threads take it. */
template <class SCORE>
__device__ __forceinline__ float2 weigh(attend_memory &m, const latent_attention &a, const attend_block &b, int query,
                                        int token, const float *scales, const SCORE &score) {
    int part = threadIdx.x % SHARES;
    float s[EACH], top = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int row = i * SHARES + part;
        s[i] = -INFINITY;
        if (token >= 0 && is_seen(b, a.exact.sliding_window, token, b.base + row)) s[i] = score(row);
        top = fmaxf(top, s[i]);
    }
#pragma unroll
    for (int o = SHARES / 2; o > 0; o >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, o));
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int row = i * SHARES + part;
        float e = s[i] == -INFINITY ? 0.0f : expf(__fsub_rn(s[i], top));
        sum = __fadd_rn(sum, e);
        m.p[query][row] = __float2bfloat16_rn(s[i] == -INFINITY ? 0.0f : b.exact ? e : __fmul_rn(e, scales[row]));
    }
#pragma unroll
    for (int o = SHARES / 2; o > 0; o >>= 1) sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, o));
    return make_float2(top, sum);
}

/* A warp's columns of what QUERIES queries sum: a thread has rows lane / 4 and lane / 4 + 8, two of each 8 columns. */
__device__ __forceinline__ void sum_values(const attend_memory &m, float (&o)[WARP_VALUES / 8][4]) {
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, row = (lane & 7) + (lane >> 3 & 1) * 8,
        offset = (lane >> 4) * 8;
#pragma unroll
    for (int k = 0; k < POSITIONS; k += 32) {
        uint32_t p0[4], p1[4];
        load_matrices(p0, &m.p[row][k + offset]);
        load_matrices(p1, &m.p[row][k + 16 + offset]);
#pragma unroll
        for (int n = 0; n < WARP_VALUES / 8; n++) {
            uint32_t v[4];
            load_matrices_transposed(v, &m.values[k + lane][warp * WARP_VALUES + n * 8]);
            mma_bf16(o[n], p0[0], p0[1], p0[2], p0[3], v[0], v[1]);
            mma_bf16(o[n], p1[0], p1[1], p1[2], p1[3], v[2], v[3]);
        }
    }
}

/* The block's place, and what it is about. Exact positions: visible partitions of the sink, then those from the first
 * row's first exact position on. */
__device__ __forceinline__ attend_block find_block(const cuda_batch *batch, const latent_attention &a, bool ahead) {
    attend_block b;
    int index = blockIdx.x, kv_heads = a.exact.kv_heads, of_latents = ahead ? a.partitions * kv_heads : a.partitions;
    b.exact = index >= of_latents;
    if (b.exact) index -= of_latents;
    b.head = b.exact || ahead ? index % kv_heads : -1;
    b.partition = b.exact || ahead ? index / kv_heads : index;
    b.step = &batch->step[blockIdx.y]; /* written before the step's first kernel */
    b.rows = __ldcg(&b.step->rows);
    b.position = __ldcg(&b.step->position);
    b.first_row = __ldcg(&b.step->first_row);
    b.sink = __ldcg(&b.step->sink);
    b.window = __ldcg(&b.step->window);
    b.first_latent = __ldcg(&b.step->restored_first[0]) - __ldcg(&b.step->restored_begin[0]);
    int oldest = max(b.position - a.exact.sliding_window + 1, 0), last = b.position + b.rows - 1;
    if (b.exact) {
        int evicted = b.position - b.window + 1, first = oldest / POSITIONS;
        if (evicted <= b.sink) evicted = 0;
        int recent = max(evicted / POSITIONS, first),
            of_sink = max(min((b.sink + POSITIONS - 1) / POSITIONS, recent) - first, 0);
        b.base = (b.partition < of_sink ? first + b.partition : recent + b.partition - of_sink) * POSITIONS;
        b.begin = oldest;
        b.end = last + 1;
    } else {
        b.begin = max(oldest, b.sink);
        b.end = last - b.window + 1;
        b.base = (b.begin / POSITIONS + b.partition) * POSITIONS;
    }
    return b;
}

/* grid: partitions (and heads) of latents, then those of exact positions; segments. */
template <bool AHEAD>
__global__ __launch_bounds__(LATENT_THREADS, 2) void latent_attend_kernel(const cuda_batch *batch,
                                                                          const __grid_constant__ latent_attention a) {
    extern __shared__ __align__(16) unsigned char memory[];
    attend_memory &m = *reinterpret_cast<attend_memory *>(memory);
    int lane = threadIdx.x & 31, heads = a.exact.heads, group = heads / a.exact.kv_heads;
    const attend_block b = find_block(batch, a, AHEAD);
    bool keyed = AHEAD || b.exact,
         empty = b.rows == 0 || b.base >= b.end || b.base + POSITIONS <= b.begin ||
                 (b.exact && b.base >= b.sink && b.base + POSITIONS <= b.position - b.window + 1);
    key_rows keys[PARTS] = {};
    float2 key_scale = make_float2(1, 1);
    if (!empty && !b.exact) request_latents<AHEAD>(m, keys, key_scale, a, b);
#pragma unroll 1
    for (int of_step = 0; of_step < 2; of_step++) { /* one code for both: it is cold */
        if (of_step) wait_for_predecessor();
        if (!empty && b.exact && (!of_step || b.base + POSITIONS > b.position)) request_exact(m, keys, a, b, of_step);
    }
    int queries = b.rows * (keyed ? group : heads), partitions = b.exact ? a.exact.partitions : a.partitions,
        width = b.exact ? DIM : a.rank_v;
    float2 *state = b.exact ? a.exact.state : a.state;
    float *out = b.exact ? a.exact.partial : a.sums;
    auto row_of = [&](int index) { return index / (keyed ? group : heads); };
    auto head_of = [&](int index) { return keyed ? b.head * group + index % group : index % heads; };
    auto cell_of = [&](int index) {
        return (static_cast<size_t>(b.first_row + row_of(index)) * heads + head_of(index)) * partitions + b.partition;
    };
    if (empty) {
        for (int i = threadIdx.x; i < queries; i += LATENT_THREADS) state[cell_of(i)] = make_float2(-INFINITY, 0);
        return;
    }
    wait_for_copies();
    int query = threadIdx.x / SHARES, g = lane >> 2, t = lane & 3, column = (threadIdx.x >> 5) * WARP_VALUES + 2 * t;
    for (int first = 0; first < queries; first += QUERIES) {
        int index = first + query, known = min(index, queries - 1),
            token = index < queries ? b.position + row_of(index) : -1;
        if (keyed) score_keys(m, keys, key_scale, a, b, first, queries);
        if (AHEAD) release_successor(); /* blocks of many sessions need what it would take */
        __syncthreads(); /* scores are there, values too, and the probabilities of the queries before are used up */
        const float *scales = m.scales + (AHEAD || b.exact ? 0 : head_of(known) / group * POSITIONS);
        float2 mine;
        if (keyed) {
            mine = weigh(m, a, b, query, token, scales, [&](int row) { return m.scores[query][row]; });
        } else {
            const float *scores =
                a.scores + (static_cast<size_t>(b.first_row + row_of(known)) * heads + head_of(known)) * a.stride +
                b.base - __ldcg(&b.step->restored_begin[0]);
            mine = weigh(m, a, b, query, token, scales, [&](int row) { return __ldcg(scores + row); });
        }
        if (threadIdx.x % SHARES == 0 && index < queries) state[cell_of(index)] = mine;
        __syncthreads();
        float o[WARP_VALUES / 8][4] = {};
        sum_values(m, o);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (first + g + half * 8 >= queries) continue;
            float *to = out + cell_of(first + g + half * 8) * width + column;
#pragma unroll
            for (int n = 0; n < WARP_VALUES / 8; n++)
                if (column + n * 8 < width)
                    *reinterpret_cast<float2 *>(to + n * 8) = make_float2(o[n][half * 2], o[n][half * 2 + 1]);
        }
    }
}

size_t memory_of(int kv_heads) { return sizeof(attend_memory) + (size_t)(kv_heads * POSITIONS) * sizeof(float); }

/* Partitions that so many neighbouring positions can touch. */
int most_partitions(int positions) { return positions > 0 ? (positions - 2 + POSITIONS) / POSITIONS + 1 : 0; }

} // namespace

extern "C" int latent_attention_stride(int sliding_window, int window, int rows) {
    int seen = sliding_window - window + rows - 1;
    return seen > 0 ? (seen + 2 * (LATENT_GROUP - 1)) / LATENT_GROUP * LATENT_GROUP : LATENT_GROUP;
}

extern "C" int latent_attention_partitions(int sliding_window, int window, int rows) {
    int most = most_partitions(sliding_window - window + rows - 1);
    return most > 0 ? most : 1;
}

extern "C" int latent_attention_exact_partitions(int sliding_window, int sink, int window, int rows) {
    int all = most_partitions(sliding_window + rows - 1),
        bounded = ceil_div(sink, POSITIONS) + most_partitions(window + rows - 1);
    return bounded < all ? bounded : all;
}

extern "C" void latent_attention_attend(const cuda_launch *l, const cuda_batch *batch, const latent_attention *a) {
    int heads = a->exact.kv_heads, of_latents = a->keys ? a->partitions * heads : a->partitions;
    dim3 grid((unsigned)(of_latents + a->exact.partitions * heads), (unsigned)a->exact.segments);
    if (a->keys)
        launch_kernel(l, latent_attend_kernel<true>, grid, dim3(LATENT_THREADS), memory_of(1), batch, *a);
    else
        launch_kernel(l, latent_attend_kernel<false>, grid, dim3(LATENT_THREADS), memory_of(heads), batch, *a);
}

extern "C" cudaError_t latent_attention_prepare(void) {
    int bytes = 112 << 10;
    cudaError_t status =
        cudaFuncSetAttribute(latent_attend_kernel<true>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (status != cudaSuccess) return status;
    return cudaFuncSetAttribute(latent_attend_kernel<false>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}
