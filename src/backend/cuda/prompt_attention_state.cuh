/* What the two forms of prompt attention share: the rows of a tile, where keys lie, copies into shared memory, the
 * online softmax, and the state that goes out. */
#ifndef KAKEYA_BACKEND_CUDA_PROMPT_ATTENTION_STATE_CUH
#define KAKEYA_BACKEND_CUDA_PROMPT_ATTENTION_STATE_CUH

#include "backend/cuda/prompt_keys.h"
#include "backend/cuda/prompt_tensor.cuh"

namespace prompt {

struct attention_params {
    const void *q;
    void *out;
    float *m, *l;
    size_t q_stride, out_stride, kv_stride;
    bool q_is_f32, out_is_f32, undivided, both_ways;
    int rows, first_position, heads, group, window, evicted_end;
    int tile_tokens;
    /* The keys of this launch: [slab_begin, slab_end). States of rows that saw earlier ones go on from m, l and out. */
    int slab_begin, slab_end;
    bool first_slab;
    const __nv_bfloat16 *derived_k; /* K = V: keys of the slab */
    prompt_keys keys;
};

/* The tokens of one thread block and the keys that they see. */
struct attention_tile {
    int token, tokens, position; /* first row, rows, and the first row's position */
    int begin, end;              /* keys of this launch that any row sees */
    int masked_below, seen_end;  /* keys [masked_below, seen_end) are seen by all rows */
    bool skip, resume, last;     /* nothing to do; state from an earlier slab; no key in a later slab */
};

__device__ __forceinline__ int first_key(const attention_params &p, int t) {
    int first = p.window > 0 && t - p.window + 1 > 0 ? t - p.window + 1 : 0;
    return first > p.evicted_end ? first : p.evicted_end;
}

/* The last tokens see most keys: they go first. */
__device__ __forceinline__ attention_tile make_tile(const attention_params &p) {
    attention_tile t;
    t.token = static_cast<int>(gridDim.x - 1 - blockIdx.x) * p.tile_tokens;
    t.tokens = p.rows - t.token < p.tile_tokens ? p.rows - t.token : p.tile_tokens;
    t.position = p.first_position + t.token;
    int begin = first_key(p, t.position), end = p.both_ways ? p.first_position + p.rows : t.position + t.tokens;
    t.begin = begin > p.slab_begin ? begin : p.slab_begin;
    t.end = end < p.slab_end ? end : p.slab_end;
    t.masked_below = first_key(p, t.position + t.tokens - 1);
    t.seen_end = p.both_ways ? end : t.position + 1;
    t.skip = t.begin >= t.end && !(begin >= end && p.first_slab);
    t.resume = begin < p.slab_begin;
    t.last = end <= p.slab_end;
    return t;
}

struct key_rows {
    const __nv_bfloat16 *k, *v;
};

__device__ __forceinline__ key_rows locate(const attention_params &p, int position) {
    const prompt_keys &s = p.keys;
    const uint16_t *k, *v;
    size_t row;
    if (position >= s.chunk_begin) {
        k = s.chunk_k;
        v = s.chunk_v;
        row = static_cast<size_t>(position - s.chunk_begin);
    } else if (s.ring_capacity > 0) {
        k = s.ring_k;
        v = s.ring_v;
        row = static_cast<size_t>(position % s.ring_capacity);
    } else {
        const uint16_t *page = s.pages[position / PROMPT_PAGE_POSITIONS];
        k = page + s.page_k;
        v = page + s.page_v;
        row = static_cast<size_t>(position % PROMPT_PAGE_POSITIONS);
    }
    key_rows r;
    r.v = reinterpret_cast<const __nv_bfloat16 *>(v) + row * p.kv_stride;
    r.k = p.derived_k ? p.derived_k + static_cast<size_t>(position - p.slab_begin) * p.kv_stride
                      : reinterpret_cast<const __nv_bfloat16 *>(k) + row * p.kv_stride;
    return r;
}

/* Rows of K and V of up to four blocks in flight, in shared memory; NULL where no query of the tile looks. */
template <int KEYS> struct row_table {
    static constexpr int SLOTS = 4, BYTES = SLOTS * 2 * KEYS * static_cast<int>(sizeof(void *));
    const __nv_bfloat16 **rows;

    __device__ __forceinline__ const __nv_bfloat16 **slot(int block, bool values) const {
        return rows + ((block % SLOTS) * 2 + (values ? 1 : 0)) * KEYS;
    }

    /* `block` counts from the first of the tile, which begins at position `first`. */
    __device__ __forceinline__ void locate_block(const attention_params &p, const attention_tile &t, int first,
                                                 int block, int head_dim) const {
        int i = static_cast<int>(threadIdx.x);
        if (i >= KEYS) return;
        int position = first + block * KEYS + i;
        key_rows r = {nullptr, nullptr};
        if (position >= t.begin && position < t.end) {
            r = locate(p, position);
            size_t head = static_cast<size_t>(blockIdx.y) * static_cast<size_t>(head_dim);
            r.k += head;
            r.v += head;
        }
        slot(block, false)[i] = r.k;
        slot(block, true)[i] = r.v;
    }
};

/* Copies KEYS rows of D columns into a tile. Rows nobody sees become zero: their probabilities are zero, and zero times
 * anything finite is. */
template <int KEYS, int D, int THREADS>
__device__ __forceinline__ void load_rows(const __nv_bfloat16 *const *rows, uint32_t tile, const void *any_address) {
    constexpr int CHUNKS = D / 8, STEP = THREADS / CHUNKS;
    static_assert(THREADS % CHUNKS == 0 && KEYS % STEP == 0, "threads cover whole rows");
    int chunk = static_cast<int>(threadIdx.x) % CHUNKS, first = static_cast<int>(threadIdx.x) / CHUNKS;
#pragma unroll
    for (int i = 0; i < KEYS; i += STEP) {
        const __nv_bfloat16 *row = rows[first + i];
        copy_async(tile + chunk_offset(first + i, chunk, KEYS),
                   row ? static_cast<const void *>(row + chunk * 8) : any_address, row != nullptr);
    }
}

/* Query row r of the tile is head r % group of token r / group; rows past the last become zero. */
template <int M, int D, int THREADS>
__device__ __forceinline__ void load_queries(const attention_params &p, const attention_tile &t, uint32_t q) {
    constexpr int CHUNKS = D / 8;
    for (int i = static_cast<int>(threadIdx.x); i < M * CHUNKS; i += THREADS) {
        int row = i / CHUNKS, chunk = i % CHUNKS, local = row / p.group;
        uint4 x = make_uint4(0, 0, 0, 0);
        if (local < t.tokens) {
            size_t at = static_cast<size_t>(t.token + local) * p.q_stride +
                        static_cast<size_t>((static_cast<int>(blockIdx.y) * p.group + row % p.group) * D + chunk * 8);
            if (p.q_is_f32) {
                const float4 *from = reinterpret_cast<const float4 *>(static_cast<const float *>(p.q) + at);
                float4 a = from[0], b = from[1];
                x = make_uint4(pack_pair(a.x, a.y), pack_pair(a.z, a.w), pack_pair(b.x, b.y), pack_pair(b.z, b.w));
            } else {
                x = *reinterpret_cast<const uint4 *>(static_cast<const __nv_bfloat16 *>(p.q) + at);
            }
        }
        asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};\n" ::"r"(q + chunk_offset(row, chunk, M)), "r"(x.x),
                     "r"(x.y), "r"(x.z), "r"(x.w)
                     : "memory");
    }
}

/* Over the four lanes that hold a row. */
__device__ __forceinline__ float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

__device__ __forceinline__ float row_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* The online softmax of the two query rows of one thread, row[i] of the tile. Element e of a fragment of scores or
 * outputs belongs to row e / 2 % 2. */
struct row_states {
    int row[2], low[2], high[2]; /* keys seen: [low, high] */
    float m[2], l[2];            /* l: this lane's share of the sum */

    __device__ __forceinline__ row_states(const attention_params &p, const attention_tile &t, int first_row) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            row[i] = first_row + i * 8;
            int at = t.position + row[i] / p.group;
            high[i] = p.both_ways ? t.seen_end - 1 : at;
            low[i] = first_key(p, at);
            m[i] = -INFINITY;
            l[i] = 0;
        }
    }

    /* `key` is the position of this lane's element 0; eight elements further on eight keys. */
    template <int SIZE> __device__ __forceinline__ void mask(float (&s)[SIZE], int key) const {
#pragma unroll
        for (int e = 0; e < SIZE; e++) {
            int k = key + e / 4 * 8 + e % 2;
            if (k < low[e / 2 % 2] || k > high[e / 2 % 2]) s[e] = -INFINITY;
        }
    }

    template <int SIZE> static __device__ __forceinline__ void maxima(const float (&s)[SIZE], float (&top)[2]) {
        top[0] = top[1] = -INFINITY;
#pragma unroll
        for (int e = 0; e < SIZE; e++) top[e / 2 % 2] = fmaxf(top[e / 2 % 2], s[e]);
        top[0] = row_max(top[0]);
        top[1] = row_max(top[1]);
    }

    /* Scores become probabilities; `scale` is what the outputs so far are to be multiplied by. A block without a key of
     * a row leaves its state untouched. */
    template <int SIZE>
    __device__ __forceinline__ void absorb(float (&s)[SIZE], const float (&top)[2], float (&scale)[2]) {
        constexpr float LOG2_E = 1.4426950408889634f;
        float shift[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float next = fmaxf(m[i], top[i]);
            scale[i] = next == m[i] ? 1.0f : exp2_fast((m[i] - next) * LOG2_E);
            shift[i] = next == -INFINITY ? 0.0f : next * LOG2_E;
            m[i] = next;
            l[i] *= scale[i];
        }
#pragma unroll
        for (int e = 0; e < SIZE; e++) {
            s[e] = exp2_fast(fmaf(s[e], LOG2_E, -shift[e / 2 % 2]));
            l[e / 2 % 2] += s[e];
        }
    }

    template <int SIZE> static __device__ __forceinline__ void rescale(float (&o)[SIZE], const float (&scale)[2]) {
        if (!__any_sync(~0u, scale[0] != 1.0f || scale[1] != 1.0f)) return;
#pragma unroll
        for (int e = 0; e < SIZE; e++) o[e] *= scale[e / 2 % 2];
    }

    /* Place of row i in m and l, or in `out` with `width` values a head. */
    __device__ __forceinline__ size_t state_index(const attention_params &p, const attention_tile &t, int i) const {
        return static_cast<size_t>(t.token + row[i] / p.group) * static_cast<size_t>(p.heads) +
               static_cast<size_t>(static_cast<int>(blockIdx.y) * p.group + row[i] % p.group);
    }
    __device__ __forceinline__ size_t out_index(const attention_params &p, const attention_tile &t, int i,
                                                int head_dim) const {
        return static_cast<size_t>(t.token + row[i] / p.group) * p.out_stride +
               static_cast<size_t>((static_cast<int>(blockIdx.y) * p.group + row[i] % p.group) * head_dim);
    }

    /* What an earlier slab left; `column` is that of this lane's first output. */
    template <int SIZE>
    __device__ __forceinline__ void resume(const attention_params &p, const attention_tile &t, int head_dim, int column,
                                           bool owns_sum, float (&o)[SIZE]) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (row[i] / p.group >= t.tokens) continue;
            m[i] = p.m[state_index(p, t, i)];
            l[i] = owns_sum ? p.l[state_index(p, t, i)] : 0;
            const float *from = static_cast<const float *>(p.out) + out_index(p, t, i, head_dim) + column;
#pragma unroll
            for (int e = 0; e < SIZE / 4; e++) {
                float2 pair = *reinterpret_cast<const float2 *>(from + e * 8);
                o[e * 4 + i * 2] = pair.x;
                o[e * 4 + i * 2 + 1] = pair.y;
            }
        }
    }

    /* `sum` is each row's whole l. */
    template <int SIZE>
    __device__ __forceinline__ void write(const attention_params &p, const attention_tile &t, int head_dim, int column,
                                          bool owns_sum, const float (&sum)[2], const float (&o)[SIZE]) const {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (row[i] / p.group >= t.tokens) continue;
            if (p.m && owns_sum) {
                p.m[state_index(p, t, i)] = m[i];
                p.l[state_index(p, t, i)] = sum[i];
            }
            float factor = p.undivided || !t.last || sum[i] == 0 ? 1.0f : 1.0f / sum[i];
            size_t at = out_index(p, t, i, head_dim) + static_cast<size_t>(column);
#pragma unroll
            for (int e = 0; e < SIZE / 4; e++) {
                float x = o[e * 4 + i * 2] * factor, y = o[e * 4 + i * 2 + 1] * factor;
                if (p.out_is_f32) {
                    *reinterpret_cast<float2 *>(static_cast<float *>(p.out) + at + e * 8) = make_float2(x, y);
                } else {
                    *reinterpret_cast<uint32_t *>(static_cast<__nv_bfloat16 *>(p.out) + at + e * 8) = pack_pair(x, y);
                }
            }
        }
    }
};

/* Four registers of probabilities for keys [16 j, 16 j + 16) as the left operand of the second product. */
template <int SIZE>
__device__ __forceinline__ void pack_probabilities(const float (&s)[SIZE], int j, uint32_t (&a)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) a[i] = pack_pair(s[j * 8 + i * 2], s[j * 8 + i * 2 + 1]);
}

} // namespace prompt

#endif
