/* Attention over all keys in every kernel table: within rounding of double precision, a row's bits whatever the other
 * rows are, and no access outside of the operands. */
#include "kernel_operands.h"

static void softmax_of_row(const float *q, const float *k, const float *v, int keys, int d, double *out) {
    double *p = malloc((size_t)keys * sizeof *p), top = -INFINITY, sum = 0;
    assert_non_null(p);
    for (int j = 0; j < keys; j++) {
        p[j] = 0;
        for (int c = 0; c < d; c++) p[j] += (double)q[c] * (double)k[(size_t)j * (size_t)d + (size_t)c];
        if (p[j] > top) top = p[j];
    }
    for (int c = 0; c < d; c++) out[c] = 0;
    for (int j = 0; j < keys; j++) {
        p[j] = exp(p[j] - top);
        sum += p[j];
        for (int c = 0; c < d; c++) out[c] += p[j] * (double)v[(size_t)j * (size_t)d + (size_t)c];
    }
    for (int c = 0; c < d; c++) out[c] /= sum;
    free(p);
}

/* All operands end at the end of their allocation, so that a sanitized build sees what is read beyond. */
static void check_case(const cpu_kernels *kernels, int rows, int keys, int d, float spread) {
    const size_t gap = 3, ld = (size_t)d + gap, n_q = (size_t)rows * ld - gap, n_k = (size_t)keys * (size_t)d;
    float *q = random_floats(n_q, 81, spread), *k = random_floats(n_k, 82, 1.0f), *v = random_floats(n_k, 83, 1.0f);
    float *scratch = malloc(attend_all_floats(rows, d) * sizeof *scratch);
    float *out = malloc(n_q * sizeof *out), *alone = malloc((size_t)d * sizeof *alone);
    double *want = malloc((size_t)d * sizeof *want);
    char what[96];
    assert_true(scratch && out && alone && want);
    memcpy(out, q, n_q * sizeof *out);
    kernels->attend_all(out, ld, rows, k, v, keys, d, scratch);
    for (int r = 0; r < rows; r++) {
        const float *row = out + (size_t)r * ld;
        snprintf(what, sizeof what, "attend_all rows %d keys %d d %d spread %g, row %d", rows, keys, d, (double)spread,
                 r);
        softmax_of_row(q + (size_t)r * ld, k, v, keys, d, want);
        /* the error of a score is that of its weight */
        const double bound = 4e-6 * (1 + (double)spread * sqrt((double)d));
        for (int c = 0; c < d; c++) check_near(what, kernels->name, c, (double)row[c], want[c], bound);
        memcpy(alone, q + (size_t)r * ld, (size_t)d * sizeof *alone);
        kernels->attend_all(alone, ld, 1, k, v, keys, d, scratch);
        for (int c = 0; c < d; c++) check_same_bits(what, kernels->name, c, alone[c], row[c]);
        for (size_t i = 0; r + 1 < rows && i < gap; i++)
            check_same_bits("between rows", kernels->name, (long)i, row[(size_t)d + i],
                            q[(size_t)r * ld + (size_t)d + i]);
    }
    free(q), free(k), free(v), free(scratch), free(out), free(alone), free(want);
}

static void agrees_with_double(void **state) {
    (void)state;
    static const int widths[] = {1, 7, 8, 16, 63, 64, 72, 80, 131};
    static const int counts[] = {1, 2, 7, 15, 16, 17, 24, 25, 47, 48, 49, 97, 144};
    FOR_FLOAT_TABLES(kernels)
    for (size_t w = 0; w < COUNT(widths); w++)
        for (size_t n = 0; n < COUNT(counts); n++) {
            check_case(kernels, counts[(n * 7 + w) % COUNT(counts)], counts[n], widths[w], 0.3f);
            check_case(kernels, 3, counts[n], widths[w], 20.0f);
        }
}

/* As many keys as pictures have. */
static void many_keys(void **state) {
    (void)state;
    FOR_FLOAT_TABLES(kernels) {
        check_case(kernels, 50, 280, 72, 2.0f);
        check_case(kernels, 5, 1120, 72, 2.0f);
        check_case(kernels, 3, 2521, 64, 2.0f);
    }
}

/* One key takes everything, the first or the last; scores that differ by more than an exponent's range. */
static void far_scores(void **state) {
    (void)state;
    enum { KEYS = 100, WIDTH = 8 };
    float k[KEYS * WIDTH] = {0}, v[KEYS * WIDTH];
    float *scratch = malloc(attend_all_floats(1, WIDTH) * sizeof *scratch);
    assert_non_null(scratch);
    for (int i = 0; i < KEYS * WIDTH; i++) v[i] = (float)(i / WIDTH);
    FOR_FLOAT_TABLES(kernels)
    for (int chosen = 0; chosen < KEYS; chosen++)
        for (int sign = -1; sign <= 1; sign += 2) {
            float q[WIDTH] = {1000.0f};
            for (int j = 0; j < KEYS; j++) k[j * WIDTH] = j == chosen ? (float)sign * 30 : -(float)sign * 30;
            kernels->attend_all(q, WIDTH, 1, k, v, KEYS, WIDTH, scratch);
            const double others = (KEYS * (KEYS - 1) / 2.0 - chosen) / (KEYS - 1);
            for (int c = 0; c < WIDTH; c++)
                check_near("far scores", kernels->name, chosen, (double)q[c], sign > 0 ? chosen : others, 1e-4);
        }
    free(scratch);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_double),
        cmocka_unit_test(many_keys),
        cmocka_unit_test(far_scores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
