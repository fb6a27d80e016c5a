/* What the matrix products of prompts leave behind (prompt_gemm.h). */
#ifndef KAKEYA_BACKEND_CUDA_PROMPT_GEMM_OUTPUT_H
#define KAKEYA_BACKEND_CUDA_PROMPT_GEMM_OUTPUT_H

typedef enum prompt_gemm_output {
    PROMPT_GEMM_F32 = 0,   /* out float32 [m][ldo] = A W^T */
    PROMPT_GEMM_BF16,      /* the same, rounded to bf16 */
    PROMPT_GEMM_GELU_BF16, /* out bf16 = gelu_tanh(A W^T) * (A W_up^T) */
    PROMPT_GEMM_SILU_BF16, /* out bf16 = silu(A W^T) * (A W_up^T) */
} prompt_gemm_output;

#endif
