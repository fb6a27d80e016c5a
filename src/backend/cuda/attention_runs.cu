/* Flash decoding by blocks that stay: one block on a multiprocessor takes a run of neighbouring units (a unit is a
 * partition of a K/V head of up to M x 16 queries of one segment), whatever segments they are of. Four warps find the
 * tiles and request the next ones while sixteen others work on one, so memory never waits for arithmetic. Bound: one
 * read of the K/V. Needs the shared memory of sm_90; elsewhere attention.cu does it.
 *
 * Tiles arrive as two pieces of 32 keys in a ring of pieces. The arithmetic of a tile, and what a unit leaves behind,
 * are those of attention.cu on bits: the two accumulators of a score are two warps' here, and are added where the
 * softmax reads them. */
#include "backend/cuda/attention_ring.cuh"

enum {
    RUN_WARPS = 16, /* that compute */
    RUN_THREADS = RUN_WARPS * 32,
    BRING_WARPS = 4, /* that bring tiles */
    BRING_THREADS = BRING_WARPS * 32,
    RUN_BLOCK = RUN_THREADS + BRING_THREADS,
    PIECE_KEYS = KEYS / 2,
    KEY_WARPS = KEYS / 8,                /* warps that have 8 keys each */
    SCORE_PARTS = RUN_WARPS / KEY_WARPS, /* warps that share the scores of the same keys */
    MOST_PIECES = 6,
    TILES_AHEAD = 4,         /* descriptions of tiles in shared memory: one more than the ring can hold */
    BLOCK_BYTES = 227 << 10, /* of shared memory; what a piece takes decides how many fit */
};
static_assert(SCORE_PARTS == 2, "the accumulators of attention.cu");

template <int D, bool SPLIT> struct run_piece {
    bf16 v[PIECE_KEYS][D + PAD];
    bf16 k[SPLIT ? 1 : PIECE_KEYS][SPLIT ? 8 : D + PAD]; /* SPLIT: none */
    float scale_v[PIECE_KEYS], scale_k[PIECE_KEYS];      /* of codes */
};

template <int D, bool SPLIT, int M> struct run_state {
    bf16 turned[SPLIT ? KEYS : 1][SPLIT ? D / 4 + PAD : 8]; /* SPLIT: the dimensions of the keys that RoPE turns */
    bf16 q[M * QUERIES][D + PAD];
    float scores[SCORE_PARTS][M * QUERIES][KEYS + 4];
    bf16 p[M * QUERIES][KEYS + PAD];
    float top[M * QUERIES], sum[M * QUERIES], rescale[M * QUERIES];
    run_query query[2][M * QUERIES]; /* in turns, for who still writes the unit before */
    float2 tile_turn[TILES_AHEAD][SPLIT ? D / 8 : 1];
    run_tile tile[TILES_AHEAD];
    unsigned long long full[MOST_PIECES], empty[MOST_PIECES]; /* barriers of the pieces */
    run_segments<SPLIT ? CUDA_LISTED_SEGMENTS : CUDA_MAX_SEGMENTS> segments;
};

template <int D, bool SPLIT, int M> struct run_memory {
    static const int FIT = (int)((BLOCK_BYTES - sizeof(run_state<D, SPLIT, M>)) / sizeof(run_piece<D, SPLIT>)),
                     PIECES = FIT < MOST_PIECES ? FIT : MOST_PIECES;
    static_assert(PIECES >= 2, "a tile is two pieces");
    static_assert(D / 8 <= BRING_THREADS, "a thread makes one of a tile's turns");
    run_piece<D, SPLIT> piece[PIECES];
    run_state<D, SPLIT, M> state;
};

#if __CUDA_ARCH__ >= 900 || !defined(__CUDA_ARCH__)

/* ------------------------------------------------------------------------------------------------ bringing tiles */

/* Where in the ring of pieces somebody stands, and the parity of its barriers there. */
struct ring_place {
    int at, parity;
};

template <int PIECES> static __device__ __forceinline__ void next_place(ring_place &r) {
    if (++r.at < PIECES) return;
    r.at = 0;
    r.parity ^= 1;
}

enum key_rows { KEYS_OF_EARLIER_STEPS, KEYS_OF_THIS_STEP, ALL_KEYS };

/* The vectors of one kind of a piece: all codes of a thread are requested before the first ones become bf16. Only
 * layers that grow are kept so: no rings. */
template <int D>
static __device__ __forceinline__ void load_codes(bf16 (*to)[D + PAD], float *scales, const cuda_bf16 *rows,
                                                  const cuda_bf16 *sinks, const run_segment &g, const cuda_attention &a,
                                                  const run_cursor &c, int half, key_rows which) {
    const int FOURS = D / 4, AT_ONCE = BRING_THREADS / FOURS, EACH = PIECE_KEYS / AT_ONCE; /* of a row; rows */
    int thread = (int)threadIdx.x - RUN_THREADS, first = thread / FOURS, four = thread % FOURS,
        from = c.base + half * PIECE_KEYS, in_sink = sinks ? g.sink : 0;
    auto wanted = [&](int i) {
        int p = from + i;
        return which == ALL_KEYS || (p >= g.position) == (which == KEYS_OF_THIS_STEP);
    };
    auto vector = [&](int i) -> const unsigned char * {
        int p = from + i;
        bool seen = p >= c.first_begin && p < c.last_end && (p >= c.evicted || p < c.sink);
        return seen ? kv_codes_of(p < in_sink ? sinks : rows, (size_t)p, a.kv_heads, c.head, kv_codes_bytes(D))
                    : nullptr;
    };
    if (which == KEYS_OF_THIS_STEP && from + PIECE_KEYS <= g.position) return;
    uint32_t codes[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const unsigned char *v = wanted(i * AT_ONCE + first) ? vector(i * AT_ONCE + first) : nullptr;
        codes[i] = v ? kv_codes_four(v, four) : 0;
    }
    if (thread < PIECE_KEYS && wanted(thread)) {
        const unsigned char *v = vector(thread);
        scales[thread] = v ? kv_codes_scale(v) : 1.0f;
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int row = i * AT_ONCE + first;
        if (wanted(row)) *reinterpret_cast<uint2 *>(&to[row][four * 4]) = bf16_of_codes(codes[i]);
    }
}

/* The same in 4 bits. */
template <int D>
static __device__ __forceinline__ void load_q4(bf16 (*to)[D + PAD], const cuda_bf16 *rows, const cuda_bf16 *sinks,
                                               const run_segment &g, const cuda_attention &a, const run_cursor &c,
                                               int half, key_rows which) {
    int from = c.base + half * PIECE_KEYS;
    if (which == KEYS_OF_THIS_STEP && from + PIECE_KEYS <= g.position) return;
    auto of_head = [&](const cuda_bf16 *of) { return kv_codes_of(of, 0, a.kv_heads, c.head, kv_q4_form<D>::BYTES); };
    kv_q4_rows r = {.rows = of_head(rows),
                    .sinks = of_head(sinks),
                    .stride = a.kv_heads * kv_q4_form<D>::BYTES,
                    .base = from,
                    .from = which == KEYS_OF_THIS_STEP ? g.position : from,
                    .to = which == KEYS_OF_EARLIER_STEPS ? g.position : INT_MAX,
                    .begin = c.first_begin,
                    .end = c.last_end,
                    .sink = c.sink,
                    .evicted = c.evicted,
                    .in_sink = sinks ? g.sink : 0};
    kv_q4_load_rows<D, D + PAD, PIECE_KEYS, BRING_WARPS>(to[0], r, ((int)threadIdx.x - RUN_THREADS) / 32);
}

/* What no query of the unit sees is zero, for 0 times what is not a number is not 0. Q4: of kernels for K/V in 4 bits
 * alone, whose call would take registers of the others. */
template <int D, bool SPLIT, bool Q4, int N>
static __device__ __forceinline__ void request_piece(run_piece<D, SPLIT> &to, const run_segments<N> &m,
                                                     const cuda_attention &a, const run_cursor &c, int half,
                                                     key_rows which) {
    const int CHUNKS = D / 8, AT_ONCE = BRING_THREADS / CHUNKS; /* chunks of a row; rows */
    const run_segment &g = m.segment[c.segment];
    if constexpr (Q4) {
        load_q4<D>(to.v, g.v, g.sink_v, g, a, c, half, which);
        if constexpr (!SPLIT) load_q4<D>(to.k, g.k, g.sink_k, g, a, c, half, which);
        return;
    }
    if (a.codes) {
        load_codes<D>(to.v, to.scale_v, g.v, g.sink_v, g, a, c, half, which);
        if constexpr (!SPLIT) load_codes<D>(to.k, to.scale_k, g.k, g.sink_k, g, a, c, half, which);
        return;
    }
    int thread = (int)threadIdx.x - RUN_THREADS, first = thread / CHUNKS, chunk = thread % CHUNKS,
        from = c.base + half * PIECE_KEYS, end = from + PIECE_KEYS, capacity = g.capacity, position = g.position;
    int slot = capacity ? from % capacity : from, in_sink = g.sink_v ? g.sink : 0;
    size_t row_values = (size_t)a.kv_heads * D, column = (size_t)c.head * D + chunk * 8;
    bool all_seen = from >= c.first_begin && end <= c.last_end && (from >= c.evicted || end <= c.sink);
    if (all_seen && from >= in_sink && end <= position && (!capacity || slot + PIECE_KEYS <= capacity)) {
        if (which == KEYS_OF_THIS_STEP) return;
        size_t at = (size_t)(slot + first) * row_values + column, step = AT_ONCE * row_values;
        const cuda_bf16 *v = g.v + at, *k = SPLIT ? nullptr : g.k + at;
#pragma unroll
        for (int i = 0; i < PIECE_KEYS / AT_ONCE; i++) {
            copy_async(&to.v[i * AT_ONCE + first][chunk * 8], v + i * step, true);
            if (!SPLIT) copy_async(&to.k[i * AT_ONCE + first][chunk * 8], k + i * step, true);
        }
        return;
    }
#pragma unroll 2
    for (int i = first; i < PIECE_KEYS; i += AT_ONCE) {
        int p = from + i, row = slot + i;
        if (which != ALL_KEYS && (p >= position) != (which == KEYS_OF_THIS_STEP)) continue;
        if (capacity && row >= capacity) row = p % capacity;
        bool seen = p >= c.first_begin && p < c.last_end && (p >= c.evicted || p < c.sink), sink = p < in_sink;
        size_t at = (size_t)(sink ? p : row) * row_values + column;
        copy_async(&to.v[i][chunk * 8], seen ? (sink ? g.sink_v : g.v) + at : a.q, seen);
        if (!SPLIT) copy_async(&to.k[i][chunk * 8], seen ? (sink ? g.sink_k : g.k) + at : a.q, seen);
    }
}

/* What BRING_WARPS do: tiles of the units [now.unit, to) into the ring, what earlier steps stored before the
 * predecessor has ended. */
template <int D, bool SPLIT, int M, bool Q4>
static __device__ __forceinline__ void bring_tiles(run_memory<D, SPLIT, M> &all, const cuda_attention &a,
                                                   const run_cursor &start, int to) {
    const int PIECES = run_memory<D, SPLIT, M>::PIECES, AT_ONCE = M * QUERIES;
    run_state<D, SPLIT, M> &m = all.state;
    int thread = (int)threadIdx.x - RUN_THREADS;
    float frequency = SPLIT && thread < a.pairs ? a.inverse_frequency[thread] : 0;
    run_cursor ahead = start;
    bool more = find_tile<AT_ONCE>(ahead, m.segments, a, to);
    int half = 0, tiles = 0, unit = -1;
    /* The next piece; false: there is none. */
    auto request = [&](int slot, key_rows which) {
        if (half == 0) {
            if (which != KEYS_OF_THIS_STEP) {
                if (thread == 0) m.tile[tiles % TILES_AHEAD] = describe_tile(ahead, unit, more);
                if (SPLIT && thread < a.pairs)
                    m.tile_turn[tiles % TILES_AHEAD][thread] = turn_of_tile(ahead.base, frequency);
            }
            unit = ahead.unit;
            tiles++;
        }
        if (!more) return false;
        request_piece<D, SPLIT, Q4>(all.piece[slot], m.segments, a, ahead, half, which);
        if (half) {
            next_tile(ahead);
            more = find_tile<AT_ONCE>(ahead, m.segments, a, to);
        }
        half ^= 1;
        return true;
    };
    /* What was requested so far, and what describes it, belongs to a piece that is published and to those before. */
    int first = 0;
    unsigned late = 0; /* pieces that miss rows of this step */
    for (; first < PIECES; first++) {
        bool misses = more && ahead.base + (half + 1) * PIECE_KEYS > m.segments.segment[ahead.segment].position;
        if (!request(first, KEYS_OF_EARLIER_STEPS)) break;
        if (misses)
            late |= 1u << first;
        else
            publish(&m.full[first]);
    }
    wait_for_predecessor();
    run_cursor later = ahead;
    bool more_later = more;
    int half_later = half;
    ahead = start;
    more = find_tile<AT_ONCE>(ahead, m.segments, a, to);
    half = tiles = 0;
    for (int i = 0; i < first; i++) {
        (void)request(i, KEYS_OF_THIS_STEP);
        if (late >> i & 1) publish(&m.full[i]);
    }
    ahead = later;
    more = more_later;
    half = half_later;
    if (first < PIECES) { /* what describes the end is there */
        publish(&m.full[first]);
        return;
    }
    ring_place fill = {0, 0};
    for (bool going = true; going;) {
        wait_for(&m.empty[fill.at], fill.parity);
        going = request(fill.at, ALL_KEYS);
        publish(&m.full[fill.at]);
        next_place<PIECES>(fill);
    }
}

/* As a call, which keeps what it needs out of the registers of the warps that compute. Where those have room it is in
 * line, for a called function reads the launch's parameters from memory. */
template <int D, bool SPLIT, int M, bool Q4>
static __device__ __noinline__ void call_bring_tiles(run_memory<D, SPLIT, M> &all, const cuda_attention &a,
                                                     const run_cursor &start, int to) {
    bring_tiles<D, SPLIT, M, Q4>(all, a, start, to);
}

/* -------------------------------------------------------------------------------------------------------- queries */

template <int D, bool SPLIT, int M>
static __device__ __forceinline__ void load_queries(run_state<D, SPLIT, M> &m, run_query (&place)[M * QUERIES],
                                                    const cuda_attention &a, const run_tile &t) {
    const run_segment &g = m.segments.segment[t.segment];
    int group = m.segments.group;
#pragma unroll
    for (int i = threadIdx.x; i < M * QUERIES * (D / 8); i += RUN_THREADS) {
        int query = i / (D / 8), chunk = i % (D / 8), index = t.first_query + query;
        uint4 value = make_uint4(0, 0, 0, 0);
        if (query < t.queries) {
            int row = index / group, row_head = row * a.heads + t.head * group + (index - row * group);
            value = __ldcg(reinterpret_cast<const uint4 *>(
                a.q + ((size_t)g.first_row * a.heads + (size_t)row_head) * D + chunk * 8));
            if (SPLIT && key_column<D>(chunk / 2, D / 8) < 0) value = scale_query(value, a.k_norm + chunk * 8);
            if (chunk == 0) place[query] = {row_head, g.position + row};
        }
        *reinterpret_cast<uint4 *>(&m.q[query][chunk * 8]) = value;
    }
}

template <int D, bool SPLIT, int M>
static __device__ __noinline__ void call_load_queries(run_state<D, SPLIT, M> &m, run_query (&place)[M * QUERIES],
                                                      const cuda_attention &a, const run_tile &t) {
    load_queries<D, SPLIT, M>(m, place, a, t);
}

/* ------------------------------------------------------------------------------------------------- one tile of keys */

/* Of K = V tiles a thread derives two neighbouring columns of either half, of some keys. */
template <int D> struct turn_share {
    static const int TURNED = D / 8, THREADS = TURNED / 2 > 0 ? TURNED / 2 : 1 /* of a key */,
                     AT_ONCE = RUN_THREADS / THREADS, KEYS_EACH = KEYS / AT_ONCE > 0 ? KEYS / AT_ONCE : 1;
    int first, column; /* keys first, first + AT_ONCE, ... */
    float2 norm_low, norm_high;
};

/* Turns of positions inside a tile. */
template <int D> struct inside_turns { float4 pair[turn_share<D>::KEYS_EACH]; };

template <int D> static __device__ __forceinline__ void share_turns(turn_share<D> &t, const cuda_attention &a) {
    t.first = (int)threadIdx.x / turn_share<D>::THREADS;
    t.column = (int)threadIdx.x % turn_share<D>::THREADS * 2;
    t.norm_low = *reinterpret_cast<const float2 *>(a.k_norm + t.column);
    t.norm_high = *reinterpret_cast<const float2 *>(a.k_norm + t.column + D / 2);
}

template <int D>
static __device__ __forceinline__ void load_turns(inside_turns<D> &inside, const turn_share<D> &t,
                                                  const cuda_attention &a) {
    const float2 *from = a.key_turns + t.first * turn_share<D>::TURNED + t.column;
    asm volatile("" : "+l"(from)); /* else all of them are loaded once, and kept in local memory */
#pragma unroll
    for (int i = 0; i < turn_share<D>::KEYS_EACH; i++)
        inside.pair[i] = __ldg(reinterpret_cast<const float4 *>(from + i * turn_share<D>::AT_ONCE * (D / 8)));
}

/* The dimensions of the keys of a K = V tile that RoPE turns. */
template <int D, int M>
static __device__ __forceinline__ void derive_turned(run_state<D, true, M> &m, const run_piece<D, true> &low,
                                                     const run_piece<D, true> &high, const turn_share<D> &t,
                                                     const inside_turns<D> &inside, const float2 *tile_turn) {
    const int TURNED = turn_share<D>::TURNED;
    int c = t.column;
    float2 tile[2] = {tile_turn[c], tile_turn[c + 1]};
#pragma unroll
    for (int i = 0; i < turn_share<D>::KEYS_EACH; i++) {
        int key = t.first + i * turn_share<D>::AT_ONCE;
        const bf16 *row = key < PIECE_KEYS ? low.v[key] : high.v[key - PIECE_KEYS];
        float2 x = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162 *>(row + c)),
               y = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162 *>(row + D / 2 + c));
        float4 turns = inside.pair[i];
        float2 first = turn_key(x.x * t.norm_low.x, y.x * t.norm_high.x, tile[0], make_float2(turns.x, turns.y)),
               second = turn_key(x.y * t.norm_low.y, y.y * t.norm_high.y, tile[1], make_float2(turns.z, turns.w));
        *reinterpret_cast<__nv_bfloat162 *>(&m.turned[key][c]) = __floats2bfloat162_rn(first.x, second.x);
        *reinterpret_cast<__nv_bfloat162 *>(&m.turned[key][TURNED + c]) = __floats2bfloat162_rn(first.y, second.y);
    }
}

/* A warp has 8 keys and every other 16 dimensions. */
template <int D, bool SPLIT, int M>
static __device__ __forceinline__ void score_tile(run_state<D, SPLIT, M> &m, const run_piece<D, SPLIT> &low,
                                                  const run_piece<D, SPLIT> &high, int query_tiles) {
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, part = warp / KEY_WARPS, of_keys = warp % KEY_WARPS;
    int key = of_keys * 8 + (lane & 7), offset = (lane >> 3 & 1) * 8, upper = lane >> 4;
    int query = (lane & 7) + (lane >> 3 & 1) * 8, query_offset = (lane >> 4) * 8;
    const run_piece<D, SPLIT> &piece = of_keys < KEY_WARPS / 2 ? low : high;
    const bf16 *values = piece.v[key % PIECE_KEYS], *keys = SPLIT ? m.turned[key] : piece.k[key % PIECE_KEYS];
    float s[M][4] = {};
    const int STEPS = D / 16 / (2 * SCORE_PARTS), AHEAD = M == 1 && STEPS % 4 == 0 ? 4 : STEPS % 2 == 0 ? 2 : 1;
#pragma unroll
    for (int step = 0; step < STEPS; step += AHEAD) {
        uint32_t q[AHEAD][2][4], k[AHEAD][4];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int c = part + (step + i) * 2 * SCORE_PARTS, mine = c + upper * SCORE_PARTS,
                at = SPLIT ? key_column<D>(mine, D / 8) : mine * 16;
            load_matrices(k[i], SPLIT && at < 0 ? values + mine * 16 + offset : keys + at + offset);
        }
#pragma unroll
        for (int j = 0; j < M; j++) {
            if (j >= query_tiles) break;
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                int c = part + (step + i) * 2 * SCORE_PARTS;
                load_matrices(q[i][0], &m.q[j * QUERIES + query][c * 16 + query_offset]);
                load_matrices(q[i][1], &m.q[j * QUERIES + query][(c + SCORE_PARTS) * 16 + query_offset]);
            }
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                mma_bf16(s[j], q[i][0][0], q[i][0][1], q[i][0][2], q[i][0][3], k[i][0], k[i][1]);
                mma_bf16(s[j], q[i][1][0], q[i][1][1], q[i][1][2], q[i][1][3], k[i][2], k[i][3]);
            }
        }
    }
    int g = lane >> 2, column = of_keys * 8 + 2 * (lane & 3);
#pragma unroll
    for (int j = 0; j < M; j++) {
        *reinterpret_cast<float2 *>(&m.scores[part][j * QUERIES + g][column]) = make_float2(s[j][0], s[j][1]);
        *reinterpret_cast<float2 *>(&m.scores[part][j * QUERIES + g + 8][column]) = make_float2(s[j][2], s[j][3]);
    }
}

template <int D, int M> struct run_output {
    static const int TILES = (D / 8 + RUN_WARPS - 1) / RUN_WARPS; /* of 8 dimensions, of each warp */
    float value[M][TILES][4];
};

template <int D, bool SPLIT, int M>
static __device__ __forceinline__ void add_values(run_output<D, M> &o, const run_state<D, SPLIT, M> &m,
                                                  const run_piece<D, SPLIT> &low, const run_piece<D, SPLIT> &high,
                                                  int query_tiles) {
    const int TILES = run_output<D, M>::TILES;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2;
    int query = (lane & 7) + (lane >> 3 & 1) * 8, query_offset = (lane >> 4) * 8;
    if (warp * TILES >= D / 8) return;
    auto load = [&](uint32_t(&v)[2][4], int n) {
        int d = (warp * TILES + n) * 8;
        load_matrices_transposed(v[0], &low.v[lane][d]);
        load_matrices_transposed(v[1], &high.v[lane][d]);
    };
#pragma unroll
    for (int j = 0; j < M; j++) {
        if (j >= query_tiles) break;
        uint32_t v[2][2][4], p[4][4];
        load(v[0], 0);
        float rescale[2] = {m.rescale[j * QUERIES + g], m.rescale[j * QUERIES + g + 8]};
#pragma unroll
        for (int k = 0; k < 4; k++) load_matrices(p[k], &m.p[j * QUERIES + query][k * 16 + query_offset]);
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            float(&to)[4] = o.value[j][n];
            if (n + 1 < TILES) load(v[(n + 1) & 1], n + 1);
#pragma unroll
            for (int i = 0; i < 4; i++) to[i] *= rescale[i / 2];
#pragma unroll
            for (int k = 0; k < 4; k++)
                mma_bf16(to, p[k][0], p[k][1], p[k][2], p[k][3], v[n & 1][k / 2][k % 2 * 2],
                         v[n & 1][k / 2][k % 2 * 2 + 1]);
        }
    }
}

/* ------------------------------------------------------------------------------------------------------ computing */

/* States of units without keys, and of partitions that no unit stands for. */
template <int AT_ONCE, int N>
static __device__ __forceinline__ void write_empty_units(const run_segments<N> &m, const cuda_attention &a, int segment,
                                                         int from, int to) {
    for (int unit = from + (int)threadIdx.x; unit < to; unit += RUN_THREADS) {
        run_cursor c = {};
        c.unit = unit;
        c.segment = segment;
        find_place(c, m);
        enter_queries<AT_ONCE>(c, m, a);
        enter_partition(c, m, a);
        const run_segment &g = m.segment[c.segment];
        bool last = c.partition + 1 == g.used;
        if (c.base < c.end && (!last || g.used == g.partitions)) continue;
        for (int query = 0; query < c.queries; query++) {
            int index = c.first_query + query, row = index / m.group;
            float2 *state = a.state + g.first_cell +
                            (size_t)(row * a.heads + c.head * m.group + index - row * m.group) * g.partitions;
            if (c.base >= c.end) state[c.partition] = make_float2(-INFINITY, 0);
            for (int i = g.used; last && i < g.partitions; i++) state[i] = make_float2(-INFINITY, 0);
        }
    }
}

/* What a unit leaves: values that are not yet divided by their sum, and their state. */
template <int D, bool SPLIT, int M>
static __device__ __forceinline__ void write_unit(const run_output<D, M> &o, const run_state<D, SPLIT, M> &m,
                                                  const cuda_attention &a, const run_tile &t,
                                                  const run_query (&place)[M * QUERIES]) {
    const int TILES = run_output<D, M>::TILES;
    const run_segment &g = m.segments.segment[t.segment];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    auto cell_of = [&](int query) { return g.first_cell + (size_t)place[query].row_head * g.partitions + t.partition; };
#pragma unroll
    for (int j = 0; j < M; j++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int query = j * QUERIES + half * 8 + (lane >> 2);
            if (query >= t.queries) continue;
            float *to = a.partial + cell_of(query) * D + 2 * (lane & 3);
#pragma unroll
            for (int n = 0; n < TILES; n++) {
                int tile = warp * TILES + n;
                if (tile >= D / 8) break;
                *reinterpret_cast<float2 *>(to + tile * 8) =
                    make_float2(o.value[j][n][half * 2], o.value[j][n][half * 2 + 1]);
            }
        }
    }
    int query = threadIdx.x;
    if (query < t.queries) a.state[cell_of(query)] = make_float2(m.top[query], m.sum[query]);
}

template <int D, bool SPLIT, int M, bool Q4>
static __device__ __forceinline__ void compute_tiles(run_memory<D, SPLIT, M> &all, const cuda_attention &a, int segment,
                                                     int from, int to) {
    const int PIECES = run_memory<D, SPLIT, M>::PIECES;
    run_state<D, SPLIT, M> &m = all.state;
    int lane = threadIdx.x & 31, query = (int)threadIdx.x / QUERY_THREADS;
    turn_share<D> turns;
    if constexpr (SPLIT) share_turns(turns, a);
    wait_for_predecessor();
    write_empty_units<M * QUERIES>(m.segments, a, segment, from, to);
    run_output<D, M> o = {};
    visible_range mine = {};
    int side = 0, held = -1; /* held: whose queries are in shared memory */
    ring_place take = {0, 0};
    for (int tiles = 0;; tiles++) {
        ring_place first = take;
        inside_turns<D> inside;
        if constexpr (SPLIT) load_turns(inside, turns, a);
        wait_for(&m.full[first.at], first.parity);
        const run_tile t = m.tile[tiles % TILES_AHEAD];
        if (t.flags & TILE_IS_NONE) return;
        int query_tiles = (t.queries + QUERIES - 1) / QUERIES,
            whose = (int)((unsigned)t.segment << 24) + (t.head << 12) + t.query_tile;
        if (whose != held) { /* all have used the others for the last time before they wrote probabilities */
            held = whose;
            side ^= 1;
            if constexpr (SPLIT)
                call_load_queries<D, SPLIT, M>(m, m.query[side], a, t);
            else
                load_queries<D, SPLIT, M>(m, m.query[side], a, t);
            working_barrier<RUN_THREADS>();
            const run_segment &g = m.segments.segment[t.segment];
            mine = visible_of_row(m.query[side][min(query, t.queries - 1)].position, a.sliding_window, g.bounded,
                                  g.sink, g.window);
        }
        if (t.flags & TILE_BEGINS_UNIT) o = {};
        next_place<PIECES>(take);
        const run_piece<D, SPLIT> &low = all.piece[first.at], &high = all.piece[take.at];
        ring_place second = take;
        wait_for(&m.full[second.at], second.parity);
        next_place<PIECES>(take);
        if constexpr (SPLIT) {
            derive_turned<D, M>(m, low, high, turns, inside, m.tile_turn[tiles % TILES_AHEAD]);
            working_barrier<RUN_THREADS>();
        }
        score_tile<D, SPLIT, M>(m, low, high, query_tiles);
        working_barrier<RUN_THREADS>();
        if (query < query_tiles * QUERIES) {
            bool begun = !(t.flags & TILE_BEGINS_UNIT), valid = query < t.queries;
            auto scale_of = [&](int key, bool of_key) {
                const run_piece<D, SPLIT> &piece = key < PIECE_KEYS ? low : high;
                return (of_key && !SPLIT ? piece.scale_k : piece.scale_v)[key % PIECE_KEYS];
            };
            auto score = [&](int key) {
                bool seen = valid && sees_exactly(mine, t.base + key);
                if (!seen) return -INFINITY;
                float sum = m.scores[0][query][key] + m.scores[1][query][key];
                return !Q4 && a.codes ? sum * scale_of(key, true) : sum;
            };
            query_state state = soften(begun ? m.top[query] : -INFINITY, begun ? m.sum[query] : 0, score, m.p[query],
                                       !Q4 && a.codes, [&](int key) { return scale_of(key, false); });
            __syncwarp();
            if (threadIdx.x % QUERY_THREADS == 0) {
                m.top[query] = state.top;
                m.sum[query] = state.sum;
                m.rescale[query] = state.rescale;
            }
        }
        working_barrier<RUN_THREADS>();
        add_values<D, SPLIT, M>(o, m, low, high, query_tiles);
        __syncwarp();
        if (lane == 0) {
            arrive(&m.empty[first.at]);
            arrive(&m.empty[second.at]);
        }
        if (t.flags & TILE_ENDS_UNIT) write_unit<D, SPLIT, M>(o, m, a, t, m.query[side]);
    }
}

#endif

template <int D, bool SPLIT, int M, bool Q4>
static __global__ __launch_bounds__(RUN_BLOCK, 1) void attend_runs_kernel(const cuda_batch *batch,
                                                                          const __grid_constant__ cuda_attention a) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(16) unsigned char memory[];
    run_memory<D, SPLIT, M> &all = *reinterpret_cast<run_memory<D, SPLIT, M> *>(memory);
    run_state<D, SPLIT, M> &m = all.state;
    const int PIECES = run_memory<D, SPLIT, M>::PIECES, AT_ONCE = M * QUERIES;
    if ((int)threadIdx.x < PIECES)
        init_barriers(&m.full[threadIdx.x], BRING_THREADS + BRING_WARPS, &m.empty[threadIdx.x], RUN_WARPS);
    load_segments<AT_ONCE>(m.segments, batch, a);
    int from = first_unit_of(m.segments, a, blockIdx.x), to = first_unit_of(m.segments, a, blockIdx.x + 1),
        segment = segment_of(m.segments.first_unit, from);
    if (threadIdx.x >= RUN_THREADS) {
        run_cursor start = {};
        start.unit = from;
        start.segment = segment;
        if (from < to) {
            find_place(start, m.segments);
            enter_queries<AT_ONCE>(start, m.segments, a);
            enter_partition(start, m.segments, a);
        }
        if constexpr (SPLIT)
            call_bring_tiles<D, SPLIT, M, Q4>(all, a, start, to);
        else
            bring_tiles<D, SPLIT, M, Q4>(all, a, start, to);
        return;
    }
    compute_tiles<D, SPLIT, M, Q4>(all, a, segment, from, to);
#endif
}

/* -------------------------------------------------------------------------------------------------------- launches */

/* K = V layers: RoPE turns a quarter of the dimensions. */
static bool splits(const cuda_attention &a) {
    return a.k_norm && a.pairs * 8 == a.head_dim && turned_columns(a.pairs) == a.pairs;
}

int cuda_attend_runs_segments(const cuda_attention *a) { return splits(*a) ? CUDA_LISTED_SEGMENTS : CUDA_MAX_SEGMENTS; }

template <int D, bool SPLIT, int M>
static void launch_runs(const cuda_launch *l, const cuda_batch *batch, const cuda_attention *a, int units) {
    launch_kernel(
        l, a->codes == CUDA_KV_Q4 ? attend_runs_kernel<D, SPLIT, M, true> : attend_runs_kernel<D, SPLIT, M, false>,
        dim3(units < l->multiprocessors ? units : l->multiprocessors), dim3(RUN_BLOCK), sizeof(run_memory<D, SPLIT, M>),
        batch, *a);
}

template <int D, bool SPLIT>
static void launch_of(const cuda_launch *l, const cuda_batch *batch, const cuda_attention *a) {
    int queries = a->segment_rows * (a->heads / a->kv_heads), units = a->partitions * a->kv_heads * a->segments;
    if (queries <= QUERIES)
        launch_runs<D, SPLIT, 1>(l, batch, a, units);
    else
        launch_runs<D, SPLIT, 2>(l, batch, a, units * ceil_div(queries, 2 * QUERIES));
}

template <int D> static bool launch_split(const cuda_launch *l, const cuda_batch *batch, const cuda_attention *a) {
    if (splits(*a))
        launch_of<D, true>(l, batch, a);
    else
        launch_of<D, false>(l, batch, a);
    return true;
}

bool cuda_attend_runs(const cuda_launch *l, const cuda_batch *batch, const cuda_attention *a) {
    enum { SMALL_BLOCKS = 4 };                      /* of attention.cu, for each multiprocessor: two times two */
    if (l->block_bytes < BLOCK_BYTES) return false; /* older than sm_90, or a small device */
    if (a->final || a->drafter || a->restored_k || (a->k_norm && !splits(*a))) return false;
    int tiles = ceil_div(a->segment_rows * (a->heads / a->kv_heads), QUERIES);
    if (a->sliding_window && a->partitions * a->kv_heads * a->segments * tiles <= SMALL_BLOCKS * l->multiprocessors)
        return false; /* a tile each, at once or in two turns */
    switch (a->head_dim) {
    case 64:
        launch_of<64, false>(l, batch, a);
        return true;
    case 128:
        return launch_split<128>(l, batch, a);
    case 256:
        return launch_split<256>(l, batch, a);
    case 512:
        return launch_split<512>(l, batch, a);
    default:
        return false;
    }
}

template <int D, bool SPLIT, int M> static cudaError_t allow_runs(void) {
    const int bytes = (int)sizeof(run_memory<D, SPLIT, M>);
    cudaError_t status = cudaFuncSetAttribute(attend_runs_kernel<D, SPLIT, M, false>,
                                              cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (status != cudaSuccess) return status;
    return cudaFuncSetAttribute(attend_runs_kernel<D, SPLIT, M, true>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                bytes);
}

template <int D, bool SPLIT> static cudaError_t allow_of(void) {
    cudaError_t status = allow_runs<D, SPLIT, 1>();
    return status == cudaSuccess ? allow_runs<D, SPLIT, 2>() : status;
}

template <int D> static cudaError_t allow_split(void) {
    cudaError_t status = allow_of<D, true>();
    return status == cudaSuccess ? allow_of<D, false>() : status;
}

cudaError_t cuda_attend_runs_prepare(int head_dim) {
    int device = 0, most = 0;
    cudaError_t status = cudaGetDevice(&device);
    if (status == cudaSuccess) status = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (status != cudaSuccess || most < BLOCK_BYTES) return status; /* then it is never launched */
    switch (head_dim) {
    case 64:
        return allow_of<64, false>();
    case 128:
        return allow_split<128>();
    case 256:
        return allow_split<256>();
    case 512:
        return allow_split<512>();
    default:
        return cudaSuccess;
    }
}
