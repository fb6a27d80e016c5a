/* Keys and values of evicted positions from their latents (sm_90a): the tiles of prompt_gemm_bulk.cuh, 128 positions by
 * one head, whose norms, RoPE and scales are applied where the products lie. One launch serves both halves of a layer.
 *
 * Positions are rows of gathered latents, of all segments one behind the other. Tiles of the same positions follow each
 * other, so that latents come from memory once and their tiles find them in L2. Decoding depends on committed positions
 * alone: it begins before its predecessor has ended, but ends after. */
#ifndef KAKEYA_BACKEND_CUDA_PROMPT_GEMM_RESTORE_CUH
#define KAKEYA_BACKEND_CUDA_PROMPT_GEMM_RESTORE_CUH

#include "backend/cuda/kernels.h"
#include "backend/cuda/prompt_gemm_bulk.cuh"

namespace prompt {

/* By half: keys, values. Latents in boxes of 128 rows of one panel; where one half has fewer panels than the other,
 * what it lacks reads as zero. Decoders in boxes of 128 rows, too, but in each 32 of them the digits of (row / 8, row /
 * 2 % 4, row % 2) come in the order (second, first, third): the columns of the product that a thread holds are then
 * eight neighbours of a head, 16 bytes of its result. */
struct restore_maps {
    CUtensorMap latents[2], decoder[2];
};

constexpr int RESTORE_BYTES = bulk_tile::BYTES + bulk_tile::N * static_cast<int>(sizeof(float)); /* with k_norm */

struct restore_params {
    const cuda_batch *batch;
    cuda_restore r;
    bool chained; /* the next kernel may start beside this one: what it reads early is older */
};

#if PROMPT_WGMMA

/* A tile: rows [first, first + 128) of one head's keys or values. */
struct restore_tile {
    int first, head, half;
};

struct restore_context {
    const restore_params &p;
    int rows, columns, tiles;

    __device__ __forceinline__ restore_context(const restore_params &params) : p(params) {
        rows = p.batch->restored_rows[p.r.full];
        columns = 2 * p.r.kv_heads;
        tiles = columns * ((rows + bulk_tile::M - 1) / bulk_tile::M);
    }
    __device__ __forceinline__ restore_tile find(int tile) const {
        int column = tile % columns;
        return {tile / columns * bulk_tile::M, column % p.r.kv_heads, column / p.r.kv_heads};
    }
};

/* BOX rows of a decoder from its 32 times `rows_of_32`-th on. */
__device__ __forceinline__ void copy_decoder(uint32_t to, const CUtensorMap &map, int column, int rows_of_32,
                                             uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %4, %4, "
        "%5}], [%2];\n" ::"r"(to),
        "l"(&map), "r"(barrier), "r"(column), "r"(0), "r"(rows_of_32)
        : "memory");
}

/* One thread. */
__device__ __forceinline__ void load_restored(const restore_context &rc, const bulk_context &c,
                                              const restore_maps &maps) {
    ring_place r;
    for (int tile = static_cast<int>(blockIdx.x); tile < rc.tiles; tile += static_cast<int>(gridDim.x)) {
        restore_tile t = rc.find(tile);
        for (int step = 0; step < c.steps; step++, r.advance(1)) {
            barrier_wait(c.empty(r), r.turn ^ 1);
            uint32_t full = c.full(r), a = c.stage_at(r), w = a + bulk_tile::A_BYTES;
            barrier_arrive_expecting(full, bulk_tile::STAGE_BYTES);
            for (int i = 0; i < 2; i++)
                copy_decoder(w + static_cast<uint32_t>(i * bulk_tile::W_BYTES / 2), maps.decoder[t.half], step * TILE_K,
                             t.head * (bulk_tile::N / 32) + i * (bulk_tile::BOX / 32), full);
            copy_box(a, maps.latents[t.half], step * TILE_K, t.first, full);
        }
    }
}

/* A thread's rows `row` and `row` + 8 of a tile, of each in every 32 columns the eight from 8 * quarter on: column 32 q
 * + 8 quarter + 2 s + e lies in acc[16 q + 4 s + 2 half + e]. */
template <bool KEYS>
__device__ __forceinline__ void write_restored(const restore_context &rc, const restore_tile &t,
                                               const float (&acc)[128], const float (&stored_scale)[2],
                                               const float *k_norm, int row, int quarter) {
    const cuda_restore &r = rc.p.r;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int to = t.first + row + half * 8;
        float scale = stored_scale[half];
        if (KEYS) {
            scale = 0;
#pragma unroll
            for (int j = 0; j < 32; j++)
                scale += acc[j * 4 + half * 2] * acc[j * 4 + half * 2] +
                         acc[j * 4 + half * 2 + 1] * acc[j * 4 + half * 2 + 1];
            scale += __shfl_xor_sync(~0u, scale, 1);
            scale += __shfl_xor_sync(~0u, scale, 2);
            scale = rsqrtf(scale / static_cast<float>(bulk_tile::N) + r.eps);
        }
        if (to >= rc.rows) continue;
        uint16_t *out =
            (KEYS ? r.k : r.v) + (static_cast<size_t>(to) * r.kv_heads + t.head) * bulk_tile::N + 8 * quarter;
        const float4 *turns =
            reinterpret_cast<const float4 *>(r.gathered.turns + static_cast<size_t>(to) * (bulk_tile::N / 2)) + quarter;
        float4 turn[2][4]; /* cosine and sine of two neighbours; the next 32 columns' are on their way */
        if (KEYS) {
#pragma unroll
            for (int s = 0; s < 4; s++) turn[0][s] = __ldcg(turns + 4 * s);
        }
#pragma unroll
        for (int q = 0; q < 4; q++) {
            if (KEYS && q < 3) {
#pragma unroll
                for (int s = 0; s < 4; s++) turn[(q + 1) % 2][s] = __ldcg(turns + 16 * (q + 1) + 4 * s);
            }
            uint32_t low[4], high[4];
#pragma unroll
            for (int s = 0; s < 4; s++) {
                const float *x = acc + q * 16 + s * 4 + half * 2, *y = x + 64;
                float a = x[0] * scale, b = x[1] * scale, c = y[0] * scale, d = y[1] * scale;
                if (KEYS) {
                    const float2 *norm = reinterpret_cast<const float2 *>(k_norm + 32 * q + 8 * quarter + 2 * s);
                    float2 first = norm[0], second = norm[bulk_tile::N / 4];
                    float4 by = turn[q % 2][s];
                    a *= first.x, b *= first.y, c *= second.x, d *= second.y;
                    float u = a, v = b;
                    a = u * by.x - c * by.y, b = v * by.z - d * by.w;
                    c = c * by.x + u * by.y, d = d * by.z + v * by.w;
                }
                low[s] = pack_pair(a, b), high[s] = pack_pair(c, d);
            }
            *reinterpret_cast<uint4 *>(out + 32 * q) = make_uint4(low[0], low[1], low[2], low[3]);
            *reinterpret_cast<uint4 *>(out + 32 * q + bulk_tile::N / 2) =
                make_uint4(high[0], high[1], high[2], high[3]);
        }
    }
}

__device__ __forceinline__ void consume_restored(const restore_context &rc, const bulk_context &c, const float *k_norm,
                                                 int warpgroup) {
    int thread = static_cast<int>(threadIdx.x) % 128, warp = thread / 32, lane = thread % 32;
    int row = warpgroup * 64 + warp * 16 + lane / 4;
    const cuda_gathered &gathered = rc.p.r.gathered;
    const float *scales = gathered.scales + rc.p.r.latent_head;
    ring_place r;
    for (int tile = static_cast<int>(blockIdx.x); tile < rc.tiles; tile += static_cast<int>(gridDim.x)) {
        restore_tile t = rc.find(tile);
        float acc[128], scale[2] = {0, 0};
        for (int half = 0; t.half && half < 2; half++) {
            int from = t.first + row + half * 8;
            if (from < rc.rows) scale[half] = __ldcg(scales + static_cast<size_t>(from) * gathered.heads + t.head);
        }
        multiply_rows(c, r, acc, warpgroup, lane);
        if (t.half)
            write_restored<false>(rc, t, acc, scale, k_norm, row, lane % 4);
        else
            write_restored<true>(rc, t, acc, scale, k_norm, row, lane % 4);
    }
}

#endif

__global__ void PROMPT_BULK_BOUNDS restore_latents_kernel(const __grid_constant__ restore_params p,
                                                          const __grid_constant__ restore_maps maps) {
#if PROMPT_WGMMA
    extern __shared__ char memory[];
    if (p.chained) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    uint32_t base = align_tile(shared_address(memory));
    int warpgroup = static_cast<int>(threadIdx.x) / 128;
    const bulk_context c = {base, (max(p.r.rank_k, p.r.rank_v) + TILE_K - 1) / TILE_K};
    float *k_norm = reinterpret_cast<float *>(memory + (base - shared_address(memory)) + bulk_tile::TILES_BEFORE);
    if (threadIdx.x < bulk_tile::N) k_norm[threadIdx.x] = p.r.k_norm[threadIdx.x];
    init_stages(base, 1);
    restore_context rc(p);
    __syncthreads();
    if (warpgroup == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(bulk_tile::LOADER_REGISTERS));
        if (threadIdx.x == 0) load_restored(rc, c, maps);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(bulk_tile::CONSUMER_REGISTERS));
        consume_restored(rc, c, k_norm, warpgroup - 1);
    }
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

} // namespace prompt

#endif
