/* What an MTP assistant reads of its verifier, out of the layers of a forward. */
#ifndef KAKEYA_TRAIN_SEEN_H
#define KAKEYA_TRAIN_SEEN_H

#include "backend/backend_train.h"
#include "model/assistant_values.h"

/* Puts the layer's part, where it has one, into `seen` [positions][width], at the rows of the forward: of the last
 * layer the state, of a source K and V. */
void seen_take(const assistant_seen *s, const language_model *verifier, const train_layer *layer, float *seen);

#endif
