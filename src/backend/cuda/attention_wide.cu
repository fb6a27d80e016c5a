/* Flash decoding of K = V layers with head dimension 512 on the warpgroup instructions of Hopper (sm_90a): one block on
 * a multiprocessor takes a run of neighbouring units; a unit is a partition of a K/V head of up to 64 queries of one
 * segment. Bound: one read of the K/V and of what is left behind; with many rows, the tensor cores.
 *
 * Each stage has warps of its own, so that stages of different tiles of 64 keys run at the same time. One warp brings
 * tiles into two places. Three derive the dimensions of the keys that RoPE turns. A group of four computes scores,
 * softmax and probabilities. Two more groups multiply the probabilities with half of the dimensions each.
 *
 * The arithmetic of a query, and what a unit leaves behind, are those of attention.cu on bits. A score is the sum of
 * two accumulators, of even and of odd steps of 16 dimensions. A step of wgmma sums as one of mma.sync does. Sums of
 * probabilities pair the same keys in the same order.
 *
 * K/V in codes are brought, and derived from, by the four warps of attention_wide_codes.cuh. In 8 bits scores and
 * scales are those of attention_codes.cu on bits. */
#include "backend/cuda/attention_wide_codes.cuh"

#if PROMPT_WGMMA

/* -------------------------------------------------------------------------------------------------- bringing tiles */

enum wide_rows { ROWS_OF_EARLIER_STEPS, ROWS_OF_THIS_STEP, ALL_ROWS };

/* Half of a tile. What no query of the unit sees is zero, for 0 times what is not a number is not 0. */
static __device__ __forceinline__ void request_wide(unsigned char *tile, const wide_memory &m, const cuda_attention &a,
                                                    const wide_cursor &c, int half, wide_rows which) {
    const wide_segment &g = m.segment[c.segment];
    /* A warp has chunks 32 w to 32 w + 31 of a row, and of every following row. */
    int thread = (int)threadIdx.x - wide::BRINGS;
    const int COLUMNS = wide::D / 8, EACH = COLUMNS / wide::BRING_THREADS; /* chunks of a row; of a thread */
    size_t row_values = (size_t)a.kv_heads * wide::D, column = (size_t)c.head * wide::D + thread * 8;
    unsigned char *to = tile + (thread >> 3) * wide::PANEL;
    if (!g.bounded && !g.capacity && c.base + KEYS <= c.last_end &&
        (which == ALL_ROWS || c.base + KEYS <= g.position)) {
        if (which == ROWS_OF_THIS_STEP) return;
        const cuda_bf16 *from = g.v + (size_t)(c.base + half * KEYS / 2) * row_values + column;
        to += half * KEYS / 2 * prompt::PANEL_ROW_BYTES;
#pragma unroll 1
        for (int i = 0; i < KEYS / 2; i += 8) {
#pragma unroll
            for (int j = 0; j < 8; j++) {
#pragma unroll
                for (int e = 0; e < EACH; e++)
                    copy_async(to + e * 4 * wide::PANEL + j * prompt::PANEL_ROW_BYTES + (((thread & 7) ^ j) << 4),
                               from + e * 256, true);
                from += row_values;
            }
            to += 8 * prompt::PANEL_ROW_BYTES;
        }
        return;
    }
    int evicted = g.bounded ? g.position + c.first_query / m.group - g.window + 1 : 0, in_sink = g.sink_v ? g.sink : 0;
    if (evicted <= g.sink) evicted = 0;
#pragma unroll 1
    for (int i = half * KEYS / 2; i < (half + 1) * KEYS / 2; i++) {
        int p = c.base + i;
        if (which != ALL_ROWS && (p >= g.position) != (which == ROWS_OF_THIS_STEP)) continue;
        bool seen = p < c.last_end && (p >= evicted || p < g.sink), sink = p < in_sink;
        const cuda_bf16 *from = a.q;
        if (seen) {
            int row = sink || !g.capacity ? p : p % g.capacity;
            from = (sink ? g.sink_v : g.v) + (size_t)row * row_values + column;
        }
        for (int e = 0; e < EACH; e++)
            copy_async(tile + prompt::chunk_offset(i, thread + 32 * e, KEYS), seen ? from + e * 256 : from, seen);
    }
}

/* Tiles of the units [from, to), what earlier steps stored before the predecessor has ended. */
static __device__ __forceinline__ void bring_wide(wide_memory &m, const cuda_attention &a, int from, int to) {
    int thread = (int)threadIdx.x - wide::BRINGS, tiles = 0, unit = -1;
    float frequency[wide::PAIRS / wide::BRING_THREADS];
#pragma unroll
    for (int i = 0; i < wide::PAIRS / wide::BRING_THREADS; i++)
        frequency[i] = a.inverse_frequency[thread + i * wide::BRING_THREADS];
    wide_cursor c = {};
    bool more = false;
    /* Says what tile comes next. */
    auto describe = [&]() {
        int at = tiles % wide::TILES_AHEAD;
        if (thread == 0)
            m.tile[at] = {c.base,
                          (c.unit != unit ? WIDE_BEGINS_UNIT : 0) | (c.base + KEYS >= c.end ? WIDE_ENDS_UNIT : 0) |
                              (more ? 0 : WIDE_IS_NONE),
                          c.segment,
                          c.head,
                          c.partition,
                          c.first_query,
                          c.queries};
#pragma unroll
        for (int i = 0; i < wide::PAIRS / wide::BRING_THREADS; i++)
            m.tile_turn[at][thread + i * wide::BRING_THREADS] = turn_of_tile(c.base, frequency[i]);
        unit = c.unit;
        tiles++;
    };
    auto publish = [&](int slot, int half) {
        asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(wide_barrier(m.full[slot][half]))
                     : "memory");
        arrive_warp(m.full[slot][half]);
    };
    auto advance = [&]() {
        c.base += KEYS;
        more = find_wide_tile(c, m, a, to);
    };
    auto begin = [&]() {
        more = from < to;
        if (!more) return;
        find_unit(c, m, a, from);
        more = find_wide_tile(c, m, a, to);
    };
    begin();
    int first = 0;
    unsigned late = 0; /* tiles that miss rows of this step */
    for (; first < wide::SLOTS; first++) {
        describe();
        if (!more) break;
        for (int half = 0; half < 2; half++) {
            request_wide(m.v[first], m, a, c, half, ROWS_OF_EARLIER_STEPS);
            if (c.base + KEYS <= m.segment[c.segment].position) publish(first, half);
        }
        if (c.base + KEYS > m.segment[c.segment].position) late |= 1u << first;
        advance();
    }
    wait_for_predecessor();
    if (late) {
        begin();
        for (int i = 0; i < first; i++) {
            for (int half = 0; half < 2 && late >> i & 1; half++) {
                request_wide(m.v[i], m, a, c, half, ROWS_OF_THIS_STEP);
                publish(i, half);
            }
            advance();
        }
    }
    if (first < wide::SLOTS) { /* what describes the end is there */
        publish(first, 0);
        publish(first, 1);
        return;
    }
    for (bool going = true; going;) {
        int slot = tiles % wide::SLOTS, parity = tiles / wide::SLOTS & 1 ^ 1;
        describe(); /* nobody looks any more at what the description of four tiles before says */
        going = more;
        for (int half = 0; half < 2; half++) {
            wait_wide(m.empty[slot][half], parity);
            if (going) request_wide(m.v[slot], m, a, c, half, ALL_ROWS);
            publish(slot, half);
        }
        if (going) advance();
    }
}

/* A warp turns a key at a time: its lanes have two neighbouring columns of either half. */
static __device__ __forceinline__ void derive_wide(wide_memory &m, const cuda_attention &a) {
    const int AT_ONCE = wide::DERIVE_THREADS / 32, AHEAD = 4, ROUNDS = (KEYS + AT_ONCE * AHEAD - 1) / (AT_ONCE * AHEAD);
    int thread = (int)threadIdx.x - wide::DERIVES, first = thread / 32, column = thread % 32 * 2;
    float2 norm_low = *reinterpret_cast<const float2 *>(a.k_norm + column),
           norm_high = *reinterpret_cast<const float2 *>(a.k_norm + column + wide::D / 2);
    const float4 *inside = reinterpret_cast<const float4 *>(a.key_turns + first * wide::PAIRS + column);
    for (int tiles = 0;; tiles++) {
        int slot = tiles % wide::SLOTS;
        float4 turns[2][AHEAD];
        auto load = [&](int i) {
#pragma unroll
            for (int j = 0; j < AHEAD; j++)
                if (KEYS % (AT_ONCE * AHEAD) == 0 || first + (i * AHEAD + j) * AT_ONCE < KEYS)
                    turns[i & 1][j] = __ldg(inside + (i * AHEAD + j) * AT_ONCE * wide::PAIRS / 2);
        };
        load(0);
        wait_wide(m.full[slot][0], tiles / wide::SLOTS & 1);
        if (m.tile[tiles % wide::TILES_AHEAD].flags & WIDE_IS_NONE) return;
        const float2 *tile_turn = m.tile_turn[tiles % wide::TILES_AHEAD];
        float2 tile[2] = {tile_turn[column], tile_turn[column + 1]};
        wait_wide(m.turned_empty, tiles & 1 ^ 1);
#pragma unroll
        for (int i = 0; i < ROUNDS; i++) {
            if (i + 1 < ROUNDS) load(i + 1);
            if (i * AHEAD * AT_ONCE < KEYS / 2 && (i + 1) * AHEAD * AT_ONCE > KEYS / 2)
                wait_wide(m.full[slot][1], tiles / wide::SLOTS & 1);
#pragma unroll
            for (int j = 0; j < AHEAD; j++) {
                int key = first + (i * AHEAD + j) * AT_ONCE;
                if (KEYS % (AT_ONCE * AHEAD) != 0 && key >= KEYS) continue;
                turn_wide_key(m, slot, key, column, norm_low, norm_high, tile, turns[i & 1][j]);
            }
        }
        prompt::warpgroup_publish();
        arrive_warp(m.turned_full);
    }
}

/* --------------------------------------------------------------------------------------------------------- scores */

static __device__ __forceinline__ void load_wide_queries(wide_memory &m, const cuda_attention &a, const wide_tile &t) {
    const wide_segment &g = m.segment[t.segment];
    int thread = (int)threadIdx.x - wide::SCORES, chunk = thread % (wide::D / 8), first = thread / (wide::D / 8);
    bool scaled = key_column<wide::D>(chunk / 2, wide::D / 8) < 0;
#pragma unroll 8
    for (int query = first; query < t.queries; query += wide::GROUP / (wide::D / 8)) {
        int index = t.first_query + query, row = index / m.group,
            row_head = row * a.heads + t.head * m.group + (index - row * m.group);
        uint4 value = __ldcg(reinterpret_cast<const uint4 *>(
            a.q + ((size_t)g.first_row * a.heads + (size_t)row_head) * wide::D + chunk * 8));
        if (scaled) value = scale_query(value, a.k_norm + chunk * 8);
        *reinterpret_cast<uint4 *>(m.q + prompt::chunk_offset(query, chunk, wide::QUERIES_AT_ONCE)) = value;
    }
}

/* Two queries of a thread: g and g + 8 of its warp's sixteen. */
struct wide_softmax {
    float top[2], sum[2];
};

/* Of codes: what is 0 stays so, even times what is no number. */
static __device__ __forceinline__ uint32_t scale_weights(__nv_bfloat162 pair, const float *scale) {
    float2 weight = __bfloat1622float2(pair), by = *reinterpret_cast<const float2 *>(scale);
    if (weight.x != 0) weight.x *= by.x;
    if (weight.y != 0) weight.y *= by.y;
    pair = __floats2bfloat162_rn(weight.x, weight.y);
    return *reinterpret_cast<uint32_t *>(&pair);
}

/* The tile of a thread's two queries: scores s[4 n + 2 query + e] are of keys 8 n + 2 (lane % 4) + e. `packed` becomes
 * what soften (attention.cuh) makes of them, two keys at a time, with its sums in the same order. */
template <cuda_kv_codes CODES>
static __device__ __forceinline__ void soften_wide(const float (&s)[32], uint32_t (&packed)[16], wide_softmax &state,
                                                   float (&rescale)[2], const float *scale) {
    float most[2] = {-INFINITY, -INFINITY}, part[2][2][2] = {};
#pragma unroll
    for (int i = 0; i < 32; i++) most[i / 2 % 2] = fmaxf(most[i / 2 % 2], s[i]);
#pragma unroll
    for (int o = 1; o < 4; o *= 2) {
#pragma unroll
        for (int q = 0; q < 2; q++) most[q] = fmaxf(most[q], __shfl_xor_sync(0xffffffffu, most[q], o));
    }
#pragma unroll
    for (int q = 0; q < 2; q++) {
        most[q] = fmaxf(state.top[q], most[q]);
        rescale[q] = most[q] == state.top[q] ? 1.0f : expf(state.top[q] - most[q]);
        state.top[q] = most[q];
    }
    /* Where nothing is seen yet, the difference of two infinities is no number. */
    float from[2] = {most[0] == -INFINITY ? 0.0f : most[0], most[1] == -INFINITY ? 0.0f : most[1]};
#pragma unroll
    for (int i = 0; i < 16; i++) { /* keys 16 apart belong to one sum */
        int q = i % 2;
        __nv_bfloat162 pair = __floats2bfloat162_rn(expf(s[2 * i] - from[q]), expf(s[2 * i + 1] - from[q]));
        packed[i] = *reinterpret_cast<uint32_t *>(&pair);
        part[q][i / 2 % 2][0] += __bfloat162float(pair.x);
        part[q][i / 2 % 2][1] += __bfloat162float(pair.y);
        if constexpr (CODES == CUDA_KV_Q8) packed[i] = scale_weights(pair, scale + i / 2 * 8);
    }
    float sum[2][2];
#pragma unroll
    for (int i = 0; i < 4; i++) sum[i / 2][i % 2] = part[i / 2][0][i % 2] + part[i / 2][1][i % 2];
#pragma unroll
    for (int o = 2; o > 0; o /= 2) {
#pragma unroll
        for (int i = 0; i < 4; i++) sum[i / 2][i % 2] += __shfl_xor_sync(0xffffffffu, sum[i / 2][i % 2], o);
    }
#pragma unroll
    for (int q = 0; q < 2; q++) state.sum[q] = __fmaf_rn(state.sum[q], rescale[q], sum[q][0] + sum[q][1]);
}

template <cuda_kv_codes CODES>
static __device__ __forceinline__ void score_wide(wide_memory &m, const cuda_attention &a, int from, int to) {
    int lane = threadIdx.x & 31, own = (int)(threadIdx.x - wide::SCORES) / 32 * 16 + lane / 4; /* and own + 8 */
    wide_softmax state = {};
    int end[2] = {}, evicted[2] = {}, sink = 0, held = -1; /* held: whose queries are in shared memory */
    uint64_t q = prompt::panel_descriptor(prompt::shared_address(m.q)),
             turned = prompt::panel_descriptor(prompt::shared_address(m.turned));
    wait_for_predecessor();
    for (int tiles = 0;; tiles++) {
        int slot = tiles % wide::SLOTS;
        wait_wide(m.full[slot][1], tiles / wide::SLOTS & 1);
        const wide_tile &t = m.tile[tiles % wide::TILES_AHEAD];
        int flags = t.flags, base = t.base;
        if (flags & WIDE_IS_NONE) return;
        int whose = (t.segment << 24) + (t.head << 12) + t.first_query;
        if (whose != held) {
            held = whose;
            load_wide_queries(m, a, t);
            prompt::warpgroup_publish();
            asm volatile("bar.sync 1, %0;" ::"n"(wide::GROUP) : "memory");
            const wide_segment &g = m.segment[t.segment];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int row = min(t.first_query + own + i * 8, t.first_query + t.queries - 1) / m.group;
                visible_range r = visible_of_row(g.position + row, 0, g.bounded, g.sink, g.window);
                end[i] = r.end;
                evicted[i] = r.evicted;
                sink = r.sink;
            }
        }
        if (flags & WIDE_BEGINS_UNIT) state = {{-INFINITY, -INFINITY}, {0, 0}};
        wait_wide(m.turned_full, tiles & 1);
        prompt::warpgroup_publish();
        float s[32], odd[32];
        uint64_t k = prompt::panel_descriptor(prompt::shared_address(m.v[slot]));
        auto multiply = [&](float(&sum)[32], int c, bool begun) {
            uint64_t step = (uint64_t)(c % 4 * 2), panel = (uint64_t)(c / 4 * (wide::PANEL / 16));
            uint64_t keys = c < 4                                       ? turned + step
                            : c >= wide::D / 32 && c < wide::D / 32 + 4 ? turned + wide::PANEL / 16 + step
                                                                        : k + panel + step;
            prompt::warpgroup_multiply(sum, q + panel + step, keys, begun);
        };
        auto finish = [&]() {
            prompt::warpgroup_commit();
            prompt::warpgroup_wait<0>();
            prompt::warpgroup_hold(s);
            prompt::warpgroup_hold(odd);
        };
        prompt::warpgroup_begin();
        if constexpr (CODES == CUDA_KV_Q8) { /* four sums of the steps that a warp of attention_codes.cu has */
            auto step_of = [](int part, int i) {
                return i < 2 ? i * (wide::D / 32) + part : (i - 2) / 3 * (wide::D / 32) + 4 + part * 3 + (i - 2) % 3;
            };
#pragma unroll
            for (int i = 0; i < 8; i++) {
                multiply(s, step_of(0, i), i > 0);
                multiply(odd, step_of(1, i), i > 0);
            }
            finish();
#pragma unroll
            for (int part = 2; part < 4; part++) {
#pragma unroll
                for (int i = 0; i < 32; i++) s[i] += odd[i];
                prompt::warpgroup_hold(odd);
                prompt::warpgroup_begin();
#pragma unroll
                for (int i = 0; i < 8; i++) multiply(odd, step_of(part, i), i > 0);
                finish();
            }
#pragma unroll
            for (int i = 0; i < 32; i++) s[i] += odd[i];
            arrive_warp(m.turned_empty);
        } else {
#pragma unroll
            for (int c = 0; c < wide::D / 16; c++) {
                if (c % 2)
                    multiply(odd, c, c > 1);
                else
                    multiply(s, c, c > 1);
            }
            finish();
            arrive_warp(m.turned_empty);
#pragma unroll
            for (int i = 0; i < 32; i++) s[i] += odd[i];
        }
        const float *scale = m.scale[tiles % wide::TILES_AHEAD] + lane % 4 * 2;
        if constexpr (CODES == CUDA_KV_Q8) {
#pragma unroll
            for (int n = 0; n < 8; n++) {
                float2 by = *reinterpret_cast<const float2 *>(scale + n * 8);
#pragma unroll
                for (int i = 0; i < 4; i++) s[n * 4 + i] *= i % 2 ? by.y : by.x;
            }
        }
        if (base + KEYS > min(end[0], end[1]) || (evicted[0] | evicted[1])) {
#pragma unroll
            for (int i = 0; i < 32; i++) {
                int key = base + i / 4 * 8 + lane % 4 * 2 + i % 2, row = i / 2 % 2;
                if (key >= end[row] || (key < evicted[row] && key >= sink)) s[i] = -INFINITY;
            }
        }
        float rescale[2];
        uint32_t packed[16];
        soften_wide<CODES>(s, packed, state, rescale, scale);
        wait_wide(m.p_empty, tiles & 1 ^ 1);
#pragma unroll
        for (int i = 0; i < 16; i++) {
            int query = own + i % 2 * 8;
            uint32_t at = prompt::chunk_offset(query, i / 2, wide::QUERIES_AT_ONCE) + lane % 4 * 4;
            *reinterpret_cast<uint32_t *>(m.p + at) = packed[i];
        }
        if (lane % 4 == 0) {
            m.rescale[own] = rescale[0];
            m.rescale[own + 8] = rescale[1];
        }
        prompt::warpgroup_publish();
        arrive_warp(m.p_full);
        if (!(flags & WIDE_ENDS_UNIT) || lane % 4) continue;
        const wide_segment &g = m.segment[t.segment];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (own + i * 8 >= t.queries) continue;
            int index = t.first_query + own + i * 8, row = index / m.group,
                row_head = row * a.heads + t.head * m.group + (index - row * m.group);
            a.state[g.first_cell + (size_t)row_head * g.partitions + t.partition] =
                make_float2(state.top[i], state.sum[i]);
        }
    }
}

/* --------------------------------------------------------------------------------------------------------- values */

/* States of units without keys. */
static __device__ __forceinline__ void write_units_without_keys(const wide_memory &m, const cuda_attention &a, int from,
                                                                int to) {
    for (int unit = from + (int)threadIdx.x; unit < to; unit += wide::VALUE_GROUPS * wide::GROUP) {
        wide_cursor c = {};
        find_unit(c, m, a, unit);
        if (c.base < c.end) continue;
        const wide_segment &g = m.segment[c.segment];
        for (int query = 0; query < c.queries; query++) {
            int index = c.first_query + query, row = index / m.group,
                row_head = row * a.heads + c.head * m.group + (index - row * m.group);
            a.state[g.first_cell + (size_t)row_head * g.partitions + c.partition] = make_float2(-INFINITY, 0);
        }
    }
}

static __device__ __forceinline__ void add_values_wide(wide_memory &m, const cuda_attention &a, int from, int to) {
    int part = threadIdx.x / wide::GROUP, lane = threadIdx.x & 31, own = threadIdx.x % wide::GROUP / 32 * 16 + lane / 4;
    const int HALF = wide::PANELS / wide::VALUE_GROUPS * wide::PANEL;
    uint64_t p = prompt::panel_descriptor(prompt::shared_address(m.p));
    wait_for_predecessor();
    write_units_without_keys(m, a, from, to);
    float o[2][64]; /* of 128 dimensions each */
#pragma unroll
    for (int i = 0; i < 128; i++) o[i / 64][i % 64] = 0;
    for (int tiles = 0;; tiles++) {
        int slot = tiles % wide::SLOTS;
        wait_wide(m.full[slot][1], tiles / wide::SLOTS & 1);
        const wide_tile &t = m.tile[tiles % wide::TILES_AHEAD];
        int flags = t.flags;
        if (flags & WIDE_IS_NONE) return;
        wait_wide(m.p_full, tiles & 1);
        /* Always: two ways here would keep all of them twice. What a unit begins with is overwritten. */
        float rescale[2] = {m.rescale[own], m.rescale[own + 8]};
        int begun = !(flags & WIDE_BEGINS_UNIT);
#pragma unroll
        for (int i = 0; i < 128; i++) o[i / 64][i % 64] *= rescale[i / 2 % 2];
        uint64_t v =
            prompt::transposed_descriptor(prompt::shared_address(m.v[slot]) + (uint32_t)(part * HALF), wide::PANEL);
        prompt::warpgroup_publish();
        prompt::warpgroup_hold(o[0]);
        prompt::warpgroup_hold(o[1]);
        prompt::warpgroup_begin();
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++) {
            if (k == KEYS / 32) prompt::warpgroup_commit();
            uint64_t rows = v + (uint64_t)(k * 16 * prompt::PANEL_ROW_BYTES / 16);
            prompt::warpgroup_multiply_transposed(o[0], p + (uint64_t)(k * 2), rows, k > 0 || begun);
            prompt::warpgroup_multiply_transposed(o[1], p + (uint64_t)(k * 2), rows + 2 * wide::PANEL / 16,
                                                  k > 0 || begun);
        }
        prompt::warpgroup_commit();
        prompt::warpgroup_wait<1>();
        arrive_warp(m.empty[slot][0]);
        prompt::warpgroup_wait<0>();
        prompt::warpgroup_hold(o[0]);
        prompt::warpgroup_hold(o[1]);
        /* The description may go with the tile. */
        int segment = t.segment, head = t.head, partition = t.partition, first_query = t.first_query,
            queries = t.queries;
        arrive_warp(m.p_empty);
        arrive_warp(m.empty[slot][1]);
        if (!(flags & WIDE_ENDS_UNIT)) continue;
        const wide_segment &g = m.segment[segment];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int query = own + half * 8, index = first_query + query, row = index / m.group,
                row_head = row * a.heads + head * m.group + (index - row * m.group), odd = lane & 1;
            float *out = a.partial + (g.first_cell + (size_t)row_head * g.partitions + partition) * wide::D +
                         part * (wide::D / wide::VALUE_GROUPS) + lane % 4 / 2 * 4 + odd * 8;
            /* A lane and its neighbour have four columns in a row of one eight each, when they have exchanged two. */
#pragma unroll
            for (int n = 0; n < 32; n += 2) {
                float *low = &o[n / 16][n % 16 * 4 + half * 2], *high = low + 4;
                float x = __shfl_xor_sync(0xffffffffu, odd ? low[0] : high[0], 1),
                      y = __shfl_xor_sync(0xffffffffu, odd ? low[1] : high[1], 1);
                if (query < queries)
                    *reinterpret_cast<float4 *>(out + n * 8) =
                        odd ? make_float4(x, y, high[0], high[1]) : make_float4(low[0], low[1], x, y);
            }
        }
    }
}

#define WIDE_BOUNDS __launch_bounds__(wide::THREADS, 1)
#else
#define WIDE_BOUNDS __launch_bounds__(32, 1) /* tells the host that there is no body */
#endif

template <cuda_kv_codes CODES>
static __global__ void WIDE_BOUNDS attend_wide_kernel(const cuda_batch *batch,
                                                      const __grid_constant__ cuda_attention a) {
#if PROMPT_WGMMA
    extern __shared__ unsigned char memory[];
    uint32_t address = prompt::shared_address(memory);
    wide_memory &m = *reinterpret_cast<wide_memory *>(memory + (prompt::align_tile(address) - address));
    if (threadIdx.x == 0) {
        for (int i = 0; i < wide::SLOTS; i++) {
            for (int half = 0; half < 2; half++) {
                prompt::barrier_init(wide_barrier(m.full[i][half]),
                                     CODES ? wide::GROUP / 32 : wide::BRING_THREADS + wide::BRING_THREADS / 32);
                prompt::barrier_init(wide_barrier(m.empty[i][half]), wide::VALUE_GROUPS * wide::GROUP / 32);
            }
        }
        prompt::barrier_init(wide_barrier(m.turned_full), (CODES ? wide::GROUP : wide::DERIVE_THREADS) / 32);
        prompt::barrier_init(wide_barrier(m.turned_empty), wide::GROUP / 32);
        prompt::barrier_init(wide_barrier(m.p_full), wide::GROUP / 32);
        prompt::barrier_init(wide_barrier(m.p_empty), wide::VALUE_GROUPS * wide::GROUP / 32);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    load_wide_segments(m, batch, a);
    int from = first_wide_unit(m, a, blockIdx.x), to = first_wide_unit(m, a, blockIdx.x + 1);
    if (threadIdx.x < wide::SCORES) {
        prompt::take_registers<wide::VALUE_REGISTERS>();
        add_values_wide(m, a, from, to);
    } else if (threadIdx.x < wide::DERIVES) {
        prompt::leave_registers<wide::SCORE_REGISTERS - (CODES ? wide::CODES_MORE : 0)>();
        score_wide<CODES>(m, a, from, to);
    } else {
        prompt::leave_registers<wide::OTHER_REGISTERS + (CODES ? wide::CODES_MORE : 0)>();
        if constexpr (CODES)
            bring_wide_codes<CODES>(m, a, from, to);
        else if (threadIdx.x < wide::BRINGS)
            derive_wide(m, a);
        else
            bring_wide(m, a, from, to);
    }
#endif
}

/* -------------------------------------------------------------------------------------------------------- launches */

/* From so many on few queries are faster here, too. */
enum { WIDE_PARTITIONS = 256 };

template <cuda_kv_codes CODES>
static bool launch_wide(const cuda_launch *l, const cuda_batch *batch, const cuda_attention *a) {
    cudaFuncAttributes attributes;
    if (cudaFuncGetAttributes(&attributes, attend_wide_kernel<CODES>) != cudaSuccess) {
        cudaGetLastError();
        return false;
    }
    if (attributes.maxThreadsPerBlock < wide::THREADS) return false;
    int tiles = ceil_div(a->segment_rows * (a->heads / a->kv_heads), wide::QUERIES_AT_ONCE),
        units = a->partitions * a->kv_heads * a->segments * tiles;
    launch_kernel(l, attend_wide_kernel<CODES>, dim3(units < l->multiprocessors ? units : l->multiprocessors),
                  dim3(wide::THREADS), (size_t)WIDE_BYTES, batch, *a);
    return true;
}

bool cuda_attend_wide(const cuda_launch *l, const cuda_batch *batch, const cuda_attention *a) {
    bool few = a->segment_rows * (a->heads / a->kv_heads) <= QUERIES;
    if (few && (a->codes == CUDA_KV_Q8 || a->partitions < WIDE_PARTITIONS))
        return false; /* attention_codes.cu is faster; attention_runs.cu starts earlier */
    if (a->head_dim != wide::D || a->pairs != wide::PAIRS || !a->k_norm || a->sliding_window || a->final ||
        a->drafter || a->restored_k || l->block_bytes < WIDE_BYTES)
        return false;
    switch (a->codes) {
    case CUDA_KV_BF16:
        return launch_wide<CUDA_KV_BF16>(l, batch, a);
    case CUDA_KV_Q8:
        return launch_wide<CUDA_KV_Q8>(l, batch, a);
    case CUDA_KV_Q4:
        return launch_wide<CUDA_KV_Q4>(l, batch, a);
    }
    return false;
}

template <cuda_kv_codes CODES> static cudaError_t allow_wide(void) {
    return cudaFuncSetAttribute(attend_wide_kernel<CODES>, cudaFuncAttributeMaxDynamicSharedMemorySize, WIDE_BYTES);
}

cudaError_t cuda_attend_wide_prepare(int head_dim) {
    int device = 0, most = 0;
    cudaError_t status = cudaGetDevice(&device);
    if (status == cudaSuccess) status = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (status != cudaSuccess || most < WIDE_BYTES || head_dim != wide::D)
        return status; /* then it is never launched */
    status = allow_wide<CUDA_KV_BF16>();
    if (status == cudaSuccess) status = allow_wide<CUDA_KV_Q8>();
    return status == cudaSuccess ? allow_wide<CUDA_KV_Q4>() : status;
}
