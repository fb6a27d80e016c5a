/* Logits, and greedy choices through an int8 copy of the head. */
#ifndef KAKEYA_BACKEND_CPU_HEAD_H
#define KAKEYA_BACKEND_CPU_HEAD_H

#include "backend/cpu/cpu.h"

/* Makes the int8 copy where it is of use and there is memory for it. The pool must be there. */
void head_create(backend_model *m);
void head_destroy(backend_model *m);
/* The same of any head over the model's vocabulary that is no wider than the model: an assistant's. */
void head_screen_create(backend_model *m, const weight *head, head_screen *screen);
/* Bytes of the head that a greedy choice reads as long as few logits are close to the largest. */
size_t head_screen_bytes(const backend_model *m, const weight *head, const head_screen *screen);
void head_screen_destroy(backend_model *m, head_screen *screen); /* one of zeros is fine */
/* The same of the model's own. */
size_t cpu_greedy_head_bytes(const backend_model *m);
/* x [rows][hidden] after the final norm; `packed`, which has room for them, is overwritten. */
/* Soft-capped logits; those of row r [vocab] go to to[r]. */
void head_logits(backend_model *m, packed_rows *packed, const float *x, int rows, float *const *to);
/* What rows leave out. */
typedef struct head_limits {
    const int *excluded; /* [n_excluded] ids that no row chooses */
    int n_excluded;
    const int32_t *own;             /* NULL, or by row one id more; -1: none */
    const uint32_t *const *allowed; /* NULL, or by row bits of the ids that it may choose; NULL: all */
} head_limits;
/* The id of each row's largest logit, the lowest on ties, within its limits; -1 where a logit is not finite, or no id
 * is left. */
void head_choose(backend_model *m, packed_rows *packed, const float *x, int rows, const head_limits *limits,
                 int32_t *choice);
/* The same through another head. */
typedef struct greedy_head {
    const weight *head;
    head_screen *screen; /* NULL: whole products */
    float cap;           /* of its logits; 0: none */
} greedy_head;
void head_choose_by(backend_model *m, const greedy_head *by, packed_rows *packed, const float *x, int rows,
                    const head_limits *limits, int32_t *choice);

#endif
