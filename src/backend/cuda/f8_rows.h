/* Rows of activations rounded to e4m3, one scale each (f8_code.h): what prompt rows enter products as at precision fp8.
 * Codes lie in the order of a unit of form F8 (quant.h), zeros behind the last. */
#ifndef KAKEYA_BACKEND_CUDA_F8_ROWS_H
#define KAKEYA_BACKEND_CUDA_F8_ROWS_H

#include "backend/cuda/f8_code.h"
#include "backend/cuda/quant.h"

/* Where value k of a row lies among its codes. */
QUANT_INLINE int f8_place(int k) {
    int in_block = k % QUANT_BLOCK;
    return k / QUANT_VALUES * QUANT_VALUES + in_block / 8 * 16 + k % QUANT_VALUES / QUANT_BLOCK * 8 +
           quant_q8_byte(in_block % 8);
}

#ifdef __cplusplus
extern "C" {
#endif

/* codes [rows][64 quant_units(width)], scale [rows]: of x [rows][width], or, with a route, of rows in the places of all
 * of their slots. */
void f8_round_rows(const cuda_launch *l, const cuda_route *route, const cuda_bf16 *x, size_t ldx, int width,
                   unsigned char *codes, float *scale, int rows);
enum { F8_MOST_WIDTH = 32768 };

#ifdef __cplusplus
}
#endif

#endif
