/* The kernels of the closed form's sums (statistics.h) and of its algebra in float64, in the manner of train_kernels.h.
 */
#ifndef KAKEYA_BACKEND_CUDA_STATISTICS_KERNELS_H
#define KAKEYA_BACKEND_CUDA_STATISTICS_KERNELS_H

#include "backend/cuda/train_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- sums -------------------------------------------------------------------------------------------------------- */

/* rms [groups][ld]: of x [row][group * n ...]. */
void cuda_statistics_rms(const cuda_launch *l, const float *x, size_t ldx, int rows, int groups, int n, float eps,
                         float *rms, size_t ld);
/* out [column][ldo] = bf16(x [row][column] / rms [column / group][row]), rows from `rows` to `padded` zero. */
void cuda_statistics_turn(const cuda_launch *l, const float *x, size_t ldx, int rows, int padded, int columns,
                          int group, const float *rms, size_t ld, cuda_bf16 *out, size_t ldo);
/* size[group * stride] += sum over rows of rms [group][row], or of its square. */
void cuda_statistics_sizes(const cuda_launch *l, const float *rms, size_t ld, int groups, int rows, bool squares,
                           double *size, size_t stride);
/* to += from */
void cuda_statistics_add(const cuda_launch *l, const float *from, double *to, size_t n);
/* out [rows][n] of bf16 x [rows][ldx]. */
void cuda_statistics_widen(const cuda_launch *l, const cuda_bf16 *x, size_t ldx, float *out, int rows, int n);

/* --- metric ------------------------------------------------------------------------------------------------------ */

/* square [row]: mean square of the row plus eps. added[0] += sum of squares of row / rms * gain, added[1] += rows.
 * row_sum: room for `rows` numbers. */
void cuda_statistics_squares(const cuda_launch *l, const float *x, const float *gain, int rows, int n, float eps,
                             float *square, double *row_sum, double *added);

/* What one query sees of the evicted positions that are looked at. */
typedef struct statistics_metric {
    const float *scores; /* [heads][rows][columns]: of positions from 0 on */
    const float *square; /* [rows] */
    float *weight;       /* [heads][rows][offsets]: P^2 / r(t); 0: nothing is seen there */
    int offset[32], offsets;
    int rows, position, columns, heads;
    int sliding, sink; /* positions that a row sees; 0: all */
    float negligible;  /* P below that counts as 0 */
} statistics_metric;

void cuda_statistics_weigh(const cuda_launch *l, const statistics_metric *m);
/* sum[head] += sum of its weights. */
void cuda_statistics_sum_weights(const cuda_launch *l, const statistics_metric *m, double *sum);

/* One query head's: rows [row][offset] of `dim` values. */
typedef struct statistics_head {
    const float *weight;        /* [rows][offsets] */
    const float *q, *o;         /* [rows][ldq] */
    const float *v;             /* [position][ldv] */
    const float *k_norm;        /* [dim] */
    const float *cosine, *sine; /* [position][pairs] */
    size_t ldq, ldv;
    int dim, pairs;
} statistics_head;

/* u = v(p) - o(t), zeros where the weight is zero. */
void cuda_statistics_errors(const cuda_launch *l, const statistics_metric *m, const statistics_head *h, float *u);
/* g = sqrt(weight u' gu) k_norm * (R_p' q(t)); may be gu. */
void cuda_statistics_directions(const cuda_launch *l, const statistics_metric *m, const statistics_head *h,
                                const float *u, const float *gu, float *g);

/* --- algebra in float64 ------------------------------------------------------------------------------------------ */

/* c [m][n] += scale * a b, as train/products.h has it. */
typedef struct dense_product {
    const double *a, *b;
    double *c;
    size_t lda, ldb, ldc;
    int m, n, k;
    int a_turned, b_turned;
    double scale;
    int set, lower;
} dense_product;

void cuda_dense_product(const cuda_launch *l, const dense_product *p);
/* What lies above the diagonal becomes what lies below it, or both change places. */
void cuda_dense_mirror(const cuda_launch *l, double *a, int n, int exchange);

#ifdef __cplusplus
}
#endif

#endif
