/* A forward that training looks at. */
#ifndef KAKEYA_BACKEND_CPU_TRAIN_TAPS_H
#define KAKEYA_BACKEND_CPU_TRAIN_TAPS_H

#include "backend/backend_train.h"

/* backend_train_ops.forward */
kakeya_status tapped_forward(backend_model *m, backend_cache *cache, const int32_t *tokens, int n, train_tap_fn tap,
                             void *user, kakeya_error *error);

#endif
