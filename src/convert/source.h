/* A model to be converted: its tensors in the order of the model's list, and their values as float32, row by row. */
#ifndef KAKEYA_CONVERT_SOURCE_H
#define KAKEYA_CONVERT_SOURCE_H

#include "base/threads.h"
#include "convert/convert.h"
#include "model/language_model.h"
#include "model/tensors.h"

typedef struct source_tensor {
    tensor_slot slot; /* of which name and shape are used */
    const weight *w;  /* of a matrix; the first half of each expert where `second` is there */
    const weight *second;
    int half;            /* 1, 2: of each expert only the first or the second half of its rows (all in `w`) */
    const float *values; /* of a vector or a scalar */
    int rows, in;
    int layer; /* -1: none */
} source_tensor;

typedef struct source {
    mem_account account;
    language_model *model;
    char *path; /* directory or file */
    source_tensor *tensors;
    size_t n;
    int layers_with_v;
    convert_target to;
} source;

/* Opens what is to be written as `to`. Norms of a Gemma 3 are what files of that kind hold: less by one in
 * directories. KAKEYA_UNSUPPORTED for weights that are quantised already, but where `to` is in floating point. */
kakeya_status source_open(const char *name, convert_target to, source *out, kakeya_error *error);
void source_close(source *s);

/* Values of row `row` of a matrix. */
void source_row(const source_tensor *t, int row, float *out);

/* A conversion on its way. */
typedef struct conversion {
    const source *from;
    const convert_options *options;
    thread_pool *pool;
    convert_report *report;
    uint64_t values_done, values_total;
} conversion;

/* Makes `row_bytes` bytes of each row of a matrix on all threads, in pieces that follow each other, and gives them to
 * `write`. `make` gets the row's values; rows with a value that is no number are refused before. */
typedef void (*row_maker)(void *context, int row, const float *x, unsigned char *out);
typedef kakeya_status (*piece_writer)(void *context, const void *data, size_t bytes, kakeya_error *error);
kakeya_status conversion_rows(conversion *c, const source_tensor *t, size_t row_bytes, row_maker make,
                              piece_writer write, void *context, kakeya_error *error);

kakeya_status convert_to_gguf(conversion *c, const char *out, kakeya_error *error);
kakeya_status convert_to_directory(conversion *c, const char *out, kakeya_error *error);
/* Of a quantised model, which is no source of values. */
kakeya_status convert_to_tiles(const char *model, const char *out, const convert_options *options,
                               convert_report *report, kakeya_error *error);

#endif
