/* The prompt product of Hopper (sm_90a): tiles of 128 x 256 by two warpgroups, fed by a third through the bulk tensor
 * copy engine. Gathered rows of A, which the engine cannot fetch, come by cp.async: a warp for every third stage waits
 * for its copies before it announces them, while the other warps' copies are in flight. */
#ifndef KAKEYA_BACKEND_CUDA_PROMPT_GEMM_BULK_CUH
#define KAKEYA_BACKEND_CUDA_PROMPT_GEMM_BULK_CUH

#include <cuda.h>

#include "backend/cuda/prompt_gemm_tile.cuh"
#include "backend/cuda/prompt_wgmma.cuh"

namespace prompt {

/* The tensor maps that the engine walks: A as [m][k] in boxes of 128 rows, W as [experts][n][k] in boxes of 128 rows.
 * The upper 128 rows of a tile of W are the next ones, or the up matrix's when gated. */
struct bulk_maps {
    CUtensorMap a, w, w_up;
};

struct bulk_tile {
    static constexpr int M = 128, N = 256, STAGES = 4, BOX = 128, THREADS = 384, GATHER_WARPS = 3, CONSUMER_WARPS = 8;
    static constexpr int A_BYTES = M * PANEL_ROW_BYTES, W_BYTES = N * PANEL_ROW_BYTES, STAGE_BYTES = A_BYTES + W_BYTES;
    static constexpr int BARRIERS = STAGES * STAGE_BYTES; /* from the first stage; full, then empty */
    static constexpr int TILES_BEFORE = BARRIERS + 2 * STAGES * 8, BYTES = TILE_ALIGNMENT + TILES_BEFORE;
    /* of a thread; together they may not exceed what the launch was given, THREADS * 168 */
    static constexpr int LOADER_REGISTERS = 120, CONSUMER_REGISTERS = 192;
};

#if PROMPT_WGMMA
#define PROMPT_BULK_BOUNDS __launch_bounds__(bulk_tile::THREADS, 1)

__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
    asm volatile("{.reg .b64 state;\nmbarrier.arrive.shared::cta.b64 state, [%0];}\n" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void barrier_arrive_expecting(uint32_t barrier, int bytes) {
    asm volatile("{.reg .b64 state;\nmbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1;}\n" ::"r"(barrier),
                 "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void barrier_wait(uint32_t barrier, int parity) {
    asm volatile("{.reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;}\n" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap &map, int column, int row, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];\n" ::
            "r"(to),
        "l"(&map), "r"(barrier), "r"(column), "r"(row)
        : "memory");
}

__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap &map, int column, int row, int matrix,
                                         uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, "
                 "%5}], [%2];\n" ::"r"(to),
                 "l"(&map), "r"(barrier), "r"(column), "r"(row), "r"(matrix)
                 : "memory");
}

/* A place in the ring of stages; `turn` is the parity of its lap. */
struct ring_place {
    int stage = 0, turn = 0;
    __device__ __forceinline__ void advance(int by) {
        stage += by;
        if (stage >= bulk_tile::STAGES) {
            stage -= bulk_tile::STAGES;
            turn ^= 1;
        }
    }
};

struct bulk_context {
    const gemm_params &p;
    uint32_t base;
    const int *tiles_before;
    int n_tiles, tiles, steps, width;

    __device__ __forceinline__ uint32_t stage_at(const ring_place &r) const {
        return base + static_cast<uint32_t>(r.stage * bulk_tile::STAGE_BYTES);
    }
    __device__ __forceinline__ uint32_t full(const ring_place &r) const {
        return base + static_cast<uint32_t>(bulk_tile::BARRIERS + r.stage * 8);
    }
    __device__ __forceinline__ uint32_t empty(const ring_place &r) const { return full(r) + bulk_tile::STAGES * 8; }
    __device__ __forceinline__ tile_place find(int tile) const {
        return find_tile<bulk_tile::M>(p, tiles_before, tile, n_tiles, width);
    }
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

/* One thread. */
template <bool GATED>
__device__ __forceinline__ void load_boxes(const bulk_context &c, const bulk_maps &maps, bool gather) {
    ring_place r;
    for (int tile = static_cast<int>(blockIdx.x); tile < c.tiles; tile += static_cast<int>(gridDim.x)) {
        tile_place t = c.find(tile);
        for (int step = 0; step < c.steps; step++, r.advance(1)) {
            barrier_wait(c.empty(r), r.turn ^ 1);
            uint32_t full = c.full(r), a = c.stage_at(r), w = a + bulk_tile::A_BYTES;
            barrier_arrive_expecting(full, bulk_tile::W_BYTES + (gather ? 0 : bulk_tile::A_BYTES));
            if (!gather) copy_box(a, maps.a, step * TILE_K, t.first_row, full);
            copy_box(w, maps.w, step * TILE_K, t.first_column, t.expert, full);
            copy_box(w + bulk_tile::W_BYTES / 2, GATED ? maps.w_up : maps.w, step * TILE_K,
                     t.first_column + (GATED ? 0 : bulk_tile::BOX), t.expert, full);
        }
    }
}

/* One of GATHER_WARPS warps: every GATHER_WARPS-th stage. Rows past the tile's last, whose results nobody keeps, repeat
 * it; the upper half is left out when it has none. */
__device__ __forceinline__ void gather_rows(const bulk_context &c, int turn, int lane) {
    constexpr int COPIES = bulk_tile::M / 4; /* a lane copies one chunk of every fourth row */
    int chunk = lane % 8, first = lane / 8;
    uint32_t row_bytes = static_cast<uint32_t>(c.p.lda * sizeof(__nv_bfloat16));
    ring_place r;
    r.advance(turn);
    int skip = turn;
    for (int tile = static_cast<int>(blockIdx.x); tile < c.tiles; tile += static_cast<int>(gridDim.x)) {
        tile_place t = c.find(tile);
        uint32_t source[COPIES];
#pragma unroll
        for (int i = 0; i < COPIES; i++) {
            int row = first + i * 4;
            source[i] = static_cast<uint32_t>(c.p.rows[t.first_row + (row < t.rows ? row : t.rows - 1)]);
        }
        int step = skip;
        for (; step < c.steps; step += bulk_tile::GATHER_WARPS, r.advance(bulk_tile::GATHER_WARPS)) {
            int column = step * TILE_K + chunk * 8;
            bool inside = column < c.p.k;
            const char *from = reinterpret_cast<const char *>(c.p.a + (inside ? column : 0));
            barrier_wait(c.empty(r), r.turn ^ 1);
            uint32_t to = c.stage_at(r) + static_cast<uint32_t>(first * PANEL_ROW_BYTES);
            uint32_t even = to + static_cast<uint32_t>((chunk ^ first) << 4),
                     odd = to + static_cast<uint32_t>((chunk ^ (first + 4)) << 4);
#pragma unroll
            for (int i = 0; i < COPIES / 2; i++) {
                copy_async((i % 2 ? odd : even) + static_cast<uint32_t>(i * 4 * PANEL_ROW_BYTES),
                           from + static_cast<uint64_t>(source[i]) * row_bytes, inside);
            }
            if (t.rows > bulk_tile::M / 2) {
#pragma unroll
                for (int i = COPIES / 2; i < COPIES; i++) {
                    copy_async((i % 2 ? odd : even) + static_cast<uint32_t>(i * 4 * PANEL_ROW_BYTES),
                               from + static_cast<uint64_t>(source[i]) * row_bytes, inside);
                }
            }
            copy_commit();
            copy_wait<0>();
            warpgroup_publish();
            __syncwarp();
            if (lane == 0) barrier_arrive(c.full(r));
        }
        skip = step - c.steps;
    }
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

template <bool GATED> __device__ __forceinline__ void consume_tiles(const bulk_context &c, int warpgroup) {
    int thread = static_cast<int>(threadIdx.x) % 128, warp = thread / 32, lane = thread % 32;
    ring_place r;
    for (int tile = static_cast<int>(blockIdx.x); tile < c.tiles; tile += static_cast<int>(gridDim.x)) {
        tile_place t = c.find(tile);
        if (warpgroup * 64 >= t.rows) { /* none of these rows exist */
            for (int step = 0; step < c.steps; step++, r.advance(1)) {
                barrier_wait(c.full(r), r.turn);
                __syncwarp();
                if (lane == 0) barrier_arrive(c.empty(r));
            }
            continue;
        }
        float acc[128];
        if (!GATED && c.p.n - t.first_column <= bulk_tile::N / 2) { /* the upper half lies outside */
            float(&lower)[64] = reinterpret_cast<float(&)[64]>(acc);
            multiply_rows(c, r, lower, warpgroup, lane);
        } else {
            multiply_rows(c, r, acc, warpgroup, lane);
        }
        int row = warpgroup * 64 + warp * 16 + lane / 4;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (row + half * 8 < t.rows)
                write_row<GATED, false, 32>(c.p, static_cast<size_t>(t.first_row + row + half * 8),
                                            t.first_column + lane % 4 * 2, acc + half * 2);
        }
    }
}

#else
#define PROMPT_BULK_BOUNDS __launch_bounds__(32, 1) /* tells the host that there is no body */
#endif

template <bool GATED>
__global__ void PROMPT_BULK_BOUNDS bulk_kernel(const __grid_constant__ gemm_params p,
                                               const __grid_constant__ bulk_maps maps) {
#if PROMPT_WGMMA
    extern __shared__ char memory[];
    uint32_t raw = shared_address(memory), base = align_tile(raw);
    int *tiles_before = reinterpret_cast<int *>(memory + (base - raw) + bulk_tile::TILES_BEFORE);
    int warpgroup = static_cast<int>(threadIdx.x) / 128, width = GATED ? bulk_tile::N / 2 : bulk_tile::N;
    bulk_context c = {p, base, tiles_before, (p.n + width - 1) / width, 0, (p.k + TILE_K - 1) / TILE_K, width};
    init_stages(base, p.rows ? 2 : 1);
    if (p.expert_begin) count_tiles<bulk_tile::M, bulk_tile::THREADS>(p, tiles_before);
    __syncthreads();
    c.tiles = (p.expert_begin ? tiles_before[p.experts] : (p.m + bulk_tile::M - 1) / bulk_tile::M) * c.n_tiles;

    if (warpgroup == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(bulk_tile::LOADER_REGISTERS));
        int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
        if (warp == 0) {
            if (lane == 0) load_boxes<GATED>(c, maps, p.rows != nullptr);
        } else if (p.rows) {
            gather_rows(c, warp - 1, lane);
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(bulk_tile::CONSUMER_REGISTERS));
        consume_tiles<GATED>(c, warpgroup - 1);
    }
#endif
}

} // namespace prompt

#endif
