/* Bounds of a screen on x86 CPUs that multiply bytes four at a time (AVX-512 VNNI). */
#ifndef KAKEYA_BACKEND_CPU_SCREEN_VNNI_H
#define KAKEYA_BACKEND_CPU_SCREEN_VNNI_H

#include "backend/cpu/screen_matrix.h"

/* A screen_bounds. Only CPUs with avx512f, bw, dq, vl and vnni may call it. */
void screen_bounds_vnni(const screen_matrix *matrix, int first, int n, const screen_row *rows, int n_rows, float *upper,
                        size_t ld);

#endif
