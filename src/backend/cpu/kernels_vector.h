/* Elementwise functions, norms and probes of the vector tables, written once against a simd_*.h vocabulary.
 * Elementwise functions treat the last few elements with masked loads and the same operations, so an element's result
 * does not depend on its place. */
#ifndef KAKEYA_BACKEND_CPU_KERNELS_VECTOR_H
#define KAKEYA_BACKEND_CPU_KERNELS_VECTOR_H

#include <math.h>

#include "backend/cpu/kernels_matmul.h"

/* --- functions -------------------------------------------------------------------------------------------------- */

/* x = n ln 2 + f with whole n and |f| <= ln 2 / 2; returns e^f - 1. Taylor series through f^7 / 7!: the rest is below
 * 6e-9 of e^f. */
SIMD_INLINE simd_f32 exp_reduced_minus_1(simd_f32 x, simd_f32 *n) {
    const simd_f32 log2_e = simd_set1(0x1.715476p+0f);
    /* ln 2 in two parts, the first short enough for n * part to be exact. */
    const simd_f32 minus_ln2_high = simd_set1(-0x1.62e4p-1f), minus_ln2_low = simd_set1(-0x1.7f7d1cp-20f);
    *n = simd_round(simd_mul(x, log2_e));
    simd_f32 f = simd_fma(*n, minus_ln2_low, simd_fma(*n, minus_ln2_high, x));
    simd_f32 p = simd_set1(1.0f / 5040);
    p = simd_fma(p, f, simd_set1(1.0f / 720));
    p = simd_fma(p, f, simd_set1(1.0f / 120));
    p = simd_fma(p, f, simd_set1(1.0f / 24));
    p = simd_fma(p, f, simd_set1(1.0f / 6));
    p = simd_fma(p, f, simd_set1(1.0f / 2));
    return simd_fma(simd_mul(f, f), p, f);
}

/* Relative error below 2e-7 (results below 2^-126 within one subnormal unit); 1 at 0, 0 at -infinity, NaN at NaN. */
SIMD_INLINE simd_f32 simd_exp(simd_f32 x) {
    /* Beyond these bounds the result is 0 or infinity. */
    x = simd_min(simd_set1(89.0f), simd_max(simd_set1(-105.0f), x));
    simd_f32 n;
    simd_f32 e = exp_reduced_minus_1(x, &n);
    return simd_scale2(simd_add(e, simd_set1(1.0f)), n);
}

/* tanh |x| = -d / (2 + d) with d = e^(-2 |x|) - 1, which keeps the relative error small near 0 as well. */
SIMD_INLINE simd_f32 simd_tanh(simd_f32 x) {
    simd_f32 z = simd_max(simd_set1(-40.0f), simd_mul(simd_abs(x), simd_set1(-2.0f)));
    simd_f32 n;
    simd_f32 e = exp_reduced_minus_1(z, &n);
    simd_f32 power = simd_scale2(simd_set1(1.0f), n);
    simd_f32 d = simd_fma(e, power, simd_sub(power, simd_set1(1.0f)));
    return simd_with_sign(simd_abs(simd_div(d, simd_add(d, simd_set1(2.0f)))), x);
}

/* z / (1 + e^-x): z * logistic(x). */
SIMD_INLINE simd_f32 times_logistic(simd_f32 z, simd_f32 x) {
    return simd_div(z, simd_add(simd_set1(1.0f), simd_exp(simd_sub(simd_zero(), x))));
}

SIMD_INLINE simd_f32 simd_silu(simd_f32 z) { return times_logistic(z, z); }

/* 0.5 z (1 + tanh u) = z * logistic(2 u), u = sqrt(2 / pi) (z + 0.044715 z^3). */
SIMD_INLINE simd_f32 simd_gelu_tanh(simd_f32 z) {
    const simd_f32 linear = simd_set1(1.5957691216057308f), cubic = simd_set1(0.071354816272f);
    simd_f32 twice_u = simd_mul(z, simd_fma(simd_mul(z, z), cubic, linear));
    return times_logistic(z, twice_u);
}

/* Stored values that begin at `p`, a vector of registers' width or its first n; codes without their scale. */
SIMD_INLINE simd_f32 load_kv(kv_format format, const unsigned char *p) {
    return format == KV_FORMAT_F32 ? simd_load(p) : format == KV_FORMAT_Q8 ? simd_load_i8(p) : simd_load_bf16(p);
}
SIMD_INLINE simd_f32 load_kv_first(kv_format format, const unsigned char *p, int n) {
    return format == KV_FORMAT_F32  ? simd_load_first(p, n)
           : format == KV_FORMAT_Q8 ? simd_load_i8_first(p, n)
                                    : simd_load_bf16_first(p, n);
}
SIMD_INLINE size_t kv_value_bytes(kv_format format) {
    return format == KV_FORMAT_F32 ? sizeof(float) : format == KV_FORMAT_Q8 ? 1 : sizeof(uint16_t);
}
/* Where the values of a stored row begin. */
SIMD_INLINE size_t kv_values_at(kv_format format) { return format == KV_FORMAT_Q8 ? KV_Q8_CODES_AT : 0; }

/* --- elementwise ------------------------------------------------------------------------------------------------ */

/* Runs `full` for whole vectors and `rest` for the last n - i elements. */
#define FOR_VECTORS(i, n, full, rest)                                                                                  \
    do {                                                                                                               \
        int i = 0;                                                                                                     \
        for (; i + SIMD_LANES <= (n); i += SIMD_LANES) full;                                                           \
        if (i < (n)) rest;                                                                                             \
    } while (0)

static void gated(int activation, const float *gate, const float *up, int n, float *out) {
    if (activation == 0) {
        FOR_VECTORS(i, n, simd_store(out + i, simd_mul(simd_gelu_tanh(simd_load(gate + i)), simd_load(up + i))),
                    simd_store_first(
                        out + i, n - i,
                        simd_mul(simd_gelu_tanh(simd_load_first(gate + i, n - i)), simd_load_first(up + i, n - i))));
    } else {
        FOR_VECTORS(
            i, n, simd_store(out + i, simd_mul(simd_silu(simd_load(gate + i)), simd_load(up + i))),
            simd_store_first(out + i, n - i,
                             simd_mul(simd_silu(simd_load_first(gate + i, n - i)), simd_load_first(up + i, n - i))));
    }
}

SIMD_INLINE void rotate(simd_f32 *a, simd_f32 *b, simd_f32 cosine, simd_f32 sine) {
    simd_f32 rotated = simd_sub(simd_mul(*a, cosine), simd_mul(*b, sine));
    *b = simd_add(simd_mul(*b, cosine), simd_mul(*a, sine));
    *a = rotated;
}

static void rope(float *x, int half, int pairs, const float *cosine, const float *sine) {
    for (int i = 0; i < pairs; i += SIMD_LANES) {
        int n = pairs - i < SIMD_LANES ? pairs - i : SIMD_LANES;
        simd_f32 a = simd_load_first(x + i, n), b = simd_load_first(x + half + i, n);
        rotate(&a, &b, simd_load_first(cosine + i, n), simd_load_first(sine + i, n));
        simd_store_first(x + i, n, a);
        simd_store_first(x + half + i, n, b);
    }
}

static void axpy(float a, const float *x, int n, float *y) {
    simd_f32 factor = simd_set1(a);
    FOR_VECTORS(
        i, n, simd_store(y + i, simd_fma(factor, simd_load(x + i), simd_load(y + i))),
        simd_store_first(y + i, n - i, simd_fma(factor, simd_load_first(x + i, n - i), simd_load_first(y + i, n - i))));
}

static void multiply_by(const float *w, int n, float *y) {
    FOR_VECTORS(i, n, simd_store(y + i, simd_mul(simd_load(y + i), simd_load(w + i))),
                simd_store_first(y + i, n - i, simd_mul(simd_load_first(y + i, n - i), simd_load_first(w + i, n - i))));
}

static void scale(float a, int n, float *y) {
    simd_f32 factor = simd_set1(a);
    FOR_VECTORS(i, n, simd_store(y + i, simd_mul(simd_load(y + i), factor)),
                simd_store_first(y + i, n - i, simd_mul(simd_load_first(y + i, n - i), factor)));
}

static void soft_cap(float cap, int n, float *y) {
    simd_f32 limit = simd_set1(cap);
    FOR_VECTORS(
        i, n, simd_store(y + i, simd_mul(limit, simd_tanh(simd_div(simd_load(y + i), limit)))),
        simd_store_first(y + i, n - i, simd_mul(limit, simd_tanh(simd_div(simd_load_first(y + i, n - i), limit)))));
}

static float maximum(const float *x, int n) {
    simd_f32 top = simd_set1(-INFINITY),
             zero = simd_zero(); /* zero turns NaN with the first value that is not finite */
    FOR_VECTORS(
        i, n,
        {
            simd_f32 value = simd_load(x + i);
            top = simd_max(top, value);
            zero = simd_fma(value, simd_zero(), zero);
        },
        {
            simd_f32 value = simd_select_range(simd_load_first(x + i, n - i), top, 0, n - i);
            zero = simd_fma(simd_load_first(x + i, n - i), simd_zero(), zero);
            top = simd_max(top, value);
        });
    return simd_max_lane(top) + simd_sum(zero);
}

static int first_at_least(const float *x, int n, float bound) {
    enum { STRETCH = 16 * SIMD_LANES };
    int begin = 0;
    for (; begin + STRETCH <= n; begin += STRETCH) {
        simd_f32 top = simd_load(x + begin);
        for (int i = SIMD_LANES; i < STRETCH; i += SIMD_LANES) top = simd_max(top, simd_load(x + begin + i));
        if (simd_max_lane(top) >= bound) break;
    }
    while (begin < n && !(x[begin] >= bound)) begin++;
    return begin;
}

/* --- stored values ---------------------------------------------------------------------------------------------- */

static void store_f32(const float *x, int n, void *out) { memmove(out, x, (size_t)n * sizeof *x); }

static void store_bf16(const float *x, int n, void *out) {
    uint16_t *values = out;
    FOR_VECTORS(i, n, simd_store_bf16(values + i, simd_load(x + i)),
                simd_store_bf16_first(values + i, n - i, simd_load_first(x + i, n - i)));
}

static void load_f32(const void *x, int n, float *out) { memmove(out, x, (size_t)n * sizeof *out); }

static void load_f16(const void *x, int n, float *out) {
    const uint16_t *values = x;
    FOR_VECTORS(i, n, simd_store(out + i, simd_load_f16(values + i)),
                simd_store_first(out + i, n - i, simd_load_f16_first(values + i, n - i)));
}

static void load_bf16(const void *x, int n, float *out) {
    const uint16_t *values = x;
    FOR_VECTORS(i, n, simd_store(out + i, simd_load_bf16(values + i)),
                simd_store_first(out + i, n - i, simd_load_bf16_first(values + i, n - i)));
}

#define DEFINE_LOAD_WEIGHTS(format, bytes)                                                                             \
    static void load_weights_##format(const weight *w, int row, int begin, int n, float *out) {                        \
        load_##format((const char *)weight_row(w, 0, row) + (size_t)begin * (bytes), n, out);                          \
    }
DEFINE_LOAD_WEIGHTS(f32, 4)
DEFINE_LOAD_WEIGHTS(f16, 2)
DEFINE_LOAD_WEIGHTS(bf16, 2)

/* Values as they were stored: codes with their scale. */
SIMD_INLINE simd_f32 load_scaled(kv_format format, const unsigned char *p, simd_f32 scale) {
    simd_f32 values = load_kv(format, p);
    return format == KV_FORMAT_Q8 ? simd_mul(scale, values) : values;
}

SIMD_INLINE void derive_key(kv_format format, const unsigned char *stored, const float *norm, int half, int pairs,
                            const float *cosine, const float *sine, float *out) {
    const size_t bytes = kv_value_bytes(format);
    const unsigned char *v = stored + kv_values_at(format);
    simd_f32 scale = simd_zero();
    if (format == KV_FORMAT_Q8) {
        float own;
        memcpy(&own, stored, sizeof own);
        scale = simd_set1(own);
    }
    const unsigned char *upper = v + (size_t)half * bytes;
    int i = 0;
    if (half % SIMD_LANES == 0) {
        for (; i + SIMD_LANES <= pairs; i += SIMD_LANES) {
            simd_f32 a = simd_mul(load_scaled(format, v + (size_t)i * bytes, scale), simd_load(norm + i));
            simd_f32 b = simd_mul(load_scaled(format, upper + (size_t)i * bytes, scale), simd_load(norm + half + i));
            rotate(&a, &b, simd_load(cosine + i), simd_load(sine + i));
            simd_store(out + i, a);
            simd_store(out + half + i, b);
        }
        if (i == pairs) {
            for (; i < half; i += SIMD_LANES) {
                simd_store(out + i, simd_mul(load_scaled(format, v + (size_t)i * bytes, scale), simd_load(norm + i)));
                simd_store(out + half + i,
                           simd_mul(load_scaled(format, upper + (size_t)i * bytes, scale), simd_load(norm + half + i)));
            }
            return;
        }
    }
    if (format == KV_FORMAT_F32)
        load_f32(stored, 2 * half, out);
    else if (format == KV_FORMAT_Q8)
        kv_q8_load(stored, 2 * half, out);
    else
        load_bf16(stored, 2 * half, out);
    multiply_by(norm, 2 * half, out);
    rope(out, half, pairs, cosine, sine);
}

#define DEFINE_DERIVE_KEY(name, format)                                                                                \
    static void derive_key_##name(const void *v, const float *norm, int half, int pairs, const float *cosine,          \
                                  const float *sine, float *out) {                                                     \
        derive_key(format, v, norm, half, pairs, cosine, sine, out);                                                   \
    }
DEFINE_DERIVE_KEY(f32, KV_FORMAT_F32)
DEFINE_DERIVE_KEY(bf16, KV_FORMAT_BF16)
DEFINE_DERIVE_KEY(q8, KV_FORMAT_Q8)

/* --- norms ------------------------------------------------------------------------------------------------------ */

/* Four accumulators take whole vectors in turn, the rest goes to the first: an order that depends on n alone. */
static float rms_scale(const float *x, int n, float eps) {
    simd_f32 sums[4] = {simd_zero(), simd_zero(), simd_zero(), simd_zero()};
    int i = 0;
    for (; i + 4 * SIMD_LANES <= n; i += 4 * SIMD_LANES) {
        UNROLL for (int j = 0; j < 4; j++) {
            simd_f32 value = simd_load(x + i + j * SIMD_LANES);
            sums[j] = simd_fma(value, value, sums[j]);
        }
    }
    for (; i < n; i += SIMD_LANES) {
        simd_f32 value = simd_load_first(x + i, n - i < SIMD_LANES ? n - i : SIMD_LANES);
        sums[0] = simd_fma(value, value, sums[0]);
    }
    float sum = simd_sum(simd_add(simd_add(sums[0], sums[1]), simd_add(sums[2], sums[3])));
    return 1.0f / sqrtf(sum / (float)n + eps);
}

static void rms_norm(const float *x, const float *w, int n, float eps, float *out) {
    simd_f32 factor = simd_set1(rms_scale(x, n, eps));
    if (w) {
        FOR_VECTORS(
            i, n, simd_store(out + i, simd_mul(simd_mul(simd_load(x + i), factor), simd_load(w + i))),
            simd_store_first(out + i, n - i,
                             simd_mul(simd_mul(simd_load_first(x + i, n - i), factor), simd_load_first(w + i, n - i))));
    } else {
        FOR_VECTORS(i, n, simd_store(out + i, simd_mul(simd_load(x + i), factor)),
                    simd_store_first(out + i, n - i, simd_mul(simd_load_first(x + i, n - i), factor)));
    }
}

/* --- probes ----------------------------------------------------------------------------------------------------- */

static float probe_read(const void *data, size_t bytes) {
    const unsigned char *p = data;
    simd_pairs sums[8];
    UNROLL for (int j = 0; j < 8; j++) sums[j] = simd_pairs_load(p);
    for (size_t i = 0; i < bytes; i += 8 * sizeof(simd_pairs)) {
        UNROLL for (int j = 0; j < 8; j++) sums[j] =
            simd_pairs_xor(sums[j], simd_pairs_load(p + i + (size_t)j * sizeof *sums));
    }
    UNROLL for (int j = 1; j < 8; j++) sums[0] = simd_pairs_xor(sums[0], sums[j]);
    return simd_sum(simd_pairs_even(sums[0]));
}

/* Rounding activations to bf16 changes nothing here: they are multiplied as float32 still. */
static double probe_flops(bool round_to_bf16, size_t iterations) {
    enum { CHAINS = 12 }; /* latency times rate of the instruction, and some more */
    (void)round_to_bf16;
    volatile float source = 0.0f;
    simd_f32 sums[CHAINS];
    UNROLL for (int j = 0; j < CHAINS; j++) sums[j] = simd_set1(source);
    simd_f32 x = simd_set1(source);
    for (size_t i = 0; i < iterations; i++) {
        UNROLL for (int j = 0; j < CHAINS; j++) sums[j] = simd_fma(sums[j], x, x);
    }
    UNROLL for (int j = 1; j < CHAINS; j++) sums[0] = simd_add(sums[0], sums[j]);
    source = simd_sum(sums[0]);
    return (double)(2 * SIMD_LANES * CHAINS) * (double)iterations;
}

#endif
