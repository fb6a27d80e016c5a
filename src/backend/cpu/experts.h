/* Router and mixture of experts. */
#ifndef KAKEYA_BACKEND_CPU_EXPERTS_H
#define KAKEYA_BACKEND_CPU_EXPERTS_H

#include "backend/cpu/matrix.h"
#include "backend/program/program.h"

/* The packings that the first products of a layer's experts want. */
packing_set experts_packings(const backend_model *m, const layer_weights *w);
/* Each row's experts by the router's logits, and the rows of each expert. */
void experts_route(backend_model *m, const float *expert_scale, int rows);
/* Experts of a layer; those of a model that is bounded (bounded.h) are in memory where products are made of them. */
typedef struct expert_list {
    int *expert; /* [n] */
    int n;
} expert_list;
/* Those that somebody has chosen, ascending; in the model's workspace, where it may be put in another order. */
expert_list experts_chosen(const backend_model *m);
/* Of a model that is bounded, between a layer's router and its second products: the expert that this layer, the next
 * one, will most probably choose of those that are not in memory; negative: those that it will probably choose are
 * there. */
int experts_likely(backend_model *m, int layer, int rows);
/* Packs the input of the gated OP_EXPERT_PRODUCTS, with rows grouped by expert. */
void experts_pack(backend_model *m, const program_op *o, int rows);
/* The products of that operation; what activates their results; packs those, and the products of the operation behind
 * it. `views` and `jobs` have room for all. Return how many. */
int experts_gate_up(backend_model *m, const program_op *o, expert_list list, weight *views, matrix_job *jobs);
void experts_activate(backend_model *m, expert_list list);
int experts_down(backend_model *m, int layer, expert_list list, weight *views, matrix_job *jobs);
/* gelu_tanh(gate) * up, in place, rows of 2 * width. */
void activate(backend_model *m, float *gate_up, int rows, int width);
/* The sum of a row's experts with their weights, in the order of its ranking. */
void experts_mix(const backend_model *m, size_t row, float *out);

#endif
