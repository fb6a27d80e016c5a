/* Values of weights in any format, as float32: for backends that have no product of their own for it. */
#ifndef KAKEYA_BACKEND_WEIGHT_VALUES_H
#define KAKEYA_BACKEND_WEIGHT_VALUES_H

#include "model/weight.h"

/* Values [first, first + n) of a row of a matrix that has data. */
void weight_values(const weight *w, int row, int first, int n, float *out);
/* The same of a row whose streams are known (weight_row_streams), [WEIGHT_STREAMS]. */
void weight_row_values(const weight *w, const void *const *streams, int first, int n, float *out);

#endif
