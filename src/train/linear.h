/* Dense symmetric problems in float64, row-major: what the closed form of f_theta needs. */
#ifndef KAKEYA_TRAIN_LINEAR_H
#define KAKEYA_TRAIN_LINEAR_H

#include <stdbool.h>

/* a [n][n], symmetric, becomes its lower Cholesky factor (zeros above). False where it is not positive definite. */
bool linear_cholesky(double *a, int n);
/* x = L^-1 x and x = L^-T x for `columns` columns of x [n][columns]. */
void linear_solve_lower(const double *l, int n, double *x, int columns);
void linear_solve_upper(const double *l, int n, double *x, int columns);
/* a [n][n], symmetric: its eigenvalues in descending order, its eigenvectors in the rows of a, each with its largest
 * component above 0. `scratch` [n]. False where an eigenvalue does not converge (values that are no numbers). */
bool linear_eigen(double *a, int n, double *values, double *scratch);

#endif
