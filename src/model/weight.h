/* A weight matrix in memory, and every slice of it. */
#ifndef KAKEYA_MODEL_WEIGHT_H
#define KAKEYA_MODEL_WEIGHT_H

#include <stdbool.h>

#include "base/dtype.h"
#include "model/weight_format.h"

/* A matrix [out][in], row-major, or a vector (out = 1). Its streams point into a mapped file or into MEM_WEIGHTS
 * memory. A zeroed weight: the model has no such matrix. */
typedef struct weight {
    weight_format format;
    int out, in;
    int group; /* weights of a row that share a scale, in formats whose streams have WEIGHT_GROUP tiles; else 0 */
    dtype scale_type; /* of scales of 16 bits: DTYPE_BF16 or DTYPE_F16 */
    int first;        /* row of the streams that is row 0: a slice shares its matrix's streams */
    const void *stream[WEIGHT_STREAMS];
    const float *wide; /* of a bf16 matrix: the same values in float32, as the file has them, beside others that are
                          quantised; NULL: the file has no such form */
    bool tiled;        /* the first stream is the CPU backend's own, in tiles of 16 rows (backend/cpu/int8_forms.h) */
    bool fine_input;   /* the CPU backend rounds what this matrix is multiplied with less (backend/cpu/fine_layers.h) */
    float synthetic;   /* with out > 0 and no streams: the backend makes values of this standard deviation itself */
} weight;

static inline bool weight_present(const weight *w) { return w->stream[0] != NULL; }

/* A matrix of a format with a single stream. */
weight weight_matrix(weight_format format, const void *data, int out, int in);

/* Rows [first, first + n) as a matrix of their own. */
weight weight_rows(const weight *w, int first, int n);

/* The element of a stream where row `row` begins (in tiles of several rows: the tile's). */
const void *weight_row(const weight *w, int stream, int row);

/* The same for all streams. */
void weight_row_streams(const weight *w, int row, const void *streams[WEIGHT_STREAMS]);

/* Bytes from a row of a stream's elements to the next. */
size_t weight_row_bytes(const weight *w, int stream);

/* Bytes of all streams over the matrix's rows. */
size_t weight_bytes(const weight *w);

#endif
