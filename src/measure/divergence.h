/* How far one distribution over the vocabulary is from another. */
#ifndef KAKEYA_MEASURE_DIVERGENCE_H
#define KAKEYA_MEASURE_DIVERGENCE_H

#include <stdbool.h>

/* KL(native || other) of two rows of logits [vocab], natural logarithm. *top: the lowest id of the other's largest
 * logit; *agree: it is the native one's too. */
double eval_divergence(const float *native, const float *other, int vocab, int *top, bool *agree);

#endif
