/* Which products round their input less at precision int8 (int8.h, fine input).
 *
 * What rounding does to an early layer passes through every later one, and turns choices of their routers: of the
 * divergence that int8 activations cost, the first sixth of the layers makes a third (docs/reference/formats.md).
 * Weights of few rows are read once all the same, so decoding pays next to nothing; prompts pay twice the integer
 * products of these matrices. Gates and ups, which have the most products and the least part in it, are left out. The
 * rule asks for a matrix's place alone, never for its format or who multiplies. */
#ifndef KAKEYA_BACKEND_CPU_FINE_LAYERS_H
#define KAKEYA_BACKEND_CPU_FINE_LAYERS_H

#include "backend/cpu/cpu.h"

/* At precision int8, gives the model weights of its own, and marks these matrices in them. */
kakeya_status fine_layers_mark(backend_model *m, kakeya_error *error);

#endif
