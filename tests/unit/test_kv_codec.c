/* Protects the formats that `eval kv-format` compares: packed bytes give back what was stored, lattices give back the
 * nearest point within their range, and take the bits that they say. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "measure/kv_codec.h"

enum { N = 128 };

static double draw(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) * 0x1p-53 * 2 - 1;
}

/* Roughly normal values. */
static void fill(float *x, int n, uint64_t *state, double width) {
    for (int i = 0; i < n; i++) x[i] = (float)(width * (draw(state) + draw(state) + draw(state)));
}

/* Packs into memory of exactly the stated size, with nothing of it left from before. */
static void round_trip(const kv_codec *c, const float *x, int n, float *out) {
    size_t bytes = kv_codec_bytes(c, n);
    unsigned char *stored = malloc(bytes), *again = malloc(bytes);
    memset(stored, 0xa5, bytes);
    memset(again, 0x5a, bytes);
    kv_codec_store(c, x, n, stored);
    kv_codec_store(c, x, n, again);
    assert_memory_equal(stored, again, bytes);
    kv_codec_load(c, stored, n, out);
    free(stored);
    free(again);
}

static double relative_error(const kv_codec *c, double width) {
    uint64_t state = 7;
    double error = 0, energy = 0;
    for (int k = 0; k < 200; k++) {
        float x[N], back[N];
        fill(x, N, &state, width);
        round_trip(c, x, N, back);
        for (int i = 0; i < N; i++) {
            double d = (double)back[i] - (double)x[i];
            error += d * d;
            energy += (double)x[i] * (double)x[i];
        }
    }
    return error / energy;
}

/* Bits per value of vectors of 128 as the published tables have them, and the error that so many bits leave. */
static void bits_and_errors(void **state) {
    (void)state;
    static const struct {
        const char *name;
        double bits, least, most;
    } expected[] = {{"identity", 32, 0, 0},      {"bf16", 16, 1e-7, 1e-5},     {"fp8", 8.25, 1e-4, 1.2e-3},
                    {"q8", 8.25, 1e-5, 1e-4},    {"affine8", 8.5, 5e-6, 6e-5}, {"affine4", 4.5, 2e-3, 1.5e-2},
                    {"q4", 4.75, 2e-3, 5e-3},    {"d4-10", 4.5, 1e-3, 9e-3},   {"d4-38", 6.5, 1e-4, 8e-4},
                    {"d4-152", 8.5, 5e-6, 6e-5}, {"e8-9", 4.5, 1e-3, 9e-3},    {"e8-38", 6.5, 1e-4, 8e-4},
                    {"e8-151", 8.5, 5e-6, 6e-5}};
    assert_int_equal(sizeof expected / sizeof *expected, KV_CODECS);
    for (int i = 0; i < KV_CODECS; i++) {
        const kv_codec *c = kv_codec_at(i);
        assert_string_equal(kv_codec_name(c), expected[i].name);
        assert_ptr_equal(kv_codec_find(expected[i].name), c);
        double bits = 8.0 * (double)kv_codec_bytes(c, N) / N, error = relative_error(c, 1);
        if (fabs(bits - expected[i].bits) > 0.13)
            fail_msg("%s: %g bits, not %g", expected[i].name, bits, expected[i].bits);
        if (!(error >= expected[i].least && error <= expected[i].most))
            fail_msg("%s: relative error %g", expected[i].name, error);
        double large = relative_error(c, 1e30), small = relative_error(c, 1e-20);
        if (strncmp(expected[i].name, "affine", 6) == 0) continue; /* 16-bit scales */
        if (fabs(large - error) > 0.05 * error || fabs(small - error) > 0.05 * error)
            fail_msg("%s: relative error %g, %g of large and %g of small values", expected[i].name, error, large,
                     small);
    }
    assert_null(kv_codec_find("d4-11"));
    assert_null(kv_codec_at(KV_CODECS));
}

static void zeros_and_what_is_no_number(void **state) {
    (void)state;
    for (int i = 0; i < KV_CODECS; i++) {
        const kv_codec *c = kv_codec_at(i);
        float x[N] = {0}, back[N];
        round_trip(c, x, N, back);
        for (int k = 0; k < N; k++) assert_true(fabsf(back[k]) <= 0);
        for (int bad = 0; bad < 3; bad++) {
            uint64_t seed = 5;
            fill(x, N, &seed, 1);
            x[77] = bad == 0 ? NAN : bad == 1 ? INFINITY : -INFINITY;
            round_trip(c, x, N, back);
            if (isfinite(back[77])) fail_msg("%s: %g became %g", kv_codec_name(c), (double)x[77], (double)back[77]);
        }
    }
}

/* In the transformed space: every point of the lattice within the range is a fixed point, corners with odd sums, and
 * values at the very edge among them. `scale` 1 is forced by one coordinate of magnitude Q. */
static void hadamard_of(double *x, int n) {
    for (int half = 1; half < n; half *= 2)
        for (int i = 0; i < n; i += 2 * half)
            for (int j = i; j < i + half; j++) {
                double a = x[j], b = x[j + half];
                x[j] = a + b;
                x[j + half] = a - b;
            }
    for (int i = 0; i < n; i++) x[i] /= sqrt(n);
}

/* The nearest point by brute force around z, all within the range. */
static double nearest_distance(const double *z, int block, int q, bool shifted, int i, int sum, double so_far,
                               double best) {
    if (so_far >= best) return best;
    if (i == block) return sum % 2 == 0 ? so_far : best;
    int low = -q, high = shifted ? q - 1 : q;
    double at = shifted ? z[i] - 0.5 : z[i];
    int centre = (int)lrint(at);
    for (int k = centre - 2; k <= centre + 2; k++) {
        if (k < low || k > high) continue;
        double d = at - k;
        best = nearest_distance(z, block, q, shifted, i + 1, sum + k, so_far + d * d, best);
    }
    return best;
}

static void lattices_give_the_nearest_point(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int block, q;
    } lattices[] = {{"d4-10", 4, 10}, {"d4-38", 4, 38}, {"d4-152", 4, 152},
                    {"e8-9", 8, 9},   {"e8-38", 8, 38}, {"e8-151", 8, 151}};
    uint64_t seed = 99;
    for (size_t l = 0; l < sizeof lattices / sizeof *lattices; l++) {
        int block = lattices[l].block, q = lattices[l].q;
        const kv_codec *c = kv_codec_find(lattices[l].name);
        for (int trial = 0; trial < 60; trial++) {
            double z[N], y[N];
            for (int i = 0; i < N; i++) {
                z[i] = q * draw(&seed);
                if (trial % 3 == 1) z[i] = rint(z[i]);                           /* ties of parity */
                if (trial % 3 == 2 && draw(&seed) > 0) z[i] = z[i] > 0 ? q : -q; /* corners, also with an odd sum */
            }
            z[0] = q; /* makes the scale 1 */
            float x[N], back[N];
            memcpy(y, z, sizeof y);
            hadamard_of(y, N);
            for (int i = 0; i < N; i++) x[i] = (float)y[i];
            round_trip(c, x, N, back);
            double found[N];
            for (int i = 0; i < N; i++) found[i] = (double)back[i];
            hadamard_of(found, N);
            for (int b = 0; b < N; b += block) {
                double distance = 0, sum = 0;
                bool half = fabs(found[b] - rint(found[b])) > 0.25;
                for (int i = b; i < b + block; i++) {
                    double point = half ? floor(found[i]) + 0.5 : rint(found[i]);
                    assert_true(fabs(found[i] - point) < 2e-3); /* a point of the lattice ... */
                    assert_true(fabs(point) <= q);              /* ... within the range */
                    distance += (z[i] - point) * (z[i] - point);
                    sum += half ? point - 0.5 : point;
                }
                assert_true(block == 8 || !half);
                assert_int_equal(llrint(sum) % 2, 0);
                double best = nearest_distance(z + b, block, q, false, 0, 0, 0, 1e9);
                if (block == 8) best = nearest_distance(z + b, block, q, true, 0, 0, 0, best);
                if (distance > best + 1e-2)
                    fail_msg("%s: a point at %g, the nearest is at %g", lattices[l].name, distance, best);
            }
        }
    }
}

static void sizes_that_do_not_fit(void **state) {
    (void)state;
    for (int i = 0; i < KV_CODECS; i++) {
        const kv_codec *c = kv_codec_at(i);
        bool transformed = kv_codec_is_lattice(c) || strcmp(kv_codec_name(c), "q4") == 0;
        assert_true(kv_codec_takes(c, 512) && kv_codec_takes(c, 64));
        assert_false(kv_codec_takes(c, 0) || kv_codec_takes(c, 4) || kv_codec_takes(c, 100) || kv_codec_takes(c, 2048));
        assert_int_equal(kv_codec_takes(c, 96), !transformed);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_and_errors),
        cmocka_unit_test(zeros_and_what_is_no_number),
        cmocka_unit_test(lattices_give_the_nearest_point),
        cmocka_unit_test(sizes_that_do_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
