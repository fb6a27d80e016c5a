/* Rows that were computed again on another backend, or with other kernels: there, sums have another order. */
#ifndef KAKEYA_MEASURE_REPLAY_BOUNDS_H
#define KAKEYA_MEASURE_REPLAY_BOUNDS_H

#include "measure/gate_private.h"

/* Row i of the report, and the same run here. */
void replay_compare_bounds(gate_context *c, size_t i, const eval_row *there, const eval_row *here);

#endif
