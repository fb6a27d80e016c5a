/* Dense symmetric problems in float64, row-major: what the closed form of f_theta needs. Where a pool is taken, every
 * element is computed by one thread, in an order that does not depend on how many there are. */
#ifndef KAKEYA_TRAIN_LINEAR_H
#define KAKEYA_TRAIN_LINEAR_H

#include <stdbool.h>

#include "base/threads.h"

/* a [n][n], symmetric, becomes its lower Cholesky factor (zeros above). False where it is not positive definite. */
bool linear_cholesky(thread_pool *pool, double *a, int n);
/* x = L^-1 x and x = L^-T x for each row of x [rows][n]. */
void linear_solve_lower_rows(thread_pool *pool, const double *l, int n, double *x, int rows);
void linear_solve_upper_rows(thread_pool *pool, const double *l, int n, double *x, int rows);
/* out [m][n] = a [m][k] times b [n][k]'. */
void linear_dots(thread_pool *pool, const double *a, int m, const double *b, int n, int k, double *out);
/* out [m][n] = a [m][k] times b [k][n]. */
void linear_combine(thread_pool *pool, const double *a, int m, const double *b, int n, int k, double *out);
/* a [n][n]: what lies above the diagonal becomes what lies below it; a becomes a'. */
void linear_mirror(thread_pool *pool, double *a, int n);
void linear_transpose(thread_pool *pool, double *a, int n);
/* a [n][n], symmetric: its eigenvalues in descending order, its eigenvectors in the rows of a, each with its largest
 * component above 0. `scratch` [n]. False where an eigenvalue does not converge (values that are no numbers). */
bool linear_eigen(double *a, int n, double *values, double *scratch);
/* The sign of a vector: its largest component becomes positive. */
void linear_turn(double *x, int n);

#endif
