/* The tables behind cpu_kernels_find; only kernels*.c and screen.c include this. */
#ifndef KAKEYA_BACKEND_CPU_KERNELS_PRIVATE_H
#define KAKEYA_BACKEND_CPU_KERNELS_PRIVATE_H

#include "backend/cpu/kernels_table.h"

extern const cpu_kernels cpu_kernels_scalar;
#if defined(__x86_64__)
extern const cpu_kernels cpu_kernels_avx2;
extern const cpu_kernels cpu_kernels_avx512;
extern const cpu_kernels cpu_kernels_avx512bf16;

/* What the last table has of its own (kernels_avx512bf16.c): packing PACKING_PAIRS, the product of bf16 weights with
 * it, and the floating-point operations of `iterations` rounds of its instruction. */
size_t cpu_pairs_row_bytes(int k);
void cpu_pairs_pack(const float *x, size_t ldx, int rows, int k, void *packed);
void cpu_pairs_multiply(const void *packed, int rows, const weight *w, float *y, size_t ldy);
double cpu_pairs_probe(size_t iterations);
#elif defined(__aarch64__)
extern const cpu_kernels cpu_kernels_neon;
extern const cpu_kernels cpu_kernels_dotprod;
extern const cpu_kernels cpu_kernels_i8mm;
#endif

#endif
