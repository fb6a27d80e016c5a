/* The weights of an MTP assistant in training as one array of float32: the tensors of assistant_walk in its order, one
 * behind the other, without those that are ignored. */
#ifndef KAKEYA_MODEL_ASSISTANT_VALUES_H
#define KAKEYA_MODEL_ASSISTANT_VALUES_H

#include "model/assistant.h"

/* What an assistant reads of one position of its verifier, as floats: the state (the hidden state after the final
 * norm), then K and V of the layers that its own attend, K after its norm and RoPE, V after its norm. */
typedef struct assistant_seen {
    size_t width;      /* floats */
    int source[2];     /* by layer_type; -1: no layer of the assistant has the type */
    size_t k[2], v[2]; /* where they begin */
    size_t kv[2];      /* floats of each */
} assistant_seen;

assistant_seen assistant_sees(const assistant_config *c, const model_config *verifier);

/* The tensors, whose scalars have a place, too. */
typedef struct assistant_values {
    assistant_weights weights; /* matrices of WEIGHT_F32; layer_scalar as it was when they were bound */
    float *scalar[ASSISTANT_MAX_LAYERS];
} assistant_values;

size_t assistant_values_count(const assistant_config *c);
void assistant_values_bind(const assistant_config *c, float *values, assistant_values *out);
/* Random matrices that keep the size of what they are given; norms and scalars of ones, but for the norms that end a
 * branch, which let little of it into the residual stream. */
void assistant_values_begin(const assistant_config *c, uint64_t seed, float *values);

#endif
