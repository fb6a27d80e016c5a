/* The prompt product of Hopper (sm_90a) whose tiles fit their rows: 128 rows of W are the left operand of the warpgroup
 * instruction and up to 256 rows of A the right one, whose number may be any multiple of eight. So an expert with 250
 * rows takes one tile and one with 270 two tiles of 136, and matrices of 704 or 2112 outputs have no tile that is half
 * empty. Two warpgroups multiply 64 rows of W each, and one thread of a third fetches both through the bulk tensor copy
 * engine: rows that it cannot fetch, because they are not neighbours, have to be gathered beforehand. cp.async brings
 * a third of what the engine brings in the same time. */
#ifndef KAKEYA_BACKEND_CUDA_PROMPT_GEMM_FIT_CUH
#define KAKEYA_BACKEND_CUDA_PROMPT_GEMM_FIT_CUH

#include "backend/cuda/prompt_gemm_bulk.cuh"
#include "backend/cuda/prompt_wgmma_widths.cuh"

namespace prompt {

/* The tensor maps that the engine walks: A as [m][k] in boxes of BOX rows; W in boxes of 128 rows, dealt so that rows g
 * and g + 8 of each 16 are neighbouring outputs, or, gated, the gate and the up matrix of one output. */
struct fit_maps {
    CUtensorMap a, w, out; /* out: in boxes of what a warpgroup stages at a time */
    int up_first;          /* gated: the up matrix comes first */
    int staged;            /* results leave through shared memory */
};

struct fit_tile {
    static constexpr int W_ROWS = 128, MOST_ROWS = 256, BOX = 64, THREADS = 384;
    static constexpr int W_BYTES = W_ROWS * PANEL_ROW_BYTES, STAGE_BYTES = W_BYTES + MOST_ROWS * PANEL_ROW_BYTES;
    /* from the base: the ring and its barriers, news, staged results (two pieces a warpgroup), the table of tiles */
    static constexpr int NEWS = bulk_tile::TILES_BEFORE, STAGED = bulk_tile::BARRIERS + TILE_ALIGNMENT, PIECE = 8192,
                         GATED_PIECE = 4096, TILES_BEFORE = STAGED + 2 * 2 * PIECE,
                         BYTES = TILE_ALIGNMENT + TILES_BEFORE;
    static_assert(NEWS + 48 <= STAGED, "places do not overlap");
    static constexpr int OVERHEAD = 16; /* of a tile, in rows: the way out of the registers */
    static_assert(STAGE_BYTES == bulk_tile::STAGE_BYTES, "the ring of prompt_gemm_bulk.cuh");
};

/* The least width of a tile that `rows` rows fit in: those that warpgroup_width has. */
__host__ __device__ __forceinline__ int fit_width(int rows) {
    return rows <= 112 ? (rows + 15) / 16 * 16 : (rows + 7) / 8 * 8 < 128 ? 128 : (rows + 7) / 8 * 8;
}

/* Rows of one expert, cut evenly. */
struct fit_cut {
    int tiles, width; /* row tiles, and the rows of each but the last */
};

__host__ __device__ __forceinline__ fit_cut cut_rows(int rows, int most) {
    int tiles = (rows + most - 1) / most;
    return {tiles, tiles ? fit_width((rows + tiles - 1) / tiles) : 0};
}

/* tiles_before[e]: tiles of the experts below e, of up to `most` rows. */
template <int THREADS>
__device__ void count_fit(const gemm_params &p, int w_tiles, int *tiles_before, int most = fit_tile::MOST_ROWS) {
    for (int e = static_cast<int>(threadIdx.x); e < p.experts; e += THREADS)
        tiles_before[e + 1] = cut_rows(p.expert_begin[e + 1] - p.expert_begin[e], most).tiles * w_tiles;
    sum_table(tiles_before, p.experts);
}

#if PROMPT_WGMMA

/* The tiles of a product, in the order in which blocks take them. Row tiles run fastest, so that neighbours in time
 * read the same rows of W, then those of W, which share rows of A: experts are walked one after the other by all
 * blocks. */
struct fit_place {
    int first_row, rows, width; /* first slot, valid rows, and what is multiplied */
    int w_tile, expert;
};

struct fit_plan {
    const gemm_params &p;
    const int *tiles_before;
    int dense_width, all, most;

    __device__ __forceinline__ fit_plan(const gemm_params &params, const int *before, int w_tiles, int width,
                                        int most_rows = fit_tile::MOST_ROWS)
        : p(params), tiles_before(before), dense_width(width), most(most_rows) {
        all = p.expert_begin ? before[p.experts] : (p.m + width - 1) / width * w_tiles;
    }

    __device__ __forceinline__ fit_place find(int tile) const {
        fit_cut cut = {(p.m + dense_width - 1) / dense_width, dense_width};
        int expert = 0, begin = 0, count = p.m;
        if (p.expert_begin) {
            int low = 0, high = p.experts - 1; /* the last expert that begins at or before `tile` */
            while (low < high) {
                int middle = (low + high + 1) / 2;
                if (tiles_before[middle] <= tile)
                    low = middle;
                else
                    high = middle - 1;
            }
            expert = low;
            begin = p.expert_begin[expert];
            count = p.expert_begin[expert + 1] - begin;
            cut = cut_rows(count, most);
            tile -= tiles_before[expert];
        }
        int row = tile % cut.tiles * cut.width, left = count - row;
        return {begin + row, left < cut.width ? left : cut.width, cut.width, tile / cut.tiles, expert};
    }
    /* What this block takes behind `tile`: the next of the counter, where there is one. One thread. */
    __device__ __forceinline__ int behind(int tile) const {
        int blocks = static_cast<int>(gridDim.x);
        if (!p.counter) return tile + blocks;
        int taken = static_cast<int>(atomicAdd(p.counter, 1u));
        if (taken == all - 1) *p.counter = 0; /* the last: zero for the next launch */
        return blocks + taken;
    }
};

/* How the thread that fetches tells the others which tile is next: two places, each with a barrier that says that it is
 * filled and one that says that all have read it. */
struct fit_news {
    uint32_t base; /* two tiles, two barriers each */
    int at = 0;

    __device__ __forceinline__ explicit fit_news(uint32_t address) : base(address) {}
    __device__ __forceinline__ uint32_t place() const { return base + static_cast<uint32_t>(at % 2 * 4); }
    __device__ __forceinline__ uint32_t full() const { return base + 8 + static_cast<uint32_t>(at % 2 * 8); }
    __device__ __forceinline__ uint32_t empty() const { return full() + 16; }
    __device__ __forceinline__ int turn() const { return at / 2 % 2; }

    __device__ __forceinline__ void init(int readers) const {
        for (uint32_t i = 0; i < 2; i++) {
            barrier_init(base + 8 + i * 8, 1);
            barrier_init(base + 24 + i * 8, readers);
        }
    }
    __device__ __forceinline__ void tell(int tile) {
        barrier_wait(empty(), turn() ^ 1);
        asm volatile("st.shared.s32 [%0], %1;\n" ::"r"(place()), "r"(tile) : "memory");
        barrier_arrive(full());
        at++;
    }
    /* A whole warp. */
    __device__ __forceinline__ int hear(int lane) {
        int tile;
        barrier_wait(full(), turn());
        asm volatile("ld.shared.s32 %0, [%1];\n" : "=r"(tile) : "r"(place()) : "memory");
        __syncwarp();
        if (lane == 0) barrier_arrive(empty());
        at++;
        return tile;
    }
};

__device__ __forceinline__ void copy_dealt(uint32_t to, const CUtensorMap &map, int column, int block, int expert,
                                           uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %4, %5, "
        "%6}], [%2];\n" ::"r"(to),
        "l"(&map), "r"(barrier), "r"(column), "r"(0), "r"(block), "r"(expert)
        : "memory");
}

/* One thread. Tiles of experts differ in width: blocks take the next one from a counter. */
__device__ __forceinline__ void load_fit(const bulk_context &c, const fit_plan &plan, fit_news news,
                                         const fit_maps &maps) {
    ring_place r;
    int tile = static_cast<int>(blockIdx.x);
    for (;;) {
        news.tell(tile);
        if (tile >= plan.all) break;
        int next = plan.behind(tile);
        fit_place t = plan.find(tile);
        int boxes = (t.width + fit_tile::BOX - 1) / fit_tile::BOX;
        for (int step = 0; step < c.steps; step++, r.advance(1)) {
            barrier_wait(c.empty(r), r.turn ^ 1);
            uint32_t full = c.full(r), w = c.stage_at(r), a = w + fit_tile::W_BYTES;
            barrier_arrive_expecting(full, fit_tile::W_BYTES + boxes * fit_tile::BOX * PANEL_ROW_BYTES);
            copy_dealt(w, maps.w, step * TILE_K, t.w_tile * (fit_tile::W_ROWS / 16), t.expert, full);
            for (int i = 0; i < boxes; i++)
                copy_box(a + static_cast<uint32_t>(i * fit_tile::BOX * PANEL_ROW_BYTES), maps.a, step * TILE_K,
                         t.first_row + i * fit_tile::BOX, full);
        }
        tile = next;
    }
}

/* acc = the product of this warpgroup's 64 rows of W with the tile's first 8 * BLOCKS rows of A. Stages are given back
 * when the products that read them are done, one step later. */
template <int BLOCKS>
__device__ __forceinline__ void multiply_fit(const bulk_context &c, ring_place &r, float (&acc)[128], int warpgroup,
                                             int lane) {
    ring_place before = r;
#pragma unroll 1
    for (int step = 0; step < c.steps; step++) {
        barrier_wait(c.full(r), r.turn);
        uint64_t w = panel_descriptor(c.stage_at(r) + static_cast<uint32_t>(warpgroup * 64 * PANEL_ROW_BYTES));
        uint64_t a = panel_descriptor(c.stage_at(r) + fit_tile::W_BYTES);
        warpgroup_begin();
#pragma unroll
        for (int k = 0; k < TILE_K / 16; k++)
            warpgroup_width<BLOCKS>::multiply(acc, w + 2 * k, a + 2 * k, step + k > 0);
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

/* MOST: blocks of eight rows. */
template <int MOST>
__device__ __forceinline__ void multiply_width(const bulk_context &c, ring_place &r, float (&acc)[128], int width,
                                               int warpgroup, int lane) {
#define FIT_CASE(BLOCKS)                                                                                               \
    case BLOCKS:                                                                                                       \
        multiply_fit<(BLOCKS < MOST ? BLOCKS : MOST)>(c, r, acc, warpgroup, lane);                                     \
        break
    switch (width / 8) {
        FIT_CASE(2);
        FIT_CASE(4);
        FIT_CASE(6);
        FIT_CASE(8);
        FIT_CASE(10);
        FIT_CASE(12);
        FIT_CASE(14);
        FIT_CASE(16);
        FIT_CASE(17);
        FIT_CASE(18);
        FIT_CASE(19);
        FIT_CASE(20);
        FIT_CASE(21);
        FIT_CASE(22);
        FIT_CASE(23);
        FIT_CASE(24);
        FIT_CASE(25);
        FIT_CASE(26);
        FIT_CASE(27);
        FIT_CASE(28);
        FIT_CASE(29);
        FIT_CASE(30);
        FIT_CASE(31);
    default:
        multiply_fit<MOST>(c, r, acc, warpgroup, lane);
        break;
    }
#undef FIT_CASE
}

/* What a thread holds of rows 8 j + 2 t and + 1 of A (t: its place among four): two neighbouring outputs in acc[4 j]
 * and acc[4 j + 2], and in acc[4 j + 1] and acc[4 j + 3]; gated, the gate's and the up matrix's product of one output.
 * Then neighbours exchange one each, so that both have pairs. */
struct fit_lane {
    int t, g; /* place among four lanes, and among the eight that have different outputs */
    bool up_first;
    prompt_gemm_output output;

    /* Gated: the pair of row 8 j + 2 t + g % 2. */
    __device__ __forceinline__ uint32_t gated_pair(const float (&acc)[4]) const {
        float own[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float low = acc[i], high = acc[2 + i];
            own[i] = up_first ? activate(high, output) * low : activate(low, output) * high;
        }
        float other = __shfl_xor_sync(~0u, g % 2 ? own[0] : own[1], 4);
        return g % 2 ? pack_pair(other, own[1]) : pack_pair(own[0], other);
    }
};

/* Rows [8 FIRST, 8 (FIRST + BLOCKS)) of a tile, straight from the registers; */
template <bool GATED, int BLOCKS, int FIRST>
__device__ __forceinline__ void write_blocks(const gemm_params &p, const fit_place &t, const fit_lane &l,
                                             const float (&acc)[128], int column) {
    column += GATED ? l.g / 2 * 2 : l.g * 2;
    if (column >= p.n) return; /* a whole warp */
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) {
        int j = FIRST + i;
        if (j * 8 >= t.rows) break;
        if (GATED) {
            int row = j * 8 + l.t * 2 + l.g % 2;
            float part[4] = {acc[j * 4], acc[j * 4 + 1], acc[j * 4 + 2], acc[j * 4 + 3]};
            uint32_t pair = l.gated_pair(part);
            if (row < t.rows)
                *reinterpret_cast<uint32_t *>(static_cast<__nv_bfloat16 *>(p.out) +
                                              static_cast<size_t>(t.first_row + row) * p.ldo + column) = pair;
        } else {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                int row = j * 8 + l.t * 2 + e;
                if (row >= t.rows) continue;
                size_t at = static_cast<size_t>(t.first_row + row) * p.ldo + static_cast<size_t>(column);
                float low = acc[j * 4 + e], high = acc[j * 4 + 2 + e];
                if (p.output == PROMPT_GEMM_F32)
                    *reinterpret_cast<float2 *>(static_cast<float *>(p.out) + at) = make_float2(low, high);
                else
                    *reinterpret_cast<uint32_t *>(static_cast<__nv_bfloat16 *>(p.out) + at) = pack_pair(low, high);
            }
        }
    }
}

__device__ __forceinline__ void store_box(const CUtensorMap &map, uint32_t from, int column, int row) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];\n" ::"l"(&map), "r"(from),
                 "r"(column), "r"(row)
                 : "memory");
}

struct fit_out {
    const gemm_params &p;
    const fit_maps &maps;
    const fit_lane &l;
    uint32_t places; /* of this warpgroup: two */
    int warpgroup, warp, pieces;
};

/* Results by way of shared memory, whence the copy engine takes them while the warpgroup goes on: pieces of a
 * warpgroup's 64 outputs by 32 rows of float32 or 64 of bf16, gated of 32 by 64, in two places by turns, swizzled as in
 * the maps. The last piece of an expert goes straight: the engine would write over the rows behind it. */
template <bool GATED, bool WIDE, int MOST, int PIECE>
__device__ __forceinline__ void stage_pieces(fit_out &o, const fit_place &t, const float (&acc)[128], int column) {
    constexpr int BLOCKS = WIDE ? 4 : 8, ROWS = BLOCKS * 8, BYTES = GATED ? fit_tile::GATED_PIECE : fit_tile::PIECE;
    if constexpr (PIECE * BLOCKS < MOST) {
        if (PIECE * ROWS >= t.rows) return;
        if ((PIECE + 1) * ROWS > t.rows) {
            write_blocks<GATED, BLOCKS, PIECE * BLOCKS>(o.p, t, o.l, acc, column + o.warp * (GATED ? 8 : 16));
            return;
        }
        bool first = static_cast<int>(threadIdx.x) % 128 == 0;
        uint32_t to = o.places + static_cast<uint32_t>(o.pieces++ % 2 * BYTES);
        if (first) asm volatile("cp.async.bulk.wait_group.read 1;\n" ::: "memory");
        asm volatile("bar.sync %0, 128;\n" ::"r"(o.warpgroup + 1) : "memory");
#pragma unroll
        for (int j = 0; j < BLOCKS; j++) {
            constexpr int FROM = PIECE * BLOCKS * 4;
            if (GATED) {
                float part[4] = {acc[FROM + j * 4], acc[FROM + j * 4 + 1], acc[FROM + j * 4 + 2],
                                 acc[FROM + j * 4 + 3]};
                uint32_t row = static_cast<uint32_t>(j * 8 + o.l.t * 2 + o.l.g % 2);
                uint32_t at = to + row * 64 + ((static_cast<uint32_t>(o.warp) ^ (row >> 1 & 3)) << 4) +
                              static_cast<uint32_t>(o.l.g / 2 * 4);
                asm volatile("st.shared.u32 [%0], %1;\n" ::"r"(at), "r"(o.l.gated_pair(part)) : "memory");
            } else {
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float low = acc[FROM + j * 4 + i], high = acc[FROM + j * 4 + 2 + i];
                    uint32_t row = static_cast<uint32_t>(j * 8 + o.l.t * 2 + i);
                    if (WIDE) {
                        uint32_t chunk = static_cast<uint32_t>(o.warp % 2 * 4 + o.l.g / 2);
                        uint32_t at = to + static_cast<uint32_t>(o.warp / 2 * (BYTES / 2)) + row * 128 +
                                      ((chunk ^ (row & 7)) << 4) + static_cast<uint32_t>(o.l.g % 2 * 8);
                        asm volatile("st.shared.v2.f32 [%0], {%1, %2};\n" ::"r"(at), "f"(low), "f"(high) : "memory");
                    } else {
                        uint32_t chunk = static_cast<uint32_t>(o.warp * 2 + o.l.g / 4);
                        uint32_t at =
                            to + row * 128 + ((chunk ^ (row & 7)) << 4) + static_cast<uint32_t>(o.l.g % 4 * 4);
                        asm volatile("st.shared.u32 [%0], %1;\n" ::"r"(at), "r"(pack_pair(low, high)) : "memory");
                    }
                }
            }
        }
        warpgroup_publish();
        asm volatile("bar.sync %0, 128;\n" ::"r"(o.warpgroup + 1) : "memory");
        if (first) {
            int row = t.first_row + PIECE * ROWS;
            if (column < o.p.n) store_box(o.maps.out, to, column, row);
            if (WIDE && column + 32 < o.p.n) store_box(o.maps.out, to + BYTES / 2, column + 32, row);
            asm volatile("cp.async.bulk.commit_group;\n" ::: "memory");
        }
        stage_pieces<GATED, WIDE, MOST, PIECE + 1>(o, t, acc, column);
    }
}

template <bool GATED, int MOST = fit_tile::MOST_ROWS / 8>
__device__ __forceinline__ void consume_fit(const bulk_context &c, const fit_plan &plan, fit_news news,
                                            const fit_maps &maps, int warpgroup) {
    int warp = static_cast<int>(threadIdx.x) % 128 / 32, lane = static_cast<int>(threadIdx.x) % 32;
    constexpr int OUTPUTS = GATED ? fit_tile::W_ROWS / 2 : fit_tile::W_ROWS;
    uint32_t places = c.base + static_cast<uint32_t>(fit_tile::STAGED + warpgroup * 2 * fit_tile::PIECE);
    const fit_lane l = {lane % 4, lane / 4, maps.up_first != 0, plan.p.output};
    fit_out out = {plan.p, maps, l, places, warpgroup, warp, 0};
    ring_place r = {c.stages};
    for (int tile; (tile = news.hear(lane)) < plan.all;) {
        fit_place t = plan.find(tile);
        float acc[128];
        multiply_width<MOST>(c, r, acc, t.width, warpgroup, lane);
        int column = t.w_tile * OUTPUTS + warpgroup * (OUTPUTS / 2);
        if (!maps.staged)
            write_blocks<GATED, MOST, 0>(plan.p, t, l, acc, column + warp * (OUTPUTS / 8));
        else if (!GATED && plan.p.output == PROMPT_GEMM_F32)
            stage_pieces<GATED, true, MOST, 0>(out, t, acc, column);
        else
            stage_pieces<GATED, false, MOST, 0>(out, t, acc, column);
    }
    asm volatile("cp.async.bulk.wait_group 0;\n" ::: "memory");
}

#define PROMPT_FIT_BOUNDS __launch_bounds__(fit_tile::THREADS, 1)
#else
#define PROMPT_FIT_BOUNDS __launch_bounds__(32, 1) /* tells the host that there is no body */
#endif

template <bool GATED>
__global__ void PROMPT_FIT_BOUNDS fit_kernel(const __grid_constant__ gemm_params p,
                                             const __grid_constant__ fit_maps maps, int dense_width) {
#if PROMPT_WGMMA
    extern __shared__ char memory[];
    uint32_t raw = shared_address(memory), base = align_tile(raw);
    int *tiles_before = reinterpret_cast<int *>(memory + (base - raw) + fit_tile::TILES_BEFORE);
    int warpgroup = static_cast<int>(threadIdx.x) / 128, outputs = GATED ? fit_tile::W_ROWS / 2 : fit_tile::W_ROWS;
    int w_tiles = (p.n + outputs - 1) / outputs;
    const bulk_context c = {base, (p.k + TILE_K - 1) / TILE_K};
    fit_news news(base + fit_tile::NEWS);
    if (threadIdx.x == 0) news.init(bulk_tile::CONSUMER_WARPS);
    init_stages(base, 1);
    if (p.expert_begin) count_fit<fit_tile::THREADS>(p, w_tiles, tiles_before);
    __syncthreads();
    const fit_plan plan(p, tiles_before, w_tiles, dense_width);

    if (warpgroup == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(bulk_tile::LOADER_REGISTERS));
        if (threadIdx.x == 0) load_fit(c, plan, news, maps);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(bulk_tile::CONSUMER_REGISTERS));
        consume_fit<GATED>(c, plan, news, maps, warpgroup - 1);
    }
#endif
}

} // namespace prompt

#endif
