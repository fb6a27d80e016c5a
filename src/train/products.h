/* Products of matrices in float64, row-major, in tiles that stay in caches: what the closed form of f_theta spends its
 * time in. Every element is computed by one thread, in an order that depends on the machine's vectors alone. */
#ifndef KAKEYA_TRAIN_PRODUCTS_H
#define KAKEYA_TRAIN_PRODUCTS_H

#include <stdbool.h>

#include "base/threads.h"

/* c [m][n] += scale * a [m][k] b [k][n]; `set`: c = ... */
typedef struct products_job {
    const double *a, *b;
    double *c;
    size_t lda, ldb, ldc;
    int m, n, k;
    bool a_turned, b_turned; /* a lies as [k][m], b as [n][k] */
    double scale;
    bool set;
    bool lower; /* only tiles that hold an element with column <= row are computed */
} products_job;

void products_run(thread_pool *pool, const products_job *job);

#endif
