/* The tables behind cpu_kernels_find; only kernels*.c and screen.c include this. */
#ifndef KAKEYA_BACKEND_CPU_KERNELS_PRIVATE_H
#define KAKEYA_BACKEND_CPU_KERNELS_PRIVATE_H

#include "backend/cpu/kernels_table.h"

extern const cpu_kernels cpu_kernels_scalar;
#if defined(__x86_64__)
extern const cpu_kernels cpu_kernels_avx2;
extern const cpu_kernels cpu_kernels_avx512;
extern const cpu_kernels cpu_kernels_avx512bf16;
#elif defined(__aarch64__)
extern const cpu_kernels cpu_kernels_neon;
extern const cpu_kernels cpu_kernels_dotprod;
extern const cpu_kernels cpu_kernels_i8mm;
#endif

#endif
