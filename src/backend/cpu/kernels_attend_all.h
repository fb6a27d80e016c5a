/* Attention of many float32 queries over all keys, for the vector tables.
 *
 * Lanes run along queries, which are transposed once. A key's or a value's numbers are taken one by one, so neither
 * scores nor maxima are reduced over lanes, and a head may have any width. ALL_KEYS keys and values at a time stay in
 * L1 while each group of ALL_GROUP queries computes their scores, weights and part of the output.
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

/* The queries of a group, of which `rows` are there, transposed; the others are zero. */
static void all_load_queries(const all_group *g, int rows, const float *q, size_t ld) {
    const simd_f32 log2_e = simd_set1(0x1.715476p+0f); /* so that powers of 2 are taken */
    for (int first = 0; first < ALL_GROUP; first += SIMD_LANES) {
        for (int c = 0; c < g->d; c += SIMD_LANES) {
            const int n = g->d - c < SIMD_LANES ? g->d - c : SIMD_LANES;
            simd_f32 square[SIMD_LANES];
            for (int r = 0; r < SIMD_LANES; r++) {
                const float *in = q + (size_t)(first + r) * ld + (size_t)c;
                square[r] = first + r >= rows ? simd_zero() : n == SIMD_LANES ? simd_load(in) : simd_load_first(in, n);
            }
            simd_transpose(square);
            for (int i = 0; i < n; i++) simd_store(g->q + (c + i) * ALL_GROUP + first, simd_mul(square[i], log2_e));
        }
    }
}

/* What came out of a group, divided by the weights' sums, to where its queries were. */
static void all_store_rows(const all_group *g, int rows, float *q, size_t ld) {
    for (int first = 0; first < rows; first += SIMD_LANES) {
        const simd_f32 factor = simd_div(simd_set1(1.0f), simd_load(g->l + first));
        for (int c = 0; c < g->d; c += SIMD_LANES) {
            const int n = g->d - c < SIMD_LANES ? g->d - c : SIMD_LANES;
            simd_f32 square[SIMD_LANES];
            for (int i = 0; i < SIMD_LANES; i++) {
                const float *in = g->out + (c + i) * ALL_GROUP + first;
                square[i] = i < n ? simd_mul(simd_load(in), factor) : simd_zero();
            }
            simd_transpose(square);
            for (int r = 0; r < SIMD_LANES && first + r < rows; r++) {
                float *out = q + (size_t)(first + r) * ld + (size_t)c;
                if (n == SIMD_LANES)
                    simd_store(out, square[r]);
                else
                    simd_store_first(out, n, square[r]);
            }
        }
    }
}

static void attend_all(float *q, size_t ld, int rows, const float *k, const float *v, int keys, int d, float *scratch) {
    const size_t width = (size_t)d * ALL_GROUP, floats = 2 * width + 2 * ALL_GROUP;
    const int groups = (rows + ALL_GROUP - 1) / ALL_GROUP;
    for (int base = 0; base < keys; base += ALL_KEYS) {
        const int n = keys - base < ALL_KEYS ? keys - base : ALL_KEYS;
        const int next = keys - base - n < ALL_KEYS ? keys - base - n : ALL_KEYS;
        const size_t at = (size_t)base * (size_t)d, ahead = (size_t)(base + n) * (size_t)d;
        for (int i = 0; i < groups; i++) {
            const int first = i * ALL_GROUP, left = rows - first < ALL_GROUP ? rows - first : ALL_GROUP;
            float *room = scratch + (size_t)i * floats;
            const all_group g = {
                .q = room, .out = room + width, .m = room + 2 * width, .l = room + 2 * width + ALL_GROUP, .d = d};
            if (base == 0) {
                all_load_queries(&g, left, q + (size_t)first * ld, ld);
                memset(g.out, 0, width * sizeof *g.out);
                for (int r = 0; r < ALL_GROUP; r++) g.m[r] = -INFINITY, g.l[r] = 0;
            }
            for (size_t line = (size_t)i * 16; line < (size_t)next * (size_t)d; line += (size_t)groups * 16) {
                PREFETCH_L2(k + ahead + line);
                PREFETCH_L2(v + ahead + line);
            }
            all_block(&g, n, k + at, v + at);
            if (base + n == keys) all_store_rows(&g, left, q + (size_t)first * ld, ld);
        }
    }
}

#endif
