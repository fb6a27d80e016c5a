/* Flash decoding of K = V layers with head dimension 512 whose values are kept in 8 bits: one block on a multiprocessor
 * takes a run of neighbouring units (a unit is a partition of a K/V head of up to N x 8 queries of one segment). Bound:
 * one read of the codes. Needs the shared memory of sm_90; elsewhere attention.cu does it.
 *
 * Vectors are aligned to 4 bytes alone, so four warps bring the 33 pieces of 16 bytes that hold one. Sixteen warps turn
 * codes into bf16 in registers, as operands of the tensor cores: keys and values are the rows of 16, queries the
 * columns of 8. A warp has 16 keys and a quarter of the dimensions of the scores, and 32 dimensions of the values.
 * Dimensions (of scores) and keys (of values) are permuted inside of their 16, so that a thread's four are neighbours
 * in memory.
 *
 * Between two barriers are the scores of one tile of keys, the softmax of the tile before and the values of the one
 * before that. A query's arithmetic depends neither on N nor on the queries beside it. */
#include "backend/cuda/attention_ring.cuh"

enum {
    CODE_WARPS = 16, /* that compute */
    CODE_THREADS = CODE_WARPS * 32,
    CODE_BRING_WARPS = 4,
    CODE_BRING_THREADS = CODE_BRING_WARPS * 32,
    CODE_BLOCK = CODE_THREADS + CODE_BRING_THREADS,
    CODE_DIM = 512,
    CODE_PAIRS = CODE_DIM / 8, /* that RoPE turns: dimensions c and c + CODE_DIM / 2 */
    CODE_PIECES = CODE_DIM / 16 + 1,
    CODE_ROW_WORDS = CODE_PIECES * 4,
    CODE_KEYS = KEYS / 16,                      /* groups of 16 keys */
    CODE_PARTS = CODE_WARPS / CODE_KEYS,        /* warps that share the dimensions of a score */
    CODE_TURNED = CODE_PAIRS / CODE_PARTS / 16, /* steps of 16 turned dimensions of either half, of a warp */
    CODE_PLAIN = (CODE_DIM - 2 * CODE_PAIRS) / 16 / CODE_PARTS, /* steps of others */
    CODE_MOST_SLOTS = 6,
    CODE_SHARED = 227 << 10,
};
static_assert(CODE_TURNED == 1 && CODE_PLAIN == 6 && CODE_PARTS == 4, "a warp's share of a score");

/* Rows of even keys come first: then no two of a warp's accesses meet in a bank. */
struct __align__(16) code_slot {
    uint32_t row[KEYS][CODE_ROW_WORDS];
    float2 turn[CODE_PAIRS];
    run_tile tile;
};

template <int N> struct __align__(16) code_state {
    bf16 q[N * 8][CODE_DIM + 16];
    float scores[2][CODE_PARTS][N * 8][KEYS + 4];
    bf16 p[2][N * 8][KEYS + 16];
    float rescale[2][N * 8], top[N * 8], sum[N * 8];
    run_query query[4][N * 8]; /* in turns, for who still writes units before */
    unsigned long long full[CODE_MOST_SLOTS], empty[CODE_MOST_SLOTS];
    run_segments<CUDA_LISTED_SEGMENTS> segments;
};

template <int N> struct code_memory {
    static const int FIT = (int)((CODE_SHARED - sizeof(code_state<N>)) / sizeof(code_slot)),
                     SLOTS = FIT < CODE_MOST_SLOTS ? FIT : CODE_MOST_SLOTS;
    static_assert(SLOTS >= 3, "two tiles are worked on while one comes");
    code_slot slot[SLOTS];
    code_state<N> state;
};

#if __CUDA_ARCH__ >= 900 || !defined(__CUDA_ARCH__)

/* ------------------------------------------------------------------------------------------------ bringing tiles */

/* Where key i of a tile lies among the rows. */
static __device__ __forceinline__ int code_place(int i) { return i / 2 + i % 2 * (KEYS / 2); }

/* The first word of a vector in its row of pieces. Tiles begin at multiples of four, so a key's place in its tile will
 * do for its position. */
static __device__ __forceinline__ int code_shift(int position, int head, int kv_heads) {
    return (position * kv_heads + head) * ((CODE_DIM + KV_CODES_AT) / 4) & 3;
}

enum code_rows { CODES_OF_EARLIER_STEPS, CODES_OF_THIS_STEP, ALL_CODES };

/* What no query of the unit sees is left as it was: any codes are numbers, and its scale is not used. */
static __device__ __forceinline__ void request_codes(code_slot &to, const run_segments<CUDA_LISTED_SEGMENTS> &m,
                                                     const cuda_attention &a, const run_cursor &c, code_rows which) {
    const run_segment &g = m.segment[c.segment];
    if (which == CODES_OF_THIS_STEP && c.base + KEYS <= g.position) return;
    int warp = ((int)threadIdx.x - CODE_THREADS) / 32, lane = threadIdx.x & 31, in_sink = g.sink_v ? g.sink : 0;
    auto piece = [&](int i, int chunk) {
        int p = c.base + i;
        if (which != ALL_CODES && (p >= g.position) != (which == CODES_OF_THIS_STEP)) return;
        if (p < c.first_begin || p >= c.last_end || (p < c.evicted && p >= c.sink)) return;
        const unsigned char *vector =
            kv_codes_of(p < in_sink ? g.sink_v : g.v, (size_t)p, a.kv_heads, c.head, kv_codes_bytes(CODE_DIM));
        vector -= code_shift(p, c.head, a.kv_heads) * 4;
        copy_async(&to.row[code_place(i)][chunk * 4], vector + chunk * 16, true);
    };
#pragma unroll 4
    for (int i = warp; i < KEYS; i += CODE_BRING_WARPS) piece(i, lane);
    if (lane < KEYS / CODE_BRING_WARPS) piece(lane * CODE_BRING_WARPS + warp, CODE_PIECES - 1);
}

template <int N>
static __device__ __forceinline__ void bring_codes(code_memory<N> &all, const cuda_attention &a,
                                                   const run_cursor &start, int to) {
    const int SLOTS = code_memory<N>::SLOTS, AT_ONCE = N * 8;
    code_state<N> &m = all.state;
    int thread = (int)threadIdx.x - CODE_THREADS, unit = -1;
    float frequency = thread < CODE_PAIRS ? a.inverse_frequency[thread] : 0;
    run_cursor c = start;
    bool more = find_tile<AT_ONCE>(c, m.segments, a, to);
    auto describe = [&](code_slot &slot) {
        if (thread == 0) slot.tile = describe_tile(c, unit, more);
        if (thread < CODE_PAIRS && more) slot.turn[thread] = turn_of_tile(c.base, frequency);
        unit = c.unit;
    };
    auto advance = [&]() {
        next_tile(c);
        more = find_tile<AT_ONCE>(c, m.segments, a, to);
    };
    int first = 0;
    unsigned late = 0; /* tiles that miss rows of this step */
    for (; first < SLOTS; first++) {
        describe(all.slot[first]);
        if (!more) break;
        request_codes(all.slot[first], m.segments, a, c, CODES_OF_EARLIER_STEPS);
        if (c.base + KEYS > m.segments.segment[c.segment].position)
            late |= 1u << first;
        else
            publish(&m.full[first]);
        advance();
    }
    wait_for_predecessor();
    if (late) {
        run_cursor ahead = c;
        bool more_ahead = more;
        c = start;
        more = find_tile<AT_ONCE>(c, m.segments, a, to);
        for (int i = 0; i < first; i++) {
            if (late >> i & 1) {
                request_codes(all.slot[i], m.segments, a, c, CODES_OF_THIS_STEP);
                publish(&m.full[i]);
            }
            advance();
        }
        c = ahead;
        more = more_ahead;
    }
    if (first < SLOTS) { /* what describes the end is there */
        publish(&m.full[first]);
        return;
    }
    int at = 0, parity = 0;
    for (bool going = true; going;) {
        wait_for(&m.empty[at], parity);
        describe(all.slot[at]);
        going = more;
        if (going) {
            request_codes(all.slot[at], m.segments, a, c, ALL_CODES);
            advance();
        }
        publish(&m.full[at]);
        if (++at == SLOTS) {
            at = 0;
            parity ^= 1;
        }
    }
}

/* -------------------------------------------------------------------------------------------------------- queries */

/* Of every four dimensions the second and third change places, as in the operands made of codes. */
template <int N>
static __device__ __forceinline__ void load_code_queries(code_state<N> &m, run_query (&place)[N * 8],
                                                         const cuda_attention &a, const run_tile &t) {
    const run_segment &g = m.segments.segment[t.segment];
    int group = m.segments.group;
    for (int i = threadIdx.x; i < N * 8 * (CODE_DIM / 8); i += CODE_THREADS) {
        int query = i / (CODE_DIM / 8), chunk = i % (CODE_DIM / 8), index = t.first_query + query;
        uint4 value = make_uint4(0, 0, 0, 0);
        if (query < t.queries) {
            int row = index / group, row_head = row * a.heads + t.head * group + (index - row * group);
            value = __ldcg(reinterpret_cast<const uint4 *>(
                a.q + ((size_t)g.first_row * a.heads + (size_t)row_head) * CODE_DIM + chunk * 8));
            if (key_column<CODE_DIM>(chunk / 2, CODE_PAIRS) < 0) value = scale_query(value, a.k_norm + chunk * 8);
            if (chunk == 0) place[query] = {row_head, g.position + row};
        }
        value = make_uint4(__byte_perm(value.x, value.y, 0x5410), __byte_perm(value.x, value.y, 0x7632),
                           __byte_perm(value.z, value.w, 0x5410), __byte_perm(value.z, value.w, 0x7632));
        *reinterpret_cast<uint4 *>(&m.q[query][chunk * 8]) = value;
    }
}

/* --------------------------------------------------------------------------------------------------------- scores */

/* What a thread needs to turn keys: of its two keys of a tile and its four dimensions. */
struct code_turns {
    float2 inside[2][4];
    float norm_low[4], norm_high[4];
};

static __device__ __forceinline__ void load_code_turns(code_turns &t, const cuda_attention &a) {
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, column = warp / CODE_KEYS * 16 + lane % 4 * 4;
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int k = 0; k < 2; k++)
            t.inside[k][i] = __ldg(a.key_turns + (warp % CODE_KEYS * 16 + lane / 4 * 2 + k) * CODE_PAIRS + column + i);
        t.norm_low[i] = a.k_norm[column + i];
        t.norm_high[i] = a.k_norm[column + i + CODE_DIM / 2];
    }
}

/* Code i of four, each with its sign turned round: 2^23 + code + 128 without that. */
template <int I> static __device__ __forceinline__ float float_of_code(uint32_t biased) {
    return __uint_as_float(__byte_perm(biased, 0x4b000000u, 0x7540 + I)) - 8388736.0f;
}

static __device__ __forceinline__ uint32_t pack_two(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<uint32_t *>(&pair);
}

/* Codes 0 and 2, then 1 and 3. */
static __device__ __forceinline__ void spread_codes(uint32_t (&to)[2], uint32_t four) {
    to[0] = bf16_of_two(four);
    to[1] = bf16_of_two(four >> 8);
}

template <int N>
static __device__ __forceinline__ void score_codes(code_state<N> &m, const code_slot &slot, int side,
                                                   const code_turns &turns, int kv_heads, int query_tiles) {
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, part = warp / CODE_KEYS, g = lane >> 2, t = lane & 3;
    int key = warp % CODE_KEYS * 16 + g * 2, head = slot.tile.head;
    const uint32_t *even = slot.row[code_place(key)] + code_shift(key, head, kv_heads) + 1 + t,
                   *odd = slot.row[code_place(key + 1)] + code_shift(key + 1, head, kv_heads) + 1 + t;
    float s[N][4] = {};
    auto multiply = [&](int step, const uint32_t(&first)[2], const uint32_t(&second)[2]) {
#pragma unroll
        for (int n = 0; n < N; n++) {
            if (n >= query_tiles) break;
            uint2 q = *reinterpret_cast<const uint2 *>(&m.q[n * 8 + g][step * 16 + t * 4]);
            mma_bf16(s[n], first[0], second[0], first[1], second[1], q.x, q.y);
        }
    };
    uint32_t keys[2][2][2]; /* of either half and key */
    float4 tile[2] = {*reinterpret_cast<const float4 *>(&slot.turn[part * 16 + t * 4]),
                      *reinterpret_cast<const float4 *>(&slot.turn[part * 16 + t * 4 + 2])};
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const uint32_t *row = k ? odd : even;
        uint32_t low = row[part * 4] ^ 0x80808080u, high = row[part * 4 + CODE_DIM / 8] ^ 0x80808080u;
        float x[4] = {float_of_code<0>(low), float_of_code<1>(low), float_of_code<2>(low), float_of_code<3>(low)},
              y[4] = {float_of_code<0>(high), float_of_code<1>(high), float_of_code<2>(high), float_of_code<3>(high)};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 by = i % 2 ? make_float2(tile[i / 2].z, tile[i / 2].w) : make_float2(tile[i / 2].x, tile[i / 2].y);
            float2 turned = turn_key(x[i] * turns.norm_low[i], y[i] * turns.norm_high[i], by, turns.inside[k][i]);
            x[i] = turned.x;
            y[i] = turned.y;
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            keys[0][k][i] = pack_two(x[i], x[i + 2]);
            keys[1][k][i] = pack_two(y[i], y[i + 2]);
        }
    }
    multiply(part, keys[0][0], keys[0][1]);
    multiply(part + CODE_DIM / 32, keys[1][0], keys[1][1]);
#pragma unroll
    for (int i = 0; i < CODE_PLAIN; i++) {
        /* the steps of either half behind those that are turned */
        int half = i / (CODE_PLAIN / 2),
            step = half * (CODE_DIM / 32) + CODE_PARTS + part * (CODE_PLAIN / 2) + i % (CODE_PLAIN / 2);
        uint32_t first[2], second[2];
        spread_codes(first, even[step * 4]);
        spread_codes(second, odd[step * 4]);
        multiply(step, first, second);
    }
#pragma unroll
    for (int n = 0; n < N; n++) {
        if (n >= query_tiles) break;
        *reinterpret_cast<float2 *>(&m.scores[side][part][n * 8 + t * 2][key]) = make_float2(s[n][0], s[n][2]);
        *reinterpret_cast<float2 *>(&m.scores[side][part][n * 8 + t * 2 + 1][key]) = make_float2(s[n][1], s[n][3]);
    }
}

/* --------------------------------------------------------------------------------------------------------- values */

template <int N> struct code_output { float value[N][2][4]; };

template <int N>
static __device__ __forceinline__ void add_codes(code_output<N> &o, const code_state<N> &m, const code_slot &slot,
                                                 int side, int kv_heads, int query_tiles) {
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const uint32_t *own[4]; /* of a thread's four keys of 16 */
#pragma unroll
    for (int j = 0; j < 4; j++)
        own[j] = slot.row[code_place(t * 4 + j)] + code_shift(j, slot.tile.head, kv_heads) + 1 + warp * 8 + g;
#pragma unroll
    for (int n = 0; n < N; n++) {
        if (n >= query_tiles) break;
        float2 rescale = *reinterpret_cast<const float2 *>(&m.rescale[side][n * 8 + t * 2]);
#pragma unroll
        for (int i = 0; i < 8; i++) o.value[n][i / 4][i % 4] *= i % 2 ? rescale.y : rescale.x;
    }
#pragma unroll
    for (int k = 0; k < CODE_KEYS; k++) {
        uint32_t word[4], v[4][2]; /* of dimension i: keys 0 and 1, 2 and 3 */
#pragma unroll
        for (int j = 0; j < 4; j++) word[j] = own[j][k * 8 * CODE_ROW_WORDS];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            uint32_t low = __byte_perm(word[2 * j], word[2 * j + 1], 0x5410),
                     high = __byte_perm(word[2 * j], word[2 * j + 1], 0x7632);
            v[0][j] = bf16_of_two(low);
            v[1][j] = bf16_of_two(low >> 8);
            v[2][j] = bf16_of_two(high);
            v[3][j] = bf16_of_two(high >> 8);
        }
#pragma unroll
        for (int n = 0; n < N; n++) {
            if (n >= query_tiles) break;
            uint2 p = *reinterpret_cast<const uint2 *>(&m.p[side][n * 8 + g][k * 16 + t * 4]);
            mma_bf16(o.value[n][0], v[0][0], v[1][0], v[0][1], v[1][1], p.x, p.y);
            mma_bf16(o.value[n][1], v[2][0], v[3][0], v[2][1], v[3][1], p.x, p.y);
        }
    }
}

/* ------------------------------------------------------------------------------------------------------ computing */

/* States of units without keys, and of partitions that no unit stands for. */
template <int AT_ONCE>
static __device__ __forceinline__ void write_units_without_codes(const run_segments<CUDA_LISTED_SEGMENTS> &m,
                                                                 const cuda_attention &a, int from, int to) {
    for (int unit = from + (int)threadIdx.x; unit < to; unit += CODE_THREADS) {
        run_cursor c = {};
        c.unit = unit;
        find_place(c, m);
        enter_queries<AT_ONCE>(c, m, a);
        enter_partition(c, m, a);
        if (c.base < c.end) continue;
        const run_segment &g = m.segment[c.segment];
        for (int query = 0; query < c.queries; query++) {
            int index = c.first_query + query, row = index / m.group,
                row_head = row * a.heads + c.head * m.group + index - row * m.group;
            a.state[g.first_cell + (size_t)row_head * g.partitions + c.partition] = make_float2(-INFINITY, 0);
        }
    }
}

/* A tile's probabilities; with its last tile a unit's state. */
template <int N>
static __device__ __forceinline__ void soften_codes(code_state<N> &m, const code_slot &slot, const cuda_attention &a,
                                                    int side, const visible_range &mine, const run_query &place) {
    int query = (int)threadIdx.x / QUERY_THREADS % (N * 8);
    const run_tile &t = slot.tile;
    bool begun = !(t.flags & TILE_BEGINS_UNIT), valid = query < t.queries;
    auto scale_of = [&](int key) {
        return __uint_as_float(slot.row[code_place(key)][code_shift(key, t.head, a.kv_heads)]);
    };
    auto score = [&](int key) {
        bool seen = valid && sees_exactly(mine, t.base + key);
        if (!seen) return -INFINITY;
        float sum = m.scores[side][0][query][key];
#pragma unroll
        for (int part = 1; part < CODE_PARTS; part++) sum += m.scores[side][part][query][key];
        return sum * scale_of(key);
    };
    query_state state =
        soften(begun ? m.top[query] : -INFINITY, begun ? m.sum[query] : 0, score, m.p[side][query], true, scale_of);
    __syncwarp();
    if (threadIdx.x % QUERY_THREADS) return;
    m.top[query] = state.top;
    m.sum[query] = state.sum;
    m.rescale[side][query] = state.rescale;
    if (!(t.flags & TILE_ENDS_UNIT) || !valid) return;
    const run_segment &g = m.segments.segment[t.segment];
    a.state[g.first_cell + (size_t)place.row_head * g.partitions + t.partition] = make_float2(state.top, state.sum);
}

/* What a unit leaves: values that are not yet divided by their sum. */
template <int N>
static __device__ __forceinline__ void write_codes_unit(const code_output<N> &o, const code_state<N> &m,
                                                        const cuda_attention &a, const run_tile &t,
                                                        const run_query (&place)[N * 8]) {
    const run_segment &g = m.segments.segment[t.segment];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int query = n * 8 + lane % 4 * 2 + i;
            if (query >= t.queries) continue;
            size_t cell = g.first_cell + (size_t)place[query].row_head * g.partitions + t.partition;
            *reinterpret_cast<float4 *>(a.partial + cell * CODE_DIM + warp * 32 + lane / 4 * 4) =
                make_float4(o.value[n][0][i], o.value[n][0][i + 2], o.value[n][1][i], o.value[n][1][i + 2]);
        }
    }
}

template <int N>
static __device__ __forceinline__ void compute_codes(code_memory<N> &all, const cuda_attention &a, int from, int to) {
    const int SLOTS = code_memory<N>::SLOTS, SHARES = CODE_THREADS / (N * 8 * QUERY_THREADS);
    code_state<N> &m = all.state;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, query = (int)threadIdx.x / QUERY_THREADS % (N * 8);
    code_turns turns;
    load_code_turns(turns, a);
    wait_for_predecessor();
    write_units_without_codes<N * 8>(m.segments, a, from, to);
    code_output<N> o = {};
    visible_range mine = {};
    int held = -1, parity = 0;                    /* held: whose queries are in shared memory */
    int slot = 0, place = 0;                      /* of the tile whose scores come next */
    int slots[2] = {-1, -1}, places[2] = {-1, 0}; /* of the two tiles before: 0 is the last one */
    for (int tiles = 0;; tiles++) {
        /* Behind the barrier: the scores of the last tile, the probabilities of the one before. */
        if (slots[0] >= 0 && warp / (CODE_WARPS / SHARES) == tiles % SHARES) {
            const code_slot &s = all.slot[slots[0]];
            if (query < (s.tile.queries + 7) / 8 * 8)
                soften_codes<N>(m, s, a, tiles & 1, mine, m.query[places[0]][query]);
        }
        if (slots[1] >= 0) {
            const code_slot &s = all.slot[slots[1]];
            int query_tiles = (s.tile.queries + 7) / 8;
            if (s.tile.flags & TILE_BEGINS_UNIT) o = {};
            add_codes<N>(o, m, s, tiles & 1 ^ 1, a.kv_heads, query_tiles);
            if (s.tile.flags & TILE_ENDS_UNIT) write_codes_unit<N>(o, m, a, s.tile, m.query[places[1]]);
            __syncwarp();
            if (lane == 0) arrive(&m.empty[slots[1]]);
        }
        slots[1] = slots[0];
        places[1] = places[0];
        slots[0] = -1;
        if (slot >= 0) {
            wait_for(&m.full[slot], parity);
            const code_slot &s = all.slot[slot];
            if (s.tile.flags & TILE_IS_NONE) {
                slot = -1;
            } else {
                int whose = (s.tile.segment << 24) + (s.tile.head << 12) + s.tile.query_tile;
                if (whose != held) { /* all have used the others for the last time before the barrier */
                    held = whose;
                    place = (place + 1) & 3;
                    load_code_queries<N>(m, m.query[place], a, s.tile);
                    working_barrier<CODE_THREADS>();
                    const run_segment &g = m.segments.segment[s.tile.segment];
                    mine = visible_of_row(m.query[place][min(query, s.tile.queries - 1)].position, 0, g.bounded, g.sink,
                                          g.window);
                }
                score_codes<N>(m, s, (tiles & 1) ^ 1, turns, a.kv_heads, (s.tile.queries + 7) / 8);
                slots[0] = slot;
                places[0] = place;
                if (++slot == SLOTS) {
                    slot = 0;
                    parity ^= 1;
                }
            }
        }
        if (slots[0] < 0 && slots[1] < 0) return;
        working_barrier<CODE_THREADS>();
    }
}

#endif

template <int N>
static __global__ __launch_bounds__(CODE_BLOCK, 1) void attend_codes_kernel(const cuda_batch *batch,
                                                                            const __grid_constant__ cuda_attention a) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(16) unsigned char memory[];
    code_memory<N> &all = *reinterpret_cast<code_memory<N> *>(memory);
    code_state<N> &m = all.state;
    if ((int)threadIdx.x < code_memory<N>::SLOTS)
        init_barriers(&m.full[threadIdx.x], CODE_BRING_THREADS + CODE_BRING_WARPS, &m.empty[threadIdx.x], CODE_WARPS);
    load_segments<N * 8>(m.segments, batch, a);
    int from = first_unit_of(m.segments, a, blockIdx.x), to = first_unit_of(m.segments, a, blockIdx.x + 1);
    if (threadIdx.x >= CODE_THREADS) {
        run_cursor start = {};
        start.unit = from;
        if (from < to) {
            find_place(start, m.segments);
            enter_queries<N * 8>(start, m.segments, a);
            enter_partition(start, m.segments, a);
        }
        bring_codes<N>(all, a, start, to);
        return;
    }
    compute_codes<N>(all, a, from, to);
#endif
}

/* -------------------------------------------------------------------------------------------------------- launches */

template <int N>
static void launch_codes(const cuda_launch *l, const cuda_batch *batch, const cuda_attention *a, int queries) {
    int units = a->partitions * a->kv_heads * a->segments * ceil_div(queries, N * 8);
    launch_kernel(l, attend_codes_kernel<N>, dim3(units < l->multiprocessors ? units : l->multiprocessors),
                  dim3(CODE_BLOCK), sizeof(code_memory<N>), batch, *a);
}

bool cuda_attend_codes(const cuda_launch *l, const cuda_batch *batch, const cuda_attention *a) {
    if (a->codes != CUDA_KV_Q8 || l->block_bytes < CODE_SHARED || a->head_dim != CODE_DIM || a->pairs != CODE_PAIRS ||
        !a->k_norm || a->sliding_window || a->final || a->drafter || a->restored_k)
        return false;
    int queries = a->segment_rows * (a->heads / a->kv_heads);
    if (queries <= 8)
        launch_codes<1>(l, batch, a, queries);
    else if (queries <= 16)
        launch_codes<2>(l, batch, a, queries);
    else
        launch_codes<4>(l, batch, a, queries);
    return true;
}

template <int N> static cudaError_t allow_codes(void) {
    return cudaFuncSetAttribute(attend_codes_kernel<N>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)sizeof(code_memory<N>));
}

cudaError_t cuda_attend_codes_prepare(int head_dim) {
    int device = 0, most = 0;
    cudaError_t status = cudaGetDevice(&device);
    if (status == cudaSuccess) status = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (status != cudaSuccess || most < CODE_SHARED || head_dim != CODE_DIM)
        return status; /* then it is never launched */
    status = allow_codes<1>();
    if (status == cudaSuccess) status = allow_codes<2>();
    return status == cudaSuccess ? allow_codes<4>() : status;
}
