/* Attention of many float32 queries over all keys, for the vector tables.
 *
 * Lanes run along queries, which are transposed once. A key's or a value's numbers are taken one by one, so neither
 * scores nor maxima are reduced over lanes, and a head may have any width. ALL_KEYS keys and values at a time are
 * copied into L1. Each group of ALL_GROUP queries then computes their scores, weights and part of the output.
 *
 * Bound: the multiply-add rate, ALL_TOGETHER * ALL_VECTORS multiply-adds for ALL_TOGETHER + ALL_VECTORS loads; an
 * exponential costs what fourteen of them do. */
#ifndef KAKEYA_BACKEND_CPU_KERNELS_ATTEND_ALL_H
#define KAKEYA_BACKEND_CPU_KERNELS_ATTEND_ALL_H

#include "backend/cpu/kernels_vector.h"

enum {
    ALL_VECTORS = 3, /* of queries */
    ALL_GROUP = ALL_VECTORS * SIMD_LANES,
    ALL_TOGETHER = SIMD_REGISTERS == 32 ? 8 : 4, /* keys, or values of a row, that share a reading of the group */
    ALL_KEYS = 24,
};
_Static_assert((int)ALL_GROUP <= (int)ATTEND_ALL_MOST && (int)ALL_KEYS <= (int)ATTEND_ALL_MOST, "room in the scratch");

/* The group's queries, and what is known of them: [..][ALL_GROUP] each. */
typedef struct all_group {
    float *q;   /* [d] */
    float *out; /* [d] */
    float *m, *l;
    int d;
} all_group;

/* scores[j] = q . k[j] for n keys. */
SIMD_INLINE void all_scores(const int n, const all_group *g, const float *k, float *scores) {
    simd_f32 sums[ALL_TOGETHER][ALL_VECTORS];
    UNROLL for (int j = 0; j < n; j++) UNROLL for (int i = 0; i < ALL_VECTORS; i++) sums[j][i] = simd_zero();
    const float *q = g->q;
    for (int c = 0; c < g->d; c++, q += ALL_GROUP) {
        simd_f32 queries[ALL_VECTORS];
        UNROLL for (int i = 0; i < ALL_VECTORS; i++) queries[i] = simd_load(q + i * SIMD_LANES);
        UNROLL for (int j = 0; j < n; j++) {
            const simd_f32 key = simd_set1(k[j * g->d + c]);
            UNROLL for (int i = 0; i < ALL_VECTORS; i++) sums[j][i] = simd_fma(key, queries[i], sums[j][i]);
        }
    }
    UNROLL for (int j = 0; j < n; j++) {
        UNROLL for (int i = 0; i < ALL_VECTORS; i++) simd_store(scores + j * ALL_GROUP + i * SIMD_LANES, sums[j][i]);
    }
}

/* 2^x for x <= 0, 0 at -infinity: Taylor series of e^(f ln 2) through the sixth power, f = x - round(x); the rest is
 * below 2e-7. */
SIMD_INLINE simd_f32 all_power(simd_f32 x) {
    x = simd_max(simd_set1(-151.0f), x);
    const simd_f32 n = simd_round(x), f = simd_sub(x, n);
    simd_f32 p = simd_set1(0x1.430912p-13f); /* ln 2 ^ 6 / 6! */
    p = simd_fma(p, f, simd_set1(0x1.5d87fep-10f));
    p = simd_fma(p, f, simd_set1(0x1.3b2ab6p-7f));
    p = simd_fma(p, f, simd_set1(0x1.c6b08ep-5f));
    p = simd_fma(p, f, simd_set1(0x1.ebfbep-3f));
    p = simd_fma(p, f, simd_set1(0x1.62e43p-1f));
    return simd_scale2(simd_fma(p, f, simd_set1(1.0f)), n);
}

/* Scores to weights; factor: of what came before. */
static void all_weights(const all_group *g, int keys, float *scores, simd_f32 factor[ALL_VECTORS]) {
    UNROLL for (int i = 0; i < ALL_VECTORS; i++) {
        const int at = i * SIMD_LANES;
        const simd_f32 before = simd_load(g->m + at);
        simd_f32 top = before;
        for (int j = 0; j < keys; j++) top = simd_max(top, simd_load(scores + j * ALL_GROUP + at));
        factor[i] = all_power(simd_sub(before, top));
        simd_f32 sum = simd_mul(simd_load(g->l + at), factor[i]);
        for (int j = 0; j < keys; j++) {
            const simd_f32 p = all_power(simd_sub(simd_load(scores + j * ALL_GROUP + at), top));
            sum = simd_add(sum, p);
            simd_store(scores + j * ALL_GROUP + at, p);
        }
        simd_store(g->m + at, top);
        simd_store(g->l + at, sum);
    }
}

/* n values of each row from v on; out: theirs. */
SIMD_INLINE void all_values(const int n, int keys, const float *weights, const simd_f32 factor[ALL_VECTORS],
                            const float *v, size_t d, float *out) {
    simd_f32 sums[ALL_TOGETHER][ALL_VECTORS];
    UNROLL for (int c = 0; c < n; c++) {
        UNROLL for (int i = 0; i < ALL_VECTORS; i++) {
            sums[c][i] = simd_mul(simd_load(out + c * ALL_GROUP + i * SIMD_LANES), factor[i]);
        }
    }
    for (int j = 0; j < keys; j++, v += d, weights += ALL_GROUP) {
        simd_f32 p[ALL_VECTORS];
        UNROLL for (int i = 0; i < ALL_VECTORS; i++) p[i] = simd_load(weights + i * SIMD_LANES);
        UNROLL for (int c = 0; c < n; c++) {
            const simd_f32 value = simd_set1(v[c]);
            UNROLL for (int i = 0; i < ALL_VECTORS; i++) sums[c][i] = simd_fma(value, p[i], sums[c][i]);
        }
    }
    UNROLL for (int c = 0; c < n; c++) {
        UNROLL for (int i = 0; i < ALL_VECTORS; i++) simd_store(out + c * ALL_GROUP + i * SIMD_LANES, sums[c][i]);
    }
}

/* k, v: rows of d values, close together. */
static void all_block(const all_group *g, int keys, const float *k, const float *v) {
    float scores[ALL_KEYS * ALL_GROUP];
    simd_f32 factor[ALL_VECTORS];
    const size_t d = (size_t)g->d;
    int j = 0, c = 0;
    for (; j + ALL_TOGETHER <= keys; j += ALL_TOGETHER)
        all_scores(ALL_TOGETHER, g, k + (size_t)j * d, scores + j * ALL_GROUP);
    for (; j < keys; j++) all_scores(1, g, k + (size_t)j * d, scores + j * ALL_GROUP);
    all_weights(g, keys, scores, factor);
    for (; c + ALL_TOGETHER <= g->d; c += ALL_TOGETHER)
        all_values(ALL_TOGETHER, keys, scores, factor, v + c, d, g->out + c * ALL_GROUP);
    for (; c < g->d; c++) all_values(1, keys, scores, factor, v + c, d, g->out + c * ALL_GROUP);
}

static void attend_all(float *q, int rows, const float *k, const float *v, size_t ld, int keys, int d, float *scratch) {
    const size_t width = (size_t)d * ALL_GROUP, floats = 2 * width + 2 * ALL_GROUP, bytes = (size_t)d * sizeof *k;
    const float log2_e = 0x1.715476p+0f; /* so that powers of 2 are taken */
    float *const near_k = scratch, *const near_v = near_k + ALL_KEYS * (size_t)d;
    float *const groups = near_v + ALL_KEYS * (size_t)d;
    memset(groups, 0, floats * (size_t)((rows + ALL_GROUP - 1) / ALL_GROUP) * sizeof *groups);
    for (int r = 0; r < rows; r++) {
        float *group = groups + (size_t)(r / ALL_GROUP) * floats + r % ALL_GROUP;
        for (int c = 0; c < d; c++) group[c * ALL_GROUP] = q[(size_t)r * ld + (size_t)c] * log2_e;
    }
    for (int base = 0; base < keys; base += ALL_KEYS) {
        const int n = keys - base < ALL_KEYS ? keys - base : ALL_KEYS;
        for (int j = 0; j < n; j++) {
            const size_t from = (size_t)(base + j) * ld, to = (size_t)j * (size_t)d;
            memcpy(near_k + to, k + from, bytes);
            memcpy(near_v + to, v + from, bytes);
        }
        const int next = keys - base - n < ALL_KEYS ? keys - base - n : ALL_KEYS;
        for (int first = 0; first < rows; first += ALL_GROUP) {
            for (int j = first / ALL_GROUP; j < next; j += (rows + ALL_GROUP - 1) / ALL_GROUP) {
                const size_t from = (size_t)(base + n + j) * ld;
                for (size_t at = 0; at < bytes; at += 64) {
                    PREFETCH_L2((const char *)(k + from) + at);
                    PREFETCH_L2((const char *)(v + from) + at);
                }
            }
            float *room = groups + (size_t)(first / ALL_GROUP) * floats;
            const all_group g = {
                .q = room, .out = room + width, .m = room + 2 * width, .l = room + 2 * width + ALL_GROUP, .d = d};
            if (base == 0)
                for (int i = 0; i < ALL_GROUP; i++) g.m[i] = -INFINITY;
            all_block(&g, n, near_k, near_v);
        }
    }
    for (int r = 0; r < rows; r++) {
        const float *group = groups + (size_t)(r / ALL_GROUP) * floats + r % ALL_GROUP;
        const float *out = group + (size_t)d * ALL_GROUP, factor = 1.0f / out[(d + 1) * ALL_GROUP];
        for (int c = 0; c < d; c++) q[(size_t)r * ld + (size_t)c] = out[c * ALL_GROUP] * factor;
    }
}

#endif
