/* The weights of a drafter in training as one array of float32, which optimisers see as a row of numbers: the tensors
 * of dflash_walk in its order, one behind the other. */
#ifndef KAKEYA_MODEL_DFLASH_VALUES_H
#define KAKEYA_MODEL_DFLASH_VALUES_H

#include "model/dflash.h"

/* Values of all tensors; of those that the walk begins with: fc and the norms that are no layer's. */
size_t dflash_values_count(const dflash_config *c);
size_t dflash_values_outside_layers(const dflash_config *c);
/* Points the tensors of *out, whose configuration becomes `c`, into `values`. */
void dflash_values_bind(const dflash_config *c, float *values, dflash_model *out);

/* Random matrices, norms of ones, and the verifier's own norm before the head. */
void dflash_values_begin(const dflash_config *c, const gemma4_weights *verifier, uint64_t seed, float *values);

#endif
