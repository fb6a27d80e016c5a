/* Rows of a checkpoint's matrices, in any format, as they lie on the device. Needs no device. */
#ifndef KAKEYA_BACKEND_CUDA_WEIGHT_ROWS_H
#define KAKEYA_BACKEND_CUDA_WEIGHT_ROWS_H

#include <stdbool.h>

#include "backend/cuda/kernels.h"
#include "model/shard.h"

/* What a matrix of the device is made from: the part `cut` of a weight. With `second` (experts whose gate and up are
 * two matrices) every cut.rows rows of the first are followed by as many of the second. */
typedef struct weight_source {
    const weight *first, *second; /* second NULL: none */
    matrix_cut cut;
} weight_source;

/* Rows on the device. */
int weight_source_out(const weight_source *source);
/* The form that keeps the format's values exactly, as far as there is one. */
cuda_form weight_source_form(const weight_source *source);
/* Whether prompt rows can meet it in e4m3 (prompt_gemm_f8.h): codes are, and a scale is that of 128 values at least. */
bool weight_source_rounds_rows(const weight_source *source);
/* Whether all scales of a row are equal, in form F8. */
bool weight_source_has_one_scale(const weight_source *source);
/* Whether bits are lost on the way to this form, of weights that need not be there yet. */
bool weight_source_rounds(const weight_source *source, cuda_form form);

/* Bytes of rows [first, first + n) of a matrix whose ld is known; both are multiples of eight, but n at the end. */
size_t weight_rows_bytes(const cuda_matrix *m, size_t n);
/* Makes these rows, in all of these bytes, on the calling thread. */
void weight_rows_convert(const weight_source *source, const cuda_matrix *m, size_t first, size_t n, void *to);

#endif
