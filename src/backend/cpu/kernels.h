/* The arithmetic of the CPU backend as a table, one table per instruction set. `scalar` is the oracle: plain C, no
 * intrinsics. All tables compute the same functions within rounding; within one table every result element is reduced
 * in an order that depends only on k and the data type, never on how many rows or outputs a call has (row-count
 * invariance, the first half of the lossless contract).
 *
 * Activations are float32. Before a matrix product they are packed once into a layout private to the table (and rounded
 * to bf16 if the precision says so); weights are used as they lie in the file. */
#ifndef KAKEYA_BACKEND_CPU_KERNELS_H
#define KAKEYA_BACKEND_CPU_KERNELS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/dtype.h"

enum { ATTENTION_BLOCK = 16 }; /* key positions per attention block, aligned to absolute positions */

typedef struct cpu_kernels {
    const char *name; /* "scalar", "avx2", "avx512", "avx512bf16" */

    /* --- matrix product: y[r][o] = sum_k x[r][k] * w[o][k] ------------------------------------------------------ */

    /* Bytes of one packed row of k values that will meet weights of type w. Rows lie at multiples of it, 64-aligned. */
    size_t (*pack_row_bytes)(dtype w, bool round_to_bf16, int k);
    /* Packs rows of x (stride ldx floats). Padding is zero. Each row's packed bytes depend on that row alone. */
    void (*pack_rows)(dtype w, bool round_to_bf16, const float *x, size_t ldx, int rows, int k, void *packed);
    /* y[r * ldy + (o - o_begin)] for o in [o_begin, o_end), r in [0, rows). w: [*][k] with row stride ldw elements
     * (need not be aligned beyond its element). packed must come from pack_rows with the same w type, rounding and k.
     * Bound: (o_end - o_begin) * k weights read once for rows <= 8 or so; FMA rate beyond. */
    void (*matmul)(dtype w_type, bool round_to_bf16, const void *packed, int rows, int k, const void *w, size_t ldw,
                   int o_begin, int o_end, float *y, size_t ldy);

    /* --- attention over one block of ATTENTION_BLOCK keys (flash-style, online softmax) -------------------------- */

    /* For each of `rows` queries r with key range [lo[r], hi[r]) inside the block (empty: the row is untouched):
     *   s[j] = q[r] . K[j];  m' = max(m, max_j s[j]);  p[j] = exp(s[j] - m');
     *   l = l * exp(m - m') + sum p[j];  o[r] = o[r] * exp(m - m') + sum_j p[j] * v_scale[j] * V[j];  m = m'
     * q_packed: rows packed with pack_rows(k_type, false, ..., k_dim). K rows k_stride elements apart, V rows v_stride
     * apart. v_scale NULL = all ones. o: row stride ldo floats. State starts as m = -INFINITY, l = 0, o = 0.
     * K and V memory of all 16 positions must be readable and finite. */
    void (*attend_block)(int rows, const int *lo, const int *hi, const void *q_packed, int k_dim, dtype k_type,
                         const void *k, size_t k_stride, int v_dim, dtype v_type, const void *v, size_t v_stride,
                         const float *v_scale, float *m, float *l, float *o, size_t ldo);

    /* --- vectors ------------------------------------------------------------------------------------------------- */

    /* out[i] = x[i] * (mean(x^2) + eps)^-0.5 * weight[i]; weight NULL = all ones. out may be x. */
    void (*rms_norm)(const float *x, const float *weight, int n, float eps, float *out);
    /* (mean(x^2) + eps)^-0.5 */
    float (*rms_scale)(const float *x, int n, float eps);
    /* out[i] = gelu_tanh(gate[i]) * up[i]   (activation 0)   or   silu(gate[i]) * up[i]   (activation 1) */
    void (*gated)(int activation, const float *gate, const float *up, int n, float *out);
    /* x[j], x[j+half] rotated by (cos[j], sin[j]) for j < pairs; the rest unchanged. */
    void (*rope)(float *x, int half, int pairs, const float *cosine, const float *sine);
    /* out = rope(norm * v) for v [2 * half] of a stored type: the key of a K = V layer. Same bits as load, multiply and
     * rope. */
    void (*derive_key)(dtype type, const void *v, const float *norm, int half, int pairs, const float *cosine,
                       const float *sine, float *out);
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
    /* float32 -> stored type, and back */
    void (*store)(dtype type, const float *x, int n, void *out);
    void (*load)(dtype type, const void *x, int n, float *out);

    /* --- probes for the benchmark: what this machine allows ------------------------------------------------------ */

    /* Reads `bytes` (multiple of 4096) once and returns a checksum that keeps the loads alive. */
    float (*probe_read)(const void *data, size_t bytes);
    /* Runs the inner instruction of matmul(w_type bf16) on registers only, `iterations` times; returns the
     * floating-point operations done (a multiply-add counts 2). */
    double (*probe_flops)(bool round_to_bf16, size_t iterations);
} cpu_kernels;

/* The named table, or the best one this CPU runs when name is NULL. NULL if unknown or not supported here. */
const cpu_kernels *cpu_kernels_find(const char *name);
/* Names of the tables that this CPU can run, best first, NULL-terminated. */
const char *const *cpu_kernels_supported(void);

#endif
