/* The work of attention_runs.cu: units, which are partitions of a K/V head of some queries of a segment, in one order
 * over all segments; shares of them that are about equal in tiles of keys; and the tiles of a unit. Queries change
 * fastest, so that a partition's keys come from L2 from the second time on; then come partitions, heads, segments. */
#ifndef KAKEYA_BACKEND_CUDA_ATTENTION_UNITS_CUH
#define KAKEYA_BACKEND_CUDA_ATTENTION_UNITS_CUH

#include "backend/cuda/attention.cuh"

/* A segment, as a block keeps it. */
struct run_segment {
    const cuda_bf16 *k, *v, *sink_k, *sink_v;
    size_t first_cell;
    int position, rows, first_row, capacity, bounded, sink, window;
    int partitions;  /* of each row: cells */
    int used;        /* partitions that can hold keys: units */
    int first_tile;  /* of keys, of the first partition; sliding layers */
    int query_tiles; /* of M x 16 queries */
};

/* N at most, a multiple of 32. */
template <int N> struct run_segments {
    static constexpr int MOST = N;
    int group; /* queries of a row that share a K/V head */
    run_segment segment[N];
    int first_unit[N + 1], first_weight[N + 1];
};

/* Tiles that the partitions of one head of one tile of queries have at most. */
static __device__ __forceinline__ int run_weight(const cuda_attention &a, int used) {
    const int fine = FINE_END / FINE_KEYS, per_fine = FINE_KEYS / KEYS, per_coarse = COARSE_KEYS / KEYS;
    if (a.sliding_window) return used;
    return min(used, fine) * per_fine + max(used - fine, 0) * per_coarse;
}

/* Sums of the units and weights of all segments, one of which each of the first threads brings. A block that has so
 * many threads, whole. */
template <typename SEGMENTS>
static __device__ __forceinline__ void sum_segments(SEGMENTS &m, const cuda_attention &a, int units, int weight) {
    const int MOST = SEGMENTS::MOST;
    int s = threadIdx.x;
    if (s < MOST) {
#pragma unroll
        for (int o = 1; o < 32; o <<= 1) {
            int other_units = __shfl_up_sync(0xffffffffu, units, o),
                other_weight = __shfl_up_sync(0xffffffffu, weight, o);
            if ((s & 31) < o) continue;
            units += other_units;
            weight += other_weight;
        }
        m.first_unit[s + 1] = units;
        m.first_weight[s + 1] = weight;
    }
    if (s == 0) {
        m.first_unit[0] = m.first_weight[0] = 0;
        m.group = a.heads / a.kv_heads;
    }
    __syncthreads();
    units = weight = 0; /* of the warps before */
    for (int warp = 1; s < MOST && warp <= s / 32; warp++) {
        units += m.first_unit[warp * 32];
        weight += m.first_weight[warp * 32];
    }
    __syncthreads();
    if (s < MOST) {
        m.first_unit[s + 1] += units;
        m.first_weight[s + 1] += weight;
    }
    __syncthreads();
}

/* The whole block. */
template <int QUERIES_AT_ONCE, int N>
static __device__ __forceinline__ void load_segments(run_segments<N> &m, const cuda_batch *batch,
                                                     const cuda_attention &a) {
    int s = threadIdx.x, units = 0, weight = 0;
    if (s < a.segments) { /* written before the step's first kernel */
        const cuda_step *step = &batch->step[a.first_segment + s];
        run_segment g = {};
        g.rows = __ldcg(&step->rows);
        if (g.rows) {
            g.position = __ldcg(&step->position);
            g.first_row = __ldcg(&step->first_row);
            g.sink = __ldcg(&step->sink);
            g.window = __ldcg(&step->window);
            cells_of cells = find_cells(step, a);
            g.partitions = g.used = cells.partitions;
            g.first_cell = cells.first;
            const cuda_layer_view &view = step->cache->layer[a.layer];
            g.k = view.k;
            g.v = view.v;
            g.sink_k = view.sink_k;
            g.sink_v = view.sink_v;
            g.capacity = view.capacity;
            g.bounded = view.bounded;
            if (a.sliding_window) {
                g.first_tile = max(g.position - a.sliding_window + 1, 0) / KEYS;
                g.used = min((g.position + g.rows - 1) / KEYS - g.first_tile + 1, g.partitions);
            }
            g.query_tiles = (g.rows * (a.heads / a.kv_heads) + QUERIES_AT_ONCE - 1) / QUERIES_AT_ONCE;
            units = a.kv_heads * g.query_tiles * g.used;
            weight = a.kv_heads * g.query_tiles * run_weight(a, g.used);
        }
        m.segment[s] = g;
    }
    sum_segments(m, a, units, weight);
}

/* The segment in which `at` lies among sums; N - 1, how many there can be: behind all. The whole block. */
template <int N> static __device__ __forceinline__ int segment_of(const int (&first)[N], int at) {
    return __syncthreads_count((int)threadIdx.x < N - 1 && first[min((int)threadIdx.x + 1, N - 1)] <= at);
}

/* The first unit of this share of the work: shares are about equal in tiles of keys. The whole block. */
template <int N>
static __device__ __forceinline__ int first_unit_of(const run_segments<N> &m, const cuda_attention &a, int share) {
    int at = (int)((long long)m.first_weight[N] * share / gridDim.x), s = segment_of(m.first_weight, at);
    if (s == N) return m.first_unit[N];
    const run_segment &g = m.segment[s];
    int per_head = g.query_tiles * run_weight(a, g.used);
    at -= m.first_weight[s];
    int head = at / per_head, unit = at - head * per_head;
    if (!a.sliding_window) {
        const int per_fine = FINE_KEYS / KEYS, per_coarse = COARSE_KEYS / KEYS;
        int fine = FINE_END / FINE_KEYS * g.query_tiles;
        if (unit <= fine * per_fine)
            unit = (unit + per_fine - 1) / per_fine;
        else
            unit = fine + (unit - fine * per_fine + per_coarse - 1) / per_coarse;
    }
    return m.first_unit[s] + head * g.used * g.query_tiles + unit;
}

/* A unit, and a tile in it. */
struct run_cursor {
    int unit, segment, head, partition, query_tile;
    int first_query, queries; /* of the segment */
    int first_begin, last_end, sink, evicted;
    int base, end;
};

static __device__ __forceinline__ bool has_exact_keys(const run_cursor &c) {
    return min(c.base + KEYS, c.end) > c.evicted || max(c.base, c.first_begin) < c.sink;
}

static __device__ __forceinline__ void skip_evicted(run_cursor &c) {
    while (c.base < c.end && !has_exact_keys(c)) c.base += KEYS;
}

template <int QUERIES_AT_ONCE, int N>
static __device__ __forceinline__ void enter_queries(run_cursor &c, const run_segments<N> &m, const cuda_attention &a) {
    const run_segment &g = m.segment[c.segment];
    int group = m.group, position = g.position;
    c.first_query = c.query_tile * QUERIES_AT_ONCE;
    c.queries = min(g.rows * group - c.first_query, QUERIES_AT_ONCE);
    visible_range first =
        visible_of_row(position + c.first_query / group, a.sliding_window, g.bounded, g.sink, g.window);
    c.first_begin = first.begin;
    c.sink = first.sink;
    c.evicted = first.evicted;
    c.last_end = position + (c.first_query + c.queries - 1) / group + 1;
}

/* To the first tile with keys of the partition. */
template <int N>
static __device__ __forceinline__ void enter_partition(run_cursor &c, const run_segments<N> &m,
                                                       const cuda_attention &a) {
    int begin, end;
    if (a.sliding_window) {
        begin = (m.segment[c.segment].first_tile + c.partition) * KEYS;
        end = begin + KEYS;
    } else {
        (void)partition_range(a, visible_range{}, 0, c.partition, &begin, &end);
    }
    c.base = max(begin, c.first_begin) / KEYS * KEYS;
    c.end = min(end, c.last_end);
    skip_evicted(c);
}

template <int QUERIES_AT_ONCE, int N>
static __device__ __forceinline__ void next_unit(run_cursor &c, const run_segments<N> &m, const cuda_attention &a) {
    bool others = m.segment[c.segment].query_tiles > 1;
    c.unit++;
    if (++c.query_tile == m.segment[c.segment].query_tiles) {
        c.query_tile = 0;
        if (++c.partition == m.segment[c.segment].used) {
            c.partition = 0;
            others = true;
            if (++c.head == a.kv_heads) {
                c.head = 0;
                do {
                    c.segment++;
                } while (c.segment < N && m.first_unit[c.segment + 1] == m.first_unit[c.segment]);
                if (c.segment == N) return;
            }
        }
    }
    if (others) enter_queries<QUERIES_AT_ONCE>(c, m, a);
    enter_partition(c, m, a);
}

/* To a tile with keys before unit `to`, if there is one. */
template <int QUERIES_AT_ONCE, int N>
static __device__ __forceinline__ bool find_tile(run_cursor &c, const run_segments<N> &m, const cuda_attention &a,
                                                 int to) {
    while (c.unit < to && c.base >= c.end) next_unit<QUERIES_AT_ONCE>(c, m, a);
    return c.unit < to;
}

static __device__ __forceinline__ void next_tile(run_cursor &c) {
    c.base += KEYS;
    skip_evicted(c);
}

/* The unit's segment, which is not before c.segment, and where in it the unit lies. */
template <int N> static __device__ __forceinline__ void find_place(run_cursor &c, const run_segments<N> &m) {
    while (m.first_unit[c.segment + 1] <= c.unit) c.segment++;
    const run_segment &g = m.segment[c.segment];
    int at = c.unit - m.first_unit[c.segment], per_head = g.used * g.query_tiles;
    c.head = at / per_head;
    at -= c.head * per_head;
    c.partition = at / g.query_tiles;
    c.query_tile = at - c.partition * g.query_tiles;
}

#endif
