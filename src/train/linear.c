#include "train/linear.h"

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>

static double *row_of(double *a, int n, int i) { return a + (size_t)i * (size_t)n; }

static double dot(const double *a, const double *b, int n) {
    double sum[4] = {0, 0, 0, 0};
    int i = 0;
    for (; i + 4 <= n; i += 4) {
        for (int k = 0; k < 4; k++) sum[k] += a[i + k] * b[i + k];
    }
    for (; i < n; i++) sum[0] += a[i] * b[i];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

static void add_scaled(double *y, double scale, const double *x, int n) {
    for (int i = 0; i < n; i++) y[i] += scale * x[i];
}

bool linear_cholesky(double *a, int n) {
    for (int i = 0; i < n; i++) {
        double *row = row_of(a, n, i);
        for (int j = 0; j < i; j++) row[j] = (row[j] - dot(row, row_of(a, n, j), j)) / row_of(a, n, j)[j];
        double rest = row[i] - dot(row, row, i);
        if (!(rest > 0)) return false;
        row[i] = sqrt(rest);
        for (int j = i + 1; j < n; j++) row[j] = 0;
    }
    return true;
}

void linear_solve_lower(const double *l, int n, double *x, int columns) {
    for (int i = 0; i < n; i++) {
        double *row = row_of(x, columns, i);
        const double *factor = l + (size_t)i * (size_t)n;
        for (int j = 0; j < i; j++) add_scaled(row, -factor[j], row_of(x, columns, j), columns);
        for (int c = 0; c < columns; c++) row[c] /= factor[i];
    }
}

void linear_solve_upper(const double *l, int n, double *x, int columns) {
    for (int i = n - 1; i >= 0; i--) {
        double *row = row_of(x, columns, i);
        for (int j = i + 1; j < n; j++)
            add_scaled(row, -l[(size_t)j * (size_t)n + (size_t)i], row_of(x, columns, j), columns);
        for (int c = 0; c < columns; c++) row[c] /= l[(size_t)i * (size_t)n + (size_t)i];
    }
}

/* Householder reflections to tridiagonal form (Golub and Van Loan, algorithm 8.3.1). Reflection k acts on components
 * k + 1 to n - 1; its vector, of norm sqrt(2), lies in v's row k. diagonal [n], beside [n] (beside[k] couples k and
 * k + 1). */
static void tridiagonalise(double *a, int n, double *v, double *diagonal, double *beside, double *p) {
    for (int k = 0; k + 1 < n; k++) {
        double *u = row_of(v, n, k), *column = row_of(a, n, k);
        int m = n - k - 1;
        double norm = sqrt(dot(column + k + 1, column + k + 1, m)), first = column[k + 1];
        double pivot = first > 0 ? -norm : norm;
        diagonal[k] = column[k];
        beside[k] = pivot;
        for (int i = 0; i < n; i++) u[i] = 0;
        double length = sqrt(norm * (norm + fabs(first)));
        if (m == 1 || !(length > 0)) {
            beside[k] = first;
            if (m > 1) beside[k] = 0;
            continue;
        }
        for (int i = k + 1; i < n; i++) u[i] = column[i] / length;
        u[k + 1] = (first - pivot) / length;
        /* A = A - u q' - q u' with q = p - (p'u / 2) u, p = A u */
        for (int i = k + 1; i < n; i++) p[i] = dot(row_of(a, n, i) + k + 1, u + k + 1, m);
        double half = dot(p + k + 1, u + k + 1, m) / 2;
        add_scaled(p + k + 1, -half, u + k + 1, m);
        for (int i = k + 1; i < n; i++) {
            double *row = row_of(a, n, i);
            add_scaled(row + k + 1, -u[i], p + k + 1, m);
            add_scaled(row + k + 1, -p[i], u + k + 1, m);
        }
    }
    diagonal[n - 1] = row_of(a, n, n - 1)[n - 1];
    beside[n - 1] = 0;
}

/* Implicit QL with Wilkinson's shift on a tridiagonal matrix; the rotations act on the rows of z. */
static bool diagonalise(double *d, double *e, double *z, int n) {
    enum { MOST_STEPS = 60 };
    for (int l = 0; l < n; l++) {
        for (int steps = 0;; steps++) {
            int m = l;
            for (; m + 1 < n; m++) {
                double scale = fabs(d[m]) + fabs(d[m + 1]);
                if (fabs(e[m]) <= DBL_EPSILON * scale) break;
            }
            if (m == l) break;
            if (steps == MOST_STEPS || !isfinite(d[l]) || !isfinite(e[l])) return false;
            double g = (d[l + 1] - d[l]) / (2 * e[l]), r = hypot(g, 1);
            g = d[m] - d[l] + e[l] / (g + copysign(r, g));
            double s = 1, c = 1, p = 0;
            int i = m - 1;
            for (; i >= l; i--) {
                double f = s * e[i], b = c * e[i];
                r = hypot(f, g);
                e[i + 1] = r;
                if (r == 0) {
                    d[i + 1] -= p;
                    e[m] = 0;
                    break;
                }
                s = f / r;
                c = g / r;
                g = d[i + 1] - p;
                r = (d[i] - g) * s + 2 * c * b;
                p = s * r;
                d[i + 1] = g + p;
                g = c * r - b;
                double *low = row_of(z, n, i), *high = row_of(z, n, i + 1);
                for (int k = 0; k < n; k++) {
                    f = high[k];
                    high[k] = s * low[k] + c * f;
                    low[k] = c * low[k] - s * f;
                }
            }
            if (r == 0 && i >= l) continue;
            d[l] -= p;
            e[l] = g;
            e[m] = 0;
        }
    }
    return true;
}

static void sort_descending(double *values, double *vectors, int n) {
    for (int i = 0; i < n; i++) {
        int best = i;
        for (int j = i + 1; j < n; j++) {
            if (values[j] > values[best]) best = j;
        }
        double value = values[i], *a = row_of(vectors, n, i), *b = row_of(vectors, n, best), largest = 0;
        values[i] = values[best];
        values[best] = value;
        for (int k = 0; k < n && best != i; k++) {
            double swap = a[k];
            a[k] = b[k];
            b[k] = swap;
        }
        for (int k = 0; k < n; k++) {
            if (fabs(a[k]) > fabs(largest)) largest = a[k];
        }
        for (int k = 0; k < n && largest < 0; k++) a[k] = -a[k];
    }
}

bool linear_eigen(double *a, int n, double *values, double *scratch) {
    double *v = calloc((size_t)n * (size_t)n, sizeof *v), *beside = calloc((size_t)n, sizeof *beside);
    bool done = v && beside;
    if (done) {
        tridiagonalise(a, n, v, values, beside, scratch);
        /* rows of a become the identity; QL turns them, the reflections follow, last first */
        for (int i = 0; i < n; i++) {
            for (int j = 0; j < n; j++) row_of(a, n, i)[j] = i == j;
        }
        done = diagonalise(values, beside, a, n);
        for (int i = 0; i < n && done; i++) {
            double *row = row_of(a, n, i);
            for (int k = n - 2; k >= 0; k--) {
                const double *u = row_of(v, n, k) + k + 1;
                add_scaled(row + k + 1, -dot(u, row + k + 1, n - k - 1), u, n - k - 1);
            }
        }
        if (done) sort_descending(values, a, n);
    }
    free(v);
    free(beside);
    return done;
}
