/* Vectors of K and V in 4 bits (backend/kv_q4.h) for the vector tables. Lanes are groups, which lie side by side, so
 * nothing is summed over lanes: the bytes and the values are those of kv_q4.c, operation by operation. */
#ifndef KAKEYA_BACKEND_CPU_KERNELS_KV_Q4_H
#define KAKEYA_BACKEND_CPU_KERNELS_KV_Q4_H

#include <float.h>

#include "backend/cpu/kernels_vector.h"
#include "backend/kv_q4.h"

/* The first n lanes of a row; zeros behind them. */
SIMD_INLINE simd_f32 q4_row(const float *y, int n) { return n == SIMD_LANES ? simd_load(y) : simd_load_first(y, n); }

/* step [KV_Q4_CODES] of those that x is nearest to; c from 1 on replaces what came before where x is above the middle.
 */
SIMD_INLINE simd_f32 q4_nearest(simd_f32 x, const float *steps) {
    simd_f32 found = simd_set1(steps[0]);
    UNROLL for (int c = 1; c < KV_Q4_CODES; c++) {
        found = simd_select_above(x, simd_set1(kv_q4_middles[c]), simd_set1(steps[c]), found);
    }
    return found;
}

static void q4_scales(const float *y, int values, int groups, float *scales) {
    float steps[KV_Q4_CODES];
    for (int c = 0; c < KV_Q4_CODES; c++) steps[c] = kv_q4_values[c];
    for (int b = 0; b < groups; b += SIMD_LANES) {
        const int n = groups - b < SIMD_LANES ? groups - b : SIMD_LANES;
        simd_f32 x[KV_Q4_GROUP], extreme = simd_zero(), best = simd_set1(-1), scale = simd_zero();
        for (int a = 0; a < values; a++) {
            x[a] = q4_row(y + a * groups + b, n);
            extreme = simd_select_above(simd_abs(x[a]), simd_abs(extreme), x[a], extreme);
        }
        for (int e = 0; e < KV_Q4_EXTREMES; e++) {
            simd_f32 inverse = simd_select_above(simd_abs(extreme), simd_set1(FLT_MIN),
                                                 simd_div(simd_set1(kv_q4_extremes[e]), extreme), simd_zero());
            simd_f32 products = simd_zero(), squares = simd_zero();
            for (int a = 0; a < values; a++) { /* not fused: the scalar table has no such instruction */
                simd_f32 value = q4_nearest(simd_mul(x[a], inverse), steps);
                products = simd_add(products, simd_mul(x[a], value));
                squares = simd_add(squares, simd_mul(value, value));
            }
            simd_f32 gain = simd_div(simd_mul(products, products), squares);
            scale = simd_select_above(gain, best, simd_div(products, squares), scale);
            best = simd_select_above(gain, best, gain, best);
        }
        simd_store_first(scales + b, n, scale);
    }
}

static void q4_codes(const float *y, int values, int groups, const float *inverse, unsigned char *codes) {
    float steps[KV_Q4_CODES], found[KV_Q4_MAX_VALUES];
    for (int c = 0; c < KV_Q4_CODES; c++) steps[c] = (float)c;
    for (int a = 0; a < values; a++) {
        for (int b = 0; b < groups; b += SIMD_LANES) {
            const int n = groups - b < SIMD_LANES ? groups - b : SIMD_LANES, at = a * groups + b;
            simd_f32 x = simd_mul(q4_row(y + at, n), q4_row(inverse + b, n));
            simd_store_first(found + at, n, q4_nearest(x, steps));
        }
    }
    for (int i = 0; i < values * groups; i++) codes[i] = (unsigned char)(int)found[i];
}

static const kv_q4_search q4_search = {q4_scales, q4_codes};

static void store_q4(const float *x, int n, void *out) { kv_q4_store_by(&q4_search, x, n, out); }

/* Whole numbers of 16 bits, which hold sums of 16 steps. */
#define DEFINE_Q4_TRANSFORM(lanes)                                                                                     \
    SIMD_INLINE void q4_transform_##lanes(int16_t *sums, int groups) {                                                 \
        typedef int16_t q4_lanes __attribute__((vector_size(lanes * sizeof(int16_t))));                                \
        for (int b = 0; b < groups; b += lanes) {                                                                      \
            q4_lanes x[KV_Q4_GROUP];                                                                                   \
            UNROLL for (int a = 0; a < KV_Q4_GROUP; a++) memcpy(&x[a], sums + a * groups + b, sizeof x[a]);            \
            UNROLL for (int half = 1; half < KV_Q4_GROUP; half *= 2) {                                                 \
                UNROLL for (int i = 0; i < KV_Q4_GROUP; i++) {                                                         \
                    if (i & half) continue;                                                                            \
                    q4_lanes sum = x[i] + x[i + half], difference = x[i] - x[i + half];                                \
                    x[i] = sum;                                                                                        \
                    x[i + half] = difference;                                                                          \
                }                                                                                                      \
            }                                                                                                          \
            UNROLL for (int a = 0; a < KV_Q4_GROUP; a++) memcpy(sums + a * groups + b, &x[a], sizeof x[a]);            \
        }                                                                                                              \
    }
DEFINE_Q4_TRANSFORM(8)
DEFINE_Q4_TRANSFORM(16)

static void load_q4(const void *x, int n, float *out) {
    enum { NARROW = 8, WIDE = 16 };
    const int groups = kv_q4_groups(n);
    if (n % (KV_Q4_GROUP * NARROW) != 0 || (groups & (groups - 1)) != 0) { /* no model has such heads */
        kv_q4_load(x, n, out);
        return;
    }
    int16_t sums[KV_Q4_MAX_VALUES];
    float factors[KV_Q4_MAX_VALUES / KV_Q4_GROUP], s;
    const unsigned char *bytes = x;
    memcpy(&s, x, sizeof s);
    const int8_t *stored = (const int8_t *)bytes + KV_Q4_FACTORS_AT;
    const int period = groups < WIDE ? WIDE : groups;
    for (int b = 0; b < period; b++) factors[b] = stored[b % groups];
    const unsigned char *codes = bytes + kv_q4_codes_at(n);
    for (int i = 0; i < n; i += KV_Q4_BLOCK) simd_look_up_halves(codes + i / 2, kv_q4_values, sums + i);
    if (groups % WIDE == 0)
        q4_transform_16(sums, groups);
    else
        q4_transform_8(sums, groups);
    const simd_f32 scale = simd_set1(s);
    for (int first = 0; first < n; first += period) {
        for (int b = 0; b < period; b += SIMD_LANES) {
            simd_f32 exact = simd_mul(simd_load_i16(sums + first + b), simd_load(factors + b));
            simd_store(out + first + b, simd_mul(scale, exact));
        }
    }
}

static void derive_key_q4(const void *v, const float *norm, int half, int pairs, const float *cosine, const float *sine,
                          float *out) {
    load_q4(v, 2 * half, out);
    multiply_by(norm, 2 * half, out);
    rope(out, half, pairs, cosine, sine);
}

#endif
