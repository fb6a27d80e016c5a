/* Sums of the closed form (backend/backend_train.h, train/closed_form.h) on a device. The launcher of a prompt shows
 * what its operations leave behind; rows of x and y are turned, in bf16, so that the products of prompts
 * (prompt_gemm.h) sum over them: what an encoder reads at run time is bf16, too. A chunk's products are float32, sums
 * over chunks float64.
 *
 *   statistics.c         memory, a forward, its sums     statistics_solve.c   the matrix, its factor, products with it
 *   statistics.cu        kernels of rows                 dense.cu          products in float64 */
#ifndef KAKEYA_BACKEND_CUDA_STATISTICS_H
#define KAKEYA_BACKEND_CUDA_STATISTICS_H

#include "backend/backend_train.h"
#include "backend/cuda/model.h"
#include "backend/cuda/pass.h"
#include "backend/cuda/split_products.h"
#include "backend/cuda/statistics_kernels.h"

struct backend_statistics {
    backend_model *m;
    statistics_options o;
    int tap[MODEL_MAX_LAYERS], target[MODEL_MAX_LAYERS];
    cuda_launch launch;
    cuda_buffer memory;
    size_t chunk, ld; /* rows of a forward at most; of turned rows, from one value to the next */
    double *sums;     /* [o.n] */
    float *gram[MODEL_MAX_LAYERS], *keys[MODEL_MAX_LAYERS], *values[MODEL_MAX_LAYERS]; /* [sequence][kv_dim] */
    float *cosine[2], *sine[2];                                                        /* [sequence][pairs] */
    int *positions;                                                                    /* [sequence] */
    cuda_bf16 *x, *y;                                                                  /* [inputs][ld], [targets][ld] */
    float *rms, *outer;                         /* [heads][ld]; [STATISTICS_OUTER][inputs] */
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
    double *matrix, *factor, *inverse, *strip, *given, *made; /* see statistics_solve.c */
};

/* What it is made of, for tests: rows [position, position + rows) begin; a layer's raw K and V; what its attention
 * gives (q, o bf16, rows of ldo values; out float32); its output; the rows' products. */
void cuda_statistics_begin(backend_statistics *s, int position, int rows, bool metric);
void cuda_statistics_kv(backend_statistics *s, int layer, const float *raw_k, const float *raw_v);
void cuda_statistics_attended(backend_statistics *s, int layer, const cuda_bf16 *q, const cuda_bf16 *o, size_t ldo,
                              const float *out);
void cuda_statistics_output(backend_statistics *s, int layer, const float *h);
kakeya_status cuda_statistics_end(backend_statistics *s, kakeya_error *error);

kakeya_status cuda_statistics_create(backend_model *m, const statistics_options *options, backend_statistics **out,
                                     kakeya_error *error);
void cuda_statistics_destroy(backend_statistics *s);
kakeya_status cuda_statistics_sum(backend_statistics *s, backend_cache *cache, const int32_t *tokens, int n,
                                  bool metric, kakeya_error *error);
kakeya_status cuda_statistics_read(backend_statistics *s, size_t first, size_t n, double *out, kakeya_error *error);
kakeya_status cuda_statistics_write(backend_statistics *s, size_t first, size_t n, const double *from,
                                    kakeya_error *error);
kakeya_status cuda_statistics_seen(backend_statistics *s, int first, int count, const double *metric, double scale,
                                   kakeya_error *error);
kakeya_status cuda_statistics_whiten(backend_statistics *s, double *c, kakeya_error *error);
kakeya_status cuda_statistics_apply(backend_statistics *s, const double *x, int rows, double *out, kakeya_error *error);
kakeya_status cuda_statistics_targets(backend_statistics *s, int first, int count, const double *x, int rows, double *y,
                                      kakeya_error *error);
/* A row of a matrix of the model as float32; of weights that the host does not have, o_proj's in bf16 alone. */
void cuda_statistics_weight_row(const backend_model *m, const weight *w, int row, float *out);

#endif
