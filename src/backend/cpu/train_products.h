/* Products of training: exact float32, on the pool, the same bits for any number of threads. */
#ifndef KAKEYA_BACKEND_CPU_TRAIN_PRODUCTS_H
#define KAKEYA_BACKEND_CPU_TRAIN_PRODUCTS_H

#include "backend/cpu/cpu.h"

/* Memory is laid out twice: with `base` NULL for its size, then for its addresses. */
typedef struct train_arena {
    float *base;
    size_t floats;
} train_arena;

float *train_take(train_arena *a, size_t floats);

/* A model and the room that products take. */
typedef struct train_products {
    backend_model *m;
    void *packed;   /* train_packed_floats of the largest input */
    float *turned;  /* of outer: (na + nb) * rows floats */
    float *product; /* of product_add: rows * w->out floats; of outer: nb * na */
} train_products;

/* Floats that rows of k values take as the input of a product. */
size_t train_packed_floats(const backend_model *m, size_t rows, size_t k);
/* y [rows][w->out] = w x. */
void train_product(const train_products *p, const float *x, size_t ldx, int rows, const weight *w, float *y,
                   size_t ldy);
/* The same, added to y [rows][w->out]. */
void train_product_add(const train_products *p, const float *x, size_t ldx, int rows, const weight *w, float *y);
/* sum [nb][na] += b' a over rows. */
void train_outer_add(const train_products *p, const float *b, size_t ldb, int nb, const float *a, size_t lda, int na,
                     int rows, float *sum);
/* x [rows][n] to [n][rows] on the calling thread, and on the pool. */
void train_turn(const float *x, size_t ldx, int rows, int n, float *out);
void train_turn_wide(const train_products *p, const float *x, size_t ldx, int rows, int n, float *out);

#endif
