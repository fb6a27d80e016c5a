/* Router and mixture of experts. */
#ifndef KAKEYA_BACKEND_CPU_EXPERTS_H
#define KAKEYA_BACKEND_CPU_EXPERTS_H

#include "backend/cpu/matrix.h"
#include "backend/program/program.h"

/* The packings that the first products of a layer's experts want. */
packing_set experts_packings(const backend_model *m, const gemma4_layer_weights *w);
/* Each row's experts by the router's logits, and the rows of each expert. */
void experts_route(backend_model *m, const float *expert_scale, int rows);
/* Packs the input of an OP_EXPERT_PRODUCTS, with rows grouped by expert. Products of experts that somebody has chosen;
 * `views` and `jobs` have room for all. Returns how many. */
int experts_jobs(backend_model *m, const program_op *o, int rows, weight *views, matrix_job *jobs);
/* gelu_tanh(gate) * up, in place, rows of 2 * width. */
void activate(backend_model *m, float *gate_up, int rows, int width);
/* The sum of a row's experts with their weights, in the order of its ranking. */
void experts_mix(const backend_model *m, size_t row, float *out);

#endif
