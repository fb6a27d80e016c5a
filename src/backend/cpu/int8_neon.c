/* int8 products with the NEON that every 64-bit Arm has. */
#include "backend/cpu/int8_lanes_neon.h"
#include "backend/cpu/int8_tiles.h"

const int8_kernels int8_neon = INT8_TABLE;
