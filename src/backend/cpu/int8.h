/* Products of stored formats with activations in int8, one definition for all instruction sets:
 *
 * A row x is cut into blocks of 32 (the last one padded with zeros). With a = max |x_i| of a block:
 *   sx = a / 127,  X_i = rint(x_i * (127 / a)),  S = sum X_i;   a < 2^-100: sx = 0, X = 0;   a not finite: sx is NaN.
 * A weight block of 32 has codes c_i and a scale d, perhaps a minimum's coefficient m (MLX's bias); or two whole
 * scales of 16 codes each beside d; or d (and m) for each 16; or d and a zero point z beside codes. For every output
 * and row, one float32 sum takes the blocks in ascending order, each by one rounding (fma):
 *   one scale:          acc = fma(d * sx, (float)sum c_i X_i, acc)
 *   scale and minimum:  the same, then acc = fma(m * sx, (float)S, acc)
 *   two whole scales:   acc = fma(d * sx, (float)(s_0 I_0 + s_1 I_1), acc)
 *   a zero point:       acc = fma(d * sx, (float)(sum c_i X_i - z S), acc)
 *   halves:             of the first 16 codes, then of the last 16, what is said above of 32
 *
 * Fine input is x in two parts: as above, and by the same definition what that leaves, x_i - sx X_i. A result is the
 * product with the first part plus the product with the second, each as above.
 *
 * A factor of the whole row (NVFP4) multiplies the end result, a divisor divides it. Sums of integers are exact and
 * below 2^24. So the bits of a result depend on its row and its weights alone: not on the instruction set, nor on how
 * many rows, outputs or threads there are, nor on whether the weights lie in rows or in tiles. */
#ifndef KAKEYA_BACKEND_CPU_INT8_H
#define KAKEYA_BACKEND_CPU_INT8_H

#include <stdint.h>

#include "backend/cpu/kernels_table.h"
#include "backend/groups.h"

enum { INT8_BLOCK = 32 };

/* A packed row is a sequence of these. */
typedef struct int8_record {
    int8_t codes[INT8_BLOCK];
    float scale, total; /* sx, S */
    int16_t half[2];    /* the sums of the first and of the last 16 codes */
    int32_t start;      /* -128 S: where sums of products with codes 128 above the signed ones begin */
} int8_record;

static inline size_t int8_blocks(int k) { return ((size_t)k + INT8_BLOCK - 1) / INT8_BLOCK; }
static inline size_t int8_row_bytes(int k) { return (int8_blocks(k) * sizeof(int8_record) + 63) / 64 * 64; }
/* A fine row is a row of each part. */
static inline size_t int8_fine_row_bytes(int k) { return 2 * int8_row_bytes(k); }

/* The weights are in rows as their format stores them, or tiled (int8_forms.h). */
typedef void (*int8_multiply)(const void *packed, int rows, const weight *w, float *y, size_t ldy);
/* The same with fine rows, by a product with rows. */
void int8_multiply_fine(int8_multiply multiply, const void *packed, int rows, const weight *w, float *y, size_t ldy);
/* Tiles with a head for `inside` blocks of 32; 16-bit scales that lie beside codes are bf16 or float16. */
typedef struct int8_shape {
    int inside;
    bool bf16;
} int8_shape;
/* Tiles [first, first + n) of rows [row, row + outputs), at most TILE_OUTPUTS, of weights in rows. Outputs that are not
 * there become zeros. */
typedef void (*int8_tile_maker)(const weight *w, int row, int outputs, int8_shape shape, size_t first, size_t n,
                                unsigned char *tiles);

/* What an instruction set brings. */
typedef struct int8_kernels {
    void (*pack)(const float *x, size_t ldx, int rows, int k, void *packed);
    void (*pack_fine)(const float *x, size_t ldx, int rows, int k, void *packed);
    int8_multiply multiply[WEIGHT_FORMAT_COUNT]; /* NULL where a format is no block format */
    int8_tile_maker tile[WEIGHT_FORMAT_COUNT];   /* the same bytes from every instruction set */
    /* For the benchmark: the product's inner instructions on registers, `iterations` times; returns the operations on
     * integers done, a multiply-add counted as 2. */
    double (*probe)(size_t iterations);
} int8_kernels;

extern const int8_kernels int8_scalar;

/* Matrices with such products: of formats that have them; where scales lie beside codes, rows of whole blocks. */
static inline bool int8_takes(const weight *w) {
    if (!int8_scalar.multiply[w->format]) return false;
    if (!weight_format_is_grouped(w->format)) return true;
    if (w->in % INT8_BLOCK) return false;
    return weight_format_find(w->format)->stream[1].values != WEIGHT_GROUP || w->group == w->in ||
           (w->group > 0 && w->group % INT8_BLOCK == 0);
}
#if defined(__x86_64__)
extern const int8_kernels int8_avx2;
extern const int8_kernels int8_vnni; /* needs AVX-512 with VNNI */
/* The fastest that this CPU runs; for tables of AVX-512. */
const int8_kernels *int8_widest(void);
#elif defined(__aarch64__)
extern const int8_kernels int8_neon, int8_dotprod, int8_i8mm;
#endif
/* Those of a table of kernels. */
const int8_kernels *int8_of(const cpu_kernels *table);
/* Of the instructions that they use. */
const char *int8_name(const int8_kernels *kernels);

/* Rows of a table of kernels, whose int8 products are those of INT8_KERNELS. INT8_NAME makes names of functions, for
 * files with several tables. */
#if !defined(INT8_NAME)
#define INT8_NAME(verb, name) int8_##verb##_##name
#endif
#define DEFINE_INT8_PRODUCT(NAME, name, values, bytes)                                                                 \
    static void INT8_NAME(multiply, name)(const void *packed, int rows, const weight *w, float *y, size_t ldy) {       \
        (INT8_KERNELS)->multiply[WEIGHT_##NAME](packed, rows, w, y, ldy);                                              \
    }                                                                                                                  \
    static void INT8_NAME(multiply_fine, name)(const void *packed, int rows, const weight *w, float *y, size_t ldy) {  \
        int8_multiply_fine((INT8_KERNELS)->multiply[WEIGHT_##NAME], packed, rows, w, y, ldy);                          \
    }
#define DEFINE_INT8                                                                                                    \
    BLOCK_FORMATS(DEFINE_INT8_PRODUCT)                                                                                 \
    GROUP_INT8_FORMATS(DEFINE_INT8_PRODUCT)                                                                            \
    static void INT8_NAME(pack, rows)(const float *x, size_t ldx, int rows, int k, void *packed) {                     \
        (INT8_KERNELS)->pack(x, ldx, rows, k, packed);                                                                 \
    }                                                                                                                  \
    static void INT8_NAME(pack, fine_rows)(const float *x, size_t ldx, int rows, int k, void *packed) {                \
        (INT8_KERNELS)->pack_fine(x, ldx, rows, k, packed);                                                            \
    }
#define INT8_PACKINGS                                                                                                  \
    [PACKING_INT8] = {int8_row_bytes, INT8_NAME(pack, rows)}, [PACKING_INT8_FINE] = {int8_fine_row_bytes,              \
                                                                                     INT8_NAME(pack, fine_rows)}
/* What a format's row of a table has for INPUT_INT8 and INPUT_INT8_FINE. */
#define INT8_PRODUCTS(name)                                                                                            \
    [INPUT_INT8] = {PACKING_INT8, INT8_NAME(multiply, name)}, [INPUT_INT8_FINE] = {PACKING_INT8_FINE,                  \
                                                                                   INT8_NAME(multiply_fine, name)}
#define EXACT_INSTEAD_OF_INT8(packing, multiply)                                                                       \
    [INPUT_INT8] = {packing, multiply}, [INPUT_INT8_FINE] = {packing, multiply}

#endif
