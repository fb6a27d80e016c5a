/* The own kernels of the MLX backend on the host: the same texts as Metal compiles, on fibers. */
#ifndef KAKEYA_TESTS_MLX_HOST_KERNELS_H
#define KAKEYA_TESTS_MLX_HOST_KERNELS_H

#include "backend/mlx/mlx_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

void host_kernels_run(const mlx_kernel_call *call);

#ifdef __cplusplus
}
#endif

#endif
