/* What the products of Hopper (sm_90a) share that take tiles of 128 x 256 or less: a ring of stages that one thread
 * fills through the bulk tensor copy engine and two warpgroups multiply. */
#ifndef KAKEYA_BACKEND_CUDA_PROMPT_GEMM_BULK_CUH
#define KAKEYA_BACKEND_CUDA_PROMPT_GEMM_BULK_CUH

#include "backend/cuda/prompt_bulk.cuh"
#include "backend/cuda/prompt_gemm_tile.cuh"
#include "backend/cuda/prompt_wgmma.cuh"

namespace prompt {

struct bulk_tile {
    static constexpr int M = 128, N = 256, STAGES = 4, BOX = 128, THREADS = 384, CONSUMER_WARPS = 8;
    static constexpr int A_BYTES = M * PANEL_ROW_BYTES, W_BYTES = N * PANEL_ROW_BYTES, STAGE_BYTES = A_BYTES + W_BYTES;
    static constexpr int BARRIERS = STAGES * STAGE_BYTES; /* from the first stage; full, then empty */
    static constexpr int TILES_BEFORE = BARRIERS + 2 * STAGES * 8, BYTES = TILE_ALIGNMENT + TILES_BEFORE;
    /* of a thread; together they may not exceed what the launch was given, THREADS * 168 */
    static constexpr int LOADER_REGISTERS = 120, CONSUMER_REGISTERS = 192;
};

#if PROMPT_WGMMA
#define PROMPT_BULK_BOUNDS __launch_bounds__(bulk_tile::THREADS, 1)

/* A place in the ring of stages; `turn` is the parity of its lap. */
struct ring_place {
    int stages = bulk_tile::STAGES, stage = 0, turn = 0;
    __device__ __forceinline__ void advance(int by) {
        stage += by;
        if (stage >= stages) {
            stage -= stages;
            turn ^= 1;
        }
    }
};

struct bulk_context {
    uint32_t base;
    int steps;                      /* of k, of a tile */
    int stages = bulk_tile::STAGES; /* of which the ring is made: those, or fewer */

    __device__ __forceinline__ uint32_t stage_at(const ring_place &r) const {
        return base + static_cast<uint32_t>(r.stage * bulk_tile::STAGE_BYTES);
    }
    __device__ __forceinline__ uint32_t full(const ring_place &r) const {
        return base + static_cast<uint32_t>(bulk_tile::BARRIERS + r.stage * 8);
    }
    __device__ __forceinline__ uint32_t empty(const ring_place &r) const { return full(r) + bulk_tile::STAGES * 8; }
};

/* By the first thread; a barrier follows. `arrivals`: threads that announce a stage's bytes. */
__device__ __forceinline__ void init_stages(uint32_t base, int arrivals) {
    if (threadIdx.x != 0) return;
    for (int i = 0; i < bulk_tile::STAGES; i++) {
        barrier_init(base + static_cast<uint32_t>(bulk_tile::BARRIERS + i * 8), arrivals);
        barrier_init(base + static_cast<uint32_t>(bulk_tile::BARRIERS + (bulk_tile::STAGES + i) * 8),
                     bulk_tile::CONSUMER_WARPS);
    }
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
    warpgroup_publish();
}

/* acc = the product of 64 rows of the tile with its first SIZE * 2 columns. Stages are given back when the products
 * that read them are done, one step later. */
template <int SIZE>
__device__ __forceinline__ void multiply_rows(const bulk_context &c, ring_place &r, float (&acc)[SIZE], int warpgroup,
                                              int lane) {
    ring_place before = r;
    for (int step = 0; step < c.steps; step++) {
        barrier_wait(c.full(r), r.turn);
        uint64_t a = panel_descriptor(c.stage_at(r) + static_cast<uint32_t>(warpgroup * 64 * PANEL_ROW_BYTES));
        uint64_t w = panel_descriptor(c.stage_at(r) + bulk_tile::A_BYTES);
        warpgroup_begin();
#pragma unroll
        for (int k = 0; k < TILE_K / 16; k++) warpgroup_multiply(acc, a + 2 * k, w + 2 * k, step + k > 0);
        warpgroup_commit();
        if (step > 0) {
            warpgroup_wait<1>();
            if (lane == 0) barrier_arrive(c.empty(before));
        }
        before = r;
        r.advance(1);
    }
    warpgroup_wait<0>();
    warpgroup_hold(acc);
    if (lane == 0) barrier_arrive(c.empty(before));
}

#else
#define PROMPT_BULK_BOUNDS __launch_bounds__(32, 1) /* tells the host that there is no body */
#endif

} // namespace prompt

#endif
