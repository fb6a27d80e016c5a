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
#include "base/float16.h"

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

static inline float element(weight_format format, const void *data, size_t i) {
    uint16_t half;
    float value;
    if (format == WEIGHT_F32) {
        memcpy(&value, (const char *)data + 4 * i, 4);
        return value;
    }
    memcpy(&half, (const char *)data + 2 * i, 2);
    return format == WEIGHT_BF16 ? bf16_to_f32(half) : f16_to_f32(half);
}

static inline size_t value_bytes(weight_format format) { return format == WEIGHT_F32 ? 4 : 2; }

/* Towards zero; small values become zero. */
static inline uint16_t cut_to_f16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t magnitude = bits & 0x7fffffffu, sign = bits >> 16 & 0x8000u;
    return (uint16_t)(magnitude < 0x38800000u ? sign : sign | (magnitude - 0x38000000u) >> 13);
}

static inline void *aligned(size_t bytes) {
    void *p = aligned_alloc(64, (bytes + 64) / 64 * 64);
    assert_non_null(p);
    return p;
}

/* `n` random values of a format, at a distance of one value from an aligned address. *allocation is to be freed. */
static inline void *random_weights(weight_format format, size_t n, uint64_t seed, void **allocation) {
    float *values = random_floats(n, seed, 0.05f);
    size_t bytes = value_bytes(format);
    *allocation = aligned((n + 1) * bytes);
    char *w = (char *)*allocation + bytes;
    for (size_t i = 0; i < n; i++) {
        uint16_t half = format == WEIGHT_BF16 ? f32_to_bf16(values[i]) : cut_to_f16(values[i]);
        memcpy(w + i * bytes, format == WEIGHT_F32 ? (const void *)&values[i] : (const void *)&half, bytes);
    }
    free(values);
    return w;
}

static inline void *packed_as(const cpu_kernels *kernels, cpu_packing packing, const float *x, size_t ldx, int rows,
                              int k) {
    size_t row_bytes = kernels->packing[packing].row_bytes(k);
    assert_int_equal(row_bytes % 64, 0);
    void *packed = aligned(row_bytes * (size_t)rows);
    kernels->packing[packing].pack(x, ldx, rows, k, packed);
    return packed;
}

static inline void *packed_operand(const cpu_kernels *kernels, weight_format format, int rounded, const float *x,
                                   size_t ldx, int rows, int k) {
    return packed_as(kernels, kernels->weight[format].product[rounded ? INPUT_BF16 : INPUT_EXACT].packing, x, ldx, rows,
                     k);
}

static inline void *packed_queries(const cpu_kernels *kernels, kv_format format, const float *q, size_t ldq, int rows,
                                   int k) {
    return packed_as(kernels, kernels->kv[format].queries, q, ldq, rows, k);
}

/* Outputs [o_begin, o_end) of a matrix w [*][k]. */
static inline void multiply(const cpu_kernels *kernels, weight_format format, int rounded, const void *packed, int rows,
                            int k, const void *w, int o_begin, int o_end, float *y, size_t ldy) {
    weight all = weight_matrix(format, w, o_end, k), some = weight_rows(&all, o_begin, o_end - o_begin);
    kernels->weight[format].product[rounded ? INPUT_BF16 : INPUT_EXACT].multiply(packed, rows, &some, y, ldy);
}

static inline size_t packed_bytes_of(const cpu_kernels *kernels, weight_format format, int rounded, int k) {
    return kernels->packing[kernels->weight[format].product[rounded ? INPUT_BF16 : INPUT_EXACT].packing].row_bytes(k);
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

/* The same without tables that differ from one before in their int8 products alone. */
static inline bool is_like_another(const cpu_kernels *kernels) {
    for (const char *const *name = cpu_kernels_supported(); strcmp(*name, kernels->name) != 0; name++) {
        if (cpu_kernels_find(*name)->attend_block == kernels->attend_block) return true;
    }
    return false;
}
#define FOR_FLOAT_TABLES(kernels)                                                                                      \
    FOR_TABLES(kernels)                                                                                                \
    if (!is_like_another(kernels))

#endif
