/* Products of bf16 weights with rounded activations for CPUs that multiply pairs of bf16. Lane i of the accumulator
 * takes the products of elements 2 i and 2 i + 1. The instruction treats subnormal inputs and results as zero. */
#include "backend/cpu/simd_avx512.h"

#define SIMD_DOT_PAIRS(sum, x, w) _mm512_dpbf16_ps(sum, (__m512bh)(x), (__m512bh)(w))
#include "backend/cpu/kernels_matmul.h"

size_t cpu_pairs_row_bytes(int k) { return row_bytes_pairs(k); }

void cpu_pairs_pack(const float *x, size_t ldx, int rows, int k, void *packed) { pack_pairs(x, ldx, rows, k, packed); }

void cpu_pairs_multiply(const void *packed, int rows, const weight *w, float *y, size_t ldy) {
    multiply_PAIRS(packed, rows, w, y, ldy);
}

double cpu_pairs_probe(size_t iterations) {
    enum { CHAINS = 12 }; /* latency times rate of the instruction, and some more */
    volatile float source = 0.0f;
    float zeros[SIMD_LANES];
    simd_f32 sums[CHAINS];
    UNROLL for (int j = 0; j < CHAINS; j++) sums[j] = simd_set1(source);
    simd_store(zeros, simd_set1(source));
    simd_pairs x = simd_pairs_load(zeros);
    for (size_t i = 0; i < iterations; i++) {
        UNROLL for (int j = 0; j < CHAINS; j++) sums[j] = SIMD_DOT_PAIRS(sums[j], x, x);
    }
    UNROLL for (int j = 1; j < CHAINS; j++) sums[0] = simd_add(sums[0], sums[j]);
    source = simd_sum(sums[0]);
    return (double)(4 * SIMD_LANES * CHAINS) * (double)iterations;
}
