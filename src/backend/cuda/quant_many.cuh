/* Products of many decode rows with quantised weights of one form: the sums of quant_form.cuh, in their order and so
 * with their bits, by other neighbours. A warp has its slice of the units of 64 outputs (of gate and up 32 each) and up
 * to 32 rows, so that a code becomes bf16 once for all of them. Units come through a ring of the warp's own in shared
 * memory, rows through L1; the slices meet in the ring's place. Bound: one read of the weights;
 * docs/laboratory/cuda.md, 15b, has what is reached. */
#ifndef KAKEYA_BACKEND_CUDA_QUANT_MANY_CUH
#define KAKEYA_BACKEND_CUDA_QUANT_MANY_CUH

#include "backend/cuda/products_wide.cuh"
#include "backend/cuda/quant_units.cuh"

enum {
    MANY_STRIPS = WIDE_OUTS / QUANT_ROWS,
    MANY_BLOCK_BYTES = 80 << 10, /* of shared memory, two blocks on a multiprocessor: the rest is L1, for rows of x */
    MANY_MOST_STAGES = 3,
    MANY_LEAST_ROWS = 33, /* below, quant_form.cuh reads weights once as well */
    MANY_WIDE_ROWS = 129, /* experts of codes of 8 bits without offsets: below, quant_form.cuh is faster */
};

struct many_work {
    product_list list; /* of one product for experts; tiles of blocks */
    const cuda_bf16 *gate, *up;
    cuda_bf16 *act; /* gated: act(gate x) * (up x); of experts by slot */
    int outs, ld_act, silu;
    const cuda_bf16 *x; /* of experts' gate and up: rows that slot_row chooses */
    int steps, ldx, rows, column_tiles;
    float cap;
    const int *begin, *slot_row; /* experts; of down slot_row is NULL */
    size_t expert_bytes;         /* from one expert to the next */
};

/* A warp's units on their way. Four lanes bring a strip's. */
template <cuda_form FORM> struct strip_ring {
    static constexpr int BYTES = unit_bytes<FORM>, SLOT = MANY_STRIPS * BYTES, FIT = MANY_BLOCK_BYTES / WARPS / SLOT,
                         STAGES = FIT < MANY_MOST_STAGES ? FIT : MANY_MOST_STAGES, CHUNKS = BYTES / CHUNK,
                         BLOCK_BYTES = WARPS * (STAGES * SLOT > WIDE_SUMS * 128 ? STAGES * SLOT : WIDE_SUMS * 128);
    static_assert(STAGES >= 2 && BYTES % CHUNK == 0, "a unit is on its way while one is used, in whole chunks");
    unsigned char *own; /* slots */
    const char *from;   /* this lane's first chunk of the slice */
    int lane;

    __device__ __forceinline__ void request(int slot, int unit) const {
        unsigned char *to = own + slot * SLOT + (lane >> 2) * BYTES + (lane & 3) * CHUNK;
        const char *at = from + (size_t)unit * BYTES;
#pragma unroll
        for (int i = 0; i < (CHUNKS + 3) / 4; i++)
            if (i * 4 + 3 < CHUNKS || i * 4 + (lane & 3) < CHUNKS)
                request_weights_chunk(to + i * 4 * CHUNK, at + i * 4 * CHUNK);
    }
    /* What this lane has of a block of a strip: its codes as bf16, and the scales of its row. */
    __device__ __forceinline__ void read(unsigned (&k)[4], block_scales &scales, int slot, int strip, int b) const {
        constexpr bool NARROW = lane_codes<FORM>::NARROW, HALF = row_scales<FORM>::WORDS == 1;
        const uint32_t at = (uint32_t)__cvta_generic_to_shared(own) + (uint32_t)(slot * SLOT + strip * BYTES),
                       codes = at + (uint32_t)(quant_lane_offset(FORM, lane) + b * (NARROW ? 4 : 8)),
                       of_row = at + (uint32_t)quant_scale_offset(FORM, lane >> 2, b);
        unsigned word[NARROW ? 1 : 2], scale[row_scales<FORM>::WORDS == 4 ? 2 : 1];
        load_run(word, codes);
        if constexpr (HALF) {
            unsigned short bits;
            asm volatile("ld.shared.u16 %0, [%1];" : "=h"(bits) : "r"(of_row));
            scales = {{half_bits(bits), half_bits(bits)}, 0};
        } else {
            constexpr int LAST = row_scales<FORM>::WORDS == 4;
            load_run(scale, of_row);
            const float first = __uint_as_float(scale[0]), last = __uint_as_float(scale[LAST]);
            scales = {{first, halved<FORM> ? last : first}, last};
        }
        code_pairs<FORM>(word[0], word[NARROW ? 0 : 1], k);
    }
};

/* A slice of 64 outputs and 8 COLUMNS rows, whose first units the ring has been asked for, each in a group of its own.
 * x: this lane's rows, in bytes behind `rows`, at the slice. whole: units with two blocks. */
template <cuda_form FORM, int COLUMNS>
static __device__ __forceinline__ void multiply_slice(float (&acc)[WIDE_TILES][WIDE_COLUMNS][4],
                                                      const strip_ring<FORM> &ring, const char *rows,
                                                      const uint32_t (&x)[WIDE_COLUMNS], int units, int whole) {
    for (int u = 0, slot = 0; u < units; u++) {
#pragma unroll
        for (int b = 0; b < QUANT_BLOCKS; b++) {
            uint4 now[COLUMNS];
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                const bf16 *at = reinterpret_cast<const bf16 *>(rows + x[c]) + u * QUANT_VALUES;
                now[c] = b ? load_second<FORM>(at, u < whole) : load_x<FORM>(at);
            }
            if (b == 0) {
                wait_groups<strip_ring<FORM>::STAGES - 1>();
                __syncwarp();
            }
#pragma unroll
            for (int t = 0; t < WIDE_TILES; t++) {
                unsigned first[4], second[4];
                block_scales scales[2];
                ring.read(first, scales[0], slot, 2 * t, b);
                ring.read(second, scales[1], slot, 2 * t + 1, b);
                const unsigned low[4] = {first[0], second[0], first[1], second[1]},
                               high[4] = {first[2], second[2], first[3], second[3]};
#pragma unroll
                for (int c = 0; c < COLUMNS; c++)
                    multiply_block<FORM>(acc[t][c], low, high, scales[0], scales[1], now[c]);
            }
        }
        __syncwarp();
        if (u + strip_ring<FORM>::STAGES < units) ring.request(slot, u + strip_ring<FORM>::STAGES);
        close_group();
        if (++slot == strip_ring<FORM>::STAGES) slot = 0;
    }
}

/* grid: tiles and, fastest, columns; or tiles and experts. */
template <cuda_form FORM, bool GATED, bool EXPERTS>
static __global__ __launch_bounds__(THREADS, 2) void many_kernel(const __grid_constant__ many_work w) {
    typedef strip_ring<FORM> RING;
    extern __shared__ __align__(128) unsigned char shared[];
    const int OUTS = GATED ? WIDE_OUTS / 2 : WIDE_OUTS;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, p = 0;
    int tile = EXPERTS ? blockIdx.x : blockIdx.x / w.column_tiles;
    while (!GATED && !EXPERTS && p + 1 < w.list.n && tile >= w.list.first_tile[p + 1]) p++;
    const cuda_product &product = w.list.product[p];
    int steps = w.steps, split = quant_split(steps), groups = WARPS / split, outs = GATED ? w.outs : product.out;
    int first_out = (GATED || EXPERTS ? tile : tile - w.list.first_tile[p]) * groups * OUTS;
    warp_item<1> item;
    item.steps = steps;
    item.split = split;
    item.slice = warp % split;
    unit_slice slice = slice_of(item);
    int whole = steps / QUANT_BLOCKS - slice.first;

    /* Strips of gate and up lie in turns. */
    int strip = lane >> 2, of_matrix = (first_out + warp / split * OUTS) / QUANT_ROWS + (GATED ? strip / 2 : strip);
    const cuda_bf16 *matrix = !GATED ? product.w : strip % 2 ? w.up : w.gate;
    RING ring;
    ring.lane = lane;
    ring.own = shared + warp * RING::STAGES * RING::SLOT;
    ring.from = reinterpret_cast<const char *>(matrix) + (EXPERTS ? blockIdx.y * w.expert_bytes : 0) +
                (size_t)min(of_matrix, (outs - 1) / QUANT_ROWS) * quant_strip_bytes(FORM, steps * CUDA_K_STEP) +
                (size_t)slice.first * RING::BYTES + (lane & 3) * CHUNK;
    auto fill = [&]() {
#pragma unroll
        for (int i = 0; i < RING::STAGES; i++) {
            if (i < slice.count) ring.request(i, i);
            close_group();
        }
    };
    fill();
    wait_for_predecessor();
    int begin = EXPERTS ? __ldcg(w.begin + blockIdx.y) : blockIdx.x % w.column_tiles * WIDE_ROWS;
    int end = EXPERTS ? __ldcg(w.begin + blockIdx.y + 1) : min(begin + WIDE_ROWS, w.rows);
    if (begin == end) wait_all(); /* nothing may arrive after the block has ended */
    for (int first = begin; first < end; first += WIDE_ROWS) {
        int n = min(end - first, (int)WIDE_ROWS);
        if (first > begin) fill();
        uint32_t x[WIDE_COLUMNS];
#pragma unroll
        for (int c = 0; c < WIDE_COLUMNS; c++) { /* a row that is absent is computed from the last */
            int row = first + min(c * 8 + g, n - 1);
            if (EXPERTS && GATED) row = __ldcg(w.slot_row + row);
            x[c] = (uint32_t)(row * w.ldx) * (uint32_t)sizeof(cuda_bf16);
        }
        const bf16 *at = first_of_lane<FORM>(as_bf16(w.x) + 8 * (lane & 3)) + slice.first * QUANT_VALUES;
        float acc[WIDE_TILES][WIDE_COLUMNS][4] = {};
        const char *rows = reinterpret_cast<const char *>(at);
        if (n > WIDE_ROWS / 2)
            multiply_slice<FORM, WIDE_COLUMNS>(acc, ring, rows, x, slice.count, whole);
        else
            multiply_slice<FORM, WIDE_COLUMNS / 2>(acc, ring, rows, x, slice.count, whole);
        wait_all();
        if (first + WIDE_ROWS >= end) release_successor();
        auto take = [&](int row, int o, float y, float up) {
            int output = first_out + o;
            if (output >= outs) return;
            if constexpr (GATED)
                store_bf16(w.act + (size_t)(first + row) * w.ld_act + output, (w.silu ? silu(y) : gelu_tanh(y)) * up);
            else
                product.y[(size_t)(first + row) * product.ldy + output] = soft_cap(y, w.cap);
        };
        if (split == 1) {
            take_sums<GATED>(acc, warp, n, take);
            continue;
        }
        float *sums = reinterpret_cast<float *>(shared);
        __syncthreads(); /* all rings have been read */
        put_sums(sums, acc, n);
        __syncthreads();
        collect_sums<GATED>(sums, split, n, take);
        __syncthreads(); /* the ring is filled again */
    }
}

static bool serves_many(const cuda_launch *l, int rows, int least) {
    return rows >= least && l->block_bytes >= WIDE_LEAST_BLOCK_BYTES;
}

/* Dense products: fewer blocks than one and a half for each multiprocessor take longer than quant_form.cuh. */
static bool serves_dense(const cuda_launch *l, int rows, int blocks) {
    return serves_many(l, rows, MANY_LEAST_ROWS) && blocks * 2 >= l->multiprocessors * 3;
}

/* A block goes through all rows of its expert: few blocks take longer than quant_form.cuh, where rows are items too. */
template <cuda_form FORM> static bool serves_experts(const cuda_launch *l, int rows, dim3 blocks) {
    return serves_many(l, rows, FORM == CUDA_FORM_Q8 || FORM == CUDA_FORM_F8 ? MANY_WIDE_ROWS : MANY_LEAST_ROWS) &&
           (int)(blocks.x * blocks.y) >= l->multiprocessors;
}

template <cuda_form FORM, bool GATED, bool EXPERTS>
static void launch_many(const cuda_launch *l, const many_work &w, dim3 blocks) {
    const int bytes = strip_ring<FORM>::BLOCK_BYTES, share = ceil_div(2 * (bytes + 1024) * 100, 228 << 10);
    (void)cudaFuncSetAttribute(many_kernel<FORM, GATED, EXPERTS>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    (void)cudaFuncSetAttribute(many_kernel<FORM, GATED, EXPERTS>, cudaFuncAttributePreferredSharedMemoryCarveout,
                               share);
    launch_kernel(l, many_kernel<FORM, GATED, EXPERTS>, blocks, dim3(THREADS), (size_t)bytes, w);
}

/* Outputs of a block, whose weights have `steps` steps of k. */
static inline int many_outs(int steps, bool gated) { return WARPS / quant_split(steps) * WIDE_OUTS / (gated ? 2 : 1); }

static inline many_work many_rows(const cuda_bf16 *x, int ld, int ldx, int rows) {
    many_work w = {};
    w.x = x;
    w.steps = ld / CUDA_K_STEP;
    w.ldx = ldx;
    w.rows = rows;
    w.column_tiles = ceil_div(rows, WIDE_ROWS);
    return w;
}

/* As quant_products; false: this device, or so few rows, are not served. */
template <cuda_form FORM>
static bool many_products(const cuda_launch *l, const cuda_product *products, int n, int in, const cuda_bf16 *x,
                          int ldx, int rows, float cap) {
    many_work w = many_rows(x, cuda_padded(in), ldx, rows);
    w.cap = cap;
    w.list.n = n;
    for (int i = 0; i < n; i++) {
        w.list.product[i] = products[i];
        w.list.first_tile[i + 1] = w.list.first_tile[i] + ceil_div(products[i].out, many_outs(w.steps, false));
    }
    const int blocks = w.list.first_tile[n] * w.column_tiles;
    if (!serves_dense(l, rows, blocks)) return false;
    launch_many<FORM, false, false>(l, w, dim3(blocks));
    return true;
}

template <cuda_form FORM> static size_t strips_bytes(int rows, int ld) {
    return (size_t)rows / QUANT_ROWS * quant_strip_bytes(FORM, ld);
}

static inline const cuda_bf16 *behind(const cuda_bf16 *w, size_t bytes) {
    return reinterpret_cast<const cuda_bf16 *>(reinterpret_cast<const char *>(w) + bytes);
}

/* What is served of quant_gate_up is launched and taken out of f. */
template <cuda_form FORM>
static void many_gate_up(const cuda_launch *l, cuda_feed_forward *f, const cuda_route *route, int rows) {
    if (f->gate.data) {
        many_work w = many_rows(f->x_dense, f->gate.ld, f->ldx, rows);
        w.gate = f->gate.data;
        w.up = f->up.data;
        w.act = f->act;
        w.outs = f->gate.out;
        w.ld_act = f->down.ld;
        w.silu = f->silu;
        const int blocks = ceil_div(w.outs, many_outs(w.steps, true)) * w.column_tiles;
        if (serves_dense(l, rows, blocks)) {
            launch_many<FORM, true, false>(l, w, dim3(blocks));
            f->gate.data = nullptr;
        }
    }
    if (f->experts_gate_up.data) {
        many_work w = many_rows(f->x_experts, f->experts_gate_up.ld, f->ldx, rows);
        dim3 blocks(ceil_div(f->expert_intermediate, many_outs(w.steps, true)), route->experts);
        if (!serves_experts<FORM>(l, rows, blocks)) return;
        size_t bytes = strips_bytes<FORM>(f->expert_intermediate, f->experts_gate_up.ld);
        w.gate = f->experts_gate_up.data;
        w.up = behind(w.gate, bytes);
        w.act = f->act_experts;
        w.outs = f->expert_intermediate;
        w.ld_act = f->experts_down.ld;
        w.silu = f->silu;
        w.begin = route->begin;
        w.slot_row = route->slot_row;
        w.expert_bytes = 2 * bytes;
        launch_many<FORM, true, true>(l, w, blocks);
        f->experts_gate_up.data = nullptr;
    }
}

/* The same of quant_down. Weights with offsets take more registers than there are. */
template <cuda_form FORM>
static void many_down(const cuda_launch *l, cuda_feed_forward *f, const cuda_route *route, int rows) {
    if constexpr (row_scales<FORM>::AFFINE)
        return;
    else if (f->experts_down.data) {
        many_work w = many_rows(f->act_experts, f->experts_down.ld, f->experts_down.ld, rows);
        dim3 blocks(ceil_div(f->down.out, many_outs(w.steps, false)), route->experts);
        if (!serves_experts<FORM>(l, rows, blocks)) return;
        w.list.n = 1;
        w.list.product[0].w = f->experts_down.data;
        w.list.product[0].y = f->y_experts;
        w.list.product[0].out = w.list.product[0].ldy = f->down.out;
        w.begin = route->begin;
        w.expert_bytes = strips_bytes<FORM>(f->down.out, f->experts_down.ld);
        launch_many<FORM, false, true>(l, w, blocks);
        f->experts_gate_up.data = f->experts_down.data = nullptr;
    }
}

#endif
