/* The maps by which the tensor copy engine of Hopper fetches boxes of matrices into panels (prompt_tensor.cuh). The
 * driver makes them; its entry point is looked up, so that nothing links against it. */
#ifndef KAKEYA_BACKEND_CUDA_TENSOR_MAPS_CUH
#define KAKEYA_BACKEND_CUDA_TENSOR_MAPS_CUH

#include <cuda.h>

#include "backend/cuda/prompt_tensor.cuh"

namespace prompt {

typedef CUresult (*encode_function)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                    const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                                    CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* A map of bf16 [matrices][rows][columns] in boxes of `box_rows` rows of one panel; what lies outside reads as zero. */
static inline bool encode_map(encode_function encode, CUtensorMap *map, int dimensions, const __nv_bfloat16 *data,
                              int columns, size_t row_stride, int rows, size_t matrix_stride, int matrices,
                              int box_rows) {
    cuuint64_t sizes[3] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows),
                           static_cast<cuuint64_t>(matrices)};
    cuuint64_t strides[2] = {row_stride * sizeof(__nv_bfloat16), matrix_stride * sizeof(__nv_bfloat16)};
    cuuint32_t box[3] = {PANEL_COLUMNS, static_cast<cuuint32_t>(box_rows), 1}, steps[3] = {1, 1, 1};
    return encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, static_cast<cuuint32_t>(dimensions),
                  const_cast<__nv_bfloat16 *>(data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                  CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* A map of a decoder [rows][columns] in boxes of `box_rows` rows, 32 or a multiple. In each 32 of them the digits of
 * (row / 8, row / 2 % 4, row % 2) come in the order (second, first, third): the columns of a product with these rows
 * that a thread holds are then eight neighbours. */
static inline bool encode_decoder(encode_function encode, CUtensorMap *map, const __nv_bfloat16 *data, int columns,
                                  size_t row_stride, int rows, int box_rows) {
    cuuint64_t row = row_stride * sizeof(__nv_bfloat16);
    cuuint64_t sizes[5] = {static_cast<cuuint64_t>(columns), 2, 4, 4, static_cast<cuuint64_t>(rows / 32)};
    cuuint64_t strides[4] = {row, 8 * row, 2 * row, 32 * row};
    cuuint32_t box[5] = {PANEL_COLUMNS, 2, 4, 4, static_cast<cuuint32_t>(box_rows / 32)}, steps[5] = {1, 1, 1, 1, 1};
    return encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 5, const_cast<__nv_bfloat16 *>(data), sizes, strides, box,
                  steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

static inline cudaError_t find_encode(encode_function *encode) {
    void *entry = nullptr;
    cudaDriverEntryPointQueryResult found;
    cudaError_t status =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found);
    if (status == cudaSuccess && !entry) status = cudaErrorNotSupported;
    *encode = reinterpret_cast<encode_function>(entry);
    return status;
}

} // namespace prompt

#endif
