#include "train/linear.h"

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#include "train/products.h"

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

/* All but the blocks on the diagonal are products. */
enum { BLOCK = 128, GRAIN = 16 };

/* Rows of x that meet the block [begin, end) of the factor. */
typedef struct block_work {
    const double *l;
    double *x; /* [rows][n] */
    int n, begin, end;
} block_work;

static block_work block_of(const double *l, double *x, int n, int begin) {
    return (block_work){l, x, n, begin, n - begin < BLOCK ? n : begin + BLOCK};
}

static void solve_lower(void *context, size_t first, size_t last, int thread) {
    (void)thread;
    const block_work *w = context;
    for (size_t r = first; r < last; r++) {
        double *x = row_of(w->x, w->n, (int)r) + w->begin;
        for (int i = w->begin; i < w->end; i++) {
            const double *factor = w->l + (size_t)i * (size_t)w->n;
            int before = i - w->begin;
            x[before] = (x[before] - dot(x, factor + w->begin, before)) / factor[i];
        }
    }
}

static void solve_upper(void *context, size_t first, size_t last, int thread) {
    (void)thread;
    const block_work *w = context;
    for (size_t r = first; r < last; r++) {
        double *x = row_of(w->x, w->n, (int)r) + w->begin;
        for (int i = w->end - 1; i >= w->begin; i--) {
            const double *factor = w->l + (size_t)i * (size_t)w->n;
            int before = i - w->begin;
            x[before] /= factor[i];
            add_scaled(x, -x[before], factor + w->begin, before);
        }
    }
}

/* a [row][column] -= b c', or b c, of n-wide matrices. */
static void subtract(thread_pool *pool, double *a, const double *b, const double *c, bool turned, int rows, int columns,
                     int depth, int n) {
    size_t ld = (size_t)n;
    const products_job job = {.a = b,
                              .b = c,
                              .c = a,
                              .lda = ld,
                              .ldb = ld,
                              .ldc = ld,
                              .m = rows,
                              .n = columns,
                              .k = depth,
                              .b_turned = turned,
                              .scale = -1};
    products_run(pool, &job);
}

bool linear_cholesky(thread_pool *pool, double *a, int n) {
    for (int begin = 0; begin < n; begin += BLOCK) {
        block_work work = block_of(a, NULL, n, begin);
        double *diagonal = row_of(a, n, begin) + begin;
        subtract(pool, diagonal, row_of(a, n, begin), row_of(a, n, begin), true, n - begin, work.end - begin, begin, n);
        for (int i = 0; i < work.end - begin; i++) {
            double *row = row_of(diagonal, n, i);
            for (int j = 0; j < i; j++) row[j] = (row[j] - dot(row, row_of(diagonal, n, j), j)) / diagonal[j * n + j];
            double rest = row[i] - dot(row, row, i);
            if (!(rest > 0)) return false;
            row[i] = sqrt(rest);
            for (int j = i + 1; begin + j < n; j++) row[j] = 0;
        }
        work.x = row_of(a, n, work.end);
        thread_pool_for(pool, (size_t)(n - work.end), GRAIN, solve_lower, &work);
    }
    return true;
}

void linear_solve_lower_rows(thread_pool *pool, const double *l, int n, double *x, int rows) {
    for (int begin = 0; begin < n; begin += BLOCK) {
        block_work work = block_of(l, x, n, begin);
        subtract(pool, x + begin, x, l + (size_t)begin * (size_t)n, true, rows, work.end - begin, begin, n);
        thread_pool_for(pool, (size_t)rows, GRAIN, solve_lower, &work);
    }
}

void linear_solve_upper_rows(thread_pool *pool, const double *l, int n, double *x, int rows) {
    for (int begin = (n - 1) / BLOCK * BLOCK; begin >= 0; begin -= BLOCK) {
        block_work work = block_of(l, x, n, begin);
        subtract(pool, x + begin, x + work.end, l + (size_t)work.end * (size_t)n + begin, false, rows, work.end - begin,
                 n - work.end, n);
        thread_pool_for(pool, (size_t)rows, GRAIN, solve_upper, &work);
    }
}

/* ---------------------------------------------------------------------------------------------------- products */

void linear_dots(thread_pool *pool, const double *a, int m, const double *b, int n, int k, double *out) {
    const products_job job = {.a = a,
                              .b = b,
                              .c = out,
                              .lda = (size_t)k,
                              .ldb = (size_t)k,
                              .ldc = (size_t)n,
                              .m = m,
                              .n = n,
                              .k = k,
                              .b_turned = true,
                              .scale = 1,
                              .set = true};
    products_run(pool, &job);
}

void linear_combine(thread_pool *pool, const double *a, int m, const double *b, int n, int k, double *out) {
    const products_job job = {.a = a,
                              .b = b,
                              .c = out,
                              .lda = (size_t)k,
                              .ldb = (size_t)n,
                              .ldc = (size_t)n,
                              .m = m,
                              .n = n,
                              .k = k,
                              .scale = 1,
                              .set = true};
    products_run(pool, &job);
}

typedef struct mirror_work {
    double *a;
    int n;
    bool exchange;
} mirror_work;

/* Rows of blocks: what lies above the diagonal becomes what lies below it, or both change places. */
static void mirror_blocks(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const mirror_work *w = context;
    enum { SIDE = 32 };
    for (size_t block = begin; block < end; block++) {
        int first = (int)block * SIDE, last = w->n - first < SIDE ? w->n : first + SIDE;
        for (int column = 0; column < last; column += SIDE) {
            for (int i = first; i < last; i++) {
                for (int j = column; j < i && j < column + SIDE; j++) {
                    double *low = row_of(w->a, w->n, i) + j, *high = row_of(w->a, w->n, j) + i, kept = *high;
                    *high = *low;
                    if (w->exchange) *low = kept;
                }
            }
        }
    }
}

static void mirror(thread_pool *pool, double *a, int n, bool exchange) {
    mirror_work work = {a, n, exchange};
    thread_pool_for(pool, ((size_t)n + 31) / 32, 1, mirror_blocks, &work);
}

void linear_mirror(thread_pool *pool, double *a, int n) { mirror(pool, a, n, false); }
void linear_transpose(thread_pool *pool, double *a, int n) { mirror(pool, a, n, true); }

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
