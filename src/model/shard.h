/* What one of several devices computes of a model: some of the heads, a slice of every MLP's and every expert's width,
 * some rows of the LM head. All else is computed by every device. To a backend a device's shard is a model
 * of a smaller configuration. */
#ifndef KAKEYA_MODEL_SHARD_H
#define KAKEYA_MODEL_SHARD_H

#include "base/error.h"
#include "model/language_model.h"

typedef struct model_shard {
    int index, count; /* of the devices; count 0 or 1: the whole */
} model_shard;

static inline bool model_shard_is_whole(model_shard shard) { return shard.count <= 1; }

/* The configuration of a shard. Query heads are dealt equally, widths in eights, so that shares may differ by eight. KV
 * heads that are fewer than devices are computed by several of them. KAKEYA_UNSUPPORTED, naming option and number,
 * where heads do not divide, or a width is too small. */
kakeya_status model_shard_config(const model_config *whole, model_shard shard, model_config *out, kakeya_error *error);
/* K/V heads of a shard, of a layer with `kv_heads` of the whole; 0: they cannot be dealt. */
int model_shard_kv_heads(model_shard shard, int kv_heads);
/* The first of the shard's K/V heads, counted through the layer's `kv_heads` of the whole. */
int model_shard_first_kv_head(model_shard shard, int kv_heads);
/* Its first row of `rows` outputs of the LM head; the end is where the next shard begins. */
int model_shard_first_output(model_shard shard, int rows);

/* The shard of a matrix: of every `period` rows the `rows` from first_row on, and of these some columns. */
typedef struct matrix_cut {
    int period, first_row, rows;
    int first_column, columns;
} matrix_cut;

matrix_cut model_cut_nothing(const weight *w);
/* A share of every `period` rows, or of the columns, in eights: whole heads where their size is a multiple of eight. */
matrix_cut model_cut_rows(const weight *w, model_shard shard, int period);
matrix_cut model_cut_columns(const weight *w, model_shard shard);
/* The rows of the shard's K/V heads. */
matrix_cut model_cut_kv(const weight *w, model_shard shard, int kv_heads);
/* Rows that are left of a matrix. */
int model_cut_out(const weight *w, const matrix_cut *cut);

#endif
