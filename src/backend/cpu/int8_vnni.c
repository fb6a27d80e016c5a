/* int8 products with AVX-512 and its instruction for sums of four products of bytes. */
#include <immintrin.h>

#include "backend/cpu/int8_lanes_avx512.h"
#include "backend/cpu/int8_tiles.h"

const int8_kernels int8_vnni = INT8_TABLE;
