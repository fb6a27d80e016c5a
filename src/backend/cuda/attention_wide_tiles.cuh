/* What the warps of attention_wide.cu share: the block's memory and barriers, units and tiles, and the keys that RoPE
 * turns. */
#ifndef KAKEYA_BACKEND_CUDA_ATTENTION_WIDE_TILES_CUH
#define KAKEYA_BACKEND_CUDA_ATTENTION_WIDE_TILES_CUH

#include "backend/cuda/attention_units.cuh"
#include "backend/cuda/prompt_bulk.cuh"
#include "backend/cuda/prompt_wgmma.cuh"

struct wide {
    static constexpr int D = 512, QUERIES_AT_ONCE = 64, SLOTS = 2;
    static constexpr int PANEL = KEYS * prompt::PANEL_ROW_BYTES, PANELS = D / prompt::PANEL_COLUMNS;
    static constexpr int PAIRS = prompt::PANEL_COLUMNS; /* that RoPE turns: dimensions c and c + D / 2 */
    static constexpr int GROUP = 128;                   /* threads of a group of four warps */
    static constexpr int VALUE_GROUPS = 2, BRING_THREADS = 32, DERIVE_THREADS = GROUP - BRING_THREADS;
    /* first threads of the scores, of who derives and who brings; all threads */
    static constexpr int SCORES = VALUE_GROUPS * GROUP, DERIVES = SCORES + GROUP, BRINGS = DERIVES + DERIVE_THREADS,
                         THREADS = BRINGS + BRING_THREADS;
    /* Of each thread's registers, of 128; what the others leave is what a half of all outputs needs. */
    static constexpr int VALUE_REGISTERS = 160, SCORE_REGISTERS = 112, OTHER_REGISTERS = 80,
                         CODES_MORE = 16; /* that who brings codes has, and the scores have not */
    static_assert(2 * VALUE_REGISTERS + SCORE_REGISTERS + OTHER_REGISTERS == 4 * 128, "of a multiprocessor");
    static constexpr int TILES_AHEAD = 4; /* descriptions of tiles: one more than can be in use */
};

struct wide_segment {
    const cuda_bf16 *v, *sink_v;
    size_t first_cell;
    int position, rows, first_row, capacity, bounded, sink, window;
    int partitions;  /* of each row: cells, and units of 64 queries of a head */
    int query_tiles; /* of 64 queries */
};

enum wide_flags { WIDE_BEGINS_UNIT = 1, WIDE_ENDS_UNIT = 2, WIDE_IS_NONE = 4 /* behind the last tile */ };

struct wide_tile {
    int base, flags;
    int segment, head, partition;
    int first_query, queries; /* of the segment */
};

/* A unit, and a tile in it. */
struct wide_cursor {
    int unit, segment, head, query_tile, partition;
    int first_query, queries, last_end; /* last_end: behind the last key that a query sees */
    int base, end;
};

/* Operands of the tensor cores are panels (prompt_tensor.cuh). */
struct wide_memory {
    static constexpr int MOST = CUDA_LISTED_SEGMENTS;
    unsigned char q[wide::PANELS * wide::PANEL];
    unsigned char v[wide::SLOTS][wide::PANELS * wide::PANEL];
    unsigned char turned[2 * wide::PANEL];
    unsigned char p[wide::PANEL];
    float2 tile_turn[wide::TILES_AHEAD][wide::PAIRS];
    float scale[wide::TILES_AHEAD][KEYS]; /* of codes */
    wide_cursor cursor[wide::GROUP / 32]; /* of who brings codes */
    float rescale[wide::QUERIES_AT_ONCE];
    wide_tile tile[wide::TILES_AHEAD];
    /* Barriers. Of full and empty there is one for each half of a tile. */
    unsigned long long full[wide::SLOTS][2], empty[wide::SLOTS][2], turned_full, turned_empty, p_full, p_empty;
    wide_segment segment[CUDA_LISTED_SEGMENTS];
    int first_unit[CUDA_LISTED_SEGMENTS + 1], first_weight[CUDA_LISTED_SEGMENTS + 1];
    int group; /* queries of a row that share a K/V head */
};

static const int WIDE_BYTES = prompt::TILE_ALIGNMENT + (int)sizeof(wide_memory);
static_assert(WIDE_BYTES <= 227 << 10, "shared memory of a block");
static_assert(KEYS == 64 && QUERY_THREADS == 16, "the sums of probabilities");

#if PROMPT_WGMMA

/* ----------------------------------------------------------------------------------------------------------- work */

static __device__ __forceinline__ uint32_t wide_barrier(const unsigned long long &barrier) {
    return prompt::shared_address(&barrier);
}

/* Once per warp, behind what its lanes have done. */
static __device__ __forceinline__ void arrive_warp(const unsigned long long &barrier) {
    __syncwarp();
    if ((threadIdx.x & 31) == 0) prompt::barrier_arrive(wide_barrier(barrier));
}

static __device__ __forceinline__ void wait_wide(const unsigned long long &barrier, int parity) {
    prompt::barrier_wait(wide_barrier(barrier), parity);
}

/* The whole block. */
static __device__ __forceinline__ void load_wide_segments(wide_memory &m, const cuda_batch *batch,
                                                          const cuda_attention &a) {
    int s = threadIdx.x, units = 0, weight = 0;
    if (s < a.segments) { /* written before the step's first kernel */
        const cuda_step *step = &batch->step[a.first_segment + s];
        wide_segment g = {};
        g.rows = __ldcg(&step->rows);
        if (g.rows) {
            g.position = __ldcg(&step->position);
            g.first_row = __ldcg(&step->first_row);
            g.sink = __ldcg(&step->sink);
            g.window = __ldcg(&step->window);
            cells_of cells = find_cells(step, a);
            g.partitions = cells.partitions;
            g.first_cell = cells.first;
            const cuda_layer_view &view = step->cache->layer[a.layer];
            g.v = view.v;
            g.sink_v = view.sink_v;
            g.capacity = view.capacity;
            g.bounded = view.bounded;
            g.query_tiles = (g.rows * (a.heads / a.kv_heads) + wide::QUERIES_AT_ONCE - 1) / wide::QUERIES_AT_ONCE;
            units = a.kv_heads * g.query_tiles * g.partitions;
            weight = a.kv_heads * g.query_tiles * run_weight(a, g.partitions);
        }
        m.segment[s] = g;
    }
    sum_segments(m, a, units, weight);
}

/* The first unit of this share of the work. Units of a segment are ordered by head, then by tile of queries, then by
 * partition: blocks that have the same keys for other queries work on them at about the same time, and a block keeps
 * its queries. The whole block. */
static __device__ __forceinline__ int first_wide_unit(const wide_memory &m, const cuda_attention &a, int share) {
    const int per_fine = FINE_KEYS / KEYS, per_coarse = COARSE_KEYS / KEYS, fine = FINE_END / FINE_KEYS;
    int at = (int)((long long)m.first_weight[CUDA_LISTED_SEGMENTS] * share / gridDim.x),
        s = segment_of(m.first_weight, at);
    if (s == CUDA_LISTED_SEGMENTS) return m.first_unit[CUDA_LISTED_SEGMENTS];
    int partitions = m.segment[s].partitions, run = run_weight(a, partitions);
    at -= m.first_weight[s];
    int runs = at / run, unit = at - runs * run;
    if (unit <= fine * per_fine)
        unit = (unit + per_fine - 1) / per_fine;
    else
        unit = fine + (unit - fine * per_fine + per_coarse - 1) / per_coarse;
    return m.first_unit[s] + runs * partitions + unit;
}

static __device__ __forceinline__ void enter_unit(wide_cursor &c, const wide_memory &m, const cuda_attention &a) {
    const wide_segment &g = m.segment[c.segment];
    int begin, end;
    c.first_query = c.query_tile * wide::QUERIES_AT_ONCE;
    c.queries = min(g.rows * m.group - c.first_query, wide::QUERIES_AT_ONCE);
    c.last_end = g.position + (c.first_query + c.queries - 1) / m.group + 1;
    (void)partition_range(a, visible_range{}, 0, c.partition, &begin, &end);
    c.base = begin;
    c.end = min(end, c.last_end);
}

static __device__ __forceinline__ void find_unit(wide_cursor &c, const wide_memory &m, const cuda_attention &a,
                                                 int unit) {
    c.unit = unit;
    c.segment = 0;
    while (m.first_unit[c.segment + 1] <= unit) c.segment++;
    const wide_segment &g = m.segment[c.segment];
    int at = unit - m.first_unit[c.segment], run = at / g.partitions;
    c.partition = at - run * g.partitions;
    c.head = run / g.query_tiles;
    c.query_tile = run - c.head * g.query_tiles;
    enter_unit(c, m, a);
}

/* To a tile with keys before unit `to`, if there is one. */
static __device__ __forceinline__ bool find_wide_tile(wide_cursor &c, const wide_memory &m, const cuda_attention &a,
                                                      int to) {
    while (c.base >= c.end) {
        if (c.unit + 1 >= to) return false;
        if (c.partition + 1 < m.segment[c.segment].partitions) {
            c.unit++;
            c.partition++;
            enter_unit(c, m, a);
        } else {
            find_unit(c, m, a, c.unit + 1);
        }
    }
    return true;
}

/* --------------------------------------------------------------------------------------- keys that RoPE has turned */

/* Columns `column` and the next one of either half of a key; tile, inside: the two turns of each (turn_key). */
static __device__ __forceinline__ void turn_wide_key(wide_memory &m, int slot, int key, int column, float2 norm_low,
                                                     float2 norm_high, const float2 (&tile)[2], float4 inside) {
    const unsigned char *low = m.v[slot], *high = low + wide::PANELS / 2 * wide::PANEL;
    uint32_t at = prompt::chunk_offset(key, column / 8, KEYS) + column % 8 * 2;
    float2 x = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162 *>(low + at)),
           y = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162 *>(high + at));
    float2 left = turn_key(x.x * norm_low.x, y.x * norm_high.x, tile[0], make_float2(inside.x, inside.y)),
           right = turn_key(x.y * norm_low.y, y.y * norm_high.y, tile[1], make_float2(inside.z, inside.w));
    *reinterpret_cast<__nv_bfloat162 *>(m.turned + at) = __floats2bfloat162_rn(left.x, right.x);
    *reinterpret_cast<__nv_bfloat162 *>(m.turned + wide::PANEL + at) = __floats2bfloat162_rn(left.y, right.y);
}

#endif

#endif
