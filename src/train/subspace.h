/* The largest eigenvalues of a matrix that is only known by what it does: subspace iteration with a Chebyshev filter
 * (Saad, "Numerical methods for large eigenvalue problems", chapter 7), for sizes that a dense solution does not reach.
 */
#ifndef KAKEYA_TRAIN_SUBSPACE_H
#define KAKEYA_TRAIN_SUBSPACE_H

#include <stdbool.h>

#include "base/threads.h"

/* out [rows][n]: the matrix times each row of x [rows][n]. It is symmetric, with no eigenvalue below 0. */
typedef void (*subspace_apply)(void *context, const double *x, int rows, double *out);

/* vectors [block][n] receives orthonormal vectors, the first `wanted` of them the eigenvectors of the largest
 * eigenvalues in descending order, with linear_eigen's signs. block: `wanted` and some more, n at most; the more, the
 * fewer rounds. Ends when the sum of the wanted eigenvalues stands still to nine digits. Deterministic, for any number
 * of threads. False where memory runs out, where it does not converge, or for values that are no numbers:
 * *out_of_memory tells. */
bool subspace_eigen(thread_pool *pool, int n, int wanted, int block, subspace_apply apply, void *context,
                    double *vectors, double *values, bool *out_of_memory);

#endif
