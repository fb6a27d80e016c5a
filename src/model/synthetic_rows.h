/* Rows of made-up values, for matrices without a checkpoint: what keeps a model in memory makes all of them, a backend
 * that copies weights to a device makes them one by one on their way. */
#ifndef KAKEYA_MODEL_SYNTHETIC_ROWS_H
#define KAKEYA_MODEL_SYNTHETIC_ROWS_H

#include <stdint.h>

#include "model/weight.h"

enum { SYNTHETIC_GROUP = 64 /* affine and int4 codes that share a scale, as published directories have it */ };

/* Whether rows of this format can be made: F32, BF16, affine codes of 4 and 8 bits, FP8, int4, mxfp4, nvfp4. */
bool synthetic_rows_can(weight_format format);
/* How many values of rows of `in` share a scale; 0 where the format has no groups. */
int synthetic_group(weight_format format, int in);
/* Row `row` of a stream: weight_row_bytes(w, stream) bytes. Values have mean 0 and the matrix's `synthetic` standard
 * deviation; of codes, all are as likely and all scales the
 * same, but for signs; where scales are powers of two, the deviation is no more than the nearest one. A seed, a row and
 * a stream always give the same bytes. */
void synthetic_row(const weight *w, uint64_t seed, int row, int stream, void *to);

#endif
