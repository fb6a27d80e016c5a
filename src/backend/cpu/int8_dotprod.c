/* int8 products with SDOT (Apple from M1 on, Arm from Cortex-A76 and Neoverse N1 on). */
#include "backend/cpu/int8_lanes_neon.h"
#include "backend/cpu/int8_tiles.h"

const int8_kernels int8_dotprod = INT8_TABLE;
