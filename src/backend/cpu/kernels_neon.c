/* 64-bit Arm. The tables differ in the instructions of the int8 products alone. */
#include "backend/cpu/simd_neon.h"

#define INT8_KERNELS          &int8_neon
#define INT8_NAME(verb, name) neon_##verb##_##name
#include "backend/cpu/kernels_attention.h"

const cpu_kernels cpu_kernels_neon = VECTOR_TABLE("neon");

#undef INT8_KERNELS
#undef INT8_NAME
#define INT8_KERNELS          &int8_dotprod
#define INT8_NAME(verb, name) dotprod_##verb##_##name
DEFINE_INT8

const cpu_kernels cpu_kernels_dotprod = VECTOR_TABLE("neon-dotprod");

#undef INT8_KERNELS
#undef INT8_NAME
#define INT8_KERNELS          &int8_i8mm
#define INT8_NAME(verb, name) i8mm_##verb##_##name
DEFINE_INT8

const cpu_kernels cpu_kernels_i8mm = VECTOR_TABLE("neon-i8mm");
