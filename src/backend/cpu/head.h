/* Logits, and greedy choices through an int8 copy of the head. */
#ifndef KAKEYA_BACKEND_CPU_HEAD_H
#define KAKEYA_BACKEND_CPU_HEAD_H

#include "backend/cpu/cpu.h"

/* Makes the int8 copy where it is of use and there is memory for it. The pool must be there. */
void head_create(backend_model *m);
void head_destroy(backend_model *m);
/* Bytes of the head that greedy choices read as long as few logits are close to the largest. */
size_t cpu_greedy_head_bytes(const backend_model *m);
/* x [rows][hidden] after the final norm; `packed`, which has room for them, is overwritten. */
/* Soft-capped logits; those of row r [vocab] go to to[r]. */
void head_logits(backend_model *m, packed_rows *packed, const float *x, int rows, float *const *to);
/* The id of each row's largest logit, the lowest on ties, none of `excluded`, nor the row's own of `own` (NULL: no row
 * has one; -1: this one has none); -1 where a logit is not finite. */
void head_choose(backend_model *m, packed_rows *packed, const float *x, int rows, const int *excluded, int n_excluded,
                 const int32_t *own, int32_t *choice);

#endif
