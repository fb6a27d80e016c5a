/* Operands for the tests of the kernel tables, and comparisons that name table and element. */
#ifndef KAKEYA_TESTS_KERNEL_OPERANDS_H
#define KAKEYA_TESTS_KERNEL_OPERANDS_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cpu/kernels.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

/* splitmix64, mapped to a roughly normal distribution (sum of four uniforms) with standard deviation `scale`. */
static inline float random_value(uint64_t *state, float scale) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    double sum = 0;
    for (int i = 0; i < 4; i++) sum += (double)((z >> (16 * i)) & 0xffff) / 65536.0 - 0.5;
    return (float)(sum * sqrt(3.0)) * scale;
}

static inline float *random_floats(size_t n, uint64_t seed, float scale) {
    float *x = malloc((n ? n : 1) * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++) x[i] = random_value(&seed, scale);
    return x;
}

static inline float element(dtype type, const void *data, size_t i) {
    uint16_t half;
    float value;
    if (type == DTYPE_F32) {
        memcpy(&value, (const char *)data + 4 * i, 4);
        return value;
    }
    memcpy(&half, (const char *)data + 2 * i, 2);
    return type == DTYPE_BF16 ? bf16_to_f32(half) : f16_to_f32(half);
}

static inline void *aligned(size_t bytes) {
    void *p = aligned_alloc(64, (bytes + 64) / 64 * 64);
    assert_non_null(p);
    return p;
}

/* `n` random weights of a type, at a distance of one element from an aligned address. *allocation is to be freed. */
static inline void *random_weights(dtype type, size_t n, uint64_t seed, void **allocation) {
    float *values = random_floats(n, seed, 0.05f);
    *allocation = aligned((n + 1) * dtype_bytes(type));
    void *w = (char *)*allocation + dtype_bytes(type);
    cpu_kernels_find("scalar")->store(type, values, (int)n, w);
    free(values);
    return w;
}

static inline void *packed_operand(const cpu_kernels *kernels, dtype type, bool rounded, const float *x, size_t ldx,
                                   int rows, int k) {
    size_t row_bytes = kernels->pack_row_bytes(type, rounded, k);
    assert_int_equal(row_bytes % 64, 0);
    void *packed = aligned(row_bytes * (size_t)rows);
    kernels->pack_rows(type, rounded, x, ldx, rows, k, packed);
    return packed;
}

static inline void check_near(const char *what, const char *table, long place, double got, double want, double bound) {
    if (!(fabs(got - want) <= bound))
        fail_msg("%s, table %s, element %ld: %.9g instead of %.9g (bound %.3g)", what, table, place, got, want, bound);
}

static inline void check_same_bits(const char *what, const char *table, long place, float got, float want) {
    if (memcmp(&got, &want, sizeof got) != 0)
        fail_msg("%s, table %s, element %ld: %.9g and %.9g differ in bits", what, table, place, (double)got,
                 (double)want);
}

#define FOR_TABLES(kernels)                                                                                            \
    for (const char *const *name_ = cpu_kernels_supported(); *name_; name_++)                                          \
        for (const cpu_kernels *kernels = cpu_kernels_find(*name_); kernels; kernels = NULL)

#endif
