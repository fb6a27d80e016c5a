/* A unit of quantised weights (quant.h) on its way through the tensor cores: the arithmetic of quant_form.cuh.
 *
 * Codes become bf16, exactly. Two mma.m16n8k16 make the sum of a block of 32 from zero, and one fma in float32 adds it,
 * times the block's scale, to the output's sum; of G8 and G4 each makes a sum of its own. Where values have an offset,
 * two more, with ones in the place of codes, make the sum of the row's values. */
#ifndef KAKEYA_BACKEND_CUDA_QUANT_UNITS_CUH
#define KAKEYA_BACKEND_CUDA_QUANT_UNITS_CUH

#include "backend/cuda/product_items.cuh"
#include "backend/cuda/quant_values.cuh"

/* D (16 x 8) = A (16 x 16) B (16 x 8): from zero. */
static __device__ __forceinline__ void mma_from_zero(float (&d)[4], const unsigned (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%10,%10,%10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}

/* quant_unit_bytes, where it has to be a constant. */
template <cuda_form FORM>
static constexpr int unit_bytes = QUANT_ROWS *(QUANT_VALUES / (lane_codes<FORM>::NARROW ? 2 : 1) +
                                               4 * row_scales<FORM>::WORDS);

/* One lane's weights of a unit of 16 outputs: rows g and g + 8. */
template <cuda_form FORM> struct quant_stage {
    lane_codes<FORM> codes[2];
    row_scales<FORM> scales[2];
};

/* Among how many warps the units of an output are dealt: a function of k alone. */
static __host__ __device__ __forceinline__ int quant_split(int steps) {
    return steps >= 120 ? 8 : steps >= 48 ? 4 : steps >= 32 ? 2 : 1;
}

/* A warp's slice of an item: neighbouring units, so that all of them lie at constant distances. */
struct unit_slice {
    int first, count;
};

template <int COLUMNS> static __device__ __forceinline__ unit_slice slice_of(const warp_item<COLUMNS> &item) {
    int units = (item.steps + QUANT_BLOCKS - 1) / QUANT_BLOCKS;
    int shift = 31 - __clz(item.split); /* a power of two */
    int first = units * item.slice >> shift, end = units * (item.slice + 1) >> shift;
    return {first, end - first};
}

/* Where thread t of a quad begins in a block of a row of x: rows are placed 8 t values behind its beginning. */
template <cuda_form FORM> static __device__ __forceinline__ const bf16 *first_of_lane(const bf16 *x) {
    return halved<FORM> ? x - 4 * (threadIdx.x & 3) : x;
}

/* This lane's values of the first block of a row's unit at x; */
template <cuda_form FORM> static __device__ __forceinline__ uint4 load_x(const bf16 *x) {
    uint4 v;
    if (halved<FORM>)
        asm volatile("ld.global.v2.u32 {%0,%1}, [%4];\nld.global.v2.u32 {%2,%3}, [%4 + 32];"
                     : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
                     : "l"(x));
    else
        asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(x));
    return v;
}

/* and of the second block, or, unless there is one, of the first again. */
template <cuda_form FORM> static __device__ __forceinline__ uint4 load_second(const bf16 *x, bool there) {
    return load_x<FORM>(x + (there ? QUANT_BLOCK : 0));
}

template <int COLUMNS> struct unit_rows { uint4 block[QUANT_BLOCKS][COLUMNS]; };

static __device__ __forceinline__ void add_scaled(float (&acc)[4], const float (&sum)[4], float first, float second) {
    acc[0] = fmaf(first, sum[0], acc[0]);
    acc[1] = fmaf(first, sum[1], acc[1]);
    acc[2] = fmaf(second, sum[2], acc[2]);
    acc[3] = fmaf(second, sum[3], acc[3]);
}

/* Of a row of weights in a block: the scales of its halves, which differ in G8 and G4 alone, and the offset. */
struct block_scales {
    float half[2], offset;
};

template <cuda_form FORM> static __device__ __forceinline__ block_scales scales_of(const row_scales<FORM> &row, int b) {
    return {{row.scale(b, 0), row.scale(b, 1)}, row.offset(b)};
}

/* A block of 16 outputs, whose codes are `low` and `high`, times eight rows of x. */
template <cuda_form FORM>
static __device__ __forceinline__ void multiply_block(float (&acc)[4], const unsigned (&low)[4],
                                                      const unsigned (&high)[4], const block_scales &first,
                                                      const block_scales &second, const uint4 &x) {
    float sum[4];
    mma_from_zero(sum, low, x.x, x.y);
    if (halved<FORM>) {
        add_scaled(acc, sum, first.half[0], second.half[0]);
        mma_from_zero(sum, high, x.z, x.w);
    } else {
        mma_bf16(sum, high[0], high[1], high[2], high[3], x.z, x.w);
    }
    add_scaled(acc, sum, first.half[1], second.half[1]);
    if (row_scales<FORM>::AFFINE) {
        const unsigned one = 0x3f803f80u, ones[4] = {one, one, one, one};
        mma_from_zero(sum, ones, x.x, x.y);
        mma_bf16(sum, one, one, one, one, x.z, x.w);
        add_scaled(acc, sum, first.offset, second.offset);
    }
}

template <cuda_form FORM, int COLUMNS>
static __device__ __forceinline__ void multiply_unit(float (&acc)[COLUMNS][4], const quant_stage<FORM> &stage,
                                                     const unit_rows<COLUMNS> &rows) {
#pragma unroll
    for (int b = 0; b < QUANT_BLOCKS; b++) {
        unsigned first[4], second[4];
        stage.codes[0].pairs(b, first);
        stage.codes[1].pairs(b, second);
        const unsigned low[4] = {first[0], second[0], first[1], second[1]},
                       high[4] = {first[2], second[2], first[3], second[3]};
        const block_scales scales[2] = {scales_of<FORM>(stage.scales[0], b), scales_of<FORM>(stage.scales[1], b)};
#pragma unroll
        for (int c = 0; c < COLUMNS; c++)
            multiply_block<FORM>(acc[c], low, high, scales[0], scales[1], rows.block[b][c]);
    }
}

#endif
