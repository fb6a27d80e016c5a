/* Products of float32 rows on tensor cores. A float32 number is the sum of three bf16 numbers, its upper bits and what
 * is left each time; of two but for one part in 2^17, of one for one in 2^9. Sums are float32. Matrices of the model
 * that are bf16 are read where they lie. Of products of two float32 matrices three parts are summed: upper by upper,
 * lower by upper, upper by lower. */
#ifndef KAKEYA_BACKEND_CUDA_SPLIT_PRODUCTS_H
#define KAKEYA_BACKEND_CUDA_SPLIT_PRODUCTS_H

#include "backend/cuda/train_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SPLIT_MOST_TERMS = 3, SPLIT_PARTS = 3, SPLIT_GROUPS = 256 /* products of a launch */ };

/* Where parts and sums lie meanwhile. The first failure of a launch stays in `status`. */
typedef struct split_room {
    cuda_bf16 *a, *b;
    float *c;
    size_t a_values, b_values, c_values;
    int *begin;        /* [SPLIT_GROUPS + 1] */
    unsigned *counter; /* zero between launches */
    int terms;         /* bf16 numbers that a float32 number becomes beside a matrix in bf16: up to SPLIT_MOST_TERMS */
    int parts;         /* of products of two float32 matrices: SPLIT_PARTS, or 1, upper by upper */
    cudaError_t status;
} split_room;

/* A bf16 matrix [out][ld] of the model, ld = in rounded up, padding zero; of experts one behind the other. `out` is a
 * multiple of 8. */
typedef struct split_matrix {
    const cuda_bf16 *data;
    int out, in;
    size_t ld;
    const cuda_bf16 *turned; /* [in][out rounded up]; NULL: made on the way back. Not of experts */
} split_matrix;

/* Values of `b` that a matrix takes turned. */
size_t split_turned_values(int out, int in);

/* y [rows][out] = w x, x [rows][in]. */
void split_forward(const cuda_launch *l, split_room *room, const float *x, size_t ldx, int rows, split_matrix w,
                   float *y, size_t ldy);
/* d_x [rows][in] = w' d_y, or added to it. */
void split_back(const cuda_launch *l, split_room *room, const float *d_y, size_t ldy, int rows, split_matrix w,
                float *d_x, size_t ldx, int add);
/* The same of experts, w being the first of them: slots [begin[e], begin[e + 1]) of x and y are expert e's. There
 * is room for all slots. */
void split_experts_forward(const cuda_launch *l, split_room *room, const float *x, int slots, split_matrix w,
                           int experts, const int *begin, float *y);
void split_experts_back(const cuda_launch *l, split_room *room, const float *d_y, int slots, split_matrix w,
                        int experts, const int *begin, float *d_x);
/* A product of float32 matrices, but for those of experts. Not 0: it has been computed. 0: it does not fit or is too
 * small to be worth it, and nothing has been launched. `least`: multiplications from which on it is. */
int split_product(const cuda_launch *l, split_room *room, train_form form, const train_product *p, double least);

/* A sum over many rows, TRAIN_TN of one item: rows in parts of equal length, whose products are one launch and are
 * added up in p->partial's room, and the rest of the rows by itself. Few values of a long sum would leave a device
 * idle. 0: as split_product. */
int split_outer(const cuda_launch *l, split_room *room, const train_product *p, double least);

/* --- kernels (train_split.cu) ------------------------------------------------------------------------------------ */

/* out [rows][terms][ldo] of x [rows][ldx], columns from n on zero. */
void cuda_split_rows(const cuda_launch *l, const float *x, size_t ldx, int rows, int n, int terms, cuda_bf16 *out,
                     size_t ldo);
/* y [rows][ldy] = sum of from [rows][terms][n], or added to it. */
void cuda_split_join(const cuda_launch *l, const float *from, int rows, int terms, int n, float *y, size_t ldy,
                     int add);
/* out [matrices][in][ldo] of w [matrices][rows][ldw], columns from `rows` on zero. */
void cuda_split_turn(const cuda_launch *l, const cuda_bf16 *w, size_t ldw, int rows, int in, int matrices,
                     cuda_bf16 *out, size_t ldo);
/* to[i] = by * (begin ? begin[i] : i), i < n. */
void cuda_split_begins(const cuda_launch *l, const int *begin, int by, int n, int *to);

/* Matrices [rows][k] of groups, [k][rows] where `turned`: group i has `stack` heads, from i % heads * stack on, of item
 * i / heads, or head i % heads / group. Where heads are stacked nothing is turned. */
typedef struct split_packed {
    const float *x;
    size_t ld, item, head;
    int heads, stack, group, rows, k, turned, first, groups; /* of groups [first, first + groups) */
} split_packed;

/* out [groups][padded rows][parts][padded k]: upper, lower, upper bits; of `second` factors upper, upper, lower; or
 * upper ones alone. Padding is zero. */
void cuda_split_pack(const cuda_launch *l, const split_packed *p, int padded_rows, int padded_k, int parts, int second,
                     cuda_bf16 *out);
/* Products from [groups][stack * m][ldf] to where p has them. */
void cuda_split_place(const cuda_launch *l, const float *from, size_t ldf, const train_product *p, int stack, int first,
                      int groups);

#ifdef __cplusplus
}
#endif

#endif
