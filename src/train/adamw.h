/* AdamW (Loshchilov and Hutter, "Decoupled weight decay regularization") with a clipped gradient, and its learning
 * rates. */
#ifndef KAKEYA_TRAIN_ADAMW_H
#define KAKEYA_TRAIN_ADAMW_H

#include <stdbool.h>
#include <stddef.h>

#include "base/threads.h"

typedef struct adamw_options {
    double beta[2], eps, decay; /* decay: of weights, a share of the learning rate */
    double clip;                /* length of the gradient, at most */
} adamw_options;

/* Of a gradient; no number where one of its values is none. The same bits for any number of threads. */
double adamw_length(thread_pool *pool, const float *gradient, size_t n);
/* Step `step` (from 1 on) of n weights: first and second are zeros before the first one. `length` is the gradient's.
 * Weight i is counted in units of unit[i], and so must its gradient be; NULL: 1. The same bits for any number of
 * threads. */
void adamw_step(thread_pool *pool, const adamw_options *o, double rate, int step, double length, const float *gradient,
                const float *unit, size_t n, float *weights, float *first, float *second);

/* Of step `step` of `steps`: a straight line to the peak over `warm_up` steps, then half a cosine down to a hundredth
 * of it; or the peak throughout. */
double adamw_rate(bool constant, double peak, int warm_up, int step, int steps);

#endif
