/* Products with a weight matrix in whatever form it lies on the device: a table of kernels with one row per form.
 * Loading (weights.c) says which formats of a checkpoint become which form, and refuses the others. */
#ifndef KAKEYA_BACKEND_CUDA_MATRIX_H
#define KAKEYA_BACKEND_CUDA_MATRIX_H

#include <stdbool.h>

#include "backend/cuda/kernels.h"

/* Bytes on the device, padding included; a multiple of 16. */
size_t matrix_bytes(cuda_form form, int out, int in);
/* Bytes that a product reads of it: without padding. */
double matrix_read_bytes(const cuda_matrix *w);
const char *matrix_form_name(cuda_form form);
/* Room that prompts need to have the whole matrix in bf16 (cuda_launch.expanded); 0 of weights that are. Of experts it
 * may be less, as little as one expert takes; gate and up of a dense block need the sum. */
size_t matrix_expanded_bytes(const cuda_matrix *w);

/* y[r][o] = sum_k x[r][k] w[o][k] */
typedef struct matrix_product {
    const cuda_matrix *w;
    float *y;
    int ldy;
} matrix_product;

/* Decode rows: matrices that share the input x [rows][ldx] and its width, in one launch for each form among them. cap >
 * 0: y = cap tanh(y / cap). What the launch meets is found when the stream is finished. */
void matrix_products(const cuda_launch *l, const matrix_product *products, int n, const cuda_bf16 *x, int ldx, int rows,
                     float cap);

/* Decode rows of a feed-forward block, in one launch where its dense matrices and its experts have one form. `gate` and
 * `up` have the same. */
void matrix_gate_up(const cuda_launch *l, const cuda_feed_forward *f, const cuda_route *route, int rows);
void matrix_down(const cuda_launch *l, const cuda_feed_forward *f, const cuda_route *route, int rows);

/* At precision fp8 prompt rows that meet matrices of form F8 are rounded to e4m3 (f8_rows.h): room for those of one
 * product, rows or slots, and for their scales. codes NULL: nothing is rounded. */
typedef struct matrix_rounding {
    unsigned char *codes;
    float *scale;
} matrix_rounding;

/* Prompt rows of matrices that share the input x. Refusals are returned at once, and then nothing has been launched for
 * that matrix. */
cudaError_t matrix_prompt_products(const cuda_launch *l, const matrix_rounding *r, const matrix_product *products,
                                   int n, const cuda_bf16 *x, size_t ldx, int rows);
/* out[r][o] = bf16(gelu_tanh(x gate^T) * (x up^T)) */
cudaError_t matrix_prompt_gated(const cuda_launch *l, const matrix_rounding *r, const cuda_matrix *gate,
                                const cuda_matrix *up, const cuda_bf16 *x, size_t ldx, cuda_bf16 *out, size_t ldo,
                                int rows);
/* The same for x [slots][ldx] of a route and experts whose gate rows and up rows alternate by expert: [experts][2 *
 * width]. Where matrix_gathers, x is [rows][ldx] instead. */
bool matrix_gathers(const matrix_rounding *r, const cuda_matrix *experts);
cudaError_t matrix_prompt_experts_gated(const cuda_launch *l, const matrix_rounding *r, const cuda_matrix *experts,
                                        int width, const cuda_route *route, const cuda_bf16 *x, size_t ldx,
                                        cuda_bf16 *out, size_t ldo, int rows);
/* y[slot] = x[slot] w[expert]^T in float32, or rounded to bf16. */
cudaError_t matrix_prompt_experts(const cuda_launch *l, const matrix_rounding *r, const cuda_matrix *experts, int width,
                                  const cuda_route *route, const cuda_bf16 *x, size_t ldx, void *y, bool rounded,
                                  size_t ldy, int rows);

#endif
