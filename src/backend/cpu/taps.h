/* What a forward leaves for training to look at: values that its own steps overwrite are copied here on their way. */
#ifndef KAKEYA_BACKEND_CPU_TAPS_H
#define KAKEYA_BACKEND_CPU_TAPS_H

#include <string.h>

#include "backend/backend_train.h"

typedef struct forward_taps {
    train_tap_fn tap;
    void *user;
    float *raw_k, *raw_v, *q, *o, *out; /* as wide as the widest layer */
} forward_taps;

static inline void taps_copy(float *to, const float *from, size_t rows, size_t width) {
    memcpy(to, from, rows * width * sizeof *to);
}

#endif
