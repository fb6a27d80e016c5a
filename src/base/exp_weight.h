/* exp as an integer: the weight of a logit when a token is drawn. Made of single roundings and shifts only, so that
 * every processor gives the same bits, and sums of weights do not depend on their order: what is drawn is then the same
 * whoever adds. */
#ifndef KAKEYA_BASE_EXP_WEIGHT_H
#define KAKEYA_BASE_EXP_WEIGHT_H

#include <stdint.h>

#ifdef __CUDA_ARCH__ /* a compiler of device code joins products and sums unless told otherwise */
#define EXP_WEIGHT_ADD(a, b)      __fadd_rn(a, b)
#define EXP_WEIGHT_MULTIPLY(a, b) __fmul_rn(a, b)
#define EXP_WEIGHT_DIVIDE(a, b)   __fdiv_rn(a, b)
#else
#define EXP_WEIGHT_ADD(a, b)      ((a) + (b))
#define EXP_WEIGHT_MULTIPLY(a, b) ((a) * (b))
#define EXP_WEIGHT_DIVIDE(a, b)   ((a) / (b))
#endif
#ifdef __CUDACC__
#define EXP_WEIGHT_FUNCTION static __host__ __device__ inline
#else
#define EXP_WEIGHT_FUNCTION static inline
#endif

enum { EXP_WEIGHT_BITS = 40 }; /* of the largest weight, 2^40: sums of 2^23 of them fit into 64 bits */

/* exp_weight before it is rounded down to an integer, without a branch: loops over it can be vectorised. */
EXP_WEIGHT_FUNCTION float exp_weight_unrounded(float logit, float maximum, float temperature) {
    const float least = -28.5f; /* exp(-28.5) < 2^-41: nothing is left below */
    float x = EXP_WEIGHT_DIVIDE(EXP_WEIGHT_ADD(logit, -maximum), temperature);
    float bounded = x > least ? x : least;
    float y = EXP_WEIGHT_MULTIPLY(bounded, 1.44269504f); /* log2(e) */
    int n = (int)EXP_WEIGHT_ADD(y, -0.5f);               /* towards zero: the nearest integer of y <= 0 */
    float f = EXP_WEIGHT_ADD(y, -(float)n);              /* exact, in [-1/2, 1/2] */
    /* 2^f by its series: ln(2)^k / k! */
    float p = 1.5252734e-5f;
    p = EXP_WEIGHT_ADD(EXP_WEIGHT_MULTIPLY(p, f), 1.5403530e-4f);
    p = EXP_WEIGHT_ADD(EXP_WEIGHT_MULTIPLY(p, f), 1.3333558e-3f);
    p = EXP_WEIGHT_ADD(EXP_WEIGHT_MULTIPLY(p, f), 9.6181291e-3f);
    p = EXP_WEIGHT_ADD(EXP_WEIGHT_MULTIPLY(p, f), 5.5504109e-2f);
    p = EXP_WEIGHT_ADD(EXP_WEIGHT_MULTIPLY(p, f), 2.4022651e-1f);
    p = EXP_WEIGHT_ADD(EXP_WEIGHT_MULTIPLY(p, f), 6.9314718e-1f);
    p = EXP_WEIGHT_ADD(EXP_WEIGHT_MULTIPLY(p, f), 1.0f);
    union {
        float value;
        uint32_t bits;
    } scaled = {p}; /* p 2^(n + 40) by its exponent: at most 2^40, at least 2^-2 */
    scaled.bits += (uint32_t)(n + EXP_WEIGHT_BITS) << 23;
    return x > least ? scaled.value : 0.0f;
}

/* 2^40 exp((logit - maximum) / temperature), rounded down; logit <= maximum, both finite or logit -inf, temperature >
 * 0. Relative error 2e-6 at most, and what rounding takes. */
EXP_WEIGHT_FUNCTION uint64_t exp_weight(float logit, float maximum, float temperature) {
    return (uint64_t)(int64_t)exp_weight_unrounded(logit, maximum, temperature);
}

#endif
