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

#define Q4_PLUS  1, 1, 1, 1, 1, 1, 1, 1
#define Q4_MINUS -1, -1, -1, -1, -1, -1, -1, -1
static const int16_t q4_signs_8[32] = {Q4_PLUS, Q4_MINUS, Q4_PLUS, Q4_MINUS};
static const int16_t q4_signs_16[32] = {Q4_PLUS, Q4_PLUS, Q4_MINUS, Q4_MINUS};

/* partner + x where lanes are the lower half of a butterfly at distance `apart`, partner - x where they are the upper.
 */
SIMD_INLINE simd_i16 q4_fold(simd_i16 x, const int apart) {
    simd_i16 partner = apart == 8 ? SIMD_I16_SWAP(x, 8) : SIMD_I16_SWAP(x, 16), sign;
    memcpy(&sign, apart == 8 ? q4_signs_8 : q4_signs_16, sizeof sign);
    return x * sign + partner;
}

/* In whole numbers of 16 bits, which hold sums of 16 steps. A vector is a part of a row of groups, or some rows. */
SIMD_INLINE void q4_load_values(const unsigned char *bytes, const int n, float *out) {
    const int groups = n / KV_Q4_GROUP, lanes = SIMD_I16_LANES, period = groups < lanes ? lanes : groups,
              vectors = n / period;
    const int8_t *stored = (const int8_t *)bytes + KV_Q4_FACTORS_AT;
    const unsigned char *codes = bytes + KV_Q4_FACTORS_AT + groups;
    float factors[2 * KV_Q4_BLOCK], scale;
    memcpy(&scale, bytes, sizeof scale);
    for (int b = 0; b < groups; b += SIMD_LANES) { /* codes may be read with the last ones */
        simd_store(factors + b, simd_mul(simd_set1(scale), simd_load_i8(stored + b)));
    }
    UNROLL for (int b = groups; b < period; b += groups) memcpy(factors + b, factors, sizeof(float) * (size_t)groups);
    for (int first = 0; first < period; first += lanes) {
        simd_i16 x[KV_Q4_GROUP];
        UNROLL for (int v = 0; v < vectors; v++) x[v] = simd_look_up_halves(codes, v * period + first, kv_q4_values);
        UNROLL for (int apart = groups; apart < lanes; apart *= 2) {
            UNROLL for (int v = 0; v < vectors; v++) x[v] = q4_fold(x[v], apart);
        }
        UNROLL for (int half = 1; half < vectors; half *= 2) {
            UNROLL for (int v = 0; v < vectors; v++) {
                if (v & half) continue;
                simd_i16 sum = x[v] + x[v + half], difference = x[v] - x[v + half];
                x[v] = sum;
                x[v + half] = difference;
            }
        }
        UNROLL for (int v = 0; v < vectors; v++) {
            simd_store_products(x[v], factors + first, out + v * period + first);
        }
    }
}

static void load_q4(const void *x, int n, float *out) {
    switch (n) { /* the heads of models */
    case 128:
        q4_load_values(x, 128, out);
        break;
    case 256:
        q4_load_values(x, 256, out);
        break;
    case 512:
        q4_load_values(x, 512, out);
        break;
    default:
        kv_q4_load(x, n, out);
    }
}

static void derive_key_q4(const void *v, const float *norm, int half, int pairs, const float *cosine, const float *sine,
                          float *out) {
    load_q4(v, 2 * half, out);
    multiply_by(norm, 2 * half, out);
    rope(out, half, pairs, cosine, sine);
}

#endif
