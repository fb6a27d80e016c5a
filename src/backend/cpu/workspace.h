/* Memory of the largest forward: activations, packed inputs, scratch of every thread. All of it is there from the
 * model's creation on, so that a step needs none. */
#ifndef KAKEYA_BACKEND_CPU_WORKSPACE_H
#define KAKEYA_BACKEND_CPU_WORKSPACE_H

#include "backend/cpu/cpu.h"

/* Kernels, pool, input and max_rows of the model must be set. On failure workspace_destroy gives back what there is. */
kakeya_status workspace_create(backend_model *m, kakeya_error *error);
void workspace_destroy(backend_model *m);

#endif
