/* Products of prompt rows in FP8 on Hopper (sm_90a): rows that f8_rows.h has rounded to e4m3, and weights of form F8 as
 * they lie (quant.h), whose scales are those of at least 128 values.
 *
 * Products of codes are exact. 128 of them are summed by the tensor cores, 32 at a time, in order; their sum, times the
 * weights' scale, is added to a float32 by one fma, in ascending order of k; the row's scale comes last. So is every
 * element, whatever the number of rows and its place among them. */
#ifndef KAKEYA_BACKEND_CUDA_PROMPT_GEMM_F8_H
#define KAKEYA_BACKEND_CUDA_PROMPT_GEMM_F8_H

#include <cuda_runtime_api.h>
#include <stddef.h>

#include "backend/cuda/prompt_gemm_output.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct prompt_gemm_f8_args {
    const unsigned char *a; /* [m][64 * units], as f8_rows.h has them */
    const float *a_scale;   /* [m] */
    const void *w;          /* strips of n rows; gated outputs: the gate's */
    const void *w_up;       /* gated outputs only */
    int units;              /* of a strip */
    void *out;              /* [m][ldo] */
    size_t ldo;             /* even */
    int m, n;               /* n: a multiple of 16 */
    prompt_gemm_output output;
    /* Experts as in prompt_gemm_grouped_args; NULL: one dense product. Expert e's strips begin e * expert_rows rows
     * behind those of expert 0. */
    const int *expert_begin;
    int experts, expert_rows;
    unsigned *counter;
} prompt_gemm_f8_args;

/* Only where prompt_gemm_bulk_runs() says so. */
cudaError_t prompt_gemm_f8(const prompt_gemm_f8_args *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
