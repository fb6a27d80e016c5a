/* Products of many decode rows (products_wide.cu), bf16 weights: the sums of products.cu, in its order and so with its
 * bits, by kernels that keep rows and weights in shared memory. They are launched where they are faster. */
#ifndef KAKEYA_BACKEND_CUDA_PRODUCTS_WIDE_H
#define KAKEYA_BACKEND_CUDA_PRODUCTS_WIDE_H

#include "backend/cuda/kernels.h"
#include "backend/cuda/product_split.h"

#ifdef __cplusplus
extern "C" {
#endif

/* As cuda_products, cuda_gate_up, and the experts of cuda_down. False: this device, or so few rows, are not served. */
bool cuda_products_wide(const cuda_launch *l, const cuda_product *products, int n, int in, const cuda_bf16 *x, int ldx,
                        int rows, float cap);
bool cuda_gate_up_wide(const cuda_launch *l, const cuda_feed_forward *f, const cuda_route *route, int rows);
bool cuda_experts_down_wide(const cuda_launch *l, const cuda_feed_forward *f, const cuda_route *route, int rows);
/* Once per device, before the first launch. */
cudaError_t cuda_products_wide_prepare(void);

#ifdef __cplusplus
}
#endif

#endif
