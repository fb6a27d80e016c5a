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

#include <stdint.h>

#include "backend/cpu/kernels.h"

enum {
    SCREEN_OUTPUTS = 16, /* outputs of a block, side by side in a vector of 32-bit sums */
    SCREEN_DEPTH = 4,    /* values of k that one sum takes in one step */
    SCREEN_ROWS = 8,     /* rows of a bound call */
};

#define SCREEN_TINY 1e-30f

/* outputs and k rounded up to whole blocks and steps; what is added is zero. */
typedef struct screen_matrix {
    uint8_t *codes; /* [blocks][k / SCREEN_DEPTH][SCREEN_OUTPUTS][SCREEN_DEPTH]: W + 128 */
    float *scale;   /* [blocks * SCREEN_OUTPUTS]: sw */
    float *rest;    /* |dw| */
    float *norm;    /* |sw W| */
    int blocks, steps;
} screen_matrix;

typedef struct screen_row {
    const int8_t *codes; /* [steps * SCREEN_DEPTH]: X */
    float scale;         /* sx */
    float a, b;
    int32_t offset; /* 128 * sum of X */
} screen_row;

/* upper[r][o - first * SCREEN_OUTPUTS] for the outputs of blocks [first, first + n) and up to SCREEN_ROWS rows. */
typedef void (*screen_bounds)(const screen_matrix *matrix, int first, int n, const screen_row *rows, int n_rows,
                              float *upper, size_t ld);

/* The one to use beside a table on this CPU, or NULL: then reading half the bytes would not be faster. */
screen_bounds screen_bounds_beside(const cpu_kernels *kernels);

/* Splits n values into codes [n], their scale, and the norms (rounded up) of the whole part and of the rest. Returns
 * false where a value is not finite. */
bool screen_split(const float *x, int n, int8_t *codes, float *scale, float *norm, float *rest);

#endif
