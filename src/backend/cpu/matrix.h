/* Batches of matrix products, and per-row work, on the pool. */
#ifndef KAKEYA_BACKEND_CPU_MATRIX_H
#define KAKEYA_BACKEND_CPU_MATRIX_H

#include "backend/cpu/cpu.h"

typedef struct matrix_job {
    const packed_rows *input;
    int first_row, rows;
    const weight *w;
    float *y; /* [rows][ldy] */
    size_t ldy;
    size_t first_piece;
    int piece;
    bool exact_input;        /* input was packed without rounding */
    const float *gemm_input; /* instead of input; rows that pack_gemm packed */
} matrix_job;

/* Room for `rows` rows of k values in all of these packings. */
kakeya_status packed_rows_create(backend_model *m, packed_rows *p, int rows, int k, packing_set packings,
                                 kakeya_error *error);
void packed_rows_destroy(packed_rows *p);
/* The packing that a product with w wants at the model's precision, or with values that are not rounded (jobs with
 * exact_input). Empty for an absent w. */
packing_set packing_of(const backend_model *m, const weight *w);
packing_set packing_exact(const backend_model *m, const weight *w);
/* Packs rows [0, rows) of x (stride ldx) in all of these forms. Parallel where it pays. */
void pack(backend_model *m, packed_rows *p, const float *x, size_t ldx, int rows, int k, packing_set packings);
/* The same, to rows [first, first + rows). */
void pack_at(backend_model *m, packed_rows *p, int first, const float *x, size_t ldx, int rows, int k,
             packing_set packings);
/* Copies row `from` of one to row `to` of another in the form that a product with w wants; rows of w->in values. */
void packed_row_copy(const backend_model *m, const weight *w, const packed_rows *source, int from, packed_rows *target,
                     int to);
/* Bytes of `rows` rows of exact input for a product with w. */
size_t multiply_alone_bytes(const backend_model *m, const weight *w, int rows);
/* y [rows][w->out] = w * packed rows [first, first + rows), on the calling thread. */
void multiply_packed(const backend_model *m, const weight *w, const packed_rows *input, int first, int rows, float *y,
                     size_t ldy);
/* y [rows][w->out] = w * x with exact input, on the calling thread; `packed` has room of multiply_alone_bytes. */
void multiply_alone(const backend_model *m, const weight *w, const float *x, size_t ldx, int rows, void *packed,
                    float *y, size_t ldy);
/* Values [begin, begin + n) of a row, as float32. */
void load_row(const backend_model *m, const weight *w, int row, int begin, int n, float *out);
void matrix_run(backend_model *m, matrix_job *jobs, int n_jobs);
matrix_job matrix_product(const packed_rows *input, int rows, const weight *w, float *y, size_t ldy);
/* The same for rows that are packed for cpu_kernels.gemm. */
void pack_gemm(backend_model *m, const float *x, size_t ldx, int rows, int k, float *packed);
matrix_job gemm_product(const float *packed, int rows, const weight *w, float *y, size_t ldy);
/* Per-row work over [0, rows), each of which reads and writes about `values` floats: on the calling thread where it is
 * little, on the pool otherwise. */
void rows_run(backend_model *m, int rows, int values, range_task task, void *context);

#endif
