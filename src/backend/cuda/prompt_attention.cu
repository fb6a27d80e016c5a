/* Attention of prompt chunks. Bound: 4 head_dim FLOPs per query head and visible key over the tensor cores' rate.
 *
 * One thread block takes the queries of a few neighbouring tokens for all heads that share a K/V head, so that every
 * block of keys is loaded once for the group. K and V come into shared memory by cp.async while the block before is
 * computed; the rows of a block are found one by one ahead of time, so that chunk, ring and pages may meet in one
 * block.
 *
 * K = V layers: the keys of PROMPT_SLAB_POSITIONS positions are derived into scratch memory, which then is read as any
 * other K; states of rows travel from slab to slab in m, l and out. Deriving them inside, for every tile of queries,
 * took as long as the products.
 *
 * This file holds the mma.sync form and the launchers; prompt_attention_wgmma.cuh what runs instead on sm_90a. */
#include <limits.h>

#include "backend/cuda/prompt_attention.h"
#include "backend/cuda/prompt_attention_joint.cuh"
#include "backend/cuda/prompt_attention_state.cuh"
#include "backend/cuda/prompt_attention_wgmma.cuh"
#include "backend/cuda/tensor_maps.cuh"

namespace {

using namespace prompt;

constexpr int larger(int a, int b) { return a > b ? a : b; }

/* Each warp holds 16 queries; SPLIT warps share them: each scores its share of the keys, the probabilities meet in
 * shared memory, and each multiplies its share of the value columns. WGMMA: the wgmma form takes this shape's place on
 * sm_90a. */
template <int DIM, int QUERY_ROWS, int KEY_ROWS, int WARP_COUNT> struct attention_shape {
    static constexpr int D = DIM, M = QUERY_ROWS, KEYS = KEY_ROWS, THREADS = WARP_COUNT * 32,
                         SPLIT = WARP_COUNT * 16 / M;
    static constexpr bool WGMMA = (D == 256 || D == 512) && THREADS == WGMMA_THREADS;
    /* bytes from the first tile */
    static constexpr int BLOCK = KEYS * D * 2, K = M * D * 2, V = K + 2 * BLOCK, P = V + 2 * BLOCK;
    static constexpr int P_PITCH = KEYS * 2 + 16; /* of a row of probabilities; the pad spreads rows over the banks */
    static constexpr int EXCHANGE = P + (SPLIT > 1 ? M * P_PITCH : 0);
    static constexpr int ROWS = EXCHANGE + (SPLIT > 1 ? M * SPLIT * static_cast<int>(sizeof(float)) : 0);
    static constexpr int OWN_BYTES = PANEL_ROW_BYTES + ROWS + row_table<KEYS>::BYTES;
    static constexpr int WGMMA_BYTES = !WGMMA ? 0 : D == 256 ? wgmma_256::BYTES : wgmma_512::BYTES;
    static constexpr int BYTES = larger(OWN_BYTES, WGMMA_BYTES);
};

/* Keys and value columns of one warp. */
template <class S> constexpr int scores = S::KEYS / S::SPLIT;
template <class S> constexpr int columns = S::D / S::SPLIT;

/* Waits for the SPLIT warps that share 16 queries. */
template <class S> __device__ __forceinline__ void group_barrier(int row_group) {
    asm volatile("bar.sync %0, %1;\n" ::"r"(row_group + 1), "n"(S::SPLIT * 32) : "memory");
}

/* s[16][SCORES] = Q K^T for this warp's queries and its share of the keys. */
template <class S>
__device__ __forceinline__ void score_block(float (&s)[scores<S> / 2], uint32_t q, uint32_t k, int q_row, int key,
                                            int lane) {
#pragma unroll
    for (int e = 0; e < scores<S> / 2; e++) s[e] = 0;
#pragma unroll 4
    for (int d = 0; d < S::D / 16; d++) {
        uint32_t a[4];
        load_matrices(a, q + chunk_offset(q_row + lane % 16, d * 2 + lane / 16, S::M));
        float(*c)[4] = reinterpret_cast<float(*)[4]>(s);
        if constexpr (scores<S> == 8) {
            uint32_t b[2];
            load_matrices(b, k + chunk_offset(key + lane % 8, d * 2 + lane / 8 % 2, S::KEYS));
            multiply(c[0], a, b[0], b[1]);
        } else {
#pragma unroll
            for (int j = 0; j < scores<S> / 8; j += 2) {
                uint32_t b[4];
                load_matrices(b,
                              k + chunk_offset(key + j * 8 + lane / 16 * 8 + lane % 8, d * 2 + lane / 8 % 2, S::KEYS));
                multiply(c[j], a, b[0], b[1]);
                multiply(c[j + 1], a, b[2], b[3]);
            }
        }
    }
}

/* o[16][COLUMNS] += P V for 16 keys. */
template <class S>
__device__ __forceinline__ void add_values(float (&o)[columns<S> / 2], const uint32_t (&a)[4], uint32_t v, int key,
                                           int column, int lane) {
    float(*c)[4] = reinterpret_cast<float(*)[4]>(o);
#pragma unroll
    for (int j = 0; j < columns<S> / 16; j++) {
        uint32_t b[4];
        load_matrices_transposed(b, v + chunk_offset(key + lane % 16, column / 8 + j * 2 + lane / 16, S::KEYS));
        multiply(c[2 * j], a, b[0], b[1]);
        multiply(c[2 * j + 1], a, b[2], b[3]);
    }
}

template <class S> __device__ __forceinline__ void attend(const attention_params &p, char *memory) {
    uint32_t raw = shared_address(memory), base = (raw + PANEL_ROW_BYTES - 1) / PANEL_ROW_BYTES * PANEL_ROW_BYTES;
    char *tiles = memory + (base - raw);
    float *exchange = reinterpret_cast<float *>(tiles + S::EXCHANGE); /* [M][SPLIT] */
    const row_table<S::KEYS> table = {reinterpret_cast<const __nv_bfloat16 **>(tiles + S::ROWS)};
    int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    int row_group = warp / S::SPLIT, part = warp % S::SPLIT, column = part * columns<S> + lane % 4 * 2;
    bool owns_sum = part == 0 && lane % 4 == 0;
    const attention_tile t = make_tile(p);
    if (t.skip) return;
    int first = t.begin / S::KEYS * S::KEYS, blocks = t.end > t.begin ? (t.end - first + S::KEYS - 1) / S::KEYS : 0;

    row_states state(p, t, row_group * 16 + lane / 4);
    float o[columns<S> / 2];
#pragma unroll
    for (int e = 0; e < columns<S> / 2; e++) o[e] = 0;
    if (t.resume) state.resume(p, t, S::D, column, owns_sum, o);

    auto load_block = [&](int j) {
        if (j < blocks) {
            uint32_t stage = static_cast<uint32_t>(j % 2 * S::BLOCK);
            load_rows<S::KEYS, S::D, S::THREADS>(table.slot(j, false), base + S::K + stage, p.q);
            load_rows<S::KEYS, S::D, S::THREADS>(table.slot(j, true), base + S::V + stage, p.q);
        }
        copy_commit();
    };
    table.locate_block(p, t, first, 0, S::D);
    table.locate_block(p, t, first, 1, S::D);
    load_queries<S::M, S::D, S::THREADS>(p, t, base);
    __syncthreads();
    load_block(0);

    for (int j = 0; j < blocks; j++) {
        copy_wait<0>();
        __syncthreads(); /* this block has landed, the one before is used up */
        load_block(j + 1);
        table.locate_block(p, t, first, j + 2, S::D);

        int key = first + j * S::KEYS;
        uint32_t k = base + static_cast<uint32_t>(S::K + j % 2 * S::BLOCK),
                 v = base + static_cast<uint32_t>(S::V + j % 2 * S::BLOCK);
        float s[scores<S> / 2], top[2], scale[2];
        score_block<S>(s, base, k, row_group * 16, part * scores<S>, lane);
        if (key < t.masked_below || key + S::KEYS > t.seen_end) state.mask(s, key + part * scores<S> + lane % 4 * 2);
        state.maxima(s, top);
        if constexpr (S::SPLIT > 1) {
            if (lane % 4 == 0) {
                exchange[state.row[0] * S::SPLIT + part] = top[0];
                exchange[state.row[1] * S::SPLIT + part] = top[1];
            }
            group_barrier<S>(row_group);
#pragma unroll
            for (int i = 0; i < 2; i++) {
#pragma unroll
                for (int other = 0; other < S::SPLIT; other++)
                    top[i] = fmaxf(top[i], exchange[state.row[i] * S::SPLIT + other]);
            }
        }
        state.absorb(s, top, scale);
        state.rescale(o, scale);

        if constexpr (S::SPLIT == 1) {
#pragma unroll
            for (int i = 0; i < S::KEYS / 16; i++) {
                uint32_t a[4];
                pack_probabilities(s, i, a);
                add_values<S>(o, a, v, i * 16, 0, lane);
            }
        } else {
#pragma unroll
            for (int e = 0; e < scores<S> / 2; e += 2) {
                int at = state.row[e / 2 % 2] * S::P_PITCH + (part * scores<S> + e / 4 * 8 + lane % 4 * 2) * 2;
                *reinterpret_cast<uint32_t *>(tiles + S::P + at) = pack_pair(s[e], s[e + 1]);
            }
            group_barrier<S>(row_group);
#pragma unroll
            for (int i = 0; i < S::KEYS / 16; i++) {
                uint32_t a[4];
                load_matrices(a, base + static_cast<uint32_t>(S::P + (row_group * 16 + lane % 16) * S::P_PITCH +
                                                              i * 32 + lane / 16 * 16));
                add_values<S>(o, a, v, i * 16, part * columns<S>, lane);
            }
        }
    }

    float sum[2] = {row_sum(state.l[0]), row_sum(state.l[1])};
    if constexpr (S::SPLIT > 1) {
        __syncthreads();
        if (lane % 4 == 0) {
            exchange[state.row[0] * S::SPLIT + part] = sum[0];
            exchange[state.row[1] * S::SPLIT + part] = sum[1];
        }
        group_barrier<S>(row_group);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            sum[i] = 0;
#pragma unroll
            for (int other = 0; other < S::SPLIT; other++) sum[i] += exchange[state.row[i] * S::SPLIT + other];
        }
    }
    state.write(p, t, S::D, column, owns_sum, sum, o);
}

template <class S> __global__ void __launch_bounds__(S::THREADS, 1) attention_kernel(const attention_params p) {
    extern __shared__ char memory[];
#if PROMPT_WGMMA
    if constexpr (S::WGMMA && S::D == 256) {
        attend_256(p, memory);
        return;
    } else if constexpr (S::WGMMA) {
        attend_512(p, memory);
        return;
    }
#endif
    if constexpr (!(PROMPT_WGMMA && S::WGMMA)) attend<S>(p, memory);
}

__device__ __forceinline__ void unpack(const uint4 &chunk, float (&x)[8]) {
    const __nv_bfloat162 *pairs = reinterpret_cast<const __nv_bfloat162 *>(&chunk);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 pair = __bfloat1622float2(pairs[i]);
        x[2 * i] = pair.x;
        x[2 * i + 1] = pair.y;
    }
}

__device__ __forceinline__ uint4 pack(const float (&x)[8]) {
    return make_uint4(pack_pair(x[0], x[1]), pack_pair(x[2], x[3]), pack_pair(x[4], x[5]), pack_pair(x[6], x[7]));
}

/* to[position - begin] = bf16(RoPE(k_norm * v)) for positions [begin, end); a thread takes eight dimensions and their
 * partners half a head further. */
__global__ void derive_kernel(const attention_params p, __nv_bfloat16 *to, int begin, int end, int head_dim) {
    const prompt_keys &s = p.keys;
    int half = head_dim / 2, chunks = static_cast<int>(p.kv_stride) / 16;
    int item = static_cast<int>(blockIdx.x) * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
    int position = begin + item / chunks, head = item % chunks / (half / 8), first = item % chunks % (half / 8) * 8;
    if (position >= end) return;
    size_t low = static_cast<size_t>(head * head_dim + first), high = low + static_cast<size_t>(half);
    const __nv_bfloat16 *v = locate(p, position).v;
    float a[8], b[8];
    unpack(*reinterpret_cast<const uint4 *>(v + low), a);
    unpack(*reinterpret_cast<const uint4 *>(v + high), b);
    size_t angle = static_cast<size_t>(position) * static_cast<size_t>(s.rope_pairs);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float x = a[i] * s.k_norm[first + i], y = b[i] * s.k_norm[half + first + i];
        float c = 1, z = 0;
        if (first + i < s.rope_pairs) {
            c = s.cosine[angle + static_cast<size_t>(first + i)];
            z = s.sine[angle + static_cast<size_t>(first + i)];
        }
        a[i] = x * c - y * z;
        b[i] = y * c + x * z;
    }
    __nv_bfloat16 *row = to + static_cast<size_t>(position - begin) * p.kv_stride;
    *reinterpret_cast<uint4 *>(row + low) = pack(a);
    *reinterpret_cast<uint4 *>(row + high) = pack(b);
}

template <class S> cudaError_t launch(attention_params p, int kv_heads, cudaStream_t stream) {
    p.tile_tokens = S::M / p.group;
    cudaError_t status =
        cudaFuncSetAttribute(attention_kernel<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::BYTES);
    if (status != cudaSuccess) return status;
    dim3 grid(static_cast<unsigned>((p.rows + p.tile_tokens - 1) / p.tile_tokens), static_cast<unsigned>(kv_heads));
    attention_kernel<S><<<grid, S::THREADS, S::BYTES, stream>>>(p);
    return cudaGetLastError();
}

/* The shape depends on the device and head_dim alone: a row must not see which rows came with it. */
cudaError_t launch_shape(const attention_params &p, int kv_heads, int head_dim, int shared_bytes, cudaStream_t stream) {
    using large_256 = attention_shape<256, 128, 64, 8>;
    using large_512 = attention_shape<512, 64, 32, 8>;
    switch (head_dim) {
    case 64:
        return launch<attention_shape<64, 128, 64, 8>>(p, kv_heads, stream);
    case 128:
        return launch<attention_shape<128, 128, 32, 8>>(p, kv_heads, stream);
    case 256:
        if (large_256::BYTES <= shared_bytes) return launch<large_256>(p, kv_heads, stream);
        return launch<attention_shape<256, 64, 32, 4>>(p, kv_heads, stream);
    case 512:
        if (large_512::BYTES <= shared_bytes) return launch<large_512>(p, kv_heads, stream);
        return launch<attention_shape<512, 32, 16, 4>>(p, kv_heads, stream);
    default:
        return cudaErrorInvalidValue;
    }
}

/* Whether this device runs joint_kernel on layers of this shape: its code is there (sm_90a). */
bool is_joint(int head_dim, int rope_pairs) {
    cudaFuncAttributes attributes;
    if (head_dim != joint::D || rope_pairs != joint::PAIRS) return false;
    if (cudaFuncGetAttributes(&attributes, joint_kernel) != cudaSuccess) {
        cudaGetLastError();
        return false;
    }
    return attributes.maxThreadsPerBlock >= joint::THREADS;
}

cudaError_t launch_joint(attention_params p, int kv_heads, __nv_bfloat16 *turned, int end, cudaStream_t stream) {
    p.tile_tokens = joint::M / p.group;
    int items = (end - p.slab_begin) * kv_heads * (joint::PAIRS / 8);
    turn_kernel<<<static_cast<unsigned>((items + 255) / 256), 256, 0, stream>>>(p, turned, p.slab_begin, end);
    cudaError_t status = cudaGetLastError();
    joint_maps maps = {};
    encode_function encode;
    if (status == cudaSuccess) status = find_encode(&encode);
    if (status != cudaSuccess) return status;
    const __nv_bfloat16 *values = reinterpret_cast<const __nv_bfloat16 *>(p.keys.chunk_v);
    int columns = kv_heads * joint::D, turned_columns = kv_heads * joint::TURNED;
    maps.usable = p.keys.chunk_begin == 0 &&
                  encode_map(encode, &maps.values, 2, values, columns, p.kv_stride, end, 0, 1, joint::KEYS) &&
                  encode_map(encode, &maps.turned, 2, turned, turned_columns, static_cast<size_t>(turned_columns),
                             end - p.slab_begin, 0, 1, joint::KEYS);
    if (status == cudaSuccess)
        status = cudaFuncSetAttribute(joint_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, joint::BYTES);
    if (status != cudaSuccess) return status;
    dim3 grid(static_cast<unsigned>((p.rows + p.tile_tokens - 1) / p.tile_tokens), static_cast<unsigned>(kv_heads));
    joint_kernel<<<grid, joint::THREADS, joint::BYTES, stream>>>(p, maps, turned);
    return cudaGetLastError();
}

/* K = V: slab by slab of absolute positions. */
cudaError_t attend_slabs(attention_params p, const prompt_attention_args *args, int begin, int end, int shared_bytes,
                         cudaStream_t stream) {
    __nv_bfloat16 *scratch = reinterpret_cast<__nv_bfloat16 *>(args->k_scratch);
    int positions = prompt_attention_slab(args->head_dim, args->keys.rope_pairs);
    bool together = positions != PROMPT_SLAB_POSITIONS;
    int first = begin / positions * positions;
    if (!scratch || (end - first > positions && (!p.m || !p.out_is_f32))) return cudaErrorInvalidValue;
    for (int slab = first; slab < end; slab += positions) {
        p.slab_begin = begin > slab ? begin : slab;
        p.slab_end = slab + positions;
        p.first_slab = slab == first;
        p.derived_k = nullptr;
        int derived_end = end < p.slab_end ? end : p.slab_end;
        if (together) {
            cudaError_t status = launch_joint(p, args->kv_heads, scratch, derived_end, stream);
            if (status != cudaSuccess) return status;
            continue;
        }
        int items = (derived_end - p.slab_begin) * (static_cast<int>(p.kv_stride) / 16);
        derive_kernel<<<static_cast<unsigned>((items + 255) / 256), 256, 0, stream>>>(p, scratch, p.slab_begin,
                                                                                      derived_end, args->head_dim);
        cudaError_t status = cudaGetLastError();
        if (status != cudaSuccess) return status;
        p.derived_k = scratch;
        status = launch_shape(p, args->kv_heads, args->head_dim, shared_bytes, stream);
        if (status != cudaSuccess) return status;
    }
    return cudaSuccess;
}

} // namespace

extern "C" int prompt_attention_slab(int head_dim, int rope_pairs) {
    return is_joint(head_dim, rope_pairs) ? joint::SLAB_POSITIONS : PROMPT_SLAB_POSITIONS;
}

extern "C" cudaError_t prompt_attention(const prompt_attention_args *args, cudaStream_t stream) {
    if (!prompt_attention_takes(args)) return cudaErrorInvalidValue;
    int device = 0, shared_bytes = 0;
    cudaError_t status = cudaGetDevice(&device);
    if (status == cudaSuccess)
        status = cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (status != cudaSuccess) return status;
    attention_params p = {};
    p.q = args->q;
    p.out = args->out;
    p.m = args->m;
    p.l = args->l;
    p.undivided = args->undivided != 0;
    p.q_stride = args->q_stride;
    p.out_stride = args->out_stride;
    p.kv_stride = static_cast<size_t>(args->kv_heads) * static_cast<size_t>(args->head_dim);
    p.q_is_f32 = args->q_is_f32 != 0;
    p.out_is_f32 = args->out_is_f32 != 0;
    p.rows = args->rows;
    p.first_position = args->first_position;
    p.heads = args->heads;
    p.group = args->heads / args->kv_heads;
    p.window = args->window;
    p.evicted_end = args->evicted_end;
    p.both_ways = args->both_ways != 0;
    p.keys = args->keys;
    p.slab_end = INT_MAX;
    p.first_slab = true;
    if (!args->keys.k_norm) return launch_shape(p, args->kv_heads, args->head_dim, shared_bytes, stream);

    int begin =
        args->window > 0 && args->first_position - args->window + 1 > 0 ? args->first_position - args->window + 1 : 0;
    if (begin < args->evicted_end) begin = args->evicted_end;
    int end = args->first_position + args->rows;
    return attend_slabs(p, args, begin < end ? begin : end - 1, end, shared_bytes, stream);
}
