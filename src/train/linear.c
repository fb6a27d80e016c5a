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

/* ----------------------------------------------------------------------------------------- triangular factors */

/* Columns [begin, end) of the factor. Rows in front of `begin` are done. */
typedef struct cholesky_panel {
    double *a;
    int n, begin, end;
} cholesky_panel;

static void factor_row(double *a, int n, int i, int begin, int end) {
    double *row = row_of(a, n, i);
    for (int j = begin; j < end; j++) row[j] = (row[j] - dot(row, row_of(a, n, j), j)) / row_of(a, n, j)[j];
}

static void factor_rows(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const cholesky_panel *p = context;
    for (size_t i = begin; i < end; i++) factor_row(p->a, p->n, p->end + (int)i, p->begin, p->end);
}

bool linear_cholesky(thread_pool *pool, double *a, int n) {
    enum { PANEL = 64, GRAIN = 16 };
    for (int begin = 0; begin < n; begin += PANEL) {
        cholesky_panel panel = {a, n, begin, n - begin < PANEL ? n : begin + PANEL};
        for (int i = begin; i < panel.end; i++) {
            double *row = row_of(a, n, i);
            factor_row(a, n, i, begin, i);
            double rest = row[i] - dot(row, row, i);
            if (!(rest > 0)) return false;
            row[i] = sqrt(rest);
            for (int j = i + 1; j < n; j++) row[j] = 0;
        }
        thread_pool_for(pool, (size_t)(n - panel.end), GRAIN, factor_rows, &panel);
    }
    return true;
}

typedef struct triangle_work {
    const double *l;
    double *x;
    int n, columns;
} triangle_work;

static void lower_columns(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const triangle_work *w = context;
    int columns = (int)(end - begin);
    for (int i = 0; i < w->n; i++) {
        double *row = row_of(w->x, w->columns, i) + begin;
        const double *factor = w->l + (size_t)i * (size_t)w->n;
        for (int j = 0; j < i; j++) add_scaled(row, -factor[j], row_of(w->x, w->columns, j) + begin, columns);
        for (int c = 0; c < columns; c++) row[c] /= factor[i];
    }
}

static void upper_columns(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const triangle_work *w = context;
    int columns = (int)(end - begin);
    for (int i = w->n - 1; i >= 0; i--) {
        double *row = row_of(w->x, w->columns, i) + begin;
        for (int j = i + 1; j < w->n; j++)
            add_scaled(row, -w->l[(size_t)j * (size_t)w->n + (size_t)i], row_of(w->x, w->columns, j) + begin, columns);
        for (int c = 0; c < columns; c++) row[c] /= w->l[(size_t)i * (size_t)w->n + (size_t)i];
    }
}

enum { COLUMN_GRAIN = 256, ROW_GRAIN = 8 };

void linear_solve_lower(thread_pool *pool, const double *l, int n, double *x, int columns) {
    triangle_work work = {l, x, n, columns};
    thread_pool_for(pool, (size_t)columns, COLUMN_GRAIN, lower_columns, &work);
}

void linear_solve_upper(thread_pool *pool, const double *l, int n, double *x, int columns) {
    triangle_work work = {l, x, n, columns};
    thread_pool_for(pool, (size_t)columns, COLUMN_GRAIN, upper_columns, &work);
}

/* Some rows at a time, so that a row of the factor is read once for all of them. */
static void lower_rows(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const triangle_work *w = context;
    for (int i = 0; i < w->n; i++) {
        const double *factor = w->l + (size_t)i * (size_t)w->n;
        for (size_t r = begin; r < end; r++) {
            double *x = row_of(w->x, w->n, (int)r);
            x[i] = (x[i] - dot(factor, x, i)) / factor[i];
        }
    }
}

static void upper_rows(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const triangle_work *w = context;
    for (int i = w->n - 1; i >= 0; i--) {
        const double *factor = w->l + (size_t)i * (size_t)w->n;
        for (size_t r = begin; r < end; r++) {
            double *x = row_of(w->x, w->n, (int)r);
            x[i] /= factor[i];
            add_scaled(x, -x[i], factor, i);
        }
    }
}

void linear_solve_lower_rows(thread_pool *pool, const double *l, int n, double *x, int rows) {
    triangle_work work = {l, x, n, n};
    thread_pool_for(pool, (size_t)rows, ROW_GRAIN, lower_rows, &work);
}

void linear_solve_upper_rows(thread_pool *pool, const double *l, int n, double *x, int rows) {
    triangle_work work = {l, x, n, n};
    thread_pool_for(pool, (size_t)rows, ROW_GRAIN, upper_rows, &work);
}

/* ---------------------------------------------------------------------------------------------------- products */

typedef struct product_work {
    const double *a, *b;
    double *out;
    int m, n, k;
} product_work;

/* Four products of two rows each: every value that is loaded is used twice. */
static void dot_pairs(const double *a0, const double *a1, const double *b0, const double *b1, int n, double out[4]) {
    enum { LANES = 4 };
    double sum[4][LANES] = {{0}};
    int i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int k = 0; k < LANES; k++) {
            sum[0][k] += a0[i + k] * b0[i + k];
            sum[1][k] += a0[i + k] * b1[i + k];
            sum[2][k] += a1[i + k] * b0[i + k];
            sum[3][k] += a1[i + k] * b1[i + k];
        }
    }
    for (; i < n; i++) {
        sum[0][0] += a0[i] * b0[i];
        sum[1][0] += a0[i] * b1[i];
        sum[2][0] += a1[i] * b0[i];
        sum[3][0] += a1[i] * b1[i];
    }
    for (int k = 0; k < 4; k++) out[k] += (sum[k][0] + sum[k][1]) + (sum[k][2] + sum[k][3]);
}

enum { DEPTH = 512 /* values of a row that are in work at a time: tiles of them stay in the cache */, TILE = 32 };

/* A tile of rows of b against all of a. */
static void dot_tiles(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const product_work *w = context;
    size_t n = (size_t)w->n, k = (size_t)w->k;
    for (int i = 0; i < w->m; i++) {
        for (size_t j = begin; j < end; j++) w->out[(size_t)i * n + j] = 0;
    }
    for (size_t at = 0; at < k; at += DEPTH) {
        int depth = (int)(k - at < DEPTH ? k - at : DEPTH);
        for (size_t i = 0; i < (size_t)w->m; i += 2) {
            bool two = i + 1 < (size_t)w->m;
            const double *a0 = w->a + i * k + at, *a1 = two ? a0 + k : a0;
            for (size_t j = begin; j < end; j += 2) {
                bool wide = j + 1 < end;
                const double *b0 = w->b + j * k + at, *b1 = wide ? b0 + k : b0;
                double sums[4] = {0};
                dot_pairs(a0, a1, b0, b1, depth, sums);
                double *to = w->out + i * n + j;
                to[0] += sums[0];
                if (wide) to[1] += sums[1];
                if (two) to[n] += sums[2];
                if (two && wide) to[n + 1] += sums[3];
            }
        }
    }
}

void linear_dots(thread_pool *pool, const double *a, int m, const double *b, int n, int k, double *out) {
    product_work work = {a, b, out, m, n, k};
    thread_pool_for(pool, (size_t)n, TILE, dot_tiles, &work);
}

/* y += four scaled rows: every value of y is loaded and stored once for them. */
static void add_four(double *restrict y, const double scale[4], const double *x, size_t stride, int n) {
    const double *a = x, *b = x + stride, *c = b + stride, *d = c + stride;
    for (int i = 0; i < n; i++) y[i] += (scale[0] * a[i] + scale[1] * b[i]) + (scale[2] * c[i] + scale[3] * d[i]);
}

/* A tile of columns of b against all of a. */
static void combine_tiles(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const product_work *w = context;
    size_t n = (size_t)w->n, k = (size_t)w->k;
    int columns = (int)(end - begin);
    for (int i = 0; i < w->m; i++) {
        for (size_t j = begin; j < end; j++) w->out[(size_t)i * n + j] = 0;
    }
    for (size_t at = 0; at < k; at += TILE) {
        size_t last = k - at < TILE ? k : at + TILE;
        for (size_t i = 0; i < (size_t)w->m; i++) {
            double *to = w->out + i * n + begin;
            size_t l = at;
            for (; l + 4 <= last; l += 4) add_four(to, w->a + i * k + l, w->b + l * n + begin, n, columns);
            for (; l < last; l++) add_scaled(to, w->a[i * k + l], w->b + l * n + begin, columns);
        }
    }
}

void linear_combine(thread_pool *pool, const double *a, int m, const double *b, int n, int k, double *out) {
    product_work work = {a, b, out, m, n, k};
    thread_pool_for(pool, (size_t)n, DEPTH, combine_tiles, &work);
}

/* ------------------------------------------------------------------------------------------------ eigenvectors */

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
    enum { MOST_STEPS = 60, PATIENT_STEPS = 30 };
    double norm = 0;
    for (int i = 0; i < n; i++) norm = fmax(norm, fabs(d[i]) + fabs(e[i]));
    for (int l = 0; l < n; l++) {
        for (int steps = 0;; steps++) {
            int m = l;
            for (; m + 1 < n; m++) {
                double scale = fabs(d[m]) + fabs(d[m + 1]);
                if (fabs(e[m]) <= DBL_EPSILON * scale) break;
                /* where a matrix has few directions the rest is rounding, which need not converge beside itself */
                if (steps > PATIENT_STEPS && fabs(e[m]) <= DBL_EPSILON * norm) break;
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

void linear_turn(double *x, int n) {
    double largest = 0;
    for (int k = 0; k < n; k++) {
        if (fabs(x[k]) > fabs(largest)) largest = x[k];
    }
    for (int k = 0; k < n && largest < 0; k++) x[k] = -x[k];
}

static void sort_descending(double *values, double *vectors, int n) {
    for (int i = 0; i < n; i++) {
        int best = i;
        for (int j = i + 1; j < n; j++) {
            if (values[j] > values[best]) best = j;
        }
        double value = values[i], *a = row_of(vectors, n, i), *b = row_of(vectors, n, best);
        values[i] = values[best];
        values[best] = value;
        for (int k = 0; k < n && best != i; k++) {
            double swap = a[k];
            a[k] = b[k];
            b[k] = swap;
        }
        linear_turn(a, n);
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
