/* Keys of evicted positions from their latents, and their scores with the queries of decode rows (sm_90a). A block
 * keeps the decoder of the keys of one head in shared memory and walks tiles of 64 positions. Two pairs of warpgroups
 * take turns: while one pair multiplies its latents with the decoder, each warpgroup with half of the dimensions, the
 * other one finishes its keys in registers and multiplies them with the queries. Decoding ahead is the same walk, which
 * writes keys instead. Bound: the product.
 *
 * The successor starts when blocks end: it would take what they need, and costs more than its early start brings. */
#include "backend/cuda/latent_keys.cuh"
#include "backend/cuda/prompt_bulk.cuh"
#include "backend/cuda/prompt_wgmma.cuh"
#include "backend/cuda/tensor_maps.cuh"

namespace {

using namespace prompt;
using latent::DIM;
using latent::HALF;
using latent::key_rows;
using latent::PART;
using latent::QUERIES_AT_ONCE;
using latent::QUERY_VALUES;

constexpr int TILE = 64, MOST_PANELS = LATENT_MOST_RANK / PANEL_COLUMNS;
constexpr int DECODER_PANEL = DIM * PANEL_ROW_BYTES, TILE_PANEL = TILE * PANEL_ROW_BYTES;
constexpr int BOX_ROWS = PART;
constexpr int PAIRS = 2, SLOTS = 6; /* of warpgroups; panels of tiles on their way */

/* Shared memory, from an aligned address on. */
constexpr int AT_RING = MOST_PANELS * DECODER_PANEL, AT_TURNS = AT_RING + SLOTS * TILE_PANEL,
              TURN_BYTES = LATENT_GROUP * HALF * static_cast<int>(sizeof(float2)), AT_NORM = AT_TURNS + TURN_BYTES,
              AT_QUERIES = AT_NORM + DIM * static_cast<int>(sizeof(float)),
              AT_SQUARES = AT_QUERIES + 8 * PAIRS * QUERY_VALUES * 2,
              AT_SCORES = AT_SQUARES + PAIRS * TILE * static_cast<int>(sizeof(float)),
              AT_BARRIERS = AT_SCORES + PAIRS * TILE * QUERIES_AT_ONCE * static_cast<int>(sizeof(float));
enum {
    BARRIER_DECODER = 0,
    BARRIER_FULL = BARRIER_DECODER + MOST_PANELS,
    BARRIER_EMPTY = BARRIER_FULL + SLOTS,
    BARRIER_TURN = BARRIER_EMPTY + SLOTS,
    BARRIERS = BARRIER_TURN + PAIRS
};
constexpr int SCORE_BYTES = AT_BARRIERS + BARRIERS * 8 + TILE_ALIGNMENT;
constexpr int SCORE_THREADS = 128 * (2 * PAIRS + 1);

struct score_maps {
    CUtensorMap latents, decoder;
};

struct score_params {
    const cuda_batch *batch;
    latent_attention a;
    int shares; /* blocks of a head */
};

#if PROMPT_WGMMA

/* Of a thread; together they may not exceed what the launch was given, SCORE_THREADS * 96. */
constexpr int LOADING_REGISTERS = 32, SCORING_REGISTERS = 112;
constexpr int TILE_K = PANEL_COLUMNS,
              GROUPS = TILE / LATENT_GROUP; /* groups of a tile: one for each warp of a warpgroup */

struct score_context {
    uint32_t base;
    int head, share, shares, tiles, groups;
    __device__ __forceinline__ uint32_t barrier(int which) const {
        return base + static_cast<uint32_t>(AT_BARRIERS + which * 8);
    }
    __device__ __forceinline__ uint32_t slot(int which) const {
        return base + static_cast<uint32_t>(AT_RING + which * TILE_PANEL);
    }
};

__device__ __forceinline__ void copy_permuted(uint32_t to, const CUtensorMap &map, int column, int rows_of_32,
                                              uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %4, %4, "
        "%5}], [%2];\n" ::"r"(to),
        "l"(&map), "r"(barrier), "r"(column), "r"(0), "r"(rows_of_32)
        : "memory");
}

__device__ __forceinline__ void copy_bytes(uint32_t to, const void *from, int bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

/* One thread. Panels of the first tiles travel between those of the decoder. */
template <int PANELS>
__device__ __forceinline__ void load_tiles(const score_context &c, const float2 *inside, const score_maps &maps) {
    int slot = 0, lap = 0;
    bool first = true;
    for (int tile = c.share; tile < c.tiles; tile += c.shares, first = false) {
        for (int panel = 0; panel < PANELS; panel++) {
            barrier_wait(c.barrier(BARRIER_EMPTY + slot), lap ^ 1);
            uint32_t full = c.barrier(BARRIER_FULL + slot);
            barrier_arrive_expecting(full, TILE_PANEL);
            copy_box(c.slot(slot), maps.latents, panel * PANEL_COLUMNS, tile * TILE, full);
            if (++slot == SLOTS) slot = 0, lap ^= 1;
            if (!first) continue;
            uint32_t decoder = c.barrier(BARRIER_DECODER + panel);
            barrier_arrive_expecting(decoder, DECODER_PANEL + (panel == PANELS - 1 ? TURN_BYTES : 0));
            for (int i = 0; i < DIM / BOX_ROWS; i++) /* a part's low dimensions, then its high ones */
                copy_permuted(c.base + static_cast<uint32_t>(panel * DECODER_PANEL + i * BOX_ROWS * PANEL_ROW_BYTES),
                              maps.decoder, panel * PANEL_COLUMNS, (c.head * DIM + i / 2 * PART + i % 2 * HALF) / 32,
                              decoder);
            if (panel == PANELS - 1) copy_bytes(c.base + AT_TURNS, inside, TURN_BYTES, decoder);
        }
    }
}

/* acc = the latents of a tile times a part of the decoder; `sequence`: of the tile's first panel among all of the
 * block. The next pair may begin behind the last but one panel. */
template <int PANELS>
__device__ __forceinline__ void multiply_tile(const score_context &c, float (&acc)[64], int part, int sequence,
                                              bool first, uint32_t next_turn, int lane) {
    uint64_t decoder = panel_descriptor(c.base + static_cast<uint32_t>(part * (DECODER_PANEL / 2)));
    int slot = sequence % SLOTS, lap = sequence / SLOTS & 1, before = slot;
#pragma unroll
    for (int panel = 0; panel < PANELS; panel++) {
        if (first) barrier_wait(c.barrier(BARRIER_DECODER + panel), 0);
        barrier_wait(c.barrier(BARRIER_FULL + slot), lap);
        uint64_t latents = panel_descriptor(c.slot(slot));
        warpgroup_begin();
#pragma unroll
        for (int k = 0; k < TILE_K / 16; k++)
            warpgroup_multiply(acc, latents + static_cast<uint64_t>(2 * k),
                               decoder + static_cast<uint64_t>(panel * (DECODER_PANEL >> 4) + 2 * k), panel + k > 0);
        warpgroup_commit();
        if (panel > 0) {
            warpgroup_wait<1>();
            if (lane == 0) barrier_arrive(c.barrier(BARRIER_EMPTY + before));
        }
        if (panel == PANELS - 1 && lane == 0) barrier_arrive(next_turn);
        before = slot;
        if (++slot == SLOTS) slot = 0, lap ^= 1;
    }
}

/* The sums of squares of rows lane / 4 and lane / 4 + 8 over a part. */
__device__ __forceinline__ float2 square_keys(const float (&acc)[64]) {
    float sum[2][2] = {}, all[2];
#pragma unroll
    for (int j = 0; j < 16; j++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            sum[half][0] = __fmaf_rn(acc[j * 4 + half * 2], acc[j * 4 + half * 2], sum[half][0]);
            sum[half][1] = __fmaf_rn(acc[j * 4 + half * 2 + 1], acc[j * 4 + half * 2 + 1], sum[half][1]);
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        all[half] = __fadd_rn(sum[half][0], sum[half][1]);
        all[half] = __fadd_rn(all[half], __shfl_xor_sync(~0u, all[half], 1));
        all[half] = __fadd_rn(all[half], __shfl_xor_sync(~0u, all[half], 2));
    }
    return make_float2(all[0], all[1]);
}

__device__ __forceinline__ float scale_of(float first, float second, float eps) {
    return rsqrtf(__fmaf_rn(__fadd_rn(first, second), 1.0f / static_cast<float>(DIM), eps));
}

/* k_norm without its scale, and the turn of a position inside its group. */
__device__ __forceinline__ void finish_keys(key_rows &k, const float (&acc)[64], int part, const float4 *turns,
                                            const float *norm, int lane) {
    int g = lane / 4, quarter = lane % 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int s = 0; s < 4; s++) {
            const float2 *n = reinterpret_cast<const float2 *>(norm + part * PART + 32 * i + 8 * quarter + 2 * s);
            float2 first = n[0], second = n[HALF / 2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float4 by = turns[(((part * 2 + i) * 4 + s) * LATENT_GROUP + g + 8 * half) * 4 + quarter];
                const float *x = acc + i * 16 + s * 4 + half * 2, *y = x + 32;
                float a = __fmul_rn(x[0], first.x), b = __fmul_rn(x[1], first.y), c = __fmul_rn(y[0], second.x),
                      d = __fmul_rn(y[1], second.y);
                k.low[i][s / 2][s % 2 * 2 + half] =
                    pack_pair(__fmaf_rn(a, by.x, -__fmul_rn(c, by.y)), __fmaf_rn(b, by.z, -__fmul_rn(d, by.w)));
                k.high[i][s / 2][s % 2 * 2 + half] =
                    pack_pair(__fmaf_rn(c, by.x, __fmul_rn(a, by.y)), __fmaf_rn(d, by.z, __fmul_rn(b, by.w)));
            }
        }
    }
}

/* Both warpgroups of a pair. */
__device__ __forceinline__ void meet(int pair) { asm volatile("bar.sync %0, 256;\n" ::"r"(pair + 1) : "memory"); }

/* A warp of a pair, at one of its tiles. */
struct score_place {
    int part, pair, row, lane; /* row: of the pair's tile, the first of the warp's group */
    float *squares, *scores;   /* what the second warpgroup tells the first one: [TILE], [TILE][QUERIES_AT_ONCE] */
    uint16_t *queries;
};

/* `row`: of latents, the first of the warp's group. */
__device__ __forceinline__ void write_keys(const latent_attention &a, const score_place &w, const key_rows &k,
                                           const float2 &squares, int row, int head) {
    int quarter = w.lane % 4, g = w.lane / 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        size_t at = static_cast<size_t>(row + g + 8 * half) * a.exact.kv_heads + head;
        uint16_t *to = a.keys + at * DIM + w.part * PART + 8 * quarter;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            *reinterpret_cast<uint4 *>(to + 32 * i) = latent::row_of(k.low[i], half);
            *reinterpret_cast<uint4 *>(to + HALF + 32 * i) = latent::row_of(k.high[i], half);
        }
        int mine = w.row + g + 8 * half;
        if (w.part == 0 && quarter == 0)
            a.key_scales[at] = scale_of(half ? squares.y : squares.x, w.squares[mine], a.eps);
    }
}

/* Scores of the group's positions with the queries of its segment from `from` on. */
__device__ __forceinline__ void write_scores(const latent_attention &a, const score_place &w, const float (&d)[4],
                                             const float2 &scale, const int4 &own, int head, int from) {
    int heads = a.exact.heads, group = heads / a.exact.kv_heads, queries = own.y * group, g = w.lane / 4;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        int column = 2 * (w.lane % 4) + e, query = from + column;
        if (column >= QUERIES_AT_ONCE || query >= queries) continue;
        const float *other = w.scores + (w.row + g) * QUERIES_AT_ONCE + column;
        float *out = a.scores +
                     (static_cast<size_t>(own.x + query / group) * heads + head * group + query % group) * a.stride +
                     own.z + g;
        out[0] = latent::finish_score(d[e], other[0], scale.x);
        out[8] = latent::finish_score(d[2 + e], other[8 * QUERIES_AT_ONCE], scale.y);
    }
}

__device__ __forceinline__ void tell_scores(const score_place &w, const float (&d)[4]) {
    int column = 2 * (w.lane % 4);
    if (column >= QUERIES_AT_ONCE) return;
    float *to = w.scores + (w.row + w.lane / 4) * QUERIES_AT_ONCE + column;
    *reinterpret_cast<float2 *>(to) = make_float2(d[0], d[1]);
    *reinterpret_cast<float2 *>(to + 8 * QUERIES_AT_ONCE) = make_float2(d[2], d[3]);
}

/* The same of the queries behind the first ones. A tile may hold groups of several segments: all warps of a pair come
 * to its barriers as often as the one with the most queries. */
__device__ __forceinline__ void more_scores(const latent_attention &a, const score_place &w, const key_rows &keys,
                                            const float2 &scale, const int4 &own, int head, const float2 *bases,
                                            int queries) {
    int most = a.exact.segment_rows * (a.exact.heads / a.exact.kv_heads);
    for (int from = QUERIES_AT_ONCE; from < most; from += QUERIES_AT_ONCE) {
        float d[4] = {};
        if (from < queries) {
            latent::load_queries(w.queries, a.exact, w.part, own.x, head, bases, from, queries, w.lane);
            latent::multiply_keys(d, keys, w.queries, w.lane);
        }
        meet(w.pair); /* what was told is read */
        if (w.part == 1) tell_scores(w, d);
        meet(w.pair);
        if (w.part == 0) write_scores(a, w, d, scale, own, head, from);
    }
}

template <int PANELS, bool AHEAD>
__device__ __forceinline__ void score_tiles(const score_context &c, const latent_attention &a, int warpgroup,
                                            char *memory) {
    int warp = static_cast<int>(threadIdx.x) % 128 / 32, lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4,
        pair = warpgroup / 2, part = warpgroup % 2;
    const float4 *turns = reinterpret_cast<const float4 *>(memory + AT_TURNS);
    const float *norm = reinterpret_cast<const float *>(memory + AT_NORM);
    const score_place w = {part,
                           pair,
                           warp * LATENT_GROUP,
                           lane,
                           reinterpret_cast<float *>(memory + AT_SQUARES) + pair * TILE,
                           reinterpret_cast<float *>(memory + AT_SCORES) + pair * TILE * QUERIES_AT_ONCE,
                           reinterpret_cast<uint16_t *>(memory + AT_QUERIES) + (warpgroup * 4 + warp) * QUERY_VALUES};
    uint32_t turn = c.barrier(BARRIER_TURN + pair), next_turn = c.barrier(BARRIER_TURN + (pair ^ 1));
    bool first = true;
    for (int index = pair, tile = c.share + pair * c.shares; tile < c.tiles;
         index += PAIRS, tile += PAIRS * c.shares, first = false) {
        int lap = index / PAIRS & 1, mine = tile * GROUPS + warp, sequence = index * PANELS;
        int4 own = make_int4(0, 0, 0, 0);
        if (!AHEAD && mine < c.groups) own = __ldcg(reinterpret_cast<const int4 *>(a.gathered.groups + mine));
        barrier_wait(turn, pair ? lap : lap ^ 1);
        float acc[64];
        multiply_tile<PANELS>(c, acc, part, sequence, first, next_turn, lane);
        int queries = own.y * (a.exact.heads / a.exact.kv_heads);
        const float2 *bases = a.gathered.bases + static_cast<size_t>(mine) * HALF;
        if (!AHEAD) {
            if (first) wait_for_predecessor();
            if (queries) latent::load_queries(w.queries, a.exact, part, own.x, c.head, bases, 0, queries, lane);
        }
        warpgroup_wait<0>();
        warpgroup_hold(acc);
        if (lane == 0) barrier_arrive(c.barrier(BARRIER_EMPTY + (sequence + PANELS - 1) % SLOTS));
        float2 squares = square_keys(acc);
        key_rows keys;
        finish_keys(keys, acc, part, turns, norm, lane);
        float d[4];
        if (!AHEAD) latent::multiply_keys(d, keys, w.queries, lane);
        if (part == 1) {
            if (lane % 4 == 0) {
                w.squares[w.row + g] = squares.x;
                w.squares[w.row + g + 8] = squares.y;
            }
            if (!AHEAD) tell_scores(w, d);
        }
        meet(pair);
        if (AHEAD) {
            if (mine < c.groups) write_keys(a, w, keys, squares, mine * LATENT_GROUP, c.head);
        } else {
            float2 scale = make_float2(scale_of(squares.x, w.squares[w.row + g], a.eps),
                                       scale_of(squares.y, w.squares[w.row + g + 8], a.eps));
            if (part == 0) write_scores(a, w, d, scale, own, c.head, 0);
            more_scores(a, w, keys, scale, own, c.head, bases, queries);
        }
        meet(pair); /* what was told is read */
    }
}

#endif

template <int PANELS, bool AHEAD>
__global__ void __launch_bounds__(SCORE_THREADS, 1)
    latent_scores_kernel(const __grid_constant__ score_params p, const __grid_constant__ score_maps maps) {
#if PROMPT_WGMMA
    extern __shared__ char memory[];
    uint32_t raw = shared_address(memory), base = align_tile(raw);
    char *aligned = memory + (base - raw);
    /* Written before the step's first kernel. */
    int groups = p.batch->restored_rows[0] / LATENT_GROUP, kv_heads = p.a.exact.kv_heads;
    const score_context c = {base,     static_cast<int>(blockIdx.x) % kv_heads, static_cast<int>(blockIdx.x) / kv_heads,
                             p.shares, (groups + GROUPS - 1) / GROUPS,          groups};
    if (threadIdx.x == 0) {
        for (int i = 0; i < MOST_PANELS; i++) barrier_init(c.barrier(BARRIER_DECODER + i), 1);
        for (int i = 0; i < SLOTS; i++) {
            barrier_init(c.barrier(BARRIER_FULL + i), 1);
            barrier_init(c.barrier(BARRIER_EMPTY + i), 8);
        }
        for (int i = 0; i < PAIRS; i++) barrier_init(c.barrier(BARRIER_TURN + i), 8);
        asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
        warpgroup_publish();
    }
    if (threadIdx.x < DIM) reinterpret_cast<float *>(aligned + AT_NORM)[threadIdx.x] = p.a.k_norm[threadIdx.x];
    __syncthreads();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(LOADING_REGISTERS));
        if (threadIdx.x == 0) load_tiles<PANELS>(c, p.a.gathered.inside, maps);
        wait_for_predecessor();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(SCORING_REGISTERS));
        score_tiles<PANELS, AHEAD>(c, p.a, static_cast<int>(threadIdx.x) / 128 - 1, aligned);
        wait_for_predecessor(); /* it ends behind its predecessor */
    }
#endif
}

typedef void (*score_kernel)(score_params, score_maps);

template <bool AHEAD> score_kernel kernel_of(int panels) {
    switch (panels) {
    case 1:
        return latent_scores_kernel<1, AHEAD>;
    case 2:
        return latent_scores_kernel<2, AHEAD>;
    case 3:
        return latent_scores_kernel<3, AHEAD>;
    default:
        return latent_scores_kernel<4, AHEAD>;
    }
}

cudaError_t launch_scores(const cuda_launch *l, const cuda_batch *batch, const latent_attention *a, score_kernel kernel,
                          int tiles_of_block) {
    encode_function encode;
    cudaError_t status = find_encode(&encode);
    if (status != cudaSuccess) return status;
    score_maps maps;
    if (!encode_map(encode, &maps.latents, 2, reinterpret_cast<const __nv_bfloat16 *>(a->gathered.codes), a->rank_k,
                    static_cast<size_t>(a->gathered.latent.width), a->most_latents, 0, 1, TILE) ||
        !encode_decoder(encode, &maps.decoder, reinterpret_cast<const __nv_bfloat16 *>(a->decoder_k->data), a->rank_k,
                        static_cast<size_t>(a->decoder_k->ld), a->decoder_k->out, BOX_ROWS))
        return cudaErrorInvalidValue;
    status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SCORE_BYTES);
    if (status != cudaSuccess) return status;
    int wanted = ceil_div(a->most_latents, tiles_of_block * TILE), most = l->multiprocessors / a->exact.kv_heads,
        shares = wanted < most ? wanted : most;
    score_params p = {batch, *a, shares};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(shares * a->exact.kv_heads));
    config.blockDim = dim3(SCORE_THREADS);
    config.dynamicSmemBytes = SCORE_BYTES;
    config.stream = l->stream;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = l->programmatic && !a->alone ? 1 : 0;
    cuda_profile_begin(l, reinterpret_cast<const void *>(kernel));
    status = cudaLaunchKernelEx(&config, kernel, p, maps);
    cuda_profile_end(l);
    return status;
}

} // namespace

extern "C" int latent_attention_serves(const cuda_launch *l, int heads, int kv_heads, int head_dim, int pairs,
                                       int rank_k, int rank_v) {
    cudaFuncAttributes attributes;
    if (head_dim != DIM || pairs != HALF || rank_k % 8 != 0 || rank_v % 8 != 0 || rank_k > LATENT_MOST_RANK ||
        rank_v > LATENT_MOST_RANK || heads % kv_heads != 0 || kv_heads > 32 || l->block_bytes < SCORE_BYTES)
        return 0;
    if (cudaFuncGetAttributes(&attributes, latent_scores_kernel<4, false>) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    return attributes.binaryVersion == 90 && attributes.maxThreadsPerBlock >= SCORE_THREADS;
}

extern "C" cudaError_t latent_attention_keys(const cuda_launch *l, const cuda_batch *batch, const latent_attention *a) {
    return launch_scores(l, batch, a, kernel_of<true>(ceil_div(a->rank_k, PANEL_COLUMNS)), 1);
}

extern "C" cudaError_t latent_attention_scores(const cuda_launch *l, const cuda_batch *batch,
                                               const latent_attention *a) {
    return launch_scores(l, batch, a, kernel_of<false>(ceil_div(a->rank_k, PANEL_COLUMNS)), PAIRS);
}
