/* Rows of prompts between their products, where what decode rows take (rows.cu) would be bound by memory. */
#ifndef KAKEYA_BACKEND_CUDA_PROMPT_ROWS_H
#define KAKEYA_BACKEND_CUDA_PROMPT_ROWS_H

#include "backend/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* As cuda_after_ffn_rows in a model with experts, whose outputs [slots][hidden] are bf16; `a->experts` is not read.
 * hidden is a multiple of 8, at most PROMPT_ROWS_MOST_HIDDEN. */
void prompt_after_ffn_rows(const cuda_launch *l, const cuda_after_ffn *a, const cuda_bf16 *experts,
                           const cuda_route *route, int rows);
enum { PROMPT_ROWS_MOST_HIDDEN = 8192 };

/* to[slot] = x[row of the slot], rows of ld bf16. */
void prompt_gather_rows(const cuda_launch *l, const cuda_route *route, const cuda_bf16 *x, cuda_bf16 *to, int ld,
                        int rows);

/* As cuda_after_attention_rows without a router of its own. */
void prompt_after_attention_rows(const cuda_launch *l, const cuda_after_attention *a, int rows);

/* As cuda_head_rows, for prompt rows of heads of 256 or 512 whose dimensions turn in pairs of a multiple of 8. */
void prompt_head_rows(const cuda_launch *l, const cuda_batch *batch, const cuda_heads *h, int rows);
int prompt_head_rows_fit(const cuda_heads *h);

#ifdef __cplusplus
}
#endif

#endif
