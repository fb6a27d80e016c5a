/* The kernels of the tower as C++ for the host. */
#include "backend/cuda/tower_attention.cu"
#include "backend/cuda/tower_rows.cu"
