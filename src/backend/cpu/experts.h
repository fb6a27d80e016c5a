/* Router and mixture of experts. */
#ifndef KAKEYA_BACKEND_CPU_EXPERTS_H
#define KAKEYA_BACKEND_CPU_EXPERTS_H

#include "backend/cpu/cpu.h"

/* The packings that the first products of a layer's experts want. */
packing_set experts_packings(const backend_model *m, const gemma4_layer_weights *w);
void experts_route(backend_model *m, const gemma4_layer_weights *w, int rows);
void experts_forward(backend_model *m, const gemma4_layer_weights *w, const gemma4_layer_config *lc, int rows);

#endif
