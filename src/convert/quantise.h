/* Rows of float32 to the blocks of a weight format, by the arithmetic of the reference quantisers: where that is exact,
 * the same bytes. Rows are independent of each other, so the bytes of a matrix do not depend on who makes which row. */
#ifndef KAKEYA_CONVERT_QUANTISE_H
#define KAKEYA_CONVERT_QUANTISE_H

#include "base/dtype.h"
#include "model/weight_format.h"

/* Whether quantise_row makes this format: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K. */
bool quantise_has(weight_format format);

/* n values, a multiple of the format's block, to its bytes. Values must be finite. `importance` says how much the error
 * of each value counts, as mean squares of the inputs that meet it; NULL: all the same. Formats that round each value
 * to the nearest (floats, Q8_0) don't ask for it. */
void quantise_row(weight_format format, const float *x, const float *importance, int n, unsigned char *out);

/* MLX's affine form: n values (a multiple of `group`) to codes of `bits` bits, and per group a scale and a bias of 16
 * bits. `scales` says of which type. */
void quantise_affine(int bits, int group, dtype scales, const float *x, int n, unsigned char *codes,
                     unsigned char *scale, unsigned char *bias);

/* A block of Q4_0 whose values lie on a grid, as those of quantisation-aware training do: met exactly, but for the
 * rounding of bf16. Where they do not, the scale with the smallest error. */
typedef enum grid_place { GRID_NONE = 0, GRID_PLAIN /* the extremum is -8 steps */, GRID_OTHER } grid_place;
grid_place quantise_q4_0_grid(const float *x, unsigned char *out);

/* Index of the first value that is not finite, n if there is none. */
int quantise_first_bad(const float *x, int n);

#endif
