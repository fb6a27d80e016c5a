/* Single values and codes of quantised weights on the device. */
#ifndef KAKEYA_BACKEND_CUDA_QUANT_VALUES_CUH
#define KAKEYA_BACKEND_CUDA_QUANT_VALUES_CUH

#include <cuda_fp16.h>

#include "backend/cuda/common.cuh"
#include "backend/cuda/quant.h"

static __device__ __forceinline__ float half_bits(unsigned short bits) { return __half2float(__ushort_as_half(bits)); }

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
        float scale =
            half_bits(*reinterpret_cast<const unsigned short *>(unit + quant_scale_offset(table.form, g, block)));
        const unsigned char *codes = unit + quant_lane_offset(table.form, g * 4 + k / 8);
        if (table.form == CUDA_FORM_Q8)
            return scale * (float)reinterpret_cast<const signed char *>(codes)[block * 8 + quant_q8_byte(k % 8)];
        unsigned word = reinterpret_cast<const unsigned *>(codes)[block];
        return scale * (float)((int)(word >> quant_q4_shift(k % 8) & 15) - 8);
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

/* Two codes, in bits 0 to 3 and 16 to 19, as bf16, exactly: 0x4300 | n is 128 + n, and n - 8 is wanted. */
static __device__ __forceinline__ unsigned q4_pair(unsigned word) {
    return subtract_pairs(and_or(word, 0x000f000fu, 0x43004300u), 0x43084308u);
}

/* Two signed codes, in bytes 0 and 2: 0x4300 | (the low seven bits) is 128 + them; 128 is taken off, of negative
 * codes 256 (0x4380). */
static __device__ __forceinline__ unsigned q8_pair(unsigned word) {
    return subtract_pairs(and_or(word, 0x007f007fu, 0x43004300u), and_or(word, 0x00800080u, 0x43004300u));
}

#endif
