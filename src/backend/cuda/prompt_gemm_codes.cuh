/* The kernel of prompt_gemm_codes (prompt_gemm.h). Tiles, their order, products and the way out are those of
 * prompt_gemm_fit.cuh; rows of A come through the copy engine. The weights of a stage are sixteen units (quant.h), and
 * each warp of a warpgroup that fetches makes four of them bf16 and writes them where the engine would have put them.
 * Its units come through a ring of its own, in the place of a stage, in which those of the next tile are on their way
 * while this one ends. Bound: the products, 1024 cycles a stage at 256 rows of A; or, at few rows, what stages
 * wait for (docs/laboratory/cuda.md, Q7). */
#ifndef KAKEYA_BACKEND_CUDA_PROMPT_GEMM_CODES_CUH
#define KAKEYA_BACKEND_CUDA_PROMPT_GEMM_CODES_CUH

#include "backend/cuda/prompt_gemm_fit.cuh"
#include "backend/cuda/quant_values.cuh"

namespace prompt {

struct code_weights {
    const char *w, *w_up; /* the first strip; w_up: gated outputs only */
    size_t strip_bytes;
    size_t of_expert; /* strips from one expert to the next */
    int strips;       /* of a matrix of n rows */
    cuda_form form;
};

/* Where tiles have up to 128 rows the warps that multiply leave registers to a second warpgroup that converts. Both
 * take stages by turns: a stage takes as long as its waits, not as its instructions. */
template <bool NARROW> struct codes_tile {
    static constexpr int GROUPS = NARROW ? 2 : 1, THREADS = fit_tile::THREADS + (GROUPS - 1) * 128,
                         MOST_ROWS = NARROW ? 128 : fit_tile::MOST_ROWS;
    static constexpr int WARPS = 4; /* of a group */
    static constexpr int STRIPS = fit_tile::W_ROWS / QUANT_ROWS, WARP_STRIPS = STRIPS / WARPS;
    static constexpr int ARRIVALS = 1 + WARPS; /* of a stage: rows of A, and what each warp has written */
    static constexpr int STAGES = bulk_tile::STAGES - 1, UNITS = STAGES * bulk_tile::STAGE_BYTES,
                         WARP_BYTES = bulk_tile::STAGE_BYTES / WARPS / GROUPS, MOST_SLOTS = 8,
                         WARP_BARRIERS = MOST_SLOTS * 8;
    static_assert(QUANT_VALUES == TILE_K, "a unit is as wide as a stage");
    static_assert(WARP_BARRIERS % 16 == 0 && WARP_BYTES % 16 == 0, "the copy engine's alignment");
};

#if PROMPT_WGMMA

/* What a lane has of a unit. */
template <cuda_form FORM> struct lane_unit {
    lane_codes<FORM> codes;
    row_scales<FORM> scales;

    __device__ __forceinline__ void read(uint32_t unit, int lane) {
        load_run(codes.word, unit + static_cast<uint32_t>(quant_lane_offset(FORM, lane)));
        load_run(scales.word, unit + static_cast<uint32_t>(quant_scale_offset(FORM, lane >> 2, 0)));
    }

    /* row: where the lane's row of the stage begins; swizzle: of its chunks. Odd rows begin with the second block, so
     * that eight lanes meet all banks. */
    __device__ __forceinline__ void write(uint32_t row, uint32_t swizzle, int lane) const {
        const uint32_t t = lane & 3;
        const bool odd = lane >> 2 & 1;
        unsigned value[QUANT_BLOCKS][4];
#pragma unroll
        for (int b = 0; b < QUANT_BLOCKS; b++) {
            codes.pairs(b, value[b]);
#pragma unroll
            for (int i = 0; i < 4; i++)
                value[b][i] =
                    scaled_pair(value[b][i], scales.scale(b, i / 2), scales.offset(b), row_scales<FORM>::AFFINE);
        }
#pragma unroll
        for (uint32_t turn = 0; turn < QUANT_BLOCKS; turn++) {
            unsigned v[4];
            const uint32_t chunk = (turn ^ odd) * 4;
#pragma unroll
            for (int i = 0; i < 4; i++) v[i] = odd ? value[1 - turn][i] : value[turn][i];
            if (halved<FORM>) {
#pragma unroll
                for (uint32_t half = 0; half < 2; half++)
                    asm volatile("st.shared.v2.u32 [%0], {%1,%2};\n" ::"r"(
                                     row + ((chunk + half * 2 + t / 2 ^ swizzle) << 4) + t % 2 * 8),
                                 "r"(v[half * 2]), "r"(v[half * 2 + 1])
                                 : "memory");
            } else {
                asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};\n" ::"r"(row + ((chunk + t ^ swizzle) << 4)),
                             "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
                             : "memory");
            }
        }
    }
};

/* A warp's units on their way: slots of four, one of each of its strips. */
template <cuda_form FORM, bool GATED, class TILE> struct unit_ring {
    static constexpr int UNIT_BYTES = QUANT_ROWS *
                                      (QUANT_VALUES / (lane_codes<FORM>::NARROW ? 2 : 1) + 4 * row_scales<FORM>::WORDS),
                         SLOT_BYTES = TILE::WARP_STRIPS * UNIT_BYTES,
                         FIT = (TILE::WARP_BYTES - TILE::WARP_BARRIERS) / SLOT_BYTES,
                         SLOTS = FIT < TILE::MOST_SLOTS ? FIT : TILE::MOST_SLOTS;
    static_assert(SLOTS * TILE::GROUPS >= 3, "what takes a latency of memory is on its way");
    uint32_t base; /* barriers, then slots */
    const char *strip;
    int warp, lane; /* warp: of its group */
    unsigned requested = 0, used = 0;

    __device__ __forceinline__ unit_ring(uint32_t stages, int w, int l)
        : base(stages + static_cast<uint32_t>(TILE::UNITS + w * TILE::WARP_BYTES)), warp(w % TILE::WARPS), lane(l) {
        if (lane == 0)
            for (uint32_t i = 0; i < SLOTS; i++) barrier_init(base + i * 8, 1);
        asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
        warpgroup_publish();
        __syncwarp();
    }
    __device__ __forceinline__ uint32_t barrier(unsigned n) const { return base + n % SLOTS * 8; }
    __device__ __forceinline__ uint32_t slot(unsigned n) const {
        return base + TILE::WARP_BARRIERS + n % SLOTS * SLOT_BYTES;
    }
    __device__ __forceinline__ bool is_full() const { return requested - used == SLOTS; }

    /* The first lanes each have a strip of the tile. */
    __device__ __forceinline__ void enter(const code_weights &w, const fit_place &t) {
        const int sixteen = warp * (TILE::WARP_STRIPS / 2) + lane / 2, half = lane % 2;
        const int at = GATED ? t.w_tile * (TILE::STRIPS / 2) + sixteen : t.w_tile * TILE::STRIPS + sixteen * 2 + half;
        strip =
            (GATED && half ? w.w_up : w.w) +
            (static_cast<size_t>(t.expert) * w.of_expert + static_cast<size_t>(min(at, w.strips - 1))) * w.strip_bytes;
    }
    __device__ __forceinline__ void request(int step) {
        if (lane == 0) barrier_arrive_expecting(barrier(requested), SLOT_BYTES);
        if (lane < TILE::WARP_STRIPS)
            asm volatile(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(
                    slot(requested) + static_cast<uint32_t>(lane * UNIT_BYTES)),
                "l"(strip + static_cast<size_t>(step) * UNIT_BYTES), "n"(UNIT_BYTES), "r"(barrier(requested))
                : "memory");
        requested++;
    }
    /* The oldest slot into the rows of a stage; others may take it when the warp has met. */
    __device__ __forceinline__ void write_oldest(uint32_t stage) {
        lane_unit<FORM> unit[TILE::WARP_STRIPS];
        const int g = lane >> 2;
        barrier_wait(barrier(used), static_cast<int>(used / SLOTS & 1));
#pragma unroll
        for (int i = 0; i < TILE::WARP_STRIPS; i++)
            unit[i].read(slot(used) + static_cast<uint32_t>(i * UNIT_BYTES), lane);
#pragma unroll
        for (int i = 0; i < TILE::WARP_STRIPS; i++) {
            const int sixteen = warp * (TILE::WARP_STRIPS / 2) + i / 2, half = i % 2;
            /* as fit_maps deals them */
            const int row = sixteen * 16 + (GATED ? half * 8 + g : g % 2 * 8 + half * 4 + g / 2);
            unit[i].write(stage + static_cast<uint32_t>(row * PANEL_ROW_BYTES), static_cast<uint32_t>(row & 7), lane);
        }
        used++;
    }
};

/* Whole warpgroups; their first threads also do what load_fit's does. Units are requested of the tile that is written
 * and of the one behind it: others learn of a third only when they have begun with the first. */
template <cuda_form FORM, bool GATED, class TILE>
__device__ __forceinline__ void load_codes(const bulk_context &c, const fit_plan &plan, fit_news news,
                                           const fit_maps &maps, const code_weights &w) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32,
              group = warp / TILE::WARPS;
    unit_ring<FORM, GATED, TILE> units(c.base, warp, lane);
    fit_news teller = news;
    ring_place r = {c.stages};
    fit_place here = {}, there = {};
    int next = static_cast<int>(blockIdx.x), asked = c.steps, told = 0, done = 0; /* steps */
    auto first_after = [&](int steps) { return (group + steps) % TILE::GROUPS; }; /* of this group in a tile */
    bool more = true, ahead = false; /* tiles follow the one that is asked for; that is the one behind `here` */
    auto hear = [&]() {
        if (threadIdx.x == 0) teller.tell(next);
        __syncwarp();
        const int tile = news.hear(lane);
        more = tile < plan.all;
        if (!more) return;
        if (threadIdx.x == 0) next = plan.behind(tile);
        there = plan.find(tile);
        units.enter(w, there);
        ahead = true;
        asked = first_after(told);
        told += c.steps;
    };
    hear();
    while (ahead) {
        here = there;
        ahead = false;
        const int boxes = (here.width + fit_tile::BOX - 1) / fit_tile::BOX;
        for (int step = 0; step < c.steps; step++, done++, r.advance(1)) {
            if (first_after(done) != 0) continue;
            while (!units.is_full()) {
                if (asked >= c.steps && more && !ahead) hear();
                if (asked >= c.steps) break;
                units.request(asked);
                asked += TILE::GROUPS;
            }
            barrier_wait(c.empty(r), r.turn ^ 1);
            const uint32_t full = c.full(r), to = c.stage_at(r);
            if (threadIdx.x % 128 == 0) {
                barrier_arrive_expecting(full, boxes * fit_tile::BOX * PANEL_ROW_BYTES);
                for (int i = 0; i < boxes; i++)
                    copy_box(to + static_cast<uint32_t>(fit_tile::W_BYTES + i * fit_tile::BOX * PANEL_ROW_BYTES),
                             maps.a, step * TILE_K, here.first_row + i * fit_tile::BOX, full);
            }
            __syncwarp();
            units.write_oldest(to);
            warpgroup_publish();
            __syncwarp();
            if (lane == 0) barrier_arrive(full);
        }
        if (more && !ahead) hear();
    }
}

template <bool GATED, class TILE>
__device__ __forceinline__ void load_form(const bulk_context &c, const fit_plan &plan, fit_news news,
                                          const fit_maps &maps, const code_weights &w) {
#define CODES_CASE(FORM)                                                                                               \
    case FORM:                                                                                                         \
        load_codes<FORM, GATED, TILE>(c, plan, news, maps, w);                                                         \
        break
    switch (w.form) {
        CODES_CASE(CUDA_FORM_Q4);
        CODES_CASE(CUDA_FORM_Q8);
        CODES_CASE(CUDA_FORM_A4);
        CODES_CASE(CUDA_FORM_A8);
        CODES_CASE(CUDA_FORM_G8);
        CODES_CASE(CUDA_FORM_F8);
        CODES_CASE(CUDA_FORM_S4);
        CODES_CASE(CUDA_FORM_G4);
    default:
        break;
    }
#undef CODES_CASE
}

#define PROMPT_CODES_BOUNDS __launch_bounds__(codes_tile<NARROW>::THREADS, 1)
#else
#define PROMPT_CODES_BOUNDS __launch_bounds__(32, 1)
#endif

template <bool GATED, bool NARROW>
__global__ void PROMPT_CODES_BOUNDS codes_kernel(const __grid_constant__ gemm_params p,
                                                 const __grid_constant__ fit_maps maps,
                                                 const __grid_constant__ code_weights w, int dense_width) {
#if PROMPT_WGMMA
    typedef codes_tile<NARROW> TILE;
    extern __shared__ char memory[];
    uint32_t raw = shared_address(memory), base = align_tile(raw);
    int *tiles_before = reinterpret_cast<int *>(memory + (base - raw) + fit_tile::TILES_BEFORE);
    int warpgroup = static_cast<int>(threadIdx.x) / 128, outputs = GATED ? fit_tile::W_ROWS / 2 : fit_tile::W_ROWS;
    int w_tiles = (p.n + outputs - 1) / outputs;
    const bulk_context c = {base, (p.k + TILE_K - 1) / TILE_K, TILE::STAGES};
    fit_news news(base + fit_tile::NEWS);
    if (threadIdx.x == 0) news.init(bulk_tile::CONSUMER_WARPS + TILE::GROUPS * TILE::WARPS);
    init_stages(base, TILE::ARRIVALS);
    if (p.expert_begin) count_fit<TILE::THREADS>(p, w_tiles, tiles_before, TILE::MOST_ROWS);
    __syncthreads();
    const fit_plan plan(p, tiles_before, w_tiles, dense_width, TILE::MOST_ROWS);

    if (warpgroup < TILE::GROUPS) {
        if constexpr (!NARROW) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(bulk_tile::LOADER_REGISTERS));
        load_form<GATED, TILE>(c, plan, news, maps, w);
    } else {
        if constexpr (!NARROW)
            asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(bulk_tile::CONSUMER_REGISTERS));
        consume_fit<GATED, TILE::MOST_ROWS / 8>(c, plan, news, maps, warpgroup - TILE::GROUPS);
    }
#endif
}

} // namespace prompt

#endif
