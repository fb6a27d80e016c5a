#include "backend/kv_q4.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

const int8_t kv_q4_values[KV_Q4_CODES] = {-127, -106, -82, -64, -48, -34, -21, -9, 3, 14, 26, 38, 51, 66, 85, 111};
const float kv_q4_middles[KV_Q4_CODES] = {-INFINITY, -116.5f, -94, -73, -56,   -41,   -27.5f, -15,
                                          -3,        8.5f,    20,  32,  44.5f, 58.5f, 75.5f,  98};
const float kv_q4_extremes[KV_Q4_EXTREMES] = {-134, -124, -114, 116, 105, 94};

int kv_q4_groups(int n) {
    int m = n & -n;
    return n / (m < KV_Q4_GROUP ? m : KV_Q4_GROUP);
}

size_t kv_q4_codes_at(int n) { return KV_Q4_FACTORS_AT + (size_t)kv_q4_groups(n); }

size_t kv_q4_bytes(int n) { return (kv_q4_codes_at(n) + (size_t)(n + 1) / 2 + 3) / 4 * 4; }

#define DEFINE_TRANSFORM(name, type)                                                                                   \
    static void name(type *x, int n, int groups) {                                                                     \
        for (int half = groups; half < n; half *= 2) {                                                                 \
            for (int i = 0; i < n; i += 2 * half) {                                                                    \
                type *a = x + i, *b = x + i + half;                                                                    \
                for (int j = 0; j < half; j++) {                                                                       \
                    type sum = a[j] + b[j], difference = a[j] - b[j];                                                  \
                    a[j] = sum;                                                                                        \
                    b[j] = difference;                                                                                 \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    }
DEFINE_TRANSFORM(transform_floats, float)
DEFINE_TRANSFORM(transform_integers, int32_t)

/* The code of the step that is nearest to t. */
static unsigned char code_of(float t) {
    int code = 0;
    for (int half = KV_Q4_CODES / 2; half; half /= 2) code += half * (t > kv_q4_middles[code + half]);
    return (unsigned char)code;
}

static void choose_scales(const float *y, int values, int groups, float *scales) {
    for (int b = 0; b < groups; b++) {
        float extreme = 0, best = -1;
        for (int a = 0; a < values; a++) {
            float value = y[a * groups + b];
            extreme = fabsf(value) > fabsf(extreme) ? value : extreme;
        }
        scales[b] = 0;
        for (int e = 0; e < KV_Q4_EXTREMES; e++) {
            float inverse = fabsf(extreme) > FLT_MIN ? kv_q4_extremes[e] / extreme : 0, products = 0, squares = 0;
            for (int a = 0; a < values; a++) {
                float value = kv_q4_values[code_of(y[a * groups + b] * inverse)];
                products += y[a * groups + b] * value;
                squares += value * value;
            }
            float gain = products * products / squares;
            if (gain > best) {
                best = gain;
                scales[b] = products / squares;
            }
        }
    }
}

static void choose_codes(const float *y, int values, int groups, const float *inverse, unsigned char *codes) {
    for (int a = 0; a < values; a++)
        for (int b = 0; b < groups; b++) codes[a * groups + b] = code_of(y[a * groups + b] * inverse[b]);
}

/* Where value i has its code, and in which half of the byte. */
static unsigned char *code_at(unsigned char *codes, int n, int i, int *shift) {
    int block = i / KV_Q4_BLOCK * KV_Q4_BLOCK, left = n - block < KV_Q4_BLOCK ? n - block : KV_Q4_BLOCK;
    int half = (left + 1) / 2, at = i - block;
    *shift = at < half ? 0 : 4;
    return codes + block / 2 + (at < half ? at : at - half);
}

/* Codes in the order of values, two in a byte. */
static void put_codes(const unsigned char *codes, int n, unsigned char *out) {
    int i = 0;
    for (; i + KV_Q4_BLOCK <= n; i += KV_Q4_BLOCK) {
        for (int j = 0; j < KV_Q4_BLOCK / 2; j++)
            out[i / 2 + j] = (unsigned char)(codes[i + j] | codes[i + KV_Q4_BLOCK / 2 + j] << 4);
    }
    for (; i < n; i++) {
        int shift;
        unsigned char *at = code_at(out, n, i, &shift);
        *at |= (unsigned char)(codes[i] << shift);
    }
}

/* The bits of the largest magnitude: in their order magnitudes are whole numbers, and what is not finite comes last. */
static float largest_of(const float *x, int n) {
    int32_t largest = 0;
    for (int i = 0; i < n; i++) {
        int32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits &= 0x7fffffff;
        largest = bits > largest ? bits : largest;
    }
    float magnitude;
    memcpy(&magnitude, &largest, sizeof magnitude);
    return magnitude;
}

void kv_q4_store_by(const kv_q4_search *search, const float *x, int n, void *out) {
    float y[KV_Q4_MAX_VALUES], scales[KV_Q4_MAX_VALUES], inverse[KV_Q4_MAX_VALUES], widest = 0;
    unsigned char codes[KV_Q4_MAX_VALUES], *bytes = out;
    int groups = kv_q4_groups(n), values = n / groups;
    memset(out, 0, kv_q4_bytes(n));
    const float largest = largest_of(x, n);
    bool finite = largest <= FLT_MAX;
    float s = finite ? 0 : NAN;
    memcpy(out, &s, sizeof s);
    if (!finite || largest < 0x1p-100f) return;
    int exponent; /* near 1, so that squares are numbers */
    (void)frexpf(largest, &exponent);
    const float power = ldexpf(1, -exponent), share = 1 / (float)values;
    for (int i = 0; i < n; i++) y[i] = x[i] * power * share;
    transform_floats(y, n, groups);
    search->scales(y, values, groups, scales);
    for (int b = 0; b < groups; b++) widest = fmaxf(widest, fabsf(scales[b]));
    const float near = widest / KV_Q4_LARGEST;
    s = ldexpf(near, exponent);
    const float most = FLT_MAX / (KV_Q4_LARGEST * KV_Q4_LARGEST * KV_Q4_GROUP); /* what is finite stays finite */
    if (s > most) s = most;
    memcpy(out, &s, sizeof s);
    for (int b = 0; b < groups; b++) {
        float factor = near > 0 ? rintf(scales[b] / near) : 0;
        factor = fmaxf(-KV_Q4_LARGEST, fminf(KV_Q4_LARGEST, factor));
        bytes[KV_Q4_FACTORS_AT + b] = (unsigned char)(int8_t)factor;
        inverse[b] = fabsf(factor) > 0 ? 1 / (near * factor) : 0;
    }
    search->codes(y, values, groups, inverse, codes);
    put_codes(codes, n, bytes + kv_q4_codes_at(n));
}

void kv_q4_store(const float *x, int n, void *out) {
    static const kv_q4_search plainly = {choose_scales, choose_codes};
    kv_q4_store_by(&plainly, x, n, out);
}

void kv_q4_load(const void *x, int n, float *out) {
    int32_t sums[KV_Q4_MAX_VALUES];
    unsigned char codes[KV_Q4_MAX_VALUES / 2 + KV_Q4_BLOCK];
    int groups = kv_q4_groups(n);
    float s;
    memcpy(&s, x, sizeof s);
    memcpy(codes, (const unsigned char *)x + kv_q4_codes_at(n), (size_t)(n + 1) / 2);
    for (int i = 0; i < n; i++) {
        int shift;
        const unsigned char *at = code_at(codes, n, i, &shift);
        sums[i] = kv_q4_values[*at >> shift & 15];
    }
    transform_integers(sums, n, groups);
    const int8_t *factors = (const int8_t *)x + KV_Q4_FACTORS_AT;
    for (int i = 0; i < n; i++) out[i] = (float)sums[i] * (s * (float)factors[i % groups]);
}
