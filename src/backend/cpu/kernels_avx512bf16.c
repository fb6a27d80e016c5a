/* CPUs that multiply pairs of bf16 (Intel Cooper Lake and from Sapphire Rapids on, AMD from Zen 4 on). Lane i of the
 * accumulator takes the products of elements 2 i and 2 i + 1. The instruction treats subnormal inputs and results as
 * zero. Everything but bf16 weights with rounded activations is as in the avx512 table. */
#include "backend/cpu/simd_avx512.h"

#define SIMD_DOT_PAIRS(sum, x, w) _mm512_dpbf16_ps(sum, (__m512bh)(x), (__m512bh)(w))

#define INT8_KERNELS int8_widest()
#include "backend/cpu/kernels_attention.h"

const cpu_kernels cpu_kernels_avx512bf16 = VECTOR_TABLE("avx512bf16");
