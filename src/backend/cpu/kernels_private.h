/* The tables behind cpu_kernels_find; only kernels*.c include this. */
#ifndef KAKEYA_BACKEND_CPU_KERNELS_PRIVATE_H
#define KAKEYA_BACKEND_CPU_KERNELS_PRIVATE_H

#include "backend/cpu/kernels.h"
#include "backend/cpu/screen.h"

extern const cpu_kernels cpu_kernels_scalar;
void screen_bounds_scalar(const screen_matrix *matrix, int first, int n, const screen_row *rows, int n_rows,
                          float *upper, size_t ld);
#if defined(__x86_64__)
extern const cpu_kernels cpu_kernels_avx2;
extern const cpu_kernels cpu_kernels_avx512;
extern const cpu_kernels cpu_kernels_avx512bf16;
void screen_bounds_vnni(const screen_matrix *matrix, int first, int n, const screen_row *rows, int n_rows, float *upper,
                        size_t ld);
#endif

#endif
