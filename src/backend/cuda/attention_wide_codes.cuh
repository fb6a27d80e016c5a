/* Tiles for attention_wide.cu that are made of codes: four warps turn vectors in 8 or 4 bits into rows of bf16 in
 * shared memory. A warp has sixteen keys of a tile, requests the next ones from memory as it writes, and then turns its
 * own for RoPE. Bound: instructions, some 100 of a warp for a vector in 8 bits, 230 in 4. */
#ifndef KAKEYA_BACKEND_CUDA_ATTENTION_WIDE_CODES_CUH
#define KAKEYA_BACKEND_CUDA_ATTENTION_WIDE_CODES_CUH

#include "backend/cuda/attention_wide_tiles.cuh"

#if PROMPT_WGMMA

/* 4 bytes; of no vector 0. Without a branch, so that many are on their way at a time. */
template <bool PLAIN> static __device__ __forceinline__ uint32_t load_of(const unsigned char *vector, uint32_t at) {
    uint32_t word;
    if constexpr (PLAIN)
        asm volatile("ld.global.cg.b32 %0, [%1];" : "=r"(word) : "l"(vector + at));
    else
        asm volatile("{.reg .pred p;\n"
                     "setp.ne.b64 p, %2, 0;\n"
                     "mov.b32 %0, 0;\n"
                     "@p ld.global.cg.b32 %0, [%1];}"
                     : "=r"(word)
                     : "l"(vector + at), "l"(vector));
    return word;
}

/* The scale of a vector; of none 0. */
static __device__ __forceinline__ void copy_scale(float *to, const unsigned char *vector) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(prompt::shared_address(to)), "l"(vector),
                 "r"(vector ? 4 : 0)
                 : "memory");
}

/* What a lane has requested of a vector: four words of codes in 8 bits, or its group in 4. */
template <cuda_kv_codes CODES> struct wide_code;

template <> struct wide_code<CUDA_KV_Q8> {
    static const int BYTES = wide::D + KV_CODES_AT;
    uint32_t word[wide::D / 128];

    template <bool PLAIN> __device__ __forceinline__ void request(const unsigned char *vector, int lane) {
#pragma unroll
        for (int k = 0; k < wide::D / 128; k++) word[k] = load_of<PLAIN>(vector, KV_CODES_AT + lane * 4 + 128 * k);
    }
    /* To row i of the tile at an address in shared memory, as bf16. */
    __device__ __forceinline__ void write(uint32_t tile, int i, int lane) const {
        asm volatile("" : "+r"(tile), "+r"(lane)); /* addresses are computed anew, and take no registers */
        uint32_t to = tile + prompt::chunk_offset(i, lane / 2, KEYS) + lane % 2 * 8;
#pragma unroll
        for (int k = 0; k < wide::D / 128; k++) {
            uint2 four = bf16_of_codes(word[k]);
            asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to + k * 2 * wide::PANEL), "r"(four.x), "r"(four.y)
                         : "memory");
        }
    }
};

template <> struct wide_code<CUDA_KV_Q4> {
    static const int BYTES = kv_q4_form<wide::D>::BYTES;
    uint32_t codes[2];

    template <bool PLAIN> __device__ __forceinline__ void request(const unsigned char *vector, int lane) {
        const int CODES_AT = kv_q4_form<wide::D>::CODES_AT;
        codes[0] = load_of<PLAIN>(vector, CODES_AT + lane * 4);
        codes[1] = load_of<PLAIN>(vector, CODES_AT + 128 + lane * 4);
    }
    __device__ __forceinline__ void write(uint32_t tile, int i, int lane, float scale, uint32_t factors) const {
        asm volatile("" : "+r"(tile), "+r"(lane)); /* addresses are computed anew, and take no registers */
        static_assert(kv_q4_form<wide::D>::GROUPS == 32, "value a of a lane is element 32 a + lane");
        float x[KV_Q4_VALUES];
        kv_q4_request own = {{codes[0], codes[1]}, scale, (int)(signed char)(factors >> lane % 4 * 8)};
        kv_q4_values_of<wide::D>(own, lane, x);
        uint32_t to[2] = {tile + prompt::chunk_offset(i, lane / 8, KEYS) + lane % 8 * 2,
                          tile + prompt::chunk_offset(i, 4 + lane / 8, KEYS) + lane % 8 * 2};
#pragma unroll
        for (int a = 0; a < KV_Q4_VALUES; a++) {
            bf16 value = __float2bfloat16_rn(x[a]);
            asm volatile("st.shared.b16 [%0], %1;" ::"r"(to[a % 2] + a / 2 * wide::PANEL),
                         "h"(*reinterpret_cast<uint16_t *>(&value))
                         : "memory");
        }
    }
};

/* Where the vectors of a tile lie, and which of them a query sees. */
struct wide_vectors {
    const unsigned char *rows, *sinks; /* of position 0 of the head; sinks: of positions before in_sink */
    int stride, base, last_end, evicted, sink, in_sink;
    bool plain; /* all keys of the tile are seen, and none is of the sink's */

    __device__ __forceinline__ const unsigned char *of_key(int i) const { /* NULL: no query sees it */
        int p = base + i;
        if (p >= last_end || (p < evicted && p >= sink)) return nullptr;
        return (p < in_sink ? sinks : rows) + (size_t)p * (size_t)stride;
    }
};

static __device__ __forceinline__ wide_vectors find_vectors(const wide_cursor &c, const wide_memory &m,
                                                            const cuda_attention &a, int bytes) {
    const wide_segment &g = m.segment[c.segment];
    int evicted = g.bounded ? g.position + c.first_query / m.group - g.window + 1 : 0, in_sink = g.sink_v ? g.sink : 0;
    if (evicted <= g.sink) evicted = 0;
    return {kv_codes_of(g.v, 0, a.kv_heads, c.head, (size_t)bytes),
            kv_codes_of(g.sink_v, 0, a.kv_heads, c.head, (size_t)bytes),
            a.kv_heads * bytes,
            c.base,
            c.last_end,
            evicted,
            g.sink,
            in_sink,
            c.base >= evicted && c.base >= in_sink && c.base + KEYS <= c.last_end};
}

/* Tiles of the units [from, to) by four warps, each of which has sixteen keys: as bf16, and what RoPE turns of them.
 * Eight keys of a warp are on their way from memory while others are written. */
template <cuda_kv_codes CODES>
static __device__ __forceinline__ void bring_wide_codes(wide_memory &m, const cuda_attention &a, int from, int to) {
    typedef wide_code<CODES> code;
    const int OWN = KEYS / (wide::GROUP / 32), AHEAD = OWN / 2, TURNS = 4;
    int thread = (int)threadIdx.x - wide::DERIVES, lane = thread % 32, first = thread / 32 * OWN, unit = -1;
    code requested[AHEAD];
    /* In 4 bits: of key lane % 8; four of key lane / 8, and of the fourth behind it. */
    uint32_t scales = 0, factors[2] = {};
    auto request = [&](const wide_vectors &of, int at, int key) {
        if (CODES == CUDA_KV_Q8 && lane < AHEAD) copy_scale(&m.scale[at][key + lane], of.of_key(key + lane));
        if constexpr (CODES == CUDA_KV_Q4) {
            scales = load_of<false>(of.of_key(key + lane % AHEAD), 0);
#pragma unroll
            for (int i = 0; i < 2; i++)
                factors[i] = load_of<false>(of.of_key(key + i * 4 + lane / 8), 4 + lane % 8 * 4);
        }
        if (of.plain) {
            const unsigned char *vector = of.rows + (size_t)(of.base + key) * (size_t)of.stride;
#pragma unroll
            for (int j = 0; j < AHEAD; j++) {
                requested[j].template request<true>(vector, lane);
                vector += of.stride;
            }
        } else {
#pragma unroll
            for (int j = 0; j < AHEAD; j++) requested[j].template request<false>(of.of_key(key + j), lane);
        }
    };
    auto write = [&](int slot, int key) {
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            uint32_t tile = prompt::shared_address(m.v[slot]);
            if constexpr (CODES == CUDA_KV_Q4)
                requested[j].write(tile, key + j, lane, __uint_as_float(__shfl_sync(0xffffffffu, scales, j)),
                                   __shfl_sync(0xffffffffu, factors[j / 4], j % 4 * 8 + lane / 4));
            else
                requested[j].write(tile, key + j, lane);
            asm volatile("" ::: "memory");
        }
    };
    wide_cursor &c = m.cursor[thread / 32]; /* in no registers while codes take them */
    wide_vectors own = {};
    bool more = from < to, waited = false;
    /* The vectors of a tile, once those of this step are there. */
    auto find = [&](wide_cursor &tile, bool anyhow) {
        more = find_wide_tile(tile, m, a, to);
        own = {};
        if (more) own = find_vectors(tile, m, a, code::BYTES);
        if (waited || (!anyhow && (!more || tile.base + KEYS <= m.segment[tile.segment].position))) return;
        wait_for_predecessor();
        waited = true;
    };
    wide_cursor begin = {};
    if (more) {
        find_unit(begin, m, a, from);
        find(begin, false);
    }
    c = begin;
    if (more) request(own, 0, first);
    for (int tiles = 0;; tiles++) {
        int slot = tiles % wide::SLOTS, at = tiles % wide::TILES_AHEAD;
        __syncwarp();
        wide_cursor next = c;
        int base = next.base;
        if (thread == 0)
            m.tile[at] = {base,
                          (next.unit != unit ? WIDE_BEGINS_UNIT : 0) | (base + KEYS >= next.end ? WIDE_ENDS_UNIT : 0) |
                              (more ? 0 : WIDE_IS_NONE),
                          next.segment,
                          next.head,
                          next.partition,
                          next.first_query,
                          next.queries};
        for (int half = 0; half < 2; half++) wait_wide(m.empty[slot][half], tiles / wide::SLOTS & 1 ^ 1);
        if (!more) {
            arrive_warp(m.full[slot][1]);
            return;
        }
        unit = next.unit;
        write(slot, first);
        request(own, at, first + AHEAD);
        /* Of the next tile, and what is to be turned, while they come. */
        next.base += KEYS;
        find(next, tiles > 0);
        __syncwarp();
        c = next;
        int column = lane * 2;
        float2 tile[2] = {turn_of_tile(base, a.inverse_frequency[column]),
                          turn_of_tile(base, a.inverse_frequency[column + 1])};
        write(slot, first + AHEAD);
        if (CODES == CUDA_KV_Q8) wait_for_copies();
        prompt::warpgroup_publish();
        arrive_warp(m.full[slot][1]);
        if (more) request(own, (tiles + 1) % wide::TILES_AHEAD, first);
        const float4 *inside = reinterpret_cast<const float4 *>(a.key_turns + first * wide::PAIRS + column);
        float2 norm_low = *reinterpret_cast<const float2 *>(a.k_norm + column),
               norm_high = *reinterpret_cast<const float2 *>(a.k_norm + column + wide::D / 2);
        float4 turns[TURNS];
#pragma unroll
        for (int j = 0; j < TURNS; j++) turns[j] = __ldg(inside + j * wide::PAIRS / 2);
        wait_wide(m.turned_empty, tiles & 1 ^ 1);
#pragma unroll 1
        for (int i = 0; i < OWN; i += TURNS) {
#pragma unroll
            for (int j = 0; j < TURNS; j++) {
                turn_wide_key(m, slot, first + i + j, column, norm_low, norm_high, tile, turns[j]);
                if (i + TURNS < OWN) turns[j] = __ldg(inside + (i + TURNS + j) * wide::PAIRS / 2);
            }
        }
        prompt::warpgroup_publish();
        arrive_warp(m.turned_full);
    }
}

#endif

#endif
