/* Prompt attention of K = V layers with head dimension 512 on the warpgroup instructions of Hopper (sm_90a). Of such a
 * layer's keys only 128 dimensions differ from the values by more than a factor: those that RoPE turns. The factor,
 * k_norm, is folded into the queries; the turned dimensions are derived beforehand. So a block of 32 keys takes 40 KB,
 * values and turned dimensions, and four of them fit beside 64 queries.
 *
 * Each of two warpgroups takes 256 of the dimensions: it multiplies them for the scores of all keys, which the two then
 * add, and it multiplies the probabilities, which both hold, with its columns of the values. The scores of block j + 1
 * and the values of block j are multiplied together, and the softmax of block j + 1 runs beside the latter. */
#ifndef KAKEYA_BACKEND_CUDA_PROMPT_ATTENTION_JOINT_CUH
#define KAKEYA_BACKEND_CUDA_PROMPT_ATTENTION_JOINT_CUH

#include "backend/cuda/prompt_attention_state.cuh"
#include "backend/cuda/prompt_bulk.cuh"
#include "backend/cuda/prompt_wgmma.cuh"

namespace prompt {

struct joint {
    static constexpr int D = 512, M = 64, KEYS = 32, SLOTS = 4, THREADS = 256;
    static constexpr int PAIRS = PANEL_COLUMNS; /* turned pairs: dimensions j and j + D / 2 */
    static constexpr int TURNED = 2 * PAIRS;    /* turned dimensions of a key */
    static constexpr int SLAB_POSITIONS =
        PROMPT_SLAB_POSITIONS * (D / TURNED); /* whose turned dimensions fit in scratch */
    /* bytes from the first tile */
    static constexpr int PANEL = KEYS * PANEL_ROW_BYTES, VALUES = D / PANEL_COLUMNS * PANEL, SLOT = VALUES + 2 * PANEL;
    static constexpr int RING = M * D * 2, ROWS = RING + SLOTS * SLOT;
    static constexpr int BARRIERS = ROWS + SLOTS * KEYS * static_cast<int>(sizeof(void *));
    static constexpr int BYTES = TILE_ALIGNMENT + BARRIERS + SLOTS * 8;
};

/* What the copy engine walks where all positions lie one behind the other: values [position][kv head][D] and turned
 * dimensions [position - slab_begin][kv head][TURNED], in boxes of KEYS rows of one panel. */
struct joint_maps {
    CUtensorMap values, turned;
    int usable;
};

/* to[position - begin][kv head]: the turned dimensions of keys [begin, end); a thread takes eight and their partners.
 */
__global__ void turn_kernel(const attention_params p, __nv_bfloat16 *to, int begin, int end) {
    constexpr int CHUNKS = joint::PAIRS / 8;
    const prompt_keys &s = p.keys;
    int heads = static_cast<int>(p.kv_stride) / joint::D;
    int item = static_cast<int>(blockIdx.x) * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
    int first = item % CHUNKS * 8, head = item / CHUNKS % heads, position = begin + item / CHUNKS / heads;
    if (position >= end) return;
    const __nv_bfloat16 *low = locate(p, position).v + head * joint::D + first, *high = low + joint::D / 2;
    size_t angle = static_cast<size_t>(position) * static_cast<size_t>(s.rope_pairs) + static_cast<size_t>(first);
    __nv_bfloat16 *row =
        to +
        (static_cast<size_t>(position - begin) * static_cast<size_t>(heads) + static_cast<size_t>(head)) *
            joint::TURNED +
        first;
    uint4 packed_low = *reinterpret_cast<const uint4 *>(low), packed_high = *reinterpret_cast<const uint4 *>(high);
    const __nv_bfloat162 *a = reinterpret_cast<const __nv_bfloat162 *>(&packed_low),
                         *b = reinterpret_cast<const __nv_bfloat162 *>(&packed_high);
    uint32_t out_low[4], out_high[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 x = __bfloat1622float2(a[i]), y = __bfloat1622float2(b[i]);
        int j = first + 2 * i;
        x.x *= s.k_norm[j], x.y *= s.k_norm[j + 1];
        y.x *= s.k_norm[joint::D / 2 + j], y.y *= s.k_norm[joint::D / 2 + j + 1];
        float2 c = *reinterpret_cast<const float2 *>(s.cosine + angle + 2 * i),
               z = *reinterpret_cast<const float2 *>(s.sine + angle + 2 * i);
        out_low[i] = pack_pair(x.x * c.x - y.x * z.x, x.y * c.y - y.y * z.y);
        out_high[i] = pack_pair(y.x * c.x + x.x * z.x, y.y * c.y + x.y * z.y);
    }
    *reinterpret_cast<uint4 *>(row) = make_uint4(out_low[0], out_low[1], out_low[2], out_low[3]);
    *reinterpret_cast<uint4 *>(row + joint::PAIRS) = make_uint4(out_high[0], out_high[1], out_high[2], out_high[3]);
}

#if PROMPT_WGMMA
#define PROMPT_JOINT_BOUNDS __launch_bounds__(joint::THREADS, 1)

__device__ __forceinline__ uint32_t scale_pair(uint32_t pair, const float *factor) {
    float2 x = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162 *>(&pair));
    return pack_pair(x.x * factor[0], x.y * factor[1]);
}

/* The queries of a tile, times k_norm where the values serve as keys. */
__device__ __forceinline__ void load_joint_queries(const attention_params &p, const attention_tile &t, uint32_t q) {
    constexpr int CHUNKS = joint::D / 8;
    for (int i = static_cast<int>(threadIdx.x); i < joint::M * CHUNKS; i += joint::THREADS) {
        int row = i / CHUNKS, chunk = i % CHUNKS, local = row / p.group;
        uint4 x = make_uint4(0, 0, 0, 0);
        if (local < t.tokens) {
            size_t at =
                static_cast<size_t>(t.token + local) * p.q_stride +
                static_cast<size_t>((static_cast<int>(blockIdx.y) * p.group + row % p.group) * joint::D + chunk * 8);
            if (p.q_is_f32) {
                const float4 *from = reinterpret_cast<const float4 *>(static_cast<const float *>(p.q) + at);
                float4 a = from[0], b = from[1];
                x = make_uint4(pack_pair(a.x, a.y), pack_pair(a.z, a.w), pack_pair(b.x, b.y), pack_pair(b.z, b.w));
            } else {
                x = *reinterpret_cast<const uint4 *>(static_cast<const __nv_bfloat16 *>(p.q) + at);
            }
            if (chunk % (CHUNKS / 2) >= joint::PAIRS / 8) {
                const float *factor = p.keys.k_norm + chunk * 8;
                x = make_uint4(scale_pair(x.x, factor), scale_pair(x.y, factor + 2), scale_pair(x.z, factor + 4),
                               scale_pair(x.w, factor + 6));
            }
        }
        asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};\n" ::"r"(q + chunk_offset(row, chunk, joint::M)), "r"(x.x),
                     "r"(x.y), "r"(x.z), "r"(x.w)
                     : "memory");
    }
}

/* Where the values of the keys of up to SLOTS blocks lie; NULL where no query of the tile looks. */
struct joint_rows {
    const __nv_bfloat16 **rows;

    __device__ __forceinline__ const __nv_bfloat16 **slot(int block) const {
        return rows + block % joint::SLOTS * joint::KEYS;
    }
    __device__ __forceinline__ void find(const attention_params &p, const attention_tile &t, int first,
                                         int block) const {
        int i = static_cast<int>(threadIdx.x), position = first + block * joint::KEYS + i;
        if (i >= joint::KEYS) return;
        bool seen = position >= t.begin && position < t.end;
        slot(block)[i] = seen ? locate(p, position).v + static_cast<size_t>(blockIdx.y) * joint::D : nullptr;
    }
};

__device__ __forceinline__ void attend_joint(const attention_params &p, const joint_maps &maps,
                                             const __nv_bfloat16 *turned, char *memory) {
    using L = joint;
    uint32_t raw = shared_address(memory), base = align_tile(raw);
    const joint_rows table = {reinterpret_cast<const __nv_bfloat16 **>(memory + (base - raw) + L::ROWS)};
    int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, part = warp / 4;
    const attention_tile t = make_tile(p);
    if (t.skip) return;
    int first = t.begin / L::KEYS * L::KEYS,
        blocks = t.end > first && t.end > t.begin ? (t.end - first + L::KEYS - 1) / L::KEYS : 0;
    int column = part * (L::D / 2) + lane % 4 * 2;

    row_states state(p, t, warp % 4 * 16 + lane / 4);
    float o[128];
#pragma unroll
    for (int e = 0; e < 128; e++) o[e] = 0;
    if (t.resume) state.resume(p, t, L::D, column, lane % 4 == 0, o);

    auto slot = [&](int j) { return base + static_cast<uint32_t>(L::RING + j % L::SLOTS * L::SLOT); };
    uint32_t barriers = base + static_cast<uint32_t>(L::BARRIERS);
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < L::SLOTS; i++) barrier_init(barriers + i * 8, 1);
        asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
        warpgroup_publish();
    }
    /* The engine brings blocks that are seen whole: it would bring what lies in places of other keys, too. */
    auto bulk = [&](int j) {
        int key = first + j * L::KEYS;
        return maps.usable && key >= t.begin && key + L::KEYS <= t.end;
    };
    unsigned turns = 0; /* of the slots' barriers */
    auto wait = [&](int j) {
        if (!bulk(j)) return;
        barrier_wait(barriers + static_cast<uint32_t>(j % L::SLOTS * 8), static_cast<int>(turns >> j % L::SLOTS & 1));
        turns ^= 1u << j % L::SLOTS;
    };
    auto load = [&](int j) {
        if (j < blocks && bulk(j)) {
            if (threadIdx.x == 0) {
                uint32_t full = barriers + static_cast<uint32_t>(j % L::SLOTS * 8);
                int key = first + j * L::KEYS, head = static_cast<int>(blockIdx.y);
                barrier_arrive_expecting(full, L::SLOT);
                for (int i = 0; i < L::D / PANEL_COLUMNS; i++)
                    copy_box(slot(j) + static_cast<uint32_t>(i * L::PANEL), maps.values,
                             head * L::D + i * PANEL_COLUMNS, key, full);
                for (int i = 0; i < 2; i++)
                    copy_box(slot(j) + static_cast<uint32_t>(L::VALUES + i * L::PANEL), maps.turned,
                             head * L::TURNED + i * PANEL_COLUMNS, key - p.slab_begin, full);
            }
        } else if (j < blocks) {
            const __nv_bfloat16 *const *rows = table.slot(j);
            load_rows<L::KEYS, L::D, L::THREADS>(rows, slot(j), p.q);
            constexpr int CHUNKS = L::TURNED / 8, STEP = L::THREADS / CHUNKS;
            int chunk = static_cast<int>(threadIdx.x) % CHUNKS, key = static_cast<int>(threadIdx.x) / CHUNKS;
            int at = first + j * L::KEYS - p.slab_begin;
#pragma unroll
            for (int i = 0; i < L::KEYS; i += STEP) {
                bool seen = rows[key + i] != nullptr;
                const __nv_bfloat16 *row =
                    turned + (static_cast<size_t>(seen ? at + key + i : 0) * gridDim.y + blockIdx.y) * L::TURNED;
                copy_async(slot(j) + L::VALUES + chunk_offset(key + i, chunk, L::KEYS), row + chunk * 8, seen);
            }
        }
        copy_commit();
    };
    auto score = [&](int j, float(&s)[16]) {
        uint64_t q = panel_descriptor(base + static_cast<uint32_t>(part * 4 * L::M * PANEL_ROW_BYTES));
        uint64_t k = panel_descriptor(slot(j) + static_cast<uint32_t>(part * 4 * L::PANEL));
        uint64_t first_k = panel_descriptor(slot(j) + static_cast<uint32_t>(L::VALUES + part * L::PANEL));
#pragma unroll
        for (int d = 0; d < L::D / 2 / 16; d++) {
            uint64_t step = static_cast<uint64_t>(d % 4 * 2), panel = static_cast<uint64_t>(d / 4);
            warpgroup_multiply(s, q + panel * (L::M * PANEL_ROW_BYTES / 16) + step,
                               (d < 4 ? first_k : k + panel * (L::PANEL / 16)) + step, d > 0);
        }
        warpgroup_commit();
    };
    auto add_values = [&](int j, uint32_t(&a)[2][4]) {
        uint64_t v = transposed_descriptor(slot(j) + static_cast<uint32_t>(part * 4 * L::PANEL), L::PANEL);
#pragma unroll
        for (int i = 0; i < 2; i++)
            warpgroup_multiply_transposed(o, a[i], v + static_cast<uint64_t>(i * 16 * PANEL_ROW_BYTES / 16));
        warpgroup_commit();
    };
    /* The two halves of the dimensions meet where the turned dimensions of blocks j and j - 1, which both have been
     * multiplied, lie: a warpgroup writes over what it alone has read. */
    auto exchange = [&](int j, float(&s)[16]) {
        asm volatile("bar.sync %0, 128;\n" ::"r"(part + 1) : "memory");
        uint32_t thread = static_cast<uint32_t>(threadIdx.x) % 128 * 16;
        auto place = [&](int half, int i) {
            return slot(i < 2 ? j : j + L::SLOTS - 1) +
                   static_cast<uint32_t>(L::VALUES + half * L::PANEL + i % 2 * 2048) + thread;
        };
#pragma unroll
        for (int i = 0; i < 4; i++)
            asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};\n" ::"r"(place(part, i)), "f"(s[4 * i]),
                         "f"(s[4 * i + 1]), "f"(s[4 * i + 2]), "f"(s[4 * i + 3])
                         : "memory");
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float x[4];
            asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];\n"
                         : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                         : "r"(place(1 - part, i))
                         : "memory");
#pragma unroll
            for (int e = 0; e < 4; e++) s[4 * i + e] += x[e];
        }
    };
    auto mask = [&](int j, float(&s)[16]) {
        int key = first + j * L::KEYS;
        if (key < t.masked_below || key + L::KEYS > t.position + 1) state.mask(s, key + lane % 4 * 2);
    };

    for (int j = 0; j < L::SLOTS; j++) table.find(p, t, first, j);
    load_joint_queries(p, t, base);
    __syncthreads();
    for (int j = 0; j < L::SLOTS - 1; j++) load(j);

    if (blocks > 0) {
        float s[16], top[2], scale[2];
        uint32_t a[2][4];
        copy_wait<2>();
        wait(0);
        warpgroup_publish();
        __syncthreads();
        warpgroup_begin();
        score(0, s);
        warpgroup_wait<0>();
        warpgroup_hold(s);
        exchange(0, s);
        mask(0, s);
        state.maxima(s, top);
        state.absorb(s, top, scale);
        state.rescale(o, scale);
#pragma unroll
        for (int i = 0; i < 2; i++) pack_probabilities(s, i, a[i]);
        for (int j = 0; j + 1 < blocks; j++) {
            copy_wait<1>();
            wait(j + 1);
            warpgroup_publish();
            __syncthreads(); /* block j + 1 has landed; block j - 1 is used up */
            warpgroup_hold(o);
            warpgroup_hold(s);
            warpgroup_begin();
            score(j + 1, s);
            add_values(j, a);
            load(j + 3);
            table.find(p, t, first, j + 4);
            warpgroup_wait<1>();
            warpgroup_hold(s);
            exchange(j + 1, s);
            mask(j + 1, s);
            state.maxima(s, top);
            state.absorb(s, top, scale);
            warpgroup_wait<0>();
            warpgroup_hold(o);
            state.rescale(o, scale);
#pragma unroll
            for (int i = 0; i < 2; i++) pack_probabilities(s, i, a[i]);
        }
        warpgroup_hold(o);
        warpgroup_begin();
        add_values(blocks - 1, a);
        warpgroup_wait<0>();
        warpgroup_hold(o);
    }
    float sum[2] = {row_sum(state.l[0]), row_sum(state.l[1])};
    state.write(p, t, L::D, column, part == 0 && lane % 4 == 0, sum, o);
}

#else
#define PROMPT_JOINT_BOUNDS __launch_bounds__(32, 1) /* tells the host that there is no body */
#endif

__global__ void PROMPT_JOINT_BOUNDS joint_kernel(const __grid_constant__ attention_params p,
                                                 const __grid_constant__ joint_maps maps, const __nv_bfloat16 *turned) {
#if PROMPT_WGMMA
    extern __shared__ char memory[];
    attend_joint(p, maps, turned, memory);
#endif
}

} // namespace prompt

#endif
