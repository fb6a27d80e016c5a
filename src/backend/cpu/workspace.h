/* Memory of the largest forward: activations, packed inputs, scratch of every thread. All of it is there from the
 * model's creation on, so that a step needs none; a forward with a picture that has more rows makes it grow. */
#ifndef KAKEYA_BACKEND_CPU_WORKSPACE_H
#define KAKEYA_BACKEND_CPU_WORKSPACE_H

#include "backend/cpu/cpu.h"

/* Kernels, pool, input and max_rows of the model must be set. On failure workspace_destroy gives back what there is. */
kakeya_status workspace_create(backend_model *m, kakeya_error *error);
/* Room for forwards of `rows` rows, which are more than m->max_rows: it is m->max_rows afterwards, or more. On failure
 * nothing has changed. What was there is given back when the new memory is there. */
kakeya_status workspace_grow(backend_model *m, int rows, kakeya_error *error);
void workspace_destroy(backend_model *m);

#endif
