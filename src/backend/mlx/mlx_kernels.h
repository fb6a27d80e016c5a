/* The own kernels (texts in kernels/) as calls: what is launched, on which numbers. On Metal libmlx compiles them;
 * where there is no Metal a runner can be named that computes a call on the host, as tests do
 * (tests/mlx/host_kernels.cpp). */
#ifndef KAKEYA_BACKEND_MLX_MLX_KERNELS_H
#define KAKEYA_BACKEND_MLX_MLX_KERNELS_H

#ifdef __cplusplus
extern "C" {
#endif

enum { MLX_KERNEL_ROWS = 17 }; /* that one launch computes at most */

typedef enum mlx_kernel {
    MLX_KERNEL_PRODUCT = 0, /* rows_product */
    MLX_KERNEL_EXPERTS,     /* experts_product */
    MLX_KERNEL_NORM,        /* row_norm */
    MLX_KERNEL_HEADS,       /* head_rows */
    MLX_KERNEL_GATED,       /* gated_rows */
    MLX_KERNEL_ROUTER,      /* router_choice */
    MLX_KERNEL_EXPERTS_SUM, /* experts_sum */
    MLX_KERNEL_CHOICE,      /* row_choice */
    MLX_KERNEL_ATTENTION,   /* attention_part */
    MLX_KERNEL_MERGE,       /* attention_merge */
    MLX_KERNEL_Q4,          /* q4_rows */
    MLX_KERNELS
} mlx_kernel;

/* Inputs, then outputs, in the order of the kernel's parameters; constants in that of its template. */
typedef struct mlx_kernel_call {
    mlx_kernel kernel;
    int constant[4];
    const void *input[16];
    void *output[2];
    int groups[3], simdgroups; /* threadgroups, and what is in each */
} mlx_kernel_call;

/* Rows and outputs that a product's launch is made for: the next of a few numbers of rows, since what is computed for a
 * row does not depend on it. */
static inline int mlx_kernel_rows_made(int rows) {
    return rows <= 2 ? rows : rows <= 4 ? 4 : rows <= 8 ? 8 : MLX_KERNEL_ROWS;
}
static inline int mlx_kernel_outputs(int rows_made) { return rows_made > 8 ? 2 : 4; }

typedef void (*mlx_kernel_runner)(const mlx_kernel_call *call);

/* From now on the CPU device computes with own kernels, by `runner`; NULL: with stock operations again. */
void mlx_kernels_run_with(mlx_kernel_runner runner);

#ifdef __cplusplus
}
#endif

#endif
