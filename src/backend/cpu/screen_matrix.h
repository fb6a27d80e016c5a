/* What a screen (screen.h) reads: the int8 copy of a matrix and rows split alike, and the function that bounds. */
#ifndef KAKEYA_BACKEND_CPU_SCREEN_MATRIX_H
#define KAKEYA_BACKEND_CPU_SCREEN_MATRIX_H

#include <stddef.h>
#include <stdint.h>

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

#endif
