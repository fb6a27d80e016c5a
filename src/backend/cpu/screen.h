/* An int8 copy of the head that bounds every logit from above, so that a greedy choice reads half the bytes and decides
 * on few logits exactly.
 *
 * A row x and an output's weights w are each split into a multiple of whole numbers and a rest: x = sx X + dx, w = sw W
 * + dw. By Cauchy-Schwarz  |w.x - sw sx W.X| <= |dw| |x| + |sw W| |dx|, and the product's own rounding adds at most
 * gamma |w| |x| <= gamma (|dw| + |sw W|) |x|, where gamma = (k + 64) 2^-23 is above twice what summing k products in
 * float32 can lose in any order. Hence
 *
 *   logit <= upper = sw sx W.X + |dw| a + |sw W| b + tiny,    a = (1 + gamma) |x|,    b = |dx| + gamma |x|.
 *
 * Norms are rounded up; SCREEN_TINY is above what instructions lose that take subnormal numbers for zero. W.X is a sum
 * of integers and exact. The result is the choice that the full product makes, on every instruction set: the screen
 * decides which logits are computed, never what they are. */
#ifndef KAKEYA_BACKEND_CPU_SCREEN_H
#define KAKEYA_BACKEND_CPU_SCREEN_H

#include <stdbool.h>

#include "backend/cpu/kernels_table.h"
#include "backend/cpu/screen_matrix.h"

/* The one to use beside a table on this CPU, or NULL: then reading half the bytes would not be faster. */
screen_bounds screen_bounds_beside(const cpu_kernels *kernels);

/* Splits n values into codes [n], their scale, and the norms (rounded up) of the whole part and of the rest. Returns
 * false where a value is not finite. */
bool screen_split(const float *x, int n, int8_t *codes, float *scale, float *norm, float *rest);

#endif
