#include "measure/kv_q4.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* The steps that leave the least squared error of 16 normal numbers with a scale of their own, of either sign. */
static const int8_t kv_q4_values[16] = {-127, -106, -82, -64, -48, -34, -21, -9, 3, 14, 26, 38, 51, 66, 85, 111};

/* Where a group's extreme value comes to lie; the best of these is taken. */
static const float extremes[] = {-134, -124, -114, 116, 105, 94};

enum { CODES = 16, EXTREMES = sizeof extremes / sizeof extremes[0], TOGETHER = 32 };

int kv_q4_groups(int n) {
    int m = n & -n;
    return n / (m < KV_Q4_GROUP ? m : KV_Q4_GROUP);
}

static size_t codes_at(int n) { return KV_Q4_FACTORS_AT + (size_t)kv_q4_groups(n); }

size_t kv_q4_bytes(int n) { return (codes_at(n) + (size_t)(n + 1) / 2 + 3) / 4 * 4; }

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

/* Up to TOGETHER groups that lie side by side: value a of group b is y[a * stride + b]. */
typedef struct q4_groups {
    const float *y;
    int n, values, stride;
} q4_groups;

/* codes [values][TOGETHER] of y times a factor for each group, and sums of products that say how near they are. */
static void choose_codes(const q4_groups *g, const float *inverse, float *codes, float *products, float *squares) {
    for (int b = 0; b < g->n; b++) products[b] = squares[b] = 0;
    for (int a = 0; a < g->values; a++) {
        const float *y = g->y + (size_t)a * (size_t)g->stride;
        float *code = codes + (size_t)a * TOGETHER, value[TOGETHER];
        for (int b = 0; b < g->n; b++) {
            code[b] = 0;
            value[b] = (float)kv_q4_values[0];
        }
        for (int c = 1; c < CODES; c++) {
            const float below = (float)kv_q4_values[c - 1], above = (float)kv_q4_values[c],
                        middle = 0.5f * (below + above);
            for (int b = 0; b < g->n; b++) {
                bool passes = y[b] * inverse[b] > middle;
                code[b] = passes ? (float)c : code[b];
                value[b] = passes ? above : value[b];
            }
        }
        for (int b = 0; b < g->n; b++) {
            products[b] += y[b] * value[b];
            squares[b] += value[b] * value[b];
        }
    }
}

/* The scale of each group that leaves the least error among the ways to place its extreme value. */
static void choose_scales(const q4_groups *g, float *scales) {
    float extreme[TOGETHER], best[TOGETHER], inverse[TOGETHER], products[TOGETHER], squares[TOGETHER];
    float codes[KV_Q4_GROUP * TOGETHER];
    for (int b = 0; b < g->n; b++) {
        extreme[b] = scales[b] = 0;
        best[b] = -1;
    }
    for (int a = 0; a < g->values; a++) {
        const float *y = g->y + (size_t)a * (size_t)g->stride;
        for (int b = 0; b < g->n; b++) extreme[b] = fabsf(y[b]) > fabsf(extreme[b]) ? y[b] : extreme[b];
    }
    for (int e = 0; e < EXTREMES; e++) {
        for (int b = 0; b < g->n; b++) inverse[b] = fabsf(extreme[b]) > FLT_MIN ? extremes[e] / extreme[b] : 0;
        choose_codes(g, inverse, codes, products, squares);
        for (int b = 0; b < g->n; b++) {
            float gain = products[b] * products[b] / squares[b];
            bool better = gain > best[b];
            best[b] = better ? gain : best[b];
            scales[b] = better ? products[b] / squares[b] : scales[b];
        }
    }
}

/* Where value i has its code, and in which half of the byte. */
static unsigned char *code_at(unsigned char *codes, int n, int i, int *shift) {
    int block = i / KV_Q4_BLOCK * KV_Q4_BLOCK, left = n - block < KV_Q4_BLOCK ? n - block : KV_Q4_BLOCK;
    int half = (left + 1) / 2, at = i - block;
    *shift = at < half ? 0 : 4;
    return codes + block / 2 + (at < half ? at : at - half);
}

void kv_q4_store(const float *x, int n, void *out) {
    float y[KV_Q4_MAX_VALUES], scales[KV_Q4_MAX_VALUES], largest = 0, widest = 0;
    unsigned char *bytes = out, *stored = bytes + codes_at(n);
    int groups = kv_q4_groups(n), values = n / groups;
    bool finite = true;
    memset(out, 0, kv_q4_bytes(n));
    for (int i = 0; i < n; i++) {
        finite &= fabsf(x[i]) <= FLT_MAX;
        largest = fmaxf(largest, fabsf(x[i]));
    }
    float s = finite ? 0 : NAN;
    memcpy(out, &s, sizeof s);
    if (!finite || largest < 0x1p-100f) return;
    int exponent; /* near 1, so that squares are numbers */
    (void)frexpf(largest, &exponent);
    for (int i = 0; i < n; i++) y[i] = ldexpf(x[i], -exponent) / (float)values;
    transform_floats(y, n, groups);
    for (int first = 0; first < groups; first += TOGETHER) {
        int together = groups - first < TOGETHER ? groups - first : TOGETHER;
        choose_scales(&(q4_groups){y + first, together, values, groups}, scales + first);
    }
    for (int b = 0; b < groups; b++) widest = fmaxf(widest, fabsf(scales[b]));
    const float near = widest / KV_Q4_LARGEST;
    s = ldexpf(near, exponent);
    const float most = FLT_MAX / (KV_Q4_LARGEST * KV_Q4_LARGEST * KV_Q4_GROUP); /* what is finite stays finite */
    if (s > most) s = most;
    memcpy(out, &s, sizeof s);
    for (int first = 0; first < groups; first += TOGETHER) {
        int together = groups - first < TOGETHER ? groups - first : TOGETHER;
        float inverse[TOGETHER], codes[KV_Q4_GROUP * TOGETHER], products[TOGETHER], squares[TOGETHER];
        for (int b = 0; b < together; b++) {
            float factor = near > 0 ? rintf(scales[first + b] / near) : 0;
            factor = fmaxf(-KV_Q4_LARGEST, fminf(KV_Q4_LARGEST, factor));
            bytes[KV_Q4_FACTORS_AT + (size_t)(first + b)] = (unsigned char)(int8_t)factor;
            inverse[b] = fabsf(factor) > 0 ? 1 / (near * factor) : 0;
        }
        choose_codes(&(q4_groups){y + first, together, values, groups}, inverse, codes, products, squares);
        for (int a = 0; a < values; a++) {
            for (int b = 0; b < together; b++) {
                int shift;
                unsigned char *at = code_at(stored, n, a * groups + first + b, &shift);
                *at |= (unsigned char)((unsigned)codes[a * TOGETHER + b] << shift);
            }
        }
    }
}

void kv_q4_load(const void *x, int n, float *out) {
    int32_t sums[KV_Q4_MAX_VALUES];
    unsigned char codes[KV_Q4_MAX_VALUES / 2 + KV_Q4_BLOCK];
    int groups = kv_q4_groups(n);
    float s;
    memcpy(&s, x, sizeof s);
    memcpy(codes, (const unsigned char *)x + codes_at(n), (size_t)(n + 1) / 2);
    for (int i = 0; i < n; i++) {
        int shift;
        const unsigned char *at = code_at(codes, n, i, &shift);
        sums[i] = kv_q4_values[*at >> shift & 15];
    }
    transform_integers(sums, n, groups);
    const int8_t *factors = (const int8_t *)x + KV_Q4_FACTORS_AT;
    for (int i = 0; i < n; i++) out[i] = s * (float)(sums[i] * factors[i % groups]);
}
