/* Intel from Haswell on, AMD from Zen on. */
#include "backend/cpu/simd_avx2.h"

#define INT8_KERNELS &int8_avx2
#include "backend/cpu/kernels_attention.h"

const cpu_kernels cpu_kernels_avx2 = VECTOR_TABLE("avx2");
