/* Weights under a limit. What every token needs is copied into memory of its own; routed experts lie in the arena of
 * model/expert_store.h, and are read from their file when rows have chosen them. Nothing reads the mapped files any
 * more, so their pages take no memory. Products, and so results, are those of weights that are all there. */
#ifndef KAKEYA_BACKEND_CPU_BOUNDED_H
#define KAKEYA_BACKEND_CPU_BOUNDED_H

#include "backend/cpu/cpu.h"
#include "model/expert_store.h"

/* With weights_limit, behind repack_weights. KAKEYA_INVALID_ARGUMENT names what is needed where the limit is too small,
 * KAKEYA_UNSUPPORTED says why the model's weights cannot be bounded. */
kakeya_status bounded_create(backend_model *m, kakeya_error *error);
void bounded_destroy(backend_model *m); /* fine without */
void bounded_state(const backend_model *m, backend_weights *out);

/* Experts that can be in memory at a time. */
int bounded_slots(const backend_model *m);
/* Orders a layer's `experts` [n] so that those come first which are in memory, and then those that are read ahead.
 * Returns how many are in memory. */
int bounded_order(const backend_model *m, int layer, int *experts, int n);
/* These experts of a layer are wanted, n at most bounded_slots, in the order of bounded_order: those in memory stay
 * there until the next call, reads of the others begin, and those of the first so many have ended when bounded_wait
 * returns, of all of them with n. EXPERTS_TOGETHER of the others come at about the same time. */
void bounded_begin(backend_model *m, int layer, const int *experts, int n);
kakeya_status bounded_wait(backend_model *m, int first, kakeya_error *error);
/* What the first product reads of all of them is there; bounded_wait follows with n. */
kakeya_status bounded_wait_gate_up(backend_model *m, kakeya_error *error);
/* Whether so much is missed that it pays to ask what the next layer will want: less than half of the experts have room.
 */
bool bounded_looks_ahead(const backend_model *m);
/* The layer, which is the next one, will probably want this expert: it is read after what is wanted now. */
void bounded_expect(backend_model *m, int layer, int expert);
/* The same of all of its experts, nearly all of which many rows want. */
void bounded_expect_all(backend_model *m, int layer);
/* Keeps reads going while others compute. */
void bounded_poll(backend_model *m);
/* Rows of one expert, which is in memory, of one of the layer's stacked matrices, as a matrix of their own. */
weight bounded_expert(const backend_model *m, int layer, const weight *stacked, int expert, int out);

/* Bytes per second of reads of experts at random places, measured for about a second. */
kakeya_status bounded_probe(backend_model *m, double *bytes_per_second, kakeya_error *error);

#endif
