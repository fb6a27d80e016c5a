/* What training asks of a backend beside inference: forwards whose inner values can be seen, and sums of outer
 * products. A third table beside backend_ops and backend_measure_ops, whose objects it shares; nothing that serves a
 * user calls it. */
#ifndef KAKEYA_BACKEND_BACKEND_TRAIN_H
#define KAKEYA_BACKEND_BACKEND_TRAIN_H

#include "backend/backend.h"

/* One layer of a forward, float32, valid during the call. Rows are those of the forward. */
typedef struct train_layer {
    int layer, rows, position;  /* of the first row */
    const float *raw_k, *raw_v; /* [rows][kv_heads * head_dim] k_proj and v_proj before any norm (one matrix where K =
                                   V); NULL in layers that attend an earlier layer's */
    const float *q;             /* [rows][heads * head_dim] queries after q_norm and RoPE */
    const float *o;             /* [rows][heads * head_dim] what attention gives each head */
    const float *out;           /* [rows][hidden] o_proj of that, before its norm */
    const float *h;             /* [rows][hidden] the layer's output */
    const float *cosine, *sine; /* [position][pairs] of the layer's RoPE, from position 0 on */
    int half, pairs;
} train_layer;

typedef void (*train_look_fn)(void *user, const train_layer *layer);

typedef struct backend_train_ops {
    /* A forward of n prompt rows behind the cache's committed ones, which are committed. `look` is called once for
     * each layer, in order. Failures as for backend_ops.forward. */
    kakeya_status (*forward)(backend_model *m, backend_cache *cache, const int32_t *tokens, int n, train_look_fn look,
                             void *user, kakeya_error *error);
    /* out [nb][na] = sum over rows of b[row][i] * a[row][j], float32, in an order that depends on `rows` alone; rows is
     * at most model_prompt_chunk. */
    kakeya_status (*outer)(backend_model *m, const float *a, int na, const float *b, int nb, int rows, float *out,
                           kakeya_error *error);
    /* A row of a matrix of the model as float32. */
    void (*weight_row)(const backend_model *m, const weight *w, int row, float *out);
} backend_train_ops;

/* NULL for a backend that cannot train. */
const backend_train_ops *backend_train_find(const backend_ops *ops);

#endif
