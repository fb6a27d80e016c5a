/* Intel from Skylake-SP on, AMD from Zen 4 on. */
#include "backend/cpu/simd_avx512.h"

#define INT8_KERNELS int8_widest()
#include "backend/cpu/kernels_attention.h"

const cpu_kernels cpu_kernels_avx512 = VECTOR_TABLE("avx512");
