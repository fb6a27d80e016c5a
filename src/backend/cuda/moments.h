/* Sums of the closed form (backend/backend_train.h, train/closed_form.h) on a device. The launcher of a prompt shows
 * what its operations leave behind; rows of x and y are turned, in bf16, so that the products of prompts
 * (prompt_gemm.h) sum over them: what an encoder reads at run time is bf16, too. A chunk's products are float32, sums
 * over chunks float64.
 *
 *   moments.c         memory, a forward, its sums     moments_solve.c   the matrix, its factor, products with it
 *   moments.cu        kernels of rows                 dense.cu          products in float64 */
#ifndef KAKEYA_BACKEND_CUDA_MOMENTS_H
#define KAKEYA_BACKEND_CUDA_MOMENTS_H

#include "backend/backend_train.h"
#include "backend/cuda/model.h"
#include "backend/cuda/moments_kernels.h"
#include "backend/cuda/pass.h"
#include "backend/cuda/split_products.h"

struct backend_moments {
    backend_model *m;
    moments_options o;
    int tap[GEMMA4_MAX_LAYERS], target[GEMMA4_MAX_LAYERS];
    cuda_launch launch;
    cuda_buffer memory;
    size_t chunk, ld; /* rows of a forward at most; of turned rows, from one value to the next */
    double *sums;     /* [o.n] */
    float *gram[GEMMA4_MAX_LAYERS], *keys[GEMMA4_MAX_LAYERS], *values[GEMMA4_MAX_LAYERS]; /* [sequence][kv_dim] */
    float *cosine[2], *sine[2];                                                           /* [sequence][pairs] */
    int *positions;                                                                       /* [sequence] */
    cuda_bf16 *x, *y;                           /* [inputs][ld], [targets][ld] */
    float *rms, *outer;                         /* [heads][ld]; [MOMENTS_OUTER][inputs] */
    float *q, *o_heads, *scores, *weight;       /* [chunk][heads * d] twice, [heads][chunk][sequence], [..][offsets] */
    float *square, *u, *gu, *product, *partial; /* [chunk], [chunk * offsets][d] twice, [d][d] */
    double *row_sum;
    size_t partial_floats;
    float *ones;          /* [ld] */
    float *aux, *drafted; /* of the drafter's context: [chunk][taps * hidden], [chunk][inputs] */
    split_room split;     /* of fc */
    /* the forward in work */
    int position, rows;
    bool metric;
    /* solving: */
    cuda_buffer solving;
    double *matrix, *factor, *inverse, *strip, *given, *made; /* see moments_solve.c */
};

/* What it is made of, for tests: rows [position, position + rows) begin; a layer's raw K and V; what its attention
 * gives (q, o bf16, rows of ldo values; out float32); its output; the rows' products. */
void cuda_moments_begin(backend_moments *s, int position, int rows, bool metric);
void cuda_moments_kv(backend_moments *s, int layer, const float *raw_k, const float *raw_v);
void cuda_moments_attended(backend_moments *s, int layer, const cuda_bf16 *q, const cuda_bf16 *o, size_t ldo,
                           const float *out);
void cuda_moments_output(backend_moments *s, int layer, const float *h);
kakeya_status cuda_moments_end(backend_moments *s, kakeya_error *error);

kakeya_status cuda_moments_create(backend_model *m, const moments_options *options, backend_moments **out,
                                  kakeya_error *error);
void cuda_moments_destroy(backend_moments *s);
kakeya_status cuda_moments_sum(backend_moments *s, backend_cache *cache, const int32_t *tokens, int n, bool metric,
                               kakeya_error *error);
kakeya_status cuda_moments_read(backend_moments *s, size_t first, size_t n, double *out, kakeya_error *error);
kakeya_status cuda_moments_write(backend_moments *s, size_t first, size_t n, const double *from, kakeya_error *error);
kakeya_status cuda_moments_seen(backend_moments *s, int first, int count, const double *metric, double scale,
                                kakeya_error *error);
kakeya_status cuda_moments_whiten(backend_moments *s, double *c, kakeya_error *error);
kakeya_status cuda_moments_apply(backend_moments *s, const double *x, int rows, double *out, kakeya_error *error);
kakeya_status cuda_moments_targets(backend_moments *s, int first, int count, const double *x, int rows, double *y,
                                   kakeya_error *error);
/* A row of a matrix of the model as float32; of weights that the host does not have, o_proj's in bf16 alone. */
void cuda_moments_weight_row(const backend_model *m, const weight *w, int row, float *out);

#endif
