/* The weights of a drafter in training as one array of float32, which optimisers see as a row of numbers: the tensors
 * of dflash_walk in its order, one behind the other. */
#ifndef KAKEYA_MODEL_BLOCK_DRAFTER_VALUES_H
#define KAKEYA_MODEL_BLOCK_DRAFTER_VALUES_H

#include "model/block_drafter.h"

/* Values of all tensors; of those that the walk begins with: fc and the norms that are no layer's. */
size_t block_drafter_values_count(const block_drafter_config *c);
size_t block_drafter_values_outside_layers(const block_drafter_config *c);
/* Points the tensors of *out, whose configuration becomes `c`, into `values`. */
void block_drafter_values_bind(const block_drafter_config *c, float *values, block_drafter_model *out);

/* Random matrices, norms of ones, and the verifier's own norm before the head. */
void block_drafter_values_begin(const block_drafter_config *c, const model_weights *verifier, uint64_t seed,
                                float *values);

#endif
