/* The chains of instructions whose sums an output of a product is. */
#ifndef KAKEYA_BACKEND_CUDA_PRODUCT_SPLIT_H
#define KAKEYA_BACKEND_CUDA_PRODUCT_SPLIT_H

/* How many warps of products.cu the steps of an output are dealt to: a function of k alone. */
#ifdef __CUDACC__
__host__ __device__
#endif
    static inline int
    product_split(int steps) {
    return steps >= 64 ? 8 : steps >= 32 ? 4 : steps >= 16 ? 2 : 1;
}

#endif
