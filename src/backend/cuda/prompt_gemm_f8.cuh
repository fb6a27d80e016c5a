/* The kernel of prompt_gemm_f8.h. Tiles, their order, the ring of stages and the way out are those of
 * prompt_gemm_fit.cuh; a stage holds 128 values of k, of W as two units of 64 bytes a row. The tensor cores add with
 * some 14 bits, so sums of 128 leave for float32: those of half of a tile's rows at a time, or of a third, where the
 * compiler would make the products wait for each other. The other warpgroup multiplies meanwhile. */
#ifndef KAKEYA_BACKEND_CUDA_PROMPT_GEMM_F8_CUH
#define KAKEYA_BACKEND_CUDA_PROMPT_GEMM_F8_CUH

#include "backend/cuda/prompt_gemm_fit.cuh"
#include "backend/cuda/quant.h"

namespace prompt {

/* Weights as the kernel walks them: tiles of sixteen rows of W, which are two strips: neighbours, or, gated, one of the
 * gate and one of the up matrix. */
struct f8_weights {
    const char *low; /* the first strip of the first sixteen */
    long long apart; /* from a strip to the other one of its sixteen */
    size_t stride;   /* from sixteen to the next */
    int all;         /* sixteens there are */
    int of_expert;   /* sixteens from one expert to the next */
    int units;
    const float *row_scale; /* of A */
};

struct f8_tile {
    static constexpr int STEP_UNITS = 2, UNIT_BYTES = QUANT_ROWS * (QUANT_VALUES + 8),
                         CODE_BYTES = QUANT_ROWS * QUANT_VALUES;
    static constexpr int W_UNIT = fit_tile::W_ROWS * QUANT_VALUES; /* bytes of a unit in a stage */
    static_assert(STEP_UNITS * W_UNIT == fit_tile::W_BYTES, "the stages of prompt_gemm_fit.cuh");
    /* of a thread; together they may not exceed what the launch was given, 384 * 168 */
    static constexpr int LOADER_REGISTERS = 40, CONSUMER_REGISTERS = 232;
};

#if PROMPT_WGMMA

/* Descriptor of rows of 64 bytes, k contiguous: groups of eight rows are 512 bytes apart, 64-byte swizzle. Adding 2
 * moves on by 32 values. */
__device__ __forceinline__ uint64_t unit_descriptor(uint32_t address) {
    return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | 1ull << 16 | static_cast<uint64_t>(512 >> 4) << 32 |
           2ull << 62;
}

/* One thread, as load_fit. */
__device__ __forceinline__ void load_f8(const bulk_context &c, const fit_plan &plan, fit_news news,
                                        const fit_maps &maps, const f8_weights &w) {
    ring_place r;
    int tile = static_cast<int>(blockIdx.x);
    for (;;) {
        news.tell(tile);
        if (tile >= plan.all) break;
        int next = plan.behind(tile);
        fit_place t = plan.find(tile);
        int boxes = (t.width + fit_tile::BOX - 1) / fit_tile::BOX;
        int sixteen = t.expert * w.of_expert + t.w_tile * (fit_tile::W_ROWS / 16);
        for (int step = 0; step < c.steps; step++, r.advance(1)) {
            barrier_wait(c.empty(r), r.turn ^ 1);
            uint32_t full = c.full(r), to = c.stage_at(r), a = to + fit_tile::W_BYTES;
            barrier_arrive_expecting(full, fit_tile::W_BYTES + boxes * fit_tile::BOX * PANEL_ROW_BYTES);
            asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
                         "%3, %3, %4, %5}], [%2];\n" ::"r"(to),
                         "l"(&maps.w), "r"(full), "r"(0), "r"(sixteen), "r"(step * f8_tile::STEP_UNITS)
                         : "memory");
            for (int i = 0; i < boxes; i++)
                copy_box(a + static_cast<uint32_t>(i * fit_tile::BOX * PANEL_ROW_BYTES), maps.a, step * PANEL_ROW_BYTES,
                         t.first_row + i * fit_tile::BOX, full);
        }
        tile = next;
    }
}

/* Scales of this thread's two rows of W in a step. */
struct f8_scales {
    const char *low, *high;

    __device__ __forceinline__ float2 of_step(int step) const {
        int at = step * (f8_tile::STEP_UNITS * f8_tile::UNIT_BYTES);
        return make_float2(__ldg(reinterpret_cast<const float *>(low + at)),
                           __ldg(reinterpret_cast<const float *>(high + at)));
    }
};

/* acc, from block FIRST on, += the sums of 128 of BLOCKS blocks of eight rows of A, times the scales of W's rows. */
template <int FIRST, int BLOCKS>
__device__ __forceinline__ void add_part(float (&acc)[128], const uint64_t (&w)[4], uint64_t a, float2 scale) {
    float sum[64];
    a += FIRST * (8 * PANEL_ROW_BYTES >> 4);
    warpgroup_begin();
#pragma unroll
    for (int k = 0; k < 4; k++) warpgroup_f8_width<BLOCKS>::multiply(sum, w[k], a + 2 * k, k > 0);
    warpgroup_commit();
    warpgroup_wait<0>();
    warpgroup_hold(sum);
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) {
        float *to = acc + (FIRST + i) * 4;
        to[0] = fmaf(sum[i * 4], scale.x, to[0]);
        to[1] = fmaf(sum[i * 4 + 1], scale.x, to[1]);
        to[2] = fmaf(sum[i * 4 + 2], scale.y, to[2]);
        to[3] = fmaf(sum[i * 4 + 3], scale.y, to[3]);
    }
}

/* acc = the product of this warpgroup's 64 rows of W with the tile's first 16 * SIXTEENS rows of A. */
template <int SIXTEENS>
__device__ __forceinline__ void multiply_f8(const bulk_context &c, ring_place &r, float (&acc)[128],
                                            const f8_scales &scales, int warpgroup, int lane) {
    float2 next = scales.of_step(0);
#pragma unroll
    for (int i = 0; i < 8 * SIXTEENS; i++) acc[i] = 0;
#pragma unroll 1
    for (int step = 0; step < c.steps; step++) {
        float2 scale = next;
        if (step + 1 < c.steps) next = scales.of_step(step + 1);
        barrier_wait(c.full(r), r.turn);
        uint32_t at = c.stage_at(r) + static_cast<uint32_t>(warpgroup * 64 * QUANT_VALUES);
        uint64_t first = unit_descriptor(at), second = unit_descriptor(at + f8_tile::W_UNIT);
        uint64_t a = panel_descriptor(c.stage_at(r) + fit_tile::W_BYTES);
        const uint64_t w[4] = {first, first + 2, second, second + 2};
        if constexpr (SIXTEENS <= 12) {
            add_part<0, SIXTEENS>(acc, w, a, scale);
            add_part<SIXTEENS, SIXTEENS>(acc, w, a, scale);
        } else {
            add_part<0, 12>(acc, w, a, scale);
            add_part<12, 10>(acc, w, a, scale);
            add_part<22, 2 * SIXTEENS - 22>(acc, w, a, scale);
        }
        if (lane == 0) barrier_arrive(c.empty(r));
        r.advance(1);
    }
}

/* In steps of sixteen rows of A: those behind the tile's are there, and nobody asks for their products. */
__device__ __forceinline__ void multiply_f8_width(const bulk_context &c, ring_place &r, float (&acc)[128], int width,
                                                  const f8_scales &scales, int warpgroup, int lane) {
#define F8_CASE(SIXTEENS)                                                                                              \
    case SIXTEENS:                                                                                                     \
        multiply_f8<SIXTEENS>(c, r, acc, scales, warpgroup, lane);                                                     \
        break
    switch ((width + 15) / 16) {
        F8_CASE(1);
        F8_CASE(2);
        F8_CASE(3);
        F8_CASE(4);
        F8_CASE(5);
        F8_CASE(6);
        F8_CASE(7);
        F8_CASE(8);
        F8_CASE(9);
        F8_CASE(10);
        F8_CASE(11);
        F8_CASE(12);
        F8_CASE(13);
        F8_CASE(14);
        F8_CASE(15);
        F8_CASE(16);
    }
#undef F8_CASE
}

/* Scales of the tile's rows of A: asked for before its products, when each thread asks for two, and dealt to all by way
 * of `place`, one of the two that results leave by. */
struct f8_row_scales {
    float mine[2];

    __device__ __forceinline__ f8_row_scales(const float *scale, const fit_place &t) {
        int row = static_cast<int>(threadIdx.x) % 128;
#pragma unroll
        for (int i = 0; i < 2; i++) mine[i] = row + i * 128 < t.rows ? __ldg(scale + t.first_row + row + i * 128) : 0;
    }
    __device__ __forceinline__ void deal(uint32_t place, int warpgroup) const {
        uint32_t row = threadIdx.x % 128;
        if (row == 0) asm volatile("cp.async.bulk.wait_group.read 0;\n" ::: "memory");
        asm volatile("bar.sync %0, 128;\n" ::"r"(warpgroup + 1) : "memory");
#pragma unroll
        for (uint32_t i = 0; i < 2; i++)
            asm volatile("st.shared.f32 [%0], %1;\n" ::"r"(place + (row + i * 128) * 4), "f"(mine[i]) : "memory");
        asm volatile("bar.sync %0, 128;\n" ::"r"(warpgroup + 1) : "memory");
    }
};

/* Multiplies by the scales of A's rows; and where a thread holds outputs g and g + 8 of sixteen, it exchanges one with
 * its neighbour, so that both have two neighbouring ones, as fit_lane wants them. */
template <bool GATED> __device__ __forceinline__ void finish_f8(float (&acc)[128], uint32_t place, int lane) {
    place += static_cast<uint32_t>(lane % 4 * 8);
    bool odd = lane / 4 % 2;
#pragma unroll
    for (int j = 0; j < 32; j++) {
        float s[2];
        asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];\n" : "=f"(s[0]), "=f"(s[1]) : "r"(place + j * 32) : "memory");
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float low = acc[j * 4 + e] * s[e], high = acc[j * 4 + 2 + e] * s[e];
            if (!GATED) {
                float other = __shfl_xor_sync(~0u, odd ? low : high, 4);
                if (odd)
                    low = other;
                else
                    high = other;
            }
            acc[j * 4 + e] = low;
            acc[j * 4 + 2 + e] = high;
        }
    }
}

template <bool GATED>
__device__ __forceinline__ void consume_f8(const bulk_context &c, const fit_plan &plan, fit_news news,
                                           const fit_maps &maps, const f8_weights &w, int warpgroup) {
    int warp = static_cast<int>(threadIdx.x) % 128 / 32, lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4;
    constexpr int OUTPUTS = GATED ? fit_tile::W_ROWS / 2 : fit_tile::W_ROWS;
    uint32_t places = c.base + static_cast<uint32_t>(fit_tile::STAGED + warpgroup * 2 * fit_tile::PIECE);
    /* Not gated: its outputs are those that thread g / 2 + 4 (g % 2) has in prompt_gemm_fit.cuh. */
    const fit_lane l = {lane % 4, GATED ? g : g / 2 + g % 2 * 4, maps.up_first != 0, plan.p.output};
    fit_out out = {plan.p, maps, l, places, warpgroup, warp, 0};
    ring_place r;
    for (int tile; (tile = news.hear(lane)) < plan.all;) {
        fit_place t = plan.find(tile);
        int sixteen = t.expert * w.of_expert + t.w_tile * (fit_tile::W_ROWS / 16) + warpgroup * 4 + warp;
        f8_scales scales;
        scales.low = w.low + static_cast<size_t>(min(sixteen, w.all - 1)) * w.stride + f8_tile::CODE_BYTES + g * 8;
        scales.high = scales.low + w.apart;
        const f8_row_scales rows(w.row_scale, t);
        float acc[128];
        multiply_f8_width(c, r, acc, t.width, scales, warpgroup, lane);
        rows.deal(places, warpgroup);
        finish_f8<GATED>(acc, places, lane);
        int column = t.w_tile * OUTPUTS + warpgroup * (OUTPUTS / 2);
        if (!maps.staged)
            write_blocks<GATED, 32, 0>(plan.p, t, l, acc, column + warp * (OUTPUTS / 8));
        else if (!GATED && plan.p.output == PROMPT_GEMM_F32)
            stage_pieces<GATED, true, fit_tile::MOST_ROWS / 8, 0>(out, t, acc, column);
        else
            stage_pieces<GATED, false, fit_tile::MOST_ROWS / 8, 0>(out, t, acc, column);
    }
    asm volatile("cp.async.bulk.wait_group 0;\n" ::: "memory");
}

#endif

template <bool GATED>
__global__ void PROMPT_FIT_BOUNDS f8_kernel(const __grid_constant__ gemm_params p,
                                            const __grid_constant__ fit_maps maps, const __grid_constant__ f8_weights w,
                                            int dense_width) {
#if PROMPT_WGMMA
    extern __shared__ char memory[];
    uint32_t raw = shared_address(memory), base = align_tile(raw);
    int *tiles_before = reinterpret_cast<int *>(memory + (base - raw) + fit_tile::TILES_BEFORE);
    int warpgroup = static_cast<int>(threadIdx.x) / 128, outputs = GATED ? fit_tile::W_ROWS / 2 : fit_tile::W_ROWS;
    int w_tiles = (p.n + outputs - 1) / outputs;
    const bulk_context c = {base, (w.units + f8_tile::STEP_UNITS - 1) / f8_tile::STEP_UNITS};
    fit_news news(base + fit_tile::NEWS);
    if (threadIdx.x == 0) news.init(bulk_tile::CONSUMER_WARPS);
    init_stages(base, 1);
    if (p.expert_begin) count_fit<fit_tile::THREADS>(p, w_tiles, tiles_before);
    __syncthreads();
    const fit_plan plan(p, tiles_before, w_tiles, dense_width);

    if (warpgroup == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(f8_tile::LOADER_REGISTERS));
        if (threadIdx.x == 0) load_f8(c, plan, news, maps, w);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(f8_tile::CONSUMER_REGISTERS));
        consume_f8<GATED>(c, plan, news, maps, w, warpgroup - 1);
    }
#endif
}

} // namespace prompt

#endif
