/* int8 products with SMMLA for pairs of rows, SDOT for a single one (Apple from M2 on, Arm from Neoverse V1 on). */
#include "backend/cpu/int8_lanes_neon.h"
#include "backend/cpu/int8_tiles.h"

const int8_kernels int8_i8mm = INT8_TABLE;
