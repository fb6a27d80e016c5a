/* The arithmetic of the CPU backend as a table, one table per instruction set. `scalar` is the oracle: plain C, no
 * intrinsics. All tables compute the same functions within rounding; within one table every result element is reduced
 * in an order that depends only on k and the data type, never on how many rows or outputs a call has (row-count
 * invariance, the first half of the lossless contract).
 *
 * What depends on how numbers are stored is a table inside: by weight format, by K/V format, and by packing.
 * Activations are float32. Before a product they are packed once, into a form that is private to the table of the
 * instruction set; a weight format says which, and formats that want the same form share it. Weights are used as they
 * lie in memory. */
#ifndef KAKEYA_BACKEND_CPU_KERNELS_TABLE_H
#define KAKEYA_BACKEND_CPU_KERNELS_TABLE_H

#include <stdbool.h>
#include <stddef.h>

#include "backend/kv_format.h"
#include "model/weight.h"

enum { ATTENTION_BLOCK = 16 }; /* key positions per attention block, aligned to absolute positions */

enum { ATTEND_ALL_MOST = 48 }; /* a multiple of the queries that attend_all takes together in any table */

/* Floats that attend_all works in: queries and outputs in whole groups, with a maximum and a sum each. */
static inline size_t attend_all_floats(int rows, int d) {
    const size_t most = ATTEND_ALL_MOST, width = (size_t)d;
    return ((size_t)rows + most - 1) / most * most * (2 * width + 2);
}

enum {
    GEMM_STEP = 16,      /* values of k that rows of gemm are padded to */
    GEMM_MOST_ROWS = 12, /* a multiple of the rows that gemm packs together in any table */
};

/* Floats of a row that is packed for gemm, and of so many rows. */
static inline size_t gemm_row_floats(int k) { return ((size_t)k + GEMM_STEP - 1) / GEMM_STEP * GEMM_STEP; }
static inline size_t gemm_floats(int rows, int k) {
    return ((size_t)rows + GEMM_MOST_ROWS - 1) / GEMM_MOST_ROWS * GEMM_MOST_ROWS * gemm_row_floats(k);
}

/* Values [begin, begin + n) of one row of weights, as float32. */
typedef void (*cpu_row_loader)(const weight *w, int row, int begin, int n, float *out);

/* Forms of packed activations. */
typedef enum cpu_packing {
    PACKING_F32 = 0,       /* float32 in the order of k */
    PACKING_F32_ROUNDED,   /* the same, of values rounded to bf16 */
    PACKING_SPLIT,         /* float32, every step's even k before its odd k, as bf16 weights are widened */
    PACKING_SPLIT_ROUNDED, /* the same, of values rounded to bf16 */
    PACKING_PAIRS,         /* bf16 in the order of k, for CPUs that multiply pairs of bf16 */
    PACKING_INT8,          /* blocks of 32 codes with a scale (int8.h); the same bytes in every table */
    PACKING_INT8_FINE,     /* the same twice: what rounding leaves follows a row's codes */
    PACKING_COUNT
} cpu_packing;

typedef struct cpu_packing_kernels {
    /* Bytes of one packed row of k values, a multiple of 64; rows lie at multiples of it. */
    size_t (*row_bytes)(int k);
    /* Packs rows of x (stride ldx floats). Padding is zero. Each row's packed bytes depend on that row alone. */
    void (*pack)(const float *x, size_t ldx, int rows, int k, void *packed);
} cpu_packing_kernels;

/* What happens to activations before a product. */
typedef enum cpu_input {
    INPUT_EXACT = 0,
    INPUT_BF16,      /* rounded */
    INPUT_INT8,      /* codes of 8 bits where the weights' format has such a product, else exact */
    INPUT_INT8_FINE, /* the same with codes of 8 bits for what rounding leaves, too */
    INPUT_COUNT
} cpu_input;

/* y[r * ldy + o] = sum_k x[r][k] * w[o][k] for the rows r of a packing and all outputs o of w. */
typedef struct cpu_product {
    cpu_packing packing; /* of x */
    /* Bound: the weights' bytes, read once for rows <= 8 or so; FMA rate beyond. */
    void (*multiply)(const void *packed, int rows, const weight *w, float *y, size_t ldy);
} cpu_product;

typedef struct cpu_weight_kernels {
    cpu_product product[INPUT_COUNT];
    cpu_row_loader load;
} cpu_weight_kernels;

typedef struct cpu_kv_kernels {
    cpu_packing queries; /* that meet keys of this format */
    bool loaded;         /* attend_block takes no rows of this format: they are loaded first, a block at a time */
    /* One vector of n float32 values (K or V of one head) to its stored form, and back. The bytes are the same in every
     * table. */
    void (*store)(const float *x, int n, void *out);
    void (*load)(const void *x, int n, float *out);
    /* out = rope(norm * v) for a stored v [2 * half]: the key of a K = V layer. Same bits as load, multiply and rope.
     */
    void (*derive_key)(const void *v, const float *norm, int half, int pairs, const float *cosine, const float *sine,
                       float *out);
} cpu_kv_kernels;

typedef struct cpu_kernels {
    const char *name;                           /* one of cpu_kernels_supported() */
    cpu_packing_kernels packing[PACKING_COUNT]; /* zero where no format of the table wants it */
    cpu_weight_kernels weight[WEIGHT_FORMAT_COUNT];
    cpu_kv_kernels kv[KV_FORMAT_COUNT];

    /* --- attention over one block of ATTENTION_BLOCK keys (flash-style, online softmax) -------------------------- */

    /* For each of `rows` queries r with key range [lo[r], hi[r]) inside the block (empty: the row is untouched):
     *   s[j] = q[r] . K[j];  m' = max(m, max_j s[j]);  p[j] = exp(s[j] - m');
     *   l = l * exp(m - m') + sum p[j];  o[r] = o[r] * exp(m - m') + sum_j p[j] * v_scale[j] * V[j];  m = m'
     * q_packed: rows of k_dim values in the packing kv[k_format].queries. K and V rows are stored vectors, as
     * kv[].store leaves them (the scale of a Q8 vector multiplies its score, or its weight), of a format that need not
     * be loaded; K rows are k_row_bytes apart, V rows v_row_bytes. v_scale NULL = all ones. o: row stride ldo floats.
     * State starts as m = -INFINITY, l = 0, o = 0. K and V memory of all 16 positions must be readable and finite. */
    void (*attend_block)(int rows, const int *lo, const int *hi, const void *q_packed, int k_dim, kv_format k_format,
                         const void *k, size_t k_row_bytes, int v_dim, kv_format v_format, const void *v,
                         size_t v_row_bytes, const float *v_scale, float *m, float *l, float *o, size_t ldo);

    /* Replaces each of `rows` queries of d values, ld floats apart, by softmax(q . K) V over all `keys` keys;
     * everything is float32. k, v: [keys][d]. scratch: attend_all_floats(rows, d). A row's result does not depend on
     * the other rows. */
    void (*attend_all)(float *q, size_t ld, int rows, const float *k, const float *v, int keys, int d, float *scratch);

    /* --- products of many rows ------------------------------------------------------------------------------------ */

    /* Packs rows of x for gemm, gemm_rows together: row r, if a multiple of gemm_rows, begins at float
     * r * gemm_row_floats(k). Whole groups are written, within gemm_floats(rows, k). */
    int gemm_rows;
    void (*gemm_pack)(const float *x, size_t ldx, int rows, int k, float *packed);
    /* y[r * ldy + o] = sum_k x[r][k] * w[o][k], nothing rounded, for weights of any format. `load` reads w's rows. A
     * result depends on its row and output alone; its order of additions is not that of weight[].product. */
    void (*gemm)(const float *packed, int rows, const weight *w, cpu_row_loader load, float *y, size_t ldy);

    /* --- vectors ------------------------------------------------------------------------------------------------- */

    /* out[i] = x[i] * (mean(x^2) + eps)^-0.5 * weight[i]; weight NULL = all ones. out may be x. */
    void (*rms_norm)(const float *x, const float *weight, int n, float eps, float *out);
    /* (mean(x^2) + eps)^-0.5 */
    float (*rms_scale)(const float *x, int n, float eps);
    /* out[i] = gelu_tanh(gate[i]) * up[i]   (activation 0)   or   silu(gate[i]) * up[i]   (activation 1) */
    void (*gated)(int activation, const float *gate, const float *up, int n, float *out);
    /* x[j], x[j+half] rotated by (cos[j], sin[j]) for j < pairs; the rest unchanged. */
    void (*rope)(float *x, int half, int pairs, const float *cosine, const float *sine);
    /* y[i] += a * x[i] */
    void (*axpy)(float a, const float *x, int n, float *y);
    /* y[i] *= a */
    void (*scale)(float a, int n, float *y);
    /* y[i] *= w[i] */
    void (*multiply)(const float *w, int n, float *y);
    /* y[i] = cap * tanh(y[i] / cap) */
    void (*soft_cap)(float cap, int n, float *y);
    /* The largest of n values; NaN if one of them is not finite. */
    float (*maximum)(const float *x, int n);
    /* Index of the first value >= bound, n if there is none. */
    int (*first_at_least)(const float *x, int n, float bound);

    /* --- probes for the benchmark: what this machine allows ------------------------------------------------------ */

    /* Reads `bytes` (multiple of 4096) once and returns a checksum that keeps the loads alive. */
    float (*probe_read)(const void *data, size_t bytes);
    /* Runs the inner instruction of a product with bf16 weights on registers only, `iterations` times; returns the
     * floating-point operations done (a multiply-add counts 2). */
    double (*probe_flops)(bool round_to_bf16, size_t iterations);
} cpu_kernels;

#endif
