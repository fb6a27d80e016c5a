/* The kernels of algebra, apart from the others, whose names they share. */
#include "backend/cuda/common.cuh"

#include "backend/cuda/dense.cu"
