/* Products of block formats with activations in int8, one definition for all instruction sets:
 *
 * A row x is cut into blocks of 32 (the last one padded with zeros). With a = max |x_i| of a block:
 *   sx = a / 127,  X_i = rint(x_i * (127 / a)),  S = sum X_i;   a < 2^-100: sx = 0, X = 0;   a not finite: sx is NaN.
 * A weight block of 32 has codes c_i and a scale d, perhaps a minimum's coefficient m, or two whole scales of 16 codes
 * each. For every output and row, one float32 sum takes the blocks in ascending order, each by one rounding (fma):
 *   one scale:          acc = fma(d * sx, (float)sum c_i X_i, acc)
 *   scale and minimum:  the same, then acc = fma(m * sx, (float)S, acc)
 *   two whole scales:   acc = fma(d * sx, (float)(s_0 I_0 + s_1 I_1), acc)
 * Sums of integers are exact and below 2^24. So the bits of a result depend on its row and its weights alone: not on
 * the instruction set, nor on how many rows, outputs or threads there are. */
#ifndef KAKEYA_BACKEND_CPU_INT8_H
#define KAKEYA_BACKEND_CPU_INT8_H

#include <stdint.h>

#include "backend/cpu/blocks.h"
#include "backend/cpu/kernels_table.h"

enum { INT8_BLOCK = 32 };

/* A packed row: codes of all blocks, then their scales, then the sums of their halves. */
static inline size_t int8_blocks(int k) { return ((size_t)k + INT8_BLOCK - 1) / INT8_BLOCK; }
static inline size_t int8_scales_at(size_t blocks) { return blocks * INT8_BLOCK; }
static inline size_t int8_sums_at(size_t blocks) { return blocks * (INT8_BLOCK + sizeof(float)); }
static inline size_t int8_row_bytes(int k) {
    return (int8_blocks(k) * (INT8_BLOCK + sizeof(float) + 2 * sizeof(int16_t)) + 63) / 64 * 64;
}

typedef void (*int8_multiply)(const void *packed, int rows, const weight *w, float *y, size_t ldy);

/* What an instruction set brings. */
typedef struct int8_kernels {
    void (*pack)(const float *x, size_t ldx, int rows, int k, void *packed);
    int8_multiply multiply[WEIGHT_FORMAT_COUNT]; /* NULL where a format has none */
} int8_kernels;

extern const int8_kernels int8_scalar;
#if defined(__x86_64__)
extern const int8_kernels int8_avx2;
extern const int8_kernels int8_vnni; /* needs AVX-512 with VNNI */
/* int8_vnni where this CPU has it, else int8_avx2: for tables of AVX-512. */
const int8_kernels *int8_widest(void);
#endif

/* Rows of a table of kernels, whose int8 products are those of INT8_KERNELS. */
#define DEFINE_INT8_PRODUCT(NAME, name, values, bytes)                                                                 \
    static void multiply_int8_##name(const void *packed, int rows, const weight *w, float *y, size_t ldy) {            \
        (INT8_KERNELS)->multiply[WEIGHT_##NAME](packed, rows, w, y, ldy);                                              \
    }
#define DEFINE_INT8                                                                                                    \
    INT8_BLOCK_FORMATS(DEFINE_INT8_PRODUCT)                                                                            \
    static void pack_int8(const float *x, size_t ldx, int rows, int k, void *packed) {                                 \
        (INT8_KERNELS)->pack(x, ldx, rows, k, packed);                                                                 \
    }
#define INT8_PACKING                                                                                                   \
    { int8_row_bytes, pack_int8 }

#endif
