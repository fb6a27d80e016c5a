#include "train/subspace.h"

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "train/linear.h"
#include "train/products.h"

enum { MOST_DEGREE = 8, ROUNDS = 60 };
static const double standstill = 1e-9;
/* How much more a filter lets through of the largest direction than of those that it damps: above that, rounding in the
 * largest hides the small ones. */
static const double most_growth = 1e12;

typedef struct iteration {
    thread_pool *pool;
    int n, block;
    subspace_apply apply;
    void *context;
    double *x;        /* [block][n], the caller's */
    double *y, *z;    /* [block][n] */
    double *small[2]; /* [block][block] */
    uint64_t random;
} iteration;

static size_t all(const iteration *s) { return (size_t)s->block * (size_t)s->n; }

static void randomise(iteration *s, double *row) {
    for (int i = 0; i < s->n; i++) {
        s->random = s->random * 6364136223846793005u + 1442695040888963407u;
        row[i] = (double)(s->random >> 40) / (double)(1 << 23) - 1;
    }
}

static double norm_of(const double *x, int n) {
    double square = 0;
    for (int i = 0; i < n; i++) square += x[i] * x[i];
    return sqrt(square);
}

/* A row becomes a unit vector; zero what is nothing. */
static double normalise(double *row, int n) {
    double length = norm_of(row, n);
    for (int i = 0; i < n && length > 0; i++) row[i] /= length;
    return length;
}

/* Rows [begin, end) lose what lies in the span of the orthonormal rows [from, begin). */
static void project(iteration *s, int from, int begin, int end) {
    double *rows = s->x + (size_t)begin * (size_t)s->n, *earlier = s->x + (size_t)from * (size_t)s->n;
    int n = end - begin, before = begin - from;
    const products_job along = {.a = rows,
                                .b = earlier,
                                .c = s->small[0],
                                .lda = (size_t)s->n,
                                .ldb = (size_t)s->n,
                                .ldc = (size_t)s->block,
                                .m = n,
                                .n = before,
                                .k = s->n,
                                .b_turned = true,
                                .scale = 1,
                                .set = true};
    const products_job away = {.a = s->small[0],
                               .b = earlier,
                               .c = rows,
                               .lda = (size_t)s->block,
                               .ldb = (size_t)s->n,
                               .ldc = (size_t)s->n,
                               .m = n,
                               .n = s->n,
                               .k = before,
                               .scale = -1};
    products_run(s->pool, &along);
    products_run(s->pool, &away);
}

static const double dependent = 1e-10;

/* One row against rows [from, i), twice. What nearly lies in their span is rounding: a random row takes its place,
 * which has all earlier rows to leave. */
static bool orthonormalise_row(iteration *s, int i, int from) {
    enum { TRIES = 5 };
    double *row = s->x + (size_t)i * (size_t)s->n;
    for (int tries = 0;; tries++) {
        double before = normalise(row, s->n), after = before;
        for (int pass = 0; pass < 2 && after > 0; pass++) {
            static const double cancelled =
                0.1; /* what was taken away hid what earlier blocks have in common with it */
            project(s, from, i, i + 1);
            after = normalise(row, s->n);
            if (!(after > dependent)) break;
            if (after < cancelled && from) {
                from = 0;
                pass = -1;
            }
        }
        if (!isfinite(before) || !isfinite(after) || tries == TRIES) return false;
        if (after > dependent) return true;
        randomise(s, row);
        from = 0;
    }
}

/* Rows become orthonormal: Gram-Schmidt, blocks against all earlier ones, then rows within them. */
static bool orthonormalise(iteration *s) {
    enum { ROWS = 32 };
    for (int begin = 0; begin < s->block; begin += ROWS) {
        int end = s->block - begin < ROWS ? s->block : begin + ROWS;
        for (int pass = 0; pass < 2 && begin; pass++) {
            for (int i = begin; i < end; i++) (void)normalise(s->x + (size_t)i * (size_t)s->n, s->n);
            project(s, 0, begin, end);
            for (int i = begin; i < end; i++) {
                double *row = s->x + (size_t)i * (size_t)s->n;
                if (norm_of(row, s->n) <= dependent) memset(row, 0, (size_t)s->n * sizeof *row);
            }
        }
        for (int i = begin; i < end; i++) {
            if (!orthonormalise_row(s, i, begin)) return false;
        }
    }
    return true;
}

/* The best vectors within the span: the eigenvectors of the matrix seen there. s->y: the matrix times s->x, turned with
 * it. */
static bool rotate(iteration *s, double *values) {
    size_t b = (size_t)s->block;
    s->apply(s->context, s->x, s->block, s->y);
    linear_dots(s->pool, s->x, s->block, s->y, s->block, s->n, s->small[0]);
    for (size_t i = 0; i < b; i++) {
        for (size_t j = 0; j < i; j++)
            s->small[0][i * b + j] = s->small[0][j * b + i] = (s->small[0][i * b + j] + s->small[0][j * b + i]) / 2;
    }
    if (!linear_eigen(s->small[0], s->block, values, s->small[1])) return false;
    linear_combine(s->pool, s->small[0], s->block, s->x, s->n, s->block, s->z);
    memcpy(s->x, s->z, all(s) * sizeof *s->x);
    linear_combine(s->pool, s->small[0], s->block, s->y, s->n, s->block, s->z);
    memcpy(s->y, s->z, all(s) * sizeof *s->y);
    return true;
}

/* x = p(matrix) x. p is the Chebyshev polynomial that is small on [0, cut] and grows fastest behind it, scaled to 1 at
 * `largest`. */
static void filter(iteration *s, double cut, double largest) {
    double half = cut / 2, sigma = half / (largest - half), tau = 2 / sigma,
           growth = acosh(fmax(largest / half - 1, 1)); /* of the polynomial's logarithm by degree */
    int most = growth * MOST_DEGREE > log(2 * most_growth) ? (int)(log(2 * most_growth) / growth) : MOST_DEGREE;
    for (size_t i = 0; i < all(s); i++) s->y[i] = (s->y[i] - half * s->x[i]) * sigma / half;
    for (int degree = 2; degree <= most; degree++) {
        double next = 1 / (tau - sigma), scale = 2 * next / half, back = sigma * next;
        s->apply(s->context, s->y, s->block, s->z);
        for (size_t i = 0; i < all(s); i++) {
            double value = (s->z[i] - half * s->y[i]) * scale - back * s->x[i];
            s->x[i] = s->y[i];
            s->y[i] = value;
        }
        sigma = next;
    }
    memcpy(s->x, s->y, all(s) * sizeof *s->x);
}

static bool iterate(iteration *s, int wanted, double *values) {
    double before = 0;
    for (int i = 0; i < s->block; i++) randomise(s, s->x + (size_t)i * (size_t)s->n);
    for (int round = 0; round < ROUNDS; round++) {
        if (!orthonormalise(s) || !rotate(s, values)) return false;
        double sum = 0, largest = values[0];
        for (int i = 0; i < wanted; i++) sum += values[i];
        if (!isfinite(sum)) return false;
        if (s->block == s->n || !(largest > 0) || (round && fabs(sum - before) <= standstill * fabs(sum))) return true;
        before = sum;
        double cut = values[s->block - 1], least = 1e-12 * largest;
        filter(s, cut > least ? cut : least, largest);
    }
    return false;
}

bool subspace_eigen(thread_pool *pool, int n, int wanted, int block, subspace_apply apply, void *context,
                    double *vectors, double *values, bool *out_of_memory) {
    iteration s = {.pool = pool, .n = n, .block = block, .apply = apply, .context = context, .x = vectors, .random = 1};
    s.y = malloc(all(&s) * sizeof *s.y);
    s.z = malloc(all(&s) * sizeof *s.z);
    for (int i = 0; i < 2; i++) s.small[i] = malloc((size_t)block * (size_t)block * sizeof *s.small[i]);
    *out_of_memory = !s.y || !s.z || !s.small[0] || !s.small[1];
    bool done = !*out_of_memory && iterate(&s, wanted, values);
    for (int i = 0; i < wanted && done; i++) linear_turn(vectors + (size_t)i * (size_t)n, n);
    free(s.y);
    free(s.z);
    free(s.small[0]);
    free(s.small[1]);
    return done;
}
