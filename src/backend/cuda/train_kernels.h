/* The kernels of the student (distil.h) towards its host code, in the manner of kernels.h. All numbers are float32,
 * rows are row-major, every sum has an order that depends on shapes alone. */
#ifndef KAKEYA_BACKEND_CUDA_TRAIN_KERNELS_H
#define KAKEYA_BACKEND_CUDA_TRAIN_KERNELS_H

#include "backend/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { TRAIN_MAX_CHOSEN = 64 /* experts of a row */ };

/* --- products ---------------------------------------------------------------------------------------------------- */

typedef enum train_form {
    TRAIN_NT, /* c = a b', a [m][k], b [n][k]: rows through a weight matrix */
    TRAIN_NN, /* c = a b, b [k][n]: gradients of rows back through it */
    TRAIN_TN, /* c = a' b, a [k][m], b [k][n]: the gradient of the matrix itself */
} train_form;

/* `items` * `heads` products of one shape. Head h of item i begins at a + i * a_item + h * a_head and so on; b's head
 * is h / group. */
typedef struct train_product {
    const float *a, *b;
    float *c;
    size_t lda, ldb, ldc;
    int m, n, k;
    int items, heads, group; /* 0: 1 */
    size_t a_item, a_head, b_item, b_head, c_item, c_head;
    int add; /* c += */
    /* Rows [begin[i], begin[i + 1]) of a and c are item i's, m bounds them: experts. */
    const int *begin;
    float *partial; /* TRAIN_TN: room for `partial_floats` of sums over parts of k, which are added in order; or NULL */
    size_t partial_floats;
} train_product;

void cuda_train_product(const cuda_launch *l, train_form form, const train_product *p);
/* c [m][ldc] = the sum of partial [parts][m][n] in their order, or added to it. */
void cuda_train_sum_parts(const cuda_launch *l, const float *partial, int parts, int m, int n, float *c, size_t ldc,
                          int add);

/* --- rows -------------------------------------------------------------------------------------------------------- */

/* out = x / rms(x) * gain (NULL: ones) + add (NULL: nothing), rows of n values. */
void cuda_train_norm(const cuda_launch *l, const float *x, size_t ldx, const float *gain, const float *add, float *out,
                     size_t ldo, int rows, int n, float eps);
/* d_x, set or added to, of a norm's d_out. */
void cuda_train_norm_back(const cuda_launch *l, const float *x, const float *gain, const float *d_out, float *d_x,
                          int set, int rows, int n, float eps);

/* Where head rows are turned: RoPE's tables [position][pairs], the position of each row. No pairs: nothing turns. */
typedef struct train_turn {
    const float *cosine, *sine;
    const int *position;
    int half, pairs;
} train_turn;

/* [rows][heads][d]: each head divided by its rms, times gain, turned. */
void cuda_train_heads(const cuda_launch *l, const float *raw, const float *gain, float *out, int rows, int heads, int d,
                      float eps, train_turn turn);
void cuda_train_heads_back(const cuda_launch *l, const float *raw, const float *gain, const float *d_out, float *d_raw,
                           int add, int rows, int heads, int d, float eps, train_turn turn);

/* out = gelu_tanh(gate) * up. */
void cuda_train_gated(const cuda_launch *l, const float *gate, size_t ldg, const float *up, size_t ldu, float *out,
                      int rows, int n);
/* d_out [rows][n]; d_gate may be d_out, d_up may be NULL. */
void cuda_train_gated_back(const cuda_launch *l, const float *gate, size_t ldg, const float *up, size_t ldu,
                           const float *d_out, float *d_gate, size_t ldd, float *d_up, int rows, int n);

/* out[i] = scale * x[index[i]] (NULL: x[i]), rows of n values. */
void cuda_train_gather(const cuda_launch *l, const float *x, size_t ldx, const int *index, float scale, float *out,
                       size_t ldo, int rows, int n);
/* The same of a bf16 table whose rows have ldx values. */
void cuda_train_gather_bits(const cuda_launch *l, const cuda_bf16 *x, size_t ldx, const int *index, float scale,
                            float *out, int rows, int n);
/* to[index[i]] += x[i], each row of `to` from one of x at most. */
void cuda_train_scatter(const cuda_launch *l, const float *x, const int *index, float *to, int rows, int n);
void cuda_train_add(const cuda_launch *l, const float *x, float *to, size_t n);
void cuda_train_scale(const cuda_launch *l, float *x, float by, size_t n);
/* Inputs of the layers, the table [token][layers * width] in float32, or, NULL, in bf16 with rows of ld values: out =
 * (rms-normalised out / sqrt(hidden) * gain + table[token] * sqrt(width)) / sqrt(2). */
void cuda_train_ple(const cuda_launch *l, const float *table, const cuda_bf16 *bits, size_t ld, const int *tokens,
                    const float *gain, int hidden, int layers, int width, float eps, float *out, int rows);
/* A latent becomes what a session would read back from 8 or 4 bits. */
void cuda_train_round(const cuda_launch *l, int bits, float *x, int rows, int n);

/* --- experts ----------------------------------------------------------------------------------------------------- */

typedef struct train_routing {
    int *chosen;  /* [rows][k] */
    float *share; /* [rows][k] */
    int *slot_of; /* [rows][k]: slots lie in the order of experts */
    int *row_of;  /* [rows * k] */
    int *begin;   /* [experts + 1] */
    int *counts;  /* [experts] */
    int experts, k;
} train_routing;

void cuda_train_route(const cuda_launch *l, const float *z, const float *expert_scale, const train_routing *r,
                      int rows);
/* out [rows][n] = sum over a row's slots of share * x[slot]; without `weighted` share is 1. */
void cuda_train_mix(const cuda_launch *l, const float *x, const train_routing *r, int weighted, float *out, int rows,
                    int n);
/* d_slot = share * d_mixed; d_z [rows][experts]. */
void cuda_train_unmix(const cuda_launch *l, const float *d_mixed, const float *slot_out, const float *expert_scale,
                      const train_routing *r, float *d_slot, float *d_z, int rows, int n);

/* --- attention --------------------------------------------------------------------------------------------------- */

enum { TRAIN_NO_COLUMN, TRAIN_EXACT, TRAIN_RESTORED, TRAIN_OWN };

/* A key that rows of a segment may see: where it stands, and the row of its source. */
typedef struct train_column {
    int position, kind, row;
} train_column;

/* What rows of a segment see of its columns. */
typedef struct train_mask {
    const train_column *column; /* [items][columns] */
    const int *first;           /* [items]: position of an item's first row */
    const int *restored;        /* [items], or NULL: the layer is restored; only with `rule` */
    const int *prompt;          /* [items]: what the first row finds evicted is evicted for all; only with `rule` 1 */
    int items, rows, columns;   /* rows of an item */
    int sliding;                /* a row sees so many positions; 0: all */
    int rule;                   /* 0: everything is exact; 1: the rule; 2: everything is restored */
    int sink, window;
} train_mask;

/* scores [items][heads][rows][columns] become attention weights, and their gradients those of the scores. */
void cuda_train_softmax(const cuda_launch *l, const train_mask *mask, int heads, float *scores);
void cuda_train_softmax_back(const cuda_launch *l, const float *shares, float *d_shares, int rows, int columns);

/* K and V of all columns, or where gradients go: by kind; NULL where there are none. */
typedef struct train_sources {
    float *kv[2][4]; /* [half][TRAIN_...], rows of n values */
    int n;
} train_sources;

/* keys, values [items][columns][n]. */
void cuda_train_columns(const cuda_launch *l, const train_mask *mask, const train_sources *from, float *keys,
                        float *values);
/* d_key, d_value [items][heads][columns][d], summed over the heads of a group and added to what columns are from. */
void cuda_train_columns_back(const cuda_launch *l, const train_mask *mask, const train_sources *to, int heads, int d,
                             const float *d_key, const float *d_value);

/* --- losses ------------------------------------------------------------------------------------------------------ */

/* KL of rows of logits before the soft cap: student becomes scale times the gradient. kl [rows]. */
void cuda_train_kl(const cuda_launch *l, const float *teacher, float *student, int rows, int vocab, float cap,
                   float scale, double *kl);
/* out[i] += sum of a segment's rows of kl, times by. */
void cuda_train_sum_rows(const cuda_launch *l, const double *kl, int segments, int rows, double by, double *out,
                         int stride);

enum { TRAIN_SHARE_PARTS = 64 };

/* Rows of a segment's compared values. */
typedef struct train_share {
    const float *x;      /* [rows][n] */
    const float *target; /* rows of n values */
    const int *index;    /* [rows]: of x's rows in target; NULL: the same */
    float *d;            /* [rows][n], added to; or NULL */
    const int *begin;    /* [segments + 1] rows of x, or NULL: `rows` each */
    int segments, rows, n;
    double *out; /* of segment i: out[i * stride] += by * loss */
    int stride;
    double by;           /* of the told loss */
    float scale;         /* of the gradient */
    double least;        /* size at least */
    int mean;            /* size is the number of values, not the target's squares */
    const float *factor; /* [segments], of loss and gradient; NULL: 1 */
    double *parts;       /* [segments][TRAIN_SHARE_PARTS][2]: room for sums; of squared errors alone */
} train_share;

/* Squared error as a share of the target's squares. */
void cuda_train_square_share(const cuda_launch *l, const train_share *s);

/* Losses of raw K or V: weights of the parts, sizes as the CPU's (distil_loss.c). Vectors of d values. */
typedef struct train_parts {
    double square, direction, magnitude;
    int variance, d;
} train_parts;
void cuda_train_raw(const cuda_launch *l, const train_share *s, train_parts parts);

#ifdef __cplusplus
}
#endif

#endif
