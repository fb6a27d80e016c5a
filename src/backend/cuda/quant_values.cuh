/* Single values and codes of quantised weights on the device. */
#ifndef KAKEYA_BACKEND_CUDA_QUANT_VALUES_CUH
#define KAKEYA_BACKEND_CUDA_QUANT_VALUES_CUH

#include <cuda_fp16.h>

#include "backend/cuda/common.cuh"
#include "backend/cuda/quant.h"

static __device__ __forceinline__ float half_bits(unsigned short bits) { return __half2float(__ushort_as_half(bits)); }

/* A float of 4 bits of exponent and 3 of mantissa; codes that are no numbers do not get here. */
static __device__ __forceinline__ float e4m3_value(int code) {
    float magnitude = __uint_as_float((unsigned)(code & 0x7f) << 20) * 0x1p120f;
    return code & 0x80 ? -magnitude : magnitude;
}

/* Twice a float of 2 bits of exponent and 1 of mantissa. */
static __device__ __forceinline__ float e2m1_twice(int code) {
    float magnitude = (float)(0xc8643210u >> 4 * (code & 7) & 15);
    return code & 8 ? -magnitude : magnitude;
}

/* A row of a table of which single values are read, in any form. */
struct table_row {
    const cuda_matrix &table;
    int row;

    __device__ __forceinline__ float value(int i) const {
        if (table.form == CUDA_FORM_BF16) return __bfloat162float(as_bf16(table.data)[(size_t)row * table.ld + i]);
        int g = row % QUANT_ROWS, inside = i % QUANT_VALUES, block = inside / QUANT_BLOCK, k = inside % QUANT_BLOCK;
        const unsigned char *unit = reinterpret_cast<const unsigned char *>(table.data) +
                                    (size_t)(row / QUANT_ROWS) * quant_strip_bytes(table.form, table.ld) +
                                    (size_t)(i / QUANT_VALUES) * quant_unit_bytes(table.form);
        const unsigned char *codes = unit + quant_lane_offset(table.form, g * 4 + quant_lane(table.form, k));
        const unsigned char *scales = unit + quant_scale_offset(table.form, g, block);
        const float *wide = reinterpret_cast<const float *>(scales);
        int at = quant_place(table.form, k), code;
        if (quant_is_narrow(table.form))
            code = reinterpret_cast<const unsigned *>(codes)[block] >> quant_q4_shift(at) & 15;
        else
            code = codes[block * 8 + quant_q8_byte(at)];
        switch (table.form) {
        case CUDA_FORM_Q4:
            return half_bits(*reinterpret_cast<const unsigned short *>(scales)) * (float)(code - 8);
        case CUDA_FORM_Q8:
            return half_bits(*reinterpret_cast<const unsigned short *>(scales)) * (float)(signed char)code;
        case CUDA_FORM_G8:
            return wide[k / 16] * (float)(signed char)code;
        case CUDA_FORM_F8:
            return wide[0] * e4m3_value(code);
        case CUDA_FORM_S4:
            return wide[0] * (float)(code - 8);
        case CUDA_FORM_G4:
            return wide[k / 16] * e2m1_twice(code);
        default:
            return __fadd_rn(__fmul_rn(wide[0], (float)code), wide[1]);
        }
    }
};

/* (a & b) | c */
static __device__ __forceinline__ unsigned and_or(unsigned a, unsigned b, unsigned c) {
    unsigned d;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

static __device__ __forceinline__ unsigned subtract_pairs(unsigned a, unsigned b) {
    __nv_bfloat162 difference =
        __hsub2(*reinterpret_cast<__nv_bfloat162 *>(&a), *reinterpret_cast<__nv_bfloat162 *>(&b));
    return *reinterpret_cast<unsigned *>(&difference);
}

static __device__ __forceinline__ unsigned multiply_pairs(unsigned a, unsigned b) {
    __nv_bfloat162 product = __hmul2(*reinterpret_cast<__nv_bfloat162 *>(&a), *reinterpret_cast<__nv_bfloat162 *>(&b));
    return *reinterpret_cast<unsigned *>(&product);
}

/* Two codes, in bits 0 to 3 and 16 to 19, as bf16, exactly: 0x4300 | n is 128 + n, and n, or n - 8, is wanted. */
static __device__ __forceinline__ unsigned a4_pair(unsigned word) {
    return subtract_pairs(and_or(word, 0x000f000fu, 0x43004300u), 0x43004300u);
}
static __device__ __forceinline__ unsigned q4_pair(unsigned word) {
    return subtract_pairs(and_or(word, 0x000f000fu, 0x43004300u), 0x43084308u);
}

/* Two signed codes, in bytes 0 and 2: 0x4300 | (the low seven bits) is 128 + them; 128 is taken off, of negative
 * codes 256 (0x4380). */
static __device__ __forceinline__ unsigned q8_pair(unsigned word) {
    return subtract_pairs(and_or(word, 0x007f007fu, 0x43004300u), and_or(word, 0x00800080u, 0x43004300u));
}

/* Two unsigned codes there: with the highest bit turned they are signed ones, 128 less. */
static __device__ __forceinline__ unsigned a8_pair(unsigned word) {
    return subtract_pairs(q8_pair(word ^ 0x00800080u), 0xc300c300u);
}

/* Two e4m3 there: exponent and mantissa in their places are 2^-120 of the value, denormal ones, too. */
static __device__ __forceinline__ unsigned f8_pair(unsigned word) {
    return multiply_pairs(and_or(word << 4, 0x07f007f0u, word << 8 & 0x80008000u), 0x7b807b80u);
}

/* Pair i of a word of e2m1: exponent and mantissa in their places are 2^-126 of the value, twice of which is wanted. */
static __device__ __forceinline__ unsigned g4_pair(unsigned word, int i) {
    unsigned placed = i < 2 ? word << (6 - 4 * i) : word >> (4 * i - 6);
    return multiply_pairs(and_or(placed, 0x01c001c0u, word << (12 - 4 * i) & 0x80008000u), 0x7f007f00u);
}

/* The pairs of a lane's eight codes of a block, in its first word or two. */
template <cuda_form FORM>
static __device__ __forceinline__ void code_pairs(unsigned low, unsigned high, unsigned (&k)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        unsigned narrow = low >> 4 * i, wide = (i < 2 ? low : high) >> 8 * (i & 1);
        k[i] = FORM == CUDA_FORM_Q4 || FORM == CUDA_FORM_S4 ? q4_pair(narrow)
               : FORM == CUDA_FORM_G4                       ? g4_pair(low, i)
               : FORM == CUDA_FORM_A4                       ? a4_pair(narrow)
               : FORM == CUDA_FORM_A8                       ? a8_pair(wide)
               : FORM == CUDA_FORM_F8                       ? f8_pair(wide)
                                                            : q8_pair(wide);
    }
}

/* Codes of both blocks of one lane, and the scales of its row. */
template <cuda_form FORM> struct lane_codes {
    static constexpr bool NARROW =
        FORM == CUDA_FORM_Q4 || FORM == CUDA_FORM_A4 || FORM == CUDA_FORM_S4 || FORM == CUDA_FORM_G4;
    unsigned word[NARROW ? 2 : 4];

    __device__ __forceinline__ void pairs(int b, unsigned (&k)[4]) const {
        code_pairs<FORM>(word[NARROW ? b : 2 * b], word[NARROW ? b : 2 * b + 1], k);
    }
};

/* quant_is_halved, where it has to be a constant. */
template <cuda_form FORM> static constexpr bool halved = FORM == CUDA_FORM_G8 || FORM == CUDA_FORM_G4;

template <cuda_form FORM> struct row_scales {
    static constexpr int WORDS = FORM == CUDA_FORM_Q4 || FORM == CUDA_FORM_Q8   ? 1
                                 : FORM == CUDA_FORM_F8 || FORM == CUDA_FORM_S4 ? 2
                                                                                : 4;
    static constexpr bool AFFINE = FORM == CUDA_FORM_A4 || FORM == CUDA_FORM_A8;
    unsigned word[WORDS];

    /* Of half `half` of block b: different ones in G8 and G4 alone. */
    __device__ __forceinline__ float scale(int b, int half) const {
        if (WORDS == 1) return half_bits((unsigned short)(word[0] >> 16 * b));
        return __uint_as_float(word[WORDS == 2 ? b : AFFINE ? 2 * b : 2 * b + half]);
    }
    __device__ __forceinline__ float offset(int b) const { return __uint_as_float(word[AFFINE ? 2 * b + 1 : 0]); }
};

/* Two codes in bf16, times their scale, in float32, and rounded: values in bf16. */
static __device__ __forceinline__ unsigned scaled_pair(unsigned pair, float scale, float offset, bool affine) {
    float2 codes = __bfloat1622float2(*reinterpret_cast<__nv_bfloat162 *>(&pair));
    float low = __fmul_rn(codes.x, scale), high = __fmul_rn(codes.y, scale);
    if (affine) low = __fadd_rn(low, offset), high = __fadd_rn(high, offset);
    __nv_bfloat162 rounded = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<unsigned *>(&rounded);
}

/* A run of words, of global memory that is read once, or of shared memory. */
template <int WORDS> static __device__ __forceinline__ void load_run(unsigned (&v)[WORDS], const char *p) {
    if constexpr (WORDS == 1)
        asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v[0]) : "l"(p));
    else if constexpr (WORDS == 2)
        asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(v[0]), "=r"(v[1]) : "l"(p));
    else
        asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                     : "l"(p));
}

template <int WORDS> static __device__ __forceinline__ void load_run(unsigned (&v)[WORDS], uint32_t p) {
    if constexpr (WORDS == 1)
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v[0]) : "r"(p));
    else if constexpr (WORDS == 2)
        asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v[0]), "=r"(v[1]) : "r"(p));
    else
        asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(p));
}

#endif
